//! Data digests: intact payload is accepted however it is split, and damaged payload is never
//! written.

use proptest::prelude::*;

use super::hosts::*;
use crate::target::digest;
use crate::wire::pdu::{self, Data, Header, flag, kind};
use crate::wire::{Completion, NvmeCommand, Status, admin, fabrics, identify, io};

/// Header and data digests, as bits of an initialization request.
const DIGESTS: u8 = 3;

/// Adds digests to a message that has none.
fn with_digests(message: &[u8]) -> Vec<u8> {
    let header = Header::of_bytes(message.first_chunk().unwrap());
    let plain = usize::from(header.header_bytes);
    let (head, data) = message.split_at(plain);
    let flags = flag::HEADER_DIGEST | if data.is_empty() { 0 } else { flag::DATA_DIGEST };
    let (extra, offset) = match data {
        [] => (4, 0),
        _ => (8, header.data_offset + 4),
    };
    let header = Header {
        flags: header.flags | flags,
        data_offset: offset,
        total_bytes: header.total_bytes + extra,
        ..header
    };
    let head = [&header.to_bytes(), &head[8..]].concat();
    let mut bytes = [&head, &digest(&head).to_le_bytes()[..], data].concat();
    if !data.is_empty() {
        bytes.extend(digest(data).to_le_bytes());
    }
    bytes
}

/// Checks and removes the digests of all messages sent to the host.
fn without_digests(mut bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    while let Some(first) = bytes.first_chunk() {
        let header = Header::of_bytes(first);
        let (message, rest) = bytes.split_at(header.total_bytes as usize);
        bytes = rest;
        if header.kind == kind::INITIALIZE_RESPONSE {
            plain.extend_from_slice(message);
            continue;
        }
        let (head, data) = message.split_at(usize::from(header.header_bytes));
        let (told, data) = data.split_at(pdu::DIGEST_BYTES);
        assert_eq!(told, digest(head).to_le_bytes());
        let mut data = data;
        let has_data = header.kind == kind::CONTROLLER_DATA;
        assert_eq!(header.flags & flag::DATA_DIGEST != 0, has_data);
        if has_data {
            let (content, told) = data.split_at(data.len() - pdu::DIGEST_BYTES);
            assert_eq!(told, digest(content).to_le_bytes());
            data = content;
        }
        let offset = if has_data { header.header_bytes } else { 0 };
        let total_bytes = (head.len() + data.len()) as u32;
        let header = Header { data_offset: offset, total_bytes, ..header };
        plain.extend([&header.to_bytes(), &head[8..], data].concat());
    }
    plain
}

fn told(caller: &mut Caller) -> Vec<Said> {
    let bytes = std::mem::take(&mut caller.out);
    said(&without_digests(&bytes))
}

/// Returns an I/O queue with digests, and its admin queue.
fn queue() -> (Caller, Caller) {
    let subsystem = subsystem();
    let admin = admin_queue(&subsystem);
    let mut caller = Caller::new(&subsystem);
    caller.take(&initialize(DIGESTS)).unwrap();
    let Some(Said::Initialized(granted)) = told(&mut caller).pop() else { panic!("no answer") };
    assert_eq!(granted.digests, DIGESTS);
    caller.take(&with_digests(&connect(1, 1, NQN))).unwrap();
    assert!(statuses(&told(&mut caller))[0].is_success());
    (caller, admin)
}

fn statuses(said: &[Said]) -> Vec<Status> {
    let status = |said: &Said| match said {
        Said::Completed(Completion { status, .. }) => Some(*status),
        _ => None,
    };
    said.iter().filter_map(status).collect()
}

fn write(id: u16, first: u64, data: &[u8], is_in_capsule: bool) -> Vec<u8> {
    let command = blocks(io::WRITE, id, first, (data.len() / 512) as u16);
    match is_in_capsule {
        true => with_digests(&capsule(&command.with_descriptor(in_capsule(data.len())), data)),
        false => with_digests(&capsule(&command.with_descriptor(transport(data.len())), &[])),
    }
}

/// Returns the controller's request for the data of the last write.
fn asked(caller: &mut Caller) -> Data {
    match told(caller).pop() {
        Some(Said::Ready(data)) => data,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn data_goes_through_in_any_pieces(
        content in prop::collection::vec(any::<u8>(), 4 * 512),
        pieces in prop::collection::vec(1_usize..400, 1..20),
        damage in prop::option::of((0_usize..2048, 0_u8..8)),
    ) {
        let (mut caller, _admin) = queue();
        caller.take(&write(1, 8, &content, false)).unwrap();
        let ready = asked(&mut caller);
        let (one, two) = content.split_at(1024);
        let mut parts = [
            with_digests(&host_data(1, ready.tag, 0, one, false)),
            with_digests(&host_data(1, ready.tag, 1024, two, true)),
            write(2, 0, &content[..1536], true),
        ];
        if let Some((at, bit)) = damage {
            let header_bytes = 28;
            parts[at / 1024][header_bytes + at % 1024] ^= 1 << bit;
        }
        let all = parts.concat();
        let (mut rest, mut pieces) = (&all[..], pieces.into_iter().cycle());
        while !rest.is_empty() {
            let (piece, more) = rest.split_at(pieces.next().unwrap().min(rest.len()));
            caller.take(piece).unwrap();
            rest = more;
        }
        let first = match damage {
            None => Status::SUCCESS,
            Some(_) => Status::TRANSIENT_TRANSPORT_ERROR,
        };
        prop_assert_eq!(statuses(&told(&mut caller)), [first, Status::SUCCESS]);
        prop_assert_eq!(caller.damaged, usize::from(damage.is_some()));
        let wanted = if damage.is_none() { &content[..] } else { &[0; 2048] };
        prop_assert_eq!(&caller.volume[8 * 512..12 * 512], wanted);
        let read = blocks(io::READ, 3, 0, 3).with_descriptor(transport(3 * 512));
        caller.take(&with_digests(&capsule(&read, &[]))).unwrap();
        let said = told(&mut caller);
        let Some(Said::Data(_, data)) = said.first() else { panic!("{said:?}") };
        prop_assert_eq!(&data[..], &content[..1536]);
    }
}

#[test]
fn a_damaged_write_in_a_capsule_is_refused_and_may_be_repeated() {
    let (mut caller, _admin) = queue();
    for at in [0, 511, 512, 515] {
        let mut bytes = write(1, 0, &[0x5a; 512], true);
        bytes[76 + at] ^= 0x40; // data, or its digest
        caller.take(&bytes).unwrap();
        assert_eq!(statuses(&told(&mut caller)), [Status::TRANSIENT_TRANSPORT_ERROR]);
        assert_eq!(caller.volume[..512], [0; 512]);
    }
    caller.take(&write(1, 0, &[0x5a; 512], true)).unwrap();
    assert_eq!(statuses(&told(&mut caller)), [Status::SUCCESS]);
    assert_eq!(caller.volume[..512], [0x5a; 512]);
}

#[test]
fn data_of_other_commands_is_checked_too() {
    let (mut caller, _admin) = queue();
    caller.take(&write(1, 0, &[0x5a; 512], true)).unwrap();
    told(&mut caller);
    let ranges = [&[0; 4][..], &1_u32.to_le_bytes(), &[0; 8]].concat();
    let discard = blocks(io::DATASET_MANAGEMENT, 2, 0, 1)
        .with(40, &[0; 4])
        .with(44, &[4, 0, 0, 0])
        .with_descriptor(in_capsule(16));
    let good = with_digests(&capsule(&discard, &ranges));
    let mut bad = good.clone();
    bad[80] ^= 1;
    caller.take(&bad).unwrap();
    assert_eq!(statuses(&told(&mut caller)), [Status::TRANSIENT_TRANSPORT_ERROR]);
    assert_eq!(caller.volume[0], 0x5a);
    caller.take(&good).unwrap();
    assert_eq!(statuses(&told(&mut caller)), [Status::SUCCESS]);
    assert_eq!(caller.volume[0], 0);
    // The same in a list that is asked for: one of its two messages is damaged.
    let discard = discard.with(2, &[4]).with_descriptor(transport(16));
    for (damaged, wanted) in [(Some(0), 0x5a), (Some(1), 0x5a), (None, 0)] {
        caller.take(&write(5, 0, &[0x5a; 512], true)).unwrap();
        told(&mut caller);
        caller.take(&with_digests(&capsule(&discard, &[]))).unwrap();
        let ready = asked(&mut caller);
        for (at, part) in ranges.chunks(8).enumerate() {
            let mut bytes = with_digests(&host_data(4, ready.tag, 8 * at, part, at == 1));
            bytes[30] ^= u8::from(damaged == Some(at));
            caller.take(&bytes).unwrap();
        }
        let transient = Status::TRANSIENT_TRANSPORT_ERROR;
        let status = if damaged.is_some() { transient } else { Status::SUCCESS };
        assert_eq!(statuses(&told(&mut caller)), [status]);
        assert_eq!(caller.volume[0], wanted);
    }
    // A command without a namespace: its data is skipped, with the digest.
    let mut bytes = write(3, 1 << 40, &[1; 512], true);
    caller.take(&bytes).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    caller.take(&bytes).unwrap();
    let refused = Status::LBA_OUT_OF_RANGE.final_();
    assert_eq!(statuses(&told(&mut caller)), [refused, refused]);
}

#[test]
fn answers_of_an_admin_queue_have_digests() {
    let mut caller = Caller::new(&subsystem());
    caller.take(&initialize(DIGESTS)).unwrap();
    let mut damaged = with_digests(&connect(0, 0xffff, NQN));
    damaged[600] ^= 1;
    caller.take(&damaged).unwrap();
    for message in [connect(0, 0xffff, NQN), enable(true)] {
        caller.take(&with_digests(&message)).unwrap();
    }
    let found = statuses(&told(&mut caller));
    assert_eq!(found, [Status::TRANSIENT_TRANSPORT_ERROR, Status::SUCCESS, Status::SUCCESS]);
    let identify = NvmeCommand::new(admin::IDENTIFY, 9)
        .with(40, &[identify::CONTROLLER])
        .with_descriptor(transport(4096));
    caller.take(&with_digests(&capsule(&identify, &[]))).unwrap();
    let said = told(&mut caller);
    assert!(matches!(&said[..], [Said::Data(_, data), Said::Completed(_)] if data.len() == 4096));
    let unknown = NvmeCommand::new(admin::FABRICS, 4).with(4, &[fabrics::DISCONNECT]);
    caller.take(&with_digests(&capsule(&unknown, &[]))).unwrap();
    assert!(!statuses(&told(&mut caller))[0].is_success());
}
