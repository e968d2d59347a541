//! Parses the byte stream of one host connection, from the first byte to the last.
//!
//! The connection consumes received bytes up to the next event. It answers admin commands by
//! itself. Commands of I/O queues become requests. A request's payload never passes through the
//! connection, so the caller can receive it directly into its destination: the connection says how
//! many bytes of which request come next.
//!
//! A host's payload is either in the command's capsule, right behind the request, or is requested
//! when the caller has room for it ([`Connection::ready`]).
//!
//! Invariants: the result does not depend on where the input is split. Memory is bounded: a header,
//! a capsule's data, a list of ranges, and an entry for each command of the queue. An unsupported
//! command gets an error status. A message that breaks the transport's rules ends the connection,
//! and the host is told the reason.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use self::commands::List;
use super::admin::{Admin, AdminOutcome};
use super::authentication::{Authentication, Failed};
use super::io::{Namespaces, Pieces, Range};
use super::message::{Incoming, Parameters, Sink, digest};
use super::request::{CommandState, Commands, Payload, Request};
use super::reservation::QueueGuard;
use super::subsystem::{NoPlace, QueueLease, Subsystem};
use super::{Deferred, IN_CAPSULE_MAX_BYTES, MESSAGE_MAX_BYTES};
use crate::wire::pdu::{
    self, COMMAND_CAPSULE_BYTES, DATA_BYTES, DIGEST_BYTES, Data, HEADER_BYTES, Header,
    INITIALIZE_BYTES, Initialize, TERMINATE_BYTES, TERMINATE_MAX_BYTES, fatal, flag, kind,
};
use crate::wire::{Completion, NvmeCommand, Status, admin, fabrics};

mod commands;

/// An event in the input of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// All input is consumed; receive more.
    NeedMore,
    /// Nothing happened that concerns the caller. `out` may hold bytes to send.
    Nothing,
    /// A request. Its payload, if any, is either the next input or is requested later.
    Request(Request),
    /// Payload of a request is next in the input. The bytes do not count as used: report them with
    /// [`Connection::payload_received`].
    Payload {
        /// Tag of the request.
        tag: u16,
        /// Bytes of payload still missing in this message. Never zero.
        bytes: usize,
    },
    /// All payload of a request has arrived and was compared with its digests. Damaged payload must
    /// not be written: reply that the request failed. Occurs for each payload, but only on
    /// connections with data digests ([`Connection::has_data_digest`]).
    Checked {
        /// Tag of the request.
        tag: u16,
        /// The payload matches its digests.
        intact: bool,
    },
    /// A command was answered with a failure.
    Refused,
}

/// A violation of the transport's rules by the host, or another reason to end the connection. `out`
/// has the message that informs the host, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A field of a header has a wrong value.
    #[error("the byte at {0} of a message's header has a wrong value")]
    Field(u32),
    /// The message does not fit the state of the connection.
    #[error("a message of type {0:#04x} does not belong here")]
    Sequence(u8),
    /// The digest of a header does not match.
    #[error("the digest of a header is wrong")]
    HeaderDigest(u32),
    /// Data lies outside of the requested range.
    #[error("a message has data that was not asked for")]
    OutOfRange,
    /// A message carries more data than allowed.
    #[error("a message has more data than a controller takes at once")]
    LimitExceeded,
    /// More commands are in flight than the queue has entries.
    #[error("more commands are in flight than the queue has places")]
    QueueOverrun,
    /// The host may not connect.
    #[error("it is not among the hosts that may connect")]
    NotAllowed,
    /// The host did not authenticate.
    #[error("it did not prove that it has its secret")]
    NotAuthenticated,
    /// The host authenticated when no place was left for it any more.
    #[error("a volume has as many connections as its limit allows")]
    NoPlace,
    /// The host authenticated for a queue whose number another connection has taken meanwhile.
    #[error("the host has a queue of this number already")]
    QueueTaken,
    /// The host ended the connection with this reason.
    #[error("the host ended the connection for reason {0}")]
    Terminated(u16),
    /// The input ended in the middle of a message.
    #[error("the connection ended within a message")]
    Truncated,
}

/// The purpose of a connection.
#[derive(Debug)]
enum Role {
    /// No queue is connected yet.
    None,
    Admin(Box<Admin>),
    Io(QueueLease),
}

#[derive(Debug)]
enum State {
    Header {
        bytes: [u8; INITIALIZE_BYTES + DIGEST_BYTES],
        filled: usize,
    },
    Data(Incoming),
    /// A command of several requests hands them out one by one.
    Issue(u16, Pieces),
    Failed(Violation),
}

const NEXT_HEADER: State = State::Header { bytes: [0; INITIALIZE_BYTES + DIGEST_BYTES], filled: 0 };

impl State {
    /// Directs a part of the capsule's data to a sink.
    fn give(&mut self, before: usize, bytes: usize, sink: Sink) {
        match std::mem::replace(self, NEXT_HEADER) {
            Self::Data(incoming) => *self = Self::Data(incoming.part(before, bytes, sink)),
            _ => unreachable!("the capsule has data"),
        }
    }
}

/// The submission queue as the host sees it.
#[derive(Debug)]
struct Queue {
    /// Number of entries; 0 until the queue is connected.
    size: u16,
    head: u16,
    /// The host counts free entries, so each completion reports the queue's head.
    flow_control: bool,
}

impl Queue {
    fn completion(&self, id: u16, result: u64, status: Status) -> Completion {
        let queue_head = if self.flow_control { self.head } else { u16::MAX };
        Completion { result, queue_head, id, status }
    }
}

/// The state of one connection from a host.
#[derive(Debug)]
pub struct Connection {
    subsystem: Arc<Subsystem>,
    namespaces: Arc<Namespaces>,
    address: Option<SocketAddr>,
    parameters: Parameters,
    state: State,
    role: Role,
    /// Name of the host, once it is known.
    host: Option<String>,
    /// The authentication that the host must pass or has passed.
    authentication: Option<Box<Authentication>>,
    defers: bool,
    /// The command that waits for deferred work, with the work.
    deferred: Option<(NvmeCommand, Deferred)>,
    queue: Queue,
    flights: Commands,
    /// Commands whose lists of ranges are fetched from the host, one at a time.
    lists: VecDeque<List>,
    /// The reservations as an I/O queue knows them; `None` without reservations.
    guard: Option<Box<QueueGuard>>,
}

impl Connection {
    /// Creates a connection to a subsystem with these namespaces. `address` is the one that the
    /// host has connected to, if known.
    pub fn new(
        subsystem: Arc<Subsystem>,
        namespaces: Arc<Namespaces>,
        address: Option<SocketAddr>,
    ) -> Self {
        Self {
            subsystem,
            namespaces,
            address,
            parameters: Parameters::default(),
            state: NEXT_HEADER,
            role: Role::None,
            host: None,
            authentication: None,
            defers: false,
            deferred: None,
            queue: Queue { size: 0, head: 0, flow_control: true },
            flights: Commands::default(),
            lists: VecDeque::new(),
            guard: None,
        }
    }

    /// Consumes received bytes up to the next event. Returns the number of bytes used and the
    /// event.
    ///
    /// # Errors
    /// When the host broke the transport's rules: send `out`, then drop the connection.
    pub fn advance(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Event), Violation> {
        let mut used = 0;
        loop {
            let (taken, event) = self.step(&input[used..], out)?;
            used += taken;
            if let Some(event) = event {
                return Ok((used, event));
            }
        }
    }

    fn step(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Option<Event>), Violation> {
        if self.deferred.is_some() {
            return match self.go_on(out) {
                Ok(event) => Ok((0, Some(event.unwrap_or(Event::NeedMore)))),
                Err(violation) => Err(self.fail(violation, out)),
            };
        }
        match &mut self.state {
            State::Header { bytes, filled } => {
                let needed = match needed(&bytes[..*filled], &self.parameters) {
                    Ok(needed) => needed,
                    Err(violation) => return Err(self.fail(violation, out)),
                };
                let taken = input.len().min(needed - *filled);
                bytes[*filled..*filled + taken].copy_from_slice(&input[..taken]);
                *filled += taken;
                if *filled < needed {
                    return Ok((taken, Some(Event::NeedMore)));
                }
                if needed == pdu::HEADER_BYTES {
                    return Ok((taken, None)); // now the length of the whole header is known
                }
                let header = *bytes;
                self.state = NEXT_HEADER;
                match self.message(&header[..needed], out) {
                    Ok(event) => Ok((taken, event)),
                    Err(violation) => {
                        // for the complaint about it
                        self.state = State::Header { bytes: header, filled: needed };
                        Err(self.fail(violation, out))
                    }
                }
            }
            State::Data(incoming) => {
                let taken = incoming.take(input);
                if incoming.is_complete() {
                    let State::Data(incoming) = std::mem::replace(&mut self.state, NEXT_HEADER)
                    else {
                        unreachable!("it was just matched")
                    };
                    return match self.data_complete(incoming, out) {
                        Ok(event) => Ok((taken, event)),
                        Err(violation) => Err(self.fail(violation, out)),
                    };
                }
                let event = match incoming.payload() {
                    Some((tag, bytes)) => Event::Payload { tag, bytes },
                    None => Event::NeedMore,
                };
                Ok((taken, Some(event)))
            }
            State::Issue(tag, pieces) => {
                let tag = *tag;
                if let Some((kind, range)) = pieces.next() {
                    let flight = self.flights.get(tag).expect("it is in flight while they come");
                    flight.pending += 1;
                    let Range { volume, offset, bytes } = range;
                    let length = bytes as u32;
                    let request = Request { tag, volume, kind, offset, length, in_capsule: false };
                    return Ok((0, Some(Event::Request(request))));
                }
                self.state = NEXT_HEADER;
                if let Some(answer) = self.reply(tag, Ok(()), || 0) {
                    out.extend_from_slice(answer.before.as_slice());
                }
                Ok((0, None))
            }
            State::Failed(violation) => Err(*violation),
        }
    }

    /// Tells the host of a violation and puts the connection into the failed state.
    fn fail(&mut self, violation: Violation, out: &mut Vec<u8>) -> Violation {
        let state = std::mem::replace(&mut self.state, State::Failed(violation));
        if let (State::Header { bytes, filled }, Some((reason, information))) =
            (state, reason(violation))
        {
            let terminate = kind::CONTROLLER_TERMINATES;
            out.extend(pdu::terminate(terminate, reason, information, &bytes[..filled]));
        }
        violation
    }

    /// Reports that the caller has room for the payload of a request. Asks the host for the payload
    /// unless the capsule has it.
    pub fn ready(&mut self, tag: u16, out: &mut Vec<u8>) {
        let waits = |flight: &&mut CommandState| flight.payload == Payload::Unasked;
        let Some(flight) = self.flights.get(tag).filter(waits) else { return };
        flight.payload = Payload::Asked(flight.length);
        let ask = self.parameters.ready(flight.id, tag, flight.length);
        out.extend_from_slice(ask.as_slice());
    }

    /// Reports that the caller has received `bytes` bytes of the payload that was next in the
    /// input.
    ///
    /// # Panics
    /// When that is more than [`Event::Payload`] announced.
    pub fn payload_received(&mut self, bytes: usize) {
        let State::Data(incoming) = &mut self.state else { panic!("no payload is due") };
        incoming.payload_received(bytes);
        if incoming.is_complete() {
            self.state = NEXT_HEADER;
        }
    }

    /// Returns whether a digest follows the data of each message.
    pub fn has_data_digest(&self) -> bool {
        self.parameters.data_digest
    }

    /// Adds payload to the digest of its message, if it has one. Call it for all payload, in order,
    /// before [`Connection::payload_received`].
    pub fn digest_payload(&mut self, payload: &[u8]) {
        if let State::Data(incoming) = &mut self.state {
            incoming.digest(payload);
        }
    }

    /// Checks that the input may end here.
    ///
    /// # Errors
    /// When the input ends in the middle of a message, or the connection had failed before.
    pub fn end_of_input(&self) -> Result<(), Violation> {
        match &self.state {
            State::Header { filled: 0, .. } | State::Issue(..) => Ok(()),
            State::Header { .. } | State::Data(_) => Err(Violation::Truncated),
            State::Failed(violation) => Err(*violation),
        }
    }

    /// Reports that the subsystem's namespaces or its [`Paths`](super::access::Paths) have changed.
    /// On an admin queue this may add notices to `out`.
    pub fn namespaces_changed(&mut self, namespaces: &Arc<Namespaces>, out: &mut Vec<u8>) {
        if let Role::Admin(admin) = &mut self.role {
            admin.namespaces_changed(&self.namespaces, namespaces);
        }
        self.namespaces = Arc::clone(namespaces);
        if let Some(guard) = &mut self.guard {
            guard.forget();
        }
        self.reservations_changed(out);
    }

    /// Reports that reservations may have changed. Call it on each connection whenever the
    /// [`Reservations`](super::reservation::Reservations) ask for that. On an admin queue this may
    /// add notices to `out`.
    pub fn reservations_changed(&mut self, out: &mut Vec<u8>) {
        if let Some(guard) = &mut self.guard {
            guard.update(&self.namespaces, &mut self.flights);
        }
        if let Role::Admin(admin) = &mut self.role {
            admin.reservations_changed(&self.namespaces);
        }
        self.tell_events(out);
    }

    /// Reports that all payload of a request has arrived and matches its digests. Returns whether
    /// the request may be carried out. If not, reply that it failed, for whatever reason: the host
    /// is told of the reservation that forbids it.
    pub fn may_start(&mut self, tag: u16) -> bool {
        let Some(guard) = &mut self.guard else { return true };
        guard.update(&self.namespaces, &mut self.flights);
        let Some(flight) = self.flights.get(tag) else { return true };
        flight.started = guard.allows(flight.namespace, flight.writes);
        if !flight.started {
            flight.status = Status::RESERVATION_CONFLICT.final_();
        }
        flight.started
    }

    /// Reports that a request has not begun: the caller asks [`Connection::may_start`] before it
    /// carries it out. Until then, other hosts need not wait for its command, unless other requests
    /// of the same command are under way.
    pub fn hold_back(&mut self, tag: u16) {
        if let Some(flight) = self.flights.get(tag).filter(|flight| flight.pending == 1) {
            flight.started = false;
        }
    }

    /// Returns whether the connection is a queue that the host may use.
    pub fn is_connected(&self) -> bool {
        !matches!(self.role, Role::None) && !owes_proof(self.authentication.as_deref())
    }

    /// Returns the name of the host, once it is known.
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// Returns the keep-alive timeout of an admin queue in milliseconds, if the host has set one.
    pub fn keep_alive_ms(&self) -> Option<u32> {
        match &self.role {
            Role::Admin(admin) => Some(admin.keep_alive_ms()).filter(|&time| time > 0),
            _ => None,
        }
    }

    /// Returns whether the controller of an I/O queue still exists; `None` for other connections.
    pub fn has_controller(&self) -> Option<bool> {
        match &self.role {
            Role::Io(lease) => Some(lease.is_valid()),
            _ => None,
        }
    }

    /// Returns the namespaces of an admin queue whose controller has I/O queues; `None` for other
    /// connections.
    pub fn namespaces_in_use(&self) -> Option<&Namespaces> {
        match &self.role {
            Role::Admin(admin) if admin.has_io_queues() => Some(&self.namespaces),
            _ => None,
        }
    }

    /// Processes a message whose header is complete.
    fn message(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Option<Event>, Violation> {
        let header = Header::of_bytes(bytes.first_chunk().expect("a header has these"));
        let plain = usize::from(header.header_bytes);
        if let Some(received) = bytes[plain..].first_chunk::<DIGEST_BYTES>() {
            let received = u32::from_le_bytes(*received);
            if digest(&bytes[..plain]) != received {
                return Err(Violation::HeaderDigest(received));
            }
        }
        match header.kind {
            kind::INITIALIZE_REQUEST => {
                let asked = bytes.first_chunk().expect("its length was checked");
                self.parameters = initialize(asked, out)?;
                Ok(Some(Event::Nothing))
            }
            kind::COMMAND => {
                let data = data_bytes(&self.parameters, &header, bytes.len())?;
                if data > IN_CAPSULE_MAX_BYTES {
                    return Err(Violation::LimitExceeded);
                }
                let command = bytes[HEADER_BYTES..COMMAND_CAPSULE_BYTES].try_into();
                let command = NvmeCommand(command.expect("its length was checked"));
                self.command(&command, data, out)
            }
            kind::HOST_DATA => {
                let data = data_bytes(&self.parameters, &header, bytes.len())?;
                let fields = Data::of_bytes(bytes.first_chunk().expect("its length was checked"));
                self.host_data(&header, &fields, data)?;
                Ok(None)
            }
            _ => {
                let reason = u16::from_le_bytes([bytes[8], bytes[9]]);
                Err(Violation::Terminated(reason))
            }
        }
    }

    /// Processes the header of data that the controller has asked for.
    fn host_data(&mut self, header: &Header, fields: &Data, data: usize) -> Result<(), Violation> {
        if !matches!(self.role, Role::Io(_)) {
            return Err(Violation::Sequence(header.kind));
        }
        if fields.length as usize != data {
            return Err(Violation::Field(16));
        }
        if fields.length > MESSAGE_MAX_BYTES {
            return Err(Violation::LimitExceeded);
        }
        let Some(flight) = self.flights.get(fields.tag) else { return Err(Violation::Field(10)) };
        let Payload::Asked(missing) = flight.payload else { return Err(Violation::Field(10)) };
        if flight.id != fields.command {
            return Err(Violation::Field(8));
        }
        if fields.offset != flight.length - missing || fields.length > missing {
            return Err(Violation::OutOfRange);
        }
        let missing = missing - fields.length;
        if (header.flags & flag::LAST != 0) != (missing == 0) {
            return Err(Violation::Field(FLAGS));
        }
        flight.payload = if missing == 0 { Payload::None } else { Payload::Asked(missing) };
        let sink = match self.lists.front_mut().filter(|list| list.tag == fields.tag) {
            Some(list) => Sink::List(std::mem::take(&mut list.data)),
            None => Sink::Payload(fields.tag),
        };
        let incoming = Incoming::skip(data, self.parameters.data_digest);
        self.state = State::Data(incoming.part(0, data, sink));
        Ok(())
    }

    /// Executes an authentication command whose capsule carries `data` bytes.
    fn authenticate(
        &mut self,
        command: &NvmeCommand,
        data: usize,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Violation> {
        let bytes = command.u32(44) as usize;
        let is_known = [command.u8(41), command.u8(42), command.u8(43)] == PROTOCOL;
        let invalid = Status::INVALID_FIELD.final_();
        if !is_known || bytes == 0 || bytes > IN_CAPSULE_MAX_BYTES {
            return Ok(Some(self.refuse(command.id(), 0, invalid, out)));
        }
        if command.fabrics_type() == fabrics::AUTHENTICATION_SEND {
            return Ok(match self.gather(command, bytes, data) {
                Ok(()) => None,
                Err(status) => Some(self.refuse(command.id(), 0, status, out)),
            });
        }
        let authentication = self.authentication.as_mut().expect("it was asked for");
        let Some((mut message, result)) = authentication.receive(bytes) else {
            return Ok(Some(self.refuse(command.id(), 0, invalid, out)));
        };
        message.resize(bytes, 0);
        self.admin_answer(command, Ok(AdminOutcome::Data(message)), out);
        result.map_err(|Failed| Violation::NotAuthenticated)?;
        claim_if_proved(self)?;
        Ok(Some(Event::Nothing))
    }

    /// Processes an authentication message of the host. If the message needs a calculation, its
    /// command completes after that.
    fn authentication_sent(
        &mut self,
        command: &NvmeCommand,
        message: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Event, Violation> {
        let authentication = self.authentication.as_mut().expect("it was asked for");
        let calculation = match authentication.send(message) {
            Ok(calculation) => calculation,
            Err(Failed) => {
                self.complete(command.id(), 0, Status::SUCCESS, out);
                return Err(Violation::NotAuthenticated);
            }
        };
        match calculation {
            None => self.authentication_taken(*command, out),
            Some(calculation) => self.defer(command, Ok(Deferred::Calculation(calculation)), out),
        }
    }

    /// Lets a command wait for work, which is done at once unless the caller does it. Refuses a
    /// command with this status.
    fn defer(
        &mut self,
        command: &NvmeCommand,
        work: Result<Deferred, Status>,
        out: &mut Vec<u8>,
    ) -> Result<Event, Violation> {
        let work = match work {
            Ok(work) => work,
            Err(status) => return Ok(self.refuse(command.id(), 0, status, out)),
        };
        if !self.defers {
            work.run();
        }
        self.deferred = Some((*command, work));
        Ok(self.go_on(out)?.unwrap_or(Event::Nothing))
    }

    /// Completes the command that waits for deferred work, if that is done.
    fn go_on(&mut self, out: &mut Vec<u8>) -> Result<Option<Event>, Violation> {
        let Some((command, work)) = &self.deferred else { return Ok(None) };
        let command = *command;
        match work {
            Deferred::Calculation(calculation) => {
                let Some(result) = calculation.result() else { return Ok(None) };
                let authentication = self.authentication.as_mut().expect("it was asked for");
                authentication.calculated(result.as_deref());
                self.deferred = None;
                self.authentication_taken(command, out).map(Some)
            }
            Deferred::Reservation(change) => {
                let Some(result) = change.result() else { return Ok(None) };
                self.deferred = None;
                if let Err(status) = result {
                    return Ok(Some(self.refuse(command.id(), 0, status, out)));
                }
                self.complete(command.id(), 0, Status::SUCCESS, out);
                self.tell_events(out);
                Ok(Some(Event::Nothing))
            }
        }
    }

    fn authentication_taken(
        &mut self,
        command: NvmeCommand,
        out: &mut Vec<u8>,
    ) -> Result<Event, Violation> {
        self.complete(command.id(), 0, Status::SUCCESS, out);
        claim_if_proved(self)?;
        Ok(Event::Nothing)
    }

    /// Leaves long work to the caller, who fetches each piece by [`Connection::deferred`]. By
    /// default [`Connection::advance`] does it.
    pub fn defer_work(&mut self) {
        self.defers = true;
    }

    /// Returns the work that blocks the connection. Do it, then call [`Connection::advance`] once
    /// it is done.
    pub fn deferred(&self) -> Option<&Deferred> {
        self.deferred.as_ref().map(|(_, work)| work)
    }
}

/// Offset of the flags in a header.
const FLAGS: u32 = 1;
const HEADER_LENGTH: u32 = 2;
const DATA_OFFSET: u32 = 3;
const TOTAL_LENGTH: u32 = 4;

/// Returns the length of a header, with its digest, whose first bytes are given.
fn needed(bytes: &[u8], parameters: &Parameters) -> Result<usize, Violation> {
    let Some(first) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(HEADER_BYTES) };
    let header = Header::of_bytes(first);
    let is_initialized = parameters.data_alignment > 0;
    let expected = match (header.kind, is_initialized) {
        (kind::INITIALIZE_REQUEST, false) => INITIALIZE_BYTES,
        (kind::COMMAND, true) => COMMAND_CAPSULE_BYTES,
        (kind::HOST_DATA, true) => DATA_BYTES,
        (kind::HOST_TERMINATES, _) => TERMINATE_BYTES,
        (kind::INITIALIZE_REQUEST | kind::COMMAND | kind::HOST_DATA, _) => {
            return Err(Violation::Sequence(header.kind));
        }
        _ => return Err(Violation::Field(0)),
    };
    if usize::from(header.header_bytes) != expected {
        return Err(Violation::Field(HEADER_LENGTH));
    }
    let total = header.total_bytes as usize;
    let has_digest = matches!(header.kind, kind::COMMAND | kind::HOST_DATA);
    let whole = if has_digest { parameters.with_digest(expected) } else { expected };
    if has_digest && (header.flags & flag::HEADER_DIGEST != 0) != parameters.header_digest {
        return Err(Violation::Field(FLAGS));
    }
    let is_long_enough = match header.kind {
        kind::INITIALIZE_REQUEST => total == expected,
        kind::HOST_TERMINATES => (TERMINATE_BYTES..=TERMINATE_MAX_BYTES).contains(&total),
        kind::HOST_DATA => total > whole,
        _ => total >= whole,
    };
    if !is_long_enough {
        return Err(Violation::Field(TOTAL_LENGTH));
    }
    Ok(whole)
}

/// Returns the reason and information that the host is told; `None` when it is not told.
fn reason(violation: Violation) -> Option<(u16, u32)> {
    Some(match violation {
        Violation::Field(at) => (fatal::INVALID_FIELD, at),
        Violation::Sequence(_) | Violation::QueueOverrun | Violation::QueueTaken => {
            (fatal::SEQUENCE, 0)
        }
        Violation::HeaderDigest(received) => (fatal::HEADER_DIGEST, received),
        Violation::OutOfRange => (fatal::OUT_OF_RANGE, 0),
        Violation::LimitExceeded => (fatal::LIMIT_EXCEEDED, 0),
        Violation::NotAllowed
        | Violation::NotAuthenticated
        | Violation::NoPlace
        | Violation::Terminated(_)
        | Violation::Truncated => return None,
    })
}

/// Security protocol of NVMe authentication: two protocol-specific bytes, then the protocol's
/// number.
const PROTOCOL: [u8; 3] = [1, 1, 0xe9];

/// Claims the queue's number for an I/O queue, and a place for an admin queue, as soon as the host
/// has authenticated.
fn claim_if_proved(connection: &mut Connection) -> Result<(), Violation> {
    let is_proved = !owes_proof(connection.authentication.as_deref());
    match &mut connection.role {
        Role::Io(lease) if is_proved && !lease.holds() => {
            lease.claim().map_err(|_| Violation::QueueTaken)
        }
        Role::Admin(admin) if is_proved => admin.take_place().map_err(|NoPlace| Violation::NoPlace),
        _ => Ok(()),
    }
}

/// Returns whether the host must still authenticate.
fn owes_proof(authentication: Option<&Authentication>) -> bool {
    authentication.is_some_and(|it| !it.is_authenticated())
}

/// Returns whether a command carries a message of an authentication.
fn is_authentication(command: &NvmeCommand) -> bool {
    command.opcode() == admin::FABRICS
        && matches!(
            command.fabrics_type(),
            fabrics::AUTHENTICATION_SEND | fabrics::AUTHENTICATION_RECEIVE
        )
}

/// Returns the number of data bytes in a message whose header ends at `end`.
fn data_bytes(parameters: &Parameters, header: &Header, end: usize) -> Result<usize, Violation> {
    let total = header.total_bytes as usize;
    if total == end {
        return Ok(0);
    }
    let digest_bytes = parameters.data_digest_bytes();
    if (header.flags & flag::DATA_DIGEST != 0) != (digest_bytes > 0) {
        return Err(Violation::Field(FLAGS));
    }
    // Data needs no padding, because all headers end at a double word.
    if usize::from(header.data_offset) != end {
        return Err(Violation::Field(DATA_OFFSET));
    }
    match total.checked_sub(end + digest_bytes) {
        Some(0) | None => Err(Violation::Field(TOTAL_LENGTH)),
        Some(data) => Ok(data),
    }
}

/// Accepts a host's initialization request and answers it.
fn initialize(bytes: &[u8; INITIALIZE_BYTES], out: &mut Vec<u8>) -> Result<Parameters, Violation> {
    let asked = Initialize::of_bytes(bytes);
    if asked.format != 0 {
        return Err(Violation::Field(8));
    }
    if asked.data_alignment > 31 {
        return Err(Violation::Field(10));
    }
    let digests = asked.digests & 3;
    let most = MESSAGE_MAX_BYTES;
    let granted = Initialize { format: 0, data_alignment: 0, digests, most };
    out.extend_from_slice(&granted.to_bytes(kind::INITIALIZE_RESPONSE));
    Ok(Parameters {
        header_digest: asked.digests & 1 != 0,
        data_digest: asked.digests & 2 != 0,
        data_alignment: 4 * (usize::from(asked.data_alignment) + 1),
    })
}

#[cfg(test)]
mod tests;
