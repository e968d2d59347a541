//! Clock2Q+: S3-FIFO's queues, with a window at the entry in which hits do not count.
//!
//! New entries go to a small FIFO. Those that are hit there move on to the main queue, a CLOCK with
//! one bit; the others leave and are remembered as ghosts. A ghost that comes back enters the main
//! queue at once. So far that is [quick demotion](crate::quick_demotion). But references to one
//! block often come in bursts, above all to metadata, where many small records share a block. Such
//! a burst says nothing about the time after it. So hits do not count while an entry is in the
//! *correlation window*, the newest part of the small FIFO (Zhai et al., "Clock2Q+: A Simple and
//! Efficient Replacement Algorithm for Metadata Cache in VMware vSAN", arXiv 2511.21958, section
//! on the correlation window; parameters and filling as in libCacheSim, Clock2QPlus.c).
//!
//! Its queues are those of quick demotion with a window. All share the cache by weight, the ghosts
//! too.
//!
//! Do not use Clock2Q+ where most entries are hit soon after they came and rarely later: the window
//! ignores the hits that would have kept them.

use crate::ghost_queues::GhostQueues;
use crate::ghosts::Tag;
use crate::quick_demotion::{DemotionGhosts, DemotionRules, QuickDemotion, SMALL_SHARE};
use crate::{Parameter, Parameters, Policy, PolicyInfo};

/// The only queue of ghosts.
const GHOSTS: usize = 0;

/// One hit after the window earns the main queue, and one there another round.
#[derive(Debug, Clone, Copy)]
pub struct Windowed {
    /// Part of the small queue that the window is.
    window_share: f64,
}

impl DemotionRules for Windowed {
    const STAYS_DUE: bool = true;

    #[inline(always)]
    fn hits_to_stay(&self) -> u8 {
        1
    }

    #[inline(always)]
    fn fills_main_first(&self) -> bool {
        false
    }

    fn window(&self, small_target: u64) -> u64 {
        (small_target as f64 * self.window_share).ceil() as u64
    }
}

/// The latest ghosts, as many as their weight allows.
#[derive(Debug, Clone)]
pub struct WeighedGhosts {
    ghosts: GhostQueues<1>,
    limit: u64,
}

impl DemotionGhosts for WeighedGhosts {
    type Note = ();

    fn resize(&mut self, share: f64, slots: usize, capacity: u64) {
        self.ghosts.reserve((slots as f64 * share).ceil() as usize);
        self.limit = (capacity as f64 * share) as u64;
    }

    #[inline(always)]
    fn take(&mut self, tag: Tag) -> (bool, ()) {
        (self.ghosts.take(tag).is_some(), ())
    }

    #[inline(always)]
    fn push(&mut self, tag: Tag, (): (), weight: impl FnOnce() -> u64) {
        self.ghosts.push(GHOSTS, tag, weight(), ());
        self.ghosts.shrink(GHOSTS, self.limit);
    }

    fn memory_bytes(&self) -> usize {
        self.ghosts.memory_bytes()
    }
}

/// Clock2Q+ (`clock2q-plus`): a small FIFO in whose newest part hits do not count, in front of a
/// CLOCK. FIFO-like.
pub type Clock2QPlus = QuickDemotion<Windowed, WeighedGhosts, 3>;

impl Policy for Clock2QPlus {
    const INFO: PolicyInfo = PolicyInfo::new(
        "clock2q-plus",
        "a small FIFO in whose newest part hits do not count filters a CLOCK",
        "Zhai et al., VLDB '26, arXiv 2511.21958",
    )
    .with(&[
        SMALL_SHARE,
        Parameter::share("window", 0.5, "part of the small queue in which hits do not count"),
        Parameter::share("ghosts", 0.9, "weight of the ghosts for each weight of the cache"),
    ]);

    fn new(parameters: &Parameters) -> Self {
        let shares = [parameters.get(SMALL_SHARE.name), parameters.get("ghosts")];
        let rules = Windowed { window_share: parameters.get("window") };
        let names = ["window", "small queue", "main queue"];
        let ghosts = WeighedGhosts { ghosts: GhostQueues::named(["ghosts"]), limit: 0 };
        Self::of(rules, ghosts, names, shares, 1).overflowing(true)
    }
}

#[cfg(test)]
mod tests {
    use super::Clock2QPlus;
    use crate::registry::Choice;
    use crate::{Access, Eviction, Policy, Slot};

    /// A cache of eight entries, four of them in the small FIFO, the newest two of those in the
    /// window, which holds key `k` in slot `k` until an eviction.
    fn full() -> Clock2QPlus {
        let choice: Choice =
            "clock2q-plus:small=0.5:ghosts=0.25".parse().expect("the choice is valid");
        let mut order = Clock2QPlus::new(choice.parameters());
        order.reserve(8);
        (0..8).for_each(|slot| order.insert(Slot(slot), &Access::new(slot.into())));
        order
    }

    /// Worked out by hand. 0 to 3 fill the small FIFO, 2 and 3 are its window; 4 to 7 enter the
    /// main queue.
    #[test]
    fn a_hit_counts_only_after_the_window() {
        let mut order = full();
        order.access(Slot(1)); // past the window
        order.access(Slot(2)); // in the window
        assert_eq!(order.evict(None), Some(Slot(0)));
        order.insert(Slot(0), &Access::new(8)); // the window is 3 and 8 now; 2 lost its hit
        assert_eq!(order.evict(None), Some(Slot(2)), "1 moved to the main queue");
        order.insert(Slot(2), &Access::new(9)); // the window: 8, 9; the small FIFO has three
        order.access(Slot(3)); // left the window with 9
        assert_eq!(order.evict(None), Some(Slot(4)), "the small FIFO is below its share");
        order.insert(Slot(4), &Access::new(10));
        assert_eq!(order.evict(None), Some(Slot(0)), "3 moved to the main queue, 8 was not hit");
    }

    #[test]
    fn a_ghost_comes_back_to_the_main_queue() {
        let mut order = full();
        assert_eq!(order.evict(None), Some(Slot(0)));
        order.insert(Slot(0), &Access::new(8));
        assert_eq!(order.evict(None), Some(Slot(1)));
        order.insert(Slot(1), &Access::new(9));
        assert_eq!(order.evict(None), Some(Slot(2))); // two ghosts are kept: 1 and 2
        order.insert(Slot(2), &Access::new(1)); // to the main queue; three are in the small one
        assert_eq!(order.evict(None), Some(Slot(4)), "the oldest of the main queue");
        order.insert(Slot(4), &Access::new(0)); // forgotten: to the small FIFO
        assert_eq!(order.evict(None), Some(Slot(3)), "the small FIFO has its share");
    }

    #[test]
    fn a_hit_in_the_main_queue_earns_one_more_round_however_many_there_were() {
        let mut order = full();
        (0..5).for_each(|_| order.access(Slot(4)));
        // The small FIFO falls below its share, then the main queue gives room.
        assert_eq!(order.evict(None), Some(Slot(0)));
        let left: Vec<_> = (0..4).filter_map(|_| order.evict(None)).collect();
        assert_eq!(left, [5, 6, 7, 4].map(Slot));
        assert_eq!(order.evict(None), Some(Slot(1)), "the small FIFO is alone");
    }
}
