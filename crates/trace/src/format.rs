//! The registry of trace formats. A new format whose lines are columns is a row in [`rows`]; any
//! other needs a file here. Both need a line in `formats!` below.

use std::fmt;
use std::str::FromStr;

use crate::compact::is_compact;
use crate::decode::{Batch, Decode, Decoded, Line, Lines, Record, Sample};
use crate::error::UnknownFormat;
use crate::fields::Flaw;
use crate::request::{Op, TraceKind};
pub(crate) use binary::OracleRecord;
pub use csv::{Columns, ColumnsError};
use rows::{Row, Table};

/// A format's entry in the registry.
pub(crate) struct Spec {
    /// Name of the format on the command line.
    pub(crate) name: &'static str,
    /// Meaning of the format's keys and sizes.
    pub(crate) kind: TraceKind,
    /// Layout of a record, for the table of formats.
    pub(crate) layout: &'static str,
    /// Publisher of traces in the format.
    pub(crate) origin: &'static str,
    /// Parts of file names, in lower case, that break ties in detection, besides the format's own
    /// name.
    pub(crate) names: &'static [&'static str],
    /// Layouts of a line, for formats made of columns only; other formats set the fields below
    /// instead.
    rows: &'static [Row],
    /// Additional condition on a sample that fits the rows.
    asks: Option<fn(&Sample<'_>) -> bool>,
    /// Function that rates a sample.
    fit: fn(&Sample<'_>) -> Fit,
    /// Function that creates a decoder for the start of a trace.
    decoder: fn() -> Box<dyn Decode>,
    /// Function that creates a decoder of page numbers as disk I/O, for formats that allow it.
    block_decoder: Option<fn() -> Box<dyn Decode>>,
}

impl Spec {
    /// Default values of a format's fields.
    const NONE: Self = Self {
        name: "",
        kind: TraceKind::Key,
        layout: "",
        origin: "",
        names: &[],
        rows: &[],
        asks: None,
        fit: |_| Fit::NONE,
        decoder: || Box::new(Lines::new(text::Plain)),
        block_decoder: None,
    };

    /// Creates the entry of a text format whose lines are columns.
    const fn text(
        name: &'static str,
        kind: TraceKind,
        layout: &'static str,
        origin: &'static str,
        rows: &'static [Row],
    ) -> Self {
        Self { name, kind, layout, origin, rows, ..Self::NONE }
    }
}

/// Rating of a sample by a format.
#[derive(Debug)]
pub(crate) struct Fit {
    /// Rating from 0 (no fit) to 100.
    pub(crate) score: u8,
    /// Valid records before the first that breaks the format.
    pub(crate) good: usize,
    /// First record that breaks the format.
    pub(crate) broken: Option<Broken>,
}

/// A record of a sample that violates a format.
#[derive(Debug)]
pub(crate) struct Broken {
    unit: &'static str,
    record: u64,
    at: usize,
    pub(crate) flaw: Flaw,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, record, at, flaw } = self;
        let (expected, found) = (flaw.expected(), flaw.found());
        write!(f, "{unit} {record} at byte {at}: expected {expected}, found {found}")
    }
}

impl Fit {
    const NONE: Self = Self { score: 0, good: 0, broken: None };

    fn sure(score: u8) -> Self {
        Self { score, ..Self::NONE }
    }

    fn only_if(self, condition: bool) -> Self {
        if condition { self } else { Self::NONE }
    }
}

macro_rules! formats {
    ($($module:ident: $($spec:ident),+;)+) => {
        static SPECS: &[&Spec] = &[$($(&$module::$spec),+),+];
    };
}

mod binary;
mod csv;
mod prompts;
mod rows;
mod text;

formats! {
    rows: ADAPTSIZE;
    text: ADDRESS;
    rows: ALIBABA;
    text: ARC, QUEUED, ISSUED, CACHELIB;
    csv: CSV;
    rows: DISKSIM, SSDSIM;
    text: FIO;
    rows: FIU;
    binary: FLOE;
    rows: IBM;
    binary: BE32, BE64, LE32, LE64;
    rows: MSR;
    binary: ORACLE_GENERAL;
    text: PLAIN;
    prompts: PROMPTS;
    rows: SPC;
    text: SRT;
    rows: SYSTOR, TENCENT, TWITTER;
    binary: VSCSI;
    rows: WIKIBENCH, WIKIPEDIA;
}

/// Format of generated traces. It is not in the registry, because no file has it.
static GENERATED: Spec = Spec { name: "generated", layout: "none", origin: "floe", ..Spec::NONE };

/// A trace format. It parses from its name and prints as its name.
#[derive(Clone, Copy)]
pub struct Format(&'static Spec);

impl Format {
    /// Returns all registered formats.
    pub fn all() -> impl Iterator<Item = Self> {
        SPECS.iter().map(|spec| Self(spec))
    }

    /// Returns the format of a generated trace.
    pub(crate) fn generated() -> Self {
        Self(&GENERATED)
    }

    /// Returns the names of all formats, separated by commas.
    pub fn names() -> String {
        SPECS.iter().map(|spec| spec.name).collect::<Vec<_>>().join(", ")
    }

    /// Returns the name of the format, as in `--format`.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// Returns the meaning of the format's keys and sizes, unless a trace is opened `as_blocks`.
    pub fn kind(&self) -> TraceKind {
        self.0.kind
    }

    /// Returns a description of a record in a few words.
    pub fn layout(&self) -> &'static str {
        self.0.layout
    }

    /// Returns the publisher of traces in the format.
    pub fn origin(&self) -> &'static str {
        self.0.origin
    }

    /// Returns the format whose signature a stream starts with, which makes further detection
    /// unnecessary.
    pub(crate) fn by_magic(bytes: &[u8]) -> Option<Self> {
        is_compact(bytes).then_some(Self(&self::binary::FLOE))
    }

    pub(crate) fn fit(self, sample: &Sample<'_>) -> Fit {
        match self.0.rows {
            [] => (self.0.fit)(sample),
            rows => fit_lines(sample, Table::new(rows))
                .only_if(self.0.asks.is_none_or(|asks| asks(sample))),
        }
    }

    /// Returns whether the format's records are binary.
    pub(crate) fn is_binary(self) -> bool {
        self.0.layout.starts_with("binary")
    }

    /// Returns whether a file's name, in lower case, contains a name of the format as a separate
    /// word.
    pub(crate) fn knows_name(self, file: &str) -> bool {
        let is_edge = |other: Option<char>| !other.is_some_and(char::is_alphanumeric);
        let has = |part: &str| {
            file.match_indices(part).any(|(at, _)| {
                let (before, after) = (&file[..at], &file[at + part.len()..]);
                is_edge(before.chars().next_back()) && is_edge(after.chars().next())
            })
        };
        self.0.names.iter().any(|part| has(part)) || has(&self.0.name.to_ascii_lowercase())
    }

    /// Returns the format whose columns have names, `csv`.
    pub(crate) fn with_columns() -> Self {
        Self(&csv::CSV)
    }

    /// Creates a decoder with these column names; `None` if the format's columns have no names.
    pub(crate) fn decoder_of_columns(self, columns: &Columns) -> Option<Box<dyn Decode>> {
        (self == Self::with_columns()).then(|| csv::decoder(columns))
    }

    /// Creates a decoder and returns it with the kind of its traces; `None` if `as_blocks` is set
    /// and the format does not allow it.
    pub(crate) fn decoder(self, as_blocks: bool) -> Option<(Box<dyn Decode>, TraceKind)> {
        match self.0 {
            spec if !spec.rows.is_empty() => {
                let lines = || -> Box<dyn Decode> { Box::new(Lines::new(Table::new(spec.rows))) };
                (!as_blocks || spec.kind == TraceKind::Block).then(|| (lines(), spec.kind))
            }
            spec if !as_blocks || spec.kind == TraceKind::Block => {
                Some(((spec.decoder)(), spec.kind))
            }
            spec => spec.block_decoder.map(|decoder| (decoder(), TraceKind::Block)),
        }
    }
}

impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Format {}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        Self::all()
            .find(|format| format.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| UnknownFormat { name: name.to_owned(), formats: Self::names() })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Format({})", self.name())
    }
}

/// Returns a Markdown table of all formats, for the manual.
pub fn formats_table() -> String {
    let mut table = String::from("| format | kind | a record | traces |\n|---|---|---|---|\n");
    for spec in SPECS {
        let kind = format!("{:?}", spec.kind).to_lowercase();
        table += &format!("| {} | {kind} | {} | {} |\n", spec.name, spec.layout, spec.origin);
    }
    table
}

/// Rates how well a text sample fits `format`: 90 when every line does. A few bad lines are
/// tolerated, so that a trace with one is recognised and its error has a position.
fn fit_lines(sample: &Sample<'_>, mut format: impl Line) -> Fit {
    if !sample.is_text() {
        return Fit::NONE;
    }
    let mut batch = Batch::new(false);
    let (mut good, mut bad, mut before, mut broken) = (0usize, 0usize, 0usize, None);
    for line in sample.lines() {
        match format.line(line.text, &mut batch) {
            Ok(()) => good += 1,
            Err(_) if format.header(line.text) => {}
            Err(flaw) => {
                bad += 1;
                let first = || Broken { unit: "line", record: line.number, at: line.at, flaw };
                broken.get_or_insert_with(first);
            }
        }
        before = if broken.is_none() { good } else { before };
    }
    let fits = good > 0 && bad * 5 <= good;
    let score = if fits { (90 * good / (good + bad)) as u8 } else { 0 };
    Fit { score, good: before, broken }
}

/// Rates how well a binary sample fits `format`: 95 when every record does.
fn fit_records(sample: &Sample<'_>, mut format: impl Record) -> Fit {
    const RECORDS: usize = 256;
    let mut batch = Batch::new(false);
    let (mut at, mut good, mut bad, mut before, mut broken) = (0, 0usize, 0usize, 0, None);
    while at < sample.bytes.len() && good + bad < RECORDS {
        let start = at;
        at += match format.record(&sample.bytes[at..], &mut batch) {
            Decoded::Took(used) => {
                good += 1;
                used
            }
            Decoded::Skip(used) => used,
            Decoded::Bad(used, flaw) => {
                bad += 1;
                let record = (good + bad) as u64;
                broken.get_or_insert(Broken { unit: "record", record, at: start, flaw });
                used
            }
            Decoded::Need => break,
        };
        before = if broken.is_none() { good } else { before };
    }
    let fits = good > 0 && bad * 5 <= good;
    let score = if fits { (95 * good / (good + bad)) as u8 } else { 0 };
    Fit { score, good: before, broken }
}

/// Returns whether a line starts with a text, ignoring case.
fn starts_with(line: &[u8], start: &[u8]) -> bool {
    line.get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start))
}

/// Beginnings of words for operations, in lower case.
const WORDS: [(&[&str], Option<Op>); 4] = [
    // Before the others: some of these words begin as theirs do.
    (
        &[
            "flush",
            "sync",
            "fsync",
            "fdatasync",
            "datasync",
            "barrier",
            "wait",
            "nop",
            "none",
            "open",
            "close",
            "stat",
            "head",
            "list",
            "ttl",
            "expire",
            "exist",
            "option",
            "ping",
        ],
        None,
    ),
    (
        &["get", "read", "load", "fetch", "lookup", "pread", "randread", "mget", "hget", "touch"],
        Some(Op::Read),
    ),
    (
        &[
            "set",
            "put",
            "add",
            "write",
            "append",
            "prepend",
            "replace",
            "cas",
            "store",
            "insert",
            "update",
            "upload",
            "post",
            "patch",
            "copy",
            "create",
            "incr",
            "decr",
            "pwrite",
            "randwrite",
            "mset",
            "hset",
        ],
        Some(Op::Write),
    ),
    (
        &["del", "remove", "trim", "discard", "unmap", "erase", "evict", "invalidate", "purge"],
        Some(Op::Delete),
    ),
];

/// SCSI command codes, in hexadecimal, by operation.
const COMMANDS: [(&[&str], Option<Op>); 4] = [
    (&["8", "08", "28", "88", "a8"], Some(Op::Read)),
    (&["a", "0a", "2a", "8a", "aa", "2e", "8e", "ae", "41", "93", "3f", "3b"], Some(Op::Write)),
    (&["42"], Some(Op::Delete)),
    // Inquiries, caches to be synchronised, reservations and the like.
    (
        &[
            "00", "03", "12", "15", "16", "17", "1a", "1b", "1e", "25", "2f", "35", "37", "3c",
            "4d", "55", "56", "57", "5a", "5e", "5f", "8f", "91", "9e", "9f", "a0", "a3", "a4",
        ],
        None,
    ),
];

/// Parses a word for an operation, ignoring case: `R`, `GET_LEASE`, `getChunkData.Permanent`; `W`,
/// `SET`, `putChunk.Permanent`; `DEL`, `trim`; `FLUSH`; 0 for a read and 1 for a write; flags as in
/// blktrace, such as `RS`; SCSI commands, such as `2a`. `None` if the word is unknown, `Some(None)`
/// for an operation that moves no data.
#[expect(clippy::option_option, reason = "a request, none, or nonsense")]
fn operation(text: &[u8]) -> Option<Option<Op>> {
    let command = if starts_with(text, b"0x") { &text[2..] } else { text };
    let is_flags = text.len() <= 4 && text.iter().all(u8::is_ascii_uppercase);
    let letter = match text {
        b"0" | b"r" => Some(Some(Op::Read)),
        b"1" | b"w" => Some(Some(Op::Write)),
        b"d" | b"t" | b"T" => Some(Some(Op::Delete)),
        b"f" => Some(None),
        _ => None,
    };
    letter
        .or_else(|| look_up(&COMMANDS, |word| command.eq_ignore_ascii_case(word)))
        .or_else(|| look_up(&WORDS, |word| starts_with(text, word)))
        .or_else(|| if is_flags { flags(text) } else { None })
}

#[expect(clippy::option_option, reason = "a request, none, or nonsense")]
fn look_up(words: &[(&[&str], Option<Op>)], is: impl Fn(&[u8]) -> bool) -> Option<Option<Op>> {
    words.iter().find(|(words, _)| words.iter().any(|word| is(word.as_bytes()))).map(|it| it.1)
}

/// Parses an RWBS field of blktrace: an operation and flags. An F in front requests a flush before;
/// a flush alone is no request.
#[expect(clippy::option_option, reason = "a request, none, or nonsense")]
fn flags(rwbs: &[u8]) -> Option<Option<Op>> {
    if rwbs.is_empty() || !rwbs.iter().all(u8::is_ascii_alphabetic) {
        return None;
    }
    match rwbs.strip_prefix(b"F").unwrap_or(rwbs) {
        [b'R', ..] => Some(Some(Op::Read)),
        [b'W', ..] => Some(Some(Op::Write)),
        [b'D', ..] => Some(Some(Op::Delete)),
        [] | [b'N' | b'F' | b'S' | b'Z', ..] => Some(None),
        _ => None,
    }
}
