//! The accounts of a replay: all requests are counted once, times add up, and prices follow.

use floe_block::WriteMode;
use floe_lab::replay::{Pace, Setup};
use floe_trace::{Op, Request};

use crate::replay::{above, plan, ragged, requests, setup, simulated};

/// Requests, reads and writes of a trace and the bytes of both.
fn counted(requests: &[Request]) -> [u64; 5] {
    let of = |op: Op| requests.iter().filter(move |request| request.op == op);
    let bytes = |op: Op| of(op).map(|request| request.bytes).sum();
    let (reads, writes) = (of(Op::Read).count() as u64, of(Op::Write).count() as u64);
    [requests.len() as u64, reads, writes, bytes(Op::Read), bytes(Op::Write)]
}

#[test]
fn every_request_after_the_warm_up_is_counted_once() {
    let requests = ragged(3000, 2 << 20);
    for (warmup, in_flight) in [(0, 1), (700, 1), (700, 16), (2999, 4)] {
        for mode in [WriteMode::Through, WriteMode::Back, WriteMode::Pass] {
            let plan = plan(mode, "memory:256KiB,medium=optane", "memory:4MiB,medium=nvme");
            let plan = above(plan, WriteMode::Through, "memory:1MiB,medium=nvme");
            let setup = Setup { warmup, ..setup(in_flight, false) };
            let mut outcome = simulated(&plan, &setup, &requests);
            outcome.show_histograms();
            let case = format!("{mode} after {warmup} with {in_flight} in flight");
            let rest = &requests[warmup as usize..];
            let found = [
                outcome.requests,
                outcome.reads,
                outcome.writes,
                outcome.read_bytes,
                outcome.write_bytes,
            ];
            assert_eq!(found, counted(rest), "{case}");
            assert_eq!(outcome.warmup_requests, warmup, "{case}");
            assert_eq!(outcome.trims, outcome.requests - outcome.reads - outcome.writes, "{case}");
            let latencies = [
                (outcome.reads, &outcome.read_latencies, &outcome.read_histogram),
                (outcome.writes, &outcome.write_latencies, &outcome.write_histogram),
            ];
            for (count, latencies, histogram) in latencies {
                assert_eq!(latencies.count(), count, "{case}: each has a latency");
                let steps = histogram.as_deref().unwrap_or_default();
                assert_eq!(steps.iter().map(|step| step.count).sum::<u64>(), count, "{case}");
                let of = |share| latencies.quantile_us(share);
                assert!(of(0.5) <= of(0.99) && of(0.99) <= of(0.999) && of(0.999) <= of(1.0));
                if let (Some(longest), Some(last)) = (of(1.0), steps.last()) {
                    assert!(last.up_to_us >= longest && last.up_to_us <= 2.1 * longest.max(0.125));
                }
            }
            let (hits, misses) = (outcome.read_hits, outcome.reads - outcome.read_hits);
            assert!(mode == WriteMode::Pass || misses > 0 || outcome.reads < 100, "{case}: {hits}");
            if outcome.reads > 0 {
                assert_eq!(outcome.read_hit_ratio, hits as f64 / outcome.reads as f64, "{case}");
            }
        }
    }
}

#[test]
fn with_one_request_in_flight_the_latencies_add_up_to_the_time() {
    let requests = ragged(2000, 2 << 20);
    for mode in [WriteMode::Through, WriteMode::Around, WriteMode::Pass] {
        let plan = plan(mode, "memory:256KiB,medium=optane", "memory:4MiB,medium=nvme");
        let outcome = simulated(&plan, &setup(1, false), &requests);
        let sum = |count: u64, mean_us: Option<f64>| count as f64 * mean_us.unwrap_or(0.0) / 1e6;
        let of_requests =
            sum(outcome.reads, outcome.read_us_mean) + sum(outcome.writes, outcome.write_us_mean);
        // Trims have no latency, and histograms keep three digits.
        let share = of_requests / outcome.seconds;
        assert!((0.98..1.002).contains(&share), "{mode}: {share} of {} s", outcome.seconds);
        let rate = outcome.requests as f64 / outcome.seconds;
        assert_eq!(outcome.requests_per_second, Some(rate), "{mode}");
        let bytes = (outcome.read_bytes + outcome.write_bytes) as f64;
        assert_eq!(outcome.bytes_per_second, Some(bytes / outcome.seconds), "{mode}");
    }
}

/// Little's law: throughput times mean latency is the number in flight.
#[test]
fn requests_in_flight_obey_littles_law() {
    let requests = requests("uniform:keys=2000,read=1,block=4KiB,requests=6000");
    for in_flight in [1, 4, 32] {
        let plan = plan(WriteMode::Through, "memory:1MiB,medium=nvme", "memory:8MiB,medium=nvme");
        let outcome = simulated(&plan, &setup(in_flight, false), &requests);
        assert_eq!((outcome.reads, outcome.writes), (6000, 0));
        let mean_us = outcome.read_us_mean.expect("there are reads");
        let rate = outcome.requests_per_second.expect("time passes");
        let present = rate * mean_us / 1e6;
        // Fewer are in flight while the last ones end.
        let share = present / in_flight as f64;
        assert!((0.97..1.003).contains(&share), "{in_flight}: {present} are in flight");
    }
}

#[test]
fn a_slower_pace_leaves_every_account_but_time_alone() {
    let requests = ragged(1500, 2 << 20);
    let plan = plan(WriteMode::Through, "memory:256KiB,medium=optane", "memory:4MiB,medium=nvme");
    let at = |speed: f64| {
        let pace = Pace::Recorded { speed, in_flight: 64 };
        simulated(&plan, &Setup { pace, ..setup(1, false) }, &requests)
    };
    let (slow, fast) = (at(1.0), at(4.0));
    // A request each millisecond: far less than the devices can do, so none waits for another.
    assert!((slow.seconds / fast.seconds - 4.0).abs() < 0.05, "{} {}", slow.seconds, fast.seconds);
    let accounts = |outcome: &floe_lab::replay::ReplayResult| {
        (
            [outcome.requests, outcome.reads, outcome.read_hits, outcome.write_hits],
            [outcome.backing_read_bytes, outcome.backing_write_bytes],
            [outcome.cache_read_bytes, outcome.cache_write_bytes],
        )
    };
    assert_eq!(accounts(&slow), accounts(&fast));
}

#[test]
fn the_price_of_two_tiers_is_the_sum_of_their_bytes_at_their_prices() {
    let one = plan(WriteMode::Through, "memory:256KiB,medium=optane", "memory:4MiB,medium=nvme");
    let plan = above(one, WriteMode::Through, "memory:2MiB,medium=nvme");
    let mut outcome = simulated(&plan, &setup(4, false), &ragged(1000, 2 << 20));
    outcome.price(vec![0.5, 0.125]);
    let cost = outcome.cost.clone().expect("prices were given");
    // 128 KiB and 256 KiB of DRAM.
    let gib = 384.0 / f64::from(1 << 20);
    assert!((cost.gib - gib).abs() < 1e-12, "{cost:?}");
    let rate = outcome.requests_per_second.expect("time passes");
    let per_gib = cost.requests_per_second_per_gib.expect("time passes");
    assert!((per_gib / (rate / gib) - 1.0).abs() < 1e-12, "{cost:?}");
}
