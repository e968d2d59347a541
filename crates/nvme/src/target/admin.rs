//! An admin queue: the commands that ask about the controller, set it up, and wait for events.

use std::net::SocketAddr;

use super::discovery::{self, SILENCE_MS};
use super::fabrics::Registers;
use super::features::Features;
use super::identify::identify;
use super::log::{self, CHANGES_MAX, Part};
use super::namespace::Namespaces;
use super::notices::{Log, Notices};
use super::subsystem::{ControllerLease, Subsystem};
use crate::wire::IDENTIFY_BYTES;
use crate::wire::code::{admin, fabrics, log as page};
use crate::wire::command::Command;
use crate::wire::status::Status;

/// The state of an admin queue.
#[derive(Debug)]
pub(super) struct Admin {
    lease: ControllerLease,
    /// The address that the host has connected to.
    address: Option<SocketAddr>,
    registers: Registers,
    features: Features,
    notices: Notices,
    /// Changes of the subsystem's ports that the host may know of.
    port_changes: u64,
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
        let port_changes = lease.subsystem().paths().port_changes();
        Self {
            lease,
            address,
            registers: Registers::default(),
            features: Features::new(keep_alive_ms),
            notices: Notices::default(),
            port_changes,
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
        self.notices.holds(id)
    }

    /// Forgets all that a host has set, and the commands that wait.
    fn reset(&mut self) {
        self.features = Features::new(self.features.keep_alive_ms);
        self.notices = Notices::default();
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
            admin::ASYNC_EVENT => match self.notices.wait(command.id()) {
                true => Ok(Outcome::Held),
                false => Err(Status::ASYNC_EVENT_LIMIT.final_()),
            },
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
        let is_discovery = self.lease.controller.discovery;
        let page = match number {
            page::DISCOVERY if is_discovery => {
                discovery::page(subsystem, self.address, namespaces.generation())
            }
            page::CHANGED_NAMESPACES if !is_discovery => {
                let ids = self.notices.changed().iter();
                let mut bytes: Vec<u8> = ids.flat_map(|id| id.to_le_bytes()).collect();
                bytes.resize(4 * CHANGES_MAX, 0);
                bytes
            }
            _ => log::page(number, command, &self.lease.controller, namespaces)?,
        };
        let bytes = part.cut(page)?;
        let keeps_event = command.u8(41) & 1 << 7 != 0;
        if let Some(log) = Log::of(number).filter(|_| !keeps_event) {
            self.notices.log_read(log);
        }
        Ok(bytes)
    }

    /// Notes the changes between two lists of namespaces, and of the subsystem's ports.
    pub(super) fn namespaces_changed(&mut self, old: &Namespaces, new: &Namespaces) {
        let port_changes = self.lease.subsystem().paths().port_changes();
        let has_new_ports = std::mem::replace(&mut self.port_changes, port_changes) != port_changes;
        if self.lease.controller.discovery {
            if has_new_ports || old.generation() != new.generation() {
                self.notices.log_changed(Log::Discovery);
            }
            return;
        }
        self.notices.namespaces_changed(&old.differences(new));
        if old.differ_in_access(new) {
            self.notices.log_changed(Log::Access);
        }
    }

    /// Returns the next command to answer with an event, and the event.
    pub(super) fn event(&mut self) -> Option<(u16, u64)> {
        self.notices.next(self.features.events)
    }
}

/// Checks that the host takes as many bytes as a command returns.
fn takes(command: &Command, bytes: usize) -> Result<(), Status> {
    let fits = command.descriptor().length as usize == bytes;
    if fits { Ok(()) } else { Err(Status::SGL_LENGTH_INVALID.final_()) }
}
