//! Clocks that are moved by hand, however far.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use floe_memory::{Cache, Cause, Clock, InsertOptions};

const DAY: Duration = Duration::from_secs(24 * 3600);

#[test]
fn what_has_expired_stays_expired_however_far_a_manual_clock_moves() {
    for days in [1, 49, 50, 51, 62, 100, 124, 125, 186, 248, 249, 373, 500, 5000, 1_000_000] {
        for steps in [1, 2, 3, 7] {
            let clock = Clock::manual();
            let expired = Arc::new(AtomicU64::new(0));
            let told = Arc::clone(&expired);
            let cache = Cache::builder()
                .capacity(10)
                .clock(clock.clone())
                .listener(move |_, _, cause| {
                    _ = told.fetch_add(u64::from(cause == Cause::Expired), Relaxed)
                })
                .build();
            let minute = Duration::from_secs(60);
            cache.insert(0, "stays");
            cache.insert_with(1, "lives", InsertOptions::new().time_to_live(minute));
            cache.insert_with(2, "is idle", InsertOptions::new().time_to_idle(minute));
            for _ in 0..steps {
                clock.advance(days * DAY / steps);
                assert_eq!(
                    (cache.get(&1).is_some(), cache.get(&2).is_some()),
                    (false, false),
                    "{days} days"
                );
            }
            // And time goes on for what comes then.
            cache.insert_with(3, "lives", InsertOptions::new().time_to_live(2 * minute));
            clock.advance(minute);
            assert!(cache.contains_key(&3) && cache.contains_key(&0));
            clock.advance(2 * minute);
            assert!(!cache.contains_key(&3) && cache.contains_key(&0));
            cache.reclaim();
            assert_eq!((expired.load(Relaxed), cache.len()), (3, 1), "{days} days");
        }
    }
}

#[test]
fn asking_whether_a_key_is_there_does_not_keep_it_from_going_idle() {
    let clock = Clock::manual();
    let idle = Duration::from_secs(60);
    let cache = Cache::builder().capacity(10).clock(clock.clone()).time_to_idle(idle).build();
    for key in ["asked for", "used"] {
        cache.insert(key, ());
    }
    for _ in 0..3 {
        clock.advance(idle / 2);
        _ = cache.contains_key("asked for");
        assert!(cache.get("used").is_some());
    }
    assert!(!cache.contains_key("asked for") && cache.get("asked for").is_none());
}

#[test]
fn a_span_too_long_to_be_counted_moves_a_clock_all_the_same() {
    let clock = Clock::manual();
    let cache = Cache::builder().capacity(10).clock(clock.clone()).time_to_live(DAY).build();
    cache.insert(1, 1);
    clock.advance(Duration::from_secs(u64::MAX / 2_000_000));
    assert!(cache.get(&1).is_none());
}
