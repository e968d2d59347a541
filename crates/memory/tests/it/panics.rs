//! The user's code panics, or uses the cache from within: the cache stays usable, and no value is
//! lost or dropped twice.

use std::cell::RefCell;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};

use crate::common::{Tally, Value};
use floe_memory::{Cache, Cause};

fn panics<R>(what: impl FnOnce() -> R) {
    assert!(catch_unwind(AssertUnwindSafe(what)).is_err(), "the panic reaches the caller");
}

thread_local! {
    /// Comparing and hashing panic, on this thread.
    static HOSTILE: RefCell<(bool, bool)> = const { RefCell::new((false, false)) };
}

/// A key whose code panics on demand.
#[derive(Debug, Clone)]
struct Key(u64);

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        assert!(!HOSTILE.with_borrow(|hostile| hostile.0), "comparing panics");
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        assert!(!HOSTILE.with_borrow(|hostile| hostile.1), "hashing panics");
        self.0.hash(state);
    }
}

fn check<K: Hash + Eq + Send + Sync + 'static>(cache: Cache<K, Value>, tally: &Tally) {
    cache.reclaim();
    let stats = cache.stats();
    assert_eq!((stats.waiting, tally.alive()), (0, stats.entries), "none is lost");
    let left = stats.evictions + stats.expirations + stats.removals + stats.replacements;
    assert_eq!(stats.insertions, stats.entries + left);
    drop(cache);
    assert_eq!(tally.alive(), 0);
}

#[test]
fn comparing_or_hashing_keys_panics_and_nothing_is_lost() {
    let tally = Tally::new();
    let cache: Cache<Key, Value> = Cache::builder().capacity(64).build();
    for key in 0..40 {
        cache.insert(Key(key), tally.value(key));
    }
    for hostile in [(true, false), (false, true)] {
        for key in 0..40 {
            HOSTILE.set(hostile);
            panics(|| cache.get(&Key(key)).is_some());
            panics(|| cache.insert(Key(key), tally.value(key)));
            panics(|| cache.remove(&Key(key)).is_some());
            panics(|| cache.pin(&Key(key)));
            panics(|| cache.hold(&Key(key)).is_some());
            panics(|| cache.get_many(&[Key(key)], |_, _| {}));
            HOSTILE.set((false, false));
            assert!(cache.read(&Key(key), |value| value.of(key)).is_some());
        }
    }
    // What a lookup was about to compare is not kept for ever.
    for key in 0..40 {
        assert!(cache.remove(&Key(key)).is_some());
    }
    check(cache, &tally);
}

/// A value whose destructor panics once it is told to.
struct Bomb {
    _value: Value,
    armed: bool,
}

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(!self.armed, "dropping panics");
    }
}

#[test]
fn values_whose_destructors_panic_take_no_others_with_them() {
    for listens in [false, true] {
        let tally = Tally::new();
        let mut builder = Cache::builder().capacity(100).shards(1);
        if listens {
            builder = builder.listener(|_: &u64, _: &Bomb, _| {});
        }
        let cache = builder.build();
        let mut caught = 0;
        for key in 0..2000u64 {
            let bomb = Bomb { _value: tally.value(key), armed: key % 40 == 7 };
            caught +=
                u64::from(catch_unwind(AssertUnwindSafe(|| cache.insert(key, bomb))).is_err());
        }
        while catch_unwind(AssertUnwindSafe(|| cache.clear())).is_err() {
            caught += 1;
        }
        assert!(caught > 10, "{caught}");
        let stats = cache.stats();
        assert_eq!((stats.waiting, stats.entries), (0, tally.alive()));
        let before = stats.memory_bytes;
        for key in 0..2000u64 {
            cache.insert(key, Bomb { _value: tally.value(key), armed: false });
        }
        cache.reclaim();
        assert!(
            cache.stats().memory_bytes <= before + 4096,
            "memory of what was dropped is used again"
        );
        drop(cache);
        assert_eq!(tally.alive(), 0);
    }
}

#[test]
fn a_cache_that_is_dropped_drops_the_rest_when_a_destructor_panics() {
    let tally = Tally::new();
    let cache = Cache::builder().capacity(100).build();
    for key in 0..50u64 {
        cache.insert(key, Bomb { _value: tally.value(key), armed: key == 20 });
    }
    panics(|| drop(cache));
    assert_eq!(tally.alive(), 0);
}

#[test]
fn weighers_and_listeners_panic_and_nothing_is_lost() {
    let tally = Tally::new();
    let (hostile, told) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (weighs, listens, tells) = (Arc::clone(&hostile), Arc::clone(&hostile), Arc::clone(&told));
    let cache: Cache<u64, Value> = Cache::builder()
        .weight_capacity(50)
        .weigher(move |key, _| {
            assert!(!weighs.load(SeqCst) || key % 2 == 0, "weighing panics");
            1u32
        })
        .listener(move |key, value: &Value, _| {
            value.of(*key);
            tells.fetch_add(1, SeqCst);
            assert!(!listens.load(SeqCst), "listening panics");
        })
        .build();
    (0..50).for_each(|key| cache.insert(key, tally.value(key)));
    hostile.store(true, SeqCst);
    for key in 100..400 {
        panics(|| cache.insert(key, tally.value(key)));
    }
    panics(|| cache.get_or_insert_with(&1001, || Ok::<_, ()>(tally.value(1001))).is_ok());
    panics(|| cache.get_or_insert_with(&1000, || Ok::<_, ()>(tally.value(1000))).is_ok());
    panics(|| cache.resize_weight(20));
    panics(|| cache.clear());
    hostile.store(false, SeqCst);
    cache.resize_weight(50);
    cache.clear();
    let stats = cache.stats();
    let left = stats.evictions + stats.removals + stats.replacements + stats.rejections;
    assert_eq!(
        (told.load(SeqCst), stats.entries),
        (left, 0),
        "each is told of, those after a panic too"
    );
    check(cache, &tally);
}

#[test]
fn listeners_may_use_the_cache() {
    let tally = Tally::new();
    let place: Arc<OnceLock<Cache<u64, Value>>> = Arc::default();
    // weak: a cache that has itself is never dropped
    let (inner, values) = (Arc::downgrade(&place), Arc::clone(&tally));
    let cache: Cache<u64, Value> = Cache::builder()
        .capacity(20)
        .listener(move |key, value: &Value, cause| {
            value.of(*key);
            let place = inner.upgrade().expect("it is there until the end of the test");
            let cache = place.get().expect("it is set before anybody leaves");
            assert!(cause != Cause::Removed || cache.get(key).is_none());
            if *key < 1000 && cause == Cause::Evicted {
                cache.insert(key + 1000, values.value(key + 1000));
                cache.remove(&(key + 1000));
            }
        })
        .build();
    assert!(place.set(cache.clone()).is_ok());
    (0..300).for_each(|key| cache.insert(key, tally.value(key)));
    cache.clear();
    cache.reclaim();
    assert_eq!((cache.stats().entries, tally.alive()), (0, 0));
}

/// A value whose destructor uses the cache it was in.
struct Farewell {
    _value: Value,
    cache: Weak<OnceLock<Cache<u64, Farewell>>>,
    key: u64,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        let Some(place) = self.cache.upgrade() else { return };
        let Some(cache) = place.get() else { return };
        assert!(cache.get(&(self.key + 5000)).is_none());
        cache.remove(&(self.key / 2));
    }
}

#[test]
fn destructors_of_values_may_use_the_cache() {
    let tally = Tally::new();
    let place: Arc<OnceLock<Cache<u64, Farewell>>> = Arc::default();
    let cache = Cache::builder().capacity(32).shards(1).build();
    assert!(place.set(cache.clone()).is_ok());
    for key in 0..1000 {
        cache
            .insert(key, Farewell { _value: tally.value(key), cache: Arc::downgrade(&place), key });
    }
    cache.clear();
    cache.reclaim();
    assert_eq!(tally.alive(), cache.stats().entries + cache.stats().waiting);
    drop((cache, place));
    assert_eq!(tally.alive(), 0);
}

#[test]
fn a_cache_may_be_used_while_its_thread_ends() {
    struct AtEnd(Option<Cache<u64, Value>>, Arc<Tally>);
    impl Drop for AtEnd {
        fn drop(&mut self) {
            let cache = self.0.take().expect("it was put here");
            assert!(cache.read(&1, |value| value.of(1)).is_some());
            cache.insert(2, self.1.value(2));
            assert!(cache.remove(&2).is_some());
        }
    }
    thread_local! {
        static FIRST: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
        static LAST: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
    }
    let tally = Tally::new();
    let cache = Cache::builder().capacity(100).build();
    cache.insert(1, tally.value(1));
    for _ in 0..5 {
        let (cache, tally) = (cache.clone(), Arc::clone(&tally));
        let thread = std::thread::spawn(move || {
            // Before and after the thread first uses the cache: destructors run in one order or the
            // other.
            FIRST.set(Some(AtEnd(Some(cache.clone()), Arc::clone(&tally))));
            assert!(cache.contains_key(&1));
            LAST.set(Some(AtEnd(Some(cache.clone()), tally)));
        });
        thread.join().expect("the thread ends well");
    }
    check(cache, &tally);
}
