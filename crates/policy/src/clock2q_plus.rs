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
//! The window is a list of its own in front of the small queue. A hit sets the bit wherever the
//! entry is; an entry that leaves the window loses it. So a hit compares no times, and remains one
//! store to a byte.
//!
//! All queues share the cache by weight, the ghosts too.
//!
//! Do not use Clock2Q+ where most entries are hit soon after they came and rarely later: the window
//! ignores the hits that would have kept them.

use crate::ghost_queues::GhostQueues;
use crate::ghosts::Tag;
use crate::listed::Listed;
use crate::{Access, Counters, Lists, Marks, Parameter, Parameters, Policy, PolicyInfo, Slot};

/// The newest part of the small FIFO, in which hits do not count.
const WINDOW: usize = 0;
/// The rest of the small FIFO.
const SMALL: usize = 1;
const MAIN: usize = 2;

/// The queue of ghosts that is used.
const GHOSTS: usize = 0;

/// Clock2Q+ (`clock2q-plus`): a small FIFO in whose newest part hits do not count, in front of a
/// CLOCK. FIFO-like.
#[derive(Debug, Clone)]
pub struct Clock2QPlus {
    queues: Lists<3>,
    hit: Counters,
    ghosts: GhostQueues,
    /// Tag of the key in each slot, for the ghost that it may become.
    tags: Vec<Tag>,
    small_share: f64,
    window_share: f64,
    ghost_share: f64,
    /// Target weight of window and small queue together.
    small_target: u64,
    window_target: u64,
    ghost_limit: u64,
    /// True if there was no eviction since the order was empty.
    filling: bool,
    /// True if the small FIFO gives the next victim, however many of its entries move on before.
    small_is_due: bool,
}

impl Clock2QPlus {
    /// Returns the weight of the small FIFO, its window included.
    #[inline]
    fn small_size(&self) -> u64 {
        self.queues.size(WINDOW) + self.queues.size(SMALL)
    }

    /// Moves the oldest entries out of the window while it exceeds its size, and forgets their
    /// hits.
    #[inline]
    fn close_window(&mut self) {
        while self.queues.size(WINDOW) > self.window_target {
            let Some(oldest) = self.queues.tail(WINDOW) else { break };
            self.hit.set(oldest, 0);
            self.queues.move_to_head(SMALL, oldest);
        }
    }

    /// Promotes or reinserts entries that were hit until the oldest entry of the queue that is due
    /// is a victim. Returns that queue and entry.
    #[inline]
    fn advance(&mut self) -> Option<(usize, Slot)> {
        self.small_is_due |=
            self.small_size() >= self.small_target || self.queues.tail(MAIN).is_none();
        if self.small_is_due {
            while let Some(oldest) = self.queues.tail(SMALL) {
                if self.hit.get(oldest) == 0 {
                    return Some((SMALL, oldest));
                }
                self.hit.set(oldest, 0);
                self.queues.move_to_head(MAIN, oldest);
            }
            if let Some(oldest) = self.queues.tail(WINDOW) {
                return Some((WINDOW, oldest));
            }
        }
        loop {
            let oldest = self.queues.tail(MAIN)?;
            if self.hit.get(oldest) == 0 {
                return Some((MAIN, oldest));
            }
            self.hit.set(oldest, 0);
            self.queues.move_to_head(MAIN, oldest);
        }
    }
}

impl Policy for Clock2QPlus {
    const INFO: PolicyInfo = PolicyInfo::new(
        "clock2q-plus",
        "a small FIFO in whose newest part hits do not count filters a CLOCK",
        "Zhai et al., VLDB '26, arXiv 2511.21958",
    )
    .with(&[
        Parameter::share("small", 0.1, "share of the small queue"),
        Parameter::share("window", 0.5, "part of the small queue in which hits do not count"),
        Parameter::share("ghosts", 0.9, "weight of the ghosts for each weight of the cache"),
    ]);

    fn new(parameters: &Parameters) -> Self {
        Self {
            queues: Lists::named(["window", "small queue", "main queue"]),
            hit: Counters::new(1),
            ghosts: GhostQueues::default(),
            tags: Vec::new(),
            small_share: parameters.get("small"),
            window_share: parameters.get("window"),
            ghost_share: parameters.get("ghosts"),
            small_target: 0,
            window_target: 0,
            ghost_limit: 0,
            filling: true,
            small_is_due: false,
        }
    }
}

impl Listed for Clock2QPlus {
    type Marks = Counters;
    type Lists = Lists<3>;

    const BY_PLACE: bool = true;

    const WEIGHTED: bool = true;

    fn lists(&self) -> &Lists<3> {
        &self.queues
    }

    fn lists_mut(&mut self) -> &mut Lists<3> {
        &mut self.queues
    }

    #[inline]
    fn marks(&self) -> &Counters {
        &self.hit
    }

    fn reserve_places(&mut self, places: usize) {
        self.hit.reserve_places(places);
    }

    #[inline]
    fn insert(&mut self, slot: Slot, access: &Access) {
        let tag = Tag::of(access.hash);
        let was_ghost = self.ghosts.take(tag).is_some();
        self.filling |= self.queues.is_empty();
        let to_main = was_ghost || self.filling && self.small_size() >= self.small_target;
        self.tags[slot.index()] = tag;
        self.hit.set(slot, 0);
        self.queues.set_weight(slot, access.weight);
        self.queues.push_head(if to_main { MAIN } else { WINDOW }, slot);
        self.close_window();
    }

    #[inline]
    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.filling = false;
        let (queue, oldest) = self.advance()?;
        self.small_is_due = false;
        if queue != MAIN {
            self.ghosts.push(GHOSTS, self.tags[oldest.index()], self.queues.weight(oldest));
            self.ghosts.shrink(GHOSTS, self.ghost_limit);
        }
        self.queues.pop_tail(queue)
    }

    fn victim(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.advance().map(|(_, oldest)| oldest)
    }

    fn hottest_first(&self) -> impl AsRef<[usize]> {
        [MAIN, SMALL, WINDOW]
    }

    fn hits(&self) -> Option<&Counters> {
        Some(&self.hit)
    }

    fn resized(&mut self) {
        let slots = self.queues.slots();
        self.hit.reserve(slots);
        self.tags.resize(slots, Tag::default());
        self.ghosts.reserve((slots as f64 * self.ghost_share).ceil() as usize);
        let capacity = self.queues.capacity() as f64;
        self.small_target = (capacity * self.small_share) as u64;
        self.window_target = (self.small_target as f64 * self.window_share).ceil() as u64;
        self.ghost_limit = (capacity * self.ghost_share) as u64;
    }

    fn moved(&mut self, from: Slot, to: Slot) {
        self.hit.set(to, self.hit.get(from));
        self.tags[to.index()] = self.tags[from.index()];
    }

    fn other_memory_bytes(&self) -> usize {
        self.hit.memory_bytes()
            + self.tags.capacity() * size_of::<Tag>()
            + self.ghosts.memory_bytes()
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
