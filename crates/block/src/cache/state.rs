//! The state of a part: its counters, its health, and the content of its shards.

use super::BlockCache;
use super::commits::Commits;
use super::shards::Shards;
use crate::geometry::SECTOR_BYTES;
use crate::mapping::Mapping;
use crate::shard::Shard;
use crate::stats::{MOST_LOST_RUNS, Stats};
use floe_policy::admission::Times;

impl BlockCache {
    /// Returns what this part can and cannot do now.
    pub fn condition(&self) -> Condition<'_> {
        Condition { shards: &self.shards, commits: &self.commits }
    }

    /// Degrades this part, as 16 failures in a row do by themselves. When one part is degraded, all
    /// should be.
    pub fn degrade(&mut self) {
        self.shards.degrade();
    }

    /// Uses the cache device again, in this part, even when it was not degraded. The device must
    /// still hold every write it has acknowledged. Older cached data is used as it is, since data
    /// that has changed meanwhile was dropped. If the device may have lost some data, drop the
    /// clean data first with [`BlockCache::forget_clean`]; lost dirty data cannot be distinguished
    /// from good data.
    ///
    /// A persistent cache whose journal could not be written stays degraded.
    pub fn restore(&mut self) {
        if !self.commits.has_failed() {
            self.shards.restore();
        }
    }

    /// Drops all clean data in this part. The blocks remain, empty.
    pub fn forget_clean(&mut self) {
        self.shards.each().for_each(Shard::forget_clean);
    }

    /// Sets the share of the hits on the cache device, from 0 to 1, that is read from the backing
    /// device instead. Dirty data is still read from the cache. The share is 0 at first. The caller
    /// measures whether that pays. Shares have a resolution of 2⁻³²; with a share of 1 one hit in
    /// so many is not shed.
    pub fn shed(&mut self, share: f64) {
        let share = (share.clamp(0.0, 1.0) * f64::from(u32::MAX)) as u32;
        self.shards.each().for_each(|shard| shard.parts.shed.set(share));
    }

    /// Passes the current latencies to the admission: see [`floe_policy::admission::Times`]. To be
    /// called now and then.
    pub fn observe(&mut self, times: &Times) {
        self.shards.each().for_each(|shard| shard.observe(times));
    }

    /// Sets the most dirty bytes on the cache device, in all parts together: writes beyond it go
    /// through. Cleaning begins at half of the bound, and yields to clients the more the further
    /// the bound is.
    pub fn limit_dirty(&mut self, bytes: u64) {
        let sectors = (bytes / SECTOR_BYTES / self.shards.all).max(1);
        self.shards.each().for_each(|shard| shard.parts.dirt.limit(sectors));
    }

    /// Returns the current counters of this part.
    pub fn stats(&self) -> Stats {
        let refused_bytes = self.condition().refused_bytes();
        let mut stats = Stats { requests: self.requests, refused_bytes, ..Stats::default() };
        stats.blocks =
            self.config.sizes.classes().map(|class| (self.config.sizes.bytes(class), 0)).collect();
        for Shard { parts } in self.shards.iter() {
            let Mapping { directory, held, lost, .. } = &parts.map;
            stats.counters += &parts.counters;
            directory.blocks.valid.add_to(&mut stats.counters);
            for (sum, live) in stats.blocks.iter_mut().zip(directory.blocks.live()) {
                sum.1 += live;
            }
            stats.valid_bytes += directory.blocks.valid.sectors() * SECTOR_BYTES;
            stats.dirty_bytes += directory.blocks.dirty_sectors() * SECTOR_BYTES;
            stats.held_bytes += held.len() * SECTOR_BYTES;
            stats.lost_bytes += lost.len() * SECTOR_BYTES;
            lost.runs(MOST_LOST_RUNS, &mut stats.lost_runs);
            stats.block_metadata_bytes += directory.block_metadata_bytes();
            stats.sector_metadata_bytes +=
                directory.blocks.sector_metadata_bytes() + parts.logging.memory_bytes();
            stats.admission_bytes += parts.admission.memory_bytes();
            stats.decline(parts.admission.declined());
            stats.degraded_shards += u64::from(parts.health.is_degraded());
        }
        stats
    }

    /// Checks the invariants of every shard, slowly: for tests.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn check(&self) {
        for shard in self.shards.iter() {
            shard.parts.map.directory.check();
        }
    }
}

/// The condition of a part.
#[derive(Debug, Clone, Copy)]
pub struct Condition<'a> {
    shards: &'a Shards,
    commits: &'a Commits,
}

impl Condition<'_> {
    /// Returns whether this part is degraded, after repeated failures of the cache device or by
    /// [`BlockCache::degrade`]. Reads and writes then go past the cache, except for dirty data.
    pub fn is_degraded(&self) -> bool {
        self.shards.is_degraded()
    }

    /// Returns whether this part holds data that a backing device does not have.
    pub fn has_dirty_data(&self) -> bool {
        !self.is_emptied() || self.shards.iter().any(|shard| !shard.parts.map.held.is_empty())
    }

    /// Returns whether nothing in this part is dirty below memory.
    pub fn is_emptied(&self) -> bool {
        self.shards.iter().all(|shard| shard.parts.map.directory.blocks.dirty_sectors() == 0)
    }

    /// Returns whether a noted change would not survive a restart yet.
    pub fn has_unlogged(&self) -> bool {
        self.commits.has_unlogged(self.shards)
    }

    /// Returns whether the journal could not be written: its content is fixed, and the data it
    /// describes must stay.
    pub fn has_lost_journal(&self) -> bool {
        self.commits.has_failed()
    }

    /// Returns whether requests bypass the journal since it could not be written.
    pub fn is_bypassed(&self) -> bool {
        self.commits.is_bypassed()
    }

    /// Returns whether dirty data could not be cleaned since the journal could not be written.
    pub fn is_blocked(&self) -> bool {
        let is_blocked = |shard: &Shard| shard.parts.logging.bypass.is_blocked();
        self.commits.is_lost() && self.shards.iter().any(is_blocked)
    }

    /// Returns whether [`refused_bytes`](Self::refused_bytes) are above 0.
    pub fn is_refusing(&self) -> bool {
        self.shards.iter().any(|shard| shard.refused_sectors() > 0)
    }

    /// Returns an upper bound of the bytes with refused requests: data of this part's shards that
    /// is lost, unreadable, or cannot be replaced.
    pub fn refused_bytes(&self) -> u64 {
        self.shards.iter().map(Shard::refused_sectors).sum::<u64>() * SECTOR_BYTES
    }
}
