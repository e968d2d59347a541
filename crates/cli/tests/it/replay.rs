//! `floe replay` as a user runs it: fields, agreement with simulation, both clocks, what is
//! refused.

use std::path::Path;

use crate::common::{floe_in, floe_ok, text};
use serde_json::Value;

const ZIPF: &str = "zipf:keys=5000,theta=0.9,read=0.7,block=4KiB,requests=20000";

/// Runs `floe replay … --json` and reads its line.
fn outcome(arguments: &[&str]) -> Value {
    let lines = floe_ok(&[&["replay"], arguments, &["--json"]].concat());
    assert_eq!(lines.lines().count(), 1, "{lines}");
    serde_json::from_str(&lines).expect("the line is JSON")
}

/// A trace with times: a write and reads of it, a tenth of a second apart.
fn timed_trace(folder: &Path) -> String {
    let line = |at: u64, op: &str| {
        format!("{},hm,1,{op},65536,8192,413\n", 128_166_372_003_061_629 + at * 1_000_000)
    };
    let lines = (0..20).map(|at| line(at, if at == 0 { "Write" } else { "Read" }));
    let trace = folder.join("timed.csv");
    std::fs::write(&trace, lines.collect::<String>()).expect("a trace");
    text(&trace).to_owned()
}

#[test]
fn a_bucket_in_virtual_time_holds_its_data_and_counts_its_requests() {
    let of = |write: &str| {
        let s3 = ["--backing", "s3://bucket/vm,size=32MiB", "--cache", "memory:4MiB,medium=nvme"];
        let rest = ["--time", "virtual", "--verify", "--write", write];
        let outcome = outcome(&[&[ZIPF][..], &s3, &rest].concat());
        assert!(outcome["verified_bytes"].as_u64() > Some(0));
        let count = |of: &str| outcome["bucket"][of].as_u64().expect("a count");
        assert_eq!(count("put_bytes"), count("puts") << 20);
        (count("puts"), outcome["writes"].as_u64().expect("a count"))
    };
    let (through, writes) = of("through");
    assert_eq!(through, writes, "one request is in flight: no put is shared");
    assert!(of("back").0 < through * 2 / 3, "cleaning shares puts");
}

#[test]
fn a_replay_prints_the_promised_fields() {
    let outcome =
        outcome(&[ZIPF, "--backing", "memory:32MiB", "--cache", "memory:4MiB", "--histogram"]);
    let mut fields = vec![
        "trace".to_owned(),
        "reads".into(),
        "writes".into(),
        "seconds".into(),
        "requests_per_second".into(),
        "bytes_per_second".into(),
        "read_hits".into(),
        "write_hits".into(),
        "read_hit_ratio".into(),
        "write_hit_ratio".into(),
        "backing_read_bytes".into(),
        "backing_write_bytes".into(),
        "cache_read_bytes".into(),
        "cache_write_bytes".into(),
        "metadata_bytes".into(),
        "mean_block_bytes".into(),
        "mean_missed_bytes".into(),
        "processing_us".into(),
        "verified_bytes".into(),
    ];
    for way in ["read", "write"] {
        fields.extend(["mean", "p50", "p99", "p999"].map(|which| format!("{way}_us_{which}")));
    }
    for field in fields {
        assert!(!outcome[&field].is_null(), "{field} is missing in {outcome}");
    }
    assert_eq!(outcome["reads"].as_u64().unwrap() + outcome["writes"].as_u64().unwrap(), 20_000);
    assert_eq!(outcome["verified_bytes"], outcome["read_bytes"], "real time verifies");
    for (histogram, count) in [("read_histogram", "reads"), ("write_histogram", "writes")] {
        let steps = outcome[histogram].as_array().expect("asked for");
        let counted: u64 = steps.iter().map(|step| step["count"].as_u64().unwrap()).sum();
        assert_eq!(Some(counted), outcome[count].as_u64());
    }
}

#[test]
fn a_replay_finds_what_a_simulation_finds() {
    for (blocks, mode) in [("4KiB,8KiB,16KiB", "back"), ("16KiB", "through")] {
        let simulated = floe_ok(&[
            "simulate",
            ZIPF,
            "--blocks",
            blocks,
            "--size",
            "1MiB",
            "--write",
            mode,
            "--flush-interval",
            "1000d",
            "--json",
        ]);
        let simulated: Value = serde_json::from_str(&simulated).expect("the line is JSON");
        for time in ["virtual", "real"] {
            // In real time a slow machine would come to the next cleaning.
            let never: &[&str] = if mode == "back" {
                &["--flush-interval", "1000d", "--dirty-max", "100%"]
            } else {
                &[]
            };
            let line = [
                ZIPF,
                "--backing",
                "memory:32MiB",
                "--cache",
                "memory:1MiB",
                "--block-sizes",
                blocks,
                "--write",
                mode,
                "--shards",
                "1",
                "--time",
                time,
            ];
            let replayed = outcome(&[&line[..], never].concat());
            assert_eq!(replayed["time"], time);
            for (ours, theirs) in [("reads", "read_requests"), ("writes", "write_requests")] {
                assert_eq!(replayed[ours], simulated[theirs], "{ours} in {time} time");
            }
            for field in [
                "read_hits",
                "write_hits",
                "backing_read_bytes",
                "backing_write_bytes",
                "cache_read_bytes",
                "cache_write_bytes",
                "blocks_allocated",
                "mean_block_bytes",
                "mean_missed_bytes",
                "metadata_bytes",
            ] {
                assert_eq!(replayed[field], simulated[field], "{field} in {time} time");
            }
        }
    }
}

#[test]
fn prices_of_tiers_make_a_cost_and_what_is_had_for_it() {
    let tiers = ["--tier", "memory:1MiB,medium=dram", "--tier", "memory:4MiB,medium=pmem"];
    let line = [&[ZIPF, "--backing", "memory:32MiB,medium=nvme", "--time", "virtual"], &tiers[..]]
        .concat();
    let plain = outcome(&line);
    assert!(plain["cost"].is_null());
    let line = [&line[..], &["--price", "tier1=0.375,tier0=1"]].concat();
    let priced = outcome(&line);
    let (cost, rate) = (&priced["cost"], priced["requests_per_second"].as_f64().unwrap());
    assert_eq!(Some(rate), plain["requests_per_second"].as_f64());
    assert_eq!(cost["prices"], serde_json::json!([1.0, 0.375]));
    let gib = (1.0 + 4.0 * 0.375) / 1024.0;
    assert_eq!(cost["gib"].as_f64(), Some(gib));
    let for_each = cost["requests_per_second_per_gib"].as_f64().expect("a number");
    assert!((for_each * gib / rate - 1.0).abs() < 1e-9, "{for_each} of {rate}"); // rounded in JSON
    let table = floe_ok(&[&["replay"], &line[..]].concat());
    assert!(table.contains("as 0.002 GiB of DRAM"), "{table}");
    // What is of one tier is in the table of tiers, and what is not is of all.
    assert!(table.contains("hits in tier 0") && !table.contains("cache device"), "{table}");
    let metadata = |of: &serde_json::Value| of["metadata_bytes"].as_u64().expect("a number");
    let tiers = priced["tiers"].as_array().expect("tiers");
    assert_eq!(metadata(&priced), tiers.iter().map(metadata).sum::<u64>());
    // Without media no time passes, and nothing can be said per second.
    let timeless = ["--backing", "memory:32MiB", "--cache", "memory:1GiB", "--time", "virtual"];
    let timeless = [&[ZIPF], &timeless[..], &["--price", "tier0=1"]].concat();
    let figures = outcome(&timeless);
    assert!(
        figures["requests_per_second"].is_null() && figures["bytes_per_second"].is_null(),
        "{figures}"
    );
    assert!(figures["cost"]["requests_per_second_per_gib"].is_null(), "{figures}");
    let table = floe_ok(&[&["replay"], &timeless[..]].concat());
    assert!(
        table.contains("– requests/s in") && table.contains("– requests/s for each"),
        "{table}"
    );
    // One tier is the first.
    let one = outcome(&[
        ZIPF,
        "--backing",
        "memory:32MiB",
        "--cache",
        "memory:1GiB",
        "--price",
        "tier0=0.5",
    ]);
    assert_eq!(one["cost"]["gib"], 0.5);
}

#[test]
fn virtual_time_gives_the_same_figures_again_and_touches_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, rest: &str| format!("file:{}{rest}", text(&folder.path().join(name)));
    let (backing, cache) =
        (file("volume", ",size=32MiB,medium=cloud"), file("cache", ",medium=nvme"));
    let run = |more: &[&str]| {
        let settings =
            ["--backing", &backing, "--cache", &cache, "--cache-size", "4MiB", "--write", "back"];
        let virtually = ["--time", "virtual", "--in-flight", "8"];
        let mut outcome = outcome(&[&[ZIPF], &settings[..], &virtually[..], more].concat());
        for measured in ["processing_us", "wall_seconds", "verified_bytes"] {
            outcome.as_object_mut().expect("an object").remove(measured);
        }
        outcome
    };
    let first = run(&[]);
    assert!(first["read_us_mean"].as_f64() > Some(100.0), "a cloud volume is slow: {first}");
    assert_eq!(first, run(&[]));
    assert_eq!(first, run(&["--verify"]));
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
}

#[test]
fn writes_beyond_what_may_be_dirty_take_the_pace_of_the_volume() {
    let write_us = |most: &str| {
        let load = "uniform:keys=1000,read=0,block=4KiB,requests=2000";
        let devices =
            ["--backing", "memory:4MiB,medium=nvme", "--cache", "memory:8MiB,medium=dram"];
        let how =
            ["--block-sizes", "4KiB", "--write", "back", "--dirty-max", most, "--time", "virtual"];
        outcome(&[&[load], &devices[..], &how].concat())["write_us_mean"].as_f64().unwrap()
    };
    assert!(10.0 * write_us("100%") < write_us("0.01%"));
}

#[test]
fn a_file_with_settings_says_the_same_as_the_command_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("floe.toml");
    let settings = "cache = \"memory:2MiB\"\nwrite = \"back\"\nblock-sizes = \
                    \"4KiB,64KiB\"\nlisten = [\"nbd://127.0.0.1:10809\"]\n[[volume]]\nname = \
                    \"a\"\nbacking = \"memory:32MiB\"\n";
    std::fs::write(&config, settings).expect("settings");
    let from_file = outcome(&[ZIPF, "--config", text(&config), "--time", "virtual"]);
    let from_line = outcome(&[
        ZIPF,
        "--backing",
        "memory:32MiB",
        "--cache",
        "memory:2MiB",
        "--write",
        "back",
        "--block-sizes",
        "4KiB,64KiB",
        "--time",
        "virtual",
    ]);
    for field in ["blocks", "write", "cache_bytes", "read_hits", "backing_write_bytes"] {
        assert_eq!(from_file[field], from_line[field], "{field}");
    }
}

#[test]
fn the_volumes_of_a_trace_take_those_of_the_settings_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let (config, trace) = (folder.path().join("floe.toml"), folder.path().join("two.csv"));
    let volume = |name: &str, size: &str| {
        format!("[[volume]]\nname = \"{name}\"\nbacking = \"memory:{size}\"\n")
    };
    let settings =
        "cache = \"memory:512KiB\"\n".to_owned() + &volume("a", "64KiB") + &volume("b", "128KiB");
    std::fs::write(&config, settings).expect("settings");
    let line = |host: &str, op: &str, offset: u64| {
        format!("128166372003061629,{host},0,{op},{offset},4096,413\n")
    };
    let round = |at: u64| {
        let offset = at % 16 * 4096;
        line("xy", ["Write", "Read"][at as usize / 16 % 2], offset)
            + &line("hm", "Read", offset + 65536)
    };
    let run = |lines: String| {
        std::fs::write(&trace, lines).expect("a trace");
        floe_in(folder.path(), &["replay", "two.csv", "--config", "floe.toml", "--json"])
    };
    let fits = run((0..100).map(round).collect());
    assert!(fits.status.success(), "{}", String::from_utf8_lossy(&fits.stderr));
    let outcome: Value = serde_json::from_slice(&fits.stdout).expect("JSON");
    assert_eq!(outcome["verified_bytes"], outcome["read_bytes"], "the volumes are told apart");
    let swapped = run(line("hm", "Read", 65536) + &(0..100).map(round).collect::<String>());
    let said = String::from_utf8_lossy(&swapped.stderr);
    assert!(said.contains("128KiB of volume 1, which has 64KiB"), "{said}");
}

#[test]
fn recorded_times_are_kept_and_sped_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = timed_trace(folder.path());
    let settings = ["--backing", "memory:1MiB,medium=nvme", "--cache", "memory:512KiB,medium=nvme"];
    for (speed, seconds) in [("1", 1.9), ("10", 0.19)] {
        let recorded = ["--at", "recorded", "--speed", speed, "--time", "virtual"];
        let outcome = outcome(&[&[trace.as_str()], &settings[..], &recorded[..]].concat());
        let took = outcome["seconds"].as_f64().expect("a number");
        assert!((seconds..seconds + 0.01).contains(&took), "{took} s at speed {speed}");
        assert_eq!((&outcome["reads"], &outcome["read_hits"]), (&19.into(), &19.into()));
    }
}

#[test]
fn real_files_are_replayed_on_but_not_overwritten_unasked() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |trace: &str, more: &[&str]| {
        let settings =
            ["replay", trace, "--backing", "file:volume,size=32MiB", "--cache", "file:cache"];
        let rest = ["--cache-size", "4MiB", "--write", "back", "--limit", "2000", "--json"];
        floe_in(folder.path(), &[&settings[..], &rest[..], more].concat())
    };
    let first = run(ZIPF, &["--in-flight", "4"]);
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    let written = std::fs::read(folder.path().join("volume")).expect("a volume");
    let again = run(ZIPF, &[]);
    let said = String::from_utf8_lossy(&again.stderr);
    assert_eq!(again.status.code(), Some(2), "{said}");
    assert!(said.contains("--overwrite") && said.contains("volume"), "{said}");
    let read_only = run("zipf:keys=5000,block=4KiB,requests=20000", &[]);
    assert!(read_only.status.success(), "{}", String::from_utf8_lossy(&read_only.stderr));
    assert!(
        std::fs::read(folder.path().join("volume")).expect("a volume") == written,
        "only reads have happened"
    );
    assert!(run(ZIPF, &["--overwrite"]).status.success());
}

#[test]
fn a_report_is_a_page_with_the_trace_and_a_chart() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("replay.html");
    let settings = ["--backing", "memory:32MiB,medium=cloud", "--cache", "memory:4MiB,medium=nvme"];
    let table = floe_ok(
        &[&["replay", ZIPF], &settings[..], &["--time", "virtual", "--report", text(&page)]]
            .concat(),
    );
    assert!(table.contains("reads") && table.contains("requests/s"), "{table}");
    let page = std::fs::read_to_string(page).expect("a page");
    for part in ["<svg", "zipf:keys=5000", "p99.9", "reads"] {
        assert!(page.contains(part), "{part}");
    }
}

/// Each line a command line after `floe replay`, `→`, and the words that must be in the complaint,
/// apart by `|`.
#[test]
fn what_cannot_be_replayed_is_refused_in_a_line() {
    let folder = tempfile::tempdir().expect("a folder");
    timed_trace(folder.path());
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("empty.csv"), "").expect("a file");
    std::fs::write(path("volume.img"), [0; 1 << 20]).expect("a file");
    let two = "128166372003061629,hm,1,Read,0,512,413\n128166372003061629,ab,0,Read,0,512,413\n";
    std::fs::write(path("two.csv"), two.repeat(100)).expect("a file");
    let both = "--backing memory:1MiB --cache memory:512KiB";
    let table = "
        timed.csv                                                            → backing | missing
        timed.csv --config nowhere.toml                                      → nowhere.toml
        nowhere.csv BOTH                                                     → nowhere.csv
        zipf:keys=100 BOTH                                                   → keys
        empty.csv BOTH --format msr                                          → empty.csv | no \
                 requests
        timed.csv BOTH --in-flight 0                                         → --in-flight
        timed.csv BOTH --at once                                             → --at | recorded
        timed.csv BOTH --at recorded --speed 0                               → --speed
        timed.csv BOTH --speed 2                                             → --speed | --at \
                 recorded
        zipf:keys=100,block=4KiB BOTH --at recorded                          → no times | --at \
                 recorded
        timed.csv BOTH --time sideways                                       → --time
        timed.csv BOTH --verify --no-verify                                  → --verify
        timed.csv BOTH --warmup 100%                                         → --warmup | 20%
        timed.csv BOTH --warmup 20                                           → 20 requests
        timed.csv BOTH --limit 0                                             → --limit
        timed.csv --backing memory:4EiB --cache memory:512KiB                → 4194304TiB | \
                 524288TiB
        timed.csv --backing memory:1MiB --cache memory:100PiB --time virtual → 102400TiB | more than
        timed.csv BOTH --interval 20                                         → 20 of its | two
        timed.csv BOTH --interval 0                                          → --interval | 5%
        timed.csv BOTH --seed 2                                              → timed.csv | --seed
        timed.csv BOTH --csv --json                                          → --json
        timed.csv BOTH --listen nbd://127.0.0.1:1                            → --listen
        timed.csv BOTH --cache-size 4KiB                                     → cache-size
        timed.csv --backing memory:64KiB --cache memory:512KiB               → 72KiB | 64KiB | \
                 memory:1GiB | --wrap
        two.csv BOTH                                                         → 2 volumes | \
                 --concatenate
        timed.csv --backing file:none.img --cache memory:512KiB              → none.img | size
        timed.csv --backing file:none.img --cache memory:512KiB --time virtual → none.img | size
        timed.csv --backing file:volume.img --cache memory:512KiB            → volume.img | \
                 --overwrite
        timed.csv --backing file:volume.img --cache memory:512KiB --time virtual → volume.img | \
                 medium=
        timed.csv --backing memory:1MiB --cache file:new.img --cache-size 512KiB --time virtual → \
                 new.img | medium=
        timed.csv --backing memory:1MiB --cache memory:4KiB                  → too small
    ";
    for line in table.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (arguments, words) = line.split_once('→').expect("a table with arrows");
        let arguments = arguments.replace("BOTH", both);
        let arguments: Vec<&str> =
            ["replay"].into_iter().chain(arguments.split_whitespace()).collect();
        let output = floe_in(folder.path(), &arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "floe {arguments:?}: {said}");
        assert!(output.stdout.is_empty(), "floe {arguments:?}");
        assert_eq!(said.trim_end().lines().count(), 1, "floe {arguments:?}: {said}");
        for word in words.split('|').map(str::trim) {
            assert!(said.contains(word), "{word:?} is not in what floe {arguments:?} says: {said}");
        }
    }
    assert!(
        !path("new.img").exists() && !path("none.img").exists(),
        "a refused command made a file"
    );
}

#[test]
fn intervals_add_up_to_the_whole_and_a_seed_makes_another_trace() {
    let run = |more: &[&str]| {
        let mut arguments = vec![
            "replay",
            "zipf:keys=500,requests=1000,read=0.5,block=4KiB",
            "--backing",
            "memory:8MiB,medium=cloud",
            "--cache",
            "memory:1MiB,medium=nvme",
            "--time",
            "virtual",
            "--warmup",
            "20%",
        ];
        arguments.extend(more);
        floe_ok(&arguments)
    };
    let whole: Value = serde_json::from_str(&run(&["--json", "--interval", "25%"])).expect("JSON");
    let series = whole["series"].as_array().expect("a series");
    assert_eq!(series.len(), 4);
    for field in ["requests", "backing_read_bytes", "cache_write_bytes"] {
        let sum: u64 = series.iter().map(|it| it[field].as_u64().expect("a number")).sum();
        // What the flush at the end moves is no interval's.
        assert!(sum <= whole[field].as_u64().expect("a number"), "{field}");
        assert!(sum * 10 >= whole[field].as_u64().expect("a number") * 9, "{field}");
    }
    assert_eq!(series[3]["after_requests"], 600);
    assert_eq!(series[3]["seconds"], whole["seconds"]);
    assert!(whole["write_amplification"].as_f64().expect("a number") >= 1.0);
    // The trace has no times, so the replay's clock tells the pace.
    let endurance = &whole["endurance"];
    assert_eq!(endurance["clock"], "replay");
    let number = |value: &Value| value.as_f64().expect("a number");
    let days = number(&whole["seconds"]) / 86_400.0;
    let drives = number(&whole["cache_write_bytes"]) / f64::from(1 << 20) / days;
    let told = number(&endurance["drive_writes_per_day"]);
    assert!((told / drives - 1.0).abs() < 1e-9, "{told}, not {drives}");
    let timed: Value = serde_json::from_str(&run(&["--json", "--interval", "50ms"])).expect("JSON");
    let timed = timed["series"].as_array().expect("a series");
    let (last, full) = timed.split_last().expect("intervals");
    assert!(full.len() > 1 && number(&full[0]["seconds"]) >= 0.05, "{full:?}");
    assert_eq!(last["seconds"], whole["seconds"]);
    let csv = run(&["--csv", "--interval", "25%"]);
    assert!(
        csv.starts_with("after_requests,requests,seconds") && csv.lines().count() == 5,
        "{csv}"
    );
    assert_eq!(run(&["--csv"]).lines().count(), 2);
    let table = run(&["--interval", "25%"]);
    assert!(table.contains("reads: hits") && table.contains("drive writes a day"), "{table}");
    let hits = |more: &[&str]| {
        let outcome: Value = serde_json::from_str(&run(more)).expect("JSON");
        outcome["read_us_mean"].clone()
    };
    assert_eq!(hits(&["--json", "--seed", "1"]), hits(&["--json"]), "1 is the default");
    assert_ne!(hits(&["--json", "--seed", "2"]), hits(&["--json"]));
}

#[test]
fn folded_and_joined_addresses_are_replayed_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let lines = (0..500).map(|at| {
        let (host, op) = (["hm", "ab", "xy"][at % 3], ["Write", "Read"][at / 3 % 2]);
        format!("128166372003061629,{host},0,{op},{},4608,413\n", at as u64 * 7919 * 512)
    });
    let trace = folder.path().join("many.csv");
    std::fs::write(&trace, lines.collect::<String>()).expect("a trace");
    let outcome = outcome(&[
        text(&trace),
        "--backing",
        "memory:1MiB",
        "--cache",
        "memory:512KiB",
        "--wrap",
        "--concatenate",
        "--write",
        "back",
    ]);
    assert_eq!(outcome["requests"], 500);
    assert_eq!(outcome["verified_bytes"], outcome["read_bytes"]);
}
