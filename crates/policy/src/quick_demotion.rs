//! Quick demotion: a small FIFO in front of a CLOCK, the order of QDLP, QD-CLOCK,
//! [S3-FIFO](crate::S3Fifo), [S4-FIFO](crate::S4Fifo) and [Clock2Q+](crate::Clock2QPlus).
//!
//! New entries go to the small queue. When an entry reaches its end, it moves on to the main queue,
//! a CLOCK with counters, if it was hit; otherwise it leaves and is remembered as a ghost. A ghost
//! that comes back enters the main queue at once (Yang et al., "FIFO can be Better than LRU: the
//! Power of Lazy Promotion and Quick Demotion", HotOS '23).
//!
//! With a third list, new entries pass the *window* before the small queue, a part of its share in
//! which hits do not count. A hit sets the mark wherever the entry is; an entry that leaves the
//! window loses its hits. So a hit compares no times, and remains one store to a byte.
//!
//! The queues share the cache by weight. The [ghosts](DemotionGhosts) of QDLP, QD-CLOCK and S3-FIFO
//! count as one each, in proportion to the slots reserved.
//!
//! Do not use QDLP or QD-CLOCK where entries come in bursts of two: S3-FIFO keeps those out.

use std::fmt;

use crate::ghost_table::GhostTable;
use crate::ghosts::Tag;
use crate::listed::Listed;
use crate::{Access, Counters, Lists, Marks, Parameter, Parameters, Policy, PolicyInfo, Slot};

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

    /// True if a small queue that has its share gives the next victim, however many of its entries
    /// move on before. Otherwise it does so only while it has its share.
    const STAYS_DUE: bool = false;

    /// Returns the target weight of the window, given that of the small queue and the window
    /// together.
    fn window(&self, _small_target: u64) -> u64 {
        0
    }
}

/// The memory of the keys that left the small queue.
pub trait DemotionGhosts: Clone + fmt::Debug {
    /// Kept with each entry, for the ghost that it may become.
    type Note: Copy + Default + fmt::Debug;

    /// True if a ghost needs no more than the tag of its key, which the owner may keep.
    const NEEDS_TAGS_ONLY: bool = false;

    /// Allocates for the ghosts of an order with this many slots and this capacity. The ghosts have
    /// `share` of either.
    fn resize(&mut self, share: f64, slots: usize, capacity: u64);

    /// Forgets the ghost of a key. Returns whether it earns the main queue, and the note for its
    /// entry.
    fn take(&mut self, tag: Tag) -> (bool, Self::Note);

    /// Adds the newest ghost.
    fn push(&mut self, tag: Tag, note: Self::Note, weight: impl FnOnce() -> u64);

    /// Returns the bytes of memory held.
    fn memory_bytes(&self) -> usize;
}

/// The latest departures, most of them: they take little memory.
#[derive(Debug, Clone, Default)]
pub struct LatestGhosts {
    table: GhostTable,
    limit: u64,
}

impl DemotionGhosts for LatestGhosts {
    type Note = ();

    const NEEDS_TAGS_ONLY: bool = true;

    fn resize(&mut self, share: f64, slots: usize, capacity: u64) {
        self.table.reserve((share * slots as f64) as usize);
        self.limit = ((capacity as f64 * share) as u64).min(slots as u64);
    }

    #[inline(always)]
    fn take(&mut self, tag: Tag) -> (bool, ()) {
        (self.table.take(tag, self.limit), ())
    }

    #[inline(always)]
    fn push(&mut self, tag: Tag, (): (), _: impl FnOnce() -> u64) {
        self.table.push(tag);
    }

    fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
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

/// A small FIFO queue, a main queue and ghosts. The two queues are the last of `N` lists; with
/// three, the first is the window.
#[derive(Debug, Clone)]
pub struct QuickDemotion<R, G: DemotionGhosts = LatestGhosts, const N: usize = 2> {
    rules: R,
    queues: Lists<N>,
    hits: Counters,
    small_share: f64,
    ghost_share: f64,
    /// Target weight of the small queue, its window included.
    small_target: u64,
    window_target: u64,
    ghosts: G,
    /// For each slot, the tag of its key and a note for the ghost that it may become.
    tags: Vec<(Tag, G::Note)>,
    /// True if there are no tags, as the owner has them.
    owner_has_tags: bool,
    /// True if the key evicted last becomes a ghost once the owner tells its tag.
    becomes_ghost: bool,
    /// True if new entries enter the main queue once the small one has its share, until the first
    /// eviction.
    overflows: bool,
    /// True if there was no eviction since the order was empty. The free room does not show that:
    /// where orders share a capacity, one may stay below its part.
    filling: bool,
    /// True if the small queue was due since the last eviction, under rules by which it then
    /// [gives](DemotionRules::STAYS_DUE) the next victim.
    small_was_due: bool,
}

impl<R: DemotionRules> QuickDemotion<R> {
    /// Creates an empty order without a window, whose small queue and ghosts have these shares of
    /// the cache, and whose counters end at `hits_max`.
    pub(crate) fn with(rules: R, small_share: f64, ghost_share: f64, hits_max: u8) -> Self {
        let names = ["small queue", "main queue"];
        Self::of(rules, LatestGhosts::default(), names, [small_share, ghost_share], hits_max)
    }
}

impl<R: DemotionRules, G: DemotionGhosts, const N: usize> QuickDemotion<R, G, N> {
    /// The list that new entries join: the window, or the small queue where there is none.
    const ENTRY: usize = 0;
    const SMALL: usize = N - 2;
    const MAIN: usize = N - 1;

    /// Creates an empty order. The shares of the cache are those of the small queue and of the
    /// ghosts; the counters end at `hits_max`.
    pub(crate) fn of(
        rules: R,
        ghosts: G,
        names: [&'static str; N],
        [small_share, ghost_share]: [f64; 2],
        hits_max: u8,
    ) -> Self {
        Self {
            rules,
            queues: Lists::named(names),
            hits: Counters::new(hits_max),
            small_share,
            ghost_share,
            small_target: 0,
            window_target: 0,
            ghosts,
            tags: Vec::new(),
            owner_has_tags: false,
            becomes_ghost: false,
            overflows: false,
            filling: true,
            small_was_due: false,
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
            match self.queues.tail(Self::SMALL) {
                Some(oldest) if self.small_size() > self.small_target => {
                    self.queues.move_to_head(Self::MAIN, oldest);
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
        self.tags[slot.index()].0
    }

    /// Returns the weight of a slot.
    pub(crate) fn weight(&self, slot: Slot) -> u32 {
        self.queues.weight(slot) as u32 // it came as one
    }

    /// Returns the weight of the small queue, its window included.
    #[inline(always)]
    fn small_size(&self) -> u64 {
        (0..Self::MAIN).map(|queue| self.queues.size(queue)).sum()
    }

    /// Returns whether the order is filling and a new entry belongs into the main queue.
    #[inline(always)] // with each insertion
    fn fills_main(&mut self, weight: u32) -> bool {
        self.filling |= self.queues.is_empty();
        if self.rules.fills_main_first() {
            self.filling
                && self.queues.size(Self::MAIN) + u64::from(weight) + self.small_target
                    <= self.queues.capacity()
        } else {
            self.filling && self.overflows && self.small_size() >= self.small_target
        }
    }

    /// Returns whether new entries pass a window, or one of another size has left entries there.
    #[inline(always)]
    fn has_window(&self) -> bool {
        Self::ENTRY != Self::SMALL
            && (self.window_target > 0 || self.queues.tail(Self::ENTRY).is_some())
    }

    /// Moves the oldest entries out of the window while it exceeds its size, and forgets their
    /// hits.
    #[inline(always)]
    fn close_window(&mut self) {
        while Self::ENTRY != Self::SMALL && self.queues.size(Self::ENTRY) > self.window_target {
            let Some(oldest) = self.queues.tail(Self::ENTRY) else { break };
            self.hits.set(oldest, 0);
            self.queues.move_to_head(Self::SMALL, oldest);
        }
    }

    /// Promotes or reinserts oldest entries with hits until the oldest entry of a queue is a
    /// victim. Returns that queue and entry.
    #[inline(always)]
    fn advance(&mut self) -> Option<(usize, Slot)> {
        let rounds_max = self.rules.rounds_max();
        loop {
            let (small, main) = (self.queues.tail(Self::SMALL), self.queues.tail(Self::MAIN));
            let has_its_share = main.is_none() || self.small_size() >= self.small_target;
            let small_is_due = has_its_share || R::STAYS_DUE && self.small_was_due;
            if R::STAYS_DUE {
                self.small_was_due = small_is_due;
            }
            match (small, main) {
                (Some(oldest), _) if small_is_due => {
                    if !self.hits.spend(oldest, self.rules.hits_to_stay(), |_| 0) {
                        return Some((Self::SMALL, oldest));
                    }
                    self.queues.move_to_head(Self::MAIN, oldest);
                }
                (_, oldest) => {
                    if Self::ENTRY != Self::SMALL
                        && small_is_due
                        && let Some(oldest) = self.queues.tail(Self::ENTRY)
                    {
                        return Some((Self::ENTRY, oldest));
                    }
                    let oldest = oldest?;
                    if !self.hits.spend(oldest, 1, |hits| hits.min(rounds_max) - 1) {
                        return Some((Self::MAIN, oldest));
                    }
                    self.queues.move_to_head(Self::MAIN, oldest);
                }
            }
        }
    }
}

impl<R: DemotionRules, G: DemotionGhosts, const N: usize> Listed for QuickDemotion<R, G, N> {
    type Marks = Counters;
    type Lists = Lists<N>;

    const BY_PLACE: bool = true;

    const WEIGHTED: bool = true;

    fn lists(&self) -> &Lists<N> {
        &self.queues
    }

    fn lists_mut(&mut self) -> &mut Lists<N> {
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
        if G::NEEDS_TAGS_ONLY {
            (self.tags, self.owner_has_tags) = (Vec::new(), true);
        }
    }

    #[inline(always)]
    fn departed(&mut self, tag: u32) {
        if std::mem::take(&mut self.becomes_ghost) {
            self.ghosts.push(Tag::from_bits(tag), G::Note::default(), || 1);
        }
    }

    #[inline(always)]
    fn insert(&mut self, slot: Slot, access: &Access) {
        let tag = Tag::of(access.hash);
        let (is_known, note) = self.ghosts.take(tag);
        if !self.owner_has_tags {
            self.tags[slot.index()] = (tag, note);
        }
        let to_main = self.fills_main(access.weight) || is_known;
        let entry = if self.has_window() { Self::ENTRY } else { Self::SMALL };
        self.hits.set(slot, 0);
        self.queues.set_weight(slot, access.weight);
        self.queues.push_head(if to_main { Self::MAIN } else { entry }, slot);
        self.close_window();
    }

    #[inline(always)]
    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.filling = false;
        let (queue, oldest) = self.advance()?;
        debug_assert!(
            queue != Self::MAIN || self.small_size() < self.small_target || self.small_size() == 0,
            "the main queue gives room only while the small one is below its target"
        );
        if R::STAYS_DUE {
            self.small_was_due = false;
        }
        if self.owner_has_tags {
            self.becomes_ghost = queue != Self::MAIN;
        } else if queue != Self::MAIN {
            let (tag, note) = self.tags[oldest.index()];
            self.ghosts.push(tag, note, || self.queues.weight(oldest));
        }
        self.queues.pop(queue, oldest);
        Some(oldest)
    }

    fn victim(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.advance().map(|(_, oldest)| oldest)
    }

    fn hottest_first(&self) -> impl AsRef<[usize]> {
        std::array::from_fn::<_, N, _>(|rank| Self::MAIN - rank)
    }

    fn hits(&self) -> Option<&Counters> {
        Some(&self.hits)
    }

    fn resized(&mut self) {
        let slots = self.queues.slots();
        self.hits.reserve(slots);
        if !self.owner_has_tags {
            self.tags.resize(slots, Default::default());
        }
        let capacity = self.queues.capacity();
        self.ghosts.resize(self.ghost_share, slots, capacity);
        self.small_target = (capacity as f64 * self.small_share) as u64;
        self.window_target = self.rules.window(self.small_target);
    }

    fn moved(&mut self, from: Slot, to: Slot) {
        self.hits.set(to, self.hits.get(from));
        if !self.owner_has_tags {
            self.tags[to.index()] = self.tags[from.index()];
        }
    }

    fn other_memory_bytes(&self) -> usize {
        self.hits.memory_bytes()
            + self.tags.capacity() * size_of::<(Tag, G::Note)>()
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
