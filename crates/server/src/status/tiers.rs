//! The tiers of a cache in the status, from the top.

use floe_block::{Stats, WriteMode};
use floe_device::{MirrorStatus, MirrorWatch};
use serde::{Deserialize, Serialize};

use super::admission::AdmissionStatus;
use super::mirror::MirrorTierStatus;
use super::opened::OpenedStatus;

/// A tier of the cache. The first tier gets the clients' requests. Every other tier gets those of
/// the tier above: reads of its misses, its writes, and the ranges it zeroes or discards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TierStatus {
    /// Its device and settings, as they were written.
    #[serde(default)]
    pub name: String,
    /// `through`, `around`, `back`, `only` or `pass`.
    pub write_mode: String,
    /// The eviction policy, as for `--evict`.
    pub evict: String,
    /// Number of times it was opened; `None` for a volatile tier.
    pub session: Option<u64>,
    /// The state in which this server found it; `None` for a volatile tier.
    #[serde(default)]
    pub opened: Option<OpenedStatus>,
    /// Its device, or a part of it, has failed and is no longer used.
    pub degraded: bool,
    /// Its journal cannot be written.
    pub journal_lost: bool,
    /// Progress of the bypass since then: `emptying` while dirty data is written back, `stuck` when
    /// some of it cannot be, `ended` when the cache is retired, `ended-unnoted` when that could not
    /// be written to its device.
    #[serde(default)]
    pub bypass: String,
    /// Upper bound of the bytes for which some requests are refused.
    #[serde(default)]
    pub refused_bytes: u64,
    /// Reads answered.
    pub read_requests: u64,
    /// Reads that found all of their data cached.
    pub read_hits: u64,
    /// Share of reads that were hits, 0 when there were none.
    pub read_hit_ratio: f64,
    /// Writes answered.
    pub write_requests: u64,
    /// Writes that found a block for all of their data.
    pub write_hits: u64,
    /// Bytes read from its device.
    pub cache_read_bytes: u64,
    /// Bytes written to its device.
    pub cache_write_bytes: u64,
    /// Failed operations of its device.
    pub cache_errors: u64,
    /// Bytes read from the tier below, or the backing devices.
    pub below_read_bytes: u64,
    /// Bytes written to the tier below, or the backing devices.
    pub below_write_bytes: u64,
    /// Bytes it may hold.
    pub size_bytes: u64,
    /// Bytes of valid data in it.
    pub valid_bytes: u64,
    /// Dirty bytes, which the tier below or the backing devices do not have yet.
    pub dirty_bytes: u64,
    /// Memory for blocks, groups and bits.
    pub metadata_bytes: u64,
    /// Smallest blocks prefetched because they came next in a stream.
    pub prefetched_blocks: u64,
    /// Bytes of the prefetched blocks.
    pub prefetched_bytes: u64,
    /// Prefetched blocks that were read before they were evicted.
    pub prefetched_used_blocks: u64,
    /// Counts of the admission; `None` where everything is admitted.
    pub admission: Option<AdmissionStatus>,
    /// The halves of its device, of a mirror.
    #[serde(default)]
    pub mirror: Option<MirrorTierStatus>,
}

impl TierStatus {
    /// Returns the tier's state as a word; an empty one where there is nothing to report.
    pub fn standing(&self) -> &'static str {
        match self {
            Self { refused_bytes: 1.., .. } => "REFUSING",
            Self { journal_lost: true, bypass, .. } if bypass.starts_with("ended") => "ENDED",
            Self { journal_lost: true, .. } => "JOURNAL LOST",
            Self { degraded: true, .. } => "DEGRADED",
            Self { mirror: Some(mirror), .. } if mirror.degraded => "HALF OUT",
            Self { session: Some(_), .. } => "kept",
            _ => "",
        }
    }
}

/// Properties of a tier that all threads share.
#[derive(Debug, Clone)]
pub(crate) struct TierFacts {
    pub(crate) name: String,
    pub(crate) mode: WriteMode,
    pub(crate) admission: Option<String>,
    pub(crate) evict: String,
    pub(crate) session: Option<u64>,
    pub(crate) opened: Option<OpenedStatus>,
    pub(crate) journal_lost: bool,
    pub(crate) bypass: &'static str,
    pub(crate) size_bytes: u64,
    pub(crate) mirror: Option<MirrorWatch>,
}

impl TierFacts {
    /// Returns whether it is a mirror that lacks a half, or whose witness cannot be told of one.
    pub(crate) fn lacks_half(&self) -> bool {
        let status = self.mirror.as_ref().and_then(MirrorWatch::status);
        status.as_ref().is_some_and(MirrorStatus::is_degraded)
    }

    /// Combines the properties with the counters.
    pub(super) fn status(&self, (stats, cache_errors): (&Stats, u64)) -> TierStatus {
        let Stats { requests, counters, .. } = stats;
        TierStatus {
            name: self.name.clone(),
            write_mode: self.mode.to_string(),
            evict: self.evict.clone(),
            session: self.session,
            opened: self.opened.clone(),
            degraded: stats.degraded_shards > 0,
            journal_lost: self.journal_lost,
            bypass: self.bypass.to_owned(),
            refused_bytes: stats.refused_bytes,
            read_requests: requests.reads,
            read_hits: requests.read_hits,
            read_hit_ratio: super::ratio(requests.read_hits, requests.reads),
            write_requests: requests.writes,
            write_hits: requests.write_hits,
            cache_read_bytes: counters.cache_read_bytes,
            cache_write_bytes: counters.cache_write_bytes,
            cache_errors,
            below_read_bytes: counters.backing_read_bytes,
            below_write_bytes: counters.backing_write_bytes,
            size_bytes: self.size_bytes,
            valid_bytes: stats.valid_bytes,
            dirty_bytes: stats.dirty_bytes,
            metadata_bytes: stats.metadata_bytes(),
            prefetched_blocks: counters.prefetched_blocks,
            prefetched_bytes: counters.prefetched_bytes,
            prefetched_used_blocks: counters.prefetched_used_blocks,
            admission: self
                .admission
                .as_ref()
                .map(|admission| AdmissionStatus::of(admission, stats)),
            mirror: self.mirror.as_ref().and_then(MirrorWatch::status).map(MirrorTierStatus::of),
        }
    }
}
