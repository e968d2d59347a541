//! Dense keys: numbers 0, 1, 2, … in order of first appearance, so that a simulator can keep its
//! state in plain arrays.
//!
//! The hash table puts neighbouring keys next to each other, because page traces run through
//! neighbours: eight of them share a place, and the rest of the key is hashed.

use std::ops::RangeInclusive;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::error::{Error, ErrorKind};
use crate::request::{Op, Request, TraceKind};
use crate::stats::BLOCK_BYTES;
use crate::trace::Trace;

/// Marks a key that is not accessed again, among next accesses.
pub const NEVER: u32 = u32::MAX;

/// Numbers keys in order of first appearance.
#[derive(Debug, Default)]
pub struct Numbering {
    table: HashTable<Numbered>,
}

/// A key and its number in 16 bytes, so that four share a cache line.
#[derive(Debug)]
struct Numbered {
    key: u64,
    volume: u32,
    number: u32,
}

impl Numbering {
    /// Creates an empty numbering.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of a key, or of a block on a volume; a new key gets the next number.
    /// `None` if 2³² − 1 other keys have numbers already.
    #[inline]
    pub fn number(&mut self, volume: u32, key: u64) -> Option<u32> {
        let next = self.table.len();
        let same = |entry: &Numbered| entry.key == key && entry.volume == volume;
        match self.table.entry(hash(volume, key), same, |entry| hash(entry.volume, entry.key)) {
            Entry::Occupied(entry) => Some(entry.get().number),
            Entry::Vacant(entry) => {
                let number = u32::try_from(next).ok().filter(|&number| number < NEVER)?;
                entry.insert(Numbered { key, volume, number });
                Some(number)
            }
        }
    }

    /// Returns the number of a key, or of a block on a volume; `None` if it has none.
    pub fn find(&self, volume: u32, key: u64) -> Option<u32> {
        let same = |entry: &Numbered| entry.key == key && entry.volume == volume;
        self.table.find(hash(volume, key), same).map(|entry| entry.number)
    }

    /// Returns the number of keys that have a number.
    pub fn distinct(&self) -> u32 {
        self.table.len() as u32
    }
}

/// Hashes a key so that neighbouring keys differ in the lowest bits, which choose the place, and in
/// the highest, which distinguish entries at a place.
#[inline]
fn hash(volume: u32, key: u64) -> u64 {
    let place = (key >> 3) ^ u64::from(volume).rotate_right(16);
    let product = u128::from(place) * 0x9e37_79b9_7f4a_7c15;
    let mixed = (product >> 64) as u64 ^ product as u64;
    (mixed << 3 | key & 7) ^ (key & 7) << 57
}

/// All touches of a trace, as dense keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DenseKeys {
    /// Key of each touch, below `distinct`.
    pub keys: Vec<u32>,
    /// Number of distinct keys.
    pub distinct: u32,
}

impl DenseKeys {
    /// Numbers the given keys; `None` if more than 2³² − 1 are distinct.
    pub fn from_keys(keys: impl IntoIterator<Item = u64>) -> Option<Self> {
        let mut numbering = Numbering::new();
        let keys = keys.into_iter().map(|key| numbering.number(0, key)).collect::<Option<_>>()?;
        Some(Self { keys, distinct: numbering.distinct() })
    }

    /// Reads a trace to its end. A touch is a read or write of a key, or of a block of 4 KiB that a
    /// block request covers in part or whole.
    ///
    /// # Errors
    /// The first error of the trace, and more than 2³² − 1 distinct keys.
    pub fn read(trace: &mut Trace) -> Result<Self, Error> {
        let (mut numbering, mut keys) = (Numbering::new(), Vec::new());
        let too_many = |trace: &Trace| ErrorKind::TooManyKeys { path: trace.name().to_owned() };
        while let Some(request) = trace.next() {
            let request = request?;
            for (volume, key) in touches(trace.kind(), &request) {
                keys.push(numbering.number(volume, key).ok_or_else(|| too_many(trace))?);
            }
        }
        Ok(Self { keys, distinct: numbering.distinct() })
    }

    /// Returns for each touch the index of the next touch of its key, or [`NEVER`], as Belady's
    /// policy needs it. `None` if there are 2³² − 1 touches or more.
    pub fn next_accesses(&self) -> Option<Vec<u32>> {
        let count = u32::try_from(self.keys.len()).ok().filter(|&count| count < NEVER)?;
        let mut upcoming = vec![NEVER; self.distinct as usize];
        let mut next = vec![NEVER; self.keys.len()];
        for (index, &key) in (0..count).zip(&self.keys).rev() {
            next[index as usize] = std::mem::replace(&mut upcoming[key as usize], index);
        }
        Some(next)
    }
}

/// Returns the keys that a request touches, each with its volume. Deletions and disk I/O of length
/// 0 touch none.
#[inline]
pub(crate) fn touches(
    kind: TraceKind,
    request: &Request,
) -> impl Iterator<Item = (u32, u64)> + use<> {
    let (volume, first, count) = match kind {
        _ if request.op == Op::Delete => (0, 0, 0),
        TraceKind::Block if request.bytes == 0 => (0, 0, 0),
        TraceKind::Block => {
            let first = request.key / BLOCK_BYTES;
            (request.volume, first, (request.key + request.bytes).div_ceil(BLOCK_BYTES) - first)
        }
        TraceKind::Object | TraceKind::Key => (0, request.key, 1),
    };
    (0..count).map(move |step| (volume, first + step))
}

/// Returns the keys that a deletion removes, each with its volume. For disk I/O they are the blocks
/// of 4 KiB that the deletion covers completely.
pub(crate) fn deleted(
    kind: TraceKind,
    request: &Request,
) -> impl Iterator<Item = (u32, u64)> + use<> {
    let (volume, keys) = match kind {
        _ if request.op != Op::Delete => (0, None),
        TraceKind::Block => (request.volume, covered_blocks(request, BLOCK_BYTES)),
        TraceKind::Object | TraceKind::Key => (0, Some(request.key..=request.key)),
    };
    keys.into_iter().flatten().map(move |key| (volume, key))
}

/// Returns the numbers of the blocks of `block_bytes` that a block request covers completely;
/// `None` if there are none.
pub fn covered_blocks(request: &Request, block_bytes: u64) -> Option<RangeInclusive<u64>> {
    let first = request.key.div_ceil(block_bytes);
    let end = (request.key + request.bytes) / block_bytes;
    (first < end).then(|| first..=end - 1)
}
