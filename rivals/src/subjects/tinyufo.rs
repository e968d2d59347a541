//! TinyUFO: S3-FIFO with TinyLFU's admission, without locks. It keeps hashes in place of keys, and
//! hashes with ahash.

use tinyufo::TinyUfo;

use super::{Cache, Lookup, Value};

pub struct Tiny<V: Value>(TinyUfo<u64, V>);

impl<V: Value> Lookup for Tiny<V> {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key).map(|value| value.read())
    }
}

impl<V: Value> Cache for Tiny<V> {
    fn new(capacity: usize) -> Self {
        Self(TinyUfo::new(capacity, capacity))
    }

    #[inline]
    fn insert(&self, key: u64) {
        self.0.put(key, V::of(key), 1);
    }
}
