//! Bypass of a cache whose log cannot be written: which requests continue past the cache, and which
//! must wait.
//!
//! The log keeps its last durable statements, and the next start of the server reads them. So a
//! change of the backing device is safe in two cases. Either the log has no copy of the range, or a
//! durable record outside the log says that its copies are void. The owner of all parts writes that
//! record, and tells each shard how far this has progressed ([`LogState`]).
//!
//! - *Unwritable*: nothing is recorded yet. A write waits if the log may have a copy of its range.
//! - *Bypassed*: clean copies are void. Dirty data is still valid: it is written to the backing
//!   device, and a write waits while the log may call a part of its range dirty. Once cleaning has
//!   failed ([`Bypass::void_clean`] with `stuck`) such a write is refused: the old data would
//!   replace it at the next start.
//! - *Retired*: the whole log is void. The shard behaves like one of a volatile cache with a
//!   degraded device.
//!
//! A waiting task holds no lock, since cleaning needs one on the same sectors. It is restarted
//! later.

use std::collections::{BTreeMap, BTreeSet};

use crate::geometry::{Place, Sectors, VolumeId};
use crate::locks::TaskId;

/// The validity of the log at the next start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum LogState {
    /// The log can be written.
    #[default]
    Writable,
    /// A write to the log has failed; what is in the log stays valid.
    Unwritable,
    /// The log's clean copies are void at the next start; its dirty data is valid.
    Bypassed {
        /// True if some dirty data could not be cleaned.
        stuck: bool,
    },
    /// The whole log is void at the next start.
    Retired,
}

/// The validity of a shard's log, and the tasks that wait for a change of it.
#[derive(Debug, Default)]
pub(crate) struct Bypass {
    state: LogState,
    /// Runs that the log calls dirty although the backing device has them by now: the end of each
    /// by its start.
    brought_down: BTreeMap<Place, u64>,
    /// Set when some dirty data may be neither in the log nor durable on the cache device.
    unsure: bool,
    /// Volumes whose last round of cleaning failed.
    blocked: BTreeSet<VolumeId>,
    waiting: Vec<TaskId>,
}

impl Bypass {
    #[inline]
    pub(crate) fn state(&self) -> LogState {
        self.state
    }

    /// Returns whether the log can be written.
    #[inline]
    pub(crate) fn is_writable(&self) -> bool {
        self.state == LogState::Writable
    }

    /// Returns whether the log cannot be written while some of its content is still valid.
    #[inline]
    pub(crate) fn is_bound(&self) -> bool {
        !matches!(self.state, LogState::Writable | LogState::Retired)
    }

    /// Returns whether the cache is bypassed, so that all dirty data is to be cleaned.
    #[inline]
    pub(crate) fn is_bypassed(&self) -> bool {
        matches!(self.state, LogState::Bypassed { .. })
    }

    /// Returns whether writes may be waiting for a change of the log's validity.
    pub(crate) fn is_waited_for(&self) -> bool {
        matches!(self.state, LogState::Unwritable | LogState::Bypassed { stuck: false })
    }

    /// Records that the log cannot be written; `unsure` says that some dirty data may not be
    /// durable.
    pub(crate) fn lose(&mut self, unsure: bool) {
        if self.is_writable() {
            (self.state, self.unsure) = (LogState::Unwritable, unsure);
        }
    }

    /// Declares the log's clean copies void, unless the whole log already is.
    pub(crate) fn void_clean(&mut self, stuck: bool) {
        if self.state != LogState::Retired {
            self.state = LogState::Bypassed { stuck };
        }
    }

    /// Declares the whole log void.
    pub(crate) fn retire(&mut self) {
        self.state = LogState::Retired;
        self.brought_down.clear();
    }

    /// Records that some data became dirty which no commit will make durable.
    #[inline]
    pub(crate) fn note_unsure(&mut self) {
        self.unsure |= self.is_bound();
    }

    /// Handles the end of a volume's round of cleaning.
    pub(crate) fn round_ended(&mut self, volume: VolumeId, failed: bool) {
        if failed {
            self.blocked.insert(volume);
        } else {
            self.blocked.remove(&volume);
        }
    }

    /// Returns whether the cache is bypassed and some volume's last round of cleaning failed.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.blocked.is_empty() && self.is_bypassed()
    }

    /// Records that the backing device durably has a run which the log calls dirty.
    pub(crate) fn brought_down(&mut self, volume: VolumeId, run: &Sectors) {
        if self.state != LogState::Retired {
            let end = self.brought_down.entry(Place::new(volume, run.start)).or_insert(run.end);
            *end = run.end.max(*end);
        }
    }

    /// Returns whether some answered writes of a volume may be on no device.
    pub(crate) fn is_unsure_of(&self, volume: VolumeId, is_dirty: impl FnOnce() -> bool) -> bool {
        let brought_down = || self.brought_down.range(Place::all_of(volume)).next().is_some();
        self.unsure && (is_dirty() || brought_down())
    }

    pub(crate) fn is_brought_down(&self, volume: VolumeId, range: &Sectors) -> bool {
        let before = self.brought_down.range(..Place::new(volume, range.end)).next_back();
        before.is_some_and(|(place, end)| place.volume() == volume && *end > range.start)
    }

    /// Returns the number of sectors that the log calls dirty although the backing device has them.
    pub(crate) fn brought_down_sectors(&self) -> u64 {
        self.brought_down.iter().map(|(place, end)| end - place.sector()).sum()
    }

    /// Makes a task wait for a change of the log's validity.
    pub(crate) fn put_off(&mut self, id: TaskId) {
        self.waiting.push(id);
    }

    /// Returns the waiting tasks, to be restarted.
    pub(crate) fn take_waiting(&mut self) -> Vec<TaskId> {
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod bypass_tests {
    use super::*;

    const VOLUME: VolumeId = VolumeId(1);

    #[test]
    fn a_log_that_is_lost_becomes_void_and_never_valid_again() {
        let mut bypass = Bypass::default();
        assert!(bypass.is_writable() && !bypass.is_bound());
        bypass.lose(false);
        assert!(bypass.is_bound() && bypass.is_waited_for() && !bypass.is_bypassed());
        bypass.void_clean(false);
        assert!(bypass.is_bypassed() && bypass.is_waited_for());
        bypass.void_clean(true);
        assert!(bypass.is_bypassed() && !bypass.is_waited_for());
        bypass.retire();
        bypass.void_clean(false);
        assert_eq!(bypass.state(), LogState::Retired);
        assert!(!bypass.is_bound() && !bypass.is_writable());
    }

    #[test]
    fn overlapping_runs_that_were_brought_down_are_found() {
        let mut bypass = Bypass::default();
        bypass.lose(true);
        bypass.brought_down(VOLUME, &(4..8));
        bypass.brought_down(VOLUME, &(4..6));
        assert!(bypass.is_brought_down(VOLUME, &(7..9)));
        assert!(!bypass.is_brought_down(VOLUME, &(8..9)));
        assert!(!bypass.is_brought_down(VolumeId(2), &(0..9)));
        assert_eq!(bypass.brought_down_sectors(), 4);
        assert!(bypass.is_unsure_of(VOLUME, || false));
        assert!(!bypass.is_unsure_of(VolumeId(2), || false));
        bypass.retire();
        assert!(!bypass.is_brought_down(VOLUME, &(7..9)));
    }

    #[test]
    fn a_volume_blocks_until_a_round_of_it_succeeds() {
        let mut bypass = Bypass::default();
        bypass.lose(false);
        bypass.void_clean(false);
        for (volume, failed, blocked) in
            [(VOLUME, true, true), (VolumeId(2), false, true), (VOLUME, false, false)]
        {
            bypass.round_ended(volume, failed);
            assert_eq!(bypass.is_blocked(), blocked);
        }
    }
}
