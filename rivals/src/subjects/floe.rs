//! Floe itself: hits by guard, values in place; with its default policy, with LRU, and with a
//! policy chosen by name; and with all entries frozen.

use floe_memory::Cache as FloeCache;
use floe_memory::policy::{AnyPolicy, Fifo, Lfu, Lru, QdClock, Qdlp, Replacement, S3Fifo};

use super::{Cache, Lookup, Value};
use crate::workload::BATCH;

/// A way to choose the policy.
pub trait Choice: Send + Sync + 'static {
    type Policy: Replacement;
    /// Number of shards, if it is not the default.
    const SHARDS: Option<usize> = None;
    fn policy() -> Self::Policy;
}

pub struct ByDefault;
/// With one shard, and so one index: it bounds what one index for all shards could gain.
pub struct InOnePart;
pub struct Recency;
pub struct Frequency;
pub struct OneHit;
/// A hit leaves no mark.
pub struct NoMark;
pub struct TwoHits;
pub struct ByName;

impl Choice for ByDefault {
    type Policy = QdClock;
    fn policy() -> QdClock {
        QdClock::default()
    }
}

impl Choice for InOnePart {
    type Policy = QdClock;
    const SHARDS: Option<usize> = Some(1);
    fn policy() -> QdClock {
        QdClock::default()
    }
}

impl Choice for Recency {
    type Policy = Lru;
    fn policy() -> Lru {
        Lru::default()
    }
}

impl Choice for Frequency {
    type Policy = Lfu;
    fn policy() -> Lfu {
        Lfu::default()
    }
}

impl Choice for OneHit {
    type Policy = Qdlp;
    fn policy() -> Qdlp {
        Qdlp::default()
    }
}

impl Choice for NoMark {
    type Policy = Fifo;
    fn policy() -> Fifo {
        Fifo::default()
    }
}

impl Choice for TwoHits {
    type Policy = S3Fifo;
    fn policy() -> S3Fifo {
        S3Fifo::default()
    }
}

impl Choice for ByName {
    type Policy = AnyPolicy;
    fn policy() -> AnyPolicy {
        "qd-clock".parse().expect("the default policy has a name")
    }
}

pub struct Floe<V, C: Choice>(FloeCache<u64, V, C::Policy>);

impl<V: Value, C: Choice> Lookup for Floe<V, C> {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key).map(|value| value.read())
    }

    #[inline]
    fn get_many(&self, keys: &[u64; BATCH], mut found: impl FnMut(u64)) {
        self.0.get_many(keys, |_, value| found(value.read()));
    }
}

impl<V: Value, C: Choice> Cache for Floe<V, C> {
    fn new(capacity: usize) -> Self {
        let builder = FloeCache::builder().capacity(capacity).policy(C::policy());
        Self(match C::SHARDS {
            Some(shards) => builder.shards(shards).build(),
            None => builder.build(),
        })
    }

    #[inline]
    fn insert(&self, key: u64) {
        self.0.insert(key, V::of(key));
    }
}

/// Bytes an entry beside key and value, of `u64` pairs under the default policy: of a full cache
/// that has evicted for so long that its ghosts, and the entries that wait to be freed, are there.
pub fn bytes_an_entry() -> f64 {
    const ENTRIES: u64 = 200_000;
    let cache = FloeCache::<u64, u64>::new(ENTRIES as usize);
    (0..3 * ENTRIES).for_each(|key| cache.insert(key, key));
    cache.stats().memory_bytes as f64 / ENTRIES as f64 - size_of::<(u64, u64)>() as f64
}

/// The same through `read`, with the value handed to a closure in place of a guard.
pub struct Read<V>(FloeCache<u64, V>);

impl<V: Value> Lookup for Read<V> {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.0.read(&key, Value::read)
    }
}

impl<V: Value> Cache for Read<V> {
    fn new(capacity: usize) -> Self {
        Self(FloeCache::new(capacity))
    }

    #[inline]
    fn insert(&self, key: u64) {
        self.0.insert(key, V::of(key));
    }
}

/// All entries frozen once they are in. From then on nothing else comes in, so it takes part where
/// all requests hit.
pub struct Frozen<T>(T);

/// What can be frozen by hand.
pub trait Freeze {
    fn freeze(&self);
}

impl<V: Value, C: Choice> Freeze for Floe<V, C> {
    fn freeze(&self) {
        self.0.freeze(1.0);
    }
}

impl<V: Value> Freeze for Read<V> {
    fn freeze(&self) {
        self.0.freeze(1.0);
    }
}

impl<T: Lookup> Lookup for Frozen<T> {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(key)
    }

    #[inline]
    fn get_many(&self, keys: &[u64; BATCH], found: impl FnMut(u64)) {
        self.0.get_many(keys, found);
    }
}

impl<T: Cache + Freeze> Cache for Frozen<T> {
    fn new(capacity: usize) -> Self {
        Self(T::new(capacity))
    }

    fn insert(&self, key: u64) {
        self.0.insert(key);
    }

    fn settle(&self) {
        self.0.freeze();
    }
}
