//! The framework of decoders, which turn bytes into requests.
//!
//! A format implements [`Line`] (text) or [`Record`] (binary) for a single record. [`Lines`] and
//! [`Records`] walk the window, count records, and handle bad and truncated ones. [`Decode`] is the
//! interface to [`crate::Trace`]: one indirect call per batch.
//!
//! Invariants: a record adds requests to the batch only if it is complete and valid; every call
//! either consumes bytes or reports that it needs more.

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::fields::{Flaw, Found};
use crate::request::{Op, Request, TraceKind};

/// Longest line of a text format, in bytes.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;
/// Number of runs in a full batch: 50 KiB, which fits in the processor's nearest caches.
const BATCH_RUNS: usize = 1024;

/// One request, or several that differ only in their key.
pub(crate) struct Run {
    pub(crate) first: Request,
    pub(crate) count: u64,
    /// Distance between keys: 1, or 0 if the same request is repeated.
    pub(crate) stride: u64,
}

/// Requests that a decoder returns at once.
pub(crate) struct Batch {
    /// Decoded requests, in order.
    pub(crate) runs: Vec<Run>,
    /// Bad record at which the decoder stopped.
    pub(crate) bad: Option<BadRecord>,
    /// Bad records skipped so far, in the whole trace.
    pub(crate) skipped: u64,
    skip_bad: bool,
}

/// A bad record: its flaw and its position.
pub(crate) struct BadRecord {
    pub(crate) flaw: Flaw,
    /// Number of the record, from 1.
    pub(crate) record: u64,
    /// Offset of the record in the decoder's input.
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

    /// Adds `count` requests for consecutive keys, beginning with `first`.
    #[inline]
    pub(crate) fn push_run(&mut self, first: Request, count: u64) {
        self.runs.push(Run { first, count, stride: 1 });
    }

    /// Adds a request `count` times.
    pub(crate) fn push_repeated(&mut self, request: Request, count: u64) {
        self.runs.push(Run { first: request, count, stride: 0 });
    }

    /// Returns the number of runs that still fit.
    pub(crate) fn room(&self) -> usize {
        BATCH_RUNS.saturating_sub(self.runs.len())
    }

    fn is_full(&self) -> bool {
        self.runs.len() >= BATCH_RUNS
    }

    /// Records a bad record; returns true if the decoder must stop there.
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

/// A decoder, which turns the front of the window into requests.
pub(crate) trait Decode: Send {
    /// Decodes whole records until the batch is full, `input` is used up or a record is bad.
    /// Returns the bytes used. `ended` is true if the stream ends where `input` does.
    fn decode(&mut self, input: &[u8], ended: bool, batch: &mut Batch) -> usize;

    /// Returns the word for a record of this format: `line` or `record`.
    fn unit(&self) -> &'static str;

    /// Returns the kind of trace, for formats in which it depends on the stream's first bytes.
    fn kind(&mut self, _head: &[u8]) -> Option<TraceKind> {
        None
    }

    /// Returns the clock, for formats with times.
    fn clock(&self) -> Option<&Clock> {
        None
    }
}

/// A text format: one record per line.
pub(crate) trait Line: Send {
    /// Decodes a line that is not empty, without its line end and surrounding blanks.
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw>;

    /// Returns whether a line that is not a record is a header. Also called in the middle of a
    /// file, because files get concatenated.
    fn header(&mut self, _line: &[u8]) -> bool {
        false
    }

    /// Returns the kind of trace, for formats in which it depends on the stream's first bytes.
    fn kind(&mut self, _head: &[u8]) -> Option<TraceKind> {
        None
    }

    /// Returns the clock, for formats with times.
    fn clock(&self) -> Option<&Clock> {
        None
    }
}

/// Decoder of a text format. It skips blank lines, headers and comments: lines that start with `#`,
/// `//` or `%`, unless the format understands them.
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

    fn kind(&mut self, head: &[u8]) -> Option<TraceKind> {
        self.format.kind(head)
    }

    fn clock(&self) -> Option<&Clock> {
        self.format.clock()
    }
}

/// The result of decoding a binary record.
pub(crate) enum Decoded {
    /// A valid record of this many bytes.
    Took(usize),
    /// Bytes that are not a record, such as a header.
    Skip(usize),
    /// A record that is longer than the input.
    Need,
    /// A bad record; the next one starts after this many bytes.
    Bad(usize, Flaw),
}

/// A binary format, by its single records.
pub(crate) trait Record: Send {
    /// Decodes the record at the front of `input`, which is not empty.
    fn record(&mut self, input: &[u8], batch: &mut Batch) -> Decoded;

    /// Returns the clock, for formats with times.
    fn clock(&self) -> Option<&Clock> {
        None
    }
}

/// Decoder of a binary format.
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

/// Converts a trace's times into nanoseconds since its first record.
pub(crate) struct Clock {
    first: Option<u64>,
    before: u64,
    /// Records whose time was before that of the record they follow.
    pub(crate) steps_back: u64,
    tick_ns: u64,
}

impl Clock {
    /// Creates a clock for times in units of `tick_ns` nanoseconds.
    pub(crate) fn new(tick_ns: u64) -> Self {
        Self { first: None, before: 0, steps_back: 0, tick_ns }
    }

    /// Returns the nanoseconds from the first record to `time`; 0 if `time` is earlier.
    #[inline]
    pub(crate) fn since_first_ns(&mut self, time: u64) -> u64 {
        let first = *self.first.get_or_insert(time);
        self.steps_back += u64::from(time < self.before);
        self.before = time;
        time.saturating_sub(first).saturating_mul(self.tick_ns)
    }
}

/// Numbers disks in order of appearance. A disk's name is two numbers, or the hash of its text.
#[derive(Default)]
pub(crate) struct Volumes(HashMap<(u64, u32), u32, FixedState>);

impl Volumes {
    /// Returns the number of a disk; an unknown disk gets the next number.
    #[inline]
    pub(crate) fn number(&mut self, name: u64, part: u32) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry((name, part)).or_insert(next)
    }
}

/// Decompressed bytes from which a format is recognised.
pub(crate) const SAMPLE_BYTES: usize = 64 << 10;

/// Maximum number of lines from which a format is recognised: enough to be sure, few enough to be
/// instant.
const SAMPLE_LINES: usize = 256;

/// The start of a trace, from which formats are recognised.
pub(crate) struct Sample<'a> {
    /// The start of the decompressed stream.
    pub(crate) bytes: &'a [u8],
    /// True if the stream ends with the sample.
    pub(crate) whole: bool,
}

impl<'a> Sample<'a> {
    /// Returns whether the sample is text: it has no control characters but blanks and line ends.
    pub(crate) fn is_text(&self) -> bool {
        self.bytes.iter().all(|&b| b >= b' ' && b != 0x7f || (b'\t'..=b'\r').contains(&b))
    }

    /// Returns the complete lines of the sample that are neither blank nor comments, without
    /// surrounding blanks.
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
    /// Number of the line, from 1.
    pub(crate) number: u64,
    /// Offset of the line in the sample.
    pub(crate) at: usize,
    /// Text of the line, without surrounding blanks.
    pub(crate) text: &'a [u8],
}

/// Returns a line without the byte-order mark that some programs put in front of a file.
#[inline]
pub(crate) fn without_mark(line: &[u8]) -> &[u8] {
    match line {
        [0xef, 0xbb, 0xbf, rest @ ..] => rest.trim_ascii_start(),
        _ => line,
    }
}

/// Bytes in a sector, for formats that count in sectors.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// Creates a block request from fields that have been checked.
#[inline]
pub(crate) fn block(time_ns: u64, op: Op, volume: u32, key: u64, bytes: u64) -> Request {
    Request { time_ns, key, bytes, volume, op }
}

/// Creates a read of a key without size.
#[inline]
pub(crate) fn key_only(key: u64) -> Request {
    Request { time_ns: 0, key, bytes: 1, volume: 0, op: Op::Read }
}
