//! A cache for hosts in other languages: values with a charge, and handles one pointer wide.
//!
//! A host such as a database in C++ keeps a pointer for each value that it uses, and releases it on
//! any thread. [`HostCache`] provides [`Handle`]s for that. The first four of a thread are words of
//! the thread's own, as guards of a [`Cache`] are. Such a hit takes no lock and does no
//! read-modify-write, whether its entry is frozen or not. The entry counts further ones.
//!
//! Each value comes with its *charge*, usually bytes of memory. It counts towards
//! [`usage`](HostCache::usage) until the value is dropped. Dropping the value is the host's
//! deleter: it runs once, outside of locks, after the entry has left the cache and its last handle
//! has gone. Removed entries without a handle are dropped in batches, as in a `Cache`;
//! [`HostCache::reclaim`] drops them at once.
//!
//! An entry with handles may be evicted like others. Lookups do not find it then, and its charge
//! counts until the last handle is released, so fewer entries fit into the cache meanwhile.
//!
//! ```
//! # use floe_memory as floe;
//! use floe::host::{Handle, HostCache, IfPresent, Insertion};
//!
//! let cache = HostCache::new(1 << 20);
//! let first = cache.insert_held("block 1", vec![1; 4096], 4096, Insertion::default()).unwrap();
//! // Another thread has read the same block meanwhile: it keeps what it has, by itself.
//! let keep = Insertion::default().if_present(IfPresent::Keep);
//! let second = cache.insert_held("block 1", vec![1; 4096], 4096, keep).unwrap();
//! assert_eq!((cache.len(), cache.usage(), cache.pinned_usage()), (1, 8192, 8192));
//! drop(second);
//! assert_eq!(cache.usage(), 4096);
//! std::thread::scope(|scope| scope.spawn(move || drop(first)).join().unwrap());
//! assert_eq!((cache.usage(), cache.pinned_usage()), (4096, 0));
//! ```

use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use equivalent::Equivalent;
use floe_policy::registry::ChoiceError;
use floe_policy::{AnyPolicy, PriorityPools, QdClock, Replacement};

use self::handle::{EntryOf, Node, Sums};
use crate::builder::{BuildError, Builder};
use crate::cache::Cache;
use crate::compute::{place, take_out};
use crate::guard::Keep;
use crate::hazard::RESERVED;
use crate::index::DefaultHasher;
use crate::inner::KeepCheck;
use crate::maintenance;
use crate::options::InsertOptions;
use crate::stats::Stats;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering, lock};
use floe_freeze::Freezing;

pub use floe_policy::Priority;

pub use handle::Handle;

mod handle;

#[allow(unused_imports)] // by models, which are no library
pub use crate::pending::{LoadRun, Running, Wait};

/// Treatment of a value that is inserted under a key that the cache has already.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IfPresent {
    /// The new value replaces the old one, which stays in memory as long as it has handles.
    #[default]
    Replace,
    /// The old value stays in the cache; only its handle gives access to the new one.
    Keep,
}

/// Options of an insertion.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Insertion {
    if_present: IfPresent,
    priority: Priority,
}

impl Insertion {
    /// Creates the default options: replace a present value, with [low](Priority::Low) priority.
    pub const fn new() -> Self {
        Self { if_present: IfPresent::Replace, priority: Priority::Low }
    }

    /// Sets the treatment of a value whose key is present.
    pub const fn if_present(self, if_present: IfPresent) -> Self {
        Self { if_present, ..self }
    }

    /// Sets the priority of the entry.
    pub const fn priority(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }
}

/// The error of an insertion into a strict cache that is full of values with handles. It returns
/// key and value to the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused<K, V> {
    /// The key of the failed insertion.
    pub key: K,
    /// The value of the failed insertion.
    pub value: V,
}

impl<K, V> fmt::Display for Refused<K, V> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("values with handles fill the cache's capacity")
    }
}

impl<K: fmt::Debug, V: fmt::Debug> std::error::Error for Refused<K, V> {}

/// A cache for hosts in other languages: see the [module](self).
///
/// It is shared by reference or in an `Arc`, and outlives its handles.
pub struct HostCache<K, V, P: Replacement = QdClock, S = DefaultHasher> {
    /// The underlying cache. It is dropped first, as its values refer to the limits.
    pub(crate) cache: Cache<K, Node<V>, P, S>,
    limits: Arc<Limits>,
}

impl<K, V> HostCache<K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Creates a cache with a limit on the sum of all charges. [`HostBuilder`] has further
    /// settings.
    pub fn new(capacity: usize) -> Self {
        HostBuilder::new(capacity).build()
    }
}

impl<K, V, P, S> HostCache<K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Looks a key up and returns a handle to its value; `None` if the key is absent.
    #[inline(always)] // as `Cache::get`
    pub fn lookup<Q>(&self, key: &Q) -> Option<Handle<'_, K, V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let inner = &*self.cache.inner;
        let record = inner.record();
        let found = inner.look_up(record, inner.hash(key), key)?;
        Some(Handle::of_cell(record, found.cell))
    }

    /// Returns true if the cache has an entry with this key. It counts no hit and does not tell the
    /// policy.
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.cache.contains_key(key)
    }

    /// Inserts a value with its charge and returns a handle to it. The handle is returned even
    /// where the cache does not take the value: the policy or the admission may reject it, or its
    /// charge exceed the capacity.
    ///
    /// # Errors
    /// Returns key and value if the cache is strict and cannot make room for the charge.
    pub fn insert_held(
        &self,
        key: K,
        value: V,
        charge: usize,
        options: Insertion,
    ) -> Result<Handle<'_, K, V>, Refused<K, V>> {
        if !self.take(charge) {
            return Err(Refused { key, value });
        }
        // SAFETY: the limits live as long as the cache and its handles.
        let node = unsafe { Node::new(value, charge, &self.limits.sums) };
        let (hash, record) = (self.cache.inner.hash(&key), self.cache.inner.record());
        let cell = record.another_cell();
        // comparing keys is the user's code and may need cells, too
        cell.store(RESERVED, Ordering::Relaxed);
        let keep = Keep::new(cell);
        let replaces = |there: Option<&EntryOf<K, V>>| {
            there.is_none() || options.if_present == IfPresent::Replace
        };
        let inserting = InsertOptions::new().priority(options.priority);
        match place(&self.cache, (key, node), hash, &inserting, Some(cell), replaces) {
            Ok(()) => Ok(Handle::of_cell(record, keep.into_cell())),
            Err((key, node)) => {
                drop(keep);
                Ok(alone(key, node))
            }
        }
    }

    /// Inserts a value with its charge.
    ///
    /// # Errors
    /// See [`insert_held`](Self::insert_held).
    pub fn insert(
        &self,
        key: K,
        value: V,
        charge: usize,
        options: Insertion,
    ) -> Result<(), Refused<K, V>> {
        self.insert_held(key, value, charge, options).map(drop)
    }

    /// Returns a handle to a value that does not enter the cache but counts in its usage.
    ///
    /// # Errors
    /// See [`insert_held`](Self::insert_held).
    pub fn stand_alone(
        &self,
        key: K,
        value: V,
        charge: usize,
    ) -> Result<Handle<'_, K, V>, Refused<K, V>> {
        if !self.take(charge) {
            return Err(Refused { key, value });
        }
        // SAFETY: the limits live as long as the cache and its handles.
        Ok(alone(key, unsafe { Node::new(value, charge, &self.limits.sums) }))
    }

    /// Removes a key, and returns true if it was present. Handles keep the value.
    pub fn erase<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.cache.remove(key).is_some()
    }

    /// Drops a handle, and removes its entry from the cache if no other handle is left. Returns
    /// true if the entry was removed. Takes the locks of the shard and of the threads' records;
    /// merely dropping a handle takes none.
    pub fn release_and_erase(&self, handle: Handle<'_, K, V>) -> bool {
        let entry = handle.entry();
        self.is_last(&handle) && take_out(&self.cache, &entry.key, &entry.value)
    }

    /// Drops a handle, and its value with it if the handle was the last. This holds for values in
    /// the cache, for evicted ones, and for those that never were in the cache. A thread that reads
    /// the value at this moment delays the drop. Returns true if the handle was the last. Takes the
    /// locks of all shards and of the threads' records.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::host::HostCache::new(1 << 20);
    /// let block = cache.insert_held(1, vec![7; 4096], 4096, Default::default()).unwrap();
    /// cache.erase(&1);
    /// assert!(cache.release_and_free(block));
    /// assert_eq!(cache.usage(), 0);
    /// ```
    pub fn release_and_free(&self, handle: Handle<'_, K, V>) -> bool {
        let is_last = self.is_last(&handle);
        if is_last {
            let entry = handle.entry();
            take_out(&self.cache, &entry.key, &entry.value);
        }
        drop(handle);
        if is_last {
            self.reclaim();
        }
        is_last
    }

    /// Returns true if a handle is the only one of its value.
    fn is_last(&self, handle: &Handle<'_, K, V>) -> bool {
        let counted = usize::from(handle.is_counted());
        let address = std::ptr::from_ref(handle.entry()).addr();
        handle.entry().value.owners() == counted
            && self.cache.inner.threads.records.named(address) == 1 - counted
    }

    /// Removes all entries. Handles keep their values.
    pub fn clear(&self) {
        self.cache.clear();
    }

    /// Drops the values that have left the cache and have no handle; see
    /// [`Cache::reclaim`](crate::Cache::reclaim).
    pub fn reclaim(&self) {
        self.cache.reclaim();
    }

    /// Calls a function with each entry's key, value and charge, in no particular order and with no
    /// lock held; see [`Cache::iter`](crate::Cache::iter).
    pub fn for_each(&self, mut see: impl FnMut(&K, &V, usize)) {
        for item in &self.cache {
            let node = item.value();
            see(item.key(), &node.value, node.charge());
        }
    }

    /// Freezes a share of the entries; see [`Cache::freeze`](crate::Cache::freeze). 0 thaws them.
    ///
    /// # Panics
    /// When the share is not between 0 and 1.
    pub fn freeze(&self, share: f64) {
        self.cache.freeze(share);
    }

    /// Returns the number of entries in the cache.
    pub fn len(&self) -> usize {
        self.cache.len()
    }

    /// Returns true if the cache has no entries.
    pub fn is_empty(&self) -> bool {
        self.cache.is_empty()
    }

    /// Returns the counts of the cache; see [`Cache::stats`](crate::Cache::stats). Its weights are
    /// charges.
    pub fn stats(&self) -> Stats {
        self.cache.stats()
    }

    /// Returns the charge of all values that are not dropped yet: those in the cache, those with
    /// handles, and those that wait to be dropped. Costs one load.
    pub fn usage(&self) -> usize {
        self.limits.usage()
    }

    /// Returns the charge of all values that have a handle. It visits the record of each thread
    /// that uses the cache. Meanwhile it blocks threads that start or end their use of the cache,
    /// or free removed entries.
    pub fn pinned_usage(&self) -> usize {
        let records = &self.cache.inner.threads.records;
        let in_cells = records.with_handles(|named| {
            let charge = |address: usize| {
                // SAFETY: a handle named it a moment ago, and since then no reclaimer could look.
                let entry =
                    unsafe { &*std::ptr::with_exposed_provenance::<EntryOf<K, V>>(address) };
                if entry.value.owners() == 0 { entry.value.charge() } else { 0 }
            };
            named.into_iter().map(charge).sum::<usize>()
        });
        // A thread may be between a count and its sum.
        let counted = self.limits.sums.counted.load(Ordering::Relaxed).cast_signed().max(0);
        in_cells + counted.cast_unsigned()
    }

    /// Returns the capacity: the limit of the sum of all charges.
    pub fn capacity(&self) -> usize {
        self.limits.capacity()
    }

    /// Returns true if insertions fail that would exceed the capacity.
    pub fn is_strict(&self) -> bool {
        self.limits.is_strict()
    }

    /// Sets whether insertions beyond the capacity fail (true), or exceed it (false).
    pub fn set_strict(&self, strict: bool) {
        self.limits.set_strict(strict);
    }
}

/// Returns true if the calling thread is loading this key, so that it cannot ask for its value:
/// [`Cache::get_or_insert_with`](crate::Cache::get_or_insert_with) would panic. For hosts that want
/// to return an error instead. Reads only a thread-local where no load is running.
///
/// ```
/// # use floe_memory as floe;
/// let cache = floe::Cache::new(10);
/// let asks = |key| floe::host::is_own_load(&cache, key);
/// assert_eq!(*cache.get_with(&1, || (asks(&1), asks(&2))), (true, false));
/// assert!(!asks(&1));
/// ```
pub fn is_own_load<K, V, P, S, Q>(cache: &Cache<K, V, P, S>, key: &Q) -> bool
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
    Q: Hash + Equivalent<K> + ?Sized,
{
    if !crate::pending::is_inside() || cache.contains_key(key) {
        return false;
    }
    let inner = &*cache.inner;
    let hash = inner.hash(key);
    let pending_loads = lock(&inner.shards.of(hash).pending_loads);
    pending_loads
        .find(hash.whole(), |found| key.equivalent(found))
        .is_some_and(|found| found.is_own())
}

/// Returns a handle to a value that is in no cache.
fn alone<'a, K, V>(key: K, node: Node<V>) -> Handle<'a, K, V> {
    node.stand_alone();
    let entry = Box::into_raw(Box::new(EntryOf::alone(key, node)));
    // SAFETY: one owner is counted, and this is it.
    unsafe { Handle::of_counted(entry) }
}

impl<K, V, P: Replacement, S> fmt::Debug for HostCache<K, V, P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (capacity, usage) = (self.limits.capacity(), self.limits.usage());
        f.debug_struct("HostCache")
            .field("capacity", &capacity)
            .field("usage", &usage)
            .finish_non_exhaustive()
    }
}

/// Builds a [`HostCache`] with settings that differ from the defaults.
///
/// ```
/// # use floe_memory as floe;
/// use floe::host::{HostBuilder, HostCache};
///
/// let cache: HostCache<u64, Vec<u8>> = HostBuilder::new(1 << 20).strict(true).build();
/// assert_eq!(cache.capacity(), 1 << 20);
/// ```
#[must_use = "nothing is made before `build`"]
pub struct HostBuilder<K, V, P = QdClock, S = DefaultHasher> {
    capacity: usize,
    strict: bool,
    cache: Builder<K, Node<V>, P, S>,
}

impl<K, V> HostBuilder<K, V> {
    /// Creates a builder with a capacity: the limit on the sum of all charges, in their unit,
    /// usually bytes.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, strict: false, cache: Builder::default() }
    }
}

impl<K, V, P, S> HostBuilder<K, V, P, S> {
    /// Sets whether insertions fail that would exceed the capacity because of values with handles.
    /// By default they succeed and exceed it.
    pub fn strict(self, strict: bool) -> Self {
        Self { strict, ..self }
    }

    /// Sets the eviction policy by type: see [`Builder::policy`].
    pub fn policy<P2: Replacement>(self, policy: P2) -> HostBuilder<K, V, P2, S> {
        let Self { capacity, strict, cache } = self;
        HostBuilder { capacity, strict, cache: cache.policy(policy) }
    }

    /// Sets the eviction policy by name: see [`Builder::policy_named`].
    ///
    /// # Errors
    /// When there is no such policy or parameter; the error lists the valid ones.
    pub fn policy_named(self, name: &str) -> Result<HostBuilder<K, V, AnyPolicy, S>, ChoiceError> {
        let Self { capacity, strict, cache } = self;
        Ok(HostBuilder { capacity, strict, cache: cache.policy_named(name)? })
    }

    /// Reserves shares of the capacity for entries of high and of low priority, on top of the
    /// policy set before: see [`PriorityPools`]. Without them an entry of high priority counts as
    /// used once, and low and bottom priority are the same.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use floe::host::{HostBuilder, Insertion, Priority};
    ///
    /// let cache = HostBuilder::new(1000).shards(1).priority_pools(0.5, 0.0).build();
    /// let high = Insertion::new().priority(Priority::High);
    /// cache.insert("index", "", 300, high).unwrap();
    /// (0..100).for_each(|_| cache.insert("data", "", 300, Insertion::new()).unwrap());
    /// assert!(cache.contains_key("index"));
    /// ```
    ///
    /// # Panics
    /// When a share is negative, or both are more than 1 together.
    pub fn priority_pools(self, high: f64, low: f64) -> HostBuilder<K, V, PriorityPools<P>, S>
    where
        P: Replacement,
    {
        let Self { capacity, strict, cache } = self;
        HostBuilder { capacity, strict, cache: cache.priority_pools(high, low) }
    }

    /// Sets the hasher: see [`Builder::hasher`].
    pub fn hasher<S2: BuildHasher>(self, hasher: S2) -> HostBuilder<K, V, P, S2> {
        let Self { capacity, strict, cache } = self;
        HostBuilder { capacity, strict, cache: cache.hasher(hasher) }
    }

    /// Sets the number of shards, each with a lock of its own: see [`Builder::shards`].
    pub fn shards(self, shards: usize) -> Self {
        Self { cache: self.cache.shards(shards), ..self }
    }

    /// Makes the cache freeze its hottest entries: see [`Builder::freezing`].
    pub fn freezing(self, freezing: Freezing) -> Self {
        Self { cache: self.cache.freezing(freezing), ..self }
    }
}

impl<K, V, P, S> HostBuilder<K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Makes the cache.
    ///
    /// # Panics
    /// When the settings are invalid; [`try_build`](Self::try_build) returns the error instead.
    pub fn build(self) -> HostCache<K, V, P, S> {
        self.try_build().unwrap_or_else(|error| panic!("no such cache: {error}"))
    }

    /// Makes the cache, or returns the reason why the settings are invalid.
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn try_build(self) -> Result<HostCache<K, V, P, S>, BuildError> {
        let limits = Arc::new(Limits::new(self.capacity, self.strict));
        let sums = Arc::clone(&limits);
        let keep_check: KeepCheck<K, Node<V>> = Box::new(move |entry, is_named| {
            let _keeps = &sums; // entries refer to them: the cache has them to its end
            entry.value.is_kept(is_named)
        });
        let cache = self
            .cache
            .weight_capacity(limits.for_cache() as u64)
            .weigher(|_, node| node.weight())
            .keep_check(keep_check)
            .try_build()?;
        Ok(HostCache { cache, limits })
    }
}

impl<K, V, P, S> std::fmt::Debug for HostBuilder<K, V, P, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostBuilder")
            .field("capacity", &self.capacity)
            .field("strict", &self.strict)
            .finish_non_exhaustive()
    }
}

/// Divisor of the capacity: removed entries of up to this part of it may wait to be dropped.
const WAITING_PART: usize = 64;

/// The capacity of a host's cache, and its usage. All fields are accessed Relaxed: they are sums
/// and settings, by which no memory is handed over.
#[derive(Debug)]
struct Limits {
    sums: Sums,
    capacity: AtomicUsize,
    is_strict: AtomicBool,
    /// Limit of weight of the underlying cache, as last set.
    applied: AtomicUsize,
    /// Usage after the last failed attempt to make room, or 0. It saves the attempt at each
    /// insertion.
    in_vain: AtomicUsize,
}

impl Limits {
    fn new(capacity: usize, strict: bool) -> Self {
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

    fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Relaxed)
    }

    fn usage(&self) -> usize {
        self.sums.usage.load(Ordering::Relaxed)
    }

    fn is_strict(&self) -> bool {
        self.is_strict.load(Ordering::Relaxed)
    }

    fn set_strict(&self, strict: bool) {
        self.is_strict.store(strict, Ordering::Relaxed);
    }

    /// Returns the charge that entries in the cache may have together.
    fn for_cache(&self) -> usize {
        let capacity = self.capacity();
        (capacity - capacity / WAITING_PART).saturating_sub(self.sums.kept.load(Ordering::Relaxed))
    }

    /// Returns a charge that was taken for a value.
    fn give_back(&self, charge: usize) {
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
    /// Takes the charge of a value to be inserted, and makes room for it if need be. Returns false,
    /// and takes nothing, if that is impossible and the limit strict.
    #[inline]
    fn take(&self, charge: usize) -> bool {
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

    /// Sets the limit of the underlying cache, and evicts entries beyond it.
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

    /// Changes the capacity while the cache is in use. Before it returns, it evicts entries beyond
    /// the capacity, and drops removed ones without a handle. Values with handles may exceed the
    /// capacity, even in a strict cache.
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

/// Pause between two checks whether threads have left the cache; after [`WAITS`] checks, 10 s or
/// more, the wait ends. In a process that was forked while a thread used the cache, that thread
/// never leaves it.
const WAIT: Duration = Duration::from_micros(50);
const WAITS: u32 = 200_000;

impl<K, V, P: Replacement, S> Drop for HostCache<K, V, P, S> {
    fn drop(&mut self) {
        let inner = &self.cache.inner;
        // From here on the library's threads do not begin anything with the cache.
        inner.lifetimes.upkeep().forget();
        // A value that is dropped by one of these threads may own another host's cache. Waiting
        // there would be for the thread itself.
        if maintenance::is_own_thread() {
            return;
        }
        for _ in 0..WAITS {
            if Arc::strong_count(inner) == 1 {
                return;
            }
            std::thread::sleep(WAIT);
        }
    }
}
