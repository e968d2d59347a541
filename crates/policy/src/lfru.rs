//! LFRU: a sweep evicts the least frequently used of the entries that were not used for a while. It
//! has no lists.
//!
//! A hit raises a counter and stamps the time. A hand sweeps over the entries. Of each stretch, it
//! evicts the entry with the fewest uses among those not used within a window. Counts are halved as
//! the hand passes, so that old popularity fades ("Writes Hurt", the NVCache paper, section on
//! eviction: an approximation of least frequently and recently used, by a thread that scans once a
//! second; the shipped code ages a counter per block).
//!
//! Here the sweep runs with the evictions that need it, and the window is counted in insertions, as
//! a share of the cache.
//!
//! Entries count as one each whatever their weight: the policy was made for blocks of one size, and
//! an owner that needs more room evicts again.
//!
//! Do not use LFRU for small caches, where a stretch is most of the cache.

use crate::slot_array::{SampleSet, ordered_by_array};
use crate::{Access, Eviction, Parameter, Parameters, Policy, PolicyInfo, Slot, Stamps};

/// Number of entries examined for one eviction.
const STRETCH: usize = 16;

/// LFRU (`lfru`): evicts the least used of the entries that were not used within a window.
/// FIFO-like.
#[derive(Debug, Clone)]
pub struct Lfru {
    entries: SampleSet,
    uses: Stamps,
    window_share: f64,
    hand: usize,
}

impl Policy for Lfru {
    const INFO: PolicyInfo = PolicyInfo::new(
        "lfru",
        "a sweep evicts the least used of the entries not used within a window",
        "NVCache, \"Writes Hurt\"",
    )
    .with(&[Parameter::share(
        "window",
        0.5,
        "time for which a use protects, in insertions per entry",
    )]);

    fn new(parameters: &Parameters) -> Self {
        Self {
            entries: SampleSet::default(),
            uses: Stamps::new(u32::MAX),
            window_share: parameters.get("window"),
            hand: 0,
        }
    }
}

impl Eviction for Lfru {
    type Marks = Stamps;

    fn marks(&self) -> &Stamps {
        &self.uses
    }

    fn promote(&mut self, _: Slot) {}

    fn insert(&mut self, slot: Slot, _: &Access) {
        self.uses.times().advance();
        self.uses.start(slot);
        self.entries.insert(slot);
    }

    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        let members = self.entries.members();
        let window = (members.len() as f64 * self.window_share) as u32;
        let mut victim = None;
        for _ in 0..STRETCH.min(members.len()) {
            self.hand = (self.hand + 1) % members.len();
            let slot = members[self.hand];
            let (age, count) = (self.uses.times().age(slot), self.uses.count(slot));
            let worth = (age < window, count, u32::MAX - age);
            if victim.is_none_or(|(least, _)| worth < least) {
                victim = Some((worth, slot));
            }
            if age >= window && count > 0 {
                self.uses.set_count(slot, count / 2);
            }
        }
        let (_, slot) = victim?;
        self.entries.remove(slot);
        Some(slot)
    }

    ordered_by_array! {
        order: entries, marks: uses,
        class: |this, slot| 31 - this.uses.count(slot).min(31)
    }
}
