//! A cache divided among the threads of a server.

use floe_block::{BlockCache, PartJournal, VolumeId};

use super::keeper::Keeper;
use crate::status::OpenedStatus;

/// The parts of a cache, ready for a server.
#[derive(Debug)]
pub struct Parts {
    pub(crate) parts: Vec<(BlockCache, Option<PartJournal>)>,
    /// The cache's id of each volume, in the order of the volumes.
    pub(crate) ids: Vec<VolumeId>,
    pub(crate) keeper: Option<Keeper>,
    /// The byte of the device at which the data of a cache without a journal begins.
    pub(crate) data_start: u64,
    /// The limit of dirty bytes, if there is one.
    pub(crate) most_dirty_bytes: Option<u64>,
    /// The state in which a persistent cache was found.
    pub(crate) opened: Option<OpenedStatus>,
}

impl Parts {
    /// Makes the parts of a volatile cache.
    pub fn volatile(caches: Vec<BlockCache>) -> Self {
        let parts = caches.into_iter().map(|cache| (cache, None)).collect();
        Self {
            parts,
            ids: Vec::new(),
            keeper: None,
            data_start: 0,
            most_dirty_bytes: None,
            opened: None,
        }
    }

    /// Sets the byte at which the data begins: see [`claim()`](super::claim()).
    pub fn with_data_at(self, bytes: u64) -> Self {
        Self { data_start: bytes, ..self }
    }

    /// Sets how many bytes of the cache may be newer than the backing devices: see
    /// [`BlockCache::limit_dirty`].
    pub fn limit_dirty(&mut self, bytes: u64) {
        self.most_dirty_bytes = Some(bytes);
        self.parts.iter_mut().for_each(|(cache, _)| cache.limit_dirty(bytes));
    }

    /// Returns the bytes of its device that the cache uses, of `has`. A device that has grown is
    /// used as far as the cache was made for.
    pub(crate) fn used_bytes(&self, has: u64) -> u64 {
        self.keeper.as_ref().and_then(|keeper| keeper.unused_bytes(has)).map_or(has, |unused| {
            tracing::warn!(
                unused_bytes = unused,
                "the cache device has grown, and the cache uses as much of it as it was made with; \
                 to use all of it, run floe flush, end the server, and start it with --initialise"
            );
            has - unused
        })
    }

    /// Returns the number of threads that the parts are for.
    pub fn threads(&self) -> usize {
        self.parts.len()
    }

    /// Returns the cache's id of the volume at this place in the list of volumes.
    pub(crate) fn id(&self, at: usize) -> VolumeId {
        self.ids.get(at).copied().unwrap_or(VolumeId(at as u16))
    }
}
