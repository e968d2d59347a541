//! Groups: room for blocks, and its release.

use super::order::VICTIMS_TRIED;
use super::{Block, Directory, NONE, Open, Room, arrival, reserve_by_share};
use crate::geometry::{Class, Extent, Sectors, VolumeId};
use floe_policy::{Access, Eviction, Ranked, Slot};

impl Directory {
    /// Finds room for a block of `class` that begins at a sector, without taking a block for which
    /// `in_use` holds. Returns `None` when everything cold is in use.
    pub(crate) fn room(
        &mut self,
        volume: VolumeId,
        start: u64,
        class: Class,
        in_use: impl Fn(VolumeId, &Sectors) -> bool,
    ) -> Option<Room> {
        if self.open[class.0 as usize].is_some() || self.has_free_group() {
            return Some(Room::Free);
        }
        let incoming = arrival(&self.sizes, Extent::new(volume, start, self.sizes.sectors(class)));
        let extents = &self.extents;
        let in_use = |block: Block| {
            let extent = extents[block.index()];
            in_use(extent.volume(), &extent.sectors())
        };
        match self.block_order.coldest(Some(&incoming), in_use) {
            Some(block) if self.class(block) == class => Some(Room::Replace(block)),
            _ => {
                let idle = |group: &Slot| !self.blocks_of(group.0).any(in_use);
                self.group_order
                    .coldest_first()
                    .take(VICTIMS_TRIED)
                    .find(idle)
                    .map(|group| Room::Empty(group.0))
            }
        }
    }

    pub(super) fn has_free_group(&self) -> bool {
        !self.free_groups.is_empty() || self.first_slots.len() < self.group_limit as usize
    }

    /// Returns whether a smallest block could only be made in place of another.
    pub(crate) fn is_full(&self) -> bool {
        self.open[0].is_none() && !self.has_free_group()
    }

    /// Returns the block that a smallest one would evict; `None` while there is room.
    pub(crate) fn coldest_if_full(&mut self) -> Option<Block> {
        if !self.is_full() {
            return None;
        }
        self.block_order.coldest(None, |_| false)
    }

    /// Returns the blocks of a group.
    pub(crate) fn blocks_of(&self, group: u32) -> impl Iterator<Item = Block> + use<> {
        let first = self.first_slots[group as usize];
        let open = self.open.iter().flatten().find(|open| open.group == group);
        let count = match open {
            _ if first == NONE => 0,
            Some(open) => u32::from(open.taken),
            None => self.sizes.per_group(self.class(Slot(first))) as u32,
        };
        (first..first + count).map(Slot)
    }

    /// Returns the blocks that are evicted to make this room.
    pub(crate) fn victims(&self, room: Room) -> impl Iterator<Item = Block> + '_ {
        let (block, group) = match room {
            Room::Free => (None, None),
            Room::Replace(block) => (Some(block), None),
            Room::Empty(group) => (None, Some(group)),
        };
        block.into_iter().chain(group.into_iter().flat_map(|group| self.blocks_of(group)))
    }

    /// Takes the next place in the open group of a class: the group and the number of the block
    /// within it.
    pub(super) fn take_from_open_group(&mut self, class: Class) -> (u32, u16) {
        let open = match self.open[class.0 as usize] {
            Some(open) => open,
            None => Open { group: self.open_group(class), taken: 0 },
        };
        let taken = open.taken + 1;
        let full = u64::from(taken) == self.sizes.per_group(class);
        self.open[class.0 as usize] = (!full).then_some(Open { taken, ..open });
        (open.group, open.taken)
    }

    pub(super) fn open_group(&mut self, class: Class) -> u32 {
        let group = self.free_groups.pop().unwrap_or_else(|| {
            let group = self.first_slots.len() as u32;
            assert!(group < self.group_limit, "room was promised where there is none");
            reserve_by_share(&mut self.first_slots, group as usize + 1);
            self.first_slots.push(NONE);
            group
        });
        self.first_slots[group as usize] = self.slots.take(self.sizes.per_group(class) as u32);
        self.reserve_slots();
        if self.grouped() {
            self.group_order.reserve(self.first_slots.len());
            self.group_order.insert(Slot(group), &Access::new(u64::from(group)));
        }
        group
    }

    /// Removes every block of a group and makes the group free.
    pub(crate) fn empty(&mut self, group: u32) {
        let first = self.first_slots[group as usize];
        let class = self.class(Slot(first));
        for block in self.blocks_of(group) {
            self.unmap(block);
            self.block_order.remove(block);
        }
        self.slots.give_back(first, self.sizes.per_group(class) as u32);
        for open in &mut self.open {
            open.take_if(|open| open.group == group);
        }
        self.first_slots[group as usize] = NONE;
        if self.grouped() {
            self.group_order.remove(Slot(group));
        }
        self.free_groups.push(group);
    }

    /// Drops all data of a volume, dirty or not, and returns its groups that now hold no data at
    /// all. Its blocks in other groups stay, empty, until they are the coldest, as after a trim.
    /// They do no harm to a volume that gets the same id: they spare it an allocation.
    pub(crate) fn drop_volume(&mut self, volume: VolumeId) -> Vec<u32> {
        let mut emptied = Vec::new();
        for group in 0..self.first_slots.len() as u32 {
            let (mut was_in, mut holds_data) = (false, false);
            for block in self.blocks_of(group) {
                let sectors = self.sectors(block);
                if self.volume(block) == volume {
                    self.set_invalid(block, &sectors);
                    was_in = true;
                }
                holds_data |= self.valid.any(self.cache_sectors(block, &sectors));
            }
            if was_in && !holds_data {
                emptied.push(group);
            }
        }
        emptied
    }

    /// Returns the blocks of a volume, found by a walk over all blocks.
    pub(crate) fn blocks_of_volume(&self, volume: VolumeId) -> Vec<Block> {
        let groups = 0..self.first_slots.len() as u32;
        let blocks = groups.flat_map(|group| self.blocks_of(group));
        blocks.filter(|&block| self.volume(block) == volume).collect()
    }
}
