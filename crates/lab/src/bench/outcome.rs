//! Results of a measured cache: the output fields of `floe bench memory`.

use floe_memory::{AdmissionStats, FreezeStats};
use hdrhistogram::Histogram;
use serde::Serialize;

use super::competitor::Setup;
use super::measure::{Estimate, Measured, PhaseTime, Repetition};
use super::subject::{Freezing, Frozen};
use super::warm_up::Decision;

/// Settings of a measured cache, which its result lines repeat.
#[derive(Debug, Clone, PartialEq)]
pub struct Identity {
    /// The eviction policy with its parameters, and with the admission policy if there is one.
    pub policy: String,
    /// Number of shards.
    pub shards: usize,
    /// Capacity in entries.
    pub capacity: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Distinct keys of the load.
    pub keys: usize,
    /// Settings for freezing hot entries.
    pub freezing: Freezing,
    /// Threads, clients and emulated disk.
    pub setup: Setup,
}

/// A result line for one cache. Throughputs, processor times and ratios are medians of the
/// repetitions, with the interval that holds the true median with probability `confidence`.
/// Latencies are those of all repetitions together.
#[derive(Debug, Clone, Serialize)]
pub struct BenchResult {
    /// Name of the cache library.
    pub cache: &'static str,
    /// The eviction policy with its parameters, and with the admission policy if there is one.
    pub policy: String,
    /// Counters of the admission policy; `None` without such a policy.
    #[serde(flatten)]
    pub admission: Option<Admitted>,
    /// True if the cache may freeze its hottest entries.
    pub frozen: bool,
    /// Setting of freezing: `off`, `adaptive`, or the fixed share of the entries to freeze.
    pub freezing: String,
    /// Number of shards.
    pub shards: usize,
    /// Capacity in entries.
    pub capacity: u64,
    /// Distinct keys of the load.
    pub keys: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Number of operating-system threads.
    pub threads: usize,
    /// Number of clients, and so the most requests in flight.
    pub mpl: usize,
    /// Mean latency of the emulated disk in microseconds.
    pub disk_us: f64,
    /// Share of lookups that hit.
    pub hit_ratio: f64,
    /// Share of the hits that were on frozen entries.
    pub frozen_share: f64,
    /// Share of the entries that were frozen, on average.
    pub frozen_ratio: f64,
    /// State of the freeze controller at the end; `None` where the cache does not freeze.
    #[serde(flatten)]
    pub freeze: Option<Freeze>,
    /// Time and throughput by phase of the freeze controller, where the cache freezes adaptively.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseTime>,
    /// Operations a second on all threads together.
    pub ops_per_second: f64,
    /// Lower end of the throughput's confidence interval.
    pub ops_per_second_low: f64,
    /// Upper end of the throughput's confidence interval.
    pub ops_per_second_high: f64,
    /// Probability that each interval holds the true median.
    pub confidence: f64,
    /// Throughput relative to that of the first cache, which ran in turn with this one: the median
    /// over the pairs of runs.
    #[serde(flatten)]
    pub ratio: Option<Ratio>,
    /// Median latency of a hit in nanoseconds.
    pub hit_ns_p50: Option<u64>,
    /// 99th percentile of the latency of hits in nanoseconds.
    pub hit_ns_p99: Option<u64>,
    /// 99.9th percentile of the latency of hits in nanoseconds.
    pub hit_ns_p999: Option<u64>,
    /// Median latency of a miss in microseconds, from before its lookup to after its fill.
    pub miss_us_p50: Option<f64>,
    /// 99th percentile of the latency of misses in microseconds.
    pub miss_us_p99: Option<f64>,
    /// Latency of writes; `None` without writes.
    #[serde(flatten)]
    pub write: Option<Write>,
    /// Measured times that clients were parked; `None` without a disk.
    #[serde(flatten)]
    pub park: Option<Park>,
    /// Processor time per operation in nanoseconds, including busy waiting for the disk.
    pub cpu_ns_per_op: f64,
    /// Lower end of the confidence interval of the processor time.
    pub cpu_ns_per_op_low: f64,
    /// Upper end of the confidence interval of the processor time.
    pub cpu_ns_per_op_high: f64,
    /// Share of the threads' time in which all of their clients were parked.
    pub idle_share: f64,
    /// Operations taken from the load. This differs from `hits + misses + writes` by clients that
    /// were parked when counting began or ended.
    pub operations: u64,
    /// Lookups that hit.
    pub hits: u64,
    /// Lookups that missed.
    pub misses: u64,
    /// Number of writes.
    pub writes: u64,
    /// Number of runs that count.
    pub repetitions: usize,
    /// Number of runs that do not count because other work on the machine took too much of them.
    pub disturbed_runs: usize,
    /// Median share of a run's time that other work on the machine took.
    pub disturbed_share: f64,
    /// Total duration of all runs in seconds.
    pub seconds: f64,
    /// Duration of the warm-up in seconds.
    pub warm_up_seconds: f64,
    /// True if the cache was warm before the measurement, false if the warm-up ran out of time.
    pub settled: bool,
    /// Nanoseconds of reading the clock, which are subtracted from each latency.
    pub clock_ns: u64,
}

/// Counters of the admission policy since the cache was made, warm-up included.
#[derive(Debug, Clone, Serialize)]
pub struct Admitted {
    /// The admission policy with its parameters.
    pub admission: String,
    /// Entries offered to the admission policy.
    pub offered: u64,
    /// Offered entries that were admitted.
    pub admitted: u64,
    /// Offered entries that were declined.
    pub bypassed: u64,
}

impl Admitted {
    fn of(stats: &AdmissionStats) -> Self {
        let &AdmissionStats { ref name, offered, admitted, bypassed, .. } = stats;
        Self { admission: name.clone(), offered, admitted, bypassed }
    }
}

/// State of the freeze controller at the end. Latencies are the last ones that the cache itself
/// measured.
#[derive(Debug, Clone, Serialize)]
pub struct Freeze {
    /// Current phase of the controller.
    pub phase: &'static str,
    /// Share of the entries to freeze, as the controller learned it; 0 when freezing does not pay.
    pub learned_ratio: f64,
    /// Nanoseconds of a hit on a frozen entry.
    pub frozen_ns: Option<f64>,
    /// Nanoseconds of a hit on an entry that is not frozen.
    pub dynamic_ns: Option<f64>,
    /// Nanoseconds of a miss.
    pub miss_ns: Option<f64>,
    /// Nanoseconds of a request while no entry is frozen.
    pub baseline_ns: Option<f64>,
    /// Nanoseconds of a request while the frozen index is in use.
    pub freezing_ns: Option<f64>,
    /// Seconds of the last construction of the frozen index.
    pub construction_seconds: f64,
    /// Age in seconds at which the frozen index is built anew.
    pub lifetime_seconds: f64,
    /// Number of times that the controller finished learning.
    pub learned: u64,
    /// Number of frozen indexes published.
    pub constructed: u64,
    /// Number of frozen indexes that replaced one with the same ratio.
    pub refreshed: u64,
    /// Number of times that the controller gave up freezing because it did not pay.
    pub given_up: u64,
}

/// A decision of the freeze controller, as a result line.
#[derive(Debug, Clone, Serialize)]
pub struct Decided {
    /// Number of the decision, counted from 0.
    pub decision: usize,
    /// Name of the cache library.
    pub cache: &'static str,
    /// The eviction policy with its parameters.
    pub policy: String,
    /// Setting of freezing: `adaptive`, or the fixed share of the entries to freeze.
    pub freezing: String,
    /// Capacity in entries.
    pub capacity: u64,
    /// Number of operating-system threads.
    pub threads: usize,
    /// Mean latency of the emulated disk in microseconds.
    pub disk_us: f64,
    /// Seconds from the creation of the cache to the decision.
    pub at_seconds: f64,
    /// Seconds that this cache had run by the decision, without the turns of other caches.
    pub run_seconds: f64,
    /// The phase that began with the decision.
    pub phase: &'static str,
    /// The controller's reason for the decision.
    pub reason: String,
    /// Measurements of the controller when the decision was observed, up to one sampling interval
    /// later.
    #[serde(flatten)]
    pub known: Known,
}

/// Measurements of the freeze controller at the time of a decision.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Known {
    /// Share of the entries to freeze, as the controller learned it.
    pub learned_ratio: f64,
    /// Nanoseconds of a hit on a frozen entry.
    pub frozen_ns: Option<f64>,
    /// Nanoseconds of a hit on an entry that is not frozen.
    pub dynamic_ns: Option<f64>,
    /// Nanoseconds of a miss.
    pub miss_ns: Option<f64>,
    /// Nanoseconds of a request while no entry is frozen.
    pub baseline_ns: Option<f64>,
    /// Nanoseconds of a request while the frozen index is in use.
    pub freezing_ns: Option<f64>,
}

/// Returns the decisions of a cache's freeze controller.
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

/// Throughput and processor time of a cache relative to the first one.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Ratio {
    /// Throughput divided by that of the first cache.
    pub ratio: f64,
    /// Lower end of the confidence interval of `ratio`.
    pub ratio_low: f64,
    /// Upper end of the confidence interval of `ratio`.
    pub ratio_high: f64,
    /// Processor time per operation divided by that of the first cache.
    pub cpu_ratio: f64,
    /// Lower end of the confidence interval of `cpu_ratio`.
    pub cpu_ratio_low: f64,
    /// Upper end of the confidence interval of `cpu_ratio`.
    pub cpu_ratio_high: f64,
}

/// Latency of writes.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Write {
    /// Median latency of a write in nanoseconds.
    pub write_ns_p50: u64,
    /// 99th percentile of the latency of writes in nanoseconds.
    pub write_ns_p99: u64,
}

/// Times that clients were parked, from their miss until they resumed.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Park {
    /// Mean time parked, in microseconds.
    pub park_us_mean: f64,
    /// Median time parked, in microseconds.
    pub park_us_p50: f64,
    /// 99th percentile of the time parked, in microseconds.
    pub park_us_p99: f64,
}

impl BenchResult {
    /// Creates the result line of a Floe cache. Its ratios are to `first`, the cache that ran
    /// first.
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
            disturbed_runs: measured.disturbed_runs,
            disturbed_share: Estimate::of(each(measured, |run| run.disturbed_share)).median,
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
