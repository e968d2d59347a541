//! `floe tier`: tiers put into a running server and taken out, on real devices, with clients at
//! work and kills in between.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Output;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Server, Volume, assert_same, floe, floe_ok, text};
use crate::hosts::kills::load::Load;
use crate::hosts::kills::model::{Model, SECTOR};
use crate::kept::NEVER;
use floe_server::nbd_client::Client;
use floe_testkit::pattern;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const MIB: usize = 1 << 20;
const SECTORS: usize = 4096;

/// Sectors looked at in one read.
const LOOK: usize = 64;

fn connect(server: &Server) -> Client {
    Client::connect(&server.unix.parse().expect("the URI is good")).expect("the server answers")
}

fn read(client: &mut Client, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    client.read(0, &mut data).expect("a read");
    data
}

fn tier(server: &Server, words: &[&str]) -> Output {
    let line: Vec<&str> =
        ["tier"].iter().chain(words).chain(&["--admin", &server.admin]).copied().collect();
    floe(&line)
}

#[track_caller]
fn tier_ok(server: &Server, words: &[&str]) -> String {
    let output = tier(server, words);
    assert!(
        output.status.success(),
        "floe tier {words:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

/// One line that says why not, and exit code 2.
#[track_caller]
fn refused(server: &Server, words: &[&str], said: &[&str]) {
    let output = tier(server, words);
    let line = String::from_utf8(output.stderr).expect("errors are UTF-8");
    assert_eq!(
        (output.status.code(), line.lines().count()),
        (Some(2), 1),
        "floe tier {words:?}: {line}"
    );
    assert!(said.iter().all(|said| line.contains(said)), "floe tier {words:?}: {line}");
}

#[test]
fn a_tier_is_listed_added_and_removed() {
    let content = pattern(1, 8 * MIB);
    let volume = Volume::new(&content, "through").on("2");
    let server = volume.serve();
    let file = volume.path("tier.img");
    let spec = format!("file:{},size=8MiB,write=back,block-sizes=4KiB+64KiB,shards=4", text(&file));
    let said = tier_ok(&server, &["add", &spec]);
    assert!(said.starts_with(&format!("added tier 1: file:{}", text(&file))), "{said}");
    let said = tier_ok(&server, &["add", "memory:4MiB", "--at", "1", "--json"]);
    assert!(said.contains("\"name\":\"memory:4MiB,write=through\""), "{said}");
    let table = tier_ok(&server, &["list"]);
    let row = |number: usize| table.lines().nth(2 + number).expect("a row a tier").to_owned();
    assert!(row(0).contains("cache.img") && row(0).ends_with("kept "), "{table}");
    assert!(
        row(1).contains("memory:4MiB") && row(2).contains(",write=back,block-sizes=4KiB+64KiB"),
        "{table}"
    );
    let lines = tier_ok(&server, &["list", "--json"]);
    assert_eq!(lines.lines().count(), 3, "{lines}");
    // What is listed is what --tier takes.
    let names: Vec<String> = server.status().tiers.into_iter().map(|tier| tier.name).collect();
    tier_ok(&server, &["remove", "2"]);
    tier_ok(&server, &["add", &names[2]]);
    let again: Vec<String> = server.status().tiers.into_iter().map(|tier| tier.name).collect();
    assert_eq!(again, names);
    assert_same("the volume", &read(&mut connect(&server), content.len()), &content);
    server.end();
}

#[test]
fn what_cannot_be_added_or_removed_is_refused_in_a_line() {
    let volume = Volume::new(&pattern(1, MIB), "back").on("2");
    let server = volume.serve();
    let path = |name: &str| format!("file:{}", text(&volume.path(name)));
    refused(&server, &["add", "memory:4MiB,colour=red"], &["colour", "write=MODE"]);
    refused(&server, &["add", "memory:4MiB,write=sideways"], &["sideways"]);
    refused(&server, &["add", &path("new.img")], &["size is missing"]);
    refused(&server, &["add", "memory:16KiB"], &["too small"]);
    refused(&server, &["add", &(path("new.img") + ",size=64KiB")], &["too small"]);
    refused(&server, &["add", "memory:4MiB,shards=1"], &["shard"]);
    refused(&server, &["add", &path("cache.img")], &["cache.img"]);
    refused(&server, &["add", &path("backing.img")], &["backing.img"]);
    refused(&server, &["add", "memory:4MiB", "--at", "0"], &["above the first"]);
    refused(&server, &["add", "memory:4MiB", "--at", "2"], &["number 2"]);
    refused(&server, &["remove", "0"], &["first tier stays"]);
    refused(&server, &["remove", "1"], &["no tier 1"]);
    std::fs::write(volume.path("other.img"), pattern(2, 8 * MIB)).expect("a file");
    refused(&server, &["add", &path("other.img")], &["--initialise"]);
    refused(&server, &["add", &(path("other.img") + ",volatile")], &["--initialise"]);
    tier_ok(&server, &["add", &path("other.img"), "--initialise"]);
    assert!(!volume.path("new.img").exists(), "what is refused leaves no file");
    assert_eq!(server.status().tiers.len(), 2);
    server.end();
}

#[test]
fn a_tier_is_resized_while_clients_use_it() {
    let content = pattern(1, 8 * MIB);
    let volume = Volume::new(&content, "back").on("2");
    let server = volume.serve();
    let file = volume.path("tier.img");
    let in_file = format!("file:{},size=8MiB,write=back,volatile,shards=4", text(&file));
    tier_ok(&server, &["add", "memory:8MiB,write=back,shards=4"]);
    tier_ok(&server, &["add", &in_file]);
    let mut client = connect(&server);
    let mut newer = content;
    for (round, size) in [(2, "16MiB"), (3, "2MiB"), (4, "12MiB")] {
        for number in ["1", "2"] {
            let said = tier_ok(&server, &["resize", number, size]);
            assert!(said.starts_with(&format!("resized tier {number} from ")), "{said}");
            assert!(said.ends_with(&format!(" to {size}\n")), "{said}");
        }
        let piece = pattern(round, 3 * MIB);
        newer[MIB..4 * MIB].copy_from_slice(&piece);
        client.write(MIB as u64, &piece, false).expect("a write");
        assert_same("the volume", &read(&mut client, newer.len()), &newer);
    }
    let said = tier_ok(&server, &["resize", "1", "12MiB"]);
    assert_eq!(said, "tier 1 has 12MiB already\n");
    let said = tier_ok(&server, &["resize", "1", "4MiB", "--json"]);
    assert!(said.contains("\"name\":\"memory:4MiB,write=back,"), "{said}");
    assert_eq!(std::fs::metadata(&file).expect("the file").len(), 16 << 20, "it stays as long");
    let table = tier_ok(&server, &["list"]);
    assert!(table.contains("memory:4MiB") && table.contains("size=12MiB"), "{table}");
    server.end();
}

/// Bytes that a file takes on its file system.
fn allocated(file: &Path) -> u64 {
    file.metadata().expect("the file").blocks() * 512
}

#[test]
fn a_persistent_tier_keeps_its_size_for_the_next_server() {
    let mut content = pattern(1, 8 * MIB);
    let volume = Volume::new(&content, "back").on("2").with(&NEVER);
    let file = volume.path("cache.img");
    let size = |server: &Server| server.status().tiers[0].size_bytes as usize;
    let server = volume.serve();
    let mut client = connect(&server);
    content[..3 * MIB].copy_from_slice(&pattern(2, 3 * MIB));
    client.write(0, &content[..3 * MIB], false).expect("a write");
    client.flush().expect("a flush");
    let before = allocated(&file);
    assert_eq!(tier_ok(&server, &["resize", "0", "2MiB"]), "resized tier 0 from 4MiB to 2MiB\n");
    let given_back = before - allocated(&file);
    assert!(given_back > 1 << 20, "{given_back} bytes were given back");
    assert_eq!(file.metadata().expect("the file").len(), 4 << 20, "it stays as long");
    let listed = server.status().tiers[0].clone();
    assert!(!listed.name.contains("2MiB"), "the size of the file stays: {}", listed.name);
    assert!(listed.dirty_bytes > 0 && listed.valid_bytes <= 2 << 20, "{listed:?}");
    server.kill(&volume); // before reads have what is dirty written down to make room

    let server = volume.serve();
    assert_eq!(size(&server), 2 * MIB);
    assert!(server.status().tiers[0].dirty_bytes > 0);
    assert_same("the volume", &read(&mut connect(&server), content.len()), &content);
    assert_eq!(tier_ok(&server, &["resize", "0", "3MiB"]), "resized tier 0 from 2MiB to 3MiB\n");
    content[MIB..4 * MIB].copy_from_slice(&pattern(3, 3 * MIB));
    let mut client = connect(&server);
    client.write(MIB as u64, &content[MIB..4 * MIB], false).expect("a write");
    client.flush().expect("a flush");
    assert_same("the volume", &read(&mut client, content.len()), &content);
    let valid = server.status().tiers[0].valid_bytes;
    assert!(valid > 3 << 19, "it uses what it got: {valid}");
    server.end();

    let checked = floe_ok(&["check", text(&file)]);
    assert!(checked.contains("resized to 3MiB"), "{checked}");
    let server = volume.serve();
    assert_eq!(size(&server), 3 * MIB);
    assert_same("the volume", &read(&mut connect(&server), content.len()), &content);
    assert_eq!(tier_ok(&server, &["resize", "0", "4MiB"]), "resized tier 0 from 3MiB to 4MiB\n");
    server.kill(&volume);
    let server = volume.serve();
    assert_eq!(size(&server), 4 * MIB);
    assert_same("the volume", &read(&mut connect(&server), content.len()), &content);
    server.drain_and_end();
    assert_same("the volume", &volume.backing(), &content);
}

/// The shares of the server that recorded the size may have been others.
#[test]
fn a_recorded_size_that_is_too_small_for_the_shares_refuses_no_start() {
    let content = pattern(1, 8 * MIB);
    let volume = Volume::new(&content, "back").on("2");
    let guaranteed = |server: &Server| server.status().volumes[0].cached[0].guaranteed_bytes;
    let server = volume.serve();
    tier_ok(&server, &["resize", "0", "2MiB"]);
    server.kill(&volume);

    let volume = volume.with(&["--cache-guaranteed", "3584KiB"]);
    let server = volume.serve();
    let log = server.log();
    assert!(log.contains("guarantees less") && log.contains("3584KiB"), "{log}");
    assert_eq!(guaranteed(&server), 2 << 20);
    assert_same("the volume", &read(&mut connect(&server), content.len()), &content);
    refused(&server, &["resize", "0", "1MiB"], &["cache-guaranteed"]);
    tier_ok(&server, &["resize", "0", "3MiB"]);
    assert_eq!(guaranteed(&server), 3 << 20);
    tier_ok(&server, &["resize", "0", "4MiB"]);
    assert_eq!(guaranteed(&server), 3584 << 10);
    server.kill(&volume);
    let server = volume.serve();
    assert!(!server.log().contains("guarantees less"));
    server.end();
}

#[test]
fn a_size_that_a_tier_cannot_have_is_refused_in_a_line() {
    let volume = Volume::new(&pattern(1, MIB), "back").on("2");
    let server = volume.serve();
    tier_ok(&server, &["add", "memory:4MiB,block-sizes=64KiB,shards=4"]);
    let made_for = ["tier 0 cannot have 8MiB", "was made for 4MiB", "--initialise"];
    refused(&server, &["resize", "0", "8MiB"], &made_for);
    refused(&server, &["resize", "0", "64KiB"], &["tier 0 cannot have 64KiB", "it has at least"]);
    refused(&server, &["resize", "2", "8MiB"], &["no tier 2", "number 1"]);
    refused(&server, &["resize", "1", "5000"], &["multiple of 4096"]);
    refused(&server, &["resize", "1", "64KiB"], &["tier 1 cannot have 64KiB", "at least 256KiB"]);
    refused(&server, &["resize", "1", "900TiB"], &["tier 1", "too large"]);
    refused(&server, &["resize", "1", "8TiB"], &["tier 1 cannot have 8TiB", "in memory"]);
    for size in ["much", "8 apples"] {
        let output = tier(&server, &["resize", "1", size]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains("SIZE"), "{said}");
    }
    assert_eq!(server.status().tiers[1].size_bytes, 4 << 20);
    server.end();
}

/// What a tier on a device had of the volume is old once the volume was written to without it.
#[test]
fn a_tier_that_was_away_brings_nothing_old_back() {
    let mut content = pattern(1, 6 * MIB);
    let volume = Volume::new(&content, "through").on("2");
    let spec = format!("file:{},size=16MiB,write=back", text(&volume.path("tier.img")));
    let server = volume.serve();
    let mut client = connect(&server);
    let mut write = |client: &mut Client, seed: u64| {
        content[MIB..][..3 * MIB].copy_from_slice(&pattern(seed, 3 * MIB));
        client.write(MIB as u64, &content[MIB..][..3 * MIB], false).expect("a write");
        content.clone()
    };
    tier_ok(&server, &["add", &spec]);
    write(&mut client, 2);
    read(&mut client, 6 * MIB);
    tier_ok(&server, &["remove", "1"]);
    let now = write(&mut client, 3);
    assert_same("the volume", &volume.backing(), &now);
    // It comes back into the running server, and into one that begins with it.
    tier_ok(&server, &["add", &spec]);
    assert_eq!(server.status().tiers[1].valid_bytes, 0);
    write(&mut client, 4);
    tier_ok(&server, &["remove", "1"]);
    let now = write(&mut client, 5);
    server.end();
    let line = volume.command_line();
    let line: Vec<&str> = line.iter().map(String::as_str).chain(["--tier", &spec]).collect();
    let server = Server::run(&line, volume.path("floe.log"));
    assert_eq!(server.status().tiers[1].valid_bytes, 0);
    assert_same("the volume", &read(&mut connect(&server), now.len()), &now);
    server.end();
    // Without having been removed it cannot be told from one that was away.
    let server = volume.serve();
    refused(&server, &["add", &spec], &["may be old", "--initialise"]);
    tier_ok(&server, &["add", &spec, "--initialise"]);
    assert_same("the volume", &read(&mut connect(&server), now.len()), &now);
    server.end();
}

/// Compares the volume with what it may have after so many kills.
fn look(server: &Server, model: &Mutex<Model>, kill: u64) {
    let mut client = connect(server);
    let mut bytes = vec![0; LOOK * SECTOR];
    for start in (0..SECTORS).step_by(LOOK) {
        client.read((start * SECTOR) as u64, &mut bytes).expect("a read");
        let mut model = model.lock().expect("no client failed");
        for (at, bytes) in (start..).zip(bytes.chunks(SECTOR)) {
            model
                .found(at, bytes)
                .unwrap_or_else(|wrong| panic!("after {kill} kills: {wrong}\n{}", server.log()));
        }
    }
    client.disconnect().expect("a goodbye");
}

/// A number from the environment, or another one.
fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Two persistent tiers on devices that lose what was not flushed, which change their sizes all the
/// time under writes, in a server that is killed again and again.
#[test]
fn persistent_tiers_have_a_size_and_all_that_was_flushed_when_the_server_is_killed() {
    const MADE_FOR: [u64; 2] = [4, 6];
    const TIER: &str = "file:FOLDER/tier.img,size=6MiB,write=back,block-sizes=4KiB+64KiB,\
                        shards=4,write-cache=volatile";
    let (kills, seed) = (setting("FLOE_KILLS", 8), setting("FLOE_SEED", 1));
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let volume = Volume::new(&vec![0; SECTORS * SECTOR], "back").losing_unflushed();
    let volume = volume.with(&["--shards", "4", "--threads", "2", "--tier", TIER]);
    let model = Mutex::new(Model::new(SECTORS));
    // The sizes that each tier may have, in MiB.
    let mut sizes = MADE_FOR.map(|mib| vec![mib]);
    let mut resized = 0;
    for kill in 0..20 * kills {
        if kill >= kills && resized > 0 {
            break;
        }
        let server = volume.serve();
        for (tier, may) in server.status().tiers.iter().zip(&mut sizes) {
            let mib = tier.size_bytes >> 20;
            assert!(may.contains(&mib), "after {kill} kills: {mib} MiB, not of {may:?}");
            *may = vec![mib];
        }
        look(&server, &model, kill);
        let client = connect(&server);
        let seeds: (u64, u64) = random.random();
        let time = Duration::from_millis(random.random_range(50..900));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let load =
                Load { model: &model, client, number: 0, clients: 1, seed: seeds.0, flushes: 8 };
            scope.spawn(move || load.run());
            let resizer = scope.spawn(|| {
                let mut random = SmallRng::seed_from_u64(seeds.1);
                while !stop.load(Ordering::SeqCst) {
                    let number = random.random_range(0..2);
                    let mib = random.random_range(2..=MADE_FOR[number]);
                    sizes[number].push(mib);
                    let line = ["resize", &number.to_string(), &format!("{mib}MiB")];
                    if !tier(&server, &line).status.success() {
                        break;
                    }
                    sizes[number] = vec![mib];
                    resized += 1;
                }
            });
            std::thread::sleep(time);
            let pid = rustix::process::Pid::from_raw(server.pid() as i32).expect("it has a number");
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is there");
            stop.store(true, Ordering::SeqCst);
            resizer.join().expect("it ends");
        });
        server.kill(&volume);
        model.lock().expect("no client failed").killed();
    }
    println!("{resized} sizes in {kills} lives or more");
    assert!(resized > 0);
}

/// A server on devices that lose what was not flushed, with tiers coming, going and changing size
/// all the time, killed again and again.
#[test]
fn nothing_flushed_is_lost_when_the_server_is_killed_while_tiers_come_and_go() {
    const CLIENTS: usize = 2;
    let (kills, seed) = (setting("FLOE_KILLS", 8), setting("FLOE_SEED", 1));
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let volume = Volume::new(&vec![0; SECTORS * SECTOR], "back").losing_unflushed();
    let volume = volume.with(&["--shards", "4", "--threads", "2"]);
    let tier_of = |name: &str| {
        let file = volume.path(name);
        format!(
            "file:{},size=6MiB,write=back,block-sizes=4KiB+64KiB,shards=4,write-cache=volatile",
            text(&file)
        )
    };
    let specs = [
        tier_of("one.img"),
        tier_of("two.img"),
        tier_of("three.img"),
        "memory:4MiB,write=back,shards=2".to_owned(),
    ];
    let model = Mutex::new(Model::new(SECTORS));
    let (mut came, mut went, mut missed, mut turned, mut kept) = (0, 0, 0, 0, Vec::<String>::new());
    let mut resized = 0;
    // A tier that was on its way when the server was killed, and its place.
    let mut doubtful: Option<(usize, String)> = None;
    let attempt = |tiers: &[String]| {
        let mut line = volume.command_line();
        tiers.iter().for_each(|spec| line.extend(["--tier".to_owned(), spec.clone()]));
        Server::attempt(
            &line.iter().map(String::as_str).collect::<Vec<_>>(),
            volume.path("floe.log"),
        )
    };
    // On a slow machine it takes more lives until tiers have come and gone.
    for kill in 0..20 * kills {
        if kill >= kills && came > 0 && went > 0 && resized > 0 {
            break;
        }
        if kept.len() > 1 {
            let turned_round: Vec<String> = kept.iter().rev().cloned().collect();
            let log = attempt(&turned_round).err();
            let log =
                log.unwrap_or_else(|| panic!("after {kill} kills: tiers serve in another order"));
            let is_refused =
                ["it was served below", "is not given"].iter().any(|said| log.contains(said));
            assert!(is_refused, "after {kill} kills: {log}");
            turned += 1;
        }
        // Without the one that is in doubt, unless the others say that it may have something.
        let server = attempt(&kept).unwrap_or_else(|log| {
            let (at, spec) = doubtful.take().unwrap_or_else(|| panic!("after {kill} kills: {log}"));
            let file = spec.split(',').next().unwrap_or_default();
            assert!(
                log.contains(file) && log.contains("is not given"),
                "after {kill} kills, without {spec}: {log}"
            );
            missed += 1;
            kept.insert(at, spec);
            attempt(&kept).unwrap_or_else(|log| panic!("after {kill} kills: {log}"))
        });
        look(&server, &model, kill);
        let clients: Vec<Client> = (0..CLIENTS).map(|_| connect(&server)).collect();
        let (stop, time) =
            (AtomicBool::new(false), Duration::from_millis(random.random_range(50..900)));
        let seeds: (u64, u64) = random.random();
        let mut there = kept.clone();
        std::thread::scope(|scope| {
            for (number, client) in clients.into_iter().enumerate() {
                let load = Load {
                    model: &model,
                    client,
                    number,
                    clients: CLIENTS,
                    seed: seeds.0 + number as u64,
                    flushes: 8,
                };
                scope.spawn(move || load.run());
            }
            let restacker = scope.spawn(|| {
                let (mut random, mut there) = (SmallRng::seed_from_u64(seeds.1), kept.clone());
                // What is on its way when the server is killed may have come, or may still be
                // there.
                let mut on_its_way = None;
                while !stop.load(Ordering::SeqCst) {
                    let away: Vec<&String> =
                        specs.iter().filter(|spec| !there.contains(spec)).collect();
                    if there.is_empty() || !away.is_empty() && random.random() {
                        let (spec, at) = (
                            away[random.random_range(0..away.len())].clone(),
                            random.random_range(0..=there.len()),
                        );
                        on_its_way = Some((at, spec.clone(), true));
                        if !tier(&server, &["add", &spec, "--at", &(at + 1).to_string()])
                            .status
                            .success()
                        {
                            break;
                        }
                        there.insert(at, spec);
                        came += 1;
                    } else {
                        let at = random.random_range(0..there.len());
                        on_its_way = Some((at, there[at].clone(), false));
                        if !tier(&server, &["remove", &(at + 1).to_string()]).status.success() {
                            break;
                        }
                        there.remove(at);
                        went += 1;
                    }
                    on_its_way = None;
                    let in_memory = there.iter().position(|spec| spec.starts_with("memory"));
                    if let Some(at) = in_memory {
                        let size = format!("{}MiB", random.random_range(1..8));
                        let line = ["resize", &(at + 1).to_string(), &size];
                        if !tier(&server, &line).status.success() {
                            break;
                        }
                        resized += 1;
                    }
                }
                (there, on_its_way)
            });
            std::thread::sleep(time);
            let pid = rustix::process::Pid::from_raw(server.pid() as i32).expect("it has a number");
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is there");
            stop.store(true, Ordering::SeqCst);
            let (left, on_its_way) = restacker.join().expect("it ends");
            there = left;
            if let Some((at, _, false)) = on_its_way {
                there.remove(at);
            }
            doubtful = on_its_way.map(|(at, spec, _)| (at, spec));
        });
        server.kill(&volume);
        model.lock().expect("no client failed").killed();
        let is_kept = |spec: &String| spec.starts_with("file");
        doubtful = doubtful.filter(|(_, spec)| is_kept(spec));
        doubtful
            .iter_mut()
            .for_each(|(at, _)| *at = there[..*at].iter().filter(|spec| is_kept(spec)).count());
        kept = there.into_iter().filter(is_kept).collect();
    }
    println!(
        "{came} came, {went} went, {resized} were resized in {kills} lives or more, {missed} were \
         missed at the next start, {turned} times their order was refused"
    );
    assert!(came > 0 && went > 0 && resized > 0);
}

#[test]
fn tiers_are_told_of_in_help() {
    let help = floe_ok(&["tier", "add", "--help"]);
    assert!(help.contains("floe tier add file:/dev/nvme1n1"), "{help}");
    let help = floe_ok(&["tier", "resize", "--help"]);
    assert!(help.contains("floe tier resize 0 64GiB"), "{help}");
}
