//! The slots of a shard: the entry in each, those that are vacant, and how many there may be.

use std::ops::IndexMut;

use floe_policy::Slot;

use crate::budget::Shape;
use crate::index::{Hash32, Index, Lane, Table};

/// The entries of a shard by the slots in which its order knows them.
#[derive(Debug)]
pub(crate) struct Slots {
    tenants: Vec<Tenant>,
    /// Weights of entries, kept once one is not 1.
    weights: Vec<u32>,
    vacant: Vec<u32>,
    /// Slots that the order has room for.
    reserved: usize,
    /// Slots that it is to have room for, if that is known.
    limit: Option<usize>,
    pinned: usize,
}

impl Slots {
    /// For the shard of a shape.
    pub(super) fn new(shape: &Shape) -> Self {
        Self {
            tenants: Vec::new(),
            weights: Vec::new(),
            vacant: Vec::new(),
            reserved: shape.slots_first(),
            limit: shape.slots,
            pinned: 0,
        }
    }

    /// Returns how many slots are or were in use.
    pub(crate) fn len(&self) -> u32 {
        self.tenants.len() as u32
    }

    /// Returns how many slots the order has room for.
    pub(super) fn reserved(&self) -> usize {
        self.reserved
    }

    /// Returns how many entries are pinned.
    pub(crate) fn pinned(&self) -> usize {
        self.pinned
    }

    /// Sets how many slots there are to be in the end, if that is known.
    pub(super) fn set_limit(&mut self, limit: Option<usize>) {
        self.limit = limit;
    }

    /// Returns how many slots the order is to have room for once all are in use.
    pub(super) fn reserved_next(&self) -> usize {
        // A quarter at least, so that keys move to an index that has room for more than arrive
        // meanwhile, also where the limit is raised little by little.
        let least = self.reserved + self.reserved.div_ceil(4);
        let enough = self.limit.filter(|&limit| limit > self.reserved);
        let enough = enough.map_or(usize::MAX, |limit| limit.max(least));
        (self.reserved * 2).min(enough)
    }

    /// Returns so many slots, or the limit if that is less.
    pub(super) fn within_limit(&self, slots: usize) -> usize {
        self.limit.map_or(slots, |limit| slots.min(limit))
    }

    /// Notes that the order has room for so many slots.
    pub(super) fn set_reserved(&mut self, slots: usize) {
        self.reserved = slots;
    }

    /// Returns whether no slot can be [claimed](Self::claim).
    pub(super) fn are_all_in_use(&self) -> bool {
        self.vacant.is_empty() && self.tenants.len() == self.reserved
    }

    /// Takes a slot for an entry that comes in.
    pub(super) fn claim(&mut self) -> u32 {
        debug_assert!(!self.are_all_in_use());
        self.vacant.pop().unwrap_or_else(|| {
            self.tenants.push(Tenant::NONE);
            self.tenants.len() as u32 - 1
        })
    }

    /// Puts an entry of some weight into a slot, and returns the one that was there.
    #[inline(always)]
    pub(super) fn put(&mut self, slot: u32, tenant: Tenant, weight: u32) -> Tenant {
        self.set_weight(slot, weight);
        self.pinned += usize::from(tenant.pinned);
        let before = std::mem::replace(&mut self[slot], tenant);
        self.pinned -= usize::from(before.pinned);
        before
    }

    /// Takes the entry out of a slot, which another may claim then.
    pub(super) fn vacate(&mut self, slot: u32) -> Tenant {
        self.vacant.push(slot);
        self.put(slot, Tenant::NONE, 1)
    }

    /// Returns the weight of the entry in a slot.
    #[inline(always)]
    pub(super) fn weight(&self, slot: u32) -> u32 {
        if self.weights.is_empty() { 1 } else { self.weight_noted(slot) }
    }

    #[inline(never)]
    fn weight_noted(&self, slot: u32) -> u32 {
        self.weights.get(slot as usize).copied().unwrap_or(1)
    }

    /// Gives the entry in a slot another weight.
    #[inline(always)]
    pub(super) fn set_weight(&mut self, slot: u32, weight: u32) {
        if weight != 1 || !self.weights.is_empty() {
            self.note_weight(slot, weight);
        }
    }

    #[inline(never)]
    fn note_weight(&mut self, slot: u32, weight: u32) {
        if slot as usize >= self.weights.len() {
            self.weights.resize(self.tenants.len(), 1);
        }
        self.weights[slot as usize] = weight;
    }

    /// Returns the weights of all entries.
    pub(super) fn weights_in(&self) -> impl Iterator<Item = u32> {
        self.used().map(|slot| self.weight(slot))
    }

    /// Notes whether an entry is pinned.
    pub(super) fn set_pinned(&mut self, slot: u32, pinned: bool) {
        let before = std::mem::replace(&mut self[slot].pinned, pinned);
        self.pinned = self.pinned + usize::from(pinned) - usize::from(before);
    }

    /// Returns the entry in a slot that the order may evict or freeze, if there is one.
    #[inline(always)]
    pub(super) fn in_reach(&self, slot: Slot) -> Option<&Tenant> {
        self.tenants.get(slot.index()).filter(|tenant| tenant.is_in_reach())
    }

    /// Returns the entry in a slot, which need not have been in use.
    pub(crate) fn get(&self, slot: u32) -> Option<&Tenant> {
        self.tenants.get(slot as usize).filter(|tenant| tenant.is_some())
    }

    /// Returns the slots of all entries.
    pub(super) fn used(&self) -> impl Iterator<Item = u32> {
        (0..self.len()).filter(|&slot| self[slot].is_some())
    }

    /// Returns all slots, those without an entry included.
    pub(super) fn all_mut(&mut self) -> &mut [Tenant] {
        &mut self.tenants
    }

    /// Forgets all entries, for the end.
    pub(super) fn clear(&mut self) {
        self.tenants.clear();
    }

    /// Bytes of memory held.
    pub(super) fn memory_bytes(&self) -> usize {
        let numbers = self.weights.capacity() + self.vacant.capacity();
        self.tenants.capacity() * size_of::<Tenant>() + numbers * size_of::<u32>()
    }
}

impl std::ops::Index<u32> for Slots {
    type Output = Tenant;

    #[inline(always)]
    fn index(&self, slot: u32) -> &Tenant {
        &self.tenants[slot as usize]
    }
}

impl IndexMut<u32> for Slots {
    #[inline(always)]
    fn index_mut(&mut self, slot: u32) -> &mut Tenant {
        &mut self.tenants[slot as usize]
    }
}

/// The entry in a slot: its hash, its lane in the index, and its state. Eight bytes: the index
/// says where the entry lies, and weights are kept apart where entries are weighed.
#[derive(Debug)]
pub(crate) struct Tenant {
    pub(crate) hash: Hash32,
    /// Where it stands in the index; [`Lane::NONE`] when there is no entry.
    pub(crate) lane: Lane,
    pub(crate) pinned: bool,
    pub(crate) frozen: bool,
    /// In which of two indexes it stands while keys are moved: in the new one if this is the
    /// owner's.
    pub(crate) era: bool,
}

impl Tenant {
    pub(crate) const NONE: Self =
        Self { hash: Hash32(0), lane: Lane::NONE, pinned: false, frozen: false, era: false };

    #[inline(always)]
    pub(crate) fn is_some(&self) -> bool {
        self.lane != Lane::NONE
    }

    /// Returns whether the order may evict or freeze it.
    #[inline(always)]
    pub(super) fn is_in_reach(&self) -> bool {
        self.is_some() && !(self.pinned | self.frozen)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Amount;
    use crate::index::{Hash32, Lane};

    fn slots(limit: usize) -> Slots {
        let (shards, batch, batch_weight) = (1, 16, 16);
        let unlimited = Amount::default();
        let slots = Some(limit);
        Slots::new(&Shape { slots, shards, batch, batch_weight, capacity: 1, unlimited })
    }

    fn tenant(hash: u32, pinned: bool) -> Tenant {
        Tenant { hash: Hash32(hash), lane: Lane::FIRST, pinned, ..Tenant::NONE }
    }

    #[test]
    fn a_vacant_slot_is_claimed_before_a_new_one() {
        let mut slots = slots(2);
        for (expected, hash) in [(0, 8), (1, 16)] {
            let slot = slots.claim();
            assert_eq!(slot, expected);
            slots.put(slot, tenant(hash, false), 1);
        }
        assert!(slots.are_all_in_use());
        assert_eq!(slots.vacate(0).hash, Hash32(8));
        assert!(slots.get(0).is_none());
        assert_eq!(slots.used().collect::<Vec<_>>(), [1]);
        assert!(!slots.are_all_in_use());
        assert_eq!((slots.claim(), slots.len()), (0, 2));
    }

    #[test]
    fn weights_are_kept_from_the_first_that_is_not_1() {
        let mut slots = slots(4);
        for weight in [1, 1, 5, 2] {
            let slot = slots.claim();
            slots.put(slot, tenant(slot, false), weight);
        }
        assert_eq!(slots.weights_in().collect::<Vec<_>>(), [1, 1, 5, 2]);
        slots.vacate(2);
        assert_eq!(slots.weights_in().collect::<Vec<_>>(), [1, 1, 2]);
        let slot = slots.claim();
        slots.put(slot, tenant(slot, false), 1);
        slots.set_weight(3, 1);
        assert!((0..4).all(|slot| slots.weight(slot) == 1));
    }

    #[test]
    fn pinned_entries_are_counted_and_out_of_reach() {
        let mut slots = slots(4);
        for hash in [8, 16] {
            let slot = slots.claim();
            slots.put(slot, tenant(hash, true), 1);
        }
        assert_eq!(slots.pinned(), 2);
        assert!(slots.in_reach(Slot(0)).is_none());
        slots.set_pinned(0, false);
        assert_eq!(slots.pinned(), 1);
        assert!(slots.in_reach(Slot(0)).is_some());
        slots.put(1, tenant(24, false), 1);
        assert_eq!(slots.pinned(), 0);
        slots.set_pinned(0, true);
        slots.vacate(0);
        assert_eq!(slots.pinned(), 0);
        assert!(slots.in_reach(Slot(0)).is_none() && slots.in_reach(Slot(9)).is_none());
    }

    #[test]
    fn slots_double_up_to_the_limit_and_grow_by_a_quarter_beyond() {
        let mut slots = slots(100);
        assert_eq!(slots.reserved(), 16);
        for (limit, expected) in [(56, 32), (56, 56), (57, 70), (usize::MAX, 140)] {
            slots.set_limit(Some(limit).filter(|&limit| limit < usize::MAX));
            slots.set_reserved(slots.reserved_next());
            assert_eq!(slots.reserved(), expected);
        }
    }
}
