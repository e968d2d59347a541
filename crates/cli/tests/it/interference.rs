//! `floe calibrate` as a user runs it: what it finds in virtual time, and that it leaves everything
//! as it was.

use std::path::Path;
use std::process::Output;

use crate::common::{Volume, assert_same, floe, floe_in, floe_ok, text};
use floe_testkit::pattern;
use serde_json::Value;

const MIB: usize = 1 << 20;

/// What keeps a run in real time short.
const BRIEF: [&str; 7] =
    ["--rounds", "1", "--seconds", "0.02", "--scratch", "2MiB", "--accept-noise"];

/// Calibrates a real device in rounds as long as this machine needs to read anything in them.
fn calibrated(folder: &Path, line: &[&str]) -> Output {
    for seconds in ["0.02", "0.2", "2", "20"] {
        let brief = ["--rounds", "1", "--seconds", seconds, "--scratch", "2MiB", "--accept-noise"];
        let output = floe_in(folder, &[line, &brief].concat());
        if !String::from_utf8_lossy(&output.stderr).contains("a larger --seconds") {
            return output;
        }
    }
    panic!("hardly anything is read in 20 s");
}

fn parsed(line: &str) -> Value {
    serde_json::from_str(line).expect("each line is JSON")
}

/// What follows for a simulated medium, at 4 KiB.
fn derived(medium: &str, more: &[&str]) -> Value {
    let device = format!("memory:64MiB,medium={medium}");
    let seconds = if medium == "cloud" { "1" } else { "0.004" };
    let line = [
        "calibrate",
        &device,
        "--time",
        "virtual",
        "--block",
        "4KiB",
        "--rounds",
        "3",
        "--seconds",
        seconds,
        "--json",
    ];
    let out = floe_ok(&[&line, more].concat());
    parsed(out.lines().last().expect("a result"))
}

fn number(of: &Value, field: &str) -> f64 {
    of[field].as_f64().unwrap_or_else(|| panic!("{field} of {of}"))
}

#[test]
fn writes_cost_what_the_medium_makes_them_cost() {
    let cost = |medium, more: &[&str]| number(&derived(medium, more), "write_cost");
    let pmem = cost("pmem", &[]);
    let others = [cost("dram", &[]), cost("optane", &[])];
    assert!(others.iter().all(|other| pmem > 2.0 * other), "{pmem} {others:?}");
    // Reads and writes of one bus, with no other way to get in each other's way.
    let alike = cost("cloud", &[]);
    assert!((0.9..1.1).contains(&alike), "{alike}");
}

#[test]
fn the_target_is_lower_where_writes_hurt_more_and_where_hits_gain_less() {
    let target = |medium, more: &[&str]| number(&derived(medium, more), "target");
    let (pmem, optane) = (target("pmem", &[]), target("optane", &[]));
    assert!((0.05..=0.3).contains(&pmem), "the paper found 5 to 30 % good: {pmem}");
    assert!(optane > 1.5 * pmem, "{optane} {pmem}");
    let above = |backing| target("optane", &["--backing", backing]);
    let (dear, cheap) = (above("memory:64MiB,medium=cloud"), above("memory:64MiB,medium=optane"));
    assert_eq!((dear, cheap < 0.2 * dear), (optane, true), "{cheap}");
    assert_eq!(
        target("nvme", &["--backing", "memory:64MiB,medium=optane"]),
        0.0,
        "nothing is gained"
    );
}

#[test]
fn in_virtual_time_the_same_comes_out_again() {
    let line = [
        "calibrate",
        "file:nowhere,medium=nvme",
        "--time",
        "virtual",
        "--rounds",
        "2",
        "--seconds",
        "0.02",
    ];
    assert_eq!(floe_ok(&line), floe_ok(&line));
}

#[test]
fn a_new_file_is_gone_afterwards_and_the_result_is_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let line = ["calibrate", "file:scratch", "--into", "tier.json", "--png", "tier", "--json"];
    let output = calibrated(folder.path(), &line);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut names: Vec<String> = std::fs::read_dir(folder.path())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .collect();
    names.sort();
    assert_eq!(names, ["tier-reads.png", "tier.json"]);
    let kept = parsed(&std::fs::read_to_string(folder.path().join("tier.json")).expect("a file"));
    let printed = String::from_utf8(output.stdout).expect("text");
    let printed: Vec<Value> = printed.lines().map(parsed).collect();
    // Two sizes of seven shares each, and what follows for each size.
    assert_eq!(printed.len(), 16);
    assert_eq!(kept["block_bytes"], 32 << 10);
    let last = &printed[15];
    for field in ["write_cost", "target", "target_bytes", "block_bytes"] {
        assert_eq!(kept[field], last[field], "{field}");
    }
    assert!(printed[..14].iter().all(|point| number(point, "read_bytes_per_second") > 0.0));
}

#[test]
fn a_device_that_is_there_is_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("disk.img");
    let spec = format!("file:{}", text(&file));
    let line = ["calibrate", spec.as_str()];
    let succeeds = |line: &[&str]| {
        let output = calibrated(folder.path(), line);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    std::fs::write(&file, vec![0; 8 * MIB]).expect("a file");
    succeeds(&line);
    assert_same("the disk", &std::fs::read(&file).expect("a file"), &vec![0; 8 * MIB]);

    let refuse = |content: &[u8]| {
        std::fs::write(&file, content).expect("a file");
        let output = floe(&[&line[..], &BRIEF].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("holds data") && said.contains("--overwrite"), "{said}");
        assert_same("the disk", &std::fs::read(&file).expect("a file"), content);
    };
    refuse(&pattern(1, 8 * MIB));
    // Where a table of partitions would not be, but where would be written.
    let mut hidden = vec![0; 8 * MIB];
    hidden[4 * MIB + 17] = 1;
    refuse(&hidden);
    succeeds(&[&line[..], &["--overwrite"]].concat());
}

#[test]
fn a_kept_cache_is_never_overwritten() {
    let volume = Volume::new(&pattern(2, MIB), "back");
    volume.serve().end();
    let cache = volume.path("cache.img");
    let before = std::fs::read(&cache).expect("a cache");
    let spec = format!("file:{}", text(&cache));
    let output = floe(&[&["calibrate", spec.as_str(), "--overwrite"], &BRIEF[..]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("persistent cache"), "{said}");
    assert_same("the cache", &std::fs::read(&cache).expect("a cache"), &before);
}

#[test]
fn a_kept_cache_is_told_and_otherwise_stays_as_it_is() {
    let volume = Volume::new(&pattern(3, MIB), "back");
    volume.serve().end();
    let cache = volume.path("cache.img");
    let status = || parsed(&floe_ok(&["check", text(&cache), "--json"]));
    let before = status();
    assert_eq!(before["calibration"], Value::Null);
    let line = [
        "calibrate",
        "memory:64MiB,medium=pmem",
        "--time",
        "virtual",
        "--seconds",
        "0.004",
        "--json",
    ];
    let printed = floe_ok(&[&line[..], &["--cache", text(&cache)]].concat());
    let found = parsed(printed.lines().last().expect("a result"));
    let after = status();
    for field in ["write_cost", "target", "target_bytes"] {
        assert_eq!(after["calibration"][field], found[field], "{field}");
    }
    let others = |of: &Value| {
        let mut of = of.clone();
        of["calibration"].take();
        of
    };
    assert_eq!(others(&after), others(&before));
    let volume = volume.with(&["--admit", "obp"]);
    let server = volume.serve();
    let admission = server.status().admission.expect("somebody is asked").admission;
    let target = (number(&found, "target") * 1e4).round() / 1e4;
    assert_eq!(admission, format!("obp:target={target}"));
    server.end();
    assert_eq!(status()["calibration"], after["calibration"], "a session keeps it");
    let anew = volume.with(&["--initialise", "--discard-dirty"]);
    let server = anew.serve();
    assert_eq!(server.status().session, Some(1), "another cache");
    server.end();
    assert_eq!(
        status()["calibration"],
        after["calibration"],
        "it is of the device, not of the cache"
    );
}

#[test]
fn a_replay_aims_at_what_was_calibrated_unless_told_otherwise() {
    let folder = tempfile::tempdir().expect("a folder");
    let ok = |line: &[&str]| {
        let output = floe_in(folder.path(), line);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let line = [
        "calibrate",
        "memory:64MiB,medium=pmem",
        "--time",
        "virtual",
        "--seconds",
        "0.004",
        "--json",
    ];
    let found = ok(&[&line[..], &["--into", "pmem.json"]].concat());
    let found = parsed(found.lines().last().expect("a result"));
    let rounded = |field| (number(&found, field) * 1e4).round() / 1e4;
    let line = [
        "replay",
        "zipf:keys=1000,block=4KiB,requests=2000",
        "--backing",
        "memory:8MiB,medium=nvme",
    ];
    let rest = [
        "--cache",
        "memory:1MiB,medium=pmem",
        "--time",
        "virtual",
        "--json",
        "--calibration",
        "pmem.json",
    ];
    let (target, target_bytes, cost) =
        (rounded("target"), rounded("target_bytes"), rounded("write_cost"));
    for (given, used) in [
        ("obp", format!("obp:target={target}")),
        ("obp:target=0.3", "obp:target=0.3".to_owned()),
        ("obp:bytes=1", format!("obp:bytes=1:target={target_bytes}:write-cost={cost}")),
    ] {
        let outcome = parsed(&ok(&[&line[..], &rest, &["--admit", given]].concat()));
        assert_eq!(outcome["admission"]["admission"], used);
    }
}

#[test]
fn a_device_to_read_from_is_not_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let line = ["calibrate", "memory:64MiB", "--backing", "file:nowhere,size=64MiB"];
    assert_eq!(floe_in(folder.path(), &line).status.code(), Some(2));
    assert!(!Path::new(&folder.path().join("nowhere")).exists());
}
