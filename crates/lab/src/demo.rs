//! The demonstration: a slow volume serves the same requests without a cache and with one.
//!
//! It runs in virtual time: the block cache of the server on simulated devices, which gives the
//! same figures on every machine. `floe demo --real` fills the same rows with measurements.

use std::fmt::Write;
use std::time::Duration;

use floe_block::{AdmissionConfig, BlockSizes, Config, WriteMode};
use floe_device::Spec;
use floe_trace::{Op, Request};
use serde::Serialize;

use crate::draw::{DrawError, Load, Source};
use crate::replay::{
    Fit, Layout, LayoutError, Pace, Plan, ReplayError, ReplayResult, Setup, Stage, StageError,
    Survey, Tier, Volume, run as replay,
};

/// Size of the slow volume in bytes.
pub const VOLUME_BYTES: u64 = 2 << 30;
/// Size of the cache in bytes.
pub const CACHE_BYTES: u64 = 256 << 20;
/// Medium of the slow volume.
pub const VOLUME_MEDIUM: &str = "cloud";
/// Medium of the cache.
pub const CACHE_MEDIUM: &str = "nvme";

/// Number of counted requests in a run, and of the requests before them that warm the cache.
const REQUESTS: u64 = 150_000;

/// The runs, with the write mode of each.
pub const RUNS: [(&str, WriteMode); 3] = [
    ("bare volume", WriteMode::Pass),
    ("write-through", WriteMode::Through),
    ("write-back", WriteMode::Back),
];

/// Number of requests between two reports of progress.
const PROGRESS_EVERY: u64 = 1024;

/// Results of one run of the demonstration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Name of the run.
    pub run: &'static str,
    /// Requests a second.
    pub requests_per_second: f64,
    /// Mebibytes read and written a second.
    pub mebibytes_per_second: f64,
    /// Mean latency of reads in microseconds.
    pub read_us_mean: f64,
    /// 99th percentile of the latency of reads in microseconds.
    pub read_us_p99: f64,
    /// Mean latency of writes in microseconds.
    pub write_us_mean: f64,
    /// 99th percentile of the latency of writes in microseconds.
    pub write_us_p99: f64,
    /// Share of reads whose data was all cached.
    pub read_hit_ratio: f64,
    /// Bytes read from the slow volume's device.
    pub backing_read_bytes: u64,
    /// Bytes written to the slow volume's device.
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

/// Errors of the demonstration.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The requests of the load cannot be drawn.
    #[error(transparent)]
    Draw(#[from] DrawError),
    /// The simulated devices cannot be created.
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

/// Returns two lines of text that say what is simulated.
pub fn introduction() -> String {
    let volume = format!("A {} GiB volume on a simulated {VOLUME_MEDIUM} disk", VOLUME_BYTES >> 30);
    let cache = format!("{} MiB of {CACHE_MEDIUM} cache", CACHE_BYTES >> 20);
    described(&volume, &cache)
}

/// Returns two lines of text that say what is measured.
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

/// Runs the load in virtual time, once for each of [`RUNS`]. `progress` is called with the share
/// done.
///
/// # Errors
/// When a run fails, which only a lack of memory causes.
pub fn run(mut progress: impl FnMut(f64)) -> Result<Vec<Row>, DemoError> {
    let row = |(at, (run, mode)): (usize, (&'static str, WriteMode))| {
        let mut source = Source::new(&load(), VOLUME_BYTES)?;
        let requests = (0..2 * REQUESTS).map(|_| Ok(request(&mut source)));
        let plan = plan(mode);
        let layout = Layout::new(&survey(), &plan.volume_sizes()?, Fit::default())?;
        let stage = Stage::simulated(&plan, false, Duration::ZERO)?;
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

/// Returns the replay settings of a run.
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

/// Returns the plan of a cache with the server's default settings and the given write mode.
///
/// # Panics
/// When the built-in media are unknown, which does not happen.
pub fn plan(mode: WriteMode) -> Plan {
    let spec = |bytes: u64, medium: &str| -> Spec {
        format!("memory:{bytes},medium={medium}").parse().expect("the medium is known")
    };
    let admission = "always".parse().expect("it is an admission");
    let gate = AdmissionConfig { admission, above_bytes: 0 };
    let config = Config {
        sizes: BlockSizes::automatic(CACHE_BYTES),
        adapts_fetches: true,
        cache_bytes: CACHE_BYTES,
        mode,
        gate,
        ..Config::default()
    };
    let most_dirty_bytes = mode.keeps_writes().then_some(CACHE_BYTES / 2);
    let device = spec(CACHE_BYTES, CACHE_MEDIUM);
    let spec = spec(VOLUME_BYTES, VOLUME_MEDIUM);
    Plan {
        tiers: vec![Tier { config, most_dirty_bytes, device }],
        volumes: vec![Volume::new("demo", spec)],
    }
}

/// Length of the longest bar in characters.
const BAR_COLUMNS: f64 = 52.0;

const NEXT: &str = "\
Your own trace: floe advise TRACE --backing hdd --cache nvme
Your own disks: floe demo --real --volume /mnt/slow --cache /mnt/fast";

/// Returns the report on a bare volume, a write-through and a write-back cache, and the next steps.
///
/// # Panics
/// When there are not three rows.
pub fn text(rows: &[Row]) -> String {
    format!("{}\n{}\n{}\n\n{NEXT}", bars(rows), details(rows), verdict(rows))
}

/// Draws a bar per row, with a length proportional to its requests a second.
fn bars(rows: &[Row]) -> String {
    let most = rows.iter().map(|row| row.requests_per_second).fold(f64::MIN_POSITIVE, f64::max);
    let mut text = format!("{:13}  {:>10}\n", "", "requests/s");
    for row in rows {
        let eighths = (row.requests_per_second / most * BAR_COLUMNS * 8.0).round() as usize;
        let last = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
        let bar = "█".repeat(eighths / 8) + last;
        writeln!(text, "{:13}  {:10.0}  {bar}", row.run, row.requests_per_second)
            .expect("text takes all");
    }
    text
}

/// Returns a table with the figures of each row.
fn details(rows: &[Row]) -> String {
    let mut text = format!(
        "{:13} {:>9} {:>9} {:>10} {:>9} {:>7} {:>9} {:>7}\n",
        "", "read mean", "p99", "write mean", "p99", "hits", "disk read", "written"
    );
    for row in rows {
        writeln!(
            text,
            "{:13} {:>9} {:>9} {:>10} {:>9} {:>5.1} % {:>9} {:>7}",
            row.run,
            microseconds(row.read_us_mean),
            microseconds(row.read_us_p99),
            microseconds(row.write_us_mean),
            microseconds(row.write_us_p99),
            100.0 * row.read_hit_ratio,
            mebibytes(row.backing_read_bytes),
            mebibytes(row.backing_write_bytes),
        )
        .expect("text takes all");
    }
    text
}

/// Returns a sentence that compares a bare volume, a write-through and a write-back cache.
fn verdict(rows: &[Row]) -> String {
    let [bare, through, back] = rows else { panic!("a demonstration has three rows") };
    format!(
        "The cache served {:.0} % of reads, and a read took {} instead of {}. The\nsame \
         load ran {:.1} times as fast with write-through, {:.1} times with write-back.",
        100.0 * through.read_hit_ratio,
        microseconds(through.read_us_mean),
        microseconds(bare.read_us_mean),
        through.requests_per_second / bare.requests_per_second,
        back.requests_per_second / bare.requests_per_second,
    )
}

/// Formats a time in a suitable unit.
fn microseconds(us: f64) -> String {
    match us {
        us if us >= 0.999_995e6 => format!("{:.2} s", us / 1e6),
        us if us >= 999.95 => format!("{:.2} ms", us / 1e3),
        us => format!("{us:.1} µs"),
    }
}

fn mebibytes(bytes: u64) -> String {
    match bytes >> 20 {
        mebibytes @ 0..10_000 => format!("{mebibytes}MiB"),
        mebibytes => format!("{}GiB", mebibytes >> 10),
    }
}

#[cfg(test)]
mod text_tests {
    use super::*;

    /// Returns a row with the widest figures that a run can show.
    fn row(run: &'static str) -> Row {
        Row {
            run,
            requests_per_second: 1_234_567.8,
            mebibytes_per_second: 12_345.6,
            read_us_mean: 999_999.9,
            read_us_p99: 1_234_567.8,
            write_us_mean: 999_999.9,
            write_us_p99: 1_234_567.8,
            read_hit_ratio: 1.0,
            backing_read_bytes: 9_999 << 20,
            backing_write_bytes: (999 << 30) + (512 << 20),
        }
    }

    #[test]
    fn the_text_fits_into_80_columns() {
        let rows = ["bare volume", "write-through", "write-back"].map(row);
        let introductions = [super::introduction(), super::real_introduction()];
        for line in text(&rows).lines().chain(introductions.iter().flat_map(|text| text.lines())) {
            assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
        }
    }
}
