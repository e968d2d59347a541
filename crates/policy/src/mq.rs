//! MQ: LRU queues for entries used more and more often, which entries fall out of with time.
//!
//! An entry used f times is in queue ⌊log2 f⌋, or the last one; a hit moves it to the hot end of
//! its queue. An entry not used for the *lifetime* falls one queue down. The victim is the coldest
//! entry of the lowest queue. The history Qout remembers how often the keys that left were used,
//! and a key that comes back goes on counting from there (Zhou, Philbin and Li, "The Multi-Queue
//! Replacement Algorithm for Second Level Buffer Caches", USENIX ATC '01, section 4 and figure 5).
//!
//! Time is counted in hits and insertions. The paper sets the lifetime anew from the distances
//! between uses that it observes; here it is a parameter, in requests per entry of the cache. Of
//! 0.5, 1, 2, 4, 8 and 16, two is best over traces and generated keys together; one is better on
//! the traces alone, four on the generated keys. Entries count as one each whatever their
//! weight; an owner that needs more room evicts again.
//!
//! MQ is for caches below other caches, whose hits are far apart. Do not use it with many cores, or
//! where memory is short: a hit moves an entry and may move seven others, and with four ghosts each
//! the order takes some 150 bytes an entry.

use crate::ghost_queues::GhostQueues;
use crate::ghosts::Tag;
use crate::listed::Listed;
use crate::{
    Access, AlwaysPromote, Lists, Parameter, Parameters, Policy, PolicyInfo, Ranked, Slot,
};

/// Largest number of queues, the paper's default.
const QUEUES_MAX: usize = 8;

/// Names of the queues in operation counts.
const NAMES: [&str; QUEUES_MAX] = ["Q0", "Q1", "Q2", "Q3", "Q4", "Q5", "Q6", "Q7"];

/// The only queue of ghosts.
const OUT: usize = 0;

/// MQ (`mq`): LRU queues by the logarithm of the uses, which entries fall out of with time.
/// LRU-like.
#[derive(Debug, Clone)]
pub struct Mq {
    queues: Lists<QUEUES_MAX>,
    top: usize,
    uses: Vec<u32>,
    /// Time after which each slot falls a queue down.
    expiries: Vec<u64>,
    tags: Vec<Tag>,
    /// The history, with the uses of each key.
    ghosts: GhostQueues<1, u32>,
    /// Number of slots that will be reserved, as far as known. Time goes by it from the beginning,
    /// also while an owner reserves slots by and by.
    expected: usize,
    /// Requests until now: hits and insertions.
    now: u64,
    lifetime: u64,
    lifetime_share: f64,
    out_share: f64,
}

impl Mq {
    #[inline]
    fn queue(&self, uses: u32) -> usize {
        (uses.ilog2() as usize).min(self.top)
    }

    /// Lets time pass by a request. The coldest entry of each queue whose time is over falls one
    /// queue down.
    #[inline]
    fn adjust(&mut self) {
        self.now += 1;
        for queue in 1..=self.top {
            let Some(coldest) = self.queues.tail(queue) else { continue };
            if self.expiries[coldest.index()] < self.now {
                self.queues.move_to_head(queue - 1, coldest);
                self.expiries[coldest.index()] = self.now + self.lifetime;
            }
        }
    }
}

impl Policy for Mq {
    const INFO: PolicyInfo = PolicyInfo::new(
        "mq",
        "LRU queues by the logarithm of the uses; unused entries fall from queue to queue",
        "Zhou et al., ATC '01",
    )
    .with(&[
        Parameter::count("queues", QUEUES_MAX as u64, 1..=QUEUES_MAX as u64, "number of queues"),
        Parameter {
            name: "lifetime",
            default: 2.0,
            min: 0.0,
            max: 1000.0,
            whole: false,
            names: &[],
            about: "requests, per entry of the cache, after which an unused entry falls",
        },
        Parameter {
            name: "out",
            default: 4.0,
            min: 0.0,
            max: 16.0,
            whole: false,
            names: &[],
            about: "ghosts per entry of the cache",
        },
    ]);

    fn new(parameters: &Parameters) -> Self {
        Self {
            queues: Lists::named(NAMES),
            top: parameters.count("queues") as usize - 1,
            uses: Vec::new(),
            expiries: Vec::new(),
            tags: Vec::new(),
            ghosts: GhostQueues::named(["Qout"]),
            expected: 0,
            now: 0,
            lifetime: 0,
            lifetime_share: parameters.get("lifetime"),
            out_share: parameters.get("out"),
        }
    }
}

impl Listed for Mq {
    type Marks = AlwaysPromote;
    type Lists = Lists<QUEUES_MAX>;

    fn lists(&self) -> &Lists<QUEUES_MAX> {
        &self.queues
    }

    fn lists_mut(&mut self) -> &mut Lists<QUEUES_MAX> {
        &mut self.queues
    }

    fn marks(&self) -> &AlwaysPromote {
        &AlwaysPromote
    }

    #[inline]
    fn promote(&mut self, slot: Slot) {
        if !self.queues.contains(slot) {
            return;
        }
        let uses = self.uses[slot.index()].saturating_add(1);
        self.uses[slot.index()] = uses;
        self.queues.move_to_head(self.queue(uses), slot);
        self.expiries[slot.index()] = self.now + self.lifetime;
        self.adjust();
    }

    #[inline]
    fn insert(&mut self, slot: Slot, access: &Access) {
        let tag = Tag::of(access.hash);
        let uses = self.ghosts.take_note(tag).map_or(1, |uses| uses.saturating_add(1));
        self.tags[slot.index()] = tag;
        self.uses[slot.index()] = uses;
        self.expiries[slot.index()] = self.now + self.lifetime;
        self.queues.push_head(self.queue(uses), slot);
        self.adjust();
    }

    #[inline]
    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        let slot = (0..=self.top).find_map(|queue| self.queues.pop_tail(queue))?;
        let (tag, uses) = (self.tags[slot.index()], self.uses[slot.index()]);
        self.ghosts.push_instead(OUT, tag, 1, uses);
        Some(slot)
    }

    fn victim(&mut self, _: Option<&Access>) -> Option<Slot> {
        (0..=self.top).find_map(|queue| self.queues.tail(queue))
    }

    fn hottest_first(&self) -> impl AsRef<[usize]> {
        [7, 6, 5, 4, 3, 2, 1, 0]
    }

    fn expect(&mut self, slots: usize) {
        self.expected = slots;
    }

    fn resized(&mut self) {
        let slots = self.queues.slots();
        self.uses.resize(slots, 0);
        self.expiries.resize(slots, 0);
        self.tags.resize(slots, Tag::default());
        self.ghosts.reserve((slots as f64 * self.out_share) as usize);
        self.lifetime = (slots.max(self.expected) as f64 * self.lifetime_share) as u64;
    }

    fn moved(&mut self, from: Slot, to: Slot) {
        self.uses[to.index()] = self.uses[from.index()];
        self.expiries[to.index()] = self.expiries[from.index()];
        self.tags[to.index()] = self.tags[from.index()];
    }

    fn other_memory_bytes(&self) -> usize {
        self.uses.capacity() * size_of::<u32>()
            + self.expiries.capacity() * size_of::<u64>()
            + self.tags.capacity() * size_of::<Tag>()
            + self.ghosts.memory_bytes()
    }
}

impl Ranked for Mq {
    fn coldest_first(&self) -> impl Iterator<Item = Slot> + '_ {
        (0..=self.top).flat_map(|queue| self.queues.coldest_first(queue))
    }
}

#[cfg(test)]
mod tests {
    use super::Mq;
    use crate::registry::Choice;
    use crate::{Access, Eviction, Policy, Slot};

    fn order(choice: &str) -> Mq {
        let choice: Choice = choice.parse().expect("the choice is valid");
        let mut order = Mq::new(choice.parameters());
        order.reserve(4);
        order
    }

    fn insert(order: &mut Mq, slot: u32, key: char) {
        order.insert(Slot(slot), &Access::new(key as u64));
    }

    fn drained(mut order: Mq) -> Vec<Slot> {
        std::iter::from_fn(|| order.evict(None)).collect()
    }

    #[test]
    fn the_lifetime_is_that_of_all_expected_slots_from_the_beginning() {
        let leave = |grows: bool| {
            let mut order = Mq::default();
            order.expect(8);
            order.reserve(if grows { 2 } else { 8 });
            insert(&mut order, 0, 'a');
            order.access(Slot(0)); // Q1 until 17
            insert(&mut order, 1, 'b');
            order.access(Slot(1));
            (0..8).for_each(|_| order.access(Slot(1)));
            order.reserve(8);
            insert(&mut order, 2, 'c');
            drained(order)
        };
        assert_eq!(leave(true), leave(false));
        assert_eq!(leave(true), [2, 0, 1].map(Slot), "a has not fallen below c");
    }

    /// Worked out by hand: the lifetime is two requests, and four keys are remembered.
    #[test]
    fn an_entry_falls_when_its_time_is_over_and_a_key_that_returns_goes_on_counting() {
        let mut order = order("mq:queues=3:lifetime=0.5:out=1");
        insert(&mut order, 0, 'a');
        insert(&mut order, 1, 'b');
        order.access(Slot(0)); // at 2: a enters Q1, until 4
        insert(&mut order, 2, 'c');
        insert(&mut order, 3, 'd'); // at 5: a falls to the hot end of Q0
        assert_eq!(order.evict(None), Some(Slot(1)), "b is the coldest of Q0");
        insert(&mut order, 1, 'e');
        assert_eq!(order.evict(None), Some(Slot(2)));
        insert(&mut order, 2, 'b'); // its second use: Q1
        assert_eq!(drained(order), [3, 0, 1, 2].map(Slot), "d, a, e, b");
    }

    #[test]
    fn a_queue_holds_entries_used_equally_often_to_a_factor_of_two() {
        let mut order = order("mq:queues=3:lifetime=100");
        "abcd".chars().zip(0..).for_each(|(key, slot)| insert(&mut order, slot, key));
        for slot in [0, 1, 2, 1, 2, 1] {
            order.access(Slot(slot)); // uses: 2, 4, 3, 1
        }
        assert_eq!(drained(order), [3, 0, 2, 1].map(Slot));
    }

    #[test]
    fn the_history_forgets_the_oldest_key() {
        let mut order = order("mq:lifetime=100:out=0.25"); // one key
        insert(&mut order, 0, 'a');
        insert(&mut order, 1, 'b');
        assert_eq!(order.evict(None), Some(Slot(0)));
        assert_eq!(order.evict(None), Some(Slot(1)));
        insert(&mut order, 0, 'b'); // remembered: Q1
        insert(&mut order, 1, 'a'); // forgotten: Q0
        assert_eq!(drained(order), [1, 0].map(Slot));
    }

    #[test]
    fn an_entry_falls_one_queue_at_a_time() {
        let mut order = order("mq:queues=3:lifetime=0.25"); // one request
        insert(&mut order, 0, 'a');
        (0..3).for_each(|_| order.access(Slot(0))); // at 4: Q2 until 4
        insert(&mut order, 1, 'b'); // at 5: a falls to Q1 until 6
        order.access(Slot(1)); // b to Q1 until 6, above a; at 6 none falls
        order.access(Slot(1)); // at 7: a falls to Q0
        insert(&mut order, 2, 'c'); // above a
        assert_eq!(drained(order), [0, 2, 1].map(Slot));
    }
}
