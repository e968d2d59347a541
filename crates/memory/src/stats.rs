//! Statistics of a cache.

use crate::frozen::FreezeStats;
use crate::sync::AtomicU64;

/// Counts of a shard, changed under its lock. Those that change seldom are in a box.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct ShardCounts {
    pub(crate) insertions: u64,
    pub(crate) replacements: u64,
    pub(crate) evictions: u64,
    pub(crate) seldom: Box<SeldomCounts>,
}

/// Counts of a shard that change seldom.
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

/// Loads that were begun, and those of them that failed.
#[derive(Debug, Default)]
pub(crate) struct LoadCounts {
    pub(crate) begun: AtomicU64,
    pub(crate) failed: AtomicU64,
}

/// Counts of an admission: new keys that it was asked about, and its answers. Pinned entries, and
/// those too heavy for the cache, are not among them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct AdmissionStats {
    /// The admission, with its parameters where it was chosen by a text.
    pub name: String,
    /// New keys that it was asked about.
    pub offered: u64,
    /// New keys that it admitted.
    pub admitted: u64,
    /// New keys that it rejected; see [`Cause::Bypassed`].
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
    /// Of the hits, those on frozen entries.
    pub frozen_hits: u64,
    /// Entries that came in, under a new key or in place of another entry.
    pub insertions: u64,
    /// Entries that came in in place of another entry with the same key.
    pub replacements: u64,
    /// Entries that did not come in; see [`Cause::Rejected`].
    pub rejections: u64,
    /// Entries that left to make room.
    pub evictions: u64,
    /// Entries whose time was over.
    pub expirations: u64,
    /// Entries that were removed.
    pub removals: u64,
    /// Loads that were begun by `get_or_insert_with` and its asynchronous sister.
    pub loads: u64,
    /// Of these, those that failed, panicked or were dropped.
    pub failed_loads: u64,
    /// Hits that moved an entry in the policy's order, under a lock.
    pub promotions: u64,
    /// Hits that were to move an entry in the policy's order and did not, as its lock was taken.
    pub promotions_skipped: u64,
    /// Entries in the cache, expired ones that were not removed yet included.
    pub entries: u64,
    /// Weight of the entries, in the unit of the weigher; without one, their number.
    pub weight: u64,
    /// Of the entries, those that are frozen.
    pub frozen: u64,
    /// Of the entries, those that are pinned.
    pub pinned: u64,
    /// Entries that have left and wait to be dropped, those kept by guards included.
    pub waiting: u64,
    /// The limit of entries.
    pub capacity: Option<u64>,
    /// The limit of weight.
    pub weight_capacity: Option<u64>,
    /// Bytes of memory that the cache has taken for itself and its entries. Memory that keys and
    /// values own elsewhere, and some hundred bytes for each thread, are not included.
    pub memory_bytes: u64,
    /// The policy's name.
    pub policy: &'static str,
    /// Counts of the admission; `None` without an [`admission`](crate::Builder::admission).
    pub admission: Option<AdmissionStats>,
    /// State and counts of freezing; `None` without [`freezing`](crate::Builder::freezing).
    pub freezing: Option<FreezeStats>,
    /// Shards of the cache: parts with a lock and an order of their own.
    pub shards: u64,
}

impl Stats {
    /// The share of lookups that found their key; `None` before the first.
    pub fn hit_ratio(&self) -> Option<f64> {
        let lookups = self.hits + self.misses;
        (lookups > 0).then(|| self.hits as f64 / lookups as f64)
    }
}

/// The cause for which an entry left or did not come in, as a [listener](crate::Builder::listener)
/// gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The policy chose it to make room for others.
    Evicted,
    /// Its time to live or to idle was over.
    Expired,
    /// Another value was inserted under its key.
    Replaced,
    /// It was removed, or the cache cleared.
    Removed,
    /// It did not come in: it weighs more than the cache holds, or all that could have made room is
    /// pinned.
    Rejected,
    /// It did not come in: the cache's [admission](crate::Builder::admission) kept it out.
    Bypassed,
}
