//! What a cache implements to take part, and a file for each.
//!
//! All hash with foldhash where they let one choose. A cache that hands out clones keeps values of
//! 4 KiB in an `Arc`, as its users would; one that lets values be read in place keeps them in
//! place.

pub mod floe;
pub mod floor;
pub mod foyer;
pub mod lfu;
pub mod lru;
pub mod moka;
pub mod quick_cache;
pub mod scc;
pub mod tinyufo;

use std::sync::Arc;

use crate::workload::BATCH;

/// A value: its first and last word tell its key, and reading it means reading these.
pub trait Value: Clone + Send + Sync + 'static {
    fn of(key: u64) -> Self;
    /// Twice the key.
    fn read(&self) -> u64;
}

pub type Line = [u64; 8];
pub type Page = [u64; 512];

impl<const WORDS: usize> Value for [u64; WORDS] {
    #[inline]
    fn of(key: u64) -> Self {
        [key; WORDS]
    }

    #[inline]
    fn read(&self) -> u64 {
        self[0] + self[WORDS - 1]
    }
}

impl<V: Value> Value for Arc<V> {
    #[inline]
    fn of(key: u64) -> Self {
        Arc::new(V::of(key))
    }

    #[inline]
    fn read(&self) -> u64 {
        V::read(self)
    }
}

/// What can be asked for values.
pub trait Lookup: Send + Sync + 'static {
    /// The value of a key, read.
    fn get(&self, key: u64) -> Option<u64>;

    /// Several at once; `found` hears of each value that is there.
    #[inline]
    fn get_many(&self, keys: &[u64; BATCH], mut found: impl FnMut(u64)) {
        for &key in keys {
            if let Some(value) = self.get(key) {
                found(value);
            }
        }
    }
}

/// What also takes values.
pub trait Cache: Lookup {
    fn new(capacity: usize) -> Self;

    /// Adds a value, or replaces that of the key.
    fn insert(&self, key: u64);

    /// Does what was put off.
    fn settle(&self) {}
}

/// What is only read.
pub trait Fixed: Lookup {
    /// With all keys below `keys`.
    fn new(keys: usize) -> Self;
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    /// Caches are built anew in each round so that their seeds differ.
    #[test]
    fn each_cache_that_is_built_hashes_otherwise() {
        let hashes = (0..50).map(|_| foldhash::fast::RandomState::default().hash_one(7u64));
        assert_eq!(hashes.collect::<HashSet<_>>().len(), 50);
        let hashes = (0..50).map(|_| floe_memory::DefaultHasher::default().hash_one(7u64));
        assert_eq!(hashes.collect::<HashSet<_>>().len(), 50);
    }
}
