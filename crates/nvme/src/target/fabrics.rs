//! Commands of NVMe over Fabrics: Connect, and access to the controller's registers.

use std::sync::Arc;

use super::VERSION;
use super::access::{NotAllowed, Proof};
use super::subsystem::{
    Controller, ControllerLease, Host, NoPlace, QueueLease, Subsystem, check_nqn,
};
use crate::wire::{
    ANY_CONTROLLER, CONNECT_DATA_BYTES, DISCOVERY_NQN, NvmeCommand, Status, connect, property,
};

/// Maximum number of commands in flight on a queue.
pub(super) const QUEUE_MAX: u16 = 128;

/// The result of a successful Connect command.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) controller: Arc<Controller>,
    pub(super) queue: ConnectedQueue,
    /// Proof that the host must give before any other command.
    pub(super) proof: Option<Proof>,
}

#[derive(Debug)]
pub(super) enum ConnectedQueue {
    Admin { lease: ControllerLease, keep_alive_ms: u32 },
    Io(QueueLease),
}

/// The reason for which a Connect is refused.
#[derive(Debug)]
pub(super) enum Refused {
    /// A parameter is wrong: the completion's result, which locates the parameter, and the status.
    NvmeCommand(u64, Status),
    /// The host with this name may not connect.
    Host(String),
}

/// Refuses a Connect whose parameter at this offset of the command is wrong.
fn wrong_word(at: u64) -> Refused {
    Refused::NvmeCommand(at, Status::CONNECT_PARAMETERS.final_())
}

/// Refuses a Connect whose parameter at this offset of the data is wrong.
fn wrong_data(at: usize) -> Refused {
    Refused::NvmeCommand(at as u64 | 1 << 16, Status::CONNECT_PARAMETERS.final_())
}

/// Returns the size of the queue that a Connect command creates, and whether the queue uses flow
/// control.
pub(super) fn queue_of(command: &NvmeCommand) -> (u16, bool) {
    (command.u16(44).saturating_add(1), command.u8(46) & connect::NO_FLOW_CONTROL == 0)
}

pub(super) fn connect(
    command: &NvmeCommand,
    data: &[u8],
    subsystem: &Arc<Subsystem>,
) -> Result<Connected, Refused> {
    if command.u16(40) != 0 {
        return Err(Refused::NvmeCommand(0, Status::CONNECT_FORMAT.final_()));
    }
    if data.len() != CONNECT_DATA_BYTES {
        return Err(Refused::NvmeCommand(0, Status::SGL_LENGTH_INVALID.final_()));
    }
    let (queue, size) = (command.u16(42), command.u16(44));
    if size == 0 || size >= QUEUE_MAX {
        return Err(wrong_word(44));
    }
    let name = |range: std::ops::Range<usize>| {
        let field = &data[range.clone()];
        let end = field.iter().position(|&byte| byte == 0);
        let text = end.and_then(|end| std::str::from_utf8(&field[..end]).ok());
        text.ok_or_else(|| wrong_data(range.start))
    };
    let subsystem_nqn = name(connect::SUBSYSTEM_NQN)?;
    let host_nqn = name(connect::HOST_NQN)?;
    let discovery = subsystem_nqn == DISCOVERY_NQN;
    if !discovery && subsystem_nqn != subsystem.nqn() {
        return Err(wrong_data(connect::SUBSYSTEM_NQN.start));
    }
    check_nqn(host_nqn).map_err(|_| wrong_data(connect::HOST_NQN.start))?;
    let id = data[connect::HOST_ID].try_into().expect("sixteen bytes");
    let host = Host { nqn: host_nqn.to_owned(), id };
    let proof = subsystem.may_connect(host_nqn);
    let proof = proof.map_err(|NotAllowed| Refused::Host(host_nqn.to_owned()))?;
    let proof = proof.filter(|_| !discovery); // the log has no data of volumes
    let wanted = &data[connect::CONTROLLER_ID];
    let wanted = u16::from_le_bytes([wanted[0], wanted[1]]);
    if queue == 0 {
        if wanted != ANY_CONTROLLER {
            return Err(wrong_data(connect::CONTROLLER_ID.start)); // controllers are made for hosts
        }
        let busy = || Refused::NvmeCommand(0, Status::CONNECT_BUSY);
        let mut lease = subsystem.admit(host, discovery).ok_or_else(busy)?;
        if proof.is_none() {
            lease.take_place().map_err(|NoPlace| busy())?;
        } else if !subsystem.has_room() {
            return Err(busy()); // it takes a place once it has proved its name
        }
        let (controller, keep_alive_ms) = (Arc::clone(&lease.controller), command.u32(48));
        let queue = ConnectedQueue::Admin { lease, keep_alive_ms };
        return Ok(Connected { controller, queue, proof });
    }
    let controller = subsystem.controller(wanted);
    let controller = controller.ok_or_else(|| wrong_data(connect::CONTROLLER_ID.start))?;
    if controller.host != host {
        return Err(wrong_data(connect::HOST_NQN.start));
    }
    if controller.discovery {
        return Err(wrong_word(42));
    }
    let refused = |status: Status| Refused::NvmeCommand(0, status.final_());
    let lease = controller.connect(queue, proof.is_some()).map_err(refused)?;
    Ok(Connected { controller, queue: ConnectedQueue::Io(lease), proof })
}

#[derive(Debug, Default)]
pub(super) struct Registers {
    configuration: u32,
    status: u32,
}

impl Registers {
    /// Returns whether the controller is ready (CSTS.RDY).
    pub(super) fn is_ready(&self) -> bool {
        self.status & property::CSTS_READY != 0
    }

    pub(super) fn get(&self, command: &NvmeCommand) -> Result<u64, Status> {
        let is_long = command.u8(40) & 7 == 1;
        match (command.u32(44), is_long) {
            (property::CAP, true) => {
                let (most_entries, timeout) = (u64::from(QUEUE_MAX) - 1, 30 << 24);
                Ok(most_entries | 1 << 16 | timeout | 1 << 37) // NVM command set
            }
            (property::VS, false) => Ok(VERSION.into()),
            (property::CC, false) => Ok(self.configuration.into()),
            (property::CSTS, false) => Ok(self.status.into()),
            _ => Err(Status::INVALID_FIELD.final_()),
        }
    }

    /// Writes a register. Returns whether the write shuts the controller down.
    pub(super) fn set(
        &mut self,
        command: &NvmeCommand,
        controller: &Controller,
    ) -> Result<bool, Status> {
        if command.u32(44) != property::CC || command.u8(40) & 7 != 0 {
            return Err(Status::INVALID_FIELD.final_());
        }
        let value = command.u64(48) as u32;
        let was = std::mem::replace(&mut self.configuration, value);
        let (enable, was_enabled) = (value & property::CC_ENABLE, was & property::CC_ENABLE);
        if enable != 0 && was_enabled == 0 {
            // Entries of 64 and 16 bytes, pages of 4 KiB, the NVM command set.
            let is_fit = controller.discovery || value >> 16 & 0xff == 0x46;
            if is_fit && value & 0x3ff0 == 0 {
                self.status = property::CSTS_READY;
                controller.enable(true);
            } else {
                self.status = property::CSTS_FATAL;
            }
        } else if enable == 0 && was_enabled != 0 {
            self.status = 0;
            controller.enable(false);
        }
        let shuts_down = value & property::CC_SHUTDOWN != 0 && was & property::CC_SHUTDOWN == 0;
        if shuts_down {
            self.status |= property::CSTS_SHUTDOWN_COMPLETE; // the answer comes after the flush
        }
        Ok(shuts_down && !controller.discovery)
    }
}
