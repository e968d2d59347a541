//! The server: one thread that carries bytes between clients' sockets, their sessions and the block cache.
//!
//! Everything waits in one place, the ring that sockets and devices share. Each turn of the loop takes in what has
//! arrived, lets the cache advance, hands answers to sessions, and sends what they have to say. The state machines
//! decide (`Session`, `Conversation`, [`Driver`]); this file moves their results.
//!
//! An end (a signal, `floe stop`) takes no new requests, lets those under way finish, brings dirty data to the backing
//! device, and closes the connections.

mod admin_side;
mod bound;
mod config;
mod slots;
mod token;

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use floe_block::{Answer, Driver, Fault, Kind, Request, VolumeId};
use floe_device::{Ring, Slice, SocketCompletion, SocketOutcome, Sockets};
use rustix::net::{Shutdown, shutdown, sockopt};

use crate::limits::WATCH_INTERVAL;
use crate::listener::Listener;
use crate::nbd::error::{ErrorCode, NbdError};
use crate::nbd::export::Exports;
use crate::nbd::transmission::{Command, Request as NbdRequest};
use crate::notify;
use crate::session::{Common, Session, SessionError, Want};
use crate::status::{Facts, Operation, Report, Snapshot, Tally, VolumeFacts};
use crate::uri::Uri;
use admin_side::AdminSession;
pub use bound::Bound;
pub use config::{ServeError, ServerConfig};
use slots::Slots;
use token::Token;

/// How long clients have to take their last replies when the server ends.
const GRACE: Duration = Duration::from_secs(5);

/// How long to wait before accepting again after the system refused (out of descriptors, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a TCP connection is silent before the system asks whether the other side is still there, and how often then.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Who asked for a request of the cache.
#[derive(Debug)]
enum Origin {
    Session { index: u32, request: NbdRequest, payload: Option<Slice>, begun: Instant },
    AdminFlush { index: u32 },
    LastFlush,
}

/// How far the end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Requests under way are finishing, until then at the latest.
    Finishing {
        until: Instant,
    },
    /// The last flush is under way.
    Flushing,
    /// Whoever asked for the end is being told.
    Telling,
}

/// A server of one volume.
pub struct Server {
    config: ServerConfig,
    ring: Ring,
    common: Common,
    sockets: Sockets,
    driver: Driver,
    exports: Arc<Exports>,
    listeners: Vec<Listener>,
    admin_listener: Rc<OwnedFd>,
    admin_address: String,
    signal: Rc<OwnedFd>,
    sessions: Slots<Session>,
    admin_sessions: Slots<AdminSession>,
    /// Who asked for each request under way, by its number.
    origins: Vec<Option<Origin>>,
    /// Sessions that may have something to do.
    touched: Vec<u32>,
    phase: Phase,
    accept_again: Option<(Instant, Vec<Token>)>,
    /// The last attempt to accept a client failed; the first of a row is worth a line in the log.
    refusing: bool,
    /// The last client was sent away for want of room; the first of a row is worth a line in the log.
    crowded: bool,
    /// When to look for clients that are late, if any can be.
    watch_at: Option<Instant>,
    clean_at: Instant,
    begun: Instant,
    started: SystemTime,
    tally: Tally,
    last_flush: Result<(), Fault>,
}

impl Server {
    /// What clients connect to.
    pub fn uris(&self) -> impl Iterator<Item = Uri> + '_ {
        self.listeners
            .iter()
            .map(|listener| Uri { export: self.config.volume.clone(), ..listener.uri.clone() })
    }

    /// Where the admin interface listens.
    pub fn admin_address(&self) -> &str {
        &self.admin_address
    }

    /// Serves until it is told to end, then flushes.
    ///
    /// # Errors
    /// When the ring fails, or the last flush leaves dirty data behind.
    pub fn run(mut self) -> Result<(), ServeError> {
        for index in 0..self.listeners.len() as u32 {
            self.accept(Token::Accept(index));
        }
        self.accept(Token::AcceptAdmin);
        self.sockets.readable(Token::Signal.encode(), &Rc::clone(&self.signal));
        let (mut arrived, mut answers) = (Vec::new(), Vec::new());
        loop {
            self.sockets.poll(&mut arrived);
            self.driver.advance();
            self.driver.take_answers(&mut answers);
            let mut busy = !arrived.is_empty() || !answers.is_empty();
            arrived.drain(..).for_each(|completion| self.take_in(completion));
            answers.drain(..).for_each(|answer| self.hand_out(answer));
            self.pump_touched();
            busy |= self.watch_the_clock();
            if self.has_ended() {
                break;
            }
            if !busy {
                self.ring.wait_until(self.next_due()).map_err(ServeError::Ring)?;
            }
        }
        let dirty_bytes = self.driver.stats().dirty_bytes;
        tracing::info!(dirty_bytes, "ended");
        self.last_flush.map_err(|fault| ServeError::LastFlush { fault, dirty_bytes })
    }

    fn accept(&mut self, token: Token) {
        let listener = match token {
            Token::Accept(index) => &self.listeners[index as usize].socket,
            _ => &self.admin_listener,
        };
        self.sockets.accept(token.encode(), &Rc::clone(listener));
    }

    /// Acts on the end of a socket operation.
    fn take_in(&mut self, completion: SocketCompletion) {
        let token = Token::decode(completion.token);
        match (token, completion.result) {
            (Token::Signal, result) => self.signalled(&result),
            (Token::Accept(_) | Token::AcceptAdmin, result) => self.accepted(token, result),
            (Token::Receive(index), Ok(SocketOutcome::Received(bytes))) => {
                let received = self.sessions[index].received(bytes, Instant::now());
                if let Err(error) = received {
                    tracing::warn!(client = index, %error, "client hung up");
                    self.tally.clients_hung_up_on += 1;
                }
                self.touched.push(index);
            }
            (Token::Receive(index), _) => {
                let _ = self.sessions[index].received(0, Instant::now()); // the socket is gone, and that is all there is to say
                self.break_off(index);
            }
            (Token::Send(index), result) => {
                self.sessions[index].sent(Instant::now());
                if result.is_err() {
                    self.break_off(index);
                }
                self.touched.push(index);
            }
            (Token::ReceiveAdmin(index), result) => self.heard_admin(index, result),
            (Token::SendAdmin(index), _) => {
                self.admin_sessions.remove(index);
            }
        }
    }

    fn accepted(&mut self, token: Token, result: std::io::Result<SocketOutcome>) {
        // While the server ends it can still be asked how far it is.
        let welcome = match self.phase {
            Phase::Serving => true,
            Phase::Finishing { .. } | Phase::Flushing => token == Token::AcceptAdmin,
            Phase::Telling => false,
        };
        if !welcome {
            return;
        }
        match result {
            Ok(SocketOutcome::Accepted(socket)) if token == Token::AcceptAdmin => self.greet_admin(socket),
            Ok(SocketOutcome::Accepted(socket)) => {
                self.refusing = false;
                self.welcome(socket);
            }
            Ok(_) => {}
            Err(error) => {
                if !std::mem::replace(&mut self.refusing, true) {
                    tracing::warn!(%error, "cannot accept connections");
                }
                let due = Instant::now() + ACCEPT_PAUSE;
                self.accept_again.get_or_insert((due, Vec::new())).1.push(token);
                return;
            }
        }
        self.accept(token);
    }

    fn welcome(&mut self, socket: OwnedFd) {
        let full = self.sessions.len() >= self.config.limits.connections;
        if full {
            if !std::mem::replace(&mut self.crowded, true) {
                tracing::warn!(
                    connections = self.sessions.len(),
                    "no more connections are taken until some end"
                );
            }
            self.tally.connections_refused += 1;
            return; // closes it
        }
        self.crowded = false;
        // A Unix socket has no such options; keepalive finds out that a client's machine is gone.
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        let _ = sockopt::set_socket_keepalive(&socket, true);
        let _ = sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE);
        let _ = sockopt::set_tcp_keepintvl(&socket, KEEPALIVE_INTERVAL);
        let now = Instant::now();
        let (exports, common) = (&self.exports, &self.common);
        let index = self.sessions.insert_with(|key| Session::new(key, socket, exports, common, now));
        self.watch_at.get_or_insert(now + WATCH_INTERVAL);
        self.tally.connections_taken += 1;
        tracing::debug!(client = index, "connected");
        self.touched.push(index);
    }

    /// Stops speaking to a client; its socket's operations end at once.
    fn break_off(&mut self, index: u32) {
        let session = &mut self.sessions[index];
        session.break_off();
        let _ = shutdown(session.socket.as_fd(), Shutdown::Both); // it may be shut down already
        self.touched.push(index);
    }

    fn pump_touched(&mut self) {
        while let Some(index) = self.touched.pop() {
            if self.sessions.contains(index) {
                self.pump(index);
            }
        }
        while let Some(index) = self.common.budget.next_in_turn() {
            self.sessions[index].turn_has_come();
            self.pump(index);
        }
    }

    /// Does all a session wants that can be done now.
    fn pump(&mut self, index: u32) {
        let now = Instant::now();
        loop {
            match self.sessions[index].next(now) {
                Ok(Some(Want::Serve(request))) => self.serve(index, request),
                Ok(Some(Want::ServeWrite(request, buffer))) => {
                    let durable = request.fua();
                    self.submit(index, request, Kind::Write { durable }, Some(buffer), None);
                }
                Ok(Some(Want::Receive { into, whole })) => {
                    let socket = Rc::clone(&self.sessions[index].socket);
                    self.sockets.receive(Token::Receive(index).encode(), &socket, into, whole);
                }
                Ok(Some(Want::Pause | Want::End) | None) => break,
                Err(error @ SessionError::Tls(_)) => {
                    tracing::warn!(client = index, %error, "client cannot be trusted");
                    self.tally.clients_hung_up_on += 1;
                    break; // it is told so
                }
                Err(error) => {
                    tracing::warn!(client = index, %error, "client broke the protocol");
                    self.tally.clients_hung_up_on += 1;
                    self.break_off(index);
                    break;
                }
            }
        }
        self.tally.requests_refused += self.sessions[index].take_refused();
        if self.common.budget.is_waited_for() {
            self.watch_at.get_or_insert(now + WATCH_INTERVAL);
        }
        if let Some(slices) = self.sessions[index].next_send(now) {
            let socket = Rc::clone(&self.sessions[index].socket);
            self.sockets.send(Token::Send(index).encode(), &socket, slices);
        }
        if self.sessions[index].is_done_listening() {
            let _ = shutdown(self.sessions[index].socket.as_fd(), Shutdown::Both); // ends the receive
        }
        if self.sessions[index].is_over() {
            tracing::debug!(client = index, "disconnected");
            self.sessions.remove(index);
        }
    }

    /// Begins a client's request; a write waits for its payload.
    fn serve(&mut self, index: u32, request: NbdRequest) {
        let durable = request.fua();
        match request.command {
            Command::Write => {
                let wanted = self.cache_request(index, &request, Kind::Write { durable });
                let buffer = self.driver.buffer(&wanted);
                let payload = <Driver>::payload(&wanted, &buffer);
                self.sessions[index].begin_payload(request, buffer, payload);
            }
            Command::Read => {
                let wanted = self.cache_request(index, &request, Kind::Read);
                let buffer = self.driver.buffer(&wanted);
                let payload = <Driver>::payload(&wanted, &buffer);
                self.submit(index, request, Kind::Read, Some(buffer), Some(payload));
            }
            Command::WriteZeroes if request.only_if_fast() => {
                // Nobody knows what the backing device does with zeroes.
                let slow = NbdError::new(ErrorCode::NotSupported, "zeroing may be as slow as writing");
                self.note(index, &request, Duration::ZERO, false);
                self.sessions[index].reply(&request, Err(slow));
            }
            // A hint, and a question, that the cache does not take yet: nothing is fetched, and all counts as data.
            Command::Cache => {
                self.note(index, &request, Duration::ZERO, true);
                self.sessions[index].reply(&request, Ok(None));
            }
            Command::BlockStatus => {
                self.note(index, &request, Duration::ZERO, true);
                self.sessions[index].reply_extents(&request, &[]);
            }
            Command::Flush => self.submit(index, request, Kind::Flush, None, None),
            Command::Trim => self.submit(index, request, Kind::Trim, None, None),
            Command::WriteZeroes => {
                let kind = Kind::Zero { durable, may_unmap: request.may_unmap(), fast: false };
                self.submit(index, request, kind, None, None);
            }
            Command::Disconnect | Command::Unknown(_) => unreachable!("the connection keeps these to itself"),
        }
    }

    fn cache_request(&self, index: u32, request: &NbdRequest, kind: Kind) -> Request {
        let export = self.sessions[index].export().expect("requests follow the handshake");
        Request {
            volume: VolumeId(export.volume),
            kind,
            offset: request.offset,
            len: u64::from(request.length),
        }
    }

    fn submit(
        &mut self,
        index: u32,
        request: NbdRequest,
        kind: Kind,
        buffer: Option<floe_device::Buffer>,
        payload: Option<Slice>,
    ) {
        let wanted = self.cache_request(index, &request, kind);
        let origin = Origin::Session { index, request, payload, begun: Instant::now() };
        self.submit_for(origin, wanted, buffer);
    }

    fn submit_for(&mut self, origin: Origin, wanted: Request, buffer: Option<floe_device::Buffer>) {
        let id = self.driver.submit(wanted, buffer).0 as usize;
        if self.origins.len() <= id {
            self.origins.resize_with(id + 1, || None);
        }
        self.origins[id] = Some(origin);
    }

    fn flush_for(&mut self, origin: Origin) {
        let flush = Request { volume: VolumeId(0), kind: Kind::Flush, offset: 0, len: 0 };
        self.submit_for(origin, flush, None);
    }

    /// Gives an answer of the cache to whoever asked.
    fn hand_out(&mut self, answer: Answer) {
        let origin = self.origins[answer.request.0 as usize].take();
        match origin.expect("an answer belongs to a request under way") {
            Origin::Session { index, request, payload, begun } => {
                self.note(index, &request, begun.elapsed(), answer.result.is_ok());
                let result = answer.result.map(|()| payload).map_err(nbd_error);
                self.sessions[index].reply(&request, result);
                self.touched.push(index);
            }
            Origin::AdminFlush { index } => self.tell_flushed(index, answer.result),
            Origin::LastFlush => {
                self.last_flush = answer.result;
                self.phase = Phase::Telling;
                self.tell_stopped();
            }
        }
    }

    /// Counts an answer to a client.
    fn note(&mut self, index: u32, request: &NbdRequest, latency: Duration, well: bool) {
        let volume = self.sessions[index].export().map(|export| VolumeId(export.volume));
        if let (Some(volume), Some(operation)) = (volume, Operation::of(request.command)) {
            self.tally.answered(volume, operation, u64::from(request.length), latency, well);
        }
    }

    fn signalled(&mut self, result: &std::io::Result<SocketOutcome>) {
        if self.phase == Phase::Serving {
            self.begin_end();
        } else {
            let dirty_bytes = self.driver.stats().dirty_bytes;
            tracing::warn!(dirty_bytes, "still flushing; kill -9 would lose what is dirty");
        }
        let mut bytes = [0; 16]; // understood already
        if result.is_ok() && rustix::io::read(&self.signal, &mut bytes).is_ok_and(|bytes| bytes > 0) {
            self.sockets.readable(Token::Signal.encode(), &Rc::clone(&self.signal));
        } // else nobody is left to signal, and that would be readable for ever
    }

    /// Takes no new requests from now on.
    fn begin_end(&mut self) {
        tracing::info!(dirty_bytes = self.driver.stats().dirty_bytes, "ending");
        notify::stopping();
        self.phase = Phase::Finishing { until: Instant::now() + GRACE };
        for index in self.sessions.indices() {
            self.sessions[index].end();
            self.touched.push(index);
        }
    }

    /// Does what is due by time, and the end's next step; says whether the cache was given something to do.
    fn watch_the_clock(&mut self) -> bool {
        let now = Instant::now();
        let mut gave = false;
        if self.accept_again.as_ref().is_some_and(|(due, _)| *due <= now) {
            let (_, tokens) = self.accept_again.take().expect("just seen");
            tokens.into_iter().for_each(|token| self.accept(token));
        }
        if now >= self.clean_at {
            self.clean_at = now + self.config.flush_interval;
            self.driver.clean();
            gave = true;
        }
        if self.watch_at.is_some_and(|due| due <= now) {
            self.look_for_late_clients(now);
        }
        if let Phase::Finishing { until } = self.phase {
            let waiting: Vec<u32> = self
                .sessions
                .indices()
                .into_iter()
                .filter(|&index| !self.sessions[index].is_quiet())
                .collect();
            if waiting.is_empty() {
                self.phase = Phase::Flushing;
                self.flush_for(Origin::LastFlush);
                gave = true;
            } else if now >= until {
                waiting.into_iter().for_each(|index| self.break_off(index));
                self.phase = Phase::Finishing { until: now + GRACE };
            }
        }
        gave
    }

    /// Breaks off with clients that are late, and looks again while any can be.
    fn look_for_late_clients(&mut self, now: Instant) {
        let mut again = self.common.budget.is_waited_for();
        for index in self.sessions.indices() {
            again |= self.sessions[index].is_in_handshake();
            if let Some(overdue) = self.sessions[index].overdue(now) {
                tracing::warn!(client = index, reason = %overdue, "client is too slow");
                self.tally.clients_hung_up_on += 1;
                self.break_off(index);
            }
        }
        self.pump_touched();
        self.watch_at = again.then_some(now + WATCH_INTERVAL);
    }

    /// When to look at the clock again; `None` when only I/O can bring news.
    fn next_due(&self) -> Option<Instant> {
        let accept = self.accept_again.as_ref().map(|(due, _)| *due);
        let finishing = if let Phase::Finishing { until } = self.phase { Some(until) } else { None };
        let clean = self.driver.has_dirty_data().then_some(self.clean_at);
        [accept, finishing, clean, self.watch_at, self.driver.next_due(), self.sockets.next_due()]
            .into_iter()
            .flatten()
            .min()
    }

    fn has_ended(&self) -> bool {
        self.phase == Phase::Telling && self.admin_sessions.is_empty()
    }

    /// All there is to know at this moment.
    fn report(&self) -> Report {
        let volumes = self.exports.iter().map(|export| VolumeFacts {
            id: VolumeId(export.volume),
            name: export.name.clone(),
            bytes: export.size_bytes,
            read_only: export.read_only,
        });
        let facts = Facts {
            volumes: volumes.collect(),
            mode: self.driver.cache().mode(),
            started: self.started,
            uptime: self.begun.elapsed(),
            cache_size_bytes: self.config.cache_bytes,
        };
        Report::new(facts, vec![self.snapshot()])
    }

    fn snapshot(&self) -> Snapshot {
        let (cache_errors, backing_errors) = self.driver.device_errors();
        let mut snapshot = Snapshot {
            tally: self.tally.clone(),
            stats: self.driver.stats(),
            cache_errors,
            backing_errors,
            spun: self.driver.spun(),
            ..Snapshot::default()
        };
        for index in self.sessions.indices() {
            snapshot.connected(self.sessions[index].export().map(|export| VolumeId(export.volume)));
        }
        snapshot
    }
}

fn nbd_error(fault: Fault) -> NbdError {
    match fault {
        Fault::Io => NbdError::new(ErrorCode::Io, "a device under the cache failed"),
        Fault::NoSpace => NbdError::new(ErrorCode::NoSpace, "no space left on the backing device"),
        Fault::OutOfRange => NbdError::new(ErrorCode::Invalid, "the range is not within the volume"),
        Fault::Unsupported => NbdError::new(ErrorCode::NotSupported, "the backing device cannot do that"),
    }
}
