//! A host's cache: handles, charges, deleters, the capacity. Random operations against a model too
//! simple to be wrong, and threads that hand handles to each other.

#![allow(unsafe_code)] // handles travel as pointers

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;

use floe_memory::host::{Handle, HostBuilder, HostCache, IfPresent, Insertion, Priority};
use floe_memory::policy::{Lru, QdClock};
use proptest::prelude::*;

/// A value that counts its end.
#[derive(Debug)]
struct Value {
    number: u64,
    dropped: Arc<AtomicUsize>,
}

impl Drop for Value {
    fn drop(&mut self) {
        assert_ne!(self.number, u64::MAX, "dropped twice");
        self.number = u64::MAX;
        self.dropped.fetch_add(1, Relaxed);
    }
}

/// Makes values and counts those that are there.
#[derive(Default)]
struct Source {
    made: AtomicUsize,
    dropped: Arc<AtomicUsize>,
}

impl Source {
    fn value(&self, number: u64) -> Value {
        self.made.fetch_add(1, Relaxed);
        Value { number, dropped: Arc::clone(&self.dropped) }
    }

    fn alive(&self) -> usize {
        self.made.load(Relaxed) - self.dropped.load(Relaxed)
    }
}

const KEEP: Insertion = Insertion::new().if_present(IfPresent::Keep);
const REPLACE: Insertion = Insertion::new();

#[test]
fn a_handle_is_one_pointer_and_can_be_handed_over_as_such() {
    assert_eq!(size_of::<Handle<'_, u64, String>>(), size_of::<*const ()>());
    let cache = HostCache::<u64, String>::new(100);
    let raws: Vec<usize> = (0..20)
        .map(|_| {
            let there = cache.lookup(&1);
            let there = there.unwrap_or_else(|| {
                cache.insert_held(1, "one".to_string(), 3, REPLACE).expect("there is room")
            });
            there.into_raw().addr().get()
        })
        .collect();
    assert_eq!(cache.pinned_usage(), 3, "one value, however many handles");
    cache.erase(&1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for raw in raws {
                let raw = NonNull::new(std::ptr::with_exposed_provenance_mut(raw)).unwrap();
                // SAFETY: from a handle of this cache, used once.
                let handle = unsafe { Handle::<u64, String>::from_raw(raw) };
                assert_eq!((handle.key(), &**handle, handle.charge()), (&1, "one", 3));
            }
        });
    });
    cache.reclaim();
    assert_eq!((cache.pinned_usage(), cache.usage()), (0, 0));
}

#[test]
fn code_in_another_language_finds_the_value_by_the_pointer() {
    let cache = HostCache::new(1000);
    let number = |handle: &Handle<'_, u64, u64>| {
        let raw = handle.clone().into_raw().as_ptr();
        // SAFETY: as `into_raw` says.
        let seen = unsafe {
            let entry = raw.cast::<u8>().sub(1);
            *entry.add(Handle::<u64, u64>::VALUE_OFFSET).cast::<u64>()
        };
        // SAFETY: the clone's, used once.
        drop(unsafe { Handle::<u64, u64>::from_raw(NonNull::new(raw).unwrap()) });
        seen
    };
    let handles: Vec<_> =
        (0..10).map(|key| cache.insert_held(key, key * 7, 1, REPLACE).unwrap()).collect();
    for (key, handle) in (0..).zip(handles) {
        assert_eq!(number(&handle), key * 7);
        let raw = handle.into_raw();
        let address = raw.as_ptr().addr();
        // SAFETY: as `into_raw` says.
        let entry = unsafe {
            if address & 1 == 1 { address - 1 } else { *raw.as_ptr().cast::<usize>() - 1 }
        };
        let value =
            std::ptr::with_exposed_provenance::<u64>(entry + Handle::<u64, u64>::VALUE_OFFSET);
        // SAFETY: the handle keeps it.
        assert_eq!(unsafe { *value }, key * 7);
        // SAFETY: from `into_raw`, used once.
        drop(unsafe { Handle::<u64, u64>::from_raw(raw) });
    }
}

#[test]
fn a_strict_cache_gives_the_value_back_where_handles_fill_it() {
    let source = Source::default();
    let cache = HostBuilder::new(10).shards(1).strict(true).build();
    let held: Vec<_> = (0..10)
        .map(|key| cache.insert_held(key, source.value(key), 1, REPLACE).expect("there is room"))
        .collect();
    let refused = cache.insert_held(10, source.value(10), 1, REPLACE).expect_err("it is full");
    assert_eq!((refused.key, refused.value.number), (10, 10));
    drop(refused);
    assert!(cache.stand_alone(11, source.value(11), 1).is_err());
    assert_eq!((cache.usage(), cache.pinned_usage(), source.alive()), (10, 10, 10));
    cache.set_strict(false);
    drop(cache.insert_held(12, source.value(12), 1, REPLACE).expect("it goes over the capacity"));
    cache.set_strict(true);
    drop(held);
    drop(cache.insert_held(13, source.value(13), 1, REPLACE).expect("the handles are gone"));
    assert!(cache.usage() <= 10, "{} of 10", cache.usage());
    let more_than_all = cache.insert(14, source.value(14), 11, REPLACE);
    assert_eq!(more_than_all.unwrap_err().key, 14);
    drop(cache);
    assert_eq!(source.alive(), 0);
}

#[test]
fn a_newcomer_that_yields_is_handed_out_by_itself_and_dropped_with_its_handle() {
    let source = Source::default();
    let cache = HostCache::new(100);
    let first = cache.insert_held(1, source.value(1), 5, KEEP).unwrap();
    let second = cache.insert_held(1, source.value(2), 7, KEEP).unwrap();
    assert_eq!((first.number, second.number), (1, 2));
    assert_eq!(cache.lookup(&1).unwrap().number, 1);
    let again = second.clone();
    drop(second);
    assert_eq!((cache.usage(), source.alive()), (12, 2));
    drop(again);
    assert_eq!((cache.usage(), source.alive()), (5, 1));
    let third = cache.insert_held(1, source.value(3), 1, REPLACE).unwrap();
    assert_eq!((cache.lookup(&1).unwrap().number, first.number), (3, 1));
    drop((first, third));
    cache.reclaim();
    assert_eq!((cache.usage(), source.alive()), (1, 1));
}

#[test]
fn what_is_released_last_is_erased_if_asked_and_not_before() {
    let cache = HostCache::new(100);
    for counted in [false, true] {
        let held = |handle: Handle<'_, u64, u64>| {
            let handle = if counted { handle.into_long() } else { handle };
            // SAFETY: the same handle.
            unsafe { Handle::<u64, u64>::from_raw(handle.into_raw()) }
        };
        let first = held(cache.insert_held(1, 10, 1, REPLACE).unwrap());
        let second = held(cache.lookup(&1).unwrap());
        assert!(!cache.release_and_erase(first), "another handle is left");
        assert!(cache.contains_key(&1));
        assert!(cache.release_and_erase(second));
        assert!(!cache.contains_key(&1));
    }
    let alone = cache.stand_alone(2, 20, 1).unwrap();
    assert!(!cache.release_and_erase(alone), "it was not in the cache");
    cache.reclaim();
    assert_eq!(cache.usage(), 0);
}

#[test]
fn the_last_release_frees_what_was_evicted_erased_or_replaced_while_in_use() {
    let source = Source::default();
    let cache = HostBuilder::new(1000).policy(Lru::default()).shards(1).build();
    type Leave = fn(&HostCache<u64, Value, Lru>);
    let ways: [Leave; 4] =
        [|_| (), |cache| assert!(cache.erase(&0)), |cache| cache.set_capacity(0), HostCache::clear];
    for leave in ways {
        for with_another in [false, true] {
            // The first handles of a thread are its cells, further ones are counted.
            for other in 0..6 {
                let held: Vec<_> = (1..=other)
                    .map(|key| cache.insert_held(key, source.value(key), 1, REPLACE).unwrap())
                    .collect();
                let handle = cache.insert_held(0, source.value(0), 100, REPLACE).unwrap();
                let another = with_another.then(|| handle.clone());
                let alive = source.alive();
                leave(&cache);
                cache.set_capacity(1000);
                if let Some(another) = another {
                    assert!(!cache.release_and_free(another), "it was not the last");
                    assert_eq!(source.alive(), alive);
                }
                assert_eq!(cache.pinned_usage(), 100 + other as usize);
                assert!(cache.release_and_free(handle));
                assert_eq!(source.alive(), alive - 1);
                assert_eq!(cache.usage(), other as usize);
                held.into_iter().for_each(|handle| assert!(cache.release_and_free(handle)));
                assert_eq!((cache.usage(), source.alive()), (0, 0));
            }
        }
    }
    let first = cache.insert_held(0, source.value(1), 100, REPLACE).unwrap();
    let second = cache.insert_held(0, source.value(2), 100, REPLACE).unwrap();
    assert!(cache.release_and_free(first), "replaced");
    assert_eq!((cache.usage(), second.number), (100, 2));
    let alone = cache.insert_held(0, source.value(3), 100, KEEP).unwrap();
    assert!(cache.release_and_free(alone), "by itself");
    assert_eq!((cache.usage(), source.alive()), (100, 1));
    drop(second);
    (1..=20).for_each(|key| cache.insert(key, source.value(key), 100, REPLACE).unwrap());
    cache.set_capacity(1000);
    assert_eq!(cache.usage(), source.alive() * 100, "evicted ones do not wait");
    assert_eq!(source.alive(), cache.len());
}

#[test]
fn an_important_entry_outlives_others_in_an_order_with_a_queue_for_new_ones() {
    let cache = HostBuilder::new(64).shards(1).policy(QdClock::default()).build();
    let important = Insertion::new().priority(Priority::High);
    (5_000..5_064).for_each(|key| cache.insert(key, 0, 1, REPLACE).unwrap()); // fill the main queue
    cache.insert(1_000, 0, 1, important).unwrap();
    cache.insert(2_000, 0, 1, REPLACE).unwrap();
    (0..200).for_each(|key| cache.insert(key, 0, 1, REPLACE).unwrap());
    assert!(cache.contains_key(&1_000) && !cache.contains_key(&2_000));
}

#[test]
fn entries_leave_by_their_priority_where_there_are_pools() {
    let builder = HostBuilder::new(640).shards(1).policy(Lru::default());
    let cache = builder.priority_pools(0.25, 0.25).build();
    let put = |key, priority| {
        cache.insert(key, 0, 10, Insertion::new().priority(priority)).unwrap();
    };
    let count = |keys: std::ops::Range<u64>| keys.filter(|key| cache.contains_key(key)).count();
    (0..16).for_each(|key| put(key, Priority::High));
    (100..116).for_each(|key| put(key, Priority::Low));
    (200..400).for_each(|key| put(key, Priority::Bottom));
    assert_eq!((count(0..16), count(100..116)), (15, 15), "what a quarter of 630 holds");
    assert!(count(200..400) > 30 && cache.usage() <= 640, "the rest is for them");
    // More of low priority drive out what was of low priority, and of bottom priority.
    (500..600).for_each(|key| put(key, Priority::Low));
    assert_eq!((count(0..16), count(100..116), count(200..400)), (15, 0, 0));
}

#[test]
fn a_full_cache_of_bottom_priority_takes_what_comes() {
    let cache = HostBuilder::new(640).shards(1).build();
    let bottom = Insertion::new().priority(Priority::Bottom);
    (0..200).for_each(|key| cache.insert(key, 0, 10, bottom).unwrap());
    let newest = cache.insert_held(1_000, 7, 10, bottom).unwrap();
    assert!(*newest == 7 && cache.contains_key(&1_000));
}

#[test]
fn charges_above_four_gibibytes_are_those_of_entries() {
    const LARGE: usize = 5 << 30;
    let cache = HostBuilder::new(2 * LARGE).shards(1).build();
    cache.insert(1, 1, 100, REPLACE).unwrap();
    let large = cache.insert_held(2, 2, LARGE, REPLACE).unwrap();
    assert_eq!((cache.usage(), large.charge()), (LARGE + 100, LARGE));
    assert_eq!(cache.stats().weight, LARGE as u64 + 100);
    drop(large);
    assert_eq!(cache.lookup(&2).map(|value| *value), Some(2));
    cache.insert(3, 3, LARGE, REPLACE).unwrap();
    cache.reclaim();
    assert_eq!((cache.usage(), cache.len()), (LARGE, 1), "the others have left for it");
    cache.erase(&3);
    cache.reclaim();
    assert_eq!(cache.usage(), 0);
}

#[test]
fn values_with_handles_take_their_room_from_entries_in_the_cache() {
    let cache = HostBuilder::new(1000).shards(1).policy(Lru::default()).build();
    let held: Vec<_> = (0..50).map(|key| cache.insert_held(key, 0, 10, REPLACE).unwrap()).collect();
    for key in 1_000..2_000 {
        cache.insert(key, 0, 10, REPLACE).unwrap();
    }
    assert!(cache.usage() <= 1000, "{} of 1000", cache.usage());
    assert_eq!(cache.pinned_usage(), 500);
    assert!(cache.len() <= 50, "{} entries of 10 beside 500", cache.len());
    drop(held);
    cache.reclaim();
    for key in 2_000..3_000 {
        cache.insert(key, 0, 10, REPLACE).unwrap();
    }
    assert!(cache.len() > 90, "{} entries of 10 in 1000", cache.len());
    cache.set_capacity(100);
    assert!(cache.usage() <= 100, "{} of 100", cache.usage());
    let mut sum = 0;
    cache.for_each(|key, _, charge| {
        assert!(*key >= 2_000);
        sum += charge;
    });
    assert_eq!(sum, cache.stats().weight as usize);
    cache.clear();
    assert_eq!(cache.usage(), 0);
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Insert { key: u64, charge: usize, keep: bool, hold: bool },
    Alone { charge: usize },
    Look { key: u64 },
    Copy { at: usize },
    Long { at: usize },
    Release { at: usize },
    ReleaseAndErase { at: usize },
    Erase { key: u64 },
    Reclaim,
    Freeze { share: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..12_u64;
    prop_oneof![
        4 => (key.clone(), 0..9_usize, any::<bool>(), any::<bool>())
            .prop_map(|(key, charge, keep, hold)| Step::Insert { key, charge, keep, hold }),
        1 => (0..9_usize).prop_map(|charge| Step::Alone { charge }),
        4 => key.clone().prop_map(|key| Step::Look { key }),
        2 => any::<usize>().prop_map(|at| Step::Copy { at }),
        1 => any::<usize>().prop_map(|at| Step::Long { at }),
        4 => any::<usize>().prop_map(|at| Step::Release { at }),
        1 => any::<usize>().prop_map(|at| Step::ReleaseAndErase { at }),
        2 => key.prop_map(|key| Step::Erase { key }),
        1 => Just(Step::Reclaim),
        1 => any::<bool>().prop_map(|share| Step::Freeze { share }),
    ]
}

/// All values by their number: the charge and the handles; and which number a key has.
#[derive(Default)]
struct Model {
    cached: HashMap<u64, u64>,
    values: HashMap<u64, (usize, usize)>,
}

impl Model {
    fn usage(&self) -> usize {
        let is_there = |number: &u64| self.cached.values().any(|cached| cached == number);
        let counts = self.values.iter().filter(|(number, (_, n))| *n > 0 || is_there(number));
        counts.map(|(_, (charge, _))| charge).sum()
    }

    fn pinned(&self) -> usize {
        self.values.values().filter(|(_, n)| *n > 0).map(|(charge, _)| charge).sum()
    }
}

fn run(steps: Vec<Step>) {
    let source = Source::default();
    // room for all: the model evicts nothing
    let cache = HostBuilder::new(1 << 20).shards(1).build();
    let (mut model, mut handles) = (Model::default(), Vec::<Handle<'_, u64, Value>>::new());
    for (number, step) in (0..).zip(steps) {
        let at = |at: usize, len: usize| (len > 0).then(|| at % len.max(1));
        match step {
            Step::Insert { key, charge, keep, hold } => {
                let options = if keep { KEEP } else { REPLACE };
                model.values.insert(number, (charge, usize::from(hold)));
                if !keep || !model.cached.contains_key(&key) {
                    model.cached.insert(key, number);
                }
                let value = source.value(number);
                if hold {
                    handles.push(cache.insert_held(key, value, charge, options).unwrap());
                } else {
                    cache.insert(key, value, charge, options).unwrap();
                }
            }
            Step::Alone { charge } => {
                model.values.insert(number, (charge, 1));
                handles.push(cache.stand_alone(99, source.value(number), charge).unwrap());
            }
            Step::Look { key } => {
                let found = cache.lookup(&key);
                assert_eq!(
                    found.as_ref().map(|found| found.number),
                    model.cached.get(&key).copied()
                );
                if let Some(found) = found {
                    model.values.get_mut(&found.number).unwrap().1 += 1;
                    handles.push(found);
                }
            }
            Step::Copy { at: which } => {
                if let Some(at) = at(which, handles.len()) {
                    let copy = handles[at].clone();
                    model.values.get_mut(&copy.number).unwrap().1 += 1;
                    handles.push(copy);
                }
            }
            Step::Long { at: which } => {
                if let Some(at) = at(which, handles.len()) {
                    let long = handles.swap_remove(at).into_long();
                    handles.push(long);
                }
            }
            Step::Release { at: which } | Step::ReleaseAndErase { at: which } => {
                if let Some(at) = at(which, handles.len()) {
                    let handle = handles.swap_remove(at);
                    let (number, key) = (handle.number, *handle.key());
                    let owners = &mut model.values.get_mut(&number).unwrap().1;
                    *owners -= 1;
                    if let Step::ReleaseAndErase { .. } = step {
                        let erases = *owners == 0 && model.cached.get(&key) == Some(&number);
                        if erases {
                            model.cached.remove(&key);
                        }
                        assert_eq!(cache.release_and_erase(handle), erases);
                    }
                }
            }
            Step::Erase { key } => {
                assert_eq!(cache.erase(&key), model.cached.remove(&key).is_some());
            }
            Step::Reclaim => cache.reclaim(),
            Step::Freeze { share } => cache.freeze(if share { 0.5 } else { 0.0 }),
        }
        assert_eq!(cache.pinned_usage(), model.pinned());
        assert!(cache.usage() >= model.usage());
        assert_eq!(cache.len(), model.cached.len());
        for handle in &handles {
            assert_eq!(handle.charge(), model.values[&handle.number].0);
        }
    }
    cache.reclaim();
    assert_eq!(cache.usage(), model.usage());
    let is_there = |number: &u64| model.cached.values().any(|cached| cached == number);
    let alive = model.values.iter().filter(|(number, (_, n))| *n > 0 || is_there(number)).count();
    assert_eq!(source.alive(), alive);
    drop(handles);
    cache.reclaim();
    assert_eq!(source.alive(), model.cached.len());
    drop(cache);
    assert_eq!(source.alive(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 5 } else { 300 }))]

    #[test]
    fn random_operations_end_as_in_the_model(steps in prop::collection::vec(step(), 1..120)) {
        run(steps);
    }
}

#[test]
fn threads_that_release_each_other_s_handles_lose_no_value_and_drop_none_twice() {
    let (source, rounds) = (Source::default(), if cfg!(miri) { 50 } else { 20_000 });
    let cache = HostBuilder::new(200).shards(2).build();
    std::thread::scope(|scope| {
        let (to_first, first) = mpsc::sync_channel(64);
        let (to_second, second) = mpsc::sync_channel(64);
        for (seed, to_other, own) in [(1_u64, to_second, first), (2, to_first, second)] {
            let (cache, source) = (&cache, &source);
            scope.spawn(move || {
                let (mut random, mut long) = (seed, Vec::new());
                for round in 0..rounds {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let key = random >> 33 & 63;
                    let handle = cache.lookup(&key).unwrap_or_else(|| {
                        let options = if round % 2 == 0 { KEEP } else { REPLACE };
                        cache.insert_held(key, source.value(key), 10, options).unwrap()
                    });
                    assert_eq!(handle.number, key);
                    match random >> 40 & 7 {
                        0 => long.push(handle.clone()),
                        1 => _ = cache.erase(&key),
                        2 => _ = cache.release_and_erase(handle.clone()),
                        3 => long.clear(),
                        4 => _ = cache.pinned_usage(),
                        _ => {}
                    }
                    // one that waits for room in the channel must not wait for the other for ever
                    if let Err(error) = to_other.try_send(handle) {
                        drop(error);
                    }
                    while let Ok(given) = own.try_recv() {
                        let given: Handle<'_, u64, Value> = given;
                        assert_eq!(given.number, *given.key());
                    }
                }
            });
        }
    });
    cache.reclaim();
    assert_eq!(cache.pinned_usage(), 0);
    assert!(cache.usage() <= 200, "{} of 200", cache.usage());
    assert_eq!(source.alive(), cache.len());
    drop(cache);
    assert_eq!(source.alive(), 0);
}
