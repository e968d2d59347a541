//! Addition, removal and growth of volumes, in one shard.

use super::{Shard, VolumeSize};
use crate::geometry::{SECTOR_BYTES, VolumeId};

impl Shard {
    /// Adds a volume, or changes the size of one.
    pub(crate) fn set_volume(&mut self, id: VolumeId, size: VolumeSize) {
        let at = id.0 as usize;
        self.volumes.resize(self.volumes.len().max(at + 1), VolumeSize { sectors: 0 });
        self.volumes[at] = size;
    }

    /// Returns the bytes of a volume that the backing device does not have.
    pub(crate) fn dirty_bytes(&self, id: VolumeId) -> u64 {
        let blocks = self.directory.dirty_blocks(id);
        let runs = blocks.flat_map(|block| self.directory.dirty_runs(block));
        let dirty = runs.map(|run| run.end - run.start).sum::<u64>();
        (dirty + self.held.count(id)) * SECTOR_BYTES // what is both is counted twice
    }

    /// Removes a volume without tasks, with all its data.
    pub(crate) fn remove_volume(&mut self, id: VolumeId) {
        debug_assert!(!self.tasks.is_using(id));
        self.note_volume_dropped(id);
        for group in self.directory.drop_volume(id) {
            let in_use = |block| {
                self.tasks.in_use(self.directory.volume(block), &self.directory.sectors(block))
            };
            if !self.directory.blocks_of(group).any(in_use) {
                self.directory.empty(group);
            }
        }
        self.held.remove_volume(id);
        self.note_round(id, false);
        self.lost.remove_volume(id);
        // fetches ordered for the volume become void
        self.set_volume(id, VolumeSize { sectors: 0 });
    }

    /// Drops the copy of a clean sector.
    pub(crate) fn forget_sector(&mut self, id: VolumeId, sector: u64) {
        if let Some(block) = self.directory.find(id, sector) {
            self.drop_clean_late(block, &(sector..sector + 1));
        }
    }
}
