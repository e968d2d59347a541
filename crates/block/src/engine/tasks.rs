//! The tasks of a shard under way, with their locks, scratch buffers and the ids of their
//! operations.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

use super::cuts::Cuts;
use super::task::{Data, Event, Part, Step, Task, Work};
use crate::engine::locks::{Locks, Need, TaskId};
use crate::geometry::{BlockSizes, Place, SECTOR_BYTES, Sectors, VolumeId};
use crate::order::{BufferId, OpId, Order, ScratchId};

/// Bits of an [`OpId`] for the part of a task, and for the task; the shard's number is above.
const PART_BITS: u32 = 24;
const TASK_BITS: u32 = 32;

/// Returns the shard whose operation it is.
#[inline]
pub(crate) fn shard_of(op: OpId) -> u8 {
    (op.0 >> (PART_BITS + TASK_BITS)) as u8
}

/// Returns the task and the number of the part that an operation belongs to.
#[inline]
fn part_of(op: OpId) -> (TaskId, usize) {
    ((op.0 >> PART_BITS) as TaskId, (op.0 & ((1 << PART_BITS) - 1)) as usize)
}

/// The tasks of a shard.
#[derive(Debug)]
pub(crate) struct Tasks {
    /// The shard's number.
    number: u8,
    sizes: BlockSizes,
    tasks: Vec<Task>,
    free: Vec<TaskId>,
    cuts: Cuts,
    scratch_made: u64,
    locks: Locks,
    /// Tasks to be started again, because a lock that may block them was released.
    ready: VecDeque<TaskId>,
    /// Tasks to start or go on with, though no operation of theirs has ended.
    resumed: VecDeque<TaskId>,
    /// Operations of backing devices that clients wait for.
    awaited: usize,
    /// A spare vector, empty but for its memory.
    spare: Vec<TaskId>,
}

impl Index<TaskId> for Tasks {
    type Output = Task;

    #[inline]
    fn index(&self, id: TaskId) -> &Task {
        &self.tasks[id as usize]
    }
}

impl IndexMut<TaskId> for Tasks {
    #[inline]
    fn index_mut(&mut self, id: TaskId) -> &mut Task {
        &mut self.tasks[id as usize]
    }
}

impl Tasks {
    /// Creates the tasks of a shard.
    pub(crate) fn new(number: u8, sizes: BlockSizes) -> Self {
        Self {
            number,
            sizes,
            tasks: Vec::new(),
            free: Vec::new(),
            cuts: Cuts::default(),
            scratch_made: 0,
            locks: Locks::default(),
            ready: VecDeque::new(),
            resumed: VecDeque::new(),
            awaited: 0,
            spare: Vec::new(),
        }
    }

    /// Creates a task, which waits for its lock.
    #[inline]
    pub(crate) fn begin(&mut self, work: Work, volume: VolumeId, range: Sectors) -> TaskId {
        match self.free.pop() {
            Some(id) => {
                self[id].renew(work, volume, range);
                id
            }
            None => {
                self.tasks.push(Task::new(work, volume, range));
                self.tasks.len() as TaskId - 1
            }
        }
    }

    /// Returns the region of a task, the unit of locking.
    #[inline]
    pub(crate) fn region_of(&self, id: TaskId) -> Place {
        self.sizes.region(self[id].volume, self[id].range.start)
    }

    /// Takes a lock, or leaves the task waiting for it; returns whether it was taken.
    #[inline]
    pub(crate) fn lock(&mut self, id: TaskId, need: Need) -> bool {
        let region = self.region_of(id);
        self.locks.take(region, id, need)
    }

    /// Takes the lock that a task needs, or leaves the task waiting; returns whether the lock was
    /// taken. If other tasks hold only a part of the range, the task is cut at a multiple of
    /// `unit`. It continues, or waits, with the front; the rest is the second task that is
    /// returned, to be started next.
    #[inline]
    pub(crate) fn lock_front(
        &mut self,
        id: TaskId,
        need: Need,
        unit: u64,
    ) -> (bool, Option<TaskId>) {
        let region = self.region_of(id);
        if self.locks.take(region, id, need.clone()) {
            return (true, None);
        }
        let Some(at) = self.locks.seam(region, id, unit) else { return (false, None) };
        let rest = self.cut(id, at);
        (self.locks.take(region, id, need.cut(at).0), Some(rest))
    }

    /// Cuts a task at a sector and returns the task for the rest, which holds or waits for the same
    /// kind of lock there.
    pub(crate) fn cut(&mut self, id: TaskId, at: u64) -> TaskId {
        let region = self.region_of(id);
        let number = match self[id].cut {
            Some(number) => {
                self.cuts.grow(number);
                number
            }
            None => self.cuts.begin(),
        };
        let task = &mut self[id];
        debug_assert!(task.range.start < at && at < task.range.end);
        task.cut = Some(number);
        let end = std::mem::replace(&mut task.range.end, at);
        let Task { volume, waited, offer, stream, .. } = *task;
        let (work, bypassed) = (task.work.clone(), task.store.bypassed.clone());
        let rest = self.begin(work, volume, at..end);
        let task = &mut self[rest];
        (task.cut, task.waited) = (Some(number), waited);
        (task.offer, task.stream, task.store.bypassed) = (offer, stream, bypassed);
        self.locks.cut(region, id, at, rest);
        rest
    }

    /// Orders a scratch buffer for a task, as long as a run, and returns the run's place in it.
    pub(crate) fn new_buffer(
        &mut self,
        id: TaskId,
        run: &Sectors,
        orders: &mut Vec<Order>,
    ) -> Data {
        self.scratch_made += 1;
        let scratch = ScratchId(u64::from(self.number) << 56 | self.scratch_made);
        orders.push(Order::Allocate { scratch, len: (run.end - run.start) * SECTOR_BYTES });
        self[id].scratch = Some(scratch);
        Data { buffer: BufferId::Scratch(scratch), sector: run.start, offset: 0 }
    }

    /// Registers a part of a task and returns the id of its operation.
    #[inline]
    pub(crate) fn new_op(&mut self, id: TaskId, part: Part, run: &Sectors) -> OpId {
        self.awaited += usize::from(self.is_awaited(id, part));
        let task = &mut self[id];
        let number = task.parts.len() as u64;
        task.parts.push((part, run.clone()));
        task.outstanding += 1;
        OpId(
            u64::from(self.number) << (PART_BITS + TASK_BITS) | u64::from(id) << PART_BITS | number,
        )
    }

    /// Returns the task and the part that an operation belongs to, with its run.
    #[inline]
    pub(crate) fn of_op(&self, op: OpId) -> (TaskId, Part, &Sectors) {
        let (id, number) = part_of(op);
        let (part, run) = &self[id].parts[number];
        (id, *part, run)
    }

    /// Notes the end of an operation.
    #[inline]
    pub(crate) fn op_ended(&mut self, id: TaskId, part: Part) {
        self[id].outstanding -= 1;
        self.awaited -= usize::from(self.is_awaited(id, part));
    }

    /// Returns whether a client waits for a part on a backing device.
    #[inline]
    fn is_awaited(&self, id: TaskId, part: Part) -> bool {
        let on_backing =
            matches!(part, Part::Uncached | Part::Shed | Part::Fetch | Part::Around | Part::Whole);
        on_backing && matches!(self[id].work, Work::Piece(_))
    }

    /// Returns whether clients wait for operations of backing devices.
    #[inline]
    pub(crate) fn await_backing(&self) -> bool {
        self.awaited > 0
    }

    /// Answers a sub-request, once, when all its tasks have an answer.
    #[inline]
    pub(crate) fn answer(&mut self, id: TaskId) -> Option<Event> {
        let task = &mut self.tasks[id as usize];
        let Work::Piece(piece) = &task.work else { return None };
        if std::mem::replace(&mut task.answered, true) {
            return None;
        }
        let (result, hit) = (task.fault.map_or(Ok(()), Err), task.hit);
        let (result, hit) = match task.cut {
            None => (result, hit),
            Some(cut) => self.cuts.answered(cut, result, hit)?,
        };
        Some(Event::Answered { request: piece.request, result, hit })
    }

    /// Releases a task's scratch buffer and lock, and wakes the tasks that wait for the lock.
    #[inline]
    pub(crate) fn release(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        if let Some(scratch) = self[id].scratch.take() {
            orders.push(Order::Release { buffer: BufferId::Scratch(scratch) });
        }
        let region = self.region_of(id);
        if self.locks.release(region, id) {
            self.ready.extend(self.locks.wakeable(region));
        }
    }

    /// Returns whether an ending task is the last of its sub-request or fetch.
    #[inline]
    pub(crate) fn is_last(&mut self, id: TaskId) -> bool {
        self[id].cut.is_none_or(|cut| self.cuts.finished(cut))
    }

    /// Frees the place of an ended task.
    #[inline]
    pub(crate) fn free(&mut self, id: TaskId) {
        debug_assert_eq!(self[id].step, Step::Done);
        self.free.push(id);
    }

    /// Returns the next task to be tried again. A task woken earlier may have taken its lock.
    #[inline]
    pub(crate) fn take_ready(&mut self) -> Option<TaskId> {
        while let Some(id) = self.ready.pop_front() {
            let waits = self[id].step == Step::Waiting;
            if waits && self.locks.is_wakeable(self.region_of(id), id) {
                return Some(id);
            }
        }
        None
    }

    /// Returns whether some task may be tried again or go on.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty() || !self.resumed.is_empty()
    }

    /// Queues a task to start or go on, though no operation of it has ended.
    pub(crate) fn resume(&mut self, id: TaskId) {
        self.resumed.push_back(id);
    }

    /// Returns the next task that was resumed.
    #[inline]
    pub(crate) fn take_resumed(&mut self) -> Option<TaskId> {
        self.resumed.pop_front()
    }

    /// Returns the tasks that hold a lock in a task's region.
    pub(crate) fn holders(&self, id: TaskId) -> impl Iterator<Item = TaskId> {
        self.locks.holders(self.region_of(id))
    }

    /// Returns the tasks that wait in a task's region; [`Tasks::reuse`] takes the vector back.
    pub(crate) fn waiting(&mut self, id: TaskId) -> Vec<TaskId> {
        let mut waiting = std::mem::take(&mut self.spare);
        waiting.extend(self.locks.waiting(self.region_of(id)));
        waiting
    }

    /// Reuses the memory of a vector.
    pub(crate) fn reuse(&mut self, mut waiting: Vec<TaskId>) {
        waiting.clear();
        self.spare = waiting;
    }

    /// Returns whether a task of a volume is under way.
    pub(crate) fn is_using(&self, volume: VolumeId) -> bool {
        self.tasks.iter().any(|task| task.volume == volume && task.step != Step::Done)
    }

    /// Returns whether some task holds or waits for a lock on sectors of a region.
    #[inline]
    pub(crate) fn in_use(&self, volume: VolumeId, sectors: &Sectors) -> bool {
        self.locks.in_use(self.sizes.region(volume, sectors.start), sectors)
    }

    /// Returns whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.locks.is_idle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::piece::{Piece, PieceKind};
    use crate::engine::request::{Fault, RequestId};

    const VOLUME: VolumeId = VolumeId(0);

    fn tasks() -> Tasks {
        Tasks::new(3, BlockSizes::default())
    }

    fn read(tasks: &mut Tasks, sectors: Sectors) -> TaskId {
        let piece = Piece {
            request: RequestId(9),
            volume: VOLUME,
            kind: PieceKind::Read,
            sectors: sectors.clone(),
            buffer_offset: 0,
            stream: None,
        };
        tasks.begin(Work::Piece(piece), VOLUME, sectors)
    }

    #[test]
    fn an_operation_leads_back_to_its_task_and_part() {
        let mut tasks = tasks();
        let (first, second) = (read(&mut tasks, 0..4), read(&mut tasks, 4..8));
        tasks.new_op(first, Part::Uncached, &(0..1));
        let op = tasks.new_op(second, Part::Fetch, &(4..6));
        assert_eq!((shard_of(op), tasks.of_op(op)), (3, (second, Part::Fetch, &(4..6))));
        assert!(tasks.await_backing());
        tasks.op_ended(second, Part::Fetch);
        tasks.op_ended(first, Part::Uncached);
        assert!(!tasks.await_backing() && tasks[second].outstanding == 0);
    }

    #[test]
    fn a_task_that_meets_a_lock_is_cut_and_answers_with_its_rest() {
        let mut tasks = tasks();
        let writer = tasks.begin(Work::Sink, VOLUME, 2..4);
        assert!(tasks.lock(writer, Need::exclusive(2..4)));
        let front = read(&mut tasks, 0..4);
        let (taken, rest) = tasks.lock_front(front, Need::shared(0..4), 1);
        let rest = rest.expect("a part of it is free");
        assert!(taken && (tasks[front].range == (0..2)) && tasks[rest].range == (2..4));
        assert!(!tasks.lock(rest, Need::shared(2..4)));
        assert_eq!(tasks.answer(front), None, "the rest has no answer");
        tasks[rest].fault = Some(Fault::Io);
        let answer = Event::Answered { request: RequestId(9), result: Err(Fault::Io), hit: false };
        assert_eq!(tasks.answer(rest), Some(answer));
        assert_eq!(tasks.answer(rest), None, "it is answered once");
        assert!(!tasks.is_last(front) && tasks.is_last(rest));
    }

    #[test]
    fn a_release_makes_those_ready_who_wait() {
        let mut tasks = tasks();
        let writer = tasks.begin(Work::Sink, VOLUME, 0..4);
        assert!(tasks.lock(writer, Need::exclusive(0..4)));
        let reader = read(&mut tasks, 0..2);
        assert!(!tasks.lock(reader, Need::shared(0..2)));
        assert!(tasks.take_ready().is_none() && tasks.in_use(VOLUME, &(3..5)));
        let mut orders = Vec::new();
        tasks.new_buffer(writer, &(0..4), &mut orders);
        tasks[writer].step = Step::Done;
        tasks.release(writer, &mut orders);
        assert!(matches!(orders[..], [Order::Allocate { .. }, Order::Release { .. }]));
        tasks.free(writer);
        assert_eq!(tasks.take_ready(), Some(reader));
        assert!(!tasks.in_use(VOLUME, &(3..5)) && tasks.is_using(VOLUME) && !tasks.is_idle());
    }
}
