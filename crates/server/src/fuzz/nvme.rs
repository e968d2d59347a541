//! Hosts of NVMe over TCP: the input is what a queue gets once it is connected.

use std::sync::Arc;

use floe_nvme::target::connection::Connection;
use floe_nvme::target::subsystem::Subsystem;
use floe_nvme::wire::code::{admin, fabrics, feature, io};
use floe_nvme::wire::command::{Command, Descriptor};
use floe_nvme::wire::pdu::{Data, Header, Initialize, flag, kind};
use floe_nvme::wire::{ANY_CONTROLLER, connect, descriptor, property};

use super::cut::{Cut, Random};
use super::serving::answers;
use crate::protocol::NvmeTcp;

const NQN: &str = "nqn.2026-11.io.example:fuzz";

/// Serves an input on an admin queue or on an I/O queue. Nothing may break, and the bounds hold.
pub(super) fn run(is_admin: bool, sent: &[u8], seed: u64) {
    for delays in [None, Some(Random(!seed))] {
        let subsystem = Arc::new(Subsystem::new(NQN, "1").expect("a good name"));
        let mut admin = Connection::new(Arc::clone(&subsystem), Arc::default(), None);
        let (set_up, mut rest) = (admin_queue(), 0);
        while rest < set_up.len() {
            let advanced = admin.advance(&set_up[rest..], &mut Vec::new());
            rest += advanced.expect("a good beginning").0;
        }
        let prelude = if is_admin { admin_queue() } else { hello(1, 1) };
        let all = [&prelude, sent].concat();
        let cut = &mut Cut { left: 0, random: Random(seed) };
        answers(&NvmeTcp::new(subsystem), &all, cut, delays);
    }
}

/// Initializes a connection and connects a queue.
fn hello(queue: u16, controller: u16) -> Vec<u8> {
    let initialize = Initialize { format: 0, data_alignment: 0, digests: 0, most: 0 };
    let mut data = vec![0; 1024];
    data[connect::CONTROLLER_ID].copy_from_slice(&controller.to_le_bytes());
    data[256..256 + NQN.len()].copy_from_slice(NQN.as_bytes());
    data[512..512 + NQN.len()].copy_from_slice(NQN.as_bytes());
    let command = Command::new(admin::FABRICS, 0)
        .with(4, &[fabrics::CONNECT])
        .with(42, &queue.to_le_bytes())
        .with(44, &31_u16.to_le_bytes());
    [&initialize.to_bytes(kind::INITIALIZE_REQUEST)[..], &capsule(command, &data)].concat()
}

/// An admin queue whose controller is ready.
fn admin_queue() -> Vec<u8> {
    let enable = Command::new(admin::FABRICS, 1)
        .with(4, &[fabrics::PROPERTY_SET])
        .with(44, &property::CC.to_le_bytes())
        .with(48, &0x0046_0001_u64.to_le_bytes());
    let grant = Command::new(admin::SET_FEATURES, 2).with(40, &[feature::QUEUES]);
    [hello(0, ANY_CONTROLLER), capsule(enable, &[]), capsule(grant, &[])].concat()
}

fn capsule(command: Command, data: &[u8]) -> Vec<u8> {
    let (length, kind) = (data.len() as u32, descriptor::IN_CAPSULE);
    let command = match data {
        [] => command,
        _ => command.with_descriptor(Descriptor { address: 0, length, kind }),
    };
    let header = Header {
        kind: kind::COMMAND,
        flags: 0,
        header_bytes: 72,
        data_offset: if data.is_empty() { 0 } else { 72 },
        total_bytes: 72 + length,
    };
    [&header.to_bytes()[..], &command.0, data].concat()
}

/// Inputs to begin with.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let blocks = |opcode, id, count: u16| {
        let (length, kind) = (u32::from(count) * 512, descriptor::TRANSPORT);
        Command::new(opcode, id)
            .with(4, &[1])
            .with(48, &(count - 1).to_le_bytes())
            .with_descriptor(Descriptor { address: 0, length, kind })
    };
    let data = |command, tag, length: u32| {
        let (kind, flags, total_bytes) = (kind::HOST_DATA, flag::LAST, 24 + length);
        let header = Header { kind, flags, header_bytes: 24, data_offset: 24, total_bytes };
        let fields = Data { command, tag, offset: 0, length };
        [&fields.to_bytes(header)[..], &vec![5; length as usize]].concat()
    };
    let asked = capsule(blocks(io::WRITE, 1, 300), &[]);
    let inline = capsule(blocks(io::WRITE, 2, 8), &[3; 4096]);
    let reads = capsule(blocks(io::READ, 3, 200), &[]).repeat(3);
    let discard = Command::new(io::DATASET_MANAGEMENT, 4).with(4, &[1]).with(44, &[4]);
    let range = [&[0; 4][..], &8_u32.to_le_bytes(), &[0; 8]].concat();
    let discard = capsule(discard, &range);
    let flush = capsule(Command::new(io::FLUSH, 5).with(4, &[0xff; 4]), &[]);
    let (length, kind) = (4096, descriptor::TRANSPORT);
    let identify = Command::new(admin::IDENTIFY, 6).with(40, &[1]).with_descriptor(Descriptor {
        address: 0,
        length,
        kind,
    });
    let event = capsule(Command::new(admin::ASYNC_EVENT, 7), &[]);
    let io = [asked, inline, reads, discard, data(1, 0, 300 * 512), flush].concat();
    [(3, io), (4, [event, capsule(identify, &[])].concat())]
        .into_iter()
        .map(|(kind, sent)| [&[kind, 1, 2, 3, 4, 5, 6, 7, 8][..], &sent].concat())
        .collect()
}
