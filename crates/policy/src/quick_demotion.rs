//! Quick demotion: a small FIFO in front of a CLOCK, the order of QDLP, QD-CLOCK and
//! [S3-FIFO](crate::S3Fifo).
//!
//! New entries go to the small queue. When an entry reaches its end, it moves on to the main queue,
//! a CLOCK with counters, if it was hit; otherwise it leaves and is remembered as a ghost. A ghost
//! that comes back enters the main queue at once (Yang et al., "FIFO can be Better than LRU: the
//! Power of Lazy Promotion and Quick Demotion", HotOS '23).
//!
//! The queues share the cache by weight; ghosts count as one each, in proportion to the slots
//! reserved.
//!
//! Do not use QDLP or QD-CLOCK where entries come in bursts of two: S3-FIFO keeps those out.

use std::fmt;

use crate::ghost_table::GhostTable;
use crate::ghosts::Tag;
use crate::listed::Listed;
use crate::{Access, Counters, Lists, Marks, Parameter, Parameters, Policy, PolicyInfo, Slot};

const SMALL: usize = 0;
const MAIN: usize = 1;

/// Highest hit count of QDLP and S3-FIFO, whose counters have two bits.
pub(crate) const TWO_BITS: u8 = 3;
/// Share of the cache that the small queue of QDLP and S3-FIFO has.
pub(crate) const SMALL_SHARE: Parameter =
    Parameter::share("small", 0.1, "share of the small queue");

/// The rules by which entries enter the main queue.
pub trait DemotionRules: Clone + fmt::Debug {
    /// Returns the number of hits in the small queue that earn a place in the main one.
    fn hits_to_stay(&self) -> u8;

    /// Returns true if the main queue fills first.
    fn fills_main_first(&self) -> bool;

    /// Returns the highest number of hits that keep an entry in the main queue, so many rounds.
    /// Hits beyond it do not count.
    fn rounds_max(&self) -> u8 {
        u8::MAX
    }
}

/// Rules that are known when a policy is compiled.
#[derive(Debug, Clone, Copy)]
pub struct FixedRules<const HITS_TO_STAY: u8, const MAIN_FIRST: bool>;

impl<const HITS_TO_STAY: u8, const MAIN_FIRST: bool> DemotionRules
    for FixedRules<HITS_TO_STAY, MAIN_FIRST>
{
    #[inline(always)]
    fn hits_to_stay(&self) -> u8 {
        HITS_TO_STAY
    }

    #[inline(always)]
    fn fills_main_first(&self) -> bool {
        MAIN_FIRST
    }
}

/// A small FIFO queue, a main queue and a ghost queue.
#[derive(Debug, Clone)]
pub struct QuickDemotion<R> {
    rules: R,
    queues: Lists<2>,
    hits: Counters,
    small_share: f64,
    ghost_share: f64,
    /// Target weight of the small queue.
    small_target: u64,
    ghost_limit: u64,
    ghosts: GhostTable,
    /// Tag of the key in each slot, for the ghost that it may become; `None` where the owner has
    /// them.
    tags: Option<Vec<Tag>>,
    /// True if the key evicted last becomes a ghost once the owner tells its tag.
    becomes_ghost: bool,
    /// True if new entries enter the main queue once the small one has its share, until the first
    /// eviction.
    overflows: bool,
    /// True if there was no eviction since the order was empty. The free room does not show that:
    /// where orders share a capacity, one may stay below its part.
    filling: bool,
}

impl<R: DemotionRules> QuickDemotion<R> {
    /// Creates an empty order whose small queue and ghosts have these shares of the cache, and
    /// whose counters end at `hits_max`.
    pub(crate) fn with(rules: R, small_share: f64, ghost_share: f64, hits_max: u8) -> Self {
        Self {
            rules,
            queues: Lists::named(["small queue", "main queue"]),
            hits: Counters::new(hits_max),
            small_share,
            ghost_share,
            small_target: 0,
            ghost_limit: 0,
            ghosts: GhostTable::default(),
            tags: Some(Vec::new()),
            becomes_ghost: false,
            overflows: false,
            filling: true,
        }
    }

    /// Returns the empty order with `overflows` set: until the first eviction, entries that do not
    /// fit into the small queue's share enter the main queue.
    pub(crate) fn overflowing(self, overflows: bool) -> Self {
        Self { overflows, ..self }
    }

    /// Changes rules and shares. Entries stay where they are.
    pub(crate) fn adjust(&mut self, rules: R, small_share: f64, ghost_share: f64) {
        self.rules = rules;
        self.small_share = small_share;
        self.ghost_share = ghost_share;
        self.resized();
    }

    /// Moves oldest entries of the small queue to the main one while they exceed its target, at
    /// most `most`. Returns true if none exceeds it any more.
    pub(crate) fn relieve(&mut self, most: usize) -> bool {
        for _ in 0..most {
            match self.queues.tail(SMALL) {
                Some(oldest) if self.queues.size(SMALL) > self.small_target => {
                    self.queues.move_to_head(MAIN, oldest);
                }
                _ => return true,
            }
        }
        false
    }

    /// Returns whether a slot is in the order, frozen or not.
    pub(crate) fn holds(&self, slot: Slot) -> bool {
        self.queues.contains(slot) || self.queues.is_frozen(slot)
    }

    /// Returns the tag of the latest key in a slot. The order must keep tags.
    #[inline]
    pub(crate) fn tag(&self, slot: Slot) -> Tag {
        self.tags.as_ref().expect("the owner has none")[slot.index()]
    }

    /// Returns the weight of a slot.
    pub(crate) fn weight(&self, slot: Slot) -> u32 {
        self.queues.weight(slot) as u32 // it came as one
    }

    /// Returns whether the order is filling and a new entry belongs into the main queue.
    #[inline(always)] // with each insertion
    fn fills_main(&mut self, weight: u32) -> bool {
        self.filling |= self.queues.is_empty();
        if self.rules.fills_main_first() {
            self.filling
                && self.queues.size(MAIN) + u64::from(weight) + self.small_target
                    <= self.queues.capacity()
        } else {
            self.filling && self.overflows && self.queues.size(SMALL) >= self.small_target
        }
    }

    /// Promotes or reinserts oldest entries with hits until the oldest entry of a queue is a
    /// victim. Returns that queue and entry.
    #[inline(always)]
    fn advance(&mut self) -> Option<(usize, Slot)> {
        let rounds_max = self.rules.rounds_max();
        loop {
            let (small, main) = (self.queues.tail(SMALL), self.queues.tail(MAIN));
            match (small, main) {
                (Some(oldest), _)
                    if main.is_none() || self.queues.size(SMALL) >= self.small_target =>
                {
                    if !self.hits.spend(oldest, self.rules.hits_to_stay(), |_| 0) {
                        return Some((SMALL, oldest));
                    }
                    self.queues.move_to_head(MAIN, oldest);
                }
                (_, oldest) => {
                    let oldest = oldest?;
                    if !self.hits.spend(oldest, 1, |hits| hits.min(rounds_max) - 1) {
                        return Some((MAIN, oldest));
                    }
                    self.queues.move_to_head(MAIN, oldest);
                }
            }
        }
    }
}

impl<R: DemotionRules> Listed for QuickDemotion<R> {
    type Marks = Counters;
    type Lists = Lists<2>;

    const BY_PLACE: bool = true;

    const WEIGHTED: bool = true;

    fn lists(&self) -> &Lists<2> {
        &self.queues
    }

    fn lists_mut(&mut self) -> &mut Lists<2> {
        &mut self.queues
    }

    #[inline]
    fn marks(&self) -> &Counters {
        &self.hits
    }

    fn reserve_places(&mut self, places: usize) {
        self.hits.reserve_places(places);
    }

    fn leave_tags_to_owner(&mut self) {
        self.tags = None;
    }

    #[inline(always)]
    fn departed(&mut self, tag: u32) {
        if std::mem::take(&mut self.becomes_ghost) {
            self.ghosts.push(Tag::from_bits(tag));
        }
    }

    #[inline(always)]
    fn insert(&mut self, slot: Slot, access: &Access) {
        let tag = Tag::of(access.hash);
        let was_ghost = self.ghosts.take(tag, self.ghost_limit);
        if let Some(tags) = &mut self.tags {
            tags[slot.index()] = tag;
        }
        let to_main = self.fills_main(access.weight) || was_ghost;
        self.hits.set(slot, 0);
        self.queues.set_weight(slot, access.weight);
        self.queues.push_head(if to_main { MAIN } else { SMALL }, slot);
    }

    #[inline(always)]
    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.filling = false;
        let (queue, oldest) = self.advance()?;
        debug_assert!(
            queue == SMALL
                || self.queues.size(SMALL) < self.small_target
                || self.queues.size(SMALL) == 0,
            "the main queue gives room only while the small one is below its target"
        );
        match &self.tags {
            None => self.becomes_ghost = queue == SMALL,
            Some(tags) if queue == SMALL => self.ghosts.push(tags[oldest.index()]),
            Some(_) => {}
        }
        self.queues.pop_tail(queue)
    }

    fn victim(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.advance().map(|(_, oldest)| oldest)
    }

    fn hottest_first(&self) -> impl AsRef<[usize]> {
        [MAIN, SMALL]
    }

    fn hits(&self) -> Option<&Counters> {
        Some(&self.hits)
    }

    fn resized(&mut self) {
        let slots = self.queues.slots();
        self.hits.reserve(slots);
        if let Some(tags) = &mut self.tags {
            tags.resize(slots, Tag::default());
        }
        self.ghosts.reserve((self.ghost_share * slots as f64) as usize);
        let capacity = self.queues.capacity() as f64;
        self.small_target = (capacity * self.small_share) as u64;
        self.ghost_limit = ((capacity * self.ghost_share) as u64).min(slots as u64);
    }

    fn moved(&mut self, from: Slot, to: Slot) {
        self.hits.set(to, self.hits.get(from));
        if let Some(tags) = &mut self.tags {
            tags[to.index()] = tags[from.index()];
        }
    }

    fn other_memory_bytes(&self) -> usize {
        self.hits.memory_bytes()
            + self.tags.as_ref().map_or(0, Vec::capacity) * size_of::<Tag>()
            + self.ghosts.memory_bytes()
    }
}

/// Quick demotion, lazy promotion (`qdlp`): one hit in the small FIFO moves an entry to the main
/// queue, a CLOCK. FIFO-like.
pub type Qdlp = QuickDemotion<FixedRules<1, false>>;

impl Policy for Qdlp {
    const INFO: PolicyInfo = PolicyInfo::new(
        "qdlp",
        "a small FIFO evicts entries that were not hit; the main queue is a CLOCK",
        "Yang et al., HotOS '23",
    )
    .with(&[SMALL_SHARE]);

    fn new(parameters: &Parameters) -> Self {
        let small_share = parameters.get(SMALL_SHARE.name);
        Self::with(FixedRules, small_share, 1.0 - small_share, TWO_BITS)
    }
}

/// QD-CLOCK (`qd-clock`), the default of the cache in memory: a small FIFO demotes entries that
/// were not hit before they reach the main queue, a CLOCK, which is filled first. FIFO-like.
///
/// It is QDLP with four changed settings, three of which quick_cache also has; counters go up to 7,
/// as a generalised CLOCK may (Smith, TODS '78). They suit stable loads as well as changing ones.
///
/// - Until the first eviction, new entries go to the main queue while it has room: entries that
///   fill an empty cache need not prove themselves in a queue through which all of them pass at
///   once.
/// - The small queue has 5 % of the cache, so popular entries have more of it.
/// - There are two fifths as many ghosts as entries: of the keys that return later, most are no
///   more popular than the entries they would replace.
/// - Counters of three bits distinguish popular entries that look equal with two bits.
///
/// On Zipf's law each of the last three means fewer misses than S3-FIFO has, and on traces the
/// first one does (docs/results/policies.md).
pub type QdClock = QuickDemotion<FixedRules<1, true>>;

impl Policy for QdClock {
    const INFO: PolicyInfo = PolicyInfo::new(
        "qd-clock",
        "QDLP that fills its main queue first, with fewer ghosts and longer counters",
        "Yang et al., HotOS '23; quick_cache",
    )
    .with(&[
        Parameter::share(SMALL_SHARE.name, 0.05, SMALL_SHARE.about),
        Parameter::share("ghosts", 0.4, "ghosts for each entry"),
        Parameter::count("bits", 3, 1..=7, "bits of the hit counter"),
    ]);

    fn new(parameters: &Parameters) -> Self {
        let hits_max = (1u8 << parameters.count("bits")) - 1;
        let small_share = parameters.get(SMALL_SHARE.name);
        Self::with(FixedRules, small_share, parameters.get("ghosts"), hits_max)
    }
}

#[cfg(test)]
mod tests {
    use super::{FixedRules, QdClock};
    use crate::{Access, Eviction, Slot};

    /// Runs an order of four entries, one of them in the small queue, and two ghosts. The expected
    /// result was worked out by hand.
    #[test]
    fn the_main_queue_fills_first_and_ghosts_come_back_to_it() {
        let mut order = QdClock::with(FixedRules, 0.25, 0.5, 7);
        order.reserve(4);
        for slot in 0..4 {
            order.insert(Slot(slot), &Access::new(slot.into())); // 0, 1 and 2 fill the main queue
        }
        assert_eq!(
            order.evict(None),
            Some(Slot(3)),
            "the small queue is at its size and was not hit"
        );
        order.insert(Slot(3), &Access::new(4));
        assert_eq!(order.evict(None), Some(Slot(3)));
        order.insert(Slot(3), &Access::new(3)); // a ghost: the small queue is empty now
        assert_eq!(order.evict(None), Some(Slot(0)), "the oldest of the main queue");
        order.insert(Slot(0), &Access::new(5)); // the small queue has a claim to this place
        order.access(Slot(1));
        assert_eq!(order.evict(None), Some(Slot(0)));
        order.insert(Slot(0), &Access::new(6));
        order.access(Slot(0)); // one hit is enough to stay
        assert_eq!(order.evict(None), Some(Slot(2)), "1 was hit and goes round");
    }

    #[test]
    fn an_order_that_stays_below_its_capacity_still_has_a_small_queue() {
        let mut order = QdClock::with(FixedRules, 0.25, 0.5, 7);
        order.reserve(8);
        (0..4).for_each(|slot| order.insert(Slot(slot), &Access::new(slot.into())));
        assert_eq!(order.evict(None), Some(Slot(0)), "others have the rest of the capacity");
        order.insert(Slot(0), &Access::new(4));
        assert_eq!(order.evict(None), Some(Slot(1)));
        order.insert(Slot(1), &Access::new(5));
        assert_eq!(
            order.evict(None),
            Some(Slot(0)),
            "two came to the small queue, which is its share"
        );
    }
}
