//! One client: its received bytes, its pending replies, and the bounds on its requests.
//!
//! A session receives into its own buffer and hands the bytes to its [`Protocol`], which parses
//! them. A write's payload that has not arrived with its header is received straight into the
//! request's buffer. Replies queue up and many of them leave in one gathering send, payloads
//! straight from the device's buffers (`outbox`). With TLS the bytes pass through a [`Channel`] in
//! both directions, a bounded part at a time.
//!
//! Bounds: the server stops reading from a session with [`MOST_REQUESTS`] in flight, unsent replies
//! included, and from one that waits for the memory all sessions share ([`Budget`]). A session that
//! is slow to take its replies ([`SLOW_TIME`]) does not even wait in line. A session that holds
//! memory others wait for, and makes no progress, is [`Overdue`]; so is one whose handshake takes
//! too long.
//!
//! Invariants: at most one receive and one send are under way. A session ends only when neither is
//! under way and no request of it is in flight. It returns all that it took from the budget.

mod budget;
mod ending;
mod error;
mod line;
mod passed;
mod receiving;
mod sending;
mod using;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use floe_block::{Fault, Kind, MOST_MAPPED_BYTES, SECTOR_BYTES};
use floe_device::{Buffer, Pool, Slice};
use floe_nbd::export::Exports;
use floe_nvme::target::Calculation;

use crate::limits::{Limits, MOST_ANSWER_BYTES, MOST_REQUESTS, RECEIVE_IDLE_BYTES, SLOW_TIME};
use crate::protocol::{Answer, Broken, Event, Outbox, Protocol, ProtocolFactory, Reply, Request};
use crate::tls::{Channel, TlsConfig};
pub(crate) use budget::Budget;
pub(crate) use error::{Overdue, SessionError};
use line::{Line, Turn};
pub use passed::HandOff;
pub(crate) use passed::Passed;
use receiving::{Filling, Incoming};

/// The action that the session wants from the server next.
#[derive(Debug)]
pub(crate) enum Want {
    /// Serve a request. One with a payload comes back by [`Session::begin_payload`] and is served
    /// when that is complete.
    Serve(Request),
    /// The payload of a write or a comparison is complete: serve it.
    ServeWrite(Request, Buffer),
    /// Receive at least one byte, or if possible all of it, into the slice, and report to
    /// [`Session::received`].
    Receive { into: Slice, whole: bool },
    /// Wait until replies have left, the session's turn at the budget has come, or a calculation is
    /// done.
    Pause,
    /// End: the client sends nothing more.
    End,
}

/// Resources that all sessions of a thread share.
#[derive(Debug, Clone)]
pub(crate) struct Common {
    pub(crate) pool: Pool,
    pub(crate) budget: Rc<Budget>,
    pub(crate) tls: Option<TlsConfig>,
    pub(crate) limits: Limits,
}

/// Received bytes, before they are parsed.
#[derive(Debug)]
struct Input {
    buffer: Option<Buffer>,
    /// The size of the next buffer, in bytes.
    size: usize,
    /// Bytes received and decrypted, of which the first `used` are parsed.
    bytes: Vec<u8>,
    used: usize,
    receiving: bool,
    /// Time of the last byte received.
    heard: Instant,
}

/// Payloads of writes and comparisons.
#[derive(Debug, Default)]
struct Payloads {
    /// Requests whose payload is expected or coming.
    incoming: Vec<Incoming>,
    /// The part of their payload that comes next.
    filling: Option<Filling>,
    /// A request whose payload is complete.
    filled: Option<Incoming>,
}

/// Bytes to be sent.
#[derive(Debug)]
struct Output {
    /// The last plaintext bytes, before TLS.
    clear: Vec<u8>,
    outbox: Outbox,
    sending: bool,
    /// Time at which the send under way began.
    since: Instant,
}

impl Output {
    /// The client takes its replies slowly.
    fn is_slow(&self, now: Instant) -> bool {
        self.sending && now >= self.since + SLOW_TIME
    }
}

/// The end of the session, as far as it has come.
#[derive(Debug, Default)]
struct End {
    /// The client sends nothing more, or the server ignores what it sends.
    ended: bool,
    /// The TLS close notification has been sent.
    closed: bool,
    /// The client can no longer be answered.
    broken: bool,
    /// Nothing is sent any more.
    silent: bool,
    /// No further request is received: the connection is handed on once nothing is under way.
    leaving: bool,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) socket: Rc<OwnedFd>,
    /// The session's key in the budget's line.
    key: u32,
    common: Common,
    protocol: Box<dyn Protocol>,
    channel: Option<Box<Channel>>,
    input: Input,
    payloads: Payloads,
    line: Line,
    output: Output,
    /// Requests handed to the server and not yet replied to.
    serving: usize,
    /// Requests refused in the session since the server last asked.
    refused: u64,
    begun: Instant,
    /// The last calculation that was taken.
    calculating: Option<Calculation>,
    end: End,
}

impl Session {
    /// Makes the session of a client that has just connected. `key` is its key in the budget's
    /// line, and `factory` begins its protocol.
    pub(crate) fn new(
        key: u32,
        socket: OwnedFd,
        factory: &dyn ProtocolFactory,
        exports: &Arc<Exports>,
        common: &Common,
        now: Instant,
    ) -> Self {
        let mut outbox = Outbox::default();
        let address = rustix::net::getsockname(&socket).ok();
        let address = address.and_then(|address| SocketAddr::try_from(address).ok());
        let protocol = factory.begin(address, exports, common.tls.as_ref(), &mut outbox);
        Self::of(key, socket, protocol, outbox, common, now)
    }

    /// A session with this protocol, which has put something into the outbox.
    fn of(
        key: u32,
        socket: OwnedFd,
        protocol: Box<dyn Protocol>,
        outbox: Outbox,
        common: &Common,
        now: Instant,
    ) -> Self {
        Self {
            socket: Rc::new(socket),
            key,
            common: common.clone(),
            protocol,
            channel: None,
            input: Input {
                buffer: None,
                size: RECEIVE_IDLE_BYTES,
                bytes: Vec::new(),
                used: 0,
                receiving: false,
                heard: now,
            },
            payloads: Payloads::default(),
            line: Line::default(),
            output: Output { clear: Vec::new(), outbox, sending: false, since: now },
            serving: 0,
            refused: 0,
            begun: now,
            calculating: None,
            end: End::default(),
        }
    }

    /// Returns the next action; `None` while it waits for a receive.
    pub(crate) fn next(&mut self, now: Instant) -> Result<Option<Want>, SessionError> {
        loop {
            if let Some(write) = self.payloads.filled.take() {
                return Ok(Some(Want::ServeWrite(write.request, write.buffer)));
            }
            if self.input.receiving {
                return Ok(self.take_request(now));
            }
            if self.payloads.filling.is_some() {
                if self.payloads.take(&mut self.input, &mut *self.protocol, now)
                    || self.decrypt()?
                {
                    continue;
                }
                if self.end.ended {
                    return Ok(Some(Want::End));
                }
                return Ok(Some(self.receive(now)));
            }
            if self.end.ended {
                return Ok(Some(Want::End));
            }
            if let Some(want) = self.take_request(now) {
                return Ok(Some(want));
            }
            match self.line.turn {
                // Payload of earlier writes is behind, and only that may free the memory.
                Some(_) if !self.payloads.incoming.is_empty() && !self.is_crowded() => {}
                Some(_) => return Ok(Some(Want::Pause)),
                None if self.is_crowded() => return Ok(Some(Want::Pause)),
                None => {}
            }
            if self.protocol.calculation().is_some_and(|it| !it.is_done()) {
                return Ok(Some(Want::Pause));
            }
            let advanced = self
                .protocol
                .advance(&self.input.bytes[self.input.used..], &mut self.output.outbox);
            let (used, event) = advanced.map_err(|error| self.dismissed(error))?;
            self.input.used += used;
            match event {
                Event::NeedMore if self.decrypt()? || self.end.ended => {}
                Event::NeedMore if self.end.leaving => return Ok(Some(Want::Pause)),
                Event::NeedMore => return Ok(Some(self.receive(now))),
                Event::Nothing => {}
                Event::StartTls => {
                    let config = self
                        .common
                        .tls
                        .as_ref()
                        .expect("TLS is granted where there are certificates");
                    self.channel = Some(Box::new(config.channel()));
                    self.output.clear.append(&mut self.output.outbox.answers);
                }
                Event::Request(request) if self.goes_first(&request) => {
                    self.common.budget.take_at_once(self.key, bytes_of(&request));
                    self.serving += 1;
                    return Ok(Some(Want::Serve(request)));
                }
                Event::Request(request) if self.line.turn.is_some() => {
                    self.line.behind.push_back(request)
                }
                Event::Request(request) => self.line.turn = Some(self.take_turn(request, now)),
                Event::Refused => self.refused += 1,
                Event::Checked { tag, intact } => {
                    let write = Incoming::remove(&mut self.payloads.incoming, tag);
                    match intact {
                        true => self.payloads.filled = Some(write),
                        false => self.reply(&write.request, Err(Fault::Io)), // it is not written
                    }
                }
                Event::Payload { tag, bytes } => self.payloads.fill(tag, bytes),
                Event::Disconnect => self.end.ended = true,
            }
        }
    }

    /// The client has broken the protocol. Ends the session if the client is told so.
    fn dismissed(&mut self, error: Broken) -> SessionError {
        if !self.protocol.has_last_words() {
            return SessionError::Protocol(error);
        }
        self.end();
        SessionError::Told(error)
    }

    /// The client is to be listened to no more until replies have left.
    fn is_crowded(&self) -> bool {
        self.serving + self.output.outbox.len() >= MOST_REQUESTS
            || self.output.outbox.answers.len() >= MOST_ANSWER_BYTES
    }

    /// Replies to a request, with the data of a successful read.
    pub(crate) fn reply(&mut self, request: &Request, result: Result<Option<Slice>, Fault>) {
        self.answer(request, result.map(|data| data.map_or(Answer::Done, Answer::Data)));
    }

    /// Replies to a request of any kind.
    pub(crate) fn answer(&mut self, request: &Request, result: Result<Answer<'_>, Fault>) {
        self.serving -= 1;
        let bytes = bytes_of(request);
        if self.end.broken {
            self.give_back(bytes);
        } else {
            let out = Reply::new(&mut self.output.outbox, &self.common.pool, bytes);
            self.protocol.reply(request, result, out);
        }
    }

    fn give_back(&mut self, bytes: usize) {
        self.common.budget.give_back(self.key, bytes);
    }

    /// Takes over the server's new list of exports. A session whose export is gone ends; one whose
    /// export has another size serves up to that.
    pub(crate) fn exports_changed(&mut self, exports: &Arc<Exports>) {
        if !self.protocol.exports_changed(exports, &mut self.output.outbox) {
            self.end();
        }
    }

    /// Returns a calculation that the session waits for, once.
    pub(crate) fn take_calculation(&mut self) -> Option<Calculation> {
        let wanted = self.protocol.calculation().filter(|it| !it.is_done())?;
        if self.calculating.as_ref().is_some_and(|taken| taken.is_same(wanted)) {
            return None;
        }
        self.calculating = Some(wanted.clone());
        self.calculating.clone()
    }

    /// Returns the number of requests refused in the session since the last call, and resets it.
    pub(crate) fn take_refused(&mut self) -> u64 {
        std::mem::take(&mut self.refused)
    }
}

/// Returns the memory a request takes of the budget: its buffer, in whole sectors. A comparison has
/// two. A block status takes a byte for each sector of its range. That is free again before the
/// reply is made, which fits a sector.
fn bytes_of(request: &Request) -> usize {
    let sectors = |most: u64| {
        let end = request.offset + u64::from(request.length).min(most);
        (end.div_ceil(SECTOR_BYTES) - request.offset / SECTOR_BYTES) as usize
    };
    match request.kind {
        Kind::Read if request.compares => 2 * sectors(u64::MAX) * SECTOR_BYTES as usize,
        Kind::Read | Kind::Write { .. } if request.length > 0 => {
            sectors(u64::MAX) * SECTOR_BYTES as usize
        }
        Kind::DirtyMap => sectors(MOST_MAPPED_BYTES).next_multiple_of(SECTOR_BYTES as usize),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
