//! The volumes of a tier, in its cache and in its memory.

use super::Tier;
use crate::geometry::{SECTOR_BYTES, VolumeId};
use crate::volumes::VolumeError;

impl Tier {
    /// Adds a volume of this size. Returns its id.
    pub(in crate::tiers) fn add_volume(&mut self, bytes: u64) -> VolumeId {
        let id = self.cache.add_volume(bytes);
        // Unlike the volumes of the start, it comes with writes that this cache has not flushed.
        self.cache.shards.note_unsettled(id);
        if let Some(pages) = &mut self.pages {
            pages.add_volume(id);
        }
        id
    }

    /// Adds a volume of this size with a free id.
    ///
    /// # Panics
    /// When the id is not free.
    pub(in crate::tiers) fn add_volume_at(&mut self, id: VolumeId, bytes: u64) {
        self.cache.add_volume_at(id, bytes);
        if let Some(pages) = &mut self.pages {
            pages.add_volume(id);
        }
    }

    /// Removes a volume; see [`BlockCache::remove_volume`](crate::BlockCache::remove_volume).
    pub(in crate::tiers) fn remove_volume(
        &mut self,
        id: VolumeId,
        discard: bool,
    ) -> Result<(), VolumeError> {
        self.cache.remove_volume(id, discard)?;
        if let Some(pages) = &mut self.pages {
            pages.remove_volume(id);
        }
        Ok(())
    }

    /// Grows a volume; see [`BlockCache::resize_volume`](crate::BlockCache::resize_volume).
    pub(in crate::tiers) fn resize_volume(
        &mut self,
        id: VolumeId,
        bytes: u64,
    ) -> Result<(), VolumeError> {
        let before = self.cache.volume_bytes(id).unwrap_or_default();
        self.cache.resize_volume(id, bytes)?;
        if let Some(pages) = &mut self.pages {
            // The bytes of the last sector beyond the old end belonged to no volume.
            pages.forget(id, before / SECTOR_BYTES..before.div_ceil(SECTOR_BYTES));
        }
        Ok(())
    }
}
