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

use crate::ghosts::Ghosts;
use crate::ghosts::Tag;
use crate::lfu::FrequencyList;
use crate::sketch::Random;
use crate::{
    Access, AlwaysPromote, Cursor, Eviction, Lists, Parameter, Parameters, Policy, PolicyInfo, Slot,
};

const RECENCY: usize = 0;

const LRU: usize = 0;
const LFU: usize = 1;

/// Regret of an eviction as many requests ago as the cache has entries (the paper's d is its N-th
/// root).
const DISCOUNT: f64 = 0.005;
/// Seed of the random draws; any number works.
const SEED: u64 = 0xf10e;

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
    frequency: FrequencyList,
    ghosts: Ghosts<2, Left>,
    tags: Vec<Tag>,
    /// Weight of the LRU expert; the weights of both experts add up to 1.
    trust_in_lru: f64,
    learning_rate: f64,
    random: Random,
    now: u64,
    /// Entries in the order at the last eviction, taken as the size of the full cache.
    entries: usize,
    /// Key for which room is being made, and how often it was used.
    coming: Option<(Tag, u16)>,
}

impl LeCaR {
    /// Learns from a miss, once for the eviction and the insertion. Returns how often the key was
    /// used before.
    fn regret(&mut self, tag: Tag) -> u16 {
        if let Some((known, used)) = self.coming
            && known == tag
        {
            return used;
        }
        self.now += 1;
        let Some((expert, left)) = self.ghosts.take_note(tag) else { return 0 };
        let age = (self.now - left.at) as f64 / self.entries as f64;
        let factor = (-self.learning_rate * DISCOUNT.powf(age)).exp();
        let (lru, lfu) = (self.trust_in_lru, 1.0 - self.trust_in_lru);
        let (lru, lfu) = if expert == LRU { (lru * factor, lfu) } else { (lru, lfu * factor) };
        self.trust_in_lru = (lru / (lru + lfu)).clamp(0.01, 0.99);
        left.frequency
    }
}

impl Policy for LeCaR {
    const INFO: PolicyInfo = PolicyInfo::new(
        "lecar",
        "LRU or LFU decides, drawn by weights learned from regret",
        "Vietri et al., HotStorage '18",
    )
    .with(&[Parameter::share("rate", 0.45, "learning rate")]);

    fn new(parameters: &Parameters) -> Self {
        Self {
            recency: Lists::named(["recency"]),
            frequency: FrequencyList::default(),
            ghosts: Ghosts::named(["ghosts of LRU", "ghosts of LFU"]),
            tags: Vec::new(),
            trust_in_lru: 0.5,
            learning_rate: parameters.get("rate"),
            random: Random::new(SEED),
            now: 0,
            entries: 0,
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
        self.frequency.reserve(slots);
        self.ghosts.reserve(slots);
        self.tags.resize(self.tags.len().max(slots), Tag::default());
    }

    fn set_capacity(&mut self, _: u64) {}

    fn len(&self) -> usize {
        self.recency.len()
    }

    fn promote(&mut self, slot: Slot) {
        self.now += 1;
        self.recency.move_to_head(RECENCY, slot);
        self.frequency.hit(slot);
    }

    fn insert(&mut self, slot: Slot, access: &Access) {
        let tag = Tag::of(access.hash);
        let used_before = self.regret(tag);
        self.coming = None;
        self.tags[slot.index()] = tag;
        self.recency.push_head(RECENCY, slot);
        self.frequency.insert(slot, used_before + 1);
    }

    fn evict(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        self.coming =
            incoming.map(|access| Tag::of(access.hash)).map(|tag| (tag, self.regret(tag)));
        let (oldest, rarest) = (self.recency.tail(RECENCY)?, self.frequency.coldest()?);
        let expert = if self.random.share() < self.trust_in_lru { LRU } else { LFU };
        let victim = if expert == LRU { oldest } else { rarest };
        self.entries = self.recency.len();
        if oldest != rarest {
            let left = Left { at: self.now, frequency: self.frequency.frequency(victim) };
            self.ghosts.push(expert, self.tags[victim.index()], left);
            while self.ghosts.len(expert) > (self.entries / 2).max(1) {
                self.ghosts.pop_oldest(expert);
            }
        }
        self.remove(victim);
        Some(victim)
    }

    fn remove(&mut self, slot: Slot) {
        self.recency.delink(slot);
        self.frequency.remove(slot);
    }

    /// Ignores the weight: each entry counts as one.
    fn reweigh(&mut self, _: Slot, _: u32) {}

    fn transfer(&mut self, from: Slot, to: Slot) {
        self.recency.transfer(from, to);
        self.frequency.transfer(from, to);
        self.tags[to.index()] = self.tags[from.index()];
    }

    /// Ranks by the expert with the higher weight.
    fn rank(&self, from: Cursor, out: &mut Vec<Slot>) -> Cursor {
        if self.trust_in_lru >= 0.5 {
            self.recency.rank(&[RECENCY], from, out)
        } else {
            self.frequency.rank(from, out)
        }
    }

    fn freeze(&mut self, slots: &[Slot]) {
        self.recency.freeze(slots);
        self.frequency.freeze(slots);
    }

    fn thaw(&mut self) {
        self.recency.thaw();
        self.frequency.thaw();
    }

    fn memory_bytes(&self) -> usize {
        self.recency.memory_bytes()
            + self.frequency.memory_bytes()
            + self.ghosts.memory_bytes()
            + self.tags.capacity() * size_of::<Tag>()
    }
}
