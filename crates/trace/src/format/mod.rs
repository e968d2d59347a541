//! The registry of trace formats. Adding one is a file here and a line in `formats!` below.

use std::fmt;
use std::str::FromStr;

use crate::columns::Columns;
use crate::compact::is_compact;
use crate::decode::{Batch, Decode, Decoded, Line, Record};
use crate::error::UnknownFormat;
use crate::request::{Kind, Op};
use crate::sample::Sample;

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
    /// Rates how well a sample fits, from 0 (not at all) to 100.
    pub(crate) fit: fn(&Sample<'_>) -> u8,
    /// Parts of file names, in lower case, that break ties; so does the format's own name.
    pub(crate) names: &'static [&'static str],
    /// A decoder at the start of a trace.
    pub(crate) decoder: fn() -> Box<dyn Decode>,
    /// A decoder that reads page numbers as disk I/O, where that makes sense.
    pub(crate) block_decoder: Option<fn() -> Box<dyn Decode>>,
}

macro_rules! formats {
    ($($module:ident: $($spec:ident),+;)+) => {
        $(mod $module;)+
        static SPECS: &[&Spec] = &[$($(&$module::$spec),+),+];
    };
}

formats! {
    adaptsize: ADAPTSIZE;
    alibaba: ALIBABA;
    arc: ARC;
    blkparse: QUEUED, ISSUED;
    cachelib: CACHELIB;
    csv: CSV;
    disksim: DISKSIM, SSDSIM;
    fiu: FIU;
    floe: FLOE;
    keys: BE32, BE64, LE32, LE64;
    msr: MSR;
    oracle_general: ORACLE_GENERAL;
    plain: PLAIN;
    spc: SPC;
    srt: SRT;
    systor: SYSTOR;
    tencent: TENCENT;
    twitter: TWITTER;
    vscsi: VSCSI;
}

/// The format of generated traces; not in the registry, since no file has it.
static GENERATED: Spec = Spec {
    name: "generated",
    kind: Kind::Key,
    layout: "none",
    origin: "floe",
    fit: |_| 0,
    names: &[],
    decoder: plain::PLAIN.decoder,
    block_decoder: None,
};

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
        is_compact(bytes).then_some(Self(&floe::FLOE))
    }

    pub(crate) fn fit(self, sample: &Sample<'_>) -> u8 {
        (self.0.fit)(sample)
    }

    pub(crate) fn knows_name(self, file: &str) -> bool {
        self.0.names.iter().chain([&self.0.name]).any(|part| file.contains(part))
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
fn fit_lines(sample: &Sample<'_>, mut format: impl Line) -> u8 {
    if !sample.is_text() {
        return 0;
    }
    let mut batch = Batch::new(false);
    let (mut good, mut bad) = (0usize, 0usize);
    for line in sample.lines() {
        match format.line(line, &mut batch) {
            Ok(()) => good += 1,
            Err(_) if format.header(line) => {}
            Err(_) => bad += 1,
        }
    }
    if good == 0 || bad * 5 > good { 0 } else { (90 * good / (good + bad)) as u8 }
}

/// Rates how well a binary sample fits `format`: 95 when every record does.
fn fit_records(sample: &Sample<'_>, mut format: impl Record) -> u8 {
    const RECORDS: usize = 256;
    let mut batch = Batch::new(false);
    let (mut rest, mut good, mut bad) = (sample.bytes, 0usize, 0usize);
    while !rest.is_empty() && good + bad < RECORDS {
        let used = match format.record(rest, &mut batch) {
            Decoded::Took(used) => {
                good += 1;
                used
            }
            Decoded::Skip(used) => used,
            Decoded::Bad(used, _) => {
                bad += 1;
                used
            }
            Decoded::Need => break,
        };
        rest = rest.get(used..).unwrap_or_default();
    }
    if good == 0 || bad * 5 > good { 0 } else { (95 * good / (good + bad)) as u8 }
}

/// Returns whether a line starts with a text, in upper or lower case.
fn starts_with(line: &[u8], start: &[u8]) -> bool {
    line.get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start))
}

/// Reads a word for an operation, in upper or lower case: `R`, `GET_LEASE`,
/// `getChunkData.Permanent`; `W`, `SET`, `putChunk.Permanent`; `DEL`, `DELETE`, `trim` and their
/// like.
fn operation(text: &[u8]) -> Option<Op> {
    let is = |words: &[&str]| words.iter().any(|word| starts_with(text, word.as_bytes()));
    match text {
        b"R" | b"r" => Some(Op::Read),
        b"W" | b"w" => Some(Op::Write),
        b"D" | b"d" => Some(Op::Delete),
        _ if is(&["get", "read", "load", "fetch"]) => Some(Op::Read),
        _ if is(&[
            "set", "put", "add", "write", "append", "replace", "cas", "store", "insert", "update",
        ]) =>
        {
            Some(Op::Write)
        }
        _ if is(&["del", "remove", "trim", "discard", "unmap"]) => Some(Op::Delete),
        _ => None,
    }
}
