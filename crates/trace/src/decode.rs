//! From bytes to requests: the frame in which every format's decoder stands.
//!
//! A format implements [`Line`] (text) or [`Record`] (binary) for a single record; [`Lines`] and
//! [`Records`] walk the window, count records, and deal with bad and cut-off ones. [`Decode`] is
//! what [`crate::Trace`] sees: one indirect call per batch.
//!
//! Invariants: a record adds requests to the batch only if it is whole and good; every call either
//! consumes bytes or reports that it needs more.

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::fields::{Flaw, Found};
use crate::request::{Kind, Op, Request};

/// The longest line of a text format.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;
/// Runs in a full batch: 50 KiB, so that it stays in the nearest caches.
const BATCH_RUNS: usize = 1024;

/// A request, or several that differ in nothing but their key.
pub(crate) struct Run {
    pub(crate) first: Request,
    pub(crate) count: u64,
    /// The distance between keys: 1, or 0 where the same request is repeated.
    pub(crate) stride: u64,
}

/// Requests that a decoder hands over at once.
pub(crate) struct Batch {
    /// The requests.
    pub(crate) runs: Vec<Run>,
    /// The record that stopped the decoder.
    pub(crate) bad: Option<BadRecord>,
    /// Bad records passed over, in the whole trace.
    pub(crate) skipped: u64,
    skip_bad: bool,
}

/// A flaw and its place.
pub(crate) struct BadRecord {
    pub(crate) flaw: Flaw,
    /// Counted from 1.
    pub(crate) record: u64,
    /// The offset of the record in the decoder's input.
    pub(crate) at: usize,
}

impl Batch {
    pub(crate) fn new(skip_bad: bool) -> Self {
        Self { runs: Vec::with_capacity(BATCH_RUNS), bad: None, skipped: 0, skip_bad }
    }

    #[inline]
    pub(crate) fn push(&mut self, request: Request) {
        self.push_run(request, 1);
    }

    /// `count` requests for consecutive keys.
    #[inline]
    pub(crate) fn push_run(&mut self, first: Request, count: u64) {
        self.runs.push(Run { first, count, stride: 1 });
    }

    /// Adds a request `count` times.
    pub(crate) fn push_repeated(&mut self, request: Request, count: u64) {
        self.runs.push(Run { first: request, count, stride: 0 });
    }

    /// Returns the number of runs it still takes.
    pub(crate) fn room(&self) -> usize {
        BATCH_RUNS.saturating_sub(self.runs.len())
    }

    fn is_full(&self) -> bool {
        self.runs.len() >= BATCH_RUNS
    }

    /// Notes a bad record; true if the decoder must stop there.
    #[cold]
    pub(crate) fn reject(&mut self, flaw: Flaw, record: u64, at: usize) -> bool {
        if self.skip_bad {
            self.skipped += 1;
        } else {
            self.bad = Some(BadRecord { flaw, record, at });
        }
        !self.skip_bad
    }
}

/// Turns the front of the window into requests.
pub(crate) trait Decode: Send {
    /// Decodes whole records until the batch is full, `input` is used up or a record is bad.
    /// Returns the bytes used. `ended` says that the stream ends where `input` does.
    fn decode(&mut self, input: &[u8], ended: bool, batch: &mut Batch) -> usize;

    /// Returns the word for a record of this format.
    fn unit(&self) -> &'static str;

    /// The kind of trace, where the stream's first bytes tell and not the format.
    fn kind(&mut self, _head: &[u8]) -> Option<Kind> {
        None
    }

    /// The clock of a format with times.
    fn clock(&self) -> Option<&Clock> {
        None
    }
}

/// A text format: one record per line.
pub(crate) trait Line: Send {
    /// Decodes a line, without its end and the blanks around it, and not empty.
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw>;

    /// Returns whether a line that is no record is a header. Asked again further on, since files
    /// get concatenated.
    fn header(&mut self, _line: &[u8]) -> bool {
        false
    }

    /// The kind of trace, where the stream's first bytes tell and not the format.
    fn kind(&mut self, _head: &[u8]) -> Option<Kind> {
        None
    }

    /// The clock of a format with times.
    fn clock(&self) -> Option<&Clock> {
        None
    }
}

/// Walks the lines of a text format. Blank lines, headers and comments are no records: lines that
/// start with `#`, `//` or `%`, unless the format understands them.
pub(crate) struct Lines<L> {
    format: L,
    line: u64,
    discarding: bool,
}

impl<L: Line> Lines<L> {
    pub(crate) fn new(format: L) -> Self {
        Self { format, line: 0, discarding: false }
    }
}

impl<L: Line> Decode for Lines<L> {
    fn decode(&mut self, input: &[u8], ended: bool, batch: &mut Batch) -> usize {
        let mut at = 0;
        while !batch.is_full() && at < input.len() {
            let rest = &input[at..];
            let end = match memchr::memchr(b'\n', rest) {
                Some(end) => end,
                None if ended || rest.len() > LINE_BYTES_MAX => rest.len(),
                None => break,
            };
            let next = (at + end + 1).min(input.len());
            let continues = end == rest.len() && !ended;
            if self.discarding {
                self.discarding = continues;
                at = next;
                continue;
            }
            self.line += 1;
            let line = without_mark(rest[..end].trim_ascii());
            if end > LINE_BYTES_MAX {
                self.discarding = continues;
                let flaw = Flaw {
                    expected: "a line of at most 64 KiB",
                    column: 0,
                    found: Found::Bytes(end),
                };
                if batch.reject(flaw, self.line, at) {
                    return next;
                }
            } else if !line.is_empty()
                && let Err(flaw) = self.format.line(line, batch)
                && !matches!(line, [b'#' | b'%', ..] | [b'/', b'/', ..])
                && !self.format.header(line)
                && batch.reject(flaw, self.line, at)
            {
                return next;
            }
            at = next;
        }
        at
    }

    fn unit(&self) -> &'static str {
        "line"
    }

    fn kind(&mut self, head: &[u8]) -> Option<Kind> {
        self.format.kind(head)
    }

    fn clock(&self) -> Option<&Clock> {
        self.format.clock()
    }
}

/// The result of decoding a binary record.
pub(crate) enum Decoded {
    /// It was good and this long.
    Took(usize),
    /// Bytes that are no record, such as a header.
    Skip(usize),
    /// It is longer than the input.
    Need,
    /// It was bad; the next one starts after so many bytes.
    Bad(usize, Flaw),
}

/// A binary format.
pub(crate) trait Record: Send {
    /// Decodes the record at the front of `input`, which is not empty.
    fn record(&mut self, input: &[u8], batch: &mut Batch) -> Decoded;

    /// The clock of a format with times.
    fn clock(&self) -> Option<&Clock> {
        None
    }
}

/// Walks the records of a binary format.
pub(crate) struct Records<R> {
    format: R,
    record: u64,
}

impl<R: Record> Records<R> {
    pub(crate) fn new(format: R) -> Self {
        Self { format, record: 0 }
    }
}

impl<R: Record> Decode for Records<R> {
    fn decode(&mut self, input: &[u8], ended: bool, batch: &mut Batch) -> usize {
        let mut at = 0;
        while !batch.is_full() && at < input.len() {
            let rest = &input[at..];
            let (used, flaw) = match self.format.record(rest, batch) {
                Decoded::Took(used) => (used, None),
                Decoded::Skip(used) => {
                    at += used;
                    continue;
                }
                Decoded::Bad(used, flaw) => (used, Some(flaw)),
                Decoded::Need if !ended => break,
                Decoded::Need => {
                    let flaw = Flaw {
                        expected: "a whole record",
                        column: 0,
                        found: Found::Bytes(rest.len()),
                    };
                    (rest.len(), Some(flaw))
                }
            };
            debug_assert!(used > 0);
            self.record += 1;
            let start = at;
            at += used.min(rest.len());
            if let Some(flaw) = flaw
                && batch.reject(flaw, self.record, start)
            {
                break;
            }
        }
        at
    }

    fn unit(&self) -> &'static str {
        "record"
    }

    fn clock(&self) -> Option<&Clock> {
        self.format.clock()
    }
}

/// Turns a trace's times into nanoseconds since its first record.
pub(crate) struct Clock {
    first: Option<u64>,
    before: u64,
    /// Times that were before those of the record they followed.
    pub(crate) steps_back: u64,
    tick_ns: u64,
}

impl Clock {
    /// A clock whose times count units of `tick_ns` nanoseconds.
    pub(crate) fn new(tick_ns: u64) -> Self {
        Self { first: None, before: 0, steps_back: 0, tick_ns }
    }

    /// Nanoseconds from the first record to `time`; 0 if `time` is earlier.
    #[inline]
    pub(crate) fn since_first_ns(&mut self, time: u64) -> u64 {
        let first = *self.first.get_or_insert(time);
        self.steps_back += u64::from(time < self.before);
        self.before = time;
        time.saturating_sub(first).saturating_mul(self.tick_ns)
    }
}

/// Numbers disks, whose names are two numbers each or the hashes of their texts, in order of
/// appearance.
#[derive(Default)]
pub(crate) struct Volumes(HashMap<(u64, u32), u32, FixedState>);

impl Volumes {
    /// The number of a disk, which may be new.
    #[inline]
    pub(crate) fn number(&mut self, name: u64, part: u32) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry((name, part)).or_insert(next)
    }
}

/// Decompressed bytes looked at.
pub(crate) const SAMPLE_BYTES: usize = 64 << 10;

/// Lines looked at: enough to be sure, few enough to be instant.
const SAMPLE_LINES: usize = 256;

/// The start of a trace, from which formats are recognised.
pub(crate) struct Sample<'a> {
    /// The start of the decompressed stream.
    pub(crate) bytes: &'a [u8],
    /// True if that is all of it.
    pub(crate) whole: bool,
}

impl<'a> Sample<'a> {
    /// Returns whether this is text: no control characters but blanks and line ends.
    pub(crate) fn is_text(&self) -> bool {
        self.bytes.iter().all(|&b| b >= b' ' && b != 0x7f || (b'\t'..=b'\r').contains(&b))
    }

    /// The whole lines of the sample that are neither blank nor comments, without blanks around
    /// them.
    pub(crate) fn lines(&self) -> impl Iterator<Item = SampleLine<'a>> + use<'a> {
        let end = match self.bytes.iter().rposition(|&b| b == b'\n') {
            Some(last) if !self.whole => last,
            _ => self.bytes.len(),
        };
        let mut at = 0;
        self.bytes[..end]
            .split(|&b| b == b'\n')
            .zip(1..)
            .map(move |(text, number)| {
                let line = SampleLine { number, at, text: without_mark(text.trim_ascii()) };
                at += text.len() + 1;
                line
            })
            .filter(|line| !line.text.is_empty() && line.text[0] != b'#')
            .take(SAMPLE_LINES)
    }
}

/// A line of a sample.
pub(crate) struct SampleLine<'a> {
    /// Counted from 1.
    pub(crate) number: u64,
    /// Where it starts in the sample.
    pub(crate) at: usize,
    /// Its text, without blanks around it.
    pub(crate) text: &'a [u8],
}

/// A line without the byte-order mark that some programs put in front of a file.
#[inline]
pub(crate) fn without_mark(line: &[u8]) -> &[u8] {
    match line {
        [0xef, 0xbb, 0xbf, rest @ ..] => rest.trim_ascii_start(),
        _ => line,
    }
}

/// Bytes in a sector of those formats that count in sectors.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// A block request, once its fields are known to be good.
#[inline]
pub(crate) fn block(time_ns: u64, op: Op, volume: u32, key: u64, bytes: u64) -> Request {
    Request { time_ns, key, bytes, volume, op }
}

/// A read of a key without size.
#[inline]
pub(crate) fn key_only(key: u64) -> Request {
    Request { time_ns: 0, key, bytes: 1, volume: 0, op: Op::Read }
}
