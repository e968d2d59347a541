//! One shard of the block cache: a state machine that serves reads and writes of its regions.
//!
//! Pieces of requests and completions of operations go in; orders for devices and buffers, and events for the
//! router, come out. A piece becomes a *task*, which takes a lock on its sectors ([`crate::locks`]), works through
//! a few steps, each of which orders some operations and waits for all of them, and ends. The steps stand in the
//! files below this one: `read`, `write`, `store` (putting data into the cache, which both need) and `clean`
//! (bringing dirty data to the backing device).
//!
//! Invariants: a task touches only sectors on which it holds a lock; a block is taken away only when no task holds
//! or waits for a lock on it and none of its sectors is dirty. So a sector's place on the cache device never changes
//! under a task, and dirty data is never dropped.

mod clean;
mod read;
mod store;
mod write;

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::str::FromStr;

use floe_policy::Lru;

use crate::directory::{Block, Directory};
use crate::geometry::{BlockSizes, Place, SECTOR_BYTES, Sectors, VolumeId};
use crate::locks::{Locks, Need, TaskId};
use crate::order::{BufferId, DeviceId, Fault, OpId, Order, RequestId, ScratchId, Span};
use crate::stats::Counters;
use clean::Rounds;
use read::Survey;

/// When a write reaches which device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteMode {
    /// Backing device and cache; answered when the backing device has it.
    #[default]
    Through,
    /// Backing device only; a cached copy is dropped.
    Around,
    /// Cache only, brought to the backing device later.
    Back,
    /// Nothing is cached at all, not even reads.
    Pass,
}

impl WriteMode {
    const NAMES: [(&'static str, Self); 4] =
        [("through", Self::Through), ("around", Self::Around), ("back", Self::Back), ("pass", Self::Pass)];
}

impl fmt::Display for WriteMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, mode)| mode == self).map_or("", |(name, _)| name);
        f.pad(name)
    }
}

/// A name that is no write mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no write mode `{0}`; there are through, around, back and pass")]
pub struct UnknownWriteMode(String);

impl FromStr for WriteMode {
    type Err = UnknownWriteMode;

    fn from_str(name: &str) -> Result<Self, UnknownWriteMode> {
        let known = Self::NAMES.iter().find(|(known, _)| *known == name);
        known.map(|(_, mode)| *mode).ok_or_else(|| UnknownWriteMode(name.to_owned()))
    }
}

/// What a shard is told to do with a run of sectors of one region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PieceKind {
    Read,
    /// The first `head` bytes of the first sector and the last `tail` bytes of the last keep their content.
    Write {
        durable: bool,
        head: u64,
        tail: u64,
    },
    /// One sector: all but its first `head` and last `tail` bytes become zeros.
    ZeroPart {
        durable: bool,
        head: u64,
        tail: u64,
    },
    Zero {
        may_unmap: bool,
    },
    Trim,
}

/// A request's part in one region.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) request: RequestId,
    pub(crate) volume: VolumeId,
    pub(crate) kind: PieceKind,
    pub(crate) sectors: Sectors,
    /// Where in the request's buffer the first sector is.
    pub(crate) buffer_offset: u64,
}

/// What a shard tells the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A piece has its answer.
    Answered { request: RequestId, result: Result<(), Fault>, hit: bool },
    /// A piece will not touch its request's buffer again.
    Finished { request: RequestId },
    /// Everything that was dirty when the drain of this number was asked for has been brought to the backing device.
    Drained { drain: u32, result: Result<(), Fault> },
}

/// Why a task is there.
#[derive(Debug, Clone)]
enum Work {
    Piece(Piece),
    /// Bring a block's dirty sectors to the backing device.
    Clean {
        block_start: u64,
        because: Because,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Because {
    /// A task needs its place.
    Room(TaskId),
    /// A round of cleaning has come to it.
    Round,
}

/// Where a task stands: what the operations under way are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Waiting for its lock.
    Waiting,
    /// Reading what a client wants, from either device.
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
    /// Writing it to the backing device.
    CleanWrite,
    /// Ended; its place is free for another task.
    Done,
}

/// What one operation of a task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Reads from a cached block; can be made good from the backing device where the block is clean.
    Cached(Block),
    /// Reads from the backing device into the same place a cached read would have gone to.
    Uncached,
    /// Reads from the backing device what will then be cached.
    Fetch,
    /// Writes to a cached block.
    Store(Block),
    /// Writes to the backing device what the cache could not take.
    Around,
    /// The whole range, on the backing device.
    Whole,
    /// A dirty run of a block, read or written.
    Dirty(Block),
}

/// Where the data of a run of sectors is.
#[derive(Debug, Clone, Copy)]
struct Data {
    buffer: BufferId,
    /// The sector at the buffer's `offset`.
    sector: u64,
    offset: u64,
}

impl Data {
    fn span(&self, run: &Sectors) -> Span {
        Span {
            buffer: self.buffer,
            offset: self.offset + (run.start - self.sector) * SECTOR_BYTES,
            len: (run.end - run.start) * SECTOR_BYTES,
        }
    }
}

#[derive(Debug)]
struct Task {
    work: Work,
    volume: VolumeId,
    /// The sectors asked for.
    range: Sectors,
    step: Step,
    /// Operations under way, and the run of sectors each is about.
    parts: Vec<(Part, Sectors)>,
    outstanding: u32,
    fault: Option<Fault>,
    answered: bool,
    hit: bool,
    scratch: Option<ScratchId>,
    /// Where the sectors to be stored are.
    data: Data,
    /// What is to be put into the cache: whole missing intervals, or runs of cached blocks.
    stores: Vec<Sectors>,
    /// Which of `stores` it has come to, and the first sector not yet dealt with.
    store_at: usize,
    cursor: u64,
    store_dirty: bool,
    /// Victims being cleaned for it.
    cleaning: u32,
    /// A victim could not be cleaned: no block is taken for the rest.
    no_room: bool,
}

/// What a shard needs to know of a volume.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VolumeSize {
    pub(crate) sectors: u64,
}

/// How a shard is made.
#[derive(Debug, Clone)]
pub(crate) struct ShardConfig {
    /// Its number among the shards, at most 255.
    pub(crate) number: u8,
    pub(crate) sizes: BlockSizes,
    pub(crate) mode: WriteMode,
    /// Its part of the cache device, in sectors.
    pub(crate) cache: Sectors,
}

/// A shard.
#[derive(Debug)]
pub(crate) struct Shard<E = Lru> {
    config: ShardConfig,
    volumes: Vec<VolumeSize>,
    pub(crate) directory: Directory<E>,
    locks: Locks,
    tasks: Vec<Task>,
    free_tasks: Vec<TaskId>,
    scratch_made: u64,
    /// Tasks to be started again, because a lock they may wait for was given back.
    ready: VecDeque<TaskId>,
    rounds: Rounds,
    /// Empty but for its memory.
    spare_survey: Survey,
    /// Sectors whose only copy the cache device has lost. They read as errors, not as the older data of the backing
    /// device, until they are written anew.
    lost: BTreeSet<Place>,
    pub(crate) events: Vec<Event>,
    pub(crate) counters: Counters,
}

/// Bits of an [`OpId`] for the part of a task, and for the task.
const PART_BITS: u32 = 24;
const TASK_BITS: u32 = 32;

impl<E: floe_policy::Ranked + Default> Shard<E> {
    pub(crate) fn new(config: ShardConfig) -> Self {
        Self {
            directory: Directory::new(config.sizes.clone(), config.cache.end - config.cache.start),
            config,
            volumes: Vec::new(),
            locks: Locks::default(),
            tasks: Vec::new(),
            free_tasks: Vec::new(),
            scratch_made: 0,
            ready: VecDeque::new(),
            rounds: Rounds::default(),
            spare_survey: Survey::default(),
            lost: BTreeSet::new(),
            events: Vec::new(),
            counters: Counters::default(),
        }
    }

    pub(crate) fn add_volume(&mut self, size: VolumeSize) {
        self.volumes.push(size);
    }

    /// Which shard an operation belongs to.
    pub(crate) fn of_op(op: OpId) -> u8 {
        (op.0 >> (PART_BITS + TASK_BITS)) as u8
    }

    /// Takes a piece on.
    pub(crate) fn submit(&mut self, piece: Piece, orders: &mut Vec<Order>) {
        let (volume, range) = (piece.volume, piece.sectors.clone());
        let task = self.new_task(Work::Piece(piece), volume, range);
        self.start(task, orders);
        self.run_ready(orders);
    }

    /// An operation has ended.
    pub(crate) fn completed(&mut self, op: OpId, result: Result<(), Fault>, orders: &mut Vec<Order>) {
        let id = (op.0 >> PART_BITS) as TaskId;
        let part = (op.0 & ((1 << PART_BITS) - 1)) as usize;
        self.tasks[id as usize].outstanding -= 1;
        let (part, run) = self.tasks[id as usize].parts[part].clone();
        self.part_ended(id, part, run, result, orders);
        if self.tasks[id as usize].outstanding == 0 {
            self.step_ended(id, orders);
        }
        self.run_ready(orders);
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.locks.is_idle() && self.rounds.is_idle()
    }

    fn new_task(&mut self, work: Work, volume: VolumeId, range: Sectors) -> TaskId {
        let data = Data { buffer: BufferId::Scratch(ScratchId(0)), sector: 0, offset: 0 };
        let fresh = Task {
            work,
            volume,
            range,
            step: Step::Waiting,
            parts: Vec::new(),
            outstanding: 0,
            fault: None,
            answered: false,
            hit: false,
            scratch: None,
            data,
            stores: Vec::new(),
            store_at: 0,
            cursor: 0,
            store_dirty: false,
            cleaning: 0,
            no_room: false,
        };
        match self.free_tasks.pop() {
            Some(id) => {
                let old = std::mem::replace(&mut self.tasks[id as usize], fresh);
                let task = &mut self.tasks[id as usize];
                (task.parts, task.stores) = (old.parts, old.stores);
                task.parts.clear();
                task.stores.clear();
                id
            }
            None => {
                self.tasks.push(fresh);
                self.tasks.len() as TaskId - 1
            }
        }
    }

    /// The region of a sector, the unit of locking.
    fn region(&self, volume: VolumeId, sector: u64) -> Place {
        Place::new(volume, sector & !(self.config.sizes.largest() - 1))
    }

    fn task_region(&self, id: TaskId) -> Place {
        let task = &self.tasks[id as usize];
        self.region(task.volume, task.range.start)
    }

    /// Takes a lock, or leaves the task waiting for it.
    fn lock(&mut self, id: TaskId, need: Need) -> bool {
        let region = self.task_region(id);
        self.locks.take(region, id, need)
    }

    /// Starts tasks whose turn may have come. A loop, not a recursion: one finished task may free many.
    fn run_ready(&mut self, orders: &mut Vec<Order>) {
        loop {
            if self.rounds.take_moved() {
                self.run_round(orders);
            }
            let Some(id) = self.ready.pop_front() else { break };
            if self.tasks[id as usize].step == Step::Waiting {
                self.start(id, orders);
            }
        }
    }

    /// Starts a task, if its lock can be had.
    fn start(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let task = &self.tasks[id as usize];
        match &task.work {
            Work::Clean { .. } => self.start_clean(id, orders),
            Work::Piece(piece) => match piece.kind {
                PieceKind::Read => self.start_read(id, orders),
                PieceKind::Write { .. } | PieceKind::ZeroPart { .. } => self.start_write(id, orders),
                PieceKind::Zero { .. } | PieceKind::Trim => self.start_zero_or_trim(id, orders),
            },
        }
    }

    /// Notes how one operation ended, and makes good what can be made good.
    fn part_ended(
        &mut self,
        id: TaskId,
        part: Part,
        run: Sectors,
        result: Result<(), Fault>,
        orders: &mut Vec<Order>,
    ) {
        match (part, result) {
            (Part::Store(block), Ok(())) if self.tasks[id as usize].store_dirty => {
                self.directory.set_dirty(block, &run);
                self.found(id, &run);
            }
            (Part::Around | Part::Whole, Ok(())) => self.found(id, &run),
            (Part::Store(block), Ok(())) => self.directory.set_clean(block, &run),
            (Part::Store(block), Err(_)) => self.store_failed(id, block, run, orders),
            (Part::Cached(block), Err(fault)) => self.cached_read_failed(id, block, run, fault, orders),
            (Part::Dirty(block), Ok(())) if self.tasks[id as usize].step == Step::CleanWrite => {
                self.directory.set_clean(block, &run);
            }
            (_, Ok(())) => {}
            (_, Err(fault)) => self.tasks[id as usize].fault = Some(fault),
        }
    }

    /// All operations of a step have ended: on to the next.
    fn step_ended(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        self.tasks[id as usize].parts.clear();
        match self.tasks[id as usize].step {
            Step::Reading => self.reading_ended(id, orders),
            Step::Edges => self.edges_ended(id, orders),
            Step::Backing => self.backing_ended(id, orders),
            Step::Storing => self.finish(id, orders),
            Step::CleanRead => self.clean_read_ended(id, orders),
            Step::CleanWrite => self.finish(id, orders),
            Step::Room => {} // its first writes have ended before its victims are clean
            Step::Waiting | Step::Done => unreachable!("no operation is under way without a lock"),
        }
    }

    /// Tells the router how a piece ended, once.
    fn answer(&mut self, id: TaskId) {
        let task = &mut self.tasks[id as usize];
        if let (Work::Piece(piece), false) = (&task.work, task.answered) {
            task.answered = true;
            let result = task.fault.map_or(Ok(()), Err);
            self.events.push(Event::Answered { request: piece.request, result, hit: task.hit });
        }
    }

    /// Ends a task: answer, buffers, lock, and whoever waits for it.
    fn finish(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        self.answer(id);
        let region = self.task_region(id);
        let task = &mut self.tasks[id as usize];
        debug_assert_eq!(task.outstanding, 0);
        task.step = Step::Done;
        if let Some(scratch) = task.scratch.take() {
            orders.push(Order::Release { buffer: BufferId::Scratch(scratch) });
        }
        self.locks.release(region, id);
        self.wake(region);
        match self.tasks[id as usize].work.clone() {
            Work::Piece(piece) => self.events.push(Event::Finished { request: piece.request }),
            Work::Clean { because, .. } => self.cleaned(id, because, orders),
        }
        self.free_tasks.push(id);
    }

    fn wake(&mut self, region: Place) {
        self.ready.extend(self.locks.waiting(region));
    }

    fn new_scratch(&mut self, id: TaskId, sectors: u64, orders: &mut Vec<Order>) -> ScratchId {
        self.scratch_made += 1;
        let scratch = ScratchId(u64::from(self.config.number) << 56 | self.scratch_made);
        orders.push(Order::Allocate { scratch, len: sectors * SECTOR_BYTES });
        self.tasks[id as usize].scratch = Some(scratch);
        scratch
    }

    /// Notes a part of a task and names the operation that carries it out.
    fn new_op(&mut self, id: TaskId, part: Part, run: &Sectors) -> OpId {
        let task = &mut self.tasks[id as usize];
        let number = task.parts.len() as u64;
        task.parts.push((part, run.clone()));
        task.outstanding += 1;
        OpId(u64::from(self.config.number) << (PART_BITS + TASK_BITS) | u64::from(id) << PART_BITS | number)
    }

    fn order_cache_read(
        &mut self,
        id: TaskId,
        part: Part,
        block: Block,
        run: &Sectors,
        to: Span,
        orders: &mut Vec<Order>,
    ) {
        let offset = self.cache_offset(block, run);
        let op = self.new_op(id, part, run);
        self.counters.cache_read_bytes += to.len;
        orders.push(Order::Read { op, device: DeviceId::Cache, offset, to });
    }

    fn order_cache_write(
        &mut self,
        id: TaskId,
        block: Block,
        run: &Sectors,
        from: Span,
        orders: &mut Vec<Order>,
    ) {
        let offset = self.cache_offset(block, run);
        let op = self.new_op(id, Part::Store(block), run);
        self.counters.cache_write_bytes += from.len;
        orders.push(Order::Write { op, device: DeviceId::Cache, offset, from, durable: false });
    }

    fn order_backing_read(
        &mut self,
        id: TaskId,
        part: Part,
        run: &Sectors,
        to: Span,
        orders: &mut Vec<Order>,
    ) {
        let op = self.new_op(id, part, run);
        self.counters.backing_read_bytes += to.len;
        let device = DeviceId::Backing(self.tasks[id as usize].volume);
        orders.push(Order::Read { op, device, offset: run.start * SECTOR_BYTES, to });
    }

    fn order_backing_write(
        &mut self,
        id: TaskId,
        part: Part,
        run: &Sectors,
        from: Span,
        durable: bool,
        orders: &mut Vec<Order>,
    ) {
        let op = self.new_op(id, part, run);
        self.counters.backing_write_bytes += from.len;
        let device = DeviceId::Backing(self.tasks[id as usize].volume);
        orders.push(Order::Write { op, device, offset: run.start * SECTOR_BYTES, from, durable });
    }

    /// First byte on the cache device of a run of a block.
    fn cache_offset(&self, block: Block, run: &Sectors) -> u64 {
        (self.config.cache.start + self.directory.cache_sectors(block, run).start) * SECTOR_BYTES
    }

    /// A run without what lies beyond the volume's end.
    fn within_volume(&self, volume: VolumeId, run: &Sectors) -> Sectors {
        run.start..run.end.min(self.volumes[volume.0 as usize].sectors)
    }
}

/// The part of `run` that is also in `other`, possibly empty.
fn common(run: &Sectors, other: &Sectors) -> Sectors {
    let start = run.start.max(other.start);
    start..run.end.min(other.end).max(start)
}
