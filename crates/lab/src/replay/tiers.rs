//! Results of each tier of the cache in a replay.

use floe_block::{Config, Stats};
use serde::Serialize;

use crate::admission::AdmissionOutcome;

/// A tier, from the top. Its requests are the trace's in the first tier, and in each other what the
/// one above asked for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TierOutcome {
    /// Its block sizes.
    pub blocks: String,
    /// Its size in bytes.
    pub cache_bytes: u64,
    /// When writes reached which device.
    pub write: String,
    /// The policy that decided what left.
    pub evict: String,
    /// Reads it was asked for.
    pub reads: u64,
    /// Reads that found all they wanted cached.
    pub read_hits: u64,
    /// Share of reads that hit.
    pub read_hit_ratio: f64,
    /// Writes it was asked for.
    pub writes: u64,
    /// Writes that found blocks for all they wrote.
    pub write_hits: u64,
    /// Bytes read from its device.
    pub cache_read_bytes: u64,
    /// Bytes written to its device.
    pub cache_write_bytes: u64,
    /// Bytes read from what it stands on: the tier below, or the backing devices.
    pub below_read_bytes: u64,
    /// Bytes written to that, those of the flush at the end too.
    pub below_write_bytes: u64,
    /// Smallest blocks fetched before they were asked for, because they came next in a stream.
    pub prefetched_blocks: u64,
    /// Their bytes.
    pub prefetched_bytes: u64,
    /// Those that were read before they left.
    pub prefetched_used_blocks: u64,
    /// Memory held for blocks, groups, and valid and dirty bits.
    pub metadata_bytes: u64,
    /// The offers to it and their fate, where an admission was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionOutcome>,
}

impl TierOutcome {
    /// Of a tier that was made so and has counted this.
    pub(super) fn new(config: &Config, stats: &Stats) -> Self {
        let Stats { requests, counters, .. } = stats;
        Self {
            blocks: config.sizes.to_string(),
            cache_bytes: config.cache_bytes,
            write: config.mode.to_string(),
            evict: config.evict.to_string(),
            reads: requests.reads,
            read_hits: requests.read_hits,
            read_hit_ratio: requests.read_hits as f64 / requests.reads.max(1) as f64,
            writes: requests.writes,
            write_hits: requests.write_hits,
            cache_read_bytes: counters.cache_read_bytes,
            cache_write_bytes: counters.cache_write_bytes,
            below_read_bytes: counters.backing_read_bytes,
            below_write_bytes: counters.backing_write_bytes,
            prefetched_blocks: counters.prefetched_blocks,
            prefetched_bytes: counters.prefetched_bytes,
            prefetched_used_blocks: counters.prefetched_used_blocks,
            metadata_bytes: stats.block_metadata_bytes + stats.sector_metadata_bytes,
            admission: AdmissionOutcome::of(&config.gate, stats),
        }
    }
}
