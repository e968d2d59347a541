//! Settings and counters of one tier.

use super::Driver;
use super::watched::Watched;
use crate::cache::BlockCache;
use crate::stats::Stats;
use floe_device::Device;
use std::time::Duration;

impl Driver {
    /// Degrades this tier only, like [`Driver::restore`] and [`Driver::shed`]; see
    /// [`BlockCache::degrade`].
    pub fn degrade(&mut self) {
        self.cache.degrade();
    }

    /// Uses the cache device again; see [`BlockCache::restore`].
    pub fn restore(&mut self) {
        self.cache.restore();
    }

    /// Bypasses a cache whose journal cannot be written; see [`BlockCache::bypass`].
    pub fn bypass(&mut self, stuck: bool) {
        self.cache.bypass(stuck, &mut self.orders);
    }

    /// Retires the cache, so that nothing in its journal is valid; see [`BlockCache::retire`].
    pub fn retire(&mut self) {
        self.cache.retire(&mut self.orders);
    }

    /// Sets the share of the hits on the cache device that is read from the backing device; see
    /// [`BlockCache::shed`].
    pub fn shed(&mut self, share: f64) {
        self.cache.shed(share);
    }

    /// Sets the most dirty bytes of this tier; see [`BlockCache::limit_dirty`].
    pub fn limit_dirty(&mut self, bytes: u64) {
        self.cache.limit_dirty(bytes);
    }

    /// Returns the cache.
    pub fn cache(&self) -> &BlockCache {
        &self.cache
    }

    /// Returns the counters of the cache.
    pub fn stats(&self) -> Stats {
        let mut stats = self.cache.stats();
        if let Some(pages) = &self.pages {
            pages.count(&mut stats);
        }
        if let Some(journal) = &self.journal {
            stats.sector_metadata_bytes += journal.memory_bytes();
            stats.corrupt_sectors = journal.corrupt_sectors;
            stats.counters.cache_write_bytes += journal.written_bytes;
        }
        stats
    }

    /// Returns the failed operations of the cache device, and those of all backing devices of the
    /// lowest tier.
    pub fn device_errors(&self) -> (u64, u64) {
        let own = self.backings.iter().flatten().map(|backing| backing.errors).sum::<u64>();
        (self.cache_device.errors, self.below().map_or(own, |below| below.device_errors().1))
    }

    /// Returns the processor time spent busy-waiting by devices that imitate a fast medium, in all
    /// tiers.
    pub fn spun(&self) -> Duration {
        let devices = self.tiers().flat_map(Self::devices);
        devices.map(|watched| watched.device.spun()).sum()
    }

    /// Returns the devices of this tier.
    pub(super) fn devices(&self) -> impl Iterator<Item = &Watched> {
        self.backings.iter().flatten().chain([&self.cache_device])
    }
}
