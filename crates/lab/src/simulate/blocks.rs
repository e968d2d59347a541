//! Simulates the block cache over a trace: the server's own state machines, on devices that
//! complete at once.
//!
//! Each request ends before the next begins, and the clock is the trace's. Dirty data is flushed
//! every [`Setup::clean_every_ns`] of that clock, and at the end. The results are exact in hits,
//! bytes and memory; `floe replay` measures times.

use std::time::Instant;

use floe_block::{
    BlockCache, Config, ConfigError, OpId, Order, Request, RequestId, RequestKind, Stats, VolumeId,
};
use floe_trace::Op;
use serde::Serialize;
use std::collections::HashMap;

use super::stream::{End, ends};
use crate::admission::AdmissionOutcome;
use crate::interval::Interval;

/// Size of every simulated volume in bytes, larger than any real one because a trace does not
/// record sizes.
const VOLUME_BYTES: u64 = 1 << 58;

/// Largest number of volumes of one cache.
const MOST_VOLUMES: usize = 1 << 16;

/// The settings of a simulation.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Settings of the cache.
    pub cache: Config,
    /// Number of requests at the start that warm the cache and are not counted.
    pub warmup: usize,
    /// Interval length of the time series; `None` for no series.
    pub interval: Option<Interval>,
    /// Interval between flushes of dirty data, in nanoseconds by the clock of the trace.
    pub clean_every_ns: u64,
}

/// Errors of a simulation.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// The cache cannot be created with these settings.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The trace has more volumes than a cache can have.
    #[error("the trace has more than {MOST_VOLUMES} volumes")]
    Volumes,
}

/// The results of a simulation: the output fields of `floe simulate --blocks`.
#[derive(Debug, Clone, Serialize)]
pub struct BlockSimulationResult {
    /// Name of the trace.
    pub trace: String,
    /// Block sizes of the cache.
    pub blocks: String,
    /// The eviction policy.
    pub policy: String,
    /// Counters of the admission policy; `None` without such a policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionOutcome>,
    /// Cache size in bytes.
    pub size: u64,
    /// Number of requests of the warm-up, not counted elsewhere.
    #[serde(skip_serializing_if = "is_zero")]
    pub warmup_requests: u64,
    /// Number of reads.
    pub read_requests: u64,
    /// Reads whose data was all cached.
    pub read_hits: u64,
    /// Number of writes.
    pub write_requests: u64,
    /// Writes for whose whole range the cache had blocks.
    pub write_hits: u64,
    /// Bytes read from the backing device.
    pub backing_read_bytes: u64,
    /// Bytes written to the backing device.
    pub backing_write_bytes: u64,
    /// Bytes read from the cache device.
    pub cache_read_bytes: u64,
    /// Bytes written to the cache device.
    pub cache_write_bytes: u64,
    /// Bytes of memory for blocks, groups, and valid and dirty bits, at the end.
    pub metadata_bytes: u64,
    /// Bytes of memory for blocks and groups, without the bits, per block in the cache at the end.
    pub metadata_bytes_per_block: f64,
    /// Number of blocks allocated.
    pub blocks_allocated: u64,
    /// Mean size of allocated blocks in bytes.
    pub mean_block_bytes: f64,
    /// Mean size in bytes of the requests that were not hits.
    pub mean_missed_bytes: f64,
    /// Real time that the simulation took, in seconds.
    pub seconds: f64,
    /// Time series of the simulation; empty unless requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<BlockInterval>,
}

/// One interval of a simulation of the block cache. The flush at the end belongs to the last
/// interval.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BlockInterval {
    /// Number of counted requests before the interval.
    pub after_requests: u64,
    /// Number of requests in the interval.
    pub requests: u64,
    /// End of the interval in seconds since the beginning of the trace, by its clock; `None` for
    /// intervals of a number of requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Number of reads.
    pub read_requests: u64,
    /// Reads whose data was all cached.
    pub read_hits: u64,
    /// Number of writes.
    pub write_requests: u64,
    /// Writes for whose whole range the cache had blocks.
    pub write_hits: u64,
    /// Bytes read from the backing device.
    pub backing_read_bytes: u64,
    /// Bytes written to the backing device.
    pub backing_write_bytes: u64,
    /// Bytes read from the cache device.
    pub cache_read_bytes: u64,
    /// Bytes written to the cache device.
    pub cache_write_bytes: u64,
}

impl BlockInterval {
    /// Creates the interval from request `begun` to `end`, in which the counters grew by `stats`.
    fn new(begun: usize, warmup: usize, end: End, stats: &Stats) -> Self {
        let (counted, counters) = (&stats.requests, &stats.counters);
        Self {
            after_requests: (begun - warmup) as u64,
            requests: (end.at - begun) as u64,
            seconds: end.seconds,
            read_requests: counted.reads,
            read_hits: counted.read_hits,
            write_requests: counted.writes,
            write_hits: counted.write_hits,
            backing_read_bytes: counters.backing_read_bytes,
            backing_write_bytes: counters.backing_write_bytes,
            cache_read_bytes: counters.cache_read_bytes,
            cache_write_bytes: counters.cache_write_bytes,
        }
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Simulates a cache over a trace.
///
/// # Errors
/// When the cache cannot be created, or the trace has too many volumes.
pub fn simulate(
    trace: &str,
    requests: &[floe_trace::Request],
    setup: &Setup,
) -> Result<BlockSimulationResult, SimulateError> {
    let begun = Instant::now();
    let (stats, series) = run(requests, setup)?;
    let (counted, counters) = (stats.requests, stats.counters);
    let blocks_now: u64 = stats.blocks.iter().map(|(_, blocks)| blocks).sum();
    Ok(BlockSimulationResult {
        trace: trace.to_owned(),
        blocks: setup.cache.sizes.to_string(),
        policy: setup.cache.evict.to_string(),
        admission: AdmissionOutcome::of(&setup.cache.gate, &stats),
        size: setup.cache.cache_bytes,
        warmup_requests: setup.warmup as u64,
        read_requests: counted.reads,
        read_hits: counted.read_hits,
        write_requests: counted.writes,
        write_hits: counted.write_hits,
        backing_read_bytes: counters.backing_read_bytes,
        backing_write_bytes: counters.backing_write_bytes,
        cache_read_bytes: counters.cache_read_bytes,
        cache_write_bytes: counters.cache_write_bytes,
        metadata_bytes: stats.block_metadata_bytes + stats.sector_metadata_bytes,
        metadata_bytes_per_block: stats.block_metadata_bytes as f64 / blocks_now.max(1) as f64,
        blocks_allocated: stats.blocks_allocated(),
        mean_block_bytes: stats.mean_block_bytes(),
        mean_missed_bytes: stats.mean_missed_bytes(),
        seconds: begun.elapsed().as_secs_f64(),
        series,
    })
}

fn run(
    requests: &[floe_trace::Request],
    setup: &Setup,
) -> Result<(Stats, Vec<BlockInterval>), SimulateError> {
    let mut simulation =
        Simulation { cache: BlockCache::new(setup.cache.clone())?, orders: Vec::new() };
    let mut volumes: HashMap<u32, VolumeId> = HashMap::new();
    let mut clean_at_ns = setup.clean_every_ns;
    let mut before = Stats::default();
    let times_ns = requests.iter().map(|request| request.time_ns);
    let ends = setup.interval.map(|interval| ends(times_ns, setup.warmup, interval));
    let mut ends = ends.unwrap_or_default().into_iter().peekable();
    let (mut series, mut begun, mut last) = (Vec::new(), setup.warmup, Stats::default());
    for (at, request) in requests.iter().enumerate() {
        if at > 0 && at == setup.warmup {
            before = simulation.cache.stats();
            last = before.clone();
        }
        if let Some(end) = ends.next_if(|end| end.at == at) {
            let now = simulation.cache.stats();
            series.push(BlockInterval::new(begun, setup.warmup, end, &now.since(&last)));
            (begun, last) = (at, now);
        }
        if volumes.len() == MOST_VOLUMES && !volumes.contains_key(&request.volume) {
            return Err(SimulateError::Volumes);
        }
        let cache = &mut simulation.cache;
        let volume =
            *volumes.entry(request.volume).or_insert_with(|| cache.add_volume(VOLUME_BYTES));
        if request.time_ns >= clean_at_ns {
            clean_at_ns = request.time_ns + setup.clean_every_ns;
            simulation.cache.clean(&mut simulation.orders);
            simulation.carry_out();
        }
        let kind = match request.op {
            Op::Read => RequestKind::Read,
            Op::Write => RequestKind::Write { durable: false },
            Op::Delete => RequestKind::Trim,
        };
        // A request of nothing touches nothing, and neither hits nor misses.
        if request.bytes > 0 {
            simulation.serve(Request { volume, kind, offset: request.key, len: request.bytes });
        }
    }
    simulation.cache.clean(&mut simulation.orders);
    simulation.carry_out();
    let stats = simulation.cache.stats();
    if let Some(end) = ends.next() {
        series.push(BlockInterval::new(begun, setup.warmup, end, &stats.since(&last)));
    }
    Ok((if setup.warmup > 0 { stats.since(&before) } else { stats }, series))
}

/// A cache whose devices complete operations at once.
struct Simulation {
    cache: BlockCache,
    orders: Vec<Order>,
}

impl Simulation {
    fn serve(&mut self, request: Request) {
        self.cache.submit(RequestId(0), request, &mut self.orders);
        self.carry_out();
    }

    /// Completes device operations in the order of their submission.
    fn carry_out(&mut self) {
        let mut next = 0;
        while let Some(order) = self.orders.get(next) {
            next += 1;
            if let Some(op) = op_of(order) {
                self.cache.completed(op, Ok(()), &mut self.orders);
            }
        }
        self.orders.clear();
    }
}

fn op_of(order: &Order) -> Option<OpId> {
    match *order {
        Order::Read { op, .. }
        | Order::Write { op, .. }
        | Order::Zero { op, .. }
        | Order::Discard { op, .. }
        | Order::Flush { op, .. }
        | Order::WriteLogs { op } => Some(op),
        Order::Allocate { .. }
        | Order::Copy { .. }
        | Order::Clear { .. }
        | Order::Answer { .. }
        | Order::Release { .. }
        | Order::Send { .. }
        | Order::Mark { .. }
        | Order::Note { .. }
        | Order::SealLogs
        | Order::Memory { .. } => None,
    }
}
