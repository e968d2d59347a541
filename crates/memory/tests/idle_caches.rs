//! Caches in which nothing is due cost nothing: alone in its process, as it counts what the
//! library's threads do.

// Under the thread sanitizer threads look again and again instead of sleeping.
#![cfg(not(any(miri, floe_thread_sanitizer)))]

use std::time::{Duration, Instant};

use floe_memory::{Cache, wake_ups};

#[test]
fn ten_thousand_caches_in_which_nothing_expires_wake_no_thread() {
    let build = |time| Cache::<u64, u64>::builder().capacity(10).time_to_live(time).build();
    let idle: Vec<_> = (0..10_000).map(|_| build(Duration::from_secs(3600))).collect();
    idle.iter().for_each(|cache| cache.insert(1, 1));
    let empty: Vec<_> = (0..1_000).map(|_| build(Duration::from_secs(3600))).collect();
    // Time passes, as another cache shows: a second between its sweeps.
    let other = build(Duration::from_millis(20));
    let (patience, mut begun) = (Instant::now() + Duration::from_secs(120), 0);
    for round in 1..=3 {
        other.insert(round, 1);
        while other.stats().expirations < round {
            assert!(Instant::now() < patience, "it does not expire");
            std::thread::sleep(Duration::from_millis(5));
        }
        if round == 1 {
            begun = wake_ups();
        }
    }
    let woken = wake_ups() - begun;
    assert!(woken <= 20, "{woken} times woken for two sweeps of one cache");
    assert!(idle.iter().all(|cache| cache.get(&1).is_some()) && empty.iter().all(Cache::is_empty));
}
