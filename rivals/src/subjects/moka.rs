//! moka: W-TinyLFU, kept up from a channel that every request writes to; and mini-moka, the lighter
//! edition of its authors.

use foldhash::fast::RandomState;
use mini_moka::sync::ConcurrentCacheExt;
use moka::sync;

use super::{Cache, Lookup, Value};

pub struct Moka<V>(sync::Cache<u64, V, RandomState>);

impl<V: Value> Lookup for Moka<V> {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key).map(|value| value.read())
    }
}

impl<V: Value> Cache for Moka<V> {
    fn new(capacity: usize) -> Self {
        let builder =
            sync::Cache::builder().max_capacity(capacity as u64).initial_capacity(capacity);
        Self(builder.build_with_hasher(RandomState::default()))
    }

    #[inline]
    fn insert(&self, key: u64) {
        self.0.insert(key, V::of(key));
    }

    fn settle(&self) {
        self.0.run_pending_tasks();
    }
}

pub struct Mini<V>(mini_moka::sync::Cache<u64, V, RandomState>);

impl<V: Value> Lookup for Mini<V> {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key).map(|value| value.read())
    }
}

impl<V: Value> Cache for Mini<V> {
    fn new(capacity: usize) -> Self {
        let builder = mini_moka::sync::Cache::builder()
            .max_capacity(capacity as u64)
            .initial_capacity(capacity);
        Self(builder.build_with_hasher(RandomState::default()))
    }

    #[inline]
    fn insert(&self, key: u64) {
        self.0.insert(key, V::of(key));
    }

    fn settle(&self) {
        self.0.sync();
    }
}
