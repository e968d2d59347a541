//! The usage of a host's cache stays near its capacity, whatever waits for its end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use floe_memory::host::{HostBuilder, HostCache, Insertion};

/// Entries of charge 10 in a tiny cache.
const CAPACITY: usize = 200;
const THREADS: usize = 4;

/// Threads read and fill a cache. Returns the most that was in use.
fn most_in_use(cache: &HostCache<u64, Vec<u8>>, steps: usize) -> usize {
    let most = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let most = &most;
            scope.spawn(move || {
                let mut random = 88_172_645_463_325_252 + thread as u64;
                for _ in 0..steps {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let key = random % 400;
                    if cache.lookup(&key).is_none() {
                        cache.insert(key, vec![0; 10], 10, Insertion::new()).expect("not strict");
                    } else if random >> 32 & 15 == 0 {
                        cache.erase(&key);
                    }
                    most.fetch_max(cache.usage(), Ordering::Relaxed);
                }
            });
        }
    });
    most.into_inner()
}

#[test]
fn usage_stays_near_the_capacity_while_entries_are_frozen_and_thawed() {
    for shares in [&[0.0][..], &[0.5], &[1.0], &[1.0, 0.0], &[0.5, 1.0, 0.0, 0.9]] {
        let cache = HostBuilder::new(CAPACITY).build();
        let done = AtomicBool::new(false);
        let most = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    shares.iter().for_each(|&share| cache.freeze(share));
                }
            });
            let most = most_in_use(&cache, 20_000);
            done.store(true, Ordering::Relaxed);
            most
        });
        // Beyond the capacity is what a thread has in hand when another one takes its turn: an
        // entry that comes, and some that it frees.
        assert!(most <= CAPACITY + CAPACITY / 2 + THREADS * 2 * 10, "{most} with {shares:?}");
    }
}
