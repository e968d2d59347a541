//! Operations on the whole cache: its limits, what is frozen or pinned, and freeing.

use std::hash::{BuildHasher, Hash};

use equivalent::Equivalent;
use floe_policy::Replacement;

use crate::cache::Cache;
use crate::cause::Cause;
use crate::frozen::freezer::Frozen;
use crate::sync::lock;
use crate::thrown::FirstPanic;

impl<K, V, P, S> Cache<K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Removes all entries, pinned ones too. Entries that other threads insert meanwhile may stay.
    /// The results of loads under way will not enter the cache.
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
            let detached = lock(&shard.flights).clear();
            drop(detached);
            inner.retain(shard, &mut panic, |_| Some(Cause::Removed));
        }
        inner.reclaim(&mut panic);
        panic.raise();
    }

    /// Sets the limit of entries while the cache is used. It may be lower or higher than before, or
    /// the first one.
    ///
    /// Entries beyond a lower limit are evicted before this returns; pinned entries stay, however
    /// many they are. The policy keeps what it has learned. Memory reserved for entries is not
    /// given back. With a limit of 0 the cache is off: it holds nothing.
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

    /// Sets the limit of weight while the cache is used; see [`resize`](Self::resize). The unit is
    /// that of the [weigher](crate::Builder::weigher).
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
    ///     .weigher(|_, value: &String| value.len() as u32)
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
        panic.raise();
    }

    /// Freezes a share of the entries, from 0 to 1: those that the policy would keep longest. Until
    /// the cache is [thawed](Self::thaw) or frozen again, these are not evicted, and hits on them
    /// go through an index without locks and marks.
    ///
    /// Frozen entries can be replaced and removed, and expire, as others do. With a share of 1 no
    /// new key comes in. Pinned entries, and those with a time to idle, are not frozen.
    ///
    /// This suits caches that are filled once, and experiments. A cache made with
    /// [`freezing`](crate::Builder::freezing) freezes and thaws by itself.
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
        self.set_pinned(key, true)
    }

    /// Lets a pinned entry be evicted again; the policy takes it for a new one. Returns false if
    /// the key is absent.
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
        self.set_pinned(key, false)
    }

    fn set_pinned<Q>(&self, key: &Q, pinned: bool) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let inner = &*self.inner;
        let hash = inner.hash(key);
        let shard = inner.shards.of(hash);
        let found = inner.with_owner(shard, shard.owner(), |owner, _| {
            let found = owner.find(shard.table(), hash.in_shard(), key);
            let slot = found
                .filter(|entry| !entry.head.is_over(inner.lifetimes.clock()))
                .map(|entry| entry.slot());
            slot.map(|slot| owner.set_pinned(shard.table(), slot, hash, pinned)).is_some()
        });
        if !pinned && inner.budget.is_exceeded() {
            inner.shrink(); // it was made smaller than what is pinned
        }
        found
    }

    /// Removes expired entries, and drops all entries that have left the cache and that no guard
    /// keeps, before it returns. Within a listener or a destructor it may leave that to the outer
    /// call of the cache.
    ///
    /// Without this call, entries that left are dropped in batches. So many without guards wait at
    /// most: 1/16 of the capacity, or 32 a shard if that is more, 64 where keys and values need no
    /// drop. Where only weight is limited, these are 512 a shard, and 1/16 of the weight.
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
