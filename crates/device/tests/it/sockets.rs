//! Sockets on the ring.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use crate::common::thread;
use floe_device::{Ring, SocketOutcome, Sockets};

fn next(ring: &Ring, sockets: &mut Sockets) -> (u64, std::io::Result<SocketOutcome>) {
    let mut done = Vec::new();
    sockets.poll(&mut done);
    while done.is_empty() {
        let events = ring.wait(Some(std::time::Duration::from_secs(60))).unwrap();
        assert!(events > 0, "nothing arrives");
        sockets.poll(&mut done);
    }
    assert_eq!(done.len(), 1);
    let completion = done.remove(0);
    (completion.token, completion.result)
}

fn pair() -> (Rc<OwnedFd>, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Rc::new(ours.into()), theirs)
}

#[test]
fn a_client_is_accepted_and_answered() {
    let (ring, pool) = thread();
    let mut sockets = Sockets::new(&ring);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    sockets.accept(1, &Rc::new(listener.into()));
    let mut client = TcpStream::connect(address).unwrap();
    let (1, Ok(SocketOutcome::Accepted(server))) = next(&ring, &mut sockets) else { panic!() };
    let server = Rc::new(server);
    client.write_all(b"question").unwrap();
    let into = pool.allocate(8).whole();
    sockets.receive(2, &server, into.clone(), true);
    assert!(matches!(next(&ring, &mut sockets), (2, Ok(SocketOutcome::Received(8)))));
    assert_eq!(into.to_vec(), b"question");
    drop(client);
    sockets.receive(3, &server, into, false);
    assert!(matches!(next(&ring, &mut sockets), (3, Ok(SocketOutcome::Received(0)))));
}

#[test]
fn a_send_larger_than_every_buffer_arrives_whole_and_in_order() {
    let (ring, pool) = thread();
    let mut sockets = Sockets::new(&ring);
    let (ours, mut theirs) = pair();
    let slices: Vec<_> = (0..50u8)
        .map(|byte| crate::common::slice(&pool, &vec![byte; 1 + byte as usize * 3000]))
        .collect();
    let expected: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
    sockets.send(1, &ours, slices);
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0; expected.len()];
        theirs.read_exact(&mut bytes).unwrap();
        bytes == expected
    });
    assert!(matches!(next(&ring, &mut sockets), (1, Ok(SocketOutcome::Sent(_)))));
    assert!(reader.join().unwrap());
}

#[test]
fn dropping_cancels_what_never_arrives() {
    let (ring, pool) = thread();
    let (ours, _theirs) = pair();
    let mut sockets = Sockets::new(&ring);
    for token in 0..20 {
        sockets.receive(token, &ours, pool.allocate(4096).whole(), true);
    }
    ring.wait(Some(std::time::Duration::ZERO)).unwrap();
    assert_eq!(sockets.in_flight(), 20);
    drop(sockets);
    assert_eq!(Rc::strong_count(&ours), 1);
    assert_eq!(pool.stats().arena_used_bytes, 0);
}

#[test]
fn a_receive_is_cancelled_and_loses_nothing_that_has_arrived() {
    let (ring, pool) = thread();
    let (ours, mut theirs) = pair();
    let (others, _silent) = pair();
    let mut sockets = Sockets::new(&ring);
    sockets.receive(1, &ours, pool.allocate(4096).whole(), false);
    sockets.receive(2, &others, pool.allocate(4096).whole(), false);
    ring.wait(Some(std::time::Duration::ZERO)).unwrap();
    sockets.cancel_receive(1);
    let (1, Err(error)) = next(&ring, &mut sockets) else { panic!("it is not cancelled") };
    assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
    // One that has ended already ends as usual, once.
    theirs.write_all(b"abc").unwrap();
    sockets.receive(1, &ours, pool.allocate(4096).whole(), false);
    ring.wait(Some(std::time::Duration::from_secs(60))).unwrap();
    sockets.cancel_receive(1);
    assert!(matches!(next(&ring, &mut sockets), (1, Ok(SocketOutcome::Received(3)))));
    theirs.write_all(b"d").unwrap();
    sockets.receive(3, &ours, pool.allocate(4096).whole(), false);
    assert!(matches!(next(&ring, &mut sockets), (3, Ok(SocketOutcome::Received(1)))));
    assert_eq!(sockets.in_flight(), 1, "the other receive goes on");
}

#[test]
fn a_descriptor_that_becomes_readable_is_reported() {
    let (ring, _) = thread();
    let (ours, mut theirs) = pair();
    let mut sockets = Sockets::new(&ring);
    sockets.readable(9, &ours);
    ring.wait(Some(std::time::Duration::ZERO)).unwrap();
    assert_eq!(sockets.in_flight(), 1);
    theirs.write_all(b"x").unwrap();
    assert!(matches!(next(&ring, &mut sockets), (9, Ok(SocketOutcome::Readable))));
}

#[test]
fn a_closed_connection_is_an_error_for_the_sender() {
    let (ring, pool) = thread();
    let (ours, theirs) = pair();
    drop(theirs);
    let mut sockets = Sockets::new(&ring);
    sockets.send(1, &ours, vec![crate::common::slice(&pool, b"anyone?")]);
    let (1, Err(error)) = next(&ring, &mut sockets) else { panic!() };
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
}
