//! Two servers of one image of Ceph, of which one serves and the other takes over.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use floe_server::nbd_client::Client;
use floe_server::pair::{LOST_TURN, Role, StandbyStatus};
use floe_server::status::Status;
use floe_testkit::{Ceph, pattern, wait_until};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::common::{assert_same, floe, floe_ok, wait_for};

const MIB: usize = 1 << 20;
const SIZE: usize = 4 * MIB;

/// Two machines, each with a socket for clients and one for its operator.
struct Pair {
    ceph: Ceph,
    image: String,
    folder: TempDir,
    servers: [Option<Child>; 2],
    lease: &'static str,
}

impl Pair {
    fn new(ceph: Ceph, lease: &'static str) -> Self {
        let image = ceph.image("pair", SIZE as u64);
        let folder = tempfile::tempdir().expect("a folder");
        Self { ceph, image, folder, servers: [None, None], lease }
    }

    fn path(&self, machine: usize, name: &str) -> PathBuf {
        self.folder.path().join(format!("{machine}-{name}"))
    }

    fn admin(&self, machine: usize) -> String {
        format!("unix:{}", self.path(machine, "admin.sock").display())
    }

    /// Begins a server; returns when it answers its operator.
    fn begin(&mut self, machine: usize) {
        assert!(self.servers[machine].is_none());
        let listen = format!("nbd+unix:///?socket={}", self.path(machine, "nbd.sock").display());
        let child = Command::new(env!("CARGO_BIN_EXE_floe"))
            .args(["serve", "--standby", "--lease", self.lease, "--backing", &self.image])
            .args(["--cache", "memory:16MiB", "--write", "through", "--threads", "2"])
            .args(["--listen", &listen, "--admin", &self.admin(machine)])
            .env_remove("FLOE_LOG")
            .env("STATE_DIRECTORY", self.path(machine, "state"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::options().create(true).append(true).open(self.log_file(machine)).unwrap())
            .spawn()
            .expect("floe runs");
        self.servers[machine] = Some(child);
        wait_until("it answers its operator", || self.role(machine).is_some());
    }

    fn log_file(&self, machine: usize) -> PathBuf {
        self.path(machine, "floe.log")
    }

    fn log(&self, machine: usize) -> String {
        std::fs::read_to_string(self.log_file(machine)).unwrap_or_default() // it never ran
    }

    /// The part that it says it has; `None` while it does not answer.
    fn role(&self, machine: usize) -> Option<Role> {
        let said = floe(&["status", "--json", "--admin", &self.admin(machine)]);
        let text = said.status.success().then_some(said.stdout)?;
        let serving = serde_json::from_slice::<Status>(&text).ok().map(|it| it.pair);
        let pair = match serving {
            Some(pair) => pair.expect("it is one of two"),
            None => serde_json::from_slice::<StandbyStatus>(&text).expect("a status").pair,
        };
        Some(pair.role)
    }

    fn wait_for_role(&self, machine: usize, role: Role) {
        wait_until("the server has its part", || self.role(machine) == Some(role));
    }

    fn signal(&self, machine: usize, signal: Signal) {
        let child = self.servers[machine].as_ref().expect("it runs");
        kill_process(Pid::from_child(child), signal).expect("it is there");
    }

    fn kill(&mut self, machine: usize) {
        self.signal(machine, Signal::KILL);
        wait_for(&mut self.servers[machine].take().expect("it runs"));
    }

    /// Waits for the end of a server; its exit code.
    fn ended(&mut self, machine: usize) -> Option<i32> {
        wait_for(&mut self.servers[machine].take().expect("it runs")).code()
    }

    fn connect(&self, machine: usize) -> Option<Client> {
        let socket = self.path(machine, "nbd.sock");
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        Client::connect(&uri.parse().expect("an address")).ok()
    }

    /// Begins a server again that has ended: in good order, because its turn was over, or killed.
    fn revive(&mut self, machine: usize) {
        if let Some(server) = &mut self.servers[machine] {
            let Some(status) = server.try_wait().expect("it can be asked") else { return };
            let code = status.code();
            assert!([Some(0), Some(i32::from(LOST_TURN))].contains(&code), "{code:?}");
            self.servers[machine] = None;
        }
        self.begin(machine);
    }

    /// Waits for a server that serves, with both running.
    fn follow(&mut self) -> (usize, Client) {
        let mut found = None;
        wait_until("one of them serves", || {
            (0..2).for_each(|machine| self.revive(machine));
            found = (0..2).find_map(|machine| Some((machine, self.connect(machine)?)));
            found.is_some()
        });
        found.expect("it was found")
    }

    /// What the image has, read by another program.
    fn exported(&self) -> Vec<u8> {
        let file = self.folder.path().join("exported");
        let _ = std::fs::remove_file(&file); // of an earlier call
        let name = file.to_str().expect("a path of UTF-8");
        self.ceph.rbd(&["export", "--no-progress", "rbd/pair", name]);
        std::fs::read(&file).expect("it has been exported")
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (0..2).for_each(|machine| println!("server {machine}:\n{}", self.log(machine)));
        }
        for server in self.servers.iter_mut().flatten() {
            let _ = server.kill(); // it may have ended
            let _ = server.wait();
        }
    }
}

#[test]
fn a_standby_takes_over_from_a_server_that_was_killed() {
    let Some(ceph) = Ceph::start() else { return };
    let mut pair = Pair::new(ceph, "5s");
    pair.begin(0);
    pair.wait_for_role(0, Role::Active);
    pair.begin(1);
    wait_until("the standby sees the active server", || {
        floe_ok(&["status", "--admin", &pair.admin(1)]).contains("the lease of")
    });
    assert_eq!(pair.role(1), Some(Role::Standby));
    assert!(pair.connect(1).is_none(), "a standby serves nobody");
    let healthy = floe(&["flush", "--admin", &pair.admin(1)]);
    let said = String::from_utf8_lossy(&healthy.stderr);
    assert!(said.contains("this server stands by and serves nothing; ask"), "{said}");
    let piece = pattern(1, MIB);
    let mut client = pair.connect(0).expect("it serves");
    client.write(0, &piece, false).expect("a write");
    client.flush().expect("a flush");
    pair.kill(0);
    pair.wait_for_role(1, Role::Active);
    let mut found = vec![0; MIB];
    pair.connect(1).expect("it serves").read(0, &mut found).expect("a read");
    assert_same("what was flushed", &found, &piece);
    assert!(pair.log(1).contains("the lease ran out of"), "{}", pair.log(1));
    // The killed one comes back as the standby, and takes over when the other ends in good order.
    pair.begin(0);
    assert_eq!(pair.role(0), Some(Role::Standby));
    pair.signal(1, Signal::TERM);
    assert_eq!(pair.ended(1), Some(0));
    pair.wait_for_role(0, Role::Active);
    pair.signal(0, Signal::TERM);
    assert_eq!(pair.ended(0), Some(0));
}

#[test]
fn a_server_that_was_paused_for_longer_than_its_lease_answers_nothing_more() {
    let Some(ceph) = Ceph::start() else { return };
    let mut pair = Pair::new(ceph, "5s");
    pair.begin(0);
    pair.wait_for_role(0, Role::Active);
    let mut client = pair.connect(0).expect("it serves");
    client.write(0, &pattern(1, MIB), false).expect("a write");
    pair.begin(1);
    pair.signal(0, Signal::STOP);
    pair.wait_for_role(1, Role::Active);
    let newer = pattern(2, MIB);
    let mut other = pair.connect(1).expect("it serves");
    other.write(0, &newer, false).expect("a write");
    // Late writers: the one that was paused has requests of a client before it when it wakes.
    let reader = std::thread::spawn(move || {
        let mut found = vec![0; MIB];
        (client.read(0, &mut found).is_ok(), client.write(0, &pattern(3, MIB), false).is_ok())
    });
    pair.signal(0, Signal::CONT);
    assert_eq!(pair.ended(0), Some(i32::from(LOST_TURN)), "{}", pair.log(0));
    assert_eq!(reader.join().expect("no panic"), (false, false), "an answer after its turn");
    assert!(pair.log(0).contains("this server's turn is over"), "{}", pair.log(0));
    let mut found = vec![0; MIB];
    other.read(0, &mut found).expect("a read");
    assert_same("the volume", &found, &newer);
    assert_same("the image", &pair.exported()[..MIB], &newer);
}

#[test]
fn an_operator_moves_the_volumes_by_handover_and_by_takeover() {
    let Some(ceph) = Ceph::start() else { return };
    let mut pair = Pair::new(ceph, "5s");
    pair.begin(0);
    pair.wait_for_role(0, Role::Active);
    pair.begin(1);
    wait_until("the standby sees the active server", || {
        floe_ok(&["status", "--admin", &pair.admin(1)]).contains("the lease of")
    });
    let refused = floe(&["takeover", "--admin", &pair.admin(0)]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("this server serves already"), "{said}");
    floe_ok(&["takeover", "--admin", &pair.admin(1)]);
    // The old one learns from its cluster or from its lease that its turn is over.
    assert_eq!(pair.ended(0), Some(i32::from(LOST_TURN)), "{}", pair.log(0));
    pair.wait_for_role(1, Role::Active);
    let said = floe_ok(&["status", "--admin", &pair.admin(1)]);
    assert!(said.contains("an operator took over from"), "{said}");
    let refused = floe(&["handover", "--admin", &pair.admin(1)]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("no standby has been seen lately"), "{said}");
    pair.begin(0);
    wait_until("the active server sees the standby", || {
        floe_ok(&["status", "--admin", &pair.admin(1)]).contains(" stands by")
    });
    let begun = Instant::now();
    floe_ok(&["handover", "--admin", &pair.admin(1)]);
    assert_eq!(pair.ended(1), Some(0));
    wait_until("the other one serves", || pair.connect(0).is_some());
    println!("served again {:.2} s after the handover began", begun.elapsed().as_secs_f64());
    pair.wait_for_role(0, Role::Active);
}

#[test]
fn a_lock_that_no_lease_stands_behind_is_left_alone() {
    let Some(ceph) = Ceph::start() else { return };
    let mut pair = Pair::new(ceph, "5s");
    let socket = format!("nbd+unix:///?socket={}", pair.path(0, "alone.sock").display());
    let tcp = "nbd://127.0.0.1:0";
    let admin = format!("unix:{}", pair.path(0, "alone.admin").display());
    let image = pair.image.clone();
    let line = ["serve", "--backing", &image, "--cache", "memory:16MiB", "--write", "through"];
    let more = ["--listen", &socket, "--listen", tcp, "--admin", &admin];
    let alone = crate::common::Server::run(&[&line[..], &more].concat(), pair.path(0, "alone.log"));
    let refused = floe(&["handover", "--admin", &admin]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("no standby has been seen lately"), "{said}");
    pair.begin(1);
    wait_until("the standby has seen the lock", || pair.log(1).contains("keeps no lease"));
    let refused = floe(&["takeover", "--admin", &pair.admin(1)]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("no active server is known that keeps a lease"), "{said}");
    assert_eq!(pair.role(1), Some(Role::Standby));
    alone.end();
    pair.wait_for_role(1, Role::Active);
    pair.signal(1, Signal::TERM);
    assert_eq!(pair.ended(1), Some(0));
    // One that dies without a lease is missed by the cluster after half a minute, and fenced.
    let alone = crate::common::Server::run(&[&line[..], &more].concat(), pair.path(0, "alone.log"));
    pair.begin(1);
    drop(alone); // by SIGKILL
    pair.wait_for_role(1, Role::Active);
    assert!(pair.log(1).contains("which kept no lease, has died"), "{}", pair.log(1));
    // A standby that is told to end does so in good order.
    pair.begin(0);
    pair.signal(0, Signal::TERM);
    assert_eq!(pair.ended(0), Some(0));
}

#[test]
fn what_a_standby_could_not_have_is_refused_in_a_line() {
    let image = "rbd:rbd/none";
    for (more, wanted) in [
        (&["--backing", image, "--write", "back", "--volatile"][..], "write-back would leave"),
        (&["--backing", "memory:4MiB", "--write", "through"], "standby is for images of Ceph"),
        (&["--backing", image, "--write", "through", "--lease", "10ms"], "lease is for standby"),
        (&["--backing", image, "--read-only", "--write", "through"], "that are written"),
    ] {
        let mut line = vec!["serve", "--standby", "--cache", "memory:16MiB"];
        line.extend(more);
        let refused = floe(&line);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.lines().count() == 1 && said.contains(wanted), "{said}");
    }
}

const BLOCK: usize = 64 << 10;

/// The blocks of the volume. Each has the version of its write all over.
struct Versions {
    /// The newest that was acknowledged: durable, since it is written through.
    kept: Vec<u64>,
    /// The newest that was sent.
    sent: Vec<u64>,
}

impl Versions {
    fn content(version: u64) -> Vec<u8> {
        version.to_le_bytes().repeat(BLOCK / 8)
    }

    /// Reads all blocks: none is torn, older than what was acknowledged or newer than what was
    /// sent. Returns whether the server answered to the end.
    fn are_found(&self, client: &mut Client) -> bool {
        self.kept.iter().zip(&self.sent).enumerate().all(|(block, (&kept, &sent))| {
            let mut found = vec![0; BLOCK];
            if client.read((block * BLOCK) as u64, &mut found).is_err() {
                return false;
            }
            let words = found.as_chunks::<8>().0;
            assert!(words.iter().all(|word| *word == words[0]), "block {block} is torn");
            let version = u64::from_le_bytes(words[0]);
            assert!((kept..=sent).contains(&version), "{version} not in {kept}..={sent}");
            true
        })
    }

    /// Sends a write of the next version of a block, and returns that.
    fn next(&mut self, block: usize) -> Vec<u8> {
        self.sent[block] += 1;
        Self::content(self.sent[block])
    }

    /// Writes the next version of a block; returns whether it was acknowledged.
    fn write(&mut self, client: &mut Client, block: usize) -> bool {
        let content = self.next(block);
        let done = client.write((block * BLOCK) as u64, &content, false).is_ok();
        if done {
            self.kept[block] = self.sent[block];
        }
        done
    }
}

/// Kills, pauses and hands over at random, with a client that follows whoever serves.
fn campaign(rounds: usize, seed: u64, lease: &'static str) {
    let Some(ceph) = Ceph::start() else { return };
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut pair = Pair::new(ceph, lease);
    let blocks = SIZE / BLOCK;
    let mut versions = Versions { kept: vec![0; blocks], sent: vec![0; blocks] };
    let mut times: Vec<(&str, f64)> = Vec::new();
    pair.begin(0);
    pair.wait_for_role(0, Role::Active);
    pair.begin(1);
    for _ in 0..rounds {
        let (active, mut client) = pair.follow();
        let count = random.random_range(1..16);
        let what = ["killed", "paused", "handed over", "standby killed", "killed at once"]
            [random.random_range(0..5usize)];
        let writes: Vec<usize> = (0..count).map(|_| random.random_range(0..blocks)).collect();
        let last = random.random_range(0..blocks);
        // Where the machine stands still for longer than a lease, the server has lost its turn.
        let answered = what == "killed at once" // recovery or not
            || versions.are_found(&mut client)
                && writes.iter().all(|block| versions.write(&mut client, *block));
        if !answered {
            continue;
        }
        // One more write is under way when it happens.
        let content = versions.next(last);
        let late = std::thread::spawn(move || {
            client.write((last * BLOCK) as u64, &content, false).is_ok()
        });
        let mut begun = Instant::now();
        let other = 1 - active;
        match what {
            "killed" | "killed at once" => pair.kill(active),
            "paused" => pair.signal(active, Signal::STOP),
            "handed over" => wait_until("the standby is seen", || {
                begun = Instant::now();
                let server = pair.servers[active].as_mut().expect("it was begun");
                let has_ended = server.try_wait().expect("it can be asked").is_some();
                has_ended || floe(&["handover", "--admin", &pair.admin(active)]).status.success()
            }),
            _ => {
                pair.kill(other);
                pair.begin(other);
            }
        }
        if what != "standby killed" {
            wait_until("the other one serves", || {
                pair.revive(other);
                pair.connect(other).is_some()
            });
            times.push((what, begun.elapsed().as_secs_f64()));
        }
        if what == "paused" {
            pair.signal(active, Signal::CONT);
            let code = pair.ended(active);
            assert_eq!(code, Some(i32::from(LOST_TURN)), "{}", pair.log(active));
            pair.begin(active);
        }
        if late.join().expect("no panic") {
            versions.kept[last] = versions.sent[last];
        }
    }
    let (_, mut client) = pair.follow();
    versions.are_found(&mut client);
    times.sort_by(|a, b| a.0.cmp(b.0).then(a.1.total_cmp(&b.1)));
    for group in times.chunk_by(|a, b| a.0 == b.0) {
        let (first, last) = (group[0].1, group[group.len() - 1].1);
        let median = group[group.len() / 2].1;
        let (what, count) = (group[0].0, group.len());
        println!(
            "{what}: {count} times, served again after {first:.2} / {median:.2} / {last:.2} s"
        );
    }
}

#[test]
fn whatever_happens_to_either_server_nothing_written_is_lost_nor_older_found() {
    campaign(10, 19, "5s");
}

/// The long form, with the default lease: `FLOE_FAILOVERS` rounds, from the seed `FLOE_SEED`.
#[test]
#[ignore = "it takes an hour; make soak runs it"]
fn failovers_without_end() {
    let number = |name: &str, default| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    campaign(number("FLOE_FAILOVERS", 200) as usize, number("FLOE_SEED", 1), "5s");
}
