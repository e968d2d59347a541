//! quick_cache: sharded, S3-FIFO-like, values cloned under a read lock.

use foldhash::fast::RandomState;
use quick_cache::{UnitWeighter, sync};

use super::{Cache, Lookup, Value};

pub struct Quick<V>(sync::Cache<u64, V, UnitWeighter, RandomState>);

impl<V: Value> Lookup for Quick<V> {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key).map(|value| value.read())
    }
}

impl<V: Value> Cache for Quick<V> {
    fn new(capacity: usize) -> Self {
        let (hasher, lifecycle) = (RandomState::default(), sync::DefaultLifecycle::default());
        Self(sync::Cache::with(capacity, capacity as u64, UnitWeighter, hasher, lifecycle))
    }

    #[inline]
    fn insert(&self, key: u64) {
        self.0.insert(key, V::of(key));
    }
}
