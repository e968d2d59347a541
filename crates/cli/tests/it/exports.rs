//! A volume that is an export of another server: of one like it, below.

use floe_server::nbd_client::Client;
use floe_testkit::{pattern, wait_until};
use tempfile::TempDir;

use crate::common::{Server, Volume, assert_same, floe, text};

const MIB: usize = 1 << 20;

/// A server in front of another one.
struct Upper {
    folder: TempDir,
    backing: String,
    content: Vec<u8>,
}

impl Upper {
    fn new(lower: &Server, content: Vec<u8>, settings: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { folder, backing: format!("{}{settings}", lower.unix), content }
    }

    fn serve(&self, more: &[&str]) -> Server {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        let socket = format!("nbd+unix:///?socket={}", path("nbd.sock"));
        let (admin, cache) = (format!("unix:{}", path("admin.sock")), path("cache.img"));
        let mut line = vec!["serve", "--backing", &self.backing, "--cache", &cache];
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
}

fn connect(server: &Server) -> Client {
    Client::connect(&server.unix.parse().expect("an address")).expect("it is served")
}

#[test]
fn clients_notice_nothing_of_a_server_below_that_loses_its_power() {
    for settings in [&["--write", "through"][..], &["--write", "back", "--flush-interval", "1h"]] {
        let content = pattern(7, 8 * MIB);
        let disk = Volume::new(&content, "back").losing_unflushed().on("2");
        let lower = disk.serve();
        let mut volume = Upper::new(&lower, content, "");
        let upper = volume.serve(settings);
        let mut client = connect(&upper);
        let mut lower = Some(lower);
        for number in 0..8 {
            volume.write(&mut client, number * MIB + 4096, 100 + number as u64);
            volume.write(&mut client, number * MIB / 2, 200 + number as u64);
            lower = None; // killed
            lower.get_or_insert_with(|| disk.serve());
            volume.check(&mut client);
            if number % 2 == 0 {
                client.flush().expect("a flush");
            }
        }
        client.flush().expect("a flush");
        drop((upper, lower));
        let lower = disk.serve();
        let upper = volume.serve(&settings[..2]);
        volume.check(&mut connect(&upper));
        upper.drain_and_end();
        volume.check(&mut connect(&lower));
        lower.end();
    }
}

#[test]
fn a_cache_on_another_server_is_kept_over_kills_of_either() {
    let content = pattern(7, 8 * MIB);
    let far = Volume::new(&vec![0; 16 * MIB], "back").losing_unflushed();
    let lower = far.serve();
    let disk = Volume::new(&content, "back");
    let mut volume = Upper::new(&lower, content, "");
    volume.backing = text(&disk.path("backing.img")).to_owned();
    let serve = |volume: &Upper| {
        let path = |name: &str| volume.folder.path().join(name).display().to_string();
        let socket = format!("nbd+unix:///?socket={}", path("nbd.sock"));
        let admin = format!("unix:{}", path("admin.sock"));
        let line = ["serve", "--backing", &volume.backing, "--cache", &lower.unix, "--write"];
        let more = ["back", "--flush-interval", "1h", "--listen", &socket, "--admin", &admin];
        let line = [&line[..], &more, &["--listen", "nbd://127.0.0.1:0"]].concat();
        Server::run(&line, volume.folder.path().join("floe.log"))
    };
    let upper = serve(&volume);
    let mut client = connect(&upper);
    for number in 0..8 {
        volume.write(&mut client, number * MIB + 4096, 100 + number as u64);
    }
    client.flush().expect("a flush");
    assert_ne!(disk.backing(), volume.content, "it was not written back");
    drop(upper);
    let again = ["check", &lower.unix];
    assert!(floe(&again).status.success(), "{:?}", floe(&again));
    let upper = serve(&volume);
    volume.check(&mut connect(&upper));
    upper.drain_and_end();
    assert_same("the volume", &disk.backing(), &volume.content);
    lower.end();
}

#[test]
fn hits_are_served_and_misses_fail_while_the_server_below_is_away() {
    let content = pattern(7, 8 * MIB);
    let disk = Volume::new(&content, "through");
    let lower = disk.serve();
    let mut volume = Upper::new(&lower, content, ",timeout=1s");
    let upper = volume.serve(&["--write", "through", "--admit", "always"]);
    let mut client = connect(&upper);
    let mut bytes = vec![0; 64 << 10];
    wait_until("a part of the volume is in the cache", || {
        client.read(0, &mut bytes).expect("a read");
        upper.status().cache.requests.read_hits > 0
    });
    drop(lower);
    client.read(0, &mut bytes).expect("a hit");
    assert_same("the hit", &bytes, &volume.content[..bytes.len()]);
    assert!(client.read(4 * MIB as u64, &mut bytes).is_err(), "nobody can know this");
    assert!(client.write(4 * MIB as u64, &bytes, false).is_err());
    client.read(0, &mut bytes).expect("a hit");
    let lower = disk.serve();
    wait_until("the server answers", || client.read(5 * MIB as u64, &mut bytes).is_ok());
    volume.write(&mut client, 4 * MIB, 5); // in doubt since the write that failed
    volume.check(&mut client);
    upper.end();
    lower.end();
}

#[test]
fn a_server_whose_export_cannot_be_used_says_so_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let nowhere = format!("nbd+unix:///?socket={}", text(&folder.path().join("none.sock")));
    for (backing, message) in [
        (&*nowhere, "cannot connect to nbd+unix:///"),
        ("nbds://127.0.0.1/x", "does not speak TLS"),
    ] {
        let refused = floe(&["serve", "--backing", backing, "--cache", "memory:16MiB"]);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains(message) && said.lines().count() == 1, "{said}");
    }
}
