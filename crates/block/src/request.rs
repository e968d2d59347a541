//! What goes into the block cache: clients' requests, and why they may fail.

use crate::geometry::{SECTOR_BYTES, VolumeId};

/// Longest range of a [`Kind::DirtyMap`]: its buffer takes 64 KiB, and a shard's turn for it stays
/// short.
pub const MOST_MAPPED_BYTES: u64 = 256 << 20;

/// A request, named by the driver of the part it is submitted to. Names are small and reused; one
/// is free again after [`Order::Release`](crate::Order::Release).
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
        /// Only if that is faster than writing zeros: [`Fault::Unsupported`] otherwise, with
        /// nothing changed. The backing device is asked for the first whole sectors before anything
        /// else is done; a range without any is not worth it.
        fast: bool,
    },
    /// The content is no longer needed. Only whole sectors are forgotten.
    Trim,
    /// Make all writes answered so far survive a power cut.
    Flush,
    /// As a flush, and all that is dirty is brought to the backing device, also from a cache that
    /// could keep it.
    Drain,
    /// Bring the range into the cache, as a read that misses does. Where nothing is cached, because
    /// of the write mode or a failing cache device, it succeeds without doing anything.
    Prefetch,
    /// Tell which sectors have data that the backing device does not: the request's buffer, which
    /// is zero before, has a byte for each sector that the range touches, and gets ones. The range
    /// is at most [`MOST_MAPPED_BYTES`] long ([`Fault::OutOfRange`]).
    ///
    /// Data leaves the cache for the backing device only. So whoever wants to know what is
    /// allocated asks this first and the backing device after the answer; the other way round, data
    /// that moves meanwhile is overlooked.
    DirtyMap,
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

impl Request {
    /// The size in bytes of the buffer that it comes with, 0 when it needs none.
    pub fn buffer_bytes(&self) -> u64 {
        let sectors = self.len.saturating_add(self.offset % SECTOR_BYTES).div_ceil(SECTOR_BYTES);
        match self.kind {
            Kind::Read | Kind::Write { .. } => sectors.saturating_mul(SECTOR_BYTES),
            Kind::DirtyMap => sectors,
            Kind::Zero { .. } | Kind::Trim | Kind::Flush | Kind::Drain | Kind::Prefetch => 0,
        }
    }
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
    /// The backing device cannot do it, or not as fast as was asked; nothing has changed.
    #[error("the backing device cannot do that")]
    Unsupported,
}
