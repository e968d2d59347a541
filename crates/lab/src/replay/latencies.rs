//! Latencies of requests, and the results of one volume of a replay with several.

use std::fmt;
use std::time::Duration;

use floe_block::RequestKind;
use hdrhistogram::Histogram;
use serde::Serialize;

/// Longest latency that histograms distinguish: an hour, in nanoseconds. Latencies keep [`DIGITS`]
/// significant digits.
const LONGEST_NS: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;

/// Upper end of a histogram's first step in nanoseconds. Steps double, so that a microsecond is the
/// end of one.
const FIRST_STEP_NS: u64 = 125;

/// Latencies of one kind of request.
#[derive(Clone)]
pub struct Latencies(Histogram<u64>);

impl fmt::Debug for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Latencies({:?})", self.steps())
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("the bounds are in order"))
    }
}

impl Latencies {
    pub(crate) fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Returns the latencies of both, such as those of reads and of writes.
    pub(crate) fn merged(&self, other: &Self) -> Self {
        let mut all = self.clone();
        all.0.add(&other.0).expect("all histograms have the same bounds");
        all
    }

    /// Returns the number of latencies.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the mean latency in microseconds; `None` without requests.
    pub(crate) fn mean_us(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.0.mean() / 1e3)
    }

    /// Returns the latency in microseconds that this share of the requests does not exceed; `None`
    /// without requests.
    pub fn quantile_us(&self, share: f64) -> Option<f64> {
        (self.count() > 0).then(|| self.0.value_at_quantile(share) as f64 / 1e3)
    }

    /// Returns the histogram in steps that double, from the first to the last one with requests. A
    /// step has its upper end in microseconds, and its number of requests.
    pub fn steps(&self) -> Vec<(f64, u64)> {
        let steps: Vec<(f64, u64)> = self
            .0
            .iter_log(FIRST_STEP_NS, 2.0)
            .map(|step| (step.value_iterated_to() as f64 / 1e3, step.count_since_last_iteration()))
            .collect();
        let first = steps.iter().position(|(_, count)| *count > 0).unwrap_or(steps.len());
        let last = steps.iter().rposition(|(_, count)| *count > 0).map_or(first, |last| last + 1);
        steps[first..last].to_vec()
    }
}

/// Results of one volume of a replay, without the warm-up. Latencies include the time for which
/// requests wait for the limits of the volume.
#[derive(Debug, Clone, Serialize)]
pub struct VolumeOutcome {
    /// Name of the volume.
    pub volume: String,
    /// Number of reads.
    pub reads: u64,
    /// Reads whose data was all cached, in the first tier.
    pub read_hits: u64,
    /// Share of reads that hit.
    pub read_hit_ratio: f64,
    /// Number of writes.
    pub writes: u64,
    /// Writes for whose whole range the first tier had blocks.
    pub write_hits: u64,
    /// Share of writes that hit.
    pub write_hit_ratio: f64,
    /// Mean latency of reads and writes in microseconds; `None` without requests.
    pub us_mean: Option<f64>,
    /// 99th percentile of the latency of reads and writes in microseconds.
    pub us_p99: Option<f64>,
    /// Mean latency of reads in microseconds; `None` without reads.
    pub read_us_mean: Option<f64>,
    /// 99th percentile of the latency of reads in microseconds.
    pub read_us_p99: Option<f64>,
    /// Mean latency of writes in microseconds; `None` without writes.
    pub write_us_mean: Option<f64>,
    /// 99th percentile of the latency of writes in microseconds.
    pub write_us_p99: Option<f64>,
    /// Bytes read from the volume's backing device.
    pub backing_read_bytes: u64,
    /// Bytes written to the volume's backing device, including the flush at the end.
    pub backing_write_bytes: u64,
    /// Bytes of the volume's blocks in the first tier at the end.
    pub cached_bytes: u64,
}

/// Measurements of one volume's requests.
#[derive(Debug, Clone, Default)]
pub(super) struct VolumeMeasured {
    reads: Latencies,
    read_hits: u64,
    writes: Latencies,
    write_hits: u64,
}

impl VolumeMeasured {
    /// Creates one for each of several volumes; none for a single one, whose results are those of
    /// the replay.
    pub(super) fn of_each(volumes: usize) -> Vec<Self> {
        if volumes > 1 { vec![Self::default(); volumes] } else { Vec::new() }
    }

    /// Counts a request that has ended.
    pub(super) fn note(&mut self, kind: RequestKind, latency: Duration, hit: bool) {
        let (latencies, hits) = match kind {
            RequestKind::Read => (&mut self.reads, &mut self.read_hits),
            RequestKind::Write { .. } => (&mut self.writes, &mut self.write_hits),
            _ => return,
        };
        latencies.record(latency);
        *hits += u64::from(hit);
    }

    /// Returns the results of the volume. `moved` are the bytes that its backing device has read
    /// and written, and `cached_bytes` those of its blocks.
    pub(super) fn outcome(self, name: &str, moved: (u64, u64), cached_bytes: u64) -> VolumeOutcome {
        let Self { reads, read_hits, writes, write_hits } = self;
        let ratio = |hits: u64, all: u64| hits as f64 / all.max(1) as f64;
        let (of_reads, of_writes) = (reads.count(), writes.count());
        let all = reads.merged(&writes);
        VolumeOutcome {
            volume: name.to_owned(),
            reads: of_reads,
            read_hits,
            read_hit_ratio: ratio(read_hits, of_reads),
            writes: of_writes,
            write_hits,
            write_hit_ratio: ratio(write_hits, of_writes),
            us_mean: all.mean_us(),
            us_p99: all.quantile_us(0.99),
            read_us_mean: reads.mean_us(),
            read_us_p99: reads.quantile_us(0.99),
            write_us_mean: writes.mean_us(),
            write_us_p99: writes.quantile_us(0.99),
            backing_read_bytes: moved.0,
            backing_write_bytes: moved.1,
            cached_bytes,
        }
    }
}
