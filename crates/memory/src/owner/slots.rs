//! The slots of a shard: the entry in each, vacant slots, and their limit.

use std::collections::HashMap;
use std::ops::IndexMut;

use floe_policy::Slot;
use foldhash::fast::RandomState;

use crate::budget::Shape;
use crate::index::{Hash32, Index, Lane, Table, told_weight};

/// Stand-in for a weight that is kept apart, because it has more than 32 bits or all of those set.
const HEAVY: u32 = u32::MAX;

/// The entries of a shard by slot, which is their number in the policy order.
#[derive(Debug)]
pub(crate) struct Slots {
    tenants: Vec<Tenant>,
    /// Weights of entries. Empty until a weight other than 1 is set.
    weights: Vec<u32>,
    /// Weights of the entries for which [`HEAVY`] stands above, by slot.
    #[expect(clippy::box_collection, reason = "what every insertion reads lies beside it")]
    heavy: Option<Box<HashMap<u32, u64, RandomState>>>,
    vacant: Vec<u32>,
    /// Slots for which the policy order has room.
    reserved: usize,
    /// Slots that are needed at most; `None` if that is unknown.
    limit: Option<usize>,
    pinned: usize,
}

impl Slots {
    /// Creates the slots of a shard.
    pub(super) fn new(shape: &Shape) -> Self {
        Self {
            tenants: Vec::new(),
            weights: Vec::new(),
            heavy: None,
            vacant: Vec::new(),
            reserved: shape.slots_first(),
            limit: shape.slots,
            pinned: 0,
        }
    }

    /// Returns the number of slots that are or were in use.
    pub(crate) fn len(&self) -> u32 {
        self.tenants.len() as u32
    }

    /// Returns the number of slots for which the policy order has room.
    pub(super) fn reserved(&self) -> usize {
        self.reserved
    }

    /// Returns the number of pinned entries.
    pub(crate) fn pinned(&self) -> usize {
        self.pinned
    }

    /// Sets the number of slots that are needed at most; `None` if that is unknown.
    pub(super) fn set_limit(&mut self, limit: Option<usize>) {
        self.limit = limit;
    }

    /// Returns the number of slots to reserve once all are in use.
    pub(super) fn reserved_next(&self) -> usize {
        // A quarter at least, so that keys move to an index that has room for more than arrive
        // meanwhile, also where the limit is raised little by little.
        let least = self.reserved + self.reserved.div_ceil(4);
        let enough = self.limit.filter(|&limit| limit > self.reserved);
        let enough = enough.map_or(usize::MAX, |limit| limit.max(least));
        (self.reserved * 2).min(enough)
    }

    /// Returns the keys for which the index is to have room when there are `entries` entries.
    pub(super) fn keys_for(&self, entries: usize) -> usize {
        let wanted = self.limit.unwrap_or(2 * entries).max(entries + SLOTS_SPARE);
        wanted.min(self.reserved)
    }

    /// Returns the smaller of `slots` and the limit.
    pub(super) fn within_limit(&self, slots: usize) -> usize {
        self.limit.map_or(slots, |limit| slots.min(limit))
    }

    /// Sets the number of slots for which the policy order has room.
    pub(super) fn set_reserved(&mut self, slots: usize) {
        // No more than that: pushes would double it.
        self.tenants.reserve_exact(slots.saturating_sub(self.tenants.len()));
        self.reserved = slots;
    }

    /// Returns true if no slot can be [claimed](Self::claim).
    pub(super) fn are_all_in_use(&self) -> bool {
        self.vacant.is_empty() && self.tenants.len() == self.reserved
    }

    /// Takes a free slot for an entry to be inserted.
    pub(super) fn claim(&mut self) -> u32 {
        debug_assert!(!self.are_all_in_use());
        self.vacant.pop().unwrap_or_else(|| {
            self.tenants.push(Tenant::NONE);
            self.tenants.len() as u32 - 1
        })
    }

    /// Puts an entry with its weight into a slot, and returns the former one.
    #[inline(always)]
    pub(super) fn put(&mut self, slot: u32, tenant: Tenant, weight: u64) -> Tenant {
        self.set_weight(slot, weight);
        self.pinned += usize::from(tenant.is_pinned());
        let before = std::mem::replace(&mut self[slot], tenant);
        self.pinned -= usize::from(before.is_pinned());
        before
    }

    /// Removes the entry from a slot, which is free then.
    pub(super) fn vacate(&mut self, slot: u32) -> Tenant {
        self.vacant.push(slot);
        self.put(slot, Tenant::NONE, 1)
    }

    /// Returns the weight of the entry in a slot.
    #[inline(always)]
    pub(super) fn weight(&self, slot: u32) -> u64 {
        if self.weights.is_empty() { 1 } else { self.weight_noted(slot) }
    }

    #[inline(never)]
    fn weight_noted(&self, slot: u32) -> u64 {
        match self.weights.get(slot as usize) {
            Some(&HEAVY) => self.heavy.as_deref().expect("a heavy one is there")[&slot],
            weight => weight.copied().unwrap_or(1).into(),
        }
    }

    /// Sets the weight of the entry in a slot.
    #[inline(always)]
    pub(super) fn set_weight(&mut self, slot: u32, weight: u64) {
        if weight != 1 || !self.weights.is_empty() {
            self.note_weight(slot, weight);
        }
    }

    #[inline(never)]
    fn note_weight(&mut self, slot: u32, weight: u64) {
        if slot as usize >= self.weights.len() {
            self.weights.resize(self.tenants.len(), 1);
        }
        let (noted, told) = (&mut self.weights[slot as usize], told_weight(weight));
        if std::mem::replace(noted, told) == HEAVY || told == HEAVY {
            self.note_heavy(slot, weight);
        }
    }

    /// Sets or removes the weight of a slot that has, or had, a heavy entry.
    #[cold]
    fn note_heavy(&mut self, slot: u32, weight: u64) {
        let heavy = self.heavy.get_or_insert_default();
        if told_weight(weight) == HEAVY {
            heavy.insert(slot, weight);
        } else {
            heavy.remove(&slot);
        }
        if heavy.is_empty() {
            self.heavy = None;
        }
    }

    /// Returns the weights of all entries.
    pub(super) fn weights_in(&self) -> impl Iterator<Item = u64> {
        self.used().map(|slot| self.weight(slot))
    }

    /// Sets whether an entry is pinned, and updates the count.
    pub(super) fn set_pinned(&mut self, slot: u32, pinned: bool) {
        let before = self[slot].is_pinned();
        self[slot].set(PINNED, pinned);
        self.pinned = self.pinned + usize::from(pinned) - usize::from(before);
    }

    /// Returns the entry in a slot if the policy may evict or freeze it.
    #[inline(always)]
    pub(super) fn in_reach(&self, slot: Slot) -> Option<&Tenant> {
        self.tenants.get(slot.index()).filter(|tenant| tenant.is_in_reach())
    }

    /// Returns the entry in a slot, which may never have been in use.
    pub(crate) fn get(&self, slot: u32) -> Option<&Tenant> {
        self.tenants.get(slot as usize).filter(|tenant| tenant.is_some())
    }

    /// Returns the slots that have an entry.
    pub(super) fn used(&self) -> impl Iterator<Item = u32> {
        (0..self.len()).filter(|&slot| self[slot].is_some())
    }

    /// Returns all slots, including those without an entry.
    pub(super) fn all_mut(&mut self) -> &mut [Tenant] {
        &mut self.tenants
    }

    /// Removes all entries, at the end of the cache.
    pub(super) fn clear(&mut self) {
        self.tenants.clear();
    }

    /// Returns the bytes of memory held.
    pub(crate) fn memory_bytes(&self) -> usize {
        let numbers = self.weights.capacity() + self.vacant.capacity();
        let heavy = self.heavy.as_deref().map_or(0, HashMap::capacity);
        self.tenants.capacity() * size_of::<Tenant>()
            + numbers * size_of::<u32>()
            + heavy * size_of::<(u32, u64)>()
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

/// The entry in a slot: its hash, its lane in the index, and its state. It takes five bytes: the
/// index has the entry's place, and weights are kept separately where entries are weighed.
#[derive(Debug, Clone, Copy)]
#[repr(C, packed)]
pub(crate) struct Tenant {
    pub(crate) hash: Hash32,
    /// The lane of the entry in the index, and the flags below.
    state: u8,
}

/// Flag of a pinned entry.
const PINNED: u8 = 1 << 3;
/// Flag of a frozen entry.
const FROZEN: u8 = 1 << 4;
/// Flag with the era of the index that has the key, while keys are moved: the new index if it
/// equals [`IndexGrowth::era`].
const ERA: u8 = 1 << 5;
const _: () = assert!(Lane::BITS < PINNED, "flags are beside the lane");

impl Tenant {
    pub(crate) const NONE: Self = Self { hash: Hash32(0), state: Lane::NONE.bits() };

    /// Creates the record of an entry that is neither pinned nor frozen.
    #[inline(always)]
    pub(crate) fn new(hash: Hash32, lane: Lane, era: bool) -> Self {
        Self { hash, state: lane.bits() | if era { ERA } else { 0 } }
    }

    /// Returns the record with the entry pinned or not.
    #[inline(always)]
    pub(super) fn pinned(mut self, is_pinned: bool) -> Self {
        self.set(PINNED, is_pinned);
        self
    }

    /// Returns the lane of the entry in the index; [`Lane::NONE`] without an entry.
    #[inline(always)]
    pub(crate) fn lane(self) -> Lane {
        Lane::of_bits(self.state & Lane::BITS)
    }

    #[inline(always)]
    pub(crate) fn is_some(self) -> bool {
        self.lane() != Lane::NONE
    }

    #[inline(always)]
    pub(crate) fn is_pinned(self) -> bool {
        self.state & PINNED != 0
    }

    #[inline(always)]
    pub(crate) fn is_frozen(self) -> bool {
        self.state & FROZEN != 0
    }

    #[inline(always)]
    pub(crate) fn era(self) -> bool {
        self.state & ERA != 0
    }

    pub(super) fn set_frozen(&mut self, is_frozen: bool) {
        self.set(FROZEN, is_frozen);
    }

    #[inline(always)]
    fn set(&mut self, flag: u8, is_set: bool) {
        self.state = self.state & !flag | if is_set { flag } else { 0 };
    }

    /// Sets the lane of the entry in the index of this era.
    fn set_lane(&mut self, lane: Lane, era: bool) {
        self.state = self.state & !(Lane::BITS | ERA) | Self::new(self.hash, lane, era).state;
    }

    /// Returns true if the policy may evict or freeze the entry.
    #[inline(always)]
    pub(super) fn is_in_reach(self) -> bool {
        self.is_some() && self.state & (PINNED | FROZEN) == 0
    }
}

/// Room that an index of the least size has for more keys than there are.
const SLOTS_SPARE: usize = 16;
/// Maximum number of keys for which the first index of a shard has room.
const KEYS_FIRST: usize = 1024;
/// Number of slots whose keys one insertion moves while the index grows.
pub(crate) const MOVED_AT_ONCE: usize = 16;

/// The size of the index, and the progress of a move to a larger one.
#[derive(Debug)]
pub(crate) struct IndexGrowth {
    /// Keys for which the index has room. It grows with the number of entries, as a larger index
    /// has more cache misses.
    keys_max: usize,
    /// Flag that flips with each new index, to distinguish its keys from those in the old one.
    era: bool,
    is_moving: bool,
    /// Number of slots, from the first, whose keys have been moved.
    moved: usize,
    /// Bytes of old indexes that could not be given back to the system.
    kept_bytes: usize,
}

impl IndexGrowth {
    /// Creates the first index size of a shard that starts with this many slots.
    pub(crate) fn new(slots: usize) -> Self {
        // So that it is as many as slots after some doublings: see `Owner::grow`.
        let keys_max = slots.div_ceil(slots.div_ceil(KEYS_FIRST).next_power_of_two());
        Self { keys_max, era: false, is_moving: false, moved: 0, kept_bytes: 0 }
    }

    /// Creates an index of the present size.
    pub(crate) fn index(&self) -> Index {
        Index::with_room(self.keys_max)
    }

    /// Returns the number of keys for which the index has room.
    pub(crate) fn keys_max(&self) -> usize {
        self.keys_max
    }

    /// Returns the bytes that old indexes still occupy.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// Returns true while keys are being moved from an old index to a new one.
    #[inline(always)]
    pub(crate) fn is_moving(&self) -> bool {
        self.is_moving
    }

    /// Returns the number of slots whose keys have been moved.
    #[cfg(test)]
    pub(crate) fn moved(&self) -> usize {
        self.moved
    }

    /// Returns the era of keys that are inserted now.
    #[inline(always)]
    pub(crate) fn era(&self) -> bool {
        self.era
    }

    /// Returns the index that has the key of an entry.
    #[inline(always)]
    pub(crate) fn index_of<'t, M>(&self, tenant: &Tenant, table: &'t Table<M>) -> &'t Index {
        table.index_of(tenant.era() != self.era)
    }

    /// Returns the keys for which the next larger index has room, given the number of slots.
    pub(crate) fn doubled(&self, slots: usize) -> usize {
        (self.keys_max * 2).min(slots)
    }

    /// Begins to move all keys to an index with room for `keys_max` keys, and returns it.
    pub(crate) fn begin(&mut self, keys_max: usize) -> Index {
        debug_assert!(!self.is_moving, "keys move to one index at a time");
        self.keys_max = keys_max;
        self.era = !self.era;
        (self.is_moving, self.moved) = (true, 0);
        self.index()
    }

    /// Moves the keys of the next few slots from the old index to the new one. Returns true after
    /// the last slot: then a table without the old index must be published. `slot_at` returns the
    /// slot of the entry at a place.
    pub(crate) fn advance<M>(
        &mut self,
        tenants: &mut [Tenant],
        table: &Table<M>,
        slot_at: impl Fn(u32) -> u32,
    ) -> bool {
        let old = table.index_of(true);
        let end = tenants.len().min(self.moved + MOVED_AT_ONCE);
        for (slot, tenant) in tenants.iter_mut().enumerate().take(end).skip(self.moved) {
            if tenant.is_some() && tenant.era() != self.era {
                let is_it = |place| slot_at(place) == slot as u32;
                let (spot, place) = old.spot(tenant.hash, tenant.lane(), is_it);
                let lane = table.index.insert(tenant.hash, place);
                old.remove(spot); // after it has come to the new one: see `table`
                tenant.set_lane(lane, self.era);
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
        Tenant::new(Hash32(hash), Lane::FIRST, false).pinned(pinned)
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
        assert_eq!({ slots.vacate(0).hash }, Hash32(8));
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
    fn weights_of_more_than_32_bits_are_kept_apart_while_they_are_there() {
        let mut slots = slots(4);
        let weights = [7, u64::from(u32::MAX) - 1, u32::MAX.into(), 5 << 30];
        for weight in weights {
            let slot = slots.claim();
            slots.put(slot, tenant(slot, false), weight);
        }
        assert_eq!(slots.weights_in().collect::<Vec<_>>(), weights);
        slots.set_weight(3, 6 << 30);
        slots.set_weight(0, 1 << 40);
        slots.set_weight(2, 2);
        assert_eq!(slots.weights_in().collect::<Vec<_>>(), [1 << 40, weights[1], 2, 6 << 30]);
        slots.vacate(0);
        slots.vacate(3);
        assert_eq!(slots.weights_in().collect::<Vec<_>>(), [weights[1], 2]);
        assert!(slots.heavy.is_none());
        let slot = slots.claim();
        slots.put(slot, tenant(slot, false), 3);
        assert_eq!(slots.weight(slot), 3);
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
    fn slots_double_to_exactly_the_limit_that_was_set_at_first() {
        for limit in [1, 16, 17, 31, 33, 320, 1100, 20_000, 131_073] {
            let mut slots = slots(limit);
            assert!(slots.reserved() <= 16, "{limit}");
            while slots.reserved() < limit {
                let before = slots.reserved();
                slots.set_reserved(slots.reserved_next());
                assert!(slots.reserved() * 4 >= before * 5, "{limit}: {before}");
            }
            assert_eq!(slots.reserved(), limit);
        }
    }

    #[test]
    fn slots_double_up_to_the_limit_and_grow_by_a_quarter_beyond() {
        let mut slots = slots(128);
        assert_eq!(slots.reserved(), 16);
        for (limit, expected) in [(56, 32), (56, 56), (57, 70), (usize::MAX, 140)] {
            slots.set_limit(Some(limit).filter(|&limit| limit < usize::MAX));
            slots.set_reserved(slots.reserved_next());
            assert_eq!(slots.reserved(), expected);
        }
    }
}
