//! A real server in a thread, spoken to by good clients, bad clients and clients that vanish.

mod access;
mod connections;
mod degraded;
mod ending;
mod kinds;
mod limits;
mod lives;
mod memory;
mod mood;
mod named_clients;
mod resize;
mod restack;
mod shares;
mod shedding;
mod standby;
mod tiers;
mod volumes;
mod weights;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use floe_nbd::wire::ErrorCode;
use floe_nbd::wire::command;

use crate::rig::{Gate, MEMORIES, Rig, Setup, VOLUME, drained, header, simple_reply};
use floe_block::WriteMode;
use floe_device::MediumDevice;
use floe_device::medium::Medium;
use floe_server::ServeError;
use floe_server::admin::client as admin;
use floe_server::nbd_client::{Client, ClientError};
use floe_server::status::Status;
use floe_testkit::faults::{Fault, FaultDevice, FaultPlan, OperationKind};
use floe_testkit::{PATIENCE, Random, patiently, pattern};

const MODES: [WriteMode; 4] =
    [WriteMode::Pass, WriteMode::Through, WriteMode::Around, WriteMode::Back];

/// Reads, writes and zeroes pieces of any size and place, many at once, and compares with plain
/// bytes.
fn churn(client: &mut Client, base: usize, bytes: &mut [u8], seed: u64) {
    let mut random = Random(seed);
    for _ in 0..12 {
        let (mut at, mut expected) = (0, HashMap::new());
        while at < bytes.len() {
            let most = [10, 600, 5_000, 150_000, 400_000][random.below(5)];
            let len = (1 + random.below(most)).min(bytes.len() - at);
            let (offset, piece) = ((base + at) as u64, &mut bytes[at..at + len]);
            match random.below(5) {
                0 | 1 => {
                    piece.copy_from_slice(&pattern(random.next(), len));
                    client.submit_write(offset, piece, random.below(8) == 0).unwrap();
                }
                2 => {
                    piece.fill(0);
                    client.submit_write_zeroes(offset, len as u32, random.below(2) == 0).unwrap();
                }
                _ => {
                    let cookie = client.submit_read(offset, len as u32).unwrap();
                    expected.insert(cookie, piece.to_vec());
                }
            }
            at += len;
        }
        while let Some(reply) = client.next_reply().unwrap() {
            reply.outcome.unwrap();
            if let Some(expected) = expected.remove(&reply.cookie) {
                assert!(reply.data == expected, "a read found something else");
            }
        }
        assert!(expected.is_empty());
    }
}

#[test]
fn many_requests_in_flight_on_several_connections_find_what_was_written() {
    const SHARE: usize = 3_000_001; // neighbours share sectors
    for (mode, memory) in MODES.into_iter().flat_map(|mode| MEMORIES.map(|memory| (mode, memory))) {
        let rig = Setup::new(mode).memory(memory).start().unwrap();
        let mut volume = vec![0; VOLUME];
        std::thread::scope(|scope| {
            for (number, bytes) in volume.chunks_mut(SHARE).take(4).enumerate() {
                let mut client = rig.client_on(number);
                scope.spawn(move || churn(&mut client, number * SHARE, bytes, 7 + number as u64));
            }
        });
        assert!(
            rig.end() == volume,
            "{mode}, memory {memory:?}: the backing device holds something else"
        );
    }
}

#[test]
fn a_client_that_never_reads_its_replies_stops_neither_others_nor_the_end() {
    let rig = Rig::start(WriteMode::Through);
    let mut deaf = rig.raw();
    for cookie in 0..64 {
        deaf.write_all(&header(command::READ, cookie, 0, 4 << 20)).unwrap();
    }
    let mut other = rig.client();
    churn(&mut other, 8 << 20, &mut vec![0; 1 << 20], 1);
    rig.end();
    drained(&mut deaf);
}

#[test]
fn a_client_that_hangs_up_in_a_writes_payload_leaves_the_old_data() {
    let rig = Rig::start(WriteMode::Through);
    let mut client = rig.client();
    let old = pattern(1, 1 << 20);
    client.write(0, &old, false).unwrap();
    for sent in [0, 1, 4096, 70_000, (1 << 20) - 1] {
        let mut leaver = rig.raw();
        leaver.write_all(&header(command::WRITE, 1, 0, 1 << 20)).unwrap();
        leaver.write_all(&vec![0xff; sent]).unwrap();
        leaver.shutdown(Shutdown::Write).unwrap();
        assert!(drained(&mut leaver).is_empty());
    }
    let mut found = vec![0; old.len()];
    client.read(0, &mut found).unwrap();
    assert!(found == old);
    rig.wait_for(|status| status.connections == 1);
    rig.end();
}

#[test]
fn half_a_header_is_waited_for_and_can_be_hung_up_on() {
    let rig = Rig::start(WriteMode::Through);
    let request = header(command::READ, 9, 100, 3);
    for cut in 1..request.len() {
        let mut slow = rig.raw();
        slow.write_all(&request[..cut]).unwrap();
        rig.wait_for(|status| status.connections >= 1); // the server has gone round meanwhile
        if cut % 2 == 0 {
            slow.write_all(&request[cut..]).unwrap();
            assert_eq!(simple_reply(&mut slow), (0, 9));
            slow.read_exact(&mut [0; 3]).unwrap();
        }
        slow.shutdown(Shutdown::Write).unwrap();
        assert!(drained(&mut slow).is_empty());
    }
    rig.wait_for(|status| status.connections == 0);
    rig.end();
}

#[test]
fn garbage_instead_of_a_handshake_or_a_request_is_hung_up_on() {
    let rig = Rig::start(WriteMode::Through);
    let garbage = pattern(3, 300_000);
    let mut stranger = rig.stranger();
    let _ = stranger.write_all(&garbage); // the server may hang up before it has all
    drained(&mut stranger);
    let mut client = rig.raw();
    let _ = client.write_all(&garbage);
    drained(&mut client);
    rig.wait_for(|status| status.connections == 0);
    rig.client().write(0, b"still here", false).unwrap();
    rig.end();
}

#[test]
fn hundreds_of_connections_come_and_go() {
    let rig = Rig::start(WriteMode::Through);
    for number in 0..300 {
        match number % 4 {
            0 => drop(rig.stranger()),
            1 => drop(rig.raw()),
            2 => drop(rig.client()),
            _ => rig.client_on(number).disconnect().unwrap(),
        }
    }
    rig.wait_for(|status| status.connections == 0);
    let mut all: Vec<_> = (0..100).map(|number| rig.client_on(number)).collect();
    for (number, client) in all.iter_mut().enumerate() {
        client.write(number as u64 * 1000, &[number as u8; 1000], false).unwrap();
    }
    assert_eq!(rig.status().connections, 100);
    drop(all);
    rig.wait_for(|status| status.connections == 0);
    let volume = rig.end();
    assert!((0..100).all(|number| volume[number * 1000..][..1000] == [number as u8; 1000]));
}

#[test]
fn clients_gone_while_their_reads_are_under_way_leave_nothing_behind() {
    let rig = Rig::on(WriteMode::Through, |memory| {
        Box::new(MediumDevice::new(memory, Medium::named("cloud").unwrap(), 1))
    });
    for round in 0..8 {
        let mut leaver = rig.client_on(round);
        for number in 0..50 {
            leaver.submit_read((round as u64 * 50 + number) * 70_000, 60_000).unwrap();
        }
        drop(leaver); // its place is given to the next while devices are still busy
        let mut next = rig.client_on(round);
        next.write(60 << 20, &[round as u8; 5000], false).unwrap();
        let mut found = [0; 5000];
        next.read(60 << 20, &mut found).unwrap();
        assert_eq!(found, [round as u8; 5000]);
    }
    rig.wait_for(|status| status.connections == 0);
    rig.end();
}

#[test]
fn the_end_comes_at_once_with_idle_clients_and_flushes_dirty_data() {
    let rig = Rig::start(WriteMode::Back);
    let data = pattern(5, 1_000_000);
    let mut clients: Vec<_> = (0..5).map(|number| rig.client_on(number)).collect();
    let stranger = rig.stranger();
    clients[0].write(12_345, &data, false).unwrap();
    assert!(rig.status().cache.dirty_bytes > 0);
    let volume = rig.end();
    assert!(volume[12_345..][..data.len()] == data);
    for client in &mut clients {
        assert!(client.read(0, &mut [0; 10]).is_err());
    }
    drop(stranger);
}

#[test]
fn requests_in_flight_when_the_end_comes_are_answered() {
    let gate = Gate::default();
    let rig = Rig::on(WriteMode::Through, {
        let gate = gate.clone();
        move |memory| gate.before(memory)
    });
    let mut client = rig.client();
    gate.shut();
    for number in 0..20 {
        client.submit_read(number << 20, 4096).unwrap();
        client.submit_write((number << 20) + (512 << 10), &[7; 4096], false).unwrap();
    }
    gate.wait_for(40);
    rig.tell_to_end();
    rig.wait_for(|status| status.connections == 1); // it can still be asked
    gate.open();
    for _ in 0..40 {
        client.next_reply().unwrap().unwrap().outcome.unwrap();
    }
    let (result, volume) = rig.join();
    result.unwrap();
    assert!(volume[(19 << 20) + (512 << 10)..][..4096] == [7; 4096]);
}

#[test]
fn the_end_in_the_middle_of_a_large_payload_drops_that_write_only() {
    let gate = Gate::default();
    let rig = Rig::on(WriteMode::Through, {
        let gate = gate.clone();
        move |memory| gate.before(memory)
    });
    let mut writer = rig.raw();
    gate.shut();
    writer.write_all(&header(command::WRITE, 1, 0, 4096)).unwrap();
    writer.write_all(&[1; 4096]).unwrap();
    gate.wait_for(1);
    writer.write_all(&header(command::WRITE, 2, 1 << 20, 1 << 20)).unwrap();
    writer.write_all(&vec![2; 600_000]).unwrap();
    rig.status(); // by now the payload is being received
    rig.tell_to_end();
    rig.status();
    writer.write_all(&vec![2; (1 << 20) - 600_000]).unwrap();
    rig.status();
    gate.open();
    assert_eq!(simple_reply(&mut writer), (0, 1));
    assert!(drained(&mut writer).is_empty());
    let (result, volume) = rig.join();
    result.unwrap();
    assert!(volume[..4096] == [1; 4096] && volume[1 << 20..2 << 20].iter().all(|byte| *byte == 0));
}

#[test]
fn a_second_signal_while_the_server_ends_changes_nothing() {
    let gate = Gate::default();
    let rig = Rig::on(WriteMode::Back, {
        let gate = gate.clone();
        move |memory| gate.before(memory)
    });
    rig.client().write(0, &[3; 100_000], true).unwrap();
    rig.client().write(4 << 20, &[3; 100_000], false).unwrap();
    gate.shut();
    for _ in 0..3 {
        rig.tell_to_end();
        gate.wait_for(1);
    }
    gate.open();
    let (result, volume) = rig.join();
    result.unwrap();
    assert!(volume[4 << 20..][..100_000] == [3; 100_000]);
}

#[test]
fn the_signals_other_end_may_vanish_while_the_server_ends() {
    let gate = Gate::default();
    let mut rig = Rig::on(WriteMode::Back, {
        let gate = gate.clone();
        move |memory| gate.before(memory)
    });
    rig.client().write(0, &[3; 100_000], false).unwrap();
    gate.shut();
    rig.signal = std::os::unix::net::UnixStream::pair().unwrap().0;
    gate.wait_for(1);
    gate.open();
    let (result, volume) = rig.join();
    result.unwrap();
    assert!(volume[..100_000] == [3; 100_000]);
}

#[test]
fn everyone_who_asked_for_a_flush_or_the_end_is_told() {
    let gate = Gate::default();
    let rig = Rig::on(WriteMode::Back, {
        let gate = gate.clone();
        move |memory| gate.before(memory)
    });
    rig.client().write(0, &[8; 50_000], false).unwrap();
    gate.shut();
    let ask = |what: &str| {
        let mut stream = rig.admin_stranger();
        write!(stream, "POST /{what} HTTP/1.1\r\n\r\n").unwrap();
        stream
    };
    let mut asked = vec![ask("flush"), ask("flush")];
    gate.wait_for(1);
    asked.extend([ask("stop"), ask("stop"), ask("flush"), ask("stop")]);
    let mut idle = rig.admin_stranger();
    idle.write_all(b"POST /st").unwrap();
    assert!(rig.status().cache.dirty_bytes > 0); // whoever came earlier has been heard
    gate.open();
    for mut asked in asked {
        let answer = String::from_utf8(drained(&mut asked)).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer:?}");
    }
    drained(&mut idle);
    let (result, volume) = rig.join();
    result.unwrap();
    assert!(volume[..50_000] == [8; 50_000]);
}

#[test]
fn admin_flushes_go_on_beside_writes() {
    let rig = Rig::start(WriteMode::Back);
    let mut bytes = vec![0; 4 << 20];
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| churn(&mut rig.client(), 0, &mut bytes, 11));
        while !writer.is_finished() {
            admin::flush(&rig.admin).unwrap();
        }
    });
    admin::flush(&rig.admin).unwrap();
    assert_eq!(rig.status().cache.dirty_bytes, 0);
    assert!(rig.end()[..bytes.len()] == bytes);
}

#[test]
fn garbage_on_the_admin_address_is_refused() {
    let rig = Rig::start(WriteMode::Through);
    let long = [b"GET /status HTTP/1.1\r\nA: ".as_slice(), &[b'a'; 20_000]].concat();
    for (garbage, code) in [
        (b"\0\x01\x02\x03\r\n\r\n".as_slice(), "400"),
        (b"GET /etc/passwd HTTP/1.1\r\n\r\n", "404"),
        (b"DELETE /stop HTTP/1.1\r\n\r\n", "405"),
        (b"POST /stop HTTP/1.1\r\n\r\n", "403"),
        (&long, "431"),
    ] {
        let mut stream = TcpStream::connect(&rig.admin_tcp).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.write_all(garbage); // the server may hang up before it has all
        let answer = String::from_utf8(drained(&mut stream)).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{answer}");
    }
    drop(TcpStream::connect(&rig.admin_tcp).unwrap());
    drop(rig.admin_stranger());
    rig.end();
}

#[test]
fn a_failing_last_flush_says_how_much_is_dirty() {
    let rig = Rig::on(WriteMode::Back, |memory| {
        let plan = (0..100)
            .fold(FaultPlan::none(), |plan, nth| plan.on(OperationKind::Write, nth, Fault::Fail));
        Box::new(FaultDevice::new(memory, plan).0)
    });
    rig.client().write(0, &[4; 40_960], false).unwrap();
    let problem = admin::stop(&rig.admin).unwrap_err().to_string();
    assert!(problem.contains("the last flush failed"), "{problem}");
    let (result, volume) = rig.join();
    assert!(matches!(result, Err(ServeError::LastFlush { dirty_bytes: 40_960, .. })), "{result:?}");
    assert!(volume[..40_960] == [0; 40_960]);
}

#[test]
fn a_failed_operation_reaches_the_client_as_eio_and_the_connection_goes_on() {
    let rig = Rig::on(WriteMode::Through, |memory| {
        let plan = FaultPlan::none()
            .on(OperationKind::Read, 0, Fault::Fail)
            .on(OperationKind::Write, 1, Fault::Fail)
            .on(OperationKind::Flush, 0, Fault::Fail);
        Box::new(FaultDevice::new(memory, plan).0)
    });
    let mut client = rig.client();
    let eio = |result: Result<(), ClientError>| match result {
        Err(ClientError::Request(error)) => assert_eq!(error.code, ErrorCode::Io),
        other => panic!("{other:?}"),
    };
    eio(client.read(0, &mut [0; 4096]));
    client.read(0, &mut [0; 4096]).unwrap();
    client.write(4096, &[1; 4096], false).unwrap();
    eio(client.write(4096, &[2; 4096], false));
    client.write(4096, &[3; 4096], false).unwrap();
    eio(client.flush());
    client.flush().unwrap();
    let mut found = [0; 4096];
    client.read(4096, &mut found).unwrap();
    assert_eq!(found, [3; 4096]);
    assert_eq!(rig.status().devices.backing_errors, 3);
    rig.end();
}

#[test]
fn the_longest_request_is_served_and_a_longer_one_refused() {
    let rig = Rig::start(WriteMode::Through);
    let mut client = rig.client();
    let data = pattern(6, 32 << 20);
    let write = client.submit_write(4097, &data, false).unwrap();
    let reply = client.next_reply().unwrap().unwrap();
    assert_eq!((reply.cookie, reply.outcome), (write, Ok(())));
    let reads: Vec<_> = (0..3).map(|_| client.submit_read(4097, 32 << 20).unwrap()).collect();
    for _ in reads {
        assert!(client.next_reply().unwrap().unwrap().data == data);
    }
    client.submit_read(0, (32 << 20) + 1).unwrap();
    assert_eq!(client.next_reply().unwrap().unwrap().outcome.unwrap_err().code, ErrorCode::Invalid);
    client.read(0, &mut [0; 10]).unwrap();
    rig.end();
}

#[test]
fn requests_of_no_bytes_are_answered() {
    for mode in MODES {
        let rig = Rig::start(mode);
        let mut client = rig.raw();
        let commands = [command::READ, command::WRITE, command::TRIM, command::WRITE_ZEROES];
        for (number, offset) in [0, 5000, VOLUME as u64].into_iter().enumerate() {
            for (cookie, what) in commands.into_iter().enumerate() {
                client.write_all(&header(what, cookie as u64, offset, 0)).unwrap();
                assert_eq!(
                    simple_reply(&mut client),
                    (0, cookie as u64),
                    "{mode}, {what} number {number}"
                );
            }
        }
        rig.end();
    }
}

#[test]
fn payloads_may_be_split_anywhere() {
    let rig = Rig::start(WriteMode::Through);
    let mut random = Random(17);
    let mut bytes = Vec::new();
    let mut volume = vec![0; 2 << 20];
    let mut writes = 0;
    for len in [1, 27, 28, 29, 511, 4095, 65_507, 65_508, 65_509, 65_535, 65_536, 65_537, 200_001] {
        for _ in 0..3 {
            let at = random.below(volume.len() - len);
            let data = pattern(random.next(), len);
            volume[at..at + len].copy_from_slice(&data);
            bytes.extend(header(command::WRITE, writes, at as u64, len as u32));
            bytes.extend(data);
            bytes.extend(header(command::FLUSH, writes, 0, 0));
            writes += 1;
        }
    }
    // Writes in flight at once may overlap, and are then carried out in any order: one after the
    // other.
    let mut client = rig.raw();
    let mut at = 0;
    for _ in 0..writes {
        let len = u32::from_be_bytes(bytes[at + 24..at + 28].try_into().unwrap()) as usize;
        let end = at + 28 + len + 28;
        while at < end {
            let most = [3, 40, 5000, 70_000][random.below(4)];
            let piece = (1 + random.below(most)).min(end - at);
            client.write_all(&bytes[at..at + piece]).unwrap();
            at += piece;
            if random.below(4) == 0 {
                std::thread::yield_now();
            }
        }
        assert_eq!(simple_reply(&mut client).0, 0);
        assert_eq!(simple_reply(&mut client).0, 0);
    }
    assert!(rig.end()[..volume.len()] == volume);
}

#[test]
fn a_client_that_only_stops_sending_still_gets_its_replies() {
    let gate = Gate::default();
    let rig = Rig::on(WriteMode::Through, {
        let gate = gate.clone();
        move |memory| gate.before(memory)
    });
    gate.shut();
    let mut client = rig.raw();
    for cookie in 0..5 {
        client.write_all(&header(command::READ, cookie, cookie << 20, 10)).unwrap();
    }
    client.shutdown(Shutdown::Write).unwrap();
    gate.wait_for(5);
    gate.open();
    assert_eq!(drained(&mut client).len(), 5 * 26);
    patiently(|| (rig.status().connections == 0).then_some(()));
    rig.end();
}

/// A piece of a request travels to the thread whose shard it belongs to, and its answer back: two
/// messages for a hit, and a third when a miss has been stored after its answer. What stays on its
/// own thread costs none.
#[test]
fn a_piece_of_another_thread_costs_two_messages_or_three() {
    let rig = Rig::start(WriteMode::Through);
    let mut client = rig.client();
    let (mut data, regions) = (vec![1; 4096], 200);
    let mut round = || {
        let sent = |status: Status| [status.threads[0].messages, status.threads[1].messages];
        let before = sent(rig.status());
        for region in 0..regions {
            client.read(region * (64 << 10), &mut data).unwrap();
        }
        let after = sent(rig.status());
        [after[0] - before[0], after[1] - before[1]]
    };
    let [pieces, answers] = round();
    assert_eq!(answers, 2 * pieces, "misses");
    for _ in 0..2 {
        assert_eq!(round(), [pieces, pieces], "hits");
    }
    assert!(
        (regions / 4..regions * 3 / 4).contains(&pieces),
        "{pieces} of {regions} pieces were sent away"
    );
    drop(client);
    rig.end();
}
