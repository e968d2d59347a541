//! A server begun without one of its kept tiers: noticed as long as that may hold what nothing else
//! has.

use crate::common::{Server, Volume, assert_same, floe, floe_ok, text};
use floe_server::nbd_client::Client;
use floe_testkit::pattern;

const MIB: usize = 1 << 20;

/// A volume with two kept tiers, each writing as is said.
struct Stack {
    volume: Volume,
    content: Vec<u8>,
    tiers: [String; 2],
}

impl Stack {
    fn new(upper: &str, lower: &str) -> Self {
        Self::sized(upper, lower, [16, 16])
    }

    /// With tiers of so many mebibytes.
    fn sized(upper: &str, lower: &str, mib: [u64; 2]) -> Self {
        let content = pattern(1, 8 * MIB);
        let volume = Volume::new(&content, "back");
        let tier = |name: &str, mode: &str, mib: u64| {
            format!(
                "file:{},size={mib}MiB,block-sizes=4KiB+64KiB,shards=4,write={mode}",
                text(&volume.path(name))
            )
        };
        Self {
            tiers: [tier("upper.img", upper, mib[0]), tier("lower.img", lower, mib[1])],
            content,
            volume,
        }
    }

    fn line(&self, tiers: &[&str], more: &[&str]) -> Vec<String> {
        let backing = format!("file:{}", text(&self.volume.path("backing.img")));
        let socket = format!("nbd+unix:///?socket={}", text(&self.volume.path("nbd.sock")));
        let mut line = vec![
            "serve",
            "--backing",
            &backing,
            "--listen",
            &socket,
            "--listen",
            "nbd://127.0.0.1:0",
        ];
        let admin = format!("unix:{}", text(&self.volume.path("admin.sock")));
        line.extend(["--admin", &admin, "--threads", "2"]);
        tiers.iter().for_each(|tier| line.extend(["--tier", tier]));
        line.iter().chain(more).map(|&word| word.to_owned()).collect()
    }

    fn serve(&self, tiers: &[&str], more: &[&str]) -> Server {
        let line = self.line(tiers, more);
        Server::run(
            &line.iter().map(String::as_str).collect::<Vec<_>>(),
            self.volume.path("floe.log"),
        )
    }

    fn both(&self) -> Server {
        self.serve(&[&self.tiers[0], &self.tiers[1]], &["--flush-interval", "1h"])
    }

    /// Writes somewhere and flushes.
    fn write(&mut self, server: &Server, seed: u64) {
        let piece = pattern(seed, MIB / 2);
        let at = seed as usize % 5 * MIB + 4321;
        let mut client = connect(server);
        for (number, bytes) in piece.chunks(64 << 10).enumerate() {
            client.write((at + number * (64 << 10)) as u64, bytes, false).expect("a write");
        }
        client.flush().expect("a flush");
        self.content[at..][..piece.len()].copy_from_slice(&piece);
    }

    #[track_caller]
    fn check(&self, server: &Server) {
        let mut found = vec![0; self.content.len()];
        connect(server).read(0, &mut found).expect("a read");
        assert_same("the volume", &found, &self.content);
    }

    /// One line that names the tier, and exit code 2; nothing is changed.
    #[track_caller]
    fn refused(&self, tiers: &[&str], more: &[&str], said: &[&str]) {
        let line = self.line(tiers, more);
        let output = floe(&line.iter().map(String::as_str).collect::<Vec<_>>());
        let errors = String::from_utf8(output.stderr).expect("errors are UTF-8");
        let last = errors.lines().last().unwrap_or_default();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(said.iter().all(|said| last.contains(said)), "{errors}");
    }

    fn export(&self, name: &str) {
        floe_ok(&self.export_line(&[name]).iter().map(String::as_str).collect::<Vec<_>>());
    }

    fn export_line(&self, names: &[&str]) -> Vec<String> {
        let path = |name: &str| text(&self.volume.path(name)).to_owned();
        let tiers = names.iter().map(|name| path(name));
        let backing = format!("file:{}", path("backing.img"));
        ["export-dirty".to_owned()]
            .into_iter()
            .chain(tiers)
            .chain(["--backing".to_owned(), backing])
            .collect()
    }
}

fn connect(server: &Server) -> Client {
    Client::connect(&server.unix.parse().expect("the URI is good")).expect("the server answers")
}

#[test]
fn a_tier_with_data_of_its_own_is_missed_by_the_other() {
    for killed in [false, true] {
        let mut stack = Stack::new("back", "through");
        let server = stack.both();
        stack.write(&server, 2);
        if killed {
            drop(server)
        } else {
            server.end()
        }
        let lower = stack.tiers[1].clone();
        stack.refused(
            &[&lower],
            &[],
            &["tier file:", "upper.img", "export-dirty", "--accept-backing"],
        );
        stack.refused(&[&lower], &["--initialise"], &["upper.img"]);
        let checked = floe_ok(&["check", text(&stack.volume.path("lower.img"))]);
        assert!(
            checked.contains("served together with file:") && checked.contains("upper.img"),
            "{checked}"
        );
        // All is as before when it is there again.
        let server = stack.both();
        stack.check(&server);
        stack.write(&server, 3);
        if killed {
            drop(server)
        } else {
            server.end()
        }
        // Its data is brought back, and the other one goes on without what it had.
        stack.export("upper.img");
        stack.refused(&[&lower], &[], &["upper.img"]);
        let server = stack.serve(&[&lower], &["--accept-backing"]);
        stack.check(&server);
        assert!(server.log().contains("continues without a tier"), "{}", server.log());
        server.end();
        // That is for one start, and then forgotten.
        let server = stack.serve(&[&lower], &[]);
        stack.check(&server);
        server.end();
    }
}

#[test]
fn a_tier_below_that_is_missing_is_noticed_by_the_one_above() {
    let mut stack = Stack::new("through", "back");
    let server = stack.both();
    stack.write(&server, 4);
    server.end();
    let upper = stack.tiers[0].clone();
    stack.refused(&[&upper], &[], &["lower.img"]);
    stack.export("lower.img");
    let server = stack.serve(&[&upper], &["--accept-backing"]);
    stack.check(&server);
    server.end();
}

#[test]
fn both_with_data_of_their_own_ask_for_what_is_to_become_of_it() {
    let mut stack = Stack::new("back", "back");
    let server = stack.both();
    stack.write(&server, 5);
    floe_ok(&["flush", "--admin", &server.admin]);
    stack.write(&server, 6);
    drop(server); // kills it
    let [upper, lower] = stack.tiers.clone();
    stack.refused(&[&lower], &[], &["upper.img"]);
    stack.refused(&[&upper], &[], &["lower.img"]);
    // The upper one's data is newer than anything: it goes on with that alone.
    stack.export("lower.img");
    stack.refused(&[&upper], &["--accept-backing"], &["--keep-dirty", "--discard-dirty"]);
    let server = stack.serve(&[&upper], &["--accept-backing", "--keep-dirty"]);
    stack.check(&server);
    server.drain_and_end();
    assert_same("the volume", &stack.volume.backing(), &stack.content);
}

/// What is clean in a tier is old once the volume was written to without it, or past it.
#[test]
fn tiers_that_were_apart_bring_nothing_old_together() {
    let mut stack = Stack::sized("back", "back", [4, 16]);
    let [upper, lower] = stack.tiers.clone();
    let server = stack.both();
    (0..2).for_each(|_| stack.check(&server));
    server.end();
    for (alone, seed) in [(&lower, 12), (&upper, 17)] {
        let server = stack.serve(&[alone], &[]);
        stack.write(&server, seed);
        stack.check(&server);
        server.drain_and_end();
        let server = stack.both();
        (0..2).for_each(|_| stack.check(&server));
        assert!(server.log().contains("some of the tiers without others"), "{}", server.log());
        server.end();
        // It is together again.
        let server = stack.both();
        assert!(!server.log().contains("some of the tiers without others"), "{}", server.log());
        assert!(server.status().tiers[1].valid_bytes > 0, "what it has is kept");
        (0..2).for_each(|_| stack.check(&server));
        // What only the upper one has goes past the lower.
        stack.write(&server, seed + 1);
        assert!(server.status().tiers[0].dirty_bytes > 0);
        server.end();
        floe_ok(
            &stack
                .export_line(&["lower.img", "upper.img"])
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>(),
        );
        let server = stack.both();
        (0..2).for_each(|_| stack.check(&server));
        server.drain_and_end();
    }
}

#[test]
fn data_of_a_tier_that_was_away_is_not_taken_for_new() {
    let mut stack = Stack::new("back", "through");
    let [upper, lower] = stack.tiers.clone();
    let server = stack.both();
    stack.write(&server, 14);
    server.end();
    let server = stack.serve(&[&lower], &["--accept-backing"]);
    stack.content = pattern(1, 8 * MIB); // without what only the other one has
    stack.check(&server);
    stack.write(&server, 19);
    server.end();
    stack.refused(&[&upper, &lower], &[], &["some of the tiers without others", "--keep-dirty"]);
    let server = stack.serve(&[&upper, &lower], &["--accept-backing", "--discard-dirty"]);
    stack.check(&server);
    server.end();
}

#[test]
fn after_a_drain_and_a_good_end_nobody_is_missed() {
    let mut stack = Stack::new("back", "back");
    let server = stack.both();
    stack.write(&server, 7);
    server.drain_and_end();
    let [upper, lower] = stack.tiers.clone();
    for tier in [&lower, &upper] {
        let server = stack.serve(&[tier], &[]);
        stack.check(&server);
        server.end();
    }
    // One that is killed may have got something, whatever it had.
    drop(stack.both());
    stack.refused(&[&lower], &[], &["upper.img"]);
}

/// A tier above another answers first and writes last: in another order old data would be read, and
/// written over the new.
#[test]
fn tiers_are_given_in_the_order_in_which_they_were_served() {
    for (modes, killed) in [("back", "back"), ("back", "through"), ("through", "back")]
        .into_iter()
        .flat_map(|modes| [(modes, false), (modes, true)])
    {
        let mut stack = Stack::new(modes.0, modes.1);
        let [upper, lower] = stack.tiers.clone();
        let server = stack.both();
        stack.check(&server);
        stack.write(&server, 5);
        if killed {
            drop(server)
        } else {
            server.end()
        }
        let said = [
            "tier file:",
            "lower.img,size=16MiB: it was served below file:",
            "upper.img,size=16MiB, file:",
        ];
        stack.refused(&[&lower, &upper], &[], &said);
        stack.refused(&[&lower, &upper], &["--accept-backing", "--discard-dirty"], &said);
        let server = stack.both();
        stack.check(&server);
        // With nothing dirty in any, what they have is the same.
        server.drain_and_end();
        let server = stack.serve(&[&lower, &upper], &["--flush-interval", "1h"]);
        stack.check(&server);
        stack.write(&server, 6);
        drop(server);
        stack.refused(&[&upper, &lower], &[], &["upper.img,size=16MiB: it was served below file:"]);
        let server = stack.serve(&[&lower, &upper], &[]);
        stack.check(&server);
        server.end();
    }
}

/// Also when the order is a running server's own.
#[test]
fn a_tier_that_was_put_between_others_is_given_between_them() {
    let mut stack = Stack::new("back", "back");
    let [upper, lower] = stack.tiers.clone();
    let middle = lower.replace("lower.img", "middle.img");
    let server = stack.both();
    floe_ok(&["tier", "add", &middle, "--at", "1", "--admin", &server.admin]);
    stack.write(&server, 8);
    drop(server);
    for wrong in [[&upper, &lower, &middle], [&middle, &upper, &lower], [&lower, &middle, &upper]] {
        stack.refused(
            &wrong.map(String::as_str),
            &[],
            &["in the order file:", "upper.img,size=16MiB, file:", "middle.img,size=16MiB, file:"],
        );
    }
    let server = stack.serve(&[&upper, &middle, &lower], &["--flush-interval", "1h"]);
    stack.check(&server);
    // It may come again elsewhere: by then it is another.
    floe_ok(&["tier", "remove", "1", "--admin", &server.admin]);
    floe_ok(&["tier", "add", &middle, "--at", "2", "--admin", &server.admin]);
    stack.write(&server, 9);
    drop(server);
    stack.refused(
        &[&upper, &middle, &lower],
        &[],
        &["in the order file:", "upper.img,size=16MiB, file:", "lower.img,size=16MiB, file:"],
    );
    let server = stack.serve(&[&upper, &lower, &middle], &[]);
    stack.check(&server);
    server.end();
}

/// The lower one's data is older: it is written first, whatever they are called, also at the ends
/// of the volume by which changes are noticed.
#[test]
fn tiers_are_written_back_without_a_server_from_the_lowest_up() {
    for names in [["upper.img", "lower.img"], ["lower.img", "upper.img"]] {
        let mut stack = Stack::new("back", "back");
        let server = stack.serve(&[&stack.tiers[0], &stack.tiers[1]], &["--flush-interval", "1s"]);
        let mut client = connect(&server);
        let mut both = |seed: u64| {
            stack.content[..MIB].copy_from_slice(&pattern(seed, MIB));
            for (at, piece) in (0..).step_by(64 << 10).zip(stack.content[..MIB].chunks(64 << 10)) {
                client.write(at, piece, false).expect("a write");
            }
            client.flush().expect("a flush");
        };
        both(31);
        floe_testkit::wait_until("the lower tier's turn", || {
            let tiers = server.status().tiers;
            if tiers.iter().all(|tier| tier.dirty_bytes == 0) {
                both(31); // it has come and gone unseen
            }
            tiers[0].dirty_bytes == 0 && tiers[1].dirty_bytes > 0
        });
        both(32);
        drop(server);
        let run = |names: &[&str]| {
            floe(&stack.export_line(names).iter().map(String::as_str).collect::<Vec<_>>())
        };
        let refused = run(&["upper.img"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            refused.status.code() == Some(2)
                && said.contains("lower.img")
                && said.contains("give both"),
            "{said}"
        );
        let done = run(&names);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        assert_same("the volume", &stack.volume.backing(), &stack.content);
    }
}

/// What is added to a running server is missed at its next start, and what was removed is not.
#[test]
fn tiers_of_a_running_server_are_missed_until_they_are_removed() {
    let mut stack = Stack::new("back", "back");
    let [upper, lower] = stack.tiers.clone();
    let server = stack.serve(&[&upper], &[]);
    floe_ok(&["tier", "add", &lower, "--admin", &server.admin]);
    stack.write(&server, 8);
    drop(server);
    stack.refused(&[&upper], &[], &["lower.img"]);
    let server = stack.both();
    stack.check(&server);
    stack.write(&server, 9);
    floe_ok(&["tier", "remove", "1", "--admin", &server.admin]);
    stack.write(&server, 10);
    drop(server);
    let server = stack.serve(&[&upper], &[]);
    stack.check(&server);
    stack.write(&server, 11);
    server.end();
    let server = stack.both();
    stack.check(&server);
    server.end();
}

/// Wherever it is interrupted, the tiers can be served again, or written back again, without a word
/// from the user.
#[test]
fn tiers_that_were_written_back_are_served_again_also_where_that_was_interrupted() {
    for (round, pause) in [0, 5, 20, 40, 80, 160, u64::MAX].into_iter().enumerate() {
        let mut stack = Stack::new("back", "back");
        let server = stack.serve(&[&stack.tiers[0], &stack.tiers[1]], &["--flush-interval", "1s"]);
        // Both tiers get data of their own, also at the ends of the volume.
        let mut client = connect(&server);
        let mut both = |seeds: [u64; 3]| {
            for (at, seed) in [0, 3 * MIB, 8 * MIB - (64 << 10)].into_iter().zip(seeds) {
                let piece = pattern(seed, 64 << 10);
                client.write(at as u64, &piece, false).expect("a write");
                stack.content[at..][..piece.len()].copy_from_slice(&piece);
            }
            client.flush().expect("a flush");
        };
        both([40, 41, 42]);
        floe_testkit::wait_until("the lower tier's turn", || {
            let tiers = server.status().tiers;
            tiers[0].dirty_bytes == 0
        });
        both([40, 43, 44]);
        drop(client);
        if round % 2 == 0 {
            server.end()
        } else {
            drop(server)
        }
        let line = stack.export_line(&["lower.img", "upper.img"]);
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        for _ in 0..3 {
            let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_floe"))
                .args(&line)
                .env("STATE_DIRECTORY", stack.volume.path("state"))
                .stdout(std::process::Stdio::null())
                .spawn()
                .expect("floe runs");
            match pause {
                u64::MAX => {
                    assert!(crate::common::wait_for(&mut child).success(), "it is repeated")
                }
                pause => {
                    std::thread::sleep(std::time::Duration::from_millis(pause));
                    child.kill().expect("it is there");
                    child.wait().expect("it can be waited for");
                }
            }
        }
        let server = stack.both();
        stack.check(&server);
        server.drain_and_end();
        assert_same("the volume", &stack.volume.backing(), &stack.content);
        assert!(floe(&line).status.success());
        stack.both().end();
    }
}
