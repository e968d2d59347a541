//! Decompression on the fly, recognised by the first bytes and never by the name.
//!
//! Files made of several members or frames (`cat a.gz b.gz`, parallel compressors) are read to the
//! end.

use std::io::{BufReader, Cursor, Read, Result};

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
        Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(buffered(whole))),
        Compression::Xz => {
            Box::new(liblzma::bufread::XzDecoder::new_multi_decoder(buffered(whole)))
        }
        Compression::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(buffered(whole))?;
            decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
            Box::new(decoder)
        }
        Compression::Bzip2 => Box::new(bzip2::bufread::MultiBzDecoder::new(buffered(whole))),
    })
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
