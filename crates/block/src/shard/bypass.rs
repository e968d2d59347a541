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
use crate::engine::{Step, Work};
use crate::geometry::{Place, Sectors, VolumeId};
use crate::locks::TaskId;
use crate::order::Order;
use crate::request::Fault;

/// The validity of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum LogState {
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
pub(super) enum Way {
    Free,
    Wait,
    Refused,
}

/// The state of a shard whose log cannot be written.
#[derive(Debug, Default)]
pub(super) struct Bypass {
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

impl Shard {
    /// Notes that the log cannot be written.
    pub(crate) fn lose_log(&mut self) {
        if self.log.state == LogState::Writable {
            self.log.state = LogState::Unwritable;
            self.bypass.unsure = self.log.has_uncommitted_dirty();
        }
    }

    /// Makes the log's clean copies void at the next start. With `stuck`, some dirty data cannot be
    /// cleaned.
    pub(crate) fn bypass(&mut self, stuck: bool, orders: &mut Vec<Order>) {
        self.lose_log();
        if self.log.state != LogState::Retired {
            self.log.state = LogState::Bypassed { stuck };
        }
        self.restart_waiting(orders);
        self.clean_all(orders);
    }

    /// Makes the whole log void at the next start.
    pub(crate) fn retire(&mut self, orders: &mut Vec<Order>) {
        self.lose_log();
        self.log.state = LogState::Retired;
        self.bypass.brought_down.clear();
        self.forget_clean();
        self.restart_waiting(orders);
    }

    /// Returns whether the next start needs nothing that only the cache device has.
    pub(crate) fn is_emptied(&self) -> bool {
        self.directory.dirty_sectors() == 0
    }

    /// Returns whether the last round of cleaning failed while the log could not be written.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.bypass.blocked.is_empty() && self.is_bypassed()
    }

    /// Returns whether a flush of a volume cannot be promised although nothing is under way: some
    /// answered writes may be on no device.
    pub(crate) fn is_unsure_of(&self, volume: VolumeId) -> bool {
        let in_log = self.bypass.unsure
            && (self.directory.dirty_blocks(volume).next().is_some()
                || self.bypass.brought_down.range(Place::all_of(volume)).next().is_some());
        in_log || self.held.count(volume) > 0
    }

    /// Returns whether the cache may hold data of a volume that the backing device lacks.
    pub(crate) fn has_dirty_of(&self, volume: VolumeId) -> bool {
        self.directory.dirty_blocks(volume).next().is_some() || self.held.count(volume) > 0
    }

    /// Returns an upper bound of the sectors with refused requests: writes that would have to wait
    /// for ever, and reads of dirty data that the cache device does not return.
    pub(crate) fn refused_sectors(&self) -> u64 {
        let lost = self.lost.len();
        let stuck = match self.log.state {
            LogState::Bypassed { stuck: true } => {
                let brought_down = self.bypass.brought_down.iter();
                let sectors: u64 = brought_down.map(|(place, end)| end - place.sector()).sum();
                self.directory.dirty_sectors() + sectors
            }
            _ if self.health.is_unreadable() => self.directory.dirty_sectors(),
            _ => 0,
        };
        lost.max(stuck)
    }

    /// Notes that some data became dirty which no commit will make durable.
    pub(super) fn note_unsure(&mut self) {
        self.bypass.unsure |= !matches!(self.log.state, LogState::Writable | LogState::Retired);
    }

    /// Notes the end of a round of cleaning of a volume.
    pub(super) fn note_round(&mut self, volume: VolumeId, fault: Option<Fault>) {
        if fault.is_some() {
            self.bypass.blocked.insert(volume);
            return;
        }
        self.bypass.blocked.remove(&volume);
        if self.bypass.blocked.is_empty() {
            self.health.note_readable();
        }
    }

    /// Forgets a removed volume.
    pub(super) fn forget_round(&mut self, volume: VolumeId) {
        self.note_round(volume, None);
    }

    /// Returns whether all dirty data is to be cleaned.
    pub(super) fn is_bypassed(&self) -> bool {
        matches!(self.log.state, LogState::Bypassed { .. })
    }

    /// Returns whether there is dirty data to be cleaned and no round that does it.
    pub(super) fn wants_rounds(&self) -> bool {
        let is_dirty = || self.directory.dirty_sectors() > 0;
        self.is_bypassed() && is_dirty() && self.rounds.is_idle() && self.bypass.blocked.is_empty()
    }

    /// Returns whether a volume has dirty data that must all be cleaned.
    pub(super) fn is_to_be_emptied(&self, volume: VolumeId) -> bool {
        self.is_bypassed() && self.directory.dirty_blocks(volume).next().is_some()
    }

    /// Returns whether data that the log calls dirty must not be overwritten, as the log cannot
    /// record it.
    pub(super) fn is_bound_by_log(&self) -> bool {
        self.is_kept() && !matches!(self.log.state, LogState::Writable | LogState::Retired)
    }

    /// Returns whether some writes wait for a change of the log's validity.
    pub(super) fn waits_for_log(&self) -> bool {
        matches!(self.log.state, LogState::Unwritable | LogState::Bypassed { stuck: false })
    }

    /// Returns the fate of a task that is about to change its range below the cache.
    pub(super) fn way(&mut self, id: TaskId) -> Way {
        let state = self.log.state;
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
            Way::Wait if !matches!(self.tasks[id].work, Work::Sink) => self.put_off(id, orders),
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
        self.is_brought_down(volume, &range) || self.is_dirty_below(id)
    }

    fn is_brought_down(&self, volume: VolumeId, range: &Sectors) -> bool {
        let before = self.bypass.brought_down.range(..Place::new(volume, range.end)).next_back();
        before.is_some_and(|(place, end)| place.volume() == volume && *end > range.start)
    }

    /// Notes that the backing device durably has a run which the log calls dirty.
    pub(super) fn note_brought_down(&mut self, volume: VolumeId, run: &Sectors) {
        if self.log.state != LogState::Retired {
            let end =
                self.bypass.brought_down.entry(Place::new(volume, run.start)).or_insert(run.end);
            *end = run.end.max(*end);
        }
    }

    /// Returns whether a commit that a task waited for has failed for good, and clears the failure.
    pub(super) fn has_failed_with_log(&mut self, id: TaskId) -> bool {
        let failed = self.tasks[id].fault.is_some() && self.log.state != LogState::Writable;
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
            Way::Wait => self.put_off(id, orders),
            Way::Free | Way::Refused => {
                self.give_back(id, orders);
                self.bypass.ready.push_back(id);
            }
        }
    }

    /// Makes a task wait, without a lock, for a change of the log's validity.
    fn put_off(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        self.give_back(id, orders);
        self.bypass.waiting.push(id);
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

    /// Restarts the waiting tasks.
    fn restart_waiting(&mut self, orders: &mut Vec<Order>) {
        self.bypass.ready.extend(self.bypass.waiting.drain(..));
        self.run_ready(orders);
    }

    /// Returns the next task to be restarted, if there is one.
    pub(super) fn take_anew(&mut self) -> Option<TaskId> {
        self.bypass.ready.pop_front()
    }
}
