//! Cache devices that fail under `floe serve`: volumes stay usable, and what the server says of
//! itself is so.

use crate::common::{Server, Volume, assert_same, floe, floe_ok};
use floe_server::nbd_client::{Client, ClientError};
use floe_testkit::{pattern, wait_until};

const MIB: usize = 1 << 20;
const PIECE: usize = 16 << 10;
/// Long enough for nothing to be written back by itself within a test.
const NEVER: [&str; 2] = ["--flush-interval", "1h"];
/// What is not the superblock of a cache.
const BUT_SUPERBLOCK: &str = "65536-";

/// A volume whose cache device fails as a file says.
struct Failing {
    volume: Volume,
    model: Vec<u8>,
    versions: u64,
}

impl Failing {
    fn new(mode: &str, settings: &[&str]) -> Self {
        let model = pattern(1, 4 * MIB);
        let never: &[&str] =
            if mode == "back" && !settings.contains(&"--flush-interval") { &NEVER } else { &[] };
        Self { volume: Volume::new(&model, mode).with(never).with(settings), model, versions: 1 }
    }

    fn serve(&self) -> Server {
        self.attempt(&[]).unwrap_or_else(|log| panic!("{log}"))
    }

    /// Serves it with more on the command line, or tells why not.
    fn attempt(&self, more: &[&str]) -> Result<Server, String> {
        let faults = self.volume.path("faults").display().to_string();
        let mut line = self.volume.command_line();
        let at = line.iter().position(|word| word == "--cache").expect("it has a cache") + 1;
        line[at] = format!("{},faults={faults}", line[at]);
        let line: Vec<&str> = line.iter().map(String::as_str).chain(more.iter().copied()).collect();
        Server::attempt(&line, self.volume.path("floe.log"))
    }

    /// From now on the cache device fails so; not at all with no rules.
    fn fail(&self, rules: &str) {
        std::fs::write(self.volume.path("faults.new"), rules).expect("a file");
        std::fs::rename(self.volume.path("faults.new"), self.volume.path("faults"))
            .expect("it is moved");
    }

    /// Writes something new to a piece of the volume.
    fn write(&mut self, client: &mut Client, piece: usize) -> Result<(), ClientError> {
        self.versions += 1;
        let bytes = pattern(self.versions, PIECE);
        client.write((piece * PIECE) as u64, &bytes, false)?;
        self.model[piece * PIECE..][..PIECE].copy_from_slice(&bytes);
        Ok(())
    }

    #[track_caller]
    fn check(&self, client: &mut Client) {
        let mut found = vec![0; self.model.len()];
        for (number, bytes) in found.chunks_mut(MIB).enumerate() {
            client.read((number * MIB) as u64, bytes).expect("a read");
        }
        assert_same("the volume", &found, &self.model);
    }
}

fn connect(server: &Server) -> Client {
    Client::connect(&server.unix.parse().expect("the URI is good")).expect("the server answers")
}

/// The exit code and standard error of a command about a server.
fn ask(server: &Server, command: &str) -> (Option<i32>, String) {
    let output = floe(&[command, "--admin", &server.admin]);
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

/// The status of the answer to a health check, and its line.
fn health(server: &Server) -> (u16, String) {
    let (head, body) =
        crate::common::http(&server.admin, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    (head[9..12].parse().expect("a status"), body.trim_end().to_owned())
}

#[test]
fn a_volume_without_dirty_data_is_served_past_its_cache_however_that_fails() {
    let rules =
        ["all EIO", "write EIO", "write ENOSPC", "write EROFS", "flush EIO", "write ENOSPC 65536-"];
    for (number, rules) in rules.into_iter().enumerate() {
        let persistent = number % 3 < 2;
        let mode = if number % 2 == 0 { "through" } else { "around" };
        let threads = if number % 2 == 0 { "2" } else { "1" };
        let settings: &[&str] = if persistent { &[] } else { &["--volatile"] };
        let mut rig = Failing::new(mode, settings);
        rig.volume = rig.volume.on(threads);
        let server = rig.serve();
        let mut client = connect(&server);
        (0..64).for_each(|piece| rig.write(&mut client, piece).expect("a write"));
        rig.check(&mut client); // and now it is cached
        client.flush().expect("a flush");
        assert_eq!(health(&server), (200, "ok".into()), "{rules}");

        rig.fail(rules);
        for piece in (0..160).chain(0..64) {
            rig.write(&mut client, piece)
                .unwrap_or_else(|error| panic!("{rules}, piece {piece}: {error}"));
            if piece % 16 == 0 {
                client.flush().unwrap_or_else(|error| panic!("{rules}, piece {piece}: {error}"));
            }
        }
        rig.check(&mut client);
        let status = server.status();
        assert_eq!(
            (status.cache.refused_bytes, status.cache.dirty_bytes),
            (0, 0),
            "{rules}: {status:?}"
        );
        let word = if status.degraded { "degraded" } else { "ok" };
        assert_eq!(health(&server), (200, word.into()), "{rules}");
        if status.degraded && rules == "all EIO" {
            let (code, said) = ask(&server, "restore");
            assert!(code == Some(1) && said.contains("not restored"), "{rules}: {said}");
            assert_eq!(said.lines().count(), 1, "{said}");
        }
        rig.fail("");
        if status.degraded && !status.journal_lost {
            assert_eq!(ask(&server, "restore").0, Some(0), "{rules}");
            assert_eq!(health(&server), (200, "ok".into()), "{rules}");
            let before = server.status().cache.requests.read_hits;
            for _ in 0..3 {
                let mut found = vec![0; PIECE];
                client.read((3 * PIECE) as u64, &mut found).expect("a read");
                assert_same("a piece", &found, &rig.model[3 * PIECE..][..PIECE]);
            }
            assert!(server.status().cache.requests.read_hits > before, "{rules}: it caches again");
        } else if status.journal_lost {
            wait_until("the end of the cache", || {
                server.status().tiers[0].bypass.starts_with("ended")
            });
            let (code, said) = ask(&server, "restore");
            assert!(code == Some(1) && said.contains("ended"), "{rules}: {said}");
        }
        rig.check(&mut client);
        drop(client);
        server.end();
        assert_same("the backing device", &rig.volume.backing(), &rig.model);

        // The device has older copies of what was written past it.
        let server = rig.serve();
        rig.check(&mut connect(&server));
        assert_eq!(health(&server), (200, "ok".into()), "{rules}");
        server.end();
    }
}

/// What has been written past it is newer than what it would say, so the state folder notes that
/// for it, and the next start need not ask.
#[test]
fn a_cache_that_was_passed_by_and_could_not_be_told_is_ended_by_the_state_folder() {
    let mut rig = Failing::new("around", &[]);
    let server = rig.serve();
    let mut client = connect(&server);
    rig.check(&mut client);
    client.flush().expect("a flush");
    rig.fail("write EIO");
    for piece in 0..256 {
        rig.write(&mut client, piece).expect("a write");
    }
    client.flush().expect("a flush");
    wait_until("the end of the cache", || server.status().tiers[0].bypass == "ended-unnoted");
    server.kill(&rig.volume);
    rig.fail("");
    let server = rig.serve();
    assert!(server.log().contains("the note in the state folder counts"), "{}", server.log());
    assert!(server.log().contains("a new one is made in its place"), "{}", server.log());
    rig.check(&mut connect(&server));
    server.end();
}

/// An earlier version noted that the cache was passed by, and not whether it was ended.
#[test]
fn a_note_that_does_not_say_which_side_is_newer_has_the_user_decide_and_says_what_is_lost() {
    let mut rig = Failing::new("back", &[]);
    let server = rig.serve();
    let mut client = connect(&server);
    (8..24).for_each(|piece| rig.write(&mut client, piece).expect("a write"));
    client.flush().expect("a flush");
    server.kill(&rig.volume);
    let state = std::fs::read_dir(rig.volume.path("state")).expect("the state folder");
    let files = state.map(|entry| entry.expect("an entry").path());
    let note = files.into_iter().find(|path| path.extension().is_some_and(|it| it == "json"));
    let note = note.expect("a note");
    let text = std::fs::read(&note).expect("a note");
    let old: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let generation = old["generation"].as_u64().expect("a number") + (1 << 20) + 2;
    let text = format!("{{\"session\":{},\"generation\":{generation}}}", old["session"]);
    std::fs::write(&note, text).expect("a note");
    let Err(said) = rig.attempt(&[]) else { panic!("it cannot know") };
    for wanted in [
        "bypassed the cache in session 1",
        "256KiB",
        "--discard-dirty would lose it",
        "would overwrite",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    let server = rig.attempt(&["--accept-backing", "--keep-dirty"]).expect("it was not ended");
    rig.check(&mut connect(&server));
    server.end();
}

#[test]
fn a_lower_tier_that_loses_its_journal_is_passed_by_and_counts_no_more() {
    let mut rig = Failing::new("around", &[]);
    let [tier, faults] =
        ["tier.img", "tier.faults"].map(|name| rig.volume.path(name).display().to_string());
    let spec = format!("file:{tier},size=16MiB,write=back,faults={faults}");
    rig.volume = rig.volume.with(&["--tier", &spec]);
    let server = rig.serve();
    let mut client = connect(&server);
    (0..64).for_each(|piece| rig.write(&mut client, piece).expect("a write"));
    rig.check(&mut client);
    client.flush().expect("a flush");
    let rules = format!("write EIO {BUT_SUPERBLOCK}");
    std::fs::write(rig.volume.path("faults.new"), rules).expect("a file");
    std::fs::rename(rig.volume.path("faults.new"), &faults).expect("it is moved");
    for piece in (0..160).chain(0..64) {
        rig.write(&mut client, piece).expect("a write");
    }
    client.flush().expect("a flush");
    rig.check(&mut client);
    wait_until("the end of the tier", || server.status().tiers[1].bypass == "ended");
    drop(client);
    server.kill(&rig.volume);
    std::fs::remove_file(&faults).expect("it is there");
    let server = rig.serve();
    rig.check(&mut connect(&server));
    server.drain_and_end();
    assert_same("the backing device", &rig.volume.backing(), &rig.model);
}

/// Its superblock can still be written, and says that the tier which was removed is not missed.
#[test]
fn a_tier_that_is_removed_below_a_failing_one_is_not_missed_at_the_next_start() {
    let mut rig = Failing::new("through", &[]);
    let server = rig.serve();
    let tier = format!("file:{},size=8MiB,write=back", rig.volume.path("tier.img").display());
    floe_ok(&["tier", "add", &tier, "--admin", &server.admin]);
    let mut client = connect(&server);
    rig.fail(&format!("write EIO {BUT_SUPERBLOCK}"));
    for piece in 0..256 {
        rig.write(&mut client, piece).expect("a write");
    }
    client.flush().expect("a flush");
    assert!(server.status().tiers[0].bypass.starts_with("e"), "it is being emptied or was ended");
    floe_ok(&["tier", "remove", "1", "--admin", &server.admin]);
    rig.check(&mut client);
    rig.fail("");
    drop(client);
    server.end();
    let server = rig.serve();
    rig.check(&mut connect(&server));
    server.end();
}

#[test]
fn dirty_data_of_a_cache_device_that_is_full_is_written_back_while_clients_go_on() {
    for (rules, threads) in
        [("write ENOSPC", "2"), ("write ENOSPC 65536-", "1"), ("write EROFS 65536-", "2")]
    {
        let mut rig = Failing::new("back", &["--memory", "2MiB"]);
        rig.volume = rig.volume.on(threads);
        let server = rig.serve();
        let mut client = connect(&server);
        (0..48).for_each(|piece| rig.write(&mut client, piece).expect("a write"));
        client.flush().expect("a flush");
        (32..40).for_each(|piece| rig.write(&mut client, piece).expect("a write"));
        assert!(server.status().cache.dirty_bytes >= (8 * PIECE) as u64);

        rig.fail(rules);
        for piece in (0..64).chain(16..96) {
            rig.write(&mut client, piece)
                .unwrap_or_else(|error| panic!("{rules}, piece {piece}: {error}"));
            if piece % 8 == 0 {
                client.flush().unwrap_or_else(|error| panic!("{rules}, piece {piece}: {error}"));
            }
        }
        rig.check(&mut client);
        client.flush().expect("a flush");
        assert_same("the backing device", &rig.volume.backing(), &rig.model);
        let status = server.status();
        assert_eq!(
            (status.cache.refused_bytes, status.cache.dirty_bytes),
            (0, 0),
            "{rules}: {status:?}"
        );
        assert!(status.tiers[0].bypass.starts_with("ended"), "{rules}: {status:?}");
        assert_eq!(health(&server), (200, "degraded".into()), "{rules}");
        drop(client);
        if rules.ends_with(BUT_SUPERBLOCK) {
            server.kill(&rig.volume);
            rig.fail("");
        } else {
            rig.fail("");
            server.end();
        }
        let server = rig.serve();
        assert!(server.log().contains("a new one is made in its place"), "{}", server.log());
        rig.check(&mut connect(&server));
        server.end();
    }
}

#[test]
fn dirty_data_that_cannot_be_read_is_refused_and_everything_else_is_served() {
    for threads in ["1", "2"] {
        let mut rig = Failing::new("back", &[]);
        rig.volume = rig.volume.on(threads);
        let mut server = rig.serve();
        let mut client = connect(&server);
        (8..24).for_each(|piece| rig.write(&mut client, piece).expect("a write"));
        client.flush().expect("a flush");
        let mut found = vec![0; 8 * PIECE];
        client.read(0, &mut found).expect("a read"); // and is cached
        assert_eq!(server.status().cache.dirty_bytes, 16 * PIECE as u64);

        rig.fail("all EIO 65536-");
        // Until the journal is lost, and what is dirty is known to be out of reach.
        wait_until("refusals", || {
            let _ = rig.write(&mut client, 40);
            let _ = client.flush();
            client.read((8 * PIECE) as u64, &mut vec![0; PIECE]).is_err()
                && health(&server).0 == 503
        });
        for piece in (0..8).chain(24..80) {
            rig.write(&mut client, piece).unwrap_or_else(|error| panic!("piece {piece}: {error}"));
        }
        client.flush().expect("all that was dirty had been flushed");
        for piece in [8, 12, 23] {
            let write = client.write((piece * PIECE) as u64, &pattern(9, PIECE), false);
            assert!(matches!(write, Err(ClientError::Request(_))), "piece {piece}: {write:?}");
            let read = client.read((piece * PIECE) as u64, &mut vec![0; PIECE]);
            assert!(matches!(read, Err(ClientError::Request(_))), "piece {piece}: {read:?}");
        }
        for piece in (0..8).chain(24..200) {
            let mut found = vec![0; PIECE];
            client.read((piece * PIECE) as u64, &mut found).expect("a read");
            assert_same("a piece", &found, &rig.model[piece * PIECE..][..PIECE]);
        }
        let (code, line) = health(&server);
        assert!(
            code == 503 && line.lines().count() == 1 && line.contains("refused"),
            "{code} {line}"
        );
        let status = server.status();
        assert_eq!(
            (status.cache.refused_bytes, status.cache.dirty_bytes),
            (16 * PIECE as u64, 16 * PIECE as u64)
        );
        let text = floe_ok(&["status", "--admin", &server.admin]);
        assert!(text.contains("REFUSING: reads or writes of up to 256KiB"), "{text}");
        let (code, said) = ask(&server, "restore");
        assert!(code == Some(1) && said.contains("not restored"), "{said}");
        assert_eq!(ask(&server, "flush").0, Some(1));
        drop(client);
        let (code, said) = ask(&server, "stop");
        assert!(code == Some(1) && said.contains("only on a cache device that fails"), "{said}");
        assert_eq!(server.ended(), Some(1), "{}", server.log());
        let log = server.log();
        let last = log.lines().last().expect("a line");
        assert!(last.starts_with("floe: ") && last.contains("256KiB of dirty data"), "{last}");

        // The device works again: it has what was dirty, and nothing older than the rest of the
        // volume.
        rig.fail("");
        let server = rig.serve();
        rig.check(&mut connect(&server));
        server.drain_and_end();
        assert_same("the backing device", &rig.volume.backing(), &rig.model);
    }
}

/// The device fails now and then, so it is not given up.
#[test]
fn health_is_bad_for_as_long_as_dirty_data_cannot_be_read_whatever_succeeds_beside() {
    for memory in [&[][..], &["--memory", "4MiB", "--memory-write", "back"]] {
        let mut rig = Failing::new("back", memory);
        let server = rig.serve();
        let mut client = connect(&server);
        (8..10).for_each(|piece| rig.write(&mut client, piece).expect("a write"));
        client.flush().expect("a flush");
        rig.fail("read EIO 65536-");
        assert_eq!(ask(&server, "flush").0, Some(1), "what is dirty cannot be read");
        let refused = || server.status().cache.refused_bytes;
        wait_until("refusals", || health(&server).0 == 503);
        for piece in 32..40 {
            rig.write(&mut client, piece).expect("a write");
            client.flush().expect("a flush");
        }
        assert!(refused() > 0, "{:?}", server.status());
        let (code, line) = health(&server);
        assert!(code == 503 && line.contains("refused"), "{code} {line}");
        rig.fail("");
        floe_ok(&["flush", "--admin", &server.admin]);
        wait_until("the end of refusals", || health(&server) == (200, "ok".into()));
        assert_eq!(refused(), 0);
        rig.check(&mut client);
        server.end();
    }
}

/// Writes, and lets the cache device fail. Returns nothing if no dirty data was left by then.
fn fails_while_dirty() -> Option<(Failing, Server, Client)> {
    let mut rig = Failing::new("back", &["--flush-interval", "100ms"]);
    let server = rig.serve();
    let mut client = connect(&server);
    (8..24).for_each(|piece| rig.write(&mut client, piece).expect("a write"));
    client.flush().expect("a flush");
    rig.fail("all EIO");
    let mut refuses = false;
    wait_until("refusals, or the end of the cache", || {
        let _ = rig.write(&mut client, 40);
        let _ = client.flush();
        refuses = health(&server).0 == 503;
        refuses || server.status().tiers[0].bypass == "ended"
    });
    if !refuses {
        drop(client);
        server.end();
        return None;
    }
    Some((rig, server, client))
}

#[test]
fn dirty_data_of_a_device_that_comes_back_is_written_back() {
    // Once more where all was written back before the device failed.
    let (mut rig, server, mut client) =
        (0..20).find_map(|_| fails_while_dirty()).expect("the device fails before all is clean");
    rig.fail("");
    wait_until("the end of refusals", || health(&server).0 == 200);
    wait_until("the end of the cache", || server.status().tiers[0].bypass == "ended");
    rig.check(&mut client);
    (0..64).for_each(|piece| rig.write(&mut client, piece).expect("a write"));
    rig.check(&mut client);
    client.flush().expect("a flush");
    assert_same("the backing device", &rig.volume.backing(), &rig.model);
    drop(client);
    server.end();
}

#[test]
fn a_cache_file_that_the_system_does_not_let_grow_is_gone_past() {
    // The file is sparse: the system refuses what is written beyond the limit, as a full file
    // system would.
    let model = pattern(1, MIB);
    let mut rig = Failing { volume: Volume::new(&model, "through"), model, versions: 1 };
    rig.serve().end(); // the cache is made
    let line = rig.volume.command_line();
    let words: Vec<String> = line.iter().map(|word| format!("'{word}'")).collect();
    let script =
        format!("ulimit -f 1100; exec '{}' {}", env!("CARGO_BIN_EXE_floe"), words.join(" "));
    let server = Server::spawn(
        std::process::Command::new("bash").args(["-c", &script]),
        rig.volume.path("floe.log"),
    );
    let mut client = connect(&server);
    for piece in (0..64).chain(0..64) {
        rig.write(&mut client, piece).unwrap_or_else(|error| panic!("piece {piece}: {error}"));
    }
    client.flush().expect("a flush");
    rig.check(&mut client);
    let status = server.status();
    assert!(status.devices.cache_errors > 0 && status.cache.refused_bytes == 0, "{status:?}");
    drop(client);
    server.end();
    assert_same("the backing device", &rig.volume.backing(), &rig.model);
    rig.check(&mut connect(&rig.serve()));
}

#[test]
fn an_empty_file_left_of_a_cache_that_was_not_made_becomes_one() {
    let rig = Failing::new("through", &[]);
    std::fs::write(rig.volume.path("cache.img"), "").expect("a file");
    let server = rig.serve();
    rig.check(&mut connect(&server));
    server.end();
    assert_eq!(
        std::fs::metadata(rig.volume.path("cache.img")).expect("it is there").len(),
        4 << 20
    );
}

#[test]
fn more_memory_than_there_is_is_refused_in_a_line() {
    let rig = Failing::new("through", &[]);
    let backing = format!("file:{}", rig.volume.path("backing.img").display());
    let output = floe(&[
        "serve",
        "--backing",
        &backing,
        "--cache",
        "memory:1000TiB",
        "--admin",
        "127.0.0.1:0",
    ]);
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("more than this machine has"), "{said}");
}

#[test]
fn two_volumes_are_served_past_a_failing_cache_and_come_and_go() {
    let mut rig = Failing::new("through", &[]);
    let server = rig.serve();
    let second = pattern(50, MIB);
    std::fs::write(rig.volume.path("second.img"), &second).expect("a volume");
    let spec = format!("file:{}", rig.volume.path("second.img").display());
    floe_ok(&["volume", "add", "second", &spec, "--admin", &server.admin]);
    let mut client = connect(&server);
    let uri =
        server.unix.replace("nbd+unix:///", "nbd+unix:///second").replace("/secondfloe", "/second");
    let mut other = Client::connect(&uri.parse().expect("a URI")).expect("the second volume");
    (0..32).for_each(|piece| rig.write(&mut client, piece).expect("a write"));
    let mut found = vec![0; MIB];
    other.read(0, &mut found).expect("a read");
    client.flush().expect("a flush");
    rig.fail("write EIO");
    for piece in 0..64 {
        rig.write(&mut client, piece).expect("a write");
        other
            .write((piece % 32 * PIECE) as u64, &pattern(piece as u64, PIECE), false)
            .expect("a write");
    }
    client.flush().expect("a flush");
    other.flush().expect("a flush");
    rig.check(&mut client);
    drop(other);
    floe_ok(&["volume", "remove", "second", "--force", "--admin", &server.admin]);
    floe_ok(&["volume", "add", "third", &spec, "--admin", &server.admin]);
    assert_eq!(health(&server), (200, "degraded".into()));
    drop(client);
    rig.fail("");
    server.end();
    assert_same("the backing device", &rig.volume.backing(), &rig.model);
}
