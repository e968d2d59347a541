//! Requests of the transmission phase: parsing a header, and checking it against the export.
//!
//! Parsing fails only on a wrong magic number, after which the stream has no meaning and the
//! connection is dropped. All else is a matter for [`check`], which answers a bad request with the
//! error code proto.md asks for ("Error values", "Request types", "Block size constraints") and
//! leaves the connection up.
//!
//! Decisions where the document leaves room: a request of no bytes succeeds and does nothing;
//! `TRIM`, `WRITE_ZEROES`, `CACHE` and `BLOCK_STATUS`, which carry no payload, may be longer than
//! the maximum block, since the Linux client does not know that limit; a refused write's payload is
//! drained up to [`DRAIN_MAX_BYTES`], beyond which the connection is dropped.

use super::error::{ErrorCode, NbdError, Violation};
use super::handshake::Negotiated;
use super::wire::{REQUEST_BYTES, REQUEST_MAGIC, command, command_flag, u16_at, u32_at, u64_at};

/// Longest payload of a refused write that is received and thrown away. A longer one costs the
/// connection.
pub const DRAIN_MAX_BYTES: u32 = 64 << 20;

/// A request's command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    /// Read a range.
    Read,
    /// Write a range; the payload follows the request.
    Write,
    /// Hang up once everything in flight is done; not answered.
    Disconnect,
    /// Make answered writes durable.
    Flush,
    /// The range is no longer needed.
    Trim,
    /// The range will be read soon.
    Cache,
    /// Make the range read as zeroes.
    WriteZeroes,
    /// Say which parts of the range are allocated, and which read as zeroes.
    BlockStatus,
    /// Anything else; refused.
    Unknown(u16),
}

/// One request of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Request {
    /// The client's name for it, repeated in the reply.
    pub cookie: u64,
    /// The command.
    pub command: Command,
    /// [`command_flag`]s.
    pub flags: u16,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range in bytes.
    pub length: u32,
}

impl Request {
    /// Returns whether the answer has to wait until the effect is durable.
    #[inline]
    pub fn fua(&self) -> bool {
        self.flags & command_flag::FUA != 0
    }

    /// Returns whether zeroes may be unmapped rather than written.
    #[inline]
    pub fn may_unmap(&self) -> bool {
        self.flags & command_flag::NO_HOLE == 0
    }

    /// Returns whether zeroing has to fail with `ENOTSUP` rather than be as slow as writing.
    #[inline]
    pub fn only_if_fast(&self) -> bool {
        self.command == Command::WriteZeroes && self.flags & command_flag::FAST_ZERO != 0
    }

    /// Returns whether one extent suffices as a block status.
    #[inline]
    pub fn one_extent(&self) -> bool {
        self.flags & command_flag::REQ_ONE != 0
    }

    /// The number of payload bytes that follow the request.
    #[inline]
    pub fn payload_bytes(&self) -> u32 {
        if self.command == Command::Write { self.length } else { 0 }
    }
}

/// Parses a request header.
///
/// # Errors
/// When it does not start with the magic number: the connection must be dropped.
pub fn parse(header: &[u8; REQUEST_BYTES]) -> Result<Request, Violation> {
    let magic = u32_at(header, 0);
    if magic != REQUEST_MAGIC {
        return Err(Violation::RequestMagic(magic));
    }
    Ok(Request {
        flags: u16_at(header, 4),
        command: match u16_at(header, 6) {
            command::READ => Command::Read,
            command::WRITE => Command::Write,
            command::DISC => Command::Disconnect,
            command::FLUSH => Command::Flush,
            command::TRIM => Command::Trim,
            command::CACHE => Command::Cache,
            command::BLOCK_STATUS => Command::BlockStatus,
            command::WRITE_ZEROES => Command::WriteZeroes,
            other => Command::Unknown(other),
        },
        cookie: u64_at(header, 8),
        offset: u64_at(header, 16),
        length: u32_at(header, 24),
    })
}

/// Checks whether an export can serve a request; afterwards the range lies inside the export.
///
/// # Errors
/// The error to answer with: `EINVAL` for an unknown command or flag, a block status that was not
/// agreed on or of no bytes, a misaligned range, a read or write longer than the maximum block,
/// anything but a write past the end; `EPERM` for changes to a read-only export; `ENOSPC` for
/// writes past the end. The first that applies, in that order: command, flags, permission, length,
/// alignment, end.
pub fn check(request: &Request, agreed: &Negotiated) -> Result<(), NbdError> {
    let export = &agreed.export;
    let Request { command, offset, length, .. } = *request;
    let allowed_flags = command_flag::FUA
        | match command {
            Command::Unknown(_) => return invalid("unknown command"),
            Command::Disconnect => return Ok(()),
            Command::BlockStatus if !agreed.base_allocation => {
                return invalid("no metadata context was selected");
            }
            Command::Read if agreed.structured_replies => command_flag::DF,
            Command::WriteZeroes => command_flag::NO_HOLE | command_flag::FAST_ZERO,
            Command::BlockStatus => command_flag::REQ_ONE,
            _ => 0,
        };
    if request.flags & !allowed_flags != 0 {
        return invalid("flags not known for this command");
    }
    if command == Command::Flush {
        return if offset == 0 && length == 0 {
            Ok(())
        } else {
            invalid("a flush has no offset and no length")
        };
    }
    if export.read_only && matches!(command, Command::Write | Command::Trim | Command::WriteZeroes)
    {
        return Err(NbdError::new(ErrorCode::Perm, "the export is read-only"));
    }
    if matches!(command, Command::Read | Command::Write) && length > export.maximum_block_bytes {
        return invalid("longer than the maximum block size");
    }
    if command == Command::BlockStatus && length == 0 {
        return invalid("a block status of no bytes");
    }
    let minimum = u64::from(export.minimum_block_bytes);
    if !offset.is_multiple_of(minimum) || !u64::from(length).is_multiple_of(minimum) {
        return invalid("not aligned to the minimum block size");
    }
    match offset.checked_add(u64::from(length)) {
        Some(end) if end <= export.size_bytes => Ok(()),
        _ if matches!(command, Command::Write | Command::WriteZeroes) => {
            Err(NbdError::new(ErrorCode::NoSpace, "past the end of the export"))
        }
        _ => invalid("past the end of the export"),
    }
}

fn invalid(message: &'static str) -> Result<(), NbdError> {
    Err(NbdError::new(ErrorCode::Invalid, message))
}
