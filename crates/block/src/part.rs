//! The parts of a cache: the share of each thread, and the messages between parts.
//!
//! Shards are assigned to parts in turn. A request belongs to the part it was submitted to. That
//! part sends sub-requests to the parts that own their shards, and asks every part to drain when a
//! flush comes. A request's id includes its part, so that answers are sent back there.

use crate::engine::piece::Piece;
use crate::engine::request::{Fault, RequestId};
use crate::geometry::{Sectors, VolumeId};

/// Bits of a [`RequestId`] for the number within its part; the part is in the bits above.
const LOCAL_BITS: u32 = 24;

/// Most parts of a cache.
pub const MOST_PARTS: usize = 1 << (u32::BITS - LOCAL_BITS);

/// One part of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartId(pub u8);

impl RequestId {
    /// Returns the id of a part's request with this number, which is small.
    ///
    /// # Panics
    /// With more than 16 million requests under way.
    pub fn new(part: PartId, number: usize) -> Self {
        assert!(number < 1 << LOCAL_BITS, "fewer than 2^{LOCAL_BITS} requests are under way");
        Self(u32::from(part.0) << LOCAL_BITS | number as u32)
    }

    /// Returns the part it was submitted to.
    pub fn part(self) -> PartId {
        PartId((self.0 >> LOCAL_BITS) as u8)
    }

    /// Returns its number among the requests of that part.
    pub fn number(self) -> usize {
        (self.0 & ((1 << LOCAL_BITS) - 1)) as usize
    }
}

/// A message from one part to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Serve a sub-request of the sender. Its buffer is lent until the sub-request has finished.
    Piece(ForeignPiece),
    /// Fetch this run of a region, which continues a stream of the sender; no client waits for it.
    FetchAhead {
        /// The volume.
        volume: VolumeId,
        /// The run.
        sectors: Sectors,
        /// The first sector of the stream.
        stream: u64,
    },
    /// Answers a sub-request of the receiver; with `finished` it also does not need the buffer any
    /// more.
    Answered {
        /// The request.
        request: RequestId,
        /// The sub-request's result.
        result: Result<(), Fault>,
        /// Everything was cached.
        hit: bool,
        /// The sub-request does not need the buffer any more.
        finished: bool,
    },
    /// Notes that an answered sub-request of the receiver does not need the buffer any more.
    Finished {
        /// The request.
        request: RequestId,
    },
    /// Make all dirty data of the volume durable, for a flush of the sender.
    Drain {
        /// The flush.
        request: RequestId,
        /// The volume.
        volume: VolumeId,
        /// Clean all dirty data, including data that the cache could keep.
        to_backing: bool,
    },
    /// Reports the end of a drain.
    Drained {
        /// The flush.
        request: RequestId,
        /// The drain's result.
        result: Result<(), Fault>,
    },
}

/// A sub-request of another part's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignPiece(pub(crate) Piece);

impl ForeignPiece {
    /// Returns its request.
    pub fn request(&self) -> RequestId {
        self.0.request
    }
}

impl Message {
    /// Returns the request whose buffer one sub-request less uses after this message.
    pub fn finishes(&self) -> Option<RequestId> {
        match *self {
            Self::Answered { request, finished: true, .. } | Self::Finished { request } => {
                Some(request)
            }
            _ => None,
        }
    }
}
