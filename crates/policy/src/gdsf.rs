//! GDSF: evicts the entry with the fewest uses for its size, above an age that rises with each
//! eviction.
//!
//! The priority of an entry is `L + uses / size`, where `L` is the priority of the last victim. A
//! use computes the priority afresh, so entries that were popular long ago fall behind new ones.
//! Where uses are equal, small entries stay: more of them fit, and more requests hit (Cherkasova,
//! "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy", HP Labs
//! 1998). All misses cost the same, as in the paper's variant for the hit ratio. Where all entries
//! have one size GDSF is LFU with dynamic ageing.
//!
//! Of equal priorities the least recently used entry leaves; the paper leaves that open. Sizes are
//! weights; an owner that needs more room evicts again.
//!
//! Do not use GDSF where the hit ratio of bytes counts rather than that of requests: large entries
//! leave first.

use crate::slot_array::{Heap, ordered_by_array};
use crate::{Access, AlwaysPromote, Eviction, Parameters, Policy, PolicyInfo, Slot};

/// Priority of one use of an entry of weight 1. It leaves room for 2^32 uses, and for weights of
/// any size.
const USE: u64 = 1 << 32;

/// GDSF (`gdsf`): evicts the entry with the fewest uses for its weight, above an age that rises.
/// LRU-like.
#[derive(Debug, Clone)]
pub struct Gdsf {
    /// Slots by priority, and by last use where priorities are equal.
    by_priority: Heap<(u64, u64)>,
    uses: Vec<u32>,
    weights: Vec<u32>,
    age: u64,
    now: u64,
}

impl Gdsf {
    /// Returns the part of the priority that comes from uses and size.
    fn worth(&self, slot: Slot) -> u64 {
        u64::from(self.uses[slot.index()]) * USE / u64::from(self.weights[slot.index()])
    }

    fn priority(&self, slot: Slot) -> u64 {
        self.age.saturating_add(self.worth(slot))
    }

    fn resized(&mut self) {
        let slots = self.by_priority.slots();
        self.uses.resize(slots, 0);
        self.weights.resize(slots, 1);
    }

    fn moved(&mut self, from: Slot, to: Slot) {
        self.uses[to.index()] = self.uses[from.index()];
        self.weights[to.index()] = self.weights[from.index()];
    }

    fn reweighed(&mut self, slot: Slot, weight: u32) {
        if slot.index() < self.weights.len() {
            let (priority, used) = self.by_priority.key(slot);
            let age = priority.saturating_sub(self.worth(slot));
            self.weights[slot.index()] = weight.max(1);
            self.by_priority.correct(slot, (age.saturating_add(self.worth(slot)), used));
        }
    }

    fn memory(&self) -> usize {
        (self.uses.capacity() + self.weights.capacity()) * size_of::<u32>()
    }
}

impl Policy for Gdsf {
    const INFO: PolicyInfo = PolicyInfo::new(
        "gdsf",
        "evicts the entry with the fewest uses for its size, above a rising age",
        "Cherkasova, HP Labs 1998",
    );

    fn new(_: &Parameters) -> Self {
        Self { by_priority: Heap::default(), uses: Vec::new(), weights: Vec::new(), age: 0, now: 0 }
    }
}

impl Eviction for Gdsf {
    type Marks = AlwaysPromote;

    fn marks(&self) -> &AlwaysPromote {
        &AlwaysPromote
    }

    fn promote(&mut self, slot: Slot) {
        if self.by_priority.contains(slot) {
            self.now += 1;
            let uses = &mut self.uses[slot.index()];
            *uses = uses.saturating_add(1);
            self.by_priority.change(slot, (self.priority(slot), self.now));
        }
    }

    fn insert(&mut self, slot: Slot, access: &Access) {
        self.now += 1;
        self.uses[slot.index()] = 1;
        self.weights[slot.index()] = access.weight.max(1);
        self.by_priority.push(slot, (self.priority(slot), self.now));
    }

    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        let slot = self.by_priority.pop()?;
        (self.age, _) = self.by_priority.key(slot);
        Some(slot)
    }

    ordered_by_array! {
        order: by_priority, resized: resized, moved: moved, reweighed: reweighed, memory: memory
    }
}
