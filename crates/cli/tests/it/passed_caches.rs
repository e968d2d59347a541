//! Histories of caches that refuse writes or flushes for a while, with a kill of the server. The
//! next start knows which side has the newer data, and loses nothing that was flushed.

use crate::common::{Server, Volume, text};
use floe_server::nbd_client::Client;
use floe_testkit::{pattern, wait_until};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const MIB: usize = 1 << 20;
const PIECE: usize = 16 << 10;
const PIECES: usize = 64;

/// How devices fail.
const RULES: [&str; 8] = [
    "write EIO",
    "write EIO 65536-",
    "write ENOSPC",
    "write EROFS 65536-",
    "flush EIO",
    "write EIO 0-65536",
    "all EIO 65536-",
    "read EIO 131072-",
];

/// A volume behind persistent tiers that fail as files say, and what each piece of it may be.
struct History {
    volume: Volume,
    tiers: usize,
    /// By piece: the versions it may have, the oldest first.
    versions: Vec<Vec<u64>>,
    /// By piece: the last version whose write succeeded.
    acknowledged: Vec<u64>,
    last: u64,
}

fn piece(at: usize, version: u64) -> Vec<u8> {
    pattern(version * 1000 + at as u64 + 1, PIECE)
}

fn connect(server: &Server) -> Client {
    Client::connect(&server.unix.parse().expect("the URI is good")).expect("the server answers")
}

impl History {
    fn new(tiers: usize, interval: &str, threads: &str) -> Self {
        let content: Vec<u8> = (0..PIECES).flat_map(|at| piece(at, 0)).collect();
        assert_eq!(content.len(), MIB);
        let volume = Volume::new(&content, "back").with(&["--flush-interval", interval]);
        let versions = vec![vec![0]; PIECES];
        let volume = volume.on(threads);
        Self { volume, tiers, versions, acknowledged: vec![0; PIECES], last: 0 }
    }

    fn faults(&self, tier: usize) -> String {
        text(&self.volume.path(&format!("faults{tier}"))).to_owned()
    }

    /// From now on a tier's device fails so; not at all with no rules.
    fn fail(&self, tier: usize, rules: &str) {
        let new = self.volume.path("faults.new");
        std::fs::write(&new, rules).expect("a file");
        std::fs::rename(new, self.faults(tier)).expect("it is moved");
    }

    fn attempt(&self, more: &[&str]) -> Result<Server, String> {
        let mut line = self.volume.command_line();
        let at = line.iter().position(|word| word == "--cache").expect("it has a cache") + 1;
        line[at] = format!("{},faults={}", line[at], self.faults(0));
        for tier in 1..self.tiers {
            let path = text(&self.volume.path(&format!("tier{tier}.img"))).to_owned();
            let spec = format!(
                "file:{path},size=8MiB,write=back,block-sizes=4KiB+64KiB,faults={}",
                self.faults(tier)
            );
            line.extend(["--tier".to_owned(), spec]);
        }
        line.extend(more.iter().map(|&word| word.to_owned()));
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        Server::attempt(&line, self.volume.path("floe.log"))
    }

    fn write(&mut self, client: &mut Client, at: usize) -> bool {
        self.last += 1;
        let version = self.last;
        self.versions[at].push(version);
        let written = client.write((at * PIECE) as u64, &piece(at, version), false).is_ok();
        if written {
            self.acknowledged[at] = version;
        }
        written
    }

    fn flush(&mut self, client: &mut Client) -> bool {
        let flushed = client.flush().is_ok();
        if flushed {
            for (versions, acknowledged) in self.versions.iter_mut().zip(&self.acknowledged) {
                versions.retain(|version| version >= acknowledged);
            }
        }
        flushed
    }

    /// Compares the volume with what it may be, which is what was found from now on.
    fn check(&mut self, server: &Server, said: &str) {
        let mut client = connect(server);
        for at in 0..PIECES {
            let mut found = vec![0; PIECE];
            client.read((at * PIECE) as u64, &mut found).unwrap_or_else(|error| {
                panic!("{said}: piece {at} cannot be read: {error}: {}", server.log())
            });
            let is = |version: &&u64| found == piece(at, **version);
            let Some(&version) = self.versions[at].iter().rev().find(is) else {
                let which = (0..=self.last).find(|version| found == piece(at, *version));
                panic!(
                    "{said}: piece {at} is of version {which:?}, not one of {:?}: {}",
                    self.versions[at],
                    server.log()
                );
            };
            self.versions[at] = vec![version];
            self.acknowledged[at] = version;
        }
        client.flush().expect("all is well again");
    }

    /// Ends a server after five minutes, so that no client waits for ever; until this is dropped.
    fn bound(server: &Server) -> std::sync::mpsc::Sender<()> {
        let (done, ended) = std::sync::mpsc::channel();
        let pid = server.pid();
        std::thread::spawn(move || {
            let late = ended.recv_timeout(std::time::Duration::from_secs(300));
            if late == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let pid = rustix::process::Pid::from_raw(pid as i32).expect("a process");
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        });
        done
    }

    /// Kills the server, mends the devices, and serves again without being asked anything.
    fn restart(&mut self, server: Server, said: &str) -> Server {
        server.kill(&self.volume);
        (0..self.tiers).for_each(|tier| self.fail(tier, ""));
        let server =
            self.attempt(&[]).unwrap_or_else(|log| panic!("{said}: the next start asks: {log}"));
        self.check(&server, said);
        server
    }
}

/// The issue's own case, with newer data in the volume and without.
#[test]
fn a_cache_that_refused_writes_before_a_kill_is_recovered_without_asking() {
    for (newer, tiers, rules) in [
        (false, 1, "all EIO"),
        (true, 1, "write EIO"),
        (true, 1, "flush EIO"),
        (false, 2, "all EIO"),
        (true, 2, "write ENOSPC"),
    ] {
        let said = format!("{rules}, {tiers} tiers, newer data {newer}");
        for failing in 0..tiers {
            let mut history = History::new(tiers, "1h", "2");
            let server = history.attempt(&[]).expect("it serves");
            let mut client = connect(&server);
            (0..32).for_each(|at| assert!(history.write(&mut client, at)));
            assert!(history.flush(&mut client));
            if failing > 0 {
                crate::common::floe_ok(&["flush", "--admin", &server.admin]);
                (0..32).for_each(|at| assert!(history.write(&mut client, at)));
                assert!(history.flush(&mut client));
            }
            history.fail(failing, rules);
            // Reads fill the failing tier, writes change it: its journal is lost.
            wait_until("the loss of the journal", || {
                (32..PIECES).for_each(|at| {
                    history.write(&mut client, at);
                });
                history.flush(&mut client);
                server.status().tiers[failing].journal_lost || failing > 0
            });
            if newer {
                wait_until("the end of the cache", || {
                    server.status().tiers[failing].bypass.starts_with("ended") || failing > 0
                });
                (0..PIECES).for_each(|at| {
                    history.write(&mut client, at);
                });
                history.flush(&mut client);
            }
            drop(client);
            let server = history.restart(server, &format!("{said}, tier {failing} fails"));
            server.end();
        }
    }
}

/// The state folder is gone, and another tier knows.
#[test]
fn a_peer_tier_knows_of_a_cache_that_was_passed_by() {
    for newer in [false, true] {
        let mut history = History::new(2, "1h", "2");
        let server = history.attempt(&[]).expect("it serves");
        let mut client = connect(&server);
        (0..32).for_each(|at| assert!(history.write(&mut client, at)));
        assert!(history.flush(&mut client));
        history.fail(0, if newer { "write EIO" } else { "all EIO" });
        wait_until("the loss of the journal", || {
            (32..PIECES).for_each(|at| {
                history.write(&mut client, at);
            });
            history.flush(&mut client);
            server.status().tiers[0].journal_lost
        });
        if newer {
            wait_until("the end of the cache", || {
                server.status().tiers[0].bypass == "ended-unnoted"
            });
            (0..PIECES).for_each(|at| assert!(history.write(&mut client, at)));
            assert!(history.flush(&mut client));
        }
        drop(client);
        server.kill(&history.volume);
        std::fs::remove_dir_all(history.volume.path("state")).expect("the state folder");
        (0..2).for_each(|tier| history.fail(tier, ""));
        let server = history.attempt(&[]).unwrap_or_else(|log| panic!("{newer}: {log}"));
        assert!(server.log().contains("the superblock of another tier"), "{}", server.log());
        history.check(&server, if newer { "newer data" } else { "no newer data" });
        server.end();
    }
}

#[test]
fn random_histories_of_failing_caches_lose_nothing_that_was_flushed() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let first = number("FLOE_SEED", 1);
    for seed in first..first + number("FLOE_HISTORIES", 8) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let tiers = 1 + (seed % 3 == 0) as usize + (seed % 7 == 0) as usize;
        let interval = ["1h", "50ms"][rng.random_range(0..2)];
        let threads = ["1", "2"][rng.random_range(0..2)];
        let mut history = History::new(tiers, interval, threads);
        let mut server = history.attempt(&[]).expect("it serves");
        for life in 0..3 {
            let mut said = format!("FLOE_SEED={seed}, {tiers} tiers, life {life}:");
            let _bound = History::bound(&server);
            let mut client = connect(&server);
            for _ in 0..rng.random_range(4..12) {
                match rng.random_range(0..10) {
                    0..5 => {
                        let first = rng.random_range(0..PIECES);
                        let pieces = rng.random_range(1..24);
                        said += &format!(" write {first}+{pieces},");
                        for at in (first..first + pieces).map(|at| at % PIECES) {
                            history.write(&mut client, at);
                        }
                    }
                    5..7 => said += &format!(" flush {},", history.flush(&mut client)),
                    7..9 => {
                        let tier = rng.random_range(0..tiers);
                        let rules = match rng.random_range(0..3) {
                            0 => "",
                            _ => RULES[rng.random_range(0..RULES.len())],
                        };
                        said += &format!(" tier {tier} {rules:?},");
                        history.fail(tier, rules);
                    }
                    _ => {
                        let code = crate::common::floe(&["flush", "--admin", &server.admin]);
                        said += &format!(" floe flush {:?},", code.status.code());
                    }
                }
            }
            drop(client);
            server = history.restart(server, &said);
        }
        server.end();
    }
}
