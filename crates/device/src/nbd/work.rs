//! Translation of device operations to NBD requests, and the queue of requests.
//!
//! A state machine without a socket: the [hub](super::hub) sends the requests that [`Work::next`]
//! returns, and reports which ones the server has answered. Requests unanswered when a connection
//! is lost are sent again on the next one, in their order, after the writes of the [log](Log).
//!
//! Invariants: while log entries are repeated, no other request is in flight, and of two entries
//! that overlap the later one waits for the earlier one. A request's slice is held until its last
//! answer.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use floe_nbd::client::ledger::{Content, Ledger, Message, Parsed, request_header};
use floe_nbd::client::{ClientError, Cookie, Info, RequestError};
use floe_nbd::wire::ErrorCode;
use floe_nbd::wire::{REQUEST_BYTES, command, command_flag, transmission_flag};

use crate::buffer::{Lent, Pool, SECTOR_BYTES, Slice};
use crate::queue::{Mailbox, Queue};

/// Maximum number of requests in flight.
const MOST_SENT: usize = 128;
/// The longest range, in bytes, of a request without data.
const MOST_BYTES: u64 = 1 << 30;
/// Bytes of zeros written at a time to a server that cannot zero a range itself.
const ZEROS_BYTES: u64 = 256 << 10;

/// An operation that has not ended.
struct Running {
    to: Arc<Mailbox<Answer>>,
    slot: usize,
    due: Option<Instant>,
    /// The number of unanswered requests of the operation.
    left: usize,
    error: Option<io::Error>,
    /// True if a flush must follow, because the server does not support durable writes (FUA).
    then_flush: bool,
}

/// A request in flight.
struct Sent {
    /// The position of the request in the order of sending.
    number: u64,
    request: Request,
    /// For a flush: the number of the first log entry that it does not cover.
    covers: u64,
}

pub(super) struct Work {
    pool: Pool,
    info: Info,
    operations: Queue<Running>,
    waiting: VecDeque<Request>,
    ledger: Ledger,
    /// Requests in flight, indexed by their cookies.
    sent: Vec<Option<Sent>>,
    /// Requests that a server returned unexecuted because it is shutting down.
    returned: Vec<Sent>,
    number: u64,
    log: Log,
    /// The number of log entries still to be repeated on this connection.
    to_repeat: usize,
    is_shortening: bool,
    /// The error for a lost write that had been acknowledged; the next flush returns it.
    lost: Option<io::Error>,
}

impl Work {
    pub(super) fn new(info: Info) -> Self {
        Self {
            pool: Pool::new(0),
            info,
            operations: Queue::default(),
            waiting: VecDeque::new(),
            ledger: Ledger::default(),
            sent: Vec::new(),
            returned: Vec::new(),
            number: 0,
            log: Log::default(),
            to_repeat: 0,
            is_shortening: false,
            lost: None,
        }
    }

    /// Returns the server's description of the export on the last connection.
    pub(super) fn info(&self) -> &Info {
        &self.info
    }

    /// Returns whether an operation is unfinished.
    pub(super) fn is_wanted(&self) -> bool {
        self.operations.len() > 0
    }

    pub(super) fn in_flight(&self) -> usize {
        self.ledger.in_flight()
    }

    /// Returns the earliest deadline of an operation.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.operations.iter().filter_map(|(_, running)| running.due).min()
    }

    /// Moves later deadlines of operations forward to `due`.
    pub(super) fn bound(&mut self, due: Instant) {
        for running in self.operations.iter_mut() {
            running.due = Some(running.due.map_or(due, |own| own.min(due)));
        }
    }

    /// Starts an operation by queueing its requests.
    pub(super) fn begin(&mut self, job: Job) {
        let Job { to, slot, offset, bytes, action, due } = job;
        let running = Running { to, slot, due, left: 0, error: None, then_flush: false };
        let place = self.operations.insert(running);
        let (mut error, mut then_flush) = (None, false);
        let has = |flag| self.info.has(flag);
        let request = |command, flags| Request {
            command,
            flags,
            offset,
            length: 0,
            data: None,
            purpose: Purpose::Operation(place),
        };
        let can_flush = has(transmission_flag::SEND_FLUSH);
        let can_zero = has(transmission_flag::SEND_WRITE_ZEROES);
        let cannot = || io::Error::new(io::ErrorKind::Unsupported, "zeros would be written");
        let mut parts = Vec::new();
        match action {
            JobAction::Read(into) => {
                let data = Some(into.attach().whole());
                parts = self.cut(Request { data, ..request(command::READ, 0) }, bytes);
            }
            JobAction::Write { from, durable } => {
                let by_flag = durable && has(transmission_flag::SEND_FUA);
                then_flush = durable && !by_flag && can_flush;
                let flags = if by_flag { command_flag::FUA } else { 0 };
                let data = Some(from.attach().whole());
                parts = self.cut(Request { data, ..request(command::WRITE, flags) }, bytes);
            }
            JobAction::Zero { fast: true, .. }
                if !can_zero || !has(transmission_flag::SEND_FAST_ZERO) =>
            {
                error = Some(cannot());
            }
            JobAction::Zero { may_unmap, fast } if can_zero => {
                let keep = if may_unmap { 0 } else { command_flag::NO_HOLE };
                let fast = if fast { command_flag::FAST_ZERO } else { 0 };
                parts = self.cut(request(command::WRITE_ZEROES, keep | fast), bytes);
            }
            JobAction::Zero { .. } => parts = self.zeros(&request(command::WRITE, 0), bytes),
            JobAction::Discard if has(transmission_flag::SEND_TRIM) => {
                parts = self.cut(request(command::TRIM, 0), bytes);
            }
            JobAction::Flush if self.lost.is_some() => error = self.lost.take(),
            JobAction::Flush if can_flush => parts.push(Request::flush(Purpose::Operation(place))),
            // Discarding is advice, and without flushes nothing is volatile.
            JobAction::Discard | JobAction::Flush => {}
        }
        let running = &mut self.operations[place];
        (running.left, running.error, running.then_flush) = (parts.len(), error, then_flush);
        self.waiting.extend(parts);
        self.end_if_done(place);
    }

    /// Returns the longest read or write that the server allows, in bytes, in whole sectors.
    fn most(&self) -> u64 {
        let most = u64::from(self.info.maximum_block_bytes);
        most / SECTOR_BYTES * SECTOR_BYTES
    }

    /// Splits a request into parts that the server accepts.
    fn cut(&self, whole: Request, bytes: u64) -> Vec<Request> {
        let most = if whole.data.is_some() { self.most() } else { MOST_BYTES };
        let part = |at: u64| {
            let length = most.min(bytes - at);
            let data = whole.data.as_ref();
            let data = data.map(|data| data.slice(at as usize..(at + length) as usize));
            Request { offset: whole.offset + at, length: length as u32, data, ..whole.clone() }
        };
        (0..bytes).step_by(most as usize).map(part).collect()
    }

    /// Returns write requests that fill the range of a request with zeros.
    fn zeros(&self, whole: &Request, bytes: u64) -> Vec<Request> {
        let most = self.most().min(ZEROS_BYTES);
        let zeros = self.pool.allocate(most.min(bytes) as usize).whole();
        zeros.fill_zero();
        let part = |at: u64| {
            let length = most.min(bytes - at);
            let data = Some(zeros.slice(0..length as usize));
            Request { offset: whole.offset + at, length: length as u32, data, ..whole.clone() }
        };
        (0..bytes).step_by(most as usize).map(part).collect()
    }

    /// Returns the next request to send, and the payload that follows it.
    pub(super) fn next(&mut self) -> Option<([u8; REQUEST_BYTES], Option<Slice>)> {
        if self.ledger.in_flight() >= MOST_SENT {
            return None;
        }
        if self.to_repeat > 0 {
            let front = self.waiting.front()?;
            let overlaps = |other: &Sent| front.overlaps(&other.request);
            if front.purpose != Purpose::Repeat || self.sent.iter().flatten().any(overlaps) {
                return None;
            }
        } else {
            if self.log.bytes() >= MANY_BYTES && !self.is_shortening {
                self.is_shortening = true;
                self.waiting.push_front(Request::flush(Purpose::Shorten));
            }
            if self.waiting.front()?.is_change() && self.log.bytes() >= FULL_BYTES {
                return None;
            }
        }
        let request = self.waiting.pop_front()?;
        let Request { command, flags, offset, length, .. } = request;
        let cookie = self.ledger.begin(command, offset, length);
        let header = request_header(command, flags, cookie, offset, length);
        let payload = request.data.clone().filter(|_| command == command::WRITE);
        if self.sent.len() <= cookie.index() {
            self.sent.resize_with(cookie.index() + 1, || None);
        }
        let (number, covers) = (self.number, self.log.end());
        self.number += 1;
        self.sent[cookie.index()] = Some(Sent { number, request, covers });
        Some((header, payload))
    }

    /// Parses the first bytes of a message from the server; see [`Ledger::parse`].
    pub(super) fn parse(&mut self, bytes: &[u8]) -> Result<Parsed, ClientError> {
        self.ledger.parse(bytes, self.info.structured_replies)
    }

    /// Returns the destination of a part of a read's data.
    pub(super) fn target(&self, cookie: Cookie, start: u32, length: u32) -> Slice {
        let sent = self.sent[cookie.index()].as_ref().expect("the ledger knows its requests");
        let data = sent.request.data.as_ref().expect("a read has room for its data");
        data.slice(start as usize..(start + length) as usize)
    }

    /// Processes the answer to a request whose last message has arrived. Returns true if the server
    /// is shutting down, so that the request must be sent on the next connection.
    pub(super) fn ended(&mut self, cookie: Cookie) -> bool {
        let sent = self.sent[cookie.index()].take().expect("the ledger knows its requests");
        let result = self.ledger.take(cookie);
        if result.as_ref().is_err_and(|error| error.code == ErrorCode::Shutdown) {
            self.returned.push(sent);
            return true;
        }
        let Sent { request, covers, .. } = sent;
        let can_lose = self.info.has(transmission_flag::SEND_FLUSH);
        match (&result, request.purpose) {
            (_, Purpose::Repeat) => self.to_repeat -= 1,
            (Ok(()), _) if request.command == command::FLUSH => self.log.forget(covers),
            (Ok(()), _) if can_lose => self.log.keep(&request, &self.pool),
            // Data that could not be flushed may be gone.
            (Err(_), Purpose::Shorten) => self.log.forget(covers),
            _ => {}
        }
        self.is_shortening &= request.purpose != Purpose::Shorten;
        let Purpose::Operation(place) = request.purpose else {
            result.map_err(error_of).unwrap_or_else(|error| self.lose(&error));
            return false;
        };
        drop(request);
        let running = &mut self.operations[place];
        running.left -= 1;
        running.error = running.error.take().or(result.map_err(error_of).err());
        self.end_if_done(place);
        false
    }

    /// Completes an operation that has no request left.
    fn end_if_done(&mut self, place: usize) {
        let running = &mut self.operations[place];
        if running.left > 0 {
            return;
        }
        if std::mem::take(&mut running.then_flush) && running.error.is_none() {
            running.left = 1;
            self.waiting.push_back(Request::flush(Purpose::Operation(place)));
            return;
        }
        let running = self.operations.remove(place);
        running.to.leave((running.slot, running.error.map_or(Ok(()), Err)));
    }

    /// Records that an acknowledged write was lost. Waiting flushes fail with the error, or else
    /// the next one does.
    fn lose(&mut self, error: &io::Error) {
        let message = format!("a write that had been answered was lost: {error}");
        let copy = || io::Error::new(error.kind(), message.clone());
        let mut is_told = false;
        for request in self.waiting.iter().filter(|request| request.command == command::FLUSH) {
            let Purpose::Operation(place) = request.purpose else { continue };
            let running = &mut self.operations[place];
            running.error.get_or_insert_with(copy);
            is_told = true;
        }
        if !is_told {
            self.lost.get_or_insert_with(copy);
        }
    }

    /// Starts a new connection by repeating the writes that may be lost.
    pub(super) fn connected(&mut self, info: Info) {
        self.info = info;
        for entry in self.log.entries().rev() {
            self.waiting.push_front(entry.clone());
            self.to_repeat += 1;
        }
    }

    /// Ends a connection, once the kernel no longer uses the requests' slices.
    pub(super) fn disconnected(&mut self) {
        let mut back: Vec<Sent> = self.sent.drain(..).flatten().collect();
        back.append(&mut self.returned);
        back.sort_unstable_by_key(|sent| sent.number);
        back.into_iter().rev().for_each(|sent| self.waiting.push_front(sent.request));
        self.waiting.retain(|request| matches!(request.purpose, Purpose::Operation(_)));
        self.ledger = Ledger::default();
        (self.to_repeat, self.is_shortening) = (0, false);
    }

    /// Fails the operations that are due by `now`, or all for `None`. No request may be in flight.
    pub(super) fn fail(&mut self, now: Option<Instant>, error: impl Fn() -> io::Error) {
        let is_due = |running: &Running| match now {
            Some(now) => running.due.is_some_and(|due| due <= now),
            None => true,
        };
        let due = self.operations.iter().filter(|(_, running)| is_due(running));
        for place in due.map(|(place, _)| place).collect::<Vec<_>>() {
            self.waiting.retain(|request| request.purpose != Purpose::Operation(place));
            let running = self.operations.remove(place);
            running.to.leave((running.slot, Err(error())));
        }
    }
}

/// Converts the server's error to the equivalent system error.
fn error_of(error: RequestError) -> io::Error {
    io::Error::from_raw_os_error(error.code.number() as i32)
}

/// The slot of an operation on the thread that submitted it, and the result.
pub(super) type Answer = (usize, io::Result<()>);

/// An operation that a thread passes to the hub.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) to: Arc<Mailbox<Answer>>,
    pub(super) slot: usize,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) action: JobAction,
    pub(super) due: Option<Instant>,
}

/// An [`Action`](crate::Action) with its slice lent to the hub.
#[derive(Debug)]
pub(super) enum JobAction {
    Read(Lent),
    Write { from: Lent, durable: bool },
    Zero { may_unmap: bool, fast: bool },
    Discard,
    Flush,
}

#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) command: u16,
    pub(super) flags: u16,
    pub(super) offset: u64,
    pub(super) length: u32,
    /// The data to write, or the destination of a read.
    pub(super) data: Option<Slice>,
    pub(super) purpose: Purpose,
}

/// The reason for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Part of the operation in this slot.
    Operation(usize),
    /// Repetition of a log entry after a reconnect.
    Repeat,
    /// A flush after which log entries can be dropped.
    Shorten,
}

impl Request {
    /// Returns whether the ranges of both requests overlap.
    pub(super) fn overlaps(&self, other: &Request) -> bool {
        let end = |request: &Request| request.offset + u64::from(request.length);
        self.offset < end(other) && other.offset < end(self)
    }

    /// Returns whether the request changes the export's data.
    pub(super) fn is_change(&self) -> bool {
        matches!(self.command, command::WRITE | command::WRITE_ZEROES | command::TRIM)
    }

    pub(super) fn flush(purpose: Purpose) -> Self {
        Self { command: command::FLUSH, flags: 0, offset: 0, length: 0, data: None, purpose }
    }
}

/// Size of the receive buffer in bytes; large read data bypasses it.
const BUFFER_BYTES: usize = 64 << 10;
/// Minimum length of read data, in bytes, that is received directly into its slice.
const DIRECT_BYTES: usize = 16 << 10;

/// The parser of the bytes received from the server.
pub(super) struct Incoming {
    buffer: Slice,
    /// The received bytes not yet parsed are `start..end` of the buffer.
    start: usize,
    end: usize,
    /// The bytes of the incomplete message.
    message: Vec<u8>,
    /// The message whose data is being received, and the destination of the rest.
    data: Option<(Message, Slice)>,
}

/// The next action for the hub after parsing received bytes.
pub(super) enum Next {
    /// The answer to a request is complete.
    Ended(Cookie),
    /// More bytes must be received into this slice; `whole` if all of it must be filled.
    Receive { into: Slice, whole: bool },
}

impl Incoming {
    pub(super) fn new(pool: &Pool) -> Self {
        let buffer = pool.allocate(BUFFER_BYTES).whole();
        Self { buffer, start: 0, end: 0, message: Vec::new(), data: None }
    }

    /// Discards everything received on a connection that has ended.
    pub(super) fn clear(&mut self) {
        (self.start, self.end, self.data) = (0, 0, None);
        self.message.clear();
    }

    /// Accepts bytes that were received as [`Next::Receive`] requested.
    pub(super) fn received(&mut self, bytes: usize) -> Result<(), ClientError> {
        match &mut self.data {
            _ if bytes == 0 => return Err(ClientError::HungUp),
            Some((_, rest)) if rest.len() >= DIRECT_BYTES => {
                *rest = rest.slice(bytes..rest.len());
            }
            _ => (self.start, self.end) = (0, bytes),
        }
        Ok(())
    }

    /// Parses received bytes until an answer is complete or more bytes are needed.
    pub(super) fn next(&mut self, work: &mut Work) -> Result<Next, ClientError> {
        loop {
            let here = self.end - self.start;
            match &mut self.data {
                Some((message, rest)) if rest.is_empty() => {
                    let Message { cookie, is_last, .. } = *message;
                    self.data = None;
                    if is_last {
                        return Ok(Next::Ended(cookie));
                    }
                }
                Some((_, rest)) if here > 0 => {
                    let bytes = here.min(rest.len());
                    let from = self.buffer.slice(self.start..self.start + bytes);
                    Slice::copy(&from, &rest.slice(0..bytes));
                    *rest = rest.slice(bytes..rest.len());
                    self.start += bytes;
                }
                Some((_, rest)) if rest.len() >= DIRECT_BYTES => {
                    return Ok(Next::Receive { into: rest.clone(), whole: true });
                }
                Some(_) => return Ok(Next::Receive { into: self.buffer.clone(), whole: false }),
                None => match work.parse(&self.message)? {
                    Parsed::More(_) if here == 0 => {
                        return Ok(Next::Receive { into: self.buffer.clone(), whole: false });
                    }
                    Parsed::More(bytes) => {
                        let bytes = bytes.min(here);
                        let from = self.buffer.slice(self.start..self.start + bytes);
                        self.message.extend(from.to_vec());
                        self.start += bytes;
                    }
                    Parsed::Message(message) => {
                        self.message.clear();
                        let rest = match message.content {
                            Content::Data { start, length } => {
                                work.target(message.cookie, start, length)
                            }
                            Content::Zeros { start, length } => {
                                let zeros = work.target(message.cookie, start, length);
                                zeros.fill_zero();
                                zeros.slice(0..0)
                            }
                            Content::Nothing => self.buffer.slice(0..0),
                        };
                        self.data = Some((message, rest));
                    }
                },
            }
        }
    }
}

/// Size of the log in bytes from which the hub makes the server flush.
pub(super) const MANY_BYTES: u64 = 16 << 20;
/// Size of the log in bytes from which new writes wait for that flush.
pub(super) const FULL_BYTES: u64 = 64 << 20;

/// Bytes counted for a log entry in addition to its data.
const ENTRY_BYTES: u64 = 128;

/// Copies of the writes that the server has acknowledged but not flushed, in the order of
/// acknowledgement.
#[derive(Debug, Default)]
pub(super) struct Log {
    entries: VecDeque<Request>,
    bytes: u64,
    /// The number of the oldest entry.
    first: u64,
}

fn bytes_of(request: &Request) -> u64 {
    ENTRY_BYTES + request.data.as_ref().map_or(0, |data| data.len() as u64)
}

impl Log {
    /// Appends a copy of an acknowledged change. A durable change is kept only if there are older
    /// entries, which could be repeated over it.
    pub(super) fn keep(&mut self, request: &Request, pool: &Pool) {
        let is_durable = request.flags & command_flag::FUA != 0;
        if !request.is_change() || is_durable && self.entries.is_empty() {
            return;
        }
        let copy = |from: &Slice| {
            let copy = pool.allocate(from.len()).whole();
            Slice::copy(from, &copy);
            copy
        };
        let data = request.data.as_ref().map(copy);
        let entry = Request { data, purpose: Purpose::Repeat, ..request.clone() };
        self.bytes += bytes_of(&entry);
        self.entries.push_back(entry);
    }

    /// Returns the number of the next entry. A flush sent now covers all entries before it.
    pub(super) fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Drops the entries before a number.
    pub(super) fn forget(&mut self, end: u64) {
        while self.first < end
            && let Some(entry) = self.entries.pop_front()
        {
            self.first += 1;
            self.bytes -= bytes_of(&entry);
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the entries in the order in which they must be repeated.
    pub(super) fn entries(&self) -> impl DoubleEndedIterator<Item = &Request> {
        self.entries.iter()
    }
}
