//! Kills, pauses and hand-overs at random.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use floe_server::nbd_client::Client;
use floe_server::pair::{LOST_TURN, Role};
use floe_testkit::{Ceph, wait_until};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::process::Signal;

use super::rig::{Pair, SIZE};
use crate::common::floe;

const BLOCK: usize = 64 << 10;
const BLOCKS: usize = SIZE / BLOCK;

/// The blocks of the volume. Each has the version of its write all over.
struct Versions {
    /// The newest that is durable: flushed, or acknowledged where it is written through.
    kept: Vec<u64>,
    /// The newest that was acknowledged by the server that serves.
    acknowledged: Vec<u64>,
    /// The newest that was sent.
    sent: Vec<u64>,
    /// The one that was read last, if none was sent since. It is read for ever.
    read: Vec<Option<u64>>,
    writes_back: bool,
}

impl Versions {
    fn new(writes_back: bool) -> Self {
        let none = || vec![0; BLOCKS];
        let (kept, acknowledged, sent) = (none(), none(), none());
        Self { kept, acknowledged, sent, read: vec![None; BLOCKS], writes_back }
    }

    fn content(version: u64) -> Vec<u8> {
        version.to_le_bytes().repeat(BLOCK / 8)
    }

    /// Reads all blocks: none is torn, older than what was acknowledged, newer than what was sent,
    /// or another than before. Returns whether the server answered to the end.
    fn are_found(&mut self, client: &mut Client) -> bool {
        (0..BLOCKS).all(|block| {
            let mut found = vec![0; BLOCK];
            if client.read((block * BLOCK) as u64, &mut found).is_err() {
                return false;
            }
            let words = found.as_chunks::<8>().0;
            assert!(words.iter().all(|word| *word == words[0]), "block {block} is torn");
            let version = u64::from_le_bytes(words[0]);
            let may_be = self.acknowledged[block]..=self.sent[block];
            assert!(may_be.contains(&version), "block {block}: {version} not in {may_be:?}");
            let before = self.read[block].replace(version);
            assert!(before.is_none_or(|it| it == version), "{block}: {before:?}, now {version}");
            true
        })
    }

    /// Sends a write of the next version of a block, and returns that.
    fn next(&mut self, block: usize) -> Vec<u8> {
        self.sent[block] += 1;
        self.read[block] = None;
        Self::content(self.sent[block])
    }

    /// Writes the next version of a block; returns whether it was acknowledged.
    fn write(&mut self, client: &mut Client, block: usize) -> bool {
        let content = self.next(block);
        let done = client.write((block * BLOCK) as u64, &content, false).is_ok();
        if done {
            self.is_acknowledged(block);
        }
        done
    }

    fn is_acknowledged(&mut self, block: usize) {
        self.acknowledged[block] = self.sent[block];
        if !self.writes_back {
            self.kept[block] = self.sent[block];
        }
    }

    /// Flushes; returns whether that was acknowledged.
    fn flush(&mut self, client: &mut Client) -> bool {
        let done = client.flush().is_ok();
        if done {
            self.kept.clone_from(&self.acknowledged);
        }
        done
    }

    /// Another server may serve from now on: it may lack what was not flushed.
    fn changes_hands(&mut self) {
        self.acknowledged.clone_from(&self.kept);
    }
}

/// A client that writes one block and flushes, again and again, until its server is gone.
struct Late {
    /// Returns whether the server answered to the end.
    thread: JoinHandle<bool>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    ends: AtomicBool,
    newest: Mutex<Newest>,
}

/// The newest versions.
#[derive(Debug, Clone, Copy, Default)]
struct Newest {
    sent: u64,
    acknowledged: u64,
    flushed: u64,
}

impl Late {
    /// Begins after the version that was sent last.
    fn begin(mut client: Client, block: usize, sent: u64) -> Self {
        let newest = Mutex::new(Newest { sent, ..Newest::default() });
        let shared = Arc::new(Shared { newest, ..Shared::default() });
        let of_thread = Arc::clone(&shared);
        let tell = move |change: fn(&mut Newest)| {
            let mut newest = of_thread.newest.lock().expect("no panic");
            change(&mut newest);
            (*newest, of_thread.ends.load(Ordering::Relaxed))
        };
        let thread = std::thread::spawn(move || {
            loop {
                let (newest, ends) = tell(|newest| newest.sent += 1);
                let content = Versions::content(newest.sent);
                if ends {
                    return true;
                }
                if client.write((block * BLOCK) as u64, &content, false).is_err() {
                    return false;
                }
                tell(|newest| newest.acknowledged = newest.sent);
                if client.flush().is_err() {
                    return false;
                }
                tell(|newest| newest.flushed = newest.sent);
            }
        });
        Self { thread, shared }
    }

    fn newest(&self) -> Newest {
        *self.shared.newest.lock().expect("no panic")
    }

    /// Waits for a flush that begins now, or for the end of its server.
    fn flushes_more(&self) {
        let before = self.newest().flushed;
        wait_until("it flushes twice", || {
            self.thread.is_finished() || self.newest().flushed >= before + 2
        });
    }

    /// Returns the newest versions, and whether the server answered to the end.
    fn end(self) -> (Newest, bool) {
        let Self { thread, shared } = self;
        shared.ends.store(true, Ordering::Relaxed);
        let is_served = thread.join().expect("no panic");
        (*shared.newest.lock().expect("no panic"), is_served)
    }
}

/// Kills, pauses and hands over at random, with a client that follows whoever serves.
fn campaign(rounds: usize, seed: u64, make: fn(Ceph, &'static str) -> Pair) {
    let Some(ceph) = Ceph::start() else { return };
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut pair = make(ceph, "5s");
    let mut versions = Versions::new(pair.is_mirrored);
    let mut times: Vec<(&str, f64)> = Vec::new();
    let mut events =
        vec!["killed", "paused", "handed over", "taken over", "standby killed", "killed at once"];
    if pair.is_mirrored {
        events.extend(["standby paused", "both killed"]);
    }
    pair.begin(0);
    pair.wait_for_role(0, Role::Active);
    pair.begin(1);
    for _ in 0..rounds {
        let (active, mut client) = pair.follow();
        let count = random.random_range(1..16);
        let what = events[random.random_range(0..events.len())];
        let writes: Vec<usize> = (0..count).map(|_| random.random_range(0..BLOCKS)).collect();
        let flushed = random.random_range(0..=count);
        let last = random.random_range(0..BLOCKS);
        // Where the machine stands still for longer than a lease, the server has lost its turn.
        let answered = what == "killed at once" // recovery or not
            || versions.are_found(&mut client)
                && writes.iter().enumerate().all(|(at, block)| {
                    versions.write(&mut client, *block)
                        && (at != flushed || versions.flush(&mut client))
                });
        if !answered {
            versions.changes_hands();
            continue;
        }
        // More writes are under way when it happens.
        versions.read[last] = None;
        let late = Late::begin(client, last, versions.sent[last]);
        let mut begun = Instant::now();
        let other = 1 - active;
        match what {
            "killed" | "killed at once" => pair.kill(active),
            "paused" => pair.signal(active, Signal::STOP),
            "handed over" | "taken over" => wait_until("the two know each other", || {
                begun = Instant::now();
                let server = pair.servers[active].as_mut().expect("it was begun");
                let has_ended = server.try_wait().expect("it can be asked").is_some();
                let (command, machine) = match what {
                    "handed over" => ("handover", active),
                    _ => ("takeover", other),
                };
                has_ended || floe(&[command, "--admin", &pair.admin(machine)]).status.success()
            }),
            "both killed" => (0..2).for_each(|machine| pair.kill(machine)),
            "standby paused" => pair.signal(other, Signal::STOP),
            _ => {
                pair.kill(other);
                pair.begin(other);
            }
        }
        if what != "both killed" && !what.starts_with("standby") {
            let mut serves = false;
            wait_until("the other one serves, or lacks the newest half", || {
                pair.revive(other);
                serves = pair.connect(other).is_some();
                serves || pair.lacks_half(other)
            });
            if serves {
                times.push((what, begun.elapsed().as_secs_f64()));
            }
        }
        if what == "paused" {
            pair.signal(active, Signal::CONT);
        }
        if what == "paused" || what == "taken over" {
            let code = pair.ended(active);
            assert_eq!(code, Some(i32::from(LOST_TURN)), "{}", pair.log(active));
            pair.begin(active);
        }
        if what == "standby paused" {
            late.flushes_more(); // without the half that does not answer
            pair.signal(other, Signal::CONT);
        }
        let (late, is_served) = late.end();
        versions.sent[last] = late.sent;
        let durable = if versions.writes_back { late.flushed } else { late.acknowledged };
        versions.kept[last] = versions.kept[last].max(durable);
        match what {
            "standby killed" | "standby paused" if is_served => {
                let acknowledged = &mut versions.acknowledged[last];
                *acknowledged = late.acknowledged.max(*acknowledged);
            }
            _ => versions.changes_hands(),
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
    campaign(10, 19, Pair::new);
}

#[test]
fn whatever_happens_to_either_server_nothing_flushed_to_their_mirror_is_lost_nor_older_found() {
    campaign(10, 23, Pair::mirrored);
}

/// The long form, with the default lease: `FLOE_FAILOVERS` rounds, from the seed `FLOE_SEED`.
#[test]
#[ignore = "it takes an hour; make soak runs it"]
fn failovers_without_end() {
    campaign(number("FLOE_FAILOVERS", 200) as usize, number("FLOE_SEED", 1), Pair::new);
}

#[test]
#[ignore = "it takes an hour; make soak runs it"]
fn failovers_without_end_on_a_mirror() {
    campaign(number("FLOE_FAILOVERS", 200) as usize, number("FLOE_SEED", 1), Pair::mirrored);
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}
