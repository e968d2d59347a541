//! SARC: fetches sequential data ahead, and divides the cache between sequential and random data by
//! marginal utility.
//!
//! Once a stream of consecutive positions is long enough, its next positions are fetched ahead
//! ([`Eviction::fetches_ahead`](crate::Eviction::fetches_ahead)); the owner follows the streams.
//! Sequential and random entries live in two LRU lists. The random list deserves more room when
//! hits fall on its cold end, the sequential list when sequential requests still miss. The target
//! size of the sequential list moves towards equal marginal utility (Gill and Modha, "SARC:
//! Sequential Prefetching in Adaptive Replacement Cache", ATC '05).
//!
//! If the owner follows no streams, all entries are in the random list, and SARC is LRU.
//!
//! Do not use SARC for keys without order, nor with many cores: every hit moves its entry.

use crate::listed::Listed;
use crate::{Access, AlwaysPromote, Lists, Parameter, Parameters, Policy, PolicyInfo, Slot};

const RANDOM: usize = 0;
const RANDOM_BOTTOM: usize = 1;
const SEQUENTIAL: usize = 2;

/// Size of the random list's cold end whose hits are counted, as a share of the cache: the paper's
/// "small constant fraction".
const BOTTOM_SHARE: f64 = 0.02;
/// Sum of the counts of misses and hits at which both are halved.
const COUNT_MAX: u64 = 1 << 12;

/// SARC (`sarc`): an LRU list for sequential data, which is fetched ahead, and one for random data.
/// LRU-like.
#[derive(Debug, Clone)]
pub struct Sarc {
    lists: Lists<3>,
    threshold: u64,
    sequential_target: u64,
    bottom_size: u64,
    sequential_misses: u64,
    random_bottom_hits: u64,
}

impl Sarc {
    /// Moves the target size by one step towards equal marginal utility: 2·s/L for sequential,
    /// Δr/ΔL for random data.
    fn adapt(&mut self, weight: u64) {
        let sequential = 2 * self.sequential_misses * self.bottom_size;
        let random = self.random_bottom_hits * self.lists.size(SEQUENTIAL).max(1);
        if sequential > random {
            self.sequential_target = (self.sequential_target + weight).min(self.lists.capacity());
        } else if sequential < random {
            self.sequential_target = self.sequential_target.saturating_sub(weight);
        }
        if self.sequential_misses + self.random_bottom_hits >= COUNT_MAX {
            self.sequential_misses /= 2;
            self.random_bottom_hits /= 2;
        }
    }

    /// Restores the size of the random list's cold end after a change.
    fn fill_bottom(&mut self) {
        while self.lists.size(RANDOM_BOTTOM) < self.bottom_size
            && let Some(coldest) = self.lists.tail(RANDOM)
        {
            self.lists.move_to_head(RANDOM_BOTTOM, coldest);
        }
    }
}

impl Policy for Sarc {
    const INFO: PolicyInfo = PolicyInfo::new(
        "sarc",
        "LRU lists for sequential data, which is fetched ahead, and for random data",
        "Gill & Modha, ATC '05",
    )
    .with(&[Parameter::count("threshold", 3, 2..=64, "positions in a row that make a stream")])
    .looking_at_streams();

    fn new(parameters: &Parameters) -> Self {
        Self {
            lists: Lists::named(["random", "random bottom", "sequential"]),
            threshold: parameters.count("threshold"),
            sequential_target: 0,
            bottom_size: 1,
            sequential_misses: 0,
            random_bottom_hits: 0,
        }
    }
}

impl Listed for Sarc {
    type Marks = AlwaysPromote;
    type Lists = Lists<3>;

    const WEIGHTED: bool = true;

    fn lists(&self) -> &Lists<3> {
        &self.lists
    }

    fn lists_mut(&mut self) -> &mut Lists<3> {
        &mut self.lists
    }

    fn marks(&self) -> &AlwaysPromote {
        &AlwaysPromote
    }

    fn promote(&mut self, slot: Slot) {
        match self.lists.list_of(slot) {
            Some(SEQUENTIAL) => self.lists.move_to_head(SEQUENTIAL, slot),
            Some(RANDOM) => self.lists.move_to_head(RANDOM, slot),
            Some(_) => {
                self.lists.move_to_head(RANDOM, slot);
                self.random_bottom_hits += 1;
                self.adapt(self.lists.weight(slot));
                self.fill_bottom();
            }
            None => {}
        }
    }

    fn insert(&mut self, slot: Slot, access: &Access) {
        self.lists.set_weight(slot, access.weight);
        if access.ahead {
            self.lists.push_head(SEQUENTIAL, slot);
        } else if access.in_a_row >= self.threshold {
            self.sequential_misses += 1;
            self.lists.push_head(SEQUENTIAL, slot);
            self.adapt(self.lists.weight(slot));
        } else {
            self.lists.push_head(RANDOM, slot);
            self.fill_bottom();
        }
    }

    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        let sequential_is_due = self.lists.size(SEQUENTIAL) > self.sequential_target;
        let order = if sequential_is_due {
            [SEQUENTIAL, RANDOM_BOTTOM, RANDOM]
        } else {
            [RANDOM_BOTTOM, RANDOM, SEQUENTIAL]
        };
        let victim = order.into_iter().find_map(|list| self.lists.pop_tail(list));
        self.fill_bottom();
        victim
    }

    fn fetches_ahead(&self) -> Option<u64> {
        Some(self.threshold)
    }

    fn hottest_first(&self) -> impl AsRef<[usize]> {
        [RANDOM, SEQUENTIAL, RANDOM_BOTTOM]
    }

    fn resized(&mut self) {
        self.bottom_size = ((self.lists.capacity() as f64 * BOTTOM_SHARE) as u64).max(1);
    }

    fn reweighed(&mut self, _: Slot) {
        self.fill_bottom();
    }
}
