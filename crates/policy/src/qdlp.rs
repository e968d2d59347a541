//! QDLP: a small queue demotes quickly, the main one promotes lazily.
//!
//! New entries go to a small FIFO. Entries that were hit there move on to the main queue, a CLOCK
//! with two bits; the rest leaves and is remembered as a ghost, and a ghost that comes back enters
//! the main queue at once (Yang et al., "FIFO can be Better than LRU: the Power of Lazy Promotion
//! and Quick Demotion", HotOS '23). The predecessor of S3-FIFO, which asks for two hits.
//!
//! The queues share the cache by weight; ghosts count one each, in proportion to the slots
//! reserved.
//!
//! Not to be used where entries come in bursts of two: S3-FIFO keeps those out.

use crate::quick_demotion::named_quick_demotion;
use crate::s3_fifo::SMALL_SHARE;
use crate::{Parameters, Policy, PolicyInfo};

/// Two bits of hits.
const HITS_MAX: u8 = 3;

named_quick_demotion! {
    /// Quick demotion, lazy promotion: S3-FIFO's queues, where one hit is enough to stay.
    Qdlp, false
}

impl Policy for Qdlp {
    const INFO: PolicyInfo = PolicyInfo::new(
        "qdlp",
        "a small FIFO demotes what was not hit, the main one is a CLOCK",
        "Yang et al., HotOS '23",
    )
    .with(&[SMALL_SHARE]);

    fn new(parameters: &Parameters) -> Self {
        let small_share = parameters.get(SMALL_SHARE.name);
        Self::with(small_share, 1.0 - small_share, HITS_MAX)
    }
}
