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
//! The skipped part is a list of its own in front of the small queue. A hit counts wherever the
//! entry is; an entry that leaves the part loses its hits. So a hit compares no times.
//!
//! The queues share the cache by weight; ghosts count as one each, in proportion to the slots
//! reserved. libCacheSim counts them by size, and takes the ghost of a key that comes back out
//! before it adds that of the victim; here the victim's ghost is added first, as in S3-FIFO.
//!
//! Do not use S4-FIFO with its default parameters: S3-FIFO is nearly that, with less memory.

use crate::ghosts::{Ghosts, Tag};
use crate::listed::Listed;
use crate::quick_demotion::{SMALL_SHARE, TWO_BITS};
use crate::{Access, Counters, Lists, Marks, Parameter, Parameters, Policy, PolicyInfo, Slot};

/// The newest part of the small queue, in which hits do not count.
const SKIPPED: usize = 0;
/// The rest of the small queue.
const SMALL: usize = 1;
const MAIN: usize = 2;

/// The only list of ghosts.
const GHOSTS: usize = 0;

/// Most ghosts that can be kept for each entry.
const GHOSTS_MAX: f64 = 20.0;

/// S4-FIFO (`s4-fifo`): S3-FIFO with its constants as parameters, which ignores hits on the newest
/// entries. FIFO-like.
#[derive(Debug, Clone)]
pub struct S4Fifo {
    queues: Lists<3>,
    hits: Counters,
    /// Ghosts, with the number of times that each has come back.
    ghosts: Ghosts<1, u8>,
    /// For each slot, the tag of the key and the number of times that it came back as a ghost.
    tags: Vec<(Tag, u8)>,
    small_share: f64,
    ghost_share: f64,
    skip_share: f64,
    hits_to_main: u8,
    returns_ignored: u8,
    /// Target weight of the small queue, its skipped part included.
    small_target: u64,
    skip_target: u64,
    /// True if there was no eviction since the order was empty.
    filling: bool,
    /// True if the small queue gives the next victim, however many of its entries move on before.
    small_is_due: bool,
}

impl S4Fifo {
    /// Returns the weight of the small queue, its skipped part included.
    #[inline]
    fn small_size(&self) -> u64 {
        self.queues.size(SKIPPED) + self.queues.size(SMALL)
    }

    /// Moves the oldest entries out of the skipped part while it exceeds its size, and forgets
    /// their hits.
    #[inline]
    fn close_skipped(&mut self) {
        while self.queues.size(SKIPPED) > self.skip_target {
            let Some(oldest) = self.queues.tail(SKIPPED) else { break };
            self.hits.set(oldest, 0);
            self.queues.move_to_head(SMALL, oldest);
        }
    }

    /// Promotes or reinserts oldest entries with hits until the oldest entry of the queue that is
    /// due is a victim. Returns that queue and entry.
    #[inline]
    fn advance(&mut self) -> Option<(usize, Slot)> {
        self.small_is_due |=
            self.small_size() >= self.small_target || self.queues.tail(MAIN).is_none();
        if self.small_is_due {
            while let Some(oldest) = self.queues.tail(SMALL) {
                if !self.hits.spend(oldest, self.hits_to_main, |_| 0) {
                    return Some((SMALL, oldest));
                }
                self.queues.move_to_head(MAIN, oldest);
            }
            if let Some(oldest) = self.queues.tail(SKIPPED) {
                return Some((SKIPPED, oldest));
            }
        }
        loop {
            let oldest = self.queues.tail(MAIN)?;
            if !self.hits.spend(oldest, 1, |hits| hits.min(TWO_BITS) - 1) {
                return Some((MAIN, oldest));
            }
            self.queues.move_to_head(MAIN, oldest);
        }
    }
}

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
        let hits_to_main = parameters.count("hits") as u8;
        Self {
            queues: Lists::named(["skipped", "small queue", "main queue"]),
            hits: Counters::new(hits_to_main.max(TWO_BITS)),
            ghosts: Ghosts::named(["ghosts"]),
            tags: Vec::new(),
            small_share: parameters.get(SMALL_SHARE.name),
            ghost_share: parameters.get("ghosts"),
            skip_share: parameters.get("skip"),
            hits_to_main,
            returns_ignored: parameters.count("ghost-hits") as u8,
            small_target: 0,
            skip_target: 0,
            filling: true,
            small_is_due: false,
        }
    }
}

impl Listed for S4Fifo {
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
        &self.hits
    }

    fn reserve_places(&mut self, places: usize) {
        self.hits.reserve_places(places);
    }

    #[inline]
    fn insert(&mut self, slot: Slot, access: &Access) {
        let tag = Tag::of(access.hash);
        let returns = self.ghosts.take_note(tag).map_or(0, |(_, returns)| returns + 1);
        self.filling |= self.queues.is_empty();
        let is_known = returns > self.returns_ignored;
        let to_main = is_known || self.filling && self.small_size() >= self.small_target;
        self.tags[slot.index()] = (tag, if is_known { 0 } else { returns });
        self.hits.set(slot, 0);
        self.queues.set_weight(slot, access.weight);
        self.queues.push_head(if to_main { MAIN } else { SKIPPED }, slot);
        self.close_skipped();
    }

    #[inline]
    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.filling = false;
        let (queue, oldest) = self.advance()?;
        self.small_is_due = false;
        if queue != MAIN {
            let (tag, returns) = self.tags[oldest.index()];
            self.ghosts.push(GHOSTS, tag, returns);
        }
        self.queues.pop_tail(queue)
    }

    fn victim(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.advance().map(|(_, oldest)| oldest)
    }

    fn hottest_first(&self) -> impl AsRef<[usize]> {
        [MAIN, SMALL, SKIPPED]
    }

    fn hits(&self) -> Option<&Counters> {
        Some(&self.hits)
    }

    fn resized(&mut self) {
        let slots = self.queues.slots();
        self.hits.reserve(slots);
        self.tags.resize(slots, Default::default());
        self.ghosts.reserve((slots as f64 * self.ghost_share) as usize);
        self.small_target = (self.queues.capacity() as f64 * self.small_share) as u64;
        self.skip_target = (self.small_target as f64 * self.skip_share) as u64;
    }

    fn moved(&mut self, from: Slot, to: Slot) {
        self.hits.set(to, self.hits.get(from));
        self.tags[to.index()] = self.tags[from.index()];
    }

    fn other_memory_bytes(&self) -> usize {
        self.hits.memory_bytes()
            + self.tags.capacity() * size_of::<(Tag, u8)>()
            + self.ghosts.memory_bytes()
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
