//! The output of the block cache: orders to devices, buffers and other parts, and answers.
//!
//! The cache never sees a byte of data. It refers to *spans* of buffers that its driver keeps. Each
//! request has a buffer, as long as the request rounded out to whole sectors. The cache orders
//! scratch buffers as it needs them.

use crate::exchange::{Message, PartId};
use crate::geometry::{Sectors, VolumeId};
use crate::join::{Fault, RequestId};
use crate::journal::Change;

/// The id of a scratch buffer, chosen by the cache. It may be reused after the buffer has been
/// released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ScratchId(pub u64);

/// The id of an operation on a device, chosen by the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpId(pub u64);

/// A device of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceId {
    /// The fast device that holds the cached data.
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

/// A change of the mapping, to be appended to a shard's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Noted(pub(crate) Change);

/// A sector whose content differs from the data that was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bad {
    /// Index of the sector within the read.
    pub(crate) number: u64,
    /// A crash may have left the sector half overwritten, in which case the device is not at fault.
    pub(crate) doubted: bool,
}

/// A part of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The buffer that the span lies in.
    pub buffer: BufferId,
    /// First byte of the span within the buffer.
    pub offset: u64,
    /// Length of the span in bytes.
    pub len: u64,
}

/// The type of an operation on sectors in the memory tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paging {
    /// Inserts copies into the tier, replacing older ones.
    Fill {
        /// Span of the copies.
        from: Span,
    },
    /// Removes the sectors' copies from the tier, for every reader, before any later order is
    /// executed. Held sectors stay held.
    Forget,
    /// Holds unflushed sectors, whose newest data no tier below has. They can be recalled until
    /// they are released, whatever the tier evicts. The tier also has copies of them from now on,
    /// as after [`Paging::Fill`]. Sectors held already are replaced by the newer data.
    Hold {
        /// Span of the data.
        from: Span,
    },
    /// Copies unflushed sectors into a buffer.
    Recall {
        /// Span of the destination.
        to: Span,
    },
    /// Releases unflushed sectors. Copies in the tier stay.
    LetGo,
}

/// An order to the driver. Orders are executed in sequence; each with an `op` ends with a
/// completion for that id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Read from a device.
    Read {
        /// Id by which the completion refers to this operation.
        op: OpId,
        /// The device to read.
        device: DeviceId,
        /// First byte to read, as an offset on the device.
        offset: u64,
        /// The destination of the data.
        to: Span,
    },
    /// Write to a device.
    Write {
        /// Id by which the completion refers to this operation.
        op: OpId,
        /// The device to write to.
        device: DeviceId,
        /// First byte to write, as an offset on the device.
        offset: u64,
        /// The data to write.
        from: Span,
        /// Complete only once the write would survive a power cut (FUA).
        durable: bool,
    },
    /// Make a range of a device read as zeros.
    Zero {
        /// Id by which the completion refers to this operation.
        op: OpId,
        /// The device of the range.
        device: DeviceId,
        /// First byte of the range, as an offset on the device.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
        /// The device may deallocate the range.
        may_unmap: bool,
        /// Fail with [`Fault::Unsupported`], having changed nothing, rather than write zeros.
        fast: bool,
    },
    /// Tell a device that a range is no longer needed.
    Discard {
        /// Id by which the completion refers to this operation.
        op: OpId,
        /// The device of the range.
        device: DeviceId,
        /// First byte of the range, as an offset on the device.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
    },
    /// Make everything written to a device so far survive a power cut.
    Flush {
        /// Id by which the completion refers to this operation.
        op: OpId,
        /// The device to flush.
        device: DeviceId,
    },
    /// Make a scratch buffer of this many bytes, with arbitrary content.
    Allocate {
        /// Id under which later orders refer to the buffer.
        scratch: ScratchId,
        /// Size of the buffer in bytes.
        len: u64,
    },
    /// Copy between buffers; both spans are equally long.
    Copy {
        /// Span of the source.
        from: Span,
        /// Span of the destination.
        to: Span,
    },
    /// Set a span to zeros.
    Clear {
        /// The span to clear.
        span: Span,
    },
    /// Set a span, of at most 256 bytes, to ones: each byte stands for a sector.
    Mark {
        /// The span to set.
        span: Span,
    },
    /// Operate on sectors in the memory tier.
    Memory {
        /// The volume of the sectors.
        volume: VolumeId,
        /// The sectors to operate on.
        sectors: Sectors,
        /// The type of the operation, with a span that has the sectors' data in order.
        deed: Paging,
    },
    /// Append a change of the mapping to the log of a shard, in memory for now. Clean sectors are
    /// logged with their checksums at this moment.
    Note {
        /// Number of the shard whose log gets the change.
        shard: u8,
        /// The change to append.
        noted: Noted,
    },
    /// Fix the pending changes of this part's logs as the content of the next [`Order::WriteLogs`].
    SealLogs,
    /// Make the sealed content of the logs durable. Fails with [`Fault::NoSpace`] when a log is
    /// full until its checkpoint has been written.
    WriteLogs {
        /// Id by which the completion refers to this operation.
        op: OpId,
    },
    /// Send a message to another part; with a sub-request, lend it the buffer of its request.
    Send {
        /// The receiving part.
        to: PartId,
        /// The message to send.
        message: Message,
    },
    /// Answer a client's request.
    Answer {
        /// Id of the request that is answered.
        request: RequestId,
        /// Success, or the reason for which the request failed.
        result: Result<(), Fault>,
        /// The cache had all of the request's data, or for a write a block for it. False for a
        /// failed request.
        hit: bool,
    },
    /// Release a buffer, which no later order uses. A request's buffer is released after its
    /// answer.
    Release {
        /// The buffer to release.
        buffer: BufferId,
    },
}
