//! A worker's clients: their bytes to their sessions, their requests to the cache, and the answers
//! back.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use floe_block::{Answer, Driver, Fault, Kind, Request as CacheRequest, SECTOR_BYTES};
use floe_device::{Buffer, Extent, Slice, SocketOutcome};
use rustix::net::{Shutdown, shutdown, sockopt};

use super::calculators::calculate;
use super::messages::{Done, Problem};
use super::origin::{LookedFor, Origin};
use super::token::ClientToken;
use super::warnings::Complaint;
use super::worker::Worker;
use crate::protocol::{Answer as ToClient, ProtocolFactory, Request, same_bytes};
use crate::session::{Passed, SessionError, Want};
use crate::status::Operation;

/// The time a TCP connection is silent before the system asks whether the other side is still
/// there, and how often then.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

impl Worker {
    /// Takes a client on.
    pub(super) fn welcome(&mut self, socket: OwnedFd, protocol: &dyn ProtocolFactory) {
        // A Unix socket has no such options; keepalive finds out that a client's machine is gone.
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        let _ = sockopt::set_socket_keepalive(&socket, true);
        let _ = sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE);
        let _ = sockopt::set_tcp_keepintvl(&socket, KEEPALIVE_INTERVAL);
        let Some(index) = self.sessions.begin(socket, protocol, &self.common) else { return };
        self.tally.clients.connections_taken += 1;
        tracing::debug!(thread = self.post.outbox.worker, client = index, "connected");
    }

    pub(super) fn received(&mut self, index: u32, result: io::Result<SocketOutcome>) {
        let session = &mut self.sessions[index];
        let is_cancelled = |error: &io::Error| error.raw_os_error() == Some(libc::ECANCELED);
        if session.is_leaving() && result.as_ref().is_err_and(is_cancelled) {
            session.receive_cancelled();
            self.sessions.touch(index);
        } else if let Ok(SocketOutcome::Received(bytes)) = result {
            let now = Instant::now();
            if let Err(error) = session.received(bytes, now) {
                self.sessions.warn(self.post.outbox.worker, Complaint::HungUp, index, &error, now);
            }
            self.sessions.touch(index);
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
        self.sessions.touch(index);
    }

    /// Stops speaking to a client; its socket's operations end at once.
    pub(super) fn break_off(&mut self, index: u32) {
        let session = &mut self.sessions[index];
        session.break_off();
        let _ = shutdown(session.socket.as_fd(), Shutdown::Both); // it may be shut down already
        self.sessions.touch(index);
    }

    pub(super) fn pump_touched(&mut self) {
        while let Some(index) = self.sessions.next_touched() {
            self.pump(index);
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
                matches!(&want, Ok(Some(Want::Serve(request))) if request.kind == Kind::Read);
            if !goes_on || self.requests.looked_for.is_full() {
                self.look_in_memory(index, now);
            }
            match want {
                Ok(Some(Want::Serve(request))) => self.serve(index, request, now),
                Ok(Some(Want::ServeWrite(request, buffer))) if request.compares => {
                    self.compare(index, request, &buffer, now);
                }
                Ok(Some(Want::ServeWrite(request, buffer))) => {
                    self.submit(index, request, Some(buffer), None, now);
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
                    self.sessions.warn(
                        self.post.outbox.worker,
                        Complaint::NotTrusted,
                        index,
                        &error,
                        now,
                    );
                    break; // it is told so
                }
                Err(error) => {
                    self.tally.clients.clients_hung_up_on += 1;
                    let complaint = match error.is_distrust() {
                        true => Complaint::NotTrusted,
                        false => Complaint::BrokeProtocol,
                    };
                    self.sessions.warn(self.post.outbox.worker, complaint, index, &error, now);
                    if !matches!(error, SessionError::Told(_)) {
                        self.break_off(index);
                    }
                    break;
                }
            }
        }
        if let Some(calculation) = self.sessions[index].take_calculation() {
            calculate(calculation, &self.post.mailbox, index);
        }
        self.tally.clients.requests_refused += self.sessions[index].take_refused();
        if self.common.budget.is_waited_for() {
            self.sessions.watch(now);
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
            tracing::debug!(thread = self.post.outbox.worker, client = index, "disconnected");
            self.sessions.remove(index);
        } else if Passed::can_be_of(&self.sessions[index]) {
            let passed = self.sessions.remove(index).and_then(Passed::of);
            passed.into_iter().for_each(|passed| self.config.nvme.hand_off.put(passed));
        }
    }

    /// Begins a client's request; one with a payload waits for it.
    fn serve(&mut self, index: u32, request: Request, now: Instant) {
        let wanted = request.to_cache();
        let buffer = (wanted.buffer_bytes() > 0).then(|| self.driver.buffer(&wanted));
        match (request.kind, buffer) {
            (_, Some(buffer)) if request.has_payload() => {
                let payload = <Driver>::payload(&wanted, &buffer);
                self.sessions[index].begin_payload(request, buffer, payload);
            }
            (Kind::Read, Some(buffer)) => {
                if self.driver.top().has_memory() {
                    return self.requests.looked_for.push(request, wanted, buffer);
                }
                let payload = <Driver>::payload(&wanted, &buffer);
                self.submit(index, request, Some(buffer), Some(payload), now);
            }
            (_, Some(buffer)) => {
                let map = buffer.slice(0..wanted.buffer_bytes() as usize);
                self.submit(index, request, Some(buffer), Some(map), now);
            }
            (_, None) => self.submit(index, request, None, None, now),
        }
    }

    /// Reads what a client's payload is compared with.
    fn compare(&mut self, index: u32, request: Request, theirs: &Buffer, begun: Instant) {
        let wanted = request.to_cache();
        let buffer = self.driver.buffer(&wanted);
        let payload = <Driver>::payload(&wanted, &buffer);
        let theirs = <Driver>::payload(&wanted, theirs);
        let origin = Origin::Comparison { index, request, payload, theirs, begun };
        self.submit_for(origin, wanted, Some(buffer));
    }

    /// Answers what a client wants to read and memory has, on this thread and in this turn; the
    /// rest goes on to the cache.
    fn look_in_memory(&mut self, index: u32, now: Instant) {
        if self.requests.looked_for.reads.is_empty() {
            return;
        }
        let mut looked_for = std::mem::take(&mut self.requests.looked_for);
        let LookedFor { requests, reads, hits } = &mut looked_for;
        hits.resize(reads.len(), false);
        self.driver.top_mut().read_memory(reads, hits);
        for ((request, (wanted, buffer)), hit) in
            requests.drain(..).zip(reads.drain(..)).zip(hits.drain(..))
        {
            let payload = <Driver>::payload(&wanted, &buffer);
            if hit {
                let latency = now.elapsed();
                self.tally.found_in_memory(latency);
                self.note(&request.to_cache(), latency, true, true);
                self.sessions[index].reply(&request, Ok(Some(payload)));
            } else {
                self.submit(index, request, Some(buffer), Some(payload), now);
            }
        }
        self.requests.looked_for = looked_for;
    }

    fn submit(
        &mut self,
        index: u32,
        request: Request,
        buffer: Option<Buffer>,
        payload: Option<Slice>,
        now: Instant,
    ) {
        let origin = Origin::Session { index, request, payload, begun: now };
        self.submit_for(origin, request.to_cache(), buffer);
    }

    pub(super) fn submit_for(
        &mut self,
        origin: Origin,
        wanted: CacheRequest,
        buffer: Option<Buffer>,
    ) {
        let number = self.driver.submit(wanted, buffer).number();
        self.requests.origins.put(number, origin);
    }

    /// Passes an answer of the cache to the origin of its request.
    pub(super) fn hand_out(&mut self, answer: Answer) {
        match self.requests.origins.take(answer.request.number()) {
            Origin::Session { index, request, payload, begun } => {
                let (wanted, well) = (request.to_cache(), answer.result.is_ok());
                self.note(&wanted, begun.elapsed(), well, answer.hit);
                match (request.kind, answer.result) {
                    (Kind::DirtyMap, Ok(())) => self.reply_extents(index, &request, payload),
                    (_, result) => self.sessions[index].reply(&request, result.map(|()| payload)),
                }
                self.sessions.touch(index);
            }
            Origin::Comparison { index, request, payload, theirs, begun } => {
                let (wanted, well) = (request.to_cache(), answer.result.is_ok());
                self.note(&wanted, begun.elapsed(), well, answer.hit);
                match answer.result {
                    Ok(()) if !same_bytes(&payload, &theirs) => {
                        self.sessions[index].answer(&request, Ok(ToClient::Differs))
                    }
                    result => self.sessions[index].reply(&request, result.map(|()| None)),
                }
                self.sessions.touch(index);
            }
            Origin::Local { index, request, payload, begun } => {
                let result = answer.result.map(|()| payload);
                self.complete_local(index, &request, result, begun, answer.hit);
            }
            Origin::Command(ticket) => {
                let result = match answer.result {
                    // A volume that is not there any more was flushed before it went.
                    Ok(()) | Err(Fault::OutOfRange) => Ok(Done::Nothing),
                    Err(fault) => Err(Problem::Fault(fault)),
                };
                self.post.outbox.reply(ticket, result);
            }
        }
    }

    /// Counts a request that is answered.
    pub(super) fn note(&mut self, wanted: &CacheRequest, latency: Duration, well: bool, hit: bool) {
        let (volume, operation, bytes) = (wanted.volume, Operation::of(wanted.kind), wanted.len);
        self.tally.answered(volume, operation, bytes, latency, well);
        if well && matches!(operation, Operation::Read | Operation::Write) {
            self.tally.found(volume, operation, latency, hit);
            let reads = operation == Operation::Read;
            self.requests.sampler.note(volume, wanted.offset, bytes, reads);
        }
    }

    /// Answers a block status from the backing device's allocation and the cache's dirty `map`.
    fn reply_extents(&mut self, index: u32, request: &Request, map: Option<Slice>) {
        let wanted = request.to_cache();
        let range = wanted.offset..wanted.offset + wanted.len;
        let mut found = Vec::new();
        self.driver.allocation(wanted.volume, range.clone(), &mut found);
        let map = map.map_or(Vec::new(), |map| map.to_vec());
        let mut extents = Vec::new();
        let mut at = range.start;
        for extent in found {
            let end = at + extent.bytes;
            if extent.allocated && !extent.zero {
                extents.push(extent);
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
                extents.push(if dirty { Extent::data(bytes) } else { Extent { bytes, ..extent } });
                at = run_end;
            }
        }
        self.sessions[index].answer(request, Ok(ToClient::Extents(&extents)));
    }

    /// Breaks off with clients that are late, and looks again while any can be.
    pub(super) fn look_for_late_clients(&mut self, now: Instant) {
        let mut again = self.common.budget.is_waited_for();
        for index in self.sessions.indices() {
            again |= self.sessions[index].is_watched();
            self.sessions[index].leave_the_line_if_slow(now);
            if let Some(overdue) = self.sessions[index].overdue(now) {
                self.tally.clients.clients_hung_up_on += 1;
                self.sessions.warn(
                    self.post.outbox.worker,
                    Complaint::TooSlow,
                    index,
                    &overdue,
                    now,
                );
                self.break_off(index);
            }
        }
        self.pump_touched();
        if again {
            self.sessions.watch(now);
        }
    }
}
