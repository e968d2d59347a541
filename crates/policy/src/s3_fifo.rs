//! S3-FIFO: a small queue filters out keys that are requested once before they reach the main
//! queue.
//!
//! New entries go to a small FIFO. Entries that were hit there more than once move on to the main
//! FIFO; the others leave and are remembered as ghosts. A ghost that comes back enters the main
//! queue at once. The main queue is a CLOCK with two bits (Yang et al., "FIFO Queues are All You
//! Need for Cache Eviction", SOSP '23).
//!
//! Its queues are those of [quick demotion](crate::quick_demotion), which asks for one hit.
//!
//! Do not use S3-FIFO where entries are hit twice in a burst and never again: the burst passes the
//! filter.

use crate::quick_demotion::{QuickDemotion, SMALL_SHARE, TWO_BITS};
use crate::{Parameters, Policy, PolicyInfo};

/// Number of hits in the small queue that earn a place in the main one (algorithm 1).
const HITS_TO_STAY: u8 = 2;

/// S3-FIFO (`s3-fifo`): a small FIFO filters which entries reach the main queue; keys with a ghost
/// enter it at once. FIFO-like.
pub type S3Fifo = QuickDemotion<HITS_TO_STAY, false>;

impl Policy for S3Fifo {
    const INFO: PolicyInfo = PolicyInfo::new(
        "s3-fifo",
        "a small FIFO filters the main one; keys with a ghost enter the main one at once",
        "Yang et al., SOSP '23",
    )
    .with(&[SMALL_SHARE]);

    fn new(parameters: &Parameters) -> Self {
        let small_share = parameters.get(SMALL_SHARE.name);
        // As many ghosts as the main queue has entries.
        Self::with(small_share, 1.0 - small_share, TWO_BITS)
    }
}
