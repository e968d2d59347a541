//! Results of a replay: the fields of `floe replay`.

use std::time::Duration;

use floe_block::{Config, Stats};
use serde::Serialize;

use super::cost::CostOutcome;
use super::endurance::{Endurance, Recorded};
use super::latencies::Latencies;
use super::series::IntervalResult;
use super::shed::ShedOutcome;
use super::tiers::TierOutcome;
use crate::admission::AdmissionOutcome;

/// One step of a histogram.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LatencyStep {
    /// Latencies up to here, and above the step before.
    pub up_to_us: f64,
    /// The number of requests.
    pub count: u64,
}

/// The results of a replay. Warm-up is left out of everything but `metadata_bytes`, which is as at
/// the end and of all tiers. Where a cache has several tiers, what else is said of the cache is of
/// the first one, and backing devices are those that the last one stands on; `tiers` has each.
#[derive(Debug, Clone, Serialize)]
pub struct ReplayResult {
    /// The trace.
    pub trace: String,
    /// The block sizes.
    pub blocks: String,
    /// Size of the cache in bytes.
    pub cache_bytes: u64,
    /// When writes reached which device.
    pub write: String,
    /// The policy that decided what left.
    pub evict: String,
    /// `real` or `virtual`.
    pub time: &'static str,
    /// Requests.
    pub requests: u64,
    /// Requests before those, not counted.
    pub warmup_requests: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Trims.
    pub trims: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Bytes of the writes.
    pub write_bytes: u64,
    /// Mean latency of reads; none of these without reads.
    pub read_us_mean: Option<f64>,
    /// Median.
    pub read_us_p50: Option<f64>,
    /// 99th percentile.
    pub read_us_p99: Option<f64>,
    /// 99.9th percentile.
    pub read_us_p999: Option<f64>,
    /// Longest.
    pub read_us_max: Option<f64>,
    /// Mean latency of writes.
    pub write_us_mean: Option<f64>,
    /// Median.
    pub write_us_p50: Option<f64>,
    /// 99th percentile.
    pub write_us_p99: Option<f64>,
    /// 99.9th percentile.
    pub write_us_p999: Option<f64>,
    /// Longest.
    pub write_us_max: Option<f64>,
    /// Time from the first request to the last answer, by the replay's clock.
    pub seconds: f64,
    /// Requests a second; none where no time passed, as in virtual time on devices without a
    /// medium.
    pub requests_per_second: Option<f64>,
    /// Bytes read and written a second, likewise.
    pub bytes_per_second: Option<f64>,
    /// The longest delay of a request's begin, at recorded times.
    pub late_us_max: f64,
    /// Reads that found all they wanted cached.
    pub read_hits: u64,
    /// Writes that found blocks for all they wrote.
    pub write_hits: u64,
    /// Share of reads that hit.
    pub read_hit_ratio: f64,
    /// Share of writes that hit.
    pub write_hit_ratio: f64,
    /// Bytes read from the backing devices.
    pub backing_read_bytes: u64,
    /// Bytes written to the backing devices, those of the flush at the end too.
    pub backing_write_bytes: u64,
    /// Bytes read from the cache device.
    pub cache_read_bytes: u64,
    /// Bytes written to the cache device.
    pub cache_write_bytes: u64,
    /// Memory held for blocks, groups, and valid and dirty bits, of all tiers.
    pub metadata_bytes: u64,
    /// Blocks made.
    pub blocks_allocated: u64,
    /// Their mean size.
    pub mean_block_bytes: f64,
    /// Mean size of the requests that were not hits.
    pub mean_missed_bytes: f64,
    /// Time the cache's own code took a request, measured, also in virtual time.
    pub processing_us: f64,
    /// Time the flush at the end took, by the replay's clock.
    pub flush_seconds: f64,
    /// Bytes that were compared with what they should be.
    pub verified_bytes: u64,
    /// Time it took the machine.
    pub wall_seconds: f64,
    /// Smallest blocks fetched before they were asked for, because they came next in a stream.
    pub prefetched_blocks: u64,
    /// Their bytes.
    pub prefetched_bytes: u64,
    /// Those that were read before they left.
    pub prefetched_used_blocks: u64,
    /// The offers to the cache and their fate, where an admission was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionOutcome>,
    /// The tiers of the cache, from the top, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<TierOutcome>,
    /// The price of the tiers, where prices were given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostOutcome>,
    /// The requests that were shed, where that was allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shed: Option<ShedOutcome>,
    /// Bytes written to the cache device for each byte that requests wrote; none without writes.
    pub write_amplification: Option<f64>,
    /// The endurance that these writes need; none where no time passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endurance: Option<Endurance>,
    /// The replay over time, where asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<IntervalResult>,
    /// Latencies of reads, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_histogram: Option<Vec<LatencyStep>>,
    /// Latencies of writes, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_histogram: Option<Vec<LatencyStep>>,
    /// All latencies of reads.
    #[serde(skip)]
    pub read_latencies: Latencies,
    /// All latencies of writes.
    #[serde(skip)]
    pub write_latencies: Latencies,
}

/// The measurements beside the cache's own counters.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) reads: Latencies,
    pub(super) writes: Latencies,
    pub(super) trims: u64,
    pub(super) recorded: Recorded,
    pub(super) warmup_requests: u64,
    pub(super) elapsed: Duration,
    pub(super) flush: Duration,
    pub(super) wall: Duration,
    pub(super) processing: Duration,
    pub(super) late_most: Duration,
    pub(super) verified_bytes: u64,
    pub(super) shed: Option<ShedOutcome>,
    pub(super) intervals: Vec<IntervalResult>,
}

impl ReplayResult {
    /// Puts measurements together with what the tiers of the cache have counted since `before`.
    pub(super) fn new(
        trace: &str,
        tiers: &[Config],
        time: &'static str,
        measured: Measured,
        before: &[Stats],
        after: &[Stats],
    ) -> Self {
        let all: Vec<Stats> =
            before.iter().zip(after).map(|(before, after)| after.since(before)).collect();
        let (config, gained, lowest) = (&tiers[0], &all[0], &all[all.len() - 1]);
        let counted = &gained.requests;
        let requests = counted.reads + counted.writes + measured.trims;
        let seconds = measured.elapsed.as_secs_f64();
        let per_second = |count: u64| (seconds > 0.0).then(|| count as f64 / seconds);
        let ratio = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        let (reads, writes) = (&measured.reads, &measured.writes);
        Self {
            trace: trace.to_owned(),
            blocks: config.sizes.to_string(),
            cache_bytes: config.cache_bytes,
            write: config.mode.to_string(),
            evict: config.evict.to_string(),
            time,
            requests,
            warmup_requests: measured.warmup_requests,
            reads: counted.reads,
            writes: counted.writes,
            trims: measured.trims,
            read_bytes: counted.read_bytes,
            write_bytes: counted.write_bytes,
            read_us_mean: reads.mean_us(),
            read_us_p50: reads.quantile_us(0.5),
            read_us_p99: reads.quantile_us(0.99),
            read_us_p999: reads.quantile_us(0.999),
            read_us_max: reads.quantile_us(1.0),
            write_us_mean: writes.mean_us(),
            write_us_p50: writes.quantile_us(0.5),
            write_us_p99: writes.quantile_us(0.99),
            write_us_p999: writes.quantile_us(0.999),
            write_us_max: writes.quantile_us(1.0),
            seconds,
            requests_per_second: per_second(requests),
            bytes_per_second: per_second(counted.read_bytes + counted.write_bytes),
            late_us_max: measured.late_most.as_nanos() as f64 / 1e3,
            read_hits: counted.read_hits,
            write_hits: counted.write_hits,
            read_hit_ratio: ratio(counted.read_hits, counted.reads),
            write_hit_ratio: ratio(counted.write_hits, counted.writes),
            backing_read_bytes: lowest.counters.backing_read_bytes,
            backing_write_bytes: lowest.counters.backing_write_bytes,
            cache_read_bytes: gained.counters.cache_read_bytes,
            cache_write_bytes: gained.counters.cache_write_bytes,
            metadata_bytes: all.iter().map(Stats::metadata_bytes).sum(),
            blocks_allocated: gained.blocks_allocated(),
            mean_block_bytes: gained.mean_block_bytes(),
            mean_missed_bytes: gained.mean_missed_bytes(),
            processing_us: measured.processing.as_nanos() as f64 / 1e3 / requests.max(1) as f64,
            flush_seconds: measured.flush.as_secs_f64(),
            verified_bytes: measured.verified_bytes,
            wall_seconds: measured.wall.as_secs_f64(),
            prefetched_blocks: gained.counters.prefetched_blocks,
            prefetched_bytes: gained.counters.prefetched_bytes,
            prefetched_used_blocks: gained.counters.prefetched_used_blocks,
            admission: AdmissionOutcome::of(&config.gate, gained),
            tiers: match all.len() {
                1 => Vec::new(),
                _ => tiers
                    .iter()
                    .zip(&all)
                    .map(|(config, stats)| TierOutcome::new(config, stats))
                    .collect(),
            },
            cost: None,
            shed: measured
                .shed
                .map(|shed| ShedOutcome { bytes: gained.counters.shed_bytes, ..shed }),
            write_amplification: (counted.write_bytes > 0)
                .then(|| gained.counters.cache_write_bytes as f64 / counted.write_bytes as f64),
            endurance: Endurance::of(
                gained.counters.cache_write_bytes,
                config.cache_bytes,
                &measured.recorded,
                seconds,
            ),
            series: measured.intervals,
            read_histogram: None,
            write_histogram: None,
            read_latencies: measured.reads,
            write_latencies: measured.writes,
        }
    }

    /// Puts among the fields what the tiers would cost, each at its price for a byte in bytes of
    /// DRAM, from the top.
    ///
    /// # Panics
    /// When there are not as many prices as tiers.
    pub fn price(&mut self, prices: Vec<f64>) {
        let sizes: Vec<u64> = match &self.tiers[..] {
            [] => vec![self.cache_bytes],
            tiers => tiers.iter().map(|tier| tier.cache_bytes).collect(),
        };
        self.cost = Some(CostOutcome::of(&sizes, self.requests_per_second, prices));
    }

    /// Puts the histograms among the fields.
    pub fn show_histograms(&mut self) {
        let steps = |latencies: &Latencies| {
            Some(
                latencies
                    .steps()
                    .into_iter()
                    .map(|(up_to_us, count)| LatencyStep { up_to_us, count })
                    .collect(),
            )
        };
        self.read_histogram = steps(&self.read_latencies);
        self.write_histogram = steps(&self.write_latencies);
    }
}
