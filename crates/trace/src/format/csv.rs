//! Tables with a header: columns are found by name, separated by commas, semicolons or tabs.
//!
//! Names are compared by their letters and digits, ignoring case, and a unit may follow: `time_us`,
//! `Offset (bytes)`. [`aliases`] and [`sector_aliases`] list them; docs/trace-format.md documents
//! them for users. A table with a key is a trace of objects, or of keys if it has no size; one with
//! an offset and a size is disk I/O. Where a header has both, the key wins, unless it is only
//! called `id`. [`Columns`] supplies what the header lacks, and with column numbers replaces it.
//! Comments may come first, and a header may be a comment.
//!
//! Times without a unit are seconds, unless the first of them lies in this century only in a
//! smaller unit ([`TimeUnit::likely`]). Volumes are numbered in order of appearance, in disk I/O
//! only. Quotes around a field are removed, and may enclose the separator.

use std::str::FromStr;

use super::{Fit, Spec, fit_lines, operation};
use crate::decode::{
    Batch, Clock, Decode, Line, Lines, SECTOR_BYTES, Sample, Volumes, without_mark,
};
use crate::fields::{Flaw, decimal, hash, integer, key_of, offset_bytes};
use crate::request::{BLOCK_REQUEST_BYTES_MAX, Op, Request, TraceKind};

pub(super) static CSV: Spec = Spec {
    name: "csv",
    kind: TraceKind::Object,
    layout: "a header names the columns: key, or offset and size; time, op, volume; or see \
             --columns",
    origin: "any table; the kind follows from the columns",
    fit,
    names: &[],
    decoder: || decoder(&Columns::default()),
    block_decoder: Some(|| decoder(&Columns::default())),
    ..Spec::NONE
};

/// Creates a decoder for a table whose columns are described by `columns` besides its header.
pub(super) fn decoder(columns: &Columns) -> Box<dyn Decode> {
    Box::new(Lines::new(Csv::new(columns.clone())))
}

const COLUMNS_MAX: usize = 128;
const HEADER: &str = "a header that names a key, or an offset and a size (--columns helps)";

struct Csv {
    told: Columns,
    layout: Option<Layout>,
    /// Kind that the stream's first bytes showed; the header must agree.
    kind: Option<TraceKind>,
    has_requests: bool,
    /// True if a title line comes next; `is_headed` is true after a header if the columns are given
    /// by numbers.
    is_titled: bool,
    is_headed: bool,
    time_unit: Option<TimeUnit>,
    clock: Clock,
    volumes: Volumes,
}

/// The layout of a table's columns, from its header.
struct Layout {
    /// Header line; empty if the columns are given by numbers.
    header: Vec<u8>,
    separator: u8,
    kind: TraceKind,
    /// Role of each column, as an index into `ROLES`; a larger number if it has none.
    roles: Vec<u8>,
    /// Column of each role, from 1.
    places: [u32; ROLES.len()],
    time_unit: Option<TimeUnit>,
    offset_unit_bytes: u64,
    size_unit_bytes: u64,
    /// True if numeric operations mean 1 for a read, as in a column `is_read`.
    one_reads: bool,
}

/// Returns a name in lower case, with only its letters and digits.
fn plain_name(name: &[u8]) -> Vec<u8> {
    name.iter()
        .filter(|b| b.is_ascii_alphanumeric() || !b.is_ascii())
        .map(u8::to_ascii_lowercase)
        .collect()
}

/// Name of an operation column in which 1 is a read.
const ONE_READS: &str = "isread";

/// Returns the known names of a role's column without a unit, the surest first.
fn aliases(role: Role) -> &'static [&'static str] {
    match role {
        Role::Time => &[
            "time",
            "timestamp",
            "ts",
            "datetime",
            "arrivaltime",
            "optime",
            "reqtime",
            "clock",
            "relativeunix",
        ],
        Role::Key => &[
            "key",
            "obj",
            "object",
            "objid",
            "objectid",
            "cachekey",
            "itemid",
            "blockid",
            "url",
            "hashedpathquery",
            "hashedhostpathquery",
            "hashedhostandpathquery",
            "id",
        ],
        Role::Offset => &["offset", "byteoffset", "address"],
        Role::Size => &[
            "size",
            "bytes",
            "length",
            "len",
            "objsize",
            "objectsize",
            "iosize",
            "reqsize",
            "responsesize",
        ],
        Role::Op => &[
            "op",
            "operation",
            "optype",
            "opcode",
            "type",
            "iotype",
            "rw",
            "iswrite",
            ONE_READS,
            "command",
            "cmd",
            "method",
        ],
        Role::Volume => &[
            "volume",
            "volumeid",
            "vol",
            "volid",
            "device",
            "deviceid",
            "dev",
            "devid",
            "disk",
            "diskid",
            "disknumber",
            "lun",
        ],
    }
}

/// Returns the known names of a role's column that counts sectors.
fn sector_aliases(role: Role) -> &'static [&'static str] {
    match role {
        Role::Offset => &["lba", "lbn", "sector", "startsector", "startlba"],
        Role::Size => &["sectors", "nsectors", "sectorcount"],
        _ => &[],
    }
}

/// A column found by its name.
struct Place {
    at: usize,
    unit_bytes: u64,
    time_unit: Option<TimeUnit>,
    /// True if the name is the least sure of its role's known names.
    weak: bool,
}

impl Layout {
    fn of(header: &[u8], told: &Columns) -> Option<Self> {
        let text = header.strip_prefix(b"#").unwrap_or(header).trim_ascii();
        let separator = separator(text);
        let names: Vec<&[u8]> =
            Split { rest: Some(text), separator }.take(COLUMNS_MAX + 1).collect();
        if names.len() > COLUMNS_MAX {
            return None;
        }
        let plain: Vec<_> = names.iter().map(|name| plain_name(name)).collect();
        let mut found = ROLES.map(|role| find(role, &names, &plain, told));
        for role in ROLES {
            if told.name(role).is_some() && found[role as usize].is_none() {
                return None;
            }
        }
        let weak = |role: Role| found[role as usize].as_ref().is_some_and(|place| place.weak);
        let has = |role: Role| found[role as usize].is_some();
        let is_block = match (told.name(Role::Key), told.name(Role::Offset)) {
            (Some(_), _) => false,
            (_, Some(_)) => true,
            _ => has(Role::Offset) && has(Role::Size) && (!has(Role::Key) || weak(Role::Key)),
        };
        let kind = match (is_block, has(Role::Size)) {
            (true, false) => return None,
            (true, true) => TraceKind::Block,
            (false, true) => TraceKind::Object,
            (false, false) => TraceKind::Key,
        };
        let unused: &[Role] = if is_block { &[Role::Key] } else { &[Role::Offset, Role::Volume] };
        unused.iter().for_each(|&role| found[role as usize] = None);
        if !is_block && found[Role::Key as usize].is_none() {
            return None;
        }
        let mut roles = vec![ROLES.len() as u8; names.len()];
        let mut places = [0; ROLES.len()];
        for (role, place) in found.iter().enumerate() {
            if let Some(place) = place {
                roles[place.at] = role as u8;
                places[role] = place.at as u32 + 1;
            }
        }
        let unit_bytes =
            |role: Role| found[role as usize].as_ref().map_or(1, |place| place.unit_bytes);
        let op = found[Role::Op as usize].as_ref();
        Some(Self {
            header: if told.are_numbers() { Vec::new() } else { header.to_vec() },
            separator,
            one_reads: op.is_some_and(|op| plain[op.at] == ONE_READS.as_bytes()),
            kind,
            roles,
            places,
            time_unit: told
                .time_unit
                .or(found[Role::Time as usize].as_ref().and_then(|p| p.time_unit)),
            offset_unit_bytes: told.offset_unit_bytes.unwrap_or_else(|| unit_bytes(Role::Offset)),
            size_unit_bytes: told.size_unit_bytes.unwrap_or_else(|| unit_bytes(Role::Size)),
        })
    }

    /// Returns the number of roles that have a column.
    fn filled(&self) -> usize {
        self.places.iter().filter(|&&place| place > 0).count()
    }

    fn flaw(&self, expected: &'static str, role: Role, found: &[u8]) -> Flaw {
        Flaw::text(expected, self.places[role as usize], found)
    }
}

fn find(role: Role, names: &[&[u8]], plain: &[Vec<u8>], told: &Columns) -> Option<Place> {
    let place = |at, unit_bytes| Place { at, unit_bytes, time_unit: None, weak: false };
    if let Some(text) = told.name(role) {
        let at = match told.number(role) {
            Some(number) => Some(number - 1).filter(|&at| at < names.len()),
            None => names.iter().position(|name| name.eq_ignore_ascii_case(text.as_bytes())),
        };
        return Some(place(at?, 1));
    }
    if told.are_numbers() {
        return None;
    }
    let at = |name: &str| plain.iter().position(|plain| plain == name.as_bytes());
    for &alias in aliases(role) {
        if let Some(at) = at(alias) {
            return Some(Place { weak: alias == "id", ..place(at, 1) });
        }
        if role == Role::Time
            && let Some((at, unit)) = TimeUnit::ALL
                .iter()
                .find_map(|&(suffix, unit)| Some((at(&format!("{alias}{suffix}"))?, unit)))
        {
            return Some(Place { time_unit: Some(unit), ..place(at, 1) });
        }
        if matches!(role, Role::Offset | Role::Size)
            && let Some(at) =
                at(&format!("{alias}bytes")).or_else(|| at(&format!("{alias}inbytes")))
        {
            return Some(place(at, 1));
        }
    }
    let at = sector_aliases(role).iter().find_map(|alias| at(alias))?;
    Some(place(at, SECTOR_BYTES))
}

/// Returns the separator of a line: the most frequent of tabs, semicolons and commas, or else
/// blanks.
fn separator(text: &[u8]) -> u8 {
    let count = |separator: u8| text.iter().filter(|&&b| b == separator).count();
    let best = [b'\t', b';', b','].into_iter().max_by_key(|&separator| count(separator));
    let blanks = if text.contains(&b' ') { b' ' } else { b',' };
    best.filter(|&separator| count(separator) > 0).unwrap_or(blanks)
}

/// The columns of a line.
struct Split<'a> {
    rest: Option<&'a [u8]>,
    separator: u8,
}

impl<'a> Iterator for Split<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let line = self.rest?;
        let line = if self.separator == b' ' { line.trim_ascii_start() } else { line };
        if let Some(quoted) = line.strip_prefix(b"\"")
            && let Some(end) = quoted.iter().enumerate().position(|(at, &b)| {
                b == b'"' && quoted.get(at + 1).is_none_or(|&next| next == self.separator)
            })
        {
            self.rest = quoted.get(end + 2..);
            return Some(&quoted[..end]);
        }
        let end = line.iter().position(|&b| b == self.separator);
        self.rest = end.map(|end| &line[end + 1..]);
        Some(line[..end.unwrap_or(line.len())].trim_ascii())
    }
}

impl Csv {
    fn new(told: Columns) -> Self {
        Self {
            told,
            layout: None,
            kind: None,
            has_requests: false,
            is_titled: false,
            is_headed: false,
            time_unit: None,
            clock: Clock::new(1),
            volumes: Volumes::default(),
        }
    }

    /// Parses a line; `None` if it moves no data.
    fn request(&mut self, line: &[u8]) -> Result<Option<Request>, Flaw> {
        let Some(layout) = &self.layout else { return Err(Flaw::text(HEADER, 0, line)) };
        let mut texts = [&b""[..]; ROLES.len() + 1];
        let mut columns = Split { rest: Some(line), separator: layout.separator };
        for (at, &role) in layout.roles.iter().enumerate() {
            let text = columns.next();
            texts[usize::from(role)] = text.ok_or_else(|| {
                Flaw::text("as many columns as in the header", at as u32 + 1, b"")
            })?;
        }
        if let Some(rest) = columns.rest {
            return Err(Flaw::text("the end of the line", layout.roles.len() as u32 + 1, rest));
        }
        let text = |role: Role| (layout.places[role as usize] > 0).then_some(texts[role as usize]);
        let time = match text(Role::Time) {
            None => 0,
            Some(text) => {
                let unit =
                    self.time_unit.or(layout.time_unit).unwrap_or_else(|| TimeUnit::likely(text));
                let expected = "a time (--columns time-unit=… gives its unit)";
                let time = decimal(text, unit.digits())
                    .ok_or_else(|| layout.flaw(expected, Role::Time, text))?;
                self.time_unit = Some(unit);
                time
            }
        };
        let op = match text(Role::Op) {
            None => Op::Read,
            Some(text) => {
                let told = match text {
                    b"0" if layout.one_reads => &b"1"[..],
                    b"1" if layout.one_reads => b"0",
                    text => text,
                };
                let flaw = || layout.flaw("an operation", Role::Op, text);
                let Some(op) = operation(told).ok_or_else(flaw)? else { return Ok(None) };
                op
            }
        };
        let bytes = match text(Role::Size) {
            None => 1,
            Some(text) => {
                let bytes =
                    integer(text).and_then(|units| units.checked_mul(layout.size_unit_bytes));
                match layout.kind {
                    TraceKind::Block => {
                        bytes.filter(|&bytes| bytes <= BLOCK_REQUEST_BYTES_MAX).ok_or_else(
                            || layout.flaw("a length of at most 4 GiB", Role::Size, text),
                        )?
                    }
                    _ => bytes.ok_or_else(|| layout.flaw("a size", Role::Size, text))?,
                }
            }
        };
        let (key, volume) = match (text(Role::Offset), text(Role::Key)) {
            (Some(text), _) => {
                let offset =
                    integer(text).and_then(|units| offset_bytes(units, layout.offset_unit_bytes));
                let offset = offset.ok_or_else(|| layout.flaw("an offset", Role::Offset, text))?;
                let volume = texts[Role::Volume as usize];
                (offset, if volume.is_empty() { 0 } else { self.volumes.number(hash(volume), 0) })
            }
            (None, Some(text)) if !text.is_empty() => (key_of(text), 0),
            (None, _) => return Err(layout.flaw("a key", Role::Key, b"")),
        };
        self.has_requests = true;
        Ok(Some(Request { time_ns: self.clock.since_first_ns(time), key, bytes, volume, op }))
    }
}

impl Csv {
    /// Adopts the layout of a header line; returns false if the line is not a header.
    fn learn(&mut self, line: &[u8]) -> bool {
        let layout = Layout::of(line, &self.told)
            .filter(|layout| *self.kind.get_or_insert(layout.kind) == layout.kind);
        let is_header = layout.is_some();
        self.layout = layout.or(self.layout.take());
        is_header
    }

    /// Examines the start of a stream for its kind, and for a title line.
    fn look_ahead(&mut self, head: &[u8]) {
        let layout = headers(head).find_map(|line| Layout::of(line, &self.told));
        self.kind = layout.map(|layout| layout.kind);
        let mut lines = headers(head).map(|line| Layout::of(line, &self.told));
        let is_none = |line: Option<Option<Layout>>| line.is_some_and(|line| line.is_none());
        self.is_titled = is_none(lines.next())
            && lines.next().flatten().is_some_and(|layout| layout.filled() >= 2);
    }
}

impl Line for Csv {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        let is_header = match &self.layout {
            Some(layout) => layout.header == line,
            None => self.learn(line) && !self.told.are_numbers(),
        };
        if is_header {
            return Ok(());
        }
        self.request(line)?.into_iter().for_each(|request| batch.push(request));
        Ok(())
    }

    /// Returns whether a line is a header or a title. If columns are given by numbers, one line
    /// before the first request may be a header. A header in a comment may be followed by one that
    /// is not a comment. A repeated header is recognised because it is equal to the first.
    fn header(&mut self, line: &[u8]) -> bool {
        if self.has_requests {
            return false;
        }
        let is_comment = |layout: &Layout| layout.header.starts_with(b"#");
        if std::mem::take(&mut self.is_titled) {
            return true;
        }
        match &self.layout {
            Some(_) if self.told.are_numbers() => !std::mem::replace(&mut self.is_headed, true),
            Some(layout) if !is_comment(layout) => false,
            _ => self.learn(line),
        }
    }

    fn kind(&mut self, head: &[u8]) -> Option<TraceKind> {
        self.look_ahead(head);
        Some(*self.kind.get_or_insert(CSV.kind))
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.clock)
    }
}

/// Returns the lines at the start of a stream that may be headers; comments come last.
fn headers(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = || head.split(|&b| b == b'\n').map(|line| without_mark(line.trim_ascii()));
    let is_comment = |line: &&[u8]| line.starts_with(b"#");
    let first = lines().position(|line| !line.is_empty() && !is_comment(&line));
    let comments = lines().take(first.unwrap_or(usize::MAX)).filter(is_comment);
    lines().skip(first.unwrap_or(0)).filter(move |line| !is_comment(line)).chain(comments)
}

/// Rates a sample, lower than a format that knows its exact header. A header must fill two roles,
/// because a single word may be a key. It is a comment at the start, or the first or second line.
fn fit(sample: &Sample<'_>) -> Fit {
    let mut format = Csv::new(Columns::default());
    let is_comment = |line: &[u8]| line.starts_with(b"#");
    let fills = |line: &&[u8]| {
        Layout::of(line, &Columns::default()).is_some_and(|layout| layout.filled() >= 2)
    };
    let mut lines = headers(sample.bytes);
    let is_header =
        lines.by_ref().take_while(|line| !is_comment(line)).take(2).any(|it| fills(&it));
    let comment = headers(sample.bytes).filter(|line| is_comment(line)).filter(fills).last();
    if let Some(line) = comment.filter(|_| !is_header) {
        format.learn(line);
    }
    format.look_ahead(sample.bytes);
    let fit = fit_lines(sample, format).only_if(is_header || comment.is_some());
    Fit { score: fit.score / 9 * 8, ..fit }
}

/// The role of a table's column, such as time, key or size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Time,
    Key,
    Offset,
    Size,
    Op,
    Volume,
}

/// All roles, each at the index that equals its number.
pub(crate) const ROLES: [Role; 6] =
    [Role::Time, Role::Key, Role::Offset, Role::Size, Role::Op, Role::Volume];

impl Role {
    fn name(self) -> &'static str {
        ["time", "key", "offset", "size", "op", "volume"][self as usize]
    }
}

/// The unit of a column of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeUnit {
    S,
    Ms,
    Us,
    /// 100 ns, the unit of Windows file times.
    FileTime,
    Ns,
}

impl TimeUnit {
    pub(crate) const ALL: [(&'static str, Self); 5] = [
        ("s", Self::S),
        ("ms", Self::Ms),
        ("us", Self::Us),
        ("100ns", Self::FileTime),
        ("ns", Self::Ns),
    ];

    /// Returns the decimal digits from this unit down to a nanosecond.
    pub(crate) fn digits(self) -> u32 {
        match self {
            Self::S => 9,
            Self::Ms => 6,
            Self::Us => 3,
            Self::FileTime => 2,
            Self::Ns => 0,
        }
    }

    /// Returns the unit in which a present time since 1970 (or 1601, on Windows) has as many digits
    /// as `text`; seconds if it has fewer.
    pub(crate) fn likely(text: &[u8]) -> Self {
        match text.iter().take_while(|b| b.is_ascii_digit()).count() {
            19.. => Self::Ns,
            18 => Self::FileTime,
            15..=17 => Self::Us,
            12..=14 => Self::Ms,
            _ => Self::S,
        }
    }
}

/// Names and units of a table's columns, where its header is not enough.
///
/// Parses from pairs such as `time=when,time-unit=ms,key=obj,size=kb,size-unit=1024`. Roles are
/// `time`, `key`, `offset`, `size`, `op` and `volume`. Each names a column of the header, or all
/// give column numbers from 1, which need no header. `time-unit` is `s`, `ms`, `us`, `100ns` or
/// `ns`; `offset-unit` and `size-unit` are in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Columns {
    names: [Option<String>; ROLES.len()],
    pub(crate) time_unit: Option<TimeUnit>,
    pub(crate) offset_unit_bytes: Option<u64>,
    pub(crate) size_unit_bytes: Option<u64>,
}

/// The error of a text that does not name columns.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ColumnsError {
    /// No setting has this name.
    #[error("there is no {name:?} to set; there are {SETTINGS}")]
    Unknown {
        /// Name that was given.
        name: String,
    },
    /// The value of a setting is invalid.
    #[error("{name}: expected {expected}, found {found:?}")]
    Value {
        /// Name of the setting.
        name: String,
        /// The expected value.
        expected: &'static str,
        /// The value that was found.
        found: String,
    },
    /// Both a key and an offset are given, but a table is either objects or disk I/O.
    #[error("key and offset exclude each other: a key makes objects, an offset disk I/O")]
    KeyAndOffset,
}

const SETTINGS: &str = "time, key, offset, size, op, volume, time-unit, offset-unit, size-unit";

impl Columns {
    pub(crate) fn name(&self, role: Role) -> Option<&str> {
        self.names[role as usize].as_deref()
    }

    /// Returns the number of a role's column, from 1, if the column is given by its number.
    pub(crate) fn number(&self, role: Role) -> Option<usize> {
        self.name(role).and_then(|name| name.parse().ok()).filter(|&number| number > 0)
    }

    /// Returns whether all columns are given by numbers, so that no header is needed.
    pub(crate) fn are_numbers(&self) -> bool {
        let mut named = ROLES.into_iter().filter(|&role| self.name(role).is_some()).peekable();
        named.peek().is_some() && named.all(|role| self.number(role).is_some())
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), ColumnsError> {
        let wrong = |expected| ColumnsError::Value {
            name: name.to_owned(),
            expected,
            found: value.to_owned(),
        };
        let unit = || {
            value.parse().ok().filter(|&bytes| bytes > 0).ok_or_else(|| wrong("a number of bytes"))
        };
        if let Some(role) = ROLES.into_iter().find(|role| role.name() == name) {
            let name = Some(value.to_owned()).filter(|name| !name.is_empty());
            self.names[role as usize] = Some(name.ok_or_else(|| wrong("the name of a column"))?);
            return Ok(());
        }
        match name {
            "time-unit" => {
                let unit = TimeUnit::ALL.into_iter().find(|(name, _)| *name == value);
                self.time_unit = Some(unit.ok_or_else(|| wrong("s, ms, us, 100ns or ns"))?.1);
            }
            "offset-unit" => self.offset_unit_bytes = Some(unit()?),
            "size-unit" => self.size_unit_bytes = Some(unit()?),
            _ => return Err(ColumnsError::Unknown { name: name.to_owned() }),
        }
        Ok(())
    }
}

impl FromStr for Columns {
    type Err = ColumnsError;

    fn from_str(text: &str) -> Result<Self, ColumnsError> {
        let mut columns = Self::default();
        for pair in text.split(',') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            columns.set(name.trim(), value.trim())?;
        }
        match (columns.name(Role::Key), columns.name(Role::Offset)) {
            (Some(_), Some(_)) => Err(ColumnsError::KeyAndOffset),
            _ => Ok(columns),
        }
    }
}
