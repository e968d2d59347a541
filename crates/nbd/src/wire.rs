//! Constants and layouts of the NBD protocol: magic numbers, flags, and the codes of options,
//! replies, commands and errors.
//!
//! Names are those of the document, with the prefix turned into a module: `NBD_OPT_GO` is
//! [`option::GO`], `NBD_REP_ACK` is [`option_reply::ACK`]. All numbers are in network byte order
//! (big-endian). Source: proto.md, "Values".

use std::io;

/// `NBDMAGIC`, the first eight bytes a server sends.
pub const SERVER_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`, sent by a newstyle server after [`SERVER_MAGIC`] and by the client before each
/// option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// The magic number at the start of each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// The magic number at the start of each request of the transmission phase.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// The magic number at the start of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// The magic number at the start of a structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Length of the server's greeting: [`SERVER_MAGIC`], [`OPTION_MAGIC`], 16 bits of
/// [`handshake_flag`]s.
pub const GREETING_BYTES: usize = 18;
/// Length of the client's answer to the greeting: 32 bits of [`client_flag`]s.
pub const CLIENT_FLAGS_BYTES: usize = 4;
/// Length of an option header: [`OPTION_MAGIC`], 32 bits option, 32 bits length.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Length of an option reply header: [`OPTION_REPLY_MAGIC`], 32 bits option, 32 bits reply type, 32
/// bits length.
pub const OPTION_REPLY_HEADER_BYTES: usize = 20;
/// Length of a request header: [`REQUEST_MAGIC`], 16 bits flags, 16 bits command, 64 bits cookie,
/// 64 bits offset, 32 bits length.
pub const REQUEST_BYTES: usize = 28;
/// Length of a simple reply header: [`SIMPLE_REPLY_MAGIC`], 32 bits error, 64 bits cookie.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Length of a structured reply chunk header: [`STRUCTURED_REPLY_MAGIC`], 16 bits flags, 16 bits
/// type, 64 bits cookie, 32 bits length.
pub const CHUNK_HEADER_BYTES: usize = 20;
/// Zero bytes after the answer to [`option::EXPORT_NAME`], unless [`client_flag::NO_ZEROES`] was
/// negotiated.
pub const EXPORT_NAME_ZEROES_BYTES: usize = 124;
/// Length of an extent in a block status chunk: 32 bits length, 32 bits [`state`]. Extents follow
/// the 32-bit number of their metadata context.
pub const EXTENT_BYTES: usize = 8;
/// Longest string (export name, description, message) in the protocol, in bytes.
pub const STRING_MAX_BYTES: usize = 4096;

/// Flags the server sends in its greeting.
pub mod handshake_flag {
    /// The server supports fixed newstyle negotiation.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The server can omit the zeros after `EXPORT_NAME`, if the client asks for that.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Flags with which the client answers the greeting.
pub mod client_flag {
    /// The client supports fixed newstyle negotiation.
    pub const FIXED_NEWSTYLE: u32 = 1 << 0;
    /// The server shall omit the zeros after `EXPORT_NAME`.
    pub const NO_ZEROES: u32 = 1 << 1;
}

/// Flags with the abilities of an export, sent at the end of the handshake.
pub mod transmission_flag {
    /// The other flags are valid; always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// The export refuses writes.
    pub const READ_ONLY: u16 = 1 << 1;
    /// The server supports `FLUSH`.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The server supports the `FUA` command flag (force unit access).
    pub const SEND_FUA: u16 = 1 << 3;
    /// The medium is a rotating disk.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// The server supports `TRIM`.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// The server supports `WRITE_ZEROES` and the `NO_HOLE` command flag.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The server supports the `DF` command flag; only with structured replies.
    pub const SEND_DF: u16 = 1 << 7;
    /// Several connections see one coherent disk: a flush on one covers writes answered on all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// The server supports `CACHE`.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The server supports the `FAST_ZERO` command flag.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Options that a client negotiates in the handshake.
pub mod option {
    /// Chooses an export and starts transmission; the server can refuse only by hanging up.
    pub const EXPORT_NAME: u32 = 1;
    /// Ends the session.
    pub const ABORT: u32 = 2;
    /// Lists the exports.
    pub const LIST: u32 = 3;
    /// Switches to TLS.
    pub const STARTTLS: u32 = 5;
    /// Asks for the description of an export.
    pub const INFO: u32 = 6;
    /// Asks for the description of an export, and starts transmission.
    pub const GO: u32 = 7;
    /// Negotiates structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Lists metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Selects metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Negotiates extended headers, with 64-bit lengths.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of replies to options. Errors have bit 31 set.
pub mod option_reply {
    /// The option is accepted, or a list ends.
    pub const ACK: u32 = 1;
    /// One export of a list.
    pub const SERVER: u32 = 2;
    /// One fact about an export.
    pub const INFO: u32 = 3;
    /// One metadata context of a list or selection.
    pub const META_CONTEXT: u32 = 4;
    /// The bit that is set in every error type.
    pub const ERROR_BIT: u32 = 1 << 31;
    /// The server does not support the option.
    pub const ERR_UNSUP: u32 = ERROR_BIT | 1;
    /// The server's policy forbids the option.
    pub const ERR_POLICY: u32 = ERROR_BIT | 2;
    /// The option's data is malformed.
    pub const ERR_INVALID: u32 = ERROR_BIT | 3;
    /// The option is refused without TLS.
    pub const ERR_TLS_REQD: u32 = ERROR_BIT | 5;
    /// The requested export does not exist.
    pub const ERR_UNKNOWN: u32 = ERROR_BIT | 6;
    /// The server is shutting down and refuses the option.
    pub const ERR_SHUTDOWN: u32 = ERROR_BIT | 7;
    /// The client must request the block sizes first.
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERROR_BIT | 8;
    /// The request or the reply is too large.
    pub const ERR_TOO_BIG: u32 = ERROR_BIT | 9;
}

/// Types of information on an export, in `INFO` and `GO`.
pub mod info {
    /// Size and transmission flags; always sent.
    pub const EXPORT: u16 = 0;
    /// Canonical name of the export.
    pub const NAME: u16 = 1;
    /// Description of the export for users.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and maximum block size.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Commands of the transmission phase.
pub mod command {
    /// Reads a range.
    pub const READ: u16 = 0;
    /// Writes a range; the payload follows the request.
    pub const WRITE: u16 = 1;
    /// Disconnects; not answered.
    pub const DISC: u16 = 2;
    /// Makes acknowledged writes durable.
    pub const FLUSH: u16 = 3;
    /// Discards a range, whose content is no longer needed.
    pub const TRIM: u16 = 4;
    /// Prefetches a range, which will be read soon.
    pub const CACHE: u16 = 5;
    /// Makes a range read as zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// Asks for the allocation state or other metadata of a range.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of a request.
pub mod command_flag {
    /// Reply only once the effect is durable (force unit access).
    pub const FUA: u16 = 1 << 0;
    /// Keep the zeroed range allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Do not fragment: answer a read in one content chunk.
    pub const DF: u16 = 1 << 2;
    /// Answer a block status with one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail the request unless zeroing is faster than writing.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// States of an extent in the metadata context `base:allocation`.
pub mod state {
    /// The bytes are not allocated, so that a write may fail for lack of space.
    pub const HOLE: u32 = 1 << 0;
    /// The bytes read as zeros.
    pub const ZERO: u32 = 1 << 1;
}

/// Flags and types of structured reply chunks. Error types have bit 15 set.
pub mod chunk {
    /// Flag: the last chunk of its reply.
    pub const FLAG_DONE: u16 = 1 << 0;
    /// A chunk without content; always the last of its reply.
    pub const NONE: u16 = 0;
    /// Read data: 64 bits offset, then the data.
    pub const OFFSET_DATA: u16 = 1;
    /// A range of zeros in read data: 64 bits offset, 32 bits length.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of one metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// The bit that is set in every error type.
    pub const ERROR_BIT: u16 = 1 << 15;
    /// An error: 32 bits error code, 16 bits message length, message.
    pub const ERROR: u16 = ERROR_BIT | 1;
    /// An error like [`ERROR`], followed by the 64-bit offset where it occurred.
    pub const ERROR_OFFSET: u16 = ERROR_BIT | 2;
}

/// Reads the 16-bit number at `at`. Like its siblings, panics when `bytes` is too short.
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

/// The error codes of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ErrorCode {
    /// `NBD_EPERM`: not permitted, such as a write to a read-only export.
    Perm = 1,
    /// `NBD_EIO`: input/output error.
    Io = 5,
    /// `NBD_ENOMEM`: out of memory.
    NoMemory = 12,
    /// `NBD_EINVAL`: invalid request.
    Invalid = 22,
    /// `NBD_ENOSPC`: no space left, or a write past the end.
    NoSpace = 28,
    /// `NBD_EOVERFLOW`: the answer is too large for one chunk.
    Overflow = 75,
    /// `NBD_ENOTSUP`: zeroing cannot be done faster than writing.
    NotSupported = 95,
    /// `NBD_ESHUTDOWN`: the server is shutting down.
    Shutdown = 108,
}

impl ErrorCode {
    /// Returns the error number that the protocol uses.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// Converts an error number of the protocol. An unknown number becomes `EINVAL`, as the
    /// protocol requires of clients.
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

/// The error with which a request is answered. The message is sent in structured replies, truncated
/// to [`MESSAGE_MAX_BYTES`](crate::transmission::MESSAGE_MAX_BYTES).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({code})")]
pub struct NbdError {
    /// The error code, for the client's program.
    pub code: ErrorCode,
    /// The error message, for the user.
    pub message: &'static str,
}

impl NbdError {
    /// Creates an error with a message.
    pub const fn new(code: ErrorCode, message: &'static str) -> Self {
        Self { code, message }
    }
}

impl From<&io::Error> for NbdError {
    /// Converts a system error to the nearest code. Errors without a code in the protocol become
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

/// The reason why the server drops a connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{violation}, in the message at byte {at} from the client")]
pub struct ProtocolError {
    /// The position of the offending message: the number of bytes that the client had sent before
    /// it.
    pub at: u64,
    /// The rule that the message violated.
    pub violation: Violation,
}

/// A violation of the protocol by a client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The client set these flags, which the server did not offer.
    #[error("unknown client flags {0:#x}")]
    ClientFlags(u32),
    /// An option did not start with `IHAVEOPT`, but with this number.
    #[error("bad option magic {0:#018x}")]
    OptionMagic(u64),
    /// A client that did not agree to fixed newstyle sent this option instead of `EXPORT_NAME`.
    #[error("option {0} without fixed newstyle negotiation")]
    NotFixedNewstyle(u32),
    /// The client sent more options than the server allows.
    #[error("more than {0} options")]
    TooManyOptions(u32),
    /// The data of an option is too long even to be skipped.
    #[error("option {option} with {length} bytes of data (at most {max})")]
    OptionTooLong {
        /// The number of the option.
        option: u32,
        /// Length of the data in bytes, as the client announced it.
        length: u32,
        /// Longest data that the server skips, in bytes.
        max: u32,
    },
    /// `EXPORT_NAME`, which cannot be answered with an error, named an export that does not exist.
    #[error("no export named {0:?}")]
    UnknownExport(String),
    /// `EXPORT_NAME`, which cannot be answered with an error, named an export that has as many
    /// clients as it may.
    #[error("export {0:?} has as many connections as its limit allows")]
    NoPlace(String),
    /// `EXPORT_NAME`, which cannot be answered with an error, was sent without TLS to a server that
    /// requires TLS.
    #[error("an export is asked for without TLS, which this server requires")]
    TlsRequired,
    /// This many bytes followed a request for TLS before it was granted: an attacker may have
    /// inserted them.
    #[error("{0} bytes in the clear behind the request for TLS")]
    ClearBehindStartTls(usize),
    /// A request started with this number instead of the magic number, so the position in the
    /// stream is lost.
    #[error("bad request magic {0:#010x}")]
    RequestMagic(u32),
    /// The payload of a write is too long even to be skipped.
    #[error("a write of {length} bytes (at most {max})")]
    WriteTooLong {
        /// Length of the payload in bytes, as the client announced it.
        length: u32,
        /// Longest payload that the server skips, in bytes.
        max: u32,
    },
    /// The client hung up in the middle of this kind of message.
    #[error("the client hung up inside {0}")]
    Truncated(&'static str),
}
