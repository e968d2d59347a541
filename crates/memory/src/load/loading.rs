//! A load that one caller has taken on for all that ask for its key, and the choice of that caller.

use std::hash::{BuildHasher, Hash};
use std::mem::ManuallyDrop;

use floe_policy::Replacement;

use crate::cache::Cache;
use crate::cause::Cause;
use crate::entry::Entry;
use crate::flight::{Failure, Flight};
use crate::guard::{Keep, RESERVED, Ref};
use crate::hash::KeyHash;
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
    Load(Loading<'a, K, V, P, S>),
}

/// A load that one caller has taken on. Dropped before it is finished, it fails, and another may
/// try.
pub(super) struct Loading<'a, K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    pub(super) cache: &'a Cache<K, V, P, S>,
    pub(super) hash: KeyHash,
    pub(super) flight: Arc<Flight<K, V>>,
    pub(super) finished: bool,
    /// The failure for the waiting callers if it is not finished.
    pub(super) failure: Failure,
}

impl<'a, K, V, P, S> Loading<'a, K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Fails, and passes the failure to the waiting callers.
    pub(super) fn fail(mut self, failure: Failure) {
        self.failure = failure;
    }

    /// Hands the value to the cache and to all waiting callers. `key` is for the case that the key
    /// was removed meanwhile.
    pub(super) fn finish(mut self, key: impl FnOnce() -> K, value: V) -> Ref<'a, V> {
        let inner = &*self.cache.inner;
        let shard = inner.shards.of(self.hash);
        let (mut key, mut value) = (ManuallyDrop::new(key()), ManuallyDrop::new(value));
        let mut candidate =
            self.cache.candidate(self.hash, &mut key, &mut value, &InsertOptions::new());
        let cell = inner.record().cell();
        // comparing keys is the user's code and may need cells, too
        cell.store(RESERVED, Ordering::Relaxed);
        let keep = Keep::new(cell);
        (candidate.guard, candidate.yields) = (Some(cell), true);
        let mut afters = Vec::new();
        let boarded;
        {
            // Until the entry is in, no caller may find that the flight has gone.
            let mut flights = lock(&shard.flights);
            boarded = flights.land(self.hash.whole(), &self.flight);
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
        // SAFETY: the cell was filled with the address of the entry before that could be taken out,
        // and keeps it.
        let entry = unsafe { &*entry };
        if Arc::strong_count(&self.flight) > 1 {
            // Waiting callers still have their flight; no caller can join any more.
            self.flight.land(entry, inner.threads.records.hold(&raw const *entry as usize));
        }
        self.finished = true;
        shard.ends_loading();
        inner.note_insertion(self.hash);
        for after in afters {
            inner.settle(after);
        }
        Ref::new(entry, keep)
    }
}

impl<K, V, P, S> Drop for Loading<'_, K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let inner = &*self.cache.inner;
        let shard = inner.shards.of(self.hash);
        let key = lock(&shard.flights).land(self.hash.whole(), &self.flight);
        shard.ends_loading();
        inner.failed_loads.fetch_add(1, Ordering::Relaxed); // a count
        self.flight.fail(self.failure.take());
        drop(key); // the user's code, outside of the lock
    }
}
