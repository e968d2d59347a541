//! The driver's side of the memory tier: answers reads from it, and executes the cache's orders to
//! it.

use floe_device::Buffer;

use super::Driver;
use crate::engine::request::Request;
use crate::geometry::{Sectors, VolumeId};
use crate::order::Paging;
use crate::tiers::memory::{MemoryTier, Pages};

impl Driver {
    /// Adds a memory tier, before there are volumes; the cache's
    /// [configuration](crate::Config::memory) must agree.
    #[must_use]
    pub fn with_memory(mut self, tier: Option<MemoryTier>) -> Self {
        self.pages = tier.map(Pages::new);
        self
    }

    /// Returns whether there is a memory tier.
    #[inline]
    pub fn has_memory(&self) -> bool {
        self.pages.is_some()
    }

    /// Answers reads from memory, on this thread, whichever thread owns the shards. Marks in
    /// `hits`, of equal length, the reads whose sectors are all in memory; their data is then in
    /// their buffers, which must be from [`Driver::buffer`]. The others can be
    /// [submitted](Driver::submit) with their buffers, including those that reach beyond their
    /// volume.
    pub fn read_memory(&mut self, reads: &[(Request, Buffer)], hits: &mut [bool]) {
        let Some(pages) = &mut self.pages else { return };
        let is_within = |request: &Request| {
            let end = request.offset.checked_add(request.len);
            end.zip(self.cache.volume_bytes(request.volume)).is_some_and(|(end, size)| end <= size)
        };
        pages.read(reads, is_within, hits);
    }

    /// Executes an order about the memory tier.
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
