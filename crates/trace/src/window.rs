//! A window that slides over the decompressed bytes of a trace.
//!
//! Invariant: `offset_bytes` is the position of the window's first byte in the decompressed stream.

use std::io::{BufRead, BufReader, Cursor, ErrorKind, Read, Result};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use bzip2::bufread::BzDecoder;
use flate2::bufread::GzDecoder;

/// Capacity of the window in decompressed bytes. A longer record cannot be read.
pub(crate) const WINDOW_BYTES: usize = 256 << 10;

/// A sliding window over the decompressed bytes of a trace.
pub(crate) struct Window {
    reader: Box<dyn Read + Send>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    offset_bytes: u64,
    ended: bool,
}

impl Window {
    /// Creates an empty window at the start of `reader`.
    pub(crate) fn new(reader: Box<dyn Read + Send>) -> Self {
        let buffer = vec![0; WINDOW_BYTES].into_boxed_slice();
        Self { reader, buffer, start: 0, end: 0, offset_bytes: 0, ended: false }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Returns the offset of the window in the decompressed stream.
    pub(crate) fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// Returns whether the stream ends where the window does.
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// Moves the window's start forward.
    pub(crate) fn consume(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.end - self.start);
        self.start += bytes;
        self.offset_bytes += bytes as u64;
    }

    /// Reads on until the window holds at least `wanted_bytes`, is full, or the stream ends.
    pub(crate) fn fill(&mut self, wanted_bytes: usize) -> Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        while !self.ended && self.end < wanted_bytes.min(self.buffer.len()) {
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A reader that counts the bytes read from the file, before decompression.
pub(crate) struct Counted<R> {
    pub(crate) reader: R,
    pub(crate) bytes_read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let read = self.reader.read(buffer)?;
        self.bytes_read.fetch_add(read as u64, Relaxed);
        Ok(read)
    }
}

/// Bytes that a decompressor reads from the file at once.
const READ_BYTES: usize = 64 << 10;
/// First bytes of a file needed to distinguish the compressions.
const MAGIC_BYTES: usize = 10;

/// log2 of the largest zstd window accepted. Traces are often packed with `zstd --long=31`, which
/// the decompressor refuses by default.
const ZSTD_WINDOW_LOG_MAX: u32 = 31;

/// Wraps `reader` in the decompressor that its first bytes show, if any.
pub(crate) fn decompressed(mut reader: Box<dyn Read + Send>) -> Result<Box<dyn Read + Send>> {
    let mut head = Vec::with_capacity(MAGIC_BYTES);
    reader.by_ref().take(MAGIC_BYTES as u64).read_to_end(&mut head)?;
    let compression = Compression::of(&head);
    let whole = Cursor::new(head).chain(reader);
    let buffered = |whole| BufReader::with_capacity(READ_BYTES, whole);
    Ok(match compression {
        Compression::None => Box::new(whole),
        Compression::Gzip => Box::new(Members::<_, GzDecoder<_>>::of(buffered(whole))),
        Compression::Xz => {
            Box::new(liblzma::bufread::XzDecoder::new_multi_decoder(buffered(whole)))
        }
        Compression::Zstd => Box::new(Members::<_, zstd::Decoder<'static, _>>::of(buffered(whole))),
        Compression::Bzip2 => Box::new(Members::<_, BzDecoder<_>>::of(buffered(whole))),
    })
}

/// A decompressor of one member of a compressed file.
trait Member<R>: Read + Sized {
    fn start(reader: R) -> Result<Self>;

    /// Returns the reader after the member, which must have been read to its end.
    fn rest(self) -> R;
}

impl<R: BufRead> Member<R> for GzDecoder<R> {
    fn start(reader: R) -> Result<Self> {
        Ok(Self::new(reader))
    }

    fn rest(self) -> R {
        self.into_inner()
    }
}

impl<R: BufRead> Member<R> for BzDecoder<R> {
    fn start(reader: R) -> Result<Self> {
        Ok(Self::new(reader))
    }

    fn rest(self) -> R {
        self.into_inner()
    }
}

impl<R: BufRead> Member<R> for zstd::Decoder<'static, R> {
    fn start(reader: R) -> Result<Self> {
        let mut decoder = Self::with_buffer(reader)?.single_frame();
        decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
        Ok(decoder)
    }

    fn rest(self) -> R {
        self.finish()
    }
}

/// Concatenated compressed members, with zeros allowed between and after them.
enum Members<R, D> {
    Between(R),
    In(D),
    /// The end of the file, or a failed read.
    End,
}

impl<R: BufRead, D: Member<R>> Members<R, D> {
    fn of(reader: R) -> Self {
        Self::Between(reader)
    }
}

impl<R: BufRead, D: Member<R>> Read for Members<R, D> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        loop {
            *self = match std::mem::replace(self, Self::End) {
                Self::Between(mut reader) => {
                    let found = reader.fill_buf().map(|input| {
                        let zeros = input.iter().take_while(|&&b| b == 0).count();
                        (zeros, input.len())
                    });
                    match found {
                        Ok((_, 0)) => return Ok(0),
                        Ok((zeros, there)) => {
                            reader.consume(zeros);
                            if zeros < there {
                                Self::In(D::start(reader)?)
                            } else {
                                Self::Between(reader)
                            }
                        }
                        Err(error) => {
                            *self = Self::Between(reader);
                            return Err(error);
                        }
                    }
                }
                Self::In(mut member) => match member.read(buffer) {
                    Ok(0) if !buffer.is_empty() => Self::Between(member.rest()),
                    read => {
                        *self = Self::In(member);
                        return read;
                    }
                },
                Self::End => return Ok(0),
            };
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Xz,
    Zstd,
    Bzip2,
}

impl Compression {
    fn of(head: &[u8]) -> Self {
        match head {
            [0x1f, 0x8b, 8, ..] => Self::Gzip,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            // A frame, or a skippable frame such as parallel compressors put first.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            // The digits of pi start a block, those of its square root end an empty stream.
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, 0x53, 0x59, ..]
            | [b'B', b'Z', b'h', b'1'..=b'9', 0x17, 0x72, 0x45, 0x38, 0x50, 0x90, ..] => {
                Self::Bzip2
            }
            _ => Self::None,
        }
    }
}
