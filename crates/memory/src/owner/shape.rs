//! The size of a shard when it is made: its slots, its batches, and the memory for its entries.

use crate::budget::Amount;
use crate::slab::{Arena, Slab};

/// Slots that a shard without a limit of entries begins with.
const SLOTS_FIRST: usize = 64;
/// A cache that may hold so many entries, and no more, has slots for all of them at once, so that
/// no insertion waits for more. A larger one begins with a few: it may never be filled.
const SLOTS_AT_ONCE: usize = 1 << 22;
/// Slots that the shards of such a cache begin with together.
const SLOTS_BEGUN: usize = 1 << 16;

/// Holds what a shard is made with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Slots it is to have room for, if that is known.
    pub(crate) slots: Option<usize>,
    pub(crate) shards: usize,
    /// Entries that may wait to be freed, and their weight, before they are.
    pub(crate) batch: usize,
    pub(crate) batch_weight: u64,
    /// Tells what the policy is told that the shard holds, in weight or else in entries.
    pub(crate) capacity: u64,
    /// Tells what of the share has no limit: it is the shard's from the beginning.
    pub(crate) unlimited: Amount,
}

impl Shape {
    /// Returns how many entries need memory, as far as that is known: those that are in, and those
    /// that wait to be freed.
    fn places(&self) -> Option<usize> {
        self.slots.map(|slots| slots + 2 * self.batch)
    }

    /// Slots it has room for at first.
    pub(super) fn slots_first(&self) -> usize {
        let Some(slots) = self.slots else { return SLOTS_FIRST };
        let is_large = slots.saturating_mul(self.shards) > SLOTS_AT_ONCE + SLOTS_AT_ONCE / 8;
        if is_large { (SLOTS_BEGUN / self.shards).max(SLOTS_FIRST) } else { slots.max(1) }
    }

    /// Memory for the entries of so many shards of this shape.
    pub(crate) fn slabs<E>(&self, shards: usize) -> impl Iterator<Item = Slab<E>> {
        let places = self.places();
        let arena = places.and_then(|places| Arena::new(shards, places)).zip(places);
        (0..shards).map(move |shard| match &arena {
            Some((arena, places)) => Slab::in_arena(arena, shard, *places),
            None => Slab::new(places),
        })
    }
}
