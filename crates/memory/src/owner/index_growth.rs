//! The growth of a shard's index: how many keys it has room for, and the move of keys to a larger
//! one, a few with each insertion.
//!
//! See [`table`](crate::table) for what readers see meanwhile.

use super::Tenant;
use crate::index::Index;
use crate::table::Table;

/// Keys that an index has room for at first.
const KEYS_FIRST: usize = 1024;
/// Slots whose keys an insertion moves while the index grows.
pub(crate) const MOVED_AT_ONCE: usize = 16;

/// The size of the index, and how far a move to a larger one has come.
#[derive(Debug)]
pub(crate) struct IndexGrowth {
    /// Keys that the index has room for: it grows with what is in, as every line that it is larger
    /// is one more to miss.
    keys_max: usize,
    /// Changes with each new index, to tell the keys that are in it from those in the old one.
    era: bool,
    is_moving: bool,
    /// Slots before this have been moved.
    moved: usize,
    /// Bytes of old indexes that the system has not taken back.
    kept_bytes: usize,
}

impl IndexGrowth {
    /// The first index of a shard that begins with so many slots.
    pub(crate) fn new(slots: usize) -> Self {
        // So that it is as many as slots after some doublings: see `Owner::grow`.
        let keys_max = slots.div_ceil(slots.div_ceil(KEYS_FIRST).next_power_of_two());
        Self { keys_max, era: false, is_moving: false, moved: 0, kept_bytes: 0 }
    }

    /// Returns an index of the present size.
    pub(crate) fn index(&self) -> Index {
        Index::with_room(self.keys_max)
    }

    /// Returns how many keys the index has room for.
    pub(crate) fn keys_max(&self) -> usize {
        self.keys_max
    }

    /// Returns how many bytes old indexes still have.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// Returns whether keys are being moved from an old index to a new one.
    #[inline(always)]
    pub(crate) fn is_moving(&self) -> bool {
        self.is_moving
    }

    /// Returns how many slots have been moved.
    #[cfg(test)]
    pub(crate) fn moved(&self) -> usize {
        self.moved
    }

    /// Returns the era of keys that come in now, to the new index if there are two.
    #[inline(always)]
    pub(crate) fn era(&self) -> bool {
        self.era
    }

    /// Returns the index in which the key of an entry stands.
    #[inline(always)]
    pub(crate) fn index_of<'t, M>(&self, tenant: &Tenant, table: &'t Table<M>) -> &'t Index {
        table.index_of(tenant.era != self.era)
    }

    /// Begins to move all keys to an index that has room for twice as many, as far as there are
    /// slots, and returns that index.
    pub(crate) fn begin(&mut self, slots: usize) -> Index {
        debug_assert!(!self.is_moving, "keys move to one index at a time");
        self.keys_max = (self.keys_max * 2).min(slots);
        self.era = !self.era;
        (self.is_moving, self.moved) = (true, 0);
        self.index()
    }

    /// Moves the keys of the next few of all slots from the old index to the new one. Returns
    /// whether those were the last, so that a table without the old index is to be published.
    /// `slot_at` says which slot the entry at a place has.
    pub(crate) fn advance<M>(
        &mut self,
        tenants: &mut [Tenant],
        table: &Table<M>,
        slot_at: impl Fn(u32) -> u32,
    ) -> bool {
        let old = table.index_of(true);
        let end = tenants.len().min(self.moved + MOVED_AT_ONCE);
        for (slot, tenant) in tenants.iter_mut().enumerate().take(end).skip(self.moved) {
            if tenant.is_some() && tenant.era != self.era {
                let is_it = |place| slot_at(place) == slot as u32;
                let (spot, place) = old.spot(tenant.hash, tenant.lane, is_it);
                let lane = table.index.insert(tenant.hash, place);
                old.remove(tenant.hash, spot); // after it has come to the new one: see `table`
                (tenant.lane, tenant.era) = (lane, self.era);
            }
        }
        self.moved = end;
        if end == tenants.len() {
            self.is_moving = false;
            self.kept_bytes += old.give_back(); // its table lives as long as the shard
        }
        !self.is_moving
    }
}
