//! Several volumes in a replay: the figures of each, and its share and limits, as the server has
//! them.

use std::time::Duration;

use floe_lab::replay::{Pace, Plan, ReplayResult, Setup, VolumeOutcome};
use floe_server::config::ServerConfig;
use floe_trace::{Op, Request};

use crate::replay::{setup, simulated};

/// A plan of two volumes, `a` and `b`, with these lines of floe.toml for each.
fn plan(cache: &str, a: &str, b: &str) -> Plan {
    let volume = |name: &str, lines: &str| {
        format!("[[volume]]\nname = \"{name}\"\nbacking = \"memory:16MiB,medium=cloud\"\n{lines}\n")
    };
    let cache = format!("cache = \"{cache}\"\nblock-sizes = \"16KiB\"\n");
    let text = cache + &volume("a", a) + &volume("b", b);
    let config = ServerConfig::from_text(&text).expect("the server reads it");
    Plan::of(&config, false).expect("the tier is large enough")
}

const CACHE: &str = "memory:2MiB,medium=nvme";

fn request(op: Op, volume: u32, key: u64, bytes: u64, time_ns: u64) -> Request {
    Request { time_ns, key, bytes, volume, op }
}

/// Volume `a` reads 1 MiB again and again, and between two of its reads `b` reads eight pieces of
/// its 16 MiB, each once in a round.
fn beside_a_scan(rounds: u64) -> Vec<Request> {
    let piece = 16 << 10;
    let of_round = |round: u64| {
        let own = request(Op::Read, 0, round % 64 * piece, piece, 0);
        let scan =
            (0..8).map(move |at| request(Op::Read, 1, (round * 8 + at) % 1024 * piece, piece, 0));
        [own].into_iter().chain(scan)
    };
    (0..rounds).flat_map(of_round).collect()
}

fn volumes(outcome: &ReplayResult) -> &[VolumeOutcome; 2] {
    outcome.volumes[..].try_into().expect("there are two volumes")
}

#[test]
fn the_figures_of_volumes_add_up_to_those_of_the_replay() {
    let mixed = |at: u64| {
        let (op, volume) = ([Op::Read, Op::Read, Op::Write, Op::Delete], at % 3 % 2);
        let (key, bytes) = (at * 7919 % 200 * 4096, 4096 * (1 + at % 5));
        request(op[(at / 2 % 4) as usize], volume as u32, key, bytes, 0)
    };
    let requests: Vec<Request> = (0..4000).map(mixed).collect();
    for write in ["through", "back"] {
        let mut plan = plan(CACHE, "", "");
        plan.tiers[0].config.mode = write.parse().expect("a mode");
        let outcome = simulated(&plan, &Setup { warmup: 500, ..setup(4, true) }, &requests);
        let [a, b] = volumes(&outcome);
        assert_eq!([&*a.volume, &*b.volume], ["a", "b"]);
        let sums: [fn(&VolumeOutcome) -> u64; 6] = [
            |it| it.reads,
            |it| it.read_hits,
            |it| it.writes,
            |it| it.write_hits,
            |it| it.backing_read_bytes,
            |it| it.backing_write_bytes,
        ];
        let wholes = [
            outcome.reads,
            outcome.read_hits,
            outcome.writes,
            outcome.write_hits,
            outcome.backing_read_bytes,
            outcome.backing_write_bytes,
        ];
        for (at, (of, whole)) in sums.into_iter().zip(wholes).enumerate() {
            assert_eq!(of(a) + of(b), whole, "{write}: figure {at}");
            assert!(whole > 0, "{write}: figure {at}");
        }
        assert!([a, b].iter().all(|it| it.reads > 500 && it.writes > 200), "{a:?}, {b:?}");
        let time = |it: &VolumeOutcome| (it.reads + it.writes) as f64 * it.us_mean.unwrap();
        let all = (outcome.reads + outcome.writes) as f64 * outcome.us_mean.unwrap();
        assert!(((time(a) + time(b)) / all - 1.0).abs() < 1e-9);
        assert!(a.cached_bytes + b.cached_bytes <= 2 << 20);
    }
    let single: Vec<Request> = requests.into_iter().filter(|it| it.volume == 0).collect();
    let mut plan = plan(CACHE, "", "");
    plan.volumes.truncate(1);
    let outcome = simulated(&plan, &setup(1, false), &single);
    assert!(outcome.volumes.is_empty(), "the figures of one volume are those of the replay");
}

#[test]
fn shares_hold_in_a_replay() {
    let requests = beside_a_scan(3000);
    let replayed = |a: &str, b: &str| {
        let outcome = simulated(&plan(CACHE, a, b), &setup(1, false), &requests);
        let [a, b] = volumes(&outcome);
        (a.read_hit_ratio, b.cached_bytes)
    };
    let (hits, _) = replayed("", "");
    assert!(hits < 0.1, "the scan evicts all: {hits}");
    let (hits, _) = replayed("cache-guaranteed = \"75%\"", "");
    assert!(hits > 0.9, "{hits}");
    let (hits, scanned) = replayed("", "cache-most = \"256KiB\"");
    assert!(hits > 0.9 && scanned <= 256 << 10, "{hits}, {scanned} bytes");
}

/// Two alike volumes read pieces of 16 KiB, 256 KiB apart. With the default block sizes the cache
/// fetches 64 KiB until it has learned that 16 KiB pay.
#[test]
fn shares_of_alike_volumes_cost_no_hits() {
    let pieces: Vec<u64> = (0..60_000).map(|at| floe_policy::mix(at) % 400 * (256 << 10)).collect();
    let reads = (0..).zip(pieces);
    let requests: Vec<Request> =
        reads.map(|(at, key)| request(Op::Read, (at % 2) as u32, key, 16 << 10, 0)).collect();
    let replayed = |lines: &str| {
        let volume = |name: &str| {
            format!(
                "[[volume]]\nname = \"{name}\"\nbacking = \"memory:128MiB,medium=cloud\"\n{lines}\n"
            )
        };
        let cache = "cache = \"memory:8MiB,medium=nvme\"\n".to_string();
        let text = cache + &volume("a") + &volume("b");
        let config = ServerConfig::from_text(&text).expect("the server reads it");
        let plan = Plan::of(&config, false).expect("the tier is large enough");
        let setup = Setup { warmup: 30_000, ..setup(1, false) };
        volumes(&simulated(&plan, &setup, &requests)).each_ref().map(|it| it.read_hit_ratio)
    };
    let without = replayed("");
    assert!(without.iter().all(|hits| *hits > 0.6), "{without:?}");
    for (guaranteed, most) in [(1, 100), (45, 100), (45, 55), (0, 50), (50, 100), (50, 50)] {
        let lines = format!("cache-guaranteed = \"{guaranteed}%\"\ncache-most = \"{most}%\"");
        let with = replayed(&lines);
        let lost = without.iter().zip(&with).map(|(without, with)| without - with);
        assert!(lost.into_iter().all(|lost| lost < 0.01), "{lines}: {with:?} of {without:?}");
    }
}

#[test]
fn a_tier_that_cannot_guarantee_all_is_refused() {
    let text = "cache = \"memory:2MiB\"\n\
                [[volume]]\nname = \"a\"\nbacking = \"memory:4MiB\"\ncache-guaranteed = \"60%\"\n\
                [[volume]]\nname = \"b\"\nbacking = \"memory:4MiB\"\ncache-guaranteed = \"1MiB\"\n";
    let config = ServerConfig::from_text(text).expect("each share alone is sound");
    let refused = Plan::of(&config, false).expect_err("it is more than the tier");
    assert!(refused.contains("\"a\" 60%") && refused.contains("\"b\" 1MiB"), "{refused}");
}

#[test]
fn limits_hold_back_their_volume_and_no_other() {
    // Each asks 1000 times in a second; `b` may begin 100 requests in one, and 10 at once.
    let at = |number: u64| {
        let of = |volume| request(Op::Read, volume, number * 4096, 4096, number * 1_000_000);
        [of(0), of(1)]
    };
    let requests: Vec<Request> = (0..1000).flat_map(at).collect();
    let recorded = Setup { pace: Pace::Recorded { speed: 1.0, in_flight: 64 }, ..setup(1, false) };
    let limited = plan(CACHE, "", "requests-per-second = 100");
    let outcome = simulated(&limited, &recorded, &requests);
    let alone = simulated(&plan(CACHE, "", ""), &recorded, &requests);
    let [a, b] = volumes(&outcome);
    let [free, _] = volumes(&alone);
    assert_eq!((a.reads, b.reads), (1000, 1000));
    assert!((9.8..10.1).contains(&outcome.seconds), "{} s", outcome.seconds);
    // The last one was due after 1 s, and began after 9.9 s.
    let longest = Duration::from_secs_f64(b.us_p99.unwrap() / 1e6);
    assert!((8.7..9.0).contains(&longest.as_secs_f64()), "{longest:?}");
    assert!(a.us_p99.unwrap() <= 1.2 * free.us_p99.unwrap(), "{a:?} beside {free:?}");

    // In a closed loop the client waits for its limit, and all requests are answered.
    let closed = simulated(&limited, &setup(4, false), &requests);
    assert_eq!(volumes(&closed).each_ref().map(|it| it.reads), [1000, 1000]);
    assert!((9.8..10.1).contains(&closed.seconds), "{} s", closed.seconds);
    // The same again, to the last digit.
    let again = simulated(&limited, &recorded, &requests);
    assert_eq!(again.us_mean, outcome.us_mean);
}
