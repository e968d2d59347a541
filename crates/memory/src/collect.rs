//! Conversions between caches and collections of entries.

use std::hash::{BuildHasher, Hash};

use floe_policy::Replacement;

use crate::cache::Cache;

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
