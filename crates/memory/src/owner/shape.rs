//! The size of a shard when it is made: its slots, its batches, and the memory for its entries.

use crate::budget::Amount;
use crate::slab::{Arena, Slab};

/// Slots that a shard begins with, unless its limit is less: the cache may never be filled.
const SLOTS_FIRST: usize = 16;
/// The policy and the admission of a cache that may hold so many entries, and no more, are told of
/// all of them at once: their memory of keys depends on that. A larger cache may never be filled.
const TOLD_AT_ONCE: usize = (1 << 22) + (1 << 19);

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
        self.slots.map_or(SLOTS_FIRST, |slots| slots.clamp(1, SLOTS_FIRST))
    }

    /// Entries of which a policy and an admission are told at first.
    pub(super) fn told_first(&self) -> usize {
        let is_told = |slots: &usize| slots.saturating_mul(self.shards) <= TOLD_AT_ONCE;
        self.slots.filter(is_told).map_or(self.slots_first(), |slots| slots.max(1))
    }

    /// Memory for the entries of so many shards of this shape.
    pub(crate) fn slabs<E>(&self, shards: usize) -> impl Iterator<Item = Slab<E>> {
        let places = self.places();
        let arena = places.and_then(|places| Arena::new(shards, places));
        (0..shards).map(move |shard| match &arena {
            Some(arena) => Slab::in_arena(arena, shard),
            None => Slab::new(places),
        })
    }
}
