//! The miss ratios of LRU caches of all sizes, from one pass over a trace in constant memory.
//!
//! A cache hits a touch if it holds as many keys as the touch's reuse distance (Mattson et al.,
//! 1970). Distances are counted over a sample of a fixed number of keys, those with the smallest
//! hashes, and scaled up (SHARDS, Waldspurger et al., FAST '15, section 3.2). When the sample is
//! full, the key with the largest hash leaves, and the sampled share of the keys falls. A touch
//! weighs the inverse of the share at its time, which is what rescaling all counts would give. The
//! sample may have more or fewer touches than its share of them: the difference counts as hits
//! (SHARDS-adj, section 3.5).
//!
//! The error comes from the same pass. A few bits of the hash divide the sample into groups, each
//! of which measures distances of its own and so is an independent, smaller sample. The differences
//! between their estimates give the standard error.
//!
//! Invariant: as long as no key has left the sample, the miss ratios are exact at all sizes.

use std::collections::BinaryHeap;

use hashbrown::HashMap;
use serde::Serialize;

use crate::dense::{deleted, touches};
use crate::request::{Kind, Request};
use crate::reuse::LastTouches;

/// Keys in a sample, unless told otherwise: four times as many as in the paper's evaluation, which
/// halves the error.
const SAMPLE_KEYS: usize = 1 << 15;

/// Parts of a sample, which tell its error.
const GROUPS: usize = 8;

/// Student's t for seven degrees of freedom: 95 % of estimates from eight groups are within it.
const T_975: f64 = 2.364_624;

/// Number of hashes.
const HASHES: f64 = 18_446_744_073_709_551_616.0; // 2^64

/// Counts for each factor of two of a distance: large distances are exact to 1/256.
const COUNTS_PER_OCTAVE: usize = 256;

/// Collects the miss ratios of LRU caches, in 10 MiB of memory.
#[derive(Debug)]
pub struct LruCurve {
    kind: Kind,
    sample_keys: usize,
    /// Keys with this hash or a larger one are not sampled; `None` while all are.
    limit: Option<u64>,
    /// The slot of each sampled key, by its hash.
    slots: HashMap<u64, u32, foldhash::fast::FixedState>,
    /// The slots of keys that have left.
    free: Vec<u32>,
    /// The sampled keys, the largest hash first.
    largest: BinaryHeap<(u64, u32)>,
    whole: Part,
    groups: Vec<Part>,
    touches: f64,
}

/// One size of a [`LruCurve`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LruPoint {
    /// Size of the cache: keys, or blocks of 4 KiB.
    pub size: u64,
    /// Share of touches that miss.
    pub miss_ratio: f64,
    /// The error of `miss_ratio`: in 19 of 20 cases no larger. 0 if all keys were measured.
    pub miss_ratio_ci95: f64,
}

impl LruCurve {
    /// An empty curve for a trace of this kind.
    pub fn new(kind: Kind) -> Self {
        Self::with_sample(kind, SAMPLE_KEYS)
    }

    /// Nothing yet, with at most so many keys in the sample; at least 64.
    pub fn with_sample(kind: Kind, keys: usize) -> Self {
        let sample_keys = keys.max(64);
        Self {
            kind,
            sample_keys,
            limit: None,
            slots: HashMap::with_hasher(foldhash::fast::FixedState::default()),
            free: Vec::new(),
            largest: BinaryHeap::new(),
            whole: Part::new(sample_keys),
            groups: (0..GROUPS).map(|_| Part::new(sample_keys)).collect(),
            touches: 0.0,
        }
    }

    /// Samples no more than the keys with a [hash] below a limit from now on. A limit above the
    /// present one changes nothing.
    ///
    /// [hash]: crate::sample_hash
    pub fn limit_to(&mut self, limit: u64) {
        if self.limit.is_some_and(|now| now <= limit) {
            return;
        }
        while self.largest.peek().is_some_and(|(largest, _)| *largest >= limit) {
            self.drop_largest();
        }
        self.limit = Some(limit);
    }

    /// Keys with this [hash] or a larger one are not sampled; `None` while
    /// all are.
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Adds a request. A deletion takes its keys out of all caches, and touches none.
    pub fn add(&mut self, request: &Request) {
        for (volume, key) in deleted(self.kind, request) {
            let hash = hash(volume, key);
            if let Some(&slot) = self.slots.get(&hash) {
                self.whole.order.delete(slot);
                self.groups[group(hash)].order.delete(slot);
            }
        }
        for (volume, key) in touches(self.kind, request) {
            self.touches += 1.0;
            self.add_hashed(hash(volume, key), true);
        }
    }

    /// Adds the touch of a key by its [hash], if the key is sampled. One that
    /// does not count changes the distances of others. Touches that count are to be told to
    /// [`add_touches`](Self::add_touches).
    pub fn add_hashed(&mut self, hash: u64, counts: bool) {
        if self.limit.is_none_or(|limit| hash < limit) {
            self.touch(hash, counts);
        }
    }

    /// Adds to the number of touches those of which the sampled ones are added by hashes.
    pub fn add_touches(&mut self, touches: u64) {
        self.touches += touches as f64;
    }

    /// Makes all touches so far weigh less, so that the curve follows a load that changes.
    pub fn fade(&mut self, to: f64) {
        self.touches *= to;
        self.whole.fade(to);
        self.groups.iter_mut().for_each(|group| group.fade(to));
    }

    /// Bytes of memory taken, without what allocators add.
    pub fn bytes(&self) -> usize {
        let parts = std::iter::once(&self.whole).chain(&self.groups);
        parts.map(Part::bytes).sum::<usize>()
            + self.slots.allocation_size()
            + self.largest.capacity() * size_of::<(u64, u32)>()
    }

    /// The share of keys that is in the sample now.
    pub fn sampled_share(&self) -> f64 {
        self.limit.map_or(1.0, |limit| (limit as f64 / HASHES).max(1.0 / HASHES))
    }

    /// The number of different keys touched so far, estimated while not all are sampled.
    pub fn keys_seen(&self) -> u64 {
        (self.slots.len() as f64 / self.sampled_share()).round() as u64
    }

    /// The number of touches so far.
    pub fn touches(&self) -> u64 {
        self.touches as u64
    }

    /// Returns the miss ratio of a cache of a size, in keys or blocks of 4 KiB.
    pub fn at(&self, size: u64) -> LruPoint {
        let touches = self.touches.max(1.0);
        let miss_ratio = self.whole.missed(size) / touches;
        let share = self.sampled_share();
        let miss_ratio_ci95 = if share < 1.0 { self.error(size, miss_ratio, share) } else { 0.0 };
        LruPoint { size, miss_ratio: miss_ratio.min(1.0), miss_ratio_ci95 }
    }

    fn error(&self, size: u64, miss_ratio: f64, share: f64) -> f64 {
        let count = GROUPS as f64;
        let touches = self.touches.max(1.0);
        let of_groups: Vec<f64> =
            self.groups.iter().map(|group| group.missed(size) / touches).collect();
        let mean = of_groups.iter().sum::<f64>() / count;
        let squares: f64 = of_groups.iter().map(|ratio| (ratio - mean).powi(2)).sum();
        let variance = squares / (count - 1.0);
        // A group stands for larger steps of size than the whole sample does. The difference that
        // this makes shrinks with the share of the keys.
        let coarseness = (mean - miss_ratio).abs() / (count - 1.0);
        T_975 * (variance / count * (1.0 - share)).sqrt() + coarseness
    }

    fn touch(&mut self, hash: u64, counts: bool) {
        let share = self.sampled_share();
        let known = self.slots.get(&hash).copied();
        let slot = known.or_else(|| self.free.pop()).unwrap_or(self.slots.len() as u32);
        self.whole.touch(slot, share, counts);
        self.groups[group(hash)].touch(slot, share / GROUPS as f64, counts);
        if known.is_none() {
            self.slots.insert(hash, slot);
            self.largest.push((hash, slot));
            if self.slots.len() > self.sample_keys {
                self.drop_largest();
            }
        }
        debug_assert!(self.slots.len() <= self.sample_keys);
    }

    /// Takes the key with the largest hash out of the sample.
    fn drop_largest(&mut self) {
        let Some((hash, slot)) = self.largest.pop() else { return };
        self.slots.remove(&hash);
        self.free.push(slot);
        self.limit = Some(hash);
        self.whole.order.forget(slot);
        self.groups[group(hash)].order.forget(slot);
    }
}

/// The distances measured in a sample of keys.
#[derive(Debug)]
struct Part {
    order: LastTouches,
    /// Distances up to this one have counts of their own.
    exact_up_to: u64,
    /// Touches of the whole trace that these distances stand for, by [`Part::place`].
    counts: Vec<f64>,
    /// First touches of keys of the whole trace.
    first: f64,
}

impl Part {
    /// No distances yet, of at most so many keys at a time.
    fn new(keys: usize) -> Self {
        let exact_up_to = keys.next_power_of_two().max(COUNTS_PER_OCTAVE) as u64;
        // One slot more: a key comes in before another leaves.
        let order = LastTouches::new(keys + 1);
        Self { order, exact_up_to, counts: Vec::new(), first: 0.0 }
    }

    /// Notes a touch of a key, of which this part has a share.
    fn touch(&mut self, slot: u32, share: f64, counts: bool) {
        let distance = self.order.touch(slot);
        if !counts {
            return;
        }
        let Some(distance) = distance else {
            self.first += 1.0 / share;
            return;
        };
        // The key itself is not subject to sampling.
        let scaled = 1 + (f64::from(distance - 1) / share).round() as u64;
        let place = self.place(scaled);
        if place >= self.counts.len() {
            self.counts.resize(place + 1, 0.0);
        }
        self.counts[place] += 1.0 / share;
    }

    fn fade(&mut self, to: f64) {
        self.first *= to;
        self.counts.iter_mut().for_each(|count| *count *= to);
    }

    fn bytes(&self) -> usize {
        self.order.bytes() + self.counts.capacity() * size_of::<f64>()
    }

    /// The place of a distance among the counts: its own at first, then shared with those that
    /// have the same leading bits.
    fn place(&self, distance: u64) -> usize {
        if distance < self.exact_up_to {
            return distance as usize;
        }
        let (octave, first_octave) = (distance.ilog2(), self.exact_up_to.ilog2());
        let in_octave = (distance >> (octave - COUNTS_PER_OCTAVE.ilog2())) as usize;
        let octaves_before = (octave - first_octave) as usize;
        self.exact_up_to as usize + (octaves_before * COUNTS_PER_OCTAVE) + in_octave
            - COUNTS_PER_OCTAVE
    }

    /// The touches of the whole trace that miss a cache of a size.
    fn missed(&self, size: u64) -> f64 {
        let far = self.counts.iter().skip(self.place(size) + 1);
        self.first + far.sum::<f64>()
    }
}

/// The group of a key: by the lowest bits, as the highest choose the sample.
fn group(hash: u64) -> usize {
    (hash % GROUPS as u64) as usize
}

/// The hash of a volume's key, by which [`LruCurve`] chooses its sample.
#[inline]
pub fn hash(volume: u32, key: u64) -> u64 {
    mix(key ^ mix(u64::from(volume)))
}

/// Spreads numbers over 64 bits, one to one (the finalizer of SplitMix64).
fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
