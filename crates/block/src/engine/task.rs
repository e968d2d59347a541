//! Tasks: a sub-request becomes one or several of them, each with its steps and operations.

use crate::engine::locks::TaskId;
use crate::engine::piece::{Piece, PieceKind};
use crate::engine::request::{Fault, RequestId};
use crate::geometry::{SECTOR_BYTES, Sectors, VolumeId};
use crate::mapping::directory::Block;
use crate::order::{BufferId, ScratchId, Span};

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
pub(crate) enum Work {
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
pub(crate) enum Offer {
    NotMade,
    Admitted,
    Bypassed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Because {
    /// A task needs the block's place.
    Room(TaskId),
    /// The block would be evicted next.
    Ahead,
    /// A round of cleaning has come to it.
    Round,
}

/// The step of a task: the purpose of the operations under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
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
pub(crate) enum Part {
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
pub(crate) struct Data {
    pub(crate) buffer: BufferId,
    /// The sector at the buffer's `offset`.
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

/// The progress of a task's data into the cache.
#[derive(Debug)]
pub(crate) struct Store {
    /// Position of the data.
    pub(crate) data: Data,
    /// Run to be stored in the cache, and its first sector not yet handled.
    pub(crate) run: Sectors,
    pub(crate) cursor: u64,
    /// The cache will have the only copy.
    pub(crate) dirty: bool,
    /// Runs to be stored that may not make blocks.
    pub(crate) bypassed: Vec<Sectors>,
    /// Victims being cleaned for it.
    pub(crate) cleaning: u32,
    /// A victim could not be cleaned: no block is allocated for the rest.
    pub(crate) no_room: bool,
    /// The cache could not take some of the data: the write is restarted.
    pub(crate) retry: bool,
    /// A failed store may have overwritten a sector that the write is to change in part.
    pub(crate) damaged: bool,
    /// The write goes to the backing device first, whatever the mode.
    pub(crate) through: bool,
    /// The write goes to the backing device only, and cached copies are dropped.
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

/// A sub-request, or a part of it, a cleaning, a write-back or a fetch under way.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) work: Work,
    pub(crate) volume: VolumeId,
    /// The sectors asked for.
    pub(crate) range: Sectors,
    /// The number of its sub-request in `Cuts`, if that has several tasks.
    pub(crate) cut: Option<u32>,
    pub(crate) step: Step,
    /// Operations under way, and the run of sectors each is about.
    pub(crate) parts: Vec<(Part, Sectors)>,
    pub(crate) outstanding: u32,
    pub(crate) fault: Option<Fault>,
    pub(crate) answered: bool,
    pub(crate) hit: bool,
    /// It had to wait for its lock.
    pub(crate) waited: bool,
    pub(crate) scratch: Option<ScratchId>,
    pub(crate) store: Store,
    pub(crate) offer: Offer,
    /// Start of the stream that its range belongs to, if streams are followed; of a fetch, if it
    /// continues one.
    pub(crate) stream: Option<u64>,
}

impl Task {
    pub(crate) fn new(work: Work, volume: VolumeId, range: Sectors) -> Self {
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
            store: Store::new(Vec::new()),
            offer: Offer::NotMade,
            stream: None,
        }
    }

    /// Turns it into another task, which reuses its memory.
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
    /// When no client asked for it.
    #[inline]
    pub(crate) fn piece(&self) -> &Piece {
        match &self.work {
            Work::Piece(piece) => piece,
            Work::Clean { .. } | Work::Sink | Work::Fetch => {
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
            Work::Piece(piece) => piece.kind == PieceKind::Prefetch,
            work => matches!(work, Work::Fetch),
        };
        (!is_prefetch).then(|| self.request_data())
    }

    /// Returns whether the task reads for a client or fetches.
    #[inline]
    pub(crate) fn reads(&self) -> bool {
        match &self.work {
            Work::Piece(piece) => matches!(piece.kind, PieceKind::Read | PieceKind::Prefetch),
            Work::Fetch => true,
            Work::Clean { .. } | Work::Sink => false,
        }
    }

    /// Returns whether the task brings newer data: a client's write, or a write-back.
    #[inline]
    pub(crate) fn writes(&self) -> bool {
        match &self.work {
            Work::Piece(piece) => {
                matches!(piece.kind, PieceKind::Write { .. } | PieceKind::ZeroPart { .. })
            }
            Work::Sink => true,
            Work::Clean { .. } | Work::Fetch => false,
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

    /// Returns the bytes at either end that the task's write leaves unchanged.
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

    /// Returns the length of its stream up to a sector, in smallest blocks of `unit` sectors; 0
    /// where no stream was followed.
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

/// Returns the smallest blocks that a run touches, each with the part of the run that it holds.
pub(crate) fn units(run: &Sectors, unit: u64) -> impl Iterator<Item = (u64, Sectors)> + use<> {
    let run = run.clone();
    let starts = (run.start / unit * unit..run.end).step_by(unit as usize);
    starts.map(move |start| (start, common(&(start..start + unit), &run)))
}
