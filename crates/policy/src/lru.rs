//! Least recently used: a hit moves the entry to the head, the tail leaves.
//!
//! The type of an LRU-like policy: each hit owes a delink and a head update on one shared list, and at high hit
//! ratios these limit throughput (queueing paper, section 3.1).

use crate::{Access, AlwaysPromote, Eviction, List, Ranked, Slot};

/// Least recently used.
#[derive(Debug, Clone, Default)]
pub struct Lru {
    recency: List,
}

impl Eviction for Lru {
    type Marks = AlwaysPromote;

    fn marks(&self) -> &AlwaysPromote {
        &AlwaysPromote
    }

    fn reserve(&mut self, slots: usize) {
        self.recency.reserve(slots);
    }

    fn len(&self) -> usize {
        self.recency.len()
    }

    #[inline]
    fn promote(&mut self, slot: Slot) {
        self.recency.move_to_head(slot);
    }

    #[inline]
    fn insert(&mut self, slot: Slot, _: &Access) {
        self.recency.push_head(slot);
    }

    #[inline]
    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.recency.pop_tail()
    }

    fn remove(&mut self, slot: Slot) {
        self.recency.delink(slot);
    }

    fn memory_bytes(&self) -> usize {
        self.recency.memory_bytes()
    }
}

impl Ranked for Lru {
    fn coldest_first(&self) -> impl Iterator<Item = Slot> + '_ {
        self.recency.coldest_first()
    }
}
