//! An admin queue: the commands that ask about the controller, set it up, and wait for events.

use super::ASYNC_EVENTS_MAX;
use std::net::SocketAddr;

use super::discovery::{self, SILENCE_MS};
use super::fabrics::Registers;
use super::features::Features;
use super::identify::identify;
use super::log::{self, CHANGES_MAX, Part};
use super::namespace::Namespaces;
use super::subsystem::{ControllerLease, Subsystem};
use crate::wire::IDENTIFY_BYTES;
use crate::wire::code::{admin, fabrics, feature, log as page};
use crate::wire::command::Command;
use crate::wire::status::Status;

/// The kind of asynchronous event that notices are, and the log page of changed namespaces.
const NAMESPACES_CHANGED: u64 = 0x02 | (page::CHANGED_NAMESPACES as u64) << 16;

/// The state of an admin queue.
#[derive(Debug)]
pub(super) struct Admin {
    lease: ControllerLease,
    /// The address that the host has connected to.
    address: Option<SocketAddr>,
    registers: Registers,
    features: Features,
    /// The identifiers of commands that wait for an event.
    waiting: Vec<u16>,
    /// Namespaces that have changed since the host read the log.
    changed: Vec<u32>,
    /// The host has been told, and has not read the log since.
    told: bool,
}

/// The outcome of a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is done, with this result.
    Done(u64),
    /// It is done, with this data.
    Data(Vec<u8>),
    /// It waits for an event.
    Held,
    /// It is done once all namespaces are flushed.
    Flush,
}

impl Admin {
    pub(super) fn new(
        lease: ControllerLease,
        address: Option<SocketAddr>,
        keep_alive_ms: u32,
    ) -> Self {
        Self {
            lease,
            address,
            registers: Registers::default(),
            features: Features::new(keep_alive_ms),
            waiting: Vec::new(),
            changed: Vec::new(),
            told: false,
        }
    }

    /// The time within which the host sends something, in milliseconds; 0 for no bound.
    pub(super) fn keep_alive_ms(&self) -> u32 {
        match self.features.keep_alive_ms {
            0 if self.lease.controller.discovery => SILENCE_MS,
            promised => promised,
        }
    }

    /// Returns whether I/O queues of the controller are connected.
    pub(super) fn has_io_queues(&self) -> bool {
        self.lease.controller.has_queues()
    }

    /// Returns whether the command with this identifier waits for an event.
    pub(super) fn holds(&self, id: u16) -> bool {
        self.waiting.contains(&id)
    }

    /// Forgets all that a host has set, and the commands that wait.
    fn reset(&mut self) {
        self.features = Features::new(self.features.keep_alive_ms);
        self.waiting.clear();
        self.changed.clear();
        self.told = false;
    }

    /// Carries out a command.
    pub(super) fn command(
        &mut self,
        command: &Command,
        subsystem: &Subsystem,
        namespaces: &Namespaces,
    ) -> Result<Outcome, Status> {
        let controller = &self.lease.controller;
        if command.opcode() == admin::FABRICS {
            return match command.fabrics_type() {
                fabrics::PROPERTY_GET => self.registers.get(command).map(Outcome::Done),
                fabrics::PROPERTY_SET => {
                    let was_ready = self.registers.is_ready();
                    let shuts_down = self.registers.set(command, controller)?;
                    if was_ready && !self.registers.is_ready() {
                        self.reset();
                    }
                    Ok(if shuts_down { Outcome::Flush } else { Outcome::Done(0) })
                }
                fabrics::CONNECT => Err(Status::SEQUENCE_ERROR.final_()),
                _ => Err(Status::INVALID_OPCODE.final_()),
            };
        }
        if !self.registers.is_ready() {
            return Err(Status::SEQUENCE_ERROR.final_());
        }
        match command.opcode() {
            admin::IDENTIFY => {
                takes(command, IDENTIFY_BYTES)?;
                identify(command, subsystem, controller, namespaces).map(Outcome::Data)
            }
            admin::GET_LOG_PAGE => self.log(command, subsystem, namespaces).map(Outcome::Data),
            admin::SET_FEATURES => self.features.set(command, controller).map(Outcome::Done),
            admin::GET_FEATURES => self.features.get(command, controller).map(Outcome::Done),
            admin::KEEP_ALIVE => Ok(Outcome::Done(0)),
            admin::ABORT => Ok(Outcome::Done(1)), // it was not aborted
            admin::ASYNC_EVENT if self.waiting.len() >= ASYNC_EVENTS_MAX => {
                Err(Status::ASYNC_EVENT_LIMIT.final_())
            }
            admin::ASYNC_EVENT => {
                self.waiting.push(command.id());
                Ok(Outcome::Held)
            }
            _ => Err(Status::INVALID_OPCODE.final_()),
        }
    }

    fn log(
        &mut self,
        command: &Command,
        subsystem: &Subsystem,
        namespaces: &Namespaces,
    ) -> Result<Vec<u8>, Status> {
        let number = command.u8(40);
        let part = Part::of(command)?;
        takes(command, part.bytes())?;
        if number == page::DISCOVERY && self.lease.controller.discovery {
            return part.cut(discovery::page(subsystem, self.address));
        }
        if number != page::CHANGED_NAMESPACES || self.lease.controller.discovery {
            return part.cut(log::page(number, command, &self.lease.controller, namespaces)?);
        }
        let list = if self.changed.len() > CHANGES_MAX { &[u32::MAX][..] } else { &self.changed };
        let mut bytes: Vec<u8> = list.iter().flat_map(|id| id.to_le_bytes()).collect();
        bytes.resize(4 * CHANGES_MAX, 0);
        let bytes = part.cut(bytes)?;
        let keeps_event = command.u8(41) & 1 << 7 != 0;
        if !keeps_event {
            self.changed.clear();
            self.told = false;
        }
        Ok(bytes)
    }

    /// Notes that namespaces have changed.
    pub(super) fn namespaces_changed(&mut self, ids: &[u32]) {
        for id in ids {
            if let Err(at) = self.changed.binary_search(id)
                && self.changed.len() <= CHANGES_MAX
            {
                self.changed.insert(at, *id);
            }
        }
    }

    /// Returns the command to answer with an event, and the event.
    pub(super) fn event(&mut self) -> Option<(u16, u64)> {
        let wanted = self.features.events & feature::NAMESPACE_NOTICES != 0
            && !self.lease.controller.discovery; // it has no log of them
        if self.told || !wanted || self.changed.is_empty() || self.waiting.is_empty() {
            return None;
        }
        self.told = true;
        Some((self.waiting.remove(0), NAMESPACES_CHANGED))
    }
}

/// Checks that the host takes as many bytes as a command returns.
fn takes(command: &Command, bytes: usize) -> Result<(), Status> {
    let fits = command.descriptor().length as usize == bytes;
    if fits { Ok(()) } else { Err(Status::SGL_LENGTH_INVALID.final_()) }
}
