//! The demonstration: a slow volume, bare and through a cache, asked for the same requests.
//!
//! It runs in virtual time: the block cache of the server on simulated devices, which gives the
//! same figures on every machine. `floe demo --real` fills the same rows with measurements.

mod text;

use floe_block::{BlockSizes, Config, Gate, WriteMode};
use floe_device::Spec;
use floe_trace::{Op, Request};
use serde::Serialize;

use crate::draw::{DrawError, Load, Source};
use crate::replay::{
    Fit, Layout, LayoutError, Pace, Plan, ReplayError, ReplayResult, Setup, Stage, StageError,
    Survey, Tier, Volume, run as replay,
};

pub use text::text;

/// Size of the slow volume.
pub const VOLUME_BYTES: u64 = 2 << 30;
/// Size of the cache.
pub const CACHE_BYTES: u64 = 256 << 20;
/// Medium of the slow volume.
pub const VOLUME_MEDIUM: &str = "cloud";
/// Medium of the cache.
pub const CACHE_MEDIUM: &str = "nvme";

/// Requests of a run that count, and before them those that fill the cache.
const REQUESTS: u64 = 150_000;

/// The runs, with the write mode of each.
pub const RUNS: [(&str, WriteMode); 3] = [
    ("bare volume", WriteMode::Pass),
    ("write-through", WriteMode::Through),
    ("write-back", WriteMode::Back),
];

/// Requests between two reports of progress.
const PROGRESS_EVERY: u64 = 1024;

/// One run of the demonstration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Name of the run.
    pub run: &'static str,
    /// Requests a second.
    pub requests_per_second: f64,
    /// Mebibytes read and written a second.
    pub mebibytes_per_second: f64,
    /// Mean latency of reads.
    pub read_us_mean: f64,
    /// 99th percentile of the latency of reads.
    pub read_us_p99: f64,
    /// Mean latency of writes.
    pub write_us_mean: f64,
    /// 99th percentile of the latency of writes.
    pub write_us_p99: f64,
    /// Share of reads that found everything cached.
    pub read_hit_ratio: f64,
    /// Bytes read from the volume's device.
    pub backing_read_bytes: u64,
    /// Bytes written to the volume's device.
    pub backing_write_bytes: u64,
}

impl Row {
    fn new(run: &'static str, result: &ReplayResult) -> Self {
        let counted = |time: Option<f64>| time.unwrap_or_default();
        Self {
            run,
            requests_per_second: counted(result.requests_per_second),
            mebibytes_per_second: counted(result.bytes_per_second) / f64::from(1 << 20),
            read_us_mean: counted(result.read_us_mean),
            read_us_p99: counted(result.read_us_p99),
            write_us_mean: counted(result.write_us_mean),
            write_us_p99: counted(result.write_us_p99),
            read_hit_ratio: result.read_hit_ratio,
            backing_read_bytes: result.backing_read_bytes,
            backing_write_bytes: result.backing_write_bytes,
        }
    }
}

/// Why there is no demonstration.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// No requests can be drawn.
    #[error(transparent)]
    Draw(#[from] DrawError),
    /// The simulated devices cannot be made.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// The requests do not fit the volume.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A request failed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

/// Returns the load of every run.
pub fn load() -> Load {
    Load {
        read_share: 0.7,
        theta: 1.1,
        sizes: vec![4 << 10, 8 << 10, 16 << 10, 32 << 10],
        depth: 16,
        seed: 1,
    }
}

/// Says in two lines what is simulated.
pub fn introduction() -> String {
    let volume = format!("A {} GiB volume on a simulated {VOLUME_MEDIUM} disk", VOLUME_BYTES >> 30);
    let cache = format!("{} MiB of {CACHE_MEDIUM} cache", CACHE_BYTES >> 20);
    described(&volume, &cache)
}

/// Says in two lines what is measured.
pub fn real_introduction() -> String {
    let volume = format!("A volume of {} GiB, over NBD", VOLUME_BYTES >> 30);
    described(&volume, &format!("{} MiB of cache", CACHE_BYTES >> 20))
}

fn described(volume: &str, cache: &str) -> String {
    let load = load();
    format!(
        "{volume}: {:.0} % reads, {} to {} KiB,\n{} in flight, Zipf {}; then the same requests \
         through {cache}.",
        100.0 * load.read_share,
        load.sizes[0] >> 10,
        load.sizes[load.sizes.len() - 1] >> 10,
        load.depth,
        load.theta,
    )
}

/// Runs the load in virtual time, once for each of [`RUNS`]. `progress` is told the share done.
///
/// # Errors
/// When a run fails, which only a lack of memory causes.
pub fn run(mut progress: impl FnMut(f64)) -> Result<Vec<Row>, DemoError> {
    let row = |(at, (run, mode)): (usize, (&'static str, WriteMode))| {
        let mut source = Source::new(&load(), VOLUME_BYTES)?;
        let requests = (0..2 * REQUESTS).map(|_| Ok(request(&mut source)));
        let plan = plan(mode);
        let layout = Layout::new(&survey(), &plan.volume_sizes()?, Fit::default())?;
        let stage = Stage::simulated(&plan, false)?;
        let done = |ended: u64| {
            if ended.is_multiple_of(PROGRESS_EVERY) {
                progress((at as f64 + ended as f64 / (2 * REQUESTS) as f64) / RUNS.len() as f64);
            }
        };
        let result = replay(run, requests, &layout, &setup(), stage, done)?;
        Ok(Row::new(run, &result))
    };
    RUNS.into_iter().enumerate().map(row).collect()
}

fn request(source: &mut Source) -> Request {
    let (reads, key, bytes) = source.draw();
    Request { time_ns: 0, key, bytes, volume: 0, op: if reads { Op::Read } else { Op::Write } }
}

fn survey() -> Survey {
    Survey {
        requests: 2 * REQUESTS,
        changes: 1,
        has_times: false,
        volumes: vec![(0, VOLUME_BYTES)],
        longest_bytes: load().sizes.into_iter().max().unwrap_or_default(),
    }
}

/// Returns the settings of a run.
pub fn setup() -> Setup {
    Setup {
        pace: Pace::Closed { in_flight: load().depth },
        warmup: REQUESTS,
        verify: false,
        flush_interval: std::time::Duration::from_secs(5),
        shed_most: None,
        interval: None,
    }
}

/// Returns the server's defaults, with this write mode.
///
/// # Panics
/// When the media are unknown, which they are not.
pub fn plan(mode: WriteMode) -> Plan {
    let spec = |bytes: u64, medium: &str| -> Spec {
        format!("memory:{bytes},medium={medium}").parse().expect("the medium is known")
    };
    let admission = "always".parse().expect("it is an admission");
    let gate = Gate { admission, above_bytes: 0 };
    let config = Config {
        sizes: BlockSizes::automatic(CACHE_BYTES),
        adapts_fetches: true,
        cache_bytes: CACHE_BYTES,
        mode,
        gate,
        ..Config::default()
    };
    let most_dirty_bytes = mode.keeps_writes().then_some(CACHE_BYTES / 2);
    let cache = spec(CACHE_BYTES, CACHE_MEDIUM);
    let spec = spec(VOLUME_BYTES, VOLUME_MEDIUM);
    Plan {
        tiers: vec![Tier { config, most_dirty_bytes, cache }],
        volumes: vec![Volume { name: "demo".to_owned(), spec, read_only: false }],
    }
}
