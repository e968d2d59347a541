//! A session: the state of one client's connection, with its received bytes, pending replies, and
//! the limits on its requests.
//!
//! A session receives into its own buffer and hands the bytes to its [`Protocol`], which parses
//! them. A write's payload that has not arrived with its header is received straight into the
//! request's buffer. Replies are queued, and many of them leave in one gathering send, payloads
//! straight from the device's buffers ([`Outbox`]). With TLS the bytes pass through a [`Channel`]
//! in both directions, a bounded part at a time.
//!
//! Limits: the server stops reading from a session with [`MOST_REQUESTS`] in flight, unsent replies
//! included, and from one that waits for the memory all sessions share ([`Budget`]). A session that
//! is slow to take its replies ([`SLOW_TIME`]) does not even wait in line. A session that holds
//! memory others wait for, and makes no progress, is [`Overdue`]; so is one whose handshake takes
//! too long.
//!
//! A request beyond the limit of its volume or of its client ([`Throttle`]) waits before it takes
//! memory, and requests to other volumes overtake it. A write whose payload follows waits with its
//! payload, if that fits into the client's own memory; otherwise the server stops reading from the
//! client.
//!
//! Invariants: at most one receive and one send are under way. A session ends only when neither is
//! under way and no request of it is in flight. It then has returned all memory to the budget.

mod budget;
mod held;
mod receiving;
mod throttle;

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use floe_block::{Fault, RequestKind, VolumeId};
use floe_device::{Buffer, Pool, Slice};
use floe_nbd::export::Exports;
use floe_nvme::target::Deferred;

use crate::client_name::ClientName;
use crate::limits::{
    Limits, MOST_ANSWER_BYTES, MOST_REQUESTS, PIECE_BYTES, RECEIVE_IDLE_BYTES, SEND_TLS_BYTES,
    SLOW_TIME,
};
use crate::protocol::{
    Answer, Broken, Event, NoPlace, NotWelcome, Outbox, Protocol, ProtocolFactory, Reply, Request,
    slice_of,
};
use crate::status::Snapshot;
use crate::tls::{Channel, TlsConfig};
use crate::warnings::Complaint;
use budget::bytes_of;
use held::{Held, end_held, hold, release, unblock, waits_for_limit};
use receiving::{Filling, Incoming};

pub(crate) use budget::Budget;
pub(crate) use held::{end_if_vanished, limit_passed};
pub(crate) use throttle::Throttle;

/// The next action that a session requests from the worker.
#[derive(Debug)]
pub(crate) enum Want {
    /// Serve a request. For one with a payload, call [`Session::begin_payload`] with a buffer; it
    /// is served once the payload is complete.
    Serve(Request),
    /// Serve a write or a comparison, whose payload is complete in the buffer.
    ServeWrite(Request, Buffer),
    /// Receive into the slice: at least one byte, or all of it if `whole` and possible. Then call
    /// [`Session::received`].
    Receive { into: Slice, whole: bool },
    /// Receive nothing until replies are sent, the budget grants memory, or deferred work is done.
    Pause,
    /// End the session: the client sends nothing more.
    End,
}

/// Resources that all sessions of a thread share.
#[derive(Debug, Clone)]
pub(crate) struct Common {
    pub(crate) pool: Pool,
    pub(crate) budget: Rc<Budget>,
    pub(crate) throttle: Rc<Throttle>,
    pub(crate) tls: Option<TlsConfig>,
    pub(crate) limits: Limits,
}

/// Received bytes that are not parsed yet.
#[derive(Debug)]
struct Input {
    buffer: Option<Buffer>,
    /// Size of the next receive buffer, in bytes.
    size: usize,
    /// Received and decrypted bytes, of which the first `used` are parsed.
    bytes: Vec<u8>,
    used: usize,
    receiving: bool,
    /// Time of the last receive.
    heard: Instant,
}

/// A session's payloads of writes and comparisons.
#[derive(Debug, Default)]
struct Payloads {
    /// Requests whose payload is incomplete.
    incoming: Vec<Incoming>,
    /// The part of a payload that the client sends next.
    filling: Option<Filling>,
    /// Requests whose payload is complete and that are to be served next.
    filled: VecDeque<Incoming>,
    /// Requests that wait for the limits of their volumes, oldest first.
    held: VecDeque<Held>,
}

/// A session's bytes to be sent.
#[derive(Debug)]
struct Output {
    /// The last plaintext bytes, which are sent before TLS begins.
    clear: Vec<u8>,
    outbox: Outbox,
    sending: bool,
    /// Time at which the send under way began.
    since: Instant,
}

impl Output {
    /// Returns whether the send under way takes longer than [`SLOW_TIME`].
    fn is_slow(&self, now: Instant) -> bool {
        self.sending && now >= self.since + SLOW_TIME
    }
}

/// Stages of the session's end.
#[derive(Debug, Default)]
struct End {
    /// The client sends nothing more, or the server ignores what it sends.
    ended: bool,
    /// The TLS close notification is queued.
    closed: bool,
    /// Replies are dropped, because the client cannot receive them any more.
    broken: bool,
    /// The session sends nothing any more.
    silent: bool,
    /// The session is being handed off: it receives no further request, and ends once nothing is
    /// under way.
    leaving: bool,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) socket: Rc<OwnedFd>,
    /// The session's number, by which the budget knows it.
    key: u32,
    common: Common,
    protocol: Box<dyn Protocol>,
    channel: Option<Box<Channel>>,
    input: Input,
    payloads: Payloads,
    line: Line,
    output: Output,
    /// Requests handed to the worker and not yet replied to.
    serving: usize,
    /// Requests that the protocol refused since the last [`Session::take_refused`].
    refused: u64,
    begun: Instant,
    /// Name of the client, once a request has asked for it.
    client: OnceCell<ClientName>,
    /// The work that [`Session::take_deferred`] returned last.
    deferred: Option<Deferred>,
    end: End,
}

impl Session {
    /// Creates the session of a client that has just connected. `key` is the session's number in
    /// the budget, and `factory` creates its protocol state.
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

    /// Creates a session from a protocol state and an outbox.
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
            client: OnceCell::new(),
            deferred: None,
            end: End::default(),
        }
    }

    /// Returns the next action; `None` while a receive is under way and nothing else is to be done.
    ///
    /// # Errors
    /// When the client violated the protocol or TLS.
    pub(crate) fn next(&mut self, now: Instant) -> Result<Option<Want>, SessionError> {
        loop {
            if let Some(write) = self.payloads.filled.pop_front() {
                if !self.protocol.may_start(&write.request) {
                    self.reply(&write.request, Err(Fault::Io));
                    continue;
                }
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
            if let Some(want) = self.take_request(now) {
                return Ok(Some(want));
            }
            if self.end.ended {
                return Ok(Some(Want::End));
            }
            if let Some(want) = unblock(self) {
                return Ok(Some(want));
            }
            if self.payloads.is_blocked() || !self.payloads.held.is_empty() && self.is_crowded() {
                // The client may not keep the memory of incomplete writes for as long.
                self.payloads.incoming.iter_mut().for_each(|it| it.since = it.since.or(Some(now)));
                return Ok(Some(Want::Pause));
            }
            match self.line.turn {
                // Payload of earlier writes is behind, and only that may free the memory.
                Some(_) if !self.payloads.incoming.is_empty() && !self.is_crowded() => {}
                Some(_) => return Ok(Some(Want::Pause)),
                None if self.is_crowded() => return Ok(Some(Want::Pause)),
                None => {}
            }
            if self.protocol.deferred().is_some_and(|it| !it.is_done()) {
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
                Event::Request(request) => {
                    if waits_for_limit(self, &request, now) {
                        if let Some(want) = hold(self, request, now) {
                            return Ok(Some(want));
                        }
                    } else {
                        line_up(self, request, now);
                        if let Some(first) = self.line.first.pop_front() {
                            self.serving += 1;
                            return Ok(Some(Want::Serve(first)));
                        }
                    }
                }
                Event::Refused => self.refused += 1,
                Event::Checked { tag, intact } => {
                    let write = Incoming::remove(&mut self.payloads.incoming, tag);
                    match intact {
                        true => self.payloads.complete(write),
                        false => {
                            release(self, tag, now);
                            self.reply(&write.request, Err(Fault::Io)); // it is not written
                        }
                    }
                }
                Event::Payload { tag, bytes } => self.payloads.fill(tag, bytes),
                Event::Disconnect => self.end.ended = true,
            }
        }
    }

    /// Converts a protocol violation into the session's error. If the client is sent the reason
    /// first, the session ends after that.
    fn dismissed(&mut self, error: Broken) -> SessionError {
        if !self.protocol.has_last_words() {
            return SessionError::Protocol(error);
        }
        self.end();
        SessionError::Told(error)
    }

    /// Returns whether the server stops reading from the client until replies are sent.
    fn is_crowded(&self) -> bool {
        self.serving + self.payloads.held.len() + self.output.outbox.len() >= MOST_REQUESTS
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
            self.protocol.unanswered(request);
            self.common.budget.give_back(self.key, bytes);
        } else {
            let out = Reply::new(&mut self.output.outbox, &self.common.pool, bytes);
            self.protocol.reply(request, result, out);
        }
    }

    /// Adopts the server's new list of exports. A session whose export is gone ends; one whose
    /// export has another size serves up to that.
    pub(crate) fn exports_changed(&mut self, exports: &Arc<Exports>) {
        if !self.protocol.exports_changed(exports, &mut self.output.outbox) {
            self.end();
        }
    }

    /// Lets the protocol look at the reservations of NVMe hosts, which have changed.
    pub(crate) fn reservations_changed(&mut self) {
        self.protocol.reservations_changed(&mut self.output.outbox);
    }

    /// Returns the work that the session waits for, only once.
    pub(crate) fn take_deferred(&mut self) -> Option<Deferred> {
        let wanted = self.protocol.deferred().filter(|it| !it.is_done())?;
        if self.deferred.as_ref().is_some_and(|taken| taken.is_same(wanted)) {
            return None;
        }
        self.deferred = Some(wanted.clone());
        self.deferred.clone()
    }

    /// Returns the number of requests refused in the session since the last call, and resets it.
    pub(crate) fn take_refused(&mut self) -> u64 {
        std::mem::take(&mut self.refused)
    }

    /// Stops taking requests. Complete ones are still answered, and incomplete ones return their
    /// memory.
    pub(crate) fn end(&mut self) {
        self.end.ended = true;
        self.payloads.filling = None;
        while let Some(incoming) = self.payloads.incoming.pop() {
            self.serving -= 1;
            self.common.budget.give_back(self.key, bytes_of(&incoming.request));
        }
        end_held(self);
        self.line.behind.clear();
        for request in self.line.first.drain(..) {
            self.common.budget.give_back(self.key, bytes_of(&request));
        }
        match self.line.turn.take() {
            Some(Turn::Waiting(_)) => self.common.budget.leave(self.key),
            Some(Turn::Come(request)) => self.common.budget.give_back(self.key, bytes_of(&request)),
            Some(Turn::SetAside(_)) | None => {}
        }
    }

    /// Drops all replies and stops sending anything to the client.
    pub(crate) fn break_off(&mut self) {
        self.drop_replies();
        self.end.silent = true;
        self.output.clear.clear();
    }

    fn drop_replies(&mut self) {
        self.end();
        self.end.broken = true;
        let bytes = self.output.outbox.clear();
        self.common.budget.give_back(self.key, bytes);
    }

    /// Returns the reason why the client is late, if it is. The caller then calls
    /// [`Session::break_off`].
    pub(crate) fn overdue(&self, now: Instant) -> Option<Overdue> {
        if self.is_in_handshake() {
            return (now >= self.begun + self.common.limits.handshake_time)
                .then_some(Overdue::Handshake);
        }
        if self.protocol.has_parent() == Some(false) {
            return Some(Overdue::Orphaned);
        }
        if self.protocol.longest_silence().is_some_and(|most| now >= self.input.heard + most) {
            return Some(Overdue::Silent);
        }
        let giving = self.payloads.incoming.iter().filter_map(|incoming| incoming.since);
        let taking = self.output.sending.then_some(self.output.since);
        let since = giving.chain(taking).min();
        let late = since.is_some_and(|since| now >= since + self.common.limits.stall_time);
        (late && self.common.budget.is_in_the_way(self.key)).then_some(Overdue::Stalled)
    }

    /// Returns whether the client has not finished the handshake.
    pub(crate) fn is_in_handshake(&self) -> bool {
        !self.protocol.is_established() && !self.end.silent
    }

    /// Returns whether the client can become late even if no other client waits for its memory.
    pub(crate) fn is_watched(&self) -> bool {
        let is_bound =
            || self.protocol.longest_silence().is_some() || self.protocol.has_parent().is_some();
        self.is_in_handshake() || !self.end.ended && is_bound()
    }

    /// Returns whether no request is in flight, no reply is pending and no send is under way.
    pub(crate) fn is_quiet(&self) -> bool {
        let to_say =
            self.channel.as_ref().is_some_and(|channel| channel.wants_send() && !self.end.silent);
        !self.output.sending
            && self.serving == 0
            && self.output.outbox.is_empty()
            && self.output.clear.is_empty()
            && self.payloads.held.is_empty()
            && self.line.is_empty()
            && !to_say
    }

    /// Returns whether the session is finished but for a pointless receive under way. The caller
    /// then shuts the socket down.
    pub(crate) fn is_done_listening(&self) -> bool {
        self.end.ended && self.input.receiving && self.is_quiet()
    }

    /// Returns whether the session is finished: all replies are sent, and nothing is under way.
    pub(crate) fn is_over(&self) -> bool {
        self.end.ended && !self.input.receiving && self.is_quiet()
    }

    /// Returns the request at the head of the line if its memory is granted, and advances the line.
    fn take_request(&mut self, now: Instant) -> Option<Want> {
        if let Some(request) = self.line.first.pop_front() {
            self.serving += 1;
            return Some(Want::Serve(request));
        }
        let Some(Turn::Come(request)) = self.line.turn else { return None };
        let next = self.line.behind.pop_front();
        self.line.turn = next.map(|next| self.take_turn(next, now));
        self.serving += 1;
        Some(Want::Serve(request))
    }

    /// Returns whether a request overtakes those that wait for memory. A write does if its payload
    /// precedes the payload of earlier writes, because only its completion may free memory. So does
    /// a request that needs no memory, because nothing else limits how many of those wait.
    fn goes_first(&self, request: &Request) -> bool {
        let is_write = matches!(request.kind, RequestKind::Write { .. });
        request.payload_follows && is_owed_payload(self)
            || self.line.turn.is_some() && !is_write && bytes_of(request) == 0
    }

    /// Takes the memory of a request from the budget, or puts the request in line for it.
    fn take_turn(&self, request: Request, now: Instant) -> Turn {
        match self.common.budget.take_own(self.key, bytes_of(&request)) {
            true => Turn::Come(request),
            false if self.output.is_slow(now) => Turn::SetAside(request),
            false => self.ask_budget(request),
        }
    }

    /// Asks the budget for memory beyond the client's own for a request.
    fn ask_budget(&self, request: Request) -> Turn {
        let at_once = self.common.budget.take(self.key, bytes_of(&request));
        if at_once { Turn::Come(request) } else { Turn::Waiting(request) }
    }

    /// Removes the client from the budget's line if it takes its replies slowly.
    pub(crate) fn leave_the_line_if_slow(&mut self, now: Instant) {
        if let Some(Turn::Waiting(request)) = self.line.turn
            && self.output.is_slow(now)
        {
            self.common.budget.leave(self.key);
            self.line.turn = Some(Turn::SetAside(request));
        }
    }

    /// Records that the budget has granted the memory that the session waits for.
    pub(crate) fn turn_has_come(&mut self) {
        let Some(Turn::Waiting(request)) = self.line.turn else {
            unreachable!("only who waits has a turn")
        };
        self.line.turn = Some(Turn::Come(request));
    }

    /// Returns the next bytes to send, if there are any and no send is under way.
    pub(crate) fn next_send(&mut self, now: Instant) -> Option<Vec<Slice>> {
        if self.output.sending || self.end.silent {
            return None;
        }
        let slices = if !self.output.clear.is_empty() {
            vec![slice_of(&std::mem::take(&mut self.output.clear), &self.common.pool)]
        } else if self.channel.is_some() {
            self.encrypt()?
        } else if self.output.outbox.is_empty() {
            return None;
        } else {
            self.output.outbox.gather(&self.common.pool, PIECE_BYTES)
        };
        self.output.sending = true;
        self.output.since = now;
        Some(slices)
    }

    /// Returns the next bytes to send over TLS, encrypted.
    fn encrypt(&mut self) -> Option<Vec<Slice>> {
        let channel = self.channel.as_mut()?;
        if !self.output.outbox.is_empty() {
            for slice in self.output.outbox.gather(&self.common.pool, SEND_TLS_BYTES) {
                channel.write(&slice.to_vec());
            }
        } else if self.end.ended
            && self.serving == 0
            && self.payloads.held.is_empty()
            && self.line.is_empty()
            && !std::mem::replace(&mut self.end.closed, true)
        {
            channel.close();
        }
        if !channel.wants_send() {
            return None;
        }
        let mut encrypted = Vec::new();
        channel.take(&mut encrypted);
        Some(vec![slice_of(&encrypted, &self.common.pool)])
    }

    /// Takes back an empty list, to reuse its memory for the next send.
    pub(crate) fn keep(&mut self, list: Vec<Slice>) {
        self.output.outbox.keep(list);
    }

    /// Handles the end of the send under way: returns the replies' memory, and lines up a request
    /// that was set aside.
    pub(crate) fn sent(&mut self, now: Instant) {
        self.output.sending = false;
        self.output.since = now; // the next send may begin at once
        let bytes = self.output.outbox.left();
        self.common.budget.give_back(self.key, bytes);
        if let Some(Turn::SetAside(request)) = self.line.turn {
            self.line.turn = Some(self.ask_budget(request)); // it was slow, and has moved
        }
    }

    /// Returns the volume the client has chosen; `None` while the handshake lasts.
    pub(crate) fn volume(&self) -> Option<VolumeId> {
        self.protocol.volume()
    }

    /// Adds the client to the counts by protocol and by volume.
    pub(crate) fn count(&self, snapshot: &mut Snapshot) {
        snapshot.connected(self.protocol.name(), self.protocol.volumes_in_use());
    }

    /// Returns whether the client has chosen the volume, or has a waiting or incomplete request to
    /// it.
    pub(crate) fn uses(&self, volume: VolumeId) -> bool {
        let incoming =
            self.payloads.incoming.iter().chain(&self.payloads.filled).map(|write| &write.request);
        let held = self.payloads.held.iter().map(|held| &held.request).chain(&self.line.first);
        let mut waiting = self.line.waiting().chain(incoming).chain(held);
        self.volume() == Some(volume) || waiting.any(|request| request.volume == volume)
    }

    /// Begins to hand the connection off to the next server. Returns whether that is possible:
    /// encrypted connections and those in the handshake cannot be handed off.
    pub(crate) fn leave(&mut self) -> bool {
        self.end.leaving = self.channel.is_none() && !self.is_in_handshake() && !self.end.ended;
        self.end.leaving
    }

    /// Returns whether the connection is being handed off.
    pub(crate) fn is_leaving(&self) -> bool {
        self.end.leaving && !self.end.ended
    }

    /// Records that the receive under way was cancelled before any byte arrived.
    pub(crate) fn receive_cancelled(&mut self) {
        self.input.receiving = false;
    }
}

/// Returns whether the client sends the payload of an earlier write after what it sends next: it
/// was asked for that payload, or will be asked once there is memory.
fn is_owed_payload(session: &Session) -> bool {
    let is_asked_for = |request: &Request| request.has_payload() && !request.payload_follows;
    !session.payloads.incoming.is_empty() || session.line.waiting().any(is_asked_for)
}

/// Puts a request into the line for memory, or before it.
fn line_up(session: &mut Session, request: Request, now: Instant) {
    if session.goes_first(&request) {
        session.common.budget.take_at_once(session.key, bytes_of(&request));
        session.line.first.push_back(request);
    } else if session.line.turn.is_some() {
        session.line.behind.push_back(request);
    } else {
        session.line.turn = Some(session.take_turn(request, now));
    }
}

#[cfg(test)]
mod tests;

/// The state of the first request that waits for memory.
#[derive(Debug, Clone, Copy)]
enum Turn {
    /// The request is in the budget's line.
    Waiting(Request),
    /// The request is out of the line until the slow client has received the send under way.
    SetAside(Request),
    Come(Request),
}

/// A session's requests that wait for memory.
#[derive(Debug, Default)]
struct Line {
    turn: Option<Turn>,
    /// Requests that wait behind the one in `turn`.
    behind: VecDeque<Request>,
    /// Requests with memory, which overtake the others.
    first: VecDeque<Request>,
}

impl Line {
    fn is_empty(&self) -> bool {
        self.turn.is_none() && self.behind.is_empty() && self.first.is_empty()
    }

    /// Returns the requests that have not overtaken others, oldest first.
    fn waiting(&self) -> impl Iterator<Item = &Request> {
        let turn = self.turn.iter().map(
            |(Turn::Waiting(request) | Turn::SetAside(request) | Turn::Come(request))| request,
        );
        turn.chain(&self.behind)
    }
}

/// An error that ends a session.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// The client violated the protocol.
    #[error(transparent)]
    Protocol(#[from] Broken),
    /// The client violated the protocol, and gets a last reply with the reason.
    #[error(transparent)]
    Told(Broken),
    /// The client violated TLS, or its certificate is not valid.
    #[error("TLS failed: {0}")]
    Tls(std::io::Error),
}

impl SessionError {
    /// Returns the kind of warning about the client: a refusal is no violation of the protocol.
    pub(crate) fn complaint(&self) -> Complaint {
        let (Self::Protocol(it) | Self::Told(it)) = self else { return Complaint::NotTrusted };
        match (it.is::<NoPlace>(), it.is::<NotWelcome>()) {
            (true, _) => Complaint::NoPlace,
            (_, true) => Complaint::NotTrusted,
            _ => Complaint::BrokeProtocol,
        }
    }
}

/// The reason why a client is late and is disconnected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Overdue {
    #[error("no export chosen in time")]
    Handshake,
    #[error("the connection that it belongs to has ended")]
    Orphaned,
    #[error("it has sent nothing for longer than it promised")]
    Silent,
    /// The client neither reads its replies nor sends the rest of a write, while others wait for
    /// its memory.
    #[error("it neither takes nor gives, and others wait for the memory")]
    Stalled,
}

/// A connection that is handed off from one server of this process to the next.
///
/// The session of the first server receives no further requests. It answers those that have
/// arrived, and is taken apart when nothing is under way. The next server creates a session from
/// the connection, which goes on where the first one stopped. Encrypted connections are not handed
/// off but closed.
#[derive(Debug)]
pub(crate) struct Passed {
    socket: OwnedFd,
    protocol: Box<dyn Protocol>,
}

/// The connections that a server hands off to the next server of this process.
#[derive(Debug, Clone, Default)]
pub struct HandOff(Arc<Mutex<Vec<Passed>>>);

impl HandOff {
    pub(crate) fn put(&self, passed: Passed) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(passed);
    }

    /// Removes and returns all connections.
    pub(crate) fn take(&self) -> Vec<Passed> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Passed {
    /// Returns whether a session is being handed off and has nothing under way.
    pub(crate) fn can_be_of(session: &Session) -> bool {
        session.is_leaving()
            && !session.input.receiving
            && session.is_quiet()
            && session.payloads.filling.is_none()
            && session.input.used == session.input.bytes.len()
    }

    /// Converts a session into a connection to hand off; `None` when no file descriptor is left.
    pub(crate) fn of(session: Session) -> Option<Self> {
        debug_assert!(Self::can_be_of(&session));
        // The cancellation of a receive may still hold the socket.
        let socket = session.socket.try_clone().ok()?;
        Some(Self { socket, protocol: session.protocol })
    }

    /// Creates a session from the connection, and tells its client of the server's exports.
    pub(crate) fn adopted(
        self,
        key: u32,
        exports: &Arc<Exports>,
        common: &Common,
        now: Instant,
    ) -> Session {
        let outbox = Outbox::default();
        let mut session = Session::of(key, self.socket, self.protocol, outbox, common, now);
        session.exports_changed(exports);
        session
    }
}
