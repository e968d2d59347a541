//! NVMe hosts that mean harm, or are out of order: each gets the answer that the specification has
//! for it, and others are served meanwhile.

use std::io::Read;
use std::net::TcpStream;

use floe_testkit::nvme_host::tcp::{Controller, IoQueue};
use floe_testkit::nvme_host::{
    Access, HostCommand, HostError, Payload, Range, fabrics, io_command,
};

use floe_testkit::{PATIENCE, wait_until};

use crate::common::{Server, Volume};
use crate::nvme_raw::{READY, RESPONSE, Raw, TERMINATES, capsule, host_data, message};

const VOLUME_BYTES: usize = 8 << 20;

fn serve(settings: &[&str]) -> (Volume, Server) {
    let volume = Volume::new(&vec![0; VOLUME_BYTES], "back")
        .on("2")
        .with(&["--listen", "nvme-tcp://127.0.0.1:0"])
        .with(settings);
    let server = volume.serve();
    (volume, server)
}

fn access(server: &Server) -> Access {
    let address = server.nvme.strip_prefix("nvme-tcp://").expect("an address");
    let (address, name) = address.split_once('/').expect("a name");
    Access { timeout: Some(PATIENCE), ..Access::new(address, name) }
}

/// A controller and an I/O queue of 16 entries.
fn honest(access: &Access) -> (Controller, IoQueue) {
    let mut controller = Controller::connect(access).expect("a controller");
    controller.set_queues(4).expect("queues");
    let queue = controller.io_queue(1, 16).expect("an I/O queue");
    (controller, queue)
}

fn range(first: u64, blocks: u32) -> Range {
    Range { namespace: 1, first, blocks }
}

#[track_caller]
fn is_served(queue: &mut IoQueue, seed: u8) {
    let data: Vec<u8> = (0..4096_u32).map(|at| (at as u8).wrapping_mul(seed)).collect();
    queue.write(range(64, 8), data.clone(), false).expect("a write");
    assert!(queue.read(range(64, 8), 4096).expect("a read") == data);
}

fn with(mut bytes: Vec<u8>, at: usize, new: &[u8]) -> Vec<u8> {
    bytes[at..at + new.len()].copy_from_slice(new);
    bytes
}

/// The reason in the message that ends a connection.
#[track_caller]
fn reason(bytes: &[u8], case: &str) -> u16 {
    assert!(bytes.len() >= 24 && bytes[0] == TERMINATES, "{case}: {bytes:?}");
    let length = usize::from(bytes[4]);
    assert!(bytes[2] == 24 && (24..=bytes.len()).contains(&length), "{case}: {bytes:?}");
    u16::from_le_bytes([bytes[8], bytes[9]])
}

#[test]
fn a_broken_message_ends_its_connection_with_a_reason_and_no_other() {
    let (_volume, server) = serve(&[]);
    let access = access(&server);
    let (controller, mut queue) = honest(&access);
    let (field, sequence) = (1, 2);
    let read = || capsule(io_command::READ, 7, 0, 8, 4096, &[]);
    let cases = [
        ("an unknown type", with(read(), 0, &[0x0B]), field),
        ("the controller's type", with(read(), 0, &[RESPONSE]), field),
        ("a second ICReq", message(0, 0, &[0; 120], &[]), sequence),
        ("HLEN too short", with(read(), 2, &[64]), field),
        ("HLEN of 0", with(read(), 2, &[0]), field),
        ("PLEN too short", with(read(), 4, &[71]), field),
        ("PLEN of 0", with(read(), 4, &[0]), field),
        ("PLEN of 4 GiB", with(read(), 4, &[0xFF; 4]), field),
        ("a digest that was not agreed on", with(read(), 1, &[1]), field),
        (
            "PDO within the header",
            with(capsule(io_command::WRITE, 7, 0, 1, 512, &[0; 512]), 3, &[40]),
            field,
        ),
        ("data that nobody asked for", host_data(7, 3, 0, 512, true, &[0; 512]), field),
    ];
    for (case, bytes, wanted) in cases {
        let mut raw = Raw::connect(&access, controller.id(), 2, 8);
        raw.send(&bytes);
        let found = reason(&raw.rest(), case);
        // A PLEN that says too much may be a limit as well.
        assert!(found == wanted || case.starts_with("PLEN") && found >= 4, "{case}: {found}");
        is_served(&mut queue, 3);
    }
    server.end();
}

#[test]
fn data_that_differs_from_what_was_asked_for_ends_the_connection() {
    let (_volume, server) = serve(&[]);
    let access = access(&server);
    let (controller, mut queue) = honest(&access);
    let data = [7; 8192];
    type Make = fn(u16, &[u8]) -> Vec<u8>;
    let cases: [(&str, Make); 9] = [
        ("another id", |tag, data| host_data(8, tag, 0, 8192, true, data)),
        ("another tag", |tag, data| host_data(7, tag ^ 0x55, 0, 8192, true, data)),
        ("an offset beyond", |tag, data| host_data(7, tag, 8192, 8192, true, data)),
        ("an offset far beyond", |tag, data| host_data(7, tag, u32::MAX - 3, 8192, true, data)),
        ("not the beginning", |tag, data| host_data(7, tag, 512, 512, false, &data[..512])),
        ("DATAL that says more", |tag, data| host_data(7, tag, 0, 8192, true, &data[..512])),
        ("DATAL that says less", |tag, data| host_data(7, tag, 0, 512, false, data)),
        ("LAST before the last", |tag, data| host_data(7, tag, 0, 512, true, &data[..512])),
        ("too much in all", |tag, data| {
            let first = host_data(7, tag, 0, 8192, true, data);
            [first, host_data(7, tag, 8192, 512, true, &data[..512])].concat()
        }),
    ];
    for (case, make) in cases {
        let mut raw = Raw::connect(&access, controller.id(), 2, 8);
        raw.send(&capsule(io_command::WRITE, 7, 512, 16, 8192, &[]));
        let ready = raw.message();
        assert_eq!((ready[0], &ready[8..10]), (READY, &[7, 0][..]), "{case}");
        raw.send(&make(u16::from_le_bytes([ready[10], ready[11]]), &data));
        let rest = raw.rest();
        // Of too much in all, the first part may be answered before.
        let end = rest.windows(3).rposition(|bytes| bytes == [TERMINATES, 0, 24]);
        let end = end.unwrap_or_else(|| panic!("{case}: {rest:?}"));
        let last = &rest[end..];
        assert!([1, 2, 4, 5].contains(&reason(last, case)), "{case}");
        let length = u32::from_le_bytes(last[4..8].try_into().expect("four bytes"));
        assert_eq!(last.len(), length as usize, "{case}: more follows: {last:?}");
        is_served(&mut queue, 5);
    }
    server.end();
}

#[test]
fn a_command_that_cannot_be_gets_a_status_and_the_connection_goes_on() {
    let (_volume, server) = serve(&[]);
    let access = access(&server);
    let (_controller, mut queue) = honest(&access);
    let blocks = VOLUME_BYTES as u64 / 512;
    let command =
        |opcode, namespace, payload| HostCommand::new("a command", opcode, namespace, payload);
    let from = Payload::FromController;
    let cases = [
        ("beyond the end", range(blocks, 1).read(512), 0x80),
        ("across the end", range(blocks - 1, 2).read(1024), 0x80),
        ("far beyond", range(u64::MAX, 2).read(1024), 0x80),
        ("a write beyond", range(blocks, 1).write(vec![0; 512], false), 0x80),
        ("zeroes beyond", range(blocks - 1, 65_536).write_zeroes(false), 0x80),
        ("no namespace 0", command(io_command::READ, 0, from(512)), 0x0B),
        ("no namespace 99", command(io_command::READ, 99, from(512)), 0x0B),
        ("no such opcode", command(0x7E, 1, Payload::None), 0x01),
        ("more data than blocks", range(0, 1).read(1024), 0x0F),
        ("less data than blocks", range(0, 2).read(512), 0x0F),
        ("less to write than blocks", range(0, 2).write(vec![0; 512], false), 0x0F),
        ("more to write than blocks", range(0, 1).write(vec![0; 1024], false), 0x0F),
        (
            "a property on an I/O queue",
            HostCommand::fabrics("a property", fabrics::PROPERTY_GET, Payload::None),
            0,
        ),
    ];
    for (case, command, code) in cases {
        let error = queue.connection().call(command).expect_err(case);
        let HostError::Command(failed) = error else { panic!("{case}: {error}") };
        if code != 0 {
            assert_eq!((failed.status.kind(), failed.status.code()), (0, code), "{case}");
        }
        is_served(&mut queue, 9);
    }
    server.end();
}

#[test]
fn bytes_one_at_a_time_and_many_commands_at_once_are_as_good() {
    let (_volume, server) = serve(&[]);
    let access = access(&server);
    let (controller, mut queue) = honest(&access);
    is_served(&mut queue, 11);
    let mut raw = Raw::connect(&access, controller.id(), 2, 128);
    raw.stream.set_nodelay(true).expect("small packets");
    for byte in capsule(io_command::WRITE, 1, 200, 1, 512, &[0xAB; 512]) {
        raw.send(&[byte]);
    }
    assert_eq!(raw.message()[0], RESPONSE);
    let many: Vec<u8> =
        (0..100).flat_map(|id| capsule(io_command::READ, id, 200, 1, 512, &[])).collect();
    raw.send(&many);
    let mut bytes = vec![0; 100 * (24 + 512 + 24)];
    raw.stream.read_exact(&mut bytes).expect("all answers");
    let mut ids: Vec<u8> = bytes
        .chunks(24 + 512 + 24)
        .map(|answer| {
            assert!(answer[24..536] == [0xAB; 512] && answer[550..552] == [0, 0][..]);
            answer[8]
        })
        .collect();
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..100));
    server.end();
}

#[test]
fn a_host_that_overruns_its_queue_is_the_only_one_to_suffer() {
    let (_volume, server) = serve(&[]);
    let access = access(&server);
    let (controller, mut queue) = honest(&access);
    let mut raw = Raw::connect(&access, controller.id(), 2, 4);
    // Writes whose data never comes stay in flight.
    let many: Vec<u8> =
        (0..2000).flat_map(|id| capsule(io_command::WRITE, id, 0, 16, 8192, &[])).collect();
    raw.send(&many);
    let rest = raw.rest();
    // A request for the data of each, and the end with the command's header.
    assert!(
        rest.len() <= 4 * 24 + 24 + 72,
        "no more is asked for than there are places: {}",
        rest.len()
    );
    is_served(&mut queue, 13);
    server.end();
}

/// Memory of a server's process in bytes.
fn resident_bytes(server: &Server) -> usize {
    let text = std::fs::read_to_string(format!("/proc/{}/statm", server.pid())).expect("statm");
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number") * 4096
}

#[test]
fn hosts_that_never_read_cost_no_more_than_the_memory_for_requests() {
    let (_volume, server) = serve(&[]);
    let access = access(&server);
    let (controller, mut queue) = honest(&access);
    let before = resident_bytes(&server);
    let reads: Vec<u8> =
        (0..120).flat_map(|id| capsule(io_command::READ, id, 0, 512, 256 << 10, &[])).collect();
    let mut others: Vec<Controller> =
        (0..2).map(|_| Controller::connect(&access).expect("a controller")).collect();
    for other in &mut others {
        other.set_queues(4).expect("queues");
    }
    let controllers = [controller.id(), others[0].id(), others[1].id()];
    let deaf: Vec<Raw> = controllers
        .into_iter()
        .flat_map(|controller| (2..=4).map(move |id| (controller, id)))
        .map(|(controller, id)| {
            let mut raw = Raw::connect(&access, controller, id, 128);
            raw.send(&reads);
            raw
        })
        .collect();
    for seed in 0..20 {
        is_served(&mut queue, seed);
    }
    let used = resident_bytes(&server).saturating_sub(before);
    // 270 MiB are asked for; each of the two threads has 256 MiB for all requests, and one host
    // gets a part.
    assert!(used < 300 << 20, "{used} bytes");
    drop(deaf);
    is_served(&mut queue, 17);
    server.end();
}

#[test]
fn connections_that_say_nothing_are_ended_and_cost_little() {
    let (_volume, server) = serve(&["--max-connections", "300"]);
    let access = access(&server);
    let (_controller, mut queue) = honest(&access);
    let before = resident_bytes(&server);
    for _ in 0..10 {
        // No more than the limit of open files allows the test.
        let silent: Vec<_> =
            (0..280).map(|_| TcpStream::connect(&access.address).expect("a connection")).collect();
        is_served(&mut queue, 19);
        drop(silent);
    }
    let used = resident_bytes(&server).saturating_sub(before);
    assert!(used < 32 << 20, "{used} bytes");
    let mut silent = TcpStream::connect(&access.address).expect("a connection");
    silent.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let ended = silent.read(&mut [0; 128]);
    assert!(
        matches!(&ended, Ok(0))
            || ended.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset),
        "the server waits for ever: {ended:?}"
    );
    is_served(&mut queue, 23);
    server.end();
}

#[test]
fn a_host_that_is_silent_beyond_its_keep_alive_time_loses_all_its_queues() {
    let (_volume, server) = serve(&[]);
    let access = access(&server);
    let (_controller, mut other) = honest(&access);
    let short = Access { keep_alive_ms: 1000, ..access.clone() };
    let (mut controller, mut queue) = honest(&short);
    is_served(&mut queue, 29);
    // One client, and the one that is silent with its I/O queue.
    wait_until("the end of a silent host", || server.status().connections <= 2);
    assert!(controller.keep_alive().is_err());
    assert!(queue.read(range(0, 1), 512).is_err());
    is_served(&mut other, 31);
    server.end();
}
