//! scc's `HashCache`: an LRU of up to 32 entries in each bucket, behind the bucket's lock.
//!
//! It rounds capacities up to a power of two, which flatters its hit ratio. Values are handed out
//! in place, but 4 KiB ones in rows of 32 would leave most of its memory empty, so they are in an
//! `Arc` too.

use foldhash::fast::RandomState;
use scc::HashCache;
use scc::hash_cache::Entry;

use super::{Cache, Lookup, Value};

pub struct Scc<V>(HashCache<u64, V, RandomState>);

impl<V: Value> Lookup for Scc<V> {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.0.get_sync(&key).map(|entry| entry.read())
    }
}

impl<V: Value> Cache for Scc<V> {
    fn new(capacity: usize) -> Self {
        Self(HashCache::with_capacity_and_hasher(capacity, capacity, RandomState::default()))
    }

    #[inline]
    fn insert(&self, key: u64) {
        match self.0.entry_sync(key) {
            Entry::Occupied(mut entry) => drop(entry.put(V::of(key))),
            Entry::Vacant(entry) => drop(entry.put_entry(V::of(key))),
        }
    }
}
