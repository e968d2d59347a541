//! Hosts of NVMe over TCP: the input is what a queue gets once it is connected.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use floe_nvme::auth::Secret;
use floe_nvme::target::access::{AccessRules, HostSecrets};
use floe_nvme::target::connection::Connection;
use floe_nvme::target::digest;
use floe_nvme::target::subsystem::Subsystem;
use floe_nvme::wire::pdu::{Data, Header, Initialize, flag, kind};
use floe_nvme::wire::{ANY_CONTROLLER, connect, descriptor, property};
use floe_nvme::wire::{Descriptor, NvmeCommand};
use floe_nvme::wire::{admin, fabrics, feature, io, log};

use super::cut::{Cut, Random};
use super::serving::answers;
use crate::protocol::NvmeTcp;

const NQN: &str = "nqn.2026-11.io.example:fuzz";

/// Serves an input on an admin queue or on an I/O queue. Nothing may break, and the bounds hold.
pub(super) fn run(is_admin: bool, sent: &[u8], seed: u64) {
    for delays in [None, Some(Random(!seed))] {
        let subsystem = Subsystem::new(NQN, "1").expect("a good name");
        let asks_for_proof = is_admin && seed & 1 != 0;
        let digests = if seed & 2 != 0 { DATA_DIGEST } else { 0 };
        if asks_for_proof {
            let all = [&hello(0, ANY_CONTROLLER, digests), sent].concat();
            let cut = &mut Cut { left: 0, random: Random(seed) };
            answers(&NvmeTcp::new(Arc::new(subsystem.with_access(rules()))), &all, cut, delays);
            continue;
        }
        let subsystem = Arc::new(subsystem.with_reservations(Arc::default()));
        let mut admin = Connection::new(Arc::clone(&subsystem), Arc::default(), None);
        let (set_up, mut rest) = (admin_queue(0), 0);
        while rest < set_up.len() {
            let advanced = admin.advance(&set_up[rest..], &mut Vec::new());
            rest += advanced.expect("a good beginning").0;
        }
        let prelude = if is_admin { admin_queue(digests) } else { hello(1, 1, digests) };
        let all = [&prelude, sent].concat();
        let cut = &mut Cut { left: 0, random: Random(seed) };
        answers(&NvmeTcp::new(subsystem), &all, cut, delays);
    }
}

/// The bit of digests of data in the initialization.
const DATA_DIGEST: u8 = 2;

/// Rules that ask the host for a proof of its name. Its secret and all challenges are known.
fn rules() -> Arc<RwLock<AccessRules>> {
    let host = Secret::new(&[1; 32], None).expect("a good length");
    let secrets = HostSecrets { controller: Some(host.clone()), host };
    let random = |bytes: &mut [u8]| {
        bytes.fill(1);
        true
    };
    let secrets = BTreeMap::from([(NQN.to_owned(), secrets)]);
    Arc::new(RwLock::new(AccessRules::default().with_secrets(secrets, random)))
}

/// Initializes a connection and connects a queue.
fn hello(queue: u16, controller: u16, digests: u8) -> Vec<u8> {
    let initialize = Initialize { format: 0, data_alignment: 0, digests, most: 0 };
    let mut data = vec![0; 1024];
    data[connect::CONTROLLER_ID].copy_from_slice(&controller.to_le_bytes());
    data[256..256 + NQN.len()].copy_from_slice(NQN.as_bytes());
    data[512..512 + NQN.len()].copy_from_slice(NQN.as_bytes());
    let command = NvmeCommand::new(admin::FABRICS, 0)
        .with(4, &[fabrics::CONNECT])
        .with(42, &queue.to_le_bytes())
        .with(44, &31_u16.to_le_bytes());
    let mut connect = capsule(command, &data);
    if digests & DATA_DIGEST != 0 {
        connect[1] |= flag::DATA_DIGEST;
        connect[4..8].copy_from_slice(&(72 + 1024 + 4_u32).to_le_bytes());
        connect.extend(digest(&data).to_le_bytes());
    }
    [&initialize.to_bytes(kind::INITIALIZE_REQUEST)[..], &connect].concat()
}

/// An admin queue whose controller is ready.
fn admin_queue(digests: u8) -> Vec<u8> {
    let enable = NvmeCommand::new(admin::FABRICS, 1)
        .with(4, &[fabrics::PROPERTY_SET])
        .with(44, &property::CC.to_le_bytes())
        .with(48, &0x0046_0001_u64.to_le_bytes());
    let grant = NvmeCommand::new(admin::SET_FEATURES, 2).with(40, &[feature::QUEUES]);
    [hello(0, ANY_CONTROLLER, digests), capsule(enable, &[]), capsule(grant, &[])].concat()
}

fn capsule(command: NvmeCommand, data: &[u8]) -> Vec<u8> {
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
        NvmeCommand::new(opcode, id)
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
    let discard = NvmeCommand::new(io::DATASET_MANAGEMENT, 4).with(4, &[1]).with(44, &[4]);
    let range = [&[0; 4][..], &8_u32.to_le_bytes(), &[0; 8]].concat();
    let (length, kind) = (16, descriptor::TRANSPORT);
    let listed = discard.with(2, &[13]).with_descriptor(Descriptor { address: 0, length, kind });
    let listed = [capsule(listed, &[]), capsule(listed.with(2, &[14]), &[])].concat();
    let discard = capsule(discard, &range);
    let flush = capsule(NvmeCommand::new(io::FLUSH, 5).with(4, &[0xff; 4]), &[]);
    let (length, kind) = (4096, descriptor::TRANSPORT);
    let identify = NvmeCommand::new(admin::IDENTIFY, 6)
        .with(40, &[1])
        .with_descriptor(Descriptor { address: 0, length, kind });
    let event = capsule(NvmeCommand::new(admin::ASYNC_EVENT, 7), &[]);
    let mut damaged = capsule(blocks(io::WRITE, 8, 1), &[7; 512]);
    damaged[1] |= flag::DATA_DIGEST;
    damaged[4..8].copy_from_slice(&(72 + 512 + 4_u32).to_le_bytes());
    damaged.extend([1, 2, 3, 4]);
    let message = |fabrics_type: u8, message: &[u8]| {
        let length = if message.is_empty() { 4096 } else { message.len() as u32 };
        let command = NvmeCommand::new(admin::FABRICS, 9)
            .with(4, &[fabrics_type])
            .with(41, &[1, 1, 0xe9])
            .with(44, &length.to_le_bytes());
        let kind = descriptor::TRANSPORT;
        match message {
            [] => capsule(command.with_descriptor(Descriptor { address: 0, length, kind }), &[]),
            _ => capsule(command, message),
        }
    };
    let mut offer = [0; 72];
    (offer[7], offer[8], offer[10], offer[11], offer[12]) = (1, 1, 1, 1, 1);
    let mut reply = [0; 80];
    (reply[0], reply[1], reply[6], reply[8]) = (1, 2, 32, 1);
    let (send, receive) = (fabrics::AUTHENTICATION_SEND, fabrics::AUTHENTICATION_RECEIVE);
    let proof = [
        message(send, &offer),
        message(receive, &[]),
        message(send, &reply),
        message(receive, &[]),
    ];
    let compared = capsule(blocks(io::COMPARE, 11, 8), &[0; 4096]);
    let compared_later = capsule(blocks(io::COMPARE, 12, 100), &[]);
    let io = [
        asked,
        inline,
        reads,
        discard,
        listed,
        compared,
        compared_later,
        data(1, 0, 300 * 512),
        flush,
    ]
    .concat();
    let shut_down = NvmeCommand::new(admin::FABRICS, 10)
        .with(4, &[fabrics::PROPERTY_SET])
        .with(44, &property::CC.to_le_bytes())
        .with(48, &0x0046_4001_u64.to_le_bytes());
    let ana = NvmeCommand::new(admin::GET_LOG_PAGE, 15)
        .with(40, &[log::ANA, 0, 12, 0])
        .with_descriptor(Descriptor { address: 0, length: 52, kind: descriptor::TRANSPORT });
    let events = NvmeCommand::new(admin::SET_FEATURES, 16)
        .with(40, &[feature::ASYNC_EVENTS])
        .with(44, &[0xff; 4]);
    let again = event.clone();
    let admin = [events, identify, ana, shut_down].map(|command| capsule(command, &[])).concat();
    let admin = [event, again, admin].concat();
    [(3, 0, io), (3, 2, damaged), (4, 0, admin), (4, 1, proof.concat())]
        .into_iter()
        .map(|(kind, seed, sent)| [&[kind, seed, 2, 3, 4, 5, 6, 7, 8][..], &sent].concat())
        .collect()
}
