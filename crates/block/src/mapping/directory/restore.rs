//! Restores a directory to its content when the cache was last used.

use floe_policy::{Access, Eviction, Slot};

use super::{Block, Directory, NONE, arrival};
use crate::geometry::{Class, Extent, Sectors, VolumeId};
use crate::store::journal::RestoredBlock;

/// The volume of blocks that only fill the holes of a group: a block is removed only with its
/// place, so groups have no holes. These blocks have no data, and are replaced first.
pub(crate) const NOBODY: VolumeId = VolumeId(u16::MAX);

impl Directory {
    /// Fills an empty directory; its order receives the blocks in the order of eviction. The blocks
    /// are given from the coldest to the hottest. They do not overlap, neither in their volumes nor
    /// in their places, and those of a group are of one size.
    pub(crate) fn restore(&mut self, blocks: &[RestoredBlock]) {
        debug_assert!(self.first_slots.is_empty());
        let group_sectors = self.sizes.largest();
        let group_of = |place: u64| (place / group_sectors) as usize;
        let groups = blocks.iter().map(|block| group_of(block.at.place) + 1).max().unwrap_or(0);
        let mut classes: Vec<Option<Class>> = vec![None; groups];
        let mut last_used = vec![0; groups];
        for (at, block) in blocks.iter().enumerate() {
            let Sectors { start, end } = block.at.sectors;
            let group = group_of(block.at.place);
            classes[group] = Some(self.sizes.class(end - start));
            last_used[group] = at;
        }
        self.first_slots = vec![NONE; groups];
        for (group, class) in classes.iter().enumerate() {
            match class {
                Some(class) => self.restore_group(group as u32, *class),
                None => self.free_groups.push(group as u32),
            }
        }
        for block in blocks {
            let group = group_of(block.at.place);
            let size = block.at.sectors.end - block.at.sectors.start;
            let number = block.at.place % self.sizes.largest() / size;
            self.fill_hole(Slot(self.first_slots[group] + number as u32), block);
        }
        if self.grouped() {
            self.group_order.reserve(groups);
            let mut used: Vec<usize> =
                (0..groups).filter(|&group| classes[group].is_some()).collect();
            used.sort_unstable_by_key(|&group| last_used[group]);
            for group in used {
                self.group_order.insert(Slot(group as u32), &Access::new(group as u64));
            }
        }
    }

    /// Creates a group that consists of holes.
    fn restore_group(&mut self, group: u32, class: Class) {
        let (size, count) = (self.sizes.sectors(class), self.sizes.per_group(class));
        let first = self.slots.take(count as u32);
        self.first_slots[group as usize] = first;
        self.reserve_slots();
        for number in 0..count {
            let block = Slot(first + number as u32);
            let place = u64::from(group) * self.sizes.largest() + number * size;
            self.extents[block.index()] = Extent::new(NOBODY, place, size);
            self.places[block.index()] = (place / self.sizes.smallest()) as u32;
            self.map(block, class);
            self.block_order.insert(block, &arrival(&self.sizes, self.extents[block.index()]));
        }
    }

    /// Puts a block in place of a hole.
    fn fill_hole(&mut self, slot: Block, block: &RestoredBlock) {
        let Sectors { start, end } = block.at.sectors;
        self.unmap(slot);
        self.extents[slot.index()] = Extent::new(block.at.volume, start, end - start);
        self.map(slot, self.sizes.class(end - start));
        self.block_order.remove(slot);
        self.block_order.insert(slot, &arrival(&self.sizes, self.extents[slot.index()]));
        block.valid.iter().for_each(|run| self.set_clean(slot, run));
        block.dirty.iter().for_each(|run| self.set_dirty(slot, run));
    }

    /// Returns all blocks, the coldest first.
    pub(crate) fn by_heat(&self) -> Vec<Block> {
        self.block_order.by_heat()
    }
}
