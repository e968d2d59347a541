//! Execution of commands: turns a command capsule into requests or an immediate answer.

use super::{Connection, Event, Role, State, Violation, is_authentication, owes_proof};
use crate::target::Deferred;
use crate::target::admin::{Admin, AdminOutcome};
use crate::target::authentication::Authentication;
use crate::target::fabrics::{self, Connected, ConnectedQueue, Refused};
use crate::target::io::{self, Namespaces, Pieces, Plan, Range};
use crate::target::message::{Bytes, Incoming, Sink};
use crate::target::request::{
    Answer, CommandState, Commands, Failure, NoPlace, Payload, Request, RequestKind,
};
use crate::target::reservation::{QueueGuard, Refusal, ReservationChange, ReservationOrder};
use crate::target::{IN_CAPSULE_MAX_BYTES, QUEUE_MAX};
use crate::wire::{
    ALL_NAMESPACES, CONNECT_DATA_BYTES, FLAG_SGL, NvmeCommand, Status, admin, connect, descriptor,
    fabrics as fabrics_code,
};

impl Connection {
    /// Executes a command whose capsule carries `data` bytes of data.
    pub(super) fn command(
        &mut self,
        command: &NvmeCommand,
        data: usize,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Violation> {
        if self.queue.size > 0 {
            self.queue.head = (self.queue.head + 1) % self.queue.size;
        }
        // Errors skip the capsule's data.
        self.state = match data {
            0 => super::NEXT_HEADER,
            _ => State::Data(Incoming::skip(data, self.parameters.data_digest)),
        };
        let is_plain = command.flags() == FLAG_SGL;
        let is_connect =
            command.opcode() == admin::FABRICS && command.fabrics_type() == fabrics_code::CONNECT;
        let proves = self.authentication.is_some() && is_authentication(command);
        let owes_proof = owes_proof(self.authentication.as_deref());
        let is_admin = matches!(self.role, Role::Admin(_)) || command.opcode() == admin::FABRICS;
        let waits = matches!(&self.role, Role::Admin(admin) if admin.holds(command.id()));
        let is_conflict = is_admin && (waits || self.flights.has(command.id()));
        let begun = match &mut self.role {
            _ if !is_plain => Err(Status::INVALID_FIELD.final_()),
            _ if is_conflict => Err(Status::ID_CONFLICT.final_()),
            Role::None if is_connect => self.gather(command, CONNECT_DATA_BYTES, data),
            Role::None => Err(Status::SEQUENCE_ERROR.final_()),
            _ if proves => return self.authenticate(command, data, out),
            _ if owes_proof => Err(Status::AUTHENTICATION_REQUIRED.final_()),
            Role::Admin(admin) => {
                let outcome = admin.command(command, &self.subsystem, &self.namespaces);
                if outcome == Ok(AdminOutcome::Flush) {
                    let pieces = Pieces::flush(self.namespaces.meant_by(ALL_NAMESPACES));
                    return self.flush(command, pieces, data, out);
                }
                if let Ok(AdminOutcome::Change(change)) = outcome {
                    let change = Ok(Deferred::Reservation(change));
                    return self.defer(command, change, out).map(Some);
                }
                self.admin_answer(command, outcome, out);
                return Ok(Some(Event::Nothing));
            }
            Role::Io(_) if command.opcode() == admin::FABRICS => {
                Err(Status::INVALID_OPCODE.final_())
            }
            Role::Io(_) => {
                match check(command, &self.namespaces, self.guard.as_deref_mut(), &mut self.flights)
                {
                    Ok(plan) => return self.begin(command, plan, data, out),
                    Err(status) => Err(status),
                }
            }
        };
        Ok(match begun {
            Ok(()) => None,
            Err(status) => Some(self.refuse(command.id(), 0, status, out)),
        })
    }

    /// Starts a command of an I/O queue.
    fn begin(
        &mut self,
        command: &NvmeCommand,
        plan: Plan,
        data: usize,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Violation> {
        let id = command.id();
        match plan {
            Plan::One { kind, range } => {
                let (reads, length) = (kind == RequestKind::Read, range.bytes as u32);
                let state = CommandState::new(id, command.namespace(), length);
                let (writes, started) = (!kind.only_reads(), !kind.has_payload());
                let mut flight = CommandState { reads, writes, started, ..state };
                if kind.only_reads() {
                    flight.fault = Status::UNRECOVERED_READ;
                }
                let mut in_capsule = None;
                if reads || kind.has_payload() {
                    let place = match place(command, length as usize, data, !reads) {
                        Ok(place) => place,
                        Err(status) => return Ok(Some(self.refuse(id, 0, status, out))),
                    };
                    if !reads {
                        flight.payload = Payload::Unasked;
                    }
                    if let Place::Capsule { before } = place {
                        flight.payload = Payload::None;
                        in_capsule = Some(before);
                    }
                }
                let tag = match self.flights.begin(flight) {
                    Ok(tag) => tag,
                    Err(why) => return Ok(Some(self.refuse(id, 0, no_place(why)?, out))),
                };
                if let Some(before) = in_capsule {
                    self.state.give(before, length as usize, Sink::Payload(tag));
                }
                let (in_capsule, Range { volume, offset, .. }) = (in_capsule.is_some(), range);
                let request = Request { tag, volume, kind, offset, length, in_capsule };
                Ok(Some(Event::Request(request)))
            }
            Plan::Flush(pieces) => self.flush(command, pieces, data, out),
            Plan::Report => {
                let report = reservable(command, &self.namespaces, self.guard.as_deref()).and_then(
                    |(guard, volume)| guard.reservations().of(volume).report_for(command),
                );
                self.admin_answer(command, report.map(AdminOutcome::Data), out);
                Ok(Some(Event::Nothing))
            }
            Plan::Deallocate { list_bytes: bytes } | Plan::Reserve { bytes } => {
                if matches!(plan, Plan::Reserve { .. }) {
                    let reservable = reservable(command, &self.namespaces, self.guard.as_deref());
                    if let Err(status) = reservable.map(drop) {
                        return Ok(Some(self.refuse(id, 0, status, out)));
                    }
                }
                // Hosts may send more than the ranges that they name, and Linux sends 16 bytes with
                // each change of a reservation.
                let described = command.descriptor().length as usize;
                let sent = described.max(bytes);
                if let Ok(Place::Transport) = place(command, sent, data, true) {
                    return self.ask_for_list(command, sent, out);
                }
                match self.gather(command, sent, data) {
                    Ok(()) => Ok(None),
                    Err(status) => Ok(Some(self.refuse(id, 0, status, out))),
                }
            }
        }
    }

    /// Starts a command that flushes volumes.
    fn flush(
        &mut self,
        command: &NvmeCommand,
        pieces: Pieces,
        data: usize,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Violation> {
        let id = command.id();
        if data > 0 {
            return Ok(Some(self.refuse(id, 0, Status::INVALID_FIELD.final_(), out)));
        }
        match self.flights.begin(CommandState::new(id, command.namespace(), 0)) {
            Ok(tag) => self.state = State::Issue(tag, pieces),
            Err(why) => return Ok(Some(self.refuse(id, 0, no_place(why)?, out))),
        }
        Ok(None)
    }

    /// Starts to collect a command's data from the capsule. The command runs once the data is
    /// complete.
    pub(super) fn gather(
        &mut self,
        command: &NvmeCommand,
        bytes: usize,
        data: usize,
    ) -> Result<(), Status> {
        let Place::Capsule { before } = place(command, bytes, data, true)? else {
            return Err(Status::SGL_TYPE_INVALID.final_());
        };
        self.state.give(
            before,
            bytes,
            Sink::NvmeCommand(Box::new(*command), Vec::with_capacity(bytes)),
        );
        Ok(())
    }

    /// Handles the end of a message's data: checks the digest and passes the data on.
    pub(super) fn data_complete(
        &mut self,
        incoming: Incoming,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Violation> {
        let is_intact = incoming.is_intact();
        let (command, data) = match incoming.sink {
            Sink::Nothing => return Ok(None),
            Sink::Payload(tag) => {
                // Its command may have been answered: without a digest it waits for its last byte
                // only, and can fail before that.
                let Some(is_intact) = is_intact else { return Ok(None) };
                let Some(flight) = self.flights.get(tag) else { return Ok(None) };
                flight.damaged |= !is_intact;
                let intact = !flight.damaged;
                return Ok(
                    (flight.payload == Payload::None).then_some(Event::Checked { tag, intact })
                );
            }
            Sink::NvmeCommand(command, data) => (command, data),
            Sink::List(data) => return self.list_part(data, is_intact, out),
        };
        if is_intact == Some(false) {
            let damaged = Status::TRANSIENT_TRANSPORT_ERROR;
            return Ok(Some(self.refuse(command.id(), 0, damaged, out)));
        }
        if matches!(self.role, Role::None) {
            return self.connect(&command, &data, out).map(Some);
        }
        if command.opcode() == admin::FABRICS {
            return self.authentication_sent(&command, &data, out).map(Some);
        }
        if io::reservation_data_bytes(command.opcode()).is_some() {
            let change = change_of(&command, &data, &self.namespaces, self.guard.as_deref());
            return self.defer(&command, change, out).map(Some);
        }
        let guard = self.guard.as_deref_mut();
        let ranges = ranges(&command, &data, &self.namespaces, guard, &mut self.flights);
        let pieces = match ranges {
            Ok(pieces) => pieces,
            Err(status) => return Ok(Some(self.refuse(command.id(), 0, status, out))),
        };
        match self.flights.begin(CommandState::new(command.id(), command.namespace(), 0)) {
            Ok(tag) => self.state = State::Issue(tag, pieces),
            Err(why) => return Ok(Some(self.refuse(command.id(), 0, no_place(why)?, out))),
        }
        Ok(None)
    }

    fn connect(
        &mut self,
        command: &NvmeCommand,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Event, Violation> {
        let connected = match fabrics::connect(command, data, &self.subsystem) {
            Ok(connected) => connected,
            Err(Refused::NvmeCommand(result, status)) => {
                return Ok(self.refuse(command.id(), result, status, out));
            }
            Err(Refused::Host(name)) => {
                self.host = Some(name);
                self.refuse(command.id(), 0, Status::CONNECT_HOST.final_(), out);
                return Err(Violation::NotAllowed);
            }
        };
        let Connected { controller, queue, proof } = connected;
        let (size, flow_control) = fabrics::queue_of(command);
        debug_assert!(size <= QUEUE_MAX);
        self.queue.size = size;
        self.queue.head = 1 % size;
        self.queue.flow_control = flow_control;
        self.flights = Commands::new(usize::from(size));
        self.role = match queue {
            ConnectedQueue::Admin { lease, keep_alive_ms } => {
                Role::Admin(Box::new(Admin::new(lease, self.address, keep_alive_ms)))
            }
            ConnectedQueue::Io(lease) => {
                let reservations = self.subsystem.reservations();
                let guard = |all| Box::new(QueueGuard::new(all, controller.host.id));
                self.guard = reservations.map(guard);
                Role::Io(lease)
            }
        };
        let host = controller.host.nqn.clone();
        let asks = if proof.is_some() { connect::AUTHENTICATION_REQUIRED } else { 0 };
        self.authentication = proof.map(|proof| {
            Box::new(Authentication::new(proof, host.clone(), self.subsystem.nqn().to_owned()))
        });
        self.host = Some(host);
        self.complete(command.id(), u64::from(controller.id) | asks, Status::SUCCESS, out);
        Ok(Event::Nothing)
    }

    pub(super) fn admin_answer(
        &mut self,
        command: &NvmeCommand,
        outcome: Result<AdminOutcome, Status>,
        out: &mut Vec<u8>,
    ) {
        let (result, data, status) = match outcome {
            Ok(AdminOutcome::Held | AdminOutcome::Flush | AdminOutcome::Change(_)) => {
                return self.tell_events(out);
            }
            Ok(AdminOutcome::Done(result)) => (result, None, Status::SUCCESS),
            Ok(AdminOutcome::Data(data)) => (0, Some(data), Status::SUCCESS),
            Err(status) => (0, None, status),
        };
        if let Some(data) = data {
            match place(command, data.len(), 0, false) {
                Ok(_) => {
                    let header = self.parameters.data(command.id(), data.len() as u32, false);
                    out.extend_from_slice(header.as_slice());
                    out.extend_from_slice(&data);
                    if self.parameters.data_digest {
                        out.extend(crate::target::digest(&data).to_le_bytes());
                    }
                    self.complete(command.id(), result, status, out);
                }
                Err(status) => self.complete(command.id(), 0, status, out),
            }
        } else {
            self.complete(command.id(), result, status, out);
        }
        self.tell_events(out);
    }

    /// Completes outstanding event requests while there are events to report.
    pub(super) fn tell_events(&mut self, out: &mut Vec<u8>) {
        while let Role::Admin(admin) = &mut self.role
            && let Some((id, event)) = admin.event()
        {
            self.complete(id, event, Status::SUCCESS, out);
        }
    }

    pub(super) fn refuse(
        &mut self,
        id: u16,
        result: u64,
        status: Status,
        out: &mut Vec<u8>,
    ) -> Event {
        self.complete(id, result, status, out);
        Event::Refused
    }

    pub(super) fn complete(&mut self, id: u16, result: u64, status: Status, out: &mut Vec<u8>) {
        let mut bytes = Bytes::EMPTY;
        self.parameters.response(&mut bytes, &self.queue.completion(id, result, status));
        out.extend_from_slice(bytes.as_slice());
    }

    /// Completes a request. Returns the bytes to send when the request was the last of its command.
    /// `digest` of a read's data is called when that data is sent.
    pub fn reply(
        &mut self,
        tag: u16,
        result: Result<(), Failure>,
        digest: impl FnOnce() -> u32,
    ) -> Option<Answer> {
        let flight = self.flights.get(tag).expect("an answer belongs to a command in flight");
        if let Err(failure) = result
            && flight.status.is_success()
        {
            flight.status = flight.status_of(failure);
        }
        flight.pending -= 1;
        if flight.pending > 0 {
            return None;
        }
        let mut flight = self.flights.end(tag).expect("it was there");
        if flight.is_straggler
            && let Some(guard) = &mut self.guard
        {
            guard.straggler_ended();
        }
        if flight.damaged {
            flight.status = Status::TRANSIENT_TRANSPORT_ERROR; // the host may send it again
        }
        let payload = flight.reads && flight.status.is_success();
        let is_last = payload && !self.queue.flow_control;
        let (mut before, mut after) = (Bytes::EMPTY, Bytes::EMPTY);
        if payload {
            before = self.parameters.data(flight.id, flight.length, is_last);
            if self.parameters.data_digest {
                after.push(&digest().to_le_bytes());
            }
        }
        if !is_last {
            let completion = self.queue.completion(flight.id, 0, flight.status);
            self.parameters.response(if payload { &mut after } else { &mut before }, &completion);
        }
        Some(Answer { before, payload, after })
    }

    /// Starts a command whose list of ranges must be fetched from the host.
    pub(super) fn ask_for_list(
        &mut self,
        command: &NvmeCommand,
        bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Violation> {
        let id = command.id();
        if bytes > IN_CAPSULE_MAX_BYTES {
            return Ok(Some(self.refuse(id, 0, Status::SGL_LENGTH_INVALID.final_(), out)));
        }
        let state = CommandState::new(id, command.namespace(), bytes as u32);
        let flight = CommandState { payload: Payload::Unasked, started: false, ..state };
        let tag = match self.flights.begin(flight) {
            Ok(tag) => tag,
            Err(why) => return Ok(Some(self.refuse(id, 0, no_place(why)?, out))),
        };
        self.lists.push_back(List { tag, command: *command, data: Vec::new() });
        if self.lists.len() == 1 {
            self.ready(tag, out);
        }
        Ok(None)
    }

    /// Handles the arrival of a part of a list of ranges. `data` has everything received so far.
    pub(super) fn list_part(
        &mut self,
        data: Vec<u8>,
        is_intact: Option<bool>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Violation> {
        let list = self.lists.front_mut().expect("data came for it");
        let flight = self.flights.get(list.tag).expect("it waits for its list");
        flight.damaged |= is_intact == Some(false);
        if flight.payload != Payload::None {
            list.data = data;
            return Ok(None);
        }
        let (tag, command, is_damaged) = (list.tag, list.command, flight.damaged);
        self.lists.pop_front();
        if let Some(next) = self.lists.front() {
            self.ready(next.tag, out);
        }
        if io::reservation_data_bytes(command.opcode()).is_some() && !is_damaged {
            self.flights.end(tag);
            let change = change_of(&command, &data, &self.namespaces, self.guard.as_deref());
            return self.defer(&command, change, out).map(Some);
        }
        let pieces = match is_damaged {
            true => Err(Status::TRANSIENT_TRANSPORT_ERROR), // the host may send it again
            false => {
                let guard = self.guard.as_deref_mut();
                ranges(&command, &data, &self.namespaces, guard, &mut self.flights)
            }
        };
        match pieces {
            Ok(pieces) => {
                self.flights.get(tag).expect("it is in flight").started = true;
                self.state = State::Issue(tag, pieces);
                Ok(None)
            }
            Err(status) => {
                let flight = self.flights.end(tag).expect("it was there");
                Ok(Some(self.refuse(flight.id, 0, status, out)))
            }
        }
    }
}

/// A command that waits for its list of ranges.
#[derive(Debug)]
pub(super) struct List {
    pub(super) tag: u16,
    command: NvmeCommand,
    /// Bytes of the list received so far.
    pub(super) data: Vec<u8>,
}

/// Location of the data that the host sends for a command.
pub(super) enum Place {
    /// The data is in the capsule, `before` bytes after the start of its data area.
    Capsule { before: usize },
    /// The controller must request the data with a separate message (R2T).
    Transport,
}

/// Locates the data of a command that transfers `bytes` bytes. The capsule carries `data` bytes.
pub(super) fn place(
    command: &NvmeCommand,
    bytes: usize,
    data: usize,
    to_controller: bool,
) -> Result<Place, Status> {
    let described = command.descriptor();
    if described.length as usize != bytes {
        return Err(Status::SGL_LENGTH_INVALID.final_());
    }
    match described.kind {
        descriptor::TRANSPORT => Ok(Place::Transport),
        descriptor::IN_CAPSULE if to_controller => {
            let before = usize::try_from(described.address).unwrap_or(usize::MAX);
            match before.checked_add(bytes) {
                Some(end) if end <= data => Ok(Place::Capsule { before }),
                _ => Err(Status::SGL_OFFSET_INVALID.final_()),
            }
        }
        _ => Err(Status::SGL_TYPE_INVALID.final_()),
    }
}

/// Validates a command of an I/O queue against the namespaces and their reservations.
fn check(
    command: &NvmeCommand,
    namespaces: &Namespaces,
    guard: Option<&mut QueueGuard>,
    flights: &mut Commands,
) -> Result<Plan, Status> {
    let plan = io::plan(command, namespaces)?;
    if let Some(guard) = guard {
        guard.update(namespaces, flights);
        let needs_access = !matches!(plan, Plan::Reserve { .. } | Plan::Report);
        if needs_access && !guard.allows(command.namespace(), plan.writes()) {
            return Err(Status::RESERVATION_CONFLICT.final_());
        }
    }
    Ok(plan)
}

/// Parses the list of ranges of a Dataset Management command, which must still be allowed.
fn ranges(
    command: &NvmeCommand,
    list: &[u8],
    namespaces: &Namespaces,
    guard: Option<&mut QueueGuard>,
    flights: &mut Commands,
) -> Result<Pieces, Status> {
    check(command, namespaces, guard, flights)?;
    io::ranges(command, list, namespaces)
}

/// Returns the guard of the queue and the name of the namespace's volume, if the namespace can be
/// reserved.
fn reservable<'a>(
    command: &NvmeCommand,
    namespaces: &'a Namespaces,
    guard: Option<&'a QueueGuard>,
) -> Result<(&'a QueueGuard, &'a str), Status> {
    let namespace = io::namespace(command, namespaces)?;
    let guard = guard.filter(|it| it.reservations().has(&namespace.name));
    guard.map(|it| (it, &namespace.name[..])).ok_or(Status::INVALID_OPCODE.final_())
}

/// Parses a command that changes a reservation and whose data is complete.
fn change_of(
    command: &NvmeCommand,
    data: &[u8],
    namespaces: &Namespaces,
    guard: Option<&QueueGuard>,
) -> Result<Deferred, Status> {
    let (guard, volume) = reservable(command, namespaces, guard)?;
    let order = ReservationOrder::parse(command, data).map_err(Refusal::status)?;
    let change = ReservationChange::new(guard.reservations(), volume, guard.host(), order);
    Ok(Deferred::Reservation(change))
}

/// Returns the status of a command that got no place in the table of commands in flight.
///
/// # Errors
/// When the host has overrun the queue. A duplicate identifier only fails the command.
fn no_place(why: NoPlace) -> Result<Status, Violation> {
    match why {
        NoPlace::Full => Err(Violation::QueueOverrun),
        NoPlace::SameId => Ok(Status::ID_CONFLICT.final_()),
    }
}
