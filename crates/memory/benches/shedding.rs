//! Load shedding at work: a closed loop of threads on LRU, whose misses wait for a disk, with
//! shedding and without, in turn.
//!
//! `cargo bench -p floe-memory --bench shedding` prints, for each number of threads and disk,
//! throughput with shedding as a ratio to without, and what was decided. With few cores hits do not
//! wait for each other for long, and nothing should be shed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use floe_memory::policy::Lru;
use floe_memory::{Cache, SheddingOptions};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const KEYS: u64 = 10_000;
/// All but a hundredth of the keys.
const CAPACITY: usize = 9_900;
const RUNS: usize = 2;
const RUN: Duration = Duration::from_secs(5);
/// Requests between two looks at the clock.
const BATCH: u64 = 100;

fn main() {
    println!(
        "LRU in one part, {KEYS} keys drawn evenly, {CAPACITY} entries; throughput in requests a \
         second"
    );
    println!(
        "{:>7} {:>8} {:>12} {:>12} {:>7}  decided",
        "threads", "disk µs", "without", "with", "ratio"
    );
    for (threads, disk_us) in [(2, 0), (2, 100), (16, 100), (72, 100), (72, 500)] {
        let disk = Duration::from_micros(disk_us);
        let (mut without, mut with, mut decided) = (0.0, 0.0, String::new());
        for _ in 0..RUNS {
            without += run(None, threads, disk).0 / RUNS as f64;
            let (throughput, last) = run(Some(SheddingOptions::default()), threads, disk);
            with += throughput / RUNS as f64;
            decided = last;
        }
        println!(
            "{threads:>7} {disk_us:>8} {without:>12.0} {with:>12.0} {:>7.3}  {decided}",
            with / without
        );
    }
}

/// Requests a second, and the shares decided for with the last reason.
fn run(shedding: Option<SheddingOptions>, threads: u64, disk: Duration) -> (f64, String) {
    let builder = Cache::<u64, u64>::builder().capacity(CAPACITY).shards(1).policy(Lru::default());
    let cache = match shedding {
        Some(options) => builder.shedding(options).build(),
        None => builder.build(),
    };
    (0..KEYS).for_each(|key| cache.insert(key, key));
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (cache, stop, done) = (&cache, &stop, &done);
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(thread);
                while !stop.load(Relaxed) {
                    for _ in 0..BATCH {
                        let key = random.random_range(0..KEYS);
                        let load = || {
                            if !disk.is_zero() {
                                std::thread::sleep(disk);
                            }
                            Ok::<_, ()>(key)
                        };
                        assert_eq!(cache.get_or_load(&key, load).map(|value| *value), Ok(key));
                    }
                    done.fetch_add(BATCH, Relaxed); // a count
                }
            });
        }
        std::thread::sleep(RUN);
        stop.store(true, Relaxed); // only to end
    });
    let throughput = done.load(Relaxed) as f64 / began.elapsed().as_secs_f64();
    let decided = cache.stats().shedding.map_or_else(String::new, |stats| {
        let shares: Vec<String> =
            stats.decisions.iter().map(|it| format!("{:.0} %", 100.0 * it.share)).collect();
        let last = stats.decisions.last().map_or("", |last| last.reason.as_str());
        format!("{}; {last}", shares.join(" "))
    });
    (throughput, decided)
}
