//! Caches that freeze by themselves, driven by the library's thread: what they do in turn, and that
//! values are right all the while. How soon they do it is the machine's affair, so each test goes
//! on until it has seen what it waits for.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use floe_memory::policy::{Lru, Replacement};
use floe_memory::{Cache, FreezeStats, Freezing, Phase};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const ENTRIES: usize = 500;

/// Steps in milliseconds where the default has seconds.
fn hurried(freezing: Freezing) -> Freezing {
    let (short, long) = (Duration::from_millis(10), Duration::from_millis(50));
    freezing.lifetime(long).wait_between(short, long).sample_one_in(5)
}

/// Keys as by Zipf's law, of which the popular ones change in the course of time.
struct Drifting {
    random: StdRng,
    keys: f64,
    requests: u64,
}

impl Drifting {
    fn new(seed: u64, keys: u64) -> Self {
        Self { random: StdRng::seed_from_u64(seed), keys: (keys as f64).ln(), requests: 0 }
    }

    fn next(&mut self) -> u64 {
        self.requests += 1;
        let rank = (self.keys * self.random.random::<f64>()).exp() as u64;
        rank + self.requests / 2000
    }
}

fn looks_up<P: Replacement>(cache: &Cache<u64, u64, P>, key: u64) {
    match cache.get(&key) {
        Some(value) => assert_eq!(*value % 1_000_000, key % 1_000_000),
        None => cache.insert(key, key % 1_000_000),
    }
}

/// Has threads do something to a cache until its stats are as they are to be.
fn until<P: Replacement + Send + Sync>(
    cache: &Cache<u64, u64, P>,
    work: impl Fn(u64, &AtomicBool) + Sync,
    is_enough: impl Fn(&FreezeStats) -> bool,
) -> FreezeStats {
    let (work, stop) = (&work, &AtomicBool::new(false));
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|thread| scope.spawn(move || work(thread, stop)));
        let stats = loop {
            let stats = cache.stats().freezing.expect("it freezes");
            if is_enough(&stats) || threads.iter().any(|thread| thread.is_finished()) {
                break stats;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        stop.store(true, Relaxed); // only to end
        threads.into_iter().for_each(|thread| thread.join().expect("a thread ends well"));
        stats
    })
}

#[test]
fn a_cache_under_a_drifting_load_learns_what_to_freeze() {
    let cache = Cache::builder()
        .capacity(ENTRIES)
        .policy(Lru::default())
        .freezing(hurried(Freezing::adaptive()))
        .build();
    let work = |thread, stop: &AtomicBool| {
        let mut keys = Drifting::new(thread, 5 * ENTRIES as u64);
        while !stop.load(Relaxed) {
            looks_up(&cache, keys.next());
        }
    };
    let stats =
        until(&cache, work, |stats| stats.learned > 0 && stats.constructed + stats.given_up > 0);
    let phases: Vec<Phase> = stats.decisions.iter().map(|decision| decision.phase).collect();
    assert!(phases.starts_with(&[Phase::Measuring, Phase::Learning]), "{stats:#?}");
    assert!(stats.learned > 0, "{stats:#?}");
}

#[test]
fn a_cache_under_a_drifting_load_is_frozen_anew_when_its_time_is_over() {
    let cache = Cache::builder().capacity(ENTRIES).freezing(hurried(Freezing::fixed(0.5))).build();
    let work = |thread, stop: &AtomicBool| {
        let mut keys = Drifting::new(thread, 5 * ENTRIES as u64);
        while !stop.load(Relaxed) {
            looks_up(&cache, keys.next());
            if thread == 0 && keys.requests.is_multiple_of(10) {
                // Keys of its own, replaced and removed all the time, popular enough to be frozen.
                let (key, value) = (u64::MAX - keys.requests % 7, keys.requests * 1_000_000 + 5);
                cache.insert(key, value);
                let seen = cache.get_cloned(&key);
                assert!(seen.is_none_or(|seen| seen == value), "{seen:?} in the place of {value}");
                if keys.requests.is_multiple_of(50) {
                    drop(cache.remove(&key));
                    assert!(cache.get(&key).is_none());
                }
            }
        }
    };
    let stats = until(&cache, work, |stats| stats.refreshed >= 3);
    assert!(stats.constructed > stats.refreshed && stats.refreshed >= 3, "{stats:#?}");
    assert!(cache.stats().frozen_hits > 0);
}

#[test]
fn learning_ends_where_all_is_looked_up_in_batches_and_nothing_is_missed() {
    let cache = Cache::builder().capacity(ENTRIES).freezing(hurried(Freezing::adaptive())).build();
    (0..ENTRIES as u64).for_each(|key| cache.insert(key, key));
    let work = |thread, stop: &AtomicBool| {
        let mut random = StdRng::seed_from_u64(thread);
        while !stop.load(Relaxed) {
            let keys: Vec<u64> = (0..100).map(|_| random.random_range(0..ENTRIES as u64)).collect();
            assert_eq!(cache.get_many(&keys, |at, value| assert_eq!(*value, keys[at])), 100);
        }
    };
    let stats = until(&cache, work, |stats| stats.learned > 0);
    assert!(stats.learned > 0, "{stats:#?}");
    assert_eq!(cache.stats().misses, 0);
}

#[test]
fn one_thread_freezes_many_caches_and_lets_those_go_that_are_dropped() {
    let caches: Vec<_> = (0..8)
        .map(|_| Cache::builder().capacity(100).freezing(hurried(Freezing::fixed(0.3))).build())
        .collect();
    let work = |thread, stop: &AtomicBool| {
        let mut keys = Drifting::new(thread, 500);
        while !stop.load(Relaxed) {
            let key = keys.next();
            caches.iter().for_each(|cache| looks_up(cache, key));
            if keys.requests.is_multiple_of(64) {
                // Goes while it is looked after, perhaps.
                let passing =
                    Cache::builder().capacity(10).freezing(hurried(Freezing::fixed(1.0))).build();
                (0..10).for_each(|key| looks_up(&passing, key));
            }
        }
    };
    until(&caches[0], work, |_| {
        caches.iter().all(|cache| cache.stats().freezing.is_some_and(|stats| stats.refreshed > 0))
    });
    assert!(caches.iter().all(|cache| cache.stats().frozen_hits > 0));
}

/// Returns whether a cache is seen to measure itself with nothing frozen, before it is seen to
/// learn.
fn measures_itself_without() -> bool {
    let cache = Cache::builder().capacity(ENTRIES).freezing(hurried(Freezing::adaptive())).build();
    (0..ENTRIES as u64).for_each(|key| cache.insert(key, key));
    let frozen = cache.freeze(0.5).entries;
    assert!(frozen.abs_diff(ENTRIES / 2) <= 4, "{frozen}: each shard rounds");
    let work = |thread, stop: &AtomicBool| {
        let mut keys = Drifting::new(thread, 5 * ENTRIES as u64);
        while !stop.load(Relaxed) {
            looks_up(&cache, keys.next());
        }
    };
    let merged = Cell::new(false);
    until(&cache, work, |stats| {
        merged.set(stats.phase == Phase::Measuring && cache.stats().frozen == 0);
        merged.get() || stats.phase == Phase::Learning
    });
    merged.get()
}

#[test]
fn what_was_frozen_by_hand_has_thawed_before_the_cache_measures_itself_without() {
    // A busy machine may let the moment pass unseen.
    let seen = (0..100).any(|_| measures_itself_without());
    assert!(seen, "it learns on top of what was frozen by hand");
}
