//! Addition, removal and growth of volumes while a cache runs.
//!
//! Each change is made in every part; a part that refuses has changed nothing, and can be asked
//! again.

use super::BlockCache;
use crate::geometry::{SECTOR_BYTES, VolumeId};
use crate::volumes::VolumeError;

impl BlockCache {
    /// Adds a volume of this many bytes under the lowest free id. To be done in all parts alike,
    /// and only when every removal has been done in all of them.
    ///
    /// # Panics
    /// With more than 65,536 volumes, or a volume of more than half an exbibyte.
    pub fn add_volume(&mut self, bytes: u64) -> VolumeId {
        let id = self.volumes.add(bytes);
        self.shards.set_volume(id, bytes);
        id
    }

    /// Adds a volume with a free id: the one that it had when a persistent cache was last used.
    ///
    /// # Panics
    /// When the id is not free, or the volume has more than half an exbibyte.
    pub fn add_volume_at(&mut self, id: VolumeId, bytes: u64) {
        self.volumes.add_at(id, bytes);
        self.shards.set_volume(id, bytes);
    }

    /// Removes a volume with all its cached data, and frees its id. To be done in all parts alike,
    /// once the volume is idle in all of them. Walks all groups of the cache. With `discard`, dirty
    /// data is lost; without, a flush must come before.
    ///
    /// # Errors
    /// When there is no such volume, something is under way for it in this part, or it has dirty
    /// data here that is not to be discarded.
    pub fn remove_volume(&mut self, id: VolumeId, discard: bool) -> Result<(), VolumeError> {
        self.volumes.bytes(id).ok_or(VolumeError::Unknown)?;
        let asked_for = self.joins.iter().flatten().any(|join| join.request.volume == id);
        if asked_for || self.shards.iter().any(|shard| shard.parts.tasks.is_using(id)) {
            return Err(VolumeError::Busy);
        }
        let dirty = self.shards.iter().map(|shard| shard.parts.map.dirty_bytes(id)).sum();
        if dirty > 0 && !discard {
            return Err(VolumeError::Dirty(dirty));
        }
        self.shards.each().for_each(|shard| shard.remove_volume(id));
        self.volumes.remove(id);
        Ok(())
    }

    /// Grows a volume to this many bytes; to be done in all parts alike, after its backing device
    /// has grown. Requests may be under way, but where the old size ends within a sector, that
    /// sector has to be idle in all parts. Data written to that sector before the growth ends in
    /// zeros, so its new bytes may read as zeros whatever the backing device had there.
    ///
    /// # Errors
    /// When there is no such volume, it would shrink or be too large, or the sector that its old
    /// end cuts is in use here.
    pub fn resize_volume(&mut self, id: VolumeId, bytes: u64) -> Result<(), VolumeError> {
        if let Some(cut) = self.volumes.may_grow(id, bytes)? {
            let asked_for =
                self.joins.iter().flatten().any(|join| join.reaches(id, cut * SECTOR_BYTES));
            if asked_for
                || self.shards.iter().any(|shard| shard.parts.tasks.in_use(id, &(cut..cut + 1)))
            {
                return Err(VolumeError::Busy);
            }
            self.shards.each().for_each(|shard| shard.forget_sector(id, cut));
        }
        self.volumes.resize(id, bytes);
        self.shards.set_volume(id, bytes);
        Ok(())
    }
}
