//! The compact form of a trace, made to be replayed: format `floe`.
//!
//! Keys are numbered as they first appear, so that a simulator indexes arrays with them; every
//! other column is stored in as few bytes a request as its block needs, none where it does not
//! vary. A block of requests brings the original keys of the numbers that are new in it, so that
//! nothing is lost and the file can be read as a stream. `docs/trace-format.md` gives every byte.
//!
//! Invariants: numbers in a block are below the count of keys brought so far; blocks together hold
//! exactly the header's requests; every block fits into the window a trace is read through.

mod column;
mod convert;
mod read;
mod section;
mod write;

pub use convert::convert;
pub use read::CompactTrace;
pub use write::{CompactOptions, CompactWriter};

pub(crate) use section::{Decoder, is_compact};

use crate::fields::Flaw;
use crate::request::Kind;

/// Requests in a block: with all columns at their widest it still fits the window.
const BLOCK_REQUESTS: usize = 4096;
const MAGIC: [u8; 8] = *b"\x89FLOE\r\n\x1a";
const VERSION: u16 = 1;
/// Size of the file's header.
const HEADER_BYTES: usize = 64;
/// Size of what precedes each section.
const SECTION_BYTES: usize = 24;
const DENSE: u8 = 1;
const NEXT: u8 = 2;

/// The header of a compact trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The meaning of keys and sizes.
    pub kind: Kind,
    /// True if keys are numbered; not in block traces, whose keys are places on a disk.
    pub dense: bool,
    /// True if each request has the time at which its key comes next.
    pub next_accesses: bool,
    /// The number of requests.
    pub requests: u64,
    /// Distinct keys; of block traces, distinct blocks of 4 KiB.
    pub distinct: u64,
    /// Bytes in them, as in [`crate::Info`].
    pub footprint_bytes: u64,
    /// The number of requests that read.
    pub reads: u64,
    /// The number of requests that write.
    pub writes: u64,
    /// Time from the first record to the latest.
    pub duration_ns: u64,
}

impl Header {
    /// Returns whether any request deletes, which touches nothing.
    pub(crate) fn has_deletes(&self) -> bool {
        self.reads + self.writes < self.requests
    }

    /// The kind that the start of a stream tells, if it is a compact trace.
    pub(crate) fn kind_of(bytes: &[u8]) -> Option<Kind> {
        Some(Self::decode(bytes.first_chunk()?).ok()?.kind)
    }

    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = match self.kind {
            Kind::Block => 0,
            Kind::Object => 1,
            Kind::Key => 2,
        };
        bytes[11] = (u8::from(self.dense) * DENSE) | (u8::from(self.next_accesses) * NEXT);
        let numbers = [
            self.requests,
            self.distinct,
            self.footprint_bytes,
            self.reads,
            self.writes,
            self.duration_ns,
        ];
        for (place, number) in bytes[16..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let sum = crc32fast::hash(&bytes);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Flaw> {
        if bytes[..8] != MAGIC {
            return Err(Flaw::text("the header of a compact trace", 0, &bytes[..8]));
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if version != VERSION {
            return Err(Flaw::number("version 1 of the compact form", u64::from(version)));
        }
        let mut summed = *bytes;
        summed[12..16].fill(0);
        let sum = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
        if crc32fast::hash(&summed) != sum {
            return Err(Flaw::number("a header that matches its checksum", u64::from(sum)));
        }
        let kind = match bytes[10] {
            0 => Kind::Block,
            1 => Kind::Object,
            2 => Kind::Key,
            kind => return Err(Flaw::number("a kind from 0 to 2", u64::from(kind))),
        };
        if bytes[11] & !(DENSE | NEXT) != 0 {
            return Err(Flaw::number("flags below 4", u64::from(bytes[11])));
        }
        let mut numbers = [0; 6];
        for (number, place) in numbers.iter_mut().zip(bytes[16..].chunks_exact(8)) {
            *number = column::word(place);
        }
        let [requests, distinct, footprint_bytes, reads, writes, duration_ns] = numbers;
        if distinct > requests.min(u64::from(u32::MAX)) && bytes[11] & DENSE != 0 {
            return Err(Flaw::number("no more keys than requests", distinct));
        }
        let (dense, next_accesses) = (bytes[11] & DENSE != 0, bytes[11] & NEXT != 0);
        Ok(Self {
            kind,
            dense,
            next_accesses,
            requests,
            distinct,
            footprint_bytes,
            reads,
            writes,
            duration_ns,
        })
    }
}
