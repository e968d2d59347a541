//! `floe simulate` as a user runs it: fields, known answers, sampling, reports.

use std::collections::BTreeSet;
use std::process::{Command, Output};

use serde_json::Value;

fn floe(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_floe")).args(arguments).output().expect("floe can be run")
}

/// Runs `floe simulate … --json` and reads its lines.
fn outcomes(arguments: &[&str]) -> Vec<Value> {
    let output = floe(&[&["simulate"], arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    lines.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

fn fields(outcome: &Value) -> BTreeSet<&str> {
    outcome.as_object().expect("a line is an object").keys().map(String::as_str).collect()
}

#[test]
fn policies_print_the_promised_fields() {
    let outcome =
        &outcomes(&["uniform:keys=100,requests=1000", "--policy", "lru", "--size", "10"])[0];
    for field in [
        "trace",
        "policy",
        "size",
        "requests",
        "hits",
        "misses",
        "miss_ratio",
        "byte_miss_ratio",
        "seconds",
        "requests_per_second",
    ] {
        assert!(fields(outcome).contains(field), "{field} is missing in {outcome}");
    }
}

/// The cells of a line of CSV, of which none holds a quotation mark.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut quoted) = (vec![String::new()], false);
    for part in line.split_inclusive(['"', ',']) {
        let cell = cells.last_mut().expect("a cell");
        match part.strip_suffix('"') {
            Some(text) => {
                cell.push_str(text);
                quoted = !quoted;
            }
            None if quoted => cell.push_str(part),
            None => {
                cell.push_str(part.trim_end_matches(','));
                if part.ends_with(',') {
                    cells.push(String::new());
                }
            }
        }
    }
    cells
}

/// The cells of each line of `floe simulate … --csv`, by column.
fn rows(arguments: &[&str]) -> Vec<Vec<(String, String)>> {
    let output = floe(&[&["simulate"], arguments, &["--csv"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("CSV is UTF-8");
    let mut lines = text.lines().map(cells);
    let columns = lines.next().expect("a header");
    lines.map(|cells| columns.iter().cloned().zip(cells).collect()).collect()
}

#[test]
fn auto_says_what_it_chose_and_why() {
    let line = ["loop:keys=200,requests=20000", "--policy", "lru,auto", "--size", "100"];
    let [lru, auto] = &outcomes(&line)[..] else { panic!("two policies") };
    assert!(lru["adaptation"].is_null(), "{lru}");
    let settings = auto["adaptation"]["settings"].as_array().expect("a list");
    assert!(settings.iter().any(|setting| setting["name"] == "qd-clock"), "{auto}");
    let used: Vec<_> = settings.iter().filter(|setting| setting["orders"] == 1).collect();
    assert_eq!(used.len(), 1, "{auto}");
    let output = floe(&[&["simulate"], &line[..]].concat());
    let text = String::from_utf8(output.stdout).expect("it is text");
    let name = used[0]["name"].as_str().expect("a name");
    assert!(text.contains(&format!("auto of 100 keys: {name}, estimated to miss")), "{text}");
    assert!(text.contains("estimated miss ratio"), "{text}");
}

#[test]
fn csv_has_the_fields_of_json() {
    let keys = "loop:keys=100,requests=1000";
    let disk = "loop:keys=100,requests=1000,block=4KiB";
    for arguments in [
        &[keys, "--policy", "lru,s3-fifo", "--size", "10,20"][..],
        &[keys, "--policy", "lru", "--admit", "always", "--size", "10"],
        &[disk, "--blocks", "4KiB", "--size", "1MiB"],
        &[disk, "--blocks", "4KiB", "--size", "1MiB", "--admit", "until-full"],
    ] {
        let (lines, rows) = (outcomes(arguments), rows(arguments));
        assert_eq!(lines.len(), rows.len(), "{arguments:?}");
        for (line, row) in lines.iter().zip(&rows) {
            let timed = ["seconds", "requests_per_second"];
            for (column, cell) in row.iter().filter(|(column, _)| !timed.contains(&&column[..])) {
                let value = line.pointer(&format!("/{}", column.replace('.', "/")));
                let value = value.unwrap_or_else(|| panic!("{column} in {line}"));
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                assert_eq!(&text, cell, "{column} of {arguments:?}");
            }
            for field in fields(line) {
                let nested = format!("{field}.");
                let has =
                    |(column, _): &(String, String)| column == field || column.starts_with(&nested);
                assert!(row.iter().any(has), "{field} of {arguments:?}");
            }
            assert_eq!(row[0].0, "trace", "the order of fields is kept");
        }
    }
}

#[test]
fn intervals_add_up_to_the_whole_by_requests_and_by_time() {
    let disk = "zipf:keys=1000,requests=5000,read=0.7,block=4KiB";
    let admitted = ["zipf:keys=100,requests=5000", "--policy", "lru", "--admit", "second-access"];
    for (arguments, summed) in [
        (
            &["zipf:keys=1000,requests=5000", "--policy", "lru,belady", "--size", "50"][..],
            &["requests", "hits", "misses"][..],
        ),
        (&[&admitted[..], &["--size", "10"]].concat()[..], &["requests", "hits", "inserted"]),
        (
            &[disk, "--blocks", "4KiB", "--size", "10%"],
            &[
                "read_requests",
                "read_hits",
                "write_hits",
                "backing_write_bytes",
                "cache_write_bytes",
            ],
        ),
    ] {
        let warm = [arguments, &["--warmup", "1000", "--interval", "1500"]].concat();
        let lines = outcomes(&warm);
        for line in &lines {
            let series = line["series"].as_array().expect("a series");
            let requests: Vec<_> = series.iter().map(|it| it["requests"].as_u64()).collect();
            assert_eq!(requests, [Some(1500), Some(1500), Some(1000)], "{line}");
            assert_eq!(series[2]["after_requests"], 3000);
            for field in summed {
                let sum: u64 = series.iter().map(|it| it[field].as_u64().expect("a count")).sum();
                assert_eq!(Some(sum), line[field].as_u64(), "{field} of {line}");
            }
        }
        let rows = rows(&warm);
        assert_eq!(rows.len(), 3 * lines.len());
        assert!(rows[0].iter().any(|(column, cell)| column == "requests" && cell == "1500"));
        let output = floe(&[&["simulate"], &warm[..]].concat());
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(text.contains("over time") && text.contains(" 4000 "), "{text}");
        let refused = floe(&[&["simulate"], arguments, &["--interval", "1h"]].concat());
        let why = String::from_utf8(refused.stderr).expect("text");
        assert!(refused.status.code() == Some(2) && why.contains("has no times"), "{why}");
    }
}

#[test]
fn an_interval_of_a_time_follows_the_trace() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("hours.csv");
    // A request each 20 minutes for 5 hours, with a pause of two hours after the third.
    let at = |number: u64| number * 1200 + if number < 9 { 0 } else { 7200 };
    let lines = (0..15).map(|number| {
        let time = 128_166_372_003_061_629 + at(number) * 10_000_000;
        format!("{time},host,0,Read,{},4096,413\n", number % 4 * 4096)
    });
    std::fs::write(&trace, lines.collect::<String>()).expect("a trace");
    let trace = trace.to_str().expect("UTF-8");
    for what in [["--policy", "lru", "--size", "4"], ["--blocks", "4KiB", "--size", "1MiB"]] {
        let arguments = [&[trace], &what[..], &["--interval", "1h"]].concat();
        let line = &outcomes(&arguments)[0];
        let series = line["series"].as_array().expect("a series");
        let of = |field: &str| series.iter().map(|it| it[field].as_f64()).collect::<Vec<_>>();
        assert_eq!(of("requests"), [Some(3.0); 5], "{line}");
        let ends = [1.0, 2.0, 3.0, 6.0, 7.0].map(|hour| Some(hour * 3600.0));
        assert_eq!(of("seconds"), ends, "{line}");
        let output = floe(&[&["simulate"], &arguments[..]].concat());
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(text.contains(" 6h "), "{text}");
    }
}

#[test]
fn blocks_print_the_promised_fields() {
    let trace = "zipf:keys=1000,requests=5000,block=4KiB";
    let outcome = &outcomes(&[trace, "--blocks", "4KiB,8KiB", "--size", "10%"])[0];
    for field in [
        "trace",
        "blocks",
        "size",
        "read_requests",
        "read_hits",
        "write_requests",
        "write_hits",
        "backing_read_bytes",
        "backing_write_bytes",
        "cache_read_bytes",
        "cache_write_bytes",
        "metadata_bytes",
        "blocks_allocated",
        "mean_block_bytes",
        "mean_missed_bytes",
    ] {
        assert!(fields(outcome).contains(field), "{field} is missing in {outcome}");
    }
}

#[test]
fn a_loop_has_the_hits_that_theory_says() {
    // 10 rounds over 100 keys: LRU and FIFO hit nothing below 100 and all but the first round at
    // 100. Belady keeps 49 of the 50 it has room for from round to round.
    let trace = "loop:keys=100,requests=1000";
    let hits = |policy: &str, size: &str| {
        outcomes(&[trace, "--policy", policy, "--size", size])[0]["hits"].as_u64().expect("a count")
    };
    assert_eq!([hits("lru", "99"), hits("fifo", "99")], [0, 0]);
    assert_eq!([hits("lru", "100"), hits("fifo", "100"), hits("s3-fifo", "100")], [900, 900, 900]);
    let belady = hits("belady", "50");
    assert!((440..=450).contains(&belady), "{belady}");
}

#[test]
fn sizes_are_counts_shares_and_ranges() {
    let trace = "loop:keys=200,requests=400";
    let sizes: Vec<u64> = outcomes(&[trace, "--policy", "lru", "--size", "7,10%..=30%:10%"])
        .iter()
        .map(|outcome| outcome["size"].as_u64().expect("a count"))
        .collect();
    assert_eq!(sizes, [7, 20, 40, 60]);
}

#[test]
fn a_sample_is_as_close_as_it_says() {
    let trace = "zipf:keys=50000,theta=0.7,requests=500000";
    let exact = &outcomes(&[trace, "--policy", "lru", "--size", "5000"])[0];
    let sampled = &outcomes(&[trace, "--policy", "lru", "--size", "5000", "--sample", "0.1"])[0];
    let (exact, estimate) =
        (exact["miss_ratio"].as_f64().unwrap(), sampled["miss_ratio"].as_f64().unwrap());
    let bound = sampled["miss_ratio_ci95"].as_f64().expect("a sample says how far off it may be");
    assert!(bound > 0.0 && bound < 0.05, "{bound}");
    assert!((exact - estimate).abs() < bound, "{exact} {estimate} ± {bound}");
    // Everything is of the whole trace, and only one field of what was simulated.
    let count =
        |field: &str| sampled[field].as_u64().unwrap_or_else(|| panic!("{field} in {sampled}"));
    assert_eq!((count("requests"), count("hits") + count("misses")), (500_000, 500_000));
    assert!((count("misses") as f64 / 500_000.0 - estimate).abs() < 1e-5, "{sampled}");
    assert!(count("sampled_requests") < 100_000, "{sampled}");
}

#[test]
fn warm_up_fills_the_cache_and_does_not_count() {
    // The first of ten rounds misses; all others hit.
    let trace = "loop:keys=100,requests=1000";
    let count = |outcome: &Value, field: &str| {
        outcome[field].as_u64().unwrap_or_else(|| panic!("{field} in {outcome}"))
    };
    for options in [&["--warmup", "100"][..], &["--warmup", "10%"], &["--warmup=10%", "--bytes"]] {
        let trace = format!("{trace},block=4KiB");
        let arguments = [&[trace.as_str(), "--policy", "lru", "--size", "100%"], options].concat();
        let outcome = &outcomes(&arguments)[0];
        let counts = ["warmup_requests", "requests", "hits", "misses"];
        assert_eq!(counts.map(|field| count(outcome, field)), [100, 900, 900, 0], "{options:?}");
        assert_eq!(outcome["byte_miss_ratio"], 0.0);
    }
    let admitted =
        [trace, "--policy", "lru", "--size", "100", "--warmup", "100", "--admit", "always"];
    let outcome = &outcomes(&admitted)[0];
    assert_eq!(["hits", "misses", "inserted"].map(|field| count(outcome, field)), [900, 0, 0]);
    let disk = format!("{trace},block=4KiB");
    let blocks = |warmup| {
        let arguments = [&disk, "--blocks", "4KiB", "--size", "1MiB", "--warmup", warmup];
        let outcome = outcomes(&arguments).remove(0);
        ["read_requests", "read_hits", "backing_read_bytes", "blocks_allocated"]
            .map(|field| count(&outcome, field))
    };
    assert_eq!(blocks("0"), [1000, 900, 100 * 4096, 100]);
    assert_eq!(blocks("100"), [900, 900, 0, 0]);
}

#[test]
fn several_traces_are_summed_up() {
    let traces = ["loop:keys=100,requests=1000", "loop:keys=200,requests=1000"];
    let options = ["--policy", "lru,belady", "--size", "50%"];
    let arguments = [&traces[..], &options].concat();
    let names: Vec<_> = outcomes(&arguments).iter().map(|line| line["trace"].clone()).collect();
    assert_eq!(names, [traces[0], traces[0], traces[1], traces[1]]);
    let output = floe(&[&["simulate"], &arguments[..]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let summary = text.split("all 2 traces").nth(1).unwrap_or_else(|| panic!("{text}"));
    // LRU hits nothing of a loop over twice what fits.
    let lru = summary.lines().find(|line| line.starts_with(" lru ")).expect("a line");
    assert_eq!(
        lru.split_whitespace().collect::<Vec<_>>().join(" "),
        "lru 50% 1.0000 1.0000 1.0000 2.0 0 of 2"
    );
    assert!(summary.contains("2 of 2"), "{summary}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for refused in [&["--report", "r.html"][..], &["--blocks", "4KiB"]] {
        let output = floe(&[&["simulate"], &arguments[..], refused].concat());
        assert_eq!(output.status.code(), Some(2), "{refused:?}");
    }
}

/// The traces, policies, sizes and counts in some lines, which are the same in each run.
fn counted(lines: &[Value]) -> Vec<[Value; 5]> {
    let fields = ["trace", "policy", "size", "hits", "misses"];
    lines.iter().map(|line| fields.map(|field| line[field].clone())).collect()
}

/// A folder with two traces, one of them in a folder below, and a file that is no trace.
fn folder_of_traces() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("below")).expect("a folder below");
    for (generator, file) in
        [("loop:keys=100,requests=1000", "below/a.floe"), ("zipf:keys=90,requests=3000", "b.floe")]
    {
        let file = folder.path().join(file).display().to_string();
        assert!(floe(&["trace", "convert", generator, &file]).status.success(), "{file}");
    }
    std::fs::write(folder.path().join("README.md"), "Two traces.\n").expect("it can be written");
    folder
}

#[test]
fn a_folder_stands_for_its_traces_which_are_summed_up() {
    let folder = folder_of_traces();
    let name = folder.path().to_str().expect("it is UTF-8");
    let files = ["below/a.floe", "b.floe"].map(|file| format!("{name}/{file}"));
    let mut sorted = files.clone();
    sorted.sort();
    let options = ["--policy", "lru,belady", "--size", "10%,50%"];
    let one_by_one = outcomes(&[&[&sorted[0][..], &sorted[1]], &options[..]].concat());
    let whole = [&[name], &options[..]].concat();
    for arguments in [&whole[..], &[&whole[..], &["--all-cores"]].concat()] {
        assert_eq!(counted(&outcomes(arguments)), counted(&one_by_one), "{arguments:?}");
        let output = floe(&[&["simulate"], arguments].concat());
        let text = String::from_utf8(output.stdout).expect("it is text");
        assert!(text.starts_with("all 2 traces\n") && !text.contains("a.floe"), "{text}");
        let error = String::from_utf8(output.stderr).expect("it is text");
        assert!(error.contains(&format!("not recognised as traces: {name}/README.md")), "{error}");
        assert_eq!(output.status.code(), Some(0), "{error}");
    }

    std::fs::write(&files[1], "damaged\n").expect("it can be written");
    let output = floe(&[&["simulate", &files[0], &files[1]], &options[..]].concat());
    let text = String::from_utf8(output.stdout).expect("it is text");
    assert!(text.contains("all 1 traces"), "the other one is simulated: {text}");
    assert_eq!(output.status.code(), Some(2));
    for refused in [&["--report", "r.html"][..], &["--blocks", "4KiB"]] {
        let output = floe(&[&["simulate"], &whole[..], refused].concat());
        assert_eq!(output.status.code(), Some(2), "{refused:?}");
    }
}

#[test]
fn policies_are_compared_with_one_over_all_traces_and_sizes() {
    let folder = folder_of_traces();
    let name = folder.path().to_str().expect("it is UTF-8");
    let options = ["--policy", "lru,fifo,belady", "--size", "1%,10%,50%", "--all-cores"];
    let whole = [&[name], &options[..], &["--relative-to", "lru"]].concat();
    let rows = outcomes(&[&whole[..], &["--min-objects", "5"]].concat());
    let of = |policy: &str, field: &str| {
        let row = rows.iter().find(|row| row["policy"] == policy);
        row.unwrap_or_else(|| panic!("no row of {policy}"))[field].clone()
    };
    assert_eq!(of("best of each", "behind_worst"), 0.0);
    assert_eq!(of("lru", "caches"), 4, "1 % of 100 and of 90 keys are too few");
    assert_eq!(of("lru", "misses_to_reference"), 1.0);
    assert_eq!(of("lru", "gap_closed"), 0.0);
    assert_eq!(of("belady", "gap_closed"), 1.0);
    assert_eq!(of("belady", "apart"), true);
    // Of a loop larger than the cache LRU and FIFO keep nothing that returns.
    assert!(of("fifo", "misses_to_reference").as_f64() >= Some(1.0));
    let output = floe(&[&["simulate"], &whole[..]].concat());
    let text = String::from_utf8(output.stdout).expect("it is text");
    // A share of 1 % of 90 keys is no object, so one trace is refused and the other compared.
    assert!(text.starts_with("caches compared: 3, of traces: 1\n"), "{text}");
    for (more, problem) in [
        (&["--relative-to", "arc"][..], "--relative-to arc: it is none of the policies compared"),
        (&["--relative-to", "lru", "--miss-us", "5"], "--relative-to"),
        (&["--relative-to", "lru", "--min-objects", "1000"], "no cache has 1000 objects"),
        (&["--relative-to", "lru", "--min-objects", "9", "--bytes"], "--min-objects needs sizes"),
        (&["--min-objects", "9"], "--relative-to"),
    ] {
        let output = floe(&[&["simulate", name], &options[..], more].concat());
        let error = String::from_utf8(output.stderr).expect("it is text");
        assert_eq!(output.status.code(), Some(2), "{more:?}: {error}");
        assert!(error.contains(problem), "{more:?}: {error}");
    }
}

#[test]
fn results_that_were_saved_are_not_computed_again() {
    let folder = folder_of_traces();
    let name = folder.path().to_str().expect("it is UTF-8");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let saved = file.path().to_str().expect("it is UTF-8");
    let arguments =
        [name, "--policy", "lru,auto", "--size", "10%,20", "--all-cores", "--resume", saved];
    let lines = || std::fs::read_to_string(saved).expect("it is text").lines().count();
    let first = outcomes(&arguments);
    assert_eq!((first.len(), lines()), (8, 2), "each of two traces has a line");
    assert_eq!(counted(&outcomes(&arguments)), counted(&first));
    assert_eq!(lines(), 2, "what is computed is added");
    // Other settings, a changed trace and a new one are computed.
    let other = [&arguments[..4], &["10%"], &arguments[5..]].concat();
    assert_eq!(outcomes(&other).len(), 4);
    assert_eq!(lines(), 4);
    let trace = format!("{name}/b.floe");
    assert!(floe(&["trace", "convert", "zipf:keys=95,requests=3100", &trace]).status.success());
    let changed = outcomes(&arguments);
    assert_eq!(lines(), 5);
    let of = |lines: &[Value], file: &str| -> Vec<Value> {
        let is_of = |line: &&Value| line["trace"].as_str().is_some_and(|name| name.ends_with(file));
        lines.iter().filter(is_of).cloned().collect()
    };
    assert_eq!(counted(&of(&changed, "a.floe")), counted(&of(&first, "a.floe")));
    assert_ne!(counted(&of(&changed, "b.floe")), counted(&of(&first, "b.floe")));
    let output = floe(&[&["simulate", "-"], &arguments[1..]].concat());
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).expect("it is text");
    assert!(error.contains("-: --resume takes files and generators only"), "{error}");
}

#[test]
fn the_table_is_ordered_by_latency_when_the_times_are_known() {
    let trace = "zipf:keys=2000,theta=0.9,requests=50000";
    let output = floe(&[
        "simulate",
        trace,
        "--policy",
        "fifo,lru,belady",
        "--size",
        "200",
        "--medium",
        "nvme",
    ]);
    let table = String::from_utf8(output.stdout).unwrap();
    let at = |policy: &str| {
        table.find(&format!("\n {policy} ")).unwrap_or_else(|| panic!("{policy} in {table}"))
    };
    assert!(at("belady") < at("lru") && at("lru") < at("fifo"), "{table}");
    assert!(table.contains("mean latency"), "{table}");
}

#[test]
fn a_report_is_one_page_and_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (page, stem) = (path("page.html"), path("chart"));
    let trace = "zipf:keys=1000,requests=20000";
    let arguments = ["simulate", trace, "--policy", "lru,s3-fifo,belady", "--size", "1%,10%,50%"];
    let files = ["--report", &page, "--png", &stem, "--svg", &stem];
    let output = floe(&[&arguments[..], &files].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("s3-fifo") && page.contains("<svg") && !page.contains("<script"));
    let picture = std::fs::read(format!("{stem}-miss-ratio.png")).unwrap();
    assert_eq!(&picture[..8], b"\x89PNG\r\n\x1a\n");
    let drawing = std::fs::read_to_string(format!("{stem}-miss-ratio.svg")).unwrap();
    assert!(drawing.starts_with("<svg xmlns") && drawing.contains("s3-fifo"), "{drawing}");
}

#[test]
fn sizes_in_a_report_are_bytes_where_they_are_known() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let page = |trace: &str, size: &str, more: &[&str]| {
        let page = path("page.html");
        let arguments = ["simulate", trace, "--policy", "lru,fifo", "--size", size];
        let output = floe(&[&arguments[..], &["--report", &page], more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read_to_string(page).unwrap()
    };
    let blocks = "zipf:keys=5000,requests=10000,block=4KiB";
    for size in ["4MiB", "1024"] {
        let page = page(blocks, size, &[]);
        assert!(page.contains(">4 MiB<") && !page.contains("objects"), "{size}: {page}");
    }
    let keys = page("zipf:keys=5000,requests=10000", "1024", &[]);
    assert!(keys.contains(">1,024 objects<"), "{keys}");
    // Three objects of 1, 2 and 3 KiB, one of which was smaller before.
    let trace = path("objects.csv");
    std::fs::write(&trace, "key,size\n1,1024\n2,2048\n3,100\n3,3072\n1,1024\n").unwrap();
    let columns = ["--columns", "key=key,size=size"];
    let objects = page(&trace, "2", &columns);
    assert!(objects.contains(">≈ 4 KiB (2 objects)<"), "{objects}");
    assert!(objects.contains("objects, which have 2 KiB on average"), "{objects}");
    let in_bytes = page(&trace, "2", &[&columns[..], &["--bytes"]].concat());
    assert!(in_bytes.contains(">2 B<") && !in_bytes.contains("average"), "{in_bytes}");
}

#[test]
fn the_compact_form_gives_the_same_answers() {
    let folder = tempfile::tempdir().unwrap();
    let compact = folder.path().join("trace.floe").display().to_string();
    let trace = "zipf:keys=3000,theta=0.9,requests=30000";
    let output = floe(&["trace", "convert", trace, &compact]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let policies = "lru,arc,s3-fifo,w-tinylfu,belady";
    let hits = |trace: &str| -> Vec<u64> {
        let outcomes = outcomes(&[trace, "--policy", policies, "--size", "300"]);
        outcomes.iter().map(|outcome| outcome["hits"].as_u64().unwrap()).collect()
    };
    assert_eq!(hits(trace), hits(&compact));
}

#[test]
fn what_cannot_be_simulated_is_refused_in_a_line() {
    let (keys, blocks) = ("loop:keys=10,requests=20", "loop:keys=10,requests=20,block=4KiB");
    let cases: &[(&[&str], &str)] = &[
        (&[keys, "--policy", "lrru", "--size", "5"], "lrru"),
        (&[keys, "--policy", "slru:segments=x", "--size", "5"], "segments"),
        (&[keys, "--policy", "lru", "--size", "64KiB"], "no sizes"),
        (&[keys, "--policy", "lru", "--size", "1%"], "--size"),
        (&[keys, "--policy", "lru", "--size", "5", "--sample", "2"], "--sample"),
        (&[keys, "--policy", "lru", "--size", "5", "--warmup", "20"], "do not count"),
        (&[blocks, "--blocks", "4KiB", "--size", "1MiB", "--warmup", "20"], "do not count"),
        (&[keys, "--policy", "lru", "--size", "5", "--filter", "op=write"], "--filter"),
        (&[keys, "--policy", "lru", "--size", "5", "--hit-us", "1"], "--miss-us"),
        (&[keys, "--policy", "lru", "--size", "5", "--insert-us", "1"], "--insert-us needs"),
        (
            &[keys, "--policy", "lru", "--size", "5", "--miss-us", "9", "--insert-us=-1"],
            "--insert-us must be a time of at least 0",
        ),
        (&[keys, "--policy", "lru", "--size", "5", "--medium", "tape"], "tape"),
        (&[keys, "--blocks", "4KiB", "--size", "1MiB"], "block=4KiB"),
        (&[keys, "--size", "5"], "--policy"),
        (
            &[keys, "--policy", "lru", "--admit", "small-bypass", "--size", "5"],
            "memory=N (objects)",
        ),
        (
            &[blocks, "--blocks", "4KiB", "--admit", "obp+small-bypass", "--size", "1MiB"],
            "memory=N (bytes)",
        ),
        (&[blocks, "--blocks", "4KiB", "--admit", "obp+obp", "--size", "1MiB"], "given twice"),
        (
            &[blocks, "--blocks", "4KiB", "--size", "1MiB", "--flush-interval", "0s"],
            "0s is too short",
        ),
        (&[keys, "--policy", "slru:segments=2:segments=4", "--size", "5"], "given twice"),
        (&[keys, "--memory", "8MiB", "--flash", "64MiB"], "--object-size"),
        (&[blocks, "--memory", "8MiB", "--flash", "64MiB"], "--blocks"),
        (&[keys, "--object-size", "1KiB", "--memory", "8MiB", "--flash", "64"], "--flash 64: "),
        (&[keys, "--object-size", "1KiB", "--memory", "8MiB", "--flash", "64KiB"], "8 segments"),
        (&[keys, "--object-size", "1KiB", "--memory", "8MiB", "--flash", "20TiB"], "too many"),
        (&[keys, "--object-size", "1KiB", "--memory", "9KiB", "--flash", "64MiB"], "too few"),
        (&[keys, "--flash", "64MiB"], "--memory"),
        (&[keys, "--memory", "8MiB", "--flash", "64MiB", "--policy", "lru"], "--policy"),
        (&[keys, "--policy", "lru", "--admit", "second-access:ghosts=0", "--size", "5"], "ghosts"),
        (&[keys, "--policy", "lru", "--size", "5", "--admission", "tinylfu"], "needs --flash"),
        (
            &[keys, "--object-size", "1KiB", "--memory", "8MiB", "--flash", "64MiB", "--admission"],
            "--admission",
        ),
        (
            &[
                keys,
                "--object-size",
                "1KiB",
                "--memory",
                "8MiB",
                "--flash",
                "64MiB",
                "--write-budget",
                "1 DWPD",
            ],
            "has no times",
        ),
    ];
    for (arguments, word) in cases {
        let output = floe(&[&["simulate"], *arguments].concat());
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {line}");
        assert!(
            output.stdout.is_empty() && line.lines().count() == 1 && line.contains(word),
            "{arguments:?}: {line}"
        );
    }
}

/// A trace of objects with sizes: 60,000 requests of 20,000 objects in a minute, of which some are
/// writes and deletions.
fn write_objects(path: &std::path::Path) {
    let mut lines = "time,key,size,op\n".to_owned();
    let mut state = 1u64;
    for at in 0..60_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let draw = (state >> 33) as f64 / f64::from(1u32 << 31);
        let key = (20_000.0 * draw.powi(3)) as u64;
        let op = ["read", "write", "delete"][match at % 50 {
            48 => 1,
            49 => 2,
            _ => 0,
        }];
        lines += &format!("{},{key},{},{op}\n", at / 1000, 500 + key * 7919 % 8000);
    }
    std::fs::write(path, lines).expect("a temporary file can be written");
}

#[test]
fn caches_in_memory_and_on_flash_are_simulated() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let trace = folder.path().join("objects.csv");
    write_objects(&trace);
    let trace = trace.to_str().expect("the path is text");
    let columns = "time=time,key=key,size=size,op=op";
    let arguments = [
        trace,
        "--columns",
        columns,
        "--memory",
        "8MiB",
        "--flash",
        "16MiB,64MiB",
        "--warmup",
        "10%",
    ];
    let (first, second) = (outcomes(&arguments), outcomes(&arguments));
    assert_eq!(first.len(), 2);
    for (one, other) in first.iter().zip(&second) {
        let timed = ["seconds", "requests_per_second"];
        for field in fields(one).into_iter().filter(|field| !timed.contains(field)) {
            assert_eq!(one[field], other[field], "{field} is not the same in two runs");
        }
        let count = |field: &str| one[field].as_u64().unwrap_or_else(|| panic!("{field}: {one}"));
        let found = count("memory_hits") + count("flash_hits") + count("misses");
        assert_eq!(found, count("requests"), "{one}");
        assert!(count("memory_hits") > 1000 && count("flash_hits") > 1000, "{one}");
        assert!(count("writes") > 1000 && count("reinserted") > 0, "{one}");
        assert_eq!(one["trace_seconds"], 53.0, "{one}");
        let a_day = count("flash_written_bytes") as f64 / 53.0 * 86_400.0;
        let drives = one["writes_per_day"].as_f64().expect("it has times");
        assert!((drives * count("flash") as f64 / a_day - 1.0).abs() < 1e-9, "{one}");
    }
    assert!(first[0]["flash_hits"].as_u64() < first[1]["flash_hits"].as_u64(), "{first:?}");
    // A minute has the budget of a quarter of an hour, which is what a cache begins with.
    let limited =
        [&arguments[..], &["--admission", "tinylfu", "--write-budget", "1 DWPD"]].concat();
    let limited = outcomes(&limited);
    for (limited, free) in limited.iter().zip(&first) {
        let written = |one: &serde_json::Value| one["flash_written_bytes"].as_u64().unwrap();
        assert!(written(limited) < written(free) / 4, "{limited}");
        assert!(limited["flash_declined"].as_u64() > Some(1000), "{limited}");
        assert_eq!(limited["admission"], "tinylfu", "{limited}");
        assert_eq!(limited["write_budget"], "1 DWPD", "{limited}");
        assert_eq!(free["flash_declined"], 0, "{free}");
    }
    let table = floe(&[&["simulate"], &arguments[..]].concat());
    let text = String::from_utf8(table.stdout).expect("tables are UTF-8");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("on flash") && text.contains("DWPD"), "{text}");
}

/// Three prompts that begin alike, and one between that does not.
const PROMPTS: &str = r#"{"timestamp": 0, "hash_ids": [1, 2, 3, 4]}
{"timestamp": 1, "hash_ids": [9]}
{"timestamp": 2, "hash_ids": [1, 2, 3, 4]}
"#;

#[test]
fn prompts_reuse_their_longest_cached_prefix() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kv.jsonl");
    std::fs::write(&file, PROMPTS).unwrap();
    let file = file.to_str().unwrap();
    let options = ["--prefix", "--policy", "lru", "--size", "8KiB", "--block-bytes", "2KiB"];
    let found = outcomes(&[&[file][..], &options].concat());
    let figures = |line: &Value| {
        let field = |name: &str| line[name].as_u64().unwrap();
        (field("size"), field("blocks"), field("recomputed"), field("behind_a_gap"))
    };
    let keeps: Vec<_> = found.iter().map(|line| line["keeps"].as_str().unwrap()).collect();
    assert_eq!(keeps, ["tail", "head"]);
    // Of the last prompt, block 1 was evicted, or block 4.
    assert_eq!(found.iter().map(figures).collect::<Vec<_>>(), [(4, 9, 9, 3), (4, 9, 6, 0)]);

    let refused = |arguments: &[&str], reason: &str| {
        let output = floe(&[&["simulate"], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(reason) && said.lines().count() == 1, "{said}");
    };
    let lru = ["--prefix", "--policy", "lru", "--size"];
    refused(&[&[file][..], &lru, &["8KiB"]].concat(), "--block-bytes");
    refused(&[&["zipf:keys=9"][..], &lru, &["4"]].concat(), "hash_ids");
    let belady = ["--prefix", "--policy", "belady", "--size", "4"];
    refused(&[&[file][..], &belady].concat(), "the next use of each block");
}
