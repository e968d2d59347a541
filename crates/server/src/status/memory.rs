//! The tier in memory and its freezing in the status.

use floe_block::{FreezeStats, Stats};
use serde::{Deserialize, Serialize};

use super::{MemoryAdmissionStatus, MemoryFacts, ratio};

/// The tier in memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// Bytes it may take, everything included.
    pub size_bytes: u64,
    /// `through` or `back`.
    pub write_mode: String,
    /// Bytes of pages in it.
    pub page_bytes: u64,
    /// Bytes that only it has.
    pub dirty_bytes: u64,
    /// Reads answered from it. They are hits of the cache, too.
    pub read_hits: u64,
    /// Their share of all reads, 0 when there were none.
    pub read_hit_ratio: f64,
    /// Bytes of these reads.
    pub read_bytes: u64,
    /// Pages that left to make room for others.
    pub pages_evicted: u64,
    /// Pages offered to it and admitted; `None` where everything is.
    pub admission: Option<MemoryAdmissionStatus>,
    /// The state of freezing, if the hottest pages are to be frozen.
    pub freezing: Option<FreezingStatus>,
}

/// The state of freezing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FreezingStatus {
    /// The phase: `warming-up`, `measuring`, `learning`, `trying-all`, `proving`,
    /// `constructing`, `frozen` or `waiting`.
    pub phase: String,
    /// The share of pages that is to be frozen, as was learned last.
    pub ratio: f64,
    /// The share of hits that frozen pages had in the last frozen phase; 0 before the first.
    pub frozen_share: f64,
    /// Latency of a hit on a frozen page, 0 before the first is measured; a page is one lookup of
    /// some.
    pub frozen_ns: f64,
    /// Of a hit on another page.
    pub dynamic_ns: f64,
    /// Of a miss, until the page is there.
    pub miss_ns: f64,
    /// Times pages were frozen.
    pub constructed: u64,
    /// Times freezing did not pay.
    pub given_up: u64,
    /// Why the last decision was as it was, in words.
    pub reason: String,
}

impl MemoryStatus {
    pub(super) fn of(facts: &MemoryFacts, stats: &Stats) -> Self {
        let MemoryFacts { write, usage, freezing } = facts;
        Self {
            size_bytes: usage.size_bytes,
            write_mode: write.to_string(),
            page_bytes: usage.page_bytes,
            dirty_bytes: stats.held_bytes,
            read_hits: stats.memory_hits,
            read_hit_ratio: ratio(stats.memory_hits, stats.requests.reads),
            read_bytes: stats.memory_hit_bytes,
            pages_evicted: usage.evictions,
            admission: usage.admission.as_ref().map(MemoryAdmissionStatus::of),
            freezing: freezing.as_ref().map(FreezingStatus::of),
        }
    }
}

impl FreezingStatus {
    fn of(stats: &FreezeStats) -> Self {
        Self {
            phase: stats.phase.to_string(),
            ratio: stats.ratio,
            frozen_share: stats.frozen_share.unwrap_or_default(),
            frozen_ns: stats.frozen_ns.unwrap_or_default(),
            dynamic_ns: stats.dynamic_ns.unwrap_or_default(),
            miss_ns: stats.miss_ns.unwrap_or_default(),
            constructed: stats.constructed,
            given_up: stats.given_up,
            reason: stats
                .decisions
                .last()
                .map_or_else(String::new, |decision| decision.reason.clone()),
        }
    }
}
