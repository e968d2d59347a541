//! Guards that may travel between threads and outlive the cache: of a key, and of a guard.

use std::hash::{BuildHasher, Hash};
use std::ptr::NonNull;

use equivalent::Equivalent;
use floe_policy::Replacement;

use crate::cache::Cache;
use crate::guard::{Held, Keep, Ref};
use crate::inner::Inner;

impl<K, V, P, S> Cache<K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Looks a key up for a guard that may travel between threads and outlive the cache. Takes a
    /// lock, unlike [`get`](Self::get). A guard becomes such a one by [`Ref::hold`].
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// cache.insert(1, "one".to_string());
    /// let value = cache.hold(&1).unwrap();
    /// assert_eq!(std::thread::spawn(move || value.len()).join().unwrap(), 3);
    /// ```
    pub fn hold<Q>(&self, key: &Q) -> Option<Held<V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let inner = &*self.inner;
        let found = inner.look_up(inner.record(), inner.hash(key), key)?;
        Some(hold_kept(inner, &found.entry.value, &Keep::new(found.cell)))
    }
}

impl<V> Ref<'_, V> {
    /// Turns the guard into one that may travel between threads and outlive the cache. Looks
    /// nothing up, so it works for a value that has left the cache, too. Takes a lock.
    ///
    /// # Panics
    /// When the guard is not of this cache.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// cache.insert(1, "one".to_string());
    /// let value = cache.get(&1).unwrap();
    /// cache.remove(&1);
    /// let held = value.hold(&cache);
    /// assert_eq!(std::thread::spawn(move || held.len()).join().unwrap(), 3);
    /// ```
    pub fn hold<K, P, S>(self, cache: &Cache<K, V, P, S>) -> Held<V>
    where
        K: Send + Sync + 'static,
        V: Send + Sync + 'static,
        P: Replacement,
    {
        let inner = &*cache.inner;
        let (value, keep) = self.into_parts();
        assert!(
            inner.threads.records.has(inner.record(), keep.cell()),
            "the guard is of another cache"
        );
        hold_kept(inner, value, &keep)
    }
}

/// Holds a value whose entry a cell of the cache's keeps meanwhile.
fn hold_kept<K, V, P: Replacement, S>(
    inner: &Inner<K, V, P, S>,
    value: &V,
    keep: &Keep<'_>,
) -> Held<V> {
    Held::new(NonNull::from(value), inner.threads.records.hold(keep.address()))
}
