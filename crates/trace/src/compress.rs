//! Decompression on the fly, recognised by the first bytes and never by the name.
//!
//! Files made of several members or frames (`cat a.gz b.gz`, parallel compressors) are read to the
//! end, and zeros behind them, as tapes and block devices leave them, are passed over.

use std::io::{BufRead, BufReader, Cursor, Read, Result};

use bzip2::bufread::BzDecoder;
use flate2::bufread::GzDecoder;

/// Bytes a decompressor takes from the file at once.
const READ_BYTES: usize = 64 << 10;
/// Bytes needed to tell the compressions apart.
const MAGIC_BYTES: usize = 10;

/// Traces are often packed with `zstd --long=31`, which the decompressor refuses unless told.
const ZSTD_WINDOW_LOG_MAX: u32 = 31;

/// Wraps `reader` in the decompressor its first bytes call for, if any.
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

/// A decompressor of one member.
trait Member<R>: Read + Sized {
    fn start(reader: R) -> Result<Self>;

    /// Returns what lies behind the member, whose end was read.
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

/// Members one behind the other, and zeros between and behind them.
enum Members<R, D> {
    Between(R),
    In(D),
    /// At the end, or where a read failed.
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
