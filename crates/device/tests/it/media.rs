//! Promises of the model of a medium, checked on simulated time.

use std::collections::BTreeMap;

use crate::common::SECTOR;
use floe_device::medium::{Direction, Model};
use floe_device::{Device, Medium, MediumDevice, MemoryDevice, SharedMedium};
use proptest::prelude::*;

fn model(name: &str, seed: u64) -> Model {
    Model::new(Medium::named(name).unwrap(), seed)
}

fn any_medium() -> impl Strategy<Value = Medium> {
    (0usize..7).prop_map(|which| Medium::all().nth(which).unwrap())
}

/// Bytes per second read by `readers`, each with one operation of `bytes` in flight, beside
/// `writers` doing the same; one simulated second, or what `seconds` says.
fn read_throughput(name: &str, readers: usize, writers: usize, bytes: u64, seconds: f64) -> f64 {
    let mut model = model(name, 1);
    let end_ns = (seconds * 1e9) as u64;
    let mut queue: BTreeMap<(u64, usize), Direction> = BTreeMap::new();
    for worker in 0..readers + writers {
        queue
            .insert((0, worker), if worker < readers { Direction::Read } else { Direction::Write });
    }
    let mut read_bytes = 0;
    while let Some(((now_ns, worker), direction)) = queue.pop_first() {
        if now_ns >= end_ns {
            break;
        }
        let due_ns = model.start(now_ns, direction, bytes);
        if direction == Direction::Read {
            read_bytes += bytes;
        }
        queue.insert((due_ns, worker), direction);
    }
    read_bytes as f64 / seconds
}

#[test]
fn writers_take_from_eight_readers_what_the_paper_measured() {
    for (name, one, eight) in [("pmem", 0.28, 0.067), ("dram", 0.82, 0.65)] {
        let alone = read_throughput(name, 8, 0, 4096, 0.05);
        let ratios = [1, 8].map(|writers| read_throughput(name, 8, writers, 4096, 0.05) / alone);
        assert!((ratios[0] - one).abs() < 0.02, "{name}: {} with one writer", ratios[0]);
        assert!((ratios[1] - eight).abs() < 0.02, "{name}: {} with eight writers", ratios[1]);
    }
    let pmem = read_throughput("pmem", 8, 0, 4096, 0.05);
    assert!((pmem / 12e9 - 1.0).abs() < 0.03, "{pmem} bytes per second alone");
}

#[test]
fn more_writers_never_leave_more_to_readers() {
    for medium in Medium::all() {
        let kept: Vec<f64> = (0..100).map(|n| medium.interference_of(n).read_throughput).collect();
        assert_eq!(kept[0], 1.0);
        assert!(
            kept.windows(2).all(|pair| pair[1] <= pair[0] && pair[1] > 0.0),
            "{}: {kept:?}",
            medium.name
        );
    }
}

#[test]
fn small_reads_reach_the_operations_per_second_of_the_data_sheets() {
    for (name, depth, expected) in
        [("optane", 16, 585e3), ("nvme", 128, 490e3), ("cloud", 64, 16e3)]
    {
        let found = read_throughput(name, depth, 0, 4096, 1.0) / 4096.0;
        assert!((found / expected - 1.0).abs() < 0.08, "{name}: {found} operations a second");
    }
}

#[test]
fn depth_beyond_the_servers_adds_latency_and_no_throughput() {
    let disk = |depth| read_throughput("hdd", depth, 0, 4096, 20.0);
    assert!((disk(32) / disk(1) - 1.0).abs() < 0.1);
    let flash = |depth| read_throughput("nvme", depth, 0, 4096, 0.2);
    assert!(flash(8) / flash(1) > 7.0);
}

#[test]
fn an_idle_medium_answers_with_its_median_and_p99() {
    for medium in Medium::all().filter(|medium| !["dram", "pmem"].contains(&medium.name)) {
        for (direction, path) in [(Direction::Read, medium.read), (Direction::Write, medium.write)]
        {
            let mut model = Model::new(medium.clone(), 5);
            let mut now_ns = 0;
            let mut latencies: Vec<u64> = (0..20_000)
                .map(|_| {
                    now_ns += 1_000_000_000;
                    model.start(now_ns, direction, 4096) - now_ns
                })
                .collect();
            latencies.sort_unstable();
            for (share, expected) in [(0.5, path.median_ns), (0.99, path.p99_ns)] {
                let found = latencies[(latencies.len() as f64 * share) as usize] as f64;
                assert!(
                    (found / expected - 1.0).abs() < 0.1,
                    "{} {direction:?} {found}",
                    medium.name
                );
            }
        }
    }
}

#[test]
fn a_flush_waits_for_the_writes_before_it() {
    let mut model = model("hdd", 1);
    let written_ns = model.start(0, Direction::Write, 1 << 20);
    assert!(model.start(1, Direction::Flush, 0) >= written_ns);
    assert_eq!(model.writers(written_ns - 1), 1);
    assert_eq!(model.writers(written_ns), 0);
}

proptest! {
    #[test]
    fn the_same_seed_gives_the_same_times(medium in any_medium(), seed: u64, steps in steps()) {
        prop_assert_eq!(times(&medium, seed, &steps, 1), times(&medium, seed, &steps, 1));
    }

    #[test]
    fn larger_operations_are_never_done_earlier(
        medium in any_medium(), seed: u64, steps in steps(),
    ) {
        // The same operations, each twice as large. Interference follows from the writes in flight,
        // so only reads or only writes are compared.
        for wanted in [Direction::Read, Direction::Write] {
            let same = steps.iter().map(|&(wait_ns, _, bytes)| (wait_ns, wanted, bytes));
            let same: Vec<_> = same.collect();
            let (small, large) = (times(&medium, seed, &same, 1), times(&medium, seed, &same, 2));
            prop_assert!(small.iter().zip(&large).all(|(small, large)| small <= large));
        }
    }

    #[test]
    fn bandwidth_is_kept_over_long_runs(
        medium in any_medium(), bytes in 4096u64..1 << 20, write: bool,
    ) {
        let (direction, path) = match write {
            true => (Direction::Write, medium.write),
            false => (Direction::Read, medium.read),
        };
        let mut model = Model::new(medium, 1);
        let last_ns = (0..2000).map(|_| model.start(0, direction, bytes)).max().unwrap();
        let rate = 2000.0 * bytes as f64 / (last_ns as f64 + 100_000.0) * 1e9;
        prop_assert!(rate <= path.bytes_per_second * 1.01, "{} bytes per second", rate);
    }

    #[test]
    fn nothing_is_done_before_it_began(medium in any_medium(), seed: u64, steps in steps()) {
        let mut now_ns = 0;
        for ((wait_ns, ..), due_ns) in steps.iter().zip(times(&medium, seed, &steps, 1)) {
            now_ns += wait_ns;
            prop_assert!(due_ns >= now_ns);
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<(u64, Direction, u64)>> {
    let direction =
        prop_oneof![Just(Direction::Read), Just(Direction::Write), Just(Direction::Flush)];
    proptest::collection::vec((0u64..100_000, direction, 0u64..1 << 20), 1..50)
}

fn times(medium: &Medium, seed: u64, steps: &[(u64, Direction, u64)], factor: u64) -> Vec<u64> {
    let mut model = Model::new(medium.clone(), seed);
    let mut now_ns = 0;
    let mut start = |&(wait_ns, direction, bytes): &(u64, Direction, u64)| {
        now_ns += wait_ns;
        model.start(now_ns, direction, bytes * factor)
    };
    steps.iter().map(&mut start).collect()
}

#[test]
fn a_slowed_device_never_answers_early_and_says_when_to_come_back() {
    let (ring, pool) = crate::common::thread();
    let mut medium = Medium::named("cloud").unwrap();
    (medium.read.median_ns, medium.read.p99_ns) = (3e6, 3.000_001e6);
    let mut device = MediumDevice::new(MemoryDevice::new(1 << 20), medium, 1);
    assert_eq!(device.next_due(), None);
    let began = std::time::Instant::now();
    crate::common::read(&ring, &pool, &mut device, 0, SECTOR).unwrap();
    assert!(began.elapsed().as_micros() >= 2999);
    assert_eq!(device.timing_error().completions, 1);
    assert_eq!(device.spun(), std::time::Duration::ZERO);
    assert_eq!(device.next_due(), None);
}

#[test]
fn threads_that_share_a_medium_share_its_bandwidth() {
    // 1 MiB each at 64 MiB/s: together they need the time of all four, and no thread its own
    // quarter only.
    const THREADS: u32 = 4;
    let mut medium = Medium::named("dram").unwrap();
    medium.read.bytes_per_second = (64 << 20) as f64;
    let medium = SharedMedium::new(medium, 1);
    let began = std::time::Instant::now();
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let medium = medium.clone();
            std::thread::spawn(move || {
                let (ring, pool) = crate::common::thread();
                let mut device = MediumDevice::sharing(MemoryDevice::new(1 << 20), medium);
                for part in 0..16 {
                    crate::common::read(&ring, &pool, &mut device, part << 16, 1 << 16).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let least = std::time::Duration::from_secs(1) * THREADS / 64;
    let burst = std::time::Duration::from_millis(1);
    assert!(began.elapsed() + burst >= least, "{:?}", began.elapsed());
}
