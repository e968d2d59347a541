//! Keys made dense: numbered 0, 1, 2, … as they first appear, so that a simulator can keep its
//! state in plain arrays.
//!
//! The table that does it puts keys that are neighbours next to each other, since traces of pages
//! run through neighbours: eight of them share a place, and the rest of the key is hashed.

use std::ops::RangeInclusive;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::error::{Error, ErrorKind};
use crate::request::{Kind, Op, Request};
use crate::stats::BLOCK_BYTES;
use crate::trace::Trace;

/// Stands for "never again" among next accesses.
pub const NEVER: u32 = u32::MAX;

/// Numbers keys as they first appear.
#[derive(Debug, Default)]
pub struct Numbering {
    table: HashTable<Numbered>,
}

/// 16 bytes, so that four share a cache line.
#[derive(Debug)]
struct Numbered {
    key: u64,
    volume: u32,
    number: u32,
}

impl Numbering {
    /// No keys yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of a key, or of a place on a volume. It is new if the key is; `None` if there are
    /// 2³² − 1 others already.
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

    /// The number of a key, or of a place on a volume, if it has one.
    pub fn find(&self, volume: u32, key: u64) -> Option<u32> {
        let same = |entry: &Numbered| entry.key == key && entry.volume == volume;
        self.table.find(hash(volume, key), same).map(|entry| entry.number)
    }

    /// Returns the number of keys that have a number.
    pub fn distinct(&self) -> u32 {
        self.table.len() as u32
    }
}

/// Neighbours differ in the lowest bits, which choose the place, and in the highest, by which the
/// table tells entries at a place apart.
#[inline]
fn hash(volume: u32, key: u64) -> u64 {
    let place = (key >> 3) ^ u64::from(volume).rotate_right(16);
    let product = u128::from(place) * 0x9e37_79b9_7f4a_7c15;
    let mixed = (product >> 64) as u64 ^ product as u64;
    (mixed << 3 | key & 7) ^ (key & 7) << 57
}

/// All touches of a trace as dense keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DenseKeys {
    /// The key of each touch, below `distinct`.
    pub keys: Vec<u32>,
    /// The number of keys.
    pub distinct: u32,
}

impl DenseKeys {
    /// Numbers keys; `None` if more than 2³² − 1 are distinct.
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

    /// For each touch the index of the next touch of its key, or [`NEVER`]: what Belady's policy
    /// needs. `None` if there are 2³² − 1 touches or more.
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

/// The keys that a request touches, and their volume. Deletions touch none, nor does disk I/O
/// without length.
#[inline]
pub(crate) fn touches(kind: Kind, request: &Request) -> impl Iterator<Item = (u32, u64)> + use<> {
    let (volume, first, count) = match kind {
        _ if request.op == Op::Delete => (0, 0, 0),
        Kind::Block if request.bytes == 0 => (0, 0, 0),
        Kind::Block => {
            let first = request.key / BLOCK_BYTES;
            (request.volume, first, (request.key + request.bytes).div_ceil(BLOCK_BYTES) - first)
        }
        Kind::Object | Kind::Key => (0, request.key, 1),
    };
    (0..count).map(move |step| (volume, first + step))
}

/// The keys that a deletion takes out, and their volume: of disk I/O, the blocks of 4 KiB that it
/// covers whole.
pub(crate) fn deleted(kind: Kind, request: &Request) -> impl Iterator<Item = (u32, u64)> + use<> {
    let (volume, keys) = match kind {
        _ if request.op != Op::Delete => (0, None),
        Kind::Block => (request.volume, covered_blocks(request, BLOCK_BYTES)),
        Kind::Object | Kind::Key => (0, Some(request.key..=request.key)),
    };
    keys.into_iter().flatten().map(move |key| (volume, key))
}

/// The numbers of the blocks of a size that a block request covers whole; `None` if it covers none.
pub fn covered_blocks(request: &Request, block_bytes: u64) -> Option<RangeInclusive<u64>> {
    let first = request.key.div_ceil(block_bytes);
    let end = (request.key + request.bytes) / block_bytes;
    (first < end).then(|| first..=end - 1)
}
