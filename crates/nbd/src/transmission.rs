//! Requests of the transmission phase: parsing headers, checking requests against the export, and
//! building replies.
//!
//! Parsing fails only on a wrong magic number, after which the position in the stream is lost and
//! the connection is dropped. All other errors are found by [`check`], which answers a bad request
//! with the error code proto.md requires ("Error values", "Request types", "Block size
//! constraints") and keeps the connection.
//!
//! Decisions where the document leaves room: a request of no bytes succeeds and does nothing;
//! `TRIM`, `WRITE_ZEROES`, `CACHE` and `BLOCK_STATUS`, which carry no payload, may be longer than
//! the maximum block, since the Linux client does not know that limit; a refused write's payload is
//! drained up to [`DRAIN_MAX_BYTES`], beyond which the connection is dropped.

use super::handshake::Negotiated;
use super::wire::{REQUEST_BYTES, REQUEST_MAGIC, command, command_flag, u16_at, u32_at, u64_at};
use crate::export::BASE_ALLOCATION_ID;
use crate::wire::{
    CHUNK_HEADER_BYTES, EXTENT_BYTES, ErrorCode, NbdError, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, Violation, chunk, state,
};

/// Longest payload of a refused write, in bytes, that is received and discarded. If it is longer,
/// the connection is dropped.
pub const DRAIN_MAX_BYTES: u32 = 64 << 20;

/// The command of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NbdCommand {
    /// Read a range.
    Read,
    /// Write a range; the payload follows the request.
    Write,
    /// Disconnect once all requests in flight are done; not answered.
    Disconnect,
    /// Make acknowledged writes durable.
    Flush,
    /// Discard the range, whose content is no longer needed.
    Trim,
    /// Prefetch the range, which will be read soon.
    Cache,
    /// Make the range read as zeros.
    WriteZeroes,
    /// Report which parts of the range are allocated, and which read as zeros.
    BlockStatus,
    /// A command with a number that the protocol does not define; it is refused.
    Unknown(u16),
}

/// A request from a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Request {
    /// The client's identifier of the request, repeated in the reply.
    pub cookie: u64,
    /// The command of the request.
    pub command: NbdCommand,
    /// The request's [`command_flag`]s.
    pub flags: u16,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range in bytes.
    pub length: u32,
}

impl Request {
    /// Returns whether the reply must wait until the effect is durable (force unit access).
    #[inline]
    pub fn fua(&self) -> bool {
        self.flags & command_flag::FUA != 0
    }

    /// Returns whether zeroing may deallocate the range instead of writing zeros.
    #[inline]
    pub fn may_unmap(&self) -> bool {
        self.flags & command_flag::NO_HOLE == 0
    }

    /// Returns whether zeroing must fail with `ENOTSUP` if it is no faster than writing.
    #[inline]
    pub fn only_if_fast(&self) -> bool {
        self.command == NbdCommand::WriteZeroes && self.flags & command_flag::FAST_ZERO != 0
    }

    /// Returns whether the client wants only one extent in the block status.
    #[inline]
    pub fn one_extent(&self) -> bool {
        self.flags & command_flag::REQ_ONE != 0
    }

    /// Returns the number of payload bytes that follow the request.
    #[inline]
    pub fn payload_bytes(&self) -> u32 {
        if self.command == NbdCommand::Write { self.length } else { 0 }
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
            command::READ => NbdCommand::Read,
            command::WRITE => NbdCommand::Write,
            command::DISC => NbdCommand::Disconnect,
            command::FLUSH => NbdCommand::Flush,
            command::TRIM => NbdCommand::Trim,
            command::CACHE => NbdCommand::Cache,
            command::BLOCK_STATUS => NbdCommand::BlockStatus,
            command::WRITE_ZEROES => NbdCommand::WriteZeroes,
            other => NbdCommand::Unknown(other),
        },
        cookie: u64_at(header, 8),
        offset: u64_at(header, 16),
        length: u32_at(header, 24),
    })
}

/// Checks whether an export can serve a request. If so, the range lies inside the export.
///
/// # Errors
/// The error to answer with:
/// - `EINVAL` for an unknown command or flag, a block status that was not negotiated or of no
///   bytes, a misaligned range, a read or write longer than the maximum block, or a request past
///   the end (except writes);
/// - `EPERM` for changes to a read-only export;
/// - `ENOSPC` for writes past the end.
///
/// If several apply, the first counts in this order: command, flags, permission, length, alignment,
/// end.
pub fn check(request: &Request, agreed: &Negotiated) -> Result<(), NbdError> {
    let export = &agreed.export;
    let Request { command, offset, length, .. } = *request;
    let allowed_flags = command_flag::FUA
        | match command {
            NbdCommand::Unknown(_) => return invalid("unknown command"),
            NbdCommand::Disconnect => return Ok(()),
            NbdCommand::BlockStatus if !agreed.base_allocation => {
                return invalid("no metadata context was selected");
            }
            NbdCommand::Read if agreed.structured_replies => command_flag::DF,
            NbdCommand::WriteZeroes => command_flag::NO_HOLE | command_flag::FAST_ZERO,
            NbdCommand::BlockStatus => command_flag::REQ_ONE,
            _ => 0,
        };
    if request.flags & !allowed_flags != 0 {
        return invalid("flags not known for this command");
    }
    if command == NbdCommand::Flush {
        return if offset == 0 && length == 0 {
            Ok(())
        } else {
            invalid("a flush has no offset and no length")
        };
    }
    if export.read_only
        && matches!(command, NbdCommand::Write | NbdCommand::Trim | NbdCommand::WriteZeroes)
    {
        return Err(NbdError::new(ErrorCode::Perm, "the export is read-only"));
    }
    if matches!(command, NbdCommand::Read | NbdCommand::Write)
        && length > export.maximum_block_bytes
    {
        return invalid("longer than the maximum block size");
    }
    if command == NbdCommand::BlockStatus && length == 0 {
        return invalid("a block status of no bytes");
    }
    let minimum = u64::from(export.minimum_block_bytes);
    if !offset.is_multiple_of(minimum) || !u64::from(length).is_multiple_of(minimum) {
        return invalid("not aligned to the minimum block size");
    }
    match offset.checked_add(u64::from(length)) {
        Some(end) if end <= export.size_bytes => Ok(()),
        _ if matches!(command, NbdCommand::Write | NbdCommand::WriteZeroes) => {
            Err(NbdError::new(ErrorCode::NoSpace, "past the end of the export"))
        }
        _ => invalid("past the end of the export"),
    }
}

fn invalid(message: &'static str) -> Result<(), NbdError> {
    Err(NbdError::new(ErrorCode::Invalid, message))
}

/// Longest message of an error reply in bytes; longer ones are truncated.
pub const MESSAGE_MAX_BYTES: usize = 70;
/// Longest reply header in bytes: an error chunk with the longest message.
pub const REPLY_HEADER_MAX_BYTES: usize = CHUNK_HEADER_BYTES + 6 + MESSAGE_MAX_BYTES;

/// The bytes of a reply before its payload.
#[derive(Debug, Clone, Copy)]
pub struct ReplyHeader {
    bytes: [u8; REPLY_HEADER_MAX_BYTES],
    len: u8,
    payload_bytes: u32,
}

impl ReplyHeader {
    /// Creates the reply to a request that was carried out. A read's data, exactly
    /// [`ReplyHeader::payload_bytes`], follows it.
    #[inline]
    pub fn success(request: &Request, structured_replies: bool) -> Self {
        let mut header = Self::empty();
        match (request.command, structured_replies, request.length) {
            (NbdCommand::Read, true, 0) => header.chunk(chunk::NONE, request.cookie, 0),
            (NbdCommand::Read, true, length) => {
                header.chunk(chunk::OFFSET_DATA, request.cookie, 8 + length);
                header.push(&request.offset.to_be_bytes());
                header.payload_bytes = length;
            }
            (NbdCommand::Read, false, length) => {
                header.simple(0, request.cookie);
                header.payload_bytes = length;
            }
            _ => header.simple(0, request.cookie),
        }
        header
    }

    /// Creates the reply to a block status request. `extents_bytes` bytes of
    /// [extents](encode_extents) follow it.
    pub fn block_status(request: &Request, extents_bytes: usize) -> Self {
        let mut header = Self::empty();
        header.chunk(chunk::BLOCK_STATUS, request.cookie, 4 + extents_bytes as u32);
        header.push(&BASE_ALLOCATION_ID.to_be_bytes());
        header.payload_bytes = extents_bytes as u32;
        header
    }

    /// Creates the reply to a request that failed or was refused. It has no payload.
    pub fn failure(request: &Request, error: &NbdError, structured_replies: bool) -> Self {
        let mut header = Self::empty();
        let code = error.code.number();
        if structured_replies {
            let message = &error.message[..error.message.floor_char_boundary(MESSAGE_MAX_BYTES)];
            header.chunk(chunk::ERROR, request.cookie, 6 + message.len() as u32);
            header.push(&code.to_be_bytes());
            header.push(&(message.len() as u16).to_be_bytes());
            header.push(message.as_bytes());
        } else {
            header.simple(code, request.cookie);
        }
        header
    }

    /// Returns the bytes to send.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns the number of payload bytes that must follow the header.
    #[inline]
    pub fn payload_bytes(&self) -> u32 {
        self.payload_bytes
    }

    #[inline]
    fn empty() -> Self {
        Self { bytes: [0; REPLY_HEADER_MAX_BYTES], len: 0, payload_bytes: 0 }
    }

    #[inline]
    fn simple(&mut self, error: u32, cookie: u64) {
        self.push(&SIMPLE_REPLY_MAGIC.to_be_bytes());
        self.push(&error.to_be_bytes());
        self.push(&cookie.to_be_bytes());
        debug_assert_eq!(usize::from(self.len), SIMPLE_REPLY_BYTES);
    }

    /// Appends the chunk header of a reply that has a single chunk.
    #[inline]
    fn chunk(&mut self, kind: u16, cookie: u64, length: u32) {
        self.push(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
        self.push(&chunk::FLAG_DONE.to_be_bytes());
        self.push(&kind.to_be_bytes());
        self.push(&cookie.to_be_bytes());
        self.push(&length.to_be_bytes());
        debug_assert_eq!(usize::from(self.len), CHUNK_HEADER_BYTES);
    }

    #[inline]
    fn push(&mut self, field: &[u8]) {
        let start = usize::from(self.len);
        self.bytes[start..start + field.len()].copy_from_slice(field);
        self.len += field.len() as u8;
    }
}

/// Maximum number of extents in one reply. A reply may end early, and the client asks again from
/// there. With its header a reply fits a page.
pub const EXTENTS_MAX: usize = 500;

/// A run of bytes with the same allocation state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length of the run in bytes.
    pub bytes: u64,
    /// True if the bytes are not allocated, so that a write may fail for lack of space.
    pub hole: bool,
    /// True if the bytes are known to read as zeros.
    pub zero: bool,
}

impl Extent {
    /// Creates an extent of allocated bytes with unknown content.
    pub fn data(bytes: u64) -> Self {
        Self { bytes, hole: false, zero: false }
    }
}

/// Encodes the extents that follow the header of a block status reply. There is at least one,
/// adjacent ones differ, and together they are no longer than the request. A reply may end before
/// the request's range does; if `extents` is empty, the whole range counts as data.
pub fn encode_extents(request: &Request, extents: &[Extent]) -> Vec<u8> {
    let most = if request.one_extent() { 1 } else { EXTENTS_MAX };
    let mut runs: Vec<(u32, u32)> = Vec::new();
    let mut left = request.length;
    let all = [Extent::data(u64::from(request.length))];
    let known = if extents.iter().all(|extent| extent.bytes == 0) { &all } else { extents };
    for extent in known {
        let bytes = u64::from(left).min(extent.bytes) as u32; // not longer than `left`
        if bytes == 0 {
            continue;
        }
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        let states = flag(extent.hole, state::HOLE) | flag(extent.zero, state::ZERO);
        let full = runs.len() == most;
        match runs.last_mut() {
            Some((length, before)) if *before == states => *length += bytes,
            _ if full => break,
            _ => runs.push((bytes, states)),
        }
        left -= bytes;
    }
    let mut payload = Vec::with_capacity(runs.len() * EXTENT_BYTES);
    for (length, states) in runs {
        payload.extend(length.to_be_bytes());
        payload.extend(states.to_be_bytes());
    }
    payload
}

#[cfg(test)]
mod extent_tests {
    use super::*;
    use crate::transmission::NbdCommand;
    use crate::wire::{command_flag, u32_at};

    fn told(length: u32, flags: u16, extents: &[Extent]) -> Vec<(u32, u32)> {
        let request =
            Request { cookie: 1, command: NbdCommand::BlockStatus, flags, offset: 0, length };
        let bytes = encode_extents(&request, extents);
        bytes.chunks(EXTENT_BYTES).map(|run| (u32_at(run, 0), u32_at(run, 4))).collect()
    }

    fn extent(bytes: u64, hole: bool, zero: bool) -> Extent {
        Extent { bytes, hole, zero }
    }

    #[test]
    fn neighbours_in_one_state_are_one_extent_and_the_last_ends_with_the_request() {
        let extents = [
            Extent::data(512),
            Extent::data(512),
            extent(0, true, true),
            extent(u64::MAX, true, true),
        ];
        assert_eq!(told(4096, 0, &extents), [(1024, 0), (3072, state::HOLE | state::ZERO)]);
        assert_eq!(told(1000, 0, &extents), [(1000, 0)]);
        assert_eq!(
            told(100, 0, &[extent(50, true, false), extent(50, false, true)]),
            [(50, 1), (50, 2)]
        );
    }

    #[test]
    fn a_client_that_asks_for_one_extent_gets_one_as_long_as_it_is_known() {
        let extents = [Extent::data(512), Extent::data(512), extent(1024, true, true)];
        assert_eq!(told(4096, command_flag::REQ_ONE, &extents), [(1024, 0)]);
    }

    #[test]
    fn many_extents_are_cut_off_and_none_at_all_means_data() {
        let extents: Vec<_> = (0..2000).map(|n| extent(512, n % 2 == 1, false)).collect();
        assert_eq!(told(1 << 20, 0, &extents).len(), EXTENTS_MAX);
        assert_eq!(told(u32::MAX, 0, &[]), [(u32::MAX, 0)]);
        assert_eq!(told(7, 0, &[extent(0, true, true)]), [(7, 0)]);
    }
}
