//! How many requests a policy handles in a second: one thread, dense keys, a cache of a tenth of
//! the footprint.
//!
//! `make bench`, or `cargo bench -p floe-policy --bench speed -- [POLICY…]`, with FLOE_TRACES
//! naming a folder with `arc_P2`, `arc_P3` and `arc_P6`; without it only the Zipf keys are asked
//! for. Beside each policy: its requests per second in millions, the goal where there is one, its
//! misses, and the bytes it keeps per slot. A goal that is missed says so; it is meant for a core
//! of its own (`taskset -c 0`). Time is processor time of the thread, of requests only: making the
//! cache is left out, which `floe simulate` counts in.

#[path = "../tests/it/support.rs"]
mod support;

use std::time::Duration;

use floe_policy::registry::{Choice, Visitor, names};
use floe_policy::{Policy, mix, with};
use floe_testkit::thread_time;
use support::{Cache, Dense};

/// Traces are run again and again until this much processor time is used.
const MEASURED_MIN: Duration = Duration::from_millis(700);

/// The name of the keys that are drawn.
const ZIPF: &str = "zipf";

struct Speed<'a> {
    trace: &'a Dense,
    next_uses: &'a [u64],
}

struct Measured {
    requests_per_us: f64,
    miss_ratio: f64,
    bytes_per_slot: f64,
}

impl Visitor for Speed<'_> {
    type Out = Measured;

    fn visit<P: Policy>(self, make: impl Fn() -> P) -> Measured {
        let size = self.trace.distinct / 10;
        let mut measured = Measured { requests_per_us: 0.0, miss_ratio: 0.0, bytes_per_slot: 0.0 };
        let (mut requests, mut used) = (0.0, Duration::ZERO);
        while used < MEASURED_MIN {
            let mut cache = Cache::new(make(), size, self.trace);
            let mut hits = 0u64;
            let start = thread_time();
            if P::INFO.next_uses {
                for (&key, &next_use) in self.trace.keys.iter().zip(self.next_uses) {
                    hits += u64::from(cache.request(key, next_use));
                }
            } else {
                for &key in &self.trace.keys {
                    hits += u64::from(cache.request(key, 0));
                }
            }
            used += thread_time() - start;
            requests += self.trace.keys.len() as f64;
            measured.requests_per_us = requests / used.as_secs_f64() / 1e6;
            measured.miss_ratio = 1.0 - hits as f64 / self.trace.keys.len() as f64;
            measured.bytes_per_slot = cache.owner.memory_bytes() as f64 / size as f64;
        }
        measured
    }
}

/// What a policy is to reach, in millions of requests per second.
fn goal(policy: &str, trace: &str) -> Option<f64> {
    let on_block_traces = match policy {
        "fifo" | "lru" => 80.0,
        "s3-fifo" | "clock" | "sieve" | "slru" => 50.0,
        "arc" => 25.0,
        _ => return None,
    };
    // On Zipf keys, memory is the limit for all.
    Some(if trace == ZIPF { 10.0 } else { on_block_traces })
}

/// Zipf with exponent 0.8 over ten million keys, by inversion of the integral of the density.
fn zipf() -> Dense {
    const KEYS: f64 = 1e7;
    const EXPONENT: f64 = 0.8;
    let keys = (0..20_000_000u64).map(|at| {
        let share = (mix(at) >> 11) as f64 / (1u64 << 53) as f64;
        let rank = (1.0 + share * (KEYS.powf(1.0 - EXPONENT) - 1.0)).powf(1.0 / (1.0 - EXPONENT));
        // Popular keys are spread over the table: their neighbours in it are not popular, too.
        (rank as u64 - 1) * 7_919_911 % KEYS as u64
    });
    Dense { keys: keys.map(|key| key as u32).collect(), distinct: KEYS as usize }
}

fn main() {
    let chosen: Vec<String> =
        std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let chosen =
        if chosen.is_empty() { names().into_iter().map(str::to_owned).collect() } else { chosen };
    let traces = ["P2", "P3", "P6"].into_iter().filter_map(|name| Some((name, Dense::arc(name)?)));
    for (name, trace) in traces.chain(std::iter::once_with(|| (ZIPF, zipf()))) {
        let next_uses = trace.next_uses();
        for policy in &chosen {
            let choice: Choice = policy.parse().unwrap_or_else(|error| panic!("{error}"));
            let Measured { requests_per_us, miss_ratio, bytes_per_slot } =
                with(&choice, Speed { trace: &trace, next_uses: &next_uses });
            let goal = match goal(policy, name) {
                Some(goal) if requests_per_us < goal => format!("goal {goal:.0} MISSED"),
                Some(goal) => format!("goal {goal:.0}"),
                None => String::new(),
            };
            println!(
                "{name:<5} {policy:<12} {requests_per_us:7.1} M/s  {goal:<14} miss \
                 {miss_ratio:.4}  {bytes_per_slot:5.1} B/slot"
            );
        }
    }
}
