//! A persistent cache without a server: `floe check`, `floe export-dirty`, and data that rots.

use crate::common::{Server, Volume, assert_same, floe, floe_ok};
use crate::kept::{MIB, NEVER, connect, read, refusal, used, write};
use floe_testkit::pattern;

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
    assert!(said.contains("session 1, closed cleanly") && said.contains("dirty 64KiB"), "{said}");
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
        (code, &*printed) == (Some(1), "") && said.contains("no Floe cache; it is empty"),
        "{said}"
    );
    std::fs::write(volume.path("cache.img"), vec![7; MIB]).expect("a file");
    let (code, printed, said) = offline(&volume, &["check"]);
    assert!(
        (code, &*printed) == (Some(1), "") && said.contains("no Floe cache; it holds other data"),
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
        code == Some(0) && said.contains("left half overwritten, and that are not used: 1"),
        "{said}"
    );
    assert!(said.contains("no problems found"), "{said}");
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
        assert!(line.contains("1 problem; --repair repairs"), "{line}");
        let (code, said, _) = offline(&volume, &["check", "--repair"]);
        assert!(code == Some(0) && said.contains("all problems are repaired"), "{said}");
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
        code == Some(0) && said.contains("no problems found") && said.contains("closed cleanly"),
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
    assert!(floe_ok(&["status", "--admin", &server.admin]).contains("this is its session 4"));
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
            code == Some(1) && said.contains("--repair repairs them, and nothing is lost"),
            "{said}"
        );
        assert!(
            printed.contains("can be rebuilt from other pages") && !printed.contains("lost:"),
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
