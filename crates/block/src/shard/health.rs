//! Failure of the cache device: when the shard stops using it, and which I/O still goes to it.
//!
//! A failed cache operation is recovered one by one: clean data is read from the backing device, a
//! store is omitted or goes there. That is right for a bad spot of the medium. When the whole
//! device is gone, each request would first wait for an error. So after a row of failures the shard
//! *degrades*: reads and writes go past the cache. Only dirty sectors are still read from it, by
//! clients and by the rounds that clean them.
//!
//! While degraded nothing is inserted, and every change of the backing device drops the copy,
//! before or with it (`Shard::drop_copies`). So every sector that is still valid is unchanged since
//! it was stored, and is the newest version. [`Shard::restore`] may use it again, if the device
//! still holds all that it had acknowledged.

use super::Shard;
use crate::engine::locks::TaskId;
use crate::engine::{Part, Step};
use crate::geometry::{SECTOR_BYTES, Sectors};
use crate::mapping::directory::Block;
use crate::mode::WriteMode;

/// Failures in a row, with no success between them, after which a shard degrades. A request has a
/// few operations on a bad spot, and others succeed between them. A device that is gone fails all
/// that are under way, so this many come at once and cost one time-out.
const FAILURES_IN_A_ROW: u32 = 16;

/// The health of the cache device.
#[derive(Debug, Default)]
pub(crate) struct Health {
    failures: u32,
    degraded: bool,
    /// The device has failed to give dirty data back, and has not given all of it back since.
    unreadable: bool,
}

impl Health {
    /// Returns whether the device is given up.
    #[inline]
    pub(crate) fn is_degraded(&self) -> bool {
        self.degraded
    }

    /// Gives the device up.
    pub(crate) fn degrade(&mut self) {
        self.degraded = true;
    }

    /// Records the result of an operation of the cache device, perhaps a read of dirty data.
    #[inline]
    fn note(&mut self, ok: bool, reads_dirty: bool) {
        if ok {
            self.failures = 0;
        } else {
            self.unreadable |= reads_dirty;
            self.failures += 1;
            self.degraded |= self.failures >= FAILURES_IN_A_ROW;
        }
    }

    /// Returns whether the device has failed to give dirty data back.
    #[inline]
    pub(crate) fn is_unreadable(&self) -> bool {
        self.unreadable
    }

    /// Notes that all dirty data of a volume could be read.
    pub(crate) fn note_readable(&mut self) {
        self.unreadable = false;
    }

    /// Notes that dirty data could not be read.
    pub(crate) fn note_unreadable(&mut self) {
        self.unreadable = true;
    }
}

impl Shard {
    /// Returns whether the shard is degraded.
    pub(crate) fn is_degraded(&self) -> bool {
        self.health.is_degraded()
    }

    /// Degrades the shard. Operations under way end as they began.
    pub(crate) fn degrade(&mut self) {
        self.health.degrade();
    }

    /// Uses the cache device again. It must still hold every write it has acknowledged; data that
    /// it may have lost must be dropped before ([`Shard::forget_clean`]).
    pub(crate) fn restore(&mut self) {
        self.health = Health::default();
    }

    /// Drops all clean data. I/O need not be quiesced: a task that reads such a sector has its
    /// lock, and the sector keeps its place.
    pub(crate) fn forget_clean(&mut self) {
        if self.is_kept() {
            let blocks: Vec<Block> = self.directory.by_heat();
            for block in blocks {
                let sectors = self.directory.sectors(block);
                self.drop_clean_late(block, &sectors);
            }
        }
        self.directory.set_all_clean_invalid();
    }

    /// Records the result of an operation of the cache device.
    #[inline]
    pub(super) fn note_health(&mut self, id: TaskId, part: Part, ok: bool) {
        let on_cache = match part {
            Part::Cached(_) | Part::Store(_) => true,
            Part::Dirty(_) => self.tasks[id].step == Step::CleanRead,
            Part::Uncached | Part::Shed | Part::Fetch | Part::Around | Part::Whole => false,
            Part::Noted | Part::Unlogged | Part::Settled => false,
        };
        if on_cache {
            self.health.note(ok, matches!(part, Part::Dirty(_)));
        }
    }

    /// Returns the write mode in force.
    #[inline]
    pub(super) fn mode(&self) -> WriteMode {
        if self.health.is_degraded() { WriteMode::Pass } else { self.config.mode }
    }

    /// Counts bytes that bypass the cache because of its device.
    pub(super) fn note_bypass(&mut self, range: &Sectors) {
        if self.health.is_degraded() {
            self.counters.bypassed_bytes += (range.end - range.start) * SECTOR_BYTES;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_given_up_after_failures_in_a_row() {
        let mut health = Health::default();
        (1..FAILURES_IN_A_ROW).for_each(|_| health.note(false, false));
        health.note(true, false);
        (1..FAILURES_IN_A_ROW).for_each(|_| health.note(false, false));
        assert!(!health.is_degraded() && !health.is_unreadable());
        health.note(false, true);
        assert!(health.is_degraded() && health.is_unreadable());
        health.note_readable();
        assert!(health.is_degraded() && !health.is_unreadable());
    }
}
