//! Virtual time against queues worked out by hand: devices that serve one operation at a time, each
//! in the same time.

use std::collections::VecDeque;
use std::time::Instant;

use floe_block::WriteMode;
use floe_device::{Action, Completion, Device, Operation, Pool};
use floe_lab::replay::{Clock, Content, Pace, ReplayResult, Setup, Stage, Tier, VirtualClock};
use floe_trace::{Op, Request};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::replay::{plan, replay_on, setup};

const BLOCK: u64 = 4096;
const SIZE: u64 = 4 << 20;

/// A device that serves operations in order, one at a time. Holds no bytes.
struct OneServer {
    clock: VirtualClock,
    read_ns: u64,
    write_ns: u64,
    free_ns: u64,
    waiting: VecDeque<(u64, u64)>,
}

impl OneServer {
    fn new(clock: &VirtualClock, read_ns: u64, write_ns: u64) -> Box<Self> {
        let clock = clock.clone();
        Box::new(Self { clock, read_ns, write_ns, free_ns: 0, waiting: VecDeque::new() })
    }
}

impl Device for OneServer {
    fn size_bytes(&self) -> u64 {
        SIZE
    }

    fn submit(&mut self, operation: Operation) {
        let service_ns = match operation.action {
            Action::Read(_) => self.read_ns,
            Action::Flush => 0,
            _ => self.write_ns,
        };
        self.free_ns = self.free_ns.max(self.clock.passed_ns()) + service_ns;
        self.waiting.push_back((self.free_ns, operation.token));
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        while let Some((_, token)) =
            self.waiting.pop_front_if(|&mut (due_ns, _)| due_ns <= self.clock.passed_ns())
        {
            done.push(Completion { token, result: Ok(()) });
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.waiting.front().map(|&(due_ns, _)| self.clock.at(due_ns))
    }
}

fn read(time_ns: u64, block: u64) -> Request {
    Request { time_ns, key: block * BLOCK, bytes: BLOCK, volume: 0, op: Op::Read }
}

/// Replays on a cache device whose operations take `cache_ns`, above one whose take `backing_ns`.
fn replayed(
    mode: WriteMode,
    cache_ns: [u64; 2],
    backing_ns: [u64; 2],
    pace: Pace,
    requests: &[Request],
) -> ReplayResult {
    let mut plan = plan(mode, "memory:4MiB", "memory:4MiB");
    plan.tiers[0].config.sizes = "4KiB".parse().expect("a size");
    let Tier { config, .. } = plan.tiers.remove(0);
    let clock = VirtualClock::default();
    let device: Box<dyn Device> = OneServer::new(&clock, cache_ns[0], cache_ns[1]);
    let tier = Tier { config, most_dirty_bytes: None, device };
    let backing = OneServer::new(&clock, backing_ns[0], backing_ns[1]);
    let pool = Pool::new(1 << 20);
    let mut stage = Stage::new(Clock::Virtual(clock), pool, vec![tier]).expect("a stage");
    stage.add_volume("floe", backing, Content::Zero);
    let setup = Setup { pace, ..setup(1, false) };
    replay_on(stage, &setup, requests, &[SIZE]).expect("the replay ends well")
}

/// A latency as expected, to the three digits that histograms keep.
fn is_close(found_us: Option<f64>, expected_ns: f64) -> bool {
    found_us.is_some_and(|found| (found * 1e3 - expected_ns).abs() <= 1e-3 * expected_ns)
}

/// The end of a replay, to the nanosecond.
fn ended_ns(outcome: &ReplayResult) -> u64 {
    (outcome.seconds * 1e9).round() as u64
}

/// With k in flight each request waits for the k - 1 before it; the first ones find fewer.
#[test]
fn a_closed_loop_waits_for_all_that_are_before_it() {
    const SERVICE_NS: u64 = 70_000;
    let requests: Vec<Request> = (0..500).map(|at| read(0, at)).collect();
    for in_flight in [1, 2, 7, 64] {
        let pace = Pace::Closed { in_flight };
        let outcome = replayed(WriteMode::Pass, [0, 0], [SERVICE_NS, SERVICE_NS], pace, &requests);
        let k = in_flight as u64;
        let sum_ns: u64 = (1..=500).map(|number: u64| number.min(k) * SERVICE_NS).sum();
        assert!(is_close(outcome.read_us_mean, sum_ns as f64 / 500.0), "{outcome:?}");
        assert!(is_close(outcome.read_us_max, (k * SERVICE_NS) as f64), "{outcome:?}");
        assert_eq!(ended_ns(&outcome), 500 * SERVICE_NS);
    }
}

/// Lindley's recursion: a request waits for what its predecessor waited for and took, less the time
/// between the two. A limit of requests in flight delays its begin, not its end.
#[test]
fn recorded_times_queue_as_lindley_says() {
    const SERVICE_NS: u64 = 50_000;
    let mut random = StdRng::seed_from_u64(1);
    for gap_max in [60_000, 99_000, 120_000, 400_000] {
        let (mut now, mut requests) = (0, Vec::new());
        for at in 0..800 {
            requests.push(read(now, at));
            now += random.random_range(0..gap_max);
        }
        let (mut ends, mut sum, mut longest) = (0, 0, 0);
        for request in &requests {
            ends = request.time_ns.max(ends) + SERVICE_NS;
            let latency = ends - request.time_ns;
            (sum, longest) = (sum + latency, longest.max(latency));
        }
        for in_flight in [2, 1000] {
            let pace = Pace::Recorded { speed: 1.0, in_flight };
            let outcome =
                replayed(WriteMode::Pass, [0, 0], [SERVICE_NS, SERVICE_NS], pace, &requests);
            let case = format!("gaps up to {gap_max} ns, {in_flight} in flight: {outcome:?}");
            assert!(is_close(outcome.read_us_mean, sum as f64 / 800.0), "{case}");
            assert!(is_close(outcome.read_us_max, longest as f64), "{case}");
            assert_eq!(ended_ns(&outcome), ends, "{case}");
        }
    }
}

/// Each block is missed once and then hit. A miss takes a read below; its block is written to the
/// cache device while the next request is under way, so only the first hit waits for a write.
#[test]
fn hits_take_a_read_of_the_cache_device_and_misses_one_below() {
    const HIT_NS: u64 = 9_000;
    const STORE_NS: u64 = 30_000;
    const MISS_NS: u64 = 90_000;
    let (blocks, rounds) = (100, 5);
    let requests: Vec<Request> =
        (0..rounds).flat_map(|_| (0..blocks).map(|block| read(0, block))).collect();
    let pace = Pace::Closed { in_flight: 1 };
    let outcome =
        replayed(WriteMode::Through, [HIT_NS, STORE_NS], [MISS_NS, MISS_NS], pace, &requests);
    let hits = blocks * (rounds - 1);
    assert_eq!((outcome.reads, outcome.read_hits), (blocks * rounds, hits));
    assert_eq!(ended_ns(&outcome), blocks * MISS_NS + STORE_NS + hits * HIT_NS);
    assert!(is_close(outcome.read_us_max, MISS_NS as f64), "{outcome:?}");
    assert_eq!(outcome.backing_read_bytes, blocks * BLOCK);
    assert_eq!(outcome.cache_write_bytes, blocks * BLOCK);
    assert_eq!(outcome.cache_read_bytes, hits * BLOCK);
}
