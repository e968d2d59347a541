//! `floe model --trace` as a user runs it: counts become points, points a verdict, and that is what
//! the paper says of what it measured.

use std::process::{Command, Output};

use serde_json::Value;

const LOAD: &str = "zipf:keys=300,theta=0.7,requests=6000";

fn model(arguments: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_floe")).arg("model").args(arguments).output();
    let output = output.expect("floe can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn lru_counted_over_a_trace_loses_throughput_to_hits_and_fifo_does_not() {
    let output = model(&[
        "--trace",
        LOAD,
        "--policy",
        "lru,fifo",
        "--disk-us",
        "5",
        "--size",
        "5%..=100%:5%",
        "--json",
    ]);
    let text = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for policy in ["lru", "fifo"] {
        for locks in ["operation", "list"] {
            let of: Vec<&Value> = lines
                .iter()
                .filter(|line| line["policy"] == policy && line["locks"] == locks)
                .collect();
            let (verdict, points) = of.split_last().expect("there are lines for each");
            assert_eq!(points.len(), 20, "{policy}, {locks}");
            let last = points.last().expect("twenty are some");
            assert_eq!(last["hit_ratio"], 1.0, "everything fits: {last}");
            assert_eq!(verdict["classification"], verdict["paper"], "{verdict}");
            assert_eq!(verdict["p_star"] == 1.0, policy == "fifo", "{verdict}");
        }
    }
    let lru = lines
        .iter()
        .find(|line| line["policy"] == "lru" && line["hit_ratio"] == 1.0)
        .expect("everything fits");
    assert_eq!(lru["bottleneck"], "delink of list");
}

#[test]
fn a_table_says_what_the_paper_says() {
    let text = model(&["--trace", LOAD, "--policy", "sieve", "--size", "50%"]).stdout;
    let text = String::from_utf8(text).expect("a table is UTF-8");
    assert!(text.contains("never falls; FIFO-like, as the paper says"), "{text}");
    assert!(text.contains("one lock") && text.contains("a lock for each operation"), "{text}");
}
