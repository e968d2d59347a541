//! `floe advise`: recommends settings of a cache for a trace and two media, or shares of a cache
//! for several traces.

use std::str::FromStr;
use std::sync::atomic::Ordering::Relaxed;

use clap::Args;
use comfy_table::Table;
use floe_block::WriteMode;
use floe_device::{Medium, Spec};
use floe_lab::advise::objects::{advise_objects, sizes_for};
use floe_lab::advise::{
    Advice, AdviseError, Backing, BucketPrices, Goal, Question, Trial, Workload, advise,
};
use floe_lab::replay::BucketRequests;
use floe_lab::report::{advice_report, object_advice_report};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::error::{CliError, OrFail};
use crate::output::{self, ReportFiles};
use crate::simulate::{Objects, WriteArguments, print_hybrids};
use crate::trace::{PROGRESS_EVERY, TraceArguments, tell_skipped};
use floe_server::config::Bytes;

mod shares;

/// Number of requests of a trace that are held in memory, unless --limit says otherwise.
const LIMIT: u64 = 2_000_000;

const EXAMPLES: &str = "\
Examples:
  floe advise disk.vscsi --backing hdd --cache nvme
  floe advise disk.vscsi --backing cloud --cache nvme=10GiB --write through,around
  floe advise src1_0.csv.gz --backing hdd --cache sata-ssd --price 0.08 --report advice.html
  floe advise disk.vscsi --backing hdd --cache nvme --goal p99.9
  floe advise zipf:keys=100000,requests=100000,block=4KiB --backing hdd --cache nvme --json
  floe advise disk.vscsi --backing s3,object=256KiB --cache nvme --s3-prices sent=0.09
  floe advise db=pg.vscsi mail.vscsi src1_0.csv.gz --backing cloud --cache nvme=10GiB
  floe advise objects.csv --objects --report advice.html

Replays the trace in virtual time with many settings, on all cores: sizes and write modes, then
block sizes, policies and admissions. Each round keeps the best of the one before, and the last
replays the whole trace. The best has the shortest mean time of a request, or what --goal says; of
sizes within 5 % the smallest is chosen. The verdict names the means, p99 and p99.9 of reads and of
writes that the recommended cache makes worse. write = back keeps written data in the cache alone
until it is cleaned: without --write through,around only choose it where the cache's device is as
safe as the volume. No size is larger than what the trace touches, in blocks of 32 KiB. Terabytes a
year follow the times in the trace; where it has none, they are not known.

Goals: p99 and p99.9 want the shortest time within which 99 or 99.9 % of the requests are answered,
from settings with which neither reads nor writes get slower than on the bare volume by it. cost
wants the smallest cache, and endurance the fewest bytes written to it, of the settings with three
quarters of the gain of the fastest ones.

--backing s3 is a volume in a bucket, as of floe serve --backing s3://BUCKET/PREFIX. The answer has
its requests and their price in dollars, for 30 days at the pace of the trace. The times of requests
are estimates: 30 ms to the first byte of a read, 50 ms for a write, and 75 MB/s a connection.

With several traces, each of a volume, proposes a share of the cache for each volume: guaranteed
parts with which misses cost the least time in all, and none misses more than with an even split. A
volume is named after its file, or as in NAME=FILE. Each asks at an even pace, and all end together.
The proposal is replayed beside no shares and an even split. The other settings are the defaults,
and --write gives one mode [default: through].

With --objects, simulates floe::hybrid with 1, 3 and 10 % of what the trace touches as memory, and
10, 25, 50 and 100 % as flash. The best is the least memory, and then the least flash, whose hits
are within a point of the most.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A trace of disk I/O (or of objects, with --objects), compressed or not, or a generator such
    /// as zipf:keys=1000,block=4KiB; several for volumes that share a cache
    #[arg(required = true, value_name = "[NAME=]TRACE")]
    trace: Vec<String>,
    #[arg(long, value_name = "MEDIUM", value_parser = volume, help = backing_help(),
          required_unless_present = "objects")]
    backing: Option<Volume>,
    /// Prices of --backing s3 in dollars: of a million requests that put an object, of a million
    /// others, and of a GB that the bucket sends [default: put=5,get=0.40,sent=0]
    #[arg(long, value_name = "put=P,get=P,sent=P", value_parser = s3_prices)]
    s3_prices: Option<BucketPrices>,
    /// Medium of the cache; with a size, caches of that size only
    #[arg(long, value_name = "MEDIUM[=SIZE]", required_unless_present = "objects")]
    cache: Option<CacheMedium>,
    /// Advise on the memory and the flash of a cache of objects (floe::hybrid) instead
    #[arg(long, conflicts_with_all = [
        "backing", "cache", "goal", "write", "in_flight", "limit", "price", "s3_prices",
    ])]
    objects: bool,
    /// Size of every object of a trace of keys without sizes, with --objects
    #[arg(long, value_name = "SIZE", requires = "objects")]
    object_size: Option<Bytes>,
    #[command(flatten)]
    writes: WriteArguments,
    /// The measure to choose by: mean, p99, p99.9, cost or endurance
    #[arg(long, value_name = "GOAL", default_value_t)]
    goal: Goal,
    /// Write modes to choose from [default: through,around,back]
    #[arg(long, value_name = "MODE", value_delimiter = ',', value_parser = write_mode)]
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
    #[command(flatten)]
    files: ReportFiles,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

fn backing_help() -> String {
    format!("Medium of the volume: {}, or s3[,object=SIZE] for a bucket", Medium::names())
}

/// The volume, without the prices of a bucket.
#[derive(Debug, Clone, PartialEq)]
enum Volume {
    Medium(String),
    /// A bucket, with the size of an object in bytes if it was given.
    Bucket(Option<u64>),
}

/// Parses a medium, or `s3` with the size of an object.
fn volume(text: &str) -> Result<Volume, String> {
    let Some(settings) = text.strip_prefix("s3") else {
        let found = medium(text).map(Volume::Medium);
        return found.map_err(|error| format!("{error}, and s3 for a bucket"));
    };
    match settings.strip_prefix(",object=") {
        None if settings.is_empty() => Ok(Volume::Bucket(None)),
        Some(size) if !size.contains(',') => {
            let spec: Spec = format!("s3://BUCKET/VOLUME{settings}")
                .parse()
                .map_err(|error: floe_device::SpecError| error.to_string())?;
            Ok(Volume::Bucket(spec.object_bytes()))
        }
        _ => Err(format!("`{text}` is not a volume; a bucket is s3 or s3,object=SIZE")),
    }
}

/// Parses prices by their names. Those that are not named keep their defaults.
fn s3_prices(text: &str) -> Result<BucketPrices, String> {
    let mut prices = BucketPrices::default();
    for each in text.split(',') {
        let (name, value) = each.split_once('=').unwrap_or((each, ""));
        let of = match name {
            "put" => &mut prices.put_million,
            "get" => &mut prices.get_million,
            "sent" => &mut prices.sent_gigabyte,
            _ => return Err(format!("there is no price `{name}`; there are put, get and sent")),
        };
        *of = price(value)?;
    }
    Ok(prices)
}

fn medium(name: &str) -> Result<String, String> {
    match Medium::named(name) {
        Some(_) => Ok(name.to_owned()),
        None => Err(format!("there is no medium `{name}`; there are {}", Medium::names())),
    }
}

/// Parses a write mode; refuses `pass`, which caches nothing.
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

/// The medium of the cache, and the size of the cache if the user has fixed it.
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
    match (&arguments.backing, &arguments.cache, &arguments.trace[..]) {
        (Some(backing), Some(cache), traces) => {
            arguments.writes.need("--objects")?;
            let backing = backing_of(backing, arguments.s3_prices)?;
            match traces {
                [trace] => advise_blocks(arguments, trace, backing, cache),
                _ => shares::advise_volumes(arguments, &backing, cache),
            }
        }
        (_, _, [trace]) => advise_on_objects(arguments, trace),
        _ => Err(CliError::usage("--objects applies to one trace; several are given")),
    }
}

/// Returns the volume with its prices.
///
/// # Errors
/// When there are prices, but no bucket.
fn backing_of(volume: &Volume, prices: Option<BucketPrices>) -> Result<Backing, CliError> {
    match (volume, prices) {
        (Volume::Medium(medium), None) => Ok(Backing::Medium(medium.clone())),
        (Volume::Medium(medium), Some(_)) => Err(CliError::usage(format!(
            "--s3-prices: {medium} has no requests to pay for; give --backing s3"
        ))),
        (Volume::Bucket(object_bytes), prices) => {
            Ok(Backing::Bucket { object_bytes: *object_bytes, prices: prices.unwrap_or_default() })
        }
    }
}

fn advise_blocks(
    arguments: &Arguments,
    trace: &str,
    backing: Backing,
    cache: &CacheMedium,
) -> Result<(), CliError> {
    let workload = read(arguments, trace)?;
    let modes: &[WriteMode] = match &arguments.write[..] {
        [] => &[WriteMode::Through, WriteMode::Around, WriteMode::Back],
        given => given,
    };
    let question = Question {
        trace: trace.to_owned(),
        goal: arguments.goal,
        backing,
        cache: cache.medium.clone(),
        cache_bytes: cache.bytes,
        in_flight: arguments.in_flight as usize,
        warmup: f64::from(arguments.warmup) / 100.0,
        writes: modes.iter().map(ToString::to_string).collect(),
        price: arguments.price,
    };
    let interrupted = crate::flag_of_signals(&[SIGINT, SIGTERM])?;
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
        AdviseError::UntouchedVolume(_) => CliError::usage(error.to_string()),
        AdviseError::Config(_) => CliError::usage(format!("--cache: {error}")),
        AdviseError::Replay(_) | AdviseError::Interrupted => CliError::failure(error.to_string()),
    })?;
    arguments.files.write(|command| advice_report(command, &advice))?;
    if arguments.json {
        return output::json_line(&advice).or_failure();
    }
    print(&advice);
    Ok(())
}

/// Advises on the memory and the flash of a cache of objects.
fn advise_on_objects(arguments: &Arguments, trace: &str) -> Result<(), CliError> {
    let mut objects = Objects::read(trace, &arguments.open, arguments.object_size)?;
    let requests = objects.stream.keys.len() as u64;
    let warmup = requests * u64::from(arguments.warmup) / 100;
    objects.stream.count_from(warmup as usize, None);
    let footprint_bytes = objects.stream.footprint;
    let results =
        objects.simulate(trace, &sizes_for(footprint_bytes), arguments.writes.settings())?;
    let advice = advise_objects(trace, footprint_bytes, results);
    let untried = || CliError::failure(format!("{trace}: no setting could be tried"));
    let advice = advice.ok_or_else(untried)?;
    arguments.files.write(|command| object_advice_report(command, &advice))?;
    if arguments.json {
        return output::json_line(&advice).or_failure();
    }
    output::say!("{}\n", wrapped(&advice.verdict));
    print_hybrids(&advice.simulations);
    let touched = output::bytes(advice.footprint_bytes);
    output::say!("\n{requests} requests touch {touched}; the first {warmup} do not count.");
    for warning in &advice.warnings {
        output::say!("\n{}", wrapped(&format!("Warning: {warning}")));
    }
    Ok(())
}

/// Reads a trace into memory.
fn read(arguments: &Arguments, path: &str) -> Result<Workload, CliError> {
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

fn print(advice: &Advice) {
    output::say!("{}\n", wrapped(&advice.verdict.text));
    output::print_table(&table(advice));
    for text in advice.alternatives() {
        output::say!("\n{}", wrapped(&text));
    }
    let of_them = match advice.coarse_requests < advice.requests {
        true => format!(", most on the first {}", advice.coarse_requests),
        false => String::new(),
    };
    let touched = format!(
        "{} trials{of_them}; {} requests touch {}, and {} in blocks of 32 KiB.",
        advice.trials,
        advice.requests,
        output::bytes(advice.footprint_bytes),
        output::bytes(advice.footprint_in_cache_bytes)
    );
    output::say!("\n{}", wrapped(&touched));
    for warning in &advice.warnings {
        output::say!("\n{}", wrapped(&format!("Warning: {warning}")));
    }
    match &advice.verdict.toml {
        Some(toml) => output::say!("\nfloe.toml:\n\n{}", toml.trim_end()),
        None => output::say!("\nNo floe.toml is recommended."),
    }
}

/// Formats the cell of a table row for one trial.
type Told = Box<dyn Fn(&Trial) -> String>;

/// Builds a table with a column for each recommended configuration.
fn table(advice: &Advice) -> Table {
    type Cell = fn(&Trial) -> String;
    let us = |time: Option<f64>| time.map_or("–".to_owned(), output::microseconds);
    let lines: Vec<(&str, Told)> = vec![
        ("cache", Box::new(|t| output::bytes(t.candidate.cache_bytes))),
        ("write", Box::new(|t| t.candidate.write.clone())),
        ("blocks", Box::new(|t| range(&t.candidate.block_sizes))),
        ("evict", Box::new(|t| t.candidate.evict.clone())),
        ("admit", Box::new(|t| t.candidate.admit.clone())),
        ("request mean", Box::new(|t| output::microseconds(t.mean_us))),
        ("        p99", Box::new(|t| output::microseconds(t.p99_us))),
        ("        p99.9", Box::new(|t| output::microseconds(t.p999_us))),
        ("read mean", Box::new(move |t| us(t.result.read_us_mean))),
        ("     p50", Box::new(move |t| us(t.result.read_us_p50))),
        ("     p99", Box::new(move |t| us(t.result.read_us_p99))),
        ("     p99.9", Box::new(move |t| us(t.result.read_us_p999))),
        ("write mean", Box::new(move |t| us(t.result.write_us_mean))),
        ("      p50", Box::new(move |t| us(t.result.write_us_p50))),
        ("      p99", Box::new(move |t| us(t.result.write_us_p99))),
        ("      p99.9", Box::new(move |t| us(t.result.write_us_p999))),
        (
            "requests/s",
            Box::new(|t| t.result.requests_per_second.map_or("–".into(), |r| format!("{r:.0}"))),
        ),
        ("read hits", Box::new(|t| output::percent(t.result.read_hit_ratio))),
        ("read from volume", Box::new(|t| output::bytes(t.result.backing_read_bytes))),
        ("written to volume", Box::new(|t| output::bytes(t.result.backing_write_bytes))),
        ("read from cache", Box::new(|t| output::bytes(t.result.cache_read_bytes))),
        ("written to cache", Box::new(|t| output::bytes(t.result.cache_write_bytes))),
        ("memory of the cache", Box::new(|t| output::bytes(t.result.metadata_bytes))),
        ("written a year", Box::new(|t| paced(t, format!("{:.1} TB", t.written_tb_per_year)))),
        ("drive writes a day", Box::new(|t| paced(t, format!("{:.2}", t.writes_per_day)))),
    ];
    let mut table = output::table(&["", "best", "default", "bare"], 1);
    for (name, cell) in &lines {
        // Nothing is cached on a bare volume, whatever its settings.
        let of_cache = matches!(*name, "cache" | "blocks" | "evict" | "admit");
        let bare = if of_cache { "–".to_owned() } else { cell(&advice.bare) };
        table.add_row(vec![(*name).to_owned(), cell(&advice.best), cell(&advice.default), bare]);
    }
    if advice.best.price.is_some() {
        let price: Cell =
            |trial| trial.price.map_or("–".to_owned(), |price| format!("{price:.2}"));
        let (best, default) = (price(&advice.best), price(&advice.default));
        table.add_row(vec!["price".to_owned(), best, default, "–".to_owned()]);
    }
    if advice.bare.bucket.is_some() {
        for (name, cell) in bucket_lines() {
            let cells = [&advice.best, &advice.default, &advice.bare].map(cell);
            table.add_row([&[name.to_owned()][..], &cells].concat());
        }
    }
    table
}

/// A row's name, and its cell for a trial.
type Line = (&'static str, fn(&Trial) -> String);

/// Returns the rows of a volume in a bucket: its requests and their prices.
fn bucket_lines() -> [Line; 4] {
    fn requests(trial: &Trial, of: fn(&BucketRequests) -> u64) -> String {
        trial.result.bucket.as_ref().map_or("–".to_owned(), |it| of(&it.requests).to_string())
    }
    fn dollars(price: Option<f64>) -> String {
        price.map_or("–".to_owned(), |price| format!("${price:.2}"))
    }
    [
        ("bucket GET", |trial| requests(trial, |it| it.gets)),
        ("bucket PUT", |trial| requests(trial, |it| it.puts)),
        ("a million requests", |trial| {
            dollars(trial.bucket.map(|it| it.dollars_per_million_requests))
        }),
        ("a month", |trial| dollars(trial.bucket.and_then(|it| it.dollars_per_month))),
    ]
}

/// Returns a figure, or a dash when it depends on the trace's pace and that is unknown.
fn paced(trial: &Trial, figure: String) -> String {
    if trial.has_pace() { figure } else { "–".to_owned() }
}

/// Shortens a list of block sizes to the first and last.
fn range(sizes: &str) -> String {
    match (sizes.split(',').next(), sizes.rsplit(',').next()) {
        (Some(first), Some(last)) if first != last => format!("{first}–{last}"),
        _ => sizes.to_owned(),
    }
}

/// Breaks a sentence into lines of at most 80 columns.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is a line");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > 80 {
            lines.push(word.to_owned());
            continue;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.join("\n")
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

    #[test]
    fn a_volume_is_a_medium_or_a_bucket() {
        assert_eq!(volume("hdd"), Ok(Volume::Medium("hdd".to_owned())));
        assert_eq!(volume("s3"), Ok(Volume::Bucket(None)));
        assert_eq!(volume("s3,object=256KiB"), Ok(Volume::Bucket(Some(256 << 10))));
        for odd in ["s3,object=1GiB", "s3,object=1MiB,size=1TiB", "s3,size=1TiB", "s3x", "s3,"] {
            assert!(volume(odd).is_err(), "{odd}");
        }
        assert!(volume("disc").unwrap_err().ends_with("cloud, and s3 for a bucket"));
    }

    #[test]
    fn prices_that_are_not_given_are_the_usual_ones() {
        let usual = BucketPrices::default();
        assert_eq!(s3_prices("sent=0.09"), Ok(BucketPrices { sent_gigabyte: 0.09, ..usual }));
        let all = BucketPrices { put_million: 6.0, get_million: 0.5, sent_gigabyte: 0.0 };
        assert_eq!(s3_prices("get=0.5,put=6,sent=0"), Ok(all));
        for odd in ["put", "put=", "put=-1", "post=3", ""] {
            assert!(s3_prices(odd).is_err(), "{odd}");
        }
    }
}

#[cfg(test)]
mod print_tests {
    use super::*;

    #[test]
    fn sentences_fit_into_80_columns() {
        let text = "a word and another ".repeat(20);
        let wrapped = wrapped(&text);
        assert!(wrapped.lines().count() > 3);
        assert!(wrapped.lines().all(|line| line.chars().count() <= 80), "{wrapped}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&wrapped), words(&text));
    }

    #[test]
    fn several_block_sizes_are_shown_by_their_ends() {
        assert_eq!(range("32KiB,64KiB,256KiB"), "32KiB–256KiB");
        assert_eq!(range("64KiB"), "64KiB");
    }
}
