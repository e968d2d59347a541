//! `--admit` as a user gives it: in replays, in servers, on the command line and in files.

use crate::common::{Volume, assert_same, floe_ok, text};
use floe_server::nbd_client::Client;
use floe_testkit::{pattern, wait_until};
use serde_json::Value;

const ZIPF: &str = "zipf:keys=5000,theta=0.9,read=0.7,block=4KiB,requests=20000";

fn replay(write: &str, admit: &[&str]) -> Value {
    let line = [
        "replay",
        ZIPF,
        "--backing",
        "memory:32MiB,medium=nvme",
        "--cache",
        "memory:1MiB,medium=pmem",
    ];
    let rest = [
        "--block-sizes",
        "4KiB,16KiB",
        "--write",
        write,
        "--time",
        "virtual",
        "--verify",
        "--json",
    ];
    serde_json::from_str(&floe_ok(&[&line[..], &rest, admit].concat())).expect("the line is JSON")
}

/// What is not measured.
fn figures(outcome: &Value) -> Value {
    let mut figures = outcome.clone();
    for measured in ["processing_us", "wall_seconds"] {
        figures[measured] = Value::Null;
    }
    figures
}

#[test]
fn a_replay_into_whose_cache_nothing_comes_reads_and_writes_the_volume_only() {
    for write in ["through", "around", "back", "only"] {
        let outcome = replay(write, &["--admit", "never"]);
        for none in
            ["cache_read_bytes", "cache_write_bytes", "read_hits", "write_hits", "blocks_allocated"]
        {
            assert_eq!(outcome[none], 0, "{none}, write {write}");
        }
        assert_eq!(outcome["verified_bytes"], outcome["read_bytes"]);
        let admission = &outcome["admission"];
        assert_eq!(
            (&admission["admission"], &admission["admitted_blocks"]),
            (&"never".into(), &0.into())
        );
        // A write that goes around the cache, and a read whose misses never come in, offers
        // nothing.
        let [reads, writes] = ["reads", "writes"].map(|count| outcome[count].as_u64().unwrap());
        let offered = match write {
            "around" => reads,
            "only" => writes,
            _ => reads + writes,
        };
        assert_eq!(admission["offered_blocks"], offered, "write {write}");
        assert_eq!(admission["bypassed_blocks"], offered);
    }
}

#[test]
fn always_is_what_a_replay_does_anyway() {
    let (said, unsaid) = (replay("back", &["--admit", "always"]), replay("back", &[]));
    assert_eq!(figures(&said), figures(&unsaid));
    assert!(said["admission"].is_null());
}

#[test]
fn admissions_are_compared_by_what_they_write() {
    let written = |outcome: &Value| outcome["cache_write_bytes"].as_u64().unwrap();
    let (eager, obp) =
        (replay("around", &[]), replay("around", &["--admit", "small-bypass:memory=65536 + obp"]));
    assert!(written(&obp) * 2 < written(&eager), "{obp}");
    assert!(obp["read_hit_ratio"].as_f64() > Some(0.05), "{obp}");
    assert_eq!(obp["admission"]["admission"], "small-bypass:memory=65536 + obp");
    // Measured times set its threshold.
    let fussy = replay("around", &["--admit", "fussy:tune=1:warm-up=1000"]);
    assert!(fussy["admission"]["ordered_blocks"].as_u64() > Some(0), "{fussy}");
    assert_eq!(
        figures(&fussy),
        figures(&replay("around", &["--admit", "fussy:tune=1:warm-up=1000"]))
    );
}

#[test]
fn a_simulation_of_blocks_asks_too() {
    let line = [
        "simulate", ZIPF, "--blocks", "4KiB", "--size", "1MiB", "--admit", "always", "--admit",
        "never", "--json",
    ];
    let outcomes: Vec<Value> =
        floe_ok(&line).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(
        outcomes[0]["admission"].is_null() && outcomes[0]["cache_write_bytes"].as_u64() > Some(0)
    );
    let asked = &outcomes[1]["admission"];
    assert_eq!(
        (&asked["admission"], &outcomes[1]["cache_write_bytes"]),
        (&"never".into(), &0.into())
    );
    assert_eq!(asked["offered_blocks"], 20_000);
    let table = floe_ok(&line[..line.len() - 1]);
    assert!(table.contains("never") && table.contains("admitted"), "{table}");
}

#[test]
fn pages_tell_what_became_of_offers_and_who_declined() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let several = "second-access + probability:p=0.5";
    let both = ["--admit", several, "--report", text(&page)];
    let blocks = [
        "simulate",
        ZIPF,
        "--blocks",
        "4KiB",
        "--size",
        "1MiB,2MiB",
        "--admit",
        "always",
        "--json",
    ];
    let tier = "memory:2MiB,medium=pmem,admit=until-full";
    let runs = [
        [&blocks[..], &both].concat(),
        [
            &[
                "replay",
                ZIPF,
                "--backing",
                "memory:32MiB,medium=nvme",
                "--cache",
                "memory:1MiB,medium=dram",
            ],
            &both[..],
        ]
        .concat(),
    ];
    for (run, tiers) in runs.iter().zip([&[][..], &["--tier", tier, "--time", "virtual", "--json"]])
    {
        let said = floe_ok(&[&run[..], tiers].concat());
        let last: Value = serde_json::from_str(said.lines().last().expect("a line")).expect("JSON");
        let asked = &last["admission"];
        let declined = asked["declined"].as_array().expect("several were asked");
        let number = |of: &Value| of.as_u64().expect("a number");
        assert_eq!(
            declined.iter().map(|it| it["by"].as_str().unwrap()).collect::<Vec<_>>().join(" + "),
            several
        );
        // Each declined some that the other would have, and what stayed out was declined by one or
        // both.
        let [one, other] = [0, 1].map(|at| number(&declined[at]["blocks"]));
        let bypassed = number(&asked["bypassed_blocks"]);
        assert!(one < bypassed && other < bypassed && bypassed < one + other, "{asked}");
        let page = std::fs::read_to_string(&page).expect("a page");
        for words in ["admitted", "bypassed", "declined by", several] {
            assert!(page.contains(words), "{words}");
        }
        if let Some(lower) = last["tiers"].get(1) {
            assert_eq!(lower["admission"]["admission"], "until-full");
            assert!(page.contains("Admission of tier 1: until-full"));
        }
    }
}

#[test]
fn a_server_into_whose_cache_nothing_comes_serves_from_the_volume_and_says_so() {
    let content = pattern(1, 4 << 20);
    for settings in [&["--write", "through"][..], &["--write", "back", "--volatile"]] {
        let mode = settings[1];
        let volume = Volume::new(&content, mode).with(&["--admit", "never"]).with(&settings[2..]);
        let server = volume.serve();
        let mut client = Client::connect(&server.unix.parse().unwrap()).unwrap();
        let piece = pattern(2, 100_000);
        client.write(1234, &piece, false).unwrap();
        client.flush().unwrap();
        let mut read = vec![0; 200_000];
        client.read(0, &mut read).unwrap();
        let mut expected = content[..200_000].to_vec();
        expected[1234..][..piece.len()].copy_from_slice(&piece);
        assert_same("what was written", &read, &expected);
        let status = server.status();
        let admission = status.admission.as_ref().expect("there is one");
        assert_eq!((admission.admission.as_str(), admission.admitted_blocks), ("never", 0));
        assert!(
            admission.bypassed_blocks >= 25 + 49
                && admission.offered_blocks == admission.bypassed_blocks
        );
        assert_eq!(
            (status.cache.valid_bytes, status.cache.requests.read_hits),
            (0, 0),
            "{status:?}"
        );
        let said = floe_ok(&["status", "--admin", &server.admin]);
        assert!(
            said.contains(&format!("admission never: 0 of {} ", admission.offered_blocks)),
            "{said}"
        );
        server.end();
        assert_same("the volume", &volume.backing()[..200_000], &expected);
    }
}

#[test]
fn memory_asks_before_a_page_comes_in_and_says_so() {
    let content = pattern(1, 4 << 20);
    for threads in ["1", "2"] {
        let memory =
            ["--memory", "2MiB", "--memory-write", "back", "--memory-admit", "second-access"];
        let volume = Volume::new(&content, "back").on(threads).with(&memory);
        let server = volume.serve();
        let mut client = Client::connect(&server.unix.parse().unwrap()).unwrap();
        let mut wanted = content.clone();
        let admission = |server: &crate::common::Server| {
            let memory = server.status().memory.expect("there is memory");
            (memory.admission.expect("somebody is asked"), memory.read_hits)
        };
        let mut pages = vec![0; 16 << 12];
        for round in 0..3 {
            client.read(0, &mut pages).unwrap();
            assert_same("what was read", &pages, &wanted[..16 << 12]);
            // A read that finds the pages on their way to the cache joins it and offers nothing.
            wait_until("the pages are in the cache", || {
                server.status().cache.valid_bytes >= pages.len() as u64
            });
            let (asked, hits) = admission(&server);
            // The first time they stay out, the second time they come in, the third they are there.
            let (offered, admitted, there) = [(16, 0, 0), (32, 16, 0), (32, 16, 1)][round];
            assert_eq!(
                (asked.offered_pages, asked.admitted_pages, hits),
                (offered, admitted, there)
            );
            assert_eq!(asked.bypassed_pages, offered - admitted);
            assert_eq!(asked.admission, "second-access");
        }
        // What is written is held whether or not it comes in, and found.
        let piece = pattern(2, 300_000);
        client.write(10_000, &piece, false).unwrap();
        wanted[10_000..][..piece.len()].copy_from_slice(&piece);
        let mut read = vec![0; 400_000];
        for _ in 0..3 {
            client.read(0, &mut read).unwrap();
            assert_same("what was written", &read, &wanted[..400_000]);
        }
        let said = floe_ok(&["status", "--admin", &server.admin]);
        let (asked, _) = admission(&server);
        let line = format!(
            "admission second-access: {} of {} pages",
            asked.admitted_pages, asked.offered_pages
        );
        assert!(said.contains(&line), "{said}");
        floe_ok(&["flush", "--admin", &server.admin]);
        assert_same("the volume", &volume.backing(), &wanted);
        server.end();
    }
}

#[test]
fn a_configuration_keeps_its_admission() {
    let line = ["serve", "--backing", "memory:4MiB", "--cache", "memory:1MiB", "--print-config"];
    assert!(floe_ok(&line).contains("admit = \"always\"\n"));
    let printed = floe_ok(&[&line[..], &["--admit", "second-access+ obp"]].concat());
    let wanted = "admit = \"second-access + obp\"\n";
    assert!(printed.contains(wanted), "{printed}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("floe.toml");
    std::fs::write(&file, &printed).unwrap();
    assert_eq!(floe_ok(&["serve", "--config", text(&file), "--print-config"]), printed);
}
