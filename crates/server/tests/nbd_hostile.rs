//! Clients that mean harm, or are out of order: what they cost has bounds, and others are served
//! meanwhile.
//!
//! Alone in its process, whose memory it measures.

mod alone;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "it/rig.rs"]
mod rig;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use alone::{is_served, resident_bytes};
use floe_block::WriteMode;
use floe_nbd::uri::Address;
use floe_server::limits::Limits;
use floe_server::nbd_client::Client;
use floe_testkit::{PATIENCE, Random, patiently, pattern};
use rig::{Rig, drained, header, shake_hands, simple_reply};

fn serve(limits: Limits) -> Rig {
    Rig::tuned(WriteMode::Back, |memory| Box::new(memory), |config| config.limits = limits)
}

#[test]
fn a_client_too_many_is_hung_up_on_until_another_leaves() {
    let rig = serve(Limits { connections: 2, ..Limits::default() });
    let (first, mut second) = (rig.raw(), rig.client());
    assert_eq!(drained(&mut rig.stranger()), b"");
    drop(first);
    rig.wait_for(|status| status.connections == 1);
    rig.raw();
    is_served(&mut second, 1);
}

#[test]
fn who_does_not_finish_the_handshake_is_sent_away() {
    let rig = serve(Limits { handshake_time: Duration::ZERO, ..Limits::default() });
    let mut half_open = rig.stranger();
    let mut half_said = rig.stranger();
    half_said.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\x10\0").unwrap();
    assert_eq!((drained(&mut half_open).len(), drained(&mut half_said).len()), (18, 18));
    rig.wait_for(|status| status.connections == 0);
}

#[test]
fn those_who_never_read_are_hung_up_on_where_others_wait_for_their_memory() {
    const LENGTH: u32 = 4 << 20;
    // The system's socket buffers take a few MiB of each; what is beyond that is the server's.
    let limits = Limits {
        budget_bytes: 64 << 20,
        stall_time: Duration::from_millis(100),
        ..Limits::default()
    };
    let rig = serve(limits);
    // All at once, for who has asked for something may be hung up on soon.
    let requests: Vec<u8> = (0..8).flat_map(|cookie| header(0, cookie, 0, LENGTH)).collect();
    let deaf: Vec<TcpStream> = (0..10)
        .map(|_| {
            let mut stream = rig.raw();
            stream.write_all(&requests).unwrap();
            stream
        })
        .collect();
    // They are hung up on for the sake of clients that wait: this one does, until its read is
    // answered.
    let honest = std::cell::RefCell::new((rig.client(), vec![0; LENGTH as usize]));
    rig.wait_for(|status| {
        let (client, data) = &mut *honest.borrow_mut();
        client.read(0, data).expect("a read");
        status.connections < 11
    });
    drop(deaf);
    is_served(&mut rig.client(), 3);
}

#[test]
fn those_who_never_end_a_write_are_hung_up_on_where_others_wait_for_their_memory() {
    const LENGTH: u32 = 4 << 20;
    let limits = Limits {
        budget_bytes: 8 << 20,
        stall_time: Duration::from_millis(100),
        ..Limits::default()
    };
    let rig = serve(limits);
    // At once, for who has begun a write may be hung up on soon.
    let half_a_write = [&header(1, 1, 1 << 20, LENGTH)[..], &[0xaa; 1000]].concat();
    let half: Vec<TcpStream> = (0..10)
        .map(|_| {
            let mut stream = rig.raw();
            stream.write_all(&half_a_write).unwrap();
            stream
        })
        .collect();
    rig.wait_for(|status| status.connections < 10);
    drop(half);
    is_served(&mut rig.client(), 3);
    let written = rig.end();
    assert!(
        written[1 << 20..(1 << 20) + 1000].iter().all(|byte| *byte == 0),
        "half a write is none"
    );
}

/// No client is broken off with for being slow, however long a test takes: what is answered is
/// answered beside it.
fn without_time() -> Limits {
    Limits { stall_time: Duration::from_secs(86400), budget_bytes: 64 << 20, ..Limits::default() }
}

/// A server of one thread, so that all clients share one budget.
fn serve_on_one_thread(limits: Limits) -> Rig {
    let mut setup = rig::Setup::new(WriteMode::Back).threads(1);
    setup.config.limits = Limits { farewell_time: Duration::from_millis(50), ..limits };
    setup.start().unwrap()
}

/// A connection after a handshake, over a Unix socket, in which the system keeps little of what
/// nobody reads.
fn raw_unix(rig: &Rig) -> UnixStream {
    let Address::Unix(path) = &rig.uris[0].address else { panic!("{:?}", rig.uris) };
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    shake_hands(&mut stream);
    stream
}

/// That requests of old and new clients are answered while so many others stall, none of which is
/// broken off with.
fn others_are_served(rig: &Rig, good: &mut Client, stalled: usize) {
    for seed in 0..20 {
        is_served(good, seed);
        is_served(&mut rig.client(), seed + 20);
    }
    // Not more than is each client's own, here 16 KiB, but that of a few stalled ones.
    let mut read = vec![0; if stalled <= 24 { 32 << 10 } else { 16 << 10 }];
    good.read(0, &mut read).unwrap();
    rig.wait_for(|status| status.connections as usize == stalled + 1);
    let metrics = floe_server::admin::client::metrics(&rig.admin).unwrap();
    assert!(metrics.contains("\nfloe_clients_hung_up_on_total 0\n"), "{metrics}");
}

#[test]
fn readers_that_stall_for_ever_keep_no_request_of_others_waiting() {
    for stalled in [24, 200] {
        let rig = serve_on_one_thread(without_time());
        let mut good = rig.client();
        let deaf: Vec<_> = (0..stalled)
            .map(|number| {
                let mut stream = raw_unix(&rig);
                // As much as they may, of all sizes.
                let length = [32 << 20, 1 << 20, 128 << 10, 4 << 10][number % 4];
                let requests: Vec<u8> =
                    (0..256).flat_map(|cookie| header(0, cookie, 0, length)).collect();
                stream.write_all(&requests).unwrap();
                stream
            })
            .collect();
        rig.wait_for(|status| status.cache.requests.reads >= stalled as u64);
        others_are_served(&rig, &mut good, stalled);
        drop(deaf);
        rig.wait_for(|status| status.connections == 1);
        is_served(&mut good, 3);
        rig.end();
    }
}

#[test]
fn writers_that_stall_for_ever_in_the_middle_keep_no_request_of_others_waiting() {
    for stalled in [24, 200] {
        let rig = serve_on_one_thread(without_time());
        let mut good = rig.client();
        let half: Vec<_> = (0..stalled)
            .map(|number| {
                let mut stream = raw_unix(&rig);
                let length = [32 << 20, 1 << 20, 128 << 10, 4 << 10][number % 4];
                let write = [&header(1, 1, 1 << 20, length)[..], &[0xaa; 1000]].concat();
                // Some have not even said what they want.
                stream.write_all(&write[..if number % 5 == 4 { 13 } else { write.len() }]).unwrap();
                stream
            })
            .collect();
        others_are_served(&rig, &mut good, stalled);
        drop(half);
        rig.wait_for(|status| status.connections == 1);
        let written = rig.end();
        assert!(
            written[1 << 20..(1 << 20) + 1000].iter().all(|byte| *byte == 0),
            "half a write is none"
        );
    }
}

#[test]
fn a_slow_reader_gets_what_it_asked_for() {
    let rig = serve(Limits::default());
    let data = pattern(9, 3 << 20);
    let mut good = rig.client();
    good.write(0, &data, false).unwrap();
    let mut slow = rig.raw();
    slow.write_all(&header(0, 1, 0, data.len() as u32)).unwrap();
    assert_eq!(simple_reply(&mut slow), (0, 1));
    let mut read = vec![0; data.len()];
    for (number, piece) in read.chunks_mut(100_000).enumerate() {
        slow.read_exact(piece).unwrap();
        is_served(&mut good, 1024 + number as u64);
    }
    assert!(read == data);
}

#[test]
fn huge_lengths_are_refused_counted_and_cost_no_memory() {
    let rig = serve(Limits::default());
    let before = resident_bytes();
    let mut stream = rig.raw();
    for (command, code) in [(0, 22), (4, 22), (5, 22), (6, 28), (7, 22)] {
        stream.write_all(&header(command, 3, 0, u32::MAX)).unwrap();
        assert_eq!(simple_reply(&mut stream), (code, 3), "command {command}");
    }
    assert_eq!(rig.status().cache.requests.errors, 5);
    stream.write_all(&header(1, 4, 0, u32::MAX)).unwrap();
    assert_eq!(drained(&mut stream), b"");
    let mut stranger = rig.stranger();
    stranger.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x07\xff\xff\xff\xff").unwrap();
    drained(&mut stranger);
    assert!(resident_bytes().saturating_sub(before) < 256 << 20);
    is_served(&mut rig.client(), 1);
}

#[test]
fn garbage_ends_its_own_connection_only() {
    let rig = serve(Limits::default());
    let (mut good, mut random) = (rig.client(), Random(7));
    for round in 0..200 {
        let mut stream = if round % 2 == 0 { rig.stranger() } else { rig.raw() };
        let garbage: Vec<u8> = (0..random.below(2000)).map(|_| random.next() as u8).collect();
        let _ = stream.write_all(&garbage); // the server may have hung up already
        if random.below(2) == 0 {
            let _ = stream.shutdown(Shutdown::Write);
        }
        if round % 20 == 0 {
            is_served(&mut good, round);
        }
    }
    rig.wait_for(|status| status.connections == 1);
    is_served(&mut good, 1);
}

#[test]
fn an_abandoned_client_with_requests_in_flight_leaves_nothing_behind() {
    let rig = serve(Limits::default());
    for number in 0..50 {
        let mut stream = rig.raw();
        for cookie in 0..20 {
            stream.write_all(&header(0, cookie, 4096 * cookie, 1 << 16)).unwrap();
        }
        if number % 2 == 0 {
            stream.write_all(&header(1, 99, 0, 1 << 20)).unwrap();
        }
    }
    rig.wait_for(|status| status.connections == 0);
    is_served(&mut rig.client(), 2);
}

#[test]
fn admin_clients_that_say_nothing_are_hung_up_on_and_others_get_through() {
    let rig = serve(Limits { admin_time: Duration::from_millis(200), ..Limits::default() });
    let mut idle: Vec<_> = (0..100).map(|_| TcpStream::connect(&rig.admin_tcp).unwrap()).collect();
    for stream in &mut idle {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut nothing = Vec::new();
        let gone = stream.read_to_end(&mut nothing);
        // others are resets
        let late = gone.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!late, "nobody hung up");
        assert!(nothing.is_empty());
    }
    // Who asks in time: on a busy machine not every attempt does.
    patiently(|| floe_server::admin::client::status(&rig.admin).ok());
    rig.end();
}
