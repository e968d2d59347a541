//! Shares that are proposed for volumes keep the promises of the objective, also when replayed.

use floe_block::WriteMode;
use floe_lab::advise::{
    AdviseError, ShareAdvice, ShareQuestion, SharingVolume, Workload, advise_shares,
};
use floe_server::config::ServerConfig;
use floe_trace::{Op, Request};

const PIECE: u64 = 16 << 10;

fn question(cache_bytes: u64) -> ShareQuestion {
    ShareQuestion {
        backing: "cloud".into(),
        cache: "nvme".into(),
        cache_bytes,
        write: WriteMode::Through,
        in_flight: 1,
        warmup: 0.2,
    }
}

fn volume(name: &str, requests: &[Request]) -> SharingVolume {
    let workload = Workload::read(requests.iter().copied().map(Ok)).expect("the trace is sound");
    SharingVolume { name: name.to_owned(), trace: format!("{name}.csv"), workload }
}

/// Reads of pieces that lie so far apart that nothing is gained by reading more.
fn reads(count: u64, piece: impl Fn(u64) -> u64) -> Vec<Request> {
    let read = |at| Request {
        time_ns: 0,
        key: piece(at) * 16 * PIECE,
        bytes: PIECE,
        volume: 0,
        op: Op::Read,
    };
    (0..count).map(read).collect()
}

/// Reads of 1024 pieces, half of them of an eighth, from a generator with a seed.
fn hot(count: u64) -> Vec<Request> {
    let mut state = 2u64;
    let pieces: Vec<u64> = (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005);
            state = state.wrapping_add(1_442_695_040_888_963_407);
            let unit = (state >> 11) as f64 / (1u64 << 53) as f64;
            (unit.powi(3) * 1024.0) as u64
        })
        .collect();
    reads(count, |at| pieces[at as usize])
}

/// A volume that reads 16 MiB again and again, and one that reads nothing twice.
fn hot_and_scan(count: u64) -> [SharingVolume; 2] {
    [volume("hot", &hot(count)), volume("scan", &reads(7 * count, |at| at))]
}

fn advice(question: &ShareQuestion, volumes: &[SharingVolume]) -> ShareAdvice {
    advise_shares(question, volumes, &|_, _| true).expect("advice")
}

fn percent(setting: Option<&String>) -> f64 {
    setting.map_or(0.0, |text| text.trim_end_matches('%').parse().expect("a percentage"))
}

#[test]
fn a_volume_that_reuses_gets_its_part_and_a_scan_gets_none() {
    let advice = advice(&question(48 << 20), &hot_and_scan(6000));
    let [hot, scan] = &advice.volumes[..] else { panic!("{:?}", advice.volumes) };
    assert!((15.0..50.0).contains(&percent(hot.guaranteed.as_ref())), "{hot:?}");
    assert!(scan.guaranteed.is_none(), "{scan:?}");
    assert!(hot.even_miss_ratio < 0.2 && scan.even_miss_ratio > 0.99, "{:?}", advice.volumes);

    let names: Vec<&str> = advice.arrangements.iter().map(|it| it.arrangement).collect();
    assert_eq!(names, ["no shares", "even split", "proposed"]);
    let hits = |at: usize| advice.arrangements[at].result.volumes[0].read_hit_ratio;
    let [without, even, proposed] = [0, 1, 2].map(hits);
    assert!(proposed > without + 0.2, "{proposed}, {without}: {}", advice.verdict);
    assert!(proposed > even - 0.01, "{proposed}, {even}: {}", advice.verdict);
    assert!(advice.slower_than_even.is_empty(), "{:?}", advice.slower_than_even);
    assert!(advice.verdict.contains("No volume is over 5 % slower"), "{}", advice.verdict);

    let config = ServerConfig::from_text(&advice.toml).expect("the server reads it");
    for (volume, it) in config.volume.iter().zip(&advice.volumes) {
        assert_eq!(volume.name(), it.volume);
        let text = |it: Option<String>| it.unwrap_or_default();
        let share = volume.cache_share();
        assert_eq!(text(share.guaranteed.map(|it| it.to_string())), text(it.guaranteed.clone()));
        assert_eq!(text(share.most.map(|it| it.to_string())), text(it.most.clone()));
    }
    let guaranteed = hot.guaranteed.as_ref().unwrap();
    let command = format!("floe volume share hot --guaranteed {guaranteed}");
    assert!(advice.commands[0].starts_with(&command), "{:?}", advice.commands);
}

#[test]
fn volumes_that_need_the_same_get_the_same() {
    let volumes = [
        volume("one", &reads(4000, |at| at * 7 % 200)),
        volume("two", &reads(4000, |at| at * 9 % 200)),
    ];
    let advice = advice(&question(8 << 20), &volumes);
    let of: Vec<f64> = advice.volumes.iter().map(|it| percent(it.guaranteed.as_ref())).collect();
    assert_eq!(of[0], of[1], "{of:?}");
    for it in &advice.arrangements[2].result.volumes {
        assert!(it.read_hit_ratio > 0.9, "{it:?}");
    }
}

#[test]
fn a_volume_that_only_trims_is_named() {
    let trims: Vec<Request> =
        reads(10, |at| at).into_iter().map(|read| Request { op: Op::Delete, ..read }).collect();
    let volumes = [volume("a", &reads(10, |at| at)), volume("b", &trims)];
    let refused = advise_shares(&question(8 << 20), &volumes, &|_, _| true);
    let refused = refused.expect_err("there is nothing to cache");
    assert_eq!(refused.to_string(), "b.csv: it has no reads or writes to advise on");
    let stopped = advise_shares(&question(8 << 20), &hot_and_scan(100), &|_, _| false);
    assert!(matches!(stopped, Err(AdviseError::Interrupted)), "{stopped:?}");
    let tiny = advise_shares(&question(4096), &hot_and_scan(100), &|_, _| true);
    assert!(matches!(tiny, Err(AdviseError::Config(_))), "{tiny:?}");
}
