//! Sub-requests: the work of one shard on a run of sectors of one region.

use crate::engine::request::RequestId;
use crate::geometry::{Sectors, VolumeId};

/// The type of a sub-request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PieceKind {
    Read,
    /// The first `head` bytes of the first sector and the last `tail` bytes of the last keep their
    /// content.
    Write {
        durable: bool,
        head: u16,
        tail: u16,
    },
    /// One sector: all but its first `head` and last `tail` bytes become zeros.
    ZeroPart {
        durable: bool,
        head: u16,
        tail: u16,
    },
    Zero {
        may_unmap: bool,
        fast: bool,
    },
    Trim,
    /// A read into the cache only.
    Prefetch,
    /// Mark the dirty sectors.
    DirtyMap,
}

/// The part of a request within one region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) request: RequestId,
    pub(crate) volume: VolumeId,
    pub(crate) kind: PieceKind,
    pub(crate) sectors: Sectors,
    /// Offset of the first sector, or of its mark, in the request's buffer.
    pub(crate) buffer_offset: u64,
    /// The first sector of the stream that the request continues, where streams are followed.
    pub(crate) stream: Option<u64>,
}
