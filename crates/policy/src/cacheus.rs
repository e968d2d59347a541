//! CACHEUS: LeCaR with two experts that complement each other, and a learning rate that adjusts
//! itself.
//!
//! The expert SR-LRU resists scans. New entries go to a queue Q, from which it evicts first, and
//! entries that were hit to an LRU list S. The limit between them follows two mistakes: hits on
//! entries demoted from S, and returns of keys that left as new. The expert CR-LFU evicts the
//! *newest* of the least frequent entries, which keeps a part of a loop cached. Regret sets the
//! experts' weights, and hill climbing on the hit ratio sets the learning rate (Rodriguez et al.,
//! "Learning Cache Replacement with CACHEUS", FAST '21).
//!
//! Constants, the first learning rate, its random jumps and the length of the histories, half the
//! number of entries each, are those of the authors' code. Differences from it: S is full at its
//! limit, not one below; an entry that was hit is no longer new; a key that returns has been used
//! once more than when it left; the rate starts to climb when the cache is full.
//!
//! S and Q share the cache by weight; frequencies and histories count entries.
//!
//! Do not use CACHEUS with many cores: each hit moves its entry in two lists.

use crate::ghosts::Tag;
use crate::lecar::{Experts, LRU};
use crate::sketch::Random;
use crate::{Access, AlwaysPromote, Cursor, Eviction, Lists, Parameters, Policy, PolicyInfo, Slot};

/// The queue of new and demoted entries, from which SR-LRU evicts.
const Q: usize = 0;
/// The list of entries that were hit.
const S: usize = 1;

/// Share of the cache that Q has at the start (the authors' code).
const Q_SHARE: f64 = 0.01;
/// Minimum learning rate (the authors' code); `RATE_MAX` is the greatest.
const RATE_MIN: f64 = 0.001;
const RATE_MAX: f64 = 1.0;
/// Number of steps without a better hit ratio after which the learning rate is reset.
const PATIENCE: u32 = 10;

/// Returns the ratio `of / to`, rounded to the nearest whole number.
fn rounded(of: u64, to: u64) -> u64 {
    (2 * of + to) / (2 * to)
}

/// The origin of an entry in Q, or a flag that it was hit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Origin {
    /// The entry was hit, or a ghost remembered its key.
    #[default]
    Known,
    /// The entry was inserted and has not been hit.
    New,
    /// The entry was demoted from S.
    Demoted,
}

#[derive(Debug, Clone, Copy, Default)]
struct Left {
    frequency: u16,
    was_new: bool,
}

/// Learning rate, by which regret changes the weights of the experts. Hill climbing adjusts it.
#[derive(Debug, Clone, Default)]
struct Rate {
    now: f64,
    before: f64,
    start: f64,
    hits: u64,
    requests: u64,
    hit_ratio: f64,
    disappointments: u32,
}

impl Rate {
    /// Counts a request. Every `window` requests, one for each entry of a full cache, the rate
    /// takes a step of its climb.
    fn count(&mut self, hit: bool, window: usize, random: &mut Random) {
        if window == 0 {
            return;
        }
        self.hits += u64::from(hit);
        self.requests += 1;
        if self.requests < window as u64 {
            return;
        }
        if self.start == 0.0 {
            self.start = (2.0 * std::f64::consts::LN_2 / self.requests as f64).sqrt();
            self.now = self.start;
        }
        let hit_ratio = self.hits as f64 / self.requests as f64;
        let (gain, step) = (hit_ratio - self.hit_ratio, self.now - self.before);
        self.before = self.now;
        if gain * step != 0.0 {
            let uphill = (gain * step).signum();
            self.now = (self.now + uphill * (self.now * step).abs()).clamp(RATE_MIN, RATE_MAX);
            self.disappointments = 0;
        } else if gain < 0.0 || hit_ratio == 0.0 {
            self.disappointments += 1;
            if self.disappointments >= PATIENCE {
                (self.now, self.disappointments) = (self.start, 0);
            } else if gain < 0.0 {
                self.jump(random);
            }
        }
        self.hit_ratio = hit_ratio;
        (self.hits, self.requests) = (0, 0);
    }

    /// Changes the rate by a step in a random direction, or away from a bound.
    fn jump(&mut self, random: &mut Random) {
        self.now = if self.now >= RATE_MAX {
            0.9
        } else if self.now <= RATE_MIN {
            0.005
        } else if random.share() < 0.5 {
            (self.now * 1.25).min(RATE_MAX)
        } else {
            (self.now * 0.75).max(RATE_MIN)
        };
    }
}

/// CACHEUS (`cacheus`): evicts by a scan-resistant LRU or a churn-resistant LFU, chosen by the
/// regret of each. LRU-like.
#[derive(Debug, Clone)]
pub struct Cacheus {
    recency: Lists<2>,
    experts: Experts<Left>,
    origins: Vec<Origin>,
    s_limit: u64,
    /// Entries in Q that were demoted from S.
    demoted: u64,
    /// Ghosts of entries that were evicted without a hit.
    new_ghosts: u64,
    rate: Rate,
    /// Key for which room is being made, and the uses that its ghost remembers, if any.
    coming: Option<(Tag, Option<u16>)>,
}

impl Cacheus {
    fn resize(&mut self) {
        self.s_limit = (self.recency.capacity() as f64 * (1.0 - Q_SHARE)) as u64;
    }

    fn set_origin(&mut self, slot: Slot, origin: Origin) {
        self.demoted += u64::from(origin == Origin::Demoted);
        let before = std::mem::replace(&mut self.origins[slot.index()], origin);
        self.demoted = self.demoted.saturating_sub(u64::from(before == Origin::Demoted));
    }

    /// Moves the coldest entries of S to Q until S keeps to its limit.
    fn limit_s(&mut self) {
        while self.recency.size(S) > self.s_limit
            && let Some(coldest) = self.recency.tail(S)
        {
            self.recency.move_to_head(Q, coldest);
            self.set_origin(coldest, Origin::Demoted);
        }
    }

    /// Moves the limit between S and Q: S grows after a hit on a demoted entry, Q after the return
    /// of a key that left as new.
    fn adjust_sizes(&mut self, s_too_small: bool) {
        let (demoted, new) = (self.demoted.max(1), self.new_ghosts.max(1));
        let most = self.recency.capacity().saturating_sub(1);
        if s_too_small {
            self.s_limit = (self.s_limit + rounded(new, demoted).max(1)).min(most);
        } else {
            self.s_limit = self.s_limit.saturating_sub(rounded(demoted, new).max(1)).max(1);
        }
    }

    /// Adjusts the weights after a miss, once for the eviction and the insertion together. Returns
    /// the number of uses of the key if a ghost remembers it.
    fn recall(&mut self, tag: Tag) -> Option<u16> {
        if let Some((coming, known)) = self.coming
            && coming == tag
        {
            return known;
        }
        let (expert, left) = self.experts.ghosts.take_note(tag)?;
        if left.was_new {
            self.new_ghosts = self.new_ghosts.saturating_sub(1);
            self.adjust_sizes(false);
        }
        self.experts.regret(expert, self.rate.now);
        Some(left.frequency)
    }
}

impl Policy for Cacheus {
    const INFO: PolicyInfo = PolicyInfo::new(
        "cacheus",
        "scan-resistant LRU or churn-resistant LFU picks the victim, by self-tuned regret",
        "Rodriguez et al., FAST '21",
    );

    fn new(_: &Parameters) -> Self {
        Self {
            recency: Lists::named(["Q", "S"]),
            experts: Experts::new(),
            origins: Vec::new(),
            s_limit: 0,
            demoted: 0,
            new_ghosts: 0,
            rate: Rate::default(),
            coming: None,
        }
    }
}

impl Eviction for Cacheus {
    type Marks = AlwaysPromote;

    fn marks(&self) -> &AlwaysPromote {
        &AlwaysPromote
    }

    fn reserve(&mut self, slots: usize) {
        if slots > self.origins.len() {
            self.recency.reserve(slots);
            self.experts.reserve(slots);
            self.origins.resize(slots, Origin::default());
            self.resize();
        }
    }

    fn set_capacity(&mut self, weight: u64) {
        self.recency.set_capacity(weight);
        self.resize();
    }

    fn len(&self) -> usize {
        self.recency.len()
    }

    fn promote(&mut self, slot: Slot) {
        if !self.recency.contains(slot) {
            return;
        }
        self.rate.count(true, self.experts.entries, &mut self.experts.random);
        if self.origins[slot.index()] == Origin::Demoted {
            self.adjust_sizes(true);
        }
        self.set_origin(slot, Origin::Known);
        self.recency.move_to_head(S, slot);
        self.experts.frequency.hit(slot);
        self.limit_s();
    }

    fn insert(&mut self, slot: Slot, access: &Access) {
        self.rate.count(false, self.experts.entries, &mut self.experts.random);
        let tag = Tag::of(access.hash);
        let known = self.recall(tag);
        self.coming = None;
        let frequency = known.map_or(1, |used| used + 1);
        let warming_up = self.recency.size(Q) == 0 && self.recency.size(S) < self.s_limit;
        let (list, origin) =
            if known.is_some() || warming_up { (S, Origin::Known) } else { (Q, Origin::New) };
        self.recency.set_weight(slot, access.weight);
        self.recency.push_head(list, slot);
        self.experts.tags[slot.index()] = tag;
        self.experts.frequency.insert(slot, frequency);
        self.set_origin(slot, origin);
        self.limit_s();
    }

    fn evict(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        self.coming =
            incoming.map(|access| Tag::of(access.hash)).map(|tag| (tag, self.recall(tag)));
        let oldest = self.recency.tail(Q).or_else(|| self.recency.tail(S))?;
        let rarest = self.experts.frequency.newest_of_rarest()?;
        let expert = self.experts.draw();
        let victim = if expert == LRU { oldest } else { rarest };
        self.experts.entries = self.recency.len();
        if oldest != rarest {
            let was_new = expert == LRU && self.origins[victim.index()] == Origin::New;
            self.new_ghosts += u64::from(was_new);
            let left = Left { frequency: self.experts.frequency.frequency(victim), was_new };
            self.experts.remember(expert, victim, left, |left| {
                self.new_ghosts = self.new_ghosts.saturating_sub(u64::from(left.was_new));
            });
        }
        self.remove(victim);
        Some(victim)
    }

    fn remove(&mut self, slot: Slot) {
        self.set_origin(slot, Origin::Known);
        self.recency.delink(slot);
        self.experts.frequency.remove(slot);
    }

    fn reweigh(&mut self, slot: Slot, weight: u32) {
        if self.recency.reweigh(slot, weight) {
            self.limit_s();
        }
    }

    fn transfer(&mut self, from: Slot, to: Slot) {
        if self.recency.transfer(from, to) {
            self.experts.frequency.transfer(from, to);
            self.experts.tags[to.index()] = self.experts.tags[from.index()];
            let origin = self.origins[from.index()];
            self.set_origin(from, Origin::Known);
            self.set_origin(to, origin);
        }
    }

    fn rank(&self, from: Cursor, out: &mut Vec<Slot>) -> Cursor {
        self.recency.rank(&[S, Q], from, out)
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
        self.recency.memory_bytes()
            + self.experts.memory_bytes()
            + self.origins.capacity() * size_of::<Origin>()
    }
}
