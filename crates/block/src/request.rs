//! What goes into the block cache: clients' requests, and why they may fail.

use crate::geometry::VolumeId;

/// A request, named by the driver of the part it is submitted to. Names are small and reused; one is free again after
/// [`Order::Release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(pub u32);

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
