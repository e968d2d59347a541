//! The way of a write past a log that cannot be written ([`super::bypass`]), and its new start.

use super::bypass::LogState;
use super::parts::Parts;
use crate::engine::locks::TaskId;
use crate::engine::{Part, Step, Work};
use crate::geometry::Sectors;
use crate::store::journal::Standing;

/// The fate of a write to a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Free,
    Wait,
    Refused,
}

impl Parts {
    /// Returns the fate of a task that is about to change its range below the cache.
    pub(super) fn way(&mut self, id: TaskId) -> Way {
        let state = self.logging.bypass.state();
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

    fn has_copies(&mut self, id: TaskId) -> bool {
        let task = &self.tasks[id];
        self.map.has_valid(task.volume, &task.range)
            || self.logging.log.has_gone_in(self.tasks.region_of(id))
    }

    fn is_dirty_in_log(&mut self, id: TaskId) -> bool {
        let task = &self.tasks[id];
        self.logging.bypass.is_brought_down(task.volume, &task.range) || self.is_dirty_below(id)
    }

    /// Returns whether a task may change its range below the cache. If not, the task waits, or has
    /// ended.
    pub(super) fn may_change(&mut self, id: TaskId) -> bool {
        match self.way(id) {
            Way::Free => return true,
            // Cleaning comes after the write-back of memory, so a write-back cannot wait for it.
            // The data stays unflushed.
            Way::Wait if !matches!(self.tasks[id].work, Work::Sink) => {
                self.give_back(id);
                self.logging.bypass.put_off(id);
            }
            Way::Wait | Way::Refused => self.fail(id),
        }
        false
    }

    /// Returns whether a commit that a task waited for has failed for good, and clears the failure.
    pub(super) fn has_failed_with_log(&mut self, id: TaskId) -> bool {
        let failed = self.tasks[id].fault.is_some() && !self.logging.bypass.is_writable();
        if failed {
            self.tasks[id].fault = None;
        }
        failed
    }

    /// Restarts an unanswered task as soon as it may continue.
    pub(super) fn start_anew(&mut self, id: TaskId) {
        match self.way(id) {
            Way::Wait if matches!(self.tasks[id].work, Work::Sink) => self.fail(id),
            Way::Wait => {
                self.give_back(id);
                self.logging.bypass.put_off(id);
            }
            Way::Free | Way::Refused => {
                self.give_back(id);
                self.tasks.resume(id);
            }
        }
    }

    /// Releases everything that a task holds.
    fn give_back(&mut self, id: TaskId) {
        let task = &mut self.tasks[id];
        debug_assert!(
            task.outstanding == 0 && !task.answered,
            "only what has not been answered starts anew"
        );
        (task.step, task.fault) = (Step::Waiting, None);
        (task.store.retry, task.store.no_room, task.store.dirty) = (false, false, false);
        self.tasks.release(id, &mut self.orders);
    }

    /// Notes that the dirty sectors of a task's range are superseded, and waits until that is
    /// durable. The backing device has data as new, or newer, and is settled.
    pub(super) fn displace_dirty(&mut self, id: TaskId) {
        self.tasks[id].step = Step::Noting;
        self.note_displaced(id);
        let range = self.tasks[id].range.clone();
        self.await_commit(id, Part::Noted, &range);
    }

    /// Notes that the dirty sectors of a task's range are superseded: clean once a cleaning has
    /// written them, else invalid.
    pub(super) fn note_displaced(&mut self, id: TaskId) {
        let cleans = matches!(self.tasks[id].work, Work::Clean { .. });
        let survey = self.survey(id);
        for (block, run) in &survey.blocks {
            let (dirty, standing): (Vec<Sectors>, _) = match cleans {
                true => (self.map.dirty_there(*block, run), Standing::Clean),
                false => {
                    let dirty = self.map.directory.blocks.dirty_runs_in(*block, run);
                    (dirty.collect(), Standing::Invalid)
                }
            };
            dirty.iter().for_each(|run| self.note(*block, run, standing));
        }
        self.map.reuse(survey);
    }
}
