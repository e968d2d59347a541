//! A forked process has none of the library's threads, and starts its own: alone in its process,
//! which it forks.

// The thread sanitizer starts no threads in a child.
#![cfg(all(target_os = "linux", not(miri), not(floe_thread_sanitizer)))]
#![allow(unsafe_code)] // fork

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::Tally;
use floe_memory::Cache;
use floe_memory::policy::AnyPolicy;

/// In the child, where nothing may panic or print: whether something came true.
fn comes_true(mut is_true: impl FnMut() -> bool) -> bool {
    let patience = Instant::now() + Duration::from_secs(100);
    while !is_true() {
        if Instant::now() > patience {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

#[test]
fn a_child_finds_no_lock_of_a_cache_taken_by_the_library() {
    let caches: Vec<_> = (0..100)
        .map(|_| Cache::builder().capacity(4000).time_to_live(Duration::from_millis(1)).build())
        .collect();
    for _ in 0..10 {
        for cache in &caches {
            (0..2000).for_each(|key| cache.insert(key, vec![key; 4]));
        }
        let swept = || caches.iter().map(|cache| cache.stats().expirations).sum::<u64>();
        let before = swept();
        assert!(comes_true(|| swept() > before), "they are swept"); // and most are yet to be
        // SAFETY: as below.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child if it hangs.
            unsafe { libc::alarm(100) };
            for cache in &caches {
                cache.insert(1, vec![1]);
                let _ = (cache.len(), cache.get(&1).is_some(), cache.stats());
            }
            // SAFETY: as below.
            unsafe { libc::_exit(0) };
        }
        assert!(child > 0, "it forks");
        let mut status = 0;
        // SAFETY: as below.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child ended with {status:#x}");
    }
}

#[test]
fn what_expires_does_so_in_a_child_as_in_its_parent() {
    let tally = Tally::new();
    let build = |millis| {
        Cache::builder().capacity(1000).time_to_live(Duration::from_millis(millis)).build()
    };
    let (old, other) = (build(20), build(3_600_000));
    old.insert(0, tally.value(0));
    other.insert(0, tally.value(0));
    assert!(comes_true(|| old.stats().expirations == 1), "the parent has a thread for it");
    for round in 0..6 {
        old.insert(1, tally.value(1));
        // SAFETY: the child uses nothing that another thread of the parent's may have locked but
        // the library, and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let before = old.stats().expirations;
            // By an insertion into another cache than that in which something expires.
            other.insert(1, tally.value(1));
            let ends = [
                comes_true(|| old.get(&1).is_none()),
                comes_true(|| old.stats().expirations > before || old.is_empty()),
                {
                    let new = build(20);
                    new.insert(2, tally.value(2));
                    comes_true(|| new.get(&2).is_none())
                        && comes_true(|| new.stats().expirations == 1)
                },
                comes_true(|| other.get(&0).is_some()),
            ];
            let failed = ends.iter().position(|good| !good).map_or(0, |at| 1 + at as i32);
            // SAFETY: ends the child without what its parent has registered for the end.
            unsafe { libc::_exit(failed) };
        }
        assert!(child > 0, "it forks");
        let mut status = 0;
        // SAFETY: waits for the child just made.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "in round {round} the child ended with {status:#x}");
        assert!(comes_true(|| old.is_empty()), "the parent goes on, too");
    }
}

/// True while the next comparison of two keys takes long.
static COMPARES_SLOWLY: AtomicBool = AtomicBool::new(false);
/// True once it has begun.
static COMPARES: AtomicBool = AtomicBool::new(false);

/// A key whose hash is that of its group.
#[derive(Clone, Eq)]
struct Grouped(u64, u64);

impl std::hash::Hash for Grouped {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl PartialEq for Grouped {
    fn eq(&self, other: &Self) -> bool {
        if COMPARES_SLOWLY.swap(false, Ordering::SeqCst) {
            COMPARES.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(100));
        }
        (self.0, self.1) == (other.0, other.1)
    }
}

#[test]
fn a_fork_waits_for_a_load_that_makes_room_in_another_shard() {
    for group in 0..8 {
        let weigh = |_: &Grouped, weight: &u32| *weight;
        let cache = Cache::builder().weight_capacity(100).weigher(weigh).shards(2).build();
        // Full, with some of the group.
        (0..200).for_each(|key| cache.insert(Grouped(10 + key, key), 1));
        (0..20).for_each(|key| cache.insert(Grouped(group, key), 1));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // More than its shard's half, so the other is asked for room. Its key is compared
                // with those of its group when it comes in, under locks.
                cache.get_with(&Grouped(group, 1000), || {
                    COMPARES_SLOWLY.store(true, Ordering::SeqCst);
                    60
                });
            });
            assert!(comes_true(|| COMPARES.swap(false, Ordering::SeqCst)), "they are compared");
            // SAFETY: as below.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends the child if it hangs.
                unsafe { libc::alarm(100) };
                let is_good = *cache.get_with(&Grouped(group, 2000), || 1) == 1;
                // SAFETY: as below.
                unsafe { libc::_exit(i32::from(!is_good)) };
            }
            let mut status = 0;
            // SAFETY: as below.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child of group {group} ended with {status:#x}");
        });
    }
}

type Lists = Cache<u64, Vec<u64>, AnyPolicy>;

/// Uses a cache, as a child of a process whose threads do. Returns whether all was well.
fn use_all(cache: &Lists, round: u64) -> bool {
    for key in 0..64 {
        cache.insert(key, vec![round; 4]);
        // Loads that other threads of the parent's ran have ended with them.
        let loads = 1000 + key;
        if cache.get_with(&loads, || vec![loads])[0] != loads {
            return false;
        }
        if cache.get(&key).is_some_and(|value| value.len() != 4) {
            return false;
        }
        cache.remove(&key);
    }
    let many: Vec<_> = (0..100).map(|key| cache.hold(&(key * 7))).collect();
    let guards: Vec<_> = (0..100).map(|key| cache.get(&(key * 5))).collect();
    drop((many, guards));
    cache.retain(|key, _| key % 2 == 0);
    cache.reclaim();
    let stats = cache.stats();
    cache.clear();
    stats.entries as usize >= cache.len() && cache.is_empty()
}

#[test]
fn a_child_uses_caches_that_threads_of_its_parent_were_using() {
    let is_over = AtomicBool::new(false);
    let build = |capacity, policy| {
        let builder = Cache::<u64, Vec<u64>>::builder().capacity(capacity).policy_named(policy);
        builder.expect("it is known")
    };
    let caches: [Lists; 3] = [
        build(500, "qd-clock").shards(1).build(),
        build(5000, "qd-clock").listener(|_, _, _| ()).build(),
        build(500, "lru").build(),
    ];
    let work = |seed: u64| {
        let mut random = seed;
        while !is_over.load(Ordering::Relaxed) {
            for cache in &caches {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
                let key = (random >> 33) % 1500;
                match random >> 60 {
                    0..5 => cache.insert(key, vec![key; 4]),
                    5..8 => drop(cache.get_with(&key, || {
                        std::thread::yield_now();
                        vec![key; 4]
                    })),
                    8..10 => drop(cache.remove(&key)),
                    10 => drop(cache.hold(&key)),
                    11 => drop((cache.len(), cache.stats())),
                    12 => drop((0..20).map(|at| cache.get(&(key + at))).collect::<Vec<_>>()),
                    _ => drop(cache.get(&key)),
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let work = &work;
        (1..=4).for_each(|seed| _ = scope.spawn(move || work(seed)));
        for round in 0..100 {
            // SAFETY: the child uses nothing that another thread of the parent's may have locked
            // but the library, and ends by `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends the child if it hangs.
                unsafe { libc::alarm(100) };
                let failed = caches.iter().position(|cache| !use_all(cache, round));
                // SAFETY: as above.
                unsafe { libc::_exit(failed.map_or(0, |at| 1 + at as i32)) };
            }
            assert!(child > 0, "it forks");
            let mut status = 0;
            // SAFETY: waits for the child just made.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            if status != 0 {
                is_over.store(true, Ordering::Relaxed);
            }
            assert_eq!(status, 0, "in round {round} the child ended with {status:#x}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_load_goes_on_in_a_child_that_it_has_forked() {
    let cache = Cache::<u64, u64>::new(100);
    let (begun, begins) = std::sync::mpsc::channel();
    let (go, goes) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let cache = &cache;
        scope.spawn(move || {
            cache.get_with(&2, || {
                begun.send(()).expect("the test waits");
                goes.recv().expect("the test goes on");
                2
            });
        });
        begins.recv().expect("it loads");
        let mut child = -1;
        let value = cache.get_with(&1, || {
            // SAFETY: as above.
            child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends the child if it hangs.
                unsafe { libc::alarm(100) };
            }
            10
        });
        if child == 0 {
            let other = *cache.get_with(&2, || 20) == 20;
            cache.insert(3, 30);
            let is_good = *value == 10 && cache.get_cloned(&1) == Some(10) && other;
            let is_good = is_good && cache.get_cloned(&3) == Some(30) && cache.len() == 3;
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(!is_good)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child just made.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        go.send(()).expect("the load waits");
        assert_eq!(status, 0, "the child ended with {status:#x}");
    });
}
