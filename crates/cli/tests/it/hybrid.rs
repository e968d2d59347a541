//! `floe hybrid`: facts, damage and statistics of a cache's file, and refusals of other files.

use std::path::Path;

use floe_hybrid::Hybrid;
use serde_json::Value;

use crate::common::{floe, floe_ok, text};

type Cache = Hybrid<u64, Vec<u8>>;

/// Opens a cache of 16 MiB with segments of 128 KiB.
fn open(path: &Path) -> Cache {
    Hybrid::builder().memory(2 << 20).flash(path, 16 << 20).open().expect("a cache")
}

/// Makes a cache of 5000 objects of 1000 bytes.
fn filled(path: &Path) -> Cache {
    let cache = open(path);
    for key in 0..5000 {
        cache.insert(key, vec![key as u8; 1000]);
    }
    cache
}

/// Runs a command that succeeds, and returns its text and its JSON.
#[track_caller]
fn both(command: &str, path: &Path) -> (String, Value) {
    let said = floe_ok(&["hybrid", command, text(path)]);
    assert!(said.lines().all(|line| line.chars().count() <= 80), "{said}");
    let json = floe_ok(&["hybrid", command, text(path), "--json"]);
    assert_eq!(json.lines().count(), 1, "{json}");
    (said, serde_json::from_str(&json).expect("JSON"))
}

/// Runs a command that fails, and returns its exit code, its output and its line.
#[track_caller]
fn failing(arguments: &[&str]) -> (i32, String, String) {
    let output = floe(arguments);
    let line = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(line.lines().count(), 1, "{line}");
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    (output.status.code().expect("an exit code"), said, line)
}

#[test]
fn a_cache_tells_what_it_holds_while_it_is_open_closed_and_damaged() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cache");
    let cache = filled(&path);

    let (said, json) = both("info", &path);
    assert!(said.contains("session 1, in use"), "{said}");
    assert_eq!((&json["state"], &json["objects"]), (&"in use".into(), &Value::Null));
    let (said, json) = both("stats", &path);
    assert!(said.contains("session 1, in use"), "{said}");
    assert_eq!(json["state"], "in use");
    let (code, said, line) = failing(&["hybrid", "check", text(&path)]);
    assert!(code == 2 && said.is_empty() && line.contains("in use"), "{code} {said} {line}");

    (0..100).for_each(|key| assert!(cache.get_blocking(&key).is_some(), "{key}"));
    cache.close().expect("it closes");
    drop(cache);
    let (said, json) = both("info", &path);
    assert!(said.contains("5000 objects in") && said.contains("session 1, closed"), "{said}");
    assert!(said.contains("the next open reads the saved index"), "{said}");
    assert_eq!((json["objects"].as_u64(), &json["next_open"]), (Some(5000), &"clean".into()));
    let (said, json) = both("stats", &path);
    assert!(said.contains("session 1, closed") && said.contains("flash hits"), "{said}");
    let hits = |place: &str| json[place].as_u64().expect("a number");
    assert_eq!(hits("memory_hits") + hits("flash_hits"), 100);
    assert!(json["write_amplification"].as_f64().expect("a number") >= 1.0);
    let (said, json) = both("check", &path);
    assert!(said.contains("5000 objects in") && said.ends_with("no problems found\n"), "{said}");
    assert_eq!(
        (json["live_objects"].as_u64(), json["damaged_places"].as_u64()),
        (Some(5000), Some(0))
    );

    // The first record of segment 1, in place 1.
    let mut bytes = std::fs::read(&path).expect("the file");
    let offset = (64 << 10) + (128 << 10) + 64;
    bytes[offset + 20] ^= 1;
    std::fs::write(&path, bytes).expect("the file");
    let (code, said, line) = failing(&["hybrid", "check", text(&path)]);
    assert_eq!(code, 1);
    let place = format!("damage: segment 1, offset {offset}: a record is damaged\n");
    assert!(said.contains(&place) && !said.contains("no problems found"), "{said}");
    assert!(line.contains("damaged places: 1, objects lost: 1"), "{line}");
    let (code, said, _) = failing(&["hybrid", "check", text(&path), "--json"]);
    let json: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((code, json["damage"][0]["offset"].as_u64()), (1, Some(offset as u64)));
}

#[test]
fn other_files_are_refused_in_a_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("noise"), floe_testkit::pattern(1, 1 << 20)).expect("a file");
    std::fs::write(path("empty"), b"").expect("a file");
    filled(&path("cache")).close().expect("it closes");
    let bytes = std::fs::read(path("cache")).expect("the file");
    std::fs::write(path("short"), &bytes[..1 << 20]).expect("a file");
    let mut later = bytes;
    for at in [0, 4096] {
        later[at + 16] = 99;
        let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &later[at + 4..at + 4096]);
        later[at..at + 4].copy_from_slice(&(sum as u32).to_le_bytes());
    }
    std::fs::write(path("later"), later).expect("a file");
    for (name, why) in [
        ("missing", "No such file"),
        ("noise", "something other than a hybrid cache"),
        ("empty", "too small for a hybrid cache"),
        ("short", "it was cut short"),
        ("later", "has format 99"),
    ] {
        for command in ["info", "check", "stats"] {
            let (code, said, line) = failing(&["hybrid", command, text(&path(name))]);
            assert!(code == 2 && said.is_empty(), "{command} {name}: {code} {said}");
            assert!(line.contains(why) && line.contains(name), "{command} {name}: {line}");
        }
    }
}

#[test]
fn each_cache_of_a_folder_is_inspected() {
    let folder = tempfile::tempdir().expect("a folder");
    let (code, _, line) = failing(&["hybrid", "info", text(folder.path())]);
    assert!(code == 2 && line.contains("no hybrid cache"), "{line}");
    let paths = ["one", "other"].map(|name| folder.path().join(name));
    for path in &paths {
        filled(path).close().expect("closed");
    }
    std::fs::write(folder.path().join("notes"), vec![7; 10_000]).expect("written");
    for command in ["info", "check", "stats"] {
        let said = floe_ok(&["hybrid", command, text(folder.path())]);
        let named = |path: &std::path::PathBuf| said.contains(&format!("{}:\n", path.display()));
        assert!(paths.iter().all(named) && !said.contains("notes"), "{said}");
        let json = floe_ok(&["hybrid", command, text(folder.path()), "--json"]);
        let lines: Vec<Value> =
            json.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let found: Vec<&str> = lines.iter().filter_map(|line| line["path"].as_str()).collect();
        assert_eq!(found, paths.each_ref().map(|path| text(path)), "{json}");
    }
    let _in_use = open(&paths[0]);
    let (code, said, line) = failing(&["hybrid", "check", text(folder.path())]);
    assert!(code == 2 && line.contains("in use") && said.contains("other:"), "{said}{line}");
}
