//! Groups: each as large as the largest block, with blocks of one size side by side.

use std::collections::BTreeSet;

use floe_policy::{Access, Eviction, Lru, Ranked, Slot};

use super::blocks::Blocks;
use super::{Block, NOBODY, reserve_by_share};
use crate::geometry::{BlockSizes, Class, VolumeId};

/// Marks the absence of a slot.
const NONE: u32 = u32::MAX;

/// A partly filled group of a class and an owner.
#[derive(Debug, Clone, Copy)]
struct Open {
    group: u32,
    taken: u16,
}

/// A slot and a place for a new block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub(super) block: Block,
    /// The place, in smallest blocks from the start of the shard's space.
    pub(super) place: u32,
}

/// The groups of one shard, and their slots.
#[derive(Debug)]
pub(super) struct Groups {
    slots: Runs,
    /// First slot of each group's blocks.
    first_slots: Vec<u32>,
    /// Number of groups that have an address, in use or not.
    addressed: u32,
    /// Maximum number of groups that take space on the cache device: at most `addressed`.
    limit: u32,
    /// Free groups whose space on the cache device may hold old data.
    free: Vec<u32>,
    /// Free groups whose space was given back.
    returned: Vec<u32>,
    /// Groups above the limit that are being emptied: no block is made in them.
    leaving: Vec<u32>,
    /// Number of free groups whose space is being given back.
    discarding: u32,
    /// Partly filled group of each class, if there is one: of common groups, and behind them of
    /// those of each volume that has groups of its own.
    open: Vec<Option<Open>>,
    /// Number of block sizes.
    classes: usize,
    /// LRU of the groups in use; empty where all blocks are of one size, as there no choice between
    /// groups is needed.
    order: Lru,
    is_ordered: bool,
    /// Number of smallest blocks in a group.
    units: u32,
}

impl Groups {
    pub(super) fn new(sizes: &BlockSizes, limit: u32) -> Self {
        Self {
            slots: Runs::default(),
            first_slots: Vec::new(),
            addressed: limit,
            limit,
            free: Vec::new(),
            returned: Vec::new(),
            leaving: Vec::new(),
            discarding: 0,
            open: vec![None; sizes.count()],
            classes: sizes.count(),
            order: Lru::default(),
            is_ordered: sizes.count() > 1,
            units: (sizes.largest() / sizes.smallest()) as u32,
        }
    }

    /// Returns the smallest blocks that fit into all groups within the limit together.
    pub(super) fn capacity(&self) -> u64 {
        u64::from(self.limit) * u64::from(self.units)
    }

    /// Changes the limit, and adds addresses where there are too few. Groups above the limit are
    /// emptied by and by: see [`excess`](Self::excess).
    pub(super) fn resize(&mut self, limit: u32) {
        self.addressed = self.addressed.max(limit);
        self.limit = limit;
        self.leave_as_many_as_needed();
    }

    /// Adds all groups that were never used to the free ones.
    pub(super) fn claim_all(&mut self) {
        let unused = self.count()..self.addressed;
        self.first_slots.extend(unused.clone().map(|_| NONE));
        self.free.extend(unused.rev());
    }

    /// Ends the emptying of groups that need not leave any more.
    fn leave_as_many_as_needed(&mut self) {
        self.leaving.truncate(self.excess() as usize);
    }

    /// Returns the number of groups that have an address.
    pub(super) fn addresses(&self) -> u64 {
        self.addressed.into()
    }

    /// Returns the number of free groups whose space was not given back.
    pub(super) fn free_count(&self) -> u32 {
        self.free.len() as u32
    }

    /// Returns the number of smallest blocks in a group.
    pub(super) fn units(&self) -> u32 {
        self.units
    }

    /// Returns the number of groups that take space on the cache device.
    fn held(&self) -> u32 {
        self.count() - self.returned.len() as u32
    }

    /// Returns the number of groups above the limit whose space is not given back yet.
    pub(super) fn over(&self) -> u32 {
        self.held().saturating_sub(self.limit)
    }

    /// Returns the number of groups above the limit whose space is not being given back yet.
    pub(super) fn excess(&self) -> u32 {
        (self.held() - self.discarding).saturating_sub(self.limit)
    }

    /// Returns the groups that are being emptied.
    pub(super) fn leaving(&self) -> &[u32] {
        &self.leaving
    }

    /// Returns whether a place is in a group that is being emptied.
    pub(super) fn is_leaving(&self, place: u32) -> bool {
        !self.leaving.is_empty() && self.leaving.contains(&self.at(place))
    }

    /// Has a group emptied, which is full.
    pub(super) fn leave(&mut self, group: u32) {
        debug_assert!(!self.leaving.contains(&group));
        self.leaving.push(group);
    }

    /// Ends the emptying of a group.
    pub(super) fn stay(&mut self, group: u32) {
        self.leaving.retain(|&other| other != group);
    }

    /// Takes a free group whose space is to be given back, if groups above the limit have space.
    pub(super) fn take_excess(&mut self) -> Option<u32> {
        let group = if self.excess() > 0 { self.free.pop() } else { None };
        self.discarding += u32::from(group.is_some());
        self.leave_as_many_as_needed();
        group
    }

    /// Frees a group of [`take_excess`](Self::take_excess), whose space was given back.
    pub(super) fn returned(&mut self, group: u32) {
        self.discarding -= 1;
        self.returned.push(group);
    }

    /// Returns the class whose open group this is, of those of an owner, if it is one.
    pub(super) fn class_open_in(&self, group: u32, owner: VolumeId) -> Option<Class> {
        let is_it = |open: &Option<Open>| open.is_some_and(|open| open.group == group);
        self.open_of(owner).iter().position(is_it).map(|class| Class(class as u8))
    }

    /// Returns the number of the open group of an owner and a class.
    #[inline]
    fn open_number(&self, owner: VolumeId, class: Class) -> usize {
        let before = if owner == NOBODY { 0 } else { usize::from(owner.0) + 1 };
        before * self.classes + usize::from(class.0)
    }

    /// Returns the open groups of an owner, by class; those of a volume that never had one are left
    /// out.
    fn open_of(&self, owner: VolumeId) -> &[Option<Open>] {
        let first = self.open_number(owner, Class(0));
        self.open.get(first..first + self.classes).unwrap_or_default()
    }

    /// Returns whether an owner has a partly filled group of a class.
    #[inline]
    pub(super) fn is_open(&self, owner: VolumeId, class: Class) -> bool {
        self.open.get(self.open_number(owner, class)).is_some_and(Option::is_some)
    }

    /// Returns whether a group is free, or can be.
    #[inline]
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty() || self.held() < self.limit
    }

    /// Returns the number of groups that were ever used.
    pub(super) fn count(&self) -> u32 {
        self.first_slots.len() as u32
    }

    /// Returns the upper bound of the slots in use.
    pub(super) fn slots_end(&self) -> u32 {
        self.slots.end()
    }

    /// Returns whether there is room in common groups for a block of a class without an eviction.
    pub(super) fn has_room(&self, class: Class) -> bool {
        self.is_open(NOBODY, class) || self.has_free()
    }

    pub(super) fn blocks_of(
        &self,
        group: u32,
        blocks: &Blocks,
    ) -> impl Iterator<Item = Block> + use<> {
        let first = self.first_slots[group as usize];
        let opens = self.open_of(blocks.shares.owner(group));
        let open = opens.iter().flatten().find(|open| open.group == group);
        let count = match open {
            _ if first == NONE => 0,
            Some(open) => u32::from(open.taken),
            None => blocks.sizes().per_group(blocks.class(Slot(first))) as u32,
        };
        (first..first + count).map(Slot)
    }

    /// Returns the groups in use, the coldest first.
    pub(super) fn coldest_first(&self) -> impl Iterator<Item = u32> + '_ {
        self.order.coldest_first().map(|group| group.0)
    }

    /// Promotes the group that contains a place.
    #[inline]
    pub(super) fn touch(&mut self, place: u32) {
        if self.is_ordered {
            self.order.access(Slot(self.at(place)));
        }
    }

    /// Promotes a group.
    pub(super) fn promote(&mut self, group: u32) {
        if self.is_ordered {
            self.order.access(Slot(group));
        }
    }

    /// Returns the group with a place.
    pub(super) fn at(&self, place: u32) -> u32 {
        place / self.units
    }

    /// Takes the next place for a block of a class in a group of an owner, the open one or a free
    /// one, and promotes the group.
    ///
    /// # Panics
    /// When there is no room.
    pub(super) fn take(&mut self, owner: VolumeId, class: Class, sizes: &BlockSizes) -> Room {
        let number = self.open_number(owner, class);
        if self.open.len() <= number {
            self.open.resize(number + self.classes - usize::from(class.0), None);
        }
        let open = match self.open[number] {
            Some(open) => open,
            None => Open { group: self.take_free(sizes.per_group(class) as u32), taken: 0 },
        };
        let taken = open.taken + 1;
        let full = u64::from(taken) == sizes.per_group(class);
        self.open[number] = (!full).then_some(Open { taken, ..open });
        let size = (sizes.sectors(class) / sizes.smallest()) as u32;
        let place = open.group * self.units + u32::from(open.taken) * size;
        self.touch(place);
        Room { block: Slot(self.first_slots[open.group as usize] + u32::from(open.taken)), place }
    }

    /// Takes a free group that is to hold `blocks` blocks.
    fn take_free(&mut self, blocks: u32) -> u32 {
        let group = self.free.pop().or_else(|| self.returned.pop()).unwrap_or_else(|| {
            let group = self.count();
            assert!(group < self.addressed, "room was promised where there is none");
            reserve_by_share(&mut self.first_slots, group as usize + 1);
            self.first_slots.push(NONE);
            group
        });
        self.first_slots[group as usize] = self.slots.take(blocks);
        self.append(group);
        group
    }

    /// Moves a group to the most recently used end.
    fn append(&mut self, group: u32) {
        if self.is_ordered {
            self.order.reserve(self.first_slots.len());
            self.order.insert(Slot(group), &Access::new(u64::from(group)));
        }
    }

    /// Frees a group of an owner, whose blocks were of this class and are unmapped.
    pub(super) fn free(&mut self, group: u32, owner: VolumeId, class: Class, sizes: &BlockSizes) {
        let first = std::mem::replace(&mut self.first_slots[group as usize], NONE);
        self.slots.give_back(first, sizes.per_group(class) as u32);
        let number = self.open_number(owner, class);
        if let Some(open) = self.open.get_mut(number) {
            open.take_if(|open| open.group == group);
        }
        self.stay(group);
        if self.is_ordered {
            self.order.remove(Slot(group));
        }
        self.free.push(group);
    }

    /// Returns the class of the blocks of a group in use.
    pub(super) fn class(&self, group: u32, blocks: &Blocks) -> Class {
        blocks.class(Slot(self.first_slots[group as usize]))
    }

    /// Restores groups by their classes, all full; `None` is a free group. `order` lists the groups
    /// in use, the coldest first.
    pub(super) fn restore(&mut self, classes: &[Option<Class>], order: &[u32], sizes: &BlockSizes) {
        debug_assert!(self.first_slots.is_empty());
        for (group, class) in classes.iter().enumerate() {
            self.first_slots.push(match class {
                Some(class) => self.slots.take(sizes.per_group(*class) as u32),
                None => {
                    self.free.push(group as u32);
                    NONE
                }
            });
        }
        order.iter().for_each(|&group| self.append(group));
    }

    /// Returns the slot and the place of the block with this number in a group of blocks of
    /// `class`.
    pub(super) fn room(&self, group: u32, number: u64, class: Class, sizes: &BlockSizes) -> Room {
        let size = sizes.sectors(class) / sizes.smallest();
        let place = group * self.units + (number * size) as u32;
        Room { block: Slot(self.first_slots[group as usize] + number as u32), place }
    }

    /// Checks that each group without blocks is in one list, and that there are no more groups than
    /// addresses. Slow.
    pub(super) fn check(&self) {
        let idle = self.first_slots.iter().filter(|&&first| first == NONE).count();
        assert_eq!(idle, self.free.len() + self.returned.len() + self.discarding as usize);
        let is_idle = |group: &u32| self.first_slots[*group as usize] == NONE;
        assert!(self.free.iter().chain(&self.returned).all(is_idle));
        assert!(!self.leaving.iter().any(is_idle));
        assert!(self.limit <= self.addressed && self.count() <= self.addressed);
        assert!(self.leaving.len() as u32 <= self.excess());
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.first_slots.capacity() * size_of::<u32>()
            + (self.free.capacity() + self.returned.capacity()) * size_of::<u32>()
            + size_of_val(&self.open[self.classes..])
            + self.order.memory_bytes()
    }
}

/// Number of run lengths, the powers of two from 1 to 256: the smallest blocks in the largest
/// group.
const ORDERS: usize = 9;

/// Free runs of slots below an end that grows as needed.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    /// The first slots of free runs, by the binary logarithm of their length.
    free: [BTreeSet<u32>; ORDERS],
    /// Upper bound of the slots that were ever in use.
    end: u32,
}

impl Runs {
    /// Returns the upper bound of the slots that may be in use.
    pub(crate) fn end(&self) -> u32 {
        self.end
    }

    /// Takes a run of `len` slots and returns its first: the lowest that fits best.
    pub(crate) fn take(&mut self, len: u32) -> u32 {
        let order = order_of(len);
        let found = (order..ORDERS).find_map(|order| Some((order, self.free[order].pop_first()?)));
        let Some((mut from, first)) = found else { return self.extend(len) };
        while from > order {
            from -= 1;
            self.free[from].insert(first + (1 << from));
        }
        first
    }

    /// Takes a run beyond the end; slots skipped for alignment become free.
    fn extend(&mut self, len: u32) -> u32 {
        while !self.end.is_multiple_of(len) {
            let gap = 1 << self.end.trailing_zeros();
            self.end += gap;
            self.give_back(self.end - gap, gap);
        }
        self.end += len;
        self.end - len
    }

    /// Frees a run of slots.
    pub(crate) fn give_back(&mut self, mut first: u32, len: u32) {
        let mut order = order_of(len);
        while order + 1 < ORDERS && self.free[order].remove(&(first ^ (1 << order))) {
            first &= !(1 << order);
            order += 1;
        }
        self.free[order].insert(first);
    }
}

fn order_of(len: u32) -> usize {
    debug_assert!(len.is_power_of_two());
    len.trailing_zeros() as usize
}

#[cfg(test)]
mod runs_tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_never_overlap_and_heal(
            steps in proptest::collection::vec((0u32..9, any::<bool>(), any::<usize>()), 0..300),
        ) {
            let mut runs = Runs::default();
            let mut taken: Vec<(u32, u32)> = Vec::new();
            let mut most = 0;
            for (order, take, which) in steps {
                if take {
                    let len = 1 << order;
                    let first = runs.take(len);
                    prop_assert!(first.is_multiple_of(len) && first + len <= runs.end());
                    let is_apart = |start, other| first + len <= start || start + other <= first;
                    prop_assert!(taken.iter().all(|&(start, other)| is_apart(start, other)));
                    taken.push((first, len));
                    most = most.max(taken.iter().map(|(_, len)| len).sum::<u32>());
                } else if !taken.is_empty() {
                    let (first, len) = taken.swap_remove(which % taken.len());
                    runs.give_back(first, len);
                }
            }
            for (first, len) in taken.drain(..) {
                runs.give_back(first, len);
            }
            // With nothing in use, a long run can be had without growing, if there ever was room
            // for one.
            let end = runs.end();
            if end >= 512 {
                runs.take(256);
                prop_assert_eq!(runs.end(), end);
            }
        }
    }

    #[test]
    fn the_lowest_run_that_fits_best_is_taken() {
        let mut runs = Runs::default();
        assert_eq!([runs.take(1), runs.take(4), runs.take(1), runs.take(2)], [0, 4, 1, 2]);
        assert_eq!(runs.end(), 8);
        runs.give_back(4, 4);
        assert_eq!([runs.take(2), runs.take(4), runs.take(2)], [4, 8, 6]);
    }
}
