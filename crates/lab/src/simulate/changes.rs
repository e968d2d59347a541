//! Deletions and new sizes of objects while a trace is simulated, and sizes of 4 GiB and more.

use floe_policy::owner::{DenseIndex, SlotOwner, SlotWeights};
use floe_policy::{Policy, Slot};

/// A change of an object between two requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Change {
    /// The request before which it happens.
    pub(super) at: u32,
    pub(super) key: u32,
    /// Its new size in bytes; `None` if it is deleted.
    pub(super) size: Option<u64>,
}

/// Sizes as policies learn them: in bytes, or where an object has 4 GiB or more, in such a power of
/// two of bytes that the largest fits their 32 bits. What fits the cache is counted in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale(u32);

impl Scale {
    /// The scale for objects of up to so many bytes.
    pub(super) fn of(largest: u64) -> Self {
        Self((u64::BITS - largest.leading_zeros()).saturating_sub(u32::BITS))
    }

    /// Returns a size as the policy learns it, which is at least 1.
    #[inline]
    pub(super) fn told(self, size: u64) -> u32 {
        ((size >> self.0) as u32).max(1)
    }

    /// Returns a capacity as the policy learns it.
    pub(super) fn room(self, capacity: u64) -> u64 {
        capacity >> self.0
    }

    /// Tells a policy the capacity in its unit, where that is not bytes.
    pub(super) fn set_capacity<P: Policy>(self, policy: &mut P, capacity: u64) {
        if self.0 > 0 {
            policy.set_capacity(self.room(capacity));
        }
    }

    /// Deletes an object or gives it another size, if it is held.
    #[cold]
    pub(super) fn apply<P: Policy, W: SlotWeights>(
        self,
        change: &Change,
        owner: &mut SlotOwner<P, DenseIndex, W>,
        evicted: impl FnMut(Slot, u32, u64),
    ) {
        match (owner.find(change.key), change.size) {
            (None, _) => {}
            (Some(slot), None) => owner.remove(slot),
            (Some(slot), Some(size)) => owner.reweigh(slot, size, self.told(size), evicted),
        }
    }
}
