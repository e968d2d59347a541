//! Models of threads that change the same entry, or sweep what the other inserts.

use std::sync::Arc;

use crate::sync::Tracked;
use crate::{Cache, Handle, model, model_of_readers, sync, thread};

#[test]
fn no_upsert_is_lost() {
    model(3, || {
        let cache = Cache::small(1);
        let add = |cache: &Cache| {
            let add =
                |there: Option<&Tracked>| Tracked::new(there.map_or(1, |there| there.get() + 1));
            let value = cache.upsert_with(Tracked::new(1), add).get();
            assert!((1..=2).contains(&value));
        };
        let other = Handle::of(&cache);
        let thread = thread::spawn(move || add(&other));
        add(&cache);
        thread.join().unwrap();
        assert_eq!(cache.value(1), Some(2));
        cache.reclaim();
    });
}

#[test]
fn a_value_that_another_thread_replaces_is_not_removed_for_it() {
    model_of_readers(3, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        let other = Handle::of(&cache);
        let thread = thread::spawn(move || {
            let removed = other.remove_if(&Tracked::new(1), |value| value.get() == 10);
            assert!(removed.as_ref().is_none_or(|value| value.get() == 10));
            removed.is_some()
        });
        let before = cache.swap(Tracked::new(1), Tracked::new(11)).map(|value| value.get());
        let removed = thread.join().unwrap();
        assert_eq!(before.is_none(), removed, "one of the two gets the value");
        assert_eq!(cache.value(1), Some(11));
        cache.reclaim();
    });
}

#[test]
fn what_comes_in_while_a_cache_is_swept_is_seen_by_the_sweep_or_asks_for_another() {
    model(4, || {
        let shared = Arc::new((crate::lifetimes::Upkeep::new(), sync::Mutex::new(0)));
        let sees = |expires: &sync::Mutex<u64>| *sync::lock(expires) != 0;
        let inserter = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let _asks = shared.0.asks(std::num::NonZeroU64::MIN);
                *sync::lock(&shared.1) = 1;
            })
        };
        let now = 10;
        shared.0.begin_sweep(now);
        let seen = sees(&shared.1);
        if seen {
            shared.0.end_sweep(now);
        }
        inserter.join().unwrap();
        assert!(shared.0.is_due(u64::MAX - 1), "seen: {seen}, and no sweep is to come");
    });
}
