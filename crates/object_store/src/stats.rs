//! Statistics of a caching store.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Counters of a store, since it was built.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) cached_bytes: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) head_requests: AtomicU64,
    pub(crate) failed_requests: AtomicU64,
    pub(crate) fetched_bytes: AtomicU64,
    pub(crate) replaced: AtomicU64,
    pub(crate) unversioned: AtomicU64,
    pub(crate) bypassed: AtomicU64,
}

/// Statistics of a [`CachedStore`](crate::CachedStore), since it was built.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Calls that read bytes: `get_opts`, `get_ranges`, `prefetch` and `pin`.
    pub reads: u64,
    /// Bytes that these calls asked for.
    pub read_bytes: u64,
    /// Reads of up to a window of bytes that the cache had all of. A call that streams a large
    /// range makes several.
    pub hits: u64,
    /// Reads of up to a window of bytes of which some came from the store.
    pub misses: u64,
    /// Bytes that came from the cache, in whole parts.
    pub cached_bytes: u64,
    /// Requests for bytes that were sent to the store.
    pub requests: u64,
    /// Requests for metadata alone that were sent to the store.
    pub head_requests: u64,
    /// Requests that failed. They are counted above, too.
    pub failed_requests: u64,
    /// Bytes that the store sent.
    pub fetched_bytes: u64,
    /// Reads that began anew because their object had been replaced.
    pub replaced: u64,
    /// Versions known by neither a strong ETag nor a version. They are told apart by their size and
    /// time of modification alone, and their bytes are not found after a restart.
    pub unversioned: u64,
    /// Calls that went past the cache, because they ask for a version by its name, or for an object
    /// that [`filter`](crate::Builder::filter) leaves out.
    pub bypassed: u64,
    /// Bytes that are pinned.
    pub pinned_bytes: u64,
    /// Bytes of requests under way.
    pub in_flight_bytes: u64,
    /// Learned time from a request to its first byte.
    pub request_time: Duration,
    /// Bytes that one connection brings in a second, as it was learned.
    pub bytes_per_second: f64,
    /// Requests at once that are worth it for one range, as it was learned.
    pub parallel: u64,
    /// The price that requests and bytes have had so far, in dollars.
    pub dollars: f64,
}

impl Stats {
    /// Returns the price of a million reads at the rate so far. `None` before the first.
    pub fn dollars_per_million_reads(&self) -> Option<f64> {
        (self.reads > 0).then(|| self.dollars / self.reads as f64 * 1e6)
    }

    /// Returns the share of reads that the cache answered completely. `None` before the first.
    pub fn hit_ratio(&self) -> Option<f64> {
        let all = self.hits + self.misses;
        (all > 0).then(|| self.hits as f64 / all as f64)
    }
}
