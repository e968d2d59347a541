//! Writing the compact form, one request at a time.

use std::io::{self, Seek, SeekFrom, Write};

use super::column;
use super::section::{END, NEXT_ACCESSES, REQUESTS, Section};
use super::{BLOCK_REQUESTS, HEADER_BYTES, Header};
use crate::dense::{DenseKeys, NEVER, Numbering};
use crate::request::{Kind, Op, Request};
use crate::stats::Stats;

/// The options for writing a compact trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CompactOptions {
    /// Compress at this level of zstd.
    pub zstd_level: Option<i32>,
    /// Store for each request when its key comes next; needs 8 bytes of memory a request. Not for
    /// block traces.
    pub next_accesses: bool,
}

/// Writes a compact trace. The file is none until [`CompactWriter::finish`] has put its header in
/// place.
pub struct CompactWriter<W: Write + Seek> {
    out: Out<W>,
    /// Where the header goes.
    header_at: u64,
    options: CompactOptions,
    kind: Kind,
    stats: Stats,
    numbering: Numbering,
    /// All numbers, if next accesses are wanted.
    numbers: Vec<u32>,
    block: Columns,
    payload: Vec<u8>,
}

enum Out<W: Write> {
    Plain(W),
    Zstd(zstd::stream::write::Encoder<'static, W>),
}

/// The columns of the block at hand.
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

/// A frame of zstd that holds a header uncompressed, so that its place and size are known: magic, a
/// descriptor that says "content of one byte's size, no window", that size, and the head of one
/// last, raw block.
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
    /// When the output cannot be written, or next accesses are asked of a block trace.
    pub fn new(mut out: W, kind: Kind, options: CompactOptions) -> io::Result<Self> {
        if options.next_accesses && kind == Kind::Block {
            let problem = "next accesses need keys, and a block trace has places on a disk";
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
        let key = if self.kind == Kind::Block { request.key } else { self.number(request.key)? };
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

    /// Writes what is left and puts the header in place; answers with it and the output.
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
            dense: self.kind != Kind::Block,
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
            column::write(values, &mut self.payload);
            values.clear();
        }
        self.section(REQUESTS, count, new_keys)
    }

    /// Distances rather than places: they are small. 0 stands for never.
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
            column::write(&distances, &mut self.payload);
            self.section(NEXT_ACCESSES, block.len(), 0)?;
        }
        Ok(())
    }

    /// Writes the payload as a section and empties it.
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
