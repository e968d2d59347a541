//! The data of Identify, which describes the controller and its namespaces to hosts.
//!
//! Source: NVM Express Base 2.0, "Identify command"; NVM Command Set 1.0, "Identify Namespace data
//! structure" and "I/O Command Set specific Identify Controller data structure".

use super::namespace::{BLOCK_SHIFT, Namespace, Namespaces};
use super::paths::CHANGE_MOST_SECONDS;
use super::subsystem::{Controller, Subsystem};
use super::{
    ASYNC_EVENTS_MAX, IN_CAPSULE_MAX_BYTES, NAMESPACE_ID_MAX, NAMESPACES_MAX, QUEUE_MAX,
    TRANSFER_MAX_BYTES, VERSION,
};
use crate::wire::code::{feature, identifier, identify};
use crate::wire::command::{COMMAND_BYTES, COMPLETION_BYTES, Command};
use crate::wire::status::Status;
use crate::wire::{DISCOVERY_NQN, IDENTIFY_BYTES};

/// Logical blocks that are fast to read and write together, less one.
const PREFERRED_BLOCKS_LESS_ONE: u16 = (4096 >> BLOCK_SHIFT) - 1;
/// Asymmetric access: the states optimized, inaccessible and change are reported, and a namespace
/// stays in its group.
const ANA_CAPABILITIES: u8 = 1 << 0 | 1 << 2 | 1 << 4 | 1 << 6;

/// A page of data, written in parts.
pub(super) struct Page(Vec<u8>);

impl Page {
    pub(super) fn new(bytes: usize) -> Self {
        Self(vec![0; bytes])
    }

    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) -> &mut Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Puts text in a field, filled up with spaces.
    pub(super) fn text(&mut self, at: usize, len: usize, text: &str) -> &mut Self {
        self.0[at..at + len].fill(b' ');
        let bytes = text.as_bytes();
        self.put(at, &bytes[..bytes.len().min(len)])
    }

    pub(super) fn done(self) -> Vec<u8> {
        self.0
    }
}

/// Answers Identify.
pub(super) fn identify(
    command: &Command,
    subsystem: &Subsystem,
    controller: &Controller,
    namespaces: &Namespaces,
) -> Result<Vec<u8>, Status> {
    let structure = command.u8(40);
    let command_set = command.u8(47);
    let id = command.namespace();
    if structure == identify::CONTROLLER {
        return Ok(controller_page(subsystem, controller));
    }
    if controller.discovery {
        return Err(Status::INVALID_FIELD.final_());
    }
    match structure {
        identify::NAMESPACE => match namespaces.find(id) {
            Some(namespace) => Ok(namespace_page(subsystem, namespace)),
            None if (1..=NAMESPACE_ID_MAX).contains(&id) => Ok(Page::new(IDENTIFY_BYTES).done()),
            None => Err(Status::INVALID_NAMESPACE.final_()),
        },
        identify::ACTIVE_NAMESPACES if id < u32::MAX - 1 => Ok(active_list(namespaces, id)),
        identify::DESCRIPTORS => match namespaces.find(id) {
            Some(namespace) => Ok(descriptors(subsystem, namespace)),
            None => Err(Status::INVALID_NAMESPACE.final_()),
        },
        identify::COMMAND_SET_NAMESPACE if command_set == 0 => match namespaces.find(id) {
            Some(_) => Ok(Page::new(IDENTIFY_BYTES).done()),
            None => Err(Status::INVALID_NAMESPACE.final_()),
        },
        // No limits but those of the transfer.
        identify::COMMAND_SET_CONTROLLER if command_set == 0 => {
            Ok(Page::new(IDENTIFY_BYTES).done())
        }
        _ => Err(Status::INVALID_FIELD.final_()),
    }
}

fn controller_page(subsystem: &Subsystem, controller: &Controller) -> Vec<u8> {
    let transfer_shift = (TRANSFER_MAX_BYTES / 4096).ilog2() as u8;
    let nqn = if controller.discovery { DISCOVERY_NQN } else { subsystem.nqn() };
    let mut page = Page::new(IDENTIFY_BYTES);
    page.text(4, 20, &subsystem.serial())
        .text(24, 40, "Floe")
        .text(64, 8, subsystem.firmware())
        .put(77, &[transfer_shift])
        .put(78, &controller.id.to_le_bytes())
        .put(80, &VERSION.to_le_bytes())
        .put(96, &1_u32.to_le_bytes()) // host identifiers of 128 bits
        .put(111, &[if controller.discovery { 2 } else { 1 }])
        .put(258, &[3]) // commands to abort at once, less one
        .put(259, &[ASYNC_EVENTS_MAX as u8 - 1])
        .put(260, &[0x03]) // one firmware slot, read only
        .put(261, &[1 << 2]) // log pages have offsets
        .put(320, &10_u16.to_le_bytes()) // keep-alive in steps of a second
        .put(514, &QUEUE_MAX.to_le_bytes())
        // SGLs of any alignment, in-capsule offsets, transport descriptors
        .put(536, &(1_u32 << 0 | 1 << 20 | 1 << 21).to_le_bytes())
        .put(768, nqn.as_bytes());
    if controller.discovery {
        page.put(92, &feature::DISCOVERY_NOTICES.to_le_bytes());
        return page.done();
    }
    let capsule = (COMMAND_BYTES + IN_CAPSULE_MAX_BYTES) / 16;
    page.put(76, &[1 << 1 | 1 << 3]) // several controllers, asymmetric access
        .put(92, &(feature::NAMESPACE_NOTICES | feature::ANA_NOTICES).to_le_bytes())
        .put(261, &[1 << 1 | 1 << 2]) // commands and effects too
        .put(342, &[CHANGE_MOST_SECONDS, ANA_CAPABILITIES])
        .put(344, &NAMESPACE_ID_MAX.to_le_bytes()) // groups have the identifiers of namespaces
        .put(348, &(NAMESPACES_MAX as u32).to_le_bytes()) // number of groups
        .put(512, &[0x66, 0x44]) // entries of 64 and of 16 bytes
        .put(516, &NAMESPACE_ID_MAX.to_le_bytes())
        // Compare, Dataset Management, Write Zeroes, Verify
        .put(520, &(1_u16 << 0 | 1 << 2 | 1 << 3 | 1 << 7).to_le_bytes())
        .put(525, &[1 | 3 << 1]) // a volatile cache; Flush may name all namespaces
        .put(540, &(NAMESPACES_MAX as u32).to_le_bytes())
        .put(1792, &(capsule as u32).to_le_bytes())
        .put(1796, &((COMPLETION_BYTES / 16) as u32).to_le_bytes())
        .put(1803, &[1]); // one descriptor a command
    page.done()
}

fn namespace_page(subsystem: &Subsystem, namespace: &Namespace) -> Vec<u8> {
    let blocks = namespace.blocks().to_le_bytes();
    let preferred = PREFERRED_BLOCKS_LESS_ONE.to_le_bytes();
    let mut page = Page::new(IDENTIFY_BYTES);
    page.put(0, &blocks)
        .put(8, &blocks)
        .put(16, &blocks)
        .put(24, &[1 << 4]) // preferred sizes are reported
        .put(30, &[1]) // several controllers share it
        .put(33, &[1 << 3]) // Write Zeroes may deallocate
        .put(48, &u128::from(namespace.bytes).to_le_bytes())
        .put(92, &namespace.access_group().to_le_bytes())
        .put(99, &[u8::from(namespace.read_only)])
        .put(104, &subsystem.identifier(&namespace.name))
        .put(130, &[BLOCK_SHIFT]);
    for at in [64, 66, 68, 70, 72] {
        page.put(at, &preferred); // to write and to deallocate, granularity and alignment
    }
    page.done()
}

fn active_list(namespaces: &Namespaces, after: u32) -> Vec<u8> {
    let ids = namespaces.iter().map(Namespace::id).filter(|&id| id > after);
    let mut page = Page::new(IDENTIFY_BYTES);
    for (at, id) in ids.take(IDENTIFY_BYTES / 4).enumerate() {
        page.put(4 * at, &id.to_le_bytes());
    }
    page.done()
}

fn descriptors(subsystem: &Subsystem, namespace: &Namespace) -> Vec<u8> {
    let id = subsystem.identifier(&namespace.name);
    let mut page = Page::new(IDENTIFY_BYTES);
    page.put(0, &[identifier::NGUID, 16])
        .put(4, &id)
        .put(20, &[identifier::UUID, 16])
        .put(24, &id)
        .put(40, &[identifier::COMMAND_SET, 1]);
    page.done()
}
