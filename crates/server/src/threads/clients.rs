//! A worker's clients: their bytes to their sessions, their requests to the cache, and the answers
//! back.

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use floe_block::{Answer, Driver, Fault, Kind, MOST_MAPPED_BYTES, Request, SECTOR_BYTES, VolumeId};
use floe_device::{Buffer, Slice, SocketOutcome};
use floe_nbd::error::{ErrorCode, NbdError};
use floe_nbd::extent::Extent;
use floe_nbd::transmission::{Command, Request as NbdRequest};
use rustix::net::{Shutdown, shutdown, sockopt};

use super::messages::{Done, Problem};
use super::origin::{LookedFor, Origin};
use super::token::ClientToken;
use super::warnings::Complaint;
use super::worker::Worker;
use crate::limits::WATCH_INTERVAL;
use crate::session::{Session, SessionError, Want};
use crate::status::Operation;

/// The time a TCP connection is silent before the system asks whether the other side is still
/// there, and how often then.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

impl Worker {
    /// Takes a client on.
    pub(super) fn welcome(&mut self, socket: OwnedFd) {
        if self.ending {
            self.connections.fetch_sub(1, Ordering::Relaxed);
            return; // closes it
        }
        // A Unix socket has no such options; keepalive finds out that a client's machine is gone.
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        let _ = sockopt::set_socket_keepalive(&socket, true);
        let _ = sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE);
        let _ = sockopt::set_tcp_keepintvl(&socket, KEEPALIVE_INTERVAL);
        let now = Instant::now();
        let (exports, common) = (&self.exports, &self.common);
        let index =
            self.sessions.insert_with(|key| Session::new(key, socket, exports, common, now));
        self.watch_at.get_or_insert(now + WATCH_INTERVAL);
        self.tally.clients.connections_taken += 1;
        tracing::debug!(thread = self.number, client = index, "connected");
        self.touched.push(index);
    }

    pub(super) fn received(&mut self, index: u32, result: io::Result<SocketOutcome>) {
        let session = &mut self.sessions[index];
        if let Ok(SocketOutcome::Received(bytes)) = result {
            let now = Instant::now();
            if let Err(error) = session.received(bytes, now) {
                self.warn(Complaint::HungUp, index, &error, now);
            }
            self.touched.push(index);
        } else {
            // the socket is gone, and that is all there is to say
            let _ = session.received(0, Instant::now());
            self.break_off(index);
        }
    }

    pub(super) fn sent(&mut self, index: u32, result: io::Result<SocketOutcome>) {
        self.sessions[index].sent(Instant::now());
        match result {
            Ok(SocketOutcome::Sent(list)) => self.sessions[index].keep(list),
            _ => self.break_off(index),
        }
        self.touched.push(index);
    }

    /// Warns of a client, unless there were many such warnings lately.
    fn warn(&mut self, complaint: Complaint, index: u32, error: &dyn Display, now: Instant) {
        if self.warnings.count(complaint, now) {
            tracing::warn!(thread = self.number, client = index, %error, "{}", complaint.text());
        }
    }

    /// Stops speaking to a client; its socket's operations end at once.
    pub(super) fn break_off(&mut self, index: u32) {
        let session = &mut self.sessions[index];
        session.break_off();
        let _ = shutdown(session.socket.as_fd(), Shutdown::Both); // it may be shut down already
        self.touched.push(index);
    }

    pub(super) fn pump_touched(&mut self) {
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
            let want = self.sessions[index].next(now);
            let goes_on =
                matches!(&want, Ok(Some(Want::Serve(request))) if request.command == Command::Read);
            if !goes_on || self.looked_for.is_full() {
                self.look_in_memory(index, now);
            }
            match want {
                Ok(Some(Want::Serve(request))) => self.serve(index, request, now),
                Ok(Some(Want::ServeWrite(request, buffer))) => {
                    let kind = Kind::Write { durable: request.fua() };
                    self.submit(index, request, kind, Some(buffer), None, now);
                }
                Ok(Some(Want::Receive { into, whole })) => {
                    let socket = Rc::clone(&self.sessions[index].socket);
                    self.sockets.receive(
                        ClientToken::Receive(index).encode(),
                        &socket,
                        into,
                        whole,
                    );
                }
                Ok(Some(Want::Pause | Want::End) | None) => break,
                Err(error @ SessionError::Tls(_)) => {
                    self.tally.clients.clients_hung_up_on += 1;
                    self.warn(Complaint::NotTrusted, index, &error, now);
                    break; // it is told so
                }
                Err(error) => {
                    self.tally.clients.clients_hung_up_on += 1;
                    self.warn(Complaint::BrokeProtocol, index, &error, now);
                    self.break_off(index);
                    break;
                }
            }
        }
        self.tally.clients.requests_refused += self.sessions[index].take_refused();
        if self.common.budget.is_waited_for() {
            self.watch_at.get_or_insert(now + WATCH_INTERVAL);
        }
        if let Some(slices) = self.sessions[index].next_send(now) {
            let socket = Rc::clone(&self.sessions[index].socket);
            self.sockets.send(ClientToken::Send(index).encode(), &socket, slices);
        }
        if self.sessions[index].is_done_listening() {
            // ends the receive
            let _ = shutdown(self.sessions[index].socket.as_fd(), Shutdown::Both);
        }
        if self.sessions[index].is_over() {
            tracing::debug!(thread = self.number, client = index, "disconnected");
            self.sessions.remove(index);
            // a count for choosing workers, nothing depends on it
            self.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Begins a client's request; a write waits for its payload.
    fn serve(&mut self, index: u32, request: NbdRequest, now: Instant) {
        let kind = match request.command {
            Command::Read => Kind::Read,
            Command::Write => Kind::Write { durable: request.fua() },
            Command::Flush => Kind::Flush,
            Command::Trim => Kind::Trim,
            Command::WriteZeroes => Kind::Zero {
                durable: request.fua(),
                may_unmap: request.may_unmap(),
                fast: request.only_if_fast(),
            },
            Command::Cache => Kind::Prefetch,
            Command::BlockStatus => Kind::DirtyMap,
            Command::Disconnect | Command::Unknown(_) => {
                unreachable!("the connection keeps these to itself")
            }
        };
        let wanted = self.cache_request(index, &request, kind);
        let buffer = (wanted.buffer_bytes() > 0).then(|| self.driver.buffer(&wanted));
        match (request.command, buffer) {
            (Command::Write, Some(buffer)) => {
                let payload = <Driver>::payload(&wanted, &buffer);
                self.sessions[index].begin_payload(request, buffer, payload);
            }
            (Command::Read, Some(buffer)) => {
                if self.driver.has_memory() {
                    return self.looked_for.push(request, wanted, buffer);
                }
                let payload = <Driver>::payload(&wanted, &buffer);
                self.submit(index, request, kind, Some(buffer), Some(payload), now);
            }
            (_, Some(buffer)) => {
                let map = buffer.slice(0..wanted.buffer_bytes() as usize);
                self.submit(index, request, kind, Some(buffer), Some(map), now);
            }
            (_, None) => self.submit(index, request, kind, None, None, now),
        }
    }

    /// Answers what a client wants to read and memory has, on this thread and in this turn; the
    /// rest goes on to the cache.
    fn look_in_memory(&mut self, index: u32, now: Instant) {
        if self.looked_for.reads.is_empty() {
            return;
        }
        let mut looked_for = std::mem::take(&mut self.looked_for);
        let LookedFor { requests, reads, hits } = &mut looked_for;
        hits.resize(reads.len(), false);
        self.driver.read_memory(reads, hits);
        for ((request, (wanted, buffer)), hit) in
            requests.drain(..).zip(reads.drain(..)).zip(hits.drain(..))
        {
            let payload = <Driver>::payload(&wanted, &buffer);
            if hit {
                let latency = now.elapsed();
                self.tally.from_memory += latency;
                self.note(index, &request, latency, true);
                self.sessions[index].reply(&request, Ok(Some(payload)));
            } else {
                self.submit(index, request, Kind::Read, Some(buffer), Some(payload), now);
            }
        }
        self.looked_for = looked_for;
    }

    fn cache_request(&self, index: u32, request: &NbdRequest, kind: Kind) -> Request {
        let export = self.sessions[index].export().expect("requests follow the handshake");
        let most = if kind == Kind::DirtyMap { MOST_MAPPED_BYTES } else { u64::MAX };
        let len = u64::from(request.length).min(most);
        Request { volume: VolumeId(export.volume), kind, offset: request.offset, len }
    }

    fn submit(
        &mut self,
        index: u32,
        request: NbdRequest,
        kind: Kind,
        buffer: Option<Buffer>,
        payload: Option<Slice>,
        now: Instant,
    ) {
        let wanted = self.cache_request(index, &request, kind);
        let origin = Origin::Session { index, request, payload, begun: now };
        self.submit_for(origin, wanted, buffer);
    }

    pub(super) fn submit_for(&mut self, origin: Origin, wanted: Request, buffer: Option<Buffer>) {
        let number = self.driver.submit(wanted, buffer).number();
        if self.origins.len() <= number {
            self.origins.resize_with(number + 1, || None);
        }
        self.origins[number] = Some(origin);
    }

    /// Passes an answer of the cache to the origin of its request.
    pub(super) fn hand_out(&mut self, answer: Answer) {
        let origin = self.origins[answer.request.number()].take();
        match origin.expect("an answer belongs to a request under way") {
            Origin::Session { index, request, payload, begun } => {
                self.note(index, &request, begun.elapsed(), answer.result.is_ok());
                match (request.command, answer.result) {
                    (Command::BlockStatus, Ok(())) => self.reply_extents(index, &request, payload),
                    (_, result) => {
                        let result = result.map(|()| payload).map_err(nbd_error);
                        self.sessions[index].reply(&request, result);
                    }
                }
                self.touched.push(index);
            }
            Origin::Command(ticket) => {
                let result = match answer.result {
                    // A volume that is not there any more was flushed before it went.
                    Ok(()) | Err(Fault::OutOfRange) => Ok(Done::Nothing),
                    Err(fault) => Err(Problem::Fault(fault)),
                };
                self.outbox.reply(ticket, result);
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

    /// Answers a block status from the backing device's allocation and the cache's dirty `map`.
    fn reply_extents(&mut self, index: u32, request: &NbdRequest, map: Option<Slice>) {
        let wanted = self.cache_request(index, request, Kind::DirtyMap);
        let range = wanted.offset..wanted.offset + wanted.len;
        let mut found = Vec::new();
        self.driver.allocation(wanted.volume, range.clone(), &mut found);
        let map = map.map_or(Vec::new(), |map| map.to_vec());
        let mut extents = Vec::new();
        let mut at = range.start;
        for extent in found {
            let end = at + extent.bytes;
            let known = Extent { bytes: extent.bytes, hole: !extent.allocated, zero: extent.zero };
            if !known.hole && !known.zero {
                extents.push(known);
                at = end;
            }
            while at < end {
                let sector = |at: u64| (at / SECTOR_BYTES - range.start / SECTOR_BYTES) as usize;
                let dirty = map.get(sector(at)).is_some_and(|&mark| mark != 0);
                let same = map
                    .get(sector(at)..)
                    .unwrap_or(&[])
                    .iter()
                    .take_while(|&&mark| (mark != 0) == dirty);
                let run_end = (at / SECTOR_BYTES + same.count() as u64) * SECTOR_BYTES;
                let run_end = if map.is_empty() { end } else { run_end.min(end) };
                let bytes = run_end - at;
                extents.push(if dirty { Extent::data(bytes) } else { Extent { bytes, ..known } });
                at = run_end;
            }
        }
        self.sessions[index].reply_extents(request, &extents);
    }

    /// Breaks off with clients that are late, and looks again while any can be.
    pub(super) fn look_for_late_clients(&mut self, now: Instant) {
        let mut again = self.common.budget.is_waited_for();
        for index in self.sessions.indices() {
            again |= self.sessions[index].is_in_handshake();
            self.sessions[index].leave_the_line_if_slow(now);
            if let Some(overdue) = self.sessions[index].overdue(now) {
                self.tally.clients.clients_hung_up_on += 1;
                self.warn(Complaint::TooSlow, index, &overdue, now);
                self.break_off(index);
            }
        }
        self.pump_touched();
        self.watch_at = again.then_some(now + WATCH_INTERVAL);
    }
}

fn nbd_error(fault: Fault) -> NbdError {
    match fault {
        Fault::Io => NbdError::new(ErrorCode::Io, "a device under the cache failed"),
        Fault::NoSpace => NbdError::new(ErrorCode::NoSpace, "no space left on the backing device"),
        Fault::OutOfRange => {
            NbdError::new(ErrorCode::Invalid, "the range is not within the volume")
        }
        Fault::Unsupported => {
            NbdError::new(ErrorCode::NotSupported, "the backing device cannot do that")
        }
    }
}
