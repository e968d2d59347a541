//! The contract between a session and the protocol that its client speaks.
//!
//! A protocol is a state machine without sockets and buffers. It turns received bytes into
//! [`Request`]s, and the answers of the cache into bytes. The session owns the socket, TLS, the
//! buffers and the client's share of the memory, and the worker knows no protocol:
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

use floe_block::{Fault, Kind, MOST_MAPPED_BYTES, Request as CacheRequest, VolumeId};
use floe_device::{Extent, Pool, Slice};
use floe_nbd::export::Exports;
use floe_nvme::target::Calculation;

use crate::limits::{PIECE_BYTES, SEND_HEADER_BYTES};
use crate::tls::TlsConfig;

pub(crate) use nbd::Nbd;
pub(crate) use nvme::{NvmeTcp, subsystem_name};

/// The protocol of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProtocolName {
    Nbd,
    NvmeTcp,
}

/// Begins conversations. A listener has one, so it chooses the protocol of its clients.
pub(crate) trait ProtocolFactory: Debug + Send + Sync {
    /// Begins the conversation with a client that has just connected to `address`, unless that is
    /// a Unix socket. The outbox may get a greeting.
    fn begin(
        &self,
        address: Option<SocketAddr>,
        exports: &Arc<Exports>,
        tls: Option<&TlsConfig>,
        out: &mut Outbox,
    ) -> Box<dyn Protocol>;
}

/// An error of a client that ends its session.
pub(crate) type Broken = Box<dyn Error + Send + Sync>;

/// An error of a client that may not be served: it is not broken, but unwelcome.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotWelcome(pub(crate) String);

/// A request of a client. Its range lies within the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    /// The client's name for the request. No two requests in flight have the same, if the client
    /// keeps to the protocol.
    pub(crate) tag: u64,
    /// Flags of the protocol, for the reply.
    pub(crate) flags: u16,
    pub(crate) volume: VolumeId,
    pub(crate) kind: Kind,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    /// A read whose data is compared with a payload of the client, and not sent to it.
    pub(crate) compares: bool,
    /// The payload of the request is the next that the client sends.
    pub(crate) payload_follows: bool,
}

impl Request {
    /// Returns whether the client sends a payload.
    pub(crate) fn has_payload(&self) -> bool {
        self.compares || matches!(self.kind, Kind::Write { .. })
    }

    /// The same request as the cache takes it. A map of dirty data may cover less.
    pub(crate) fn to_cache(self) -> CacheRequest {
        let most = if self.kind == Kind::DirtyMap { MOST_MAPPED_BYTES } else { u64::MAX };
        let len = u64::from(self.length).min(most);
        CacheRequest { volume: self.volume, kind: self.kind, offset: self.offset, len }
    }
}

/// The meaning of a part of a client's bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The input is used up.
    NeedMore,
    /// The protocol has answered by itself, or there was nothing to answer.
    Nothing,
    /// The outbox holds the last answers in the clear. The following bytes are encrypted.
    StartTls,
    /// A request to serve.
    Request(Request),
    /// The next bytes are payload of a request. [`Protocol::ready`] was called for it before, and
    /// its payload comes in order, in one or more parts.
    Payload { tag: u64, bytes: usize },
    /// The payload of a request is complete, and is what the client has sent, or is damaged. Only
    /// protocols that check payload tell this.
    Checked { tag: u64, intact: bool },
    /// The protocol has refused a request by itself.
    Refused,
    /// The client is done.
    Disconnect,
}

/// The good answer to a request.
#[derive(Debug)]
pub(crate) enum Answer<'a> {
    Done,
    /// The data of a read.
    Data(Slice),
    /// The data compared is not the client's.
    Differs,
    /// Consecutive extents from the offset of a [`Kind::DirtyMap`] on.
    Extents(&'a [Extent]),
}

/// The server's side of the conversation with one client.
pub(crate) trait Protocol: Debug + Send {
    /// Parses received bytes up to the next event. Returns the number of bytes used. Payload does
    /// not count as used.
    ///
    /// # Errors
    /// When the client broke the protocol: the session ends.
    fn advance(&mut self, input: &[u8], out: &mut Outbox) -> Result<(usize, Event), Broken>;

    /// The buffer of a payload is there. A protocol whose clients wait to be asked for the payload
    /// asks now.
    fn ready(&mut self, request: &Request, out: &mut Outbox);

    /// These bytes of the last [`Event::Payload`] have arrived. After the last of them the session
    /// parses on.
    fn payload_received(&mut self, payload: &Slice);

    /// Returns whether payload is checked once it is complete: writes wait for [`Event::Checked`].
    fn checks_payload(&self) -> bool {
        false
    }

    /// The client sends nothing more.
    ///
    /// # Errors
    /// When it stopped inside of a message.
    fn end_of_input(&self) -> Result<(), Broken>;

    /// Answers a request of an [`Event::Request`].
    fn reply(&mut self, request: &Request, result: Result<Answer<'_>, Fault>, out: Reply<'_>);

    /// The server's list of volumes has changed. Returns whether the conversation can go on. The
    /// client may be told.
    fn exports_changed(&mut self, exports: &Arc<Exports>, out: &mut Outbox) -> bool;

    /// Returns whether the client has come through the handshake, for which its time is limited.
    fn is_established(&self) -> bool;

    /// Its name.
    fn name(&self) -> ProtocolName;

    /// The volume that the client has chosen.
    fn volume(&self) -> Option<VolumeId>;

    /// The volumes for which the client counts as one that uses them. A client with several
    /// connections counts on one of them.
    fn volumes_in_use(&self) -> Vec<VolumeId> {
        self.volume().into_iter().collect()
    }

    /// The longest time that the client may send nothing, if it has promised to keep the
    /// connection alive.
    fn longest_silence(&self) -> Option<Duration> {
        None
    }

    /// Returns whether the connection that this one belongs to is there; `None` where it belongs to
    /// none.
    fn has_parent(&self) -> Option<bool> {
        None
    }

    /// Returns a long calculation, which the caller runs. Nothing more is parsed before that; then
    /// the protocol goes on when it is advanced.
    fn calculation(&self) -> Option<&Calculation> {
        None
    }

    /// Returns whether the outbox tells a client that broke the protocol the reason. It is sent
    /// before the session ends.
    fn has_last_words(&self) -> bool {
        false
    }
}

/// The place of one reply in the outbox.
pub(crate) struct Reply<'a> {
    outbox: &'a mut Outbox,
    pool: &'a Pool,
    /// Bytes of the client's share that are free again after the reply.
    bytes: usize,
}

impl<'a> Reply<'a> {
    pub(crate) fn new(outbox: &'a mut Outbox, pool: &'a Pool, bytes: usize) -> Self {
        Self { outbox, pool, bytes }
    }

    /// Sends bytes, the data of a read, and bytes behind it.
    pub(crate) fn send_around(self, before: &[u8], payload: Option<Slice>, after: &[u8]) {
        if after.is_empty() {
            return self.outbox.push(before, payload, self.bytes);
        }
        self.outbox.push(before, payload, 0);
        self.outbox.push(after, None, self.bytes);
    }

    /// Sends nothing: the client gets one reply for several requests.
    pub(crate) fn send_nothing(self) {
        if self.bytes > 0 {
            self.outbox.push(&[], None, self.bytes);
        }
    }

    /// Sends a header, with the data of a read behind it.
    pub(crate) fn send(self, header: &[u8], payload: Option<Slice>) {
        self.outbox.push(header, payload, self.bytes);
    }

    /// Sends a header and a copy of a few bytes behind it.
    pub(crate) fn send_copy(self, header: &[u8], payload: &[u8]) {
        let payload = slice_of(payload, self.pool);
        self.outbox.push(header, Some(payload), self.bytes);
    }
}

/// Replies for which an idle client's queue keeps memory.
const REPLIES_KEPT: usize = 8;

/// Bytes of headers for which an idle client's queue keeps memory.
const HEADERS_KEPT: usize = REPLIES_KEPT * 32;

/// A reply on its way out.
#[derive(Debug)]
struct QueuedReply {
    /// Bytes of its header that have not left.
    header_bytes: usize,
    payload: Option<Slice>,
    /// Bytes that it counts against the session's and the server's bounds.
    bytes: usize,
}

/// The queue of bytes to send.
///
/// Headers gather in one buffer, and payloads leave straight from the device's buffers. A send is
/// at most `PIECE_BYTES` long, so that a stalled client can be told from a slow one.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Answers of the handshake, before all replies.
    pub(crate) answers: Vec<u8>,
    replies: VecDeque<QueuedReply>,
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
        self.replies.push_back(QueuedReply { header_bytes: header.len(), payload, bytes });
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

/// Bytes of a part.
const PART_BYTES: usize = 16 << 10;

/// Copies bytes out, part by part.
fn in_parts(bytes: &Slice, mut take: impl FnMut(&[u8])) {
    let mut part = [0; PART_BYTES];
    for begin in (0..bytes.len()).step_by(PART_BYTES) {
        let end = bytes.len().min(begin + PART_BYTES);
        let part = &mut part[..end - begin];
        bytes.slice(begin..end).copy_to(part);
        take(part);
    }
}

/// Returns whether two slices of one length have the same bytes.
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
