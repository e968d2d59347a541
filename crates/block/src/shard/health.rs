//! Failure of the cache device: when the shard stops using it, and which I/O still goes to it.
//!
//! A failed cache operation is recovered one by one: clean data is read from the backing device, a
//! store is omitted or goes there. That is right for a bad spot of the medium. When the whole
//! device is gone, each request would first wait for an error. So after a row of failures the shard
//! *degrades*: reads and writes go past the cache. Only dirty sectors are still read from it, by
//! clients and by the rounds that clean them.
//!
//! While degraded nothing is inserted, and every change of the backing device drops the copy,
//! before or with it. So every sector that is still valid is unchanged since it was stored, and is
//! the newest version. [`Health::restore`] may use it again, if the device still holds all that it
//! had acknowledged.

use crate::engine::Part;
use crate::geometry::Sectors;

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

    /// Returns the sectors of a range that a request bypasses the cache with because of its device.
    pub(crate) fn bypassed_sectors(&self, range: &Sectors) -> u64 {
        if self.degraded { range.end - range.start } else { 0 }
    }

    /// Gives the device up.
    pub(crate) fn degrade(&mut self) {
        self.degraded = true;
    }

    /// Uses the device again. It must still hold every write it has acknowledged; data that it may
    /// have lost must be dropped before.
    pub(crate) fn restore(&mut self) {
        *self = Self::default();
    }

    /// Records the result of an operation of any device, if it was the cache device's.
    /// `is_cleaning` says that its task reads dirty data to clean it.
    #[inline]
    pub(crate) fn note_op(&mut self, part: Part, is_cleaning: bool, ok: bool) {
        match part {
            Part::Cached(_) | Part::Store(_) => self.note(ok, false),
            Part::Dirty(_) if is_cleaning => self.note(ok, true),
            _ => {}
        }
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
