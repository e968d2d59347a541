//! The registry of trace formats. Adding one whose lines are columns is a row in [`rows`], any
//! other a file here; and a line in `formats!` below.

use std::fmt;
use std::str::FromStr;

use crate::compact::is_compact;
use crate::decode::Sample;
use crate::decode::{Batch, Decode, Decoded, Line, Lines, Record};
use crate::error::UnknownFormat;
use crate::fields::Flaw;
use crate::request::{Kind, Op};
pub use csv::{Columns, ColumnsError};
use rows::{Row, Table};

/// A format's entry in the registry.
pub(crate) struct Spec {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// The meaning of its keys and sizes.
    pub(crate) kind: Kind,
    /// Layout of a record, for the table of formats.
    pub(crate) layout: &'static str,
    /// The publisher of such traces.
    pub(crate) origin: &'static str,
    /// Parts of file names, in lower case, that break ties; so does the format's own name.
    pub(crate) names: &'static [&'static str],
    /// The layouts of a line, for formats that are no more than columns. The others have the rest.
    rows: &'static [Row],
    /// A further condition on a sample that fits the rows.
    asks: Option<fn(&Sample<'_>) -> bool>,
    /// Rates a sample.
    fit: fn(&Sample<'_>) -> Fit,
    /// A decoder at the start of a trace.
    decoder: fn() -> Box<dyn Decode>,
    /// A decoder that reads page numbers as disk I/O, where that makes sense.
    block_decoder: Option<fn() -> Box<dyn Decode>>,
}

impl Spec {
    /// Defaults for the fields of a format.
    const NONE: Self = Self {
        name: "",
        kind: Kind::Key,
        layout: "",
        origin: "",
        names: &[],
        rows: &[],
        asks: None,
        fit: |_| Fit::NONE,
        decoder: || Box::new(Lines::new(text::Plain)),
        block_decoder: None,
    };

    /// A text format whose lines are columns.
    const fn text(
        name: &'static str,
        kind: Kind,
        layout: &'static str,
        origin: &'static str,
        rows: &'static [Row],
    ) -> Self {
        Self { name, kind, layout, origin, rows, ..Self::NONE }
    }
}

/// Rates how well a sample fits a format.
#[derive(Debug)]
pub(crate) struct Fit {
    /// The score, from 0 (not at all) to 100.
    pub(crate) score: u8,
    /// Records before the one that breaks the format.
    pub(crate) good: usize,
    /// The first record that breaks it.
    pub(crate) broken: Option<Broken>,
}

/// A record that a format does not have.
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
    rows: SPC;
    text: SRT;
    rows: SYSTOR, TENCENT, TWITTER;
    binary: VSCSI;
    rows: WIKIBENCH, WIKIPEDIA;
}

/// The format of generated traces; not in the registry, since no file has it.
static GENERATED: Spec = Spec { name: "generated", layout: "none", origin: "floe", ..Spec::NONE };

/// A trace format. Parses from its name, and prints as it.
#[derive(Clone, Copy)]
pub struct Format(&'static Spec);

impl Format {
    /// All formats.
    pub fn all() -> impl Iterator<Item = Self> {
        SPECS.iter().map(|spec| Self(spec))
    }

    /// Returns the format of a generated trace.
    pub(crate) fn generated() -> Self {
        Self(&GENERATED)
    }

    /// The names of all formats, separated by commas.
    pub fn names() -> String {
        SPECS.iter().map(|spec| spec.name).collect::<Vec<_>>().join(", ")
    }

    /// The name to give to `--format`.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// Returns the meaning of its keys and sizes, unless opened `as_blocks`.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// Describes a record in a few words.
    pub fn layout(&self) -> &'static str {
        self.0.layout
    }

    /// Returns the publisher of such traces.
    pub fn origin(&self) -> &'static str {
        self.0.origin
    }

    /// The format that a stream's first bytes name, which spares looking further.
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

    /// Returns whether its records are binary.
    pub(crate) fn is_binary(self) -> bool {
        self.0.layout.starts_with("binary")
    }

    /// Returns whether a file's name, in lower case, has a name of the format as a word of its own.
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

    /// The format whose columns have names.
    pub(crate) fn with_columns() -> Self {
        Self(&csv::CSV)
    }

    /// A decoder that is told the names of the columns, if this format has any.
    pub(crate) fn decoder_of_columns(self, columns: &Columns) -> Option<Box<dyn Decode>> {
        (self == Self::with_columns()).then(|| csv::decoder(columns))
    }

    /// A decoder, and the kind of trace it makes; `None` if it cannot make blocks.
    pub(crate) fn decoder(self, as_blocks: bool) -> Option<(Box<dyn Decode>, Kind)> {
        match self.0 {
            spec if !spec.rows.is_empty() => {
                let lines = || -> Box<dyn Decode> { Box::new(Lines::new(Table::new(spec.rows))) };
                (!as_blocks || spec.kind == Kind::Block).then(|| (lines(), spec.kind))
            }
            spec if !as_blocks || spec.kind == Kind::Block => Some(((spec.decoder)(), spec.kind)),
            spec => spec.block_decoder.map(|decoder| (decoder(), Kind::Block)),
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

/// The formats as a Markdown table, for the manual.
pub fn formats_table() -> String {
    let mut table = String::from("| format | kind | a record | traces |\n|---|---|---|---|\n");
    for spec in SPECS {
        let kind = format!("{:?}", spec.kind).to_lowercase();
        table += &format!("| {} | {kind} | {} | {} |\n", spec.name, spec.layout, spec.origin);
    }
    table
}

/// Rates how well a text sample fits `format`: 90 when every line does. A few bad lines are
/// forgiven, so that a trace with one is recognised and its error tells where it is.
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

/// Returns whether a line starts with a text, in upper or lower case.
fn starts_with(line: &[u8], start: &[u8]) -> bool {
    line.get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start))
}

/// The beginnings of words for operations, in lower case.
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

/// Commands of SCSI, in hexadecimal.
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

/// Reads a word for an operation, in upper or lower case: `R`, `GET_LEASE`,
/// `getChunkData.Permanent`; `W`, `SET`, `putChunk.Permanent`; `DEL`, `trim`; `FLUSH`; 0 for a read
/// and 1 for a write; flags as of blktrace, such as `RS`; commands of SCSI, such as `2a`. `None` if
/// it is none of them, `Some(None)` for an operation that moves no data.
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

/// Reads an RWBS field as of blktrace: an operation and flags. An F in front asks for a flush
/// before, which alone is no request.
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
