//! Bypass of a cache whose log cannot be written: which requests go on past the cache, and which
//! must wait.
//!
//! The log keeps its last durable statements, and the next start of the server reads them. So a
//! change of the backing device is safe in two cases. Either the log has no copy of the range, or a
//! durable record outside the log says that its copies are void. The owner of all parts writes that
//! record, and tells each shard how far it has come ([`LogState`]).
//!
//! - *Unwritable*: nothing is recorded yet. A write waits if the log may have a copy of its range.
//! - *Bypassed*: clean copies are void. Dirty data is still valid: it is written to the backing
//!   device, and a write waits while the log may call a part of its range dirty. Once cleaning has
//!   failed ([`Shard::bypass`] with `stuck`) such a write is refused: the old data would replace it
//!   at the next start.
//! - *Retired*: the whole log is void. The shard behaves like one of a volatile cache with a
//!   degraded device.
//!
//! A waiting task holds no lock, since cleaning needs one on the same sectors. It is restarted
//! later.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Shard;
use crate::engine::locks::TaskId;
use crate::engine::request::Fault;
use crate::engine::{Step, Work};
use crate::geometry::{Place, Sectors, VolumeId};
use crate::order::Order;

/// The validity of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum LogState {
    /// The log can be written.
    #[default]
    Writable,
    /// A write to the log has failed.
    Unwritable,
    /// Its clean copies are void at the next start.
    Bypassed {
        /// Some dirty data could not be cleaned.
        stuck: bool,
    },
    /// The whole log is void.
    Retired,
}

/// The fate of a write to a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Free,
    Wait,
    Refused,
}

/// The validity of a shard's log, and the tasks that wait for a change of it.
#[derive(Debug, Default)]
pub(crate) struct Bypass {
    state: LogState,
    /// Runs that the log calls dirty and the backing device has by now: the end of each by its
    /// start.
    brought_down: BTreeMap<Place, u64>,
    /// Some dirty data may be neither in the log nor durable on the cache device.
    unsure: bool,
    /// Volumes whose last round of cleaning failed.
    blocked: BTreeSet<VolumeId>,
    waiting: Vec<TaskId>,
    /// Tasks to be restarted.
    ready: VecDeque<TaskId>,
}

impl Bypass {
    /// Returns the validity of the log.
    #[inline]
    pub(crate) fn state(&self) -> LogState {
        self.state
    }

    /// Returns whether the log can be written.
    #[inline]
    pub(crate) fn is_writable(&self) -> bool {
        self.state == LogState::Writable
    }

    /// Returns whether the log cannot be written and some of it is valid.
    #[inline]
    pub(crate) fn is_bound(&self) -> bool {
        !matches!(self.state, LogState::Writable | LogState::Retired)
    }

    /// Returns whether all dirty data is to be cleaned.
    #[inline]
    pub(crate) fn is_bypassed(&self) -> bool {
        matches!(self.state, LogState::Bypassed { .. })
    }

    /// Returns whether some writes wait for a change of the log's validity.
    pub(crate) fn is_waited_for(&self) -> bool {
        matches!(self.state, LogState::Unwritable | LogState::Bypassed { stuck: false })
    }

    /// Notes that the log cannot be written; `unsure` says that some dirty data may not be durable.
    fn lose(&mut self, unsure: bool) {
        if self.is_writable() {
            (self.state, self.unsure) = (LogState::Unwritable, unsure);
        }
    }

    /// Makes the log's clean copies void, unless the whole log is.
    fn void_clean(&mut self, stuck: bool) {
        if self.state != LogState::Retired {
            self.state = LogState::Bypassed { stuck };
        }
    }

    /// Makes the whole log void.
    fn retire(&mut self) {
        self.state = LogState::Retired;
        self.brought_down.clear();
    }

    /// Notes that some data became dirty which no commit will make durable.
    #[inline]
    pub(crate) fn note_unsure(&mut self) {
        self.unsure |= self.is_bound();
    }

    /// Notes the end of a round of cleaning of a volume. Returns whether no volume's last round has
    /// failed.
    fn round_ended(&mut self, volume: VolumeId, failed: bool) -> bool {
        if failed {
            self.blocked.insert(volume);
        } else {
            self.blocked.remove(&volume);
        }
        self.blocked.is_empty()
    }

    /// Returns whether the last round of cleaning failed while the log could not be written.
    fn is_blocked(&self) -> bool {
        !self.blocked.is_empty() && self.is_bypassed()
    }

    /// Notes that the backing device durably has a run which the log calls dirty.
    pub(crate) fn brought_down(&mut self, volume: VolumeId, run: &Sectors) {
        if self.state != LogState::Retired {
            let end = self.brought_down.entry(Place::new(volume, run.start)).or_insert(run.end);
            *end = run.end.max(*end);
        }
    }

    /// Returns whether some answered writes of a volume may be on no device.
    fn is_unsure_of(&self, volume: VolumeId, is_dirty: impl FnOnce() -> bool) -> bool {
        let brought_down = || self.brought_down.range(Place::all_of(volume)).next().is_some();
        self.unsure && (is_dirty() || brought_down())
    }

    fn is_brought_down(&self, volume: VolumeId, range: &Sectors) -> bool {
        let before = self.brought_down.range(..Place::new(volume, range.end)).next_back();
        before.is_some_and(|(place, end)| place.volume() == volume && *end > range.start)
    }

    /// Returns the number of sectors that the log calls dirty and the backing device has.
    fn brought_down_sectors(&self) -> u64 {
        self.brought_down.iter().map(|(place, end)| end - place.sector()).sum()
    }

    /// Makes a task wait for a change of the log's validity.
    fn put_off(&mut self, id: TaskId) {
        self.waiting.push(id);
    }

    /// Adds a task to be restarted.
    fn restart(&mut self, id: TaskId) {
        self.ready.push_back(id);
    }

    /// Makes the waiting tasks ready.
    fn restart_waiting(&mut self) {
        self.ready.extend(self.waiting.drain(..));
    }

    /// Returns the next task to be restarted, if there is one.
    #[inline]
    pub(crate) fn take_ready(&mut self) -> Option<TaskId> {
        self.ready.pop_front()
    }
}

impl Shard {
    /// Notes that the log cannot be written.
    pub(crate) fn lose_log(&mut self) {
        self.bypass.lose(self.log.has_uncommitted_dirty());
    }

    /// Makes the log's clean copies void at the next start. With `stuck`, some dirty data cannot be
    /// cleaned.
    pub(crate) fn bypass(&mut self, stuck: bool, orders: &mut Vec<Order>) {
        self.lose_log();
        self.bypass.void_clean(stuck);
        self.bypass.restart_waiting();
        self.run_ready(orders);
        self.clean_all(orders);
    }

    /// Makes the whole log void at the next start.
    pub(crate) fn retire(&mut self, orders: &mut Vec<Order>) {
        self.lose_log();
        self.bypass.retire();
        self.forget_clean();
        self.bypass.restart_waiting();
        self.run_ready(orders);
    }

    /// Returns whether the last round of cleaning failed while the log could not be written.
    pub(crate) fn is_blocked(&self) -> bool {
        self.bypass.is_blocked()
    }

    /// Returns whether a flush of a volume cannot be promised although nothing is under way: some
    /// answered writes may be on no device.
    pub(crate) fn is_unsure_of(&self, volume: VolumeId) -> bool {
        let dirty = || self.directory.dirty_blocks(volume).next().is_some();
        self.bypass.is_unsure_of(volume, dirty) || self.held.count(volume) > 0
    }

    /// Returns whether the cache may hold data of a volume that the backing device lacks.
    pub(crate) fn has_dirty_of(&self, volume: VolumeId) -> bool {
        self.directory.dirty_blocks(volume).next().is_some() || self.held.count(volume) > 0
    }

    /// Returns an upper bound of the sectors with refused requests: writes that would have to wait
    /// for ever, and reads of dirty data that the cache device does not return.
    pub(crate) fn refused_sectors(&self) -> u64 {
        let stuck = match self.bypass.state() {
            LogState::Bypassed { stuck: true } => {
                self.directory.dirty_sectors() + self.bypass.brought_down_sectors()
            }
            _ if self.health.is_unreadable() => self.directory.dirty_sectors(),
            _ => 0,
        };
        self.lost.len().max(stuck)
    }

    /// Notes the end of a round of cleaning of a volume.
    pub(super) fn note_round(&mut self, volume: VolumeId, failed: bool) {
        if self.bypass.round_ended(volume, failed) && !failed {
            self.health.note_readable();
        }
    }

    /// Returns whether there is dirty data to be cleaned and no round that does it.
    pub(super) fn wants_rounds(&self) -> bool {
        let is_dirty = || self.directory.dirty_sectors() > 0;
        self.bypass.is_bypassed() && is_dirty() && self.rounds.is_idle() && !self.is_blocked()
    }

    /// Returns whether a volume has dirty data that must all be cleaned.
    pub(super) fn is_to_be_emptied(&self, volume: VolumeId) -> bool {
        self.bypass.is_bypassed() && self.directory.dirty_blocks(volume).next().is_some()
    }

    /// Returns the fate of a task that is about to change its range below the cache.
    fn way(&mut self, id: TaskId) -> Way {
        let state = self.bypass.state();
        let is_in_the_way = match state {
            LogState::Writable | LogState::Retired => false,
            LogState::Unwritable => self.has_copies(id),
            LogState::Bypassed { .. } => self.is_dirty_in_log(id),
        };
        match is_in_the_way {
            false => Way::Free,
            true if state == (LogState::Bypassed { stuck: true }) => Way::Refused,
            true => Way::Wait,
        }
    }

    /// Returns whether a task may change its range below the cache. If not, the task waits, or has
    /// ended.
    pub(super) fn may_change(&mut self, id: TaskId, orders: &mut Vec<Order>) -> bool {
        let way = self.way(id);
        match way {
            Way::Free => return true,
            // Cleaning comes after the write-back of memory, so a write-back cannot wait for it.
            // The data stays unflushed.
            Way::Wait if !matches!(self.tasks[id].work, Work::Sink) => {
                self.give_back(id, orders);
                self.bypass.put_off(id);
            }
            Way::Wait | Way::Refused => {
                self.tasks[id].fault = Some(Fault::Io);
                self.finish(id, orders);
            }
        }
        false
    }

    fn has_copies(&mut self, id: TaskId) -> bool {
        let survey = self.survey(id);
        let has_copies =
            survey.blocks.iter().any(|(block, run)| self.directory.has_valid(*block, run));
        self.spare_survey = survey;
        has_copies || self.log.has_gone_in(self.tasks.region_of(id))
    }

    fn is_dirty_in_log(&mut self, id: TaskId) -> bool {
        let task = &self.tasks[id];
        let (volume, range) = (task.volume, task.range.clone());
        self.bypass.is_brought_down(volume, &range) || self.is_dirty_below(id)
    }

    /// Returns whether a commit that a task waited for has failed for good, and clears the failure.
    pub(super) fn has_failed_with_log(&mut self, id: TaskId) -> bool {
        let failed = self.tasks[id].fault.is_some() && !self.bypass.is_writable();
        if failed {
            self.tasks[id].fault = None;
        }
        failed
    }

    /// Restarts a write that the cache could not take: it writes to the backing device first, from
    /// its buffer.
    pub(super) fn write_through(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let task = &mut self.tasks[id];
        (task.store.retry, task.store.through, task.store.no_room, task.store.dirty) =
            (false, true, false, false);
        // A sector that the write changes in part cannot be read again: a failed store may have
        // overwritten it.
        let task = &self.tasks[id];
        if task.store.damaged && task.scratch.is_some() && self.way(id) == Way::Wait {
            self.tasks[id].fault = Some(Fault::Io);
            return self.finish(id, orders);
        }
        self.write_below(id, orders);
    }

    /// Restarts an unanswered task as soon as it may continue.
    pub(super) fn start_anew(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        match self.way(id) {
            Way::Wait if matches!(self.tasks[id].work, Work::Sink) => {
                self.tasks[id].fault = Some(Fault::Io);
                self.finish(id, orders);
            }
            Way::Wait => {
                self.give_back(id, orders);
                self.bypass.put_off(id);
            }
            Way::Free | Way::Refused => {
                self.give_back(id, orders);
                self.bypass.restart(id);
            }
        }
    }

    /// Releases everything that a task holds.
    fn give_back(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let task = &mut self.tasks[id];
        debug_assert!(
            task.outstanding == 0 && !task.answered,
            "only what has not been answered starts anew"
        );
        (task.step, task.fault) = (Step::Waiting, None);
        (task.store.retry, task.store.no_room, task.store.dirty) = (false, false, false);
        self.tasks.release(id, orders);
    }
}

#[cfg(test)]
mod tests {
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
        assert!(!bypass.round_ended(VOLUME, true) && bypass.is_blocked());
        assert!(!bypass.round_ended(VolumeId(2), false) && bypass.is_blocked());
        assert!(bypass.round_ended(VOLUME, false) && !bypass.is_blocked());
    }

    #[test]
    fn tasks_that_wait_are_restarted_in_order() {
        let mut bypass = Bypass::default();
        [3, 1, 2].into_iter().for_each(|id| bypass.put_off(id));
        assert_eq!(bypass.take_ready(), None);
        bypass.restart_waiting();
        bypass.restart(9);
        let ready: Vec<TaskId> = std::iter::from_fn(|| bypass.take_ready()).collect();
        assert_eq!(ready, [3, 1, 2, 9]);
    }
}
