//! What a shard works on: the tasks that pieces of requests become, and the steps and parts of a
//! task.

use crate::directory::Block;
use crate::geometry::{SECTOR_BYTES, Sectors, VolumeId};
use crate::locks::TaskId;
use crate::order::{BufferId, ScratchId, Span};
use crate::piece::Piece;
use crate::request::{Fault, RequestId};

/// What a shard tells the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A piece has its answer.
    Answered { request: RequestId, result: Result<(), Fault>, hit: bool },
    /// A piece will not touch its request's buffer again.
    Finished { request: RequestId },
    /// A task waits for what has been noted to be durable.
    WantsCommit,
    /// A task waits for what a volume's backing device has been told to be durable.
    WantsSettlement(VolumeId),
    /// Everything that was dirty when the drain of this number was asked for has been brought to
    /// the backing device.
    Drained { drain: u32, result: Result<(), Fault> },
}

/// Why a task is there.
#[derive(Debug, Clone)]
pub(super) enum Work {
    Piece(Piece),
    /// Bring a block's dirty sectors to the backing device.
    Clean {
        block_start: u64,
        because: Because,
    },
    /// Bring held sectors to the tiers below memory.
    Sink,
    /// Bring what no client has asked for into the cache.
    Fetch,
}

/// What has become of the offer that a read makes of what it misses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offer {
    NotMade,
    Admitted,
    Bypassed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Because {
    /// A task needs its place.
    Room(TaskId),
    /// It would be the next to leave.
    Ahead,
    /// A round of cleaning has come to it.
    Round,
}

/// Where a task stands: what the operations under way are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
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
    /// Waiting until it is durable that copies are gone.
    Unlogging,
    /// Waiting until it is durable that dirty data may be overwritten.
    Unsealing,
    /// Waiting until what the backing device has been told is durable.
    Settling,
    /// Waiting until what was noted is durable.
    Noting,
    /// Ended; its place is free for another task.
    Done,
}

/// What one operation of a task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Reads from a cached block; can be made good from the backing device where the block is
    /// clean.
    Cached(Block),
    /// Reads from the backing device into the same place a cached read would have gone to.
    Uncached,
    /// Reads from the backing device what is cached and clean; can be made good from the cache.
    Shed,
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
    /// No device's: what has been noted is durable.
    Noted,
    /// The same, of copies that are gone: what is to be cached in their region has no room, and
    /// goes to the backing device.
    Unlogged,
    /// No device's: the backing device has been flushed.
    Settled,
}

/// Where the data of a run of sectors is.
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

/// A piece or a cleaning under way.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) work: Work,
    pub(super) volume: VolumeId,
    /// The sectors asked for.
    pub(super) range: Sectors,
    /// Of a piece with several tasks, its number among those.
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
    /// Where the sectors to be stored are.
    pub(super) data: Data,
    /// What is to be put into the cache, and the first sector of it not yet dealt with.
    pub(super) store: Sectors,
    pub(super) cursor: u64,
    pub(super) store_dirty: bool,
    pub(super) offer: Offer,
    /// Where the stream began that its range is a part of, if streams are followed; of a fetch, if
    /// it is for one.
    pub(super) stream: Option<u64>,
    /// Of what is to be put into the cache, runs that may not make blocks.
    pub(super) bypassed: Vec<Sectors>,
    /// Victims being cleaned for it.
    pub(super) cleaning: u32,
    /// A victim could not be cleaned: no block is taken for the rest.
    pub(super) no_room: bool,
    /// The cache could not take some of what it writes: it starts anew.
    pub(super) retry: bool,
    /// A failed store may have gone over what it is to change in part.
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

    /// Makes it another task, which has the memory of this one.
    pub(super) fn renew(&mut self, work: Work, volume: VolumeId, range: Sectors) {
        let (mut parts, mut bypassed) =
            (std::mem::take(&mut self.parts), std::mem::take(&mut self.bypassed));
        parts.clear();
        bypassed.clear();
        *self = Self { parts, bypassed, ..Self::new(work, volume, range) };
    }

    /// Whether no block may be made for a sector.
    pub(super) fn stays_out(&self, sector: u64) -> bool {
        self.bypassed.iter().any(|run| run.contains(&sector))
    }
}

/// The part of `run` that is also in `other`, possibly empty.
pub(super) fn common(run: &Sectors, other: &Sectors) -> Sectors {
    let start = run.start.max(other.start);
    start..run.end.min(other.end).max(start)
}
