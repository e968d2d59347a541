//! The user's code changes the cache that calls it, which calls it again: chains of any length take
//! the stack of a few calls, and what panics in them holds nothing up.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crate::common::{Tally, Value};
use floe_memory::policy::Fifo;
use floe_memory::{Cache, Cause, InsertOptions};
use floe_testkit::wait_until;

/// Long enough for any stack, if each step took some of it.
const LONG: u64 = if cfg!(miri) { 200 } else { 20_000 };

type Place<V> = OnceLock<Cache<u64, V>>;
type Queue = Cache<u64, u64, Fifo>;
/// The name of a call of the cache, and the call.
type Call = (&'static str, fn(&Queue));

/// Runs on a thread with a small stack.
fn on_a_small_stack(run: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(512 << 10).spawn(run).expect("a thread");
    thread.join().expect("it ends well");
}

/// A full cache of one shard whose listener has each of the first entries come back under another
/// key, so that one more leaves for it. Counts what it was told.
fn chained(options: InsertOptions) -> (Arc<OnceLock<Queue>>, Arc<AtomicU64>) {
    let place: Arc<OnceLock<Queue>> = Arc::default();
    let (within, told) = (Arc::downgrade(&place), Arc::new(AtomicU64::new(0)));
    let tells = Arc::clone(&told);
    let listener = move |key: &u64, value: &u64, _: Cause| {
        tells.fetch_add(1, SeqCst);
        let Some(place) = within.upgrade() else { return };
        let cache = place.get().expect("set before anything leaves");
        if *key < LONG {
            cache.insert(key + LONG, *value);
        }
    };
    let builder = Cache::builder().capacity(LONG as usize).shards(1).policy(Fifo::default());
    let cache = builder.listener(listener).build();
    (0..LONG).for_each(|key| cache.insert_with(key, key, options));
    assert!(place.set(cache).is_ok());
    (place, told)
}

#[test]
fn a_listener_that_inserts_again_starts_a_chain_of_any_length_by_any_call() {
    on_a_small_stack(|| {
        let calls: [Call; 7] = [
            ("insert", |cache| cache.insert(u64::MAX, 1)),
            ("load", |cache| assert_eq!(*cache.get_with(&u64::MAX, || 1), 1)),
            ("upsert_with", |cache| drop(cache.upsert_with(u64::MAX, |_| 1))),
            ("resize", |cache| cache.resize(LONG as usize - 1)),
            ("remove", |cache| assert!(cache.remove(&0).is_some())),
            ("retain", |cache| cache.retain(|key, _| *key >= LONG)),
            ("clear", |cache| cache.clear()),
        ];
        for (name, call) in calls {
            let (place, told) = chained(InsertOptions::new());
            let cache = place.get().expect("set");
            call(cache);
            // Each insertion into a full cache has one leave.
            (0..2).for_each(|key| cache.insert(u64::MAX - 2 - key, 1));
            if !["remove", "clear", "retain"].contains(&name) {
                assert!(told.load(SeqCst) >= LONG, "{name}: told {} times", told.load(SeqCst));
            }
        }
    });
}

#[test]
#[cfg_attr(miri, ignore = "waits for the system's clock")]
fn a_listener_that_inserts_what_has_expired_again_starts_a_chain_of_any_length() {
    let (place, told) = chained(InsertOptions::new().time_to_live(Duration::from_secs(1)));
    wait_until("not all have expired", || told.load(SeqCst) >= LONG);
    assert!(place.get().expect("set").len() <= LONG as usize);
}

/// A value whose destructor puts another in.
struct Reborn {
    key: u64,
    left: u64,
    place: Weak<Place<Reborn>>,
    _value: Value,
    tally: Arc<Tally>,
}

impl Drop for Reborn {
    fn drop(&mut self) {
        let Some(place) = self.place.upgrade().filter(|_| self.left > 0) else { return };
        let Some(cache) = place.get() else { return };
        let (key, left, tally) = (self.key + 1, self.left - 1, Arc::clone(&self.tally));
        let place = Weak::clone(&self.place);
        cache.insert(key, Self { key, left, place, _value: tally.value(key), tally });
    }
}

#[test]
fn a_destructor_that_inserts_again_starts_a_chain_of_any_length() {
    on_a_small_stack(|| {
        let (tally, place) = (Tally::new(), Arc::<Place<Reborn>>::default());
        let cache = Cache::builder().capacity(64).shards(1).build();
        assert!(place.set(cache.clone()).is_ok());
        for start in 0..200 {
            let (key, left) = (start << 32, LONG / 100);
            let (place, tallies) = (Arc::downgrade(&place), Arc::clone(&tally));
            let value = tally.value(key);
            cache.insert(key, Reborn { key, left, place, _value: value, tally: tallies });
            let stats = cache.stats();
            assert_eq!(tally.alive(), stats.entries + stats.waiting, "none is lost");
            assert!(stats.waiting <= 32, "{} wait", stats.waiting);
        }
        assert!(tally.made() > 100 * LONG / 100, "only {} were made", tally.made());
        drop((place, cache));
        assert_eq!(tally.alive(), 0);
    });
}

#[test]
fn what_a_listener_does_much_of_waits_no_longer_than_it_would_otherwise() {
    let tally = Tally::new();
    let place: Arc<Place<Value>> = Arc::default();
    let (within, most) = (Arc::downgrade(&place), Arc::new(AtomicU64::new(0)));
    let (seen, values) = (Arc::clone(&most), Arc::clone(&tally));
    let listener = move |key: &u64, _: &Value, _: Cause| {
        let Some(place) = within.upgrade().filter(|_| *key == 0) else { return };
        let cache = place.get().expect("set before anything leaves");
        for child in 1..2000 {
            cache.insert(child, values.value(child));
            cache.remove(&child);
            seen.fetch_max(values.alive() - cache.len() as u64, SeqCst);
        }
    };
    let cache = Cache::builder().capacity(100).shards(1).listener(listener).build();
    assert!(place.set(cache.clone()).is_ok());
    cache.insert(0, tally.value(0));
    cache.remove(&0);
    assert!(most.load(SeqCst) <= 40, "{} wait", most.load(SeqCst));
    assert!(most.load(SeqCst) > 0);
}

/// A value whose destructor panics, one in some.
struct Bomb {
    armed: bool,
    _value: Value,
}

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(!self.armed, "the destructor panics");
    }
}

#[test]
fn destructors_that_panic_keep_no_others_waiting() {
    for one_in in [1, 2, 10] {
        let tally = Tally::new();
        let cache = Cache::builder().capacity(100).shards(1).build();
        let mut panicked = 0;
        for key in 0..LONG {
            let bomb = Bomb { armed: key % one_in == 0, _value: tally.value(key) };
            panicked +=
                u64::from(catch_unwind(AssertUnwindSafe(|| cache.insert(key, bomb))).is_err());
            let waiting = tally.alive() - 100.min(key + 1);
            assert!(waiting <= 32, "{waiting} wait after {key} insertions");
        }
        assert!(panicked > 0, "the panics reach those who insert");
        assert_eq!(cache.len(), 100);
        // All of many batches, then the panic.
        assert!(catch_unwind(AssertUnwindSafe(|| cache.clear())).is_err());
        assert_eq!((cache.len(), tally.alive()), (0, 0));
        for key in 0..100 {
            let bomb = Bomb { armed: true, _value: tally.value(key) };
            cache.insert(key, bomb);
        }
        // However many panic, the end drops all and raises one.
        assert!(catch_unwind(AssertUnwindSafe(|| drop(cache))).is_err());
        assert_eq!(tally.alive(), 0);
    }
}

#[test]
fn a_cache_of_several_shards_and_held_values_ends_with_one_panic_however_many_there_are() {
    let tally = Tally::new();
    let cache = Cache::builder().capacity(1000).shards(8).build();
    for key in 0..500 {
        cache.insert(key, Bomb { armed: key != 7, _value: tally.value(key) });
    }
    let held = cache.hold(&7).expect("it is in");
    assert!(catch_unwind(AssertUnwindSafe(|| drop(cache))).is_err());
    assert_eq!(tally.alive(), 1);
    drop(held);
    assert_eq!(tally.alive(), 0);
}

#[test]
fn listeners_that_panic_keep_neither_each_other_nor_insertions_from_their_work() {
    let (tally, told) = (Tally::new(), Arc::new(AtomicU64::new(0)));
    let tells = Arc::clone(&told);
    let cache = Cache::builder()
        .capacity(64)
        .shards(8)
        .listener(move |_: &u64, _: &Value, _| {
            tells.fetch_add(1, SeqCst);
            panic!("the listener panics");
        })
        .build();
    for key in 0..LONG {
        let value = tally.value(key);
        let panicked = catch_unwind(AssertUnwindSafe(|| cache.insert(key, value))).is_err();
        assert!(panicked == (key >= 64), "one leaves for each that comes");
        assert!(cache.contains_key(&key), "what was inserted is in all the same");
        let waiting = tally.alive() - 64.min(key + 1);
        assert!(waiting <= 8 * 32, "{waiting} wait after {key} insertions");
    }
    assert!(catch_unwind(AssertUnwindSafe(|| cache.retain(|_, _| false))).is_err());
    assert_eq!((cache.len(), told.load(SeqCst)), (0, LONG), "each is told of");
    assert!(catch_unwind(AssertUnwindSafe(|| cache.clear())).is_ok());
    assert_eq!(tally.alive(), 0);
}
