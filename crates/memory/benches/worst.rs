//! Times the slowest insertion into a cache of four million entries: one that makes its shard grow,
//! or sweep entries that were all hit.
//!
//!     cargo bench -p floe-memory --bench worst
//!
//! With the number of shards that a cache has by default, and with one. The time is the thread's
//! processor time, so that other programs do not count; what a hypervisor takes from a virtual core
//! does. So each row is run three times, and the run with the least is printed.

#[cfg(target_os = "linux")]
use floe_memory::Cache;
#[cfg(target_os = "linux")]
use floe_testkit::thread_time;

#[cfg(target_os = "linux")]
fn main() {
    const RUNS: usize = 3;
    println!(
        "{:<10} {:>6} {:>10} {:>10} {:>12}",
        "policy", "shards", "mean ns", "worst us", "over 1 ms"
    );
    for policy in ["qd-clock", "s3-fifo", "clock", "lru"] {
        for shards in [None, Some(1)] {
            let runs = (0..RUNS).map(|_| run(policy, shards));
            let least = runs.min_by_key(|run| run.worst_ns).expect("there are runs");
            println!(
                "{policy:<10} {:>6} {:>10} {:>10} {:>12}",
                least.shards,
                least.mean_ns,
                least.worst_ns / 1000,
                least.over_a_millisecond
            );
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("not timed: the processor time of a thread is Linux's");
}

#[cfg(target_os = "linux")]
struct Run {
    shards: usize,
    mean_ns: u64,
    worst_ns: u64,
    over_a_millisecond: u64,
}

/// Fills a cache, hits every entry, and inserts as many again.
#[cfg(target_os = "linux")]
fn run(policy: &str, shards: Option<usize>) -> Run {
    const ENTRIES: u64 = 4_000_000;
    let builder = Cache::<u64, u64>::builder().capacity(ENTRIES as usize);
    let builder = builder.policy_named(policy).expect("the policy is registered");
    let cache = match shards {
        Some(shards) => builder.shards(shards).build(),
        None => builder.build(),
    };
    let (mut sum, mut worst, mut over) = (0, 0, 0);
    for key in 0..2 * ENTRIES {
        if key == ENTRIES {
            (0..ENTRIES).for_each(|key| drop(cache.get(&key)));
        }
        let begun = thread_time();
        cache.insert(key, key);
        let took = (thread_time() - begun).as_nanos() as u64;
        sum += took;
        worst = worst.max(took);
        over += u64::from(took > 1_000_000);
    }
    Run {
        shards: cache.stats().shards as usize,
        mean_ns: sum / (2 * ENTRIES),
        worst_ns: worst,
        over_a_millisecond: over,
    }
}
