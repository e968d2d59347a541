//! A cache device that fails: when to stop asking it, and what then still goes to it.
//!
//! A failed cache operation is made good one by one: clean data is read from the backing device, a
//! store is left out or goes there. That is right for a bad spot of the medium. When the whole
//! device is gone, each request would first wait for an error, so after a row of failures the shard
//! *degrades*: reads and writes go past the cache, and only what the cache alone has, dirty
//! sectors, is still read from it, by clients and by the rounds that clean it.
//!
//! While degraded nothing enters the cache, and whatever changes the backing device first or also
//! drops the copy (`Shard::drop_copies`). So every sector that is still valid is what it was when
//! it was stored, the newest version there is, and [`Shard::restore`] may use it again, if the
//! device still holds what it had acknowledged.

use super::Shard;
use super::task::{Part, Step};
use crate::directory::Block;
use crate::geometry::{SECTOR_BYTES, Sectors};
use crate::locks::TaskId;
use crate::mode::WriteMode;

/// Failures in a row, with no success between them, that make a shard give the device up. A request
/// has a few operations on a bad spot, and others succeed between them; a device that is gone fails
/// all that are under way, so this many come at once and cost one time-out.
const FAILURES_IN_A_ROW: u32 = 16;

/// What is known of the cache device.
#[derive(Debug, Default)]
pub(super) struct Health {
    failures: u32,
    degraded: bool,
    /// The device has failed to give dirty data back, and has not given all of it back since.
    unreadable: bool,
}

impl Health {
    pub(super) fn is_unreadable(&self) -> bool {
        self.unreadable
    }

    /// All that is dirty in a volume could be read.
    pub(super) fn note_readable(&mut self) {
        self.unreadable = false;
    }

    /// Dirty data could not be read.
    pub(super) fn note_unreadable(&mut self) {
        self.unreadable = true;
    }
}

impl Shard {
    /// Whether the shard has given the cache device up.
    pub(crate) fn is_degraded(&self) -> bool {
        self.health.degraded
    }

    /// Gives the cache device up. What is under way ends as it began.
    pub(crate) fn degrade(&mut self) {
        self.health.degraded = true;
    }

    /// Uses the cache device again. It must still hold every write it has acknowledged; what it may
    /// have lost is to be dropped before ([`Shard::forget_clean`]).
    pub(crate) fn restore(&mut self) {
        self.health = Health::default();
    }

    /// Drops everything that the backing devices have too. Nothing has to stand still for it: a
    /// task that reads such a sector has its lock, and the sector keeps its place.
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

    /// Notes how an operation ended, if it was the cache device's.
    #[inline]
    pub(super) fn note_health(&mut self, id: TaskId, part: Part, ok: bool) {
        let on_cache = match part {
            Part::Cached(_) | Part::Store(_) => true,
            Part::Dirty(_) => self.tasks[id as usize].step == Step::CleanRead,
            Part::Uncached | Part::Shed | Part::Fetch | Part::Around | Part::Whole => false,
            Part::Noted | Part::Unlogged | Part::Settled => false,
        };
        if on_cache && ok {
            self.health.failures = 0;
        } else if on_cache {
            self.health.unreadable |= matches!(part, Part::Dirty(_));
            self.health.failures += 1;
            self.health.degraded |= self.health.failures >= FAILURES_IN_A_ROW;
        }
    }

    /// When writes reach which device at present.
    #[inline]
    pub(super) fn mode(&self) -> WriteMode {
        if self.health.degraded { WriteMode::Pass } else { self.config.mode }
    }

    /// Counts what goes past the cache because of its device.
    pub(super) fn note_bypass(&mut self, range: &Sectors) {
        if self.health.degraded {
            self.counters.bypassed_bytes += (range.end - range.start) * SECTOR_BYTES;
        }
    }
}
