//! `floe model` as a user runs it: fields, methods that agree, times from a file, pages.

use std::collections::BTreeSet;

use crate::common::{floe_ok, text};
use serde_json::{Value, json};

fn lines(arguments: &[&str]) -> Vec<Value> {
    let text = floe_ok(&[&["model", "--json"], arguments].concat());
    text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

fn number(line: &Value, field: &str) -> f64 {
    line[field].as_f64().unwrap_or_else(|| panic!("{field} is no number in {line}"))
}

fn fields(line: &Value) -> BTreeSet<&str> {
    line.as_object().expect("a line is an object").keys().map(String::as_str).collect()
}

#[test]
fn coherence_has_a_line_for_each_cache_and_number_of_cores() {
    let words =
        ["coherence", "--json", "--cache", "floe,moka", "--cores", "1,8", "--requests", "5000"];
    let lines: Vec<Value> = floe_ok(&words)
        .lines()
        .map(|line| serde_json::from_str(line).expect("each line is JSON"))
        .collect();
    let expected = [
        "cache",
        "cores",
        "shards",
        "keys",
        "hit_ratio",
        "transfer_ns",
        "far_ns",
        "mrps",
        "request_ns",
        "transfers_per_request",
        "retries_per_request",
    ];
    for line in &lines {
        assert_eq!(fields(line), BTreeSet::from(expected));
    }
    let subjects: Vec<(&Value, f64)> =
        lines.iter().map(|line| (&line["cache"], number(line, "cores"))).collect();
    let [floe, moka] = [json!("floe"), json!("moka")];
    assert_eq!(subjects, [(&floe, 1.0), (&floe, 8.0), (&moka, 1.0), (&moka, 8.0)]);
    assert_eq!(number(&lines[1], "transfers_per_request"), 0.0);
    assert!(number(&lines[3], "transfers_per_request") > 1.0);
    let bound = floe_ok(&[&words[..], &["--no-retries"]].concat());
    assert!(bound.lines().all(|line| line.contains("\"retries_per_request\":0.0")), "{bound}");
}

#[test]
fn a_line_for_each_hit_ratio_and_one_for_p_star_have_the_promised_fields() {
    let lines = lines(&[
        "--policy",
        "lru,clock",
        "--hit-ratio",
        "0.5,0.9",
        "--disk-us",
        "5,100",
        "--mpl",
        "16",
    ]);
    assert_eq!(lines.len(), 2 * 2 * 3);
    let line = [
        "policy",
        "mpl",
        "disk_us",
        "hit_ratio",
        "bound_mrps",
        "mva_mrps",
        "sim_mrps",
        "sim_ci95",
        "bottleneck",
    ];
    let star = [
        "policy",
        "mpl",
        "disk_us",
        "p_star",
        "peak_mrps",
        "all_hits_mrps",
        "classification",
        "bottleneck",
    ];
    assert_eq!(fields(&lines[0]), line.into_iter().chain(["q"]).collect());
    assert_eq!(fields(&lines[6]), BTreeSet::from(line));
    assert_eq!(fields(&lines[8]), BTreeSet::from(star));
    assert_eq!(fields(&lines[2]), star.into_iter().chain(["q"]).collect());
    for line in lines.iter().filter(|line| line.get("hit_ratio").is_some()) {
        let [bound, mva, sim, ci] =
            ["bound_mrps", "mva_mrps", "sim_mrps", "sim_ci95"].map(|field| number(line, field));
        assert!(mva <= bound && (sim - mva).abs() <= (0.005 * mva).max(2.0 * ci), "{line}");
    }
}

#[test]
fn arrivals_have_a_response_time_until_they_pile_up() {
    let lines = lines(&["--policy", "lru", "--arrival-rate", "1.4,1.5", "--hit-ratio", "1"]);
    let line =
        ["policy", "q", "arrival_mrps", "disk_us", "hit_ratio", "saturation_mrps", "bottleneck"];
    assert_eq!(fields(&lines[0]), line.into_iter().chain(["response_us"]).collect());
    assert_eq!(fields(&lines[2]), BTreeSet::from(line));
    assert!((number(&lines[0], "saturation_mrps") - 1.0 / 0.7).abs() < 1e-9);
    // A lookup, and two queues of their own.
    let response = 0.51 + 0.7 / (1.0 - 1.4 * 0.7) + 0.59 / (1.0 - 1.4 * 0.59);
    assert!((number(&lines[0], "response_us") - response).abs() < 1e-9 * response);
}

#[test]
fn times_of_another_machine_are_taken_from_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("machine.json");
    let times = |tail: Value| {
        json!({
            "floe_service": 1,
            "machine": { "processor": "a slow one" },
            "policies": [{
                "policy": "lru",
                "locks": "list",
                "shards": 2,
                "times_us": {
                    "lookup": 1,
                    "delink": {
                        "alone": 1.5,
                        "contended": [[8, 3.5]],
                        "histogram": [[1.0, 5], [2.0, 5]]
                    },
                    "head": 0.5,
                    "tail": tail
                }
            }]
        })
    };
    std::fs::write(&file, times(json!(2.5)).to_string()).expect("a file");
    let at = |mpl: &str| {
        let arguments = [
            "--service",
            text(&file),
            "--policy",
            "lru",
            "--hit-ratio",
            "1",
            "--mpl",
            mpl,
            "--precision",
            "0",
        ];
        lines(&arguments).swap_remove(0)
    };
    let alone = at("1");
    assert!(
        (number(&alone, "mva_mrps") - 1.0 / 3.0).abs() < 1e-12,
        "lookup, delink and head: {alone}"
    );
    assert_eq!(alone["bottleneck"], "list");
    let crowded = at("1000");
    assert!(
        (number(&crowded, "mva_mrps") - 2.0 / 4.0).abs() < 1e-3,
        "two shards, 4 µs each: {crowded}"
    );
}

#[test]
fn the_file_in_the_documentation_can_be_read() {
    let documentation = include_str!("../../../../docs/model.md");
    let (_, example) = documentation.split_once("```json").expect("an example");
    let (example, _) = example.split_once("```").expect("its end");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("machine.json");
    std::fs::write(&file, example).expect("a file");
    let options = ["--policy", "lru", "--frozen", "0.5", "--hit-ratio", "0.5,1", "--cores", "2"];
    let measured = ["--service", text(&file), "--distribution", "measured"];
    assert_eq!(lines(&[&options[..], &measured].concat()).len(), 3);
}

#[test]
fn a_page_has_a_section_for_each_policy() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("page.html");
    let arguments =
        ["model", "--policy", "lru,s3-fifo", "--hit-ratio", "0.4..=1:0.2", "--precision", "0.02"];
    let table = floe_ok(&[&arguments[..], &["--report", text(&page)]].concat());
    assert!(
        table.contains("LRU-like, bottleneck delink")
            && table.contains("FIFO-like, bottleneck head-S"),
        "{table}"
    );
    let page = std::fs::read_to_string(&page).expect("a page");
    for words in
        ["<h2>lru</h2>", "<h2>s3-fifo</h2>", "<h2>All policies</h2>", "past p*", "Figure 14"]
    {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn a_reader_who_has_seen_enough_is_no_error() {
    for arguments in [&["model", "--policy", "lru"][..], &["trace", "formats"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_floe"));
        let child =
            program.args(arguments).stdout(writer).stderr(std::process::Stdio::piped()).spawn();
        let output = child.expect("floe runs").wait_with_output().expect("floe ends");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && errors.is_empty(),
            "floe {arguments:?}: {}: {errors}",
            output.status
        );
    }
}
