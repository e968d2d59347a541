//! The client against well-known servers, where they are installed.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use floe_nbd::uri::{Address, Uri};
use floe_server::nbd_client::{Client, Options};
use floe_testkit::{PATIENCE, is_installed, wait_until};

const SIZE: usize = 4 << 20;

/// A server on a Unix socket, ended with the test.
struct Server(Child);

impl Server {
    /// Starts it and waits until it listens, which is later than its socket is there; `None`, with
    /// a line saying so, when it is not installed.
    fn start(program: &str, arguments: &[&str], socket: &Path) -> Option<Self> {
        if !is_installed(&[program]) {
            return None;
        }
        let child = Command::new(program).args(arguments).stdin(Stdio::null()).spawn();
        let server = Self(child.expect("it is installed"));
        wait_until(program, || UnixStream::connect(socket).is_ok());
        Some(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes, zeroes and reads back, one by one and many in flight.
fn exercise(socket: &Path) {
    let uri = Uri { address: Address::Unix(socket.to_owned()), export: String::new(), tls: false };
    for structured_replies in [true, false] {
        let options = Options { structured_replies, timeout: Some(PATIENCE) };
        let mut client = Client::connect_with(&uri, &options).unwrap();
        assert_eq!(
            (client.info().size_bytes, client.info().structured_replies),
            (SIZE as u64, structured_replies)
        );
        let pattern: Vec<u8> = (0..1u32 << 20).map(|i| (i / 3) as u8).collect();
        client.write(4096, &pattern, true).unwrap();
        client.write_zeroes(8192, 4096, true).unwrap();
        client.trim(SIZE as u64 / 2, 4096).unwrap();
        client.flush().unwrap();
        let mut data = vec![1; pattern.len()];
        client.read(4096, &mut data).unwrap();
        assert!(data[..4096] == pattern[..4096] && data[8192..] == pattern[8192..]);
        assert!(data[4096..8192].iter().all(|byte| *byte == 0));
        assert!(client.read(SIZE as u64, &mut data[..512]).is_err());

        let mut wanted = std::collections::HashMap::new();
        for at in (0..1usize << 20).step_by(16384).skip(1) {
            wanted.insert(client.submit_read(4096 + at as u64, 16384).unwrap(), at);
        }
        while let Some(reply) = client.next_reply().unwrap() {
            let at = wanted.remove(&reply.cookie).unwrap();
            assert!(reply.data == pattern[at..at + 16384]);
            client.recycle(reply.data);
        }
        assert!(wanted.is_empty());
        client.disconnect().unwrap();
    }
}

#[test]
fn the_client_works_with_nbdkit() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let size = SIZE.to_string();
    let arguments = ["--foreground", "--unix", socket.to_str().unwrap(), "memory", &size];
    if let Some(_server) = Server::start("nbdkit", &arguments, &socket) {
        exercise(&socket);
    }
}

#[test]
fn the_client_works_with_qemu_nbd() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, image) = (folder.path().join("socket"), folder.path().join("image"));
    std::fs::write(&image, vec![0; SIZE]).unwrap();
    let (at, file) = (socket.to_str().unwrap(), image.to_str().unwrap());
    let arguments = ["--persistent", "--discard=unmap", "--format=raw", "--socket", at, file];
    if let Some(_server) = Server::start("qemu-nbd", &arguments, &socket) {
        exercise(&socket);
    }
}
