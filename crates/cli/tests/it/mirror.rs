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
    let log = volume.path("floe.log");
    let logged = |line: &str| {
        wait_until(line, || std::fs::read_to_string(&log).expect("a log").contains(line));
    };
    logged("a half has left the mirror");
    volume.check(&server);
    volume.write(&mut connect(&server), 3 * MIB, 3);
    // It comes back, and gets what it missed.
    far.get_or_insert_with(|| disk.serve());
    await_half(&server, 1, "in-sync");
    check_health(&server, "ok");
    volume.write(&mut connect(&server), 4 * MIB, 4);
    logged("a half is in sync again");
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

impl Mirrored {
    /// On two files.
    fn on_files() -> Mirrored {
        let folder = tempfile::tempdir().expect("a folder");
        let content = pattern(7, 8 * MIB);
        std::fs::write(folder.path().join("backing.img"), &content).expect("a file");
        let far = text(&folder.path().join("far.img")).to_owned();
        Mirrored { folder, content, far }
    }

    /// Flips a bit of what a half has of 4 KiB of the volume.
    fn flip(&self, half: &str, offset: usize) {
        let path = self.path(half);
        let mut bytes = std::fs::read(&path).expect("a half");
        let piece = &self.content[offset..][..4096];
        let at = bytes[MIB..].chunks_exact(4096).position(|sector| sector == piece);
        let at = MIB + at.expect("the half has it") * 4096 + 100;
        bytes[at] ^= 4;
        std::fs::write(&path, bytes).expect("a half");
    }

    fn spec(&self) -> String {
        format!("mirror:{}+{},timeout=1s", self.path("near.img"), self.far)
    }

    /// Runs a command on the cache, and returns its exit code and all that it prints.
    fn run(&self, command: &str, more: &[&str]) -> (Option<i32>, String) {
        let (spec, state) = (self.spec(), self.path("state"));
        let output = floe(&[&[command, &spec, "--state-dir", &state][..], more].concat());
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).expect("text"))
    }
}

fn mended_bytes(server: &Server) -> Vec<u64> {
    let status = server.status();
    let mirror = status.tiers[0].mirror.as_ref().expect("it is a mirror");
    mirror.halves.iter().map(|half| half.mended_bytes).collect()
}

#[test]
fn a_flipped_bit_of_one_half_is_served_and_mended_from_the_other() {
    let mut volume = Mirrored::on_files();
    for (round, half) in ["near.img", "far.img", "near.img"].into_iter().enumerate() {
        let (number, kills) = (round % 2, round == 2);
        let server = volume.serve();
        volume.write(&mut connect(&server), (1 + round) * MIB, 10 + round as u64);
        if kills {
            drop(server)
        } else {
            server.end()
        }
        volume.flip(half, (1 + round) * MIB);
        let (code, said) = volume.run("check", &[]);
        assert_eq!(code, Some(1), "{said}");
        let named = format!("{half} are not what was stored; another half has them");
        assert!(said.contains(&named) && said.contains("nothing is lost"), "{said}");
        let server = volume.serve();
        volume.check(&server);
        if number == 0 {
            assert_eq!(mended_bytes(&server), [4096, 0]);
            let (_, metrics) = http(&server.admin, "GET /metrics HTTP/1.1\r\n\r\n");
            let wanted = "floe_mirror_mended_bytes_total{tier=\"0\",half=\"0\"} 4096";
            assert!(metrics.contains(wanted), "{metrics}");
            wait_until("the log tells it", || {
                server.log().contains("returned something else than was stored")
            });
        }
        assert_eq!(server.status().devices.lost.bytes, 0);
        server.end();
        // A half that is not read first is mended by a check.
        let (code, said) = volume.run("check", &["--repair"]);
        assert_eq!(code, Some(0), "{said}");
        let (code, said) = volume.run("check", &[]);
        assert!(code == Some(0) && said.contains("no problems found"), "{said}");
    }
    let halves = ["near.img", "far.img"].map(|half| std::fs::read(volume.path(half)).expect("it"));
    assert_same("the far half", &halves[1][MIB..], &halves[0][MIB..]);
    volume.serve().drain_and_end();
    let found = std::fs::read(volume.path("backing.img")).expect("a file");
    assert_same("the volume below", &found, &volume.content);
}

#[test]
fn dirty_data_is_exported_from_the_half_that_is_there_and_intact() {
    for (flipped, gone) in [(Some("near.img"), None), (None, Some("near.img"))] {
        let mut volume = Mirrored::on_files();
        let server = volume.serve();
        volume.write(&mut connect(&server), MIB, 1);
        server.end();
        flipped.into_iter().for_each(|half| volume.flip(half, MIB));
        if let Some(half) = gone {
            std::fs::remove_file(volume.path(half)).expect("a half");
            let (code, said) = volume.run("check", &[]);
            assert!(code == Some(0) && said.contains("no problems found"), "{said}");
        }
        let backing = volume.path("backing.img");
        let (code, said) = volume.run("export-dirty", &["--backing", &backing]);
        assert_eq!(code, Some(0), "{said}");
        let found = std::fs::read(&backing).expect("a file");
        assert_same("the volume below", &found, &volume.content);
        // Without any half there is nothing to export.
        std::fs::remove_file(volume.path("far.img")).expect("a half");
        if gone.is_some() {
            let (code, said) = volume.run("export-dirty", &["--backing", &backing]);
            assert!(code == Some(2) && said.contains("near.img does not exist"), "{said}");
        }
    }
}

#[test]
fn a_half_that_holds_other_data_is_named_and_nothing_starts() {
    let mut volume = Mirrored::on_files();
    let server = volume.serve();
    volume.write(&mut connect(&server), MIB, 1);
    server.end();
    let far = vec![1; 17 * MIB];
    std::fs::write(&volume.far, &far).expect("a file");
    let (code, said) = volume.run("check", &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("far.img holds data that is not a half of a mirror"), "{said}");
    let listen = ["--listen", "nbd://127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let (backing, cache) = (volume.path("backing.img"), volume.spec());
    let state = volume.path("state");
    let line = ["serve", "--backing", &backing, "--cache", &cache, "--state-dir", &state];
    let refused =
        floe(&[&line[..], &["--cache-size", "16MiB", "--write", "back"], &listen].concat());
    let said = String::from_utf8(refused.stderr).expect("text");
    assert!(refused.status.code() == Some(2) && said.contains("far.img holds data"), "{said}");
    assert!(std::fs::read(&volume.far).expect("a file") == far, "it is not touched");
}

#[test]
fn the_log_says_why_a_half_is_out() {
    let mut volume = Mirrored::on_files();
    let server = volume.serve();
    volume.write(&mut connect(&server), MIB, 1);
    server.end();
    let (far, away) = (volume.far.clone(), volume.path("away.img"));
    std::fs::rename(&far, &away).expect("a half");
    let server = volume.serve();
    await_half(&server, 1, "out");
    volume.write(&mut connect(&server), 2 * MIB, 2);
    let log = || std::fs::read_to_string(volume.path("floe.log")).expect("a log");
    let left =
        |log: &str| log.lines().find(|it| it.contains("has left the mirror")).map(str::to_owned);
    wait_until("the log names the half", || left(&log()).is_some());
    server.end();
    let left = left(&log()).expect("it is there");
    assert!(!left.contains("error=\"\"") && !left.ends_with("error="), "{left}");
}
