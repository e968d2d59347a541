//! Any table with a header: columns are found by name, separated by commas, semicolons or tabs.
//!
//! Names are compared without regard to case and to anything but letters and digits, and a unit may
//! follow: `time_us`, `Offset (bytes)`. [`aliases`] and [`sector_aliases`] list them,
//! docs/trace-format.md tells users. A key makes a trace of objects, or of keys where there is no
//! size; an offset and a size make disk I/O. Where a header has both, the key wins, unless it is
//! only called `id`. [`Columns`] says what the header does not.
//!
//! Times without a unit are seconds, or what the first of them must be to lie in this century
//! ([`TimeUnit::likely`]). A volume is numbered in order of appearance, and only disk I/O has any.
//! Quotes around a field are taken off, and may hold the separator.

use super::{Spec, fit_lines, operation, starts_with};
use crate::columns::{Columns, ROLES, Role, TimeUnit};
use crate::decode::{Batch, Clock, Decode, Line, Lines, SECTOR_BYTES, Volumes};
use crate::fields::{Flaw, decimal, hash, integer, key_of, offset_bytes};
use crate::request::{BLOCK_REQUEST_BYTES_MAX, Kind, Op, Request};
use crate::sample::Sample;

pub(super) static CSV: Spec = Spec {
    name: "csv",
    kind: Kind::Object,
    layout: "a header names the columns: key, or offset and size; time, op, volume; or see \
             --columns",
    origin: "any table; the kind follows from the columns",
    fit,
    names: &[],
    decoder: || decoder(&Columns::default()),
    block_decoder: Some(|| decoder(&Columns::default())),
};

/// A decoder for a table whose header does not say everything.
pub(super) fn decoder(columns: &Columns) -> Box<dyn Decode> {
    Box::new(Lines::new(Csv::new(columns.clone())))
}

const COLUMNS_MAX: usize = 128;
const HEADER: &str = "a header that names a key, or an offset and a size (--columns helps)";

struct Csv {
    told: Columns,
    layout: Option<Layout>,
    /// The kind that the stream's first bytes gave, which the header must keep.
    kind: Option<Kind>,
    time_unit: Option<TimeUnit>,
    clock: Clock,
    volumes: Volumes,
}

/// The layout that a header gives.
struct Layout {
    header: Vec<u8>,
    separator: u8,
    kind: Kind,
    /// Role of each column, as an index into `ROLES`, or behind them where it has none.
    roles: Vec<u8>,
    /// Column of each role, counted from 1.
    places: [u32; ROLES.len()],
    time_unit: Option<TimeUnit>,
    offset_unit_bytes: u64,
    size_unit_bytes: u64,
}

/// A name without case and decoration.
fn plain_name(name: &[u8]) -> Vec<u8> {
    name.iter()
        .filter(|b| b.is_ascii_alphanumeric() || !b.is_ascii())
        .map(u8::to_ascii_lowercase)
        .collect()
}

/// Names of columns without a unit, the surest first.
fn aliases(role: Role) -> &'static [&'static str] {
    match role {
        Role::Time => {
            &["time", "timestamp", "ts", "datetime", "arrivaltime", "optime", "reqtime", "clock"]
        }
        Role::Key => &[
            "key", "obj", "object", "objid", "objectid", "cachekey", "itemid", "blockid", "url",
            "id",
        ],
        Role::Offset => &["offset", "byteoffset", "address"],
        Role::Size => {
            &["size", "bytes", "length", "len", "objsize", "objectsize", "iosize", "reqsize"]
        }
        Role::Op => &[
            "op",
            "operation",
            "optype",
            "opcode",
            "type",
            "iotype",
            "rw",
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

/// Names of columns that count sectors.
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
    /// The last resort of the aliases.
    weak: bool,
}

impl Layout {
    fn of(header: &[u8], told: &Columns) -> Option<Self> {
        let text = header.strip_prefix(b"\xef\xbb\xbf").unwrap_or(header);
        let text = text.strip_prefix(b"#").unwrap_or(text).trim_ascii();
        let count = |separator: u8| text.iter().filter(|&&b| b == separator).count();
        let separator =
            [b'\t', b';', b','].into_iter().max_by_key(|&separator| count(separator))?;
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
            (true, true) => Kind::Block,
            (false, true) => Kind::Object,
            (false, false) => Kind::Key,
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
        Some(Self {
            header: header.to_vec(),
            separator,
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

    /// Returns the number of roles that are filled.
    fn filled(&self) -> usize {
        self.places.iter().filter(|&&place| place > 0).count()
    }

    fn flaw(&self, expected: &'static str, role: Role, found: &[u8]) -> Flaw {
        Flaw::text(expected, self.places[role as usize], found)
    }
}

fn find(role: Role, names: &[&[u8]], plain: &[Vec<u8>], told: &Columns) -> Option<Place> {
    let place = |at, unit_bytes| Place { at, unit_bytes, time_unit: None, weak: false };
    if let Some(told) = told.name(role) {
        let at = names.iter().position(|name| name.eq_ignore_ascii_case(told.as_bytes()))?;
        return Some(place(at, 1));
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
            time_unit: None,
            clock: Clock::new(1),
            volumes: Volumes::default(),
        }
    }

    fn request(&mut self, line: &[u8]) -> Result<Request, Flaw> {
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
                operation(text).ok_or_else(|| layout.flaw("an operation", Role::Op, text))?
            }
        };
        let bytes = match text(Role::Size) {
            None => 1,
            Some(text) => {
                let bytes =
                    integer(text).and_then(|units| units.checked_mul(layout.size_unit_bytes));
                match layout.kind {
                    Kind::Block => {
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
        Ok(Request { time_ns: self.clock.since_first_ns(time), key, bytes, volume, op })
    }
}

impl Line for Csv {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        let is_header = match &self.layout {
            Some(layout) => layout.header == line,
            None => self.header(line),
        };
        if is_header {
            return Ok(());
        }
        let request = self.request(line)?;
        batch.push(request);
        Ok(())
    }

    /// The first header counts; where it is repeated, it is known by being the same.
    fn header(&mut self, line: &[u8]) -> bool {
        if self.layout.is_some() {
            return false;
        }
        self.layout = Layout::of(line, &self.told)
            .filter(|layout| *self.kind.get_or_insert(layout.kind) == layout.kind);
        self.layout.is_some()
    }

    fn kind(&mut self, head: &[u8]) -> Option<Kind> {
        let mut lines = head.split(|&b| b == b'\n').map(<[u8]>::trim_ascii);
        self.kind = lines.find_map(|line| Some(Layout::of(line, &self.told)?.kind));
        Some(*self.kind.get_or_insert(CSV.kind))
    }
}

/// Less sure than a format that knows the very header; and a header must fill two roles, since a
/// single word may be a key.
fn fit(sample: &Sample<'_>) -> u8 {
    let first =
        sample.bytes.split(|&b| b == b'\n').map(<[u8]>::trim_ascii).find(|line| !line.is_empty());
    let layout = first.and_then(|line| Layout::of(line, &Columns::default()));
    if !sample.is_text() || layout.is_none_or(|layout| layout.filled() < 2) {
        return 0;
    }
    let mut format = Csv::new(Columns::default());
    if first.is_some_and(|line| starts_with(line, b"#")) {
        format.header(first.unwrap_or_default());
    }
    fit_lines(sample, format) / 9 * 8
}
