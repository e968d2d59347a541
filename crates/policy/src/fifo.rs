//! FIFO, first in, first out: entries leave in the order in which they were inserted; hits change
//! nothing.
//!
//! It is the simplest FIFO-like policy: a hit does nothing, an insertion is one head update, an
//! eviction one tail update. Throughput rises with every further hit ("Can Increasing the Hit Ratio
//! Hurt Cache Throughput?", section 3.2).
//!
//! Do not use FIFO where misses are expensive: nothing protects a popular entry from eviction.

use crate::listed::Listed;
use crate::{Access, Lists, NoMarks, Parameters, Policy, PolicyInfo, Ranked, Slot};

const QUEUE: usize = 0;

/// FIFO (`fifo`): evicts the entry that was inserted first. A hit changes nothing. FIFO-like.
#[derive(Debug, Clone)]
pub struct Fifo {
    queue: Lists<1>,
}

impl Policy for Fifo {
    const INFO: PolicyInfo =
        PolicyInfo::new("fifo", "evicts entries in the order of insertion", "-");

    fn new(_: &Parameters) -> Self {
        Self { queue: Lists::named(["queue"]) }
    }
}

impl Listed for Fifo {
    type Marks = NoMarks;
    type Lists = Lists<1>;

    fn lists(&self) -> &Lists<1> {
        &self.queue
    }

    fn lists_mut(&mut self) -> &mut Lists<1> {
        &mut self.queue
    }

    fn marks(&self) -> &NoMarks {
        &NoMarks
    }

    fn promote(&mut self, _: Slot) {}

    #[inline]
    fn insert(&mut self, slot: Slot, _: &Access) {
        self.queue.push_head(QUEUE, slot);
    }

    #[inline]
    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.queue.pop_tail(QUEUE)
    }

    fn victim(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.queue.tail(QUEUE)
    }
}

impl Ranked for Fifo {
    fn coldest_first(&self) -> impl Iterator<Item = Slot> + '_ {
        self.queue.coldest_first(QUEUE)
    }
}
