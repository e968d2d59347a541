//! The cache, as its users see it.

use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::mem::ManuallyDrop;
use std::panic::{RefUnwindSafe, UnwindSafe};

use equivalent::Equivalent;
use floe_policy::{QdClock, Replacement};

use crate::cause::Cause;
use crate::guard::{Keep, Ref};
use crate::hash::{DefaultHasher, KeyHash};
use crate::inner::Inner;
use crate::insert;
use crate::iter::Iter;
use crate::lookup::BATCH;
use crate::options::InsertOptions;
use crate::stats::Stats;
use crate::sync::Arc;

/// A concurrent cache from keys to values, with a limit of entries, of weight, or of both.
///
/// [`new`](Self::new) makes a cache of so many entries, [`builder`](Self::builder) one with other
/// limits and settings. When it is full, the policy `P` chooses the entries to evict:
/// [`QdClock`] by default. `S` hashes keys.
///
/// - [`get`](Self::get) looks a key up. The guard that it returns keeps the value in memory.
/// - [`insert`](Self::insert) puts a value under a key, [`remove`](Self::remove) takes one out.
/// - [`get_or_insert_with`](Self::get_or_insert_with) looks a key up and loads its value where it
///   is absent: one load a key, however many threads ask.
///
/// All methods take `&self`, and any thread may call them at any time. A clone is another handle to
/// the same cache, and cheap. The values are dropped with the last handle; where entries expire or
/// freeze, perhaps a moment later, by a thread of the library's.
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
    #[inline(always)] // cold parts are not: see `Shard::sure_lookup`
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

    /// Returns true if a key is there. No hit is counted, the policy does not learn of it, and it
    /// does not delay the expiry of an entry with a time to idle.
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

    /// Looks a key up without a trace: no hit is counted, the policy does not learn of it, and it
    /// does not delay the expiry of an entry with a time to idle. Slower than [`get`](Self::get).
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

    /// Inserts a value under a key, and replaces the value that is there, if any. A full cache
    /// evicts the entries that its policy chooses.
    ///
    /// The value does not come in, and is dropped, in three cases. It weighs more than the cache
    /// may hold; then the key's old entry leaves, too. Only pinned entries could make room for it.
    /// Or the [admission](crate::Builder::admission), if there is one, rejects the new key.
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
        insert::usually(&self.inner, hash, &mut key, &mut value);
    }

    /// Inserts a value as [`insert`](Self::insert) does, with options of its own: a time at which
    /// it expires, or a pin, which keeps it from being evicted.
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
        insert::unusually(&self.inner, hash, &mut key, &mut value, options);
    }

    /// Removes a key and returns a guard for the value that it had; `None` if the key is absent. A
    /// load of the key that is under way will not enter the cache.
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

    /// Returns an iterator over the entries, in no particular order. It yields an entry that stays
    /// in the cache meanwhile once; one that comes or leaves meanwhile once or never. It takes a
    /// lock for each entry, holds none in between, rests for a moment after each 1,024 so that
    /// writers get on, and counts no hits.
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

    /// Returns the number of entries. It includes entries that have expired and were not removed
    /// yet.
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

    /// Returns true if there is no entry.
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
