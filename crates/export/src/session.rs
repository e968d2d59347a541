//! One NBD client: what it has sent, what it is owed, and when it may send more.
//!
//! A session receives into a buffer of its own and hands the bytes to [`Connection`], which says what they mean. A
//! write's payload that has not arrived with its header is received straight into the request's buffer. Replies queue up
//! and leave many at a time in one gathering send, payloads from where the devices put them (`outbox`). With TLS the
//! bytes pass through a [`Channel`] on both ways instead, a bounded piece at a time.
//!
//! Bounds: a session with [`MOST_REQUESTS`] or [`MOST_BYTES`] in flight, replies not yet sent included, is not read from
//! until it has less, nor while it waits for its turn at the memory all sessions share ([`Budget`]). A session that
//! holds memory others wait for, and does not move, is [`Overdue`]; so is one whose handshake takes too long.
//!
//! Invariants: at most one receive and one send are under way; a session is gone only when neither is and no request
//! of it is in flight; what it took from the budget it gives back.

mod budget;
mod outbox;

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use floe_device::{Buffer, Pool, Slice};

use crate::limits::{
    Limits, MOST_BYTES, MOST_REQUESTS, PIECE_BYTES, RECEIVE_BUSY_BYTES, RECEIVE_IDLE_BYTES, SEND_TLS_BYTES,
};
use crate::nbd::connection::{Connection, Event};
use crate::nbd::error::{NbdError, ProtocolError};
use crate::nbd::export::{Export, Exports};
use crate::nbd::extent::{self, Extent};
use crate::nbd::handshake::Tls;
use crate::nbd::reply::ReplyHeader;
use crate::nbd::transmission::{Command, Request};
use crate::tls::{Channel, TlsConfig};
pub(crate) use budget::Budget;
use outbox::{Outbox, slice_of};

/// What the session wants the server to do next.
#[derive(Debug)]
pub(crate) enum Want {
    /// Serve a request. A write comes back by [`Session::begin_payload`] and is served when it is complete.
    Serve(Request),
    /// The write's payload is complete: serve it.
    ServeWrite(Request, Buffer),
    /// Receive at least one byte, or if possible all of it, into the slice, and report to [`Session::received`].
    Receive { into: Slice, whole: bool },
    /// Nothing until replies have left, or the session's turn at the budget has come.
    Pause,
    /// Nothing more will come from this client.
    End,
}

/// Why a session cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// The client broke the NBD protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The client broke TLS, or its certificate is not good.
    #[error("TLS failed: {0}")]
    Tls(std::io::Error),
}

/// What a client is late with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Overdue {
    #[error("no export chosen in time")]
    Handshake,
    /// It takes no replies, or sends no more of a write.
    #[error("it neither takes nor gives, and others wait for the memory")]
    Stalled,
}

/// What all sessions of a thread have in common.
#[derive(Debug, Clone)]
pub(crate) struct Common {
    pub(crate) pool: Pool,
    pub(crate) budget: Rc<Budget>,
    pub(crate) tls: Option<TlsConfig>,
    pub(crate) limits: Limits,
}

/// A write whose payload is being received.
#[derive(Debug)]
struct Incoming {
    request: Request,
    buffer: Buffer,
    into: Slice,
    received: usize,
}

/// A request on its way to the server.
#[derive(Debug, Clone, Copy)]
enum Turn {
    Waiting(Request),
    Come(Request),
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) socket: Rc<OwnedFd>,
    /// The session's name in the budget's line.
    key: u32,
    common: Common,
    connection: Connection,
    channel: Option<Box<Channel>>,
    receive_buffer: Option<Buffer>,
    receive_bytes: usize,
    /// Bytes received (and decrypted), and how many of them are understood.
    input: Vec<u8>,
    used: usize,
    incoming: Option<Incoming>,
    receiving: bool,
    turn: Option<Turn>,
    /// The last bytes in the clear, before TLS.
    clear: Vec<u8>,
    outbox: Outbox,
    sending: bool,
    /// Requests given out and not replied to.
    serving: usize,
    /// Bytes of requests given out whose replies have not left.
    bytes: usize,
    /// Requests that were refused here and never given out, since the server last asked.
    refused: u64,
    begun: Instant,
    /// When the client last took or gave something.
    moved: Instant,
    /// The client will send nothing more, or is not to be listened to any more.
    ended: bool,
    /// The end of TLS was said.
    closed: bool,
    /// The client cannot be answered any more.
    broken: bool,
    /// Nothing at all leaves any more.
    silent: bool,
}

impl Session {
    /// A client that has just connected. `key` is the session's name in the budget's line.
    pub(crate) fn new(
        key: u32,
        socket: OwnedFd,
        exports: &Arc<Exports>,
        common: &Common,
        now: Instant,
    ) -> Self {
        let tls = match &common.tls {
            None => Tls::Off,
            Some(config) if config.required() => Tls::Required,
            Some(_) => Tls::Offered,
        };
        let mut outbox = Outbox::default();
        let connection = Connection::new(Arc::clone(exports), tls, &mut outbox.answers);
        Self {
            socket: Rc::new(socket),
            key,
            common: common.clone(),
            connection,
            channel: None,
            receive_buffer: None,
            receive_bytes: RECEIVE_IDLE_BYTES,
            input: Vec::new(),
            used: 0,
            incoming: None,
            receiving: false,
            turn: None,
            clear: Vec::new(),
            outbox,
            sending: false,
            serving: 0,
            bytes: 0,
            refused: 0,
            begun: now,
            moved: now,
            ended: false,
            closed: false,
            broken: false,
            silent: false,
        }
    }

    /// What to do next; `None` while a receive is under way.
    pub(crate) fn next(&mut self, now: Instant) -> Result<Option<Want>, SessionError> {
        if self.receiving {
            return Ok(None);
        }
        loop {
            if let Some(incoming) = self.incoming.take_if(|incoming| incoming.received == incoming.into.len())
            {
                return Ok(Some(Want::ServeWrite(incoming.request, incoming.buffer)));
            }
            if self.incoming.is_some() {
                if self.take_payload() || self.decrypt()? {
                    continue;
                }
                if self.ended {
                    return Ok(Some(Want::End));
                }
                return Ok(Some(self.receive(now)));
            }
            if self.ended {
                return Ok(Some(Want::End));
            }
            match self.turn {
                Some(Turn::Waiting(_)) => return Ok(Some(Want::Pause)),
                Some(Turn::Come(request)) => {
                    self.turn = None;
                    self.serving += 1;
                    self.bytes += bytes_of(&request);
                    return Ok(Some(Want::Serve(request)));
                }
                None => {}
            }
            if self.serving + self.outbox.len() >= MOST_REQUESTS || self.bytes >= MOST_BYTES {
                return Ok(Some(Want::Pause));
            }
            let (used, event) =
                self.connection.advance(&self.input[self.used..], &mut self.outbox.answers)?;
            self.used += used;
            match event {
                Event::NeedMore if self.decrypt()? || self.ended => {}
                Event::NeedMore => return Ok(Some(self.receive(now))),
                Event::Answered | Event::Negotiated => {}
                Event::StartTls => {
                    let config =
                        self.common.tls.as_ref().expect("TLS is granted where there are certificates");
                    self.channel = Some(Box::new(config.channel()));
                    self.clear.append(&mut self.outbox.answers);
                }
                Event::Request(request) => {
                    let at_once = self.common.budget.take(self.key, bytes_of(&request));
                    self.turn = Some(if at_once { Turn::Come(request) } else { Turn::Waiting(request) });
                }
                Event::Refused { request, error } => {
                    self.refused += 1;
                    let header = ReplyHeader::failure(&request, &error, self.structured());
                    self.outbox.push(header, None, 0);
                }
                Event::Payload { .. } => unreachable!("payloads are taken by begin_payload"),
                Event::Disconnect => self.ended = true,
            }
        }
    }

    /// Receives more: of a payload straight into its place, unless it is encrypted.
    fn receive(&mut self, now: Instant) -> Want {
        self.receiving = true;
        if self.incoming.is_some() {
            self.moved = now; // the client could not go on before
        }
        if let (Some(incoming), None) = (&self.incoming, &self.channel) {
            let end = incoming.into.len().min(incoming.received + PIECE_BYTES);
            return Want::Receive { into: incoming.into.slice(incoming.received..end), whole: true };
        }
        if self.receive_bytes == RECEIVE_IDLE_BYTES && self.used == self.input.len() {
            self.input.clear();
            self.input.shrink_to(RECEIVE_IDLE_BYTES / 4);
            self.used = 0;
            self.outbox.shrink();
        }
        let buffer = match self.receive_buffer.take() {
            Some(buffer) if buffer.len() == self.receive_bytes => buffer,
            _ => self.common.pool.allocate(self.receive_bytes),
        };
        let into = buffer.whole();
        self.receive_buffer = Some(buffer);
        Want::Receive { into, whole: false }
    }

    /// So many bytes arrived where the last [`Want::Receive`] said; none means the client hung up.
    pub(crate) fn received(&mut self, bytes: usize, now: Instant) -> Result<(), SessionError> {
        self.receiving = false;
        self.moved = now;
        if self.ended {
            // Nobody listens any more, also not to the payload of a write that `end` has dropped.
        } else if bytes == 0 {
            self.end();
            self.connection.end_of_input()?;
        } else if let (Some(incoming), None) = (&mut self.incoming, &self.channel) {
            // Less than all of it is no end yet: kernels before 5.19 may give up waiting for the rest.
            incoming.received += bytes;
            self.connection.payload_received(bytes);
        } else {
            let buffer = self.receive_buffer.as_ref().expect("what was received is somewhere");
            self.receive_bytes = match bytes {
                _ if bytes == buffer.len() => RECEIVE_BUSY_BYTES,
                ..RECEIVE_IDLE_BYTES => RECEIVE_IDLE_BYTES,
                _ => self.receive_bytes,
            };
            let from = buffer.slice(0..bytes);
            match &mut self.channel {
                Some(channel) => channel.received(bytes, |into| from.copy_to(into)),
                None => {
                    self.used = 0;
                    self.input.resize(bytes, 0);
                    from.copy_to(&mut self.input);
                }
            }
        }
        Ok(())
    }

    /// Decrypts what has arrived when all before it is understood; says whether there is something new.
    fn decrypt(&mut self) -> Result<bool, SessionError> {
        let Some(channel) = &mut self.channel else { return Ok(false) };
        debug_assert_eq!(self.used, self.input.len());
        self.used = 0;
        self.input.clear();
        match channel.read(&mut self.input) {
            Ok(()) => Ok(!self.input.is_empty()),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                self.end();
                self.connection.end_of_input()?;
                Ok(false)
            }
            Err(error) => {
                // The client may still learn why: an alert waits in the channel.
                self.drop_replies();
                self.closed = true;
                Err(SessionError::Tls(error))
            }
        }
    }

    /// Takes what has arrived of a write's payload into its buffer; `into` is where in `buffer` it belongs.
    pub(crate) fn begin_payload(&mut self, request: Request, buffer: Buffer, into: Slice) {
        self.incoming = Some(Incoming { request, buffer, into, received: 0 });
        self.take_payload();
    }

    /// Takes payload out of the input; says whether there was any.
    fn take_payload(&mut self) -> bool {
        let Some(incoming) = &mut self.incoming else { return false };
        let here = (self.input.len() - self.used).min(incoming.into.len() - incoming.received);
        let place = incoming.into.slice(incoming.received..incoming.received + here);
        place.copy_from(&self.input[self.used..self.used + here]);
        self.used += here;
        incoming.received += here;
        self.connection.payload_received(here);
        here > 0
    }

    /// Replies to a request, with the data of a successful read.
    pub(crate) fn reply(&mut self, request: &Request, result: Result<Option<Slice>, NbdError>) {
        let (header, payload) = match result {
            Ok(payload) => (ReplyHeader::success(request, self.structured()), payload),
            Err(error) => (ReplyHeader::failure(request, &error, self.structured()), None),
        };
        self.push_reply(request, header, payload);
    }

    /// Replies to a block status request: which extents lie in a row from its offset on.
    pub(crate) fn reply_extents(&mut self, request: &Request, extents: &[Extent]) {
        let payload = extent::encode(request, extents);
        let header = ReplyHeader::block_status(request, payload.len());
        let payload = slice_of(&payload, &self.common.pool);
        self.push_reply(request, header, Some(payload));
    }

    fn push_reply(&mut self, request: &Request, header: ReplyHeader, payload: Option<Slice>) {
        self.serving -= 1;
        let bytes = bytes_of(request);
        if self.broken {
            self.give_back(bytes);
        } else {
            self.outbox.push(header, payload, bytes);
        }
    }

    /// What to send now, if something is to be sent and nothing is being sent.
    pub(crate) fn next_send(&mut self, now: Instant) -> Option<Vec<Slice>> {
        if self.sending || self.silent {
            return None;
        }
        let slices = if !self.clear.is_empty() {
            vec![slice_of(&std::mem::take(&mut self.clear), &self.common.pool)]
        } else if self.channel.is_some() {
            self.encrypt()?
        } else if self.outbox.is_empty() {
            return None;
        } else {
            self.outbox.gather(&self.common.pool, PIECE_BYTES)
        };
        self.sending = true;
        self.moved = now;
        Some(slices)
    }

    /// The next send, encrypted.
    fn encrypt(&mut self) -> Option<Vec<Slice>> {
        let channel = self.channel.as_mut()?;
        if !self.outbox.is_empty() {
            for slice in self.outbox.gather(&self.common.pool, SEND_TLS_BYTES) {
                channel.write(&slice.to_vec());
            }
        } else if self.ended && self.serving == 0 && !std::mem::replace(&mut self.closed, true) {
            channel.close();
        }
        if !channel.wants_send() {
            return None;
        }
        let mut encrypted = Vec::new();
        channel.take(&mut encrypted);
        Some(vec![slice_of(&encrypted, &self.common.pool)])
    }

    /// The send under way has ended.
    pub(crate) fn sent(&mut self, now: Instant) {
        self.sending = false;
        self.moved = now;
        let bytes = self.outbox.left();
        self.give_back(bytes);
    }

    /// The session's turn at the budget has come.
    pub(crate) fn turn_has_come(&mut self) {
        let Some(Turn::Waiting(request)) = self.turn else { unreachable!("only who waits has a turn") };
        self.turn = Some(Turn::Come(request));
    }

    /// Takes no further requests; those complete are answered.
    pub(crate) fn end(&mut self) {
        self.ended = true;
        if let Some(incoming) = self.incoming.take_if(|incoming| incoming.received < incoming.into.len()) {
            self.serving -= 1;
            self.give_back(bytes_of(&incoming.request));
        }
        match self.turn.take() {
            Some(Turn::Waiting(_)) => self.common.budget.leave(self.key),
            Some(Turn::Come(request)) => self.common.budget.give_back(bytes_of(&request)),
            None => {}
        }
    }

    /// The client is not to be spoken to any more.
    pub(crate) fn break_off(&mut self) {
        self.drop_replies();
        self.silent = true;
        self.clear.clear();
    }

    fn drop_replies(&mut self) {
        self.end();
        self.broken = true;
        let bytes = self.outbox.clear();
        self.give_back(bytes);
    }

    fn give_back(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.common.budget.give_back(bytes);
    }

    /// The server's list of exports has changed. A session whose export is gone ends; one whose export has another size
    /// serves up to that.
    #[cfg_attr(not(test), allow(dead_code, reason = "volumes do not come and go yet"))]
    pub(crate) fn exports_changed(&mut self, exports: &Arc<Exports>) {
        if !self.connection.exports_changed(exports) {
            self.end();
        }
    }

    /// The export the client has chosen; `None` while the handshake lasts.
    pub(crate) fn export(&self) -> Option<&Export> {
        self.connection.export()
    }

    /// How many requests were refused without the server seeing them, since this was last asked.
    pub(crate) fn take_refused(&mut self) -> u64 {
        std::mem::take(&mut self.refused)
    }

    /// What the client is late with, if anything. Once that, [`Session::break_off`].
    pub(crate) fn overdue(&self, now: Instant) -> Option<Overdue> {
        if self.is_in_handshake() {
            return (now >= self.begun + self.common.limits.handshake_time).then_some(Overdue::Handshake);
        }
        let with_client = self.sending || (self.receiving && self.incoming.is_some());
        let late = self.bytes > 0 && with_client && now >= self.moved + self.common.limits.stall_time;
        (late && self.common.budget.is_waited_for()).then_some(Overdue::Stalled)
    }

    /// Whether no export is chosen yet.
    pub(crate) fn is_in_handshake(&self) -> bool {
        self.connection.negotiated().is_none() && !self.silent
    }

    /// Whether the client is owed nothing.
    pub(crate) fn is_quiet(&self) -> bool {
        let to_say = self.channel.as_ref().is_some_and(|channel| channel.wants_send() && !self.silent);
        !self.sending && self.serving == 0 && self.outbox.is_empty() && self.clear.is_empty() && !to_say
    }

    /// Whether nothing keeps the session but a receive that nobody waits for: shut the socket down.
    pub(crate) fn is_done_listening(&self) -> bool {
        self.ended && self.receiving && self.is_quiet()
    }

    /// Whether all has been said and nothing is under way.
    pub(crate) fn is_over(&self) -> bool {
        self.ended && !self.receiving && self.is_quiet()
    }

    fn structured(&self) -> bool {
        self.connection.negotiated().is_some_and(|negotiated| negotiated.structured_replies)
    }
}

/// What a request takes of [`MOST_BYTES`] and of the budget.
fn bytes_of(request: &Request) -> usize {
    match request.command {
        Command::Read | Command::Write => request.length as usize,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
