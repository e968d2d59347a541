//! LHD: evicts, of a sample, the entry with the fewest expected hits for the room and time that it
//! takes.
//!
//! Hits and evictions are counted by the age of the entry. From these counts follows, for each age,
//! how many hits per unit of time an entry of that age can still expect. Of a sample of 32 the
//! entry with the lowest such density for its weight leaves (Beckmann, Chen, Cidon, "LHD: Improving
//! Cache Hit Rate by Maximizing Hit Density", NSDI '18).
//!
//! Sample size and decay are those of the authors' code. Differences from it: entries hit 0, 1,
//! 2–3, … times are kept apart as classes, instead of 16 classes of last two hit ages for each of
//! 16 applications; densities are computed anew once per entry inserted, not per 2^20 requests; the
//! last eight admitted are not candidates besides the sample, and no explorers (1 % of the room
//! there) are kept. One slot in [`WATCHED_ONE_IN`] is watched, so most hits write only their own
//! slot's stamp, and its count until the last class is reached. Hits on watched slots also write a
//! counter that all slots share. Time is counted in insertions.
//!
//! Do not use LHD for caches of a few hundred entries: there is too little to learn from.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::sketch::mix;
use crate::slot_array::{SampleSet, ordered_by_array};
use crate::{
    Access, Eviction, HitKind, Marks, Parameter, Parameters, Plain, Policy, PolicyInfo, Slot,
    Stamps, Touch,
};

/// Number of ages that are distinguished. The authors' code has 20,000 and coarsens time so that
/// few are used; with a span fixed in insertions per entry these suffice.
const AGES: usize = 128;
/// Number of classes of entries by hits.
const CLASSES: usize = 8;
/// Minimum number of hits of the last class, at which counters stop.
const COUNT_MAX: u32 = 1 << (CLASSES - 2);
/// Time that all ages together cover, in insertions per entry of the cache.
const SPAN: usize = 8;
/// One slot in this many has its hits counted by class and age.
const WATCHED_ONE_IN: u64 = 4;
/// Factor by which old counts are kept when densities are recomputed (the authors' code).
const DECAY: f32 = 0.9;

/// Marks of LHD: last use and hits of each slot, and total hits by class and age.
#[derive(Debug, Clone)]
pub struct AgedHits {
    stamps: Stamps,
    hits: Arc<[AtomicU32]>,
    /// Length of an age, in insertions.
    step: Arc<AtomicU32>,
    /// Expected number of entries, if known.
    expected: usize,
}

impl AgedHits {
    /// Sets the length of an age so that all ages cover [`SPAN`] times `entries`.
    fn span(&self, entries: usize) {
        // changes rarely, and an old one only misfiles
        self.step.store((entries * SPAN / AGES).max(1) as u32, Relaxed);
    }

    /// Returns the index of the counters for a slot's class and age.
    #[inline]
    fn bin(&self, slot: Slot) -> usize {
        let class = (u32::BITS - self.stamps.count(slot).leading_zeros()) as usize;
        let age = self.stamps.times().age(slot) / self.step.load(Relaxed); // see `reserve`
        class.min(CLASSES - 1) * AGES + (age as usize).min(AGES - 1)
    }

    fn is_watched(slot: Slot) -> bool {
        mix(u64::from(slot.0)).is_multiple_of(WATCHED_ONE_IN)
    }

    fn stamp(&self, slot: Slot) {
        self.stamps.stamp(slot);
    }

    fn transfer(&self, from: Slot, to: Slot) {
        self.stamps.transfer(from, to);
    }
}

impl Marks for AgedHits {
    const KIND: HitKind = HitKind::FifoLike;
    const PLAIN: Option<Plain<Self>> = Plain::YES;

    fn reserve(&mut self, slots: usize) {
        if slots > self.stamps.times().slots() {
            self.stamps.reserve(slots);
            // Statistics of its own: until now they may have been shared with a clone.
            // see `touch`
            self.hits = self.hits.iter().map(|count| AtomicU32::new(count.load(Relaxed))).collect();
            self.step = Arc::default();
            self.span(slots.max(self.expected));
        }
    }

    fn memory_bytes(&self) -> usize {
        self.stamps.memory_bytes() + size_of_val(&*self.hits) + size_of::<AtomicU32>()
    }

    #[inline]
    fn touch(&self, slot: Slot) -> Touch {
        if Self::is_watched(slot) {
            let hits = &self.hits[self.bin(slot)];
            // statistics: a lost count does not matter
            hits.store(hits.load(Relaxed).wrapping_add(1), Relaxed);
        }
        self.stamps.touch(slot)
    }
}

/// LHD (`lhd`): evicts, of a sample, the entry with the fewest expected hits for its room and time.
/// FIFO-like.
#[derive(Debug, Clone)]
pub struct Lhd {
    entries: SampleSet,
    marks: AgedHits,
    weights: Vec<u32>,
    hits: Vec<f32>,
    evictions: Vec<f32>,
    density: Vec<f32>,
    samples: u64,
    /// True since the first eviction.
    is_full: bool,
    /// Insertions since densities were last computed.
    insertions: usize,
}

impl Lhd {
    fn resized(&mut self) {
        self.weights.resize(self.entries.slots(), 1);
    }

    fn reweighed(&mut self, slot: Slot, weight: u32) {
        self.weights[slot.index()] = weight.max(1);
    }

    fn moved(&mut self, from: Slot, to: Slot) {
        self.weights[to.index()] = self.weights[from.index()];
    }

    fn memory(&self) -> usize {
        (self.weights.capacity() + 3 * AGES * CLASSES) * size_of::<u32>()
    }

    /// Recomputes the densities of all classes and ages.
    #[cold]
    fn learn(&mut self) {
        for (at, fresh) in self.marks.hits.iter().enumerate() {
            // statistics: see `touch`
            self.hits[at] = self.hits[at] * DECAY + fresh.load(Relaxed) as f32;
            fresh.store(0, Relaxed); // may swallow a hit that comes at the same time
            self.evictions[at] *= DECAY;
        }
        for class in 0..CLASSES {
            let (mut hits, mut events, mut lifetime) = (0.0, 0.0, 0.0);
            for at in (class * AGES..(class + 1) * AGES).rev() {
                hits += self.hits[at];
                events += self.hits[at] + self.evictions[at];
                lifetime += events;
                self.density[at] = if lifetime > 0.0 { hits / lifetime } else { 0.0 };
            }
        }
    }
}

impl Policy for Lhd {
    const INFO: PolicyInfo = PolicyInfo::new(
        "lhd",
        "evicts, of a sample, the entry with the fewest expected hits per room and time",
        "Beckmann et al., NSDI '18",
    )
    .with(&[Parameter::count("samples", 32, 1..=256, "entries drawn per eviction")]);

    fn new(parameters: &Parameters) -> Self {
        // Before anything is known, density falls with age and rises with hits.
        let guess = |at: usize| (1 + at / AGES) as f32 / (1 + at % AGES) as f32;
        Self {
            entries: SampleSet::default(),
            marks: AgedHits {
                stamps: Stamps::new(COUNT_MAX),
                hits: (0..AGES * CLASSES).map(|_| AtomicU32::new(0)).collect(),
                step: Arc::new(AtomicU32::new(1)),
                expected: 0,
            },
            weights: Vec::new(),
            hits: vec![0.0; AGES * CLASSES],
            evictions: vec![0.0; AGES * CLASSES],
            density: (0..AGES * CLASSES).map(guess).collect(),
            samples: parameters.count("samples"),
            is_full: false,
            insertions: 0,
        }
    }
}

impl Eviction for Lhd {
    type Marks = AgedHits;

    fn marks(&self) -> &AgedHits {
        &self.marks
    }

    fn expect(&mut self, slots: usize) {
        self.marks.expected = slots;
    }

    fn promote(&mut self, _: Slot) {}

    fn insert(&mut self, slot: Slot, access: &Access) {
        self.marks.stamps.times().advance();
        self.marks.stamps.start(slot);
        self.weights[slot.index()] = access.weight.max(1);
        self.entries.insert(slot);
        self.insertions += usize::from(self.is_full);
        if self.is_full && self.insertions >= self.entries.len() {
            self.insertions = 0;
            self.learn();
        }
    }

    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        if !self.is_full {
            self.is_full = true;
            self.marks.span(self.entries.len());
        }
        let (marks, density, weights) = (&self.marks, &self.density, &self.weights);
        let victim = self
            .entries
            .worst(self.samples, |slot| density[marks.bin(slot)] / weights[slot.index()] as f32)?;
        if AgedHits::is_watched(victim) {
            self.evictions[self.marks.bin(victim)] += 1.0;
        }
        self.entries.remove(victim);
        Some(victim)
    }

    ordered_by_array! {
        order: entries, marks: marks,
        class: |this, slot| {
            let density = this.density[this.marks.bin(slot)];
            (8.0 - density.log2()).clamp(0.0, 31.0) as u32
        },
        resized: resized, moved: moved, reweighed: reweighed, memory: memory
    }
}
