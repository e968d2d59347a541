//! All locks of a cache, taken by a thread that forks: so the child finds none taken by a thread
//! that it does not have, and nothing half changed.
//!
//! They are taken in the order in which others nest. A thread may fork with some of them taken, as
//! when it compares keys: then the wait for the rest has an end, and these stay as they are.
//!
//! Loads that other threads run end with those threads. Their flights leave the child's cache, so
//! that whoever asks for their keys loads them.

use std::time::Instant;

use floe_policy::Replacement;

use crate::flight::Flights;
use crate::fork::{Forks, Locks};
use crate::frozen::freezer::Freezer;
use crate::frozen::options::FreezeStats;
use crate::inner::Inner;
use crate::owner::Owner;
use crate::records::RecordLocks;
use crate::shard::Shard;
use crate::sync::{MutexGuard, lock_until};

/// The locks of a shard.
struct ShardLocks<'a, K, V, P: Replacement> {
    shard: &'a Shard<K, V, P>,
    flights: Option<MutexGuard<'a, Flights<K, V>>>,
    _owner: Option<MutexGuard<'a, Owner<K, V, P>>>,
}

/// The locks of a cache.
struct CacheLocks<'a, K, V, P: Replacement> {
    shards: Vec<ShardLocks<'a, K, V, P>>,
    _freezer: Option<MutexGuard<'a, Freezer<K, V>>>,
    _report: Option<MutexGuard<'a, Option<FreezeStats>>>,
    _records: RecordLocks<'a>,
}

impl<K, V, P: Replacement> Locks for CacheLocks<'_, K, V, P> {
    fn in_the_child(&mut self) {
        for locks in &mut self.shards {
            if let Some(flights) = &mut locks.flights {
                locks.shard.loads_only(flights.keep_own());
            }
        }
    }
}

impl<K: Send + Sync, V: Send + Sync, P: Replacement, S: Send + Sync> Forks for Inner<K, V, P, S> {
    fn locks(&self, until: Instant) -> Box<dyn Locks + '_> {
        let _freezer = self.frozen.freezer_until(until);
        let of_shard = |shard| ShardLocks {
            shard,
            flights: lock_until(&shard.flights, until),
            _owner: shard.owner_until(until),
        };
        let shards = self.shards.iter().map(of_shard).collect();
        let _records = self.threads.records.locks(until);
        let _report = self.frozen.stats_until(until);
        Box::new(CacheLocks { shards, _freezer, _report, _records })
    }
}
