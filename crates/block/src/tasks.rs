//! The tasks of a shard under way, with their locks, scratch buffers and the ids of their
//! operations.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

use super::join::{Fault, Piece, PieceKind, RequestId};
use crate::geometry::{BlockSizes, Place, SECTOR_BYTES, Sectors, VolumeId};
use crate::locks::{Locks, Need, TaskId};
use crate::mapping::directory::Block;
use crate::order::{BufferId, OpId, Order, ScratchId, Span};

/// Bits of an [`OpId`] for the number of a task's part and the task; the shard's number is above.
const PART_BITS: u32 = 24;
const TASK_BITS: u32 = 32;

/// Returns the number of the shard that ordered an operation.
#[inline]
pub(crate) fn shard_of(op: OpId) -> u8 {
    (op.0 >> (PART_BITS + TASK_BITS)) as u8
}

/// Returns the task and the number of the part that an operation belongs to.
#[inline]
fn part_of(op: OpId) -> (TaskId, usize) {
    ((op.0 >> PART_BITS) as TaskId, (op.0 & ((1 << PART_BITS) - 1)) as usize)
}

#[derive(Debug)]
pub(crate) struct Tasks {
    number: u8,
    sizes: BlockSizes,
    tasks: Vec<Task>,
    free: Vec<TaskId>,
    cuts: Cuts,
    scratch_made: u64,
    locks: Locks,
    /// Tasks to be tried again, because a lock that may block them was released.
    ready: VecDeque<TaskId>,
    /// Tasks to start or continue, though no operation of theirs has ended.
    resumed: VecDeque<TaskId>,
    /// Number of operations of backing devices that clients wait for.
    awaited: usize,
    /// A spare vector, kept for its allocation; empty between uses.
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

    /// Returns the region of a task. Locks are kept by region.
    #[inline]
    pub(crate) fn region_of(&self, id: TaskId) -> Place {
        self.sizes.region(self[id].volume, self[id].range.start)
    }

    /// Takes a lock, or leaves the task waiting for it; returns whether the lock was taken.
    #[inline]
    pub(crate) fn lock(&mut self, id: TaskId, need: Need) -> bool {
        let region = self.region_of(id);
        self.locks.take(region, id, need)
    }

    /// Takes the lock that a task needs, or leaves the task waiting; returns whether the lock was
    /// taken. If other tasks hold only a part of the range, the task is cut at a multiple of
    /// `unit`. The task keeps the front of its range; the rest becomes a second task, which is
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

    /// Cuts a task at a sector and returns the new task for the rest, which holds or waits for the
    /// same kind of lock there.
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

    /// Orders a scratch buffer of a run's length for a task, and returns the run's place in it.
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

    /// Answers a sub-request, once, when all its tasks have answered.
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

    /// Frees the slot of an ended task.
    #[inline]
    pub(crate) fn free(&mut self, id: TaskId) {
        debug_assert_eq!(self[id].step, TaskStep::Done);
        self.free.push(id);
    }

    /// Returns the next task to be tried again. A task woken earlier may have taken its lock.
    #[inline]
    pub(crate) fn take_ready(&mut self) -> Option<TaskId> {
        while let Some(id) = self.ready.pop_front() {
            let waits = self[id].step == TaskStep::Waiting;
            if waits && self.locks.is_wakeable(self.region_of(id), id) {
                return Some(id);
            }
        }
        None
    }

    /// Returns whether some task may be tried again or continue.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty() || !self.resumed.is_empty()
    }

    /// Queues a task to start or continue, though no operation of the task has ended.
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

    /// Returns whether a task waits in a task's region.
    pub(crate) fn keeps_waiting(&self, id: TaskId) -> bool {
        self.locks.waiting(self.region_of(id)).next().is_some()
    }

    /// Keeps a vector's memory for the next [`Tasks::waiting`].
    pub(crate) fn reuse(&mut self, mut waiting: Vec<TaskId>) {
        waiting.clear();
        self.spare = waiting;
    }

    /// Returns whether a volume has a task under way.
    pub(crate) fn is_using(&self, volume: VolumeId) -> bool {
        self.tasks.iter().any(|task| task.volume == volume && task.step != TaskStep::Done)
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

/// A message from a shard to the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A sub-request has its answer.
    Answered { request: RequestId, result: Result<(), Fault>, hit: bool },
    /// A sub-request will not touch its request's buffer again.
    Finished { request: RequestId },
    /// A task waits until the logged changes are durable.
    WantsCommit,
    /// A task waits until the writes to a volume's backing device are durable.
    WantsSettlement(VolumeId),
    /// The drain of this number has ended: on success, its dirty data is on the backing device.
    Drained { drain: u32, result: Result<(), Fault> },
}

/// The type of a task, with its sub-request or block.
#[derive(Debug, Clone)]
pub(crate) enum Work {
    Piece(Piece),
    /// Write a block's dirty sectors to the backing device.
    Clean {
        block_start: u64,
        because: Because,
        /// Set until the block has been written, or its cleaning has failed.
        moves: bool,
    },
    /// Write unflushed sectors to the tiers below memory.
    WriteBack,
    /// Fetch data into the cache that no client has asked for.
    Fetch,
    /// Give the space of a free group back to the cache device. Takes no lock.
    GiveBack {
        group: u32,
    },
}

impl Work {
    /// Returns whether the task brings in what an operator wants in the cache.
    pub(crate) fn is_warming(&self) -> bool {
        matches!(self, Self::Piece(Piece { kind: PieceKind::Prefetch { asks: false }, .. }))
    }
}

/// The admission's answer for the missing sectors of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offer {
    NotMade,
    Admitted,
    Bypassed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Because {
    /// Another task needs the block's place.
    Room(TaskId),
    /// The block is near the end of the eviction order, and is cleaned ahead of need.
    Ahead,
    /// A round of cleaning has reached the block.
    Round,
    /// The block's group leaves, as the cache becomes smaller.
    Leaving,
}

/// The step of a task: the purpose of the operations under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskStep {
    /// Waiting for the task's lock.
    Waiting,
    /// Reading a client's data, from either device.
    Reading,
    /// Reading the sectors that a write changes in part.
    Edges,
    /// Writing, zeroing or discarding on the backing device.
    Backing,
    /// Putting data into the cache.
    Storing,
    /// Waiting until victims are clean.
    Room,
    /// Reading dirty data from the cache.
    CleanRead,
    /// Writing dirty data to the backing device.
    CleanWrite,
    /// Waiting until the removal of copies is durable.
    Unlogging,
    /// Waiting until the permission to overwrite dirty data is durable.
    Unsealing,
    /// Waiting until the writes to the backing device are durable.
    Settling,
    /// Waiting until logged changes are durable.
    Noting,
    /// Discarding a group on the cache device.
    GivingBack,
    /// The task has ended, and its slot is free for another.
    Done,
}

/// The purpose of one operation of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Reads from a cached block; on failure, clean sectors are read from the backing device.
    Cached(Block),
    /// Reads sectors from the backing device that are not cached, into the read's destination.
    Uncached,
    /// Reads clean cached data from the backing device; on failure the cache is read.
    Shed,
    /// Reads data from the backing device that is then stored in the cache.
    Fetch,
    /// Writes to a cached block.
    Store(Block),
    /// Writes data to the backing device that the cache could not take.
    Around,
    /// Reads or changes the task's whole range on the backing device.
    Whole,
    /// Reads or writes a dirty run of a block that is being cleaned.
    Dirty(Block),
    /// Waits for a commit, not for a device: logged changes become durable.
    Noted,
    /// Waits for a commit, not for a device: the removal of copies becomes durable. Data of their
    /// region that has no room in the cache then goes to the backing device.
    Unlogged,
    /// Waits for a settlement: the flush of the backing device.
    Settled,
    /// Discards a group on the cache device.
    GivenBack,
}

/// The position of a run's data in a buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Data {
    pub(crate) buffer: BufferId,
    /// The sector whose data is at `offset` in the buffer.
    pub(crate) sector: u64,
    pub(crate) offset: u64,
}

impl Data {
    #[inline]
    pub(crate) fn span(&self, run: &Sectors) -> Span {
        Span {
            buffer: self.buffer,
            offset: self.offset + (run.start - self.sector) * SECTOR_BYTES,
            len: (run.end - run.start) * SECTOR_BYTES,
        }
    }
}

/// The progress of storing a task's data in the cache.
#[derive(Debug)]
pub(crate) struct Store {
    /// Position of the data in its buffer.
    pub(crate) data: Data,
    /// Run to be stored in the cache, and the cursor: the first sector not yet handled.
    pub(crate) run: Sectors,
    pub(crate) cursor: u64,
    /// Set if the data is stored as dirty: the cache will have the only copy.
    pub(crate) dirty: bool,
    /// Runs to be stored that may not make blocks.
    pub(crate) bypassed: Vec<Sectors>,
    /// Number of victims being cleaned for this store.
    pub(crate) cleaning: u32,
    /// Set when a victim could not be cleaned: no block is allocated for the rest.
    pub(crate) no_room: bool,
    /// Set when the cache could not take some of the data: the write is restarted.
    pub(crate) retry: bool,
    /// Set when a failed store may have overwritten a sector that the write changes only in part.
    pub(crate) damaged: bool,
    /// Set when the write goes to the backing device first, whatever the write mode.
    pub(crate) through: bool,
    /// Set when the write goes to the backing device only, and cached copies are dropped.
    pub(crate) around: bool,
}

impl Store {
    #[inline]
    fn new(bypassed: Vec<Sectors>) -> Self {
        let data = Data { buffer: BufferId::Scratch(ScratchId(0)), sector: 0, offset: 0 };
        Self {
            data,
            run: 0..0,
            cursor: 0,
            dirty: false,
            bypassed,
            cleaning: 0,
            no_room: false,
            retry: false,
            damaged: false,
            through: false,
            around: false,
        }
    }

    /// Returns whether no block may be made for a sector.
    #[inline]
    pub(crate) fn stays_out(&self, sector: u64) -> bool {
        self.bypassed.iter().any(|run| run.contains(&sector))
    }
}

/// A task under way: a sub-request or a part of one, a cleaning, a write-back or a fetch.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) work: Work,
    pub(crate) volume: VolumeId,
    /// The sectors that the task reads or changes.
    pub(crate) range: Sectors,
    /// The number of the sub-request in `Cuts`, if it has several tasks.
    pub(crate) cut: Option<u32>,
    pub(crate) step: TaskStep,
    /// Operations under way, each with its purpose and its run of sectors.
    pub(crate) parts: Vec<(Part, Sectors)>,
    pub(crate) outstanding: u32,
    pub(crate) fault: Option<Fault>,
    pub(crate) answered: bool,
    pub(crate) hit: bool,
    /// Set when the task had to wait for its lock.
    pub(crate) waited: bool,
    pub(crate) scratch: Option<ScratchId>,
    pub(crate) store: Store,
    pub(crate) offer: Offer,
    /// Start of the stream that the task's range belongs to, if streams are tracked. For a fetch:
    /// start of the stream that it continues, if any.
    pub(crate) stream: Option<u64>,
}

impl Task {
    pub(crate) fn new(work: Work, volume: VolumeId, range: Sectors) -> Self {
        let is_wanted = work.is_warming();
        Self {
            work,
            volume,
            range,
            cut: None,
            step: TaskStep::Waiting,
            parts: Vec::new(),
            outstanding: 0,
            fault: None,
            answered: false,
            hit: false,
            waited: false,
            scratch: None,
            store: Store::new(Vec::new()),
            offer: if is_wanted { Offer::Admitted } else { Offer::NotMade },
            stream: None,
        }
    }

    /// Turns an ended task into a new one, which reuses its memory.
    #[inline]
    pub(crate) fn renew(&mut self, work: Work, volume: VolumeId, range: Sectors) {
        let mut parts = std::mem::take(&mut self.parts);
        let mut bypassed = std::mem::take(&mut self.store.bypassed);
        parts.clear();
        bypassed.clear();
        *self = Self { parts, store: Store::new(bypassed), ..Self::new(work, volume, range) };
    }

    /// Returns the sub-request that the task serves.
    ///
    /// # Panics
    /// When the task serves no client.
    #[inline]
    pub(crate) fn piece(&self) -> &Piece {
        match &self.work {
            Work::Piece(piece) => piece,
            Work::Clean { .. } | Work::WriteBack | Work::Fetch | Work::GiveBack { .. } => {
                unreachable!("a client asked for nothing of it")
            }
        }
    }

    /// Returns the position of a sub-request's sectors in its request's buffer.
    #[inline]
    pub(crate) fn request_data(&self) -> Data {
        let piece = self.piece();
        Data {
            buffer: BufferId::Request(piece.request),
            sector: piece.sectors.start,
            offset: piece.buffer_offset,
        }
    }

    /// Returns the destination of a read's data; a prefetch has none.
    #[inline]
    pub(crate) fn destination(&self) -> Option<Data> {
        let is_prefetch = match &self.work {
            Work::Piece(piece) => matches!(piece.kind, PieceKind::Prefetch { .. }),
            work => matches!(work, Work::Fetch),
        };
        (!is_prefetch).then(|| self.request_data())
    }

    /// Returns whether the task reads for a client or fetches.
    #[inline]
    pub(crate) fn reads(&self) -> bool {
        match &self.work {
            Work::Piece(piece) => {
                matches!(piece.kind, PieceKind::Read | PieceKind::Prefetch { .. })
            }
            Work::Fetch => true,
            Work::Clean { .. } | Work::WriteBack | Work::GiveBack { .. } => false,
        }
    }

    /// Returns whether the task brings newer data: a client's write, or a write-back.
    #[inline]
    pub(crate) fn writes(&self) -> bool {
        match &self.work {
            Work::Piece(piece) => {
                matches!(piece.kind, PieceKind::Write { .. } | PieceKind::ZeroPart { .. })
            }
            Work::WriteBack => true,
            Work::Clean { .. } | Work::Fetch | Work::GiveBack { .. } => false,
        }
    }

    /// Returns whether the task's write is to survive a power cut before it is answered.
    #[inline]
    pub(crate) fn is_durable(&self) -> bool {
        let durable = |piece: &Piece| match piece.kind {
            PieceKind::Write { durable, .. } | PieceKind::ZeroPart { durable, .. } => durable,
            _ => false,
        };
        matches!(&self.work, Work::Piece(piece) if durable(piece))
    }

    /// Returns the bytes at the start and at the end of the range that the task's write leaves
    /// unchanged.
    #[inline]
    pub(crate) fn edges(&self) -> (u64, u64) {
        let piece = self.piece();
        match piece.kind {
            PieceKind::Write { head, tail, .. } | PieceKind::ZeroPart { head, tail, .. } => {
                let head = if self.range.start == piece.sectors.start { head } else { 0 };
                let tail = if self.range.end == piece.sectors.end { tail } else { 0 };
                (head.into(), tail.into())
            }
            _ => unreachable!("not a write"),
        }
    }

    /// Returns whether the task fetches the continuation of a stream.
    #[inline]
    pub(crate) fn is_ahead(&self) -> bool {
        matches!(self.work, Work::Fetch) && self.stream.is_some()
    }

    /// Returns the length of the task's stream up to a sector, in smallest blocks of `unit`
    /// sectors; 0 where no stream was tracked.
    #[inline]
    pub(crate) fn in_a_row(&self, sector: u64, unit: u64) -> u64 {
        self.stream.map_or(0, |begun| (sector.saturating_sub(begun)) / unit + 1)
    }
}

/// Returns the part of `run` that is also in `other`, possibly empty.
#[inline]
pub(crate) fn common(run: &Sectors, other: &Sectors) -> Sectors {
    let start = run.start.max(other.start);
    start..run.end.min(other.end).max(start)
}

/// Divides a run at multiples of `unit`. Returns the start of each unit with the part of the run in
/// it.
pub(crate) fn units(run: &Sectors, unit: u64) -> impl Iterator<Item = (u64, Sectors)> + use<> {
    let run = run.clone();
    let starts = (run.start / unit * unit..run.end).step_by(unit as usize);
    starts.map(move |start| (start, common(&(start..start + unit), &run)))
}

/// A sub-request that has become several tasks.
#[derive(Debug)]
struct Cut {
    unanswered: u32,
    unfinished: u32,
    result: Result<(), Fault>,
    hit: bool,
}

/// The sub-requests with several tasks, by the number that those tasks store.
#[derive(Debug, Default)]
pub(crate) struct Cuts {
    cuts: Vec<Cut>,
    free: Vec<u32>,
}

impl Cuts {
    /// Registers a sub-request whose task has become two, and returns its number.
    pub(crate) fn begin(&mut self) -> u32 {
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

    /// Counts one more task of a sub-request: one of its tasks was cut in two.
    pub(crate) fn grow(&mut self, number: u32) {
        let cut = &mut self.cuts[number as usize];
        cut.unanswered += 1;
        cut.unfinished += 1;
    }

    /// Records a task's answer. The last answer returns the sub-request's result, and whether all
    /// sectors were cached.
    #[inline]
    pub(crate) fn answered(
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

    /// Counts the end of a task; returns whether it was the sub-request's last.
    #[inline]
    pub(crate) fn finished(&mut self, number: u32) -> bool {
        let cut = &mut self.cuts[number as usize];
        cut.unfinished -= 1;
        if cut.unfinished == 0 {
            self.free.push(number);
        }
        cut.unfinished == 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::join::{Fault, RequestId};
    use super::super::join::{Piece, PieceKind};
    use super::*;

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
        let writer = tasks.begin(Work::WriteBack, VOLUME, 2..4);
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
        let writer = tasks.begin(Work::WriteBack, VOLUME, 0..4);
        assert!(tasks.lock(writer, Need::exclusive(0..4)));
        let reader = read(&mut tasks, 0..2);
        assert!(!tasks.lock(reader, Need::shared(0..2)));
        assert!(tasks.take_ready().is_none() && tasks.in_use(VOLUME, &(3..5)));
        let mut orders = Vec::new();
        tasks.new_buffer(writer, &(0..4), &mut orders);
        tasks[writer].step = TaskStep::Done;
        tasks.release(writer, &mut orders);
        assert!(matches!(orders[..], [Order::Allocate { .. }, Order::Release { .. }]));
        tasks.free(writer);
        assert_eq!(tasks.take_ready(), Some(reader));
        assert!(!tasks.in_use(VOLUME, &(3..5)) && tasks.is_using(VOLUME) && !tasks.is_idle());
    }
}

#[cfg(test)]
mod cuts_tests {
    use super::*;

    #[test]
    fn the_last_task_answers_with_the_first_failure() {
        let mut cuts = Cuts::default();
        let number = cuts.begin();
        cuts.grow(number);
        assert_eq!(cuts.answered(number, Ok(()), true), None);
        assert_eq!(cuts.answered(number, Err(Fault::Io), true), None);
        assert!(!cuts.finished(number) && !cuts.finished(number));
        assert_eq!(cuts.answered(number, Ok(()), false), Some((Err(Fault::Io), false)));
        assert!(cuts.finished(number));
        assert_eq!(cuts.begin(), number, "the number is free again");
    }
}
