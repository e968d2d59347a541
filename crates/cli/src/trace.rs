//! `floe trace`: inspects and converts traces.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Instant;

use clap::{Args, Subcommand};
use floe_trace::{
    Columns, CompactOptions, ErrorKind, Filter, Format, Info, Kind, LruCurve, LruPoint,
    OpenOptions, Reuse, ReuseStats, Stats, Trace, convert, convert_to_oracle_general,
    formats_table, generators, generators_table,
};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::error::{CliError, OrFail};
use crate::output::{Column, tables};
use crate::{log, output};
use floe_lab::sizes::{CacheSize, Sizes};

#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// Print requests, footprint and time span of traces
    Info(InfoArguments),
    /// Write a trace in the compact form, which replays several times faster
    Convert(ConvertArguments),
    /// List the formats, and the generators that can replace a trace
    Formats(FormatsArguments),
}

/// Number of requests between two updates of the progress bar.
pub(crate) const PROGRESS_EVERY: u64 = 1 << 16;

/// Options for opening a trace, shared by all commands that read one.
#[derive(Debug, Clone, Args)]
pub(crate) struct TraceArguments {
    #[arg(long, value_name = "NAME", help = format_help())]
    format: Option<Format>,
    /// Columns of a table with other names: time=when,time-unit=ms,key=obj,size=kb,size-unit=1024;
    /// also offset, op, volume and offset-unit. Numbers, as in time=1,key=2, need no header
    #[arg(long, value_name = "ROLE=NAME,…")]
    columns: Option<Columns>,
    /// Skip and count bad records instead of stopping at the first
    #[arg(long)]
    skip_bad: bool,
    /// Seed of a generator; each seed makes another trace
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Requests to keep: time=1h..2h, range=0..10GiB (those that begin in it), volume=3, op=write;
    /// repeat volume and op to keep several
    #[arg(long, value_name = "NAME=VALUE,…")]
    filter: Option<Filter>,
}

impl TraceArguments {
    /// Returns whether the user gave any option for opening a trace.
    pub(crate) fn is_told(&self) -> bool {
        let Self { format, columns, skip_bad, seed, filter } = self;
        format.is_some() || columns.is_some() || *skip_bad || seed.is_some() || filter.is_some()
    }

    pub(crate) fn open(&self, path: &str, as_blocks: bool) -> Result<Trace, CliError> {
        let columns = self.columns.clone();
        let filter = self.filter.clone();
        let (format, skip_bad) = (self.format, self.skip_bad);
        let options = OpenOptions { format, skip_bad, as_blocks, columns, filter };
        Trace::open_source(&self.seeded(path)?, &options).or_usage()
    }

    /// Returns whether a file may be a trace: false if its content fits no format.
    pub(crate) fn may_be_trace(&self, file: &str) -> bool {
        let (format, columns) = (self.format, self.columns.clone());
        let options = OpenOptions { format, columns, ..OpenOptions::default() };
        !Trace::open(file, &options).is_err_and(|error| {
            matches!(
                error.kind(),
                ErrorKind::Empty { .. } | ErrorKind::Unknown { .. } | ErrorKind::NotTrace { .. }
            )
        })
    }

    /// Adds the given seed to the text of a generator. Returns other texts unchanged.
    fn seeded<'a>(&self, source: &'a str) -> Result<Cow<'a, str>, CliError> {
        let Some(seed) = self.seed else { return Ok(source.into()) };
        let end = source.find([':', '+']).unwrap_or(source.len());
        let (name, rest) = source.split_at(end);
        if !generators().any(|generator| generator.generator == name) {
            let problem = format!("{source}: --seed applies to generators only");
            return Err(CliError::usage(problem));
        }
        let rest = match rest.strip_prefix(':') {
            Some("") | None => rest.trim_start_matches(':').to_owned(),
            Some(parameters) => format!(",{parameters}"),
        };
        Ok(format!("{name}:seed={seed}{rest}").into())
    }

    /// Opens a trace of disk I/O. `whose` is the command that needs one, for the error message.
    pub(crate) fn open_disk(&self, path: &str, whose: &str) -> Result<Trace, CliError> {
        let trace = self.open(path, true)?;
        if trace.kind() != Kind::Block {
            let problem =
                format!("{} traces have no disk addresses, which {whose} needs", trace.format());
            return Err(CliError::usage(format!("{path}: {problem}")));
        }
        Ok(trace)
    }
}

const EXAMPLES: &str = "\
Examples:
  floe trace info disk.vscsi src1_0.csv.gz
  floe trace info --as-blocks --json P2.lis.zst
  floe trace info --filter time=1h..2h,op=write disk.vscsi
  floe trace info --size 1GiB,2GiB,4GiB disk.vscsi
  floe trace info --format le64 --skip-bad keys.bin
  ssh host cat disk.vscsi.zst | floe trace info -
  floe trace info --columns time=when,time-unit=ms,key=obj,size=kb,size-unit=1024 mine.csv";

const CURVE: &str = "\
A request for disk I/O touches the blocks of 4 KiB that it covers in part or whole, any other its
object or key. Deletes and discards touch nothing. The footprint is what is touched: objects at
their largest size. `simulate` and `advise` take the same.

`LRU misses at 10%` is the miss ratio of an LRU cache that holds a tenth of what the trace touches;
the size of the cache follows in parentheses. The miss ratios take one pass and 10 MiB of memory.
Each object counts as one, whatever its size. The ratios are estimated from 32768 keys (SHARDS); ±
is their 95 % interval. `floe simulate --policy lru` computes exact ones.";

fn format_help() -> String {
    format!("Format of the trace, if its content does not show it: {}", Format::names())
}

#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{CURVE}"))]
pub(crate) struct InfoArguments {
    /// Trace files, compressed or not, - for standard input, or generators such as zipf:keys=1000
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    #[command(flatten)]
    trace: TraceArguments,
    /// Read traces of page numbers as disk I/O
    #[arg(long)]
    as_blocks: bool,
    /// Also print the popularity of keys and their reuse distances; takes 4 bytes of memory an
    /// access
    #[arg(long)]
    reuse: bool,
    /// Sizes of LRU caches whose miss ratios are printed: keys or blocks of 4 KiB (1000), bytes
    /// (64MiB, disk I/O only) or shares of what the trace touches (10%); a,b,c or from..=to:step
    #[arg(long, value_name = "LIST", default_value = "1%,2%,5%,10%,20%,50%")]
    size: Sizes,
    /// One JSON object per trace instead of a table
    #[arg(long)]
    json: bool,
}

const CONVERT_EXAMPLES: &str = "\
Examples:
  floe trace convert src1_0.csv.gz src1_0.floe
  floe trace convert --zstd --next-accesses zipf:keys=1000000,requests=10000000 zipf.floe
  floe trace convert --to-format oracleGeneral --zstd objects.csv objects.oracleGeneral.zst

oracleGeneral is the format of libCacheSim. Reads and writes are its requests, and deletes are left
out. Disk I/O becomes a request for each block of 4 KiB that it touches, and blocks are numbered.
Writing it takes 24 bytes of memory a request, and 25 to 45 a distinct object or block.";

#[derive(Debug, Args)]
#[command(after_help = CONVERT_EXAMPLES)]
pub(crate) struct ConvertArguments {
    /// Trace file, compressed or not, or a generator
    from: String,
    /// File to write
    to: PathBuf,
    #[command(flatten)]
    trace: TraceArguments,
    /// Read traces of page numbers as disk I/O
    #[arg(long)]
    as_blocks: bool,
    /// Format of the file: floe, the compact form, or oracleGeneral, which libCacheSim reads
    #[arg(long, value_name = "FORMAT", default_value = "floe")]
    to_format: TargetFormat,
    /// Compress, at this level if one is given
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true,
          default_missing_value = "3", value_parser = clap::value_parser!(i32).range(1..=22))]
    zstd: Option<i32>,
    /// Also store the next access of each key, for Belady's policy; oracleGeneral always has it
    #[arg(long)]
    next_accesses: bool,
    /// One JSON object instead of a sentence
    #[arg(long)]
    json: bool,
}

/// A format that traces are converted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum TargetFormat {
    Floe,
    #[value(name = "oracleGeneral")]
    OracleGeneral,
}

const FORMATS_EXAMPLES: &str = "\
Examples:
  floe trace formats";

#[derive(Debug, Args)]
#[command(after_help = FORMATS_EXAMPLES)]
pub(crate) struct FormatsArguments {
    /// One JSON object per format and generator instead of tables
    #[arg(long)]
    json: bool,
}

/// A format in the output of `floe trace formats`.
#[derive(Serialize)]
struct FormatLine {
    format: &'static str,
    kind: Kind,
    layout: &'static str,
    origin: &'static str,
}

/// A trace in the output of `floe trace info`.
#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    info: Info,
    /// Number of reads and writes of single objects. A disk request touches several blocks.
    touches: u64,
    /// Unit that is touched: `block` (of 4 KiB), `object` or `key`.
    object: &'static str,
    #[serde(flatten)]
    reuse: Option<Reuse>,
    #[serde(flatten)]
    curve: Curve,
}

/// The output of `floe trace convert`.
#[derive(Serialize)]
struct Converted<'a> {
    trace: &'a str,
    to: String,
    requests: u64,
    unique: u64,
    bytes: u64,
    seconds: f64,
}

pub(crate) fn run(command: &TraceCommand) -> Result<(), CliError> {
    match command {
        TraceCommand::Info(arguments) => print_info(arguments),
        TraceCommand::Convert(arguments) => write_converted(arguments),
        TraceCommand::Formats(arguments) => print_formats(arguments),
    }
}

const REUSE_ROWS: [&str; 7] =
    ["top 1 %", "top 10 %", "zipf", "one-hit", "reuse p10", "reuse p50", "reuse p90"];

fn print_info(arguments: &InfoArguments) -> Result<(), CliError> {
    let mut traces = Vec::new();
    // Unreadable traces do not stop the others.
    let mut refused = Vec::new();
    for file in &arguments.files {
        let line = match info(file, arguments) {
            Ok(line) => line,
            Err(error) => {
                refused.push(error);
                continue;
            }
        };
        if arguments.json {
            output::json_line(&line).or_failure()?;
            continue;
        }
        traces.push(figures(line, &arguments.size));
    }
    if !traces.is_empty() {
        output::say!("{}", tables("trace", &traces).trim_end());
    }
    let last = refused.pop();
    refused.iter().for_each(|error| {
        log::report(error);
    });
    last.map_or(Ok(()), Err)
}

/// Formats the figures of a trace for the table.
fn figures(line: Line, sizes: &Sizes) -> Column {
    let Line { info, touches, object, reuse, curve } = line;
    let none = || "–".to_owned();
    let sized = |bytes: u64| if object == "key" { none() } else { output::bytes(bytes) };
    let of_info = [
        ("format", info.format.to_owned()),
        ("requests", info.requests.to_string()),
        ("reads", info.reads.to_string()),
        ("writes", info.writes.to_string()),
        ("deletes", info.deletes.to_string()),
        ("times that go back", info.backward_times.to_string()),
        ("touches", format!("{touches} {object}s")),
        ("unique", format!("{} {object}s", info.unique)),
        ("footprint", sized(info.footprint_bytes)),
        ("mean request", sized(info.mean_bytes as u64)),
        ("seconds", if info.seconds > 0.0 { format!("{:.1}", info.seconds) } else { none() }),
    ];
    let of_reuse = reuse.iter().flat_map(|reuse| REUSE_ROWS.into_iter().zip(reuse_cells(reuse)));
    let rows = of_info.into_iter().chain(of_reuse);
    let rows = rows.map(|(name, value)| (name.to_owned(), value)).chain(curve.rows(sizes));
    Column { rows: rows.collect(), name: info.trace }
}

fn print_formats(arguments: &FormatsArguments) -> Result<(), CliError> {
    if !arguments.json {
        output::say!("{}\n{}", formats_table(), generators_table().trim_end());
        return Ok(());
    }
    for format in Format::all() {
        let (kind, layout, origin) = (format.kind(), format.layout(), format.origin());
        output::json_line(&FormatLine { format: format.name(), kind, layout, origin })
            .or_failure()?;
    }
    generators().try_for_each(|generator| output::json_line(&generator)).or_failure()
}

/// Returns the word for the units that a trace of this kind touches.
pub(crate) fn object(kind: Kind) -> &'static str {
    match kind {
        Kind::Block => "block",
        Kind::Object => "object",
        Kind::Key => "key",
    }
}

fn reuse_cells(reuse: &Reuse) -> [String; 7] {
    let none = || "–".to_owned();
    let error = match reuse.reuse_error {
        0.0 => String::new(),
        error => format!(" ±{}", output::percent(error)),
    };
    let distance =
        |distance: Option<u64>| distance.map_or_else(none, |distance| distance.to_string());
    [
        output::percent(reuse.top_1_percent_share),
        output::percent(reuse.top_10_percent_share),
        reuse.zipf_exponent.map_or_else(none, |exponent| format!("{exponent:.2}")),
        output::percent(reuse.one_hit_share),
        distance(reuse.reuse_p10),
        distance(reuse.reuse_p50) + &error,
        distance(reuse.reuse_p90),
    ]
}

fn info(file: &str, arguments: &InfoArguments) -> Result<Line, CliError> {
    let mut trace = arguments.trace.open(file, arguments.as_blocks)?;
    let kind = trace.kind();
    check(&arguments.size, file, kind)?;
    let mut curve = LruCurve::new(kind);
    let mut stats = Stats::new(kind);
    let mut reuse = arguments.reuse.then(|| ReuseStats::new(kind));
    read_all(file, &mut trace, file, |request| {
        stats.add(request);
        curve.add(request);
        reuse.as_mut().map_or(Ok(()), |reuse| reuse.add(request).or_usage())
    })?;
    let info = stats.info_of(&trace);
    let curve = Curve::of(&curve, &arguments.size, kind, &info);
    let (reuse, touches) = (reuse.map(ReuseStats::reuse), info.touches);
    Ok(Line { info, touches, object: object(kind), reuse, curve })
}

fn write_converted(arguments: &ConvertArguments) -> Result<(), CliError> {
    let target = arguments.to_format;
    if target == TargetFormat::OracleGeneral && arguments.next_accesses {
        return Err(CliError::usage("--next-accesses is for floe; oracleGeneral always has them"));
    }
    let begun = Instant::now();
    let mut trace = arguments.trace.open(&arguments.from, arguments.as_blocks)?;
    let bar = output::progress(trace.total_bytes().unwrap_or(0), &arguments.from);
    let progress = trace.progress();
    let (zstd_level, next_accesses) = (arguments.zstd, arguments.next_accesses);
    let watch = || bar.set_position(progress.bytes_read());
    let counts = match target {
        TargetFormat::Floe => {
            let options = CompactOptions { zstd_level, next_accesses };
            let header = convert(&mut trace, &arguments.to, options, watch);
            header.map(|header| (header.requests, header.distinct))
        }
        TargetFormat::OracleGeneral => {
            let summary = convert_to_oracle_general(&mut trace, &arguments.to, zstd_level, watch);
            summary.map(|summary| (summary.requests, summary.objects))
        }
    };
    bar.finish_and_clear();
    let (requests, unique) = counts.or_usage()?;
    tell_skipped(&arguments.from, &trace);
    let to = arguments.to.display().to_string();
    let bytes = std::fs::metadata(&arguments.to).or_failure()?.len();
    let seconds = begun.elapsed().as_secs_f64();
    if arguments.json {
        let line = Converted { trace: &arguments.from, to, requests, unique, bytes, seconds };
        return output::json_line(&line).or_failure();
    }
    output::say!("{to}: {requests} requests, {}", output::bytes(bytes));
    Ok(())
}

/// Reads a trace to its end with a progress bar, and prints the number of bad records.
pub(crate) fn read_all(
    file: &str,
    trace: &mut Trace,
    label: &str,
    each: impl FnMut(&floe_trace::Request) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let bar = output::progress(trace.total_bytes().unwrap_or(0), label);
    read_with(&bar, file, trace, each)
}

/// Reads a trace to its end and moves a progress bar, which is then cleared.
pub(crate) fn read_with(
    bar: &ProgressBar,
    file: &str,
    trace: &mut Trace,
    mut each: impl FnMut(&floe_trace::Request) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let progress = trace.progress();
    for (request, count) in trace.by_ref().zip(0u64..) {
        each(&request.or_usage()?)?;
        if count.is_multiple_of(PROGRESS_EVERY) {
            bar.set_position(progress.bytes_read());
        }
    }
    bar.finish_and_clear();
    tell_skipped(file, trace);
    Ok(())
}

pub(crate) fn tell_skipped(file: &str, trace: &Trace) {
    if trace.skipped() > 0 {
        eprintln!("floe: {file}: bad records skipped: {}", trace.skipped());
    }
}

/// Bytes in a block of a trace of disk I/O.
const BLOCK_BYTES: u64 = 4096;

/// The miss ratios of an LRU cache, in JSON.
#[derive(Serialize)]
struct Curve {
    /// Share of keys whose reuse was measured; 1 for all keys.
    lru_sample: f64,
    /// Miss ratio at each size, in the order of the sizes.
    lru_miss_ratios: Vec<LruPoint>,
    #[serde(skip)]
    kind: Kind,
    #[serde(skip)]
    touches: u64,
}

/// Checks that the sizes have a unit that fits a trace of this kind.
fn check(sizes: &Sizes, file: &str, kind: Kind) -> Result<(), CliError> {
    let in_bytes = sizes.0.iter().any(|size| matches!(size, CacheSize::Bytes(_)));
    if in_bytes && kind != Kind::Block {
        return Err(CliError::usage(format!(
            "{file}: miss ratios by bytes are for disk I/O; give --size as a count or a share"
        )));
    }
    Ok(())
}

impl Curve {
    fn of(curve: &LruCurve, sizes: &Sizes, kind: Kind, info: &Info) -> Self {
        let size = |size: &CacheSize| match size {
            CacheSize::Bytes(bytes) => bytes / BLOCK_BYTES,
            size => size.of(info.unique),
        };
        let points = sizes.0.iter().map(|wanted| curve.at(size(wanted).max(1)));
        Self {
            lru_sample: curve.sampled_share(),
            lru_miss_ratios: points.collect(),
            kind,
            touches: curve.touches(),
        }
    }

    /// Returns the name and value of each row in the table.
    fn rows(&self, sizes: &Sizes) -> impl Iterator<Item = (String, String)> {
        let row = |(size, point): (&CacheSize, &LruPoint)| {
            let count = match self.kind {
                Kind::Block => output::bytes(point.size * BLOCK_BYTES),
                Kind::Object | Kind::Key => point.size.to_string(),
            };
            let error = match point.miss_ratio_ci95 {
                0.0 => String::new(),
                error => format!(" ± {error:.4}"),
            };
            let ratio = match self.touches {
                0 => "–".to_owned(),
                _ => format!("{:.4}{error} ({count})", point.miss_ratio),
            };
            (format!("LRU misses at {size}"), ratio)
        };
        sizes.0.iter().zip(&self.lru_miss_ratios).map(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_ratio_names_the_size_of_its_cache() {
        let point = LruPoint { size: 100, miss_ratio: 0.25, miss_ratio_ci95: 0.0 };
        let curve =
            |kind| Curve { lru_sample: 1.0, lru_miss_ratios: vec![point], kind, touches: 1000 };
        let sizes: Sizes = "10%".parse().expect("a size");
        let row = |kind| curve(kind).rows(&sizes).next().expect("a row");
        assert_eq!(row(Kind::Key), ("LRU misses at 10%".into(), "0.2500 (100)".into()));
        assert_eq!(row(Kind::Block).1, "0.2500 (400KiB)");
    }
}
