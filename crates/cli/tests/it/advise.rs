//! `floe advise` as a user runs it: the three columns, the floe.toml, the page, and no cache where
//! none pays.

use crate::common::{floe_ok, text};
use floe_server::config::ServerConfig;
use serde_json::Value;

const ZIPF: &str = "zipf:keys=4000,theta=0.9,read=0.7,block=4KiB,requests=3000";

fn advice(arguments: &[&str]) -> Value {
    let lines = floe_ok(&[&["advise"], arguments, &["--json"]].concat());
    assert_eq!(lines.lines().count(), 1, "{lines}");
    serde_json::from_str(&lines).expect("the line is JSON")
}

fn mean(trial: &Value) -> f64 {
    trial["mean_us"].as_f64().expect("a mean")
}

#[test]
fn the_best_is_beside_defaults_and_bare_volume_and_the_server_reads_its_settings() {
    let advice = advice(&[ZIPF, "--backing", "hdd", "--cache", "nvme", "--price", "0.5"]);
    assert!(mean(&advice["best"]) < mean(&advice["default"]));
    assert!(mean(&advice["default"]) < mean(&advice["bare"]));
    let toml = advice["toml"].as_str().expect("a cache pays");
    let config = ServerConfig::from_text(toml).expect("the server reads it");
    let best = &advice["best"]["candidate"];
    let tier = config.tiers().next().expect("it has a tier");
    let bytes = best["cache_bytes"].as_u64().expect("a size");
    assert_eq!(tier.cache_bytes(), bytes);
    assert_eq!(tier.mode().to_string(), best["write"].as_str().expect("a mode"));
    let price = bytes as f64 / f64::from(1 << 30) * 0.5;
    assert_eq!(advice["best"]["price"].as_f64(), Some(price));
    // A closed loop of one request at a time: the rate is one over the mean.
    let rate = advice["bare"]["result"]["requests_per_second"].as_f64().expect("time passes");
    assert!((rate * mean(&advice["bare"]) / 1e6 - 1.0).abs() < 0.01);
    assert_eq!(advice["bare"]["result"]["cache_write_bytes"], 0);
    assert_eq!(advice["bare"]["written_tb_per_year"], 0.0);
    assert_eq!(advice["default"]["candidate"]["write"], "through");
    let safe = &advice["without_write_back"];
    assert_eq!(best["write"], "back");
    assert_ne!(safe["candidate"]["write"], "back");
    assert_eq!(safe["candidate"]["cache_bytes"], bytes);
    assert!(mean(safe) <= mean(&advice["default"]));
}

#[test]
fn a_volume_in_a_bucket_has_its_requests_and_their_price() {
    let s3 = [ZIPF, "--backing", "s3,object=256KiB", "--cache", "nvme", "--write", "back"];
    let with_prices = |prices| advice(&[&s3[..], &["--s3-prices", prices]].concat());
    let usual = advice(&s3);
    let price = |advice: &Value, of: &str| {
        let bucket = &advice[of]["bucket"];
        assert_eq!(bucket["dollars_per_month"], Value::Null, "a generator has no times");
        bucket["dollars_per_million_requests"].as_f64().expect("a price")
    };
    assert!(price(&usual, "best") < price(&usual, "bare"), "{usual}");
    let requests = &usual["bare"]["result"]["bucket"];
    let count = |of: &str| requests[of].as_u64().expect("a count") as f64;
    let wanted = (count("puts") * 5.0 + count("gets") * 0.40) / 2400.0; // 80 % of 3000
    assert!((price(&usual, "bare") / wanted - 1.0).abs() < 1e-9, "{requests}");
    assert_eq!(count("put_bytes"), count("puts") * f64::from(256 << 10));
    let dear = with_prices("put=10,get=0.80");
    assert!((price(&dear, "bare") / price(&usual, "bare") - 2.0).abs() < 1e-9);
    let toml = usual["toml"].as_str().expect("a cache pays");
    assert!(toml.contains("s3://BUCKET/VOLUME,object=256KiB"), "{toml}");
    let text = floe_ok(&[&["advise"], &s3[..]].concat());
    for line in ["bucket GET", "bucket PUT", "a million requests", "a month"] {
        assert!(text.lines().any(|it| it.trim_start().starts_with(line)), "{text}");
    }
}

#[test]
fn a_goal_chooses_and_the_verdict_names_what_gets_worse() {
    let zipf = "zipf:keys=4000,theta=0.9,read=0.6,block=4KiB,requests=4000";
    let of = |goal: &str| {
        let arguments = ["--backing", "hdd", "--cache", "nvme", "--write", "through,back"];
        let advice = advice(&[&[zipf, "--goal", goal], &arguments[..]].concat());
        assert_eq!(advice["goal"], goal);
        advice
    };
    let figure = |trial: &Value, name: &str| trial["result"][name].as_f64().expect("a figure");
    // 1,920 reads and 1,280 writes count: p99 is compared, p99.9 is not.
    let latencies = [
        ("mean of reads", "read_us_mean"),
        ("p99 of reads", "read_us_p99"),
        ("mean of writes", "write_us_mean"),
        ("p99 of writes", "write_us_p99"),
    ];
    let is_worse =
        |advice: &Value, name| figure(&advice["best"], name) > 1.05 * figure(&advice["bare"], name);
    let mean = of("mean");
    let named: Vec<&Value> =
        mean["worse"].as_array().expect("a list").iter().map(|harm| &harm["of"]).collect();
    for (of, name) in latencies {
        assert_eq!(named.contains(&&Value::from(of)), is_worse(&mean, name), "{of}: {mean}");
        let verdict = mean["verdict"].as_str().expect("a text");
        assert_eq!(verdict.contains(of), is_worse(&mean, name), "{of}: {verdict}");
    }
    let p99 = of("p99");
    assert!(!is_worse(&p99, "read_us_p99") && !is_worse(&p99, "write_us_p99"), "{p99}");
    let size = |advice: &Value| advice["best"]["candidate"]["cache_bytes"].as_u64();
    let cost = of("cost");
    assert!(size(&cost) <= size(&mean), "{cost}");
}

#[test]
fn a_given_size_and_given_write_modes_are_kept() {
    let arguments = [ZIPF, "--backing", "cloud", "--cache", "nvme=8MiB", "--write", "around"];
    let advice = advice(&arguments);
    for trial in advice["finalists"].as_array().expect("trials") {
        assert_eq!(trial["candidate"]["cache_bytes"], 8 << 20);
        assert_eq!(trial["candidate"]["write"], "around");
    }
}

#[test]
fn no_cache_is_recommended_for_a_trace_without_reuse() {
    // Neighbours are not read either: fetching ahead would pay.
    let scattered = "uniform:keys=3000000,requests=3000,block=4KiB";
    let advice = advice(&[scattered, "--backing", "nvme", "--cache", "nvme", "--warmup", "0"]);
    assert!(advice["verdict"].as_str().expect("a verdict").starts_with("No cache pays"));
    assert_eq!(advice["toml"], Value::Null);
}

#[test]
fn the_text_fits_80_columns_and_the_page_has_the_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("advice.html");
    let report = ["--report", text(&page)];
    let media = [ZIPF, "--backing", "hdd", "--cache", "sata-ssd"];
    let text = floe_ok(&[&["advise"], &media[..], &report].concat());
    let (table, toml) = text.split_once("floe.toml:\n").expect("settings are recommended");
    for line in table.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    ServerConfig::from_text(toml).expect("the server reads it");
    let verdict = table.split("\n\n").next().expect("a verdict").replace('\n', " ");
    let page = std::fs::read_to_string(page).expect("a page");
    let has = |words: &str| assert!(page.contains(words), "{words}");
    has(verdict.split(';').next().expect("a sentence"));
    has("Best, default and bare");
    has("<svg");
    let again = floe_ok(&[&["advise"], &media[..]].concat());
    assert_eq!(text, again, "virtual time");
}

#[test]
fn objects_get_the_least_memory_and_flash_within_a_point_of_the_best() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let page = folder.path().join("page.html");
    let zipf = "zipf:keys=20000,theta=0.9,requests=30000";
    let objects = [zipf, "--objects", "--object-size", "16KiB"];
    let advice = advice(&objects);
    let ratio = |run: &Value| run["hit_ratio"].as_f64().expect("a ratio");
    let runs = advice["simulations"].as_array().expect("a list");
    let most = runs.iter().map(ratio).fold(0.0, f64::max);
    assert!(runs.len() > 4 && ratio(&advice["best"]) >= most - 0.01, "{advice}");
    let report = ["--report", page.to_str().expect("the path is text")];
    let text = floe_ok(&[&["advise"], &objects[..], &report].concat());
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let verdict = advice["verdict"].as_str().expect("a text");
    assert_eq!(text.split("\n\n").next().map(|it| it.replace('\n', " ")), Some(verdict.to_owned()));
    let page = std::fs::read_to_string(page).expect("the page was written");
    assert!(page.contains("<svg") && page.contains("Hits in memory and on flash"));
    assert!(page.contains("largest tried") && page.contains("Hybrid::builder()"), "{page}");
    assert_eq!(page.matches("<tr class=\"best\">").count(), 1, "{page}");
}

#[test]
fn several_traces_get_shares_that_the_server_reads_and_a_replay_that_checks_them() {
    let traces = [
        "a-long-name-of-a-volume=zipf:keys=6000,theta=0.9,read=0.9,block=16KiB,requests=6000",
        "scan=loop:keys=30000,block=16KiB,requests=6000",
        "vm=zipf:keys=500,theta=0.7,read=0.5,block=16KiB,requests=6000",
    ];
    let media = ["--backing", "cloud", "--cache", "nvme=24MiB"];
    let json = advice(&[&traces[..], &media].concat());
    let volumes = json["volumes"].as_array().expect("a list");
    let names: Vec<&str> = volumes.iter().map(|it| it["volume"].as_str().unwrap()).collect();
    assert_eq!(names, ["a-long-name-of-a-volume", "scan", "vm"]);
    let config = ServerConfig::from_text(json["toml"].as_str().expect("a text")).expect("settings");
    let tier = config.tiers().next().expect("it has a tier");
    let guaranteed = |at: usize| config.volume[at].cache_share().of(tier.cache_bytes());
    let sum: u64 = (0..3).map(|at| guaranteed(at).guaranteed_bytes).sum();
    assert!(sum <= tier.cache_bytes(), "{json}");
    assert_eq!(guaranteed(1).guaranteed_bytes, 0, "nothing is read twice: {json}");
    for it in volumes {
        let even = it["even_miss_ratio"].as_f64().expect("a ratio");
        assert!(
            (0.0..=1.0).contains(&even) && it["miss_ratio"].is_null() == it["guaranteed"].is_null()
        );
    }
    let replays = json["arrangements"].as_array().expect("a list");
    let replayed: Vec<&str> =
        replays.iter().map(|it| it["arrangement"].as_str().unwrap()).collect();
    assert_eq!(replayed, ["no shares", "even split", "proposed"]);
    for replay in replays {
        assert_eq!(replay["result"]["volumes"].as_array().expect("a list").len(), 3);
        assert_eq!(replay["result"]["warmup_requests"], 3600);
    }
    let text = floe_ok(&[&["advise"], &traces[..], &media].concat());
    let commands = json["commands"].as_array().expect("a list");
    let expected = [json["toml"].as_str().unwrap().trim_end()]
        .into_iter()
        .chain(commands.iter().map(|it| it.as_str().unwrap()));
    for part in expected {
        assert!(text.contains(part), "{part}: {text}");
    }
    let long = text.lines().filter(|line| line.chars().count() > 80);
    assert_eq!(long.collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn what_several_traces_cannot_have_is_refused_in_a_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_str().expect("UTF-8").to_owned()
    };
    let trace = file("a.csv", "volume,offset,size,op\n0,0,4096,R\n0,4096,4096,R\n");
    let empty = file("empty.csv", "volume,offset,size,op\n");
    let trims = file("trims.csv", "volume,offset,size,op\n0,0,4096,D\n");
    let missing = folder.path().join("missing.csv");
    let missing = missing.to_str().expect("UTF-8");
    let zipf = "zipf:keys=10,block=4KiB,requests=10";
    let media = ["--backing", "cloud", "--cache", "nvme=8MiB"];
    let s3 = ["--backing", "s3", "--cache", "nvme=8MiB"];
    let unsized_cache = ["--backing", "cloud", "--cache", "nvme"];
    let large = ["--backing", "cloud", "--cache", "nvme=4KiB"];
    let twice = format!("b={trace}");
    let [trace, empty, trims, twice] = [&trace, &empty, &trims, &twice].map(String::as_str);
    for (traces, more, said) in [
        (vec![trace, twice], &media[..], "it is given twice"),
        (vec![trace, empty], &media, "empty.csv"),
        (vec![trace, trims], &media, "trims.csv: it has no reads or writes to advise on"),
        (vec![trace, missing], &media, "missing.csv"),
        (vec![zipf, "zipf:keys=11,block=4KiB"], &media, "both named \"zipf\""),
        (vec![trace, zipf], &s3, "--backing s3: shares are proposed above a medium"),
        (vec![trace, zipf], &unsized_cache, "give the size that they share, as in nvme=10GiB"),
        (vec![trace, zipf], &large, "--cache: a cache of this size cannot be made"),
        (vec![trace, zipf, "--write", "back,through"], &media, "give one write mode"),
        (vec![trace, zipf, "--goal", "p99"], &media, "--goal applies to one trace"),
        (vec![trace, zipf, "--report", "x.html"], &media, "applies to one trace"),
        (vec![trace, zipf, "--objects"], &[], "--objects applies to one trace"),
    ] {
        let output = crate::common::floe(&[&["advise"], &traces[..], more].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{traces:?}: {error}");
        assert!(error.contains(said) && error.trim_end().lines().count() == 1, "{error}");
        assert!(output.stdout.is_empty());
    }
    assert!(!std::path::Path::new("x.html").exists());
}
