//! Tests of the page of metrics, which parse the page as Prometheus does.

mod packaged;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use floe_block::{
    AdmissionConfig, AdmissionStats, CacheShare, Config, Counters, FreezeStats, MemoryUse,
    MemoryWrite, Requests, Stats, VolumeId, WriteMode,
};

use floe_policy::{AnyPolicy, Eviction};

use super::*;
use crate::client_name::ClientName;
use crate::named_clients::ClientLimit;
use crate::protocol::ProtocolName;
use crate::status::{
    ByProtocol, CacheFacts, Facts, Lately, MemoryFacts, ServiceTimes, SheddingDecisionStatus,
    SheddingStatus, Snapshot,
};
use crate::total_limit::TotalLimit;
use crate::volume_limit::RequestLimit;
use crate::volume_share::VolumeShare;

/// A page parsed as strictly as Prometheus does: families with help and type first, each name once,
/// no sample twice.
struct Read {
    types: HashMap<String, String>,
    /// Values of the samples by name and labels, as written.
    samples: BTreeMap<(String, String), f64>,
}

impl Read {
    fn page(text: &str) -> Self {
        let (mut types, mut samples, mut helped) =
            (HashMap::new(), BTreeMap::new(), HashSet::new());
        let mut family = String::new();
        assert!(text.ends_with('\n'));
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').unwrap();
                assert!(helped.insert(name.to_owned()), "{name} has help twice");
                assert!(!help.is_empty());
                continue;
            }
            if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                assert!(helped.contains(name) && !types.contains_key(name), "{line}");
                assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
                family = name.to_owned();
                types.insert(name.to_owned(), kind.to_owned());
                continue;
            }
            let (name_and_labels, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = name_and_labels.split_once('{').unwrap_or((name_and_labels, "}"));
            check_labels(labels);
            let parts: &[&str] = match types[&family].as_str() {
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            assert!(
                parts.iter().any(|part| name == format!("{family}{part}")),
                "{line} in {family}"
            );
            let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
            let key = (name.to_owned(), labels.trim_end_matches('}').to_owned());
            assert!(samples.insert(key, value).is_none(), "{line} is there twice");
        }
        Self { types, samples }
    }

    #[track_caller]
    fn value(&self, name: &str, labels: &str) -> f64 {
        self.samples[&(name.to_owned(), labels.to_owned())]
    }
}

/// Checks the syntax of labels, `name="value",…}`, with escapes in the values.
fn check_labels(mut rest: &str) {
    while rest != "}" {
        let (name, value) = rest.split_once("=\"").unwrap_or_else(|| panic!("{rest}"));
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
        let mut characters = value.char_indices();
        let end = loop {
            match characters.next().unwrap_or_else(|| panic!("{rest}")) {
                (_, '\\') => assert!(matches!(characters.next(), Some((_, '\\' | '"' | 'n')))),
                (end, '"') => break end,
                _ => {}
            }
        };
        rest = value[end + 1..].trim_start_matches(',');
    }
}

fn report(volumes: &[&str], threads: Vec<Snapshot>) -> Report {
    let volume = |(number, name): (usize, &&str)| VolumeFacts {
        id: VolumeId(number as u16),
        ids: vec![VolumeId(number as u16)],
        name: (*name).to_owned(),
        bytes: 1 << 20,
        read_only: number == 1,
        limit: RequestLimit {
            requests_per_second: Some(7),
            clients: [(ClientName::Others, ClientLimit::default())].into_iter().collect(),
            ..RequestLimit::default()
        },
        refused: 0,
        counted: ByProtocol::default(),
        share: VolumeShare::default(),
        shares: vec![CacheShare { guaranteed_bytes: 4096, most_bytes: None }],
    };
    let facts = Facts {
        volumes: volumes.iter().enumerate().map(volume).collect(),
        total_limit: TotalLimit::NONE,
        tiers: vec![CacheFacts {
            key: crate::status::TierKey(0),
            name: "memory:1MiB".into(),
            config: Arc::new(Config {
                mode: WriteMode::Back,
                gate: AdmissionConfig::new("obp:target=0.1".parse().expect("an admission")),
                evict: "sarc:threshold=4".parse().expect("a policy"),
                ..Config::default()
            }),
            session: Some(3),
            opened: None,
            journal_lost: false,
            bypass: "",
            size_bytes: 1 << 30,
            mirror: None,
        }],
        started: SystemTime::now(),
        uptime: Duration::from_secs(1),
        memory: Some(MemoryFacts {
            write: MemoryWrite::Back,
            usage: MemoryUse {
                size_bytes: 1 << 20,
                page_bytes: 4096,
                policy: "lru",
                shards: 1,
                admission: Some(AdmissionStats::default()),
                ..MemoryUse::default()
            },
            freezing: Some(FreezeStats::default()),
        }),
        shedding: Some(SheddingStatus {
            most: 0.5,
            share: 0.1,
            share_now: 0.15,
            shed_bytes: 0,
            decisions: Vec::new(),
        }),
        service: ServiceTimes::of(None),
        log_lines_dropped: 0,
        since_switch: vec![Some(Duration::from_secs(2))],
        pair: Some(PairStatus::default()),
    };
    Report::new(facts, threads)
}

#[test]
fn what_was_counted_is_found_under_its_labels() {
    let mut thread = Snapshot {
        stats: Stats {
            requests: Requests { reads: 3, read_hits: 2, ..Requests::default() },
            blocks: vec![(4096, 7)],
            dirty_bytes: 8192,
            volume_bytes: vec![0, 12288],
            held_bytes: 4096,
            memory_hits: 2,
            memory_hit_bytes: 1024,
            degraded_shards: 1,
            counters: Counters {
                shed_bytes: 100,
                offered_blocks: 10,
                admitted_blocks: 3,
                ..Counters::default()
            },
            ..Stats::default()
        },
        ..Snapshot::default()
    };
    let us = Duration::from_micros;
    thread.counters.answered(VolumeId(0), Operation::Read, 4096, us(20), true);
    thread.counters.answered(VolumeId(1), Operation::Read, 4096, us(3000), false);
    thread.connected(ProtocolName::Nbd, vec![VolumeId(1)]);
    let mut report = report(&["floe", "odd \"name\" \\ \n"], vec![thread.clone(), thread]);
    let asked =
        report.facts.memory.as_mut().and_then(|memory| memory.usage.admission.as_mut()).unwrap();
    asked.name = "second-access".to_owned();
    (asked.offered, asked.admitted, asked.bypassed) = (12, 5, 7);
    report.facts.log_lines_dropped = 9;
    let read = Read::page(&render(&report));
    let odd = r#"volume="odd \"name\" \\ \n""#;
    assert_eq!(read.value("floe_requests_total", r#"volume="floe",operation="read""#), 2.0);
    assert_eq!(read.value("floe_request_errors_total", &format!(r#"{odd},operation="read""#)), 2.0);
    assert_eq!(read.value("floe_request_bytes_total", r#"volume="floe",operation="read""#), 8192.0);
    assert_eq!(read.value("floe_volume_connections", odd), 2.0);
    assert_eq!(read.value("floe_volume_read_only", odd), 1.0);
    let odd_tier = format!(r#"{odd},tier="0""#);
    assert_eq!(read.value("floe_volume_cache_bytes", &odd_tier), 24576.0);
    assert_eq!(read.value("floe_volume_cache_guaranteed_bytes", &odd_tier), 4096.0);
    assert_eq!(read.value("floe_volume_cache_most_bytes", &odd_tier), f64::from(1 << 30));
    assert_eq!(read.value("floe_cache_requests_total", r#"operation="read",result="miss""#), 2.0);
    assert_eq!(read.value("floe_cache_blocks", r#"block_bytes="4096""#), 14.0);
    assert_eq!(read.value("floe_cache_dirty_bytes", ""), 16384.0);
    assert_eq!(read.value("floe_memory_dirty_bytes", ""), 8192.0);
    assert_eq!(read.value("floe_memory_read_hits_total", ""), 4.0);
    assert_eq!(read.value("floe_memory_read_bytes_total", ""), 2048.0);
    assert_eq!(read.value("floe_memory_page_bytes", ""), 4096.0);
    assert_eq!(read.value("floe_memory_freezing_phase_info", r#"phase="warming-up""#), 1.0);
    assert_eq!(read.value("floe_memory_write_mode_info", r#"mode="back""#), 1.0);
    assert_eq!(read.value("floe_degraded", ""), 1.0);
    assert_eq!(read.value("floe_log_lines_dropped_total", ""), 9.0);
    assert_eq!(read.value("floe_cache_admission_info", r#"admission="obp:target=0.1""#), 1.0);
    assert_eq!(read.value("floe_cache_offered_blocks_total", r#"result="admitted""#), 6.0);
    assert_eq!(read.value("floe_cache_offered_blocks_total", r#"result="bypassed""#), 14.0);
    assert_eq!(read.value("floe_memory_admission_info", r#"admission="second-access""#), 1.0);
    assert_eq!(read.value("floe_memory_offered_pages_total", r#"result="admitted""#), 5.0);
    assert_eq!(read.value("floe_memory_offered_pages_total", r#"result="bypassed""#), 7.0);
    assert_eq!(read.value("floe_cache_shed_share", ""), 0.1);
    assert_eq!(read.value("floe_cache_shed_share_now", ""), 0.15);
    assert_eq!(read.value("floe_cache_shed_bytes_total", ""), 200.0);
    assert_eq!(read.value("floe_write_mode_info", r#"mode="back""#), 1.0);
    assert_eq!(read.value("floe_thread_requests_total", r#"thread="1""#), 2.0);
}

#[test]
fn advice_is_there_when_something_was_read() {
    let mut thread = Snapshot::default();
    let of = |thread: &Snapshot| {
        let mut report = report(&["floe"], vec![thread.clone()]);
        report.advise(&mut Lately::default(), Duration::from_millis(1));
        Read::page(&render(&report))
    };
    assert!(!of(&thread).types.contains_key("floe_p_star"));
    for _ in 0..100 {
        thread.counters.answered(
            VolumeId(0),
            Operation::Read,
            4096,
            Duration::from_millis(1),
            true,
        );
    }
    thread.stats.memory_hits = 90;
    let read = of(&thread);
    assert_eq!(read.value("floe_past_p_star", ""), 0.0);
    assert_eq!(read.value("floe_bottleneck_info", r#"tier="memory",station="delink""#), 1.0);
    assert!((0.0..0.01).contains(&read.value("floe_bottleneck_utilisation", "")));
    assert_eq!(read.value("floe_p_star", ""), 1.0);
}

#[test]
fn a_histogram_counts_up_to_each_bound() {
    let mut thread = Snapshot::default();
    for us in [5, 20, 20, 30_000, 20_000_000] {
        thread.counters.answered(VolumeId(0), Operation::Write, 1, Duration::from_micros(us), true);
    }
    let read = Read::page(&render(&report(&["floe"], vec![thread])));
    let name = "floe_request_duration_seconds";
    assert_eq!(read.types[name], "histogram");
    let up_to = |bound: &str| {
        read.value(&format!("{name}_bucket"), &format!(r#"operation="write",le="{bound}""#))
    };
    let counts = ["0.00001", "0.000025", "0.025", "0.05", "10", "+Inf"].map(up_to);
    assert_eq!(counts, [1.0, 3.0, 3.0, 4.0, 4.0, 5.0]);
    assert_eq!(read.value(&format!("{name}_count"), r#"operation="write""#), 5.0);
    assert_eq!(read.value(&format!("{name}_sum"), r#"operation="write""#), 20.030045);
}

#[test]
fn a_server_that_has_done_nothing_has_all_its_metrics_at_zero() {
    let read = Read::page(&render(&report(&["floe"], vec![Snapshot::default()])));
    for ((name, _), value) in &read.samples {
        if name.ends_with("_total") && name != "process_cpu_seconds_total" {
            assert_eq!(*value, 0.0, "{name}");
        }
    }
}

#[test]
fn the_process_tells_about_itself() {
    let read = Read::page(&render(&report(&[], vec![])));
    assert!(read.value("process_resident_memory_bytes", "") > f64::from(1 << 20));
    assert!(read.value("process_open_fds", "") >= 3.0);
    assert!(read.value("process_max_fds", "") >= read.value("process_open_fds", ""));
    assert!(read.value("process_start_time_seconds", "") > 1.7e9);
    assert!(read.value("process_cpu_seconds_total", "") >= 0.0);
}

/// Returns the report of a server with all features and some requests: no metric is missing.
fn full_report() -> Report {
    let mut thread = Snapshot::default();
    let stats = &mut thread.stats;
    stats.blocks = vec![(4096, 1)];
    stats.lost_runs = vec![(VolumeId(0), 0..1)];
    stats.memory_hits = 1;
    let auto: AnyPolicy = "auto".parse().expect("a policy");
    stats.adaptation = auto.adaptation();
    for operation in Operation::ALL {
        let latency = Duration::from_millis(1);
        thread.counters.answered(VolumeId(0), operation, 4096, latency, true);
    }
    let mut report = report(&["floe"], vec![thread]);
    let decision =
        SheddingDecisionStatus { seconds: 1.0, share: 0.1, reason: "it paid".to_owned() };
    report.facts.shedding.as_mut().expect("there is one").decisions = vec![decision];
    report.advise(&mut Lately::default(), Duration::from_millis(1));
    report
}

/// Collects the paths of all fields in a JSON value, such as `.volumes[].name`.
fn paths(value: &serde_json::Value, around: &str, found: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                paths(value, &format!("{around}.{name}"), found);
            }
        }
        serde_json::Value::Array(values) => {
            values.iter().for_each(|value| paths(value, &format!("{around}[]"), found));
        }
        _ => drop(found.insert(around.to_owned())),
    }
}

/// Checks that no published name disappears, because programs depend on these names.
#[test]
fn published_names_stay() {
    let report = full_report();
    let mut found = BTreeSet::new();
    let status = serde_json::to_value(report.status()).expect("a status is JSON");
    paths(&status, "json ", &mut found);
    for (name, labels) in Read::page(&render(&report)).samples.keys() {
        let names: Vec<_> = labels.split("\",").filter_map(|it| it.split("=\"").next()).collect();
        found.insert(format!("metric {name}{{{}}}", names.join(",")));
    }
    let pinned: Vec<_> = include_str!("published.txt").lines().collect();
    let missing: Vec<_> = pinned.iter().filter(|name| !found.contains(**name)).collect();
    assert!(!pinned.is_empty() && missing.is_empty(), "no longer published: {missing:#?}");
}

/// Returns the report of a server that lacks a setting, and so the metrics that need the setting.
fn without(setting: &str) -> Report {
    let mut report = full_report();
    let facts = &mut report.facts;
    match setting {
        "admit" => facts.tiers[0].config = Arc::default(),
        "shed" => facts.shedding = None,
        "memory" => facts.memory = None,
        "standby" => facts.pair = None,
        "evict = auto" => report.sum.stats.adaptation = None,
        "memory-admit" => facts.memory.iter_mut().for_each(|it| it.usage.admission = None),
        "memory-freeze" => facts.memory.iter_mut().for_each(|it| it.freezing = None),
        _ => report.advice = None,
    }
    report
}

/// Returns the table of all metrics for the documentation, in the order of the page.
fn table() -> String {
    let text = render(&full_report());
    let all = Read::page(&text);
    let settings = [
        "memory-admit",
        "memory-freeze",
        "memory",
        "admit",
        "shed",
        "standby",
        "evict = auto",
        "reads",
    ];
    let lacking = settings.map(|setting| (setting, Read::page(&render(&without(setting)))));
    let mut table = "| metric | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for line in text.lines().filter_map(|line| line.strip_prefix("# HELP ")) {
        let (name, help) = line.split_once(' ').expect("help follows the name");
        let mut labels: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let count = format!("{name}_count"); // of a histogram
        for (_, given) in all.samples.keys().filter(|(it, _)| it == name || *it == count) {
            for pair in given.split("\",") {
                if let Some((label, value)) = pair.split_once("=\"") {
                    labels.entry(label).or_default().insert(value.trim_end_matches('"'));
                }
            }
        }
        let label = |(label, values): (&&str, &BTreeSet<&str>)| match *label {
            "device" | "direction" | "result" => {
                let values: Vec<_> = values.iter().map(|value| format!("`{value}`")).collect();
                format!("`{label}`: {}", values.join(" or "))
            }
            _ => format!("`{label}`"),
        };
        let labels: Vec<_> = labels.iter().map(label).collect();
        let without = lacking.iter().find(|(_, page)| !page.types.contains_key(name));
        let with = match without {
            Some(("reads", _)) => " (while there are reads)".to_owned(),
            Some((setting, _)) => format!(" (with `{setting}`)"),
            None => String::new(),
        };
        let (kind, labels) = (&all.types[name], labels.join("; "));
        table += &format!("| `{name}`{with} | {kind} | {labels} | {help} |\n");
    }
    table
}

/// Checks that the table in the documentation matches the page. If `UPDATE_DOCS` is set, writes the
/// table instead.
#[test]
fn the_documented_metrics_are_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/service/metrics.md");
    let (begin, end) = ("<!-- metrics: generated -->\n\n", "\n<!-- metrics: end -->");
    let text = std::fs::read_to_string(path).expect("the guide is there");
    let (before, rest) = text.split_once(begin).expect("the guide has a table of metrics");
    let (_, after) = rest.split_once(end).expect("the table has an end");
    let current = [before, begin, &table(), end, after].concat();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &current).expect("the guide can be written");
    } else {
        assert_eq!(text, current, "docs/service/metrics.md is stale: set UPDATE_DOCS");
    }
}
