//! One NBD client: its received bytes, its pending replies, and the bounds on its requests.
//!
//! A session receives into its own buffer and hands the bytes to [`Connection`], which parses them.
//! A write's payload that has not arrived with its header is received straight into the request's
//! buffer. Replies queue up and many of them leave in one gathering send, payloads straight from
//! the device's buffers (`outbox`). With TLS the bytes pass through a [`Channel`] in both
//! directions, a bounded part at a time.
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
mod outbox;
mod receiving;
mod sending;

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use floe_block::{MOST_MAPPED_BYTES, SECTOR_BYTES};
use floe_device::{Buffer, Pool, Slice};
use floe_nbd::connection::{Connection, Event};
use floe_nbd::error::{NbdError, ProtocolError};
use floe_nbd::export::{Export, Exports};
use floe_nbd::extent::{self, Extent};
use floe_nbd::handshake::Tls;
use floe_nbd::reply::ReplyHeader;
use floe_nbd::transmission::{Command, Request};

use crate::limits::{Limits, MOST_ANSWER_BYTES, MOST_REQUESTS, RECEIVE_IDLE_BYTES, SLOW_TIME};
use crate::tls::{Channel, TlsConfig};
pub(crate) use budget::Budget;
use outbox::{Outbox, slice_of};
use receiving::Incoming;

/// The action that the session wants from the server next.
#[derive(Debug)]
pub(crate) enum Want {
    /// Serve a request. A write comes back by [`Session::begin_payload`] and is served when it is
    /// complete.
    Serve(Request),
    /// The write's payload is complete: serve it.
    ServeWrite(Request, Buffer),
    /// Receive at least one byte, or if possible all of it, into the slice, and report to
    /// [`Session::received`].
    Receive { into: Slice, whole: bool },
    /// Wait until replies have left, or the session's turn at the budget has come.
    Pause,
    /// End: the client sends nothing more.
    End,
}

/// An error that ends a session.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// The client broke the NBD protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The client broke TLS, or its certificate is not valid.
    #[error("TLS failed: {0}")]
    Tls(std::io::Error),
}

/// The action with which a client is late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Overdue {
    #[error("no export chosen in time")]
    Handshake,
    /// The client takes no replies, or sends no more of a write.
    #[error("it neither takes nor gives, and others wait for the memory")]
    Stalled,
}

/// Resources that all sessions of a thread share.
#[derive(Debug, Clone)]
pub(crate) struct Common {
    pub(crate) pool: Pool,
    pub(crate) budget: Rc<Budget>,
    pub(crate) tls: Option<TlsConfig>,
    pub(crate) limits: Limits,
}

/// A request on its way to the server.
#[derive(Debug, Clone, Copy)]
enum Turn {
    /// In line at the budget.
    Waiting(Request),
    /// Not in line, until the client has taken the send under way.
    SetAside(Request),
    Come(Request),
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) socket: Rc<OwnedFd>,
    /// The session's key in the budget's line.
    key: u32,
    common: Common,
    connection: Connection,
    channel: Option<Box<Channel>>,
    receive_buffer: Option<Buffer>,
    receive_bytes: usize,
    /// Bytes received and decrypted, of which the first `used` are parsed.
    input: Vec<u8>,
    used: usize,
    incoming: Option<Incoming>,
    receiving: bool,
    turn: Option<Turn>,
    /// The last plaintext bytes, before TLS.
    clear: Vec<u8>,
    outbox: Outbox,
    sending: bool,
    /// Requests handed to the server and not yet replied to.
    serving: usize,
    /// Requests refused in the session since the server last asked.
    refused: u64,
    begun: Instant,
    /// Time at which the send under way began.
    sending_since: Instant,
    /// The client sends nothing more, or the server ignores what it sends.
    ended: bool,
    /// The TLS close notification has been sent.
    closed: bool,
    /// The client can no longer be answered.
    broken: bool,
    /// Nothing is sent any more.
    silent: bool,
}

impl Session {
    /// Makes the session of a client that has just connected. `key` is its key in the budget's
    /// line.
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
            refused: 0,
            begun: now,
            sending_since: now,
            ended: false,
            closed: false,
            broken: false,
            silent: false,
        }
    }

    /// Returns the next action; `None` while a receive is under way.
    pub(crate) fn next(&mut self, now: Instant) -> Result<Option<Want>, SessionError> {
        if self.receiving {
            return Ok(None);
        }
        loop {
            if let Some(incoming) =
                self.incoming.take_if(|incoming| incoming.received == incoming.into.len())
            {
                return Ok(Some(Want::ServeWrite(incoming.request, incoming.buffer)));
            }
            if self.incoming.is_some() {
                if self.take_payload(now) || self.decrypt()? {
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
                Some(Turn::Waiting(_) | Turn::SetAside(_)) => return Ok(Some(Want::Pause)),
                Some(Turn::Come(request)) => {
                    self.turn = None;
                    self.serving += 1;
                    return Ok(Some(Want::Serve(request)));
                }
                None => {}
            }
            let crowded = self.serving + self.outbox.len() >= MOST_REQUESTS;
            if crowded || self.outbox.answers.len() >= MOST_ANSWER_BYTES {
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
                    let config = self
                        .common
                        .tls
                        .as_ref()
                        .expect("TLS is granted where there are certificates");
                    self.channel = Some(Box::new(config.channel()));
                    self.clear.append(&mut self.outbox.answers);
                }
                Event::Request(request) => {
                    let own = self.common.budget.take_own(self.key, bytes_of(&request));
                    self.turn = Some(match own {
                        true => Turn::Come(request),
                        false if self.is_slow(now) => Turn::SetAside(request),
                        false => self.line_up(request),
                    });
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

    /// Replies to a request, with the data of a successful read.
    pub(crate) fn reply(&mut self, request: &Request, result: Result<Option<Slice>, NbdError>) {
        let (header, payload) = match result {
            Ok(payload) => (ReplyHeader::success(request, self.structured()), payload),
            Err(error) => (ReplyHeader::failure(request, &error, self.structured()), None),
        };
        self.push_reply(request, header, payload);
    }

    /// Replies to a block status request with the consecutive extents from its offset on.
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

    /// Asks the budget for the memory of a request.
    fn line_up(&self, request: Request) -> Turn {
        let at_once = self.common.budget.take(self.key, bytes_of(&request));
        if at_once { Turn::Come(request) } else { Turn::Waiting(request) }
    }

    /// Removes a client from the line if it takes its replies slowly.
    pub(crate) fn leave_the_line_if_slow(&mut self, now: Instant) {
        if let Some(Turn::Waiting(request)) = self.turn
            && self.is_slow(now)
        {
            self.common.budget.leave(self.key);
            self.turn = Some(Turn::SetAside(request));
        }
    }

    fn is_slow(&self, now: Instant) -> bool {
        self.sending && now >= self.sending_since + SLOW_TIME
    }

    /// The session's turn at the budget has come.
    pub(crate) fn turn_has_come(&mut self) {
        let Some(Turn::Waiting(request)) = self.turn else {
            unreachable!("only who waits has a turn")
        };
        self.turn = Some(Turn::Come(request));
    }

    fn give_back(&mut self, bytes: usize) {
        self.common.budget.give_back(self.key, bytes);
    }

    /// Takes over the server's new list of exports. A session whose export is gone ends; one whose
    /// export has another size serves up to that.
    pub(crate) fn exports_changed(&mut self, exports: &Arc<Exports>) {
        if !self.connection.exports_changed(exports) {
            self.end();
        }
    }

    /// Returns the export the client has chosen; `None` while the handshake lasts.
    pub(crate) fn export(&self) -> Option<&Export> {
        self.connection.export()
    }

    /// Returns the number of requests refused in the session since the last call, and resets it.
    pub(crate) fn take_refused(&mut self) -> u64 {
        std::mem::take(&mut self.refused)
    }

    fn structured(&self) -> bool {
        self.connection.negotiated().is_some_and(|negotiated| negotiated.structured_replies)
    }
}

/// Returns the memory a request takes of the budget: its buffer, in whole sectors. A block status
/// takes a byte for each sector of its range. That is free again before the reply is made, which
/// fits a sector.
fn bytes_of(request: &Request) -> usize {
    let sectors = |most: u64| {
        let end = request.offset + u64::from(request.length).min(most);
        (end.div_ceil(SECTOR_BYTES) - request.offset / SECTOR_BYTES) as usize
    };
    match request.command {
        Command::Read | Command::Write if request.length > 0 => {
            sectors(u64::MAX) * SECTOR_BYTES as usize
        }
        Command::BlockStatus => sectors(MOST_MAPPED_BYTES).next_multiple_of(SECTOR_BYTES as usize),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
