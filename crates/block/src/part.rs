//! The parts of a cache: what each thread has of it, and what parts say to each other.
//!
//! Shards are dealt out to parts in turn. A request belongs to the part it was submitted to, which
//! sends pieces to the parts that own their shards, and asks every part to drain when a flush
//! comes. A request's name says whose it is, so that answers find back.

use crate::geometry::{Sectors, VolumeId};
use crate::piece::Piece;
use crate::request::{Fault, RequestId};

/// Bits of a [`RequestId`] that tell its part's own requests apart; the part is above.
const LOCAL_BITS: u32 = 24;

/// Most parts of a cache.
pub const MOST_PARTS: usize = 1 << (u32::BITS - LOCAL_BITS);

/// One part of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartId(pub u8);

impl RequestId {
    /// The name of a part's request with this number, which is small.
    ///
    /// # Panics
    /// With more than 16 million requests under way.
    pub fn new(part: PartId, number: usize) -> Self {
        assert!(number < 1 << LOCAL_BITS, "fewer than 2^{LOCAL_BITS} requests are under way");
        Self(u32::from(part.0) << LOCAL_BITS | number as u32)
    }

    /// The part it was submitted to.
    pub fn part(self) -> PartId {
        PartId((self.0 >> LOCAL_BITS) as u8)
    }

    /// Its number among the requests of that part.
    pub fn number(self) -> usize {
        (self.0 & ((1 << LOCAL_BITS) - 1)) as usize
    }
}

/// What one part says to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Serve a piece of my request. Its buffer comes along, lent until the piece has finished.
    Piece(ForeignPiece),
    /// Fetch this run of a region, which comes next in a stream that I follow; nobody waits for it.
    FetchAhead {
        /// The volume.
        volume: VolumeId,
        /// The run.
        sectors: Sectors,
        /// The first sector of the stream.
        stream: u64,
    },
    /// A piece of your request has its answer; with `finished` it also does not need the buffer any
    /// more.
    Answered {
        /// The request.
        request: RequestId,
        /// How the piece ended.
        result: Result<(), Fault>,
        /// Whether everything was cached.
        hit: bool,
        /// Whether the buffer is free of it.
        finished: bool,
    },
    /// A piece of your request that had its answer does not need the buffer any more.
    Finished {
        /// The request.
        request: RequestId,
    },
    /// Make everything of the volume durable that is dirty, for my flush.
    Drain {
        /// The flush.
        request: RequestId,
        /// The volume.
        volume: VolumeId,
        /// Whether also what the cache could keep is to be brought to the backing device.
        to_backing: bool,
    },
    /// That has been done, or could not be.
    Drained {
        /// The flush.
        request: RequestId,
        /// How it ended.
        result: Result<(), Fault>,
    },
}

/// A piece of another part's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignPiece(pub(crate) Piece);

impl ForeignPiece {
    /// The request that it is a piece of.
    pub fn request(&self) -> RequestId {
        self.0.request
    }
}

impl Message {
    /// The request whose buffer is free of one more piece once this has been said.
    pub fn finishes(&self) -> Option<RequestId> {
        match *self {
            Self::Answered { request, finished: true, .. } | Self::Finished { request } => {
                Some(request)
            }
            _ => None,
        }
    }
}
