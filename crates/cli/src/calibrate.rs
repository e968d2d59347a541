//! `floe calibrate`: measures the slowdown of a device's reads by writes, and derives parameters of
//! an admission policy.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use floe_device::{SECTOR_BYTES, Spec};
use floe_lab::interference::{
    Backing, Calibration, Circumstances, Derived, MeasureError, Plan, Point, TestBed, TestBedError,
    measure, noise,
};
use floe_lab::report::{PictureFormat, calibration_report, write_pictures};
use floe_server::persistent::{Holds, holds, note_calibration};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::check::{self, cache};
use crate::error::{CliError, OrFail};
use crate::numbers::Numbers;
use crate::output;
use crate::output::{bytes, microseconds, percent};
use crate::settings::state_dir;
use floe_server::config::{Bytes, Percent};

/// Maximum length of a round in seconds.
const SECONDS_MAX: f64 = 60.0;
const ROUNDS_MAX: usize = 1000;
/// Minimum size of the scratch range, in operations.
const BLOCKS_LEAST: u64 = 16;
/// Maximum size of an operation in bytes: that of the largest block.
const BLOCK_BYTES_MAX: u64 = 1 << 20;

const EXAMPLES: &str = "\
Examples:
  floe calibrate file:/mnt/pmem/scratch --into pmem.json
  floe calibrate file:/dev/nvme0n1 --backing file:/dev/sdb --block 64KiB --into tier.json
  floe calibrate file:/mnt/pmem/scratch --cache /mnt/pmem/cache.img
  floe calibrate memory:1GiB,medium=pmem --backing memory:1GiB,medium=nvme --time virtual
  floe calibrate file:/var/cache/scratch --scratch 1GiB --seconds 0.5 --png reads --json

A closed loop keeps --depth operations in flight, of which a share writes. In rounds that take
turns, it tries each share at 4 KiB and at the size of the tier's blocks. With a write cost of 4,
each byte written costs four bytes read; the target is for the admission obp. A new file is removed
as soon as it is open. On a disk, or in an existing file, a range in the middle is written. It has
to contain zeros, unless --overwrite is given, and is zeroed at the end. A persistent cache is never
overwritten.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The device of the tier, as for floe serve: PATH, memory:SIZE or stripe:PATH+PATH; a new
    /// file on it suffices
    #[arg(value_name = "SPEC")]
    device: Spec,
    /// The device below it, which is only read; where a hit gains little, the target is lower
    #[arg(long, value_name = "SPEC")]
    backing: Option<Spec>,
    /// Size of the tier's blocks, a multiple of 4 KiB
    #[arg(long, value_name = "SIZE", default_value = "32KiB")]
    block: Bytes,
    /// Operations in flight
    #[arg(long, value_name = "N", default_value_t = 16,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// Shares of operations that write; 0 is always tried too
    #[arg(long, value_name = "LIST", default_value = "0.02,0.05,0.1,0.2,0.3,0.5")]
    writes: Numbers,
    /// The share of the reads' speed that writes may cost
    #[arg(long, value_name = "SHARE", default_value = "33%")]
    max_loss: Percent,
    /// Rounds at each size and share
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// The length of each round
    #[arg(long, value_name = "SECONDS", default_value_t = 0.1)]
    seconds: f64,
    /// The part of the device to use
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    scratch: Bytes,
    /// Overwrite the device's data; a persistent cache is never overwritten
    #[arg(long)]
    overwrite: bool,
    /// Give a result even if the rounds differ too much
    #[arg(long)]
    accept_noise: bool,
    /// `real` time on the devices, or `virtual` time on simulated ones, by the times of their media
    #[arg(long, value_name = "CLOCK", default_value = "real", hide_possible_values = true)]
    time: Time,
    /// Write the result to a file, as JSON, for floe serve and floe replay
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,
    /// Also note the result in the persistent cache on this device, for floe serve; no server may
    /// be using it
    #[arg(long, value_name = "CACHE", value_parser = cache)]
    cache: Option<Spec>,
    /// Write a chart of reads beside writes, named STEM-reads.png
    #[arg(long, value_name = "STEM")]
    png: Option<PathBuf>,
    /// One JSON object per point and per size instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Time {
    /// Real time, on real devices.
    Real,
    /// Virtual time, which simulated devices advance.
    Virtual,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let plan = plan(arguments)?;
    arguments.cache.as_ref().map_or(Ok(()), expect_cache)?;
    let interrupted = crate::flag_of_signals(&[SIGINT, SIGTERM])?;
    let least = plan.block_bytes.iter().max().map_or(0, |block| block * BLOCKS_LEAST);
    let backing = match &arguments.backing {
        Some(spec) => {
            let bed = match arguments.time {
                Time::Real => TestBed::to_read(spec, least),
                Time::Virtual => TestBed::simulated(spec, u64::MAX, least),
            };
            let plan = Plan { write_shares: vec![0.0], ..plan.clone() };
            let points = observe(&mut bed.map_err(refused)?, &plan, "reading below", &interrupted)?;
            Some(Backing { device: spec.to_string(), points })
        }
        None => None,
    };
    let (spec, Bytes(scratch)) = (&arguments.device, arguments.scratch);
    let bed = match arguments.time {
        Time::Real => TestBed::to_write(spec, scratch, least, arguments.overwrite),
        Time::Virtual => TestBed::simulated(spec, scratch, least),
    };
    let mut bed = bed.map_err(refused)?;
    let points = observe(&mut bed, &plan, "calibrating", &interrupted);
    // Restored after a failure, too.
    let restored = bed.restore().map_err(refused);
    let points = points?;
    restored?;
    let circumstances = Circumstances {
        device: spec.to_string(),
        time: if arguments.time == Time::Real { "real" } else { "virtual" }.to_owned(),
        depth: plan.depth,
        loss_max: arguments.max_loss.share(),
        block_bytes: arguments.block.0,
    };
    let calibration = Calibration::of(circumstances, &points, backing)
        .expect("every size has a point without writes");
    if let Some(noise) = calibration.sizes.iter().find_map(|size| noise(&size.points))
        && !arguments.accept_noise
    {
        // The figures show how far apart they are; nothing is kept of them.
        if arguments.json {
            print_points(&calibration).or_failure()?;
        } else {
            print_measured(&calibration);
        }
        return Err(CliError::failure(format!(
            "{noise}: other work disturbed the device, or it throttles, so the measured cost of \
             writes would be random. Repeat with more --rounds or --seconds, or give \
             --accept-noise"
        )));
    }
    if let Some(file) = &arguments.into {
        let text = serde_json::to_string_pretty(&calibration).or_failure()? + "\n";
        output::write_file(file, &text)?;
    }
    if let Some(cache) = &arguments.cache {
        let source = check::open(cache, false, state_dir(None).as_ref())?;
        note_calibration(&source, calibration.calibrated()).map_err(check::refused)?;
    }
    if let Some(stem) = &arguments.png {
        write_pictures(&calibration_report(&calibration), stem, PictureFormat::Png).or_failure()?;
    }
    if arguments.json { print_json(&calibration).or_failure() } else { print(&calibration) }
}

/// Checks, before the measurement, that a device contains a cache.
fn expect_cache(cache: &Spec) -> Result<(), CliError> {
    match holds(&check::open(cache, true, state_dir(None).as_ref())?).map_err(check::refused)? {
        Holds::Cache => Ok(()),
        Holds::Data | Holds::Nothing => Err(CliError::usage(format!("{cache} holds no cache"))),
    }
}

/// Checks the arguments and returns the plan of the measurement.
fn plan(arguments: &Arguments) -> Result<Plan, CliError> {
    let Bytes(block) = arguments.block;
    if !block.is_multiple_of(SECTOR_BYTES) || block > BLOCK_BYTES_MAX {
        let most = bytes(BLOCK_BYTES_MAX);
        return Err(CliError::usage(format!(
            "--block {block} is not a multiple of {SECTOR_BYTES} bytes up to {most}"
        )));
    }
    let Numbers(given) = &arguments.writes;
    if let Some(wrong) = given.iter().find(|share| !(0.0..1.0).contains(*share)) {
        return Err(CliError::usage(format!("--writes {wrong} is not a share from 0 to below 1")));
    }
    if given.iter().all(|&share| share == 0.0) {
        return Err(CliError::usage("--writes has no share above 0, so nothing would be written"));
    }
    if arguments.max_loss.share() >= 1.0 {
        return Err(CliError::usage("--max-loss must be below 100%"));
    }
    let (seconds, rounds) = (arguments.seconds, arguments.rounds);
    if !(seconds > 0.0 && seconds <= SECONDS_MAX) {
        return Err(CliError::usage(format!(
            "--seconds {seconds} is not above 0 and up to {SECONDS_MAX}"
        )));
    }
    if !(1..=ROUNDS_MAX).contains(&rounds) {
        return Err(CliError::usage(format!("--rounds {rounds} is not 1 to {ROUNDS_MAX}")));
    }
    let mut write_shares: Vec<f64> = [0.0].into_iter().chain(given.iter().copied()).collect();
    write_shares.sort_by(f64::total_cmp);
    write_shares.dedup();
    let mut block_bytes = vec![SECTOR_BYTES, block];
    block_bytes.dedup();
    let (depth, round) = (arguments.depth as usize, Duration::from_secs_f64(seconds));
    Ok(Plan { block_bytes, write_shares, depth, rounds, round })
}

/// Runs the measurement and shows a progress bar.
fn observe(
    bed: &mut TestBed,
    plan: &Plan,
    what: &str,
    interrupted: &AtomicBool,
) -> Result<Vec<Point>, CliError> {
    let bar = output::progress(plan.rounds_all() as u64, what);
    let points = measure(bed, plan, |ended| {
        bar.set_position(ended as u64);
        // Relaxed: no other memory depends on it.
        !interrupted.load(Ordering::Relaxed)
    });
    bar.finish_and_clear();
    points.map_err(|error| match error {
        MeasureError::TooShort { .. } => CliError::usage(error.to_string()),
        MeasureError::Io(_) | MeasureError::Interrupted => CliError::failure(error.to_string()),
    })
}

fn refused(error: TestBedError) -> CliError {
    let line = error.to_string();
    let is_failure = match &error {
        TestBedError::Look(error) => error.is_failure(),
        TestBedError::Io { .. } | TestBedError::Remove { .. } | TestBedError::Ring(_) => true,
        _ => false,
    };
    if is_failure { CliError::failure(line) } else { CliError::usage(line) }
}

/// A line of JSON output: the device, and one of its results.
#[derive(Serialize)]
struct Line<'a, T> {
    device: &'a str,
    #[serde(flatten)]
    of: T,
}

/// The recommendation for a block size, in JSON.
#[derive(Serialize)]
struct Verdict {
    block_bytes: u64,
    #[serde(flatten)]
    derived: Derived,
}

fn print_points(calibration: &Calibration) -> std::io::Result<()> {
    let of_backing = calibration.backing.iter().flat_map(|backing| {
        backing.points.iter().map(|point| Line { device: &backing.device, of: point })
    });
    let of_device = calibration.sizes.iter().flat_map(|size| &size.points);
    let of_device = of_device.map(|point| Line { device: &calibration.device, of: point });
    of_backing.chain(of_device).try_for_each(|line| output::json_line(&line))
}

fn print_json(calibration: &Calibration) -> std::io::Result<()> {
    print_points(calibration)?;
    calibration.sizes.iter().try_for_each(|size| {
        let of = Verdict { block_bytes: size.block_bytes, derived: size.derived };
        output::json_line(&Line { device: &calibration.device, of })
    })
}

/// Prints the tables of measured points.
fn print_measured(calibration: &Calibration) {
    if let Some(backing) = &calibration.backing {
        let columns = ["below, alone", "size", "read", "mean", "p99"];
        let mut table = output::table(&columns, 1);
        for point in &backing.points {
            table.add_row(vec![
                backing.device.clone(),
                bytes(point.block_bytes),
                per_second(point.read_bytes_per_second),
                microseconds(point.read_us_mean),
                microseconds(point.read_us_p99),
            ]);
        }
        output::print_table(&table);
        output::say!();
    }
    let mut reads =
        output::table(&["size", "writes", "read", "of alone", "from – to", "mean", "p99"], 0);
    let mut writes = output::table(&["size", "writes", "written", "mean"], 0);
    for size in &calibration.sizes {
        let alone = size.points.first().map_or(0.0, |point| point.read_bytes_per_second);
        for point in &size.points {
            let load = [bytes(point.block_bytes), percent(point.write_share)];
            let [low, high] = [point.read_bytes_per_second_low, point.read_bytes_per_second_high]
                .map(|speed| 100.0 * speed / alone);
            let read = [
                per_second(point.read_bytes_per_second),
                percent(point.read_bytes_per_second / alone),
                format!("{low:.0}–{high:.0} %"),
                microseconds(point.read_us_mean),
                microseconds(point.read_us_p99),
            ];
            reads.add_row(load.iter().chain(&read));
            if let Some(mean) = point.write_us_mean {
                let written = [per_second(point.write_bytes_per_second), microseconds(mean)];
                writes.add_row(load.iter().chain(&written));
            }
        }
    }
    output::print_table(&reads);
    if !writes.is_empty() {
        output::say!();
        output::print_table(&writes);
    }
}

fn print(calibration: &Calibration) -> Result<(), CliError> {
    print_measured(calibration);
    output::say!();
    let mut table = output::table(&["size", "write cost", "obp:target", "obp:bytes=1:target"], 0);
    for size in &calibration.sizes {
        let derived = &size.derived;
        table.add_row(vec![
            bytes(size.block_bytes),
            format!("{:.2}", derived.write_cost),
            format!("{:.3}", derived.target),
            format!("{:.3}", derived.target_bytes),
        ]);
    }
    output::print_table(&table);
    Ok(())
}

fn per_second(bytes_per_second: f64) -> String {
    format!("{}/s", bytes(bytes_per_second as u64))
}
