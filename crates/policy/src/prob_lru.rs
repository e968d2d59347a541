//! Probabilistic LRU: LRU whose hits skip the promotion with probability q.
//!
//! The mitigation that the queueing paper measures: a popular entry is hit so often that a
//! promotion now and then is enough to keep it, and the list sees only (1 - q) of the hits.
//! Throughput stops falling with the hit ratio only for q of at least 1 - 1/N with N requests in
//! flight ("Can Increasing the Hit Ratio Hurt Cache Throughput?", section 4).
//!
//! Not to be used with q near 1 and a small cache: entries that are hit only a few times leave as
//! under FIFO.

use crate::lru::ByRecency;
use crate::{Coins, Parameter, Parameters, Policy, PolicyInfo};

/// Seed of the coins; any number does.
const SEED: u64 = 0xf10e;

/// Probabilistic LRU (`prob-lru`): LRU in which a hit skips its promotion with a probability.
pub type ProbLru = ByRecency<Coins>;

impl Policy for ProbLru {
    const INFO: PolicyInfo = PolicyInfo::new(
        "prob-lru",
        "LRU, but a hit skips the promotion with probability q",
        "queueing paper",
    )
    .with(&[Parameter::share("q", 0.5, "probability that a hit skips the promotion")]);

    fn new(parameters: &Parameters) -> Self {
        Self::with(Coins::new(parameters.get("q"), SEED))
    }
}
