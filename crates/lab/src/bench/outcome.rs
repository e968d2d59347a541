//! Results of a measured cache: the fields of `floe bench memory`.

use floe_memory::{AdmissionStats, FreezeStats};
use hdrhistogram::Histogram;
use serde::Serialize;

use super::competitor::Setup;
use super::measure::{Estimate, Measured, PhaseTime, Repetition};
use super::subject::{Freezing, Frozen};
use super::warm_up::Decision;

/// The cache that was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Identity {
    /// The policy with its parameters, and with the admission if there is one.
    pub policy: String,
    /// Independent parts of the cache.
    pub shards: usize,
    /// Entries the cache holds.
    pub capacity: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Distinct keys of the load.
    pub keys: usize,
    /// The settings of freezing.
    pub freezing: Freezing,
    /// The use of the cache.
    pub setup: Setup,
}

/// A line of the result. Throughputs, processor times and ratios are medians of the repetitions,
/// with the interval that holds the true median with `confidence`; latencies are those of all
/// repetitions together.
#[derive(Debug, Clone, Serialize)]
pub struct BenchResult {
    /// The library of the cache.
    pub cache: &'static str,
    /// The policy with its parameters, and with the admission if there is one.
    pub policy: String,
    /// The results of the admission, where there is one.
    #[serde(flatten)]
    pub admission: Option<Admitted>,
    /// True if the cache may freeze its hottest entries.
    pub frozen: bool,
    /// The setting of freezing: `off`, `adaptive`, or the share of the entries that it always
    /// freezes.
    pub freezing: String,
    /// Independent parts of the cache.
    pub shards: usize,
    /// Entries the cache holds.
    pub capacity: u64,
    /// Distinct keys of the load.
    pub keys: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Threads of the operating system.
    pub threads: usize,
    /// Clients, and so the most requests in flight.
    pub mpl: usize,
    /// Mean time of the emulated disk.
    pub disk_us: f64,
    /// Share of lookups that hit.
    pub hit_ratio: f64,
    /// Share of the hits on frozen entries.
    pub frozen_share: f64,
    /// Share of the entries that were frozen, on average.
    pub frozen_ratio: f64,
    /// The results of freezing, where the cache may freeze.
    #[serde(flatten)]
    pub freeze: Option<Freeze>,
    /// Time and throughput by phase, where the cache freezes adaptively.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseTime>,
    /// Operations a second on all threads together.
    pub ops_per_second: f64,
    /// Where its interval begins.
    pub ops_per_second_low: f64,
    /// Where its interval ends.
    pub ops_per_second_high: f64,
    /// The probability that the intervals hold the true medians.
    pub confidence: f64,
    /// Throughput as a ratio to that of the first cache, which ran in turn with this one: the
    /// median of the pairs.
    #[serde(flatten)]
    pub ratio: Option<Ratio>,
    /// Latency of a hit, half of them.
    pub hit_ns_p50: Option<u64>,
    /// Latency of a hit, all but the slowest hundredth.
    pub hit_ns_p99: Option<u64>,
    /// Latency of a hit, all but the slowest thousandth.
    pub hit_ns_p999: Option<u64>,
    /// Latency of a miss from before its lookup to after its fill, half of them.
    pub miss_us_p50: Option<f64>,
    /// Latency of a miss, all but the slowest hundredth.
    pub miss_us_p99: Option<f64>,
    /// Latency of a write, where there were any.
    #[serde(flatten)]
    pub write: Option<Write>,
    /// The times that clients were really parked, where there is a disk.
    #[serde(flatten)]
    pub park: Option<Park>,
    /// Processor time for each operation, precise waiting for the disk included.
    pub cpu_ns_per_op: f64,
    /// Where its interval begins.
    pub cpu_ns_per_op_low: f64,
    /// Where its interval ends.
    pub cpu_ns_per_op_high: f64,
    /// Share of the threads' time in which all of their clients were parked.
    pub idle_share: f64,
    /// Operations taken from the load. Clients that were parked when counting began or ended make
    /// the difference to those done.
    pub operations: u64,
    /// Lookups that hit.
    pub hits: u64,
    /// Lookups that missed.
    pub misses: u64,
    /// Writes.
    pub writes: u64,
    /// Runs.
    pub repetitions: usize,
    /// Time that all runs took together.
    pub seconds: f64,
    /// Time it took until the cache was warm.
    pub warm_up_seconds: f64,
    /// True if the cache was warm, false if time was up.
    pub settled: bool,
    /// The time of reading the clock, which is subtracted from each latency.
    pub clock_ns: u64,
}

/// The fate of offers since the cache was made, with those of the warm-up.
#[derive(Debug, Clone, Serialize)]
pub struct Admitted {
    /// The admission with its parameters.
    pub admission: String,
    /// Entries that were offered.
    pub offered: u64,
    /// Those that were admitted.
    pub admitted: u64,
    /// Those that were not.
    pub bypassed: u64,
}

impl Admitted {
    fn of(stats: &AdmissionStats) -> Self {
        let &AdmissionStats { ref name, offered, admitted, bypassed, .. } = stats;
        Self { admission: name.clone(), offered, admitted, bypassed }
    }
}

/// The last state of the controller. Latencies are of what was measured last, by the cache itself.
#[derive(Debug, Clone, Serialize)]
pub struct Freeze {
    /// Its phase.
    pub phase: &'static str,
    /// The share of the entries to be frozen that it learned; 0 when freezing does not pay.
    pub learned_ratio: f64,
    /// Of a hit on a frozen entry.
    pub frozen_ns: Option<f64>,
    /// Of a hit on another.
    pub dynamic_ns: Option<f64>,
    /// Of a miss.
    pub miss_ns: Option<f64>,
    /// Of a request while nothing is frozen.
    pub baseline_ns: Option<f64>,
    /// Of a request while the frozen index serves.
    pub freezing_ns: Option<f64>,
    /// The time to build the index.
    pub construction_seconds: f64,
    /// When it is built anew, by its age.
    pub lifetime_seconds: f64,
    /// The number of times that learning came to an end.
    pub learned: u64,
    /// The number of times that an index was published.
    pub constructed: u64,
    /// Of these, those that took the place of another.
    pub refreshed: u64,
    /// The number of times that freezing did not pay.
    pub given_up: u64,
}

/// A decision of the freeze controller: a line of its own.
#[derive(Debug, Clone, Serialize)]
pub struct Decided {
    /// The number of the decision, from 0.
    pub decision: usize,
    /// The library of the cache.
    pub cache: &'static str,
    /// The policy with its parameters.
    pub policy: String,
    /// `adaptive`, or the share of the entries that it always freezes.
    pub freezing: String,
    /// Entries the cache holds.
    pub capacity: u64,
    /// Threads of the operating system.
    pub threads: usize,
    /// Mean time of the emulated disk.
    pub disk_us: f64,
    /// Time since the cache was made.
    pub at_seconds: f64,
    /// Time of its own runs.
    pub run_seconds: f64,
    /// The phase that began.
    pub phase: &'static str,
    /// Why.
    pub reason: String,
    /// Its knowledge then, a look later at the latest.
    #[serde(flatten)]
    pub known: Known,
}

/// The knowledge of the controller.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Known {
    /// The share of the entries to be frozen that it learned.
    pub learned_ratio: f64,
    /// Of a hit on a frozen entry.
    pub frozen_ns: Option<f64>,
    /// Of a hit on another.
    pub dynamic_ns: Option<f64>,
    /// Of a miss.
    pub miss_ns: Option<f64>,
    /// Of a request while nothing is frozen.
    pub baseline_ns: Option<f64>,
    /// Of a request while the frozen index serves.
    pub freezing_ns: Option<f64>,
}

/// The decisions of a cache's controller.
pub fn decided(identity: &Identity, measured: &Measured) -> Vec<Decided> {
    let of = |(number, seen): (usize, &Decision)| Decided {
        decision: number,
        cache: "floe",
        policy: identity.policy.clone(),
        freezing: identity.freezing.frozen.to_string(),
        capacity: identity.capacity,
        threads: identity.setup.threads,
        disk_us: identity.setup.disk.mean_ns as f64 / 1e3,
        at_seconds: seen.decision.at.as_secs_f64(),
        run_seconds: seen.seconds,
        phase: seen.decision.phase.name(),
        reason: seen.decision.reason.clone(),
        known: Known {
            learned_ratio: seen.stats.ratio,
            frozen_ns: seen.stats.frozen_ns,
            dynamic_ns: seen.stats.dynamic_ns,
            miss_ns: seen.stats.miss_ns,
            baseline_ns: seen.stats.baseline_ns,
            freezing_ns: seen.stats.freezing_ns,
        },
    };
    measured.watch.decisions.iter().enumerate().map(of).collect()
}

impl Freeze {
    fn of(stats: &FreezeStats) -> Self {
        Self {
            phase: stats.phase.name(),
            learned_ratio: stats.ratio,
            frozen_ns: stats.frozen_ns,
            dynamic_ns: stats.dynamic_ns,
            miss_ns: stats.miss_ns,
            baseline_ns: stats.baseline_ns,
            freezing_ns: stats.freezing_ns,
            construction_seconds: stats.construction.as_secs_f64(),
            lifetime_seconds: stats.lifetime.as_secs_f64(),
            learned: stats.learned,
            constructed: stats.constructed,
            refreshed: stats.refreshed,
            given_up: stats.given_up,
        }
    }
}

/// A cache against the first one.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Ratio {
    /// Throughput over throughput of the first.
    pub ratio: f64,
    /// Where its interval begins.
    pub ratio_low: f64,
    /// Where its interval ends.
    pub ratio_high: f64,
    /// Processor time an operation over that of the first.
    pub cpu_ratio: f64,
    /// Where its interval begins.
    pub cpu_ratio_low: f64,
    /// Where its interval ends.
    pub cpu_ratio_high: f64,
}

/// Latency of writes.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Write {
    /// Half of them.
    pub write_ns_p50: u64,
    /// All but the slowest hundredth.
    pub write_ns_p99: u64,
}

/// The times that clients were parked.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Park {
    /// The mean.
    pub park_us_mean: f64,
    /// Half of them.
    pub park_us_p50: f64,
    /// All but the longest hundredth.
    pub park_us_p99: f64,
}

impl BenchResult {
    /// Makes the results of one of Floe's caches, beside those of the one that ran first.
    pub fn new(identity: &Identity, measured: &Measured, first: Option<&Measured>) -> Self {
        let ops_per_second = Estimate::of(each(measured, |repetition| repetition.ops_per_second));
        let cpu_ns_per_op = Estimate::of(each(measured, |repetition| repetition.cpu_ns_per_op));
        let total = &measured.total;
        let Setup { threads, mpl, disk } = identity.setup;
        let ns = |histogram: &Histogram<u64>, share| {
            (!histogram.is_empty()).then(|| histogram.value_at_quantile(share))
        };
        let us = |histogram, share| ns(histogram, share).map(|ns: u64| ns as f64 / 1e3);
        Self {
            cache: "floe",
            policy: identity.policy.clone(),
            admission: measured.admission.as_ref().map(Admitted::of),
            frozen: identity.freezing.frozen != Frozen::Off,
            freezing: identity.freezing.frozen.to_string(),
            shards: identity.shards,
            capacity: identity.capacity,
            keys: identity.keys,
            value_bytes: identity.value_bytes,
            threads,
            mpl,
            disk_us: disk.mean_ns as f64 / 1e3,
            hit_ratio: total.hit_ratio(),
            frozen_share: measured.watch.frozen_share(),
            frozen_ratio: measured.watch.frozen_ratio(),
            freeze: measured.watch.freezes.as_ref().map(|freezes| Freeze::of(&freezes.stats)),
            phases: PhaseTime::of(&measured.watch.samples),
            ops_per_second: ops_per_second.median,
            ops_per_second_low: ops_per_second.low,
            ops_per_second_high: ops_per_second.high,
            confidence: ops_per_second.confidence,
            ratio: first.map(|first| Ratio::of(measured, first)),
            hit_ns_p50: ns(&total.hit_ns, 0.5),
            hit_ns_p99: ns(&total.hit_ns, 0.99),
            hit_ns_p999: ns(&total.hit_ns, 0.999),
            miss_us_p50: us(&total.miss_ns, 0.5),
            miss_us_p99: us(&total.miss_ns, 0.99),
            write: (!total.write_ns.is_empty()).then(|| Write {
                write_ns_p50: total.write_ns.value_at_quantile(0.5),
                write_ns_p99: total.write_ns.value_at_quantile(0.99),
            }),
            park: (!total.park_ns.is_empty()).then(|| Park {
                park_us_mean: total.park_ns.mean() / 1e3,
                park_us_p50: total.park_ns.value_at_quantile(0.5) as f64 / 1e3,
                park_us_p99: total.park_ns.value_at_quantile(0.99) as f64 / 1e3,
            }),
            cpu_ns_per_op: cpu_ns_per_op.median,
            cpu_ns_per_op_low: cpu_ns_per_op.low,
            cpu_ns_per_op_high: cpu_ns_per_op.high,
            idle_share: total.idle_ns as f64 / total.wall_ns.max(1) as f64,
            operations: total.taken,
            hits: total.hits,
            misses: total.misses,
            writes: total.writes,
            repetitions: measured.repetitions.len(),
            seconds: total.wall_ns as f64 / threads as f64 / 1e9,
            warm_up_seconds: measured.warmed.seconds,
            settled: measured.warmed.settled,
            clock_ns: measured.clock_ns,
        }
    }
}

impl Ratio {
    fn of(measured: &Measured, first: &Measured) -> Self {
        let ratio = |figure: fn(&Repetition) -> f64| {
            Estimate::of_ratios(&each(measured, figure), &each(first, figure))
        };
        let throughput = ratio(|repetition| repetition.ops_per_second);
        let cpu = ratio(|repetition| repetition.cpu_ns_per_op);
        Self {
            ratio: throughput.median,
            ratio_low: throughput.low,
            ratio_high: throughput.high,
            cpu_ratio: cpu.median,
            cpu_ratio_low: cpu.low,
            cpu_ratio_high: cpu.high,
        }
    }
}

fn each(measured: &Measured, figure: impl Fn(&Repetition) -> f64) -> Vec<f64> {
    measured.repetitions.iter().map(figure).collect()
}
