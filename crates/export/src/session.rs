//! One NBD client: what it has sent, what it is owed, and when it may send more.
//!
//! A session receives into a buffer of its own and hands the bytes to [`Connection`], which says
//! what they mean. A write's payload that has not arrived with its header is received straight into
//! the request's buffer. Replies queue up and leave many at a time in one gathering send, payloads
//! from where the devices put them (`outbox`). With TLS the bytes pass through a [`Channel`] on
//! both ways instead, a bounded piece at a time.
//!
//! Bounds: a session with [`MOST_REQUESTS`] in flight, replies not yet sent included, is not read
//! from until it has fewer, nor while it waits for its turn at the memory all sessions share
//! ([`Budget`]). While it is slow to take its replies ([`SLOW_TIME`]) it does not even stand in
//! line. A session that holds memory others wait for, and does not move, is [`Overdue`]; so is one
//! whose handshake takes too long.
//!
//! Invariants: at most one receive and one send are under way; a session is gone only when neither
//! is and no request of it is in flight; what it took from the budget it gives back.

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

use crate::limits::{Limits, MOST_ANSWER_BYTES, MOST_REQUESTS, RECEIVE_IDLE_BYTES, SLOW_TIME};
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
use receiving::Incoming;

/// What the session wants the server to do next.
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

/// A request on its way to the server.
#[derive(Debug, Clone, Copy)]
enum Turn {
    /// In line at the budget.
    Waiting(Request),
    /// Not even in line, until the client has taken what is being sent.
    SetAside(Request),
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
    /// Requests that were refused here and never given out, since the server last asked.
    refused: u64,
    begun: Instant,
    /// When the send under way began.
    sending_since: Instant,
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
            refused: 0,
            begun: now,
            sending_since: now,
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

    /// Asks the budget for what a request takes.
    fn line_up(&self, request: Request) -> Turn {
        let at_once = self.common.budget.take(self.key, bytes_of(&request));
        if at_once { Turn::Come(request) } else { Turn::Waiting(request) }
    }

    /// A client that takes its replies slowly leaves the line to others.
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

    /// The server's list of exports has changed. A session whose export is gone ends; one whose
    /// export has another size serves up to that.
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

    fn structured(&self) -> bool {
        self.connection.negotiated().is_some_and(|negotiated| negotiated.structured_replies)
    }
}

/// What a request takes of the budget: its buffer, in whole sectors. That of a block status, a byte
/// for each sector of its range, is gone before the reply is made, which fits a sector.
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
