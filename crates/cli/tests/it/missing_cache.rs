//! A cache that a volume was served with and that is not there at the next start, and notes in the
//! state folder that cannot be written.

use std::path::PathBuf;
use std::process::Command;

use crate::common::{Server, Volume, assert_same, floe, floe_ok, text};
use crate::kept::{read, used, write};
use crate::kept_checked::offline;
use floe_testkit::pattern;

const MIB: usize = 1 << 20;
const DIRTY: usize = 64 << 10;

/// Starts a server that may refuse to begin: its log then.
fn attempt(volume: &Volume, more: &[&str]) -> Result<Server, String> {
    let line = volume.command_line();
    let line: Vec<&str> = line.iter().map(String::as_str).chain(more.iter().copied()).collect();
    Server::attempt(&line, volume.path("floe.log"))
}

/// The line with which a server refuses to begin.
#[track_caller]
fn refused(volume: &Volume, more: &[&str]) -> String {
    match attempt(volume, more) {
        Ok(_) => panic!("it serves"),
        Err(log) => log.lines().last().expect("a line").to_owned(),
    }
}

fn move_away(volume: &Volume) -> PathBuf {
    let away = volume.path("away.img");
    std::fs::rename(volume.path("cache.img"), &away).expect("it is moved");
    away
}

#[test]
fn a_cache_with_dirty_data_is_missed_when_its_file_is_gone_or_zeroed() {
    for killed in [false, true] {
        let (volume, content) = used(true);
        if killed {
            volume.serve().kill(&volume);
        }
        let away = move_away(&volume);
        let cache = text(&volume.path("cache.img")).to_owned();
        let check = |said: &str, given: bool| {
            let other = if given { "the given" } else { "that cache is not there" };
            assert!(said.contains(other), "{other}: {said}");
            let how = if killed { "may have dirty data" } else { "has 65536 bytes (64KiB)" };
            for wanted in ["volume \"floe\" was served with the cache", &*cache, how, "mount"] {
                assert!(said.contains(wanted), "{wanted}: {said}");
            }
            assert!(said.contains("--discard-dirty") && said.contains("loses"), "{said}");
        };
        check(&refused(&volume, &[]), true);
        check(&refused(&volume, &["--initialise"]), true);
        assert!(!volume.path("cache.img").exists(), "a refusal makes a file");
        let bytes = std::fs::metadata(&away).expect("it is there").len() as usize;
        std::fs::write(&cache, vec![0; bytes]).expect("zeros");
        check(&refused(&volume, &[]), true);
        assert!(std::fs::read(&cache).expect("the file").iter().all(|byte| *byte == 0));
        // As a file that was not given its size.
        std::fs::write(&cache, "").expect("an empty file");
        check(&refused(&volume, &[]), true);
        assert_eq!(std::fs::metadata(&cache).expect("the file").len(), 0);
        // A cache in memory, or another device, serves old data as well.
        for other in ["memory:4MiB".to_owned(), format!("file:{}", text(&volume.path("b.img")))] {
            let mut line = volume.command_line();
            let at = line.iter().position(|word| word == "--cache").expect("a cache") + 1;
            line[at] = other;
            let line: Vec<&str> = line.iter().map(String::as_str).collect();
            let said = Server::attempt(&line, volume.path("floe.log")).err();
            check(said.expect("it is refused").lines().last().expect("a line"), false);
        }
        assert!(!volume.path("b.img").exists(), "a refusal makes a file");
        std::fs::rename(&away, &cache).expect("it is back");
        let server = volume.serve();
        assert_same("the volume", &read(&server, 0, 4 * MIB), &content);
        server.end();
    }
}

#[test]
fn a_missing_cache_that_was_given_up_does_not_come_back_unnoticed() {
    let (volume, _) = used(true);
    let mut content = volume.backing();
    let away = move_away(&volume);
    let server = attempt(&volume, &["--discard-dirty"]).expect("the user agreed");
    assert!(server.log().contains("as --discard-dirty"), "{}", server.log());
    assert_same("the volume", &read(&server, 0, 4 * MIB), &content);
    let piece = pattern(9, DIRTY / 2);
    write(&server, MIB, &piece, true);
    content[MIB..][..piece.len()].copy_from_slice(&piece);
    server.drain_and_end();
    // Once is enough.
    let server = attempt(&volume, &[]).expect("that cache was given up");
    assert!(!server.log().contains("continues without"), "{}", server.log());
    server.end();
    std::fs::rename(&away, volume.path("cache.img")).expect("it is back");
    let said = refused(&volume, &[]);
    assert!(said.contains("it was served without this cache since"), "{said}");
    assert!(said.contains("64KiB") && said.contains("overwrites"), "{said}");
    let server = attempt(&volume, &["--accept-backing", "--discard-dirty"]).expect("it is old");
    assert_same("the volume", &read(&server, 0, 4 * MIB), &content);
    server.end();
}

#[test]
fn a_clean_cache_that_is_missing_is_named_in_the_log_and_nothing_of_it_is_used_later() {
    let (volume, mut content) = used(false);
    let away = move_away(&volume);
    let server = attempt(&volume, &[]).expect("nothing is lost");
    let log = server.log();
    assert!(log.contains("continues without the cache") && log.contains("cache.img"), "{log}");
    let piece = pattern(9, DIRTY);
    write(&server, MIB, &piece, true);
    content[MIB..][..piece.len()].copy_from_slice(&piece);
    server.drain_and_end();
    std::fs::rename(&away, volume.path("cache.img")).expect("it is back");
    let server = attempt(&volume, &[]).expect("it had nothing of its own");
    assert_same("the volume", &read(&server, 0, 4 * MIB), &content);
    server.end();
}

#[test]
fn a_cache_that_was_written_back_or_replaced_is_not_missed() {
    let (volume, content) = used(true);
    let state = volume.path("state");
    let backing = format!("file:{}", text(&volume.path("backing.img")));
    let arguments = ["export-dirty", "--backing", &backing, "--state-dir", text(&state)];
    assert_eq!(offline(&volume, &arguments).0, Some(0));
    std::fs::remove_file(volume.path("cache.img")).expect("it is not needed");
    let server = attempt(&volume, &[]).expect("nothing is lost");
    assert_same("the volume", &read(&server, 0, 4 * MIB), &content);
    write(&server, MIB, &pattern(3, DIRTY), true);
    server.end();
    let server = attempt(&volume, &["--initialise", "--discard-dirty"]).expect("the user agreed");
    server.end();
    attempt(&volume, &[]).expect("the cache that was replaced is gone").end();
}

#[test]
fn a_volume_is_not_added_to_a_server_without_the_cache_that_has_dirty_data_of_it() {
    let (volume, _) = used(true);
    let other = Volume::new(&pattern(4, MIB), "through");
    let state = volume.path("state");
    let line = other.command_line();
    let mut line: Vec<&str> = line.iter().map(String::as_str).collect();
    line.extend(["--state-dir", text(&state)]);
    let server = Server::run(&line, other.path("floe.log"));
    let backing = format!("file:{}", text(&volume.path("backing.img")));
    let output = floe(&["volume", "add", "second", &backing, "--admin", &server.admin]);
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(!output.status.success() && said.contains("was served with the cache"), "{said}");
    server.end();
}

#[test]
fn a_refused_start_changes_no_tier() {
    let (volume, content) = used(true);
    let session = || {
        let said = floe_ok(&["check", "--json", text(&volume.path("cache.img"))]);
        let json: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        json["session"].as_u64().expect("a number")
    };
    let before = session();
    std::fs::write(volume.path("tier.img"), pattern(7, 8 * MIB)).expect("data of others");
    let tier = format!("file:{},write=through", text(&volume.path("tier.img")));
    let volatile = format!("{tier},volatile");
    let cached = std::fs::read(volume.path("cache.img")).expect("the cache");
    for more in [&["--tier", &*tier][..], &["--tier", &*volatile]] {
        let said = refused(&volume, more);
        assert!(said.contains("holds data that is not a Floe cache"), "{said}");
        assert_eq!(session(), before);
        assert!(std::fs::read(volume.path("cache.img")).expect("the cache") == cached);
    }
    let file = volume.path("no-folder");
    std::fs::write(&file, "").expect("a file");
    let said = refused(&volume, &["--state-dir", text(&file.join("state"))]);
    assert!(said.contains("state-dir") && session() == before, "{said}");
    let server = volume.serve();
    assert_same("the volume", &read(&server, 0, 4 * MIB), &content);
    server.end();
}

/// A small file system in memory; unmounted when dropped.
struct Small(PathBuf);

impl Small {
    fn mount(at: PathBuf) -> Option<Self> {
        std::fs::create_dir_all(&at).expect("a folder");
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", "size=64k", "none"]).arg(&at).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Self(at))
    }

    fn fill(&self) {
        let mut size = 64 << 10;
        for number in 0.. {
            if std::fs::write(self.0.join(format!("fill{number}")), vec![1; size]).is_err() {
                size /= 2;
            }
            if size < 512 {
                return;
            }
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[test]
fn a_full_state_folder_refuses_neither_the_end_nor_the_next_start() {
    let (volume, mut content) = used(true);
    let Some(small) = Small::mount(volume.path("small")) else {
        println!("SKIPPED: nothing can be mounted here");
        return;
    };
    let state = text(&small.0.join("state")).to_owned();
    let with_state = ["--state-dir", &*state];
    let server = attempt(&volume, &with_state).expect("there is room");
    small.fill();
    server.end();
    for round in 0..2 {
        let server = attempt(&volume, &with_state).unwrap_or_else(|log| panic!("{round}: {log}"));
        assert_same("the volume", &read(&server, 0, 4 * MIB), &content);
        let piece = pattern(20 + round, DIRTY);
        write(&server, MIB, &piece, true);
        content[MIB..][..piece.len()].copy_from_slice(&piece);
        assert!(!server.log().contains("would not be noticed"), "{}", server.log());
        server.end();
    }
    // The notes are kept up although there is no room: an old copy is found out.
    let old = std::fs::read(volume.path("cache.img")).expect("the cache");
    attempt(&volume, &with_state).expect("it is full, and serves").end();
    std::fs::write(volume.path("cache.img"), old).expect("an old copy");
    let said = refused(&volume, &with_state);
    assert!(said.contains("the cache is an old copy"), "{said}");
}

/// A folder that was full before the first note has no room reserved.
#[test]
fn a_state_folder_that_was_always_full_is_warned_of() {
    let (volume, content) = used(true);
    let Some(small) = Small::mount(volume.path("small")) else {
        println!("SKIPPED: nothing can be mounted here");
        return;
    };
    std::fs::create_dir(small.0.join("state")).expect("a folder");
    small.fill();
    let state = text(&small.0.join("state")).to_owned();
    for _ in 0..2 {
        let server = attempt(&volume, &["--state-dir", &state]).expect("it serves all the same");
        assert!(server.log().contains("would not be noticed"), "{}", server.log());
        assert_same("the volume", &read(&server, 0, 4 * MIB), &content);
        server.end();
    }
}

#[test]
fn a_cache_device_that_grew_is_shown_as_large_as_it_is_used() {
    let (volume, content) = used(true);
    let server = volume.serve();
    let before = server.status().tiers[0].size_bytes;
    server.end();
    let file = std::fs::OpenOptions::new().write(true).open(volume.path("cache.img"));
    file.and_then(|file| file.set_len(16 << 20)).expect("it grows");
    let line = volume.command_line();
    let at = line.iter().position(|word| word == "--cache-size").expect("a size");
    let line: Vec<&str> = line[..at].iter().chain(&line[at + 2..]).map(String::as_str).collect();
    let guaranteed: Vec<&str> =
        line.iter().copied().chain(["--cache-guaranteed", "10MiB"]).collect();
    let output = floe(&guaranteed);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("10MiB in all"), "{said}");
    let server = Server::run(&line, volume.path("floe.log"));
    let (size, log) = (server.status().tiers[0].size_bytes, server.log());
    assert!(size <= before && size + (128 << 10) > before, "{size} of {before}");
    assert!(log.contains("the cache device has grown") && log.contains("--initialise"), "{log}");
    assert!(!log.contains("cache_bytes=16777216"), "{log}");
    assert_same("the volume", &read(&server, 0, 4 * MIB), &content);
    server.drain_and_end();
    let line: Vec<&str> = line.iter().copied().chain(["--initialise"]).collect();
    let server = Server::run(&line, volume.path("floe.log"));
    assert_eq!(server.status().tiers[0].size_bytes, 16 << 20);
    server.end();
}
