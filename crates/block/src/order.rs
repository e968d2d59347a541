//! What goes into the block cache and what comes out: requests and completions in, orders and answers out.
//!
//! The cache never sees a byte of data. It speaks of *spans* of buffers that its driver keeps: each request has one,
//! as long as the request rounded out to whole sectors, and the cache orders scratch buffers as it needs them.

use crate::geometry::VolumeId;

/// A request, named by the driver. Names are small and reused; one is free again after [`Order::Release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(pub u32);

/// A scratch buffer, named by the cache. Its name is free again after it has been released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ScratchId(pub u64);

/// An operation on a device, named by the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpId(pub u64);

/// What a client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Read into the request's buffer.
    Read,
    /// Write from the request's buffer; with `durable`, answer once it would survive a power cut.
    Write {
        /// Force unit access.
        durable: bool,
    },
    /// Make the range read as zeros.
    Zero {
        /// Force unit access.
        durable: bool,
        /// Whether the space may be given back.
        may_unmap: bool,
    },
    /// The content is no longer needed. Only whole sectors are forgotten.
    Trim,
    /// Make all writes answered so far survive a power cut.
    Flush,
}

/// A client's request. Offset and length are in bytes and need no alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The volume.
    pub volume: VolumeId,
    /// What to do.
    pub kind: Kind,
    /// First byte.
    pub offset: u64,
    /// Number of bytes; ignored for a flush.
    pub len: u64,
}

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A device failed in a way that could not be made good.
    #[error("input/output error")]
    Io,
    /// The backing device has no space left.
    #[error("no space left on the backing device")]
    NoSpace,
    /// The range reaches beyond the volume, or the volume does not exist.
    #[error("the range is not within the volume")]
    OutOfRange,
}

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
    /// The buffer of a request: its first byte belongs to the first byte of the request's first sector.
    Request(RequestId),
    /// A buffer ordered by [`Order::Allocate`].
    Scratch(ScratchId),
}

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

/// What the driver is to do. Orders are carried out in sequence; those with an `op` end by a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
