//! Tasks: a sub-request becomes one or several of them, each with its steps and operations.

use crate::directory::Block;
use crate::geometry::{SECTOR_BYTES, Sectors, VolumeId};
use crate::locks::TaskId;
use crate::order::{BufferId, ScratchId, Span};
use crate::piece::Piece;
use crate::request::{Fault, RequestId};

/// A message from a shard to the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A sub-request has its answer.
    Answered { request: RequestId, result: Result<(), Fault>, hit: bool },
    /// A sub-request will not touch its request's buffer again.
    Finished { request: RequestId },
    /// A task waits until the noted changes are durable.
    WantsCommit,
    /// A task waits until the writes to a volume's backing device are durable.
    WantsSettlement(VolumeId),
    /// All data that was dirty when the drain of this number was asked for is on the backing
    /// device.
    Drained { drain: u32, result: Result<(), Fault> },
}

/// The work of a task.
#[derive(Debug, Clone)]
pub(super) enum Work {
    Piece(Piece),
    /// Write a block's dirty sectors to the backing device.
    Clean {
        block_start: u64,
        because: Because,
    },
    /// Write held sectors to the tiers below memory.
    Sink,
    /// Bring data that no client has asked for into the cache.
    Fetch,
}

/// The admission's answer for the missing sectors of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offer {
    NotMade,
    Admitted,
    Bypassed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Because {
    /// A task needs the block's place.
    Room(TaskId),
    /// The block would be evicted next.
    Ahead,
    /// A round of cleaning has come to it.
    Round,
}

/// The step of a task: the purpose of the operations under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Waiting for its lock.
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
    /// Waiting until noted changes are durable.
    Noting,
    /// Ended; its place is free for another task.
    Done,
}

/// The purpose of one operation of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Reads from a cached block; on failure the backing device is read where the block is clean.
    Cached(Block),
    /// Reads from the backing device into the place that a cached read would have used.
    Uncached,
    /// Reads clean cached data from the backing device; on failure the cache is read.
    Shed,
    /// Reads from the backing device data that is then stored in the cache.
    Fetch,
    /// Writes to a cached block.
    Store(Block),
    /// Writes data that the cache could not take to the backing device.
    Around,
    /// The whole range, on the backing device.
    Whole,
    /// A dirty run of a block, read or written.
    Dirty(Block),
    /// Not a device operation: noted changes are durable.
    Noted,
    /// Not a device operation: the removal of copies is durable. Data of their region that has no
    /// room in the cache then goes to the backing device.
    Unlogged,
    /// Not a device operation: the backing device has been flushed.
    Settled,
}

/// The position of a run's data in a buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Data {
    pub(super) buffer: BufferId,
    /// The sector at the buffer's `offset`.
    pub(super) sector: u64,
    pub(super) offset: u64,
}

impl Data {
    pub(super) fn span(&self, run: &Sectors) -> Span {
        Span {
            buffer: self.buffer,
            offset: self.offset + (run.start - self.sector) * SECTOR_BYTES,
            len: (run.end - run.start) * SECTOR_BYTES,
        }
    }
}

/// A sub-request, or a part of it, a cleaning, a write-back or a fetch under way.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) work: Work,
    pub(super) volume: VolumeId,
    /// The sectors asked for.
    pub(super) range: Sectors,
    /// The number of its sub-request in `Cuts`, if that has several tasks.
    pub(super) cut: Option<u32>,
    pub(super) step: Step,
    /// Operations under way, and the run of sectors each is about.
    pub(super) parts: Vec<(Part, Sectors)>,
    pub(super) outstanding: u32,
    pub(super) fault: Option<Fault>,
    pub(super) answered: bool,
    pub(super) hit: bool,
    /// It had to wait for its lock.
    pub(super) waited: bool,
    pub(super) scratch: Option<ScratchId>,
    /// Position of the sectors to be stored.
    pub(super) data: Data,
    /// Run to be stored in the cache, and its first sector not yet handled.
    pub(super) store: Sectors,
    pub(super) cursor: u64,
    pub(super) store_dirty: bool,
    pub(super) offer: Offer,
    /// Start of the stream that its range belongs to, if streams are followed; of a fetch, if it
    /// continues one.
    pub(super) stream: Option<u64>,
    /// Runs to be stored that may not make blocks.
    pub(super) bypassed: Vec<Sectors>,
    /// Victims being cleaned for it.
    pub(super) cleaning: u32,
    /// A victim could not be cleaned: no block is allocated for the rest.
    pub(super) no_room: bool,
    /// The cache could not take some of its data: the write is restarted.
    pub(super) retry: bool,
    /// A failed store may have overwritten a sector that it is to change in part.
    pub(super) damaged: bool,
    /// It writes to the backing device first, whatever the mode.
    pub(super) through: bool,
}

impl Task {
    pub(super) fn new(work: Work, volume: VolumeId, range: Sectors) -> Self {
        let data = Data { buffer: BufferId::Scratch(ScratchId(0)), sector: 0, offset: 0 };
        Self {
            work,
            volume,
            range,
            cut: None,
            step: Step::Waiting,
            parts: Vec::new(),
            outstanding: 0,
            fault: None,
            answered: false,
            hit: false,
            waited: false,
            scratch: None,
            data,
            store: 0..0,
            cursor: 0,
            store_dirty: false,
            offer: Offer::NotMade,
            stream: None,
            bypassed: Vec::new(),
            cleaning: 0,
            no_room: false,
            retry: false,
            damaged: false,
            through: false,
        }
    }

    /// Turns it into another task, which reuses its memory.
    pub(super) fn renew(&mut self, work: Work, volume: VolumeId, range: Sectors) {
        let (mut parts, mut bypassed) =
            (std::mem::take(&mut self.parts), std::mem::take(&mut self.bypassed));
        parts.clear();
        bypassed.clear();
        *self = Self { parts, bypassed, ..Self::new(work, volume, range) };
    }

    /// Returns whether no block may be made for a sector.
    pub(super) fn stays_out(&self, sector: u64) -> bool {
        self.bypassed.iter().any(|run| run.contains(&sector))
    }
}

/// Returns the part of `run` that is also in `other`, possibly empty.
pub(super) fn common(run: &Sectors, other: &Sectors) -> Sectors {
    let start = run.start.max(other.start);
    start..run.end.min(other.end).max(start)
}

/// Returns the smallest blocks that a run touches, each with the part of the run that it holds.
pub(super) fn units(run: &Sectors, unit: u64) -> impl Iterator<Item = (u64, Sectors)> + use<> {
    let run = run.clone();
    let starts = (run.start / unit * unit..run.end).step_by(unit as usize);
    starts.map(move |start| (start, common(&(start..start + unit), &run)))
}
