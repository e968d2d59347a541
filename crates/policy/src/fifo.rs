//! First in, first out: entries leave in the order in which they came, whatever happened in between.
//!
//! The simplest FIFO-like policy: a hit does nothing at all, an insertion is one head update, an eviction one tail
//! update. Throughput rises with every further hit (queueing paper, section 3.2).

use crate::{Access, Eviction, List, NoMarks, Ranked, Slot};

/// First in, first out.
#[derive(Debug, Clone, Default)]
pub struct Fifo {
    queue: List,
}

impl Eviction for Fifo {
    type Marks = NoMarks;

    fn marks(&self) -> &NoMarks {
        &NoMarks
    }

    fn reserve(&mut self, slots: usize) {
        self.queue.reserve(slots);
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    fn promote(&mut self, _: Slot) {}

    #[inline]
    fn insert(&mut self, slot: Slot, _: &Access) {
        self.queue.push_head(slot);
    }

    #[inline]
    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.queue.pop_tail()
    }

    fn remove(&mut self, slot: Slot) {
        self.queue.delink(slot);
    }

    fn memory_bytes(&self) -> usize {
        self.queue.memory_bytes()
    }
}

impl Ranked for Fifo {
    fn coldest_first(&self) -> impl Iterator<Item = Slot> + '_ {
        self.queue.coldest_first()
    }
}
