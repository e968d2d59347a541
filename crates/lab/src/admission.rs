//! Results of an admission in a replay or a simulation.

use floe_block::{Gate, Stats};
use serde::Serialize;

/// The fate of the offers to the cache, in smallest blocks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AdmissionOutcome {
    /// The admission that was asked.
    pub admission: String,
    /// Read or written, and not cached.
    pub offered_blocks: u64,
    /// To come in.
    pub admitted_blocks: u64,
    /// To stay out.
    pub bypassed_blocks: u64,
    /// Of these, where several had to agree, those that each would not have; some were declined by
    /// more than one.
    pub declined: Vec<Declined>,
    /// Blocks of any size that were not made because nothing was to be evicted for them.
    pub stores_withheld: u64,
    /// Writes that dropped clean copies and went below only, because newer data of cached blocks
    /// was declined.
    pub declined_overwrites: u64,
    /// Ordered to be fetched.
    pub ordered_blocks: u64,
    /// Smallest blocks that came to hold data.
    pub inserted_blocks: u64,
    /// Of smallest blocks, those whose data was dropped because it was outdated.
    pub removed_blocks: u64,
    /// Of smallest blocks, those whose data was evicted.
    pub evicted_blocks: u64,
    /// Memory held by the admission at the end.
    pub admission_bytes: u64,
}

/// The offers that one of several admissions declined.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Declined {
    /// The admission.
    pub by: String,
    /// The number of blocks.
    pub blocks: u64,
}

impl AdmissionOutcome {
    /// Returns the counts; `None` without an admission.
    pub(crate) fn of(gate: &Gate, stats: &Stats) -> Option<Self> {
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
