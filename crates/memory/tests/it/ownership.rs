//! Values that move out of their last guard.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::common::{Tally, Value};
use floe_memory::{Cache, Ref};

fn cache(entries: usize) -> (Cache<u64, Value>, Arc<Tally>) {
    (Cache::builder().capacity(entries).shards(1).build(), Tally::new())
}

/// Takes the value of a key out, and drops it.
#[track_caller]
fn comes_out(cache: &Cache<u64, Value>, guard: Ref<'_, Value>, key: u64) {
    let tally_before = guard.of(key);
    let value = guard.try_into_inner(cache).unwrap_or_else(|_| panic!("{key} stays in its guard"));
    assert_eq!(value.of(key), tally_before);
}

#[test]
fn what_has_left_comes_out_and_is_dropped_once() {
    let (cache, tally) = cache(10);
    for key in 0..10 {
        cache.insert(key, tally.value(key));
    }
    comes_out(&cache, cache.remove(&1).unwrap(), 1);
    comes_out(&cache, cache.swap(2, tally.value(2)).unwrap(), 2);
    comes_out(&cache, cache.remove_if(&3, |_| true).unwrap(), 3);
    let evicted = cache.get(&4).unwrap();
    cache.resize(0);
    comes_out(&cache, evicted, 4);
    let rejected = cache.get_with(&5, || tally.value(5));
    comes_out(&cache, rejected, 5);
    cache.reclaim();
    assert_eq!((tally.alive(), cache.stats().waiting), (0, 0));
    assert_eq!(tally.made(), 12);
}

#[test]
fn the_place_of_a_value_that_came_out_is_used_again() {
    let (cache, tally) = cache(10);
    let addresses: std::collections::HashSet<_> = (0..1000)
        .map(|_| {
            cache.insert(1, tally.value(1));
            let removed = cache.remove(&1).unwrap();
            let address = std::ptr::from_ref(&*removed) as usize;
            comes_out(&cache, removed, 1);
            address
        })
        .collect();
    assert_eq!((addresses.len(), cache.stats().waiting), (1, 0));
}

#[test]
fn what_is_in_the_cache_stays_in_its_guard() {
    let (cache, tally) = cache(10);
    cache.insert(1, tally.value(1));
    let guard = cache.get(&1).unwrap().try_into_inner(&cache).unwrap_err();
    guard.of(1);
    drop(cache.remove(&1));
    comes_out(&cache, guard, 1);
}

/// A guard of any type.
trait Guard {}

impl<T> Guard for T {}

type Shares = for<'a> fn(&'a Cache<u64, Value>, u64) -> Box<dyn Guard + 'a>;

#[test]
fn what_another_guard_shows_stays() {
    let (cache, tally) = cache(10);
    let all: [Shares; 5] = [
        |cache, key| Box::new(cache.get(&key)),
        |cache, key| Box::new(cache.hold(&key)),
        |cache, key| Box::new(cache.peek(&key)),
        |cache, _| Box::new(cache.iter().next()),
        |cache, _| Box::new(cache.hottest(1)),
    ];
    for shares in all {
        cache.insert(1, tally.value(1));
        let other = shares(&cache, 1);
        let removed = cache.remove(&1).unwrap();
        let removed = removed.try_into_inner(&cache).unwrap_err();
        cache.reclaim();
        let removed = removed.try_into_inner(&cache).unwrap_err();
        removed.of(1);
        drop(other);
        comes_out(&cache, removed, 1);
    }
}

#[test]
fn a_guard_of_another_thread_counts_and_so_do_many() {
    let (cache, tally) = cache(5000);
    (0..5000).for_each(|key| cache.insert(key, tally.value(key)));
    let (ready, done) = (&std::sync::Barrier::new(2), &std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        let cache = &cache;
        let other = scope.spawn(move || {
            let guards: Vec<_> = (0..5000).map(|key| cache.get(&key).unwrap()).collect();
            ready.wait();
            done.wait();
            guards.iter().zip(0..).for_each(|(guard, key)| _ = guard.of(key));
        });
        ready.wait();
        let removed = cache.remove(&4321).unwrap().try_into_inner(cache).unwrap_err();
        done.wait();
        other.join().unwrap();
        comes_out(cache, removed, 4321);
    });
}

#[test]
fn a_hold_comes_out_on_another_thread_and_counts_beside_another() {
    let (cache, tally) = cache(10);
    cache.insert(1, tally.value(1));
    let (held, other) = (cache.hold(&1).unwrap(), cache.hold(&1).unwrap());
    let held = held.try_into_inner(&cache).unwrap_err();
    drop(cache.remove(&1));
    let held = held.try_into_inner(&cache).unwrap_err();
    drop(other);
    let value = std::thread::scope(|scope| {
        scope.spawn(|| held.try_into_inner(&cache).unwrap()).join().unwrap()
    });
    drop(cache);
    value.of(1);
    assert_eq!(tally.alive(), 1);
}

thread_local! {
    static STOLEN: RefCell<Option<Ref<'static, Value>>> = const { RefCell::new(None) };
}

#[test]
fn a_listener_sees_the_value_before_it_can_come_out() {
    let is_told = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_told);
    let slot: Arc<std::sync::OnceLock<&'static Cache<u64, Value>>> = Arc::default();
    let inside = Arc::clone(&slot);
    let cache = Cache::builder()
        .capacity(10)
        .listener(move |key: &u64, value: &Value, _| {
            if let Some(guard) = STOLEN.take() {
                let guard = guard.try_into_inner(inside.get().unwrap()).unwrap_err();
                guard.of(*key);
                STOLEN.set(Some(guard));
            }
            value.of(*key);
            told.store(true, SeqCst);
        })
        .build();
    let cache: &'static Cache<_, _> = Box::leak(Box::new(cache));
    assert!(slot.set(cache).is_ok());
    let tally = Tally::new();
    cache.insert(1, tally.value(1));
    STOLEN.set(cache.get(&1));
    drop(cache.remove(&1));
    assert!(is_told.load(SeqCst));
    comes_out(cache, STOLEN.take().unwrap(), 1);
    cache.reclaim();
    assert_eq!(tally.alive(), 0);
}

#[test]
fn a_guard_of_another_cache_is_refused() {
    let ((cache, tally), (other, _)) = (cache(10), cache(10));
    cache.insert(1, tally.value(1));
    let (removed, held) = (cache.remove(&1).unwrap(), cache.swap(1, tally.value(1)));
    assert!(held.is_none());
    let held = cache.hold(&1).unwrap();
    let refused = [
        catch_unwind(AssertUnwindSafe(|| drop(removed.try_into_inner(&other)))),
        catch_unwind(AssertUnwindSafe(|| drop(held.try_into_inner(&other)))),
    ];
    for panic in refused {
        let panic = panic.unwrap_err();
        assert_eq!(panic.downcast_ref::<String>().unwrap(), "the guard is of another cache");
    }
    cache.clear();
    assert_eq!(tally.alive(), 0);
}

/// A key with a hash that changes, or a destructor that panics.
#[derive(PartialEq, Eq)]
struct Faulty(u64);

static HASHES_WRONG: AtomicBool = AtomicBool::new(false);

impl std::hash::Hash for Faulty {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u64(self.0 + u64::from(HASHES_WRONG.load(SeqCst)) * 1000);
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        assert!(self.0 != 13 || std::thread::panicking(), "this key's destructor panics");
    }
}

#[test]
fn faulty_keys_lose_and_double_nothing() {
    let tally = Tally::new();
    let cache = Cache::builder().capacity(100).shards(4).build();
    cache.insert(Faulty(13), tally.value(13));
    let removed = cache.remove(&std::mem::ManuallyDrop::new(Faulty(13)) as &Faulty).unwrap();
    let panic = catch_unwind(AssertUnwindSafe(|| drop(removed.try_into_inner(&cache))));
    assert!(panic.is_err());
    assert_eq!((tally.alive(), cache.stats().waiting), (0, 0));
    (0..10).for_each(|key| cache.insert(Faulty(key), tally.value(key)));
    let removed: Vec<_> = (0..10).map(|key| cache.remove(&Faulty(key)).unwrap()).collect();
    HASHES_WRONG.store(true, SeqCst);
    for (guard, key) in removed.into_iter().zip(0..) {
        // In the right shard by chance, or refused.
        match guard.try_into_inner(&cache) {
            Ok(value) => _ = value.of(key),
            Err(guard) => _ = guard.of(key),
        }
    }
    cache.reclaim();
    assert_eq!(tally.alive(), 0);
}
