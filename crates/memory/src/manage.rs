//! Operations on the whole cache: its limits, what is frozen or pinned, and freeing.

use std::hash::{BuildHasher, Hash};

use equivalent::Equivalent;
use floe_policy::Replacement;

use crate::cache::Cache;
use crate::cause::Cause;
use crate::frozen::freezer::Frozen;
use crate::sync::lock;

impl<K, V, P, S> Cache<K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Removes everything, pinned entries too. Entries that other threads insert meanwhile may
    /// stay. Loads under way will not enter the cache.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// cache.insert(1, "one");
    /// cache.clear();
    /// assert!(cache.is_empty());
    /// ```
    pub fn clear(&self) {
        let inner = &*self.inner;
        for shard in inner.shards.iter() {
            let detached = lock(&shard.flights).clear();
            drop(detached);
            inner.retain(shard, |_| Some(Cause::Removed));
        }
        inner.reclaim();
    }

    /// Changes the limit of entries while the cache is used, or gives it one, and evicts what is
    /// too much before it returns; pinned entries stay, however many they are. The policy keeps
    /// what it has learned. Memory reserved for entries is not given back. With 0 the cache is off:
    /// it holds nothing.
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

    /// Changes the limit of weight, as [`resize`](Self::resize) that of entries.
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
        inner.shrink();
        inner.reclaim();
    }

    /// Freezes the share of the entries that is most worth keeping: they are not evicted, and hits
    /// on them take the shortest way, until the cache is [thawed](Self::thaw) or frozen again.
    /// Frozen entries can be replaced and removed, and expire, as ever. With a share of 1 no new
    /// key comes in.
    ///
    /// For caches that are filled once, and for experiments; a cache made with
    /// [`freezing`](crate::Builder::freezing) sees to it by itself, and freezes and thaws as it
    /// likes. Pinned entries, and those with a time to idle, are not frozen.
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

    /// Has what is [frozen](Self::freeze) be evicted like everything else again.
    pub fn thaw(&self) {
        self.inner.freezing().thaw(self.inner.frozen.freezer().by_hand());
    }

    /// Keeps a key's entry from being evicted; false if there is none. It still counts towards the
    /// capacity, expires, and can be removed; a value that replaces it is not pinned. Any number of
    /// pinned entries makes no eviction slower.
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

    /// Lets a pinned entry be evicted again, as one that has just come; false if there is none
    /// under the key.
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

    /// Drops, now, the entries that have left the cache and that no thread reads, and removes
    /// expired ones. Otherwise some entries that left wait for others that do, so that they can be
    /// freed together: of those without guards at most 1/16 of the capacity, or 32 a shard if that
    /// is more, 64 where keys and values need no drop.
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
        if self.inner.lifetimes.can_expire() {
            self.inner.sweep_all();
        }
        self.inner.reclaim();
    }
}
