//! Text formats as tables of columns: each is a row here, and one reader serves all.
//!
//! - adaptsize: AdaptSize's simulator (Berger et al., NSDI '17). Its time counts requests in the
//!   published trace and seconds in others; it is taken as seconds.
//! - alibaba: Alibaba Cloud block storage (Li et al., IISWC '20).
//! - disksim, ssdsim: DiskSim; SSDsim and MQSim, which count whole nanoseconds.
//! - fiu: I/O Deduplication (Koller & Rangaswami, FAST '10) and SRCMap (Verma et al., FAST '10).
//! - ibm: IBM Cloud Object Storage (Eytan et al., HotStorage '20). Requests for metadata alone are
//!   passed over.
//! - msr: MSR Cambridge (Narayanan et al., FAST '08).
//! - spc: UMass trace repository, SPC.
//! - systor: enterprise storage (Lee et al., SYSTOR '17). Lines without an I/O type move no data,
//!   and are passed over.
//! - tencent: Tencent Cloud Block Storage (Zhang et al., ATC '20).
//! - twitter: Twitter's cache clusters (Yang et al., OSDI '20). Keys have no commas.
//! - wikibench: requests to Wikipedia of 2007 (Urdaneta et al., Computer Networks '09).
//! - wikipedia: a CDN's requests for Wikipedia's pages and images of 2019.
//!
//! An object's size is its key's and its value's together; a read without a value does not tell it
//! and has size 0. A disk with a name is numbered in order of appearance.

use super::{Spec, operation, starts_with};
use crate::decode::{Batch, Clock, Line, SECTOR_BYTES, Sample, Volumes};
use crate::fields::{Fields, Flaw, decimal, hash, hexadecimal, integer, key_of};
use crate::request::{Op, Request, TraceKind};

use Column::*;
use Separator::{Blanks, Comma};

/// The layout of a line: its columns and their separator.
pub(super) struct Row {
    separator: Separator,
    /// Nanoseconds in a unit of times without a decimal point.
    tick_ns: u64,
    columns: &'static [Column],
    /// True if further text may follow the columns.
    is_open: bool,
    /// Start of a header line, if the format has one.
    header: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Separator {
    Comma,
    /// Any run of blanks and tabs.
    Blanks,
}

/// A column and, where it can be invalid, its expected value for error messages.
#[derive(Clone, Copy)]
enum Column {
    /// A time as a whole number of ticks.
    Time(&'static str),
    /// A decimal time; the number is the digits from its unit down to a nanosecond.
    Decimal(u32, &'static str),
    /// A decimal time that must have a decimal point.
    Pointed(u32, &'static str),
    /// The number of a disk.
    Disk(&'static str),
    /// A host's name; with `Part`, the number of a disk. `Major` is a number in place of the name.
    Host,
    Major(&'static str),
    Part(&'static str),
    /// A disk offset in units of this many bytes; `Length` is a length in such units.
    Offset(u64, &'static str),
    Length(u64, &'static str),
    /// A key as any text; `Id` is a key as a number, `HexKey` one as 64 bits in hexadecimal.
    Key,
    Id(&'static str),
    HexKey(&'static str),
    KeyBytes(&'static str),
    Bytes(&'static str),
    Bytes32(&'static str),
    /// An optional size at the end of the line.
    BytesIfAny(&'static str),
    /// An operation, as one of these words.
    Ops(&'static [(&'static str, Op)], &'static str),
    /// An operation as one of these words, or nothing if the line moves no data.
    OpsIfAny(&'static [(&'static str, Op)], &'static str),
    /// An operation as a word after `REST.`.
    Rest(&'static str),
    /// Hexadecimal flags; bit 0 is set for a read.
    Flags(&'static str),
    /// An ignored column of any text; the variants below are ignored columns whose form is checked.
    Any,
    Number(&'static str),
    DecimalIfAny(&'static str),
    Word(&'static str),
    Fraction(&'static str),
}

const LENGTH: Column = Length(1, "a length of at most 4 GiB");
const SECTOR: Column = Offset(SECTOR_BYTES, "the first sector");
const SECTORS: Column = Length(SECTOR_BYTES, "a number of sectors of at most 4 GiB");
const OFFSET: Column = Offset(1, "an offset in bytes");
const TIME_S: Column = Time("a time in s");
const LETTERS: &[(&str, Op)] = &[("R", Op::Read), ("W", Op::Write)];
const S: u64 = 1_000_000_000;

const fn row(separator: Separator, tick_ns: u64, columns: &'static [Column]) -> Row {
    Row { separator, tick_ns, columns, is_open: false, header: "" }
}

/// Returns the row with this start of a header line.
const fn headed(header: &'static str, row: Row) -> Row {
    Row { header, ..row }
}

/// Returns the row with further text allowed after its columns.
const fn open(row: Row) -> Row {
    Row { is_open: true, ..row }
}

pub(super) static ADAPTSIZE: Spec = Spec {
    names: &["webcachesim"],
    ..Spec::text(
        "adaptsize",
        TraceKind::Object,
        "text: time, id, bytes",
        "AdaptSize, webcachesim",
        &[row(Blanks, S, &[TIME_S, Id("an id"), Bytes("a size in bytes")])],
    )
};

pub(super) static ALIBABA: Spec = Spec::text(
    "alibaba",
    TraceKind::Block,
    "csv: device, R or W, offset, bytes, time (µs)",
    "Alibaba Cloud block traces (2020)",
    &[headed(
        "device_id,",
        row(
            Comma,
            1000,
            &[
                Disk("a device number"),
                Ops(LETTERS, "R or W"),
                OFFSET,
                LENGTH,
                Time("a time in µs"),
            ],
        ),
    )],
);

pub(super) static DISKSIM: Spec = Spec {
    asks: Some(times_have_a_point),
    ..Spec::text(
        "disksim",
        TraceKind::Block,
        "text: time (ms, with a fraction), device, sector, sectors, flags (hexadecimal, bit 0: \
         read)",
        "DiskSim and its SSD extension",
        &[row(
            Blanks,
            1,
            &[
                Decimal(6, "a time in ms"),
                Disk("a device number"),
                SECTOR,
                SECTORS,
                Flags("hexadecimal flags"),
            ],
        )],
    )
};

pub(super) static SSDSIM: Spec = Spec {
    names: &["mqsim"],
    ..Spec::text(
        "ssdsim",
        TraceKind::Block,
        "text: time (ns), device, sector, sectors, 1 for a read or 0 for a write",
        "SSDsim, MQSim",
        &[row(
            Blanks,
            1,
            &[
                Time("a time in ns"),
                Disk("a device number"),
                SECTOR,
                SECTORS,
                Ops(&[("1", Op::Read), ("0", Op::Write)], "1 for a read or 0 for a write"),
            ],
        )],
    )
};

pub(super) static FIU: Spec = Spec::text(
    "fiu",
    TraceKind::Block,
    "text: time (ns), pid, process, sector, sectors, R or W, major, minor, MD5 if any",
    "FIU: I/O Deduplication, SRCMap (SNIA IOTTA)",
    &[open(row(
        Blanks,
        1,
        &[
            Time("a time in ns"),
            Number("a process id"),
            Any,
            SECTOR,
            SECTORS,
            Ops(LETTERS, "R or W"),
            Major("a major device number"),
            Part("a minor device number"),
        ],
    ))],
);

pub(super) static IBM: Spec = Spec {
    names: &["ibmobjectstore", "objectstore"],
    ..Spec::text(
        "ibm",
        TraceKind::Object,
        "text: time (ms), REST.GET.OBJECT or another, object (hexadecimal), bytes, range if any",
        "IBM Cloud Object Storage (SNIA IOTTA)",
        &[open(row(
            Blanks,
            1_000_000,
            &[
                Time("a time in ms"),
                Rest("REST and an operation"),
                HexKey("an object in hexadecimal"),
                BytesIfAny("a size in bytes"),
            ],
        ))],
    )
};

pub(super) static MSR: Spec = Spec::text(
    "msr",
    TraceKind::Block,
    "csv: time (100 ns), host, disk, Read or Write, offset, bytes, response time",
    "MSR Cambridge (SNIA IOTTA)",
    &[headed(
        "Timestamp,",
        row(
            Comma,
            100,
            &[
                Time("a time in units of 100 ns"),
                Host,
                Part("a disk number"),
                Ops(&[("Read", Op::Read), ("Write", Op::Write)], "Read or Write"),
                OFFSET,
                LENGTH,
                Number("a response time in units of 100 ns"),
            ],
        ),
    )],
);

pub(super) static SPC: Spec = Spec::text(
    "spc",
    TraceKind::Block,
    "csv: ASU, sector, bytes, R or W, time (s, with a fraction)",
    "UMass trace repository (Financial, WebSearch), SPC",
    &[open(row(
        Comma,
        1,
        &[
            Disk("an application storage unit"),
            SECTOR,
            LENGTH,
            Ops(&[("R", Op::Read), ("r", Op::Read), ("W", Op::Write), ("w", Op::Write)], "R or W"),
            Decimal(9, "a time in s"),
        ],
    ))],
);

pub(super) static SYSTOR: Spec = Spec::text(
    "systor",
    TraceKind::Block,
    "csv: time (s, with a fraction), response (s), R or W, LUN, offset, bytes",
    "SYSTOR '17 (SNIA IOTTA)",
    &[headed(
        "Timestamp,",
        row(
            Comma,
            1,
            &[
                Decimal(9, "a time in s"),
                DecimalIfAny("a response time in s"),
                OpsIfAny(LETTERS, "R, W or nothing"),
                Disk("a LUN"),
                OFFSET,
                LENGTH,
            ],
        ),
    )],
);

pub(super) static TENCENT: Spec = Spec {
    names: &["cbs"],
    ..Spec::text(
        "tencent",
        TraceKind::Block,
        "csv: time (s), sector, sectors, 0 for a read or 1 for a write, volume",
        "Tencent CBS (SNIA IOTTA)",
        &[headed(
            "Timestamp,",
            row(
                Comma,
                S,
                &[
                    TIME_S,
                    SECTOR,
                    SECTORS,
                    Ops(&[("0", Op::Read), ("1", Op::Write)], "0 for a read or 1 for a write"),
                    Disk("a volume number"),
                ],
            ),
        )],
    )
};

pub(super) static TWITTER: Spec = Spec::text(
    "twitter",
    TraceKind::Object,
    "csv: time (s), key, key bytes, value bytes, client, operation, TTL (s)",
    "Twitter cache clusters (2020)",
    &[headed(
        "timestamp,",
        row(
            Comma,
            S,
            &[
                TIME_S,
                Key,
                KeyBytes("the key's size in bytes"),
                Bytes32("the value's size in bytes"),
                Any,
                Ops(
                    &[
                        ("get", Op::Read),
                        ("gets", Op::Read),
                        ("set", Op::Write),
                        ("add", Op::Write),
                        ("replace", Op::Write),
                        ("cas", Op::Write),
                        ("append", Op::Write),
                        ("prepend", Op::Write),
                        ("incr", Op::Write),
                        ("decr", Op::Write),
                        ("delete", Op::Delete),
                    ],
                    "a memcached operation",
                ),
                Number("a TTL in s"),
            ],
        ),
    )],
);

pub(super) static WIKIBENCH: Spec = Spec::text(
    "wikibench",
    TraceKind::Key,
    "text: counter, time (s, with a fraction), URL, - or save",
    "Wikipedia's requests of 2007",
    &[row(
        Blanks,
        1,
        &[
            Number("a counter"),
            Pointed(9, "a time in s with a fraction"),
            Key,
            Ops(&[("-", Op::Read), ("save", Op::Write)], "- or save"),
        ],
    )],
);

pub(super) static WIKIPEDIA: Spec = Spec {
    names: &["cache-u", "cache-t"],
    ..Spec::text(
        "wikipedia",
        TraceKind::Object,
        "text: time (s), key, type of image if any, bytes, time to the first byte (s)",
        "Wikimedia's CDN (2019)",
        &[
            headed(
                "relative_unix",
                row(
                    Blanks,
                    S,
                    &[
                        TIME_S,
                        Key,
                        Word("a type of image"),
                        Bytes("a size in bytes"),
                        Fraction("a time to the first byte"),
                    ],
                ),
            ),
            headed(
                "relative_unix",
                row(
                    Blanks,
                    S,
                    &[TIME_S, Key, Bytes("a size in bytes"), Fraction("a time to the first byte")],
                ),
            ),
        ],
    )
};

fn times_have_a_point(sample: &Sample<'_>) -> bool {
    sample.lines().any(|line| Fields::blanks(line.text).text().contains(&b'.'))
}

/// Decoder of a format with one or several rows, of which each trace uses one.
pub(super) struct Table {
    rows: &'static [Row],
    clock: Clock,
    volumes: Volumes,
}

impl Table {
    pub(super) fn new(rows: &'static [Row]) -> Self {
        Self { rows, clock: Clock::new(rows[0].tick_ns), volumes: Volumes::default() }
    }

    /// Decodes a line; `None` if it moves no data.
    fn record(&mut self, row: &'static Row, line: &[u8]) -> Result<Option<Request>, Flaw> {
        let mut fields = match row.separator {
            Comma => Fields::commas(line),
            Blanks => Fields::blanks(line),
        };
        let mut request = Request { time_ns: 0, key: 0, bytes: 1, volume: 0, op: Op::Read };
        let (mut time, mut host, mut key_bytes, mut moves) = (None, 0, 0, true);
        for column in row.columns {
            match *column {
                Time(expected) => time = Some(fields.number(expected)?),
                Decimal(digits, expected) => time = Some(fields.decimal(digits, expected)?),
                Pointed(digits, expected) => {
                    let text = fields.text();
                    let point = text.contains(&b'.').then(|| decimal(text, digits)).flatten();
                    time = Some(point.ok_or_else(|| fields.flaw(expected, text))?);
                }
                Disk(expected) => request.volume = fields.number_u32(expected)?,
                Host => host = hash(fields.text()),
                Major(expected) => host = fields.number(expected)?,
                Part(expected) => {
                    let part = fields.number_u32(expected)?;
                    request.volume = self.volumes.number(host, part);
                }
                Offset(unit_bytes, expected) => {
                    request.key = fields.offset(unit_bytes, expected)?
                }
                Length(unit_bytes, expected) => {
                    request.bytes = fields.length(unit_bytes, expected)?;
                }
                Key => request.key = key_of(fields.text()),
                Id(expected) => request.key = fields.number(expected)?,
                HexKey(expected) => {
                    let text = fields.text();
                    let key = hexadecimal(text, 16);
                    request.key = key.ok_or_else(|| fields.flaw(expected, text))?;
                }
                KeyBytes(expected) => key_bytes = u64::from(fields.number_u32(expected)?),
                Bytes(expected) => request.bytes = fields.number(expected)?,
                Bytes32(expected) => request.bytes = u64::from(fields.number_u32(expected)?),
                BytesIfAny(expected) => {
                    let text = fields.text();
                    let bytes = if text.is_empty() { Some(0) } else { integer(text) };
                    request.bytes = bytes.ok_or_else(|| fields.flaw(expected, text))?;
                }
                Ops(words, expected) => {
                    let text = fields.text();
                    let op = words.iter().find(|(word, _)| word.as_bytes() == text);
                    request.op = op.ok_or_else(|| fields.flaw(expected, text))?.1;
                }
                OpsIfAny(words, expected) => {
                    let text = fields.text();
                    let op = words.iter().find(|(word, _)| word.as_bytes() == text);
                    let commas = line.iter().filter(|&&b| b == b',').count();
                    match op {
                        Some((_, op)) => request.op = *op,
                        None if text.is_empty() && commas + 1 == row.columns.len() => {
                            return Ok(None);
                        }
                        None => return Err(fields.flaw(expected, text)),
                    }
                }
                Rest(expected) => {
                    let text = fields.text();
                    let op = text.strip_prefix(b"REST.").and_then(operation);
                    let op = op.ok_or_else(|| fields.flaw(expected, text))?;
                    moves = op.is_some();
                    request.op = op.unwrap_or(Op::Read);
                }
                Flags(expected) => {
                    let text = fields.text();
                    let digits = text.strip_prefix(b"0x").unwrap_or(text);
                    let flags =
                        hexadecimal(digits, 8).ok_or_else(|| fields.flaw(expected, text))?;
                    request.op = if flags & 1 == 1 { Op::Read } else { Op::Write };
                }
                Any => {
                    fields.text();
                }
                Number(expected) => {
                    fields.number(expected)?;
                }
                DecimalIfAny(expected) => {
                    let text = fields.text();
                    if !text.is_empty() && decimal(text, 9).is_none() {
                        return Err(fields.flaw(expected, text));
                    }
                }
                Word(expected) => {
                    let text = fields.text();
                    if !text.first().is_some_and(u8::is_ascii_alphabetic) {
                        return Err(fields.flaw(expected, text));
                    }
                }
                Fraction(expected) => {
                    let text = fields.text();
                    let of_number = |b: &u8| b.is_ascii_digit() || b".eE+-".contains(b);
                    if integer(text).is_some() || text.is_empty() || !text.iter().all(of_number) {
                        return Err(fields.flaw(expected, text));
                    }
                }
            }
        }
        if !row.is_open {
            fields.end()?;
        }
        if !moves {
            return Ok(None);
        }
        // A read without a value is a miss, and tells no size.
        if request.op != Op::Read || request.bytes > 0 {
            request.bytes = request.bytes.saturating_add(key_bytes);
        }
        request.time_ns = time.map_or(0, |time| self.clock.since_first_ns(time));
        Ok(Some(request))
    }
}

impl Line for Table {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        let mut nearest: Option<Flaw> = None;
        for row in self.rows {
            match self.record(row, line) {
                Ok(request) => {
                    // The others are not tried again.
                    self.rows = std::slice::from_ref(row);
                    request.into_iter().for_each(|request| batch.push(request));
                    return Ok(());
                }
                Err(flaw) if nearest.as_ref().is_some_and(|it| it.column >= flaw.column) => {}
                Err(flaw) => nearest = Some(flaw),
            }
        }
        nearest.map_or(Ok(()), Err)
    }

    fn header(&mut self, line: &[u8]) -> bool {
        let is_start =
            |row: &Row| !row.header.is_empty() && starts_with(line, row.header.as_bytes());
        self.rows.iter().any(is_start)
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.clock)
    }
}
