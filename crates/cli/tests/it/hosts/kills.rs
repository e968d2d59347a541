//! The program killed in the middle of its work, again and again, on devices that lose what was not
//! flushed.
//!
//! `kill -9` takes nothing from a file that was written to it. With `write-cache=volatile` the
//! server keeps unflushed writes of both devices in its own memory, so they go with it, as in a
//! power cut. Clients remember what each sector may hold (`kills/model.rs`). `FLOE_KILLS` says how
//! often to kill; with `--nocapture` each time is told.

pub(crate) mod load;
pub(crate) mod model;

use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::common::{Server, Volume, wait_for};
use floe_server::nbd_client::Client;
use floe_testkit::{is_installed, run};
use load::{Done, Load};
use model::{Model, SECTOR};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// A volume several times as large as its cache.
const SECTORS: usize = 6144;
const CLIENTS: usize = 2;

/// Sectors looked at in one read.
const LOOK: usize = 64;

/// How often to kill.
fn kills() -> u64 {
    let text = std::env::var("FLOE_KILLS").unwrap_or_else(|_| "10".to_owned());
    text.parse().expect("FLOE_KILLS is a number")
}

/// Ways to serve the volume, each with the cache that the last one left.
const WAYS: [&[&str]; 4] = [
    &["--flush-interval", "1h"],
    &["--flush-interval", "50ms"],
    &["--flush-interval", "200ms", "--threads", "1"],
    &["--memory", "2MiB", "--memory-write", "back"],
];

/// Tiers below the cache: none, or one that ends with the server above one that is kept.
const TIERS: [&[&str]; 2] = [
    &[],
    &[
        "--tier",
        "memory:5MiB,write=back,block-sizes=4KiB,shards=4",
        "--tier",
        "file:FOLDER/tier.img,size=8MiB,write=back,block-sizes=4KiB+64KiB,shards=4,\
         write-cache=volatile",
    ],
];

struct Rig {
    volume: Volume,
    model: Mutex<Model>,
    random: SmallRng,
    done: Done,
    kills: u64,
    /// Of servers that were not ready yet.
    early: u64,
    /// Starts that found data only the cache had.
    dirty_starts: u64,
}

impl Rig {
    fn new(seed: u64, tiers: &[&str]) -> Rig {
        let volume = Volume::new(&vec![0; SECTORS * SECTOR], "back").losing_unflushed();
        Rig {
            volume: volume.with(&["--shards", "4"]).with(tiers),
            model: Mutex::new(Model::new(SECTORS)),
            random: SmallRng::seed_from_u64(seed),
            done: Done::default(),
            kills: 0,
            early: 0,
            dirty_starts: 0,
        }
    }

    /// Whether there was anything to lose, and something that had to be there again.
    fn has_shown_something(&mut self) -> bool {
        self.model().set_back > 0 && self.dirty_starts > 0 && self.done.flushes > 0
    }

    fn model(&mut self) -> &mut Model {
        self.model.get_mut().expect("no client failed")
    }

    /// Serves the volume in one of several ways.
    fn serve(&mut self) -> Server {
        let way = WAYS[self.random.random_range(0..WAYS.len())];
        let line = self.line(way);
        let line: Vec<_> = line.iter().map(String::as_str).collect();
        let server = Server::run(&line, self.volume.path("floe.log"));
        let log = server.log();
        let dirty_bytes = log.split_once("dirty_bytes=").expect("the cache was opened").1;
        self.dirty_starts += u64::from(!dirty_bytes.starts_with("0 "));
        server
    }

    fn line(&self, way: &[&str]) -> Vec<String> {
        let threads: &[&str] = if way.contains(&"--threads") { &[] } else { &["--threads", "2"] };
        let more = way.iter().chain(threads).map(|&word| word.to_owned());
        self.volume.command_line().into_iter().chain(more).collect()
    }

    /// Begins to serve, and kills the server at some moment on the way.
    fn kill_early(&mut self) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_floe"))
            .args(self.line(WAYS[0]))
            .env("STATE_DIRECTORY", self.volume.path("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("floe runs");
        std::thread::sleep(Duration::from_micros(self.random.random_range(0..60_000)));
        child.kill().expect("it is there");
        child.wait().expect("it can be waited for");
        self.early += 1;
    }

    fn kill(&mut self, server: Server) {
        drop(server); // kills it
        self.kills += 1;
        self.model().killed();
    }

    /// Reads some of the volume, or all, and compares.
    fn look(&mut self, server: &Server, all: bool) {
        let mut client = connect(server);
        let mut bytes = vec![0; LOOK * SECTOR];
        for start in (0..SECTORS).step_by(LOOK) {
            if !all && self.random.random() {
                continue;
            }
            let read = client.read((start * SECTOR) as u64, &mut bytes);
            read.unwrap_or_else(|error| {
                panic!("after {} kills: {error}\n{}", self.kills, server.log())
            });
            for (at, bytes) in (start..).zip(bytes.chunks(SECTOR)) {
                let found = self.model().found(at, bytes);
                found.unwrap_or_else(|wrong| {
                    panic!("after {} kills: {wrong}\n{}", self.kills, server.log())
                });
            }
        }
        client.disconnect().expect("a goodbye");
    }

    /// Has clients work on the volume for some time, and kills the server under them.
    fn kill_at_work(&mut self, server: Server) {
        let clients: Vec<Client> = (0..CLIENTS).map(|_| connect(&server)).collect();
        let seed: u64 = self.random.random();
        let time = Duration::from_micros(self.random.random_range(1_000..300_000));
        let flushes = [1, 8, 40][self.random.random_range(0..3)];
        let (model, mut done) = (&self.model, Done::default());
        std::thread::scope(|scope| {
            let load = |(number, client)| {
                let seed = seed ^ number as u64;
                let load = Load { model, client, number, clients: CLIENTS, seed, flushes };
                scope.spawn(move || load.run())
            };
            let threads: Vec<_> = clients.into_iter().enumerate().map(load).collect();
            std::thread::sleep(time);
            drop(server); // kills it
            threads
                .into_iter()
                .for_each(|thread| done += thread.join().expect("a client without complaint"));
        });
        self.done += done;
        self.kills += 1;
        self.model().killed();
    }
}

fn connect(server: &Server) -> Client {
    Client::connect(&server.unix.parse().expect("a URI")).expect("a connection")
}

/// Another seed each time: what a kill meets cannot be repeated anyway.
fn time_as_seed() -> u64 {
    std::time::UNIX_EPOCH.elapsed().expect("a time").as_nanos() as u64
}

#[test]
fn nothing_flushed_is_lost_however_often_the_server_is_killed() {
    kill_again_and_again(TIERS[0]);
}

#[test]
fn nothing_flushed_is_lost_in_any_tier_however_often_the_server_is_killed() {
    kill_again_and_again(TIERS[1]);
}

fn kill_again_and_again(tiers: &[&str]) {
    let mut rig = Rig::new(time_as_seed(), tiers);
    // On a slow machine it takes more kills until something was on its way.
    while rig.kills < kills() || !rig.has_shown_something() && rig.kills < 20 * kills() {
        let begun = Instant::now();
        while rig.random.random_ratio(1, 4) {
            rig.kill_early();
        }
        let server = rig.serve();
        let started = begun.elapsed();
        match rig.random.random_range(0..4) {
            0 => {
                rig.look(&server, true);
                rig.look(&server, true);
            }
            1 => rig.look(&server, false),
            _ => {}
        }
        if rig.random.random_ratio(1, 8) {
            rig.kill(server);
        } else {
            rig.kill_at_work(server);
        }
        println!(
            "kill {}: started in {started:.1?}, killed after {:.1?}",
            rig.kills,
            begun.elapsed()
        );
    }
    let server = rig.serve();
    rig.look(&server, true);
    rig.look(&server, true);
    server.drain_and_end();
    let backing = rig.volume.backing();
    for (at, bytes) in backing.chunks(SECTOR).enumerate() {
        let found = rig.model().found(at, bytes);
        found.unwrap_or_else(|wrong| panic!("in the backing device at the end: {wrong}"));
    }
    let (done, kills, early, dirty_starts) = (rig.done, rig.kills, rig.early, rig.dirty_starts);
    let (set_back, has_shown_something) = (rig.model().set_back, rig.has_shown_something());
    println!(
        "{kills} kills, {early} more before the server was ready; data only the cache had at \
         {dirty_starts} starts"
    );
    println!("{set_back} sectors set back to what was flushed or came later; answered: {done:?}");
    assert!(has_shown_something, "with nothing lost, nothing is shown");
}

/// What fio writes to make up for a while, and cannot verify: nobody waits for it.
const NOISE: [&str; 6] = [
    "--name=noise",
    "--rw=randwrite",
    "--bssplit=4k/50:20k/30:128k/20",
    "--offset=16m",
    "--size=8m",
    "--loops=1000",
];

#[test]
fn fio_finds_what_it_synced_before_the_server_was_killed() {
    if !is_installed(&["fio"]) {
        return;
    }
    let mut rig = Rig::new(time_as_seed(), TIERS[0]);
    while rig.kills < kills() {
        let server = rig.serve();
        let begun = Instant::now();
        let fio = |uri: &str, arguments: &[&str]| {
            let line = [
                "--ioengine=nbd",
                &format!("--uri={uri}"),
                "--verify=crc32c",
                "--verify_state_save=0",
            ];
            line.iter().chain(arguments).map(|&word| word.to_owned()).collect::<Vec<_>>()
        };
        let mut noise = Command::new("fio")
            .args(fio(&server.unix, &[&NOISE[..], &["--iodepth=16", "--do_verify=0"]].concat()))
            .current_dir(rig.volume.path(""))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("fio runs");
        let (size, seed) = ([4, 12, 64][rig.random.random_range(0..3)], rig.kills + 1);
        let synced = [
            "--name=synced",
            "--rw=randwrite",
            &format!("--bs={size}k"),
            "--size=12m",
            "--iodepth=8",
            "--verify_fatal=1",
            &format!("--randseed={seed}"),
        ];
        let verify = |uri: &str, how: &str| {
            let line = fio(uri, &[&synced[..], &[how]].concat());
            run("fio", &line.iter().map(String::as_str).collect::<Vec<_>>());
        };
        let write = fio(&server.unix, &[&synced[..], &["--do_verify=0", "--end_fsync=1"]].concat());
        run("fio", &write.iter().map(String::as_str).collect::<Vec<_>>());
        std::thread::sleep(Duration::from_micros(rig.random.random_range(0..50_000)));
        rig.kill(server);
        assert!(!wait_for(&mut noise).success(), "it writes until the end");
        let server = rig.serve();
        verify(&server.tcp, "--verify_only=1");
        rig.kill(server);
        println!("kill {}: after {:.1?}", rig.kills, begun.elapsed());
    }
}
