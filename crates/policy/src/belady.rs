//! Belady's MIN: evicts the entry whose next use is furthest away. No policy has fewer misses.
//!
//! It needs the future, so it runs only over recorded traces: each [`Access`] has the time of the
//! key's next use, and owners report hits through [`Eviction::hit`]. Its hit ratio bounds that of
//! any other policy (Belady, "A study of replacement algorithms for virtual-storage computer", IBM
//! Systems Journal, 1966). With entries of different weight it is no longer the optimum, whose
//! computation is infeasible.

use crate::slot_array::{Heap, ordered_by_array};
use crate::{Access, Eviction, NoMarks, Parameters, Policy, PolicyInfo, Slot};

/// Belady's offline optimum (`belady`): evicts the entry whose next use is latest. For simulations
/// only.
#[derive(Debug, Clone)]
pub struct Belady {
    /// Slots by the complement of their next use, so that the furthest use is the heap's least key.
    nearest_last: Heap,
}

impl Policy for Belady {
    const INFO: PolicyInfo = PolicyInfo::new(
        "belady",
        "offline optimum: evicts the entry needed latest",
        "Belady, 1966",
    )
    .looking_at_next_uses();

    fn new(_: &Parameters) -> Self {
        Self { nearest_last: Heap::default() }
    }
}

impl Eviction for Belady {
    type Marks = NoMarks;

    fn marks(&self) -> &NoMarks {
        &NoMarks
    }

    fn promote(&mut self, _: Slot) {}

    fn insert(&mut self, slot: Slot, access: &Access) {
        self.nearest_last.push(slot, !access.next_use);
    }

    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.nearest_last.pop()
    }

    fn hit(&mut self, slot: Slot, access: &Access) {
        self.nearest_last.change(slot, !access.next_use);
    }

    ordered_by_array! { order: nearest_last }
}
