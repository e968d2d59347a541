//! A cache device that is given as the backing device of a volume, by mistake or on purpose.

use std::path::Path;

use floe_testkit::pattern;

use crate::common::{Server, Volume, assert_same, floe, floe_ok, text};
use crate::kept::{MIB, read, used};

/// A command line that serves a file as a volume, with a cache in memory.
fn line(folder: &Path, backing: &Path, more: &[&str]) -> Vec<String> {
    let path = |name: &str| folder.join(name).display().to_string();
    let mut line = vec!["serve".to_owned()];
    for (setting, value) in [
        ("--backing", format!("file:{}", text(backing))),
        ("--listen", format!("nbd+unix:///?socket={}", path("other.sock"))),
        ("--listen", "nbd://127.0.0.1:0".to_owned()),
        ("--admin", format!("unix:{}", path("other-admin.sock"))),
        ("--state-dir", path("state")),
    ] {
        line.extend([setting.to_owned(), value]);
    }
    if !more.contains(&"--cache") {
        line.extend(["--cache", "memory:4MiB"].map(str::to_owned));
    }
    line.extend(more.iter().map(|&word| word.to_owned()));
    line
}

fn attempt(folder: &Path, backing: &Path, more: &[&str]) -> Result<Server, String> {
    let line = line(folder, backing, more);
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    Server::attempt(&line, folder.join("other.log"))
}

/// The warnings of a server that serves this file as a volume, and leaves it as it was.
#[track_caller]
fn warnings(folder: &Path, backing: &Path, more: &[&str]) -> Vec<String> {
    let before = std::fs::read(backing).expect("the file is there");
    let server = attempt(folder, backing, more).expect("it serves");
    assert_same("the volume", &read(&server, 0, before.len()), &before);
    let log = server.log();
    server.end();
    assert!(std::fs::read(backing).expect("the file is there") == before, "it was changed");
    log.lines().filter(|line| line.contains("is a Floe cache")).map(str::to_owned).collect()
}

#[test]
fn a_cache_that_is_served_as_a_volume_is_warned_of() {
    for (dirty, what) in [
        (true, "is a Floe cache of volume \"floe\" with 65536 bytes (64KiB) of dirty data, which"),
        (false, "is a Floe cache of volume \"floe\", which"),
    ] {
        let (volume, _) = used(dirty);
        let (folder, cache) = (volume.path(""), volume.path("cache.img"));
        for more in [&[][..], &["--volume", "other"]] {
            let said = warnings(&folder, &cache, more);
            assert_eq!(said.len(), 1, "{said:?}");
            for wanted in [" WARN ", text(&cache), what, "give the device", "holds-cache"] {
                assert!(said[0].contains(wanted), "{wanted}: {said:?}");
            }
        }
        for meant in ["--read-only", "--holds-cache"] {
            assert!(warnings(&folder, &cache, &[meant]).is_empty(), "{meant}");
        }
    }
}

#[test]
fn a_cache_is_not_added_as_a_volume_unless_it_is_meant() {
    let (volume, _) = used(true);
    let other = Volume::new(&pattern(4, MIB), "through");
    let server = other.serve();
    let cache = volume.path("cache.img");
    let add = ["volume", "add", "second", text(&cache), "--admin", &server.admin];
    let output = floe(&add);
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{said}");
    for wanted in [text(&cache), "is a Floe cache of volume \"floe\"", "(64KiB) of dirty data"] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    for option in ["--read-only", "--holds-cache"] {
        let add: Vec<&str> = add.iter().copied().chain([option]).collect();
        floe_ok(&add);
        floe_ok(&["volume", "remove", "second", "--admin", &server.admin]);
    }
    server.end();
}

#[test]
fn a_damaged_cache_that_is_served_as_a_volume_is_warned_of_too() {
    let (volume, _) = used(true);
    let cache = volume.path("cache.img");
    let mut bytes = std::fs::read(&cache).expect("the cache");
    for copy in [0, 32 << 10] {
        bytes[copy + 5000] ^= 1;
    }
    std::fs::write(&cache, bytes).expect("damage");
    let said = warnings(&volume.path(""), &cache, &[]);
    assert!(said[0].contains("is a Floe cache that cannot be read"), "{said:?}");
    assert!(said[0].contains("an unknown number of bytes of dirty data"), "{said:?}");
}

#[test]
fn a_device_whose_cache_was_overwritten_is_a_volume() {
    let (volume, _) = used(true);
    let cache = volume.path("cache.img");
    let mut bytes = std::fs::read(&cache).expect("the cache");
    // A partition table, which leaves the other copy of the superblock in place.
    bytes[..512].copy_from_slice(&pattern(5, 512));
    std::fs::write(&cache, &bytes).expect("other data");
    assert!(warnings(&volume.path(""), &cache, &[]).is_empty(), "it is not a cache any more");
}
