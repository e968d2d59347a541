//! Numbers and layouts of the NBD protocol: magic numbers, flags, option, reply, command and error
//! codes.
//!
//! Names are the document's, with the prefix turned into a module: `NBD_OPT_GO` is [`option::GO`],
//! `NBD_REP_ACK` is [`option_reply::ACK`]. All numbers travel in network byte order (big-endian).
//! Source: proto.md, "Values".

use std::io;

/// `NBDMAGIC`, the first eight bytes a server sends.
pub const SERVER_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`, sent by a newstyle server after [`SERVER_MAGIC`] and by the client before each
/// option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Starts each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Starts each request of the transmission phase.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Starts a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Starts a structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Server's first message: [`SERVER_MAGIC`], [`OPTION_MAGIC`], 16 bits of [`handshake_flag`]s.
pub const GREETING_BYTES: usize = 18;
/// 32 bits of [`client_flag`]s.
pub const CLIENT_FLAGS_BYTES: usize = 4;
/// [`OPTION_MAGIC`], 32 bits option, 32 bits length.
pub const OPTION_HEADER_BYTES: usize = 16;
/// [`OPTION_REPLY_MAGIC`], 32 bits option, 32 bits reply type, 32 bits length.
pub const OPTION_REPLY_HEADER_BYTES: usize = 20;
/// [`REQUEST_MAGIC`], 16 bits flags, 16 bits command, 64 bits cookie, 64 bits offset, 32 bits
/// length.
pub const REQUEST_BYTES: usize = 28;
/// [`SIMPLE_REPLY_MAGIC`], 32 bits error, 64 bits cookie.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// [`STRUCTURED_REPLY_MAGIC`], 16 bits flags, 16 bits type, 64 bits cookie, 32 bits length.
pub const CHUNK_HEADER_BYTES: usize = 20;
/// Zeroes after the answer to [`option::EXPORT_NAME`], unless [`client_flag::NO_ZEROES`] was
/// negotiated.
pub const EXPORT_NAME_ZEROES_BYTES: usize = 124;
/// 32 bits length, 32 bits [`state`]: one extent in a block status chunk, after the 32 bits of its
/// context's number.
pub const EXTENT_BYTES: usize = 8;
/// Longest string (export name, description, message) in the protocol.
pub const STRING_MAX_BYTES: usize = 4096;

/// Flags the server sends in its greeting.
pub mod handshake_flag {
    /// Fixed newstyle negotiation is spoken.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The client may ask to do without the zeroes after `EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Flags the client answers the greeting with.
pub mod client_flag {
    /// Fixed newstyle negotiation is understood.
    pub const FIXED_NEWSTYLE: u32 = 1 << 0;
    /// Leave the zeroes after `EXPORT_NAME` out.
    pub const NO_ZEROES: u32 = 1 << 1;
}

/// The abilities of an export, told at the end of the handshake.
pub mod transmission_flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` is served.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The `FUA` command flag is served.
    pub const SEND_FUA: u16 = 1 << 3;
    /// The medium rotates.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// `TRIM` is served.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` and the `NO_HOLE` command flag are served.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The `DF` command flag is served; only with structured replies.
    pub const SEND_DF: u16 = 1 << 7;
    /// Several connections see one coherent disk: a flush on one covers writes answered on all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `CACHE` is served.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The `FAST_ZERO` command flag is served.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Options a client haggles with.
pub mod option {
    /// Choose an export and start transmission; cannot be refused except by hanging up.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Switch to TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and start transmission.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use 64-bit lengths.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of replies to options. Errors have bit 31 set.
pub mod option_reply {
    /// Accepted, or the end of a list.
    pub const ACK: u32 = 1;
    /// One export of a list.
    pub const SERVER: u32 = 2;
    /// One fact about an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Set in every error type.
    pub const ERROR_BIT: u32 = 1 << 31;
    /// The option is not known or not supported.
    pub const ERR_UNSUP: u32 = ERROR_BIT | 1;
    /// The option is forbidden here.
    pub const ERR_POLICY: u32 = ERROR_BIT | 2;
    /// The option's data makes no sense.
    pub const ERR_INVALID: u32 = ERROR_BIT | 3;
    /// The option needs TLS first.
    pub const ERR_TLS_REQD: u32 = ERROR_BIT | 5;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = ERROR_BIT | 6;
    /// The server is shutting down.
    pub const ERR_SHUTDOWN: u32 = ERROR_BIT | 7;
    /// The client must ask for block sizes first.
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERROR_BIT | 8;
    /// Request or reply is too large.
    pub const ERR_TOO_BIG: u32 = ERROR_BIT | 9;
}

/// Facts about an export, asked for and told in `INFO` and `GO`.
pub mod info {
    /// Size and transmission flags; always told.
    pub const EXPORT: u16 = 0;
    /// Canonical name.
    pub const NAME: u16 = 1;
    /// Description for people.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and maximum block size.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Commands of the transmission phase.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write; the payload follows the request.
    pub const WRITE: u16 = 1;
    /// Disconnect; not answered.
    pub const DISC: u16 = 2;
    /// Make answered writes durable.
    pub const FLUSH: u16 = 3;
    /// The range is no longer needed.
    pub const TRIM: u16 = 4;
    /// The range will be needed soon.
    pub const CACHE: u16 = 5;
    /// Make the range read as zeroes.
    pub const WRITE_ZEROES: u16 = 6;
    /// Ask for metadata of the range.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of a request.
pub mod command_flag {
    /// Answer only once the effect is durable.
    pub const FUA: u16 = 1 << 0;
    /// Zeroes must stay provisioned.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Answer a read in one content chunk.
    pub const DF: u16 = 1 << 2;
    /// Answer a block status with one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail unless zeroing is faster than writing.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// States of an extent in the metadata context `base:allocation`.
pub mod state {
    /// Not allocated: writing there may need space that is not there.
    pub const HOLE: u32 = 1 << 0;
    /// Reads as zeroes.
    pub const ZERO: u32 = 1 << 1;
}

/// Structured reply chunks: flags and types. Errors have bit 15 set.
pub mod chunk {
    /// Flag: the last chunk of its reply.
    pub const FLAG_DONE: u16 = 1 << 0;
    /// Nothing to add; always the last.
    pub const NONE: u16 = 0;
    /// 64 bits offset, then data.
    pub const OFFSET_DATA: u16 = 1;
    /// 64 bits offset, 32 bits number of zero bytes.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of one metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// Set in every error type.
    pub const ERROR_BIT: u16 = 1 << 15;
    /// 32 bits error, 16 bits message length, message.
    pub const ERROR: u16 = ERROR_BIT | 1;
    /// As [`ERROR`], then a 64-bit offset.
    pub const ERROR_OFFSET: u16 = ERROR_BIT | 2;
}

/// The 16-bit number at `at`. Panics when the bytes do not reach that far, as do its siblings.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array_at(bytes, at))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array_at(bytes, at))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array_at(bytes, at))
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

/// The error numbers the protocol allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ErrorCode {
    /// `NBD_EPERM`: not permitted; a write to a read-only export.
    Perm = 1,
    /// `NBD_EIO`: input/output error.
    Io = 5,
    /// `NBD_ENOMEM`: out of memory.
    NoMemory = 12,
    /// `NBD_EINVAL`: invalid request.
    Invalid = 22,
    /// `NBD_ENOSPC`: no space left, or a write past the end.
    NoSpace = 28,
    /// `NBD_EOVERFLOW`: too large to answer in one chunk.
    Overflow = 75,
    /// `NBD_ENOTSUP`: cannot be done fast.
    NotSupported = 95,
    /// `NBD_ESHUTDOWN`: the server is shutting down.
    Shutdown = 108,
}

impl ErrorCode {
    /// The number on the wire.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The code of a number on the wire. A number the protocol does not know counts as invalid, as
    /// it asks clients to.
    pub fn from_number(number: u32) -> Self {
        match number {
            1 => Self::Perm,
            5 => Self::Io,
            12 => Self::NoMemory,
            28 => Self::NoSpace,
            75 => Self::Overflow,
            95 => Self::NotSupported,
            108 => Self::Shutdown,
            _ => Self::Invalid,
        }
    }
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Perm => "EPERM",
            Self::Io => "EIO",
            Self::NoMemory => "ENOMEM",
            Self::Invalid => "EINVAL",
            Self::NoSpace => "ENOSPC",
            Self::Overflow => "EOVERFLOW",
            Self::NotSupported => "ENOTSUP",
            Self::Shutdown => "ESHUTDOWN",
        })
    }
}

/// The answer to a request that fails. The message travels in structured replies; keep it under
/// [`reply::MESSAGE_MAX_BYTES`](crate::transmission::MESSAGE_MAX_BYTES).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({code})")]
pub struct NbdError {
    /// The code, for the client's program.
    pub code: ErrorCode,
    /// The message, for a person.
    pub message: &'static str,
}

impl NbdError {
    /// An error with a message.
    pub const fn new(code: ErrorCode, message: &'static str) -> Self {
        Self { code, message }
    }
}

impl From<&io::Error> for NbdError {
    /// Returns the code nearest to the system's error. Errors without a code in the protocol become
    /// I/O errors.
    fn from(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES | libc::EROFS) => {
                Self::new(ErrorCode::Perm, "not permitted")
            }
            Some(libc::ENOMEM) => Self::new(ErrorCode::NoMemory, "out of memory"),
            Some(libc::EINVAL) => {
                Self::new(ErrorCode::Invalid, "the storage refused the request as invalid")
            }
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => {
                Self::new(ErrorCode::NoSpace, "no space left on the storage")
            }
            Some(libc::ESHUTDOWN) => Self::new(ErrorCode::Shutdown, "the server is shutting down"),
            _ => Self::new(ErrorCode::Io, "the storage failed"),
        }
    }
}

/// Why a connection is dropped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{violation}, in the message at byte {at} from the client")]
pub struct ProtocolError {
    /// The position of the offending message: the number of bytes the client had sent before it.
    pub at: u64,
    /// The rule that it broke.
    pub violation: Violation,
}

/// A broken rule of the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The client set flags the server did not offer.
    #[error("unknown client flags {0:#x}")]
    ClientFlags(u32),
    /// An option did not start with `IHAVEOPT`.
    #[error("bad option magic {0:#018x}")]
    OptionMagic(u64),
    /// A client that did not agree to fixed newstyle sent anything but `EXPORT_NAME`.
    #[error("option {0} without fixed newstyle negotiation")]
    NotFixedNewstyle(u32),
    /// More options than any honest client needs.
    #[error("more than {0} options")]
    TooManyOptions(u32),
    /// An option's data is too long even to be skipped.
    #[error("option {option} with {length} bytes of data (at most {max})")]
    OptionTooLong {
        /// The option.
        option: u32,
        /// Length of its data as the client announced it.
        length: u32,
        /// The longest data skipped.
        max: u32,
    },
    /// `EXPORT_NAME`, which cannot be answered with an error, asked for an export there is not.
    #[error("no export named {0:?}")]
    UnknownExport(String),
    /// `EXPORT_NAME`, which cannot be answered with an error, came in the clear to a server that
    /// requires TLS.
    #[error("an export is asked for without TLS, which this server requires")]
    TlsRequired,
    /// Bytes followed a request for TLS before it was granted: an attacker may have inserted them.
    #[error("{0} bytes in the clear behind the request for TLS")]
    ClearBehindStartTls(usize),
    /// A request did not start with its magic number: the stream is out of step.
    #[error("bad request magic {0:#010x}")]
    RequestMagic(u32),
    /// A write's payload is too long even to be skipped.
    #[error("a write of {length} bytes (at most {max})")]
    WriteTooLong {
        /// Length as the client announced it.
        length: u32,
        /// The longest payload skipped.
        max: u32,
    },
    /// The client hung up in the middle of a message.
    #[error("the client hung up inside {0}")]
    Truncated(&'static str),
}
