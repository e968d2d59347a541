//! What many write first: the lru crate behind the standard library's mutex. Values are read under
//! the lock.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use foldhash::fast::RandomState;
use lru::LruCache;

use super::{Cache, Lookup, Value};

pub struct MutexLru<V>(Mutex<LruCache<u64, V, RandomState>>);

impl<V: Value> Lookup for MutexLru<V> {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).map(Value::read)
    }
}

impl<V: Value> Cache for MutexLru<V> {
    fn new(capacity: usize) -> Self {
        let capacity = NonZeroUsize::new(capacity).expect("a cache has room for something");
        Self(Mutex::new(LruCache::with_hasher(capacity, RandomState::default())))
    }

    #[inline]
    fn insert(&self, key: u64) {
        let value = V::of(key);
        let replaced = self.0.lock().unwrap_or_else(PoisonError::into_inner).push(key, value);
        drop(replaced);
    }
}
