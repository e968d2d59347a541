//! `floe simulate`: runs traces through the caches' own code, without devices.

mod blocks;
mod objects;
mod series;
mod summary;

use std::path::PathBuf;

use clap::Args;
use floe_block::{BlockSizes, WriteMode};
use floe_lab::report::{Report, html, png};
use floe_policy::admission::registry::{Choice, choices};
use floe_policy::admission::{Admission, Admissions};

use crate::OrFail;
use crate::error::CliError;
use crate::size::Sizes;
use crate::trace::TraceArguments;
use crate::warmup::{Interval, Warmup};

pub(crate) use floe_lab::parallel::on_all_cores;
pub(crate) use objects::read_stream;

const LISTS: &str = "`floe policies` lists all policies, `floe admissions` all admissions.";

const EXAMPLES: &str = "\
Examples:
  floe simulate P3.lis.zst --policy lru,s3-fifo,arc,belady --size 1%,5%,10%,20%
  floe simulate objects.csv --policy lru,sieve --bytes --size 1GiB --hit-us 10 --miss-us 500
  floe simulate zipf:keys=1000000,theta=0.9 --policy lru,s3-fifo --size 1%..=20%:1% --report \
                        zipf.html
  floe simulate P3.lis.zst --policy lru --admit always --admit fussy --admit obp:target=0.1 --size \
                        5%
  floe simulate *.lis.zst --policy lru,s3-fifo,arc --size 1%,10%
  floe simulate huge.csv.zst --policy lru --sample 0.01 --size 1%..=20%:1%
  floe simulate disk.vscsi --blocks 32KiB,64KiB,128KiB,256KiB --size 10%
  floe simulate disk.vscsi --blocks 32KiB --admit always --admit small-bypass:memory=1GiB+obp \
                        --size 5%,10% --report disk.html
  floe simulate P3.lis.zst --policy lru,arc --size 10% --warmup 20%
  floe simulate disk.vscsi --policy lru,s3-fifo --size 10% --interval 1h --csv
  floe simulate disk.vscsi --blocks 4KiB --policy lru,s3-fifo,arc --size 1%,10%
  floe simulate P2.lis.zst --blocks 32KiB,64KiB --blocks 32KiB --blocks 64KiB --size 45MiB --json";

#[derive(Debug, Args)]
#[command(after_help = format!("{LISTS}\n\n{EXAMPLES}"))]
#[group(id = "what", required = true, multiple = true, args = ["policy", "blocks"])]
pub(crate) struct Arguments {
    /// Traces, compressed or not; with several, medians and ranks of policies follow
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<String>,
    /// Policies to compare, such as lru,slru:segments=4,belady; with --blocks [default: lru]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    policy: Vec<String>,
    /// The admission, such as obp:target=0.2 or second-access+obp; repeat to compare
    #[arg(long, value_name = "ADMISSION", conflicts_with = "sample")]
    admit: Vec<String>,
    /// Simulate the block cache with these block sizes instead; repeat to compare
    #[arg(long, value_name = "LIST")]
    blocks: Vec<BlockSizes>,
    /// Cache sizes: objects (1000), bytes (64KiB) or shares of what the trace touches (10%); a,b,c
    /// or from..=to:step
    #[arg(long, value_name = "LIST", required = true)]
    size: Sizes,
    /// Count bytes: objects take their size
    #[arg(long, conflicts_with = "blocks")]
    bytes: bool,
    /// Simulate a random share of the keys, and print the error of the result (±, with 95 %
    /// confidence)
    #[arg(long, value_name = "SHARE", conflicts_with = "blocks")]
    sample: Option<f64>,
    /// Time a hit takes, to order policies by mean latency [default: 1 if the time of a miss is
    /// known]
    #[arg(long, value_name = "MICROSECONDS", conflicts_with = "blocks")]
    hit_us: Option<f64>,
    /// Time a miss takes
    #[arg(long, value_name = "MICROSECONDS", conflicts_with = "blocks")]
    miss_us: Option<f64>,
    /// Time a miss takes longer that puts its object in, with the eviction for it [default: 0]
    #[arg(long, value_name = "MICROSECONDS", conflicts_with = "blocks")]
    insert_us: Option<f64>,
    /// Take the time of a miss from a medium: dram, pmem, optane, nvme, sata-ssd, hdd or cloud
    #[arg(long, value_name = "NAME", conflicts_with_all = ["miss_us", "blocks"])]
    medium: Option<String>,
    /// Write a page with charts that needs no network
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Write the same charts as pictures, named STEM-CHART.png
    #[arg(long, value_name = "STEM")]
    png: Option<PathBuf>,
    /// The write mode, with --blocks: through, around, back, only or pass
    #[arg(long, value_name = "MODE", default_value = "back", requires = "blocks")]
    write: WriteMode,
    /// Number of shards, with --blocks
    #[arg(long, value_name = "N", default_value_t = 1, requires = "blocks")]
    shards: u64,
    /// The longest time that written data stays in the cache only, in the trace's time, with
    /// --blocks
    #[arg(long, value_name = "DURATION", default_value = "5s", requires = "blocks",
        value_parser = interval)]
    flush_interval: humantime::Duration,
    /// Requests at the start that do not count: a number, or a share of the trace such as 20%; of
    /// disk I/O without --blocks, each block of 4 KiB is a request
    #[arg(long, value_name = "N|SHARE", default_value = "0", conflicts_with = "sample")]
    warmup: Warmup,
    /// Also give the figures of each interval: of so many requests, of such a share of those that
    /// count, or of a time by the trace's clock such as 1h; a list in JSON, a line each in CSV
    #[arg(long, value_name = "N|SHARE|TIME", conflicts_with = "sample")]
    interval: Option<Interval>,
    #[command(flatten)]
    open: TraceArguments,
    /// One JSON object per run instead of a table
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// A line of CSV per run, with the fields of --json, instead of a table
    #[arg(long)]
    csv: bool,
}

fn interval(text: &str) -> Result<humantime::Duration, String> {
    match text.parse::<humantime::Duration>() {
        Ok(interval) if !interval.is_zero() => Ok(interval),
        Ok(_) => {
            Err("0s is too short; with --write through nothing is kept in the cache only".into())
        }
        Err(_) => Err(format!("`{text}` is not a duration; write 500ms, 5s or 1min")),
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    if arguments.report.is_some() || arguments.png.is_some() {
        one_trace(arguments, "a report")?;
    }
    if arguments.blocks.is_empty() { objects::run(arguments) } else { blocks::run(arguments) }
}

/// Returns the trace where `whose` takes one only.
fn one_trace<'a>(arguments: &'a Arguments, whose: &str) -> Result<&'a str, CliError> {
    match &arguments.traces[..] {
        [trace] => Ok(trace),
        _ => Err(CliError::usage(format!("{whose} takes one trace"))),
    }
}

/// Refuses intervals of a time for a trace without times.
fn refuse_without_times(
    arguments: &Arguments,
    trace: &str,
    has_times: bool,
) -> Result<(), CliError> {
    match arguments.interval {
        Some(Interval::Time(_)) if !has_times => Err(CliError::usage(format!(
            "{trace}: it has no times, which --interval needs here; give a number of requests"
        ))),
        _ => Ok(()),
    }
}

/// Returns the admissions of each run; `unit` is the unit of their weights.
fn admissions(arguments: &Arguments, unit: &str) -> Result<Vec<Vec<Choice>>, CliError> {
    let chosen = |text: &String| {
        let choices = choices(text).or_usage()?;
        if Admissions::new(&choices).needs().above {
            let problem = format!(
                "--admit {text}: nothing is above a simulated cache; say small-bypass:memory=N \
                 ({unit})"
            );
            return Err(CliError::usage(problem));
        }
        Ok(choices)
    };
    arguments.admit.iter().map(chosen).collect()
}

/// Writes the requested reports, which are built from the command line on demand.
fn write_report(
    arguments: &Arguments,
    report: impl FnOnce(&str) -> Report,
) -> Result<(), CliError> {
    if arguments.report.is_none() && arguments.png.is_none() {
        return Ok(());
    }
    let command = std::env::args().skip(1).fold("floe".to_owned(), |line, word| line + " " + &word);
    let report = report(&command);
    if let Some(file) = &arguments.report {
        std::fs::write(file, html(&report)).map_err(|error| {
            CliError::failure(format!("cannot write {}: {error}", file.display()))
        })?;
    }
    if let Some(stem) = &arguments.png {
        png::write_all(&report, stem).or_failure()?;
    }
    Ok(())
}
