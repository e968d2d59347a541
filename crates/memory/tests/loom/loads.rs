//! Models of loads that several threads wait for, and of what changes meanwhile.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use crate::sync::Tracked;
use crate::{Cache, Handle, model, options, sync, thread};

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
