//! What a server tells of load shedding.

use floe_block::SheddingDecision;
use serde::{Deserialize, Serialize};

/// How much of the hits on the cache device is read from the backing devices. Shares are of 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SheddingStatus {
    /// No more is shed.
    pub most: f64,
    /// What was decided for.
    pub share: f64,
    /// What is shed at this moment: another share while that is tried.
    pub share_now: f64,
    /// Bytes of hits that were read from the backing devices.
    pub shed_bytes: u64,
    /// The last decisions, newest last.
    pub decisions: Vec<SheddingDecisionStatus>,
}

/// A decision on what to shed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SheddingDecisionStatus {
    /// When, since the start.
    pub seconds: f64,
    /// The share from then on.
    pub share: f64,
    /// Why, in words and numbers.
    pub reason: String,
}

/// What decides how much is shed knows of itself.
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
