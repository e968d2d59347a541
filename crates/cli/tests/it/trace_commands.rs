//! `floe trace`: converting keeps what a trace holds, listings can be read by programs, and
//! generators can be spelled.

use std::path::Path;

use crate::common::{floe, floe_ok, text};
use serde_json::{Map, Value};

type Object = Map<String, Value>;

/// What a command prints, an object a line.
#[track_caller]
fn objects(arguments: &[&str]) -> Vec<Object> {
    let lines = floe_ok(arguments);
    lines.lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect()
}

#[track_caller]
fn info(trace: &str, options: &[&str]) -> Object {
    let arguments = [&["trace", "info", "--json", trace], options].concat();
    let mut lines = objects(&arguments);
    assert_eq!(lines.len(), 1);
    lines.remove(0)
}

/// Runs a command that must be refused, and gives its one line of complaint.
#[track_caller]
fn complaint(arguments: &[&str]) -> String {
    let output = floe(arguments);
    let said = String::from_utf8(output.stderr).expect("complaints are UTF-8");
    assert_eq!(output.status.code(), Some(2), "floe {arguments:?}: {said}");
    assert!(output.stdout.is_empty(), "floe {arguments:?}");
    assert_eq!(said.trim_end().lines().count(), 1, "floe {arguments:?}: {said}");
    said
}

/// Writes a trace, and gives its path.
fn write(folder: &Path, name: &str, line: impl Fn(u64) -> String) -> String {
    let path = folder.join(name);
    std::fs::write(&path, (0..9000).map(line).collect::<String>()).expect("a trace");
    text(&path).to_owned()
}

fn msr(i: u64) -> String {
    let op = if i.is_multiple_of(3) { "Write" } else { "Read" };
    let (time, place, bytes) =
        (128_166_372_000_000_000 + i * 1000, i * i % 997 * 4096, (i % 9 + 1) * 512);
    format!("{time},hm,{},{op},{place},{bytes},77\n", i % 2)
}

fn row(i: u64) -> String {
    match i {
        0 => "when,key,size,op\n".to_owned(),
        _ => format!(
            "{i},name{},{},{}\n",
            i % 17,
            i % 17 * 100 + 1,
            ["r", "w", "del"][i as usize % 3]
        ),
    }
}

fn pages(i: u64) -> String {
    format!("{} {} 0 {i}\n", i * 7 % 101, i % 5 + 1)
}

/// Disk I/O, and options to open it with.
fn disks(folder: &Path) -> Vec<(String, Vec<&'static str>)> {
    vec![
        (write(folder, "disk.csv", msr), vec![]),
        (write(folder, "blocks.lis", pages), vec!["--as-blocks"]),
        ("zipf:keys=500,requests=9000,block=4KiB".to_owned(), vec![]),
    ]
}

/// Objects and keys, and options to open them with.
fn objects_and_keys(folder: &Path) -> Vec<(String, Vec<&'static str>)> {
    vec![
        (write(folder, "table.csv", row), vec!["--columns", "time=when,time-unit=ms"]),
        (write(folder, "pages.lis", pages), vec![]),
        ("zipf:keys=500,requests=9000,read=70%".to_owned(), vec![]),
    ]
}

#[test]
fn a_converted_trace_has_the_figures_of_its_original() {
    let folder = tempfile::tempdir().expect("a folder");
    let to = folder.path().join("new.floe");
    let to_disks = [&[][..], &["--zstd"]];
    let to_others = [&[][..], &["--zstd"], &["--next-accesses"], &["--zstd=9", "--next-accesses"]];
    let disks = disks(folder.path()).into_iter().map(|source| (source, &to_disks[..]));
    let others = objects_and_keys(folder.path()).into_iter().map(|source| (source, &to_others[..]));
    for ((source, options), hows) in disks.chain(others) {
        for how in hows {
            let arguments =
                [&["trace", "convert", "--json", &source, text(&to)], &options[..], how].concat();
            let converted = objects(&arguments).remove(0);
            let (mut original, mut copy) = (info(&source, &options), info(text(&to), &[]));
            assert_eq!(copy["format"], "floe", "{source} {how:?}");
            assert_eq!(converted["requests"], original["requests"], "{source} {how:?}");
            assert_eq!(converted["unique"], original["unique"], "{source} {how:?}");
            let bytes = std::fs::metadata(&to).expect("the converted trace").len();
            assert_eq!(converted["bytes"], bytes, "{source} {how:?}");
            for differs in ["trace", "format"] {
                original.remove(differs);
                copy.remove(differs);
            }
            assert_eq!(copy, original, "{source} {how:?}");
        }
    }
}

#[test]
fn a_trace_for_libcachesim_has_the_requests_of_its_original() {
    let folder = tempfile::tempdir().expect("a folder");
    let to = folder.path().join("new.oracleGeneral");
    let source = "zipf:keys=500,requests=9000,read=70%";
    let how = ["--to-format", "oracleGeneral"];
    for level in [&[][..], &["--zstd"]] {
        let arguments =
            [&["trace", "convert", "--json", source, text(&to)], &how[..], level].concat();
        let converted = objects(&arguments).remove(0);
        let (original, copy) = (info(source, &[]), info(text(&to), &[]));
        assert_eq!(
            (&copy["format"], &converted["requests"]),
            (&"oracleGeneral".into(), &9000.into())
        );
        for same in ["requests", "unique"] {
            assert_eq!(copy[same], original[same], "{same}");
        }
    }
    let said = complaint(
        &[&["trace", "convert", source, text(&to), "--next-accesses"], &how[..]].concat(),
    );
    assert!(said.contains("oracleGeneral always has them"), "{said}");
}

#[test]
fn next_accesses_of_disk_io_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let to = folder.path().join("new.floe");
    for (source, options) in disks(folder.path()) {
        let arguments =
            [&["trace", "convert", "--next-accesses", &source, text(&to)], &options[..]].concat();
        let said = complaint(&arguments);
        assert!(said.contains("next accesses need a trace of keys"), "{said}");
        assert!(!to.exists(), "half a trace was left behind");
    }
}

#[test]
fn a_compact_file_that_was_cut_off_is_refused_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = folder.path().join("whole.floe");
    let cut = folder.path().join("cut.floe");
    for how in [&[][..], &["--zstd"]] {
        floe_ok(
            &[&["trace", "convert", "uniform:keys=5000,requests=20000", text(&whole)], how]
                .concat(),
        );
        let bytes = std::fs::read(&whole).expect("the whole trace");
        for length in [9, 63, 64, 100, bytes.len() / 2, bytes.len() - 1] {
            std::fs::write(&cut, &bytes[..length]).expect("a cut trace");
            let said = complaint(&["trace", "info", text(&cut)]);
            assert!(said.contains("cut.floe"), "{length} bytes, {how:?}: {said}");
            let other = folder.path().join("other.floe");
            complaint(&["trace", "convert", text(&cut), text(&other)]);
            assert!(!other.exists(), "{length} bytes, {how:?}: half a trace was left behind");
        }
    }
}

#[test]
fn formats_and_generators_are_listed_for_people_and_for_programs() {
    let lines = objects(&["trace", "formats", "--json"]);
    let named = |what: &str| -> Vec<&str> {
        lines
            .iter()
            .filter_map(|line| line.get(what))
            .map(|name| name.as_str().expect("a name"))
            .collect()
    };
    let (formats, generators) = (named("format"), named("generator"));
    assert_eq!(formats.len() + generators.len(), lines.len());
    for format in ["msr", "blkparse", "fiu", "csv", "floe"] {
        assert!(formats.contains(&format), "{formats:?}");
    }
    assert!(generators.contains(&"zipf") && generators.contains(&"ycsb"), "{generators:?}");
    let zipf = lines.iter().find(|line| line.get("generator").is_some_and(|name| name == "zipf"));
    let theta = zipf.expect("just seen")["parameters"].as_array().expect("a list").iter();
    assert!(
        theta
            .clone()
            .any(|parameter| parameter["name"] == "theta" && parameter["default"] == "0.99")
    );
    let tables = floe_ok(&["trace", "formats"]);
    for name in formats.iter().chain(&generators) {
        assert!(tables.contains(&format!("| {name} |")), "{name} is not in {tables}");
    }
}

#[test]
fn popularity_and_reuse_are_counted_when_asked_for() {
    // Five keys in turn, a hundred times: all equally popular, four others between two touches of
    // one.
    let found = info("loop:keys=5,requests=500", &["--reuse"]);
    assert_eq!((&found["requests"], &found["unique"]), (&500.into(), &5.into()));
    assert_eq!(found["one_hit_share"], 0.0);
    let distances: Vec<_> =
        ["reuse_p10", "reuse_p50", "reuse_p90"].map(|name| found[name].as_u64()).into();
    assert!(distances.iter().all(|&distance| distance == distances[0]), "{found:?}");
    assert!(matches!(distances[0], Some(4 | 5)), "{found:?}");
    assert!(!info("loop:keys=5,requests=500", &[]).contains_key("reuse_p50"));
}

#[test]
fn generators_stand_wherever_a_trace_may() {
    for (spec, requests) in [
        ("zipf", 1_000_000),
        ("zipf:keys=100,theta=0.8,requests=5000,seed=7", 5000),
        ("uniform:keys=100,requests=5000,block=4KiB,read=50%", 5000),
        ("loop:keys=50,requests=5000", 5000),
        ("scan:requests=5000", 5000),
        ("ycsb:workload=A,keys=100,requests=5000", 5000),
        ("mix:requests=9000+zipf:keys=100,weight=2+loop:keys=50", 9000),
    ] {
        let found = info(spec, &[]);
        assert_eq!(
            (&found["format"], &found["requests"]),
            (&"generated".into(), &requests.into()),
            "{spec}"
        );
    }
}

#[test]
fn what_a_generator_does_not_understand_is_answered_with_what_it_does() {
    for (spec, words) in [
        ("zopf:keys=5", &["zopf", "zipf", "uniform", "loop", "scan", "mix", "ycsb"][..]),
        ("zipf:key=5", &["\"key\"", "keys", "theta", "requests", "seed", "block", "read"]),
        ("zipf:keys=many", &["keys", "whole number", "\"many\""]),
        ("zipf:keys=5,keys=6", &["keys is given twice"]),
        ("ycsb:workload=Z", &["workload", "from A to F", "\"Z\""]),
        ("mix:requests=5", &["mix needs parts", "mix:requests=9000+"]),
        ("mix:requests=5+zapf", &["zapf", "zipf"]),
    ] {
        for command in [&["trace", "info"][..], &["trace", "info", "--json"]] {
            let said = complaint(&[command, &[spec]].concat());
            for word in words {
                assert!(said.contains(word), "{word} is not in what {spec} is answered: {said}");
            }
        }
    }
}

#[test]
fn columns_that_cannot_be_are_answered_with_those_that_can() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.csv");
    std::fs::write(&path, "when,what,kb\n1,a,4\n").expect("a table");
    let found = info(text(&path), &["--columns", "time=when,key=what,size=kb,size-unit=1024"]);
    assert_eq!((&found["format"], &found["footprint_bytes"]), (&"csv".into(), &4096.into()));
    for (columns, words) in [
        ("name=what", &["--columns", "\"name\"", "time, key, offset, size, op, volume"][..]),
        ("key=who", &["t.csv", "line 1 at byte 0", "when,what,kb"]),
    ] {
        let said = complaint(&["trace", "info", "--columns", columns, text(&path)]);
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
    let said =
        complaint(&["trace", "info", "--format", "msr", "--columns", "key=what", text(&path)]);
    assert!(said.contains("format msr has no columns to name; csv has"), "{said}");
}

#[test]
fn a_file_that_is_no_trace_does_not_hide_what_the_others_hold() {
    let folder = tempfile::tempdir().expect("a folder");
    let (good, bad) = (
        write(folder.path(), "good.lis", pages),
        write(folder.path(), "bad.txt", |_| "\u{1}?\n".into()),
    );
    for options in [&[][..], &["--json"]] {
        let output = floe(&[&["trace", "info", &bad, &good, &bad], options].concat());
        let (out, said) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
        let (out, said) = (out.expect("UTF-8"), said.expect("UTF-8"));
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(out.contains("good.lis"), "{out}");
        assert_eq!(said.lines().filter(|line| line.contains("bad.txt")).count(), 2, "{said}");
    }
}

#[test]
fn a_filter_keeps_what_it_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = write(folder.path(), "disk.csv", msr);
    let requests = |filter: &str| {
        let figures = info(&disk, &["--filter", filter]);
        figures["requests"].as_u64().expect("a count")
    };
    assert_eq!([requests("op=write"), requests("op=read")], [3000, 6000]);
    assert_eq!([requests("volume=0"), requests("volume=0,volume=1")], [4500, 9000]);
    // Records are 100 µs apart; the first 100 of the kept ones are from 100 ms on.
    assert_eq!([requests("time=100ms..110ms"), requests("time=..0.1s")], [100, 1000]);
    assert_eq!(info(&disk, &["--filter", "time=100ms..110ms"])["seconds"], 0.0099);
    assert_eq!(requests("range=0..4KiB") + requests("range=4KiB.."), 9000);
    assert!(requests("range=0..4KiB") > 0);
    let both = requests("op=write,volume=1");
    assert!(both > 0 && both < 3000, "{both}");
    // Simulations and conversions read the same requests.
    let simulated = &objects(&[
        "simulate", &disk, "--blocks", "4KiB", "--size", "1MiB", "--filter", "op=write", "--json",
    ])[0];
    let counts = ["read_requests", "write_requests"].map(|field| &simulated[field]);
    assert_eq!(counts, [0, 3000]);
    let to = folder.path().join("writes.floe");
    floe_ok(&["trace", "convert", "--filter", "op=write", &disk, text(&to)]);
    assert_eq!(info(text(&to), &[])["requests"], 3000);
}

#[test]
fn filters_that_cannot_be_are_refused_in_a_line() {
    for (trace, filter, word) in [
        ("zipf:keys=10", "volume=1", "no disk addresses"),
        ("zipf:keys=10", "range=0..1MiB", "no disk addresses"),
        ("zipf:keys=10,block=4KiB", "size=1", "size"),
        ("zipf:keys=10,block=4KiB", "time=5", "90s..2h"),
    ] {
        let output = floe(&["trace", "info", trace, "--filter", filter]);
        let said = String::from_utf8(output.stderr).expect("complaints are UTF-8");
        assert_eq!(output.status.code(), Some(2), "{filter}: {said}");
        assert!(said.contains(word), "{filter}: {said}");
    }
}

/// The sizes, miss ratios and errors of the curve of a trace.
fn curve(trace: &str, options: &[&str]) -> Vec<(u64, f64, f64)> {
    let figures = info(trace, options);
    let points = figures["lru_miss_ratios"].as_array().expect("points");
    let number = |point: &Value, field: &str| point[field].as_f64().expect("a number");
    let point = |point: &Value| {
        let size = point["size"].as_u64().expect("a size");
        (size, number(point, "miss_ratio"), number(point, "miss_ratio_ci95"))
    };
    points.iter().map(point).collect()
}

fn simulated(trace: &str, size: u64) -> f64 {
    let size = size.to_string();
    let arguments = ["simulate", trace, "--policy", "lru", "--size", &size, "--json"];
    objects(&arguments)[0]["miss_ratio"].as_f64().expect("a ratio")
}

#[test]
fn the_miss_ratios_of_lru_are_those_of_a_simulation() {
    // Few keys are all measured.
    for trace in ["zipf:keys=5000,requests=50000", "scan:keys=5000,requests=50000,block=8KiB"] {
        for (size, ratio, error) in curve(trace, &["--size", "1%,10%,50%,700"]) {
            let exact = simulated(trace, size);
            assert!((ratio - exact).abs() < 1e-9, "{trace} {size}: {ratio} {exact}");
            assert_eq!(error, 0.0);
        }
    }
    // Many are sampled, and the error is stated.
    let trace = "zipf:keys=100000,theta=0.8,requests=400000";
    let points = curve(trace, &[]);
    assert_eq!(points.len(), 6);
    for (size, ratio, error) in points {
        let exact = simulated(trace, size);
        assert!((ratio - exact).abs() < error, "{size}: {ratio} ± {error}, exact {exact}");
        assert!(error > 0.0 && error < 0.05, "{size}: {error}");
    }
}

#[test]
fn sizes_of_the_curve_are_bytes_on_disks_only() {
    let disk = "uniform:keys=1000,requests=10000,block=4KiB";
    let sizes: Vec<u64> = curve(disk, &["--size", "1MiB,400KiB"]).iter().map(|at| at.0).collect();
    assert_eq!(sizes, [256, 100]);
    let said = complaint(&["trace", "info", "uniform:keys=1000,requests=10000", "--size", "1MiB"]);
    assert!(said.contains("--size"), "{said}");
    let table = floe_ok(&["trace", "info", disk, "--size", "400KiB"]);
    assert!(table.contains("LRU misses at 400KiB"), "{table}");
    let table = floe_ok(&["trace", "info", "--reuse", disk, disk, "zipf:keys=1000,requests=5000"]);
    let longest = table.lines().map(|line| line.chars().count()).max();
    assert!(longest <= Some(80), "{table}");
}

#[test]
fn policies_and_admissions_are_listed_for_people_and_for_programs() {
    for (command, kind, some) in
        [("policies", "policy", ["lru", "s3-fifo"]), ("admissions", "admission", ["obp", "fussy"])]
    {
        let lines = objects(&[command, "--json"]);
        let list = floe_ok(&[command]);
        for line in &lines {
            let name = line[kind].as_str().expect("a name");
            let first = format!("{name} ");
            assert!(list.lines().any(|line| line.starts_with(&first)), "{name} in {list}");
            assert!(!line["idea"].as_str().expect("an idea").is_empty(), "{name}");
        }
        for name in some {
            assert!(lines.iter().any(|line| line[kind] == name), "{name}");
        }
        let longest = list.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(80), "{longest:?}");
    }
}

/// Simulates a table of objects, and gives its one result.
fn outcome_of(path: &str, options: &[&str]) -> Object {
    let arguments = [&["simulate", path, "--policy", "lru", "--json"], options].concat();
    objects(&arguments).remove(0)
}

#[test]
fn a_table_counts_the_same_in_every_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log.csv");
    let trace = text(&path);
    // A log of a cache: misses have no size.
    let sets = "get,a,0\nset,a,1000\nget,b,0\nset,b,1000\nget,c,0\nset,c,1000\n";
    let log = format!("op,key,size\n{sets}get,a,1000\nget,b,1000\nget,c,1000\n");
    std::fs::write(&path, &log).expect("a trace");
    let outcome = outcome_of(trace, &["--bytes", "--size", "1500"]);
    assert_eq!(outcome["miss_ratio"], 6.0 / 9.0);
    assert_eq!((&outcome["size_unit"], &outcome["object"]), (&"byte".into(), &"object".into()));
    assert_eq!(outcome_of(trace, &["--bytes", "--size", "100%"])["size"], 3000);
    assert_eq!(info(trace, &[])["footprint_bytes"], 3000);

    let gib = |keys: &[&str]| {
        let line = |key: &&str| format!("get,{key},{}\n", 8u64 << 30);
        format!("op,key,size\n{}", keys.iter().map(line).collect::<String>())
    };
    std::fs::write(&path, gib(&["a", "b", "a", "b"])).expect("a trace");
    assert_eq!(outcome_of(trace, &["--bytes", "--size", "10GiB"])["miss_ratio"], 1.0);
    assert_eq!(outcome_of(trace, &["--bytes", "--size", "16G"])["miss_ratio"], 0.5);

    std::fs::write(&path, "op,key\nget,a\ndelete,a\nget,a\nget,a\n").expect("a trace");
    let outcome = outcome_of(trace, &["--size", "1"]);
    assert_eq!(
        (&outcome["miss_ratio"], &outcome["size_unit"]),
        (&(2.0 / 3.0).into(), &"key".into())
    );
    let found = info(trace, &["--size", "1"]);
    assert_eq!((&found["requests"], &found["deletes"]), (&4.into(), &1.into()));
    assert_eq!((&found["touches"], &found["unique"]), (&3.into(), &1.into()));
    assert_eq!(found["lru_miss_ratios"][0]["miss_ratio"], outcome["miss_ratio"]);
}

#[test]
fn a_request_touches_blocks_and_both_are_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk.csv");
    let trace = text(&path);
    let lines = "offset,size,op\n0,16384,R\n0,0,R\n4096,8192,W\n0,1048576,trim\n";
    std::fs::write(&path, lines).expect("a trace");
    let found = info(trace, &[]);
    assert_eq!((&found["requests"], &found["touches"]), (&4.into(), &6.into()));
    assert_eq!((&found["object"], &found["footprint_bytes"]), (&"block".into(), &16384.into()));
    let outcome = outcome_of(trace, &["--size", "100%"]);
    assert_eq!((&outcome["requests"], &outcome["trace_requests"]), (&6.into(), &2.into()));
    assert_eq!((&outcome["size"], &outcome["size_unit"]), (&4.into(), &"block".into()));
    let table = floe_ok(&["simulate", trace, "--policy", "lru", "--size", "100%"]);
    assert!(table.contains("4 blocks"), "{table}");
    let advice = ["--backing", "hdd", "--cache", "nvme"];
    std::fs::write(&path, "offset,size,op\n0,4096,trim\n0,0,R\n").expect("a trace");
    let said = complaint(&[&["advise", trace], &advice[..]].concat());
    assert!(said.contains("no reads or writes"), "{said}");
}

#[test]
fn a_letter_behind_a_size_is_a_power_of_two_everywhere() {
    let size = |text: &str| {
        let trace = "zipf:keys=9,requests=9,block=4K";
        let arguments = ["simulate", trace, "--blocks", "32K,64K", "--size", text, "--json"];
        objects(&arguments)[0]["size"].as_u64()
    };
    assert_eq!(
        (size("64M"), size("64MiB"), size("64MB")),
        (Some(64 << 20), Some(64 << 20), Some(64_000_000))
    );
}

#[test]
fn standard_input_is_a_trace_compressed_or_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let plain = write(folder.path(), "disk.csv", msr);
    let packed = text(&folder.path().join("disk.floe")).to_owned();
    floe_ok(&["trace", "convert", "--zstd", &plain, &packed]);
    for (file, format) in [(&plain, "msr"), (&packed, "floe")] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_floe"));
        command.args(["trace", "info", "--json", "-"]);
        command.stdin(std::fs::File::open(file).expect("a trace"));
        let output = command.output().expect("floe can be run");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let found: Object = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!((&found["format"], &found["requests"]), (&format.into(), &9000.into()));
    }
    let replay = ["replay", "-", "--backing", "memory:1MiB", "--time", "virtual"];
    assert!(complaint(&replay).contains("reads its trace twice"));
}
