//! First in, first out: entries leave in the order in which they came, whatever happened in between.
//!
//! The simplest FIFO-like policy: a hit does nothing at all, an insertion is one head update, an eviction one tail
//! update. Throughput rises with every further hit ("Can Increasing the Hit Ratio Hurt Cache Throughput?", section
//! 3.2).
//!
//! Not to be used where misses are expensive: nothing protects a popular entry from leaving.

use crate::lists::ordered_by_lists;
use crate::{About, Access, Eviction, List, NoMarks, Parameters, Policy, Ranked, Slot};

/// First in, first out.
#[derive(Debug, Clone)]
pub struct Fifo {
    queue: List,
}

impl Policy for Fifo {
    const ABOUT: About = About::new("fifo", "leaves in the order of arrival", "-");

    fn new(_: &Parameters) -> Self {
        Self { queue: List::named("queue") }
    }
}

impl Eviction for Fifo {
    type Marks = NoMarks;

    fn marks(&self) -> &NoMarks {
        &NoMarks
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

    fn victim(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.queue.tail()
    }

    ordered_by_lists! { order: queue, hottest: |_this| [0] }
}

impl Ranked for Fifo {
    fn coldest_first(&self) -> impl Iterator<Item = Slot> + '_ {
        self.queue.coldest_first()
    }
}
