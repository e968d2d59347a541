//! The status of load shedding.

use floe_block::SheddingDecision;
use serde::{Deserialize, Serialize};

/// The share of the cache device's hits that is read from the backing devices. Shares are of 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SheddingStatus {
    /// The largest share allowed.
    pub most: f64,
    /// The share that was decided on.
    pub share: f64,
    /// The share at this moment: another one while that is tried.
    pub share_now: f64,
    /// Bytes of hits that were read from the backing devices.
    pub shed_bytes: u64,
    /// The last decisions, newest last.
    pub decisions: Vec<SheddingDecisionStatus>,
}

/// A decision on the share to shed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SheddingDecisionStatus {
    /// Time of the decision, in seconds since the start.
    pub seconds: f64,
    /// The share from then on.
    pub share: f64,
    /// The reason, in words and numbers.
    pub reason: String,
}

/// The state of the shed controller.
#[derive(Debug, Clone)]
pub(crate) struct SheddingFacts {
    pub(crate) most: f64,
    pub(crate) share: f64,
    pub(crate) share_now: f64,
    pub(crate) decisions: Vec<SheddingDecision>,
}

impl SheddingStatus {
    pub(super) fn of(facts: &SheddingFacts, shed_bytes: u64) -> Self {
        let decision = |decision: &SheddingDecision| SheddingDecisionStatus {
            seconds: decision.at.as_secs_f64(),
            share: decision.share,
            reason: decision.reason.clone(),
        };
        Self {
            most: facts.most,
            share: facts.share,
            share_now: facts.share_now,
            shed_bytes,
            decisions: facts.decisions.iter().map(decision).collect(),
        }
    }
}
