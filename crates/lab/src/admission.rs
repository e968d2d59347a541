//! Counts of an admission policy's decisions in a replay or a simulation.

use floe_block::{AdmissionConfig, Stats};
use serde::Serialize;

/// Counts of the blocks offered to a cache's admission policy, and of those the cache took. The
/// unit is the smallest block size, unless stated otherwise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AdmissionOutcome {
    /// The admission policy.
    pub admission: String,
    /// Blocks read or written that were not cached, for which the admission policy was asked.
    pub offered_blocks: u64,
    /// Offered blocks that the policy admitted.
    pub admitted_blocks: u64,
    /// Offered blocks that the policy declined.
    pub bypassed_blocks: u64,
    /// Declined blocks by policy, where several policies must all agree. A block that several
    /// decline counts for each.
    pub declined: Vec<Declined>,
    /// Blocks of any size that were not stored because the policy allowed no eviction for them.
    pub stores_withheld: u64,
    /// Writes that dropped clean copies and went to the backing device only, because the policy
    /// declined newer data of cached blocks.
    pub declined_overwrites: u64,
    /// Blocks that the policy ordered to be fetched, some of which may have been cached already.
    pub ordered_blocks: u64,
    /// Blocks whose data was stored in the cache.
    pub inserted_blocks: u64,
    /// Blocks whose data was dropped as outdated.
    pub removed_blocks: u64,
    /// Blocks whose data was evicted.
    pub evicted_blocks: u64,
    /// Bytes of memory that the policy held at the end.
    pub admission_bytes: u64,
}

/// Blocks declined by one of several admission policies.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Declined {
    /// The admission policy that declined the blocks.
    pub by: String,
    /// Blocks declined, in smallest blocks.
    pub blocks: u64,
}

impl AdmissionOutcome {
    /// Returns the counts of a cache; `None` without an admission policy.
    pub(crate) fn of(gate: &AdmissionConfig, stats: &Stats) -> Option<Self> {
        let (admission, counted) = (&gate.admission, &stats.counters);
        let declined = |(by, blocks): (&str, &u64)| Declined { by: by.to_owned(), blocks: *blocks };
        (!admission.is_always()).then(|| Self {
            admission: admission.to_string(),
            offered_blocks: counted.offered_blocks,
            admitted_blocks: counted.admitted_blocks,
            bypassed_blocks: counted.offered_blocks - counted.admitted_blocks,
            declined: match &stats.declined_blocks[..] {
                [_] => Vec::new(),
                several => admission.names().zip(several).map(declined).collect(),
            },
            stores_withheld: counted.stores_withheld,
            declined_overwrites: counted.declined_overwrites,
            ordered_blocks: counted.ordered_blocks,
            inserted_blocks: counted.inserted_blocks,
            removed_blocks: counted.removed_blocks,
            evicted_blocks: counted.evicted_blocks,
            admission_bytes: stats.admission_bytes,
        })
    }
}
