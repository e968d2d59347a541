//! Text formats with more structure than columns: plain keys, the ARC paper, memory addresses, fio,
//! SRT, blkparse and CacheLib.

use super::{Fit, Spec, fit_lines, flags, operation, starts_with};
use crate::decode::{
    Batch, Clock, Decoded, Line, Lines, Record, Records, SECTOR_BYTES, Volumes, block, key_only,
};
use crate::decode::{Sample, SampleLine};
use crate::fields::{Fields, Flaw, hash, hexadecimal, integer, key_of};
use crate::request::{Op, Request, TraceKind};

pub(super) static PLAIN: Spec = Spec {
    name: "plain",
    kind: TraceKind::Key,
    layout: "text: a key a line; `*` and blank lines do not count",
    origin: "LIRS, and the simplest format to write",
    fit: fit_plain,
    names: &[],
    decoder: || Box::new(Lines::new(Plain)),
    ..Spec::NONE
};

/// One key per line, as in the traces of the LIRS paper (Jiang & Zhang, SIGMETRICS '02).
///
/// Numbers are keys themselves; any other text is hashed. Blank lines, and `*`, which separates
/// phases, are skipped.
pub(super) struct Plain;

impl Line for Plain {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        // A sharp sign starts a comment in every format, but may be part of a key elsewhere.
        if line != b"*" && line[0] != b'#' {
            batch.push(key_only(key_of(line)));
        }
        Ok(())
    }
}

/// Rates a sample of plain keys. Only single words are recognised as keys, so that a table of an
/// unknown format is not; if the format is given, any line is a key.
fn fit_plain(sample: &Sample<'_>) -> Fit {
    let single =
        |line: &[u8]| !line.iter().any(|&b| matches!(b, b' ' | b'\t' | b',' | b';' | b'|'));
    fit_lines(sample, Plain).only_if(sample.lines().all(|line| single(line.text)))
}

pub(super) static ARC: Spec = Spec {
    name: "arc",
    kind: TraceKind::Key,
    layout: "text: first page, count, ignored, request number",
    origin: "ARC paper (OLTP, P1–P14, DS1, S1–S3)",
    fit: |sample| fit_lines(sample, Arc::<false>),
    names: &["lis"],
    decoder: || Box::new(Lines::new(Arc::<false>)),
    block_decoder: Some(|| Box::new(Lines::new(Arc::<true>))),
    ..Spec::NONE
};

/// The traces of the ARC paper (Megiddo & Modha, FAST '03): text, four integers a line.
///
/// The columns are `first page, count, ignored, request number`. A line stands for `count`
/// consecutive pages of 512 bytes. By default it is that many requests for keys, as the paper
/// counts them; opened `as_blocks`, one read of `count` sectors.
struct Arc<const AS_BLOCKS: bool>;

impl<const AS_BLOCKS: bool> Line for Arc<AS_BLOCKS> {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        const COUNT: &str = "a page count from 1 to 8388608";
        let mut fields = Fields::blanks(line);
        let offset = fields.offset(SECTOR_BYTES, "the first page")?;
        let length = fields.length(SECTOR_BYTES, COUNT)?;
        if length == 0 {
            return Err(fields.flaw(COUNT, b"0"));
        }
        fields.number("a number")?;
        fields.number("the request number")?;
        fields.end()?;
        if AS_BLOCKS {
            batch.push(block(0, Op::Read, 0, offset, length));
        } else {
            batch.push_run(key_only(offset / SECTOR_BYTES), length / SECTOR_BYTES);
        }
        Ok(())
    }
}

pub(super) static ADDRESS: Spec = Spec {
    name: "address",
    kind: TraceKind::Key,
    layout: "text: l, s, L, S, M, I, R, W, 0, 1 or 2; an address (hexadecimal); more if any",
    origin: "UCSD, Valgrind's lackey, Dinero, Pin",
    fit: fit_address,
    names: &[],
    decoder: || Box::new(Lines::new(Address)),
    ..Spec::NONE
};

/// Memory addresses, one a line, as written by tools that trace programs.
///
/// | tool | a line |
/// |---|---|
/// | UCSD's processor traces | `l 0x1fffff50 1`: load or store, address, and more |
/// | Valgrind's lackey | ` L 04025310,8`: load, store, modify or instruction, address, bytes |
/// | Dinero | `0 7fffed80`: 0 reads, 1 writes, 2 fetches an instruction |
/// | Pin's pinatrace | `0x7f1c: R 0x7ffe10`: instruction, read or write, address |
///
/// Each address is a key. Valgrind's own lines, which begin with `==`, are skipped.
struct Address;

impl Line for Address {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        if line.starts_with(b"==") {
            return Ok(());
        }
        let mut fields = Fields::blanks(line);
        let mut word = fields.text();
        if word.ends_with(b":") {
            word = fields.text();
        }
        let op = match word {
            b"l" | b"L" | b"r" | b"R" | b"i" | b"I" | b"0" | b"2" => Op::Read,
            b"s" | b"S" | b"w" | b"W" | b"m" | b"M" | b"1" => Op::Write,
            _ => return Err(fields.flaw("a load or a store, such as l, s, R or 1", word)),
        };
        let text = fields.text();
        let address = text.split(|&b| b == b',').next().unwrap_or_default();
        let address = address.strip_prefix(b"0x").unwrap_or(address);
        let key = hexadecimal(address, 16)
            .ok_or_else(|| fields.flaw("an address in hexadecimal", text))?;
        batch.push(Request { op, ..key_only(key) });
        Ok(())
    }
}

/// Rates a sample of addresses. A sample of decimal digits alone does not fit, because they may be
/// other numbers.
fn fit_address(sample: &Sample<'_>) -> Fit {
    let is_letter = |line: &[u8]| !line[0].is_ascii_digit();
    let shows = |line: &[u8]| is_letter(line) || line.iter().any(|b| b"abcdef".contains(b));
    fit_lines(sample, Address).only_if(sample.lines().any(|line| shows(line.text)))
}

pub(super) static FIO: Spec = Spec {
    name: "fio",
    kind: TraceKind::Block,
    layout: "text: fio version 2 or 3 iolog; time (µs, version 3), file, action, offset, bytes",
    origin: "fio's write_iolog",
    fit: |sample| fit_lines(sample, Fio::new()),
    names: &["iolog"],
    decoder: || Box::new(Lines::new(Fio::new())),
    ..Spec::NONE
};

/// The logs of fio's `write_iolog`, versions 2 and 3; see "Trace file format" in fio(1).
///
/// The first line has the version. The others are `[time] file action [offset bytes]`, separated by
/// blanks; version 3 has times in µs, and in version 2 `wait` lets time pass. Files are volumes,
/// numbered in order of appearance. Actions that move no data are skipped.
struct Fio {
    version: Option<u8>,
    /// Total time of all `wait` actions so far, in microseconds.
    waited_us: u64,
    clock: Clock,
    volumes: Volumes,
}

impl Fio {
    fn new() -> Self {
        let (clock, volumes) = (Clock::new(1000), Volumes::default());
        Self { version: None, waited_us: 0, clock, volumes }
    }
}

impl Line for Fio {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        let Some(version) = self.version else {
            let is_header = self.header(line);
            return if is_header { Ok(()) } else { Err(Flaw::text(FIO_HEADER, 0, line)) };
        };
        let mut fields = Fields::blanks(line);
        let time_us = match version {
            2 => self.waited_us,
            _ => fields.number("a time in µs")?,
        };
        let file = hash(fields.text());
        let action = fields.text();
        if matches!(action, b"add" | b"open" | b"close") {
            return Ok(());
        }
        if action == b"wait" {
            self.waited_us = self.waited_us.saturating_add(fields.number("a time in µs")?);
            return Ok(());
        }
        let expected = "an action such as read, write, trim or sync";
        let Some(op) = operation(action).ok_or_else(|| fields.flaw(expected, action))? else {
            return Ok(());
        };
        let offset = fields.offset(1, "an offset in bytes")?;
        let bytes = fields.length(1, "a length of at most 4 GiB")?;
        fields.end()?;
        let volume = self.volumes.number(file, 0);
        batch.push(block(self.clock.since_first_ns(time_us), op, volume, offset, bytes));
        Ok(())
    }

    fn header(&mut self, line: &[u8]) -> bool {
        let version = match line {
            b"fio version 2 iolog" => 2,
            b"fio version 3 iolog" => 3,
            _ => return false,
        };
        self.version = Some(version);
        true
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.clock)
    }
}

const FIO_HEADER: &str = "`fio version 2 iolog` or 3";

const MAGIC: &[u8] = b"$$TR_IOREC";
const HEADER_END: u8 = 0x0c;
/// Longest header or record that is accepted, in bytes.
const HEADER_BYTES_MAX: usize = 64 << 10;
const RECORD_BYTES_MAX: usize = 4096;
/// Minimum size of a record: the words up to the flags.
const RECORD_BYTES_MIN: usize = 48;

pub(super) static SRT: Spec = Spec {
    name: "srt",
    kind: TraceKind::Block,
    layout: "binary: header up to 0x0C, then big-endian words: size, id, s, µs, …, bytes, sector, \
             device, …, flags",
    origin: "HP traces (cello, hplajw, snake)",
    fit: |sample| Fit::sure(100).only_if(sample.bytes.starts_with(MAGIC)),
    names: &[],
    decoder: || {
        Box::new(Records::new(Srt { in_header: true, lost: false, clock: Clock::new(1000) }))
    },
    ..Spec::NONE
};

/// SRT, the format of Hewlett-Packard's disk traces (Ruemmler & Wilkes, USENIX Winter '93): binary.
///
/// A text header ends with a form feed (0x0C). Records of big-endian 32-bit words follow: record
/// bytes, id, seconds, microseconds, start, stop, bytes, first sector, device, driver type,
/// cylinder, flags (bit 0: read), and more. The device number is above the lowest 8 bits, which
/// name a partition; sectors count from the device's start and have 512 bytes.
struct Srt {
    in_header: bool,
    /// True after a record with a bad length, because the start of the next record is then unknown.
    lost: bool,
    clock: Clock,
}

impl Record for Srt {
    fn record(&mut self, input: &[u8], batch: &mut Batch) -> Decoded {
        if self.lost {
            return Decoded::Skip(input.len());
        }
        if self.in_header {
            return match memchr::memchr(HEADER_END, input) {
                Some(end) => {
                    self.in_header = false;
                    Decoded::Skip(end + 1)
                }
                None if input.len() > HEADER_BYTES_MAX => {
                    self.lost = true;
                    Decoded::Bad(
                        input.len(),
                        Flaw::number("a header of at most 64 KiB", input.len() as u64),
                    )
                }
                None => Decoded::Need,
            };
        }
        let Some(head) = input.first_chunk::<RECORD_BYTES_MIN>() else { return Decoded::Need };
        let (words, _) = head.as_chunks::<4>();
        let word = |index: usize| u32::from_be_bytes(words[index]);
        let record_bytes = word(0) as usize;
        if !(RECORD_BYTES_MIN..=RECORD_BYTES_MAX).contains(&record_bytes) {
            self.lost = true;
            let flaw = Flaw::number("a record of 48 to 4096 bytes", u64::from(word(0)));
            return Decoded::Bad(input.len(), flaw);
        }
        if input.len() < record_bytes {
            return Decoded::Need;
        }
        let (seconds, micros, bytes, sector) = (word(2), word(3), word(6), word(7));
        if bytes > i32::MAX as u32 {
            return Decoded::Bad(record_bytes, Flaw::number("a length in bytes", u64::from(bytes)));
        }
        let time_us = u64::from(seconds) * 1_000_000 + u64::from(micros);
        let op = if word(11) & 1 == 1 { Op::Read } else { Op::Write };
        let offset = u64::from(sector) * SECTOR_BYTES;
        let time_ns = self.clock.since_first_ns(time_us);
        batch.push(block(time_ns, op, word(8) >> 8, offset, u64::from(bytes)));
        Decoded::Took(record_bytes)
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.clock)
    }
}

const LAYOUT: &str =
    "text: major,minor, cpu, sequence, time (s), pid, action, RWBS, sector + sectors, [process]";

pub(super) static QUEUED: Spec = Spec {
    name: "blkparse",
    kind: TraceKind::Block,
    layout: LAYOUT,
    origin: "blktrace's blkparse; requests as queued (Q)",
    fit: |sample| {
        let queued = has(sample, b"Q") || !has(sample, b"D");
        fit_lines(sample, Blkparse::new(b'Q')).only_if(queued)
    },
    names: &[],
    decoder: || Box::new(Lines::new(Blkparse::new(b'Q'))),
    ..Spec::NONE
};

pub(super) static ISSUED: Spec = Spec {
    name: "blkparse-issued",
    kind: TraceKind::Block,
    layout: LAYOUT,
    origin: "blktrace's blkparse; requests as issued to the driver (D)",
    fit: |sample| {
        let issued = has(sample, b"D") && !has(sample, b"Q");
        fit_lines(sample, Blkparse::new(b'D')).only_if(issued)
    },
    names: &[],
    decoder: || Box::new(Lines::new(Blkparse::new(b'D'))),
    ..Spec::NONE
};

/// First words of the lines of blkparse's summary.
const SUMMARY: [&str; 9] = [
    "CPU",
    "Reads ",
    "Read ",
    "PC Read",
    "IO unplugs",
    "Timer unplugs",
    "Total (",
    "Throughput (",
    "Events (",
];

/// The default text output of `blkparse`, which prints a recording of Linux's `blktrace`; see
/// blkparse(1).
///
/// The columns are `major,minor cpu sequence time (s) pid action RWBS sector + sectors [process]`,
/// separated by blanks. One request passes through many actions, of which one kind is counted. The
/// format `blkparse` counts queued requests (`Q`), which a cache above the disk would see. A
/// recording without them reads as `blkparse-issued`, which counts those issued to the driver
/// (`D`). Other actions, the summary at the end, and requests without data (a flush, a command of
/// the driver's own) are skipped. In RWBS, `R` reads, `W` writes and `D` discards, which is a
/// deletion; the flags around them do not matter. A disk is a volume, numbered in order of
/// appearance.
struct Blkparse {
    /// Action whose requests are counted.
    action: u8,
    clock: Clock,
    volumes: Volumes,
}

impl Blkparse {
    fn new(action: u8) -> Self {
        Self { action, clock: Clock::new(1), volumes: Volumes::default() }
    }
}

impl Line for Blkparse {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        let mut fields = Fields::blanks(line);
        let device = fields.text();
        let (major, minor) =
            device_numbers(device).ok_or_else(|| fields.flaw("a device as major,minor", device))?;
        fields.number("a CPU")?;
        fields.number("a sequence number")?;
        let time_ns = fields.decimal(9, "a time in s")?;
        fields.number("a process id")?;
        let action = fields.text();
        if action.is_empty() || action.len() > 2 || !action.iter().all(u8::is_ascii_alphabetic) {
            return Err(fields.flaw("an action of one or two letters", action));
        }
        if action != [self.action] {
            return Ok(());
        }
        let rwbs = fields.text();
        let op = flags(rwbs).ok_or_else(|| fields.flaw("R, W, D or N with flags", rwbs))?;
        let mut rest = fields.clone();
        let first = rest.text();
        // A request without a place has its process here; a command of the driver's own, the bytes
        // of the command.
        let nowhere = first.is_empty() || first[0] == b'[' || rest.text().first() == Some(&b'(');
        let Some(op) = op.filter(|_| !nowhere) else { return Ok(()) };
        let offset = fields.offset(SECTOR_BYTES, "the first sector")?;
        let plus = fields.text();
        if plus != b"+" {
            return Err(fields.flaw("a plus sign", plus));
        }
        let length = fields.length(SECTOR_BYTES, "a number of sectors of at most 4 GiB")?;
        if length > 0 {
            let volume = self.volumes.number(u64::from(major), minor);
            batch.push(block(self.clock.since_first_ns(time_ns), op, volume, offset, length));
        }
        Ok(())
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.clock)
    }

    fn header(&mut self, line: &[u8]) -> bool {
        SUMMARY
            .iter()
            .chain(&["Skips:", "Input file "])
            .any(|start| starts_with(line, start.as_bytes()))
    }
}

fn device_numbers(text: &[u8]) -> Option<(u32, u32)> {
    let comma = text.iter().position(|&b| b == b',')?;
    let number = |text| integer(text)?.try_into().ok();
    Some((number(&text[..comma])?, number(&text[comma + 1..])?))
}

/// Returns whether a line of the sample has this action.
fn has(sample: &Sample<'_>, action: &[u8]) -> bool {
    fn action_of<'a>(line: &SampleLine<'a>) -> &'a [u8] {
        let mut fields = Fields::blanks(line.text);
        for _ in 0..5 {
            fields.text();
        }
        fields.text()
    }
    sample.lines().any(|line| action_of(&line) == action)
}

pub(super) static CACHELIB: Spec = Spec {
    name: "cachelib",
    kind: TraceKind::Object,
    layout: "csv with a header: kv (key, op, size, op_count, key_size, …), cdn (timestamp, \
             cacheKey, …) or tectonic (op_time, block_id, …)",
    origin: "CacheLib (Meta)",
    fit: fit_cachelib,
    names: &[],
    decoder: || Box::new(Lines::new(CacheLib::new())),
    ..Spec::NONE
};

const COLUMNS_MAX: usize = 32;
const CACHELIB_HEADER: &str = "a header with the columns of a kv, cdn or tectonic trace";

/// The traces published with CacheLib: key-value, CDN and Tectonic block caches; comma-separated
/// text whose header names the columns.
///
/// | trace | time (s) | key | bytes | operation |
/// |---|---|---|---|---|
/// | kv | `op_time`, or none in 202206 | `key` | `size` of the value, plus `key_size` | `op` |
/// | cdn | `timestamp` | `cacheKey` | `objectSize`, or where it is -1 `responseSize` | reads |
/// | tectonic | `op_time` | `block_id` | `io_size` | `op_name` |
///
/// A line of a kv trace is as many requests as its `op_count`, which sums up repetitions within a
/// second. A read whose value has size 0 was a miss, so its size is unknown.
struct CacheLib {
    clock: Clock,
    columns: Option<CacheLibColumns>,
}

/// Indexes of the columns, from 0.
#[derive(Clone, Copy)]
struct CacheLibColumns {
    time: Option<usize>,
    key: usize,
    bytes: usize,
    /// Column whose size is used where the size is -1.
    else_bytes: Option<usize>,
    key_bytes: Option<usize>,
    op: Option<usize>,
    /// Column with the number of requests that a line stands for.
    repeats: Option<usize>,
    count: usize,
}

impl CacheLibColumns {
    fn of(header: &[u8]) -> Option<Self> {
        let names: Vec<&[u8]> = header.split(|&b| b == b',').map(<[u8]>::trim_ascii).collect();
        let find = |name: &str| names.iter().position(|&column| column == name.as_bytes());
        let count = Some(names.len()).filter(|&count| count <= COLUMNS_MAX)?;
        let columns = |time: &str, key: &str, bytes: &str, op: &str| {
            let (key, bytes) = (find(key)?, find(bytes)?);
            let (time, op) = (find(time), find(op));
            let (else_bytes, key_bytes, repeats) = (find("responseSize"), None, None);
            Some(Self { time, key, bytes, else_bytes, key_bytes, op, repeats, count })
        };
        let kv = || {
            let (key_bytes, repeats) = (Some(find("key_size")?), Some(find("op_count")?));
            Some(Self { key_bytes, repeats, ..columns("op_time", "key", "size", "op")? })
        };
        kv().or_else(|| columns("timestamp", "cacheKey", "objectSize", ""))
            .or_else(|| columns("op_time", "block_id", "io_size", "op_name"))
    }
}

impl CacheLib {
    fn new() -> Self {
        Self { clock: Clock::new(1_000_000_000), columns: None }
    }
}

impl Line for CacheLib {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        let Some(columns) = self.columns else { return Err(Flaw::text(CACHELIB_HEADER, 0, line)) };
        let mut texts = [&b""[..]; COLUMNS_MAX];
        let mut fields = Fields::commas(line);
        for text in &mut texts[..columns.count] {
            *text = fields.text();
        }
        fields.end()?;
        let number = |at: usize, expected| {
            integer(texts[at]).ok_or_else(|| Flaw::text(expected, at as u32 + 1, texts[at]))
        };
        let at = match columns.else_bytes {
            Some(other) if texts[columns.bytes] == b"-1" => other,
            _ => columns.bytes,
        };
        let time_s = columns.time.map_or(Ok(0), |at| number(at, "a time in s"))?;
        let mut bytes = number(at, "a size in bytes")?;
        let op = match columns.op.map(|at| (at, texts[at])) {
            None => Some(Op::Read),
            Some((at, text)) => {
                operation(text).ok_or_else(|| Flaw::text("an operation", at as u32 + 1, text))?
            }
        };
        if let Some(at) = columns.key_bytes {
            let key_bytes = number(at, "the key's size in bytes")?;
            let is_known = bytes > 0 || op != Some(Op::Read);
            bytes = bytes.saturating_add(if is_known { key_bytes } else { 0 });
        }
        let repeats = columns.repeats.map_or(Ok(1), |at| number(at, "a number of requests"))?;
        let time_ns = self.clock.since_first_ns(time_s);
        if let Some(op) = op.filter(|_| repeats > 0) {
            let key = key_of(texts[columns.key]);
            batch.push_repeated(Request { time_ns, key, bytes, volume: 0, op }, repeats);
        }
        Ok(())
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.clock)
    }

    fn header(&mut self, line: &[u8]) -> bool {
        let columns = CacheLibColumns::of(line);
        self.columns = columns.or(self.columns);
        columns.is_some()
    }
}

/// Rates a sample of CacheLib traces by its header alone.
fn fit_cachelib(sample: &Sample<'_>) -> Fit {
    let known = sample.lines().next().is_some_and(|line| CacheLibColumns::of(line.text).is_some());
    fit_lines(sample, CacheLib::new()).only_if(known)
}
