//! LFU: evicts the entry with the fewest hits, and among equals the least recently used.
//!
//! Hits are counted while an entry is cached and never forgotten until it leaves; a hit moves the
//! entry up in a list ordered by count, in constant time (Shah, Mitra, Matani, 2010).
//!
//! Entries count one each whatever their weight; an owner that needs more room asks again.
//!
//! Not to be used where popularity changes: yesterday's favourites hold their place, and on block
//! traces it loses to everything else. It counts, above all, as a base for freezing, whose frozen
//! part it fills with what is hit most.

use crate::frequency::FrequencyList;
use crate::{
    Access, AlwaysPromote, Cursor, Eviction, Parameters, Policy, PolicyInfo, Ranked, Slot,
};

/// LFU (`lfu`): evicts the entry with the fewest hits. LRU-like.
#[derive(Debug, Clone)]
pub struct Lfu {
    order: FrequencyList,
}

impl Policy for Lfu {
    const INFO: PolicyInfo =
        PolicyInfo::new("lfu", "leaves when hit least often", "O(1): Shah et al., 2010");

    fn new(_: &Parameters) -> Self {
        Self { order: FrequencyList::default() }
    }
}

impl Eviction for Lfu {
    type Marks = AlwaysPromote;

    fn marks(&self) -> &AlwaysPromote {
        &AlwaysPromote
    }

    fn reserve(&mut self, slots: usize) {
        self.order.reserve(slots);
    }

    fn set_capacity(&mut self, _: u64) {}

    fn len(&self) -> usize {
        self.order.len()
    }

    #[inline]
    fn promote(&mut self, slot: Slot) {
        self.order.hit(slot);
    }

    #[inline]
    fn insert(&mut self, slot: Slot, _: &Access) {
        self.order.insert(slot, 1);
    }

    #[inline]
    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        let coldest = self.order.coldest()?;
        self.order.remove(coldest);
        Some(coldest)
    }

    fn victim(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.order.coldest()
    }

    fn remove(&mut self, slot: Slot) {
        self.order.remove(slot);
    }

    /// Entries count one each.
    fn reweigh(&mut self, _: Slot, _: u32) {}

    fn transfer(&mut self, from: Slot, to: Slot) {
        self.order.transfer(from, to);
    }

    fn rank(&self, from: Cursor, out: &mut Vec<Slot>) -> Cursor {
        self.order.rank(from, out)
    }

    fn freeze(&mut self, slots: &[Slot]) {
        self.order.freeze(slots);
    }

    fn thaw(&mut self) {
        self.order.thaw();
    }

    fn memory_bytes(&self) -> usize {
        self.order.memory_bytes()
    }
}

impl Ranked for Lfu {
    fn coldest_first(&self) -> impl Iterator<Item = Slot> + '_ {
        self.order.coldest_first()
    }
}
