//! The compact form of a trace, made for fast replay: format `floe`.
//!
//! Keys are numbered in order of first appearance, so that a simulator can index arrays by them.
//! Every other column takes as few bytes a request as its block needs, and none where it does not
//! vary. A block of requests includes the original keys of its new numbers, so nothing is lost and
//! the file can be read as a stream. `docs/trace-format.md` specifies every byte.
//!
//! Invariants: numbers in a block are below the count of keys introduced so far; blocks together
//! hold exactly the header's requests; every block fits into the window a trace is read through.

use crate::decode::{Batch, Decode};
use crate::fields::{Flaw, Found};
use crate::request::{BLOCK_REQUEST_BYTES_MAX, Op, Request, TraceKind};

pub use self::file::{CompactOptions, CompactTrace, CompactWriter, convert};
pub(crate) use self::file::{WATCH_EVERY, write_whole};

mod file;

/// Number of requests in a block. A block fits the window even with all columns at their widest.
const BLOCK_REQUESTS: usize = 4096;
const MAGIC: [u8; 8] = *b"\x89FLOE\r\n\x1a";
const VERSION: u16 = 1;
/// Size of the file's header.
const HEADER_BYTES: usize = 64;
/// Size of the head that precedes each section's payload.
const SECTION_BYTES: usize = 24;
const DENSE: u8 = 1;
const NEXT: u8 = 2;

/// The header of a compact trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The meaning of keys and sizes.
    pub kind: TraceKind,
    /// True if keys are numbered. False for block traces, whose keys are offsets on a disk.
    pub dense: bool,
    /// True if each request stores the distance to the next request for its key.
    pub next_accesses: bool,
    /// The number of requests.
    pub requests: u64,
    /// Number of distinct keys; in block traces, of distinct blocks of 4 KiB.
    pub distinct: u64,
    /// Bytes in the distinct keys or blocks, as in [`crate::Info`].
    pub footprint_bytes: u64,
    /// The number of requests that read.
    pub reads: u64,
    /// The number of requests that write.
    pub writes: u64,
    /// Nanoseconds from the first record to the latest.
    pub duration_ns: u64,
}

impl Header {
    /// Returns whether the trace has deletions, which touch no key.
    pub(crate) fn has_deletes(&self) -> bool {
        self.reads + self.writes < self.requests
    }

    /// Returns the kind of trace from the first bytes of a stream; `None` if it is not a compact
    /// trace.
    pub(crate) fn kind_of(bytes: &[u8]) -> Option<TraceKind> {
        Some(Self::decode(bytes.first_chunk()?).ok()?.kind)
    }

    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = match self.kind {
            TraceKind::Block => 0,
            TraceKind::Object => 1,
            TraceKind::Key => 2,
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
            0 => TraceKind::Block,
            1 => TraceKind::Object,
            2 => TraceKind::Key,
            kind => return Err(Flaw::number("a kind from 0 to 2", u64::from(kind))),
        };
        if bytes[11] & !(DENSE | NEXT) != 0 {
            return Err(Flaw::number("flags below 4", u64::from(bytes[11])));
        }
        let mut numbers = [0; 6];
        for (number, place) in numbers.iter_mut().zip(bytes[16..].chunks_exact(8)) {
            *number = word(place);
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

/// Size of a column's head: width (1 byte), three zeros, scale (4), base (8).
const COLUMN_BYTES: usize = 16;

/// Appends a column of numbers in its encoded form.
fn write_column(values: &[u64], out: &mut Vec<u8>) {
    let base = values.iter().copied().min().unwrap_or(0);
    let span = values.iter().copied().max().unwrap_or(0) - base;
    let mut divisor = 0;
    if span > 0 {
        for value in values {
            divisor = common_divisor(value - base, divisor);
            if divisor == 1 {
                break;
            }
        }
    }
    let scale = u32::try_from(divisor).unwrap_or(1).max(1);
    let width = match span / u64::from(scale) {
        0 => 0u8,
        0x1..=0xff => 1,
        0x100..=0xffff => 2,
        0x1_0000..=0xffff_ffff => 4,
        _ => 8,
    };
    out.extend([width, 0, 0, 0]);
    out.extend(scale.to_le_bytes());
    out.extend(base.to_le_bytes());
    let scale = u64::from(scale);
    let step = |value: &u64| if scale == 1 { value - base } else { (value - base) / scale };
    match width {
        0 => {}
        1 => out.extend(values.iter().map(|value| step(value) as u8)),
        2 => values.iter().for_each(|value| out.extend((step(value) as u16).to_le_bytes())),
        4 => values.iter().for_each(|value| out.extend((step(value) as u32).to_le_bytes())),
        _ => values.iter().for_each(|value| out.extend(step(value).to_le_bytes())),
    }
}

fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// An encoded column of numbers: `base + scale × step`, each step in 0, 1, 2, 4 or 8 bytes.
///
/// The base is the least number, the scale the greatest common divisor of the distances from it. So
/// times in whole microseconds and offsets in whole sectors shrink, and a column that does not vary
/// takes no room.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column<'a> {
    base: u64,
    scale: u64,
    steps: Steps<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Steps<'a> {
    None,
    One(&'a [u8]),
    Two(&'a [[u8; 2]]),
    Four(&'a [[u8; 4]]),
    Eight(&'a [[u8; 8]]),
}

impl<'a> Column<'a> {
    /// Splits a column of `count` numbers off the front of a payload.
    fn take(payload: &mut &'a [u8], count: usize) -> Result<Self, Flaw> {
        let short =
            |payload: &[u8]| Flaw::number("a payload as long as its columns", payload.len() as u64);
        let Some((head, rest)) = payload.split_first_chunk::<COLUMN_BYTES>() else {
            return Err(short(payload));
        };
        let width = usize::from(head[0]);
        let Some((bytes, rest)) = rest.split_at_checked(width * count) else {
            return Err(short(rest));
        };
        let steps = match width {
            0 => Steps::None,
            1 => Steps::One(bytes),
            2 => Steps::Two(bytes.as_chunks().0),
            4 => Steps::Four(bytes.as_chunks().0),
            8 => Steps::Eight(bytes.as_chunks().0),
            _ => return Err(Flaw::number("a column of 0, 1, 2, 4 or 8 bytes", width as u64)),
        };
        *payload = rest;
        let scale = u64::from(u32::from_le_bytes([head[4], head[5], head[6], head[7]]));
        Ok(Self { base: word(&head[8..]), scale, steps })
    }

    /// Returns the number at `index`, or the base if it is past the end. Wraps where a damaged base
    /// or scale would overflow.
    #[inline]
    fn get(&self, index: usize) -> u64 {
        let step = match self.steps {
            Steps::None => return self.base,
            Steps::One(steps) => steps.get(index).map_or(0, |step| u64::from(*step)),
            Steps::Two(steps) => {
                steps.get(index).map_or(0, |step| u64::from(u16::from_le_bytes(*step)))
            }
            Steps::Four(steps) => {
                steps.get(index).map_or(0, |step| u64::from(u32::from_le_bytes(*step)))
            }
            Steps::Eight(steps) => steps.get(index).map_or(0, |step| u64::from_le_bytes(*step)),
        };
        self.base.wrapping_add(step.wrapping_mul(self.scale))
    }

    /// Appends all `count` numbers, truncated to 32 bits.
    fn extend(&self, count: usize, out: &mut Vec<u32>) {
        let (base, scale) = (self.base as u32, self.scale as u32);
        let value = |step: u32| base.wrapping_add(step.wrapping_mul(scale));
        match self.steps {
            Steps::None => out.extend(std::iter::repeat_n(base, count)),
            Steps::One(steps) => out.extend(steps.iter().map(|step| value(u32::from(*step)))),
            Steps::Two(steps) => {
                out.extend(steps.iter().map(|step| value(u32::from(u16::from_le_bytes(*step)))))
            }
            Steps::Four(steps) => {
                out.extend(steps.iter().map(|step| value(u32::from_le_bytes(*step))))
            }
            Steps::Eight(steps) => {
                out.extend(steps.iter().map(|step| value(u64::from_le_bytes(*step) as u32)))
            }
        }
    }
}

/// Returns eight bytes as a number.
fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

const REQUESTS: u8 = b'R';
const NEXT_ACCESSES: u8 = b'N';
const END: u8 = b'E';

/// Returns whether `bytes` are the start of a compact trace, even if they are too few to be sure.
pub(crate) fn is_compact(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// An encoded section of a compact trace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Section<'a> {
    tag: u8,
    count: usize,
    new_keys: usize,
    payload: &'a [u8],
}

impl<'a> Section<'a> {
    /// Returns the head that precedes a section's payload.
    fn head(tag: u8, count: usize, new_keys: usize, payload: &[u8]) -> [u8; SECTION_BYTES] {
        let mut head = [0; SECTION_BYTES];
        head[0] = tag;
        for (at, number) in [(4, payload.len()), (8, count), (12, new_keys)] {
            head[at..at + 4].copy_from_slice(&(number as u32).to_le_bytes());
        }
        let sum = checksum(&head, payload);
        head[20..].copy_from_slice(&sum.to_le_bytes());
        head
    }

    /// Parses the section at the front of `input` and returns it with its length; `None` if `input`
    /// is too short.
    fn parse(input: &'a [u8]) -> Result<Option<(Self, usize)>, Flaw> {
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

    /// Parses the only column of a section of next accesses.
    fn distances(&self) -> Result<Column<'a>, Flaw> {
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
    count: usize,
    new_keys: usize,
    /// Original keys of the numbers that are new in this block.
    originals: Column<'a>,
    keys: Column<'a>,
    bytes: Column<'a>,
    times: Column<'a>,
    volumes: Column<'a>,
    ops: Column<'a>,
}

impl<'a> Block<'a> {
    fn parse(section: &Section<'a>) -> Result<Self, Flaw> {
        let (mut payload, count, new_keys) = (section.payload, section.count, section.new_keys);
        let originals = Column::take(&mut payload, new_keys)?;
        let mut next = || Column::take(&mut payload, count);
        let (keys, bytes, times, volumes, ops) = (next()?, next()?, next()?, next()?, next()?);
        nothing_left(payload)?;
        Ok(Self { count, new_keys, originals, keys, bytes, times, volumes, ops })
    }

    /// Checks that the numbers of a dense block are below `distinct`, the keys known before, plus
    /// the block's new keys.
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
            if header.kind == TraceKind::Block
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
    /// True after a damaged block, because later key numbers are then unknown.
    lost: bool,
}

impl Decoder {
    /// Decodes one section or the header from the front of the input. Returns its length, or `None`
    /// if the input is too short.
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

    fn kind(&mut self, head: &[u8]) -> Option<TraceKind> {
        Header::kind_of(head)
    }
}
