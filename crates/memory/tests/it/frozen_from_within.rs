//! The user's code panics, or uses the cache, in the middle of a lookup of what is frozen: it
//! freezes and thaws there, too.

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use crate::common::{Tally, Value};
use floe_memory::Cache;

const KEYS: u64 = 60;

thread_local! {
    /// So many levels down, comparing keys uses the cache.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static TURN: Cell<u64> = const { Cell::new(0) };
    static ONLY_LOOKS_UP: Cell<bool> = const { Cell::new(false) };
    static PANICS: Cell<bool> = const { Cell::new(false) };
}

static CACHE: OnceLock<Cache<Key, u64>> = OnceLock::new();

/// A key that does other things when it is compared, which it often is: three each have the same
/// hash.
#[derive(Debug, Clone)]
struct Key(u64);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0 / 3).hash(state);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        let depth = DEPTH.get();
        if let (Some(cache), 1..) = (CACHE.get(), depth) {
            DEPTH.set(depth - 1);
            let turn = TURN.get();
            TURN.set(turn + 1);
            let key = Key(turn * 7 % KEYS);
            match turn % if ONLY_LOOKS_UP.get() { 3 } else { 6 } {
                0 | 1 => assert_eq!(cache.get_cloned(&key), Some(key.0)),
                2 => assert_eq!(cache.get_many(&[key, Key(1), Key(2)], |_, _| ()), 3),
                3 => cache.thaw(),
                4 => _ = cache.freeze(1.0),
                _ => {
                    DEPTH.set(0); // keys are compared under a lock there
                    cache.insert(key.clone(), key.0);
                    cache.reclaim();
                }
            }
            DEPTH.set(depth);
        }
        assert!(!PANICS.get(), "comparing panics");
        self.0 == other.0
    }
}

impl Eq for Key {}

#[test]
fn comparing_keys_may_use_the_cache_and_freeze_and_thaw_it() {
    let cache = CACHE.get_or_init(|| Cache::builder().capacity(100).build());
    (0..KEYS).for_each(|key| cache.insert(Key(key), key));
    let batch: Vec<Key> = (0..KEYS).map(Key).collect();
    for round in 0..4 {
        ONLY_LOOKS_UP.set(round % 2 == 0);
        for key in 0..KEYS {
            DEPTH.set(1 + round / 2);
            assert_eq!(cache.get(&Key(key)).map(|value| *value), Some(key));
            assert_eq!(
                cache.get_many(&batch, |at, value| assert_eq!(*value, at as u64)),
                batch.len()
            );
            DEPTH.set(0);
        }
    }
    assert!(TURN.get() > 1000, "keys were compared {} times", TURN.get());
}

#[test]
fn comparing_frozen_keys_panics_and_nothing_is_lost() {
    let tally = Tally::new();
    let cache: Cache<Key, Value> = Cache::builder().capacity(64).build();
    (0..40).for_each(|key| cache.insert(Key(key), tally.value(key)));
    assert_eq!(cache.freeze(1.0).entries, 40);
    for key in 0..40 {
        PANICS.set(true);
        assert!(catch_unwind(AssertUnwindSafe(|| cache.get(&Key(key)).is_some())).is_err());
        assert!(catch_unwind(AssertUnwindSafe(|| cache.hold(&Key(key)).is_some())).is_err());
        assert!(catch_unwind(AssertUnwindSafe(|| cache.get_many(&[Key(key)], |_, _| ()))).is_err());
        PANICS.set(false);
        let panics = || cache.get_many(&[Key(key)], |_, _| panic!("the caller's closure panics"));
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert!(cache.read(&Key(key), |value| value.of(key)).is_some());
    }
    // What a lookup was about to compare is not kept for ever, nor is the index.
    (0..40).for_each(|key| drop(cache.remove(&Key(key))));
    let frozen_bytes = cache.stats().memory_bytes;
    cache.thaw();
    cache.reclaim();
    assert!(cache.stats().memory_bytes < frozen_bytes);
    assert_eq!((tally.alive(), cache.stats().waiting), (0, 0));
}

#[test]
fn a_batch_may_freeze_thaw_and_remove_what_it_looks_up_and_look_up_others() {
    let tally = Tally::new();
    let cache: Cache<u64, Value> = Cache::new(100);
    (0..100).for_each(|key| cache.insert(key, tally.value(key)));
    let thawed_bytes = cache.stats().memory_bytes;
    assert_eq!(cache.freeze(1.0).entries, 100);
    let keys: Vec<u64> = (0..100).collect();
    let mut guards = Vec::new();
    let found = cache.get_many(&keys, |at, value| {
        let key = keys[at];
        value.of(key);
        match key % 5 {
            0 => cache.thaw(),
            1 => _ = cache.freeze(1.0),
            2 => assert_eq!(cache.get_many(&[key], |_, value| _ = value.of(key)), 1),
            3 => drop(cache.remove(&key)),
            _ => guards.extend(cache.get(&key)),
        }
        cache.reclaim();
        value.of(key);
    });
    assert_eq!(found, 100);
    assert_eq!((cache.len(), guards.len()), (80, 20));
    cache.clear();
    for (guard, key) in guards.iter().zip((4..).step_by(5)) {
        guard.of(key);
    }
    cache.thaw();
    assert_eq!(tally.alive(), 20);
    drop(guards);
    cache.reclaim();
    assert_eq!(tally.alive(), 0);
    assert!(cache.stats().memory_bytes <= thawed_bytes + 4096, "no index is left");
}

#[test]
fn an_index_is_freed_when_the_last_batch_that_looks_at_it_is_over_and_not_before() {
    for guards in [0, 3000] {
        let cache: Cache<u64, u64> = Cache::new(10_000);
        (0..10_000).for_each(|key| cache.insert(key, key));
        let _guards: Vec<_> = (0..guards).map(|key| cache.get(&key)).collect();
        let thawed_bytes = cache.stats().memory_bytes;
        let index_bytes = cache.freeze(1.0).index_bytes as u64;
        cache.get_many(&[1, 2, 3], |at, value| {
            assert_eq!(*value, at as u64 + 1);
            cache.thaw();
            if floe_memory::hits_are_fenceless() {
                assert_eq!(
                    cache.stats().memory_bytes,
                    thawed_bytes + index_bytes,
                    "this batch looks at it"
                );
            }
        });
        cache.thaw();
        assert_eq!(cache.stats().memory_bytes, thawed_bytes);
    }
}
