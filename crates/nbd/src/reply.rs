//! Replies of the transmission phase: a small header by value, followed on the wire by bytes the
//! driver already has.
//!
//! A read's data is never copied here: the header says how much payload must follow it. Without
//! structured replies every reply is simple. With them, reads are answered by a single
//! `OFFSET_DATA` chunk that is also the last (which honours `DF`), block status by one
//! `BLOCK_STATUS` chunk, errors by an `ERROR` chunk with a message, and the success of all else by
//! a simple reply, which the protocol allows and which is shorter. Source: proto.md, "Simple reply
//! message", "Structured reply chunk message".
//!
//! Invariant: a read's header is made only when its data is complete, so no error can follow it.

use super::error::NbdError;
use super::meta_context::BASE_ALLOCATION_ID;
use super::transmission::{Command, Request};
use super::wire::{
    CHUNK_HEADER_BYTES, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, chunk,
};

/// Longest message an error carries; the rest is cut off.
pub const MESSAGE_MAX_BYTES: usize = 70;
/// Longest header: an error chunk with the longest message.
pub const REPLY_HEADER_MAX_BYTES: usize = CHUNK_HEADER_BYTES + 6 + MESSAGE_MAX_BYTES;

/// The bytes to send before the payload.
#[derive(Debug, Clone, Copy)]
pub struct ReplyHeader {
    bytes: [u8; REPLY_HEADER_MAX_BYTES],
    len: u8,
    payload_bytes: u32,
}

impl ReplyHeader {
    /// The reply to a request that was carried out. A read's data, exactly
    /// [`ReplyHeader::payload_bytes`], follows it.
    #[inline]
    pub fn success(request: &Request, structured_replies: bool) -> Self {
        let mut header = Self::empty();
        match (request.command, structured_replies, request.length) {
            (Command::Read, true, 0) => header.chunk(chunk::NONE, request.cookie, 0),
            (Command::Read, true, length) => {
                header.chunk(chunk::OFFSET_DATA, request.cookie, 8 + length);
                header.push(&request.offset.to_be_bytes());
                header.payload_bytes = length;
            }
            (Command::Read, false, length) => {
                header.simple(0, request.cookie);
                header.payload_bytes = length;
            }
            _ => header.simple(0, request.cookie),
        }
        header
    }

    /// The reply to a block status request; so many bytes of [extents](super::extent) follow it.
    pub fn block_status(request: &Request, extents_bytes: usize) -> Self {
        let mut header = Self::empty();
        header.chunk(chunk::BLOCK_STATUS, request.cookie, 4 + extents_bytes as u32);
        header.push(&BASE_ALLOCATION_ID.to_be_bytes());
        header.payload_bytes = extents_bytes as u32;
        header
    }

    /// The reply to a request that failed or was refused. Nothing follows it.
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

    /// The bytes to send.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The number of payload bytes that must follow.
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

    /// The header of the only chunk of a reply.
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
