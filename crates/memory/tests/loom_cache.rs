//! The cache itself, small, under a model checker that tries every order in which threads and their
//! memory can meet, up to a number of preemptions: what is freed is looked at by nobody, and what
//! is found is what was there.
//!
//! A binary of its own: it takes the modules of the crate in with the atomics of the model checker.

#![allow(unsafe_code, dead_code, missing_docs, unreachable_pub)]

#[path = "../src/admission.rs"]
mod admission;
#[path = "loom/barrier.rs"]
mod barrier;
#[path = "../src/budget.rs"]
mod budget;
#[path = "../src/build_error.rs"]
mod build_error;
#[path = "../src/builder/mod.rs"]
mod builder;
#[path = "../src/cache.rs"]
mod cache;
#[path = "../src/candidate.rs"]
mod candidate;
#[path = "../src/cause.rs"]
mod cause;
#[path = "../src/cell.rs"]
mod cell;
#[path = "../src/clock.rs"]
mod clock;
#[path = "../src/conditional.rs"]
mod conditional;
#[path = "../src/count.rs"]
mod count;
#[path = "../src/entry.rs"]
mod entry;
#[path = "../src/flight.rs"]
mod flight;
#[path = "../src/frozen/mod.rs"]
mod frozen;
#[path = "../src/further.rs"]
mod further;
#[path = "../src/grace.rs"]
mod grace;
#[path = "../src/guard.rs"]
mod guard;
#[path = "../src/hash.rs"]
mod hash;
#[path = "../src/hazard.rs"]
mod hazard;
#[path = "../src/hold.rs"]
mod hold;
#[path = "../src/holds.rs"]
mod holds;
#[path = "../src/host/mod.rs"]
mod host;
#[path = "../src/huge.rs"]
mod huge;
#[path = "../src/index.rs"]
mod index;
#[path = "../src/inner.rs"]
mod inner;
#[path = "../src/insert.rs"]
mod insert;
#[path = "../src/iter.rs"]
mod iter;
#[path = "../src/lifetimes.rs"]
mod lifetimes;
#[path = "../src/limbo.rs"]
mod limbo;
#[path = "../src/load/mod.rs"]
mod load;
#[path = "loom/local.rs"]
mod local;
#[path = "../src/lookup/mod.rs"]
mod lookup;
#[path = "../src/manage.rs"]
mod manage;
#[path = "../src/options.rs"]
mod options;
#[path = "../src/owner/mod.rs"]
mod owner;
#[path = "../src/places.rs"]
mod places;
#[path = "../src/prefetch.rs"]
mod prefetch;
#[path = "../src/reclaim.rs"]
mod reclaim;
#[path = "../src/records.rs"]
mod records;
#[path = "../src/room.rs"]
mod room;
#[path = "../src/search.rs"]
mod search;
#[path = "../src/shard.rs"]
mod shard;
#[path = "../src/shards.rs"]
mod shards;
#[path = "../src/slab.rs"]
mod slab;
#[path = "../src/stats.rs"]
mod stats;
#[path = "../src/sweep.rs"]
mod sweep;
#[path = "loom/sync.rs"]
mod sync;
#[path = "../src/table.rs"]
mod table;
#[path = "../src/teardown.rs"]
mod teardown;
#[path = "loom/thread.rs"]
mod thread;
#[path = "../src/thrown.rs"]
mod thrown;
#[path = "../src/totals.rs"]
mod totals;
#[path = "../src/unplaced.rs"]
mod unplaced;
#[path = "../src/upkeep.rs"]
mod upkeep;

/// Nothing expires here.
mod maintenance {
    use crate::sweep::Sweep;

    pub(crate) fn register(_: std::sync::Weak<dyn Sweep>, _: bool) -> u64 {
        unreachable!("no model has entries that expire");
    }

    pub(crate) fn start() -> std::io::Result<()> {
        Ok(())
    }

    pub(crate) fn is_alone() -> bool {
        false
    }

    pub(crate) fn sweep_at(_: u64, _: u64) {}

    pub(crate) fn forget(_: u64) {}

    pub(crate) fn is_own_thread() -> bool {
        false
    }
}

/// Nothing forks here.
mod fork {
    pub(crate) fn prepare() {}
}

/// Nothing forks here.
mod quiet {
    pub(crate) struct Quiet;

    impl Drop for Quiet {
        fn drop(&mut self) {}
    }

    pub(crate) fn quiet() -> Option<Quiet> {
        None
    }
}

#[path = "loom/frozen.rs"]
mod frozen_models;
#[path = "loom/host.rs"]
mod host_models;
#[path = "loom/refused.rs"]
mod refused_models;

use std::future::Future;
use std::hash::BuildHasherDefault;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use barrier::Kind;
use floe_policy::Fifo;
use floe_testkit::Identity;
use sync::Tracked;

type Cache = cache::Cache<Tracked, Tracked, Fifo, BuildHasherDefault<Identity>>;

/// A handle that one thread has: the thread's record is given up with it.
struct Handle(Option<Cache>);

impl Handle {
    fn of(cache: &Cache) -> Self {
        Self(Some(cache.clone()))
    }
}

impl std::ops::Deref for Handle {
    type Target = Cache;

    fn deref(&self) -> &Cache {
        self.0.as_ref().expect("there until it is dropped")
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inner.threads.release();
    }
}

impl Cache {
    fn small(entries: usize) -> Self {
        cache::Cache::<Tracked, Tracked>::builder()
            .capacity(entries)
            .policy(Fifo::default())
            .hasher(BuildHasherDefault::default())
            .shards(1)
            .clock(clock::Clock::manual())
            .build()
    }

    fn put(&self, key: u64, value: u64) {
        self.insert(Tracked::new(key), Tracked::new(value));
    }

    fn value(&self, key: u64) -> Option<u64> {
        self.get(&Tracked::new(key)).map(|value| value.get())
    }
}

fn model(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    let model = Arc::new(model);
    builder.check(move || {
        let model = Arc::clone(&model);
        thread::run(move || model());
    });
}

/// Runs a model with a barrier for which one side pays, and with one for which both do.
fn model_of_readers(preemptions: usize, run: impl Fn() + Sync + Send + Copy + 'static) {
    for kind in [Kind::Asymmetric, Kind::Symmetric] {
        barrier::with(kind);
        model(preemptions, run);
    }
}

/// Holds that a model finds out that the barrier reaches nobody.
fn misses_the_barrier(preemptions: usize, run: impl Fn() + Sync + Send + Copy + 'static) {
    let faulty = std::thread::spawn(move || {
        barrier::with(Kind::Missing);
        sync::with_own_fences(false);
        model(preemptions, run);
    });
    let panic = faulty.join().expect_err("the model does without the barrier");
    let message = panic.downcast_ref::<String>().map_or("", |message| message);
    let is_found = ["Causality violation", "read after it was freed"]
        .iter()
        .any(|found| message.contains(found));
    assert!(is_found, "found something else: {message}");
}

#[test]
fn what_a_guard_shows_is_not_freed_by_a_removal() {
    for own_fences in [true, false] {
        sync::with_own_fences(own_fences);
        model_of_readers(4, || {
            let cache = Cache::small(2);
            cache.put(1, 10);
            let other = Handle::of(&cache);
            let reader = thread::spawn(move || {
                let seen = other.value(1);
                assert!(seen.is_none_or(|value| value == 10));
                seen
            });
            drop(cache.remove(&Tracked::new(1)));
            cache.reclaim();
            assert_eq!(cache.value(1), None, "it was removed before");
            reader.join().unwrap();
        });
    }
}

#[test]
fn a_replaced_key_has_the_old_value_or_the_new_one() {
    model_of_readers(4, || {
        let cache = Cache::small(2);
        cache.put(1, 10);
        let other = Handle::of(&cache);
        let reader = thread::spawn(move || {
            let first = other.value(1).expect("it is there all the while");
            let second = other.value(1).expect("it is there all the while");
            assert!(
                (10..=11).contains(&first) && (first..=11).contains(&second),
                "{first}, {second}"
            );
        });
        cache.put(1, 11);
        cache.reclaim();
        reader.join().unwrap();
    });
}

#[test]
fn a_place_that_is_used_again_is_not_taken_for_what_was_there() {
    model_of_readers(4, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        let other = Handle::of(&cache);
        let reader = thread::spawn(move || {
            assert!(other.value(1).is_none_or(|value| value == 10));
        });
        cache.remove(&Tracked::new(1));
        cache.reclaim();
        cache.put(2, 20);
        assert_eq!(cache.value(2), Some(20));
        reader.join().unwrap();
    });
}

#[test]
fn what_is_there_is_found_while_the_table_is_replaced() {
    model_of_readers(2, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        cache.resize(2);
        let other = Handle::of(&cache);
        let reader = thread::spawn(move || {
            assert_eq!(other.value(1), Some(10), "it is there all the while");
            let second = other.value(2);
            assert!(second.is_none_or(|value| value == 20));
            second
        });
        cache.put(2, 20); // grows
        cache.reclaim();
        reader.join().unwrap();
        assert_eq!((cache.value(1), cache.value(2)), (Some(10), Some(20)));
    });
}

#[test]
fn a_late_reader_of_an_old_table_finds_nothing_stale_in_it() {
    model_of_readers(2, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        cache.resize(2);
        let other = Handle::of(&cache);
        let told = Arc::new(loom::sync::atomic::AtomicBool::new(false));
        let tell = Arc::clone(&told);
        let reader = thread::spawn(move || {
            // Acquire: the removal came before.
            let removed = told.load(std::sync::atomic::Ordering::Acquire);
            let seen = other.value(1);
            assert!(!removed || seen.is_none(), "removed before it was asked for");
        });
        cache.put(2, 20); // grows
        drop(cache.remove(&Tracked::new(1)));
        tell.store(true, std::sync::atomic::Ordering::Release);
        cache.reclaim();
        reader.join().unwrap();
    });
}

#[test]
fn a_guard_that_comes_to_travel_keeps_its_value_all_the_while() {
    model(6, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        let other = Handle::of(&cache);
        let reader = thread::spawn(move || other.hold(&Tracked::new(1)));
        drop(cache.remove(&Tracked::new(1)));
        cache.reclaim();
        let held = reader.join().unwrap();
        cache.reclaim();
        assert!(held.as_ref().is_none_or(|value| value.get() == 10));
        drop(held);
        cache.reclaim();
        assert_eq!(cache.stats().waiting, 0, "nobody looks at it any more");
    });
}

#[test]
fn a_value_that_has_travelled_is_freed_when_it_is_let_go_and_not_before() {
    model(5, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        let held = cache.hold(&Tracked::new(1)).unwrap();
        let reader = thread::spawn(move || assert_eq!(held.get(), 10));
        drop(cache.remove(&Tracked::new(1)));
        cache.reclaim();
        reader.join().unwrap();
        cache.reclaim();
        assert_eq!(cache.stats().waiting, 0, "nobody looks at it any more");
    });
}

#[test]
fn a_key_that_comes_back_is_seen_with_its_new_value() {
    model_of_readers(4, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        let other = Handle::of(&cache);
        let reader = thread::spawn(move || {
            assert!(other.value(1).is_none_or(|value| value == 10 || value == 11));
        });
        drop(cache.remove(&Tracked::new(1)));
        cache.put(1, 11); // the same lane and the same tag
        reader.join().unwrap();
    });
}

#[test]
fn whoever_is_alone_frees_nothing_under_a_thread_that_comes_meanwhile() {
    // as far as this goes, it is the barrier that is left out by whoever is alone
    sync::with_own_fences(false);
    model_of_readers(4, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        let (first, second) = (Handle::of(&cache), Handle::of(&cache));
        cache.inner.threads.release(); // the two are all there is
        let reader = thread::spawn(move || {
            assert!(first.value(1).is_none_or(|value| value == 10));
        });
        let remover = thread::spawn(move || {
            drop(second.remove(&Tracked::new(1)));
            second.reclaim();
        });
        reader.join().unwrap();
        remover.join().unwrap();
    });
}

#[test]
fn two_who_reclaim_at_once_free_nothing_under_a_reader_and_nothing_twice() {
    model(2, || {
        let cache = Cache::small(2);
        cache.put(1, 10);
        cache.put(2, 20);
        let handles = [Handle::of(&cache), Handle::of(&cache)];
        let threads = handles.map(|other| {
            thread::spawn(move || {
                other.remove(&Tracked::new(1));
                assert!(other.value(2).is_none_or(|value| value == 20));
                other.reclaim();
            })
        });
        cache.remove(&Tracked::new(2));
        cache.reclaim();
        for thread in threads {
            thread.join().unwrap();
        }
        cache.reclaim();
        assert_eq!(cache.stats().waiting, 0);
    });
}

#[test]
fn who_has_answered_looks_at_nothing_that_was_taken_out_before_even_without_a_barrier() {
    use sync::{AtomicUsize, Ordering};

    const ADDRESS: usize = 2;
    sync::with_own_fences(false);
    model(5, || {
        let records = Arc::new(records::Records::default());
        let (place, entry) = (Arc::new(AtomicUsize::new(ADDRESS)), Arc::new(Tracked::new(10)));
        // SAFETY: records live as long as `records`, in both threads.
        let own = unsafe { &*records.acquire() };
        let reader = {
            let (records, place, entry) =
                (Arc::clone(&records), Arc::clone(&place), Arc::clone(&entry));
            thread::spawn(move || {
                // SAFETY: as above.
                let record = unsafe { &*records.acquire() };
                for answers_within in [true, false] {
                    if place.load(Ordering::Acquire) == ADDRESS {
                        let cell = record.cell();
                        cell.store(ADDRESS, Ordering::Release);
                        if place.load(Ordering::Acquire) == ADDRESS {
                            assert_eq!(entry.get(), 10);
                            if answers_within {
                                // comparing keys is the user's code and may insert something
                                records.answer(record);
                                assert_eq!(entry.get(), 10);
                            }
                        }
                        cell.store(0, Ordering::Release);
                    }
                    records.answer(record);
                }
            })
        };
        place.store(0, Ordering::Release);
        let asked = records.ask();
        for _ in 0..2 {
            let protected = records.protected_at_once(own, asked);
            if protected.is_some_and(|protected| !protected.contains(&ADDRESS)) {
                entry.free();
                break;
            }
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_barrier_of_another_thread_counts_for_what_was_taken_out_before_it_only() {
    use sync::{AtomicUsize, Ordering};

    const ADDRESS: usize = 2;
    sync::with_own_fences(false);
    model(4, || {
        let records = Arc::new(records::Records::default());
        let (place, entry) = (Arc::new(AtomicUsize::new(ADDRESS)), Arc::new(Tracked::new(10)));
        // SAFETY: records live as long as `records`, in all three threads.
        let [own, others, readers] = [(); 3].map(|()| unsafe { &*records.acquire() });
        let reader = {
            let (_records, place, entry) =
                (Arc::clone(&records), Arc::clone(&place), Arc::clone(&entry));
            thread::spawn(move || {
                let cell = readers.cell();
                cell.store(ADDRESS, Ordering::Release);
                barrier::light();
                if place.load(Ordering::Acquire) == ADDRESS {
                    assert_eq!(entry.get(), 10);
                }
                cell.store(0, Ordering::Release);
            })
        };
        let other = {
            let records = Arc::clone(&records);
            thread::spawn(move || drop(records.protected(others, records.ask())))
        };
        place.store(0, Ordering::Release);
        if !records.protected(own, records.ask()).contains(&ADDRESS) {
            entry.free();
        }
        reader.join().unwrap();
        other.join().unwrap();
    });
}

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
fn what_a_guard_showed_is_kept_by_the_hold_that_it_becomes() {
    model_of_readers(3, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        let other = Handle::of(&cache);
        let thread = thread::spawn(move || {
            let guard = other.get(&Tracked::new(1));
            let held = guard.map(|guard| guard.hold(&other));
            assert!(held.is_none_or(|held| held.get() == 10));
        });
        drop(cache.remove(&Tracked::new(1)));
        cache.reclaim();
        thread.join().unwrap();
        cache.reclaim();
    });
}

/// Counts loads.
struct Loads(loom::sync::atomic::AtomicUsize);

impl Loads {
    fn new() -> Arc<Self> {
        Arc::new(Self(loom::sync::atomic::AtomicUsize::new(0)))
    }

    fn load(&self, result: Result<u64, ()>) -> Result<Tracked, ()> {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        result.map(Tracked::new)
    }

    fn count(&self) -> usize {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}

#[test]
fn a_key_that_two_ask_for_is_loaded_once() {
    model(6, || {
        let cache = Cache::small(1);
        let loads = Loads::new();
        let (other, counted) = (Handle::of(&cache), Arc::clone(&loads));
        let thread = thread::spawn(move || {
            let value = other.get_or_insert_with(&Tracked::new(1), || counted.load(Ok(10)));
            assert_eq!(value.unwrap().get(), 10);
        });
        let value = cache.get_or_insert_with(&Tracked::new(1), || loads.load(Ok(10)));
        assert_eq!(value.unwrap().get(), 10);
        thread.join().unwrap();
        assert_eq!(loads.count(), 1);
    });
}

#[test]
fn what_a_load_brings_is_kept_for_whoever_waits_for_it() {
    model(3, || {
        let cache = Cache::small(1);
        let other = Handle::of(&cache);
        let thread = thread::spawn(move || {
            let value =
                other.get_or_insert_with(&Tracked::new(1), || Ok::<_, ()>(Tracked::new(10)));
            assert_eq!(value.unwrap().get(), 10);
        });
        drop(cache.get_or_insert_with(&Tracked::new(1), || Ok::<_, ()>(Tracked::new(10))).unwrap());
        drop(cache.remove(&Tracked::new(1)));
        cache.reclaim();
        thread.join().unwrap();
        cache.reclaim();
    });
}

#[test]
fn a_load_that_fails_wakes_whoever_waits_for_it() {
    model(6, || {
        let cache = Cache::small(1);
        let loads = Loads::new();
        let (other, counted) = (Handle::of(&cache), Arc::clone(&loads));
        let thread = thread::spawn(move || {
            let failed =
                other.get_or_insert_with(&Tracked::new(1), || counted.load(Err(()))).is_err();
            assert!(failed || counted.count() == 1, "it fails unless the other one has loaded it");
        });
        let value = cache.get_or_insert_with(&Tracked::new(1), || loads.load(Ok(10)));
        assert_eq!(value.unwrap().get(), 10, "its own load succeeds");
        thread.join().unwrap();
    });
}

/// Something changes what another thread may be loading, and then the cache by `change`: what was
/// there before must not be in the cache after that, then or later.
fn outdates(change: fn(&Cache)) {
    outdates_in(Cache::small, change);
}

/// [`outdates`] for a load in a cache that is made by `begin`, of one entry.
fn outdates_in(begin: fn(usize) -> Cache, change: fn(&Cache)) {
    model(2, move || {
        let cache = begin(1);
        let (other, source) =
            (Handle::of(&cache), Arc::new(loom::sync::atomic::AtomicUsize::new(10)));
        let read = Arc::clone(&source);
        let thread = thread::spawn(move || {
            let load = || {
                Ok::<_, ()>(Tracked::new(read.load(std::sync::atomic::Ordering::Relaxed) as u64))
            };
            let value = other.get_or_insert_with(&Tracked::new(1), load).unwrap().get();
            assert!(value == 10 || value == 11);
        });
        source.store(11, std::sync::atomic::Ordering::Relaxed);
        change(&cache);
        assert!(
            cache.value(1).is_none_or(|value| value == 11),
            "what was loaded before the change is in"
        );
        thread.join().unwrap();
        assert!(
            cache.value(1).is_none_or(|value| value == 11),
            "what was loaded before the change is in"
        );
        cache.reclaim();
    });
}

#[test]
fn what_is_removed_while_it_is_loaded_does_not_come_back() {
    outdates(|cache| drop(cache.remove(&Tracked::new(1))));
}

#[test]
fn what_is_inserted_while_it_is_loaded_stays_or_leaves_for_good() {
    outdates(|cache| cache.put(1, 11));
    outdates(|cache| {
        cache.put(1, 11);
        cache.put(2, 20); // takes its place
    });
}

/// A cache with an entry that the next load refreshes.
fn due(entries: usize) -> Cache {
    let cache = Cache::small(entries);
    let second = std::time::Duration::from_secs(1);
    let options = options::InsertOptions::new().stale_while_revalidate(second, 2 * second);
    cache.insert_with(Tracked::new(1), Tracked::new(10), options);
    cache.inner.lifetimes.clock().advance(2 * second);
    cache
}

#[test]
fn what_is_changed_while_it_is_refreshed_does_not_come_back() {
    outdates_in(due, |cache| drop(cache.remove(&Tracked::new(1))));
    outdates_in(due, |cache| cache.put(1, 11));
    outdates_in(due, |cache| drop(cache.upsert_with(Tracked::new(1), |_| Tracked::new(11))));
}

#[test]
fn what_is_due_is_refreshed_once_and_the_other_does_not_wait() {
    model(3, || {
        let cache = due(1);
        let loads = Loads::new();
        let (other, counted) = (Handle::of(&cache), Arc::clone(&loads));
        let thread = thread::spawn(move || {
            let options = options::InsertOptions::new();
            let load = || counted.load(Ok(11)).map(|value| (value, options));
            let value = other.loads().get(&Tracked::new(1), load).unwrap().get();
            assert!(value == 10 || value == 11);
        });
        let value = cache.get_or_insert_with(&Tracked::new(1), || loads.load(Ok(11)));
        let value = value.unwrap().get();
        assert!(value == 10 || value == 11);
        thread.join().unwrap();
        assert_eq!((cache.value(1), loads.count()), (Some(11), 1));
        cache.reclaim();
    });
}

/// Runs a future on a thread of the model's.
fn block_on<F: Future>(future: F) -> F::Output {
    #[derive(Default)]
    struct Bell(sync::Mutex<bool>, sync::Condvar);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            *sync::lock(&self.0) = true;
            self.1.notify_one();
        }
    }

    let mut future = pin!(future);
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let mut rung = sync::lock(&bell.0);
        while !*rung {
            rung = bell.1.wait(rung).unwrap();
        }
        *rung = false;
    }
}

#[test]
fn a_future_that_waits_for_a_load_is_woken_when_it_ends() {
    for result in [Ok(10), Err(())] {
        model(2, move || {
            let cache = Cache::small(1);
            let loads = Loads::new();
            let (other, counted) = (Handle::of(&cache), Arc::clone(&loads));
            let thread = thread::spawn(move || {
                let value = other.get_or_insert_with(&Tracked::new(1), || counted.load(result));
                assert!(value.map_or(result.is_err(), |value| value.get() == 10));
            });
            let load = async { loads.load(Ok(10)) };
            let value = block_on(cache.get_or_insert_async(&Tracked::new(1), load)).unwrap().get();
            assert_eq!(value, 10);
            thread.join().unwrap();
            assert!(result.is_err() || loads.count() == 1);
        });
    }
}

#[test]
fn a_guard_that_outlives_its_thread_s_record_keeps_its_entry_under_the_next_owner() {
    use sync::{AtomicUsize, Ordering};

    const ADDRESS: usize = 2;
    const OTHER: usize = 4;
    model(4, || {
        let records = Arc::new(records::Records::default());
        let (place, entry) = (Arc::new(AtomicUsize::new(ADDRESS)), Arc::new(Tracked::new(10)));
        // SAFETY: records live as long as `records`, in all threads.
        let [own, first] = [(); 2].map(|()| unsafe { &*records.acquire() });
        let cell = first.cell();
        cell.store(ADDRESS, Ordering::Release);
        records.release(first); // as a thread does that ends and drops the guard last of all
        let next = {
            let records = Arc::clone(&records);
            thread::spawn(move || {
                // SAFETY: as above.
                let record = unsafe { &*records.acquire() };
                record.cell().store(OTHER, Ordering::Release);
            })
        };
        let reclaimer = {
            let (records, place, entry) =
                (Arc::clone(&records), Arc::clone(&place), Arc::clone(&entry));
            thread::spawn(move || {
                place.store(0, Ordering::Release);
                if !records.protected(own, records.ask()).contains(&ADDRESS) {
                    entry.free();
                }
            })
        };
        assert_eq!(entry.get(), 10);
        cell.store(0, Ordering::Release);
        next.join().unwrap();
        reclaimer.join().unwrap();
    });
}

#[test]
fn a_guard_beyond_the_first_few_is_seen_while_cells_come_and_go() {
    use sync::{AtomicUsize, Ordering};

    const ADDRESS: usize = 2;
    const OTHER: usize = 4;
    sync::with_own_fences(false);
    model(3, || {
        let records = Arc::new(records::Records::default());
        let (place, entry) = (Arc::new(AtomicUsize::new(ADDRESS)), Arc::new(Tracked::new(10)));
        // SAFETY: records live as long as `records`, in all threads.
        let [own, readers] = [(); 2].map(|()| unsafe { &*records.acquire() });
        for _ in 0..5 {
            readers.cell().store(OTHER, Ordering::Release);
        }
        let reader = {
            let (_records, place, entry) =
                (Arc::clone(&records), Arc::clone(&place), Arc::clone(&entry));
            thread::spawn(move || {
                readers.cell().store(0, Ordering::Release); // the chunk is empty and may go
                let cell = readers.cell();
                cell.store(ADDRESS, Ordering::Release);
                barrier::light();
                if place.load(Ordering::Acquire) == ADDRESS {
                    assert_eq!(entry.get(), 10);
                }
                cell.store(0, Ordering::Release);
            })
        };
        drop(records.protected(own, records.ask()));
        place.store(0, Ordering::Release);
        if !records.protected(own, records.ask()).contains(&ADDRESS) {
            entry.free();
        }
        reader.join().unwrap();
    });
}

#[test]
fn what_is_held_when_the_cache_ends_is_dropped_once_by_whoever_holds_it_last() {
    model(4, || {
        let cache = Cache::small(2);
        cache.put(1, 10);
        cache.put(2, 20);
        let held = [1, 1, 2].map(|key| cache.hold(&Tracked::new(key)).unwrap());
        let [first, second, third] = held;
        let holder = thread::spawn(move || {
            assert_eq!((first.get(), third.get()), (10, 20));
            drop(first);
        });
        drop(cache);
        assert_eq!(second.get(), 10);
        drop(second);
        holder.join().unwrap();
    });
}

#[test]
fn what_comes_in_while_a_cache_is_swept_is_seen_by_the_sweep_or_asks_for_another() {
    model(4, || {
        let shared = Arc::new((upkeep::Upkeep::new(), sync::Mutex::new(0)));
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

/// A reader that looks a key up while it is removed.
fn looks_up_beside_a_removal() {
    let cache = Cache::small(2);
    cache.put(1, 10);
    let other = Handle::of(&cache);
    let reader = thread::spawn(move || assert!(other.value(1).is_none_or(|value| value == 10)));
    drop(cache.remove(&Tracked::new(1)));
    cache.reclaim();
    reader.join().unwrap();
}

/// A reader that looks a key up while its table is replaced.
fn looks_up_while_the_table_is_replaced() {
    let cache = Cache::small(1);
    cache.put(1, 10);
    cache.resize(2);
    let other = Handle::of(&cache);
    let reader =
        thread::spawn(move || assert_eq!(other.value(1), Some(10), "it is there all the while"));
    cache.put(2, 20); // grows
    cache.reclaim();
    reader.join().unwrap();
}

/// Somebody goes through the entries and reads them while one is removed and another replaced.
fn iterates_beside_a_removal() {
    let cache = Cache::small(3);
    cache.put(1, 10);
    cache.put(2, 20);
    let other = Handle::of(&cache);
    let reader = thread::spawn(move || {
        let seen: Vec<_> =
            other.iter().map(|item| (item.key().get(), item.value().get())).collect();
        assert!(seen.iter().all(|seen| [(1, 10), (2, 20), (2, 21)].contains(seen)), "{seen:?}");
        assert!(
            seen.iter().filter(|(key, _)| *key == 2).count() == 1,
            "it is there all the while: {seen:?}"
        );
    });
    drop(cache.remove(&Tracked::new(1)));
    cache.put(2, 21);
    cache.reclaim();
    reader.join().unwrap();
}

#[test]
fn the_models_find_out_that_the_barrier_is_missing() {
    misses_the_barrier(4, looks_up_beside_a_removal);
}

#[test]
fn a_table_that_is_replaced_is_looked_at_without_a_barrier() {
    let reader = std::thread::spawn(|| {
        barrier::with(Kind::Missing);
        sync::with_own_fences(false);
        model(3, looks_up_while_the_table_is_replaced);
    });
    reader.join().expect("tables live as long as their shard");
}

#[test]
fn what_an_iterator_shows_is_neither_freed_nor_missed() {
    model_of_readers(2, iterates_beside_a_removal);
}

#[test]
fn what_leaves_for_a_smaller_limit_is_not_freed_under_a_reader_and_the_rest_is_found() {
    model_of_readers(2, || {
        let cache = Cache::small(2);
        cache.put(1, 10);
        cache.put(2, 20);
        let other = Handle::of(&cache);
        let reader = thread::spawn(move || {
            assert!(other.value(1).is_none_or(|value| value == 10));
            assert_eq!(other.value(2), Some(20), "it is there all the while");
        });
        cache.resize(1); // the first leaves
        reader.join().unwrap();
        assert_eq!((cache.value(1), cache.len()), (None, 1));
    });
}

#[test]
fn what_is_pinned_is_found_and_what_is_unpinned_leaves_without_being_freed_under_a_reader() {
    model_of_readers(2, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        assert!(cache.pin(&Tracked::new(1)));
        let other = Handle::of(&cache);
        let reader = thread::spawn(move || {
            assert!(other.value(1).is_none_or(|value| value == 10));
        });
        cache.put(2, 20); // finds no room
        assert_eq!(cache.value(1), Some(10), "it is pinned");
        assert!(cache.unpin(&Tracked::new(1)));
        cache.put(3, 30); // takes its room
        cache.reclaim();
        reader.join().unwrap();
        assert_eq!((cache.value(1), cache.value(3)), (None, Some(30)));
    });
}

#[test]
fn what_is_held_by_another_thread_stays_while_the_table_is_replaced_and_it_leaves() {
    model(2, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        cache.resize(2);
        let other = Handle::of(&cache);
        let holder = thread::spawn(move || {
            let held = other.hold(&Tracked::new(1));
            assert!(held.as_ref().is_none_or(|value| value.get() == 10));
            held
        });
        cache.put(2, 20); // grows
        drop(cache.remove(&Tracked::new(1)));
        cache.reclaim();
        let held = holder.join().unwrap();
        assert!(held.is_none_or(|value| value.get() == 10));
        assert_eq!(cache.value(2), Some(20));
    });
}
