//! One load per key: callers that ask for a key under load wait for that load, as threads or as
//! futures.
//!
//! A flight is attached to its key until it lands or the key is removed, inserted or cleared: then
//! its value may be out of date. It still goes to the callers that wait for it, as they asked
//! before, but does not enter the cache.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use hashbrown::HashTable;

use crate::entry::Entry;
use crate::holds::Hold;
use crate::sync::{Arc, Condvar, Mutex, lock, thread_local, wait_timeout};

/// Loads under way in a shard, by hash and key.
#[derive(Debug)]
pub(crate) struct Flights<K, V> {
    attached: HashTable<Boarding<K, V>>,
}

/// A flight and its key.
#[derive(Debug)]
pub(crate) struct Boarding<K, V> {
    hash: u64,
    key: K,
    flight: Arc<Flight<K, V>>,
}

impl<K, V> Default for Flights<K, V> {
    fn default() -> Self {
        Self { attached: HashTable::new() }
    }
}

impl<K, V> Flights<K, V> {
    /// A flight of a key.
    pub(crate) fn find(&self, hash: u64, is_it: impl Fn(&K) -> bool) -> Option<Arc<Flight<K, V>>> {
        let found =
            self.attached.find(hash, |boarding| boarding.hash == hash && is_it(&boarding.key));
        found.map(|boarding| Arc::clone(&boarding.flight))
    }

    /// Attaches a flight to a key, which may have others.
    pub(crate) fn attach(&mut self, hash: u64, key: K, flight: &Arc<Flight<K, V>>) {
        let boarding = Boarding { hash, key, flight: Arc::clone(flight) };
        self.attached.insert_unique(hash, boarding, |boarding| boarding.hash);
    }

    /// Detaches the flights of a key into `detached`, which is to be dropped outside of the lock.
    pub(crate) fn detach(
        &mut self,
        hash: u64,
        is_it: impl Fn(&K) -> bool,
        detached: &mut Vec<Boarding<K, V>>,
    ) {
        let is_it = |boarding: &Boarding<K, V>| boarding.hash == hash && is_it(&boarding.key);
        while let Ok(boarding) = self.attached.find_entry(hash, is_it) {
            detached.push(boarding.remove().0);
        }
    }

    /// Detaches a flight and gives its key back, unless it was detached before.
    pub(crate) fn land(&mut self, hash: u64, flight: &Arc<Flight<K, V>>) -> Option<K> {
        let found =
            self.attached.find_entry(hash, |boarding| Arc::ptr_eq(&boarding.flight, flight));
        found.ok().map(|boarding| boarding.remove().0.key)
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
}

thread_local! {
    /// Where the flights are for which this thread runs a load at the moment, or polls one.
    #[allow(clippy::missing_const_for_thread_local)] // the model checker's macro has no such
    static ABOARD: RefCell<Vec<usize>> = RefCell::new(Vec::new());
}

/// The calling thread runs the load of a flight, or polls it, until this is dropped.
pub(crate) struct Aboard(usize);

impl Aboard {
    pub(crate) fn new<K, V>(flight: &Arc<Flight<K, V>>) -> Self {
        let flight = Arc::as_ptr(flight) as usize;
        // A thread that is about to end may have no list any more; then it gets no warning.
        _ = ABOARD.try_with(|aboard| aboard.borrow_mut().push(flight));
        Self(flight)
    }
}

impl Drop for Aboard {
    fn drop(&mut self) {
        _ = ABOARD.try_with(|aboard| {
            let mut aboard = aboard.borrow_mut();
            if let Some(at) = aboard.iter().rposition(|flight| *flight == self.0) {
                aboard.remove(at);
            }
        });
    }
}

// SAFETY: the value is shared by reference, as from any other guard; the pointer stays valid while
// the hold is there and the cache is borrowed, which every owner of a flight does.
unsafe impl<K: Send + Sync, V: Send + Sync> Send for Flight<K, V> {}
// SAFETY: as above.
unsafe impl<K: Send + Sync, V: Send + Sync> Sync for Flight<K, V> {}

impl<K, V> Flight<K, V> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State::Loading(Wakers::default())),
            over: Condvar::new(),
        })
    }

    /// Returns whether it is the calling thread that runs its load: then that waits for itself.
    pub(crate) fn is_own(self: &Arc<Self>) -> bool {
        let this = Arc::as_ptr(self) as usize;
        ABOARD.try_with(|aboard| aboard.borrow().contains(&this)).unwrap_or(false)
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
    pub(crate) fn landing(&self) -> impl Future<Output = ()> + Send + '_
    where
        K: Send + Sync,
        V: Send + Sync,
    {
        Landing { flight: self, number: None }
    }
}

struct Landing<'a, K, V> {
    flight: &'a Flight<K, V>,
    /// Of its waker, once that waits.
    number: Option<u64>,
}

impl<K, V> Future for Landing<'_, K, V> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let flight = self.flight;
        let waker = context.waker().clone(); // the user's code, outside of the lock
        let mut state = lock(&flight.state);
        let State::Loading(wakers) = &mut *state else { return Poll::Ready(()) };
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
