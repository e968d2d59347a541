//! A volume that is an image of Ceph, on a cluster that the test starts.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use floe_nbd::wire::ErrorCode;
use floe_server::nbd_client::{Client, ClientError};
use floe_testkit::{Ceph, pattern, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::common::{Server, assert_same, floe, text};

const MIB: usize = 1 << 20;

/// An image with bytes in it, and a folder for a server of it.
struct Image {
    spec: String,
    content: Vec<u8>,
    folder: TempDir,
}

impl Image {
    fn new(ceph: &Ceph, name: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (content, file) = (pattern(7, 8 * MIB), folder.path().join("content"));
        std::fs::write(&file, &content).expect("a file");
        ceph.rbd(&["import", "--no-progress", text(&file), &format!("rbd/{name}")]);
        Self { spec: ceph.spec(name), content, folder }
    }

    fn serve(&self, more: &[&str]) -> Server {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        let socket = format!("nbd+unix:///?socket={}", path("nbd.sock"));
        let (admin, cache) = (format!("unix:{}", path("admin.sock")), path("cache.img"));
        let mut line = vec!["serve", "--backing", &self.spec, "--cache", &cache];
        line.extend(["--cache-size", "16MiB", "--listen", &socket, "--admin", &admin]);
        line.extend(["--listen", "nbd://127.0.0.1:0", "--threads", "2"]);
        line.extend(more);
        Server::run(&line, self.folder.path().join("floe.log"))
    }

    fn write(&mut self, client: &mut Client, offset: usize, seed: u64) {
        let piece = pattern(seed, 64 << 10);
        client.write(offset as u64, &piece, false).expect("a write");
        self.content[offset..][..piece.len()].copy_from_slice(&piece);
    }

    #[track_caller]
    fn check(&self, client: &mut Client) {
        let mut found = vec![0; self.content.len()];
        client.read(0, &mut found).expect("a read");
        assert_same("the volume", &found, &self.content);
    }

    /// What the image itself has.
    fn exported(&self, ceph: &Ceph, name: &str) -> Vec<u8> {
        let file = self.folder.path().join("exported");
        let _ = std::fs::remove_file(&file); // of an earlier call
        ceph.rbd(&["export", "--no-progress", &format!("rbd/{name}"), text(&file)]);
        std::fs::read(&file).expect("it has been exported")
    }
}

fn connect(server: &Server) -> Client {
    Client::connect(&server.unix.parse().expect("an address")).expect("it is served")
}

#[test]
fn what_was_flushed_to_an_image_behind_a_cache_survives_a_kill() {
    let Some(ceph) = Ceph::start() else { return };
    let mut image = Image::new(&ceph, "kept");
    let server = image.serve(&["--write", "back", "--flush-interval", "1h"]);
    let mut client = connect(&server);
    image.check(&mut client);
    for number in 0..16 {
        image.write(&mut client, number * MIB / 2 + 4096, 100 + number as u64);
    }
    client.flush().expect("a flush");
    assert_ne!(image.exported(&ceph, "kept"), image.content, "it was not written back");
    drop(server);
    // The lock of the server that was killed is broken once its watch on the image has ended.
    let server = image.serve(&["--write", "back"]);
    assert!(server.log().contains("opening; the lock of a killed server"), "{}", server.log());
    image.check(&mut connect(&server));
    server.drain_and_end();
    assert_same("the image", &image.exported(&ceph, "kept"), &image.content);
}

#[test]
fn a_second_server_of_an_image_is_refused_and_one_of_a_snapshot_is_not() {
    let Some(ceph) = Ceph::start() else { return };
    let mut image = Image::new(&ceph, "shared");
    let server = image.serve(&[]);
    ceph.rbd(&["snap", "create", "--no-progress", "rbd/shared@then"]);
    let before = Image {
        spec: ceph.spec("shared@then"),
        content: image.content.clone(),
        folder: tempfile::tempdir().expect("a folder"),
    };
    image.write(&mut connect(&server), 0, 3);
    let refused = floe(&["serve", "--backing", &image.spec, "--cache", "memory:16MiB"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("rbd/shared is in use by another client"), "{said}");
    let reader = before.serve(&["--read-only", "--write", "through"]);
    before.check(&mut connect(&reader));
    image.check(&mut connect(&server));
    reader.end();
    server.end();
}

#[test]
fn hits_are_served_and_misses_fail_while_the_cluster_is_away() {
    let Some(ceph) = Ceph::start() else { return };
    let mut image = Image::new(&ceph, "away");
    image.spec.push_str(",timeout=1s");
    let server = image.serve(&["--write", "through", "--admit", "always"]);
    let mut client = connect(&server);
    let mut bytes = vec![0; 64 << 10];
    wait_until("a part of the volume is in the cache", || {
        client.read(0, &mut bytes).expect("a read");
        server.status().cache.requests.read_hits > 0
    });
    ceph.pause();
    client.read(0, &mut bytes).expect("a hit");
    assert_same("the hit", &bytes, &image.content[..bytes.len()]);
    assert!(client.read(4 * MIB as u64, &mut bytes).is_err(), "nobody can know this");
    assert!(client.write(4 * MIB as u64, &bytes, false).is_err());
    client.read(0, &mut bytes).expect("a hit");
    ceph.go_on();
    wait_until("the cluster answers", || client.read(5 * MIB as u64, &mut bytes).is_ok());
    image.write(&mut client, 4 * MIB, 5); // in doubt since the write that failed
    image.check(&mut client);
    server.end();
    assert_same("the image", &image.exported(&ceph, "away"), &image.content);
}

#[test]
fn a_volume_grows_with_its_image_and_a_full_cluster_is_told_to_clients() {
    let Some(ceph) = Ceph::start() else { return };
    let mut image = Image::new(&ceph, "grows");
    let server = image.serve(&["--write", "through"]);
    ceph.rbd(&["resize", "--no-progress", "--size", "64M", "rbd/grows"]);
    wait_until("it has grown", || connect(&server).info().size_bytes == 64 << 20);
    image.content.resize(64 * MIB, 0);
    let mut client = connect(&server);
    image.write(&mut client, 12 * MIB, 5);
    image.check(&mut client);
    ceph.set_full(true);
    let (mut at, mut refused) = (20 * MIB, None);
    wait_until("the cluster is full", || {
        refused = client.write(at as u64, &image.content[..4096], false).err();
        image.content.copy_within(..if refused.is_none() { 4096 } else { 0 }, at);
        at += 4096;
        std::thread::sleep(Duration::from_millis(10)); // there is room for a minute of this
        refused.is_some()
    });
    let Some(ClientError::Request(refused)) = refused else { panic!("{refused:?}") };
    assert_eq!(refused.code, ErrorCode::NoSpace);
    ceph.set_full(false);
    wait_until("there is room", || client.write(at as u64, &[7; 4096], false).is_ok());
    image.content[at..][..4096].fill(7);
    image.check(&mut client);
    server.end();
    assert_same("the image", &image.exported(&ceph, "grows"), &image.content);
}

#[test]
fn a_machine_without_the_library_is_told_what_to_install() {
    let Some(ceph) = Ceph::start() else { return };
    let hidden = Path::new("/usr/lib/x86_64-linux-gnu/librbd.so.1");
    let can_hide = Command::new("unshare").args(["--mount", "true"]).status();
    if !hidden.exists() || !can_hide.is_ok_and(|status| status.success()) {
        return floe_testkit::skipped("no way to hide librbd from a program");
    }
    let hide = format!("mount --bind /dev/null {} && exec \"$@\"", hidden.display());
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &hide, "sh", env!("CARGO_BIN_EXE_floe"), "serve"]);
    command.args(["--backing", &ceph.spec("any"), "--cache", "memory:16MiB"]);
    let output = command.output().expect("unshare runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("librbd.so.1: file too short; install it (package librbd1"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_server_ends_while_requests_wait_for_a_cluster_that_is_gone() {
    for (write, code) in [("pass", 1), ("back", 0)] {
        let Some(ceph) = Ceph::start() else { return };
        let image = Image::new(&ceph, write);
        let mut server = image.serve(&["--write", write, "--stop-timeout", "1s"]);
        let mut client = connect(&server);
        client.write(0, &[7; 4096], false).expect("a write");
        ceph.pause();
        let read = client.submit_read(4 << 20, 65536).expect("it is sent");
        let beyond = client.submit_trim(1 << 40, 4096).expect("it is sent");
        let mut next = || client.next_reply().expect("a reply").expect("one is due");
        assert_eq!(next().cookie, beyond, "the read waits");
        let pid = Pid::from_raw(server.pid() as i32).expect("a number");
        kill_process(pid, Signal::TERM).expect("it is there");
        let reply = next();
        assert!(reply.cookie == read && reply.outcome.is_err(), "{reply:?}");
        let (ended, log) = (server.ended(), server.log());
        assert!(log.contains("has not answered for 1s"), "{log}");
        assert_eq!(ended, Some(code), "{log}");
    }
}

#[test]
fn a_server_ends_while_the_cluster_is_away() {
    let Some(ceph) = Ceph::start() else { return };
    let mut image = Image::new(&ceph, "gone");
    image.spec.push_str(",timeout=1s");
    let mut server = image.serve(&["--write", "through"]);
    image.check(&mut connect(&server));
    ceph.pause();
    kill_process(Pid::from_raw(server.pid() as i32).expect("a number"), Signal::TERM)
        .expect("it is there");
    server.ended();
    ceph.go_on();
}
