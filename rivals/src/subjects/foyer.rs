//! foyer's memory cache with S3-FIFO, whose hits cost less than those of LRU, its default. A hit is
//! a counted reference.

use foldhash::fast::RandomState;
use foyer_memory::{CacheBuilder, S3FifoConfig};

use super::{Cache, Lookup, Value};

pub struct Foyer<V: Value>(foyer_memory::Cache<u64, V, RandomState>);

impl<V: Value> Lookup for Foyer<V> {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key).map(|entry| entry.value().read())
    }
}

impl<V: Value> Cache for Foyer<V> {
    fn new(capacity: usize) -> Self {
        let builder = CacheBuilder::new(capacity).with_eviction_config(S3FifoConfig::default());
        Self(builder.with_hash_builder(RandomState::default()).build())
    }

    #[inline]
    fn insert(&self, key: u64) {
        self.0.insert(key, V::of(key));
    }
}
