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
use crate::request::{Request, TraceKind};
use crate::reuse::LastTouches;

/// Default number of keys in a sample: four times as many as in the paper's evaluation, which
/// halves the error.
const SAMPLE_KEYS: usize = 1 << 15;

/// Number of groups of a sample, from whose differences the error is estimated.
const GROUPS: usize = 8;

/// Quantile of Student's t for seven degrees of freedom, for 95 % intervals from eight groups.
const T_975: f64 = 2.364_624;

/// Number of possible hashes, 2^64.
const HASHES: f64 = 18_446_744_073_709_551_616.0; // 2^64

/// Number of counters for each factor of two of a distance: large distances are exact to 1/256.
const COUNTS_PER_OCTAVE: usize = 256;

/// Measures the miss ratios of LRU caches of all sizes, in 10 MiB of memory.
#[derive(Debug)]
pub struct LruCurve {
    kind: TraceKind,
    sample_keys: usize,
    /// Smallest hash that is not sampled; `None` while all keys are sampled.
    limit: Option<u64>,
    /// Slot of each sampled key, by its hash.
    slots: HashMap<u64, u32, foldhash::fast::FixedState>,
    /// Slots of keys that have left the sample.
    free: Vec<u32>,
    /// Sampled keys, the largest hash first.
    largest: BinaryHeap<(u64, u32)>,
    whole: Part,
    groups: Vec<Part>,
    touches: f64,
}

/// The miss ratio of an LRU cache of one size, from an [`LruCurve`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LruPoint {
    /// Size of the cache, in keys or in blocks of 4 KiB.
    pub size: u64,
    /// Share of touches that miss.
    pub miss_ratio: f64,
    /// Half-width of the 95 % confidence interval of `miss_ratio`; 0 if all keys were measured.
    pub miss_ratio_ci95: f64,
}

impl LruCurve {
    /// Creates an empty curve for a trace of this kind.
    pub fn new(kind: TraceKind) -> Self {
        Self::with_sample(kind, SAMPLE_KEYS)
    }

    /// Creates an empty curve with at most `keys` keys in the sample, and no fewer than 64.
    pub fn with_sample(kind: TraceKind, keys: usize) -> Self {
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

    /// Samples only keys with a [hash] below `limit` from now on. A limit above the present one
    /// changes nothing.
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

    /// Returns the least [hash] that is not sampled; `None` while all keys are sampled.
    ///
    /// [hash]: crate::sample_hash
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Adds a request. A deletion removes its keys from all caches, and touches none.
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

    /// Adds a touch of the key with this [hash], if the key is sampled. A touch with `counts` false
    /// only changes the distances of other keys. The caller reports all touches that count to
    /// [`add_touches`](Self::add_touches).
    ///
    /// [hash]: crate::sample_hash
    pub fn add_hashed(&mut self, hash: u64, counts: bool) {
        if self.limit.is_none_or(|limit| hash < limit) {
            self.touch(hash, counts);
        }
    }

    /// Adds to the number of touches, for callers that add the sampled touches by
    /// [`add_hashed`](Self::add_hashed).
    pub fn add_touches(&mut self, touches: u64) {
        self.touches += touches as f64;
    }

    /// Multiplies the weight of all touches so far by `to`, so that the curve follows a changing
    /// load.
    pub fn fade(&mut self, to: f64) {
        self.touches *= to;
        self.whole.fade(to);
        self.groups.iter_mut().for_each(|group| group.fade(to));
    }

    /// Returns the bytes of memory held, without the allocator's overhead.
    pub fn bytes(&self) -> usize {
        let parts = std::iter::once(&self.whole).chain(&self.groups);
        parts.map(Part::bytes).sum::<usize>()
            + self.slots.allocation_size()
            + self.largest.capacity() * size_of::<(u64, u32)>()
    }

    /// Returns the share of keys that are sampled now.
    pub fn sampled_share(&self) -> f64 {
        self.limit.map_or(1.0, |limit| (limit as f64 / HASHES).max(1.0 / HASHES))
    }

    /// Returns the number of distinct keys touched so far, estimated unless all are sampled.
    pub fn keys_seen(&self) -> u64 {
        (self.slots.len() as f64 / self.sampled_share()).round() as u64
    }

    /// Returns the number of touches so far.
    pub fn touches(&self) -> u64 {
        self.touches as u64
    }

    /// Returns the miss ratio of an LRU cache of `size` keys or blocks of 4 KiB.
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

    /// Removes the key with the largest hash from the sample.
    fn drop_largest(&mut self) {
        let Some((hash, slot)) = self.largest.pop() else { return };
        self.slots.remove(&hash);
        self.free.push(slot);
        self.limit = Some(hash);
        self.whole.order.forget(slot);
        self.groups[group(hash)].order.forget(slot);
    }
}

/// Reuse distances measured in a sample of keys.
#[derive(Debug)]
struct Part {
    order: LastTouches,
    /// Largest distance that has a counter of its own.
    exact_up_to: u64,
    /// Estimated touches of the whole trace at each distance, indexed by [`Part::place`].
    counts: Vec<f64>,
    /// Estimated first touches of keys in the whole trace.
    first: f64,
}

impl Part {
    /// Creates an empty part for at most `keys` keys at a time.
    fn new(keys: usize) -> Self {
        let exact_up_to = keys.next_power_of_two().max(COUNTS_PER_OCTAVE) as u64;
        // One slot more: a key comes in before another leaves.
        let order = LastTouches::new(keys + 1);
        Self { order, exact_up_to, counts: Vec::new(), first: 0.0 }
    }

    /// Adds a touch of a key; `share` is the share of all keys that this part samples.
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

    /// Returns the index of a distance's counter. Small distances have their own; larger ones with
    /// the same leading bits share one.
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

    /// Returns the estimated touches of the whole trace that miss an LRU cache of `size`.
    fn missed(&self, size: u64) -> f64 {
        let far = self.counts.iter().skip(self.place(size) + 1);
        self.first + far.sum::<f64>()
    }
}

/// Returns the group of a key, from the lowest bits of its hash; the highest bits choose the
/// sample.
fn group(hash: u64) -> usize {
    (hash % GROUPS as u64) as usize
}

/// Returns the hash of a volume's key by which [`LruCurve`] chooses its sample.
#[inline]
pub fn hash(volume: u32, key: u64) -> u64 {
    mix(key ^ mix(u64::from(volume)))
}

/// Mixes the bits of a number, one to one (the finalizer of SplitMix64).
fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
