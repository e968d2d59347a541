//! What an admission did in a replay.

use floe_block::{Config, Counters};
use serde::Serialize;

/// What became of what was offered to the cache, in smallest blocks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AdmissionOutcome {
    /// Who was asked.
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
    /// Memory held by who was asked, at the end.
    pub admission_bytes: u64,
}

impl AdmissionOutcome {
    /// What was counted; `None` where nobody was asked.
    pub(super) fn of(config: &Config, counted: &Counters, admission_bytes: u64) -> Option<Self> {
        let admission = &config.gate.admission;
        (!admission.is_always()).then(|| Self {
            admission: admission.to_string(),
            offered_blocks: counted.offered_blocks,
            admitted_blocks: counted.admitted_blocks,
            bypassed_blocks: counted.offered_blocks - counted.admitted_blocks,
            stores_withheld: counted.stores_withheld,
            ordered_blocks: counted.ordered_blocks,
            admission_bytes,
        })
    }
}
