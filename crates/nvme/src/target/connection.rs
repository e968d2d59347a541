//! Parses one connection of a host, from the first byte to the last.
//!
//! The connection takes received bytes up to the next thing worth telling. It answers admin
//! commands by itself. Commands of I/O queues become requests. Payload of a request never passes
//! through it, so the caller can receive it where it belongs: the connection says how many bytes of
//! which request come next.
//!
//! Payload of a host is either in its capsule, and then follows its request at once, or is asked
//! for when the caller has room for it ([`Connection::ready`]).
//!
//! Invariants: the result does not depend on where the input is cut. Memory is bounded: a header, a
//! capsule's data, a list of ranges, and a place for each command of the queue. A command that is
//! not supported gets a status. A message that breaks the transport's rules ends the connection,
//! and the host is told the reason.

mod authenticating;
mod commands;
mod headers;
mod lists;
mod place;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use super::admin::Admin;
use super::authentication::Authentication;
use super::calculation::Calculation;
use super::data::Incoming;
use super::flight::{Flight, Flights, Payload};
use super::io::Pieces;
use super::message::Parameters;
use super::namespace::Namespaces;
use super::request::{Answer, Failure, Request};
use super::subsystem::{QueueLease, Subsystem};
use crate::wire::command::Command;
use crate::wire::pdu::{self, DIGEST_BYTES, INITIALIZE_BYTES, kind};
use lists::List;

/// The meaning of a part of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The input is used up; receive more.
    NeedMore,
    /// Nothing to tell; `out` may hold answers.
    Nothing,
    /// A request. Its payload, if it has one, comes later, or is the next bytes.
    Request(Request),
    /// Payload of this request. Nothing of it is counted as used: report it with
    /// [`Connection::payload_received`].
    Payload {
        /// The request.
        tag: u16,
        /// Bytes of payload that are missing in this message. Never zero.
        bytes: usize,
    },
    /// All payload of this request has come, and was compared with its digests. Where it is not
    /// intact it must not be written: reply that the request failed. Only connections with digests
    /// of data tell this ([`Connection::has_data_digest`]), and for each payload.
    Checked {
        /// The request.
        tag: u16,
        /// It is what the host has sent.
        intact: bool,
    },
    /// A command was answered with a failure.
    Refused,
}

/// A breach of the transport's rules. The host was told in `out`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A field of a header has a wrong value.
    #[error("the byte at {0} of a message's header has a wrong value")]
    Field(u32),
    /// The message does not fit the state of the connection.
    #[error("a message of type {0:#04x} does not belong here")]
    Sequence(u8),
    /// A header was damaged.
    #[error("the digest of a header is wrong")]
    HeaderDigest(u32),
    /// Data is outside of what was asked for.
    #[error("a message has data that was not asked for")]
    OutOfRange,
    /// Too much data in one message.
    #[error("a message has more data than a controller takes at once")]
    LimitExceeded,
    /// More commands in flight than the queue has places.
    #[error("more commands are in flight than the queue has places")]
    QueueOverrun,
    /// The host may not connect.
    #[error("it is not among the hosts that may connect")]
    NotAllowed,
    /// The host did not prove its name.
    #[error("it did not prove that it has its secret")]
    NotAuthenticated,
    /// The host proved its name for a queue that it has already.
    #[error("the host has a queue of this number already")]
    QueueTaken,
    /// The host complains.
    #[error("the host ended the connection for reason {0}")]
    Terminated(u16),
    /// The input ended within a message.
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
    /// A command becomes several requests.
    Issue(u16, Pieces),
    Failed(Violation),
}

const NEXT_HEADER: State = State::Header { bytes: [0; INITIALIZE_BYTES + DIGEST_BYTES], filled: 0 };

/// The submission queue, as the host sees it.
#[derive(Debug)]
struct Queue {
    /// Places; 0 until it is connected.
    size: u16,
    head: u16,
    /// The host counts free places, so it is told the head in a completion for each command.
    flow_control: bool,
}

/// The state of one connection.
#[derive(Debug)]
pub struct Connection {
    subsystem: Arc<Subsystem>,
    namespaces: Arc<Namespaces>,
    address: Option<SocketAddr>,
    parameters: Parameters,
    state: State,
    role: Role,
    /// The name that the host gave.
    host: Option<String>,
    /// The proof that the host owes, or has given.
    authentication: Option<Box<Authentication>>,
    calculates_elsewhere: bool,
    /// The command that waits for a calculation.
    calculating: Option<(Command, Calculation)>,
    queue: Queue,
    flights: Flights,
    /// Commands whose lists of ranges the host is asked for, one after another.
    lists: VecDeque<List>,
}

impl Connection {
    /// A new connection to a subsystem with these namespaces. `address` is the one that the host
    /// has connected to, if it is known.
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
            calculates_elsewhere: false,
            calculating: None,
            queue: Queue { size: 0, head: 0, flow_control: true },
            flights: Flights::default(),
            lists: VecDeque::new(),
        }
    }

    /// Takes received bytes up to the next thing worth telling. Returns the number of bytes used,
    /// and their meaning.
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
        if self.calculating.is_some() {
            return match self.go_on_calculated(out) {
                Ok(event) => Ok((0, Some(event.unwrap_or(Event::NeedMore)))),
                Err(violation) => Err(self.fail(violation, out)),
            };
        }
        match &mut self.state {
            State::Header { bytes, filled } => {
                let needed = match headers::needed(&bytes[..*filled], &self.parameters) {
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
                        self.keep_header(&header[..needed]);
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
                    return Ok((0, Some(self.issue(tag, kind, range))));
                }
                self.state = NEXT_HEADER;
                if let Some(answer) = self.answer(tag, Ok(()), || 0) {
                    out.extend_from_slice(answer.before.as_slice());
                }
                Ok((0, None))
            }
            State::Failed(violation) => Err(*violation),
        }
    }

    /// Puts back the header of a broken message, for the complaint about it.
    fn keep_header(&mut self, header: &[u8]) {
        let mut bytes = [0; INITIALIZE_BYTES + DIGEST_BYTES];
        bytes[..header.len()].copy_from_slice(header);
        self.state = State::Header { bytes, filled: header.len() };
    }

    /// Tells the host of a violation, and takes nothing more.
    fn fail(&mut self, violation: Violation, out: &mut Vec<u8>) -> Violation {
        let state = std::mem::replace(&mut self.state, State::Failed(violation));
        if let (State::Header { bytes, filled }, Some((reason, information))) =
            (state, headers::reason(violation))
        {
            let terminate = kind::CONTROLLER_TERMINATES;
            out.extend(pdu::terminate(terminate, reason, information, &bytes[..filled]));
        }
        violation
    }

    /// The payload of a request has a place. Asks for it, unless it is in the capsule.
    pub fn ready(&mut self, tag: u16, out: &mut Vec<u8>) {
        let waits = |flight: &&mut Flight| flight.payload == Payload::Unasked;
        let Some(flight) = self.flights.get(tag).filter(waits) else { return };
        flight.payload = Payload::Asked(flight.length);
        let ask = self.parameters.ready(flight.id, tag, flight.length);
        out.extend_from_slice(ask.as_slice());
    }

    /// The caller took so many bytes of the payload that came next.
    ///
    /// # Panics
    /// When that is more than [`Event::Payload`] said.
    pub fn payload_received(&mut self, bytes: usize) {
        let State::Data(incoming) = &mut self.state else { panic!("no payload is due") };
        incoming.payload_received(bytes);
        if incoming.is_complete() {
            self.state = NEXT_HEADER;
        }
    }

    /// Returns whether a digest follows all data.
    pub fn has_data_digest(&self) -> bool {
        self.parameters.data_digest
    }

    /// Counts payload into the digest of its message, where there is one. Call it for all payload,
    /// in its order, before [`Connection::payload_received`].
    pub fn digest_payload(&mut self, payload: &[u8]) {
        if let State::Data(incoming) = &mut self.state {
            incoming.digest(payload);
        }
    }

    /// Answers a request. Returns the bytes to send when it was the last of its command. The digest
    /// of a read's data is asked for where it is sent.
    pub fn reply(
        &mut self,
        tag: u16,
        result: Result<(), Failure>,
        digest: impl FnOnce() -> u32,
    ) -> Option<Answer> {
        self.answer(tag, result, digest)
    }

    /// The input has ended.
    ///
    /// # Errors
    /// When that was within a message, or the connection had failed before.
    pub fn end_of_input(&self) -> Result<(), Violation> {
        match &self.state {
            State::Header { filled: 0, .. } | State::Issue(..) => Ok(()),
            State::Header { .. } | State::Data(_) => Err(Violation::Truncated),
            State::Failed(violation) => Err(*violation),
        }
    }

    /// The subsystem's namespaces or its [`Paths`](super::paths::Paths) have changed. An admin
    /// queue may tell its host in `out`.
    pub fn namespaces_changed(&mut self, namespaces: &Arc<Namespaces>, out: &mut Vec<u8>) {
        if let Role::Admin(admin) = &mut self.role {
            admin.namespaces_changed(&self.namespaces, namespaces);
        }
        self.namespaces = Arc::clone(namespaces);
        self.tell_events(out);
    }

    /// Returns whether the connection has become a queue that the host may use.
    pub fn is_connected(&self) -> bool {
        !matches!(self.role, Role::None) && !self.owes_proof()
    }

    /// Returns the name that the host has given.
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// Returns the time within which the host of an admin queue sends something, in milliseconds,
    /// if it has promised to.
    pub fn keep_alive_ms(&self) -> Option<u32> {
        match &self.role {
            Role::Admin(admin) => Some(admin.keep_alive_ms()).filter(|&time| time > 0),
            _ => None,
        }
    }

    /// Returns whether the controller of an I/O queue is there; `None` for other connections.
    pub fn has_controller(&self) -> Option<bool> {
        match &self.role {
            Role::Io(lease) => Some(lease.is_valid()),
            _ => None,
        }
    }

    /// Returns the namespaces that the host uses: those of an admin queue whose controller has I/O
    /// queues.
    pub fn namespaces_in_use(&self) -> Option<&Namespaces> {
        match &self.role {
            Role::Admin(admin) if admin.has_io_queues() => Some(&self.namespaces),
            _ => None,
        }
    }

    /// Returns the number of commands in flight.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }
}

#[cfg(test)]
mod tests;
