//! The memory of a cache that was made much smaller: each one alone in a process, as it looks at
//! all of that's, and as the allocator keeps what other caches have freed.

#![cfg(all(
    target_os = "linux",
    not(miri),
    not(floe_thread_sanitizer) // whose own memory stays
))]

use std::fs::read_to_string;
use std::process::Command;

use floe_memory::Cache;

/// Bytes of the process that are in memory.
fn resident() -> usize {
    let status = read_to_string("/proc/self/status").expect("procfs is there");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("the field is there");
    let kilobytes: usize = line.split_whitespace().nth(1).unwrap().parse().expect("a number");
    kilobytes << 10
}

/// Fills a cache with `entries` values of `SIZE` bytes, makes it a hundredth as large, and fills it
/// again. Returns the shares of the memory that are left after the one and the other.
fn shares_left<const SIZE: usize>(entries: usize, shards: usize) -> (f64, f64) {
    let before = resident();
    let cache = Cache::<usize, [u8; SIZE]>::builder().capacity(entries).shards(shards).build();
    let fill = || (0..entries).for_each(|key| cache.insert(key, [key as u8; SIZE]));
    fill();
    let (full, told_full) = (resident() - before, cache.stats().memory_bytes);
    assert!(full > entries * SIZE, "the test is not about {full} bytes");
    cache.resize(entries / 100);
    assert_eq!(cache.len(), entries / 100);
    let (small, told_small) = (resident() - before, cache.stats().memory_bytes);
    // What is left is whole, and room is found for others.
    for item in &cache {
        assert_eq!(*item.value(), [*item.key() as u8; SIZE]);
    }
    (0..entries / 10).for_each(|key| cache.insert(key, [!key as u8; SIZE]));
    for item in &cache {
        let byte = *item.key() as u8;
        assert!([[byte; SIZE], [!byte; SIZE]].contains(item.value()));
    }
    cache.resize(entries);
    fill();
    let (again, told_again) = (resident() - before, cache.stats().memory_bytes);
    let keys = cache.iter().map(|item| *item.key()).collect::<std::collections::HashSet<_>>();
    assert_eq!(keys.len(), cache.len());
    println!(
        "values of {SIZE} bytes in {shards} shards: resident {full}, {small}, {again}; \
         told {told_full}, {told_small}, {told_again}"
    );
    drop(cache);
    // The allocator may keep some more of what the cache has freed.
    assert!((told_small as usize) < small, "{told_small} bytes are told of, not {small}");
    assert!(told_full < told_again + told_again / 8 && told_again < told_full + told_full / 8);
    (small as f64 / full as f64, again as f64 / full as f64)
}

/// Number of the case that a child of the test is to run.
const CASE: &str = "FLOE_GIVEN_BACK_CASE";

#[test]
fn a_smaller_cache_gives_memory_back() {
    let Ok(case) = std::env::var(CASE) else {
        for case in 0..4 {
            let mut child = Command::new(std::env::current_exe().expect("it runs"));
            child.args(["--exact", "a_smaller_cache_gives_memory_back", "--nocapture"]);
            let ended = child.env(CASE, case.to_string()).status().expect("it runs again");
            assert!(ended.success(), "case {case}");
        }
        return;
    };
    let case: usize = case.parse().expect("a number");
    let shards = [1, 8][case % 2];
    if case < 2 {
        // Half a gigabyte of pages.
        let (small, again) = shares_left::<4096>(125_000, shards);
        assert!(small < 0.05, "{small} of the memory is left for pages");
        assert!((0.9..1.1).contains(&again), "{again} after it was filled again");
    } else {
        // A page has dozens: on every second one an entry is left.
        let (small, again) = shares_left::<64>(1_000_000, shards);
        assert!(small < 0.6, "{small} of the memory is left for small values");
        assert!((0.9..1.15).contains(&again), "{again} after it was filled again");
    }
}
