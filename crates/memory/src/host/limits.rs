//! The capacity of a host's cache: what of it entries in the cache may take, and making way for
//! what comes.
//!
//! The usage counts each value until it is dropped. So the cache's own limit is the capacity less
//! the charges of values that are outside of it with an owner, and less a 64th: entries wait a
//! moment between their eviction and their end. Where that is not enough, an insertion evicts more
//! and frees what waits.

use std::hash::{BuildHasher, Hash};

use floe_policy::Replacement;

use super::HostCache;
use super::node::Sums;
use crate::sync::{AtomicBool, AtomicUsize, Ordering};

/// The part of the capacity for entries that wait for their end.
const WAITING_PART: usize = 64;

/// The capacity, and what is used of it. All of it is read and written Relaxed: these are sums and
/// settings, by which no memory is handed over.
#[derive(Debug)]
pub(super) struct Limits {
    pub(super) sums: Sums,
    capacity: AtomicUsize,
    is_strict: AtomicBool,
    /// The cache's own limit, as it was last set.
    applied: AtomicUsize,
    /// The usage after way was made in vain, or 0: no need to try at each insertion.
    in_vain: AtomicUsize,
}

impl Limits {
    pub(super) fn new(capacity: usize, strict: bool) -> Self {
        let limits = Self {
            sums: Sums::default(),
            capacity: AtomicUsize::new(capacity),
            is_strict: AtomicBool::new(strict),
            applied: AtomicUsize::new(0),
            in_vain: AtomicUsize::new(0),
        };
        limits.applied.store(limits.for_cache(), Ordering::Relaxed);
        limits
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Relaxed)
    }

    pub(super) fn usage(&self) -> usize {
        self.sums.usage.load(Ordering::Relaxed)
    }

    pub(super) fn is_strict(&self) -> bool {
        self.is_strict.load(Ordering::Relaxed)
    }

    pub(super) fn set_strict(&self, strict: bool) {
        self.is_strict.store(strict, Ordering::Relaxed);
    }

    /// The charges that entries in the cache may have.
    pub(super) fn for_cache(&self) -> usize {
        let capacity = self.capacity();
        (capacity - capacity / WAITING_PART).saturating_sub(self.sums.kept.load(Ordering::Relaxed))
    }

    /// Gives a charge back that was taken for a value.
    pub(super) fn give_back(&self, charge: usize) {
        self.sums.usage.fetch_sub(charge, Ordering::Relaxed);
    }
}

impl<K, V, P, S> HostCache<K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Takes a charge for a value that comes, and makes way for it if need be. False if that is
    /// impossible and the limit strict: then nothing is taken.
    #[inline]
    pub(super) fn take(&self, charge: usize) -> bool {
        let limits = &*self.limits;
        let usage = limits.sums.usage.fetch_add(charge, Ordering::Relaxed).saturating_add(charge);
        let (capacity, now) = (limits.capacity(), limits.for_cache());
        if usage > capacity {
            return self.make_way(charge);
        }
        if limits.applied.load(Ordering::Relaxed).abs_diff(now) > capacity / 256 {
            self.limit(now);
        }
        true
    }

    /// Sets the cache's own limit, and evicts what is beyond it.
    fn limit(&self, to: usize) {
        self.limits.applied.store(to, Ordering::Relaxed);
        self.cache.inner.budget.set_weight(to as u64);
        if self.cache.inner.budget.is_exceeded() {
            self.cache.inner.shrink();
        }
    }

    #[cold]
    fn make_way(&self, charge: usize) -> bool {
        let limits = &*self.limits;
        let (capacity, strict) = (limits.capacity(), limits.is_strict());
        let is_over = || limits.usage() > capacity;
        let in_vain = limits.in_vain.load(Ordering::Relaxed);
        if !strict
            && in_vain > 0
            && limits.usage() <= in_vain.saturating_add(capacity / WAITING_PART)
        {
            return true;
        }
        self.cache.reclaim();
        if charge <= capacity || !strict {
            let mut kept = None;
            while is_over() {
                let outside = limits.sums.kept.load(Ordering::Relaxed);
                if kept.replace(outside) == Some(outside) {
                    break; // as much was evicted as makes a difference
                }
                let most = capacity.saturating_sub(outside).saturating_sub(charge);
                self.limit(limits.for_cache().min(most));
                self.cache.reclaim();
            }
            self.limit(limits.for_cache());
        }
        let is_over = is_over();
        limits.in_vain.store(if is_over { limits.usage() } else { 0 }, Ordering::Relaxed);
        if is_over && strict {
            limits.give_back(charge);
        }
        !(is_over && strict)
    }

    /// Changes the capacity while the cache is used. Evicts what is too much before it returns, and
    /// drops what has left without a handle; values with handles go over it, whether it is strict
    /// or not.
    pub fn set_capacity(&self, capacity: usize) {
        let limits = &*self.limits;
        limits.capacity.store(capacity, Ordering::Relaxed);
        limits.in_vain.store(0, Ordering::Relaxed);
        limits.applied.store(limits.for_cache(), Ordering::Relaxed);
        self.cache.resize_weight(limits.for_cache() as u64);
        self.cache.reclaim();
        if limits.usage() > capacity {
            self.make_way(0);
        }
    }
}
