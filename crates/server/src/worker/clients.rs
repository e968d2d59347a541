//! A worker's clients and local block devices: passes their requests to the cache, and the answers
//! back.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use floe_block::{
    Answer, Driver, Fault, Request as CacheRequest, RequestKind, SECTOR_BYTES, VolumeId,
};
use floe_device::{Buffer, Extent, Slice, SocketOutcome};
use rustix::net::{Shutdown, shutdown, sockopt};

use crate::messages::{Done, Problem, Ticket};
use crate::protocol::{Answer as ToClient, ProtocolFactory, Request, same_bytes};
use crate::session::{Passed, SessionError, Want, end_if_vanished, limit_passed};
use crate::status::Operation;
use crate::ublk::{LocalQueue, LocalRequest, QueueOrder};
use crate::warnings::Complaint;
use crate::worker::Worker;
use crate::worker::calculators::do_deferred;
use crate::worker::sessions::ClientToken;

/// Time of silence on a TCP connection before the system probes the other side.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

/// Interval between probes of a silent TCP connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

impl Worker {
    /// Begins the session of a new client.
    pub(crate) fn welcome(&mut self, socket: OwnedFd, protocol: &dyn ProtocolFactory) {
        // A Unix socket has no such options; keepalive finds out that a client's machine is gone.
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        let _ = sockopt::set_socket_keepalive(&socket, true);
        let _ = sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE);
        let _ = sockopt::set_tcp_keepintvl(&socket, KEEPALIVE_INTERVAL);
        let Some(index) = self.sessions.begin(socket, protocol, &self.common) else { return };
        self.counters.clients.connections_taken += 1;
        tracing::debug!(thread = self.post.outbox.worker, client = index, "connected");
    }

    pub(crate) fn received(&mut self, index: u32, result: io::Result<SocketOutcome>) {
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

    pub(crate) fn sent(&mut self, index: u32, result: io::Result<SocketOutcome>) {
        self.sessions[index].sent(Instant::now());
        match result {
            Ok(SocketOutcome::Sent(list)) => self.sessions[index].keep(list),
            _ => self.break_off(index),
        }
        self.sessions.touch(index);
    }

    /// Disconnects a client without further replies. Operations on its socket end at once.
    pub(crate) fn break_off(&mut self, index: u32) {
        let session = &mut self.sessions[index];
        session.break_off();
        let _ = shutdown(session.socket.as_fd(), Shutdown::Both); // it may be shut down already
        self.sessions.touch(index);
    }

    pub(crate) fn pump_touched(&mut self) {
        while let Some(index) = self.sessions.next_touched() {
            self.pump(index);
        }
        if self.common.throttle.is_waited_for() {
            let now = Instant::now();
            while let Some((index, volume)) = self.common.throttle.first_due(now) {
                if end_if_vanished(&mut self.sessions[index]) {
                    self.common.throttle.leave(index, now);
                } else {
                    self.common.throttle.start(index, volume, now);
                    if let Some(waited) = limit_passed(&mut self.sessions[index], volume, now) {
                        self.counters.delayed(volume, waited);
                    }
                }
                self.pump(index);
            }
        }
        while let Some(index) = self.common.budget.next_in_turn() {
            self.sessions[index].turn_has_come();
            self.pump(index);
        }
    }

    /// Carries out all actions that a session requests and that are possible now.
    fn pump(&mut self, index: u32) {
        let now = Instant::now();
        loop {
            let want = self.sessions[index].next(now);
            let goes_on = match &want {
                Ok(Some(Want::Serve(request))) => request.kind == RequestKind::Read,
                _ => false,
            };
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
                    self.counters.clients.clients_hung_up_on += 1;
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
                    self.counters.clients.clients_hung_up_on += 1;
                    let complaint = error.complaint();
                    self.sessions.warn(self.post.outbox.worker, complaint, index, &error, now);
                    if !matches!(error, SessionError::Told(_)) {
                        self.break_off(index);
                    }
                    break;
                }
            }
        }
        if let Some(work) = self.sessions[index].take_deferred() {
            do_deferred(work, &self.post.mailbox, index);
        }
        self.counters.clients.requests_refused += self.sessions[index].take_refused();
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
            self.common.throttle.leave(index, now);
            self.sessions.remove(index);
        } else if Passed::can_be_of(&self.sessions[index]) {
            self.common.throttle.leave(index, now);
            let passed = self.sessions.remove(index).and_then(Passed::of);
            passed.into_iter().for_each(|passed| self.config.nvme.hand_off.put(passed));
        }
    }

    /// Begins a client's request. One with a payload waits for that first.
    fn serve(&mut self, index: u32, request: Request, now: Instant) {
        let wanted = request.to_cache();
        let buffer = (wanted.buffer_bytes() > 0).then(|| self.driver.buffer(&wanted));
        match (request.kind, buffer) {
            (_, Some(buffer)) if request.has_payload() => {
                let payload = <Driver>::payload(&wanted, &buffer);
                self.sessions[index].begin_payload(request, buffer, payload);
            }
            (RequestKind::Read, Some(buffer)) => {
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

    /// Reads the data that a comparison's payload is compared with.
    fn compare(&mut self, index: u32, request: Request, theirs: &Buffer, begun: Instant) {
        let wanted = request.to_cache();
        let buffer = self.driver.buffer(&wanted);
        let payload = <Driver>::payload(&wanted, &buffer);
        let theirs = <Driver>::payload(&wanted, theirs);
        let origin = Origin::Comparison { index, request, payload, theirs, begun };
        self.submit_for(origin, wanted, Some(buffer));
    }

    /// Answers a client's reads that hit in the memory tier, on this thread and in this turn. The
    /// others are submitted to the cache.
    fn look_in_memory(&mut self, index: u32, now: Instant) {
        if self.requests.looked_for.reads.is_empty() {
            return;
        }
        let mut looked_for = std::mem::take(&mut self.requests.looked_for);
        for (request, wanted, buffer, hit) in looked_for.look_up(&mut self.driver) {
            let payload = <Driver>::payload(&wanted, &buffer);
            if hit {
                let latency = now.elapsed();
                self.counters.found_in_memory(latency);
                self.note(&wanted, latency, true, true);
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

    pub(crate) fn submit_for(
        &mut self,
        origin: Origin,
        wanted: CacheRequest,
        buffer: Option<Buffer>,
    ) {
        let number = self.driver.submit(wanted, buffer).number();
        self.requests.origins.put(number, origin);
    }

    /// Passes an answer of the cache to the session, queue or command that asked for it.
    pub(crate) fn hand_out(&mut self, answer: Answer) {
        match self.requests.origins.take(answer.request.number()) {
            Origin::Session { index, request, payload, begun } => {
                let (wanted, well) = (request.to_cache(), answer.result.is_ok());
                self.note(&wanted, begun.elapsed(), well, answer.hit);
                match (request.kind, answer.result) {
                    (RequestKind::DirtyMap, Ok(())) => self.reply_extents(index, &request, payload),
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
            Origin::Local { request, payload } => {
                self.complete_local(&request, answer.result.map(|()| payload), answer.hit);
            }
            Origin::Command(ticket, volume) => {
                let result = match answer.result {
                    // A volume that is not there any more was flushed before it went.
                    Ok(()) | Err(Fault::OutOfRange) => Ok(Done::Nothing),
                    Err(fault) => Err(Problem::Request { volume, fault }),
                };
                self.post.outbox.reply(ticket, result);
            }
        }
    }

    /// Counts an answered request, and samples its blocks.
    pub(crate) fn note(&mut self, wanted: &CacheRequest, latency: Duration, well: bool, hit: bool) {
        let (volume, operation, bytes) = (wanted.volume, Operation::of(wanted.kind), wanted.len);
        self.counters.answered(volume, operation, bytes, latency, well);
        if well && matches!(operation, Operation::Read | Operation::Write) {
            self.counters.found(volume, operation, latency, hit);
            let reads = operation == Operation::Read;
            self.requests.sampler.note(volume, wanted.offset, bytes, reads);
        }
    }

    /// Answers a block status from the backing device's allocation and the cache's `map` of dirty
    /// sectors.
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

    /// Disconnects late clients, and schedules the next check while any client can be late.
    pub(crate) fn look_for_late_clients(&mut self, now: Instant) {
        let mut again = self.common.budget.is_waited_for();
        for index in self.sessions.indices() {
            again |= self.sessions[index].is_watched();
            self.sessions[index].leave_the_line_if_slow(now);
            if let Some(overdue) = self.sessions[index].overdue(now) {
                self.counters.clients.clients_hung_up_on += 1;
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

    /// Begins to serve a queue of a local device, and reports the result to the thread that waits
    /// for it.
    pub(crate) fn serve_queue(&mut self, order: QueueOrder) {
        let begun = LocalQueue::begin(&self.ring, &order);
        // The rest is for what the cache itself moves.
        let most_bytes = self.common.pool.stats().arena_bytes as u64 / 4;
        let told = begun.map(|queue| {
            self.locals.insert(queue, usize::from(order.depth), most_bytes);
        });
        let _ = order.begun.send(told); // it may have given up
    }

    /// Fetches the requests of all local queues, and begins those for which there is memory.
    pub(crate) fn take_local(&mut self) {
        for index in 0..self.locals.queues.len() {
            let Some(queue) = &mut self.locals.queues[index] else { continue };
            let mut arrived = std::mem::take(&mut self.locals.arrived);
            queue.poll(&mut arrived);
            if queue.is_over() && queue.is_quiet() {
                self.locals.queues[index] = None;
            }
            if !arrived.is_empty() {
                let now = Instant::now();
                arrived.drain(..).for_each(|request| self.locals.push(index, request, now));
            }
            self.locals.arrived = arrived;
        }
        // Reads that memory has end at once, and leave their memory to others.
        while self.locals.has_ready() {
            while let Some(next) = self.locals.next() {
                self.begin_local(next);
            }
            self.look_in_memory_for_local();
        }
    }

    fn begin_local(&mut self, next: Waiting) {
        let wanted = next.request.wanted;
        if wanted.buffer_bytes() == 0 {
            return self.submit_local(next, None, None);
        }
        let buffer = self.driver.buffer(&wanted);
        let payload = <Driver>::payload(&wanted, &buffer);
        if wanted.kind != RequestKind::Read {
            match self.locals.queue(next.index).take_data(next.request.tag, &payload) {
                Ok(()) => self.submit_local(next, Some(buffer), None),
                Err(fault) => self.complete_local(&next, Err(fault), false),
            }
        } else if self.driver.top().has_memory() {
            self.locals.looked_for.push(next, wanted, buffer);
        } else {
            self.submit_local(next, Some(buffer), Some(payload));
        }
    }

    /// Completes the local reads that hit in the memory tier, on this thread and in this turn. The
    /// others are submitted to the cache.
    fn look_in_memory_for_local(&mut self) {
        if self.locals.looked_for.reads.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut looked_for = std::mem::take(&mut self.locals.looked_for);
        for (next, wanted, buffer, hit) in looked_for.look_up(&mut self.driver) {
            let payload = <Driver>::payload(&wanted, &buffer);
            if hit {
                self.counters.found_in_memory(now.elapsed());
                self.complete_local(&next, Ok(Some(payload)), true);
            } else {
                self.submit_local(next, Some(buffer), Some(payload));
            }
        }
        self.locals.looked_for = looked_for;
    }

    fn submit_local(&mut self, next: Waiting, buffer: Option<Buffer>, payload: Option<Slice>) {
        self.submit_for(Origin::Local { request: next, payload }, next.request.wanted, buffer);
    }

    /// Completes and counts a request of a local queue.
    pub(crate) fn complete_local(
        &mut self,
        Waiting { index, request, arrived }: &Waiting,
        result: Result<Option<Slice>, Fault>,
        hit: bool,
    ) {
        self.note(&request.wanted, arrived.elapsed(), result.is_ok(), hit);
        self.locals.ended(request);
        self.locals.queue(*index).complete(request, result);
    }
}

/// Number of reads that are looked up in memory together: enough to overlap the processor's cache
/// misses, and few enough that none waits long.
const LOOKED_FOR_AT_ONCE: usize = 16;

/// The source of a request to the cache, which gets the answer.
#[derive(Debug)]
pub(crate) enum Origin {
    Session {
        index: u32,
        request: Request,
        payload: Option<Slice>,
        begun: Instant,
    },
    /// A read whose data is compared with the client's payload, `theirs`.
    Comparison {
        index: u32,
        request: Request,
        payload: Slice,
        theirs: Slice,
        begun: Instant,
    },
    Local {
        request: Waiting,
        payload: Option<Slice>,
    },
    /// A command's request to this volume.
    Command(Ticket, VolumeId),
}

/// The source of each request under way in the cache, indexed by its number.
#[derive(Debug, Default)]
pub(crate) struct Origins(Vec<Option<Origin>>);

impl Origins {
    pub(crate) fn put(&mut self, number: usize, origin: Origin) {
        if self.0.len() <= number {
            self.0.resize_with(number + 1, || None);
        }
        self.0[number] = Some(origin);
    }

    pub(crate) fn take(&mut self, number: usize) -> Origin {
        self.0[number].take().expect("an answer belongs to a request under way")
    }
}

/// Reads of one client, or of the local queues, that are looked up in the memory tier together.
#[derive(Debug)]
pub(crate) struct LookedFor<R> {
    requests: Vec<R>,
    reads: Vec<(CacheRequest, Buffer)>,
    /// Results of the lookup, one for each read; empty at other times.
    hits: Vec<bool>,
}

impl<R> Default for LookedFor<R> {
    fn default() -> Self {
        Self { requests: Vec::new(), reads: Vec::new(), hits: Vec::new() }
    }
}

impl<R> LookedFor<R> {
    fn push(&mut self, request: R, wanted: CacheRequest, buffer: Buffer) {
        self.requests.push(request);
        self.reads.push((wanted, buffer));
    }

    fn is_full(&self) -> bool {
        self.reads.len() >= LOOKED_FOR_AT_ONCE
    }

    fn reserve(&mut self, reads: usize) {
        self.requests.reserve(reads);
        self.reads.reserve(reads);
        self.hits.reserve(reads);
    }

    /// Looks up all reads. Removes and returns each, and whether memory had its data.
    fn look_up<'a>(
        &'a mut self,
        driver: &mut Driver,
    ) -> impl Iterator<Item = (R, CacheRequest, Buffer, bool)> + use<'a, R> {
        self.hits.resize(self.reads.len(), false);
        driver.top_mut().read_memory(&self.reads, &mut self.hits);
        let found = self.requests.drain(..).zip(self.reads.drain(..)).zip(self.hits.drain(..));
        found.map(|((request, (wanted, buffer)), hit)| (request, wanted, buffer, hit))
    }
}

/// The local queues that a worker serves, indexed by number, and their waiting requests.
///
/// Arrived requests wait here until those under way leave memory for them. Memory for requests is
/// reserved at the start. A server that allocated more could wait for the kernel, which may wait
/// for the server's device.
#[derive(Debug, Default)]
pub(crate) struct Locals {
    pub(crate) queues: Vec<Option<LocalQueue>>,
    /// Reusable list of requests that one queue returned; empty between queues.
    pub(crate) arrived: Vec<LocalRequest>,
    /// Requests that have not begun, oldest first.
    waiting: VecDeque<Waiting>,
    /// Bytes of memory that requests under way occupy.
    used_bytes: u64,
    /// Limit of `used_bytes`, which only a single larger request may exceed.
    most_bytes: u64,
    /// Reads to look up in the memory tier; empty between turns.
    looked_for: LookedFor<Waiting>,
}

/// A request that has not begun, the index of its queue, and its time of arrival.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiting {
    pub(crate) index: usize,
    pub(crate) request: LocalRequest,
    pub(crate) arrived: Instant,
}

impl Locals {
    /// Adds a queue. `depth` is its queue depth, and `most_bytes` the memory for the requests of
    /// all queues.
    pub(crate) fn insert(&mut self, queue: LocalQueue, depth: usize, most_bytes: u64) {
        match self.queues.iter().position(Option::is_none) {
            Some(free) => self.queues[free] = Some(queue),
            None => self.queues.push(Some(queue)),
        }
        self.most_bytes = most_bytes;
        // Serving allocates nothing.
        let most = depth * self.queues.len();
        self.arrived.reserve(most);
        self.waiting.reserve(most);
        self.looked_for.reserve(most);
    }

    /// Adds a request that has arrived.
    pub(crate) fn push(&mut self, index: usize, request: LocalRequest, arrived: Instant) {
        self.waiting.push_back(Waiting { index, request, arrived });
    }

    /// Returns whether the oldest waiting request may begin. A request that exceeds the memory by
    /// itself may begin while no other is under way.
    pub(crate) fn has_ready(&self) -> bool {
        self.waiting.front().is_some_and(|next| {
            let bytes = next.request.wanted.buffer_bytes();
            self.used_bytes == 0 || self.used_bytes + bytes <= self.most_bytes
        })
    }

    /// Removes and returns the oldest waiting request if it may begin. The caller calls
    /// [`Locals::ended`] when it has ended.
    pub(crate) fn next(&mut self) -> Option<Waiting> {
        let next = if self.has_ready() { self.waiting.pop_front() } else { None }?;
        self.used_bytes += next.request.wanted.buffer_bytes();
        Some(next)
    }

    /// Frees the memory of a request that has ended.
    pub(crate) fn ended(&mut self, request: &LocalRequest) {
        self.used_bytes -= request.wanted.buffer_bytes();
    }

    /// Stops taking requests from the queues.
    pub(crate) fn end(&mut self) {
        self.queues.iter_mut().flatten().for_each(LocalQueue::end);
    }

    /// Fails all present and future requests of a volume's queues.
    pub(crate) fn fail(&mut self, volume: VolumeId) {
        let queues = self.queues.iter_mut().flatten();
        queues.filter(|queue| queue.volume() == volume).for_each(LocalQueue::fail);
    }

    /// Returns whether the cache has no request of any queue.
    pub(crate) fn is_quiet(&self) -> bool {
        self.queues.iter().flatten().all(LocalQueue::is_quiet)
    }

    pub(crate) fn queue(&mut self, index: usize) -> &mut LocalQueue {
        self.queues[index].as_mut().expect("a queue with a request under way is there")
    }
}

#[cfg(test)]
mod locals_tests {
    use floe_block::RequestKind;

    use super::*;

    fn arrive(locals: &mut Locals, requests: &[(u16, u64)]) {
        for &(tag, len) in requests {
            let kind = if len == 0 { RequestKind::Flush } else { RequestKind::Read };
            let wanted = CacheRequest { volume: VolumeId(0), kind, offset: 0, len };
            locals.push(7, LocalRequest { tag, wanted }, Instant::now());
        }
    }

    fn begin(locals: &mut Locals) -> Vec<LocalRequest> {
        std::iter::from_fn(|| locals.next()).map(|next| next.request).collect()
    }

    fn tags(begun: &[LocalRequest]) -> Vec<u16> {
        begun.iter().map(|request| request.tag).collect()
    }

    #[test]
    fn requests_wait_in_turn_for_the_memory_of_others() {
        let mut locals = Locals { most_bytes: 64 << 10, ..Locals::default() };
        arrive(&mut locals, &[(0, 32 << 10), (1, 32 << 10), (2, 4 << 10), (3, 0), (4, 32 << 10)]);
        let first = begin(&mut locals);
        assert_eq!(tags(&first), [0, 1]);
        assert!(!locals.has_ready());
        locals.ended(&first[0]);
        let second = begin(&mut locals);
        assert_eq!(tags(&second), [2, 3], "nothing overtakes");
        locals.ended(&first[1]);
        assert_eq!(tags(&begin(&mut locals)), [4]);
        assert!(begin(&mut locals).is_empty());
    }

    #[test]
    fn a_request_larger_than_all_memory_begins_alone() {
        let mut locals = Locals { most_bytes: 64 << 10, ..Locals::default() };
        arrive(&mut locals, &[(0, 4 << 10), (1, 1 << 20), (2, 4 << 10)]);
        for expected in [0, 1, 2] {
            let begun = begin(&mut locals);
            assert_eq!(tags(&begun), [expected]);
            locals.ended(&begun[0]);
        }
    }
}
