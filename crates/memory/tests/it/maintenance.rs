//! Expiry depends on nobody's code: listeners that never return and destructors that panic concern
//! their own cache.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::common::Tally;
use floe_memory::{Cache, Cause};
use floe_testkit::wait_until;

#[test]
#[cfg_attr(miri, ignore = "waits for the system's clock")]
fn a_listener_that_does_not_return_holds_up_no_other_cache() {
    let (begun, begins) = mpsc::channel();
    let (go, goes) = mpsc::channel::<()>();
    let (begun, goes) = (Mutex::new(begun), Mutex::new(goes));
    let listens = move |_: &u64, _: &u64, cause| {
        assert_eq!(cause, Cause::Expired);
        begun.lock().unwrap().send(()).expect("the test waits");
        let _ = goes.lock().unwrap().recv();
    };
    let slow = Cache::builder()
        .capacity(10)
        .time_to_live(Duration::from_millis(1))
        .listener(listens)
        .build();
    slow.insert(1, 1);
    begins.recv().expect("the listener is told");
    let tally = Tally::new();
    let others: Vec<_> = (0..20)
        .map(|_| Cache::builder().capacity(10).time_to_live(Duration::from_millis(100)).build())
        .collect();
    for other in &others {
        other.insert(1, tally.value(1));
    }
    for other in &others {
        wait_until("it is still found", || other.get(&1).is_none());
        wait_until("it is not taken out", || other.stats().expirations == 1);
    }
    // The slow one itself: nothing is found in it either.
    slow.insert(2, 2);
    wait_until("it is still found", || slow.get(&2).is_none());
    assert_eq!(slow.stats().expirations, 1, "its listener is still at the first");
    drop(go); // from here on it returns at once
    wait_until("it is not taken out", || slow.stats().expirations == 2);
}

/// Panics when it is dropped, with something that panics when it is dropped.
struct Bomb(Arc<()>);

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            std::panic::panic_any(Bomb(Arc::clone(&self.0)));
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "waits for the system's clock")]
fn what_panics_in_vain_and_what_it_throws_end_no_expiry() {
    let alive = Arc::new(());
    let cache =
        Cache::builder().capacity(2000).shards(4).time_to_live(Duration::from_millis(1)).build();
    for round in 1..=3u64 {
        for key in 0..400 {
            cache.insert(key, Bomb(Arc::clone(&alive)));
        }
        wait_until("some are not taken out", || cache.stats().expirations == 400 * round);
    }
    let tally = Tally::new();
    let other = Cache::builder().capacity(10).time_to_live(Duration::from_millis(1)).build();
    other.insert(1, tally.value(1));
    wait_until("nothing expires any more", || other.stats().expirations == 1);
    std::mem::forget(cache); // what waits in it would panic here
}

#[test]
#[cfg_attr(miri, ignore = "waits for the system's clock")]
fn what_expires_earlier_than_all_that_is_in_is_taken_out_in_time() {
    let tally = Tally::new();
    let cache = Cache::builder().capacity(1000).time_to_live(Duration::from_secs(3600)).build();
    for key in 0..100 {
        cache.insert(key, tally.value(key));
    }
    for (round, key) in (100..104).enumerate() {
        let options = floe_memory::InsertOptions::new().time_to_live(Duration::from_millis(20));
        cache.insert_with(key, tally.value(key), options);
        wait_until("it is not taken out", || cache.stats().expirations == round as u64 + 1);
    }
    assert_eq!(cache.len(), 100);
    // Among several threads that are the first at once, the one that has something short to say is
    // heard.
    for _ in 0..50 {
        let cache = Cache::<u64, u64>::builder().capacity(1000).build();
        let start = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for (key, millis) in [(1, 5), (2, 3_600_000)] {
                let (cache, start) = (&cache, &start);
                scope.spawn(move || {
                    start.wait();
                    let time = Duration::from_millis(millis);
                    cache.insert_with(key, 1, floe_memory::InsertOptions::new().time_to_live(time));
                });
            }
        });
        wait_until("it is not taken out", || cache.stats().expirations == 1);
    }
}
