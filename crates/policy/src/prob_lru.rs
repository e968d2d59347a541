//! Probabilistic LRU: LRU whose hits skip the promotion with probability q.
//!
//! The mitigation that the queueing paper measures: a popular entry is hit so often that a promotion now and then is
//! enough to keep it, and the list sees only (1 - q) of the hits. Throughput stops falling with the hit ratio only
//! for q of at least 1 - 1/N with N requests in flight ("Can Increasing the Hit Ratio Hurt Cache Throughput?",
//! section 4).
//!
//! Not to be used with q near 1 and a small cache: what is hit a few times only leaves as under FIFO.

use crate::lists::ordered_by_lists;
use crate::{About, Access, Coins, Eviction, List, Parameter, Parameters, Policy, Ranked, Slot};

/// Seed of the coins; any number does.
const SEED: u64 = 0xf10e;

/// LRU that skips most promotions.
#[derive(Debug, Clone)]
pub struct ProbLru {
    recency: List,
    coins: Coins,
}

impl Policy for ProbLru {
    const ABOUT: About =
        About::new("prob-lru", "LRU, but a hit skips the promotion with probability q", "queueing paper")
            .with(&[Parameter::share("q", 0.5, "probability that a hit skips the promotion")]);

    fn new(parameters: &Parameters) -> Self {
        Self { recency: List::named("list"), coins: Coins::new(parameters.get("q"), SEED) }
    }
}

impl Eviction for ProbLru {
    type Marks = Coins;

    fn marks(&self) -> &Coins {
        &self.coins
    }

    #[inline]
    fn promote(&mut self, slot: Slot) {
        self.recency.move_to_head(slot);
    }

    #[inline]
    fn insert(&mut self, slot: Slot, _: &Access) {
        self.recency.push_head(slot);
    }

    #[inline]
    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.recency.pop_tail()
    }

    fn victim(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.recency.tail()
    }

    ordered_by_lists! { order: recency, hottest: |_this| [0], marks: coins }
}

impl Ranked for ProbLru {
    fn coldest_first(&self) -> impl Iterator<Item = Slot> + '_ {
        self.recency.coldest_first()
    }
}
