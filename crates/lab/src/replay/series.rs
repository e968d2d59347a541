//! A replay over time: the same figures for each interval.

use std::time::{Duration, Instant};

use floe_block::{Kind, Stats};
use serde::Serialize;

use super::latencies::Latencies;
use crate::interval::Interval;

/// One interval. Latencies are none without such requests; bytes are of the first tier's device,
/// and of the backing devices below the last.
#[derive(Debug, Clone, Serialize)]
pub struct IntervalResult {
    /// Requests that were counted before it.
    pub after_requests: u64,
    /// Its requests.
    pub requests: u64,
    /// Its end, by the replay's clock, since the first request that counted.
    pub seconds: f64,
    /// Requests a second; none where no time passed.
    pub requests_per_second: Option<f64>,
    /// Share of reads that found all they wanted cached; none without reads.
    pub read_hit_ratio: Option<f64>,
    /// Share of writes that found blocks for all they wrote; none without writes.
    pub write_hit_ratio: Option<f64>,
    /// Mean latency of reads.
    pub read_us_mean: Option<f64>,
    /// Median.
    pub read_us_p50: Option<f64>,
    /// 99th percentile.
    pub read_us_p99: Option<f64>,
    /// 99.9th percentile.
    pub read_us_p999: Option<f64>,
    /// Mean latency of writes.
    pub write_us_mean: Option<f64>,
    /// Median.
    pub write_us_p50: Option<f64>,
    /// 99th percentile.
    pub write_us_p99: Option<f64>,
    /// 99.9th percentile.
    pub write_us_p999: Option<f64>,
    /// Bytes read from the backing devices.
    pub backing_read_bytes: u64,
    /// Bytes written to the backing devices.
    pub backing_write_bytes: u64,
    /// Bytes read from the cache device.
    pub cache_read_bytes: u64,
    /// Bytes written to the cache device.
    pub cache_write_bytes: u64,
    /// Bytes at its end that the backing devices do not have.
    pub dirty_bytes: u64,
}

/// The intervals of a replay so far.
pub(super) struct Series {
    every: Interval,
    began: Instant,
    /// Of the interval under way.
    begins: Instant,
    before: Vec<Stats>,
    requests: u64,
    reads: Latencies,
    writes: Latencies,
    counted: u64,
    results: Vec<IntervalResult>,
}

impl Series {
    /// Begins with the first interval; `stats` are the counters of each tier.
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

    /// Counts a request that is answered now. Returns whether the interval is full.
    pub(super) fn note(&mut self, kind: Kind, latency: Duration, now: Instant) -> bool {
        self.requests += 1;
        match kind {
            Kind::Read => self.reads.record(latency),
            Kind::Write { .. } => self.writes.record(latency),
            _ => {}
        }
        match self.every {
            Interval::Requests(every) => self.requests >= every,
            Interval::Time(every) => now - self.begins >= every,
        }
    }

    /// Ends the interval under way.
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

    /// Returns all intervals, with the one under way if it has requests.
    pub(super) fn finish(mut self, now: Instant, stats: Vec<Stats>) -> Vec<IntervalResult> {
        if self.requests > 0 {
            self.end(now, stats);
        }
        self.results
    }
}
