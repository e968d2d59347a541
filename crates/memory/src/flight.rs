//! One load per key: callers that ask for a key under load wait for that load, as threads or as
//! futures.
//!
//! A flight is attached to its key until it lands or the key is removed, inserted or cleared: then
//! its value may be out of date. It still goes to the callers that wait for it, as they asked
//! before, but does not enter the cache. A wait that would have no end does not begin: see
//! [`waits`](crate::waits).

use std::any::Any;
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use hashbrown::HashTable;

use crate::entry::Entry;
use crate::fork;
use crate::holds::Hold;
use crate::sync::{Arc, Condvar, Mutex, lock, wait_timeout};
use crate::waits::{LoadRun, Wait};

/// Loads under way in a shard, by hash and key.
#[derive(Debug)]
pub(crate) struct Flights<K, V> {
    attached: HashTable<Boarding<K, V>>,
}

/// A flight that is attached to its key.
#[derive(Debug)]
pub(crate) struct Boarding<K, V> {
    hash: u64,
    flight: Arc<Flight<K, V>>,
}

impl<K, V> Default for Flights<K, V> {
    fn default() -> Self {
        Self { attached: HashTable::new() }
    }
}

impl<K, V> Boarding<K, V> {
    /// Returns whether it is of a key.
    fn is_of(&self, hash: u64, is_it: impl Fn(&K) -> bool) -> bool {
        // SAFETY: attached, and the flights are locked.
        self.hash == hash && is_it(unsafe { self.flight.key() })
    }
}

impl<K, V> Flights<K, V> {
    /// A flight of a key: one whose load the calling thread runs, if there is any.
    pub(crate) fn find(&self, hash: u64, is_it: impl Fn(&K) -> bool) -> Option<Arc<Flight<K, V>>> {
        let mut found = None;
        for boarding in self.attached.iter_hash(hash) {
            if boarding.is_of(hash, &is_it) {
                let is_own = boarding.flight.is_own();
                found = found.filter(|_| !is_own).or(Some(&boarding.flight));
                if is_own {
                    break;
                }
            }
        }
        found.map(Arc::clone)
    }

    /// Attaches a flight to its key, which may have others.
    pub(crate) fn attach(&mut self, hash: u64, flight: &Arc<Flight<K, V>>) {
        let boarding = Boarding { hash, flight: Arc::clone(flight) };
        self.attached.insert_unique(hash, boarding, |boarding| boarding.hash);
    }

    /// Detaches the flights of a key into `detached`, which is to be dropped outside of the lock.
    pub(crate) fn detach(
        &mut self,
        hash: u64,
        is_it: impl Fn(&K) -> bool,
        detached: &mut Vec<Boarding<K, V>>,
    ) {
        while let Ok(boarding) =
            self.attached.find_entry(hash, |boarding| boarding.is_of(hash, &is_it))
        {
            detached.push(boarding.remove().0);
        }
    }

    /// Detaches a flight. Returns whether it was attached until then.
    pub(crate) fn land(&mut self, hash: u64, flight: &Arc<Flight<K, V>>) -> bool {
        let found =
            self.attached.find_entry(hash, |boarding| Arc::ptr_eq(&boarding.flight, flight));
        // The caller has the flight, too: nothing of the user's is dropped here.
        found.map(|boarding| boarding.remove()).is_ok()
    }

    /// In a forked process: keeps only the flights whose load the calling thread runs, and returns
    /// how many they are. Of others the loading thread had a handle, too, so nothing of the user's
    /// is dropped.
    pub(crate) fn keep_own(&mut self) -> usize {
        self.attached.retain(|boarding| {
            let is_own = boarding.flight.is_own();
            if is_own {
                boarding.flight.counted_in.store(fork::count(), Ordering::Relaxed); // one thread
            }
            is_own
        });
        self.attached.len()
    }

    /// Detaches all, and returns what is to be dropped outside of the lock.
    pub(crate) fn clear(&mut self) -> Self {
        std::mem::take(self)
    }
}

/// Holds what a flight brought: an entry, and the hold that keeps it until the flight is forgotten.
#[derive(Debug)]
struct Brought<K, V> {
    entry: NonNull<Entry<K, V>>,
    _hold: Hold,
}

/// The error of a failed load, for all waiting callers that can have it.
pub(crate) type Failure = Option<Arc<dyn Any + Send + Sync>>;

/// Futures that wait, each by its number.
#[derive(Debug, Default)]
struct Wakers {
    waiting: BTreeMap<u64, Waker>,
    /// Numbers given so far.
    given: u64,
}

#[derive(Debug)]
enum State<K, V> {
    Loading(Wakers),
    Landed(Brought<K, V>),
    Failed(Failure),
}

/// A load under way.
#[derive(Debug)]
pub(crate) struct Flight<K, V> {
    state: Mutex<State<K, V>>,
    over: Condvar,
    run: LoadRun,
    /// The process, by its number of forks, in which its shard counts it.
    counted_in: AtomicU64,
    /// The key, until the value comes in.
    key: UnsafeCell<Option<K>>,
}

// SAFETY: the value is shared by reference, as from any other guard; the pointer stays valid while
// the hold is there and the cache is borrowed, which every owner of a flight does. The key is
// shared by reference until the one caller that loads takes it: see `key`.
unsafe impl<K: Send + Sync, V: Send + Sync> Send for Flight<K, V> {}
// SAFETY: as above.
unsafe impl<K: Send + Sync, V: Send + Sync> Sync for Flight<K, V> {}

impl<K, V> Flight<K, V> {
    /// Of a key that a run loads.
    pub(crate) fn new(key: K, run: LoadRun) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State::Loading(Wakers::default())),
            over: Condvar::new(),
            run,
            counted_in: AtomicU64::new(fork::count()),
            key: UnsafeCell::new(Some(key)),
        })
    }

    /// The run that loads it.
    pub(crate) fn run(&self) -> &LoadRun {
        &self.run
    }

    /// Returns whether its shard counts it: not so in a child of the process where it began.
    pub(crate) fn is_counted(&self) -> bool {
        self.counted_in.load(Ordering::Relaxed) == fork::count() // written before there are threads
    }

    /// Returns whether it is the calling thread that runs its load: then that waits for itself.
    pub(crate) fn is_own(&self) -> bool {
        self.run.is_here()
    }

    /// The key.
    ///
    /// # Safety
    /// The flight is attached and its table locked, or the caller is the one that loads.
    pub(crate) unsafe fn key(&self) -> &K {
        // SAFETY: the caller that loads takes it only after it has detached the flight, under the
        // lock of the table.
        unsafe { (*self.key.get()).as_ref() }.expect("it is taken with the end of the load")
    }

    /// Takes the key.
    ///
    /// # Safety
    /// The caller is the one that loads, has detached the flight, and does so once.
    pub(crate) unsafe fn take_key(&self) -> K {
        // SAFETY: nobody else looks at it any more.
        unsafe { (*self.key.get()).take() }.expect("it is taken once")
    }

    /// Ends it well. `hold` keeps the entry.
    pub(crate) fn land(&self, entry: &Entry<K, V>, hold: Hold) {
        self.end(State::Landed(Brought { entry: NonNull::from(entry), _hold: hold }));
    }

    /// Ends it without a value, with only the failure for the waiting callers.
    pub(crate) fn fail(&self, failure: Failure) {
        self.end(State::Failed(failure));
    }

    fn end(&self, end: State<K, V>) {
        let before = std::mem::replace(&mut *lock(&self.state), end);
        self.over.notify_all();
        if let State::Loading(wakers) = before {
            // outside the lock: it may run anything
            wakers.waiting.into_values().for_each(Waker::wake);
        }
    }

    /// Waits for the end.
    pub(crate) fn wait(&self) -> Result<NonNull<Entry<K, V>>, Failure> {
        let mut state = lock(&self.state);
        loop {
            match &*state {
                State::Loading(_) => {
                    state =
                        self.over.wait(state).unwrap_or_else(crate::sync::PoisonError::into_inner);
                }
                State::Landed(brought) => return Ok(brought.entry),
                State::Failed(failure) => return Err(failure.clone()),
            }
        }
    }

    /// Waits for the end, but no longer than until a time. Returns whether it is over.
    pub(crate) fn is_over_by(&self, until: Instant) -> bool {
        let mut state = lock(&self.state);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match &*state {
                State::Loading(_) if left.is_zero() => return false,
                State::Loading(_) => state = wait_timeout(&self.over, state, left),
                State::Landed(_) | State::Failed(_) => return true,
            }
        }
    }

    /// Waits for the end without holding a thread up: then [`wait`](Self::wait) returns at once.
    /// False if the wait would have no end.
    pub(crate) fn landing(&self) -> impl Future<Output = bool> + Send + '_
    where
        K: Send + Sync,
        V: Send + Sync,
    {
        Landing { flight: self, wait: None, number: None }
    }

    fn is_over(&self) -> bool {
        !matches!(&*lock(&self.state), State::Loading(_))
    }
}

struct Landing<'a, K, V> {
    flight: &'a Flight<K, V>,
    /// For others that would wait for this one.
    wait: Option<Wait>,
    /// Of its waker, once that waits.
    number: Option<u64>,
}

impl<K, V> Future for Landing<'_, K, V> {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        let flight = self.flight;
        if flight.is_over() {
            return Poll::Ready(true);
        }
        // A future may be polled first outside of the load that awaits it.
        if !self.wait.as_ref().is_some_and(Wait::is_of_here) {
            self.wait = None;
            self.wait = Wait::suspend(&flight.run);
            if self.wait.is_none() {
                return Poll::Ready(false);
            }
        }
        let waker = context.waker().clone(); // the user's code, outside of the lock
        let mut state = lock(&flight.state);
        let State::Loading(wakers) = &mut *state else { return Poll::Ready(true) };
        let number = *self.number.get_or_insert_with(|| {
            wakers.given += 1;
            wakers.given
        });
        let before = wakers.waiting.insert(number, waker);
        drop(state);
        drop(before); // as above
        Poll::Pending
    }
}

impl<K, V> Drop for Landing<'_, K, V> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let waker = match &mut *lock(&self.flight.state) {
            State::Loading(wakers) => wakers.waiting.remove(&number),
            State::Landed(_) | State::Failed(_) => None,
        };
        drop(waker); // the user's code, outside of the lock
    }
}
