//! The tiers of a cache in the status, from the top.

use floe_block::{Stats, WriteMode};
use serde::{Deserialize, Serialize};

use super::admission::AdmissionStatus;

/// A tier of the cache. Its requests are the clients' in the first tier, and in each other what the
/// one above it asked for: reads of what that misses, writes, and what it zeroes or forgets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TierStatus {
    /// Its device and settings, as they were written.
    #[serde(default)]
    pub name: String,
    /// `through`, `around`, `back`, `only` or `pass`.
    pub write_mode: String,
    /// The policy that decides what leaves, as for `--evict`.
    pub evict: String,
    /// Counts the times it was opened; `None` for one that ends with the server.
    pub session: Option<u64>,
    /// Its device, or a part of it, has failed and been given up.
    pub degraded: bool,
    /// Its journal cannot be written.
    pub journal_lost: bool,
    /// How far it is gone past since: `emptying` while what is dirty is written back, `stuck` when
    /// some of it cannot be, `ended` when nothing in it counts any more, `ended-unnoted` when its
    /// device could not be told so.
    #[serde(default)]
    pub bypass: String,
    /// Bytes of which some requests are refused, at most.
    #[serde(default)]
    pub refused_bytes: u64,
    /// Reads answered.
    pub read_requests: u64,
    /// Reads that found everything cached.
    pub read_hits: u64,
    /// Share of reads that were hits, 0 when there were none.
    pub read_hit_ratio: f64,
    /// Writes answered.
    pub write_requests: u64,
    /// Writes that found a block for everything.
    pub write_hits: u64,
    /// Bytes read from its device.
    pub cache_read_bytes: u64,
    /// Bytes written to its device.
    pub cache_write_bytes: u64,
    /// Failed operations of its device.
    pub cache_errors: u64,
    /// Bytes read from what it stands on: the tier below, or the backing devices.
    pub below_read_bytes: u64,
    /// Bytes written to that.
    pub below_write_bytes: u64,
    /// Bytes it may hold.
    pub size_bytes: u64,
    /// Bytes of valid data in it.
    pub valid_bytes: u64,
    /// Bytes in it that what it stands on does not have yet.
    pub dirty_bytes: u64,
    /// Memory for blocks, groups and bits.
    pub metadata_bytes: u64,
    /// Smallest blocks fetched before they were asked for, because they came next in a stream.
    pub prefetched_blocks: u64,
    /// Their bytes.
    pub prefetched_bytes: u64,
    /// Those that were read before they left.
    pub prefetched_used_blocks: u64,
    /// What was offered to it and what came in; `None` where everything does.
    pub admission: Option<AdmissionStatus>,
}

impl TierStatus {
    /// How it is with the tier, in a word; none where there is nothing to say.
    pub fn standing(&self) -> &'static str {
        match self {
            Self { refused_bytes: 1.., .. } => "REFUSING",
            Self { journal_lost: true, bypass, .. } if bypass.starts_with("ended") => "ENDED",
            Self { journal_lost: true, .. } => "JOURNAL LOST",
            Self { degraded: true, .. } => "DEGRADED",
            Self { session: Some(_), .. } => "kept",
            _ => "",
        }
    }
}

/// What all threads know alike of a tier.
#[derive(Debug, Clone)]
pub(crate) struct TierFacts {
    pub(crate) name: String,
    pub(crate) mode: WriteMode,
    pub(crate) admission: Option<String>,
    pub(crate) evict: String,
    pub(crate) session: Option<u64>,
    pub(crate) journal_lost: bool,
    pub(crate) bypass: &'static str,
    pub(crate) size_bytes: u64,
}

impl TierFacts {
    /// With what has been counted.
    pub(super) fn status(&self, (stats, cache_errors): (&Stats, u64)) -> TierStatus {
        let Stats { requests, counters, .. } = stats;
        TierStatus {
            name: self.name.clone(),
            write_mode: self.mode.to_string(),
            evict: self.evict.clone(),
            session: self.session,
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
        }
    }
}
