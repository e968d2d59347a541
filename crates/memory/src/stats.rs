//! Statistics of a cache.

use crate::sync::AtomicU64;
use floe_freeze::FreezeStats;
use floe_policy::Adaptation;

/// Counts of a shard, changed under the shard's lock. Rare events are counted in a separate box.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct ShardCounts {
    pub(crate) insertions: u64,
    pub(crate) replacements: u64,
    pub(crate) evictions: u64,
    pub(crate) seldom: Box<SeldomCounts>,
}

/// Counts of a shard for events that are rare.
#[derive(Debug, Default)]
pub(crate) struct SeldomCounts {
    pub(crate) rejections: u64,
    pub(crate) expirations: u64,
    pub(crate) removals: u64,
    pub(crate) promotions: u64,
}

impl ShardCounts {
    pub(crate) fn note(&mut self, cause: Cause) {
        match cause {
            Cause::Evicted => self.evictions += 1,
            Cause::Expired => self.seldom.expirations += 1,
            Cause::Removed => self.seldom.removals += 1,
            Cause::Replaced => self.replacements += 1,
            Cause::Rejected => self.seldom.rejections += 1,
            Cause::Bypassed => {} // counted where it is decided
        }
    }
}

/// Numbers of loads that were started and that failed.
#[derive(Debug, Default)]
pub(crate) struct LoadCounts {
    pub(crate) begun: AtomicU64,
    pub(crate) failed: AtomicU64,
}

/// Counts of an admission: the new keys that it was asked about, and its answers. Pinned entries,
/// and entries too heavy for the cache, are not counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct AdmissionStats {
    /// Name of the admission, with its parameters if it was chosen by name.
    pub name: String,
    /// New keys that the admission was asked about.
    pub offered: u64,
    /// New keys that the admission accepted.
    pub admitted: u64,
    /// New keys that the admission rejected; see [`Cause::Bypassed`].
    pub bypassed: u64,
}

/// Counts of a cache since it was made, with its size and settings, as
/// [`Cache::stats`](crate::Cache::stats) returns them.
///
/// Counts of other threads may be a moment late. With the feature `serde` they can be serialized; a
/// `Duration` becomes seconds and nanoseconds.
///
/// ```
/// # use floe_memory as floe;
/// let cache = floe::Cache::new(100);
/// cache.insert("a", 1);
/// cache.get("a");
/// cache.get("b");
/// let stats = cache.stats();
/// assert_eq!((stats.hits, stats.misses, stats.insertions), (1, 1, 1));
/// assert_eq!(stats.hit_ratio(), Some(0.5));
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// Lookups that found their key.
    pub hits: u64,
    /// Lookups that did not find their key.
    pub misses: u64,
    /// Hits on frozen entries; [`hits`](Self::hits) includes them.
    pub frozen_hits: u64,
    /// Entries inserted, under a new key or in place of another entry.
    pub insertions: u64,
    /// Entries inserted in place of another entry with the same key.
    pub replacements: u64,
    /// Entries that the cache did not insert; see [`Cause::Rejected`].
    pub rejections: u64,
    /// Entries evicted to make room for others.
    pub evictions: u64,
    /// Entries removed because they had expired.
    pub expirations: u64,
    /// Entries removed by the caller.
    pub removals: u64,
    /// Loads started by `get_or_insert_with` and the other loading methods.
    pub loads: u64,
    /// Loads that failed, panicked or were dropped.
    pub failed_loads: u64,
    /// Hits that moved an entry in the policy's order, under a lock.
    pub promotions: u64,
    /// Hits that should have moved an entry in the policy's order and did not, because the lock was
    /// taken.
    pub promotions_skipped: u64,
    /// Entries in the cache, including expired ones that were not removed yet.
    pub entries: u64,
    /// Weight of the entries, in the unit of the weigher; the number of entries if there is none.
    pub weight: u64,
    /// Entries that are frozen; [`entries`](Self::entries) includes them.
    pub frozen: u64,
    /// Entries that are pinned; [`entries`](Self::entries) includes them.
    pub pinned: u64,
    /// Entries that have left the cache and wait to be dropped, including those that guards keep.
    pub waiting: u64,
    /// The limit of entries; `None` without one.
    pub capacity: Option<u64>,
    /// The limit of weight; `None` without one.
    pub weight_capacity: Option<u64>,
    /// Bytes of memory that the cache has taken for itself and its entries. Memory that keys and
    /// values own elsewhere, and some hundred bytes for each thread, are not included.
    pub memory_bytes: u64,
    /// Name of the eviction policy.
    pub policy: &'static str,
    /// The settings that the policy chooses from, such as those of
    /// [`Auto`](floe_policy::Auto), with its estimates; `None` if its settings do not change.
    pub adaptation: Option<Adaptation>,
    /// Counts of the admission; `None` without an [`admission`](crate::Builder::admission).
    pub admission: Option<AdmissionStats>,
    /// State and counts of freezing; `None` without [`freezing`](crate::Builder::freezing).
    pub freezing: Option<FreezeStats>,
    /// Shards of the cache: parts with a lock and an order of their own.
    pub shards: u64,
}

impl Stats {
    /// Returns the share of lookups that found their key; `None` before the first lookup.
    pub fn hit_ratio(&self) -> Option<f64> {
        let lookups = self.hits + self.misses;
        (lookups > 0).then(|| self.hits as f64 / lookups as f64)
    }
}

/// The cause for which an entry left or was not inserted, as a [listener](crate::Builder::listener)
/// gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The policy evicted the entry to make room for others.
    Evicted,
    /// The entry's time to live or time to idle was over.
    Expired,
    /// Another value was inserted under the entry's key.
    Replaced,
    /// The caller removed the entry, or cleared the cache.
    Removed,
    /// The entry was not inserted: it weighs more than the cache may hold, only pinned entries
    /// could have made room for it, or it was loaded and is out of date.
    Rejected,
    /// The entry was not inserted: the cache's [admission](crate::Builder::admission) rejected it.
    Bypassed,
}
