//! The state of a part: its counters, its health, and the content of its shards.

use super::BlockCache;
use crate::geometry::SECTOR_BYTES;
use crate::shard::Shard;
use crate::stats::{MOST_LOST_RUNS, Stats};
use crate::store::journal::{Change, RestoredBlock};
use floe_policy::Slot;
use floe_policy::admission::Times;

impl BlockCache {
    /// Returns whether this part is degraded, after repeated failures of the cache device or by
    /// [`BlockCache::degrade`]. Reads and writes then go past the cache, except for dirty data.
    pub fn is_degraded(&self) -> bool {
        self.degraded
    }

    /// Degrades this part, as 16 failures in a row do by themselves. When one part is degraded, all
    /// should be.
    pub fn degrade(&mut self) {
        if !std::mem::replace(&mut self.degraded, true) {
            self.shards.iter_mut().for_each(Shard::degrade);
        }
    }

    /// Uses the cache device again, in this part, even when it was not degraded. The device must
    /// still hold every write it has acknowledged. Older cached data is used as it is, since data
    /// that has changed meanwhile was dropped. If the device may have lost some data, drop the
    /// clean data first with [`BlockCache::forget_clean`]; lost dirty data cannot be distinguished
    /// from good data.
    ///
    /// A persistent cache whose journal could not be written stays degraded.
    pub fn restore(&mut self) {
        if self.has_lost_journal() {
            return;
        }
        self.degraded = false;
        self.shards.iter_mut().for_each(Shard::restore);
    }

    /// Drops all clean data in this part. The blocks remain, empty.
    pub fn forget_clean(&mut self) {
        self.shards.iter_mut().for_each(Shard::forget_clean);
    }

    /// Sets the share of the hits on the cache device, from 0 to 1, that is read from the backing
    /// device instead. Dirty data is still read from the cache. The share is 0 at first. The caller
    /// measures whether that pays. Shares have a resolution of 2⁻³²; with a share of 1 one hit in
    /// so many is not shed.
    pub fn shed(&mut self, share: f64) {
        let share = (share.clamp(0.0, 1.0) * f64::from(u32::MAX)) as u32;
        self.shards.iter_mut().for_each(|shard| shard.shed.set(share));
    }

    /// Passes the current latencies to the admission: see [`floe_policy::admission::Times`]. To be
    /// called now and then.
    pub fn observe(&mut self, times: &Times) {
        self.shards.iter_mut().for_each(|shard| shard.observe(times));
    }

    /// Sets the most dirty bytes on the cache device, in all parts together: writes beyond it go
    /// through. Cleaning begins at half of the bound, and yields to clients the more the further
    /// the bound is.
    pub fn limit_dirty(&mut self, bytes: u64) {
        let sectors = (bytes / SECTOR_BYTES / self.all_shards).max(1);
        self.shards.iter_mut().for_each(|shard| shard.dirt.limit(sectors));
    }

    /// Returns the current counters of this part.
    pub fn stats(&self) -> Stats {
        let refused_bytes = self.refused_bytes();
        let mut stats = Stats { requests: self.requests, refused_bytes, ..Stats::default() };
        stats.blocks =
            self.config.sizes.classes().map(|class| (self.config.sizes.bytes(class), 0)).collect();
        for shard in &self.shards {
            let directory = &shard.directory;
            stats.counters += &shard.counters;
            for (sum, live) in stats.blocks.iter_mut().zip(directory.live()) {
                sum.1 += live;
            }
            stats.valid_bytes += directory.valid_sectors() * SECTOR_BYTES;
            stats.dirty_bytes += directory.dirty_sectors() * SECTOR_BYTES;
            stats.held_bytes += shard.held.len() * SECTOR_BYTES;
            stats.lost_bytes += shard.lost.len() * SECTOR_BYTES;
            shard.lost.runs(MOST_LOST_RUNS, &mut stats.lost_runs);
            stats.block_metadata_bytes += directory.block_metadata_bytes();
            stats.sector_metadata_bytes +=
                directory.sector_metadata_bytes() + shard.seals.memory_bytes();
            stats.admission_bytes += shard.admission.memory_bytes();
            stats.decline(shard.admission.declined());
            stats.degraded_shards += u64::from(shard.is_degraded());
        }
        stats
    }

    /// Checks the invariants of every shard, slowly: for tests.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn check(&self) {
        for shard in &self.shards {
            shard.directory.check();
        }
    }

    /// Restores one of this part's shards to its content when the cache was last used.
    pub(crate) fn restore_shard(&mut self, shard: usize, blocks: &[RestoredBlock]) {
        self.shards[shard].directory.restore(blocks);
        for block in blocks {
            self.shards[shard].restore_seals(block);
            self.has_newly_lost |= !block.lost.is_empty();
            block.lost.iter().for_each(|run| self.shards[shard].lost.restore(block.at.volume, run));
        }
    }

    /// Returns the blocks of this part's shard of a number, the coldest first.
    pub(crate) fn blocks_by_heat(&self, shard: usize) -> Vec<u32> {
        self.shards[shard].directory.by_heat().into_iter().map(|block| block.0).collect()
    }

    /// Adds the changes that a checkpoint states for a block, if the block still exists.
    pub(crate) fn state_block(&self, shard: usize, block: u32, out: &mut Vec<Change>) {
        self.shards[shard].dump(Slot(block), out);
    }
}
