//! What comes out of the block cache: orders to devices, buffers and other parts, and answers.
//!
//! The cache never sees a byte of data. It speaks of *spans* of buffers that its driver keeps: each
//! request has one, as long as the request rounded out to whole sectors, and the cache orders
//! scratch buffers as it needs them.

use crate::geometry::{Sectors, VolumeId};
use crate::journal::Change;
use crate::part::{Message, PartId};
use crate::request::{Fault, RequestId};

/// A scratch buffer, named by the cache. Its name is free again after it has been released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ScratchId(pub u64);

/// An operation on a device, named by the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpId(pub u64);

/// A device of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceId {
    /// The fast device that holds copies.
    Cache,
    /// The slow device under a volume.
    Backing(VolumeId),
}

/// A buffer kept by the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BufferId {
    /// The buffer of a request: its first byte belongs to the first byte of the request's first
    /// sector.
    Request(RequestId),
    /// A buffer ordered by [`Order::Allocate`].
    Scratch(ScratchId),
}

/// A change of the mapping, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Noted(pub(crate) Change);

/// A part of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Which buffer.
    pub buffer: BufferId,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// What is to be done with sectors in the tier in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paging {
    /// Put copies into the tier, in the place of those that are there.
    Fill {
        /// Where they are.
        from: Span,
    },
    /// Take copies out of the tier, for every reader, before any later order is carried out. Held
    /// sectors stay held.
    Forget,
    /// Hold them, since no tier below has them: they can be recalled until they are let go,
    /// whatever leaves the tier. It has copies of them from now on, as after [`Paging::Fill`]. They
    /// may be held already: then these are newer.
    Hold {
        /// Where they are.
        from: Span,
    },
    /// Copy them, all of which are held, into a buffer.
    Recall {
        /// Where to.
        to: Span,
    },
    /// Hold them, all of which are held, no longer. Copies in the tier stay.
    LetGo,
}

/// What the driver is to do. Orders are carried out in sequence; those with an `op` end by a
/// completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Read from a device.
    Read {
        /// To be completed.
        op: OpId,
        /// From where.
        device: DeviceId,
        /// First byte on the device.
        offset: u64,
        /// Where to.
        to: Span,
    },
    /// Write to a device.
    Write {
        /// To be completed.
        op: OpId,
        /// Where to.
        device: DeviceId,
        /// First byte on the device.
        offset: u64,
        /// From where.
        from: Span,
        /// Complete only when it would survive a power cut.
        durable: bool,
    },
    /// Make a range of a device read as zeros.
    Zero {
        /// To be completed.
        op: OpId,
        /// Where.
        device: DeviceId,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Whether the space may be given back.
        may_unmap: bool,
        /// Fail with [`Fault::Unsupported`], having changed nothing, rather than write zeros.
        fast: bool,
    },
    /// Tell a device that a range is no longer needed.
    Discard {
        /// To be completed.
        op: OpId,
        /// Where.
        device: DeviceId,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Make everything written to a device so far survive a power cut.
    Flush {
        /// To be completed.
        op: OpId,
        /// Which device.
        device: DeviceId,
    },
    /// Make a scratch buffer of this many bytes; its content does not matter.
    Allocate {
        /// Its name.
        scratch: ScratchId,
        /// Its size.
        len: u64,
    },
    /// Copy between buffers; both spans are equally long.
    Copy {
        /// From where.
        from: Span,
        /// Where to.
        to: Span,
    },
    /// Set a span to zeros.
    Clear {
        /// Which bytes.
        span: Span,
    },
    /// Set a span, of at most 256 bytes, to ones: each stands for a sector.
    Mark {
        /// Which bytes.
        span: Span,
    },
    /// Change what the tier in memory has of some sectors.
    Memory {
        /// The volume.
        volume: VolumeId,
        /// Which sectors.
        sectors: Sectors,
        /// How. Spans have the sectors one after the other.
        deed: Paging,
    },
    /// Take a change of the mapping into the log of a shard, in memory for now. The checksums of
    /// what it calls clean are those that its sectors have at this moment.
    Note {
        /// The shard.
        shard: u8,
        /// The change.
        noted: Noted,
    },
    /// What the logs of this part's shards have in memory now is what the next [`Order::WriteLogs`]
    /// is about.
    SealLogs,
    /// Make durable what the logs had in memory when they were sealed. Fails with
    /// [`Fault::NoSpace`] when a log is full until its checkpoint has been written.
    WriteLogs {
        /// To be completed.
        op: OpId,
    },
    /// Say something to another part; with a piece, lend it the buffer of its request.
    Send {
        /// Which part.
        to: PartId,
        /// What.
        message: Message,
    },
    /// Tell the client.
    Answer {
        /// Which request.
        request: RequestId,
        /// How it ended.
        result: Result<(), Fault>,
    },
    /// The buffer will not be spoken of again. A request's buffer is released after its answer.
    Release {
        /// Which buffer.
        buffer: BufferId,
    },
}
