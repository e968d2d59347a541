//! `floe advise`: from a trace and two media to the settings of a cache.

mod print;

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use clap::Args;
use floe_block::WriteMode;
use floe_device::Medium;
use floe_lab::advise::{Advice, AdviseError, Question, Workload, advise};
use floe_lab::report::{advice, html};

use crate::error::CliError;
use crate::size::Bytes;
use crate::trace::{PROGRESS_EVERY, TraceArguments, tell_skipped};
use crate::{OrFail, output};

/// Requests of a trace that are held in memory, unless --limit says otherwise.
const LIMIT: u64 = 2_000_000;

const EXAMPLES: &str = "\
Examples:
  floe advise disk.vscsi --backing hdd --cache nvme
  floe advise disk.vscsi --backing cloud --cache nvme=10GiB --write through,around
  floe advise src1_0.csv.gz --backing hdd --cache sata-ssd --price 0.08 --report advice.html
  floe advise zipf:keys=100000,requests=100000,block=4KiB --backing hdd --cache nvme --json

Replays the trace in virtual time with many settings, on all cores: sizes and write modes, then
block sizes, policies and admissions. Each round keeps the best of the one before, and the last
replays the whole trace. The best has the shortest mean time of a request; of sizes within 5 % the
smallest is chosen. write = back keeps written data in the cache alone until it is cleaned: without
--write through,around only choose it where the cache's device is as safe as the volume. No size is
larger than what the trace touches, in blocks of 32 KiB. Terabytes a year follow the times in the
trace; where it has none, they are not known.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A trace of disk I/O, compressed or not, or a generator such as zipf:keys=1000,block=4KiB
    trace: String,
    #[arg(long, value_name = "MEDIUM", value_parser = medium, help = backing_help())]
    backing: String,
    /// Medium of the cache; with a size, caches of that size only
    #[arg(long, value_name = "MEDIUM[=SIZE]")]
    cache: CacheMedium,
    /// Write modes to choose from
    #[arg(long, value_name = "MODE", value_delimiter = ',', default_value = "through,around,back",
          value_parser = write_mode)]
    write: Vec<WriteMode>,
    /// Requests in flight
    #[arg(long, value_name = "N", default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=16384))]
    in_flight: u32,
    /// Share of the requests that fill the cache and do not count, in percent
    #[arg(long, value_name = "PERCENT", default_value = "20",
          value_parser = clap::value_parser!(u8).range(0..=90))]
    warmup: u8,
    /// Stop after this many requests
    #[arg(long, value_name = "N", default_value_t = LIMIT,
          value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Price of a GiB of cache, in any currency
    #[arg(long, value_name = "PRICE", value_parser = price)]
    price: Option<f64>,
    #[command(flatten)]
    open: TraceArguments,
    /// Write a page with charts that needs no network
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

fn backing_help() -> String {
    format!("Medium of the volume: {}", Medium::names())
}

/// Parses the name of a medium.
fn medium(name: &str) -> Result<String, String> {
    match Medium::named(name) {
        Some(_) => Ok(name.to_owned()),
        None => Err(format!("there is no medium `{name}`; there are {}", Medium::names())),
    }
}

/// Parses a write mode that caches something.
fn write_mode(text: &str) -> Result<WriteMode, String> {
    match text.parse::<WriteMode>().map_err(|error| error.to_string())? {
        WriteMode::Pass => Err("pass is the bare volume, which is always compared; floe replay \
                                replays it alone"
            .to_owned()),
        mode => Ok(mode),
    }
}

fn price(text: &str) -> Result<f64, String> {
    let price = text.parse().ok().filter(|price| (0.0..=1e9).contains(price));
    price.ok_or_else(|| format!("`{text}` is not a price; write 0.08"))
}

/// A medium, and the size of the cache where that is decided.
#[derive(Debug, Clone, PartialEq)]
struct CacheMedium {
    medium: String,
    bytes: Option<u64>,
}

impl FromStr for CacheMedium {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, size) = match text.split_once('=') {
            Some((name, size)) => (name, Some(size)),
            None => (text, None),
        };
        let bytes = size.map(|size| size.parse::<Bytes>().map(|Bytes(bytes)| bytes)).transpose()?;
        Ok(Self { medium: medium(name)?, bytes })
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let trace = &arguments.trace;
    let workload = read(arguments)?;
    let question = Question {
        trace: trace.clone(),
        backing: arguments.backing.clone(),
        cache: arguments.cache.medium.clone(),
        cache_bytes: arguments.cache.bytes,
        in_flight: arguments.in_flight as usize,
        warmup: f64::from(arguments.warmup) / 100.0,
        writes: arguments.write.iter().map(ToString::to_string).collect(),
        price: arguments.price,
    };
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted)).or_failure()?;
    }
    let bar = output::progress(0, "replaying");
    let advice = advise(&question, &workload, &|done, expected| {
        bar.set_length(expected as u64);
        bar.set_position(done as u64);
        !interrupted.load(Relaxed) // a flag of its own: nothing else is read by it
    });
    bar.finish_and_clear();
    let advice = advice.map_err(|error| match error {
        AdviseError::Layout(_) | AdviseError::Untouched => {
            CliError::usage(format!("{trace}: {error}"))
        }
        AdviseError::Config(_) => CliError::usage(format!("--cache: {error}")),
        AdviseError::Replay(_) | AdviseError::Interrupted => CliError::failure(error.to_string()),
    })?;
    if let Some(file) = &arguments.report {
        write_report(file, &advice)?;
    }
    if arguments.json {
        return output::json_line(&advice).or_failure();
    }
    print::print(&advice);
    Ok(())
}

/// Reads the trace into memory.
fn read(arguments: &Arguments) -> Result<Workload, CliError> {
    let path = &arguments.trace;
    let mut trace = arguments.open.open_disk(path, "advice")?;
    let bar = output::progress(trace.total_bytes().unwrap_or(0), "reading");
    let progress = trace.progress();
    let limit = usize::try_from(arguments.limit).unwrap_or(usize::MAX);
    let watched = trace.by_ref().take(limit).enumerate().map(|(count, request)| {
        if (count as u64).is_multiple_of(PROGRESS_EVERY) {
            bar.set_position(progress.bytes_read());
        }
        request
    });
    let workload = Workload::read(watched).or_usage();
    bar.finish_and_clear();
    let workload = workload?;
    if workload.is_empty() {
        return Err(CliError::usage(format!("{path}: it has no requests")));
    }
    if trace.next().is_some() {
        eprintln!("floe: {path}: only its first {limit} requests are used; --limit says how many");
    }
    tell_skipped(path, &trace);
    Ok(workload)
}

fn write_report(file: &PathBuf, found: &Advice) -> Result<(), CliError> {
    let command = std::env::args().skip(1).fold("floe".to_owned(), |line, word| line + " " + &word);
    std::fs::write(file, html(&advice::report(&command, found)))
        .map_err(|error| CliError::failure(format!("cannot write {}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_a_medium_with_or_without_a_size() {
        let parse = |text: &str| text.parse::<CacheMedium>();
        let of = |bytes| Ok(CacheMedium { medium: "nvme".to_owned(), bytes });
        assert_eq!(parse("nvme"), of(None));
        assert_eq!(parse("nvme=2GiB"), of(Some(2 << 30)));
        assert!(parse("tape").unwrap_err().contains("hdd"));
        assert!(parse("nvme=lots").is_err());
    }
}
