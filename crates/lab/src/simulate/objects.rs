//! Simulates eviction policies over a trace with the policy code that the caches run.
//!
//! Each pair of policy and size is a run of its own; runs share the trace and are spread over all
//! cores. `policy_loop` has the loop of a run. Here are its settings and results, and the estimates
//! from a sample of the keys.

use std::sync::atomic::AtomicU64;
use std::time::Instant;

use floe_model::t_975;
use floe_policy::Adaptation;
use floe_policy::admission::{self, Admissions};
use floe_policy::registry::Choice;
use serde::{Deserialize, Serialize};

use super::policy_loop::{Counts, Scale, Simulated, Simulation};
pub use super::policy_loop::{Latency, SimulatedInterval};
use super::stream::Stream;

/// Settings of a run: the policies, and the capacity of the cache.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The eviction policy.
    pub policy: Choice,
    /// Capacity in bytes where the stream has sizes, else in objects. It is that of the whole
    /// cache, even where a sample of the keys is simulated.
    pub size: u64,
    /// Admission policies, all of which must agree; empty to admit everything.
    pub admit: Vec<admission::registry::Choice>,
}

/// Returns the name of a run: its eviction policy with parameters, and its admission policy.
pub(super) fn name(policy: &Choice, admit: &[admission::registry::Choice]) -> String {
    match admit {
        [] => policy.to_string(),
        admit => format!("{policy} with {}", Admissions::new(admit)),
    }
}

/// The results of a run: the output fields of `floe simulate --policy`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SimulationResult {
    /// Name of the trace.
    pub trace: String,
    /// The eviction policy with its parameters, and the admission policy.
    pub policy: String,
    /// Capacity of the cache, in bytes where the stream has sizes, else in objects.
    pub size: u64,
    /// Number of counted requests of the trace.
    pub requests: u64,
    /// Number of requests of the warm-up, not counted elsewhere.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub warmup_requests: u64,
    /// Number of simulated requests; `None` unless a sample of the keys was simulated. Other counts
    /// are estimated from the sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled_requests: Option<u64>,
    /// Number of requests whose object was cached.
    pub hits: u64,
    /// Number of requests whose object was not cached.
    pub misses: u64,
    /// Number of objects inserted, which are the writes to the cache; `None` without an admission
    /// policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inserted: Option<u64>,
    /// Number of objects that a policy fetched before they were requested; neither hits nor misses.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prefetches: u64,
    /// Share of requests that missed.
    pub miss_ratio: f64,
    /// Error of `miss_ratio`, not exceeded in 19 of 20 cases; `None` unless estimated from a
    /// sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub miss_ratio_ci95: Option<f64>,
    /// Share of bytes that missed; equal to `miss_ratio` where objects have no sizes.
    pub byte_miss_ratio: f64,
    /// Error of `byte_miss_ratio`, not exceeded in 19 of 20 cases; `None` unless estimated from a
    /// sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub byte_miss_ratio_ci95: Option<f64>,
    /// Mean latency of a request in microseconds, from the given times of a hit, a miss and an
    /// insertion; `None` without these times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_latency_us: Option<f64>,
    /// Real time that the run took, in seconds.
    pub seconds: f64,
    /// Simulated requests a second, on one core.
    pub requests_per_second: f64,
    /// Bytes of memory that the policy held at the end, per object of the most cached at one time.
    pub policy_bytes_per_object: f64,
    /// The settings that the policy chose from at the end, with its estimates; `None` if its
    /// settings do not change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adaptation: Option<Adaptation>,
    /// Time series of the run; empty unless requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<SimulatedInterval>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Simulates one policy at one capacity. `progress` grows by the number of requests done.
pub fn simulate(
    trace: &str,
    stream: &Stream,
    run: &Run,
    latency: Option<Latency>,
    progress: &AtomicU64,
) -> SimulationResult {
    let begun = Instant::now();
    let simulated = count(stream, run, run.size as f64 * stream.rate, latency, progress);
    let Simulated { counts, series, adaptation } = simulated;
    let seconds = begun.elapsed().as_secs_f64();
    let simulated = stream.keys.len() as u64;
    let warmup = stream.warmup as u64;
    let counted = stream.requests - warmup;
    let admits = !run.admit.is_empty();
    let (misses, in_bytes) = if stream.rate < 1.0 {
        estimate_all(&counts, stream, run, latency)
    } else {
        let exact = |missed: Missed| Estimate {
            ratio: missed.missed / missed.asked.max(f64::MIN_POSITIVE),
            bound: 0.0,
        };
        (exact(requests(&counts, stream)), stream.sizes.as_ref().map(|_| exact(bytes(&counts))))
    };
    let is_sample = |bound: f64| (stream.rate < 1.0).then_some(bound);
    let missed = (misses.ratio * counted as f64).round() as u64;
    let of_all = |sampled: u64| (sampled as f64 / stream.rate).round() as u64;
    let in_bytes = in_bytes.unwrap_or(misses);
    SimulationResult {
        trace: trace.to_owned(),
        policy: name(&run.policy, &run.admit),
        size: run.size,
        requests: counted,
        warmup_requests: warmup,
        sampled_requests: (stream.rate < 1.0).then_some(simulated),
        hits: counted - missed,
        misses: missed,
        inserted: admits.then_some(counts.inserted),
        prefetches: of_all(counts.fetched),
        miss_ratio: misses.ratio,
        miss_ratio_ci95: is_sample(misses.bound),
        byte_miss_ratio: in_bytes.ratio,
        byte_miss_ratio_ci95: is_sample(in_bytes.bound),
        mean_latency_us: latency.map(|latency| {
            latency.mean_us(misses.ratio, counts.demanded as f64 / (simulated - warmup) as f64)
        }),
        seconds,
        requests_per_second: simulated as f64 / seconds,
        policy_bytes_per_object: counts.policy_bytes as f64 / counts.most_objects.max(1) as f64,
        adaptation,
        series,
    }
}

/// Simulates a cache of this capacity over all requests of the stream, which may be a sample.
fn count(
    stream: &Stream,
    run: &Run,
    capacity: f64,
    latency: Option<Latency>,
    progress: &AtomicU64,
) -> Simulated {
    let simulation = Simulation {
        stream,
        capacity: (capacity.round() as u64).max(1),
        scale: Scale::of(stream.largest),
        admission: (!run.admit.is_empty()).then(|| Admissions::new(&run.admit)),
        latency,
        progress,
    };
    floe_policy::with(&run.policy, simulation)
}

/// Returns the number of counted requests, and of those that missed.
fn requests(counts: &Counts, stream: &Stream) -> Missed {
    let asked = (stream.keys.len() - stream.warmup) as f64;
    Missed { asked, missed: asked - counts.hits as f64 }
}

fn bytes(counts: &Counts) -> Missed {
    Missed { asked: counts.bytes as f64, missed: counts.missed_bytes as f64 }
}

/// Estimates the miss ratio of the whole trace from the counts of a sample: of requests and, where
/// objects have sizes, of bytes.
fn estimate_all(
    counts: &Counts,
    stream: &Stream,
    run: &Run,
    latency: Option<Latency>,
) -> (Estimate, Option<Estimate>) {
    let share = stream.rate;
    let objects = stream.objects_in((run.size as f64 * share) as u64) as u64;
    let groups = (objects / OBJECTS).clamp(LEAST_GROUPS, MOST_GROUPS);
    let capacity = run.size as f64 * share / groups as f64;
    let unseen = AtomicU64::new(0);
    let of_groups: Vec<(Missed, Missed)> = (stream.parted(groups).iter())
        .map(|group| {
            let Simulated { counts, .. } = count(group, run, capacity, latency, &unseen);
            (requests(&counts, group), bytes(&counts))
        })
        .collect();
    let (in_requests, in_bytes): (Vec<_>, Vec<_>) = of_groups.into_iter().unzip();
    let asked = stream.requests as f64 * share;
    let asked_bytes = stream.asked_bytes as f64 * share;
    let of_bytes = || estimate(bytes(counts), &in_bytes, counts.slope, asked_bytes, share);
    (
        estimate(requests(counts, stream), &in_requests, counts.slope, asked, share),
        stream.sizes.as_ref().map(|_| of_bytes()),
    )
}

/// Largest number of groups that a sample is divided into, for an estimate of its error.
pub(super) const MOST_GROUPS: u64 = 16;

/// Smallest number of groups; with fewer, their spread says too little of the error.
pub(super) const LEAST_GROUPS: u64 = 6;

/// Number of objects that the cache of a group must hold, before a sample is divided into more than
/// [`LEAST_GROUPS`] groups.
pub(super) const OBJECTS: u64 = 8;

/// Number of requests or bytes that a cache was asked for, and of those that it missed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Missed {
    pub(super) asked: f64,
    pub(super) missed: f64,
}

/// Estimated miss ratio of the whole trace, and a bound of its error that holds in 19 of 20 cases.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Estimate {
    pub(super) ratio: f64,
    pub(super) bound: f64,
}

/// Estimates the miss ratio from a sample with a `share` of the keys, and its error from the spread
/// of the sample's `groups`. `asked` is the number of requests that the share should have, and
/// `slope` corrects the misses for the difference.
pub(super) fn estimate(
    sample: Missed,
    groups: &[Missed],
    slope: f64,
    asked: f64,
    share: f64,
) -> Estimate {
    let count = groups.len() as f64;
    let brought = |of: &Missed, asked: f64| (of.missed + slope * (asked - of.asked)) / asked;
    let ratio = brought(&sample, asked);
    let of_groups: Vec<f64> = groups.iter().map(|group| brought(group, asked / count)).collect();
    let mean = of_groups.iter().sum::<f64>() / count;
    let freedom = count - 1.0;
    let variance =
        of_groups.iter().map(|of_group| (of_group - mean).powi(2)).sum::<f64>() / freedom;
    // Small caches are not small copies of large ones: what they are off for a part of the size is
    // less by so much for all of it.
    let smallness = (mean - ratio).abs() / freedom;
    // The slope is that of the keys drawn; the hottest of those that were not may always hit.
    let extrapolated = slope * (1.0 - sample.asked / asked);
    let drawn = t_975(freedom) * (variance / count * (1.0 - share)).sqrt();
    let bound = drawn.hypot(extrapolated) + smallness;
    Estimate { ratio: ratio.clamp(0.0, 1.0), bound }
}

#[cfg(test)]
mod tests {
    use super::super::stream::{Builder, Keep};
    use super::*;
    use floe_trace::{Kind, Op, Request};

    fn misses(policy: &str, sizes: bool) -> (u64, u64) {
        const RUN: u64 = 1000;
        let keep = Keep { rate: 1.0, sizes, next_use: false };
        let mut builder = Builder::new(Kind::Key, keep, 4096);
        for position in 0..RUN {
            let read = Request { time_ns: 0, key: position, bytes: 10, volume: 0, op: Op::Read };
            builder.add(&read).expect("there is room");
        }
        let stream = builder.finish().expect("there are requests");
        let run = Run {
            policy: policy.parse().expect("the policy is registered"),
            size: 640,
            admit: Vec::new(),
        };
        let outcome = simulate("run", &stream, &run, None, &AtomicU64::new(0));
        assert_eq!(outcome.hits + outcome.misses, RUN);
        (outcome.misses, outcome.prefetches)
    }

    #[test]
    fn what_sarc_orders_is_fetched_and_hits() {
        for sizes in [false, true] {
            let (missed, prefetches) = misses("sarc", sizes);
            assert!(
                missed < 10 && missed + prefetches == 1000,
                "{missed} misses, {prefetches} prefetches"
            );
            assert_eq!(misses("lru", sizes), (1000, 0));
        }
    }
}

#[cfg(test)]
mod sample_tests {
    use std::sync::atomic::AtomicU64;

    use floe_trace::{GeneratorSpec, Kind, Trace};

    use super::super::stream::{Builder, Keep, Stream};
    use super::{Run, SimulationResult, simulate};

    /// Returns a stream of a load. Another `draw` renames the keys, so that other keys are sampled.
    fn stream(text: &str, rate: f64, draw: u64, size_of: Option<fn(u64) -> u64>) -> Stream {
        let spec: GeneratorSpec = text.parse().expect("the trace is well written");
        let keep = Keep { rate, sizes: size_of.is_some(), next_use: true };
        let mut builder = Builder::new(Kind::Key, keep, 4096);
        for request in Trace::generate(&spec).expect("the trace is possible") {
            let mut request = request.expect("a generated trace is well formed");
            request.bytes = size_of.map_or(request.bytes, |size_of| size_of(request.key));
            request.key |= draw << 32;
            builder.add(&request).expect("there is room");
        }
        builder.finish().expect("there are requests")
    }

    fn run(policy: &str, stream: &Stream, size: u64) -> SimulationResult {
        let run =
            Run { policy: policy.parse().expect("it is registered"), size, admit: Vec::new() };
        simulate("trace", stream, &run, None, &AtomicU64::new(0))
    }

    #[test]
    fn an_estimate_is_as_far_off_as_it_says_in_one_of_twenty_cases() {
        let (mut cases, mut bounds, mut outside) = (0, Vec::new(), Vec::new());
        for load in [
            "zipf:keys=20000,theta=0.7,requests=100000,seed=1",
            "zipf:keys=30000,theta=0.9,requests=100000,seed=2",
            "zipf:keys=40000,theta=0.99,requests=100000,seed=3",
            "zipf:keys=40000,theta=1.1,requests=100000,seed=4",
            "uniform:keys=20000,requests=100000,seed=5",
            "ycsb:workload=D,keys=20000,requests=100000,seed=6",
            "scan:keys=20000,every=5000,length=3000,scanned=30000,requests=100000,seed=7",
            "mix:requests=100000,seed=8+zipf:keys=20000,weight=1+loop:keys=10000,weight=1",
        ] {
            let whole = stream(load, 1.0, 0, None);
            let rates = [0.2, 0.1, 0.05].into_iter().cycle();
            let samples: Vec<_> =
                (1..=6).zip(rates).map(|(draw, rate)| stream(load, rate, draw, None)).collect();
            for policy in ["lru", "s3-fifo"] {
                for hundredths in [1, 5, 20] {
                    let size = whole.footprint * hundredths / 100;
                    let exact = run(policy, &whole, size);
                    for sample in &samples {
                        let estimate = run(policy, sample, size);
                        let bound =
                            estimate.miss_ratio_ci95.expect("a sample says how far off it may be");
                        let off = (estimate.miss_ratio - exact.miss_ratio).abs();
                        cases += 1;
                        bounds.push(bound);
                        if off > bound {
                            let rate = sample.rate;
                            outside.push(format!(
                                "{load} {policy} {hundredths} % {rate}: {off} of {bound}"
                            ));
                        }
                    }
                }
            }
        }
        bounds.sort_by(f64::total_cmp);
        let median = bounds[bounds.len() / 2];
        println!("{} of {cases} outside, median bound {median}", outside.len());
        assert!(outside.len() * 100 <= cases * 8, "{} of {cases}: {outside:#?}", outside.len());
        assert!(median < 0.04, "a bound that says nothing: {median}");
    }

    #[test]
    fn bytes_are_estimated_as_requests_are() {
        let load = "zipf:keys=20000,requests=200000";
        let sizes: [fn(u64) -> u64; 2] = [|_| 1000, |key| 500 + key % 1000];
        for (size_of, alike) in sizes.into_iter().zip([true, false]) {
            let (whole, sample) =
                (stream(load, 1.0, 0, Some(size_of)), stream(load, 0.1, 0, Some(size_of)));
            let (exact, estimate) = (run("lru", &whole, 2_000_000), run("lru", &sample, 2_000_000));
            let bound = estimate.byte_miss_ratio_ci95.expect("a sample says how far off it may be");
            assert!(
                (exact.byte_miss_ratio - estimate.byte_miss_ratio).abs() < bound,
                "{exact:?} {estimate:?}"
            );
            if alike {
                assert!(
                    (estimate.byte_miss_ratio - estimate.miss_ratio).abs() < 1e-9,
                    "{estimate:?}"
                );
                assert!(
                    (bound - estimate.miss_ratio_ci95.unwrap_or(0.0)).abs() < 1e-9,
                    "{estimate:?}"
                );
            }
        }
    }

    #[test]
    fn belady_is_the_best_of_a_sample_too() {
        let sample = stream("zipf:keys=20000,requests=200000", 0.1, 0, None);
        let [belady, lru] = ["belady", "lru"].map(|policy| run(policy, &sample, 1000));
        assert!(
            belady.miss_ratio < lru.miss_ratio - 0.02,
            "{} {}",
            belady.miss_ratio,
            lru.miss_ratio
        );
    }
}
