//! Digests of headers and data, between a real host and a server, over a network that flips bits.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use floe_testkit::nvme_host::tcp::{Controller, IoQueue};
use floe_testkit::nvme_host::{Access, HostError, QueueOptions, Range};
use floe_testkit::{PATIENCE, pattern};

use crate::common::{Server, Volume};

/// A run of these bytes is what the network damages.
const FRAGILE: u8 = 0xA5;

fn access(server: &Server, header_digest: bool, data_digest: bool) -> Access {
    let address = server.nvme.strip_prefix("nvme-tcp://").expect("an address");
    let (address, name) = address.split_once('/').expect("a name");
    let options = QueueOptions { header_digest, data_digest, ..QueueOptions::default() };
    Access { timeout: Some(PATIENCE), options, ..Access::new(address, name) }
}

fn queue(access: &Access) -> (Controller, IoQueue) {
    let mut controller = Controller::connect(access).expect("a controller");
    controller.set_queues(1).expect("a queue");
    let queue = controller.io_queue(1, 32).expect("an I/O queue");
    (controller, queue)
}

fn range(first: u64, bytes: usize) -> Range {
    Range { namespace: 1, first, blocks: (bytes / 512) as u32 }
}

fn serve() -> (Volume, Server) {
    let volume = Volume::new(&vec![0; 8 << 20], "back")
        .on("2")
        .with(&["--listen", "nvme-tcp://127.0.0.1:0"]);
    let server = volume.serve();
    (volume, server)
}

#[test]
fn all_sizes_travel_with_any_digests() {
    let (_volume, server) = serve();
    for (seed, (header, data)) in
        [(false, false), (true, false), (false, true), (true, true)].into_iter().enumerate()
    {
        let (_controller, mut queue) = queue(&access(&server, header, data));
        for (at, bytes) in
            [512, 4096, 8192, 8704, 65_536, 131_072 + 512, 1 << 20].into_iter().enumerate()
        {
            let content = pattern(10 * seed as u64 + at as u64, bytes);
            queue.write(range(7, bytes), content.clone(), false).expect("a write");
            assert!(queue.read(range(7, bytes), bytes as u32).expect("a read") == content);
        }
        // Several at once, whose messages mix.
        let connection = queue.connection();
        let contents: Vec<Vec<u8>> = (0..16).map(|at| pattern(50 + at, 65_536)).collect();
        for (at, content) in contents.iter().enumerate() {
            let write = range(128 * at as u64, 65_536).write(content.clone(), false);
            connection.submit(write).expect("a place");
        }
        for _ in &contents {
            assert!(connection.next_completion().expect("an end").status.is_success());
        }
        for (at, content) in contents.iter().enumerate() {
            let read = queue.read(range(128 * at as u64, 65_536), 65_536);
            assert!(read.expect("a read") == *content);
        }
        queue.deallocate(&[range(0, 65_536)]).expect("a discard");
    }
    assert_eq!(server.status().cache.requests.errors, 0);
    server.end();
}

/// Copies bytes, and flips a bit in the first run of fragile bytes for each damage that is left.
fn carry(mut from: TcpStream, mut to: TcpStream, damages: &AtomicUsize) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let run = bytes[..count].windows(64).position(|run| run.iter().all(|&it| it == FRAGILE));
        let take_one = |left: usize| left.checked_sub(1);
        if let Some(at) = run
            && damages.fetch_update(SeqCst, SeqCst, take_one).is_ok()
        {
            bytes[at + 32] ^= 4;
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both)); // they may be gone
}

/// A network in front of a server, and the numbers of bits that it is to flip: on the way to the
/// server, and back.
fn bad_network(server: String) -> (String, [Arc<AtomicUsize>; 2]) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let damages = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let [there, back] = damages.clone();
    std::thread::spawn(move || {
        for host in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(&server).expect("the server is there");
            let (from, to) = (host.try_clone().expect("a handle"), server.try_clone());
            let (there, back) = (Arc::clone(&there), Arc::clone(&back));
            let to = to.expect("a handle");
            std::thread::spawn(move || carry(from, to, &there));
            std::thread::spawn(move || carry(server, host, &back));
        }
    });
    (address, damages)
}

#[test]
fn damaged_data_is_neither_written_nor_taken_for_good() {
    let (_volume, server) = serve();
    let access = access(&server, true, true);
    let (address, [there, back]) = bad_network(access.address.clone());
    let access = Access { address, ..access };
    let (_controller, mut queue) = queue(&access);
    for bytes in [4096, 200 << 10] {
        let (old, fragile) = (pattern(3, bytes), vec![FRAGILE; bytes]);
        queue.write(range(0, bytes), old.clone(), false).expect("a write");
        for fua in [false, true] {
            there.store(1, SeqCst);
            let error = queue.write(range(0, bytes), fragile.clone(), fua).expect_err("damage");
            assert_eq!(there.load(SeqCst), 0, "a bit was flipped");
            let HostError::Command(error) = error else { panic!("{error}") };
            assert_eq!((error.status.kind(), error.status.code()), (0, 0x22), "{error}");
            assert!(!error.status.do_not_retry());
            assert!(queue.read(range(0, bytes), bytes as u32).expect("a read") == old);
        }
        queue.write(range(0, bytes), fragile.clone(), false).expect("it is sent again");
        assert!(queue.read(range(0, bytes), bytes as u32).expect("a read") == fragile);
    }
    back.store(1, SeqCst);
    let error = queue.read(range(0, 4096), 4096).expect_err("damage");
    assert!(error.to_string().contains("data digest"), "{error}");
    server.end();
}
