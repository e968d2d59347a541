//! The status of admission to the cache and to memory.

use floe_block::{AdmissionStats, Stats};
use serde::{Deserialize, Serialize};

/// Counts of the cache's admission, in smallest blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmissionStatus {
    /// The admission, as for `--admit`.
    pub admission: String,
    /// Blocks read or written that were not cached.
    pub offered_blocks: u64,
    /// Blocks admitted.
    pub admitted_blocks: u64,
    /// Blocks rejected.
    pub bypassed_blocks: u64,
    /// Blocks of any size that were not made because nothing was to be evicted for them.
    pub stores_withheld: u64,
    /// Writes that dropped clean copies and went below only, because newer data of cached blocks
    /// was declined.
    #[serde(default)]
    pub declined_overwrites: u64,
    /// Blocks ordered to be fetched.
    pub ordered_blocks: u64,
    /// Smallest blocks that came to hold data.
    #[serde(default)]
    pub inserted_blocks: u64,
    /// Of smallest blocks, those whose data was dropped because it was outdated.
    #[serde(default)]
    pub removed_blocks: u64,
    /// Of smallest blocks, those whose data was evicted.
    #[serde(default)]
    pub evicted_blocks: u64,
    /// Memory the admission holds.
    pub admission_bytes: u64,
}

impl AdmissionStatus {
    pub(super) fn of(admission: &str, stats: &Stats) -> Self {
        let counted = &stats.counters;
        Self {
            admission: admission.to_owned(),
            offered_blocks: counted.offered_blocks,
            admitted_blocks: counted.admitted_blocks,
            bypassed_blocks: counted.offered_blocks - counted.admitted_blocks,
            stores_withheld: counted.stores_withheld,
            declined_overwrites: counted.declined_overwrites,
            ordered_blocks: counted.ordered_blocks,
            inserted_blocks: counted.inserted_blocks,
            removed_blocks: counted.removed_blocks,
            evicted_blocks: counted.evicted_blocks,
            admission_bytes: stats.admission_bytes,
        }
    }
}

/// Counts of the admission to memory, in pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryAdmissionStatus {
    /// The admission, as for `--memory-admit`.
    pub admission: String,
    /// Pages read or written that were not in memory. A read that joins one under way offers none.
    pub offered_pages: u64,
    /// Pages admitted.
    pub admitted_pages: u64,
    /// Pages rejected.
    pub bypassed_pages: u64,
}

impl MemoryAdmissionStatus {
    pub(super) fn of(stats: &AdmissionStats) -> Self {
        Self {
            admission: stats.name.clone(),
            offered_pages: stats.offered,
            admitted_pages: stats.admitted,
            bypassed_pages: stats.bypassed,
        }
    }
}
