//! One NBD client: what it has sent, what it is owed, and when it may send more.
//!
//! A session receives into a buffer of its own and hands the bytes to [`Connection`], which says what they mean. A
//! write's payload that has not arrived with its header is received straight into the request's buffer. Replies queue up
//! and leave many at a time in one gathering send, payloads from where the devices put them.
//!
//! Bounds: a session with [`MOST_REQUESTS`] or [`MOST_BYTES`] in flight, replies not yet sent included, is not read from
//! until it has less. A client that never reads its replies costs that much and no more.
//!
//! Invariants: at most one receive and one send are under way; a session is gone only when neither is and no request
//! of it is in flight.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use floe_device::{Buffer, Pool, Slice};

use crate::nbd::connection::{Connection, Event};
use crate::nbd::error::{NbdError, ProtocolError};
use crate::nbd::export::Exports;
use crate::nbd::reply::ReplyHeader;
use crate::nbd::transmission::{Command, Request};

/// Requests of one client at once.
const MOST_REQUESTS: usize = 256;

/// Bytes of one client's requests at once; one request alone may be larger.
const MOST_BYTES: usize = 32 << 20;

/// What is received at once, unless it is a large payload.
const RECEIVE_BYTES: usize = 64 << 10;

/// Headers that leave in one send.
const SEND_HEADER_BYTES: usize = 4096;

/// What the session wants the server to do next.
#[derive(Debug)]
pub(crate) enum Want {
    /// Serve a request. A write comes back by [`Session::begin_payload`] and is served when it is complete.
    Serve(Request),
    /// The write's payload is complete: serve it.
    ServeWrite(Request, Buffer),
    /// Receive at least one byte, or if possible all of it, into the slice, and report to [`Session::received`].
    Receive { into: Slice, whole: bool },
    /// Nothing until replies have left.
    Pause,
    /// Nothing more will come from this client.
    End,
}

/// A reply on its way out.
#[derive(Debug)]
struct Reply {
    header: ReplyHeader,
    payload: Option<Slice>,
    /// What it counts against [`MOST_BYTES`].
    bytes: usize,
}

/// A write whose payload is being received.
#[derive(Debug)]
struct Incoming {
    request: Request,
    buffer: Buffer,
    into: Slice,
    received: usize,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) socket: Rc<OwnedFd>,
    connection: Connection,
    receive_buffer: Buffer,
    /// Bytes received, and how many of them are understood.
    input: Vec<u8>,
    used: usize,
    incoming: Option<Incoming>,
    receiving: bool,
    /// Answers of the handshake.
    answers: Vec<u8>,
    replies: VecDeque<Reply>,
    sending: bool,
    sending_replies: usize,
    sending_bytes: usize,
    /// Requests given out and not replied to.
    serving: usize,
    /// Bytes of requests given out whose replies have not left.
    bytes: usize,
    /// The client will send nothing more, or is not to be listened to any more.
    ended: bool,
    /// The client cannot be answered any more.
    broken: bool,
}

impl Session {
    pub(crate) fn new(socket: OwnedFd, exports: &Arc<Exports>, pool: &Pool) -> Self {
        let mut answers = Vec::new();
        let connection = Connection::new(Arc::clone(exports), &mut answers);
        Self {
            socket: Rc::new(socket),
            connection,
            receive_buffer: pool.allocate(RECEIVE_BYTES),
            input: Vec::new(),
            used: 0,
            incoming: None,
            receiving: false,
            answers,
            replies: VecDeque::new(),
            sending: false,
            sending_replies: 0,
            sending_bytes: 0,
            serving: 0,
            bytes: 0,
            ended: false,
            broken: false,
        }
    }

    /// What to do next; `None` while a receive is under way.
    pub(crate) fn next(&mut self) -> Result<Option<Want>, ProtocolError> {
        if self.receiving {
            return Ok(None);
        }
        if let Some(incoming) = self.incoming.take_if(|incoming| incoming.received == incoming.into.len()) {
            return Ok(Some(Want::ServeWrite(incoming.request, incoming.buffer)));
        }
        if let Some(incoming) = &self.incoming {
            self.receiving = true;
            let into = incoming.into.slice(incoming.received..incoming.into.len());
            return Ok(Some(Want::Receive { into, whole: true }));
        }
        loop {
            if self.ended {
                return Ok(Some(Want::End));
            }
            let requests = self.serving + self.replies.len() + self.sending_replies;
            if requests >= MOST_REQUESTS || self.bytes >= MOST_BYTES {
                return Ok(Some(Want::Pause));
            }
            let (used, event) = self.connection.advance(&self.input[self.used..], &mut self.answers)?;
            self.used += used;
            match event {
                Event::NeedMore => {
                    self.receiving = true;
                    return Ok(Some(Want::Receive { into: self.receive_buffer.whole(), whole: false }));
                }
                Event::Answered | Event::Negotiated(_) => {}
                Event::Request(request) => {
                    self.serving += 1;
                    self.bytes += bytes_of(&request);
                    return Ok(Some(Want::Serve(request)));
                }
                Event::Refused { request, error } => {
                    let header = ReplyHeader::failure(&request, &error, self.structured());
                    self.replies.push_back(Reply { header, payload: None, bytes: 0 });
                }
                Event::Payload { .. } => unreachable!("payloads are taken by begin_payload"),
                Event::Disconnect => self.ended = true,
            }
        }
    }

    /// So many bytes arrived where the last [`Want::Receive`] said; none means the client hung up.
    pub(crate) fn received(&mut self, bytes: usize) -> Result<(), ProtocolError> {
        self.receiving = false;
        if self.ended {
            // Nobody listens any more, also not to the payload of a write that `end` has dropped.
        } else if bytes == 0 {
            self.end();
            return self.connection.end_of_input();
        } else if let Some(incoming) = &mut self.incoming {
            // Less than all of it is no end yet: kernels before 5.19 may give up waiting for the rest.
            incoming.received += bytes;
            self.connection.payload_received(bytes);
        } else {
            self.input.resize(bytes, 0);
            self.used = 0;
            self.receive_buffer.slice(0..bytes).copy_to(&mut self.input);
        }
        Ok(())
    }

    /// Takes what has arrived of a write's payload into its buffer; `into` is where in `buffer` it belongs.
    pub(crate) fn begin_payload(&mut self, request: Request, buffer: Buffer, into: Slice) {
        let here = (self.input.len() - self.used).min(into.len());
        into.slice(0..here).copy_from(&self.input[self.used..self.used + here]);
        self.used += here;
        self.connection.payload_received(here);
        self.incoming = Some(Incoming { request, buffer, into, received: here });
    }

    /// Replies to a request, with the data of a successful read.
    pub(crate) fn reply(&mut self, request: &Request, result: Result<Option<Slice>, NbdError>) {
        self.serving -= 1;
        let bytes = bytes_of(request);
        if self.broken {
            self.bytes -= bytes;
            return;
        }
        let (header, payload) = match result {
            Ok(payload) => (ReplyHeader::success(request, self.structured()), payload),
            Err(error) => (ReplyHeader::failure(request, &error, self.structured()), None),
        };
        self.replies.push_back(Reply { header, payload, bytes });
    }

    /// What to send now, if something is to be sent and nothing is being sent.
    pub(crate) fn next_send(&mut self, pool: &Pool) -> Option<Vec<Slice>> {
        if self.sending || self.broken || (self.answers.is_empty() && self.replies.is_empty()) {
            return None;
        }
        self.sending = true;
        let mut slices = Vec::new();
        if !self.answers.is_empty() {
            let answers = pool.allocate(self.answers.len()).slice(0..self.answers.len());
            answers.copy_from(&self.answers);
            self.answers.clear();
            slices.push(answers);
        }
        // Headers lie side by side in one buffer; those without payloads between them leave as one slice.
        let headers = pool.allocate(SEND_HEADER_BYTES);
        let (mut begun, mut end) = (0, 0);
        while let Some(reply) =
            self.replies.pop_front_if(|reply| end + reply.header.as_bytes().len() <= SEND_HEADER_BYTES)
        {
            let header = reply.header.as_bytes();
            headers.slice(end..end + header.len()).copy_from(header);
            end += header.len();
            self.sending_replies += 1;
            self.sending_bytes += reply.bytes;
            if let Some(payload) = reply.payload {
                slices.extend([headers.slice(begun..end), payload]);
                begun = end;
            }
        }
        slices.push(headers.slice(begun..end));
        Some(slices)
    }

    /// The send under way has ended.
    pub(crate) fn sent(&mut self) {
        self.sending = false;
        self.sending_replies = 0;
        self.bytes -= std::mem::take(&mut self.sending_bytes);
    }

    /// Takes no further requests; those complete are answered.
    pub(crate) fn end(&mut self) {
        self.ended = true;
        if let Some(incoming) = self.incoming.take_if(|incoming| incoming.received < incoming.into.len()) {
            self.serving -= 1;
            self.bytes -= bytes_of(&incoming.request);
        }
    }

    /// The client is not to be spoken to any more.
    pub(crate) fn break_off(&mut self) {
        self.end();
        self.broken = true;
        self.answers.clear();
        self.bytes -= self.replies.drain(..).map(|reply| reply.bytes).sum::<usize>();
    }

    /// Whether the client is owed nothing.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.sending && self.serving == 0 && self.replies.is_empty() && self.answers.is_empty()
    }

    /// Whether all has been said and nothing is under way.
    pub(crate) fn is_over(&self) -> bool {
        self.ended && !self.receiving && self.is_quiet()
    }

    fn structured(&self) -> bool {
        self.connection.negotiated().is_some_and(|negotiated| negotiated.structured_replies)
    }
}

/// What a request takes of [`MOST_BYTES`].
fn bytes_of(request: &Request) -> usize {
    match request.command {
        Command::Read | Command::Write => request.length as usize,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::export::Export;
    use crate::nbd::wire::{REQUEST_MAGIC, command};

    /// A session after the handshake, with a write of `length` bytes given out and its payload asked for.
    fn session_receiving(length: u32, pool: &Pool) -> (Session, Slice) {
        let exports = Arc::new(Exports::new(vec![Export::new("disk", 1 << 20)]).unwrap());
        let (socket, _client) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut session = Session::new(socket.into(), &exports, pool);
        let mut input = b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x04disk".to_vec();
        input.extend(REQUEST_MAGIC.to_be_bytes());
        input.extend([0, 0]);
        input.extend(command::WRITE.to_be_bytes());
        input.extend([0; 16]);
        input.extend(length.to_be_bytes());
        let Ok(Some(Want::Receive { into, whole: false })) = session.next() else { panic!("{session:?}") };
        into.slice(0..input.len()).copy_from(&input);
        session.received(input.len()).unwrap();
        let Ok(Some(Want::Serve(request))) = session.next() else { panic!("{session:?}") };
        let buffer = pool.allocate(length as usize);
        let payload = buffer.whole();
        session.begin_payload(request, buffer, payload);
        let Ok(Some(Want::Receive { into, whole: true })) = session.next() else { panic!("{session:?}") };
        (session, into)
    }

    #[test]
    fn a_payload_that_comes_in_pieces_is_received_to_its_end() {
        let pool = Pool::new(0);
        let (mut session, into) = session_receiving(100_000, &pool);
        assert_eq!(into.len(), 100_000);
        session.received(99_999).unwrap();
        let Ok(Some(Want::Receive { into, .. })) = session.next() else { panic!("{session:?}") };
        assert_eq!(into.len(), 1);
        session.received(1).unwrap();
        assert!(matches!(session.next(), Ok(Some(Want::ServeWrite(..)))));
    }

    #[test]
    fn at_the_end_a_complete_write_is_served_and_half_a_one_is_not() {
        let pool = Pool::new(0);
        let (mut session, _) = session_receiving(100_000, &pool);
        session.received(100_000).unwrap();
        session.end();
        assert!(matches!(session.next(), Ok(Some(Want::ServeWrite(..)))));

        let (mut session, _) = session_receiving(100_000, &pool);
        session.end();
        session.received(99_999).unwrap();
        assert!(matches!(session.next(), Ok(Some(Want::End))));
        assert_eq!((session.serving, session.bytes), (0, 0));
    }
}
