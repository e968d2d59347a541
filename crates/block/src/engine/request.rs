//! The input of the block cache: clients' requests, and the errors they end with.

use crate::geometry::{SECTOR_BYTES, VolumeId};

/// Longest range of a [`Kind::DirtyMap`]: its buffer takes 64 KiB, and a shard handles it in a
/// short time.
pub const MOST_MAPPED_BYTES: u64 = 256 << 20;

/// The id of a request, chosen by the driver of the part it is submitted to. Ids are small and
/// reused; one is free again after [`Order::Release`](crate::Order::Release).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(pub u32);

/// The type of a client's request.
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
        /// The device may free the space.
        may_unmap: bool,
        /// Only if that is faster than writing zeros: [`Fault::Unsupported`] otherwise, with
        /// nothing changed. The first whole sectors are zeroed on the backing device before
        /// anything else is done. A range without whole sectors is refused.
        fast: bool,
    },
    /// Discard the content, which is no longer needed. Only whole sectors are discarded.
    Trim,
    /// Make all writes answered so far survive a power cut.
    Flush,
    /// Flush, and clean all dirty data, even in a cache that could keep it.
    Drain,
    /// Bring the range into the cache, as a read miss does. Where nothing is cached, because of the
    /// write mode or a failing cache device, it succeeds without doing anything.
    Prefetch,
    /// Report the sectors with data that the backing device lacks. The request's buffer, which is
    /// zero before, has a byte for each sector that the range touches; the bytes of the reported
    /// sectors become 1. The range is at most [`MOST_MAPPED_BYTES`] long ([`Fault::OutOfRange`]).
    ///
    /// Data moves from the cache to the backing device only. So a client that asks which data is
    /// allocated must ask the cache first and the backing device after the answer. In reverse order
    /// it would miss data that moves meanwhile.
    DirtyMap,
}

/// A client's request. Offset and length are in bytes and need no alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The volume.
    pub volume: VolumeId,
    /// The type.
    pub kind: Kind,
    /// First byte.
    pub offset: u64,
    /// Number of bytes; ignored for a flush.
    pub len: u64,
}

impl Request {
    /// Returns the size in bytes of its buffer, 0 when it needs none.
    pub fn buffer_bytes(&self) -> u64 {
        let sectors = self.len.saturating_add(self.offset % SECTOR_BYTES).div_ceil(SECTOR_BYTES);
        match self.kind {
            Kind::Read | Kind::Write { .. } => sectors.saturating_mul(SECTOR_BYTES),
            Kind::DirtyMap => sectors,
            Kind::Zero { .. } | Kind::Trim | Kind::Flush | Kind::Drain | Kind::Prefetch => 0,
        }
    }
}

/// The reason for which a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A device failed, and the cache could not recover.
    #[error("input/output error")]
    Io,
    /// The backing device has no space left.
    #[error("no space left on the backing device")]
    NoSpace,
    /// The range reaches beyond the volume, or the volume does not exist.
    #[error("the range is not within the volume")]
    OutOfRange,
    /// The backing device cannot do it, or not as fast as was asked; nothing has changed.
    #[error("the backing device cannot do that")]
    Unsupported,
}
