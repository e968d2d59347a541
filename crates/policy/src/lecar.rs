//! LeCaR: evicts by LRU or LFU, drawn at random with weights that regret adjusts.
//!
//! Each eviction follows one of two experts, drawn by their weights. The evicted key is remembered
//! in that expert's ghost list. A miss found there means that the expert was wrong, the more so the
//! more recent the eviction, and its weight falls (Vietri et al., "Driving Cache Replacement with
//! ML-based LeCaR", HotStorage '18).
//!
//! Constants and the length of the histories, half the number of entries each, are those of the
//! authors' code. Among equally rare entries the least recently used one leaves, where their code
//! takes the lowest block number.
//!
//! Entries count as one each whatever their weight: the experts order single entries, and an owner
//! that needs more room evicts again.
//!
//! Do not use LeCaR with many cores: each hit moves its entry in two lists.

use crate::ghosts::{Ghosts, Tag};
use crate::lfu::FrequencyList;
use crate::sketch::Random;
use crate::{
    Access, AlwaysPromote, Cursor, Eviction, Lists, Parameter, Parameters, Policy, PolicyInfo, Slot,
};

const RECENCY: usize = 0;

/// Regret of an eviction as many requests ago as the cache has entries (the paper's d is its N-th
/// root).
const DISCOUNT: f64 = 0.005;
/// Seed of the random draws; any number works.
const SEED: u64 = 0xf10e;

/// The expert that evicts by recency.
pub(crate) const LRU: usize = 0;
/// The expert that evicts by frequency.
pub(crate) const LFU: usize = 1;

/// Two experts, by recency and by frequency, one of which is drawn for each eviction. Each has a
/// ghost list of the keys that it evicted, with a note `N`, and a weight, which regret lowers.
#[derive(Debug, Clone)]
pub(crate) struct Experts<N> {
    pub(crate) frequency: FrequencyList,
    pub(crate) ghosts: Ghosts<2, N>,
    pub(crate) tags: Vec<Tag>,
    /// Weight of the LRU expert; the weights of both experts add up to 1.
    trust_in_lru: f64,
    pub(crate) random: Random,
    /// Entries in the order at the last eviction, taken as the size of the full cache.
    pub(crate) entries: usize,
}

impl<N: Copy + Default> Experts<N> {
    pub(crate) fn new() -> Self {
        Self {
            frequency: FrequencyList::default(),
            ghosts: Ghosts::named(["ghosts of LRU", "ghosts of LFU"]),
            tags: Vec::new(),
            trust_in_lru: 0.5,
            random: Random::new(SEED),
            entries: 0,
        }
    }

    pub(crate) fn reserve(&mut self, slots: usize) {
        self.frequency.reserve(slots);
        self.ghosts.reserve(slots);
        self.tags.resize(self.tags.len().max(slots), Tag::default());
    }

    /// Draws an expert by their weights.
    pub(crate) fn draw(&mut self) -> usize {
        if self.random.share() < self.trust_in_lru { LRU } else { LFU }
    }

    /// Adds an evicted slot to the ghosts of its expert, half as many as there are `entries`. Calls
    /// `forgotten` with the note of each ghost that makes room.
    pub(crate) fn remember(
        &mut self,
        expert: usize,
        slot: Slot,
        note: N,
        mut forgotten: impl FnMut(N),
    ) {
        self.ghosts.push(expert, self.tags[slot.index()], note);
        let most = (self.entries / 2).max(1);
        while self.ghosts.len(expert) > most {
            self.ghosts.pop_oldest(expert).into_iter().for_each(&mut forgotten);
        }
    }

    /// Multiplies the weight of an expert that was wrong by `e^-rate`.
    pub(crate) fn regret(&mut self, expert: usize, rate: f64) {
        let factor = (-rate).exp();
        let (lru, lfu) = (self.trust_in_lru, 1.0 - self.trust_in_lru);
        let (lru, lfu) = if expert == LRU { (lru * factor, lfu) } else { (lru, lfu * factor) };
        self.trust_in_lru = (lru / (lru + lfu)).clamp(0.01, 0.99);
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.frequency.memory_bytes()
            + self.ghosts.memory_bytes()
            + self.tags.capacity() * size_of::<Tag>()
    }
}

/// A ghost's time of eviction and number of uses.
#[derive(Debug, Clone, Copy, Default)]
struct Left {
    at: u64,
    frequency: u16,
}

/// LeCaR (`lecar`): evicts by LRU or LFU, drawn by weights that are learned from regret. LRU-like.
#[derive(Debug, Clone)]
pub struct LeCaR {
    recency: Lists<1>,
    experts: Experts<Left>,
    learning_rate: f64,
    now: u64,
    /// Key for which room is being made, and how often it was used.
    coming: Option<(Tag, u16)>,
}

impl LeCaR {
    /// Adjusts the weights after a miss, once for the eviction and the insertion together. Returns
    /// the number of earlier uses of the key.
    fn regret(&mut self, tag: Tag) -> u16 {
        if let Some((known, used)) = self.coming
            && known == tag
        {
            return used;
        }
        self.now += 1;
        let Some((expert, left)) = self.experts.ghosts.take_note(tag) else { return 0 };
        let age = (self.now - left.at) as f64 / self.experts.entries as f64;
        self.experts.regret(expert, self.learning_rate * DISCOUNT.powf(age));
        left.frequency
    }
}

impl Policy for LeCaR {
    const INFO: PolicyInfo = PolicyInfo::new(
        "lecar",
        "LRU or LFU picks the victim, drawn by weights learned from regret",
        "Vietri et al., HotStorage '18",
    )
    .with(&[Parameter::share("rate", 0.45, "learning rate")]);

    fn new(parameters: &Parameters) -> Self {
        Self {
            recency: Lists::named(["recency"]),
            experts: Experts::new(),
            learning_rate: parameters.get("rate"),
            now: 0,
            coming: None,
        }
    }
}

impl Eviction for LeCaR {
    type Marks = AlwaysPromote;

    fn marks(&self) -> &AlwaysPromote {
        &AlwaysPromote
    }

    fn reserve(&mut self, slots: usize) {
        self.recency.reserve(slots);
        self.experts.reserve(slots);
    }

    fn set_capacity(&mut self, _: u64) {}

    fn len(&self) -> usize {
        self.recency.len()
    }

    fn promote(&mut self, slot: Slot) {
        self.now += 1;
        self.recency.move_to_head(RECENCY, slot);
        self.experts.frequency.hit(slot);
    }

    fn insert(&mut self, slot: Slot, access: &Access) {
        let tag = Tag::of(access.hash);
        let used_before = self.regret(tag);
        self.coming = None;
        self.recency.push_head(RECENCY, slot);
        self.experts.tags[slot.index()] = tag;
        self.experts.frequency.insert(slot, used_before + 1);
    }

    fn evict(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        self.coming =
            incoming.map(|access| Tag::of(access.hash)).map(|tag| (tag, self.regret(tag)));
        let oldest = self.recency.tail(RECENCY)?;
        let rarest = self.experts.frequency.coldest()?;
        let expert = self.experts.draw();
        let victim = if expert == LRU { oldest } else { rarest };
        self.experts.entries = self.recency.len();
        if oldest != rarest {
            let frequency = self.experts.frequency.frequency(victim);
            self.experts.remember(expert, victim, Left { at: self.now, frequency }, |_| ());
        }
        self.remove(victim);
        Some(victim)
    }

    fn remove(&mut self, slot: Slot) {
        self.recency.delink(slot);
        self.experts.frequency.remove(slot);
    }

    /// Ignores the weight: each entry counts as one.
    fn reweigh(&mut self, _: Slot, _: u32) {}

    fn transfer(&mut self, from: Slot, to: Slot) {
        self.recency.transfer(from, to);
        self.experts.frequency.transfer(from, to);
        self.experts.tags[to.index()] = self.experts.tags[from.index()];
    }

    /// Ranks by the expert with the higher weight.
    fn rank(&self, from: Cursor, out: &mut Vec<Slot>) -> Cursor {
        if self.experts.trust_in_lru >= 0.5 {
            self.recency.rank(&[RECENCY], from, out)
        } else {
            self.experts.frequency.rank(from, out)
        }
    }

    fn freeze(&mut self, slots: &[Slot]) {
        self.recency.freeze(slots);
        self.experts.frequency.freeze(slots);
    }

    fn thaw(&mut self) {
        self.recency.thaw();
        self.experts.frequency.thaw();
    }

    fn memory_bytes(&self) -> usize {
        self.recency.memory_bytes() + self.experts.memory_bytes()
    }
}
