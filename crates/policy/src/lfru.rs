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
//! a share of the cache. With `sweep` one scan of all entries chooses many victims, as the paper's
//! thread does: after so many insertions the next scan follows. A victim that is used in between
//! stays.
//!
//! Entries count as one each whatever their weight: the policy was made for blocks of one size, and
//! an owner that needs more room evicts again.
//!
//! Do not use LFRU for small caches, where a stretch is most of the cache.

use crate::slot_array::{SampleSet, ordered_by_array};
use crate::{Access, Eviction, Parameter, Parameters, Policy, PolicyInfo, Slot, Stamps};

/// Number of entries examined for one eviction.
const STRETCH: usize = 16;

/// An entry with its worth: whether it was used within the window, its uses, and its last use.
type Ranked = ((bool, u32, u32), Slot);

/// LFRU (`lfru`): evicts the least used of the entries that were not used within a window.
/// FIFO-like.
#[derive(Debug, Clone)]
pub struct Lfru {
    entries: SampleSet,
    uses: Stamps,
    window_share: f64,
    hand: usize,
    /// Share of the entries that a scan of all chooses; 0 where a stretch is examined instead.
    sweep_share: f64,
    /// All entries by their worth during a scan, then its remaining victims, the coldest last.
    ranked: Vec<Ranked>,
    /// Insertions since the last scan.
    inserted: u32,
}

impl Lfru {
    /// Returns the worth of an entry for a window in insertions; the least is evicted first.
    fn worth(&self, slot: Slot, window: u32) -> (bool, u32, u32) {
        let age = self.uses.times().age(slot);
        (age < window, self.uses.count(slot), u32::MAX - age)
    }

    /// Halves the uses of an entry that was not used within the window.
    fn fade(&self, slot: Slot, (in_window, count, _): (bool, u32, u32)) {
        if !in_window && count > 0 {
            self.uses.set_count(slot, count / 2);
        }
    }

    /// Returns the next victim of the last scan that was not used since. Scans all entries anew
    /// where none is left.
    fn swept(&mut self, window: u32) -> Option<Slot> {
        loop {
            while let Some((_, slot)) = self.ranked.pop() {
                if self.entries.contains(slot) && self.uses.times().age(slot) >= self.inserted {
                    return Some(slot);
                }
            }
            let mut ranked = std::mem::take(&mut self.ranked);
            ranked.extend(
                self.entries.members().iter().map(|&slot| (self.worth(slot, window), slot)),
            );
            ranked.iter().for_each(|&(worth, slot)| self.fade(slot, worth));
            let chosen = ((ranked.len() as f64 * self.sweep_share) as usize).max(1);
            if chosen < ranked.len() {
                ranked.select_nth_unstable(chosen);
                ranked.truncate(chosen);
            }
            ranked.sort_unstable_by(|one, other| other.cmp(one));
            self.ranked = ranked;
            self.inserted = 0;
            if self.ranked.is_empty() {
                return None;
            }
        }
    }

    /// Allocates for scans.
    fn reserve_scan(&mut self) {
        if self.sweep_share > 0.0 {
            self.ranked.reserve(self.entries.slots().saturating_sub(self.ranked.len()));
        }
    }

    fn scan_bytes(&self) -> usize {
        self.ranked.capacity() * size_of::<Ranked>()
    }
}

impl Policy for Lfru {
    const INFO: PolicyInfo = PolicyInfo::new(
        "lfru",
        "a sweep evicts the least used of the entries not used within a window",
        "NVCache, \"Writes Hurt\"",
    )
    .with(&[
        Parameter::share("window", 0.5, "time for which a use protects, in insertions per entry"),
        Parameter::share(
            "sweep",
            0.0,
            "share of the entries that a scan of all chooses; 0 examines 16 for each eviction",
        ),
    ]);

    fn new(parameters: &Parameters) -> Self {
        Self {
            entries: SampleSet::default(),
            uses: Stamps::new(u32::MAX),
            window_share: parameters.get("window"),
            hand: 0,
            sweep_share: parameters.get("sweep"),
            ranked: Vec::new(),
            inserted: 0,
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
        self.inserted = self.inserted.saturating_add(1);
        self.uses.start(slot);
        self.entries.insert(slot);
    }

    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        let members = self.entries.members();
        let window = (members.len() as f64 * self.window_share) as u32;
        let slot = if self.sweep_share > 0.0 {
            self.swept(window)?
        } else {
            let mut victim = None;
            for _ in 0..STRETCH.min(members.len()) {
                self.hand = (self.hand + 1) % members.len();
                let slot = members[self.hand];
                let worth = self.worth(slot, window);
                if victim.is_none_or(|(least, _)| worth < least) {
                    victim = Some((worth, slot));
                }
                self.fade(slot, worth);
            }
            victim?.1
        };
        self.entries.remove(slot);
        Some(slot)
    }

    ordered_by_array! {
        order: entries, marks: uses,
        class: |this, slot| 31 - this.uses.count(slot).min(31),
        resized: reserve_scan, memory: scan_bytes
    }
}
