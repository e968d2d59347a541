//! A system that has no thread to give: alone in its process, as that concerns all caches.

#![cfg(not(miri))]

mod common;

use std::time::Duration;

use common::Tally;
use floe_memory::{BuildError, Cache, Freezing, without_threads};
use floe_testkit::wait_until;

#[test]
fn without_a_thread_those_who_insert_see_to_what_expires_and_freezing_is_refused() {
    without_threads(true);
    let frozen =
        Cache::<u64, u64>::builder().capacity(100).freezing(Freezing::adaptive()).try_build();
    let refused = frozen.expect_err("it needs a thread");
    assert!(matches!(refused, BuildError::Thread(_)), "{refused}");
    assert!(refused.to_string().contains("thread"), "{refused}");

    let tally = Tally::new();
    let cache = Cache::builder().capacity(10_000).time_to_live(Duration::from_millis(10)).build();
    for key in 0..100 {
        cache.insert(key, tally.value(key));
    }
    wait_until("it is still found", || (0..100).all(|key| cache.get(&key).is_none()));
    let mut next = 100;
    wait_until("nobody takes out what has expired", || {
        cache.insert(next, tally.value(next));
        next += 1;
        cache.stats().expirations >= 100
    });
    // As soon as there is one again, it does.
    without_threads(false);
    wait_until("no thread is started once there is one", || {
        cache.insert(0, tally.value(0));
        std::fs::read_dir("/proc/self/task").map_or(true, |mut tasks| {
            tasks.any(|task| {
                let name = task.and_then(|task| std::fs::read_to_string(task.path().join("comm")));
                name.is_ok_and(|name| name.trim() == "floe-keeper")
            })
        })
    });
    wait_until("the thread takes nothing out", || cache.is_empty());
}
