//! A listener that panics costs its caller a panic, and the cache nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use floe_memory::Cache;

/// A cache of a few entries in many shards, which have to make room for each other, and whether its
/// listener panics.
fn temperamental(capacity: usize) -> (Cache<u64, u64>, Arc<AtomicBool>) {
    let panics = Arc::new(AtomicBool::new(true));
    let so = Arc::clone(&panics);
    let listener =
        move |_: &u64, _: &u64, _| assert!(!so.load(Relaxed), "the listener is out of temper");
    (Cache::builder().capacity(capacity).shards(8).listener(listener).build(), panics)
}

/// Returns how many entries are in once many have been inserted in peace.
fn filled(cache: &Cache<u64, u64>, panics: &AtomicBool) -> usize {
    panics.store(false, Relaxed);
    (1_000_000..1_001_000).for_each(|key| cache.insert(key, key));
    cache.len()
}

#[test]
fn capacity_is_not_lost_when_the_listener_panics_while_shards_make_room_for_each_other() {
    let (cache, panics) = temperamental(16);
    let panicked = (0..1000)
        .filter(|&key| catch_unwind(AssertUnwindSafe(|| cache.insert(key, key))).is_err())
        .count();
    assert!(panicked > 100, "only {panicked} insertions have met the listener");
    assert_eq!(filled(&cache, &panics), 16);
}

#[test]
fn capacity_is_not_lost_when_the_listener_panics_while_the_cache_is_made_smaller() {
    let (cache, panics) = temperamental(64);
    (0..64).for_each(|key| cache.insert(key, key));
    assert!(catch_unwind(AssertUnwindSafe(|| cache.resize(16))).is_err());
    assert_eq!(filled(&cache, &panics), 16);
}
