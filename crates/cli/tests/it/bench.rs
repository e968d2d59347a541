//! `floe bench memory` as a user runs it: fields, counts that add up, hits as simulated, misses
//! that wait for the disk.

use std::collections::BTreeSet;

use crate::common::{floe, floe_ok, text};
use serde_json::Value;

/// What keeps a run short. Warming up ends when the cache is warm, on any machine.
const BRIEF: [&str; 7] = ["--seconds", "0.05", "--repetitions", "3", "--warm-up", "600", "--json"];

fn lines(arguments: &[&str]) -> Vec<Value> {
    let text = floe_ok(&[&["bench", "memory"], arguments, &BRIEF[..]].concat());
    text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

fn number(line: &Value, field: &str) -> f64 {
    line[field].as_f64().unwrap_or_else(|| panic!("{field} is no number in {line}"))
}

fn fields(line: &Value) -> BTreeSet<&str> {
    line.as_object().expect("a line is an object").keys().map(String::as_str).collect()
}

#[test]
fn a_line_has_the_promised_fields_and_only_those_that_say_something() {
    let trace = "zipf:keys=2000,requests=50000";
    let lines =
        lines(&[trace, "--threads", "1", "--disk-us", "0,20", "--mpl", "4", "--capacity", "10%"]);
    let common = [
        "cache",
        "policy",
        "frozen",
        "freezing",
        "frozen_share",
        "frozen_ratio",
        "shards",
        "capacity",
        "keys",
        "value_bytes",
        "threads",
        "mpl",
        "disk_us",
        "disturbed_runs",
        "disturbed_share",
        "hit_ratio",
        "ops_per_second",
        "ops_per_second_low",
        "ops_per_second_high",
        "confidence",
        "hit_ns_p50",
        "hit_ns_p99",
        "hit_ns_p999",
        "miss_us_p50",
        "miss_us_p99",
        "cpu_ns_per_op",
        "cpu_ns_per_op_low",
        "cpu_ns_per_op_high",
        "idle_share",
        "operations",
        "hits",
        "misses",
        "writes",
        "repetitions",
        "seconds",
        "warm_up_seconds",
        "settled",
        "clock_ns",
    ];
    let parked = ["park_us_mean", "park_us_p50", "park_us_p99"];
    assert_eq!(fields(&lines[0]), BTreeSet::from(common));
    assert_eq!(fields(&lines[1]), common.into_iter().chain(parked).collect());
    let [first, second] =
        [&lines[0], &lines[1]].map(|line| (number(line, "disk_us"), number(line, "mpl")));
    assert_eq!([first, second], [(0.0, 4.0), (20.0, 4.0)]);
    assert_eq!((&lines[0]["cache"], &lines[0]["policy"]), (&"floe".into(), &"qd-clock".into()));
}

#[test]
fn counts_and_medians_agree_with_each_other() {
    let trace = "zipf:keys=2000,requests=100000";
    for (threads, disk_us) in [("1", "0"), ("2", "0"), ("2", "50")] {
        let arguments =
            [trace, "--threads", threads, "--mpl", "6", "--disk-us", disk_us, "--writes", "0.1"];
        let line = &lines(&arguments)[0];
        let [operations, hits, misses, writes] =
            ["operations", "hits", "misses", "writes"].map(|field| number(line, field));
        // Clients parked when counting begins and ends: up to six in each of three runs.
        let parked = if disk_us == "0" { 0.0 } else { 18.0 };
        assert!((operations - hits - misses - writes).abs() <= parked, "{line}");
        assert!((number(line, "hit_ratio") - hits / (hits + misses)).abs() < 1e-9, "{line}");
        // Four standard errors of so many draws from a load that was itself drawn; who is parked
        // looks up.
        let error = 4.0 * (0.09 * (1.0 / operations + 1e-5)).sqrt() + parked / operations;
        assert!((writes / operations - 0.1).abs() <= error, "{line}");
        let [low, median, high] = ["ops_per_second_low", "ops_per_second", "ops_per_second_high"]
            .map(|field| number(line, field));
        assert!(0.0 < low && low <= median && median <= high, "{line}");
        // With three runs the interval is from the slowest to the fastest. Each thread has its own
        // beginning and end, so the mean over all their time tells of the slowest run only where
        // there is one.
        let mean = (hits + misses + writes) / number(line, "seconds");
        let [least, most] = if threads == "1" { [low, high] } else { [0.0, 2.0 * high] };
        assert!((0.999 * least..=1.001 * most).contains(&mean), "{mean}: {line}");
        assert_eq!(number(line, "confidence"), 0.75, "{line}");
    }
}

#[test]
fn one_thread_and_one_shard_hit_as_often_as_the_simulation() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("zipf.floe");
    let trace = text(&file);
    floe_ok(&["trace", "convert", "zipf:keys=3000,theta=0.99,requests=2000000", trace]);
    for policy in ["lru", "s3-fifo", "sieve", "slru:segments=2"] {
        let simulated =
            floe_ok(&["simulate", trace, "--policy", policy, "--size", "300", "--json"]);
        let simulated: Value = serde_json::from_str(&simulated).expect("a line of JSON");
        let line = &lines(&[
            trace,
            "--policy",
            policy,
            "--capacity",
            "300",
            "--threads",
            "1",
            "--shards",
            "1",
        ])[0];
        let expected = 1.0 - number(&simulated, "miss_ratio");
        let lookups = number(line, "hits") + number(line, "misses");
        // A run covers part of the trace, so four standard errors of that many draws. Only the
        // simulation starts cold, which costs it some of the first hundred thousand hits; and what
        // is called warm may still drift by two thousandths.
        let error = 0.003 + 4.0 * (expected * (1.0 - expected) / lookups).sqrt();
        assert!(
            (number(line, "hit_ratio") - expected).abs() <= error,
            "{policy}: {expected} ± {error}: {line}"
        );
        assert_eq!((number(line, "capacity"), number(line, "shards")), (300.0, 1.0));
    }
}

#[test]
fn misses_wait_for_the_disk() {
    let trace = "zipf:keys=2000,requests=100000";
    for (threads, mpl, disk_us) in [("1", "1", "5"), ("1", "72", "5"), ("2", "72", "100")] {
        let arguments =
            [trace, "--threads", threads, "--mpl", mpl, "--disk-us", disk_us, "--capacity", "10%"];
        let line = &lines(&arguments)[0];
        let disk_us = number(line, "disk_us");
        for field in ["park_us_mean", "park_us_p50", "park_us_p99", "miss_us_p50", "miss_us_p99"] {
            // histograms keep three digits
            assert!(number(line, field) >= 0.99 * disk_us, "{field}: {line}");
        }
    }
}

#[test]
fn a_capacity_is_found_for_a_hit_ratio() {
    for policy in ["lru", "s3-fifo"] {
        let load = ["--keys", "5000", "--policy", policy, "--threads", "1", "--shards", "1"];
        let lines = lines(&[&load[..], &["--hit-ratio", "0.5,0.8..=0.9:0.1"]].concat());
        assert_eq!(lines.len(), 3);
        for (line, asked) in lines.iter().zip([0.5, 0.8, 0.9]) {
            // Found on other draws than it is measured on, as many as the load has or more: four
            // standard errors of these.
            let lookups = number(line, "hits") + number(line, "misses");
            let error = 0.01 + 4.0 * (asked * (1.0 - asked) / lookups).sqrt();
            assert!(
                (number(line, "hit_ratio") - asked).abs() <= error,
                "{policy}: {line} for {asked} ± {error}"
            );
        }
        assert!(number(&lines[0], "capacity") < number(&lines[2], "capacity"));
    }
}

#[test]
fn what_is_left_of_a_trace_that_fits_is_hits() {
    let line = &lines(&["loop:keys=100,requests=1000", "--capacity", "1000", "--threads", "1"])[0];
    assert_eq!((number(line, "hit_ratio"), number(line, "misses")), (1.0, 0.0));
    assert_eq!(line["miss_us_p50"], Value::Null);
    // And one key short of fitting, LRU hits nothing.
    let arguments =
        ["loop:keys=100,requests=1000", "--capacity", "99", "--threads", "1", "--shards", "1"];
    let line = &lines(&[&arguments[..], &["--policy", "lru"]].concat())[0];
    assert_eq!((number(line, "hit_ratio"), number(line, "hits")), (0.0, 0.0));
    assert_eq!(line["hit_ns_p50"], Value::Null);
}

#[test]
fn others_are_compared_with_the_first() {
    let load =
        ["--keys", "3000", "--policy", "s3-fifo,lru", "--threads", "1", "--capacity", "10%,50%"];
    let changes =
        ["--vs", "policy=fifo,shards=1,capacity=100,value=256", "--vs", "disk-us=50,mpl=2"];
    let lines = lines(&[load.as_slice(), &changes].concat());
    let policies: Vec<_> =
        lines.iter().map(|line| line["policy"].as_str().expect("a name")).collect();
    assert_eq!(
        policies,
        ["s3-fifo", "lru", "fifo", "s3-fifo", "s3-fifo", "lru", "fifo", "s3-fifo"]
    );
    for (at, line) in lines.iter().enumerate() {
        let is_first = at % 4 == 0;
        assert_eq!(line.get("ratio").is_none(), is_first, "{line}");
        if !is_first {
            for ratio in ["ratio", "cpu_ratio"] {
                let [low, median, high] =
                    ["_low", "", "_high"].map(|end| number(line, &format!("{ratio}{end}")));
                assert!(0.0 < low && low <= median && median <= high, "{line}");
            }
        }
    }
    let third = &lines[2];
    assert_eq!(
        ["shards", "capacity", "value_bytes"].map(|field| number(third, field)),
        [1.0, 100.0, 256.0]
    );
    assert_eq!(["disk_us", "mpl"].map(|field| number(&lines[3], field)), [50.0, 2.0]);
}

#[test]
fn what_is_not_admitted_is_counted_and_stays_out() {
    let load = [
        "--keys",
        "3000",
        "--policy",
        "lru",
        "--threads",
        "1",
        "--capacity",
        "10%",
        "--admit",
        "never",
    ];
    let lines = lines(
        &[&load[..], &["--vs", "admit=second-access+obp:target=0.3", "--vs", "admit=off"]].concat(),
    );
    let policies: Vec<_> =
        lines.iter().map(|line| line["policy"].as_str().expect("a name")).collect();
    assert_eq!(policies, ["lru with never", "lru with second-access + obp:target=0.3", "lru"]);
    let counts =
        |line: &Value| ["offered", "admitted", "bypassed"].map(|field| number(line, field));
    let [offered, admitted, bypassed] = counts(&lines[0]);
    assert_eq!(
        (admitted, bypassed, number(&lines[0], "hits")),
        (0.0, offered, 0.0),
        "{}",
        lines[0]
    );
    assert!(offered >= number(&lines[0], "misses"), "warming up counts, too: {}", lines[0]);
    let [offered, admitted, bypassed] = counts(&lines[1]);
    assert!(admitted > 0.0 && bypassed > 0.0 && offered == admitted + bypassed, "{}", lines[1]);
    assert!(number(&lines[1], "hit_ratio") > 0.3, "{}", lines[1]);
    assert!(
        fields(&lines[2]).is_disjoint(&BTreeSet::from(["admission", "offered", "bypassed"])),
        "{}",
        lines[2]
    );
}

/// Lines for caches, and lines for decisions.
fn caches_and_decisions(arguments: &[&str]) -> (Vec<Value>, Vec<Value>) {
    lines(arguments).into_iter().partition(|line| line.get("decision").is_none())
}

#[test]
fn what_is_frozen_is_told_with_the_decisions_that_led_to_it() {
    let load = [
        "loop:keys=1000,requests=10000",
        "--capacity",
        "4000",
        "--threads",
        "1",
        "--policy",
        "lru",
    ];
    let vs = [
        "--lifetime",
        "1000", // what is chosen anew thaws first
        "--frozen",
        "1",
        "--vs",
        "frozen=0.5",
        "--vs",
        "frozen=without-index:0.5",
        "--vs",
        "frozen=off",
    ];
    let (caches, decisions) = caches_and_decisions(&[&load[..], &vs].concat());
    for (line, (freezing, share)) in
        caches.iter().zip([("1", 1.0), ("0.5", 0.5), ("without-index:0.5", 0.5), ("off", 0.0)])
    {
        assert_eq!(
            (&line["freezing"], &line["frozen"]),
            (&freezing.into(), &(freezing != "off").into()),
            "{line}"
        );
        assert_eq!(number(line, "hit_ratio"), 1.0, "{line}");
        // All keys are asked for alike, in a loop of which each of three runs may end in the
        // middle; and each shard freezes its share.
        for (field, loops) in
            [("frozen_share", 3.0 * 250.0 / number(line, "hits")), ("frozen_ratio", 0.0)]
        {
            assert!((number(line, field) - share).abs() < 0.02 + loops, "{field}: {line}");
        }
        let of_it: Vec<_> =
            decisions.iter().filter(|decision| decision["freezing"] == freezing).collect();
        assert_eq!(
            of_it.iter().any(|decision| decision["phase"] == "frozen"),
            freezing != "off",
            "{freezing}"
        );
        assert!(
            of_it.iter().enumerate().all(|(at, decision)| decision["decision"] == at),
            "{of_it:?}"
        );
    }
}

#[test]
fn each_repetition_has_a_hash_seed_of_its_own_unless_told_otherwise() {
    let brief = ["bench", "memory", "--keys", "1000", "--threads", "1", "--seconds", "0.02"];
    let said = |more: &[&str]| {
        let output = floe(&[&brief[..], &["--repetitions", "3"], more].concat());
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    };
    for (more, told) in [
        (&[][..], "3 runs on 3 hash seeds"),
        (&["--hash-seeds", "1"], "3 runs on 1 hash seed"),
        (&["--hash-seeds", "2", "--vs", "policy=lru"], "3 runs on 2 hash seeds"),
        // A cache that freezes learns for long.
        (&["--frozen", "0.3"], "3 runs on 1 hash seed"),
    ] {
        let (code, text) = said(more);
        assert!(code == Some(0) && text.contains(told), "{more:?}: {text}");
    }
    for wrong in ["0", "4"] {
        let (code, text) = said(&["--hash-seeds", wrong]);
        assert!(code == Some(2) && text.contains("--hash-seeds"), "{text}");
    }
}

#[test]
fn disturbed_runs_are_left_out_and_counted() {
    let brief = ["bench", "memory", "--keys", "1000", "--seconds", "0.02", "--repetitions", "2"];
    let said = |more: &[&str]| {
        let output = floe(&[&brief[..], &["--drop-disturbed"], more].concat());
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    };
    // Threads without a rest are disturbed a little by whatever else runs.
    let (code, text) = said(&["0.99", "--threads", "1"]);
    assert!(code == Some(0) && text.contains("2 runs on 2 hash seeds"), "{text}");
    for (wrong, told) in [
        (&["1"][..], "--drop-disturbed 1 is not a share"),
        (&["0.01", "--threads", "1024"], "--drop-disturbed takes up to"),
    ] {
        let (code, text) = said(wrong);
        assert!(code == Some(2) && text.contains(told), "{wrong:?}: {text}");
    }
}

#[test]
fn a_cache_that_freezes_by_itself_is_warm_when_it_has_learned() {
    let load = ["--keys", "2000", "--capacity", "50%", "--threads", "1", "--policy", "lru"];
    let arguments =
        ["bench", "memory", "--frozen", "adaptive", "--seconds", "0.05", "--repetitions", "3"];
    let text = floe_ok(&[&arguments[..], &load, &["--warm-up", "600", "--json"]].concat());
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((&lines[0]["settled"], &lines[0]["freezing"]), (&true.into(), &"adaptive".into()));
    let phases: Vec<_> =
        lines[1..].iter().map(|line| line["phase"].as_str().expect("a name")).collect();
    assert_eq!(phases[..2], ["measuring", "learning"], "{lines:?}");
    assert!(phases.iter().any(|phase| ["frozen", "waiting"].contains(phase)), "{phases:?}");
    assert!(lines[1..].iter().all(|line| !line["reason"].as_str().expect("words").is_empty()));
}

#[test]
fn phases_are_drawn_over_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let stem = folder.path().join("run");
    let load = [
        "--keys",
        "1000",
        "--threads",
        "1",
        "--frozen",
        "0.5",
        "--vs",
        "frozen=off",
        "--png",
        text(&stem),
    ];
    lines(&load);
    for chart in ["throughput", "hit-ratio", "frozen-share"] {
        let picture =
            std::fs::read(folder.path().join(format!("run-{chart}.png"))).expect("a picture");
        assert!(picture.starts_with(b"\x89PNG") && picture.len() > 5000, "{chart}");
    }
}

#[test]
fn a_table_has_a_column_for_each_cache_and_fits_a_terminal() {
    let load = ["bench", "memory", "--keys", "1000", "--threads", "1", "--policy", "lru,fifo"];
    let output = floe(&[&load[..], &BRIEF[..6]].concat());
    let table = String::from_utf8(output.stdout).expect("output is UTF-8");
    assert!(output.status.success() && table.contains(" M requests/s "), "{table}");
    let heads: Vec<_> = table.lines().next().expect("a line").split_whitespace().collect();
    assert_eq!(heads, ["cache", "lru", "fifo"], "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    let notes = String::from_utf8(output.stderr).expect("output is UTF-8");
    assert!(notes.contains("with 75.0 %"), "{notes}");
}

#[test]
fn a_run_in_which_nothing_is_done_is_a_failure() {
    let load =
        ["bench", "memory", "loop:keys=1000,requests=10000", "--threads", "1", "--capacity", "1"];
    // Fifty times as slow as anything is waited for, so that a machine that lets sleepers oversleep
    // does not see an answer.
    let slow =
        ["--disk-us", "100000000", "--seconds", "0.01", "--warm-up", "0.1", "--repetitions", "1"];
    let output = floe(&[&load[..], &slow].concat());
    let line = String::from_utf8(output.stderr).expect("output is UTF-8");
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert!(line.contains("too short to serve a request") && output.stdout.is_empty(), "{line}");
}
