//! The NVMe host against another's controller: one whose address and subsystem
//! `FLOE_NVME_CONTROLLER` gives, as in `127.0.0.1:4420,nqn.2026-01.example:disk`. A namespace of
//! it, the first, is overwritten.
//!
//! A binary of its own, because it has a configuration of its own.

use std::io::Write;
use std::time::Duration;

use floe_testkit::nvme_host::tcp::{Controller, IoQueue};
use floe_testkit::nvme_host::{Access, Agreed, DISCOVERY_NQN, HostError, QueueOptions, Range};

/// Bytes of a namespace that are used.
const USED_BYTES: u64 = 8 << 20;

fn access() -> Option<Access> {
    let Ok(text) = std::env::var("FLOE_NVME_CONTROLLER") else {
        let _ = writeln!(std::io::stdout(), "SKIPPED: FLOE_NVME_CONTROLLER names no controller");
        return None;
    };
    let (address, subsystem) = text.split_once(',').expect("FLOE_NVME_CONTROLLER has a comma");
    let timeout = Some(Duration::from_secs(60));
    Some(Access { timeout, ..Access::new(address, subsystem) })
}

/// Numbers without order, from a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % limit
    }
}

/// Writes and reads at random, many at a time, beside an array; compares all.
fn exercise(queue: &mut IoQueue, namespace: u32, block_bytes: u32, seed: u64) {
    let mut draw = Draw(seed);
    let blocks = USED_BYTES / u64::from(block_bytes);
    let all = Range { namespace, first: 0, blocks: 1 };
    let mut wanted = vec![0; USED_BYTES as usize];
    for piece in (0..blocks).step_by(1024) {
        let range = Range { namespace, first: piece, blocks: 1024 };
        queue.write_zeroes(range, false).expect("a write of zeroes");
    }
    for _ in 0..10 {
        // Ranges that do not meet, so that their order is of no matter.
        let mut at = draw.below(8);
        let mut reads = Vec::new();
        while at < blocks {
            let most = if draw.below(3) == 0 { 2048 } else { 16 };
            let length = (1 + draw.below(most)).min(blocks - at);
            let range = Range { namespace, first: at, blocks: length as u32 };
            let bytes = (at * u64::from(block_bytes)) as usize
                ..((at + length) * u64::from(block_bytes)) as usize;
            at += length + draw.below(256);
            let connection = queue.connection();
            if connection.queue().in_flight() == 15 {
                let completion = connection.next_completion().expect("a completion");
                assert!(completion.status.is_success(), "{completion:?}");
                if let Some(found) = reads.iter().position(|(id, _)| *id == completion.id) {
                    let (_, bytes): (u16, std::ops::Range<usize>) = reads.swap_remove(found);
                    assert!(completion.data == wanted[bytes.clone()], "{bytes:?} differ");
                }
            }
            if draw.below(2) == 0 {
                let value = draw.below(256) as u8;
                for (index, byte) in wanted[bytes.clone()].iter_mut().enumerate() {
                    *byte = value.wrapping_add(index as u8).wrapping_mul(31) ^ (index >> 8) as u8;
                }
                let data = wanted[bytes].to_vec();
                connection.submit(range.write(data, draw.below(8) == 0)).expect("a write");
            } else {
                let id = connection.submit(range.read(bytes.len() as u32)).expect("a read");
                reads.push((id, bytes));
            }
        }
        while queue.connection().queue().in_flight() > 0 {
            let completion = queue.connection().next_completion().expect("a completion");
            assert!(completion.status.is_success(), "{completion:?}");
            if let Some((_, bytes)) = reads.iter().find(|(id, _)| *id == completion.id) {
                assert!(completion.data == wanted[bytes.clone()], "{bytes:?} differ");
            }
        }
    }
    queue.flush(all).expect("a flush");
    for piece in 0..USED_BYTES / (1 << 20) {
        let blocks = (1 << 20) / block_bytes;
        let range = Range { namespace, first: piece * u64::from(blocks), blocks };
        let found = queue.read(range, 1 << 20).expect("a read");
        assert!(found == wanted[(piece << 20) as usize..][..1 << 20], "MiB {piece} differs");
    }
}

#[test]
fn a_controller_of_others_takes_and_returns_data() {
    let Some(access) = access() else { return };
    // Linux takes no alignment of data.
    let cases =
        [(false, false, true), (true, false, false), (false, true, true), (true, true, false)];
    for (header_digest, data_digest, flow_control) in cases {
        let options = QueueOptions {
            header_digest,
            data_digest,
            flow_control,
            transfers: 4,
            ..QueueOptions::default()
        };
        let access = Access { options, keep_alive_ms: 60_000, ..access.clone() };
        let mut controller = Controller::connect(&access).expect("a controller");
        let _ = writeln!(std::io::stdout(), "{:?}", controller.data());
        let agreed: Agreed = *controller.connection().queue().agreed().expect("it is agreed");
        let _ = writeln!(std::io::stdout(), "{agreed:?}");
        let namespaces = controller.namespaces().expect("a list");
        for namespace in &namespaces {
            let data = controller.namespace(*namespace).expect("a namespace");
            let identifiers = controller.identifiers(*namespace).expect("identifiers");
            let _ = writeln!(std::io::stdout(), "{namespace}: {data:?} {identifiers:?}");
        }
        controller.keep_alive().expect("it is alive");
        let queues = controller.set_queues(2).expect("queues");
        assert_eq!(queues, 2);
        let data = controller.namespace(namespaces[0]).expect("a namespace");
        for queue in 1..=queues {
            let mut io = controller.io_queue(queue, 16).expect("an I/O queue");
            exercise(&mut io, namespaces[0], data.block_bytes, u64::from(queue) * 77 + 1);
            let range = |first, blocks| Range { namespace: namespaces[0], first, blocks };
            io.deallocate(&[range(0, 8), range(64, 128)]).expect("room is given back");
            let failed = io.read(range(data.blocks - 1, 2), 2 * data.block_bytes);
            let error = failed.expect_err("a read across the end");
            assert!(matches!(error, HostError::Command(_)), "{error}");
        }
    }
}

#[test]
fn a_discovery_controller_of_others_names_the_subsystem() {
    let Some(access) = access() else { return };
    let mut controller = Controller::connect_to_discovery(&access).expect("a controller");
    assert_eq!(controller.data().subsystem, DISCOVERY_NQN);
    let found = controller.discover().expect("a log");
    let _ = writeln!(std::io::stdout(), "{found:?}");
    assert!(found.iter().any(|entry| entry.subsystem == access.subsystem), "{found:?}");
}
