//! Cutting: divides a task in two, so that one part need not wait for the other.
//!
//! Requests are split at region ends only, and a region is long. Within a region, a sub-request may
//! find some sectors cached and others not, or some free and others locked. It then becomes a task
//! for each such run. Available runs are served at once, and later requests wait only for sectors
//! in use. The sub-request is answered, and ends, with the last of its tasks.

use super::Shard;
use super::task::Task;
use crate::locks::{Need, TaskId};
use crate::request::Fault;

/// A sub-request that has become several tasks.
#[derive(Debug)]
struct Cut {
    unanswered: u32,
    unfinished: u32,
    result: Result<(), Fault>,
    hit: bool,
}

/// The sub-requests that have become several tasks, by the number that those tasks store.
#[derive(Debug, Default)]
pub(super) struct Cuts {
    cuts: Vec<Cut>,
    free: Vec<u32>,
}

impl Cuts {
    /// Registers a sub-request whose task has become two, and returns its number.
    fn begin(&mut self) -> u32 {
        let cut = Cut { unanswered: 2, unfinished: 2, result: Ok(()), hit: true };
        match self.free.pop() {
            Some(number) => {
                self.cuts[number as usize] = cut;
                number
            }
            None => {
                self.cuts.push(cut);
                self.cuts.len() as u32 - 1
            }
        }
    }

    /// Notes that one of its tasks has become two.
    fn grow(&mut self, number: u32) {
        let cut = &mut self.cuts[number as usize];
        cut.unanswered += 1;
        cut.unfinished += 1;
    }

    /// Notes a task's answer. Returns, with the last one, the sub-request's result and whether all
    /// was cached.
    pub(super) fn answered(
        &mut self,
        number: u32,
        result: Result<(), Fault>,
        hit: bool,
    ) -> Option<(Result<(), Fault>, bool)> {
        let cut = &mut self.cuts[number as usize];
        cut.unanswered -= 1;
        cut.result = cut.result.and(result);
        cut.hit &= hit;
        (cut.unanswered == 0).then_some((cut.result, cut.hit))
    }

    /// Notes the end of a task; returns whether it was the last.
    pub(super) fn finished(&mut self, number: u32) -> bool {
        let cut = &mut self.cuts[number as usize];
        cut.unfinished -= 1;
        if cut.unfinished == 0 {
            self.free.push(number);
        }
        cut.unfinished == 0
    }
}

impl Shard {
    /// Takes the lock that a task needs, or leaves the task waiting; returns whether the lock was
    /// taken. If other tasks hold only a part of the range, the task is cut at a multiple of
    /// `unit`. It continues, or waits, with the front; the rest is the second task that is
    /// returned, to be started next.
    #[inline]
    pub(super) fn lock_front(
        &mut self,
        id: TaskId,
        need: Need,
        unit: u64,
    ) -> (bool, Option<TaskId>) {
        let region = self.task_region(id);
        if self.locks.take(region, id, need.clone()) {
            return (true, None);
        }
        let Some(at) = self.locks.seam(region, id, unit) else { return (false, None) };
        let rest = self.cut(id, at);
        (self.locks.take(region, id, need.cut(at).0), Some(rest))
    }

    /// Cuts a task at a sector and returns the task for the rest, which holds or waits for the same
    /// kind of lock there.
    pub(super) fn cut(&mut self, id: TaskId, at: u64) -> TaskId {
        let region = self.task_region(id);
        let number = match self.tasks[id as usize].cut {
            Some(number) => {
                self.cuts.grow(number);
                number
            }
            None => self.cuts.begin(),
        };
        let task = &mut self.tasks[id as usize];
        debug_assert!(task.range.start < at && at < task.range.end);
        task.cut = Some(number);
        let end = std::mem::replace(&mut task.range.end, at);
        let Task { volume, waited, offer, stream, .. } = *task;
        let (work, bypassed) = (task.work.clone(), task.bypassed.clone());
        let rest = self.new_task(work, volume, at..end);
        let task = &mut self.tasks[rest as usize];
        (task.cut, task.waited) = (Some(number), waited);
        (task.offer, task.stream, task.bypassed) = (offer, stream, bypassed);
        self.locks.cut(region, id, at, rest);
        rest
    }
}
