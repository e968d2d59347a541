//! A cache on a mirror: one half here, one on another server, and either of them away.

use floe_server::nbd_client::Client;
use floe_testkit::{pattern, wait_until};
use tempfile::TempDir;

use crate::common::{Server, Volume, assert_same, floe, http, text};

const MIB: usize = 1 << 20;

/// A write-back cache on a mirror of a file and an export, above a file.
struct Mirrored {
    folder: TempDir,
    content: Vec<u8>,
    far: String,
}

impl Mirrored {
    fn path(&self, name: &str) -> String {
        text(&self.folder.path().join(name)).to_owned()
    }

    fn serve(&self) -> Server {
        let cache = format!("mirror:{}+{},timeout=1s", self.path("near.img"), self.far);
        let socket = format!("nbd+unix:///?socket={}", self.path("nbd.sock"));
        let admin = format!("unix:{}", self.path("admin.sock"));
        let (backing, state) = (self.path("backing.img"), self.path("state"));
        let line = ["serve", "--backing", &backing, "--cache", &cache, "--cache-size", "16MiB"];
        let more = ["--write", "back", "--flush-interval", "1h", "--state-dir", &state];
        let at = ["--listen", &socket, "--listen", "nbd://127.0.0.1:0", "--admin", &admin];
        Server::run(&[&line[..], &more, &at].concat(), self.folder.path().join("floe.log"))
    }

    fn write(&mut self, client: &mut Client, offset: usize, seed: u64) {
        let piece = pattern(seed, 64 << 10);
        client.write(offset as u64, &piece, false).expect("a write");
        client.flush().expect("a flush");
        self.content[offset..][..piece.len()].copy_from_slice(&piece);
    }

    #[track_caller]
    fn check(&self, server: &Server) {
        let mut found = vec![0; self.content.len()];
        connect(server).read(0, &mut found).expect("a read");
        assert_same("the volume", &found, &self.content);
    }
}

fn connect(server: &Server) -> Client {
    Client::connect(&server.unix.parse().expect("an address")).expect("it is served")
}

/// Waits until the far half has a state.
fn await_half(server: &Server, half: usize, state: &str) {
    wait_until(&format!("half {half} is {state}"), || {
        let status = server.status();
        let mirror = status.tiers[0].mirror.as_ref().expect("it is a mirror");
        mirror.halves[half].state == state
    });
}

/// Checks the answer to a health check.
#[track_caller]
fn check_health(server: &Server, word: &str) {
    let (head, body) = http(&server.admin, "GET /healthz HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(body.trim(), word);
}

#[test]
fn dirty_data_outlives_either_half_and_kills_of_the_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let content = pattern(7, 8 * MIB);
    std::fs::write(folder.path().join("backing.img"), &content).expect("a file");
    let disk = Volume::new(&vec![0; 17 * MIB], "through");
    let mut far = Some(disk.serve());
    let uri = far.as_ref().expect("it runs").unix.clone();
    let mut volume = Mirrored { folder, content, far: uri };
    let server = volume.serve();
    let mut client = connect(&server);
    volume.write(&mut client, MIB, 1);
    await_half(&server, 1, "in-sync");
    check_health(&server, "ok");
    // The far half goes, and the server is killed without it.
    far = None;
    volume.write(&mut client, 2 * MIB, 2);
    await_half(&server, 1, "out");
    check_health(&server, "degraded");
    assert!(server.status().degraded);
    let admin = format!("unix:{}", volume.path("admin.sock"));
    let shown = floe(&["status", "--admin", &admin]);
    let shown = String::from_utf8(shown.stdout).expect("text");
    assert!(shown.contains("mirror, generation") && shown.contains(" out: "), "{shown}");
    drop(server);
    let server = volume.serve();
    check_health(&server, "degraded"); // from its start on
    volume.check(&server);
    volume.write(&mut connect(&server), 3 * MIB, 3);
    // It comes back, and gets what it missed.
    far.get_or_insert_with(|| disk.serve());
    await_half(&server, 1, "in-sync");
    check_health(&server, "ok");
    volume.write(&mut connect(&server), 4 * MIB, 4);
    for line in ["a half has left the mirror", "a half is in sync again"] {
        let log = || std::fs::read_to_string(volume.path("floe.log")).expect("a log");
        wait_until(line, || log().contains(line));
    }
    drop(server);
    // The near half is lost for good: a new file takes its place.
    let near = volume.path("near.img");
    std::fs::rename(&near, volume.path("old.img")).expect("a file");
    let server = volume.serve();
    volume.check(&server);
    volume.write(&mut connect(&server), 5 * MIB, 5);
    drop(server);
    // It comes back alone: it is stale.
    std::fs::rename(volume.path("old.img"), &near).expect("a file");
    far = None;
    let refused = std::process::Command::new(env!("CARGO_BIN_EXE_floe"))
        .args(["serve", "--backing", &volume.path("backing.img"), "--cache"])
        .arg(format!("mirror:{near}+{},timeout=1s", volume.far))
        .args(["--cache-size", "16MiB", "--write", "back", "--state-dir", &volume.path("state")])
        .args(["--listen", "nbd://127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .output()
        .expect("it runs");
    let error = String::from_utf8(refused.stderr).expect("text");
    assert_eq!(refused.status.code(), Some(2), "{error}");
    assert!(error.contains("bring back nbd+unix://"), "{error}");
    // Both are there.
    far.get_or_insert_with(|| disk.serve());
    let server = volume.serve();
    volume.check(&server);
    await_half(&server, 0, "in-sync");
    server.drain_and_end();
    let found = std::fs::read(volume.path("backing.img")).expect("a file");
    assert_same("the volume below", &found, &volume.content);
    drop(far);
}
