//! `floe replay`: replays a trace through the cache of a configuration, on its devices or on
//! simulated ones.

mod price;
mod print;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use floe_device::Role;
use floe_lab::replay::{
    Feed, Fit, Layout, Pace, Plan, ReplayError, ReplayResult, Setup, Stage, Survey, Tier,
    run as replay,
};
use floe_lab::report::{html, latencies};
use floe_server::DeviceSource;
use floe_server::config::Percent;
use floe_server::kept::refuse_kept;

use crate::error::CliError;
use crate::settings::Source;
use crate::trace::{PROGRESS_EVERY, TraceArguments, tell_skipped};
use crate::warmup::{Interval, Warmup};
use crate::{OrFail, output};
use price::TierPrice;

/// Default bound of requests in flight at recorded times: that of a server for one client.
const IN_FLIGHT_RECORDED: u32 = 256;

const EXAMPLES: &str = "\
Examples:
  floe replay disk.vscsi --config floe.toml --in-flight 16
  floe replay disk.vscsi --backing memory:64GiB,medium=cloud --cache memory:1GiB,medium=nvme \
                        --time virtual --verify
  floe replay src1_0.csv.gz --backing file:disk.img,size=64GiB --cache file:cache.img,size=1GiB \
                        --at recorded --speed 10
  floe replay zipf:keys=1000000,read=0.7,block=4KiB --backing memory:4GiB --cache memory:512MiB \
                        --warmup 20% --json
  floe replay disk.vscsi --backing memory:64GiB,medium=nvme --cache memory:1GiB,medium=pmem \
                        --admit obp --time virtual
  floe replay disk.vscsi --backing memory:64GiB,medium=hdd --cache memory:1GiB,medium=nvme --evict \
                        sarc --time virtual
  floe replay disk.vscsi --backing memory:64GiB,medium=hdd --tier memory:1GiB,medium=optane --tier \
                        memory:8GiB,medium=nvme --time virtual
  floe replay ycsb:workload=C,block=4KiB --backing memory:4GiB,medium=nvme --tier \
                        memory:128MiB,medium=dram --tier memory:512MiB,medium=pmem --price \
                        tier0=1,tier1=0.38 --time virtual

One request at a time is fio's default, and the load of a program that waits for its disk. In
virtual time devices take as long as their medium= says, without one no time, and no file is
touched; the same replay gives the same figures again. The media `dram` and `pmem` are bandwidth
that all operations share, without a latency of their own: until it is used up they take no time,
and medians of 0.0 µs are right. With several tiers, the JSON fields of the cache beside `tiers`
describe the first; `metadata_bytes` covers all. Written bytes are derived from address and
version, and reads are verified against them: on real devices unless --no-verify is given, in
virtual time with --verify. A replay runs on one thread, whatever `threads` says.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A trace of disk I/O, compressed or not, or a generator such as zipf:keys=1000,block=4KiB
    trace: String,
    #[command(flatten)]
    source: Source,
    /// Requests in flight: as many all the time, or with --at recorded at most [default: 1, with
    /// --at recorded 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16384))]
    in_flight: Option<u32>,
    /// The start of a request: when another is `answered`, or when `recorded`
    #[arg(long, value_name = "WHEN", default_value = "answered", hide_possible_values = true)]
    at: At,
    /// The speed, as a multiple of the recorded one
    #[arg(long, value_name = "X", default_value = "1")]
    speed: Speed,
    /// `real` time on the devices, or `virtual` time on simulated ones
    #[arg(long, value_name = "CLOCK", default_value = "real", hide_possible_values = true)]
    time: Time,
    /// Verify all reads, also in virtual time; takes memory for all data written and cached
    #[arg(long)]
    verify: bool,
    /// Verify no reads
    #[arg(long, conflicts_with = "verify")]
    no_verify: bool,
    /// Fold addresses beyond a volume into it
    #[arg(long)]
    wrap: bool,
    /// Lay the trace's volumes end to end on the first volume
    #[arg(long)]
    concatenate: bool,
    /// Overwrite an existing volume by a trace with writes
    #[arg(long)]
    overwrite: bool,
    /// Requests at the start that do not count: a number, or a share of the trace such as 20%
    #[arg(long, value_name = "N|SHARE", default_value = "0")]
    warmup: Warmup,
    /// Also give all figures for each interval: of so many requests, of such a share of those that
    /// count, or of a time by the replay's clock; a list in JSON, charts in the report
    #[arg(long, value_name = "N|SHARE|TIME")]
    interval: Option<Interval>,
    /// Stop after this many requests
    #[arg(long, value_name = "N", value_parser = count)]
    limit: Option<u64>,
    #[command(flatten)]
    open: TraceArguments,
    /// Prices of all tiers, from tier0, for each byte relative to DRAM; prints the cost, and the
    /// throughput for it
    #[arg(long, value_name = "TIER=PRICE", value_delimiter = ',')]
    price: Vec<TierPrice>,
    /// Also print a histogram of latencies
    #[arg(long)]
    histogram: bool,
    /// Write a page with a chart of the latencies that needs no network
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// One JSON object instead of tables
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// A line of CSV with the fields of --json, or with --interval a line for each interval
    #[arg(long)]
    csv: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum At {
    /// When another has been answered.
    Answered,
    /// When the trace says.
    Recorded,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Time {
    /// The machine's, on real devices.
    Real,
    /// As long as simulated devices take.
    Virtual,
}

/// A factor above zero.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Speed(f64);

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<f64>() {
            Ok(speed) if (1e-6..=1e9).contains(&speed) => Ok(Self(speed)),
            _ => Err(format!("`{text}` is not a speed; write 1, 0.5 or 100")),
        }
    }
}

/// Parses a number of requests, at least one.
fn count(text: &str) -> Result<u64, String> {
    let count = text.parse().ok().filter(|&count: &u64| count > 0);
    count.ok_or_else(|| format!("`{text}` is not a number of requests; write 1 or more"))
}

pub(crate) fn run(arguments: Arguments) -> Result<(), CliError> {
    if arguments.at != At::Recorded && arguments.speed != Speed(1.0) {
        return Err(CliError::usage("--speed is for --at recorded"));
    }
    let trace = &arguments.trace;
    if trace == "-" {
        let problem = "-: a replay reads its trace twice; write standard input to a file first";
        return Err(CliError::usage(problem));
    }
    let in_trace = |problem: String| CliError::usage(format!("{trace}: {problem}"));
    let settings = arguments.source.config()?;
    if settings.memory.memory.is_some() {
        return Err(CliError::usage("memory is for floe serve; a replay is of the cache below it"));
    }
    let prices = price::of_all(&arguments.price, settings.tiers().count())?;
    let survey = survey(trace, &arguments.open, arguments.limit)?;
    let pace =
        pace(arguments.at, arguments.speed, arguments.in_flight, &survey).map_err(in_trace)?;
    let warmup = arguments.warmup.of(survey.requests).map_err(in_trace)?;
    let counted = survey.requests - warmup;
    let setup = Setup {
        pace,
        warmup,
        verify: !arguments.no_verify && (arguments.verify || arguments.time == Time::Real),
        flush_interval: settings.serving.flush_interval(),
        shed_most: settings.serving.shed.map(Percent::share),
        interval: arguments
            .interval
            .map(|interval| interval.of(counted))
            .transpose()
            .map_err(in_trace)?,
    };
    if let Some(volume) =
        settings.volume.iter().find(|volume| volume.read_only && survey.changes > 0)
    {
        return Err(in_trace(format!("it writes, and volume {} is read-only", volume.name())));
    }
    let plan = Plan::of(&settings, survey.changes == 0);
    let fit = Fit { wrap: arguments.wrap, concatenate: arguments.concatenate };
    let layout = Layout::new(&survey, &plan.volume_sizes().or_usage()?, fit)
        .map_err(|error| in_trace(error.to_string()))?;
    let stage = match arguments.time {
        Time::Virtual => Stage::simulated(&plan, setup.verify),
        Time::Real => {
            let existing = plan.existing().filter(|_| survey.changes > 0 && !arguments.overwrite);
            if let Some(spec) = existing {
                let problem = format!(
                    "its writes would destroy what {spec} holds; say --overwrite if they may"
                );
                return Err(in_trace(problem));
            }
            spare_kept_cache(&plan)?;
            Stage::real(&plan)
        }
    }
    .or_usage()?;
    let limit = arguments.limit.unwrap_or(u64::MAX);
    let feed = Feed::start(arguments.open.open(trace, true)?, limit);
    let bar = output::progress(survey.requests, "replaying");
    let outcome = replay(trace, feed, &layout, &setup, stage, |ended| bar.set_position(ended));
    bar.finish_and_clear();
    let mut outcome = outcome.map_err(|error| match error {
        ReplayError::Trace(_) => CliError::usage(error.to_string()),
        _ => CliError::failure(error.to_string()),
    })?;
    if let Some(prices) = prices {
        outcome.price(prices);
    }
    if arguments.histogram {
        outcome.show_histograms();
    }
    if let Some(file) = &arguments.report {
        write_report(file, &outcome)?;
    }
    if arguments.csv && arguments.interval.is_some() {
        return output::csv(&outcome.series).or_failure();
    }
    if arguments.csv {
        return output::csv(&[outcome]).or_failure();
    }
    if arguments.json {
        return output::json_line(&outcome).or_failure();
    }
    print::print(&outcome);
    Ok(())
}

/// Refuses a device with a persistent cache, which the replay's cache would overwrite.
fn spare_kept_cache(plan: &Plan) -> Result<(), CliError> {
    for Tier { config, cache, .. } in &plan.tiers {
        if cache.is_memory() || cache.paths().iter().any(|path| !path.exists()) {
            continue;
        }
        let source: Arc<dyn DeviceSource> =
            Arc::new(cache.prepare(Role::Cache { size: config.cache_bytes }).or_usage()?);
        refuse_kept(&source).or_usage()?;
    }
    Ok(())
}

/// Reads the trace once, to learn its volumes and sizes.
fn survey(trace: &str, open: &TraceArguments, limit: Option<u64>) -> Result<Survey, CliError> {
    if std::fs::metadata(trace).is_ok_and(|file| !file.is_file() && !file.is_dir()) {
        let problem = "a trace is read twice, which takes a file";
        return Err(CliError::usage(format!("{trace}: {problem}")));
    }
    let mut requests = open.open_disk(trace, "a replay")?;
    let bar = output::progress(requests.total_bytes().unwrap_or(0), "reading");
    let progress = requests.progress();
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let watched = requests.by_ref().take(limit).enumerate().map(|(count, request)| {
        if (count as u64).is_multiple_of(PROGRESS_EVERY) {
            bar.set_position(progress.bytes_read());
        }
        request
    });
    let survey = Survey::of(watched).or_usage();
    bar.finish_and_clear();
    tell_skipped(trace, &requests);
    match survey? {
        survey if survey.requests == 0 => {
            Err(CliError::usage(format!("{trace}: it has no requests")))
        }
        survey => Ok(survey),
    }
}

fn pace(at: At, speed: Speed, in_flight: Option<u32>, survey: &Survey) -> Result<Pace, String> {
    let in_flight = |otherwise| in_flight.unwrap_or(otherwise) as usize;
    match at {
        At::Answered => Ok(Pace::Closed { in_flight: in_flight(1) }),
        At::Recorded if !survey.has_times => {
            Err("it has no times, which --at recorded needs".into())
        }
        At::Recorded => {
            Ok(Pace::Recorded { speed: speed.0, in_flight: in_flight(IN_FLIGHT_RECORDED) })
        }
    }
}

fn write_report(file: &Path, outcome: &ReplayResult) -> Result<(), CliError> {
    let command = std::env::args().skip(1).fold("floe".to_owned(), |line, word| line + " " + &word);
    std::fs::write(file, html(&latencies::report(&command, outcome)))
        .map_err(|error| CliError::failure(format!("cannot write {}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_above_zero() {
        assert_eq!("0.5".parse(), Ok(Speed(0.5)));
        for wrong in ["0", "-1", "inf", "nan", "fast", ""] {
            assert!(wrong.parse::<Speed>().is_err(), "{wrong}");
        }
    }
}
