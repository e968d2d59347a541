//! `floe bench memory --calibrate` as a user runs it, and what becomes of its file; the script that
//! sets the cache beside its model.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{floe_in, floe_ok, text};
use floe_testkit::is_installed;
use serde_json::Value;

/// What keeps a run short.
const BRIEF: [&str; 8] =
    ["--keys", "1000", "--seconds", "0.005", "--repetitions", "3", "--warm-up", "0.1"];

/// Calibrates into a file of a folder; the lines printed.
fn calibrated(folder: &Path, policies: &str) -> (PathBuf, Vec<Value>) {
    let file = folder.join("service.json");
    let name = text(&file);
    let arguments = [
        "bench",
        "memory",
        "--calibrate",
        "--threads",
        "2",
        "--policy",
        policies,
        "--service-out",
        name,
    ];
    let lines = floe_ok(&[&arguments, &BRIEF[..], &["--json"]].concat());
    (
        file,
        lines.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect(),
    )
}

#[test]
fn the_model_takes_what_was_calibrated() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, lines) = calibrated(
        folder.path(),
        "prob-lru:q=0.5,prob-lru:q=0.9,clock,slru:segments=2,s3-fifo,sieve",
    );
    for line in &lines {
        let [ns, low, high] =
            ["ns", "ns_low", "ns_high"].map(|field| line[field].as_f64().expect("a number"));
        assert!(low <= ns && ns <= high, "{line}");
    }
    let contended = |line: &&Value| line["threads"] == 2 && line["operation"] == "list, by a miss";
    assert_eq!(lines.iter().filter(contended).count(), 7, "one a policy, LRU and FIFO among them");

    let service: Value =
        serde_json::from_str(&std::fs::read_to_string(&file).expect("a file")).expect("JSON");
    assert_eq!(service["machine"]["threads"], "2");
    let rows = service["policies"].as_array().expect("rows");
    let names: BTreeSet<&str> = rows.iter().filter_map(|row| row["policy"].as_str()).collect();
    let expected =
        ["lru", "single-lock-lru", "fifo", "prob-lru", "clock", "slru", "s3-fifo", "sieve"];
    assert_eq!(names, BTreeSet::from(expected));
    let coins: Vec<&Value> = rows.iter().filter(|row| row["policy"] == "prob-lru").collect();
    let of_coins: Vec<_> = coins.iter().map(|row| row["q"].as_f64()).collect();
    assert_eq!(of_coins, [0.0, 0.5, 1.0].map(Some));
    let fair = lines.iter().find(|line| {
        let (policy, operation) = (&line["policy"], &line["operation"]);
        policy == "prob-lru:q=0.5" && operation == "list, by a hit" && line["threads"] == 2
    });
    let fair_us = fair.and_then(|line| line["ns"].as_f64()).expect("a fair coin's visit") / 1e3;
    // Visits of hits that a fair coin sends are priced by runs of such hits, not by LRU's.
    for row in &coins[1..] {
        let us = |operation: &str| row["times_us"][operation].as_f64().expect("a time");
        let delink = row["times_us"]["delink"]["contended"][0][1].as_f64().expect("a time");
        let expected = (fair_us - us("head") + us("mark")).max(1e-4);
        assert!((delink / expected - 1.0).abs() < 1e-6, "{delink} µs, not {expected}: {row}");
    }
    for row in rows {
        for (operation, time) in row["times_us"].as_object().expect("times") {
            let alone = time.get("alone").unwrap_or(time).as_f64();
            let contended = time.get("contended").and_then(Value::as_array);
            let contended = contended.into_iter().flatten().map(|pair| pair[1].as_f64());
            for us in contended.chain([alone]) {
                assert!(us.is_some_and(|us| us > 0.0 && us.is_finite()), "{operation} of {row}");
            }
        }
    }

    let policies = expected.join(",");
    let name = text(&file);
    let model = [
        "model",
        "--service",
        name,
        "--policy",
        &policies,
        "--q",
        "0.7",
        "--cores",
        "2",
        "--frozen",
        "0.5",
        "--precision",
        "0",
        "--json",
    ];
    let curves = floe_ok(&model);
    let found: Vec<f64> = curves
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).expect("JSON")["mva_mrps"].as_f64())
        .collect();
    assert!(
        found.len() >= expected.len() && found.iter().all(|&mrps| mrps > 0.0 && mrps.is_finite())
    );
}

#[test]
fn what_cannot_be_calibrated_leaves_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let arguments =
        ["bench", "memory", "--calibrate", "--policy", "arc", "--service-out", "service.json"];
    assert_eq!(floe_in(folder.path(), &arguments).status.code(), Some(2));
    assert!(!folder.path().join("service.json").exists());
}

#[test]
fn the_script_measures_asks_the_model_and_prints() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/results-hit-ratio");
    if !is_installed(&["python3"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let run = |arguments: &[&str]| {
        let out = Command::new("python3")
            .arg(&script)
            .args(arguments)
            .current_dir(folder.path())
            .output()
            .expect("python3");
        assert!(out.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
    };
    let floe = env!("CARGO_BIN_EXE_floe");
    let only = ["--brief", "--only", "lru;lru, frozen"];
    run(&[&["run", floe, "measured"], &only[..]].concat());
    let measured =
        || std::fs::read_to_string(folder.path().join("measured")).expect("a file").lines().count();
    let lines = measured();
    run(&[&["run", floe, "measured"], &only[..]].concat());
    assert_eq!(measured(), lines, "what was measured is not measured again");

    std::fs::write(
        folder.path().join("report.md"),
        "<!-- measured: goals -->\nnothing\n<!-- end -->\n",
    )
    .expect("a file");
    run(&["print", "measured", "--into", "report.md", "--pictures", "picture"]);
    let report = std::fs::read_to_string(folder.path().join("report.md")).expect("a file");
    assert!(
        report.contains("| median difference | at most 5% |") && !report.contains("nothing"),
        "{report}"
    );
    let picture =
        std::fs::read_to_string(folder.path().join("picture-mpl-16.svg")).expect("a picture");
    let dashed = |line: &&str| line.contains("stroke-dasharray");
    let lines: Vec<&str> = picture.lines().filter(|line| line.contains("<polyline")).collect();
    let bounds = lines.iter().filter(|line| dashed(line)).count();
    assert!(bounds > 0, "the paper's bound of LRU");
    assert_eq!(lines.len() - bounds, 2, "a line a policy");
}
