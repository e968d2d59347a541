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

use std::collections::BTreeSet;

use crate::engine::Part;
use crate::geometry::{Sectors, VolumeId};

/// Failures in a row, with no success between them, after which a shard degrades. A request has a
/// few operations on a bad spot, and others succeed between them. A device that is gone fails all
/// that are under way, so this many come at once and cost one time-out.
const FAILURES_IN_A_ROW: u32 = 16;

/// The health of the cache device.
#[derive(Debug, Default)]
pub(crate) struct Health {
    failures: u32,
    degraded: bool,
    /// Volumes whose dirty data the device has failed to return, and has not returned completely
    /// since.
    unreadable: BTreeSet<VolumeId>,
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
    /// have lost must be dropped before. Unreadable data stays so until it has been read.
    pub(crate) fn restore(&mut self) {
        (self.failures, self.degraded) = (0, false);
    }

    /// Records the result of an operation of any device, if it was the cache device's.
    /// `cleans` is the volume whose dirty data its task reads to clean it.
    #[inline]
    pub(crate) fn note_op(&mut self, part: Part, cleans: Option<VolumeId>, ok: bool) {
        match part {
            Part::Cached(_) | Part::Store(_) => self.note(ok, None),
            Part::Dirty(_) if cleans.is_some() => self.note(ok, cleans),
            _ => {}
        }
    }

    /// Records the result of an operation of the cache device, perhaps a read of a volume's dirty
    /// data.
    #[inline]
    fn note(&mut self, ok: bool, dirty_of: Option<VolumeId>) {
        if ok {
            self.failures = 0;
        } else {
            self.unreadable.extend(dirty_of);
            self.failures += 1;
            self.degraded |= self.failures >= FAILURES_IN_A_ROW;
        }
    }

    /// Returns whether the device has failed to give dirty data back.
    #[inline]
    pub(crate) fn is_unreadable(&self) -> bool {
        !self.unreadable.is_empty()
    }

    /// Notes that all dirty data of a volume could be read, or that the volume is gone.
    pub(crate) fn note_readable(&mut self, volume: VolumeId) {
        self.unreadable.remove(&volume);
    }

    /// Notes that dirty data of a volume could not be read.
    pub(crate) fn note_unreadable(&mut self, volume: VolumeId) {
        self.unreadable.insert(volume);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_given_up_after_failures_in_a_row() {
        let mut health = Health::default();
        (1..FAILURES_IN_A_ROW).for_each(|_| health.note(false, None));
        health.note(true, None);
        (1..FAILURES_IN_A_ROW).for_each(|_| health.note(false, None));
        assert!(!health.is_degraded() && !health.is_unreadable());
        health.note(false, Some(VolumeId(1)));
        assert!(health.is_degraded() && health.is_unreadable());
        health.note_readable(VolumeId(1));
        assert!(health.is_degraded() && !health.is_unreadable());
    }

    #[test]
    fn unreadable_data_is_readable_again_when_all_of_its_volume_was_read() {
        let mut health = Health::default();
        health.note(false, Some(VolumeId(1)));
        health.note_unreadable(VolumeId(2));
        health.note(true, Some(VolumeId(1)));
        health.note_readable(VolumeId(2));
        health.restore();
        assert!(health.is_unreadable());
        health.note_readable(VolumeId(1));
        assert!(!health.is_unreadable());
    }
}
