//! A log that cannot be written: how requests go on past the cache, and which of them cannot.
//!
//! The log keeps what it said last, and the next start of the program reads that. So a change of
//! the backing device is safe only where the log has no copy, or where something outside of it says
//! durably that its copies do not count. The owner of all parts writes that down and tells each
//! shard how far it has come ([`LogState`]).
//!
//! - *Unwritable*: nothing is written down yet. A write waits if the log may have a copy of its
//!   range.
//! - *Bypassed*: clean copies do not count. Dirty data still does: it is brought to the backing
//!   device, and a write waits while the log may call a part of its range dirty. Once cleaning has
//!   failed ([`Shard::bypass`] with `stuck`) such a write is refused: the old data would replace it
//!   at the next start.
//! - *Retired*: nothing that the log says counts. The shard is as one of a volatile cache whose
//!   device was given up.
//!
//! A task that waits holds no lock, since cleaning needs one on the same sectors. It starts anew
//! later.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Shard;
use super::task::{Step, Work};
use crate::geometry::{Place, Sectors, VolumeId};
use crate::locks::TaskId;
use crate::order::{BufferId, Order};
use crate::request::Fault;

/// How far the log counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum LogState {
    /// It is written.
    #[default]
    Writable,
    /// It could not be written.
    Unwritable,
    /// What it calls clean does not count at the next start.
    Bypassed {
        /// Some dirty data could not be brought down.
        stuck: bool,
    },
    /// Nothing that it says counts.
    Retired,
}

/// What a write to a range has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Free,
    Wait,
    Refused,
}

/// What is known of a log that cannot be written.
#[derive(Debug, Default)]
pub(super) struct Bypass {
    /// Runs that the log calls dirty and the backing device has by now: the end of each by its
    /// beginning.
    brought_down: BTreeMap<Place, u64>,
    /// Some dirty data may be neither in the log nor durable on the cache device.
    unsure: bool,
    /// Volumes of which the last round of cleaning failed.
    blocked: BTreeSet<VolumeId>,
    waiting: Vec<TaskId>,
    /// Tasks that may start anew.
    ready: VecDeque<TaskId>,
}

impl Shard {
    /// The log cannot be written.
    pub(crate) fn lose_log(&mut self) {
        if self.log.state == LogState::Writable {
            self.log.state = LogState::Unwritable;
            self.bypass.unsure = self.log.has_uncommitted_dirty();
        }
    }

    /// What the log calls clean does not count at the next start. With `stuck`, dirty data stays
    /// that cannot be brought down.
    pub(crate) fn bypass(&mut self, stuck: bool, orders: &mut Vec<Order>) {
        self.lose_log();
        if self.log.state != LogState::Retired {
            self.log.state = LogState::Bypassed { stuck };
        }
        self.restart_waiting(orders);
        self.clean_all(orders);
    }

    /// Nothing that the log says counts at the next start.
    pub(crate) fn retire(&mut self, orders: &mut Vec<Order>) {
        self.lose_log();
        self.log.state = LogState::Retired;
        self.bypass.brought_down.clear();
        self.forget_clean();
        self.restart_waiting(orders);
    }

    /// Whether the next start may need something that the cache device alone has.
    pub(crate) fn is_emptied(&self) -> bool {
        self.directory.dirty_sectors() == 0
    }

    /// Whether the last round of cleaning failed while the log could not be written.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.bypass.blocked.is_empty() && self.is_bypassed()
    }

    /// Whether a flush of a volume cannot be kept though nothing is under way: some of what was
    /// written may be nowhere.
    pub(crate) fn is_unsure_of(&self, volume: VolumeId) -> bool {
        let in_log = self.bypass.unsure
            && (self.directory.dirty_blocks(volume).next().is_some()
                || self.bypass.brought_down.range(Place::all_of(volume)).next().is_some());
        in_log || self.held.count(volume) > 0
    }

    /// Whether the cache may hold something of a volume that the backing device lacks.
    pub(crate) fn has_dirty_of(&self, volume: VolumeId) -> bool {
        self.directory.dirty_blocks(volume).next().is_some() || self.held.count(volume) > 0
    }

    /// Sectors of which some requests are refused, at most: a write that would have to wait for
    /// ever, or a read of what the cache device alone has and does not give back.
    pub(crate) fn refused_sectors(&self) -> u64 {
        let lost = self.lost.len() as u64;
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

    /// Some data became dirty that no commit will make durable.
    pub(super) fn note_unsure(&mut self) {
        self.bypass.unsure |= !matches!(self.log.state, LogState::Writable | LogState::Retired);
    }

    /// A round of cleaning of a volume has ended.
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

    /// A volume has gone.
    pub(super) fn forget_round(&mut self, volume: VolumeId) {
        self.note_round(volume, None);
    }

    /// Whether all that is dirty is to be brought down.
    pub(super) fn is_bypassed(&self) -> bool {
        matches!(self.log.state, LogState::Bypassed { .. })
    }

    /// Whether something is dirty that is to be brought down, and no round does it.
    pub(super) fn wants_rounds(&self) -> bool {
        let is_dirty = || self.directory.dirty_sectors() > 0;
        self.is_bypassed() && is_dirty() && self.rounds.is_idle() && self.bypass.blocked.is_empty()
    }

    /// Whether all that is dirty of a volume is to be brought down, and there is some.
    pub(super) fn is_to_be_emptied(&self, volume: VolumeId) -> bool {
        self.is_bypassed() && self.directory.dirty_blocks(volume).next().is_some()
    }

    /// Whether nothing that the log calls dirty may be overwritten, for it cannot be told.
    pub(super) fn is_bound_by_log(&self) -> bool {
        self.is_kept() && !matches!(self.log.state, LogState::Writable | LogState::Retired)
    }

    /// Whether some writes wait until the log counts less.
    pub(super) fn waits_for_log(&self) -> bool {
        matches!(self.log.state, LogState::Unwritable | LogState::Bypassed { stuck: false })
    }

    /// What a task that is about to change its range below the cache has to do.
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

    /// Whether a task may change its range below the cache. If not, it waits, or has ended.
    pub(super) fn may_change(&mut self, id: TaskId, orders: &mut Vec<Order>) -> bool {
        let way = self.way(id);
        match way {
            Way::Free => return true,
            // Cleaning comes after sinking, so what sinks cannot wait for it. It stays held.
            Way::Wait if !matches!(self.tasks[id as usize].work, Work::Sink) => {
                self.put_off(id, orders)
            }
            Way::Wait | Way::Refused => {
                self.tasks[id as usize].fault = Some(Fault::Io);
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
        has_copies || self.log.has_gone_in(self.task_region(id))
    }

    fn is_dirty_in_log(&mut self, id: TaskId) -> bool {
        let task = &self.tasks[id as usize];
        let (volume, range) = (task.volume, task.range.clone());
        self.is_brought_down(volume, &range) || self.is_dirty_below(id)
    }

    fn is_brought_down(&self, volume: VolumeId, range: &Sectors) -> bool {
        let before = self.bypass.brought_down.range(..Place::new(volume, range.end)).next_back();
        before.is_some_and(|(place, end)| place.volume() == volume && *end > range.start)
    }

    /// A run that the log calls dirty is on the backing device, durably.
    pub(super) fn note_brought_down(&mut self, volume: VolumeId, run: &Sectors) {
        if self.log.state != LogState::Retired {
            let end =
                self.bypass.brought_down.entry(Place::new(volume, run.start)).or_insert(run.end);
            *end = run.end.max(*end);
        }
    }

    /// A commit that a task waited for has failed for good; answers whether that is so, and forgets
    /// the failure.
    pub(super) fn has_failed_with_log(&mut self, id: TaskId) -> bool {
        let failed =
            self.tasks[id as usize].fault.is_some() && self.log.state != LogState::Writable;
        if failed {
            self.tasks[id as usize].fault = None;
        }
        failed
    }

    /// The cache could not take what a task writes: it writes to the backing device first, with the
    /// data it has.
    pub(super) fn write_through(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let task = &mut self.tasks[id as usize];
        (task.retry, task.through, task.no_room, task.store_dirty) = (false, true, false, false);
        // A sector that the write changes in part cannot be read again: a failed store has gone
        // over it.
        let task = &self.tasks[id as usize];
        if task.damaged && task.scratch.is_some() && self.way(id) == Way::Wait {
            self.tasks[id as usize].fault = Some(Fault::Io);
            return self.finish(id, orders);
        }
        self.write_below(id, orders);
    }

    /// Starts a task anew that has not been answered, when it may go on.
    pub(super) fn start_anew(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        match self.way(id) {
            Way::Wait if matches!(self.tasks[id as usize].work, Work::Sink) => {
                self.tasks[id as usize].fault = Some(Fault::Io);
                self.finish(id, orders);
            }
            Way::Wait => self.put_off(id, orders),
            Way::Free | Way::Refused => {
                self.give_back(id, orders);
                self.bypass.ready.push_back(id);
            }
        }
    }

    /// Leaves a task waiting, without a lock, until the log counts less.
    fn put_off(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        self.give_back(id, orders);
        self.bypass.waiting.push(id);
    }

    /// Has a task hold nothing any more.
    fn give_back(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let region = self.task_region(id);
        let task = &mut self.tasks[id as usize];
        debug_assert!(
            task.outstanding == 0 && !task.answered,
            "only what has not been answered starts anew"
        );
        (task.step, task.fault, task.retry) = (Step::Waiting, None, false);
        (task.no_room, task.store_dirty) = (false, false);
        if let Some(scratch) = task.scratch.take() {
            orders.push(Order::Release { buffer: BufferId::Scratch(scratch) });
        }
        if self.locks.release(region, id) {
            self.ready.extend(self.locks.wakeable(region));
        }
    }

    /// Starts anew what has waited.
    fn restart_waiting(&mut self, orders: &mut Vec<Order>) {
        self.bypass.ready.extend(self.bypass.waiting.drain(..));
        self.run_ready(orders);
    }

    /// A task that is to start anew, if there is one.
    pub(super) fn take_anew(&mut self) -> Option<TaskId> {
        self.bypass.ready.pop_front()
    }
}
