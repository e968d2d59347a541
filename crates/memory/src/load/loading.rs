//! A load that one caller has taken on for all that ask for its key, until it lands.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::mem::ManuallyDrop;

use floe_policy::Replacement;

use crate::cache::Cache;
use crate::candidate::Candidate;
use crate::cause::Cause;
use crate::entry::Entry;
use crate::flight::{Failure, Flight};
use crate::guard::{Keep, RESERVED, Ref};
use crate::hash::KeyHash;
use crate::options::InsertOptions;
use crate::owner::Owner;
use crate::sync::{Arc, Ordering, lock};
use crate::thrown::FirstPanic;
use crate::unplaced::Unplaced;

/// The next action of a caller that asks for an absent key.
pub(super) enum Turn<'a, K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    /// It has come in the meantime.
    LookAgain,
    /// Another loads it.
    Wait(Arc<Flight<K, V>>),
    /// Load it.
    Load(LoadingHere<'a, K, V, P, S>),
}

/// A load that ends before its caller's use of the cache does.
pub(super) type LoadingHere<'a, K, V, P, S> = Loading<K, V, P, S, &'a Cache<K, V, P, S>>;

/// A load that one caller has taken on. Dropped before it is finished, it fails, and another may
/// try. `C` is a handle or a reference to the cache.
pub(super) struct Loading<K, V, P, S, C>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
    C: Borrow<Cache<K, V, P, S>>,
{
    cache: C,
    hash: KeyHash,
    pub(super) flight: Arc<Flight<K, V>>,
    /// The key has a value, which this one is to replace.
    refreshes: bool,
    finished: bool,
    /// The failure for the waiting callers if it is not finished.
    failure: Failure,
    of: std::marker::PhantomData<Cache<K, V, P, S>>,
}

impl<K, V, P, S, C> Loading<K, V, P, S, C>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
    C: Borrow<Cache<K, V, P, S>>,
{
    /// Of a flight that is attached and counted.
    pub(super) fn new(cache: C, hash: KeyHash, flight: Arc<Flight<K, V>>, refreshes: bool) -> Self {
        let of = std::marker::PhantomData;
        Self { cache, hash, flight, refreshes, finished: false, failure: None, of }
    }

    /// Returns whether the key has a value, which this one is to replace.
    pub(super) fn refreshes(&self) -> bool {
        self.refreshes
    }

    /// Fails, and passes the failure to the waiting callers.
    pub(super) fn fail(mut self, failure: Failure) {
        self.failure = failure;
    }

    /// [`finish`](Self::finish) for no caller.
    pub(super) fn arrive(mut self, value: V, options: &InsertOptions) {
        let (flight, finished) = (&self.flight, &mut self.finished);
        let cache = self.cache.borrow();
        drop(land(cache, self.hash, flight, self.refreshes, finished, (value, options)));
    }
}

impl<'a, K, V, P, S> LoadingHere<'a, K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Hands the value to the cache and to all waiting callers.
    pub(super) fn finish(mut self, value: V, options: &InsertOptions) -> Ref<'a, V> {
        let (flight, finished) = (&self.flight, &mut self.finished);
        land(self.cache, self.hash, flight, self.refreshes, finished, (value, options))
    }

    /// The value that is there, if this one was to replace it.
    pub(super) fn refreshed(&self) -> Option<Ref<'a, V>> {
        if !self.refreshes {
            return None;
        }
        // SAFETY: this caller is the one that loads.
        let key = unsafe { self.flight.key() };
        let inner = &*self.cache.inner;
        let found = inner.peek(inner.record(), self.hash, key, true)?;
        Some(Ref::new(found.entry, Keep::new(found.cell)))
    }

    /// The load goes on wherever and for as long as it likes.
    pub(super) fn travel(mut self) -> Loading<K, V, P, S, Cache<K, V, P, S>> {
        self.finished = true; // by the one that is returned
        let flight = Arc::clone(&self.flight);
        Loading::new(self.cache.clone(), self.hash, flight, self.refreshes)
    }
}

/// Brings a loaded value in, and sets `finished` when the flight is over.
fn land<'a, K, V, P, S>(
    cache: &'a Cache<K, V, P, S>,
    hash: KeyHash,
    flight: &Arc<Flight<K, V>>,
    refreshes: bool,
    finished: &mut bool,
    (value, options): (V, &InsertOptions),
) -> Ref<'a, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    let inner = &*cache.inner;
    let shard = inner.shards.of(hash);
    // The user's code, outside of the lock. SAFETY: this caller is the one that loads.
    let weight = inner.weigh(unsafe { flight.key() }, &value);
    let expiry = inner.lifetimes.expiry(&cache.inner, options);
    let cell = inner.record().cell();
    // comparing keys is the user's code and may need cells, too
    cell.store(RESERVED, Ordering::Relaxed);
    let keep = Keep::new(cell);
    let mut afters = Vec::new();
    let mut value = ManuallyDrop::new(value);
    let mut key;
    {
        let mut flights = lock(&shard.flights);
        let is_attached = flights.land(hash.whole(), flight);
        // SAFETY: as above, and just detached.
        key = ManuallyDrop::new(unsafe { flight.take_key() });
        let mut candidate = Candidate::new(Unplaced::new(hash, &mut key, &mut value));
        (candidate.weight, candidate.pinned) = (weight, options.pinned);
        if let Some((expiry, due)) = expiry {
            (candidate.expiry, candidate.due) = (expiry, due);
        }
        candidate.guard = Some(cell);
        // While the flight is attached nothing replaces what a refresh has found.
        (candidate.yields, candidate.refreshes) = (!refreshes, refreshes);
        // Until the entry is in, no caller may find that the flight has gone. The lock is released
        // before the candidate is dropped, even by a panic.
        let flights = flights;
        if is_attached {
            inner.put(shard, &mut candidate, |after| afters.push(after));
        } else {
            let pass = |owner: &mut Owner<K, V, P>, gone: &mut _| {
                owner.pass_through(&mut candidate, Cause::Rejected, gone)
            };
            let ((), after) = inner.change(shard, shard.owner(), pass);
            afters.push(after);
        }
        drop(flights);
    }
    let entry = std::ptr::with_exposed_provenance::<Entry<K, V>>(cell.load(Ordering::Relaxed));
    // SAFETY: the cell was filled with the address of the entry before that could be taken out, and
    // keeps it.
    let entry = unsafe { &*entry };
    if Arc::strong_count(flight) > 1 {
        // Waiting callers still have their flight; no caller can join any more.
        flight.land(entry, inner.threads.records.hold(&raw const *entry as usize));
    }
    *finished = true;
    shard.ends_loading(flight.is_counted());
    inner.note_insertion(hash);
    let mut panic = FirstPanic::none(); // the others are told of all the same
    for after in afters {
        panic.catch(|| inner.settle(after));
    }
    panic.raise();
    Ref::new(entry, keep)
}

impl<K, V, P, S, C> Drop for Loading<K, V, P, S, C>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
    C: Borrow<Cache<K, V, P, S>>,
{
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let inner = &*self.cache.borrow().inner;
        let shard = inner.shards.of(self.hash);
        lock(&shard.flights).land(self.hash.whole(), &self.flight);
        shard.ends_loading(self.flight.is_counted());
        inner.loads.failed.fetch_add(1, Ordering::Relaxed); // a count
        self.flight.fail(self.failure.take());
    }
}
