//! The public type [`Cache`], its methods and its iterator.

use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::mem::ManuallyDrop;
use std::panic::{RefUnwindSafe, UnwindSafe};

use equivalent::Equivalent;
use floe_policy::{QdClock, Replacement};

use crate::change;
use crate::frozen::freezer::Frozen;
use crate::guard::{Item, Keep, Ref};
use crate::index::{DefaultHasher, KeyHash};
use crate::inner::{BATCH, Inner};
use crate::options::InsertOptions;
use crate::renewal::Renewal;
use crate::shard::SLOTS_PER_LOCK;
use crate::stats::{Cause, Stats};
use crate::sync::{Arc, lock};
use crate::user_code::FirstPanic;

/// A concurrent cache from keys to values, with a limit of entries, of weight, or of both.
///
/// [`new`](Self::new) makes a cache with a limit of entries, [`builder`](Self::builder) one with
/// other limits and settings. When it is full, the policy `P` chooses the entries to evict:
/// [`QdClock`] by default. `S` hashes keys.
///
/// - [`get`](Self::get) looks a key up. The guard that it returns keeps the value in memory.
/// - [`insert`](Self::insert) puts a value under a key, [`remove`](Self::remove) takes one out.
/// - [`get_or_insert_with`](Self::get_or_insert_with) looks a key up and loads the value if it is
///   absent. A key has one load at a time, however many threads ask for it.
///
/// All methods take `&self`, and any thread may call them at any time. A clone is another handle to
/// the same cache, and cheap. The values are dropped with the last handle. Where entries expire or
/// freeze, a thread of the library may drop them a moment later.
///
/// Keys are compared while a part of the cache is locked: an [`Eq`] that uses the same cache
/// deadlocks.
///
/// ```
/// # use floe_memory as floe;
/// let cache = floe::Cache::new(1000);
/// cache.insert("floe", 1);
/// let other = cache.clone(); // the same cache
/// std::thread::spawn(move || other.insert("ice", 2)).join().unwrap();
/// assert_eq!(cache.get_cloned("ice"), Some(2));
/// ```
pub struct Cache<K, V, P: Replacement = QdClock, S = DefaultHasher> {
    pub(crate) inner: Arc<Inner<K, V, P, S>>,
}

impl<K, V, P: Replacement, S> Clone for Cache<K, V, P, S> {
    /// Returns another handle to the same cache.
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

// What is under a lock is whole whenever the user's code can panic, and that runs under no lock
// but to compare keys. So after a panic a cache is as good as before, if its keys and values are.
impl<K: RefUnwindSafe, V: RefUnwindSafe, P: Replacement, S> UnwindSafe for Cache<K, V, P, S> {}
impl<K: RefUnwindSafe, V: RefUnwindSafe, P: Replacement, S> RefUnwindSafe for Cache<K, V, P, S> {}

impl<K, V> Cache<K, V> {
    /// The capacity of [`Cache::default`](Default::default), in entries.
    pub const DEFAULT_CAPACITY: usize = 1024;

    /// Makes a cache that holds at most `capacity` entries, evicted by the default policy. With a
    /// capacity of 0 it is off: it finds nothing and drops all that is inserted.
    ///
    /// # Panics
    /// When the capacity is 2³¹ or more.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(1000);
    /// cache.insert("key", 1);
    /// assert_eq!(cache.len(), 1);
    /// ```
    pub fn new(capacity: usize) -> Self
    where
        K: Hash + Eq + Send + Sync + 'static,
        V: Send + Sync + 'static,
    {
        Self::builder().capacity(capacity).build()
    }
}

impl<K, V, P, S> Cache<K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Looks a key up and returns a guard for its value, or `None` if the key is absent or its
    /// entry has expired. Counts a hit or a miss.
    ///
    /// The guard derefs to the value. It keeps this value in memory even if the entry is removed,
    /// replaced or evicted meanwhile. It keeps nothing else, and no thread waits for it.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// cache.insert("a".to_string(), vec![1, 2, 3]);
    /// let value = cache.get("a").unwrap();
    /// cache.remove("a");
    /// assert_eq!(value.len(), 3);
    /// assert!(cache.get("a").is_none());
    /// ```
    #[inline(always)] // cold parts are not: see `Shard::slow_lookup`
    pub fn get<Q>(&self, key: &Q) -> Option<Ref<'_, V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let inner = &*self.inner;
        let found = inner.look_up(inner.record(), inner.hash(key), key)?;
        Some(Ref::new(found.entry, Keep::new(found.cell)))
    }

    /// Looks a key up and returns a clone of its value.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// cache.insert(1, "one");
    /// assert_eq!(cache.get_cloned(&1), Some("one"));
    /// ```
    #[inline]
    pub fn get_cloned<Q>(&self, key: &Q) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        V: Clone,
    {
        self.read(key, V::clone)
    }

    /// Looks a key up, passes its value to a closure and returns the closure's result; `None`,
    /// without a call, if the key is absent. A slow closure delays no other thread.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// cache.insert(1, "one");
    /// assert_eq!(cache.read(&1, |value| value.len()), Some(3));
    /// assert_eq!(cache.read(&2, |value| value.len()), None);
    /// ```
    #[inline(always)] // as `get`
    pub fn read<Q, R>(&self, key: &Q, read: impl FnOnce(&V) -> R) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.get(key).map(|value| read(&value))
    }

    /// Looks many keys up and returns the number of keys that are there. For each of these it calls
    /// `read` with the key's place in `keys` and with its value, in the order of `keys`.
    ///
    /// The memory of several keys is fetched at once. That gains most where the cache is larger
    /// than the processor's caches.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// cache.insert(1, 10);
    /// cache.insert(3, 30);
    /// let mut sum = 0;
    /// let found = cache.get_many(&[1, 2, 3], |_, value| sum += value);
    /// assert_eq!((found, sum), (2, 40));
    /// ```
    pub fn get_many<Q>(&self, keys: &[Q], mut read: impl FnMut(usize, &V)) -> usize
    where
        Q: Hash + Equivalent<K>,
    {
        let inner = &*self.inner;
        let record = inner.record();
        let mut found = 0;
        for (batch, keys) in keys.chunks(BATCH).enumerate() {
            let mut hashes = [KeyHash::of_mixed(0); BATCH];
            for (hash, key) in hashes.iter_mut().zip(keys) {
                *hash = inner.hash(key);
            }
            inner.look_up_many(record, &hashes[..keys.len()], keys, |at, hit| {
                let value = Ref::new(hit.entry, Keep::new(hit.cell));
                read(batch * BATCH + at, &value);
                found += 1;
            });
        }
        found
    }

    /// Returns true if the cache has an entry with this key. It counts no hit, does not tell the
    /// policy, and does not delay the expiry of an entry with a time to idle.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// cache.insert(1, "one");
    /// assert!(cache.contains_key(&1));
    /// assert_eq!(cache.stats().hits, 0);
    /// ```
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.peek(key).is_some()
    }

    /// Looks a key up without a trace. It counts no hit, does not tell the policy, and does not
    /// delay the expiry of an entry with a time to idle. Slower than [`get`](Self::get).
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// cache.insert(1, "one");
    /// assert_eq!(*cache.peek(&1).unwrap(), "one");
    /// assert_eq!(cache.stats().hits, 0);
    /// ```
    pub fn peek<Q>(&self, key: &Q) -> Option<Ref<'_, V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let inner = &*self.inner;
        let found = inner.peek(inner.record(), inner.hash(key), key, false)?;
        Some(Ref::new(found.entry, Keep::new(found.cell)))
    }

    /// Inserts a value under a key, in place of the value that the key had, if any. A full cache
    /// evicts the entries that its policy chooses.
    ///
    /// The value is dropped instead in three cases:
    /// - It weighs more than the cache may hold. The key's old entry is removed, too.
    /// - Only pinned entries could make room for it.
    /// - The [admission](crate::Builder::admission), if there is one, rejects the new key.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// cache.insert(1, "one");
    /// cache.insert(1, "uno");
    /// assert_eq!(cache.get_cloned(&1), Some("uno"));
    /// ```
    #[inline] // only this: the value is made where it is copied from, once
    pub fn insert(&self, key: K, value: V) {
        let hash = self.inner.hash(&key);
        let (mut key, mut value) = (ManuallyDrop::new(key), ManuallyDrop::new(value));
        change::usually(&self.inner, hash, &mut key, &mut value);
    }

    /// Inserts a value as [`insert`](Self::insert) does, with options for this entry: a time at
    /// which it expires, or a pin, which keeps it from being evicted.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use std::time::Duration;
    /// use floe::{Cache, Clock, InsertOptions};
    ///
    /// let clock = Clock::manual();
    /// let cache = Cache::builder().capacity(10).clock(clock.clone()).build();
    /// cache.insert_with(1, "one", InsertOptions::new().time_to_idle(Duration::from_secs(60)));
    /// cache.insert(2, "two");
    /// clock.advance(Duration::from_secs(61));
    /// assert!(cache.get(&1).is_none() && cache.get(&2).is_some());
    /// ```
    pub fn insert_with(&self, key: K, value: V, options: InsertOptions) {
        let hash = self.inner.hash(&key);
        let (mut key, mut value) = (ManuallyDrop::new(key), ManuallyDrop::new(value));
        change::unusually(&self.inner, hash, &mut key, &mut value, options);
    }

    /// Removes a key and returns a guard for its value; `None` if the key is absent. A load of the
    /// key that is under way will not enter the cache. [`Ref::try_into_inner`] moves the value out
    /// of the guard.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// cache.insert(1, "one");
    /// assert_eq!(*cache.remove(&1).unwrap(), "one");
    /// assert!(cache.remove(&1).is_none());
    /// ```
    pub fn remove<Q>(&self, key: &Q) -> Option<Ref<'_, V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let inner = &*self.inner;
        let hash = inner.hash(key);
        let shard = inner.shards.of(hash);
        let record = inner.record();
        let owner = inner.owner_past_loads(shard, hash, key);
        inner.with_owner(shard, owner, |owner, gone| {
            let entry = owner.find(shard.table(), hash.in_shard(), key)?;
            let (entry, slot) = (&raw const *entry, entry.slot());
            let cell = record.cell();
            // before it is taken out: see `hazard`
            cell.store(entry as usize, crate::sync::Ordering::Release);
            // SAFETY: it is in, and from now on kept by the cell, until the guard that takes the
            // cell over is dropped.
            let value = Ref::new(unsafe { &*entry }, crate::guard::Keep::new(cell));
            // SAFETY: as above.
            let expired = unsafe { &*entry }.head.is_over(inner.lifetimes.clock());
            let cause = if expired { Cause::Expired } else { Cause::Removed };
            let room = owner.take_out(shard.table(), slot, cause, gone);
            owner.room.release(&inner.budget, room);
            (!expired).then_some(value)
        })
    }

    /// Returns an iterator over the entries, in no particular order.
    ///
    /// It yields each entry that stays in the cache throughout exactly once, and each entry that
    /// comes or leaves meanwhile at most once. It takes a lock for each entry and holds none in
    /// between. It counts no hits. After each 1,024 entries it pauses for a moment, to let writers
    /// proceed.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// cache.insert(1, 10);
    /// cache.insert(2, 20);
    /// assert_eq!(cache.iter().map(|item| item.key() + item.value()).sum::<i32>(), 33);
    /// ```
    pub fn iter(&self) -> Iter<'_, K, V, P, S> {
        Iter::new(&self.inner)
    }

    /// Returns the number of entries, including entries that have expired and were not removed yet.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// cache.insert(1, "one");
    /// assert_eq!(cache.len(), 1);
    /// ```
    pub fn len(&self) -> usize {
        self.inner.shards.iter().map(|shard| shard.owner().room.held().entries as usize).sum()
    }

    /// Returns true if the cache has no entries.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// assert!(floe::Cache::<u64, u64>::new(10).is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the cache's counts since it was made, and its size and settings. This goes through
    /// all threads and takes the lock of each shard: call it once a second, not once a request.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// cache.insert(1, "one");
    /// cache.get(&1);
    /// assert_eq!((cache.stats().hits, cache.stats().entries), (1, 1));
    /// ```
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// Removes all entries, including pinned ones. Entries that other threads insert meanwhile may
    /// stay. The results of loads under way will not enter the cache.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// cache.insert(1, "one");
    /// cache.clear();
    /// assert!(cache.is_empty());
    /// ```
    pub fn clear(&self) {
        let (inner, mut panic) = (&*self.inner, FirstPanic::none());
        for shard in inner.shards.iter() {
            let detached = lock(&shard.pending_loads).clear();
            drop(detached);
            inner.retain(shard, &mut panic, |_| Some(Cause::Removed));
        }
        inner.reclaim(&mut panic);
        panic.raise();
    }

    /// Changes the limit of entries while the cache is in use. The new limit may be lower or higher
    /// than the old one, or the first one of a cache that had only a limit of weight.
    ///
    /// Entries beyond a lower limit are evicted before this returns; pinned entries stay, however
    /// many they are. The policy keeps what it has learned. With a limit of 0 the cache is off: it
    /// holds nothing.
    ///
    /// If most of the memory for entries is free after that, pages without an entry go back to the
    /// system, and the index becomes smaller. The bookkeeping of slots and of the policy stays: a
    /// few bytes for each entry that there once was. Memory that values own on the heap goes to the
    /// allocator, which may keep it.
    ///
    /// # Panics
    /// When the capacity is 2³¹ or more.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(100);
    /// (0..100).for_each(|key| cache.insert(key, key));
    /// cache.resize(10);
    /// assert_eq!(cache.len(), 10);
    /// ```
    pub fn resize(&self, capacity: usize) {
        assert!(
            capacity <= u32::MAX as usize / 2,
            "a capacity of {capacity} is more than a cache can number"
        );
        self.inner.budget.set_entries(capacity as u64);
        self.resized();
    }

    /// Changes the limit of weight while the cache is in use; see [`resize`](Self::resize). The
    /// unit is that of the [weigher](crate::Builder::weigher).
    ///
    /// # Panics
    /// When the cache has no weigher.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use floe::Cache;
    ///
    /// let cache = Cache::builder()
    ///     .weight_capacity(100)
    ///     .weigher(|_, value: &String| value.len() as u64)
    ///     .build();
    /// (0..10).for_each(|key| cache.insert(key, "ten bytes.".to_string()));
    /// cache.resize_weight(55);
    /// assert_eq!(cache.len(), 5);
    /// ```
    pub fn resize_weight(&self, capacity: u64) {
        assert!(self.inner.weigher.is_some(), "a weight_capacity needs a weigher");
        self.inner.budget.set_weight(capacity);
        self.resized();
    }

    fn resized(&self) {
        let inner = &*self.inner;
        inner.freezing().thaw(inner.frozen.freezer().by_hand()); // what is frozen cannot make room
        let shape = inner.shape();
        inner.shards.iter().for_each(|shard| shard.owner().reshape(&inner.budget, shape));
        let mut panic = FirstPanic::none();
        panic.catch(|| inner.shrink());
        inner.reclaim(&mut panic);
        panic.catch(|| change::release_memory(inner));
        panic.raise();
    }

    /// Freezes a share of the entries, from 0 to 1: those that the policy would keep longest. Until
    /// the cache is [thawed](Self::thaw) or frozen again, frozen entries are not evicted. Hits on
    /// them use an index without locks and without marks for the policy.
    ///
    /// Frozen entries can be replaced and removed, and expire, as others do. With a share of 1 no
    /// new key comes in. Pinned entries, and those with a time to idle, are not frozen.
    ///
    /// # Panics
    /// When the share is not between 0 and 1.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(100);
    /// (0..100).for_each(|key| cache.insert(key, key));
    /// assert_eq!(cache.freeze(0.5).entries, 50);
    /// assert_eq!(cache.get_cloned(&99), Some(99));
    /// cache.thaw();
    /// ```
    pub fn freeze(&self, share: f64) -> Frozen {
        assert!(
            (0.0..=1.0).contains(&share),
            "a share of the entries is between 0 and 1, not {share}"
        );
        self.inner.freezing().freeze(self.inner.frozen.freezer().by_hand(), share)
    }

    /// Thaws all [frozen](Self::freeze) entries: they can be evicted again. Does nothing if none is
    /// frozen.
    pub fn thaw(&self) {
        self.inner.freezing().thaw(self.inner.frozen.freezer().by_hand());
    }

    /// Pins a key's entry, so that it is not evicted. Returns false if the key is absent.
    ///
    /// A pinned entry counts towards the capacity, expires, and can be removed. A value that
    /// replaces it is not pinned. Pinned entries make no eviction slower, however many they are.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(2);
    /// cache.insert("root", 0);
    /// assert!(cache.pin("root"));
    /// for key in ["a", "b", "c", "d"] {
    ///     cache.insert(key, 1);
    /// }
    /// assert!(cache.contains_key("root"));
    /// cache.unpin("root");
    /// ```
    pub fn pin<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        set_pinned(&self.inner, key, true)
    }

    /// Unpins an entry, so that it can be evicted again. The policy treats it as a new entry of low
    /// priority. Returns false if the key is absent.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use floe::{Cache, InsertOptions};
    ///
    /// let cache = Cache::new(10);
    /// cache.insert_with(1, "one", InsertOptions::new().pinned());
    /// assert!(cache.unpin(&1));
    /// assert_eq!(cache.stats().pinned, 0);
    /// ```
    pub fn unpin<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        set_pinned(&self.inner, key, false)
    }

    /// Removes expired entries, and drops all entries that have left the cache and that no guard
    /// keeps. Inside a listener or a destructor, the enclosing call of the cache may do the
    /// dropping later.
    ///
    /// Without this call, entries that have left are dropped in batches. Up to 1/16 of the capacity
    /// may wait without a guard, and up to 1 MiB, for which an entry that needs a drop counts 1 KiB
    /// more than its size. Where that is less than 32 entries a shard, so many may wait, or 64
    /// where keys and values need no drop. With a limit of weight only, up to 512 entries a shard
    /// and 1/16 of the weight may wait, within the same 1 MiB.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use std::sync::Arc;
    ///
    /// let value = Arc::new(());
    /// let cache = floe::Cache::new(10);
    /// cache.insert(1, Arc::clone(&value));
    /// cache.remove(&1);
    /// cache.reclaim();
    /// assert_eq!(Arc::strong_count(&value), 1);
    /// ```
    pub fn reclaim(&self) {
        let mut panic = FirstPanic::none();
        if self.inner.lifetimes.can_expire() {
            self.inner.sweep_all(&mut panic);
        }
        self.inner.reclaim(&mut panic);
        panic.raise();
    }
}

impl<'a, K, V, P, S> IntoIterator for &'a Cache<K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    type Item = crate::guard::Item<'a, K, V>;
    type IntoIter = Iter<'a, K, V, P, S>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<K, V, P: Replacement, S> fmt::Debug for Cache<K, V, P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("stats", &self.inner.stats()).finish_non_exhaustive()
    }
}

/// Pins or unpins the entry of a key. Returns false if the key is not in the cache.
fn set_pinned<K, V, P, S, Q>(inner: &Inner<K, V, P, S>, key: &Q, pinned: bool) -> bool
where
    P: Replacement,
    S: BuildHasher + 'static,
    Q: Hash + Equivalent<K> + ?Sized,
{
    let hash = inner.hash(key);
    let shard = inner.shards.of(hash);
    let priority = InsertOptions::new().told_priority(inner.tells_low);
    let found = inner.with_owner(shard, shard.owner(), |owner, _| {
        let found = owner.find(shard.table(), hash.in_shard(), key);
        let slot = found
            .filter(|entry| !entry.head.is_over(inner.lifetimes.clock()))
            .map(|entry| entry.slot());
        slot.map(|slot| owner.set_pinned(shard.table(), slot, hash, pinned, priority)).is_some()
    });
    if !pinned && inner.budget.is_exceeded() {
        inner.shrink(); // it was made smaller than what is pinned
    }
    found
}

/// An iterator over the entries of a cache: see [`Cache::iter`](crate::Cache::iter).
pub struct Iter<'a, K, V, P: Replacement, S> {
    inner: &'a Inner<K, V, P, S>,
    shard: usize,
    slot: u32,
    /// Entries until the iterator next pauses for writers.
    left: u32,
}

/// Number of entries that an iterator yields between two pauses.
const ENTRIES_PER_REST: u32 = 1024;

impl<'a, K, V, P: Replacement, S> Iter<'a, K, V, P, S> {
    pub(crate) fn new(inner: &'a Inner<K, V, P, S>) -> Self {
        Self { inner, shard: 0, slot: 0, left: ENTRIES_PER_REST }
    }

    /// Returns the next entry with its renewal. Later its slot may have that of another entry.
    pub(crate) fn next_renewed(&mut self) -> Option<(Item<'a, K, V>, Renewal)> {
        let inner = self.inner;
        if self.left == 0 {
            crate::shard::rest(); // for threads that wait for the same locks
            self.left = ENTRIES_PER_REST;
        }
        self.left -= 1;
        let keep = Keep::new(inner.record().cell()); // before the lock: there may be none yet
        while let Some(shard) = inner.shards.get(self.shard) {
            let owner = shard.owner();
            let end = owner.slots.len().min(self.slot.saturating_add(SLOTS_PER_LOCK));
            while self.slot < end {
                let slot = self.slot;
                self.slot += 1;
                let Some(entry) = owner.entry(shard.table(), slot) else { continue };
                // SAFETY: it is in, and is taken out under the lock only.
                let head = &unsafe { &*entry }.head;
                if head.is_over(inner.lifetimes.clock()) {
                    continue;
                }
                // An entry that cannot expire leaves in its slot what an earlier one had stored.
                let renewal = if head.is_set() { owner.renewals.bits(slot) } else { 0 };
                keep.name(entry as usize); // before it can be taken out: see `hazard`
                // SAFETY: kept by the cell from now on, until the guard that takes the cell over is
                // dropped.
                let item = Item::new(unsafe { &*entry }, keep);
                return Some((item, Renewal::of_bits(renewal)));
            }
            if self.slot >= owner.slots.len() {
                (self.shard, self.slot) = (self.shard + 1, 0);
            }
        }
        None
    }
}

impl<K, V, P: Replacement, S> std::fmt::Debug for Iter<'_, K, V, P, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Iter")
            .field("shard", &self.shard)
            .field("slot", &self.slot)
            .finish_non_exhaustive()
    }
}

impl<'a, K, V, P: Replacement, S> Iterator for Iter<'a, K, V, P, S> {
    type Item = Item<'a, K, V>;

    fn next(&mut self) -> Option<Item<'a, K, V>> {
        self.next_renewed().map(|(item, _)| item)
    }
}

/// A cache of [`DEFAULT_CAPACITY`](Cache::DEFAULT_CAPACITY) entries.
impl<K, V> Default for Cache<K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn default() -> Self {
        Self::new(Self::DEFAULT_CAPACITY)
    }
}

/// Creates a cache from entries, with a capacity of as many entries as the iterator yields, but at
/// least one. Of entries with the same key the last one stays.
///
/// ```
/// # use floe_memory as floe;
/// let cache: floe::Cache<_, _> = [("one", 1), ("two", 2)].into_iter().collect();
/// cache.insert("three", 3); // in place of another
/// assert_eq!(cache.len(), 2);
/// ```
impl<K, V> FromIterator<(K, V)> for Cache<K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let entries: Vec<_> = entries.into_iter().collect();
        let cache = Self::new(entries.len().max(1));
        (&cache).extend(entries);
        cache
    }
}

impl<K, V, const N: usize> From<[(K, V); N]> for Cache<K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn from(entries: [(K, V); N]) -> Self {
        entries.into_iter().collect()
    }
}

/// [Inserts](Cache::insert) all entries.
///
/// ```
/// # use floe_memory as floe;
/// let cache = floe::Cache::new(10);
/// (&cache).extend((0..5).map(|number| (number, number * number)));
/// assert_eq!(cache.get_cloned(&4), Some(16));
/// ```
impl<K, V, P, S> Extend<(K, V)> for &Cache<K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        entries.into_iter().for_each(|(key, value)| self.insert(key, value));
    }
}

/// [Inserts](Cache::insert) all entries.
impl<K, V, P, S> Extend<(K, V)> for Cache<K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        (&*self).extend(entries);
    }
}
