//! A load that one caller has taken on for all that ask for its key, until it lands.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::mem::ManuallyDrop;

use floe_policy::Replacement;

use crate::cache::Cache;
use crate::cause::Cause;
use crate::entry::Entry;
use crate::flight::{Failure, Flight};
use crate::guard::{Keep, RESERVED, Ref};
use crate::hash::KeyHash;
use crate::insert;
use crate::options::InsertOptions;
use crate::owner::Owner;
use crate::sync::{Arc, Ordering, lock};

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
    pub(super) fn arrive(mut self, key: impl FnOnce() -> K, value: V, options: &InsertOptions) {
        let (flight, finished) = (&self.flight, &mut self.finished);
        drop(land(
            self.cache.borrow(),
            self.hash,
            flight,
            self.refreshes,
            finished,
            key,
            (value, options),
        ));
    }
}

impl<'a, K, V, P, S> LoadingHere<'a, K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Hands the value to the cache and to all waiting callers. `key` is for the case that the key
    /// was removed meanwhile.
    pub(super) fn finish(
        mut self,
        key: impl FnOnce() -> K,
        value: V,
        options: &InsertOptions,
    ) -> Ref<'a, V> {
        let (flight, finished) = (&self.flight, &mut self.finished);
        land(self.cache, self.hash, flight, self.refreshes, finished, key, (value, options))
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
    key: impl FnOnce() -> K,
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
    let (mut key, mut value) = (ManuallyDrop::new(key()), ManuallyDrop::new(value));
    let mut candidate = insert::candidate(&cache.inner, hash, &mut key, &mut value, options);
    let cell = inner.record().cell();
    // comparing keys is the user's code and may need cells, too
    cell.store(RESERVED, Ordering::Relaxed);
    let keep = Keep::new(cell);
    candidate.guard = Some(cell);
    // While the flight is attached nothing replaces what a refresh has found.
    (candidate.yields, candidate.refreshes) = (!refreshes, refreshes);
    let mut afters = Vec::new();
    let boarded;
    {
        // Until the entry is in, no caller may find that the flight has gone.
        let mut flights = lock(&shard.flights);
        boarded = flights.land(hash.whole(), flight);
        if boarded.is_some() {
            inner.put(shard, &mut candidate, |after| afters.push(after));
        } else {
            let pass = |owner: &mut Owner<K, V, P>, gone: &mut _| {
                owner.pass_through(&mut candidate, Cause::Rejected, gone)
            };
            let ((), after) = inner.change(shard, shard.owner(), pass);
            afters.push(after);
        }
    }
    drop(boarded); // the user's code, outside of the lock
    let entry = std::ptr::with_exposed_provenance::<Entry<K, V>>(cell.load(Ordering::Relaxed));
    // SAFETY: the cell was filled with the address of the entry before that could be taken out, and
    // keeps it.
    let entry = unsafe { &*entry };
    if Arc::strong_count(flight) > 1 {
        // Waiting callers still have their flight; no caller can join any more.
        flight.land(entry, inner.threads.records.hold(&raw const *entry as usize));
    }
    *finished = true;
    shard.ends_loading();
    inner.note_insertion(hash);
    for after in afters {
        inner.settle(after);
    }
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
        let key = lock(&shard.flights).land(self.hash.whole(), &self.flight);
        shard.ends_loading();
        inner.loads.failed.fetch_add(1, Ordering::Relaxed); // a count
        self.flight.fail(self.failure.take());
        drop(key); // the user's code, outside of the lock
    }
}
