//! A cache for hosts in other languages: values with a charge, and handles one pointer wide.
//!
//! A host such as a database in C++ keeps a pointer for each value that it uses, and gives it back
//! on any thread. [`HostCache`] hands out [`Handle`]s for that. The first four of a thread are
//! words of the thread's own, as guards of a [`Cache`] are: such a hit takes no lock
//! and does no read-modify-write, whether its entry is frozen or not. Further ones count in the
//! entry.
//!
//! Each value comes with its *charge*: bytes of memory, mostly. It counts towards
//! [`usage`](HostCache::usage) until the value is dropped, which is the host's deleter: it runs
//! once, outside of locks, after the entry has left the cache and its last handle has gone. Entries
//! that have left without a handle wait for others before they are dropped, as in a `Cache`;
//! [`HostCache::reclaim`] drops them at once.
//!
//! An entry with handles may be evicted like others. It is not found then, and its charge counts
//! until the last handle goes, at the expense of entries in the cache.
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

mod builder;
mod end;
mod handle;
mod limits;
mod node;

use std::fmt;
use std::hash::{BuildHasher, Hash};

use equivalent::Equivalent;
pub use floe_policy::Priority;
use floe_policy::{QdClock, Replacement};

pub use builder::HostBuilder;
pub use handle::Handle;

#[allow(unused_imports)] // by models, which are no library
pub use crate::waits::{LoadRun, Running, Wait};

use crate::cache::Cache;
use crate::conditional::{place, take_out};
use crate::guard::{Keep, RESERVED};
use crate::hash::DefaultHasher;
use crate::inner::Keeper;
use crate::options::InsertOptions;
use crate::stats::Stats;
use crate::sync::{Arc, Ordering, lock};
use limits::Limits;
use node::{EntryOf, Node};

/// The fate of a value that is inserted under a key that is there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IfPresent {
    /// It replaces the other, which stays with its handles.
    #[default]
    Replace,
    /// The other stays in the cache; the handle of the new value is the only way to it.
    Keep,
}

/// Options of an insertion.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Insertion {
    if_present: IfPresent,
    priority: Priority,
}

impl Insertion {
    /// Replaces what is there, with [low](Priority::Low) priority.
    pub const fn new() -> Self {
        Self { if_present: IfPresent::Replace, priority: Priority::Low }
    }

    /// Says what becomes of a value whose key is there.
    pub const fn if_present(self, if_present: IfPresent) -> Self {
        Self { if_present, ..self }
    }

    /// Says how important the entry is.
    pub const fn priority(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }
}

/// The error of an insertion into a strict cache that values with handles fill. Key and value go
/// back to the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused<K, V> {
    /// The key.
    pub key: K,
    /// The value.
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
    /// First: its values refer to the limits.
    pub(crate) cache: Cache<K, Node<V>, P, S>,
    limits: Arc<Limits>,
    /// There is a pool for low priority, so that the policy is told of it.
    tells_low: bool,
}

impl<K, V> HostCache<K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Makes a cache with a limit of the sum of all charges. [`HostBuilder`] has further settings.
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

    /// Returns true if a key is there. No hit is counted, and the policy does not learn of it.
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.cache.contains_key(key)
    }

    /// Inserts a value with its charge and returns a handle to it. The handle is returned even
    /// where the cache does not take the value: the policy or the admission rejects it, or its
    /// charge is 4 GiB or more.
    ///
    /// # Errors
    /// Key and value, if the cache is strict and way for the charge cannot be made.
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
        if u32::try_from(charge).is_err() {
            if options.if_present == IfPresent::Replace {
                self.erase(&key);
            }
            return Ok(alone(key, node));
        }
        let inner = &*self.cache.inner;
        let (hash, record) = (inner.hash(&key), inner.record());
        let cell = record.another_cell();
        // comparing keys is the user's code and may need cells, too
        cell.store(RESERVED, Ordering::Relaxed);
        let keep = Keep::new(cell);
        let replaces = |there: Option<&EntryOf<K, V>>| {
            there.is_none() || options.if_present == IfPresent::Replace
        };
        let inserting = InsertOptions::new();
        match place(&self.cache, (key, node), hash, &inserting, Some(cell), replaces) {
            Ok(()) => {
                let handle = Handle::<K, V>::of_cell(record, keep.into_cell());
                let priority = options.priority;
                if priority == Priority::High || priority == Priority::Low && self.tells_low {
                    let (entry, shard) = (handle.entry(), inner.shards.of(hash));
                    inner.with_owner(shard, shard.owner(), |owner, _| {
                        owner.prioritize(shard.table(), entry.slot(), entry, priority);
                    });
                }
                Ok(handle)
            }
            Err((key, node)) => {
                drop(keep);
                Ok(alone(key, node))
            }
        }
    }

    /// Inserts a value with its charge.
    ///
    /// # Errors
    /// As of [`insert_held`](Self::insert_held).
    pub fn insert(
        &self,
        key: K,
        value: V,
        charge: usize,
        options: Insertion,
    ) -> Result<(), Refused<K, V>> {
        self.insert_held(key, value, charge, options).map(drop)
    }

    /// Returns a handle to a value that does not enter the cache and counts in its usage.
    ///
    /// # Errors
    /// As of [`insert_held`](Self::insert_held).
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

    /// Removes a key, and returns whether it was there. Handles keep their value.
    pub fn erase<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.cache.remove(key).is_some()
    }

    /// Drops a handle, and removes its entry from the cache if no other handle is left; returns
    /// whether it was removed. Takes the locks of the shard and of the threads' records; dropping a
    /// handle takes none.
    pub fn release_and_erase(&self, handle: Handle<'_, K, V>) -> bool {
        let entry = handle.entry();
        self.is_last(&handle) && take_out(&self.cache, &entry.key, &entry.value)
    }

    /// Drops a handle. If it was the last, the value is dropped with it, be it in the cache,
    /// evicted from there or by itself; another thread that looks at it this moment puts that off.
    /// Returns whether it was the last. Takes the locks of all shards and of the threads' records.
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

    /// Returns whether a handle is the only one of its value.
    fn is_last(&self, handle: &Handle<'_, K, V>) -> bool {
        let counted = usize::from(handle.is_counted());
        let address = std::ptr::from_ref(handle.entry()).addr();
        handle.entry().value.owners() == counted
            && self.cache.inner.threads.records.named(address) == 1 - counted
    }

    /// Removes everything. Handles keep their values.
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

    /// Returns how many entries are in the cache.
    pub fn len(&self) -> usize {
        self.cache.len()
    }

    /// Returns whether no entry is in the cache.
    pub fn is_empty(&self) -> bool {
        self.cache.is_empty()
    }

    /// Returns what the cache has counted; see [`Cache::stats`](crate::Cache::stats). Its weights
    /// are charges.
    pub fn stats(&self) -> Stats {
        self.cache.stats()
    }

    /// Returns the charge of all values that are not dropped yet: in the cache, with handles, and
    /// waiting for their end. One load.
    pub fn usage(&self) -> usize {
        self.limits.usage()
    }

    /// Returns the charge of all values that have a handle. Goes through the threads that use the
    /// cache, and holds up only those that begin or end, or free what has left.
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

    /// Returns the capacity.
    pub fn capacity(&self) -> usize {
        self.limits.capacity()
    }

    /// Returns whether insertions fail that would exceed the capacity.
    pub fn is_strict(&self) -> bool {
        self.limits.is_strict()
    }

    /// Has insertions fail that would exceed the capacity, or go over it.
    pub fn set_strict(&self, strict: bool) {
        self.limits.set_strict(strict);
    }
}

/// Returns whether the calling thread loads a key of a cache, so that it cannot ask for its value:
/// [`Cache::get_or_insert_with`](crate::Cache::get_or_insert_with) would panic. For hosts that
/// answer with an error of theirs. Looks at no more than a thread-local where no load is running.
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
    if !crate::waits::is_inside() || cache.contains_key(key) {
        return false;
    }
    let inner = &*cache.inner;
    let hash = inner.hash(key);
    let flights = lock(&inner.shards.of(hash).flights);
    flights.find(hash.whole(), |found| key.equivalent(found)).is_some_and(|found| found.is_own())
}

/// Hands a value out by itself.
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
