//! The send queue of a client: answers of the handshake, and replies.
//!
//! Headers gather in one buffer, and payloads leave straight from the device's buffers. A send is
//! at most [`PIECE_BYTES`] long, so that a stalled client can be told from a slow one.

use std::collections::VecDeque;

use crate::limits::{PIECE_BYTES, SEND_HEADER_BYTES};
use floe_device::{Pool, Slice};

/// Replies for which an idle client's queue keeps memory.
const REPLIES_KEPT: usize = 8;

/// Bytes of headers for which an idle client's queue keeps memory.
const HEADERS_KEPT: usize = REPLIES_KEPT * 32;

/// A reply on its way out.
#[derive(Debug)]
struct Reply {
    /// Bytes of its header that have not left.
    header_bytes: usize,
    payload: Option<Slice>,
    /// Bytes that it counts against the session's and the server's bounds.
    bytes: usize,
}

/// The queue of bytes to send.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Answers of the handshake, before all replies.
    pub(crate) answers: Vec<u8>,
    replies: VecDeque<Reply>,
    /// The headers of the replies, one behind the other.
    headers: Vec<u8>,
    /// An empty list, for the next send.
    spare: Vec<Slice>,
    /// Replies whose last byte is in the send under way, and their bytes.
    leaving: usize,
    leaving_bytes: usize,
}

impl Outbox {
    /// Queues a reply. `bytes` of the client's share are free again when it has left.
    pub(crate) fn push(&mut self, header: &[u8], payload: Option<Slice>, bytes: usize) {
        debug_assert!(header.len() <= SEND_HEADER_BYTES, "a send has room for a header");
        self.headers.extend_from_slice(header);
        self.replies.push_back(Reply { header_bytes: header.len(), payload, bytes });
    }

    /// Queues bytes behind the replies that wait.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(SEND_HEADER_BYTES) {
            self.push(part, None, 0);
        }
    }

    /// Returns whether nothing waits to be sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.answers.is_empty() && self.replies.is_empty()
    }

    /// Returns the number of replies that have not left completely.
    pub(crate) fn len(&self) -> usize {
        self.replies.len() + self.leaving
    }

    /// Gathers the next send, of about `most` bytes at most.
    pub(crate) fn gather(&mut self, pool: &Pool, most: usize) -> Vec<Slice> {
        let mut room = most.min(PIECE_BYTES);
        let mut slices = std::mem::take(&mut self.spare);
        if !self.answers.is_empty() {
            slices.push(slice_of(&self.answers, pool));
            self.answers.clear();
        }
        // Headers lie side by side in one buffer; those without payloads between them leave as one
        // slice.
        let headers = pool.allocate(SEND_HEADER_BYTES);
        let (mut begun, mut end) = (0, 0);
        while room > 0
            && let Some(reply) = self.replies.front_mut()
        {
            if end + reply.header_bytes > SEND_HEADER_BYTES {
                break;
            }
            end += std::mem::take(&mut reply.header_bytes);
            if let Some(payload) = reply.payload.take() {
                if begun < end {
                    slices.push(headers.slice(begun..end));
                    begun = end;
                }
                let now = payload.len().min(room);
                room -= now;
                slices.push(payload.slice(0..now));
                if now < payload.len() {
                    reply.payload = Some(payload.slice(now..payload.len()));
                    break;
                }
            }
            self.leaving += 1;
            self.leaving_bytes += reply.bytes;
            self.replies.pop_front();
        }
        if begun < end {
            slices.push(headers.slice(begun..end));
        }
        headers.slice(0..end).copy_from(&self.headers[..end]);
        self.headers.drain(..end);
        slices
    }

    /// Keeps an empty list for the next send.
    pub(crate) fn keep(&mut self, list: Vec<Slice>) {
        debug_assert!(list.is_empty());
        self.spare = list;
    }

    /// Drops the gathered replies, sent or not. Returns the number of bytes freed.
    pub(crate) fn left(&mut self) -> usize {
        self.leaving = 0;
        std::mem::take(&mut self.leaving_bytes)
    }

    /// Drops all replies that are not being sent. Returns the number of bytes freed.
    pub(crate) fn clear(&mut self) -> usize {
        self.answers.clear();
        self.headers.clear();
        self.replies.drain(..).map(|reply| reply.bytes).sum()
    }

    /// Frees memory that an idle client does not need.
    pub(crate) fn shrink(&mut self) {
        self.answers.shrink_to_fit();
        self.spare.shrink_to(2 * REPLIES_KEPT);
        if self.headers.is_empty() {
            self.headers.shrink_to(HEADERS_KEPT);
        }
        if self.replies.is_empty() && self.replies.capacity() > REPLIES_KEPT {
            self.replies.shrink_to(REPLIES_KEPT);
        }
    }
}

/// Returns a buffer of the pool that holds `bytes`.
pub(crate) fn slice_of(bytes: &[u8], pool: &Pool) -> Slice {
    let slice = pool.allocate(bytes.len()).slice(0..bytes.len());
    slice.copy_from(bytes);
    slice
}
