//! A persistent cache: what the next server finds, and volumes that come and go.

use crate::common::{Server, Volume, assert_same, floe, floe_ok, text};
use floe_server::nbd_client::Client;
use floe_testkit::pattern;

pub(crate) const MIB: usize = 1 << 20;

/// Long enough for nothing to be written back by itself within a test.
pub(crate) const NEVER: [&str; 2] = ["--flush-interval", "1h"];

pub(crate) fn connect(server: &Server) -> Client {
    Client::connect(&server.unix.parse().expect("the URI is good")).expect("the server answers")
}

pub(crate) fn read(server: &Server, offset: usize, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    connect(server).read(offset as u64, &mut data).expect("a read");
    data
}

/// Writes a piece; with a flush, it is there afterwards whatever happens to the server.
pub(crate) fn write(server: &Server, offset: usize, piece: &[u8], flush: bool) {
    let mut client = connect(server);
    client.write(offset as u64, piece, false).expect("a write");
    if flush {
        client.flush().expect("a flush");
    }
}

/// The line with which a server refuses to begin; nothing is changed by it.
#[track_caller]
pub(crate) fn refusal(volume: &Volume, settings: &[&str]) -> String {
    let files = || {
        ["cache.img", "backing.img"]
            .map(|file| std::fs::read(volume.path(file)).expect("the file is there"))
    };
    let before = files();
    let mut line = volume.command_line();
    line.extend(settings.iter().map(|&setting| setting.to_owned()));
    let output = floe(&line.iter().map(String::as_str).collect::<Vec<_>>());
    let said = String::from_utf8(output.stderr).expect("text");
    let said: Vec<&str> = said.lines().filter(|line| !line.contains(" INFO ")).collect();
    assert_eq!((output.status.code(), said.len()), (Some(2), 1), "{said:?}");
    assert!(output.stdout.is_empty());
    assert!(files() == before, "a refusal changes something");
    said[0].to_owned()
}

/// A volume whose cache has 64 KiB of it from 1 MiB on, and no server.
pub(crate) fn used(dirty: bool) -> (Volume, Vec<u8>) {
    let mut content = pattern(1, 4 * MIB);
    let volume = Volume::new(&content, "back").with(&NEVER);
    let server = volume.serve();
    let piece = pattern(2, 64 << 10);
    write(&server, MIB, &piece, true);
    content[MIB..][..piece.len()].copy_from_slice(&piece);
    if dirty {
        server.end()
    } else {
        server.drain_and_end()
    }
    (volume, content)
}

#[test]
fn what_was_written_and_read_is_there_after_a_restart_on_any_number_of_threads() {
    let mut content = pattern(3, 4 * MIB);
    let volume = Volume::new(&content, "back").with(&NEVER).with(&["--shards", "4"]);
    for (round, threads) in ["1", "2", "4", "3", "1"].into_iter().enumerate() {
        let line = volume.command_line();
        let mut line: Vec<&str> = line.iter().map(String::as_str).collect();
        line.extend(["--threads", threads]);
        let server = Server::run(&line, volume.path("floe.log"));
        if round > 0 {
            let before = server.status();
            assert!(before.cache.dirty_bytes >= 128 << 10, "{before:?}");
            assert_same("what was cached", &read(&server, 0, 256 << 10), &content[..256 << 10]);
            let after = server.status();
            assert_eq!(
                after.cache.requests.read_hits, after.cache.requests.reads,
                "all of it is cached: {after:?}"
            );
            assert_eq!(after.cache.counters.backing_read_bytes, 0);
        } else {
            read(&server, 0, 256 << 10);
        }
        let piece = pattern(100 + round as u64, 128 << 10);
        write(&server, 0, &piece, false);
        content[..piece.len()].copy_from_slice(&piece);
        server.end();
    }
    assert!(volume.backing()[..128 << 10] != content[..128 << 10], "it stays in the cache");
    volume.serve().drain_and_end();
    assert_same("the backing device", &volume.backing(), &content);
}

#[test]
fn what_was_flushed_survives_a_killed_server() {
    for threads in ["1", "2"] {
        let mut content = pattern(4, 4 * MIB);
        let volume = Volume::new(&content, "back").with(&NEVER).on(threads);
        let server = volume.serve();
        let piece = pattern(5, 300_001);
        write(&server, 777_777, &piece, true);
        server.kill(&volume);
        content[777_777..][..piece.len()].copy_from_slice(&piece);
        assert!(volume.backing() != content, "the cache alone has it");
        let server = volume.serve();
        assert!(server.log().contains("ended=\"unclean\""), "{}", server.log());
        let status = server.status();
        let opened = status.opened.clone().expect("the cache is persistent");
        assert_eq!(opened.ended, "unclean");
        // In whole sectors of 4 KiB, of which the piece begins and ends within one.
        assert_eq!(opened.dirty_bytes, 307_200);
        assert_eq!(status.tiers[0].opened, status.opened);
        let told = floe_ok(&["status", "--admin", &server.admin]);
        let line = "started after an unclean end: 300KiB of dirty data recovered";
        assert!(told.contains(line), "{told}");
        assert_same("the volume", &read(&server, 0, 4 * MIB), &content);
        server.drain_and_end();
        assert_same("the backing device", &volume.backing(), &content);
        let server = volume.serve();
        assert_eq!(server.status().opened.expect("the same cache").ended, "clean");
        assert!(!floe_ok(&["status", "--admin", &server.admin]).contains("unclean"));
        server.end();
    }
}

/// Returns the offset of the newest page of a log on a cache device.
fn newest_log_page(cache: &[u8]) -> usize {
    let number = |at: usize| u64::from_le_bytes(cache[at..at + 8].try_into().expect("8 bytes"));
    let pages = (64 << 10..cache.len()).step_by(4096);
    let logs = pages.filter(|at| cache[at + 8..at + 13] == *b"FlPg\x01");
    logs.max_by_key(|at| number(at + 32)).expect("there is a log")
}

#[test]
fn a_flipped_bit_in_the_newest_page_of_the_log_loses_nothing_and_is_told() {
    for kills in [true, false] {
        let mut content = pattern(4, 4 * MIB);
        let volume = Volume::new(&content, "back").with(&NEVER).with(&["--shards", "1"]);
        let server = volume.serve();
        for (number, offset) in [(1, MIB), (2, 2 * MIB)] {
            let piece = pattern(number, 64 << 10);
            write(&server, offset, &piece, true);
            content[offset..][..piece.len()].copy_from_slice(&piece);
        }
        if kills {
            server.kill(&volume)
        } else {
            server.end()
        }
        let cache = volume.path("cache.img");
        let mut bytes = std::fs::read(&cache).expect("the cache");
        let page = newest_log_page(&bytes);
        bytes[page + 200] ^= 16;
        std::fs::write(&cache, bytes).expect("the cache");
        let checked = floe(&["check", text(&cache)]);
        let said = String::from_utf8(checked.stdout).expect("text");
        assert_eq!(checked.status.code(), Some(1), "{said}");
        let place = format!("at offset {page}, can be rebuilt from other pages");
        assert!(said.contains(&place), "{said}");
        let server = volume.serve();
        assert!(server.log().contains("a page of the journal was damaged"), "{}", server.log());
        assert_same("the volume", &read(&server, 0, 4 * MIB), &content);
        server.end();
        assert!(floe_ok(&["check", text(&cache)]).contains("no problems found"));
    }
}

#[test]
fn what_is_said_of_a_cache_that_is_opened() {
    let (volume, _) = used(true);
    let server = volume.serve();
    let log = server.log();
    let line = log.lines().find(|line| line.contains("cache opened")).expect("a line");
    for part in ["session=2", "ended=\"clean\"", "dirty_bytes=65536"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    server.kill(&volume);
}

#[test]
fn a_volume_that_is_missing_is_not_forgotten_with_what_is_dirty() {
    let volume = Volume::new(&pattern(8, 4 * MIB), "back").with(&NEVER);
    let second = volume.path("second.img");
    std::fs::write(&second, pattern(9, 2 * MIB)).expect("a volume");
    let server = volume.serve();
    let spec = format!("file:{}", second.display());
    floe_ok(&["volume", "add", "second", &spec, "--admin", &server.admin]);
    let uri = server.unix.replace("/floe", "/second");
    let mut client = Client::connect(&uri.parse().expect("a URI")).expect("the volume is served");
    client.write(0, &pattern(10, 8192), true).expect("a durable write");
    client.write(4096, &pattern(11, 8192), false).expect("a write");
    drop(client);
    server.end();
    let said = refusal(&volume, &[]);
    assert!(said.contains("volume \"second\"") && said.contains("12288 bytes (12KiB)"), "{said}");

    let config = volume.path("floe.toml");
    let one = format!(
        "cache = \"file:{}\"\nwrite = \"back\"\nflush-interval = \"1h\"\nadmin = \"unix:{}\"\n\
         listen = [\"nbd+unix:///?socket={}\", \"nbd://127.0.0.1:0\"]\n",
        volume.path("cache.img").display(),
        volume.path("admin.sock").display(),
        volume.path("nbd.sock").display()
    );
    let table = |name: &str, file: &std::path::Path| {
        format!("[[volume]]\nname = \"{name}\"\nbacking = \"file:{}\"\n", file.display())
    };
    let both =
        format!("{one}{}{}", table("second", &second), table("floe", &volume.path("backing.img")));
    std::fs::write(&config, both).expect("a file");
    let run = || {
        let line = ["serve", "--config", config.to_str().expect("UTF-8")];
        // It prints the URIs of the first volume first.
        Server::run(&line, volume.path("floe.log"))
    };
    let server = run();
    assert_eq!(server.status().cache.dirty_bytes, 12288);
    let mut found = vec![0; 12288];
    connect(&server).read(0, &mut found).expect("a read");
    assert_same("the second volume", &found[4096..], &pattern(11, 8192));
    floe_ok(&["volume", "remove", "second", "--admin", &server.admin]);
    assert_same(
        "its backing device",
        &std::fs::read(&second).expect("it is there")[4096..12288],
        &pattern(11, 8192),
    );
    server.kill(&volume);
    volume.serve().end();
}

#[test]
fn a_volume_added_under_a_number_that_was_anothers_has_nothing_of_it() {
    let volume = Volume::new(&pattern(12, MIB), "back").with(&NEVER);
    let server = volume.serve();
    for round in 0..3 {
        let file = volume.path("more.img");
        std::fs::write(&file, pattern(20 + round, MIB)).expect("a volume");
        let name = format!("more{round}");
        floe_ok(&[
            "volume",
            "add",
            &name,
            &format!("file:{}", file.display()),
            "--admin",
            &server.admin,
        ]);
        let uri = server.unix.replace("/floe", &format!("/{name}"));
        let mut client =
            Client::connect(&uri.parse().expect("a URI")).expect("the volume is served");
        let mut found = vec![0; MIB];
        client.read(0, &mut found).expect("a read");
        assert_same("the volume", &found, &pattern(20 + round, MIB));
        drop(client);
        if round < 2 {
            floe_ok(&["volume", "remove", &name, "--admin", &server.admin]);
        }
    }
    server.kill(&volume);
    let server = volume.serve();
    assert!(
        server.log().contains("a volume that is not served any more is forgotten"),
        "{}",
        server.log()
    );
    assert_same("the volume", &read(&server, 0, MIB), &pattern(12, MIB));
    server.end();
}

#[test]
fn a_replay_does_not_overwrite_a_kept_cache() {
    let (volume, _) = used(true);
    let before = std::fs::read(volume.path("cache.img")).expect("the cache");
    let trace = volume.path("trace.csv");
    std::fs::write(&trace, "op,offset,length\nread,0,4096\n").expect("a trace");
    let cache = format!("file:{}", volume.path("cache.img").display());
    let output = floe(&[
        "replay",
        trace.to_str().expect("UTF-8"),
        "--backing",
        "memory:4MiB",
        "--cache",
        &cache,
        "--time",
        "real",
    ]);
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.code() == Some(2) && said.contains("holds a persistent cache"), "{said}");
    assert!(std::fs::read(volume.path("cache.img")).expect("the cache") == before);
}

/// What is still said of a volume that is gone is not said of the next one, also when the server
/// that first had that was killed at once.
#[test]
fn a_new_volume_gets_nothing_of_one_that_is_gone() {
    let volume = Volume::new(&pattern(1, MIB), "back").with(&["--flush-interval", "1h"]);
    let file = |name: &str, seed: u64| {
        std::fs::write(volume.path(name), pattern(seed, MIB)).expect("a file");
        format!("file:{}", text(&volume.path(name)))
    };
    let (gone, next) = (file("gone.img", 2), file("next.img", 3));
    let config = |more: &str| {
        let mut line = volume.command_line();
        line.push("--print-config".to_owned());
        let printed = floe_ok(&line.iter().map(String::as_str).collect::<Vec<_>>());
        let path = volume.path("floe.toml");
        std::fs::write(&path, printed + more).expect("a file");
        Server::run(&["serve", "--config", text(&path)], volume.path("floe.log"))
    };
    let read = |server: &Server, name: &str| {
        let uri = server
            .tcp
            .rsplit_once('/')
            .map_or(server.tcp.clone(), |(host, _)| format!("{host}/{name}"));
        let mut client = Client::connect(&uri.parse().expect("a URI")).expect("it is served");
        let mut found = vec![0; MIB];
        client.read(0, &mut found).expect("a read");
        client.flush().expect("a flush");
        found
    };
    let server = config("");
    floe_ok(&["volume", "add", "gone", &gone, "--admin", &server.admin]);
    assert_same("the one that goes", &read(&server, "gone"), &pattern(2, MIB));
    floe_ok(&["volume", "remove", "gone", "--admin", &server.admin]);
    drop(server); // kills it
    let more = format!("\n[[volume]]\nname = \"next\"\nbacking = \"{next}\"\n");
    drop(config(&more)); // before anything is committed
    let server = config(&more);
    assert_same("the next one", &read(&server, "next"), &pattern(3, MIB));
    server.end();
}
