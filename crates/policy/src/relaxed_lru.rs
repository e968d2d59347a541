//! Relaxed LRU: LRU whose hits skip the promotion when somebody else is at the list.
//!
//! HHVM's concurrent LRU takes the list's lock with `try_lock` on a hit and goes on without it; memory caches at
//! large do the same. Popular entries are hit again soon, so few are lost. Without contention it is LRU, and so it is
//! in a simulator (FrozenHot, EuroSys '23, section 5; queueing paper: a skipped share of 0.16 to 0.26 at 72 threads).
//!
//! Not to be used to get around the list: the lock is still taken by most hits, so throughput still falls.

use crate::lists::ordered_by_lists;
use crate::{About, Access, Eviction, List, Parameters, Policy, Ranked, Slot, TryPromote};

/// LRU that promotes only when the order is free.
#[derive(Debug, Clone)]
pub struct RelaxedLru {
    recency: List,
}

impl Policy for RelaxedLru {
    const ABOUT: About = About::new(
        "relaxed-lru",
        "LRU, but a hit skips the promotion when the list is busy",
        "HHVM; FrozenHot, EuroSys '23",
    );

    fn new(_: &Parameters) -> Self {
        Self { recency: List::named("list") }
    }
}

impl Eviction for RelaxedLru {
    type Marks = TryPromote;

    fn marks(&self) -> &TryPromote {
        &TryPromote
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

impl Ranked for RelaxedLru {
    fn coldest_first(&self) -> impl Iterator<Item = Slot> + '_ {
        self.recency.coldest_first()
    }
}
