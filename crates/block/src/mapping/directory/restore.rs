//! Restores a directory to its content when the cache was last used.

use super::Directory;
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
        let group_sectors = self.blocks.sizes().largest();
        let group_of = |place: u64| (place / group_sectors) as usize;
        let groups = blocks.iter().map(|block| group_of(block.at.place) + 1).max().unwrap_or(0);
        let mut classes: Vec<Option<Class>> = vec![None; groups];
        let mut last_used = vec![0; groups];
        for (at, block) in blocks.iter().enumerate() {
            let Sectors { start, end } = block.at.sectors;
            let group = group_of(block.at.place);
            classes[group] = Some(self.blocks.sizes().class(end - start));
            last_used[group] = at;
        }
        let in_use = (0..groups as u32).filter(|&group| classes[group as usize].is_some());
        let mut order: Vec<u32> = in_use.collect();
        order.sort_unstable_by_key(|&group| last_used[group as usize]);
        self.groups.restore(&classes, &order, self.blocks.sizes());
        self.reserve_slots();
        for (group, class) in classes.iter().enumerate() {
            if let Some(class) = class {
                self.restore_group(group as u32, *class);
            }
        }
        for block in blocks {
            self.fill_hole(group_of(block.at.place) as u32, block);
        }
    }

    /// Makes a group consist of holes.
    fn restore_group(&mut self, group: u32, class: Class) {
        let (size, units) = (self.blocks.sizes().sectors(class), self.blocks.sizes().smallest());
        for number in 0..self.blocks.sizes().per_group(class) {
            let room = self.groups.room(group, number, class, self.blocks.sizes());
            let hole = Extent::new(NOBODY, u64::from(room.place) * units, size);
            self.blocks.put(room.block, room.place);
            self.blocks.map(room.block, hole);
            self.order.insert(room.block, &self.blocks.access(room.block));
        }
    }

    /// Puts a block in place of a hole.
    fn fill_hole(&mut self, group: u32, block: &RestoredBlock) {
        let Sectors { start, end } = block.at.sectors;
        let (class, group_sectors) =
            (self.blocks.sizes().class(end - start), self.blocks.sizes().largest());
        let number = block.at.place % group_sectors / (end - start);
        let slot = self.groups.room(group, number, class, self.blocks.sizes()).block;
        self.blocks.unmap(slot);
        self.blocks.map(slot, Extent::new(block.at.volume, start, end - start));
        self.order.remove(slot);
        self.order.insert(slot, &self.blocks.access(slot));
        block.valid.iter().for_each(|run| self.blocks.set_clean(slot, run));
        block.dirty.iter().for_each(|run| self.blocks.set_dirty(slot, run));
    }
}
