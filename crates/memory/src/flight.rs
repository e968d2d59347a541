//! One load per key: whoever asks for what is being loaded waits for that load, as a thread or as a future.
//!
//! A flight is attached to its key until it lands or the key is removed, inserted or cleared: then what it brings may be
//! out of date. It is still handed to those who wait for it, as they asked before, but does not enter the cache.

use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll, Waker};

use hashbrown::HashTable;

use crate::entry::Entry;
use crate::holds::Hold;
use crate::sync::{Arc, Condvar, Mutex, ThreadId, lock};

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
    /// The flight of a key.
    pub(crate) fn find(&self, hash: u64, is_it: impl Fn(&K) -> bool) -> Option<Arc<Flight<K, V>>> {
        let found = self.attached.find(hash, |boarding| boarding.hash == hash && is_it(&boarding.key));
        found.map(|boarding| Arc::clone(&boarding.flight))
    }

    /// Attaches a flight to a key that has none.
    pub(crate) fn attach(&mut self, hash: u64, key: K, flight: &Arc<Flight<K, V>>) {
        let boarding = Boarding { hash, key, flight: Arc::clone(flight) };
        self.attached.insert_unique(hash, boarding, |boarding| boarding.hash);
    }

    /// Detaches the flight of a key, and returns what is to be dropped outside of the lock.
    pub(crate) fn detach(&mut self, hash: u64, is_it: impl Fn(&K) -> bool) -> Option<Boarding<K, V>> {
        let found = self.attached.find_entry(hash, |boarding| boarding.hash == hash && is_it(&boarding.key));
        found.ok().map(|boarding| boarding.remove().0)
    }

    /// Detaches a flight and gives its key back, unless it was detached before.
    pub(crate) fn land(&mut self, hash: u64, flight: &Arc<Flight<K, V>>) -> Option<K> {
        let found = self.attached.find_entry(hash, |boarding| Arc::ptr_eq(&boarding.flight, flight));
        found.ok().map(|boarding| boarding.remove().0.key)
    }

    /// Detaches all, and returns what is to be dropped outside of the lock.
    pub(crate) fn clear(&mut self) -> Self {
        std::mem::take(self)
    }
}

/// What a flight brought: an entry, and the hold that keeps it until the flight is forgotten.
#[derive(Debug)]
struct Brought<K, V> {
    entry: NonNull<Entry<K, V>>,
    _hold: Hold,
}

#[derive(Debug)]
enum State<K, V> {
    Loading { wakers: Vec<Waker> },
    Landed(Brought<K, V>),
    Failed,
}

/// A load under way.
#[derive(Debug)]
pub(crate) struct Flight<K, V> {
    state: Mutex<State<K, V>>,
    over: Condvar,
    /// The thread that loads, if it does so in one go.
    loader: Option<ThreadId>,
}

// SAFETY: what is brought is shared by reference, as from any other guard; the pointer stays valid while the hold is
// there and the cache is borrowed, which whoever has a flight does.
unsafe impl<K: Send + Sync, V: Send + Sync> Send for Flight<K, V> {}
// SAFETY: as above.
unsafe impl<K: Send + Sync, V: Send + Sync> Sync for Flight<K, V> {}

impl<K, V> Flight<K, V> {
    pub(crate) fn new(loader: Option<ThreadId>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State::Loading { wakers: Vec::new() }),
            over: Condvar::new(),
            loader,
        })
    }

    /// The thread that loads, if it does so in one go.
    pub(crate) fn loader(&self) -> Option<ThreadId> {
        self.loader
    }

    /// Ends it well. `hold` keeps the entry.
    pub(crate) fn land(&self, entry: &Entry<K, V>, hold: Hold) {
        self.end(State::Landed(Brought { entry: NonNull::from(entry), _hold: hold }));
    }

    /// Ends it with nothing, unless it has ended.
    pub(crate) fn fail(&self) {
        self.end(State::Failed);
    }

    fn end(&self, end: State<K, V>) {
        let before = std::mem::replace(&mut *lock(&self.state), end);
        self.over.notify_all();
        if let State::Loading { wakers } = before {
            wakers.into_iter().for_each(Waker::wake); // outside the lock: it may run anything
        }
    }

    /// Waits for the end. `None` when the load failed.
    pub(crate) fn wait(&self) -> Option<NonNull<Entry<K, V>>> {
        let mut state = lock(&self.state);
        loop {
            match &*state {
                State::Loading { .. } => {
                    state = self.over.wait(state).unwrap_or_else(crate::sync::PoisonError::into_inner);
                }
                State::Landed(brought) => return Some(brought.entry),
                State::Failed => return None,
            }
        }
    }

    /// Waits for the end without holding a thread up. True when the flight has landed: then [`wait`](Self::wait)
    /// returns at once with what it brought.
    pub(crate) fn landing(&self) -> impl Future<Output = bool> + Send + '_
    where
        K: Send + Sync,
        V: Send + Sync,
    {
        Landing(self)
    }
}

struct Landing<'a, K, V>(&'a Flight<K, V>);

impl<K, V> Future for Landing<'_, K, V> {
    type Output = bool;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        match &mut *lock(&self.0.state) {
            State::Loading { wakers } => {
                if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                    wakers.push(context.waker().clone());
                }
                Poll::Pending
            }
            State::Landed(_) => Poll::Ready(true),
            State::Failed => Poll::Ready(false),
        }
    }
}
