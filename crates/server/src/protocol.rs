//! The interface between a session and the protocol that its client speaks.
//!
//! A protocol is a state machine without sockets and buffers. It turns received bytes into
//! [`Request`]s, and the answers of the cache into bytes. The session owns the socket, TLS, the
//! buffers and the client's share of the memory, and the worker is independent of the protocol:
//!
//! ```text
//!          session                                      protocol
//! bytes ─> advance ───────────────────────────────────> Event::Request, a write
//!          takes memory; the worker makes a buffer
//!          ready ─────────────────────────────────────> asks for the payload, unless it comes
//! bytes ─> advance ───────────────────────────────────> Event::Payload
//!          receives it into the buffer
//!          payload_received ──────────────────────────>
//!                                                       Event::Checked, if payload has digests
//!          the worker serves the write
//!          reply ─────────────────────────────────────> a header in the outbox
//! ```
//!
//! The cost of a request is one virtual call to parse it and one to answer it; a write costs two or
//! three more.

mod nbd;
mod nvme;

use std::collections::VecDeque;
use std::error::Error;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use floe_block::{Fault, MOST_MAPPED_BYTES, Request as CacheRequest, RequestKind, VolumeId};
use floe_device::{Extent, Pool, Slice};
use floe_nbd::export::Exports;
use floe_nvme::target::Deferred;

use crate::limits::{PIECE_BYTES, SEND_HEADER_BYTES};
use crate::tls::TlsConfig;

pub(crate) use nbd::Nbd;
pub(crate) use nvme::{NvmeTcp, subsystem_name};

/// The protocols that clients can speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProtocolName {
    Nbd,
    NvmeTcp,
}

/// Creates the protocol state of new clients. Each listener has a factory, which determines the
/// protocol of its clients.
pub(crate) trait ProtocolFactory: Debug + Send + Sync {
    /// Creates the state for a client that has just connected to the server's `address`; `None` for
    /// a Unix socket. The protocol may put a greeting into the outbox.
    fn begin(
        &self,
        address: Option<SocketAddr>,
        exports: &Arc<Exports>,
        tls: Option<&TlsConfig>,
        out: &mut Outbox,
    ) -> Box<dyn Protocol>;
}

/// A violation of the protocol by a client, which ends the session.
pub(crate) type Broken = Box<dyn Error + Send + Sync>;

/// The refusal of a client that keeps to the protocol but is not allowed to connect.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotWelcome(pub(crate) String);

/// The refusal of a client for which a volume has no place left.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NoPlace(pub(crate) String);

/// A request of a client. Its range lies within the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    /// The client's identifier of the request. It is unique among the requests in flight, if the
    /// client keeps to the protocol.
    pub(crate) tag: u64,
    /// Protocol-specific flags, which the reply needs.
    pub(crate) flags: u16,
    pub(crate) volume: VolumeId,
    pub(crate) kind: RequestKind,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    /// The request compares the data read with a payload of the client, and does not send it.
    pub(crate) compares: bool,
    /// The client sends the payload right after the request, without being asked for it.
    pub(crate) payload_follows: bool,
}

impl Request {
    /// Returns whether the client sends a payload for the request.
    pub(crate) fn has_payload(&self) -> bool {
        self.compares || matches!(self.kind, RequestKind::Write { .. })
    }

    /// Converts the request for the cache. A map of dirty data is cut to [`MOST_MAPPED_BYTES`].
    pub(crate) fn to_cache(self) -> CacheRequest {
        let most = if self.kind == RequestKind::DirtyMap { MOST_MAPPED_BYTES } else { u64::MAX };
        let len = u64::from(self.length).min(most);
        CacheRequest { volume: self.volume, kind: self.kind, offset: self.offset, len }
    }
}

/// The next event in a client's byte stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// More bytes are needed.
    NeedMore,
    /// The protocol handled a message by itself, so the session has nothing to do.
    Nothing,
    /// TLS begins: the outbox holds the last plaintext answers, and the client's next bytes are
    /// encrypted.
    StartTls,
    /// The client sends a request for the session to serve.
    Request(Request),
    /// The next `bytes` bytes are payload of the request `tag`, for which [`Protocol::ready`] was
    /// called. A payload comes in order, in one or more parts.
    Payload { tag: u64, bytes: usize },
    /// The payload of a request is complete, and its digest does or does not match. Only protocols
    /// that check payloads report this.
    Checked { tag: u64, intact: bool },
    /// The protocol has refused a request without involving the session.
    Refused,
    /// The client disconnects properly.
    Disconnect,
}

/// The answer to a request that succeeded.
#[derive(Debug)]
pub(crate) enum Answer<'a> {
    Done,
    /// The data of a read.
    Data(Slice),
    /// A comparison found data that differs from the client's.
    Differs,
    /// Consecutive extents, from the offset of a [`RequestKind::DirtyMap`] request on.
    Extents(&'a [Extent]),
}

/// The server's side of the conversation with one client.
pub(crate) trait Protocol: Debug + Send {
    /// Parses received bytes up to the next event. Returns the number of bytes consumed, without
    /// payload, and the event.
    ///
    /// # Errors
    /// When the client violated the protocol: the session ends.
    fn advance(&mut self, input: &[u8], out: &mut Outbox) -> Result<(usize, Event), Broken>;

    /// Tells the protocol that the buffer for a payload is available. If clients wait to be asked
    /// for the payload, the protocol asks now.
    fn ready(&mut self, request: &Request, out: &mut Outbox);

    /// Tells the protocol that these bytes of the last [`Event::Payload`] have arrived. After the
    /// last of them the session parses on.
    fn payload_received(&mut self, payload: &Slice);

    /// Returns whether the protocol verifies payloads. If so, writes wait for [`Event::Checked`].
    fn checks_payload(&self) -> bool {
        false
    }

    /// Returns whether a request may be carried out, now that its payload is complete or that it
    /// has waited for a limit. If not, it must be answered as failed.
    fn may_start(&mut self, request: &Request) -> bool {
        let _ = request;
        true
    }

    /// Tells the protocol that a request waits for a limit of its volume. [`Protocol::may_start`]
    /// is called before it is carried out.
    fn held_back(&mut self, request: &Request) {
        let _ = request;
    }

    /// Tells the protocol that reservations of NVMe hosts have changed.
    fn reservations_changed(&mut self, out: &mut Outbox) {
        let _ = out;
    }

    /// Tells the protocol that the client has closed its side of the connection.
    ///
    /// # Errors
    /// When the client stopped in the middle of a message.
    fn end_of_input(&self) -> Result<(), Broken>;

    /// Writes the reply to a request that [`Event::Request`] delivered.
    fn reply(&mut self, request: &Request, result: Result<Answer<'_>, Fault>, out: Reply<'_>);

    /// Tells the protocol that a request that [`Event::Request`] delivered has ended, and that no
    /// reply can be sent any more.
    fn unanswered(&mut self, request: &Request) {
        let _ = request;
    }

    /// Tells the protocol that the server's list of volumes has changed, of which it may notify the
    /// client. Returns whether the session can go on.
    fn exports_changed(&mut self, exports: &Arc<Exports>, out: &mut Outbox) -> bool;

    /// Returns whether the client has finished the handshake, whose duration is limited.
    fn is_established(&self) -> bool;

    /// Returns the name of the protocol.
    fn name(&self) -> ProtocolName;

    /// Returns the name of the client, which is the same on all of its connections; `None` in
    /// protocols without names.
    fn client(&self) -> Option<&str> {
        None
    }

    /// Returns the volume that the client has chosen; `None` before that, and in protocols without
    /// such a choice.
    fn volume(&self) -> Option<VolumeId>;

    /// Returns the volumes that count this connection as a user. A client with several connections
    /// is counted on one of them.
    fn volumes_in_use(&self) -> Vec<VolumeId> {
        self.volume().into_iter().collect()
    }

    /// Returns the longest time that the client may send nothing; `None` unless it has promised to
    /// keep the connection alive.
    fn longest_silence(&self) -> Option<Duration> {
        None
    }

    /// Returns whether the parent connection still exists; `None` for a connection without a
    /// parent. An I/O queue's parent is its controller.
    fn has_parent(&self) -> Option<bool> {
        None
    }

    /// Returns long work for the caller to do, if the protocol needs some. Parsing pauses until it
    /// is done, and goes on with the next [`Protocol::advance`].
    fn deferred(&self) -> Option<&Deferred> {
        None
    }

    /// Returns whether the outbox has a last message with the reason for a client that violated the
    /// protocol. It is sent before the session ends.
    fn has_last_words(&self) -> bool {
        false
    }
}

/// A reply to be written into the outbox.
pub(crate) struct Reply<'a> {
    outbox: &'a mut Outbox,
    pool: &'a Pool,
    /// Bytes of the client's share of the memory that become free when the reply is sent.
    bytes: usize,
}

impl<'a> Reply<'a> {
    pub(crate) fn new(outbox: &'a mut Outbox, pool: &'a Pool, bytes: usize) -> Self {
        Self { outbox, pool, bytes }
    }

    /// Sends a header, the data of a read, and a trailer.
    pub(crate) fn send_around(self, before: &[u8], payload: Option<Slice>, after: &[u8]) {
        if after.is_empty() {
            return self.outbox.push(before, payload, self.bytes);
        }
        self.outbox.push(before, payload, 0);
        self.outbox.push(after, None, self.bytes);
    }

    /// Sends nothing, because one reply answers several requests.
    pub(crate) fn send_nothing(self) {
        if self.bytes > 0 {
            self.outbox.push(&[], None, self.bytes);
        }
    }

    /// Sends a header and the data of a read.
    pub(crate) fn send(self, header: &[u8], payload: Option<Slice>) {
        self.outbox.push(header, payload, self.bytes);
    }

    /// Sends a header and a copy of a small payload.
    pub(crate) fn send_copy(self, header: &[u8], payload: &[u8]) {
        let payload = slice_of(payload, self.pool);
        self.outbox.push(header, Some(payload), self.bytes);
    }
}

/// Number of replies for which an idle client's queue keeps memory.
const REPLIES_KEPT: usize = 8;

/// Bytes of headers for which an idle client's queue keeps memory.
const HEADERS_KEPT: usize = REPLIES_KEPT * 32;

/// A reply in the queue to be sent.
#[derive(Debug)]
struct QueuedReply {
    /// Bytes of the reply's header that are not in a send yet.
    header_bytes: usize,
    payload: Option<Slice>,
    /// Bytes of the client's share of the memory that the reply occupies.
    bytes: usize,
}

/// A client's queue of bytes to send.
///
/// Headers are gathered in one buffer, and payloads are sent straight from the device's buffers. A
/// send is at most `PIECE_BYTES` long, so that a stalled client can be told from a slow one.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Answers of the handshake, which are sent before all replies.
    pub(crate) answers: Vec<u8>,
    replies: VecDeque<QueuedReply>,
    /// Concatenated headers of the queued replies.
    headers: Vec<u8>,
    /// An empty list whose memory the next send reuses.
    spare: Vec<Slice>,
    /// Number of replies whose last byte is in the send under way.
    leaving: usize,
    leaving_bytes: usize,
}

impl Outbox {
    /// Queues a reply. When it has been sent, `bytes` of the client's share are free again.
    pub(crate) fn push(&mut self, header: &[u8], payload: Option<Slice>, bytes: usize) {
        debug_assert!(header.len() <= SEND_HEADER_BYTES, "a send has room for a header");
        self.headers.extend_from_slice(header);
        self.replies.push_back(QueuedReply { header_bytes: header.len(), payload, bytes });
    }

    /// Queues bytes after the pending replies.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(SEND_HEADER_BYTES) {
            self.push(part, None, 0);
        }
    }

    /// Returns whether nothing is queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.answers.is_empty() && self.replies.is_empty()
    }

    /// Returns the number of replies that are not sent completely.
    pub(crate) fn len(&self) -> usize {
        self.replies.len() + self.leaving
    }

    /// Returns the slices of the next send, about `most` bytes at most.
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

    /// Takes back an empty list, to reuse its memory for the next send.
    pub(crate) fn keep(&mut self, list: Vec<Slice>) {
        debug_assert!(list.is_empty());
        self.spare = list;
    }

    /// Forgets the replies of the send under way, which has ended. Returns the number of bytes of
    /// the client's share that are free again.
    pub(crate) fn left(&mut self) -> usize {
        self.leaving = 0;
        std::mem::take(&mut self.leaving_bytes)
    }

    /// Drops all replies that are not in a send. Returns the number of bytes of the client's share
    /// that are free again.
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

/// Copies bytes into a new buffer of the pool.
pub(crate) fn slice_of(bytes: &[u8], pool: &Pool) -> Slice {
    let slice = pool.allocate(bytes.len()).slice(0..bytes.len());
    slice.copy_from(bytes);
    slice
}

/// Bytes that [`in_parts`] copies at a time.
const PART_BYTES: usize = 16 << 10;

/// Calls `take` with a copy of each part of a slice, in order.
fn in_parts(bytes: &Slice, mut take: impl FnMut(&[u8])) {
    let mut part = [0; PART_BYTES];
    for begin in (0..bytes.len()).step_by(PART_BYTES) {
        let end = bytes.len().min(begin + PART_BYTES);
        let part = &mut part[..end - begin];
        bytes.slice(begin..end).copy_to(part);
        take(part);
    }
}

/// Returns whether two slices have the same length and content.
pub(crate) fn same_bytes(one: &Slice, other: &Slice) -> bool {
    let (mut at, mut is_same) = (0, one.len() == other.len());
    in_parts(one, |part| {
        if is_same {
            let mut beside = [0; PART_BYTES];
            let beside = &mut beside[..part.len()];
            other.slice(at..at + part.len()).copy_to(beside);
            at += part.len();
            is_same = part == beside;
        }
    });
    is_same
}

#[cfg(test)]
mod parts_tests {
    use floe_device::Pool;

    use super::*;

    #[test]
    fn bytes_are_the_same_if_each_is() {
        let pool = Pool::new(0);
        let len = 3 * PART_BYTES + 100;
        let slice = |changed: Option<usize>| {
            let mut bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            if let Some(at) = changed {
                bytes[at] ^= 1;
            }
            let slice = pool.allocate(len).slice(0..len);
            slice.copy_from(&bytes);
            slice
        };
        assert!(same_bytes(&slice(None), &slice(None)));
        for at in [0, PART_BYTES - 1, PART_BYTES, 2 * PART_BYTES + 5, len - 1] {
            assert!(!same_bytes(&slice(None), &slice(Some(at))), "at {at}");
        }
        assert!(!same_bytes(&slice(None), &slice(None).slice(1..len)));
    }
}
