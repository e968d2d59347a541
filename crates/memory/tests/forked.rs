//! A forked process has none of the library's threads, and starts its own: alone in its process,
//! which it forks.

// The thread sanitizer starts no threads in a child.
#![cfg(all(target_os = "linux", not(miri), not(floe_thread_sanitizer)))]
#![allow(unsafe_code)] // fork

mod common;

use std::time::{Duration, Instant};

use common::Tally;
use floe_memory::Cache;

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
