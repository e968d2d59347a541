//! Files in the compact form: written one request at a time, converted from other formats, and read
//! as blocks of dense keys.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

use super::{
    BLOCK_REQUESTS, Block, END, HEADER_BYTES, Header, NEXT_ACCESSES, REQUESTS, Section,
    write_column,
};
use crate::dense::{DenseKeys, NEVER, Numbering};
use crate::error::{Error, ErrorKind};
use crate::fields::{Flaw, Found};
use crate::request::{Op, Request, TraceKind};
use crate::stats::Stats;
use crate::trace::{OpenOptions, STANDARD_INPUT, Trace, open_window};
use crate::window::{WINDOW_BYTES, Window};

/// The options for writing a compact trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CompactOptions {
    /// Compression level of zstd; `None` writes the file uncompressed.
    pub zstd_level: Option<i32>,
    /// Stores for each request the distance to its key's next request; needs 8 bytes of memory a
    /// request. Not for block traces.
    pub next_accesses: bool,
}

/// Writes a compact trace. The file is not valid until [`CompactWriter::finish`] has written its
/// header.
pub struct CompactWriter<W: Write + Seek> {
    out: Out<W>,
    /// Offset of the header in the output.
    header_at: u64,
    options: CompactOptions,
    kind: TraceKind,
    stats: Stats,
    numbering: Numbering,
    /// Key numbers of all requests, collected if next accesses are to be stored.
    numbers: Vec<u32>,
    block: Columns,
    payload: Vec<u8>,
}

enum Out<W: Write> {
    Plain(W),
    Zstd(zstd::stream::write::Encoder<'static, W>),
}

/// Columns of the block that is being collected.
#[derive(Default)]
struct Columns {
    originals: Vec<u64>,
    keys: Vec<u64>,
    bytes: Vec<u64>,
    times: Vec<u64>,
    volumes: Vec<u64>,
    ops: Vec<u64>,
}

impl Columns {
    fn all(&mut self) -> [&mut Vec<u64>; 6] {
        let Self { originals, keys, bytes, times, volumes, ops } = self;
        [originals, keys, bytes, times, volumes, ops]
    }
}

/// Start of a zstd frame that holds the header uncompressed, so that the header has a known place
/// and size. It consists of the magic, a descriptor for "content size in one byte, no window", that
/// size, and the head of one last, raw block.
const FRAME: [u8; 9] = [
    0x28,
    0xb5,
    0x2f,
    0xfd,
    0x20,
    HEADER_BYTES as u8,
    (HEADER_BYTES << 3) as u8 | 1,
    (HEADER_BYTES >> 5) as u8,
    0,
];

impl<W: Write + Seek> CompactWriter<W> {
    /// Starts a trace of this kind.
    ///
    /// # Errors
    /// When the output cannot be written, or next accesses are requested for a block trace.
    pub fn new(mut out: W, kind: TraceKind, options: CompactOptions) -> io::Result<Self> {
        if options.next_accesses && kind == TraceKind::Block {
            let problem = "next accesses need a trace of keys, and this one has disk addresses";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        let start = out.stream_position()?;
        if options.zstd_level.is_some() {
            out.write_all(&FRAME)?;
        }
        let header_at = start + if options.zstd_level.is_some() { FRAME.len() as u64 } else { 0 };
        out.write_all(&[0; HEADER_BYTES])?;
        let out = match options.zstd_level {
            Some(level) => Out::Zstd(zstd::stream::write::Encoder::new(out, level)?),
            None => Out::Plain(out),
        };
        Ok(Self {
            out,
            header_at,
            options,
            kind,
            stats: Stats::new(kind),
            numbering: Numbering::new(),
            numbers: Vec::new(),
            block: Columns::default(),
            payload: Vec::new(),
        })
    }

    /// Adds a request.
    ///
    /// # Errors
    /// When the output cannot be written, and on the 2³²th distinct key.
    pub fn push(&mut self, request: &Request) -> io::Result<()> {
        self.stats.add(request);
        let key =
            if self.kind == TraceKind::Block { request.key } else { self.number(request.key)? };
        let op = match request.op {
            Op::Read => 0,
            Op::Write => 1,
            Op::Delete => 2,
        };
        self.block.keys.push(key);
        self.block.bytes.push(request.bytes);
        self.block.times.push(request.time_ns);
        self.block.volumes.push(u64::from(request.volume));
        self.block.ops.push(op);
        if self.block.keys.len() == BLOCK_REQUESTS { self.write_block() } else { Ok(()) }
    }

    fn number(&mut self, key: u64) -> io::Result<u64> {
        let before = self.numbering.distinct();
        let number = self.numbering.number(0, key).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "more than 4294967294 distinct keys")
        })?;
        if self.numbering.distinct() > before {
            self.block.originals.push(key);
        }
        if self.options.next_accesses {
            self.numbers.push(number);
        }
        Ok(u64::from(number))
    }

    /// Writes the remaining requests and the header; returns the header and the output.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn finish(mut self) -> io::Result<(Header, W)> {
        if !self.block.keys.is_empty() {
            self.write_block()?;
        }
        if self.options.next_accesses {
            self.write_next_accesses()?;
        }
        self.section(END, 0, 0)?;
        let info = self.stats.info("", "floe");
        let header = Header {
            kind: self.kind,
            dense: self.kind != TraceKind::Block,
            next_accesses: self.options.next_accesses,
            requests: info.requests,
            // Keys that are only deleted have numbers, too.
            distinct: info.unique.max(u64::from(self.numbering.distinct())),
            footprint_bytes: info.footprint_bytes,
            reads: info.reads,
            writes: info.writes,
            duration_ns: self.stats.duration_ns(),
        };
        let mut out = match self.out {
            Out::Plain(out) => out,
            Out::Zstd(encoder) => encoder.finish()?,
        };
        out.flush()?;
        out.seek(SeekFrom::Start(self.header_at))?;
        out.write_all(&header.encode())?;
        out.flush()?;
        Ok((header, out))
    }

    fn write_block(&mut self) -> io::Result<()> {
        let (count, new_keys) = (self.block.keys.len(), self.block.originals.len());
        for values in self.block.all() {
            write_column(values, &mut self.payload);
            values.clear();
        }
        self.section(REQUESTS, count, new_keys)
    }

    /// Writes the next accesses as distances, which are small numbers; 0 stands for never.
    fn write_next_accesses(&mut self) -> io::Result<()> {
        let keys = std::mem::take(&mut self.numbers);
        let dense = DenseKeys { keys, distinct: self.numbering.distinct() };
        let next = dense.next_accesses().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "too many requests to store next accesses")
        })?;
        let mut index = 0u64;
        for block in next.chunks(BLOCK_REQUESTS) {
            let distance = |(&next, index): (&u32, u64)| {
                if next == NEVER { 0 } else { u64::from(next) - index }
            };
            let distances: Vec<u64> = block.iter().zip(index..).map(distance).collect();
            index += block.len() as u64;
            write_column(&distances, &mut self.payload);
            self.section(NEXT_ACCESSES, block.len(), 0)?;
        }
        Ok(())
    }

    /// Writes the collected payload as a section and clears it.
    fn section(&mut self, tag: u8, count: usize, new_keys: usize) -> io::Result<()> {
        let head = Section::head(tag, count, new_keys, &self.payload);
        for bytes in [&head[..], &self.payload] {
            match &mut self.out {
                Out::Plain(out) => out.write_all(bytes)?,
                Out::Zstd(out) => out.write_all(bytes)?,
            }
        }
        self.payload.clear();
        Ok(())
    }
}

/// A compact trace of keys or objects, read as dense keys.
///
/// ```no_run
/// let mut trace = floe_trace::CompactTrace::open("orm-busy.floe")?;
/// let mut touches = vec![0u32; trace.header().distinct as usize];
/// while let Some(keys) = trace.next_keys()? {
///     keys.iter().for_each(|&key| touches[key as usize] += 1);
/// }
/// # Ok::<(), floe_trace::Error>(())
/// ```
pub struct CompactTrace {
    name: String,
    window: Window,
    header: Header,
    keys: Vec<u32>,
    requests: u64,
    sections: u64,
    ended: bool,
}

impl CompactTrace {
    /// Opens a compact trace, compressed or not.
    ///
    /// # Errors
    /// When the file cannot be read, is not in the compact form, or is a block trace.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let (name, mut window) = open_window(path.as_ref())?;
        let refuse = |problem| ErrorKind::NotCompact { path: name.clone(), problem };
        window.fill(HEADER_BYTES).map_err(|source| ErrorKind::Read {
            path: name.clone(),
            offset_bytes: 0,
            source,
        })?;
        let Some(bytes) = window.bytes().first_chunk() else {
            return Err(refuse("is too short for a trace in the compact form").into());
        };
        let header = Header::decode(bytes).map_err(|flaw| malformed(&name, 1, 0, &flaw))?;
        if !header.dense {
            return Err(refuse("has disk addresses, not dense keys").into());
        }
        window.consume(HEADER_BYTES);
        Ok(Self { name, window, header, keys: Vec::new(), requests: 0, sections: 1, ended: false })
    }

    /// Returns the header of the file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the next batch of some thousand keys, each below the header's `distinct`; `None` at
    /// the end.
    ///
    /// # Errors
    /// When the file cannot be read, is damaged or ends early.
    pub fn next_keys(&mut self) -> Result<Option<&[u32]>, Error> {
        self.keys.clear();
        while self.keys.is_empty() {
            if !self.section(&mut None)? {
                return Ok(None);
            }
        }
        Ok(Some(&self.keys))
    }

    /// Reads all keys of the trace.
    ///
    /// # Errors
    /// As [`CompactTrace::next_keys`].
    pub fn into_dense(self) -> Result<DenseKeys, Error> {
        Ok(self.into_parts(false)?.0)
    }

    /// Reads all keys and, for each request, the index of the next request for its key, or
    /// [`NEVER`]. Next accesses that the file does not store are computed.
    ///
    /// # Errors
    /// As [`CompactTrace::next_keys`]; and when there are 2³² − 1 requests or more.
    pub fn into_dense_with_next(self) -> Result<(DenseKeys, Vec<u32>), Error> {
        let (stored, path) = (self.header.next_accesses, self.name.clone());
        let (dense, mut next) = self.into_parts(stored)?;
        if next.len() != dense.keys.len() {
            next = dense.next_accesses().ok_or(ErrorKind::TooManyKeys { path })?;
        }
        Ok((dense, next))
    }

    fn into_parts(mut self, want_next: bool) -> Result<(DenseKeys, Vec<u32>), Error> {
        // Not more than a file of this size could hold is trusted to a header: growth takes care of
        // the rest.
        let mut all = Vec::with_capacity(self.header.requests.min(1 << 24) as usize);
        let mut next = want_next.then(Vec::new);
        loop {
            self.keys.clear();
            let more = self.section(&mut next)?;
            all.extend_from_slice(&self.keys);
            if !more {
                break;
            }
        }
        Ok((
            DenseKeys { keys: all, distinct: self.header.distinct as u32 },
            next.unwrap_or_default(),
        ))
    }

    /// Reads one section; returns false at the end.
    fn section(&mut self, next: &mut Option<Vec<u32>>) -> Result<bool, Error> {
        if self.ended {
            return Ok(false);
        }
        loop {
            let used = match Section::parse(self.window.bytes()) {
                Ok(Some((section, used))) => {
                    match take(&section, &self.header, self.requests, &mut self.keys, next) {
                        Ok(ended) => self.ended = ended,
                        Err(flaw) => return Err(self.malformed(&flaw)),
                    }
                    self.requests += if section.tag == REQUESTS { section.count as u64 } else { 0 };
                    used
                }
                Ok(None) if self.window.ended() => {
                    let found = Found::Bytes(self.window.bytes().len());
                    let expected = "a whole section, and more until the end";
                    return Err(self.malformed(&Flaw { expected, column: 0, found }));
                }
                Ok(None) => {
                    let offset_bytes =
                        self.window.offset_bytes() + self.window.bytes().len() as u64;
                    self.window.fill(WINDOW_BYTES).map_err(|source| {
                        Error::from(ErrorKind::Read {
                            path: self.name.clone(),
                            offset_bytes,
                            source,
                        })
                    })?;
                    continue;
                }
                Err(flaw) => return Err(self.malformed(&flaw)),
            };
            self.window.consume(used);
            self.sections += 1;
            return Ok(!self.ended);
        }
    }

    fn malformed(&self, flaw: &Flaw) -> Error {
        malformed(&self.name, self.sections + 1, self.window.offset_bytes(), flaw)
    }
}

/// Decodes a section; returns whether it was the end of the trace.
fn take(
    section: &Section<'_>,
    header: &Header,
    requests: u64,
    keys: &mut Vec<u32>,
    next: &mut Option<Vec<u32>>,
) -> Result<bool, Flaw> {
    match section.tag {
        REQUESTS => {
            Block::parse(section)?.keys.extend(section.count, keys);
            let largest = keys.iter().copied().max().map_or(0, u64::from);
            if largest >= header.distinct && section.count > 0 {
                return Err(Flaw::number("numbers below the count of keys", largest));
            }
        }
        NEXT_ACCESSES => {
            if let Some(next) = next {
                let first = next.len();
                section.distances()?.extend(section.count, next);
                for (place, index) in next[first..].iter_mut().zip(first as u64..) {
                    let at = index + u64::from(*place);
                    *place = if *place == 0 { NEVER } else { u32::try_from(at).unwrap_or(NEVER) };
                    if at >= header.requests {
                        return Err(Flaw::number("next accesses within the trace", at));
                    }
                }
            }
        }
        END if requests == header.requests => return Ok(true),
        _ => return Err(Flaw::number("as many requests as the header says", requests)),
    }
    Ok(false)
}

fn malformed(path: &str, record: u64, offset_bytes: u64, flaw: &Flaw) -> Error {
    Error::from(ErrorKind::Malformed {
        path: path.to_owned(),
        unit: "section",
        record,
        offset_bytes,
        expected: flaw.expected(),
        found: flaw.found(),
    })
}

impl std::fmt::Debug for CompactTrace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompactTrace")
            .field("name", &self.name)
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}

/// Number of requests between two reports of a conversion's progress.
pub(crate) const WATCH_EVERY: u64 = 1 << 16;

/// Writes a file beside `path`, and gives it that name when it is complete and durable. So it may
/// replace a file that is read meanwhile. After an error nothing is left.
///
/// # Errors
/// The error of `write`, and when the file cannot be made, synced or renamed.
pub(crate) fn write_whole<T>(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = Path::new(&partial);
    let failed = |source: io::Error| ErrorKind::Write { path: path.display().to_string(), source };
    let whole = || -> Result<T, Error> {
        let mut file = BufWriter::new(File::create(partial).map_err(failed)?);
        let written = write(&mut file)?;
        file.flush().map_err(failed)?;
        file.get_ref().sync_all().map_err(failed)?;
        fs::rename(partial, path).map_err(failed)?;
        Ok(written)
    };
    whole().inspect_err(|_| {
        // What made it fail is told; that a leftover could not be removed would only hide it.
        let _ = fs::remove_file(partial);
    })
}

/// Writes a trace to `path` in the compact form. The file appears only when it is complete, so it
/// may replace the file that the trace is read from. `watch` is called at intervals, for a progress
/// bar.
///
/// # Errors
/// The first error of the trace, and when the file cannot be written.
pub fn convert(
    trace: &mut Trace,
    path: &Path,
    options: CompactOptions,
    mut watch: impl FnMut(),
) -> Result<Header, Error> {
    let failed = |source: io::Error| ErrorKind::Write { path: path.display().to_string(), source };
    write_whole(path, |file| {
        let mut writer = CompactWriter::new(file, trace.kind(), options).map_err(failed)?;
        for (request, count) in trace.by_ref().zip(1u64..) {
            writer.push(&request?).map_err(failed)?;
            if count.is_multiple_of(WATCH_EVERY) {
                watch();
            }
        }
        Ok(writer.finish().map_err(failed)?.0)
    })
}

impl DenseKeys {
    /// Opens a file or generator and reads all its keys. The compact form is read without decoding
    /// whole requests.
    ///
    /// # Errors
    /// As [`Trace::open_source`] and [`DenseKeys::read`].
    pub fn load(text: &str, options: &OpenOptions) -> Result<Self, Error> {
        let mut trace = Trace::open_source(text, options)?;
        let whole = options.filter.is_none() && text != STANDARD_INPUT;
        if whole && trace.format().name() == "floe" && trace.kind() != TraceKind::Block {
            let compact = CompactTrace::open(text)?;
            if !compact.header().has_deletes() {
                return compact.into_dense();
            }
        }
        Self::read(&mut trace)
    }
}
