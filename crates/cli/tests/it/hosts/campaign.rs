//! A campaign against one server: three volumes, every write mode, administration under load, and a
//! kill at a random moment of each life.
//!
//! Both devices lose what was not flushed when the process is killed (`write-cache=volatile`), so a
//! kill is a power cut. Clients remember what each sector may hold (`kills/model.rs`). Between two
//! lives an operator works on what is left: checks the cache, brings dirty data back with the
//! server away, starts the server with the volumes' devices exchanged, or with an old copy of the
//! cache.
//!
//! `FLOE_KILLS` sets the number of lives, `FLOE_SEED` the choices; a failure prints the seed. The
//! moment at which a kill meets the server cannot be repeated.

use std::process::Output;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Server, Volume, floe, text};
use crate::hosts::kills::load::{Done, Load};
use crate::hosts::kills::model::{Model, SECTOR};
use floe_server::nbd_client::Client;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Sectors of a volume; the three together are several times as large as the cache.
const SECTORS: usize = 2048;

/// Sectors read at once when a volume is compared.
const LOOK: usize = 64;

/// The volumes. The last one comes and goes while the server runs.
const NAMES: [&str; 3] = ["a", "b", "guest"];
const GUEST: usize = 2;

/// Settings of a life: each write mode, with and without memory that holds dirty pages.
const WAYS: [&str; 6] = [
    "write = \"back\"\nflush-interval = \"1h\"",
    "write = \"back\"\nflush-interval = \"50ms\"\nthreads = 1",
    "write = \"back\"\nmemory = \"2MiB\"\nmemory-write = \"back\"",
    "write = \"through\"\nmemory = \"2MiB\"",
    "write = \"around\"",
    "write = \"only\"\nflush-interval = \"200ms\"",
];

/// Settings of the second tier, which the third part of the lives have.
const TIER: &str = "size=6MiB,write=back,block-sizes=4KiB+64KiB,shards=4,write-cache=volatile";

/// A thing of the server's that administration puts in and takes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    There,
    Away,
    /// The server was killed while it came or went.
    Either,
}

impl Presence {
    /// Notes what a command that was sent has done.
    fn after(succeeded: bool, wanted: Presence) -> Presence {
        if succeeded { wanted } else { Presence::Either }
    }
}

/// Counts that show what the campaign reached.
#[derive(Debug, Default)]
struct Reached {
    lives: u64,
    done: Done,
    flushes_by_admin: u64,
    volumes_moved: u64,
    tiers_moved: u64,
    checks: u64,
    exports: u64,
    swaps_refused: u64,
    old_copies_refused: u64,
}

struct Campaign {
    rig: Volume,
    models: [Mutex<Model>; 3],
    random: SmallRng,
    guest: Presence,
    tier: Presence,
    reached: Reached,
}

fn number_from(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| {
        text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {text:?}"))
    })
}

fn file_of(rig: &Volume, name: &str) -> String {
    format!("file:{},write-cache=volatile", text(&rig.path(&format!("{name}.img"))))
}

/// The command's success, or its one line of error.
fn said(output: &Output) -> Result<String, String> {
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

impl Campaign {
    fn new(seed: u64) -> Campaign {
        let rig = Volume::new(&[0; SECTOR], "back");
        for name in NAMES {
            let path = rig.path(&format!("{name}.img"));
            std::fs::write(path, vec![0; SECTORS * SECTOR]).expect("a volume");
        }
        Campaign {
            rig,
            models: std::array::from_fn(|_| Mutex::new(Model::new(SECTORS))),
            random: SmallRng::seed_from_u64(seed),
            guest: Presence::Away,
            tier: Presence::Away,
            reached: Reached::default(),
        }
    }

    /// Writes floe.toml for a life; `devices` names the file behind each volume.
    fn configure(&self, way: &str, devices: [&str; 3]) -> String {
        let rig = &self.rig;
        let socket = |name: &str| rig.path(name).display().to_string();
        let mut toml = format!(
            "cache = \"{}\"\ncache-size = \"4MiB\"\nshards = 4\nblock-sizes = \
             \"4KiB,16KiB,64KiB\"\n{way}\n{}listen = [\"nbd+unix:///?socket={}\", \
             \"nbd://127.0.0.1:0\"]\nadmin = \"{}\"\nstate-dir = \"{}\"\n",
            file_of(rig, "cache"),
            if way.contains("threads") { "" } else { "threads = 2\n" },
            socket("nbd.sock"),
            format_args!("unix:{}", socket("admin.sock")),
            socket("state"),
        );
        if self.tier != Presence::Away {
            let (path, settings) = (rig.path("tier.img"), TIER);
            let [size, write, sizes, shards, cache] =
                settings.split(',').collect::<Vec<_>>()[..].try_into().expect("five settings");
            let value = |setting: &str| setting.split_once('=').expect("a value").1.to_owned();
            toml += &format!(
                "[[tier]]\ncache = \"file:{},{cache},{size}\"\nwrite = \"{}\"\nblock-sizes = \
                 \"{}\"\nshards = {}\n",
                text(&path),
                value(write),
                value(sizes).replace('+', ","),
                value(shards)
            );
        }
        for (name, device) in NAMES.iter().zip(devices) {
            if *name != NAMES[GUEST] || self.guest != Presence::Away {
                toml += &format!(
                    "[[volume]]\nname = \"{name}\"\nbacking = \"{}\"\n",
                    file_of(rig, device)
                );
            }
        }
        let path = rig.path("floe.toml");
        std::fs::write(&path, toml).expect("a file");
        text(&path).to_owned()
    }

    fn way(&mut self) -> &'static str {
        WAYS[self.random.random_range(0..WAYS.len())]
    }

    /// Starts the server on what the last life left.
    fn start(&mut self) -> Server {
        let way = self.way();
        let file = self.configure(way, NAMES);
        let server = Server::attempt(&["serve", "--config", &file], self.rig.path("floe.log"));
        let server = server.unwrap_or_else(|log| {
            panic!(
                "life {}: {way}: tier {:?}, guest {:?}: {log}",
                self.reached.lives, self.tier, self.guest
            )
        });
        if self.guest == Presence::Either {
            self.guest = Presence::There;
        }
        if self.tier == Presence::Either {
            self.tier = Presence::There;
        }
        server
    }

    fn connect(&self, volume: usize) -> Client {
        let uri =
            format!("nbd+unix:///{}?socket={}", NAMES[volume], text(&self.rig.path("nbd.sock")));
        Client::connect(&uri.parse().expect("a URI")).expect("a connection")
    }

    fn volumes(&self) -> Vec<usize> {
        (0..NAMES.len())
            .filter(|&volume| volume != GUEST || self.guest == Presence::There)
            .collect()
    }

    /// Compares each served volume with what it may hold.
    fn compare(&mut self, log: &str) {
        for volume in self.volumes() {
            let mut client = self.connect(volume);
            let mut bytes = vec![0; LOOK * SECTOR];
            for start in (0..SECTORS).step_by(LOOK) {
                client.read((start * SECTOR) as u64, &mut bytes).unwrap_or_else(|error| {
                    panic!("life {}: volume {}: {error}\n{log}", self.reached.lives, NAMES[volume])
                });
                self.settle(volume, start, &bytes, log);
            }
            client.disconnect().expect("a goodbye");
        }
    }

    fn settle(&mut self, volume: usize, start: usize, bytes: &[u8], log: &str) {
        let lives = self.reached.lives;
        let model = self.models[volume].get_mut().expect("no client failed");
        for (at, bytes) in (start..).zip(bytes.chunks(SECTOR)) {
            model.found(at, bytes).unwrap_or_else(|wrong| {
                panic!("life {lives}: volume {}: {wrong}\n{log}", NAMES[volume])
            });
        }
    }

    /// Compares a volume's file, of which the cache has nothing any more.
    fn compare_file(&mut self, volume: usize) {
        let bytes =
            std::fs::read(self.rig.path(&format!("{}.img", NAMES[volume]))).expect("a file");
        self.settle(volume, 0, &bytes, "in its file");
    }

    /// Lets clients and an administrator work, and kills the server under them.
    fn live(&mut self, server: Server) {
        let served = self.volumes();
        let clients: Vec<(usize, Client)> =
            served.iter().map(|&volume| (volume, self.connect(volume))).collect();
        let seed: u64 = self.random.random();
        let time = Duration::from_millis(self.random.random_range(1..600));
        let flushes = [1, 8, 40][self.random.random_range(0..3)];
        let (models, rig, admin) = (&self.models, &self.rig, server.admin.clone());
        let (guest, tier) = (self.guest, self.tier);
        let over = AtomicBool::new(false);
        let (over, mut done) = (&over, Done::default());
        let (pid, guests) = (server.pid(), guest == Presence::There);
        let outcome = std::thread::scope(|scope| {
            let load = |(volume, client): (usize, Client)| {
                let load = Load {
                    model: &models[volume],
                    client,
                    number: 0,
                    clients: 1,
                    seed: seed ^ volume as u64,
                    flushes,
                };
                scope.spawn(move || load.run())
            };
            // The guest's client is not there while the guest may be taken away.
            let takes_guest = SmallRng::seed_from_u64(seed).random::<bool>();
            let threads: Vec<_> = clients
                .into_iter()
                .filter(|(volume, _)| !(takes_guest && guests && *volume == GUEST))
                .map(load)
                .collect();
            let administrator = scope.spawn(move || {
                administrate(
                    rig,
                    &admin,
                    SmallRng::seed_from_u64(seed),
                    takes_guest || !guests,
                    guest,
                    tier,
                    over,
                )
            });
            std::thread::sleep(time);
            let pid = rustix::process::Pid::from_raw(pid as i32).expect("it has a number");
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is there");
            over.store(true, Ordering::SeqCst);
            threads
                .into_iter()
                .for_each(|thread| done += thread.join().expect("a client without complaint"));
            administrator.join().expect("an administrator without complaint")
        });
        server.kill(&self.rig);
        self.models
            .iter_mut()
            .for_each(|model| model.get_mut().expect("no client failed").killed());
        (self.guest, self.tier) = (outcome.guest, outcome.tier);
        self.reached.done += done;
        self.reached.lives += 1;
        self.reached.flushes_by_admin += outcome.flushes;
        self.reached.volumes_moved += outcome.volumes_moved;
        self.reached.tiers_moved += outcome.tiers_moved;
        if self.guest == Presence::Away {
            self.compare_file(GUEST);
        }
    }

    /// Sectors that went back to what was flushed or came later, in all kills.
    fn set_back(&self) -> u64 {
        let of = |model: &Mutex<Model>| model.lock().expect("no client failed").set_back;
        self.models.iter().map(of).sum()
    }

    /// Whether there was anything to lose, and something that had to be there again.
    fn has_shown_something(&self) -> bool {
        self.set_back() > 0 && self.reached.done.flushes > 0
    }

    fn copy(&self, from: &str, to: &str) {
        std::fs::copy(self.rig.path(from), self.rig.path(to)).expect("a copy");
    }

    /// Starts the server with something wrong, which it must refuse in one line.
    fn refused(&mut self, devices: [&str; 3], what: &str) -> String {
        let way = self.way();
        let file = self.configure(way, devices);
        let attempt = Server::attempt(&["serve", "--config", &file], self.rig.path("floe.log"));
        let Err(log) = attempt else {
            panic!("life {}: {what} is served", self.reached.lives);
        };
        log
    }

    /// What an operator does while no server runs.
    fn between_lives(&mut self) {
        let [cache, tier] = ["cache", "tier"].map(|name| file_of(&self.rig, name));
        let has_tier = self.tier != Presence::Away;
        let choice = self.random.random_range(0..5);
        println!(
            "life {} over: tier {:?}, guest {:?}, then {choice}",
            self.reached.lives, self.tier, self.guest
        );
        match choice {
            0 => {
                let output = said(&floe(&["check", &cache]));
                output.unwrap_or_else(|line| {
                    panic!("life {}: floe check: {line}", self.reached.lives)
                });
                self.reached.checks += 1;
            }
            1 if self.tier != Presence::Either && self.guest != Presence::Either => {
                let mut line = vec!["export-dirty".to_owned(), cache];
                line.extend(has_tier.then_some(tier));
                for volume in self.volumes() {
                    let device = format!("{}={}", NAMES[volume], file_of(&self.rig, NAMES[volume]));
                    line.extend(["--backing".to_owned(), device]);
                }
                let line: Vec<&str> = line.iter().map(String::as_str).collect();
                let output = said(&floe(&line));
                output.unwrap_or_else(|line| {
                    panic!("life {}: export-dirty: {line}", self.reached.lives)
                });
                self.volumes().into_iter().for_each(|volume| self.compare_file(volume));
                self.reached.exports += 1;
            }
            2 => {
                let log = self.refused(["b", "a", "guest"], "an exchange of two volumes");
                assert!(log.contains("volume"), "life {}: {log}", self.reached.lives);
                self.reached.swaps_refused += 1;
            }
            _ => {}
        }
    }

    /// A copy of the cache from before the last life.
    fn try_old_copy(&mut self) {
        println!("an old copy");
        self.copy("cache.img", "cache.now");
        self.copy("cache.old", "cache.img");
        let log = self.refused(NAMES, "an old copy of the cache");
        assert!(log.contains("cache"), "life {}: {log}", self.reached.lives);
        self.copy("cache.now", "cache.img");
        self.reached.old_copies_refused += 1;
    }
}

/// What an administrator left.
struct Administered {
    guest: Presence,
    tier: Presence,
    flushes: u64,
    volumes_moved: u64,
    tiers_moved: u64,
}

/// Gives commands at random until the server is killed.
fn administrate(
    rig: &Volume,
    admin: &str,
    mut random: SmallRng,
    moves_guest: bool,
    guest: Presence,
    tier: Presence,
    over: &AtomicBool,
) -> Administered {
    use Presence::{Away, There};
    let mut left = Administered { guest, tier, flushes: 0, volumes_moved: 0, tiers_moved: 0 };
    let command = |words: &[&str]| {
        let line: Vec<&str> = words.iter().chain(&["--admin", admin]).copied().collect();
        let output = said(&floe(&line));
        // A command fails only because the server was killed.
        if let Err(line) = &output {
            let begun = std::time::Instant::now();
            while !over.load(Ordering::SeqCst) && begun.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(over.load(Ordering::SeqCst), "floe {words:?}: {line}");
        }
        output.is_ok()
    };
    while !over.load(Ordering::SeqCst) {
        match random.random_range(0..4) {
            0 => left.flushes += u64::from(command(&["flush"])),
            1 if moves_guest && left.guest == Away => {
                let done = command(&["volume", "add", NAMES[GUEST], &file_of(rig, NAMES[GUEST])]);
                left.guest = Presence::after(done, There);
                left.volumes_moved += u64::from(done);
            }
            1 if moves_guest && left.guest == There => {
                let done = command(&["volume", "remove", NAMES[GUEST]]);
                left.guest = Presence::after(done, Away);
                left.volumes_moved += u64::from(done);
            }
            2 if left.tier == Away => {
                let spec = format!("file:{},{TIER}", text(&rig.path("tier.img")));
                let done = command(&["tier", "add", &spec]);
                left.tier = Presence::after(done, There);
                left.tiers_moved += u64::from(done);
            }
            2 if left.tier == There => {
                let done = command(&["tier", "remove", "1"]);
                left.tier = Presence::after(done, Away);
                left.tiers_moved += u64::from(done);
            }
            _ => std::thread::sleep(Duration::from_millis(random.random_range(0..50))),
        }
    }
    left
}

/// `FLOE_KILLS=300` is a soak.
#[test]
fn no_flushed_byte_is_lost_over_modes_tiers_administration_and_operators_mistakes() {
    let (lives, seed) = (number_from("FLOE_KILLS", 8), number_from("FLOE_SEED", 7));
    println!("seed {seed}");
    let mut campaign = Campaign::new(seed);
    // A server may be killed before anything could be lost; some of the next ones are not.
    while campaign.reached.lives < lives
        || !campaign.has_shown_something() && campaign.reached.lives < 10 * lives
    {
        let server = campaign.start();
        if campaign.random.random() {
            campaign.compare(&server.log());
        }
        campaign.live(server);
        campaign.between_lives();
        let old = campaign.rig.path("cache.old");
        if old.exists() && campaign.random.random_ratio(1, 4) {
            campaign.try_old_copy();
        }
        campaign.copy("cache.img", "cache.old");
    }
    let server = campaign.start();
    campaign.compare(&server.log());
    server.drain_and_end();
    campaign.volumes().into_iter().for_each(|volume| campaign.compare_file(volume));
    let set_back = campaign.set_back();
    println!(
        "{:?}; {set_back} sectors set back to what was flushed or came later",
        campaign.reached
    );
    assert!(campaign.has_shown_something(), "with nothing lost, nothing is shown");
}
