//! `--evict` as a user gives it: in replays, simulations and servers, on the command line, in tiers
//! and in files.

use crate::common::{Server, Volume, assert_same, floe_ok, http, text};
use floe_server::nbd_client::Client;
use floe_testkit::{pattern, wait_until};
use serde_json::Value;

/// Popular blocks, and now and then a scan.
const SCANS: &str = "scan:keys=4000,every=2000,length=1000,scanned=20000,block=4KiB,requests=20000";

fn replay(more: &[&str]) -> Value {
    let line = [
        "replay",
        SCANS,
        "--backing",
        "memory:128MiB,medium=nvme",
        "--time",
        "virtual",
        "--verify",
        "--json",
    ];
    serde_json::from_str(&floe_ok(&[&line[..], more].concat())).expect("the line is JSON")
}

fn number(outcome: &Value, field: &str) -> f64 {
    outcome[field].as_f64().unwrap_or_else(|| panic!("{field} is a number in {outcome}"))
}

#[test]
fn a_replay_with_sarc_reads_scans_ahead_and_is_verified() {
    let cache =
        ["--cache", "memory:8MiB,medium=pmem", "--block-sizes", "4KiB,64KiB", "--shards", "4"];
    let by = |evict: &str| replay(&[&cache[..], &["--evict", evict]].concat());
    let (lru, sarc) = (by("lru"), by("sarc:threshold=4"));
    assert_eq!((&lru["evict"], &sarc["evict"]), (&"lru".into(), &"sarc:threshold=4".into()));
    assert_eq!(lru["prefetched_blocks"], 0);
    assert!(
        number(&sarc, "prefetched_used_blocks") > 0.9 * number(&sarc, "prefetched_blocks"),
        "{sarc}"
    );
    assert!(
        number(&sarc, "read_us_mean") < 0.7 * number(&lru, "read_us_mean"),
        "{sarc} against {lru}"
    );
    assert!(
        number(&sarc, "backing_read_bytes") < 1.01 * number(&lru, "backing_read_bytes"),
        "{sarc} against {lru}"
    );
    assert_eq!(sarc["verified_bytes"], sarc["read_bytes"]);
}

#[test]
fn each_tier_has_a_policy_of_its_own() {
    let outcome = replay(&[
        "--tier",
        "memory:2MiB,medium=pmem,evict=s3-fifo:small=0.2,block-sizes=4KiB",
        "--tier",
        "memory:8MiB,medium=pmem,evict=arc,block-sizes=4KiB",
    ]);
    let tiers = outcome["tiers"].as_array().expect("there are tiers");
    assert_eq!(
        (&tiers[0]["evict"], &tiers[1]["evict"]),
        (&"s3-fifo:small=0.2".into(), &"arc".into())
    );
}

#[test]
fn simulations_of_blocks_compare_policies() {
    let line = [
        "simulate",
        SCANS,
        "--blocks",
        "4KiB",
        "--size",
        "8MiB",
        "--policy",
        "lru,fifo,s3-fifo,lfru",
    ];
    let outcomes = floe_ok(&[&line[..], &["--json"]].concat());
    let outcomes: Vec<Value> =
        outcomes.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let hits: Vec<f64> = outcomes.iter().map(|outcome| number(outcome, "read_hits")).collect();
    assert_eq!(
        outcomes.iter().map(|it| it["policy"].as_str().unwrap()).collect::<Vec<_>>(),
        ["lru", "fifo", "s3-fifo", "lfru"]
    );
    assert!(hits[1] < hits[0] && hits[0] < hits[2], "scans hurt LRU, and FIFO more: {hits:?}");
    let table = floe_ok(&line);
    assert!(table.contains("policy") && table.contains("lfru"), "{table}");
}

#[test]
fn a_server_evicts_by_its_policy_goes_on_after_a_restart_and_says_so() {
    let content = pattern(1, 4 << 20);
    let volume = Volume::new(&content, "back");
    let serve = |evict: &str| {
        let mut line = volume.command_line();
        line.extend(["--evict".to_owned(), evict.to_owned()]);
        Server::run(&line.iter().map(String::as_str).collect::<Vec<_>>(), volume.path("floe.log"))
    };
    let server = serve("sarc");
    let mut client = Client::connect(&server.unix.parse().unwrap()).unwrap();
    let mut read = vec![0; 16 << 10];
    for at in (0..1 << 20).step_by(read.len()) {
        client.read(at as u64, &mut read).unwrap();
        assert_same("what was read in turn", &read, &content[at..][..16 << 10]);
    }
    let status = server.status();
    assert_eq!(status.server.evict, "sarc");
    assert!(
        status.cache.counters.prefetched_used_blocks > 0
            && status.cache.counters.prefetched_bytes
                >= status.cache.counters.prefetched_used_blocks * 4096,
        "{status:?}"
    );
    let said = floe_ok(&["status", "--admin", &server.admin]);
    assert!(said.contains("evict sarc") && said.contains("prefetched"), "{said}");
    drop(client);
    server.end();
    // What the cache has is not of the policy that chose it.
    let server = serve("s3-fifo");
    let mut client = Client::connect(&server.unix.parse().unwrap()).unwrap();
    client.read(0, &mut read).unwrap();
    assert_same("what was cached before", &read, &content[..16 << 10]);
    let status = server.status();
    assert_eq!(
        (
            status.server.evict.as_str(),
            status.cache.requests.read_hits,
            status.cache.counters.prefetched_blocks
        ),
        ("s3-fifo", 1, 0),
        "{status:?}"
    );
    drop(client);
    server.end();
}

#[test]
fn a_configuration_keeps_its_policies() {
    let line = ["serve", "--backing", "memory:4MiB", "--cache", "memory:1MiB", "--print-config"];
    assert!(floe_ok(&line).contains("evict = \"lru\"\n"));
    let more = ["--evict", "sarc:threshold=4", "--tier", "memory:2MiB,evict=2q:in=0.3"];
    let printed = floe_ok(&[&line[..], &more].concat());
    assert!(
        printed.contains("evict = \"sarc:threshold=4\"\n")
            && printed.contains("evict = \"2q:in=0.3\"\n"),
        "{printed}"
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("floe.toml");
    std::fs::write(&file, &printed).unwrap();
    assert_eq!(floe_ok(&["serve", "--config", text(&file), "--print-config"]), printed);
}

/// 64 blocks of 64 KiB are cached of a loop over 96, of which a large small queue keeps none.
#[test]
fn a_server_whose_policy_chooses_settings_says_which_it_uses_and_why() {
    const READ_BYTES: usize = 64 << 10;
    let content = pattern(1, 96 * READ_BYTES);
    let volume = Volume::new(&content, "back").with(&["--evict", "auto", "--shards", "1"]);
    let server = volume.serve();
    let mut client = Client::connect(&server.unix.parse().unwrap()).unwrap();
    let mut read = vec![0; READ_BYTES];
    for at in (0..content.len()).step_by(READ_BYTES).cycle().take(20 * 96) {
        client.read(at as u64, &mut read).unwrap();
    }
    let status = server.status();
    let adaptation = status.tiers[0].adaptation.as_ref().expect("auto adapts");
    let used = adaptation.in_use().expect("a setting is in use");
    assert!(adaptation.switches > 0 && used.name != "qd-clock", "{adaptation:?}");
    assert_eq!(used.orders, 1, "there is one shard");
    let said = floe_ok(&["status", "--admin", &server.admin]);
    assert!(said.contains(&format!("tier 0, evict auto: {adaptation}")), "{said}");
    let (_, metrics) = http(&server.admin, "GET /metrics HTTP/1.1\r\n\r\n");
    let line = format!("floe_cache_evict_setting_shards{{setting=\"{}\"}} 1\n", used.name);
    assert!(metrics.contains(&line), "{metrics}");
    wait_until("a line in the log", || {
        server.log().lines().any(|line| {
            line.contains("the eviction policy changed its setting") && line.contains(&*used.name)
        })
    });
}
