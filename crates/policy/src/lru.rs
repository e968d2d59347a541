//! Least recently used: a hit moves the entry to the head, the tail leaves.
//!
//! The type of an LRU-like policy: each hit owes a delink and a head update on one shared list, and at high hit
//! ratios these limit throughput ("Can Increasing the Hit Ratio Hurt Cache Throughput?", section 3.1).
//!
//! Not to be used with scans or loops larger than the cache, which push everything else out, nor where many cores
//! hit at once.

use crate::lists::ordered_by_lists;
use crate::{About, Access, AlwaysPromote, Eviction, List, Parameters, Policy, Ranked, Slot};

/// Least recently used.
#[derive(Debug, Clone)]
pub struct Lru {
    recency: List,
}

impl Policy for Lru {
    const ABOUT: About = About::new("lru", "leaves when unused for longest", "-");

    fn new(_: &Parameters) -> Self {
        Self { recency: List::named("list") }
    }
}

impl Eviction for Lru {
    type Marks = AlwaysPromote;

    fn marks(&self) -> &AlwaysPromote {
        &AlwaysPromote
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

    fn victim(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.recency.tail()
    }

    ordered_by_lists! { order: recency, hottest: |_this| [0] }
}

impl Ranked for Lru {
    fn coldest_first(&self) -> impl Iterator<Item = Slot> + '_ {
        self.recency.coldest_first()
    }
}
