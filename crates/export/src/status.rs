//! What a server tells about itself.

use std::time::Duration;

use floe_block::{Stats, WriteMode};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest latency kept apart, in nanoseconds: a minute.
const LONGEST_NS: u64 = 60_000_000_000;

/// Latencies of requests, from the arrival of the whole request to its reply being queued.
#[derive(Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_NS, 2).expect("the bounds are in order"))
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        self.0.saturating_record(latency.as_nanos() as u64);
    }

    fn summary(&self) -> Latency {
        let us = |quantile| self.0.value_at_quantile(quantile) as f64 / 1000.0;
        Latency { mean_us: self.0.mean() / 1000.0, p50_us: us(0.5), p99_us: us(0.99), p999_us: us(0.999) }
    }
}

/// Latencies in microseconds, 0 when there was no request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
}

/// Blocks of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockCount {
    /// Size of each.
    pub block_bytes: u64,
    /// How many there are.
    pub blocks: u64,
}

/// Everything `floe status` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Name of the volume.
    pub volume: String,
    /// Size of the volume.
    pub volume_bytes: u64,
    /// `through`, `around`, `back` or `pass`.
    pub write_mode: String,
    /// Time since the start.
    pub uptime_seconds: f64,
    /// Clients connected now.
    pub connections: u64,
    /// Reads answered.
    pub read_requests: u64,
    /// Reads that found everything cached.
    pub read_hits: u64,
    /// Share of reads that were hits, 0 when there were none.
    pub read_hit_ratio: f64,
    /// Bytes clients read.
    pub read_bytes: u64,
    /// Writes answered.
    pub write_requests: u64,
    /// Writes that found a block for everything.
    pub write_hits: u64,
    /// Share of writes that were hits, 0 when there were none.
    pub write_hit_ratio: f64,
    /// Bytes clients wrote.
    pub write_bytes: u64,
    /// Flushes answered.
    pub flush_requests: u64,
    /// Trims and zeroings answered.
    pub trim_requests: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Blocks whose place was given to another block of the same size.
    pub blocks_replaced: u64,
    /// Groups emptied to make room.
    pub groups_emptied: u64,
    /// Reads served from another client's fetch.
    pub joined_reads: u64,
    /// Bytes read from the backing device.
    pub backing_read_bytes: u64,
    /// Bytes written to the backing device.
    pub backing_write_bytes: u64,
    /// Bytes read from the cache device.
    pub cache_read_bytes: u64,
    /// Bytes written to the cache device.
    pub cache_write_bytes: u64,
    /// Failed operations of the cache device.
    pub cache_errors: u64,
    /// Failed operations of the backing device.
    pub backing_errors: u64,
    /// Bytes the cache may hold.
    pub cache_size_bytes: u64,
    /// Bytes of valid data in it.
    pub valid_bytes: u64,
    /// Bytes the backing device does not have yet.
    pub dirty_bytes: u64,
    /// Memory for blocks, groups and bits.
    pub metadata_bytes: u64,
    /// Blocks by size, smallest first.
    pub blocks: Vec<BlockCount>,
    /// Processor time burnt in imitating fast media; 0 on real devices.
    pub spun_seconds: f64,
    /// Latency of reads.
    pub read_latency: Latency,
    /// Latency of writes.
    pub write_latency: Latency,
}

/// What the server adds to the cache's own counters.
pub(crate) struct ServerFacts<'a> {
    pub(crate) volume: &'a str,
    pub(crate) volume_bytes: u64,
    pub(crate) mode: WriteMode,
    pub(crate) uptime: Duration,
    pub(crate) connections: u64,
    pub(crate) cache_size_bytes: u64,
    pub(crate) device_errors: (u64, u64),
    /// Requests that never came to the cache.
    pub(crate) refused: u64,
    pub(crate) spun: Duration,
    pub(crate) reads: &'a Latencies,
    pub(crate) writes: &'a Latencies,
}

impl Status {
    pub(crate) fn new(stats: &Stats, facts: &ServerFacts<'_>) -> Self {
        let ratio = |hits: u64, all: u64| if all == 0 { 0.0 } else { hits as f64 / all as f64 };
        let (requests, counters) = (&stats.requests, &stats.counters);
        Self {
            volume: facts.volume.to_owned(),
            volume_bytes: facts.volume_bytes,
            write_mode: facts.mode.to_string(),
            uptime_seconds: facts.uptime.as_secs_f64(),
            connections: facts.connections,
            read_requests: requests.reads,
            read_hits: requests.read_hits,
            read_hit_ratio: ratio(requests.read_hits, requests.reads),
            read_bytes: requests.read_bytes,
            write_requests: requests.writes,
            write_hits: requests.write_hits,
            write_hit_ratio: ratio(requests.write_hits, requests.writes),
            write_bytes: requests.write_bytes,
            flush_requests: requests.flushes,
            trim_requests: requests.trims,
            errors: requests.errors + facts.refused,
            blocks_replaced: counters.blocks_replaced,
            groups_emptied: counters.groups_emptied,
            joined_reads: counters.joined_reads,
            backing_read_bytes: counters.backing_read_bytes,
            backing_write_bytes: counters.backing_write_bytes,
            cache_read_bytes: counters.cache_read_bytes,
            cache_write_bytes: counters.cache_write_bytes,
            cache_errors: facts.device_errors.0,
            backing_errors: facts.device_errors.1,
            cache_size_bytes: facts.cache_size_bytes,
            valid_bytes: stats.valid_bytes,
            dirty_bytes: stats.dirty_bytes,
            metadata_bytes: stats.block_metadata_bytes + stats.sector_metadata_bytes,
            blocks: stats
                .blocks
                .iter()
                .map(|&(block_bytes, blocks)| BlockCount { block_bytes, blocks })
                .collect(),
            spun_seconds: facts.spun.as_secs_f64(),
            read_latency: facts.reads.summary(),
            write_latency: facts.writes.summary(),
        }
    }
}
