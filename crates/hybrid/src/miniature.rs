//! [`Trial`]: measures the harm of an admission rule, and steps back from it.
//!
//! A real cache shows only the effect of the rule that it follows: keys under another rule would
//! profit from the room that this one leaves. So each rule has a small cache of its own, a
//! [`LogModel`] without data that sees a sample of the hashes (Waldspurger et al., "Cache Modeling
//! and Optimization using Miniature Simulations", ATC '17). FussyCache's modes in `floe_policy` are
//! compared likewise. At each check the rule that writes least is chosen among those whose hits are
//! nearly the best. All rules admit everything until flash is full, or their first comparison would
//! be one of empty caches.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use floe_policy::mix;

use crate::rules::{Candidate, Rule};

/// Share of the evicted bytes that may be appended again.
const KEEP_SHARE: f64 = 0.25;
/// Sampled objects of a flash, as a divisor of its objects, and the limits of their number.
const OBJECTS_PER_SAMPLE: u64 = 128;
const LEAST_SAMPLES: usize = 1024;
const MOST_SAMPLES: usize = 2048;
/// Sampled lookups between two checks, as a divisor of the sampled objects.
const CHECKS_PER_TURN: usize = 8;
/// Checks after which a hit has lost 63 % of its weight.
const MEMORY_CHECKS: f64 = 24.0;
/// Loss of hits, as a share of the best rule's, at which a rule is left.
const HARM: f64 = 0.01;
/// Loss of hits up to which a rule that writes less is chosen.
const HARMLESS: f64 = 0.006;

/// Hashes tags, which are mixed once more for their upper bits.
#[derive(Debug, Default)]
pub(crate) struct TagHasher(u64);

impl Hasher for TagHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = mix(self.0 ^ u64::from(*byte)));
    }

    fn write_u32(&mut self, tag: u32) {
        self.0 = mix(u64::from(tag));
    }
}

#[derive(Debug, Clone, Copy)]
struct Known {
    /// Number of the record, modulo 2^32.
    number: u32,
    uses: u8,
}

/// A model of the log on flash: which objects it has, by 32 bits of their hashes.
///
/// Records leave in the order of their arrival, as with the real log. Those used since are appended
/// again, up to a quarter of the bytes that leave.
#[derive(Debug, Default)]
pub struct LogModel {
    capacity_bytes: u64,
    used_bytes: u64,
    /// Tags and bytes of the records, oldest first, and the number of the oldest.
    records: VecDeque<(u32, u32)>,
    oldest: u32,
    known: HashMap<u32, Known, BuildHasherDefault<TagHasher>>,
    /// Bytes that may be kept.
    may_keep: f64,
    written_bytes: u64,
}

impl LogModel {
    /// Creates an empty log.
    pub fn new(capacity_bytes: u64) -> Self {
        Self { capacity_bytes, ..Self::default() }
    }

    /// Returns whether the log has an object, and how often it was used before. Counts a use.
    pub fn look_up(&mut self, tag: u32) -> Option<u8> {
        let known = self.known.get_mut(&tag)?;
        let before = known.uses;
        known.uses = (before + 1).min(3);
        Some(before)
    }

    /// Returns whether the log has an object, without counting a use.
    pub fn contains(&self, tag: u32) -> bool {
        self.known.contains_key(&tag)
    }

    /// Removes an object. Its bytes are free when its record would leave.
    pub fn remove(&mut self, tag: u32) -> bool {
        self.known.remove(&tag).is_some()
    }

    /// Appends an object. Asks `keeps` before a used one is appended again, with its tag, bytes and
    /// uses, and tells `leaves` the tags of the objects that leave.
    pub fn insert(
        &mut self,
        tag: u32,
        bytes: u32,
        mut keeps: impl FnMut(u32, u32, u8) -> bool,
        mut leaves: impl FnMut(u32),
    ) {
        self.push(tag, bytes, 0);
        while self.used_bytes > self.capacity_bytes {
            let Some((tag, bytes)) = self.records.pop_front() else { return };
            let number = self.oldest;
            self.oldest = number.wrapping_add(1);
            self.used_bytes -= u64::from(bytes);
            let unit = f64::from(bytes);
            // Not more than a sixteenth of the log at once, as by its segments.
            let most = (self.capacity_bytes / 16) as f64;
            self.may_keep = (self.may_keep + KEEP_SHARE * unit).min(most);
            let Some(known) = self.known.get(&tag).filter(|known| known.number == number) else {
                continue; // removed or replaced
            };
            let uses = known.uses;
            if uses > 0 && self.may_keep >= unit && keeps(tag, bytes, uses) {
                self.may_keep -= unit;
                self.push(tag, bytes, uses - 1);
            } else {
                self.known.remove(&tag);
                leaves(tag);
            }
        }
    }

    fn push(&mut self, tag: u32, bytes: u32, uses: u8) {
        let number = self.oldest.wrapping_add(self.records.len() as u32);
        self.records.push_back((tag, bytes));
        self.known.insert(tag, Known { number, uses });
        self.used_bytes += u64::from(bytes);
        self.written_bytes += u64::from(bytes);
    }

    /// Returns the number of objects.
    pub fn objects(&self) -> usize {
        self.known.len()
    }

    /// Returns whether the log has evicted, or is about to.
    pub fn is_full(&self) -> bool {
        self.oldest > 0 || self.used_bytes >= self.capacity_bytes
    }

    /// Returns the bytes appended so far, again or for the first time.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Drops the objects whose tags are not sampled, and sets the capacity.
    fn thin(&mut self, bits: u32, capacity_bytes: u64) {
        self.capacity_bytes = capacity_bytes;
        let records = std::mem::take(&mut self.records);
        let known = std::mem::take(&mut self.known);
        let oldest = std::mem::take(&mut self.oldest);
        (self.used_bytes, self.may_keep) = (0, 0.0);
        let written = self.written_bytes;
        for (at, (tag, bytes)) in records.into_iter().enumerate() {
            let number = oldest.wrapping_add(at as u32);
            let current = known.get(&tag).filter(|known| known.number == number);
            if let Some(current) = current
                && tag.trailing_zeros() >= bits
            {
                self.push(tag, bytes, current.uses);
            }
        }
        self.written_bytes = written;
    }

    fn memory_bytes(&self) -> usize {
        // A table of 7/8 load at most, a byte of control for each place.
        let places = self.known.capacity() * 8 / 7;
        self.records.capacity() * size_of::<(u32, u32)>() + places * (size_of::<(u32, Known)>() + 1)
    }
}

/// A rule and its small cache.
#[derive(Debug)]
struct Arm {
    rule: Rule,
    log: LogModel,
    /// Hits and bytes written of late, and at the last check.
    hits: f64,
    written: f64,
    new_hits: u64,
    old_written: u64,
}

impl Arm {
    fn offer(&mut self, candidate: &Candidate, tag: u32) {
        if self.log.contains(tag) {
            return;
        }
        let Self { rule, log, .. } = self;
        // Asked in any case, since it learns from offers.
        let admits = rule.judge(candidate);
        if admits || !log.is_full() {
            let bytes = candidate.bytes.min(u64::from(u32::MAX)) as u32;
            let mut left = Vec::new();
            log.insert(tag, bytes, |_, _, _| true, |tag| left.push(tag));
            left.into_iter().for_each(|tag| rule.evicted(u64::from(tag)));
        }
    }
}

/// Compares rules on a sample of the keys, and chooses one.
#[derive(Debug)]
pub(crate) struct Trial {
    arms: Vec<Arm>,
    capacity_bytes: u64,
    /// A hash is sampled if the lowest `bits` bits of its tag are 0.
    bits: u32,
    samples: usize,
    chosen: usize,
    lookups: usize,
}

impl Trial {
    /// Creates a trial of these rules for a flash of this size and about this many objects.
    /// `rules` makes them for a share of `2^-bits` of the keys. The first one is the baseline.
    pub(crate) fn new(
        capacity_bytes: u64,
        objects: u64,
        rules: impl FnOnce(u32) -> Vec<Rule>,
    ) -> Self {
        let samples = (objects / OBJECTS_PER_SAMPLE) as usize;
        let samples = samples.clamp(LEAST_SAMPLES, MOST_SAMPLES);
        let bits = (objects / samples as u64).max(1).ilog2();
        let arm = |rule| Arm {
            rule,
            log: LogModel::new(capacity_bytes >> bits),
            hits: 0.0,
            written: 0.0,
            new_hits: 0,
            old_written: 0,
        };
        let arms = rules(bits).into_iter().map(arm).collect();
        Self { arms, capacity_bytes, bits, samples, chosen: 0, lookups: 0 }
    }

    /// Returns the tag of a hash.
    pub(crate) fn tag(hash: u64) -> u32 {
        mix(hash) as u32
    }

    /// Returns the number of bits that are 0 in the tags of the sampled hashes.
    pub(crate) fn bits(&self) -> u32 {
        self.bits
    }

    /// Returns whether a check was the last event.
    pub(crate) fn has_checked(&self) -> bool {
        self.lookups == 0
    }

    /// Returns the number of the rule to follow.
    pub(crate) fn chosen(&self) -> usize {
        self.chosen
    }

    /// Simulates a lookup of an object that is not in memory. `found` is the object as a candidate
    /// if flash had it; without it in a small cache, it would have been fetched and offered there.
    ///
    /// `cost` is the number of bytes of reads that a byte written costs, and `mean_bytes` the mean
    /// size of an object.
    pub(crate) fn look_up(
        &mut self,
        tag: u32,
        found: Option<&Candidate>,
        (cost, mean_bytes): (f64, f64),
    ) {
        for arm in &mut self.arms {
            if arm.log.look_up(tag).is_some() {
                arm.new_hits += 1;
            } else if let Some(candidate) = found {
                arm.offer(candidate, tag);
            }
            arm.rule.looked_up(u64::from(tag), found.map(|candidate| candidate.bytes));
        }
        self.lookups += 1;
        if self.lookups >= self.samples / CHECKS_PER_TURN {
            self.lookups = 0;
            self.arms.iter_mut().for_each(|arm| arm.rule.set_write_cost(cost));
            self.check(cost / mean_bytes);
        }
    }

    /// Simulates the offer of an object that memory has evicted.
    pub(crate) fn offer(&mut self, tag: u32, candidate: &Candidate) {
        for arm in &mut self.arms {
            arm.offer(candidate, tag);
        }
        while self.arms.iter().any(|arm| arm.log.records.len() > self.samples * 4) {
            self.bits += 1;
            for arm in &mut self.arms {
                arm.log.thin(self.bits, self.capacity_bytes >> self.bits);
            }
        }
    }

    /// Simulates the removal of an object.
    pub(crate) fn remove(&mut self, tag: u32) {
        for arm in &mut self.arms {
            arm.log.remove(tag);
        }
    }

    /// Chooses a rule. `price` is the cost of a byte written, in hits.
    fn check(&mut self, price: f64) {
        let kept = (-1.0 / MEMORY_CHECKS).exp();
        for arm in &mut self.arms {
            arm.hits = arm.hits * kept + arm.new_hits as f64;
            let written = arm.log.written_bytes();
            arm.written = arm.written * kept + (written - arm.old_written) as f64;
            (arm.new_hits, arm.old_written) = (0, written);
        }
        let worth = |arm: &Arm| arm.hits - arm.written * price;
        let best = self.arms.iter().map(worth).fold(f64::NEG_INFINITY, f64::max);
        let loss = |arm: &Arm| (best - worth(arm)) / best.abs().max(1.0);
        let may_stay = loss(&self.arms[self.chosen]) <= HARM;
        let candidates = (0..self.arms.len()).filter(|&at| {
            let arm = &self.arms[at];
            loss(arm) <= if at == self.chosen { HARM } else { HARMLESS }
        });
        let least = candidates
            .min_by(|&a, &b| self.arms[a].written.total_cmp(&self.arms[b].written))
            .unwrap_or(self.chosen);
        // A change has to save writes, or to avoid harm.
        if !may_stay || self.arms[least].written < 0.95 * self.arms[self.chosen].written {
            self.chosen = least;
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let arm = |arm: &Arm| size_of::<Arm>() + arm.log.memory_bytes() + arm.rule.memory_bytes();
        self.arms.iter().map(arm).sum()
    }
}
