//! Hosts that send arbitrary bytes.

use proptest::prelude::*;

use super::hosts::*;
use crate::wire::{NvmeCommand, io};

/// Returns a valid session with some bytes changed.
fn damaged(good: Vec<u8>, damage: &[(usize, u8)]) -> Vec<u8> {
    let mut bytes = good;
    let length = bytes.len();
    for &(at, byte) in damage {
        bytes[at % length] = byte;
    }
    bytes
}

proptest! {
    #[test]
    fn no_bytes_make_a_connection_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Caller::new(&subsystem()).take(&bytes);
    }

    #[test]
    fn no_damage_makes_a_connection_panic(
        damage in prop::collection::vec((any::<usize>(), any::<u8>()), 0..6),
        commands in prop::collection::vec(
            (any::<u8>(), 0..4_u32, any::<[u8; 24]>(), 0..2048_usize), 0..20,
        ),
        io in any::<bool>(),
    ) {
        let subsystem = reserving();
        let mut admin = admin_queue(&subsystem);
        let mut bytes = Vec::new();
        for (number, (opcode, namespace, rest, data)) in commands.iter().enumerate() {
            let place = if number % 3 == 0 { transport(*data) } else { in_capsule(*data) };
            let command = NvmeCommand::new(*opcode, number as u16)
                .with(4, &namespace.to_le_bytes())
                .with(40, rest)
                .with_descriptor(place);
            let data = if number % 3 == 0 { vec![] } else { vec![0; *data] };
            bytes.extend(capsule(&command, &data));
        }
        let bytes = if bytes.is_empty() { bytes } else { damaged(bytes, &damage) };
        if io {
            let mut queue = Caller::new(&subsystem);
            queue.take(&io_queue(1, 1)).unwrap();
            let _ = queue.take(&bytes);
        } else {
            let _ = admin.take(&bytes);
            prop_assert!(admin.out.len() <= 24 + commands.len() * (72 << 10));
        }
    }
}

#[test]
fn a_capsule_may_have_more_data_than_its_write() {
    let subsystem = subsystem();
    let _admin = admin_queue(&subsystem);
    let mut caller = Caller::new(&subsystem);
    caller.take(&initialize(0)).unwrap();
    caller.take(&connect(1, 1, NQN)).unwrap();
    caller.told();
    let command = blocks(io::WRITE, 1, 0, 1).with_descriptor(in_capsule(512));
    let message = capsule(&command, &[5; 520]);
    // The write is complete and answered before the rest is there.
    for piece in [&message[..message.len() - 8], &message[message.len() - 8..]] {
        caller.take(piece).unwrap();
    }
    let [Said::Completed(completion)] = &caller.told()[..] else { panic!("no completion") };
    assert!(completion.status.is_success());
    assert_eq!(caller.volume[..520], [&[5; 512][..], &[0; 8]].concat());
}
