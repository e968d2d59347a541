//! A cache that outlives the program: what the next server finds, whom it serves and whom it
//! refuses.

use crate::common::{Server, Volume, assert_same, floe, floe_ok, text};
use floe_server::nbd_client::Client;
use floe_testkit::pattern;

const MIB: usize = 1 << 20;

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
fn refusal(volume: &Volume, settings: &[&str]) -> String {
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
        let place = format!("at offset {page}, is made again from others");
        assert!(said.contains(&place), "{said}");
        let server = volume.serve();
        assert!(server.log().contains("a page of the journal was damaged"), "{}", server.log());
        assert_same("the volume", &read(&server, 0, 4 * MIB), &content);
        server.end();
        assert!(floe_ok(&["check", text(&cache)]).contains("all is well"));
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
fn a_cache_of_another_volume_is_refused() {
    let (volume, _) = used(true);
    let said = refusal(&volume, &["--volume", "other"]);
    assert!(said.contains("belongs to volume \"floe\", not to \"other\""), "{said}");
    let said = refusal(&volume, &["--volume", "other", "--initialise"]);
    assert!(
        said.contains("would lose 65536 bytes (64KiB)") && said.contains("--discard-dirty"),
        "{said}"
    );
    let volume = volume.with(&["--volume", "other", "--initialise", "--discard-dirty"]);
    let server = volume.serve();
    assert!(
        server.log().contains("65536 bytes (64KiB) that only the old cache had"),
        "{}",
        server.log()
    );
    assert_same("the volume", &read(&server, 0, 4 * MIB), &pattern(1, 4 * MIB));
    server.end();
}

#[test]
fn another_file_in_the_volumes_place_is_refused_until_it_is_accepted() {
    for (dirty, keep) in [(false, false), (true, false), (true, true)] {
        let (volume, content) = used(dirty);
        let other = pattern(6, 4 * MIB);
        std::fs::write(volume.path("other"), &other).expect("another volume");
        std::fs::rename(volume.path("other"), volume.path("backing.img")).expect("in its place");
        let said = refusal(&volume, &[]);
        assert!(
            said.contains("it is another file than before") && said.contains("--accept-backing"),
            "{said}"
        );
        assert_eq!(said.contains("65536 bytes (64KiB)"), dirty, "{said}");
        if dirty {
            let said = refusal(&volume, &["--accept-backing"]);
            assert!(said.contains("--keep-dirty") && said.contains("--discard-dirty"), "{said}");
        }
        let mut settings = vec!["--accept-backing"];
        settings.extend(dirty.then_some(if keep { "--keep-dirty" } else { "--discard-dirty" }));
        let volume = volume.with(&settings);
        let server = volume.serve();
        let mut expected = other;
        if keep {
            expected[MIB..][..64 << 10].copy_from_slice(&content[MIB..][..64 << 10]);
        }
        assert_same("the volume", &read(&server, 0, 4 * MIB), &expected);
        server.end();
    }
}

#[test]
fn a_volume_changed_behind_the_cache_is_refused() {
    for at in [4096, 4 * MIB - 1] {
        let (volume, mut content) = used(false);
        content[at] ^= 1;
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(volume.path("backing.img"))
            .expect("the volume");
        std::os::unix::fs::FileExt::write_all_at(&file, &content[at..][..1], at as u64)
            .expect("a change");
        let said = refusal(&volume, &[]);
        assert!(said.contains("changed while no server was there"), "{said}");
        let volume = volume.with(&["--accept-backing"]);
        let server = volume.serve();
        assert_same("the volume", &read(&server, 0, 4 * MIB), &content);
        server.end();
    }
}

#[test]
fn a_volume_of_another_size_is_refused() {
    let (volume, content) = used(true);
    let resize = |bytes: usize| {
        let file = std::fs::OpenOptions::new().write(true).open(volume.path("backing.img"));
        file.and_then(|file| file.set_len(bytes as u64)).expect("another size");
    };
    resize(5 * MIB);
    let said = refusal(&volume, &[]);
    assert!(said.contains("it had 4194304 bytes (4MiB) and has 5242880 bytes (5MiB)"), "{said}");
    resize(3 * MIB);
    let said = refusal(&volume, &["--accept-backing", "--keep-dirty"]);
    assert!(said.contains("has shrunk"), "{said}");
    resize(4 * MIB);
    let volume = volume.with(&["--accept-backing", "--keep-dirty"]);
    let server = volume.serve();
    assert_same("what was dirty", &read(&server, MIB, 64 << 10), &content[MIB..][..64 << 10]);
    server.end();
}

#[test]
fn a_volume_that_became_read_only_cannot_take_what_is_dirty() {
    let (volume, _) = used(true);
    let said = refusal(&volume, &["--read-only"]);
    assert!(said.contains("is read-only now"), "{said}");
}

#[test]
fn a_cache_serves_as_it_was_made_or_not_at_all() {
    let (volume, _) = used(true);
    let line = volume.command_line().join(" ").replace("4KiB,16KiB,64KiB", "4KiB,16KiB");
    let output = floe(&line.split(' ').collect::<Vec<_>>());
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("block-sizes = 4KiB,16KiB,64KiB, not 4KiB,16KiB"), "{said}");
    let said = refusal(&volume, &["--shards", "3"]);
    assert!(said.contains("made with shards = ") && said.contains("not 3"), "{said}");
    let said = refusal(&volume, &["--threads", "64"]);
    assert!(said.contains("shard(s), which 64 threads cannot share"), "{said}");
}

#[test]
fn data_that_is_not_floes_is_left_alone() {
    let volume = Volume::new(&pattern(7, 4 * MIB), "back");
    for at in [0, 1080, 65600, 4 * MIB - 5] {
        let mut bytes = vec![0; 4 * MIB];
        bytes[at] = 0x53;
        std::fs::write(volume.path("cache.img"), &bytes).expect("somebody's data");
        let said = refusal(&volume, &[]);
        assert!(said.contains("not a cache of floe's") && said.contains("--initialise"), "{said}");
    }
    let volume = volume.with(&["--initialise"]);
    volume.serve().end();
}

#[test]
fn a_damaged_cache_is_refused_and_says_where() {
    let (volume, _) = used(true);
    let mut bytes = std::fs::read(volume.path("cache.img")).expect("the cache");
    bytes[16] = 9;
    bytes[(32 << 10) + 100] ^= 1;
    std::fs::write(volume.path("cache.img"), &bytes).expect("damage");
    let said = refusal(&volume, &[]);
    assert!(
        said.contains("no copy of the superblock is intact") && said.contains("floe check"),
        "{said}"
    );
    let said = refusal(&volume, &["--initialise"]);
    assert!(said.contains("an unknown number of bytes"), "{said}");
    let volume = volume.with(&["--initialise", "--discard-dirty"]);
    volume.serve().end();
}

#[test]
fn a_kept_cache_is_not_overwritten_by_a_volatile_one() {
    let (volume, _) = used(true);
    let said = refusal(&volume, &["--volatile"]);
    assert!(said.contains("kept cache with 65536 bytes (64KiB)"), "{said}");
}

/// What a volatile cache leaves is no one's, whatever it looks like; what came on its device after
/// it is somebody's.
#[test]
fn a_volatile_cache_spares_what_is_not_floes() {
    let content = pattern(20, 4 * MIB);
    let volume = Volume::new(&content, "back").with(&["--volatile"]);
    let attempt = |more: &[&str]| {
        let mut line = volume.command_line();
        line.extend(more.iter().map(|&word| word.to_owned()));
        Server::attempt(
            &line.iter().map(String::as_str).collect::<Vec<_>>(),
            volume.path("floe.log"),
        )
    };
    std::fs::write(volume.path("cache.img"), pattern(21, 4 * MIB)).expect("somebody's data");
    let said = attempt(&[]).err().expect("it is refused");
    assert!(
        said.contains("data that is not a cache of floe's") && said.contains("--initialise"),
        "{said}"
    );
    assert!(
        std::fs::read(volume.path("cache.img")).expect("the file") == pattern(21, 4 * MIB),
        "it is as it was"
    );
    attempt(&["--initialise"]).expect("it may be overwritten").end();
    for _ in 0..2 {
        let server = attempt(&[]).expect("its own leavings are in nobody's way");
        for _ in 0..2 {
            assert_same("the volume", &read(&server, 0, 4 * MIB), &content);
        }
        write(&server, MIB, &content[MIB..2 * MIB], true);
        server.kill(&volume);
    }
    // Somebody makes a file system there.
    let mut bytes = std::fs::read(volume.path("cache.img")).expect("the file");
    bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
    std::fs::write(volume.path("cache.img"), &bytes).expect("a file system");
    let said = attempt(&[]).err().expect("it is refused");
    assert!(said.contains("--initialise"), "{said}");
    bytes[1080..1082].copy_from_slice(&[0, 0]);
    std::fs::write(volume.path("cache.img"), &bytes).expect("no file system");
    attempt(&[]).expect("it is as before").end();
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

/// Runs a command on the cache that no server uses; its exit code, what it prints, and its line on
/// standard error.
pub(crate) fn offline(volume: &Volume, arguments: &[&str]) -> (Option<i32>, String, String) {
    let (command, rest) = arguments.split_first().expect("a command");
    let cache = volume.path("cache.img");
    let output = floe(&[&[*command, cache.to_str().expect("UTF-8")], rest].concat());
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let said = text(output.stderr);
    assert!(said.lines().count() <= 1, "{said}");
    (output.status.code(), text(output.stdout), said)
}

/// Flips a bit in the cache where it has these bytes.
pub(crate) fn rot(volume: &Volume, bytes: &[u8]) {
    let mut cached = std::fs::read(volume.path("cache.img")).expect("the cache");
    let at = cached.chunks(4096).position(|sector| sector == bytes).expect("it is cached") * 4096;
    cached[at + 100] ^= 4;
    std::fs::write(volume.path("cache.img"), &cached).expect("damage");
}

#[test]
fn a_cache_that_is_well_is_found_so() {
    let (volume, _) = used(true);
    let (code, said, _) = offline(&volume, &["check"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("session 1, ended well") && said.contains("dirty 64KiB"), "{said}");
    let server = volume.serve();
    let (code, _, said) = offline(&volume, &["check"]);
    assert!(code == Some(2) && said.contains("in use by another process"), "{said}");
    server.kill(&volume);
    let (code, said, _) = offline(&volume, &["check", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(
        (&json["session"], &json["clean"], &json["dirty_bytes"]),
        (&2.into(), &false.into(), &65536.into())
    );
    std::fs::write(volume.path("cache.img"), vec![0; MIB]).expect("zeros");
    let (code, printed, said) = offline(&volume, &["check"]);
    assert!(
        (code, &*printed) == (Some(1), "") && said.contains("no cache, it holds nothing"),
        "{said}"
    );
    std::fs::write(volume.path("cache.img"), vec![7; MIB]).expect("a file");
    let (code, printed, said) = offline(&volume, &["check"]);
    assert!(
        (code, &*printed) == (Some(1), "") && said.contains("no cache, it holds data"),
        "{said}"
    );
}

#[test]
fn clean_copies_that_a_crash_found_half_overwritten_are_no_problem() {
    let (volume, content) = used(false);
    volume.serve().kill(&volume);
    rot(&volume, &content[MIB + 4096..][..4096]);
    let (code, said, _) = offline(&volume, &["check"]);
    assert!(
        code == Some(0) && said.contains("half overwritten when it ended, and are not used: 1"),
        "{said}"
    );
    assert!(said.contains("all is well"), "{said}");
}

#[test]
fn a_bad_copy_of_the_superblock_is_written_anew() {
    for copy in [0, 32 << 10] {
        let (volume, content) = used(true);
        let mut cached = std::fs::read(volume.path("cache.img")).expect("the cache");
        cached[copy + 20] ^= 1;
        std::fs::write(volume.path("cache.img"), &cached).expect("damage");
        let (code, said, line) = offline(&volume, &["check"]);
        assert!(
            code == Some(1) && said.contains(&format!("superblock at offset {copy} has checksum")),
            "{said}"
        );
        assert!(line.contains("1 problem(s); --repair mends"), "{line}");
        let (code, said, _) = offline(&volume, &["check", "--repair"]);
        assert!(code == Some(0) && said.contains("all of it is mended"), "{said}");
        assert_eq!(offline(&volume, &["check"]).0, Some(0));
        let server = volume.serve();
        assert_same("what was dirty", &read(&server, MIB, 64 << 10), &content[MIB..][..64 << 10]);
        server.end();
    }
}

#[test]
fn clean_data_that_rotted_is_found_and_forgotten() {
    let (volume, content) = used(false);
    rot(&volume, &content[MIB + 4096..][..4096]);
    let (code, said, _) = offline(&volume, &["check"]);
    let wanted = "4096 bytes at offset";
    assert!(
        code == Some(1) && said.contains(wanted) && said.contains("\"floe\" from 1052672 on"),
        "{said}"
    );
    let (code, said, _) = offline(&volume, &["check", "--repair"]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said, _) = offline(&volume, &["check"]);
    assert!(
        code == Some(0) && said.contains("all is well") && said.contains("ended well"),
        "{said}"
    );
    let server = volume.serve();
    assert_same("the volume", &read(&server, 0, 4 * MIB), &content);
    server.end();
}

#[test]
fn what_is_dirty_is_written_back_without_a_server() {
    let (volume, content) = used(true);
    let backing = format!("file:{}", volume.path("backing.img").display());
    let other = volume.path("other.img");
    std::fs::write(&other, pattern(13, 4 * MIB)).expect("another volume");
    let other = format!("file:{}", other.display());
    for (target, wanted) in [
        (other.clone(), "another file than before"),
        (format!("pictures={backing}"), "no volume \"pictures\"; it has volume \"floe\""),
        ("file:/nowhere".into(), "/nowhere does not exist"),
    ] {
        let before = std::fs::read(volume.path("cache.img")).expect("the cache");
        let (code, _, said) = offline(&volume, &["export-dirty", "--backing", &target]);
        assert!(code == Some(2) && said.contains(wanted), "{said}");
        assert!(
            std::fs::read(volume.path("cache.img")).expect("the cache") == before,
            "it has changed"
        );
    }
    let (code, said, line) =
        offline(&volume, &["export-dirty", "--backing", &format!("floe={backing}")]);
    assert_eq!(
        (code, said.as_str()),
        (Some(0), "64KiB written back to volume \"floe\"\n"),
        "{line}"
    );
    assert_same("the backing device", &volume.backing(), &content);
    let (code, said, _) = offline(&volume, &["export-dirty", "--backing", &backing, "--json"]);
    assert_eq!((code, said.as_str()), (Some(0), "{\"volume\":\"floe\",\"written_bytes\":0}\n"));
    let server = volume.serve();
    assert_eq!(server.status().cache.dirty_bytes, 0);
    assert_same(
        "what was written back",
        &read(&server, MIB, 64 << 10),
        &content[MIB..][..64 << 10],
    );
    let status = server.status();
    assert_eq!(
        (status.cache.requests.read_hits, status.session),
        (1, Some(4)),
        "it is still cached"
    );
    assert!(floe_ok(&["status", "--admin", &server.admin]).contains("it was opened 4 time(s)"));
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
    assert!(output.status.code() == Some(2) && said.contains("holds a kept cache"), "{said}");
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

#[test]
fn dirty_data_that_rotted_is_an_error_before_and_after_a_restart() {
    let (volume, content) = used(true);
    let mut server = volume.serve();
    rot(&volume, &content[MIB + 4096..][..4096]);
    let admin = server.admin.clone();
    let failed = |output: std::process::Output| {
        let line = String::from_utf8(output.stderr).expect("text");
        assert_eq!((output.status.code(), line.lines().count()), (Some(1), 1), "{line}");
        line
    };
    let is_lost = |server: &Server| {
        let mut sector = vec![0; 4096];
        let result = connect(server).read((MIB + 4096) as u64, &mut sector);
        assert!(result.is_err(), "what is there is not what was written");
        assert_same("before it", &read(server, MIB, 4096), &content[MIB..][..4096]);
    };
    is_lost(&server);
    is_lost(&server);
    let status = server.status();
    assert_eq!(
        (status.cache.corrupt_sectors, status.devices.lost.bytes, status.devices.lost.places.len()),
        (1, 4096, 1)
    );
    let place = &status.devices.lost.places[0];
    assert_eq!(
        (place.volume.as_str(), place.offset, place.bytes),
        ("floe", (MIB + 4096) as u64, 4096)
    );
    failed(floe(&["flush", "--admin", &admin]));
    let lines = server.log().lines().filter(|line| line.contains("dirty data is lost")).count();
    assert_eq!(lines, 1, "{}", server.log());
    assert!(
        server.log().contains("ERROR") && server.log().contains("offset=1052672"),
        "{}",
        server.log()
    );
    let line = failed(floe(&["stop", "--admin", &admin]));
    assert!(line.contains("the server has ended, but 4KiB of dirty data are lost"), "{line}");
    assert!(line.contains("4KiB at 1052672 of floe;"), "{line}");
    assert_eq!(server.ended(), Some(1), "data was lost: {}", server.log());

    let server = volume.serve();
    is_lost(&server);
    assert_eq!(server.status().devices.lost.bytes, 4096);
    server.kill(&volume);
    let server = volume.serve();
    is_lost(&server);
    write(&server, MIB + 4096, &content[MIB + 4096..][..4096], true);
    assert_eq!(server.status().devices.lost.bytes, 0);
    server.drain_and_end();
    assert_same("the volume", &volume.backing(), &content);
}

#[test]
fn dirty_data_that_rots_while_nobody_serves_is_an_error() {
    let (volume, content) = used(true);
    rot(&volume, &content[MIB + 8192..][..4096]);
    let server = volume.serve();
    let mut sector = vec![0; 4096];
    assert!(connect(&server).read((MIB + 8192) as u64, &mut sector).is_err());
    assert_same("what is beside it", &read(&server, MIB, 8192), &content[MIB..][..8192]);
}

/// The offsets in the cache of its log's pages that are intact, in order of their numbers, those of
/// parity among them, by shard.
fn log_pages(bytes: &[u8]) -> Vec<Vec<usize>> {
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let is_log =
        |at: &usize| bytes[at + 8..at + 12] == *b"FlPg" && [1, 4].contains(&bytes[at + 12]);
    let mut shards: Vec<Vec<usize>> = vec![Vec::new(); 256];
    for at in (64 << 10..bytes.len()).step_by(4096).filter(is_log) {
        shards[usize::from(bytes[at + 14])].push(at);
    }
    shards.iter_mut().for_each(|pages| pages.sort_unstable_by_key(|at| number(at + 32)));
    shards.retain(|pages| pages.len() > 4);
    shards
}

/// A cache of one shard with several flushed writes, killed, and what the volume should read.
fn killed() -> (Volume, Vec<u8>) {
    let mut content = pattern(30, 4 * MIB);
    let volume = Volume::new(&content, "back").with(&NEVER).with(&["--shards", "1"]).on("1");
    let server = volume.serve();
    for round in 0..6 {
        let piece = pattern(31 + round as u64, 64 << 10);
        let at = round * (128 << 10);
        write(&server, at, &piece, true);
        content[at..][..piece.len()].copy_from_slice(&piece);
    }
    server.kill(&volume);
    (volume, content)
}

#[test]
fn a_damaged_page_of_the_log_is_mended_and_loses_nothing() {
    for whole_page in [false, true] {
        let (volume, content) = killed();
        let mut bytes = std::fs::read(volume.path("cache.img")).expect("the cache");
        let at = log_pages(&bytes)[0][2];
        match whole_page {
            true => bytes[at..at + 4096].fill(0),
            false => bytes[at + 77] ^= 8,
        }
        std::fs::write(volume.path("cache.img"), &bytes).expect("damage");
        let said = refusal(&volume, &[]);
        assert!(
            said.contains("the log of shard 0 is damaged") && said.contains("floe check --repair"),
            "{said}"
        );
        let backing = format!("file:{}", volume.path("backing.img").display());
        let (code, _, said) = offline(&volume, &["export-dirty", "--backing", &backing]);
        assert!(code == Some(2) && said.contains("floe check --repair"), "{said}");
        let (code, printed, said) = offline(&volume, &["check"]);
        assert!(
            code == Some(1) && said.contains("--repair mends them, and nothing is lost"),
            "{said}"
        );
        assert!(
            printed.contains("is made again from others") && !printed.contains("lost:"),
            "{printed}"
        );
        let (code, printed, said) = offline(&volume, &["check", "--repair"]);
        assert_eq!(code, Some(0), "{printed}{said}");
        let (code, printed, _) = offline(&volume, &["check"]);
        assert_eq!(code, Some(0), "{printed}");
        let server = volume.serve();
        assert_same("the volume", &read(&server, 0, 4 * MIB), &content);
        server.drain_and_end();
        assert_same("the backing device", &volume.backing(), &content);
    }
}

#[test]
fn what_cannot_be_mended_is_listed_and_never_read_or_written_back() {
    let (volume, content) = killed();
    let before = volume.backing();
    let mut bytes = std::fs::read(volume.path("cache.img")).expect("the cache");
    let pages = log_pages(&bytes)[0].clone();
    let middle = pages.len() / 2 / 2 * 2;
    for at in &pages[middle..middle + 2] {
        bytes[*at..at + 4096].fill(0); // a page and its parity
    }
    std::fs::write(volume.path("cache.img"), &bytes).expect("damage");
    let (code, printed, said) = offline(&volume, &["check", "--repair", "--json"]);
    assert!(code == Some(1) && said.contains("the dirty data listed is lost"), "{said}");
    let json: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
    assert_eq!(json["repaired"], true);
    let lost: Vec<std::ops::Range<usize>> = json["lost"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|range| {
            assert_eq!(range["volume"], "floe");
            let number = |name: &str| range[name].as_u64().expect("a number") as usize;
            number("offset")..number("offset") + number("length")
        })
        .collect();
    assert!(!lost.is_empty(), "{printed}");

    // What was noted in the lost page alone is nowhere; the rest is right, or an error.
    let server = volume.serve();
    let mut client = connect(&server);
    let (mut right, mut errors, mut old) = (0, 0, 0);
    for at in (0..6 * (128 << 10)).step_by(4096) {
        let mut found = vec![0; 4096];
        let is_lost = lost.iter().any(|run| run.contains(&at));
        match client.read(at as u64, &mut found) {
            Ok(()) if found == content[at..at + 4096] => right += 1,
            Ok(()) => {
                assert!(!is_lost && found == before[at..at + 4096], "at {at}");
                old += 1;
            }
            Err(_) => {
                assert!(is_lost, "at {at}");
                errors += 1;
            }
        }
    }
    assert!(right > 16 && errors > 0 && old <= 16, "{right} right, {errors} errors, {old} old");
    drop(client);
    server.kill(&volume);
    let backing = format!("file:{}", volume.path("backing.img").display());
    let (code, printed, said) =
        offline(&volume, &["export-dirty", "--backing", &backing, "--accept-backing"]);
    assert!(code == Some(1) && said.contains("are lost and were not written back"), "{said}");
    assert!(printed.contains("lost: volume \"floe\", offset "), "{printed}");
    let after = volume.backing();
    for run in lost {
        assert_same("what is lost", &after[run.clone()], &before[run]);
    }
}
