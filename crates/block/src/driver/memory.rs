//! The driver and the tier in memory: reads answered from it, and what the cache wants kept there.

use floe_device::Buffer;

use super::Driver;
use crate::geometry::{Sectors, VolumeId};
use crate::memory::{MemoryTier, Pages};
use crate::order::Paging;
use crate::request::Request;

impl Driver {
    /// With a tier in memory, before there are volumes; the cache has been
    /// [told](crate::Config::memory) of it.
    #[must_use]
    pub fn with_memory(mut self, tier: Option<MemoryTier>) -> Self {
        self.pages = tier.map(Pages::new);
        self
    }

    /// Whether there is a tier in memory.
    #[inline]
    pub fn has_memory(&self) -> bool {
        self.pages.is_some()
    }

    /// Answers reads from memory, on this thread whoever owns the shards: in `hits`, of the same
    /// length, those are marked of which all is there, in their buffers, which are from
    /// [`Driver::buffer`]. The others can be [submitted](Driver::submit) with their buffers, also
    /// those that reach beyond their volume.
    pub fn read_memory(&mut self, reads: &[(Request, Buffer)], hits: &mut [bool]) {
        let Some(pages) = &mut self.pages else { return };
        let is_within = |request: &Request| {
            let end = request.offset.checked_add(request.len);
            end.zip(self.cache.volume_bytes(request.volume)).is_some_and(|(end, size)| end <= size)
        };
        pages.read(reads, is_within, hits);
    }

    /// Carries out an order about the tier.
    pub(super) fn page(&mut self, volume: VolumeId, sectors: Sectors, deed: Paging) {
        match deed {
            Paging::Fill { from } => {
                let from = self.slice(&from);
                self.pages().fill(volume, sectors, &from);
            }
            Paging::Forget => self.pages().forget(volume, sectors),
            Paging::Hold { from } => {
                let from = self.slice(&from);
                self.pages().hold(volume, sectors, &from);
            }
            Paging::Recall { to } => {
                let to = self.slice(&to);
                self.pages().recall(volume, sectors, &to);
            }
            Paging::LetGo => self.pages().let_go(volume, sectors),
        }
    }

    fn pages(&mut self) -> &mut Pages {
        self.pages.as_mut().expect("a cache that is told of a tier in memory has one")
    }
}
