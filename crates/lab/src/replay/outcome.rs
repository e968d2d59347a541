//! Results of a replay: the output fields of `floe replay`.

use std::time::{Duration, Instant};

use floe_block::{Config, RequestKind, Stats};
use serde::Serialize;

use super::bucket::BucketRequests;
use super::latencies::{Latencies, VolumeOutcome};
use crate::admission::AdmissionOutcome;
use crate::interval::Interval;

/// A step of a latency histogram.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LatencyStep {
    /// Upper end of the step in microseconds; its lower end is that of the step before.
    pub up_to_us: f64,
    /// Number of requests with a latency in the step.
    pub count: u64,
}

/// Results of a replay. The warm-up is left out, except in `metadata_bytes`, which is the memory of
/// all tiers at the end. In a cache with several tiers, other fields of the cache describe the
/// first tier, and backing devices are those below the last tier; `tiers` has the fields of each.
#[derive(Debug, Clone, Serialize)]
pub struct ReplayResult {
    /// Name of the trace.
    pub trace: String,
    /// Block sizes of the cache.
    pub blocks: String,
    /// Size of the cache in bytes.
    pub cache_bytes: u64,
    /// Write mode of the cache.
    pub write: String,
    /// Eviction policy of the cache.
    pub evict: String,
    /// Clock of the replay: `real` or `virtual`.
    pub time: &'static str,
    /// Number of requests.
    pub requests: u64,
    /// Number of requests of the warm-up, not part of `requests`.
    pub warmup_requests: u64,
    /// Number of reads.
    pub reads: u64,
    /// Number of writes.
    pub writes: u64,
    /// Number of trims.
    pub trims: u64,
    /// Bytes that reads asked for.
    pub read_bytes: u64,
    /// Bytes that writes brought.
    pub write_bytes: u64,
    /// Mean latency of reads in microseconds; `None` without reads.
    pub read_us_mean: Option<f64>,
    /// Median latency of reads in microseconds.
    pub read_us_p50: Option<f64>,
    /// 99th percentile of the latency of reads in microseconds.
    pub read_us_p99: Option<f64>,
    /// 99.9th percentile of the latency of reads in microseconds.
    pub read_us_p999: Option<f64>,
    /// Longest latency of a read in microseconds.
    pub read_us_max: Option<f64>,
    /// Mean latency of writes in microseconds; `None` without writes.
    pub write_us_mean: Option<f64>,
    /// Median latency of writes in microseconds.
    pub write_us_p50: Option<f64>,
    /// 99th percentile of the latency of writes in microseconds.
    pub write_us_p99: Option<f64>,
    /// 99.9th percentile of the latency of writes in microseconds.
    pub write_us_p999: Option<f64>,
    /// Longest latency of a write in microseconds.
    pub write_us_max: Option<f64>,
    /// Mean latency of reads and writes in microseconds; `None` without both.
    pub us_mean: Option<f64>,
    /// 99th percentile of the latency of reads and writes in microseconds.
    pub us_p99: Option<f64>,
    /// Time from the first request to the last completion in seconds, by the replay's clock.
    pub seconds: f64,
    /// Requests a second; `None` where no time passed, as in virtual time on devices without a
    /// medium.
    pub requests_per_second: Option<f64>,
    /// Bytes read and written a second; `None` where no time passed.
    pub bytes_per_second: Option<f64>,
    /// Longest delay of a request's beginning in microseconds, in a replay at recorded times.
    pub late_us_max: f64,
    /// Reads whose data was all cached.
    pub read_hits: u64,
    /// Writes for whose whole range the cache had blocks.
    pub write_hits: u64,
    /// Share of reads that hit.
    pub read_hit_ratio: f64,
    /// Share of writes that hit.
    pub write_hit_ratio: f64,
    /// Bytes read from the backing devices.
    pub backing_read_bytes: u64,
    /// Bytes written to the backing devices, including the flush at the end.
    pub backing_write_bytes: u64,
    /// Bytes read from the cache device.
    pub cache_read_bytes: u64,
    /// Bytes written to the cache device.
    pub cache_write_bytes: u64,
    /// Bytes of memory for blocks, groups, and valid and dirty bits, of all tiers.
    pub metadata_bytes: u64,
    /// Number of blocks allocated.
    pub blocks_allocated: u64,
    /// Mean size of allocated blocks in bytes.
    pub mean_block_bytes: f64,
    /// Mean size in bytes of the requests that were not hits.
    pub mean_missed_bytes: f64,
    /// Mean time in microseconds that the cache's own code took per request. Measured, also in
    /// virtual time.
    pub processing_us: f64,
    /// Duration of the flush at the end in seconds, by the replay's clock.
    pub flush_seconds: f64,
    /// Bytes of reads that were compared with the expected data.
    pub verified_bytes: u64,
    /// Real time that the replay took, in seconds.
    pub wall_seconds: f64,
    /// Smallest blocks that were fetched ahead of a sequential stream.
    pub prefetched_blocks: u64,
    /// Bytes that were fetched ahead of a sequential stream.
    pub prefetched_bytes: u64,
    /// Prefetched blocks that were read before they were evicted.
    pub prefetched_used_blocks: u64,
    /// Counters of the admission policy; `None` without such a policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionOutcome>,
    /// Results of each tier, from the top, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<CacheOutcome>,
    /// Results of each volume, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeOutcome>,
    /// Price of the tiers; `None` where no prices were given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostOutcome>,
    /// Results of the shed controller; `None` where it was disabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shed: Option<ShedOutcome>,
    /// Bytes written to the cache device per byte that requests wrote; `None` without writes.
    pub write_amplification: Option<f64>,
    /// Endurance that the writes to the cache device need; `None` where no time passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endurance: Option<Endurance>,
    /// Requests to the buckets of volumes, including those of the flush at the end; `None` without
    /// simulated volumes in buckets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket: Option<BucketOutcome>,
    /// Time series of the replay; empty unless requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<IntervalResult>,
    /// Latency histogram of reads; `None` unless requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_histogram: Option<Vec<LatencyStep>>,
    /// Latency histogram of writes; `None` unless requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_histogram: Option<Vec<LatencyStep>>,
    /// Latencies of all reads, for quantiles and histograms.
    #[serde(skip)]
    pub read_latencies: Latencies,
    /// Latencies of all writes, for quantiles and histograms.
    #[serde(skip)]
    pub write_latencies: Latencies,
}

/// Measurements of the replay loop, in addition to the cache's own counters.
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
    pub(super) bucket: Option<BucketRequests>,
    pub(super) intervals: Vec<IntervalResult>,
    pub(super) volumes: Vec<VolumeOutcome>,
}

impl ReplayResult {
    /// Combines measurements with what the tiers of the cache have counted since `before`.
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
        let both = reads.merged(writes);
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
            us_mean: both.mean_us(),
            us_p99: both.quantile_us(0.99),
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
                    .map(|(config, stats)| CacheOutcome::new(config, stats))
                    .collect(),
            },
            volumes: measured.volumes,
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
            bucket: measured
                .bucket
                .map(|requests| BucketOutcome::of(requests, &measured.recorded, seconds)),
            series: measured.intervals,
            read_histogram: None,
            write_histogram: None,
            read_latencies: measured.reads,
            write_latencies: measured.writes,
        }
    }

    /// Computes the price of the tiers, and stores it in `cost`. `prices` are those of a byte of
    /// each tier, from the top, relative to a byte of DRAM.
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

    /// Stores the latency histograms in the output fields.
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

/// Results of a tier. The requests of the first tier are those of the trace; those of each other
/// tier come from the tier above it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CacheOutcome {
    /// Block sizes of the tier.
    pub blocks: String,
    /// Size of the tier in bytes.
    pub cache_bytes: u64,
    /// Write mode of the tier.
    pub write: String,
    /// Eviction policy of the tier.
    pub evict: String,
    /// Reads that the tier received.
    pub reads: u64,
    /// Reads whose data was all cached.
    pub read_hits: u64,
    /// Share of reads that hit.
    pub read_hit_ratio: f64,
    /// Writes that the tier received.
    pub writes: u64,
    /// Writes for whose whole range the tier had blocks.
    pub write_hits: u64,
    /// Bytes read from the tier's device.
    pub cache_read_bytes: u64,
    /// Bytes written to the tier's device.
    pub cache_write_bytes: u64,
    /// Bytes read from the tier below, or from the backing devices.
    pub below_read_bytes: u64,
    /// Bytes written to the tier below, or to the backing devices, including the flush at the end.
    pub below_write_bytes: u64,
    /// Smallest blocks that were fetched ahead of a sequential stream.
    pub prefetched_blocks: u64,
    /// Bytes that were fetched ahead of a sequential stream.
    pub prefetched_bytes: u64,
    /// Prefetched blocks that were read before they were evicted.
    pub prefetched_used_blocks: u64,
    /// Bytes of memory for blocks, groups, and valid and dirty bits.
    pub metadata_bytes: u64,
    /// Counters of the admission policy; `None` without such a policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionOutcome>,
}

impl CacheOutcome {
    /// Creates the results of a tier from its settings and counters.
    pub(super) fn new(config: &Config, stats: &Stats) -> Self {
        let Stats { requests, counters, .. } = stats;
        Self {
            blocks: config.sizes.to_string(),
            cache_bytes: config.cache_bytes,
            write: config.mode.to_string(),
            evict: config.evict.to_string(),
            reads: requests.reads,
            read_hits: requests.read_hits,
            read_hit_ratio: requests.read_hits as f64 / requests.reads.max(1) as f64,
            writes: requests.writes,
            write_hits: requests.write_hits,
            cache_read_bytes: counters.cache_read_bytes,
            cache_write_bytes: counters.cache_write_bytes,
            below_read_bytes: counters.backing_read_bytes,
            below_write_bytes: counters.backing_write_bytes,
            prefetched_blocks: counters.prefetched_blocks,
            prefetched_bytes: counters.prefetched_bytes,
            prefetched_used_blocks: counters.prefetched_used_blocks,
            metadata_bytes: stats.block_metadata_bytes + stats.sector_metadata_bytes,
            admission: AdmissionOutcome::of(&config.gate, stats),
        }
    }
}

/// Results of one interval of a replay. Latencies are `None` without requests of their kind. Cache
/// bytes are those of the first tier's device, backing bytes those of the devices below the last
/// tier.
#[derive(Debug, Clone, Serialize)]
pub struct IntervalResult {
    /// Number of counted requests before the interval.
    pub after_requests: u64,
    /// Number of requests in the interval.
    pub requests: u64,
    /// End of the interval in seconds since the first counted request, by the replay's clock.
    pub seconds: f64,
    /// Requests a second; `None` where no time passed.
    pub requests_per_second: Option<f64>,
    /// Share of reads whose data was all cached; `None` without reads.
    pub read_hit_ratio: Option<f64>,
    /// Share of writes for whose whole range the cache had blocks; `None` without writes.
    pub write_hit_ratio: Option<f64>,
    /// Mean latency of reads in microseconds.
    pub read_us_mean: Option<f64>,
    /// Median latency of reads in microseconds.
    pub read_us_p50: Option<f64>,
    /// 99th percentile of the latency of reads in microseconds.
    pub read_us_p99: Option<f64>,
    /// 99.9th percentile of the latency of reads in microseconds.
    pub read_us_p999: Option<f64>,
    /// Mean latency of writes in microseconds.
    pub write_us_mean: Option<f64>,
    /// Median latency of writes in microseconds.
    pub write_us_p50: Option<f64>,
    /// 99th percentile of the latency of writes in microseconds.
    pub write_us_p99: Option<f64>,
    /// 99.9th percentile of the latency of writes in microseconds.
    pub write_us_p999: Option<f64>,
    /// Bytes read from the backing devices.
    pub backing_read_bytes: u64,
    /// Bytes written to the backing devices.
    pub backing_write_bytes: u64,
    /// Bytes read from the cache device.
    pub cache_read_bytes: u64,
    /// Bytes written to the cache device.
    pub cache_write_bytes: u64,
    /// Dirty bytes at the end of the interval.
    pub dirty_bytes: u64,
}

/// Completed intervals of a replay, and the current one.
pub(super) struct Series {
    every: Interval,
    began: Instant,
    /// Beginning of the current interval.
    begins: Instant,
    before: Vec<Stats>,
    requests: u64,
    reads: Latencies,
    writes: Latencies,
    counted: u64,
    results: Vec<IntervalResult>,
}

impl Series {
    /// Starts the first interval; `stats` are the counters of each tier.
    pub(super) fn new(every: Interval, now: Instant, stats: Vec<Stats>) -> Self {
        Self {
            every,
            began: now,
            begins: now,
            before: stats,
            requests: 0,
            reads: Latencies::default(),
            writes: Latencies::default(),
            counted: 0,
            results: Vec::new(),
        }
    }

    /// Counts a request that completes at `now`. Returns whether the interval is full.
    pub(super) fn note(&mut self, kind: RequestKind, latency: Duration, now: Instant) -> bool {
        self.requests += 1;
        match kind {
            RequestKind::Read => self.reads.record(latency),
            RequestKind::Write { .. } => self.writes.record(latency),
            _ => {}
        }
        match self.every {
            Interval::Requests(every) => self.requests >= every,
            Interval::Time(every) => now - self.begins >= every,
        }
    }

    /// Ends the current interval, and starts the next one.
    pub(super) fn end(&mut self, now: Instant, stats: Vec<Stats>) {
        let gained: Vec<Stats> =
            self.before.iter().zip(&stats).map(|(before, after)| after.since(before)).collect();
        let (Some(first), Some(lowest)) = (gained.first(), gained.last()) else { return };
        let asked = &first.requests;
        let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
        let seconds = (now - self.begins).as_secs_f64();
        let (reads, writes) = (&self.reads, &self.writes);
        self.results.push(IntervalResult {
            after_requests: self.counted,
            requests: self.requests,
            seconds: (now - self.began).as_secs_f64(),
            requests_per_second: (seconds > 0.0).then(|| self.requests as f64 / seconds),
            read_hit_ratio: share(asked.read_hits, asked.reads),
            write_hit_ratio: share(asked.write_hits, asked.writes),
            read_us_mean: reads.mean_us(),
            read_us_p50: reads.quantile_us(0.5),
            read_us_p99: reads.quantile_us(0.99),
            read_us_p999: reads.quantile_us(0.999),
            write_us_mean: writes.mean_us(),
            write_us_p50: writes.quantile_us(0.5),
            write_us_p99: writes.quantile_us(0.99),
            write_us_p999: writes.quantile_us(0.999),
            backing_read_bytes: lowest.counters.backing_read_bytes,
            backing_write_bytes: lowest.counters.backing_write_bytes,
            cache_read_bytes: first.counters.cache_read_bytes,
            cache_write_bytes: first.counters.cache_write_bytes,
            dirty_bytes: stats.iter().map(|tier| tier.dirty_bytes).sum(),
        });
        self.counted += self.requests;
        (self.before, self.begins, self.requests) = (stats, now, 0);
        (self.reads, self.writes) = (Latencies::default(), Latencies::default());
    }

    /// Returns all intervals, including the current one if it has requests.
    pub(super) fn finish(mut self, now: Instant, stats: Vec<Stats>) -> Vec<IntervalResult> {
        if self.requests > 0 {
            self.end(now, stats);
        }
        self.results
    }
}

/// Price of all tiers, and requests for that price.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CostOutcome {
    /// Price of a byte of each tier, from the top, relative to a byte of DRAM.
    pub prices: Vec<f64>,
    /// Price of all tiers, expressed as the amount of DRAM with this price, in GiB.
    pub gib: f64,
    /// Requests a second per `gib`; `None` where no time passed.
    pub requests_per_second_per_gib: Option<f64>,
}

impl CostOutcome {
    /// Computes the price of tiers with these sizes and prices, both from the top.
    ///
    /// # Panics
    /// When there are not as many prices as tiers.
    pub(super) fn of(sizes: &[u64], requests_per_second: Option<f64>, prices: Vec<f64>) -> Self {
        assert_eq!(sizes.len(), prices.len(), "each tier has a price");
        let bytes: f64 =
            sizes.iter().zip(&prices).map(|(bytes, price)| *bytes as f64 * price).sum();
        let gib = bytes / (1u64 << 30) as f64;
        Self {
            prices,
            gib,
            requests_per_second_per_gib: requests_per_second.map(|rate| rate / gib),
        }
    }
}

const SECONDS_PER_DAY: f64 = 86_400.0;
const DAYS_PER_YEAR: f64 = 365.25;

/// Writes to the first tier's device, at the pace of the trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Endurance {
    /// Clock that the pace is measured by: `trace` for the times recorded in the trace, `replay`
    /// where it has none.
    pub clock: &'static str,
    /// Bytes written to the device in a day.
    pub bytes_per_day: f64,
    /// Drive writes per day: how often a day the whole capacity of the device is written.
    pub drive_writes_per_day: f64,
    /// Terabytes (10¹² bytes) written to the device in a year.
    pub terabytes_per_year: f64,
}

impl Endurance {
    /// Computes the endurance from the bytes written to a device during a replay; `None` where no
    /// time passed.
    pub(super) fn of(
        written_bytes: u64,
        device_bytes: u64,
        recorded: &Recorded,
        replayed_seconds: f64,
    ) -> Option<Self> {
        let (clock, seconds) = recorded.pace(replayed_seconds);
        let bytes_per_day = written_bytes as f64 / seconds * SECONDS_PER_DAY;
        (seconds > 0.0).then(|| Self {
            clock,
            bytes_per_day,
            drive_writes_per_day: bytes_per_day / device_bytes.max(1) as f64,
            terabytes_per_year: bytes_per_day * DAYS_PER_YEAR / 1e12,
        })
    }
}

/// Requests to the buckets of volumes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BucketOutcome {
    /// Requests and bytes of the replay.
    #[serde(flatten)]
    pub requests: BucketRequests,
    /// Clock that the pace is measured by, as of [`Endurance::clock`].
    pub clock: &'static str,
    /// Number of times that the replay fits into 30 days at that pace; `None` where no time
    /// passed.
    pub times_a_month: Option<f64>,
}

const DAYS_PER_MONTH: f64 = 30.0;

impl BucketOutcome {
    pub(super) fn of(requests: BucketRequests, recorded: &Recorded, replayed_seconds: f64) -> Self {
        let (clock, seconds) = recorded.pace(replayed_seconds);
        let month = DAYS_PER_MONTH * SECONDS_PER_DAY;
        Self { requests, clock, times_a_month: (seconds > 0.0).then(|| month / seconds) }
    }
}

/// First and last recorded time of the counted requests, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Recorded(Option<(u64, u64)>);

impl Recorded {
    pub(super) fn note(&mut self, time_ns: u64) {
        let (first, last) = self.0.unwrap_or((time_ns, time_ns));
        self.0 = Some((first.min(time_ns), last.max(time_ns)));
    }

    /// Returns the clock that the pace is measured by, and the seconds that have passed on it.
    fn pace(&self, replayed_seconds: f64) -> (&'static str, f64) {
        match self.seconds() {
            Some(seconds) => ("trace", seconds),
            None => ("replay", replayed_seconds),
        }
    }

    /// Returns the span of the recorded times in seconds; `None` in a trace without times.
    fn seconds(&self) -> Option<f64> {
        let span_ns = self.0.map_or(0, |(first, last)| last - first);
        (span_ns > 0).then_some(span_ns as f64 / 1e9)
    }
}

/// A decision of the shed controller on the share of hits to shed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShedDecision {
    /// Seconds from the start of the replay to the decision, by the replay's clock.
    pub seconds: f64,
    /// Share of hits to shed after the decision.
    pub share: f64,
    /// The controller's reason, in words and numbers.
    pub reason: String,
}

/// Results of the shed controller, which sends hits to the backing devices.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ShedOutcome {
    /// Share of hits that was shed at the end.
    pub share: f64,
    /// Bytes of hits that were read from the backing devices, without those of the warm-up.
    pub bytes: u64,
    /// The most recent decisions, newest last.
    pub decisions: Vec<ShedDecision>,
}

#[cfg(test)]
mod endurance_tests {
    use super::*;

    #[test]
    fn a_device_written_twice_in_half_a_day_takes_four_drive_writes_a_day() {
        let mut recorded = Recorded::default();
        let written = |recorded: &Recorded| Endurance::of(2 << 30, 1 << 30, recorded, 3600.0);
        assert_eq!(written(&recorded).unwrap().drive_writes_per_day, 48.0, "no times");
        assert_eq!(Endurance::of(1, 1, &recorded, 0.0), None);
        [43_200, 0, 10_000]
            .into_iter()
            .for_each(|second| recorded.note((second + 7) * 1_000_000_000));
        let endurance = written(&recorded).unwrap();
        assert_eq!((endurance.clock, endurance.drive_writes_per_day), ("trace", 4.0));
        assert_eq!(endurance.bytes_per_day, (4u64 << 30) as f64);
        assert!((endurance.terabytes_per_year - 1.5687).abs() < 1e-3, "{endurance:?}");
    }
}
