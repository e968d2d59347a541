//! Errors between a client and the server, in two kinds.
//!
//! A [`NbdError`] answers one request; the connection goes on. A [`ProtocolError`] says the client
//! broke the rules in a way that leaves the stream meaningless or the server unable to answer; the
//! connection is dropped. It names what was wrong and at which byte the offending message began,
//! counted from the first byte the client sent. Source: proto.md, "Error values" and "Terminating
//! the transmission phase".

use std::io;

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
/// [`reply::MESSAGE_MAX_BYTES`](super::reply::MESSAGE_MAX_BYTES).
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
