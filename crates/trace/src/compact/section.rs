//! Sections: what follows the header, each with a checksum, in the order requests, next accesses,
//! end.

use super::column::Column;
use super::{BLOCK_REQUESTS, HEADER_BYTES, Header, MAGIC, SECTION_BYTES};
use crate::decode::{Batch, Decode};
use crate::fields::{Flaw, Found};
use crate::request::{BLOCK_REQUEST_BYTES_MAX, Kind, Op, Request};

pub(super) const REQUESTS: u8 = b'R';
pub(super) const NEXT_ACCESSES: u8 = b'N';
pub(super) const END: u8 = b'E';

/// Returns whether a stream starts as a compact trace does, or is the start of one.
pub(crate) fn is_compact(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// A section as it stands in the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Section<'a> {
    pub(super) tag: u8,
    pub(super) count: usize,
    new_keys: usize,
    payload: &'a [u8],
}

impl<'a> Section<'a> {
    /// Returns the bytes that precede a payload.
    pub(super) fn head(
        tag: u8,
        count: usize,
        new_keys: usize,
        payload: &[u8],
    ) -> [u8; SECTION_BYTES] {
        let mut head = [0; SECTION_BYTES];
        head[0] = tag;
        for (at, number) in [(4, payload.len()), (8, count), (12, new_keys)] {
            head[at..at + 4].copy_from_slice(&(number as u32).to_le_bytes());
        }
        let sum = checksum(&head, payload);
        head[20..].copy_from_slice(&sum.to_le_bytes());
        head
    }

    /// The section at the front of `input` and its length; `None` if it goes on behind it.
    pub(super) fn parse(input: &'a [u8]) -> Result<Option<(Self, usize)>, Flaw> {
        let Some((head, rest)) = input.split_first_chunk::<SECTION_BYTES>() else {
            return Ok(None);
        };
        let number =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (tag, length, count, new_keys) =
            (head[0], number(4) as usize, number(8) as usize, number(12) as usize);
        if ![REQUESTS, NEXT_ACCESSES, END].contains(&tag) {
            return Err(Flaw::number(
                "a section of requests, next accesses or the end",
                u64::from(tag),
            ));
        }
        if count > BLOCK_REQUESTS || new_keys > count {
            return Err(Flaw::number(
                "a block of at most 4096 requests and new keys",
                count.max(new_keys) as u64,
            ));
        }
        if length > BLOCK_REQUESTS * 40 {
            return Err(Flaw::number("a payload of at most 160 KiB", length as u64));
        }
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        if checksum(head, payload) != number(20) {
            return Err(Flaw::number("a section that matches its checksum", u64::from(number(20))));
        }
        Ok(Some((Self { tag, count, new_keys, payload }, SECTION_BYTES + length)))
    }

    /// The one column of a section of next accesses.
    pub(super) fn distances(&self) -> Result<Column<'a>, Flaw> {
        let mut payload = self.payload;
        let column = Column::take(&mut payload, self.count)?;
        nothing_left(payload)?;
        Ok(column)
    }
}

fn checksum(head: &[u8; SECTION_BYTES], payload: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&head[..SECTION_BYTES - 4]);
    sum.update(payload);
    sum.finalize()
}

fn nothing_left(payload: &[u8]) -> Result<(), Flaw> {
    match payload.len() {
        0 => Ok(()),
        more => Err(Flaw::number("a payload no longer than its columns", more as u64)),
    }
}

/// The columns of a section of requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block<'a> {
    pub(super) count: usize,
    new_keys: usize,
    /// The original keys of new numbers.
    originals: Column<'a>,
    pub(super) keys: Column<'a>,
    bytes: Column<'a>,
    times: Column<'a>,
    volumes: Column<'a>,
    ops: Column<'a>,
}

impl<'a> Block<'a> {
    pub(super) fn parse(section: &Section<'a>) -> Result<Self, Flaw> {
        let (mut payload, count, new_keys) = (section.payload, section.count, section.new_keys);
        let originals = Column::take(&mut payload, new_keys)?;
        let mut next = || Column::take(&mut payload, count);
        let (keys, bytes, times, volumes, ops) = (next()?, next()?, next()?, next()?, next()?);
        nothing_left(payload)?;
        Ok(Self { count, new_keys, originals, keys, bytes, times, volumes, ops })
    }

    /// Checks that a dense block's numbers are below `distinct`, what there were before it, plus
    /// its new ones.
    fn requests(
        &self,
        header: &Header,
        keys: &mut Vec<u64>,
        batch: &mut Batch,
    ) -> Result<(), Flaw> {
        keys.extend((0..self.new_keys).map(|index| self.originals.get(index)));
        for index in 0..self.count {
            let number = self.keys.get(index);
            let key = match header.dense {
                true => *usize::try_from(number)
                    .ok()
                    .and_then(|number| keys.get(number))
                    .ok_or_else(|| Flaw::number("the number of a key that was there", number))?,
                false => number,
            };
            let (bytes, volume) = (self.bytes.get(index), self.volumes.get(index) as u32);
            let op = match self.ops.get(index) {
                0 => Op::Read,
                1 => Op::Write,
                2 => Op::Delete,
                op => return Err(Flaw::number("an operation from 0 to 2", op)),
            };
            let fits = |end| end <= i64::MAX as u64;
            if header.kind == Kind::Block
                && (bytes > BLOCK_REQUEST_BYTES_MAX || !key.checked_add(bytes).is_some_and(fits))
            {
                return Err(Flaw::number(
                    "a block request of at most 4 GiB that ends on the disk",
                    bytes,
                ));
            }
            batch.push(Request { time_ns: self.times.get(index), key, bytes, volume, op });
        }
        Ok(())
    }
}

/// Reads the compact form as a stream of requests with their original keys.
#[derive(Default)]
pub(crate) struct Decoder {
    header: Option<Header>,
    /// Original keys by number.
    keys: Vec<u64>,
    requests: u64,
    sections: u64,
    ended: bool,
    /// After a bad block, numbers cannot be told from each other any more.
    lost: bool,
}

impl Decoder {
    /// Takes one piece off the front of the input; how long it was, or `None` if it goes on behind.
    fn step(&mut self, input: &[u8], batch: &mut Batch) -> Result<Option<usize>, Flaw> {
        let Some(header) = self.header else {
            let Some(bytes) = input.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
            self.header = Some(Header::decode(bytes)?);
            return Ok(Some(HEADER_BYTES));
        };
        if self.ended {
            return Err(Flaw::number("nothing behind the end", input.len() as u64));
        }
        let Some((section, used)) = Section::parse(input)? else { return Ok(None) };
        match section.tag {
            REQUESTS => {
                let before = batch.runs.len();
                let decoded = Block::parse(&section)
                    .and_then(|block| block.requests(&header, &mut self.keys, batch));
                if let Err(flaw) = decoded {
                    batch.runs.truncate(before);
                    return Err(flaw);
                }
                self.requests += section.count as u64;
            }
            END if self.requests == header.requests => self.ended = true,
            END => return Err(Flaw::number("as many requests as the header says", self.requests)),
            _ => {}
        }
        Ok(Some(used))
    }
}

impl Decode for Decoder {
    fn decode(&mut self, input: &[u8], ended: bool, batch: &mut Batch) -> usize {
        let mut at = 0;
        while batch.runs.is_empty() && !self.lost {
            let rest = &input[at..];
            let flaw = match self.step(rest, batch) {
                _ if rest.is_empty() && (!ended || self.ended) => return at,
                Ok(Some(used)) => {
                    self.sections += 1;
                    at += used;
                    continue;
                }
                Ok(None) if !ended => return at,
                Ok(None) => Flaw {
                    expected: "a whole section, and more until the end",
                    column: 0,
                    found: Found::Bytes(rest.len()),
                },
                Err(flaw) => flaw,
            };
            self.lost = true;
            if batch.reject(flaw, self.sections + 1, at) {
                return at;
            }
        }
        if self.lost { input.len() } else { at }
    }

    fn unit(&self) -> &'static str {
        "section"
    }

    fn kind(&mut self, head: &[u8]) -> Option<Kind> {
        Header::kind_of(head)
    }
}
