//! What a server tells of who comes into its cache and into memory.

use floe_block::{AdmissionStats, Stats};
use serde::{Deserialize, Serialize};

/// What became of what was offered to the cache, in smallest blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmissionStatus {
    /// Who is asked, as for `--admit`.
    pub admission: String,
    /// Read or written, and not cached.
    pub offered_blocks: u64,
    /// To come in.
    pub admitted_blocks: u64,
    /// To stay out.
    pub bypassed_blocks: u64,
    /// Blocks of any size that were not made because nothing was to be evicted for them.
    pub stores_withheld: u64,
    /// Ordered to be fetched.
    pub ordered_blocks: u64,
    /// Memory held by who is asked.
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
            ordered_blocks: counted.ordered_blocks,
            admission_bytes: stats.admission_bytes,
        }
    }
}

/// What became of the pages that were offered to memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryAdmissionStatus {
    /// Who is asked, as for `--memory-admit`.
    pub admission: String,
    /// Read or written, and not there.
    pub offered_pages: u64,
    /// To come in.
    pub admitted_pages: u64,
    /// To stay out.
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
