//! S4-FIFO: S3-FIFO with its constants as parameters, and a part of the small queue in which hits
//! do not count.
//!
//! Five numbers are the parameters: the shares of the small queue and of the ghosts, the part of
//! the small queue to skip, and how many hits there and how many returns as a ghost earn a place in
//! the main queue. With their defaults S4-FIFO is S3-FIFO as its author runs it: `fill=main`, and a
//! small queue that has its share gives the next victim, however many of its entries move on
//! before. The skipped part, the newest of the small queue, keeps bursts of references to one key
//! from earning a place. A second return, with `ghost-hits=1`, is asked for where loops fill the
//! ghosts (Xia et al., "Learning-Augmented Heuristics: Simple, yet Smart, Robust and Interpretable
//! Cache Eviction", OSDI '26; rules and defaults as in libCacheSim, S4FIFO.c of September 2026).
//!
//! The paper has a model, trained beforehand on thousands of traces, choose one of some settings by
//! the load. Its 18 settings skip a quarter of the small queue, which has 5 to 90 % of the cache,
//! ask for one or two hits, and keep 0.9, 3 or 6 ghosts for each entry; an example is
//! `s4-fifo:small=0.2:hits=1:skip=0.25:ghosts=3`. The model is no part of this policy;
//! [`Auto`](crate::Auto) chooses among settings of its own, by ghost caches.
//!
//! Its queues are those of [quick demotion](crate::quick_demotion), with the skipped part as the
//! window. Ghosts count as one each, in proportion to the slots reserved. libCacheSim counts them
//! by size, and takes the ghost of a key that returns out before it adds that of the victim; here
//! the victim's ghost is added first, as in S3-FIFO.
//!
//! Do not use S4-FIFO with its default parameters: S3-FIFO is nearly that, with less memory.

use crate::ghost_queues::GhostQueues;
use crate::ghosts::Tag;
use crate::quick_demotion::{DemotionGhosts, DemotionRules, QuickDemotion, SMALL_SHARE, TWO_BITS};
use crate::{Parameter, Parameters, Policy, PolicyInfo};

/// The only queue of ghosts.
const GHOSTS: usize = 0;

/// Most ghosts that can be kept for each entry.
const GHOSTS_MAX: f64 = 20.0;

/// The rules of S4-FIFO, which are parameters.
#[derive(Debug, Clone, Copy)]
pub struct ChosenRules {
    hits_to_main: u8,
    /// Part of the small queue that is skipped.
    skip_share: f64,
}

impl DemotionRules for ChosenRules {
    const STAYS_DUE: bool = true;

    #[inline(always)]
    fn hits_to_stay(&self) -> u8 {
        self.hits_to_main
    }

    #[inline(always)]
    fn fills_main_first(&self) -> bool {
        false
    }

    #[inline(always)]
    fn rounds_max(&self) -> u8 {
        TWO_BITS
    }

    fn window(&self, small_target: u64) -> u64 {
        (small_target as f64 * self.skip_share) as u64
    }
}

/// Ghosts that have to come back more often than a number of times.
#[derive(Debug, Clone)]
pub struct ReturningGhosts {
    /// Ghosts, with the number of times that each has come back.
    ghosts: GhostQueues<1, u8>,
    /// Number of returns that earn nothing.
    ignored: u8,
}

impl DemotionGhosts for ReturningGhosts {
    /// The number of times that the key came back as a ghost.
    type Note = u8;

    fn resize(&mut self, share: f64, slots: usize, _capacity: u64) {
        self.ghosts.reserve((slots as f64 * share) as usize);
    }

    #[inline(always)]
    fn take(&mut self, tag: Tag) -> (bool, u8) {
        let returns = self.ghosts.take_note(tag).map_or(0, |returns| returns + 1);
        let is_known = returns > self.ignored;
        (is_known, if is_known { 0 } else { returns })
    }

    #[inline(always)]
    fn push(&mut self, tag: Tag, returns: u8, _: impl FnOnce() -> u64) {
        self.ghosts.push_instead(GHOSTS, tag, 1, returns);
    }

    fn memory_bytes(&self) -> usize {
        self.ghosts.memory_bytes()
    }
}

/// S4-FIFO (`s4-fifo`): S3-FIFO with its constants as parameters, which ignores hits on the newest
/// entries. FIFO-like.
pub type S4Fifo = QuickDemotion<ChosenRules, ReturningGhosts, 3>;

impl Policy for S4Fifo {
    const INFO: PolicyInfo = PolicyInfo::new(
        "s4-fifo",
        "S3-FIFO with its constants as parameters, which can ignore hits on the newest entries",
        "Xia et al., OSDI '26",
    )
    .with(&[
        SMALL_SHARE,
        Parameter {
            name: "ghosts",
            default: 0.9,
            min: 0.0,
            max: GHOSTS_MAX,
            whole: false,
            names: &[],
            about: "ghosts for each entry",
        },
        Parameter::share("skip", 0.0, "part of the small queue in which hits do not count"),
        Parameter::count("hits", 2, 1..=64, "hits in the small queue that earn the main one"),
        Parameter::count("ghost-hits", 0, 0..=64, "returns as a ghost that earn nothing"),
    ]);

    fn new(parameters: &Parameters) -> Self {
        let shares = [parameters.get(SMALL_SHARE.name), parameters.get("ghosts")];
        let hits_to_main = parameters.count("hits") as u8;
        let rules = ChosenRules { hits_to_main, skip_share: parameters.get("skip") };
        let ghosts = ReturningGhosts {
            ghosts: GhostQueues::named(["ghosts"]),
            ignored: parameters.count("ghost-hits") as u8,
        };
        let names = ["skipped", "small queue", "main queue"];
        Self::of(rules, ghosts, names, shares, hits_to_main.max(TWO_BITS)).overflowing(true)
    }
}

#[cfg(test)]
mod tests {
    use super::S4Fifo;
    use crate::registry::Choice;
    use crate::{Access, Eviction, Policy, Slot};

    /// A cache of eight entries, four of them in the small queue, which holds key `k` in slot `k`:
    /// 0 to 3 fill the small queue, 4 to 7 the main one.
    fn full(parameters: &str) -> S4Fifo {
        let choice: Choice =
            format!("s4-fifo:small=0.5{parameters}").parse().expect("the choice is valid");
        let mut order = S4Fifo::new(choice.parameters());
        order.reserve(8);
        (0..8).for_each(|slot| order.insert(Slot(slot), &Access::new(slot.into())));
        order
    }

    fn hit(order: &mut S4Fifo, slots: &[u32]) {
        slots.iter().for_each(|&slot| order.access(Slot(slot)));
    }

    /// Worked out by hand: 2 and 3 are the skipped part, and each hit earns the main queue.
    #[test]
    fn hits_on_the_newest_part_of_the_small_queue_do_not_count() {
        let mut order = full(":skip=0.5:hits=1");
        hit(&mut order, &[1, 2]);
        assert_eq!(order.evict(None), Some(Slot(0)));
        order.insert(Slot(0), &Access::new(8)); // 3 and 8 are skipped now; 2 lost its hit
        assert_eq!(order.evict(None), Some(Slot(2)), "1 moved to the main queue");
        order.insert(Slot(2), &Access::new(9)); // 8 and 9 are skipped; the small queue has three
        hit(&mut order, &[3]);
        assert_eq!(order.evict(None), Some(Slot(4)), "the small queue is below its share");
        order.insert(Slot(4), &Access::new(10));
        assert_eq!(order.evict(None), Some(Slot(0)), "3 moved to the main queue, 8 was not hit");
    }

    #[test]
    fn so_many_hits_earn_the_main_queue() {
        let mut order = full(":hits=3");
        hit(&mut order, &[0, 0, 1, 1, 1]);
        assert_eq!(order.evict(None), Some(Slot(0)), "two hits are not enough");
        order.insert(Slot(0), &Access::new(8));
        assert_eq!(order.evict(None), Some(Slot(2)), "1 moved to the main queue");
    }

    /// Worked out by hand: a key has to come back twice. The small queue, without hits, gives each
    /// victim as long as it holds four.
    #[test]
    fn a_key_that_must_come_back_twice_passes_the_small_queue_once_more() {
        let mut order = full(":ghost-hits=1");
        let come = |order: &mut S4Fifo, slot, key| order.insert(Slot(slot), &Access::new(key));
        assert_eq!(order.evict(None), Some(Slot(0)));
        come(&mut order, 0, 0); // back once: the small queue has 1, 2, 3, 0
        for (slot, key) in [(1, 11), (2, 12), (3, 13)] {
            assert_eq!(order.evict(None), Some(Slot(slot)));
            come(&mut order, slot, key);
        }
        assert_eq!(order.evict(None), Some(Slot(0)), "0 was in the small queue");
        come(&mut order, 0, 0); // back twice: the main queue, and three are in the small one
        assert_eq!(order.evict(None), Some(Slot(4)), "the oldest of the main queue");
        let mut order = full("");
        assert_eq!(order.evict(None), Some(Slot(0)));
        come(&mut order, 0, 0); // once is enough by default
        assert_eq!(order.evict(None), Some(Slot(4)));
    }
}
