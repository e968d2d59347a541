//! `floe simulate`: runs traces through the code of the caches, without devices.

use std::path::PathBuf;

use clap::Args;
use floe_block::{AdmissionConfig, BlockSizes, Config, Evict, WriteMode};
use floe_lab::report::blocks_report;
use floe_lab::simulate::blocks::{BlockInterval, BlockSimulationResult, Setup, simulate};
use floe_lab::simulate::objects::{SimulatedInterval, SimulationResult};
use floe_policy::admission::registry::{Choice, choices};
use floe_policy::admission::{Admission, Admissions};
use floe_trace::Request;
use serde::Serialize;

use crate::error::{CliError, OrFail};
use crate::output::{self, ReportFiles};
use crate::trace::{TraceArguments, read_all};
use crate::warmup::{Interval, Warmup};
use floe_lab::sizes::Sizes;
use floe_server::config::Bytes;

pub(crate) use floe_lab::simulate::on_all_cores;

pub(crate) use hybrid::{Objects, WriteArguments, print as print_hybrids};
pub(crate) use objects::read_stream;

mod hybrid;
mod many;
mod objects;
mod prompts;

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
  floe simulate traces --all-cores --resume done.jsonl --policy lru,s3-fifo,auto --size \
                        0.1%,1%,10%
  floe simulate traces --all-cores --policy lru,arc,s3-fifo,belady --size 1%,10%,30% \
                        --relative-to lru
  floe simulate huge.csv.zst --policy lru --sample 0.01 --size 1%..=20%:1%
  floe simulate disk.vscsi --blocks 32KiB,64KiB,128KiB,256KiB --size 10%
  floe simulate disk.vscsi --blocks 32KiB --admit always --admit small-bypass:memory=1GiB+obp \
                        --size 5%,10% --report disk.html
  floe simulate P3.lis.zst --policy lru,arc --size 10% --warmup 20%
  floe simulate disk.vscsi --policy lru,s3-fifo --size 10% --interval 1h --csv
  floe simulate disk.vscsi --blocks 4KiB --policy lru,s3-fifo,arc --size 1%,10%
  floe simulate P2.lis.zst --blocks 32KiB,64KiB --blocks 32KiB --blocks 64KiB --size 45MiB --json
  floe simulate objects.csv --memory 1GiB --flash 20GiB,100GiB,500GiB
  floe simulate zipf:keys=1000000 --object-size 4KiB --memory 5% --flash 20%,50%
  floe simulate mooncake.jsonl --prefix --policy lru,fifo,s3-fifo --size 10%,50%
  floe simulate bailian.jsonl.zst --prefix --policy lru --block-bytes 2MiB --size 10GiB
  floe simulate objects.csv --memory 1GiB --flash 100GiB --admission popularity \
                        --write-budget '1 DWPD'";

#[derive(Debug, Args)]
#[command(after_help = format!("{LISTS}\n\n{EXAMPLES}"))]
#[group(id = "what", required = true, multiple = true, args = ["policy", "blocks", "flash"])]
pub(crate) struct Arguments {
    /// Traces, compressed or not; with several, medians and ranks of policies follow. A folder
    /// stands for all traces in it and below, for which the medians and ranks alone are printed
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
    /// Simulate the cache of objects in memory and on flash (floe::hybrid) instead, with these
    /// sizes of flash: bytes (100GiB) or shares of what the trace touches
    #[arg(long, value_name = "LIST", requires = "memory", conflicts_with_all = FLASH_CONFLICTS)]
    flash: Option<Sizes>,
    /// Memory of the cache with --flash: objects, index and buffers
    #[arg(long, value_name = "LIST", requires = "flash")]
    memory: Option<Sizes>,
    /// Size of every object of a trace of keys without sizes, with --flash
    #[arg(long, value_name = "SIZE", requires = "flash")]
    object_size: Option<Bytes>,
    #[command(flatten)]
    writes: WriteArguments,
    /// Simulate a cache of a language model's keys and values instead, over a trace of prompts
    /// (Mooncake, Qwen-Bailian): a block is reused if all before it in the prompt are cached
    #[arg(long, requires = "policy", conflicts_with_all = prompts::CONFLICTS)]
    prefix: bool,
    /// Bytes of a block of tokens, so that sizes may be in bytes, with --prefix
    #[arg(long, value_name = "SIZE", requires = "prefix")]
    block_bytes: Option<Bytes>,
    /// Cache sizes: objects (1000), bytes (64KiB) or shares of what the trace touches (10%); a,b,c
    /// or from..=to:step
    #[arg(long, value_name = "LIST", required_unless_present = "flash")]
    size: Option<Sizes>,
    /// Count bytes instead of objects: each object takes its size
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
    /// Additional time of a miss that inserts its object, with the eviction for it [default: 0]
    #[arg(long, value_name = "MICROSECONDS", conflicts_with = "blocks")]
    insert_us: Option<f64>,
    /// Take the time of a miss from a medium: dram, pmem, optane, nvme, sata-ssd, hdd or cloud
    #[arg(long, value_name = "NAME", conflicts_with_all = ["miss_us", "blocks"])]
    medium: Option<String>,
    #[command(flatten)]
    files: ReportFiles,
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
    /// Also print the figures of each interval: a number of requests, a share of the requests that
    /// count, or a time by the trace's clock such as 1h; a list in JSON, a line each in CSV
    #[arg(long, value_name = "N|SHARE|TIME", conflicts_with = "sample")]
    interval: Option<Interval>,
    /// Simulate as many traces at a time as there are cores, in the memory of so many traces,
    /// instead of the policies and sizes of one trace
    #[arg(long, conflicts_with_all = ["blocks", "flash", "prefix"])]
    all_cores: bool,
    /// Add the results of each trace to a file when it is done, and take those from there that an
    /// earlier run with the same settings has left
    #[arg(long, value_name = "FILE", conflicts_with_all = ["blocks", "flash", "prefix"])]
    resume: Option<PathBuf>,
    /// Print one table of policies over all traces and sizes instead: the misses of each to those
    /// of this one (geometric mean), and how far it is behind the best of each cache
    #[arg(long, value_name = "POLICY", requires = "policy", conflicts_with_all = TABLE_CONFLICTS)]
    relative_to: Option<String>,
    /// Leave out caches of fewer objects, so that shares of small traces do not count
    #[arg(long, value_name = "N", default_value_t = 0, requires = "relative_to")]
    min_objects: u64,
    #[command(flatten)]
    open: TraceArguments,
    /// One JSON object per run instead of a table
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// A line of CSV per run, with the fields of --json, instead of a table
    #[arg(long)]
    csv: bool,
}

/// Options that have no meaning for the cache in memory and on flash.
const FLASH_CONFLICTS: [&str; 11] = [
    "policy",
    "admit",
    "blocks",
    "size",
    "bytes",
    "sample",
    "hit_us",
    "miss_us",
    "insert_us",
    "medium",
    "interval",
];

/// Options that have no meaning for a table of misses over all traces.
const TABLE_CONFLICTS: [&str; 11] = [
    "blocks",
    "flash",
    "prefix",
    "hit_us",
    "miss_us",
    "insert_us",
    "medium",
    "interval",
    "report",
    "png",
    "svg",
];

impl Arguments {
    /// Returns the policies to compare.
    fn policies(&self) -> Result<Vec<floe_policy::registry::Choice>, CliError> {
        self.policy.iter().map(|policy| policy.parse().or_usage()).collect()
    }

    /// Returns the sizes of caches without flash.
    fn sizes(&self) -> &Sizes {
        self.size.as_ref().expect("required without --flash")
    }
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
    if arguments.files.any() {
        one_trace(arguments, "a report")?;
    }
    if let (Some(flash), Some(memory)) = (&arguments.flash, &arguments.memory) {
        return hybrid::run(arguments, memory, flash);
    }
    arguments.writes.need("--flash")?;
    if arguments.prefix {
        return prompts::run(arguments);
    }
    match arguments.blocks.is_empty() {
        true => objects::run(arguments),
        false => run_blocks(arguments),
    }
}

/// Returns the only trace. `whose` names the option that accepts just one.
///
/// # Errors
/// When there are several traces.
fn one_trace<'a>(arguments: &'a Arguments, whose: &str) -> Result<&'a str, CliError> {
    match &arguments.traces[..] {
        [trace] => Ok(trace),
        _ => Err(CliError::usage(format!("{whose} takes one trace"))),
    }
}

/// Checks that intervals of time are not used with a trace without times.
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

/// Returns the admissions of each run. `unit` is the unit of entry weights.
fn admissions(arguments: &Arguments, unit: &str) -> Result<Vec<Vec<Choice>>, CliError> {
    let chosen = |text: &String| {
        let choices = choices(text).or_usage()?;
        if Admissions::new(&choices).needs().above {
            let problem = format!(
                "--admit {text}: a simulated cache has no memory above it; write \
                 small-bypass:memory=N ({unit})"
            );
            return Err(CliError::usage(problem));
        }
        Ok(choices)
    };
    arguments.admit.iter().map(chosen).collect()
}

/// A line of CSV for an interval: the run, and its figures in that interval.
#[derive(Serialize)]
struct OfPolicy<'a> {
    trace: &'a str,
    policy: &'a str,
    size: u64,
    #[serde(flatten)]
    interval: &'a SimulatedInterval,
}

/// A line of CSV for an interval of a run with `--blocks`.
#[derive(Serialize)]
struct OfBlocks<'a> {
    trace: &'a str,
    blocks: &'a str,
    policy: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    admission: Option<&'a str>,
    size: u64,
    #[serde(flatten)]
    interval: &'a BlockInterval,
}

fn of_policies(outcomes: &[SimulationResult]) -> Vec<OfPolicy<'_>> {
    let mut rows = Vec::new();
    for SimulationResult { trace, policy, size, series, .. } in outcomes {
        let row = |interval| OfPolicy { trace, policy, size: *size, interval };
        rows.extend(series.iter().map(row));
    }
    rows
}

fn of_blocks(outcomes: &[BlockSimulationResult]) -> Vec<OfBlocks<'_>> {
    let mut rows = Vec::new();
    for outcome in outcomes {
        let BlockSimulationResult { trace, blocks, policy, admission, size, series, .. } = outcome;
        let admission = admission.as_ref().map(|asked| &asked.admission[..]);
        let row = |interval| OfBlocks { trace, blocks, policy, admission, size: *size, interval };
        rows.extend(series.iter().map(row));
    }
    rows
}

/// Returns the distinct sizes of the caches, in order.
fn sizes(of: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut sizes: Vec<u64> = of.collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Returns the first cells of an interval's row: the number of requests up to its end, and the time
/// if known.
fn when(after: u64, requests: u64, seconds: Option<f64>) -> Vec<String> {
    let mut cells = vec![(after + requests).to_string()];
    cells.extend(seconds.map(|seconds| {
        humantime::format_duration(std::time::Duration::from_secs_f64(seconds)).to_string()
    }));
    cells
}

fn columns(timed: bool) -> Vec<&'static str> {
    if timed { vec!["requests", "time"] } else { vec!["requests"] }
}

/// Prints, for each size, the miss ratios of all policies in each interval. Prints nothing without
/// intervals.
fn print_policies(outcomes: &[SimulationResult], show: impl Fn(u64) -> String) {
    for size in sizes(outcomes.iter().map(|outcome| outcome.size)) {
        let here: Vec<_> = outcomes.iter().filter(|outcome| outcome.size == size).collect();
        let Some(first) = here.first().filter(|outcome| !outcome.series.is_empty()) else { return };
        output::say!("\nmiss ratio over time, size {}", show(size));
        let mut head = columns(first.series[0].seconds.is_some());
        head.extend(here.iter().map(|outcome| &outcome.policy[..]));
        let mut table = output::table(&head, 0);
        for (at, it) in first.series.iter().enumerate() {
            let mut row = when(it.after_requests, it.requests, it.seconds);
            row.extend(here.iter().map(|of| format!("{:.4}", of.series[at].miss_ratio)));
            table.add_row(row);
        }
        output::print_table(&table);
    }
}

/// Prints the intervals of each block cache run. Prints nothing without intervals.
fn print_blocks(outcomes: &[BlockSimulationResult]) {
    for outcome in outcomes.iter().filter(|outcome| !outcome.series.is_empty()) {
        let asked = outcome.admission.as_ref();
        let with = asked.map_or(String::new(), |asked| format!(" with {}", asked.admission));
        let (blocks, size, policy) =
            (&outcome.blocks, output::bytes(outcome.size), &outcome.policy);
        output::say!("\nover time, blocks {blocks}, size {size}, {policy}{with}");
        let mut head = columns(outcome.series[0].seconds.is_some());
        head.extend(["read hits", "write hits", "backing read", "backing written"]);
        head.push("cache written");
        let mut table = output::table(&head, 0);
        let ratio = |hits: u64, all: u64| match all {
            0 => "–".to_owned(),
            all => output::percent(hits as f64 / all as f64),
        };
        for it in &outcome.series {
            let mut row = when(it.after_requests, it.requests, it.seconds);
            row.push(ratio(it.read_hits, it.read_requests));
            row.push(ratio(it.write_hits, it.write_requests));
            let moved = [it.backing_read_bytes, it.backing_write_bytes, it.cache_write_bytes];
            row.extend(moved.map(output::bytes));
            table.add_row(row);
        }
        output::print_table(&table);
    }
}

fn run_blocks(arguments: &Arguments) -> Result<(), CliError> {
    let policies: Vec<Evict> = match &arguments.policy[..] {
        [] => vec![Evict::default()],
        policies => {
            policies.iter().map(|text| text.parse().or_usage()).collect::<Result<_, _>>()?
        }
    };
    let admissions: Vec<Admissions> = match &arguments.admit[..] {
        [] => vec![Admissions::default()],
        _ => {
            admissions(arguments, "bytes")?.iter().map(|choices| Admissions::new(choices)).collect()
        }
    };
    let trace = one_trace(arguments, "--blocks")?;
    let (requests, footprint_bytes) = load(arguments, trace)?;
    let in_trace = |problem| CliError::usage(format!("{trace}: {problem}"));
    let warmup = arguments.warmup.of(requests.len() as u64).map_err(in_trace)? as usize;
    let counted = (requests.len() - warmup) as u64;
    let interval = arguments.interval.map(|length| length.of(counted)).transpose();
    let interval = interval.map_err(in_trace)?;
    refuse_without_times(arguments, trace, requests.iter().any(|request| request.time_ns > 0))?;
    let deciders: Vec<_> = policies
        .iter()
        .flat_map(|evict| admissions.iter().map(move |admission| (evict, admission)))
        .collect();
    let each = |size, sizes| deciders.iter().map(move |deciders| (size, sizes, deciders));
    let setups: Vec<Setup> = arguments
        .sizes()
        .0
        .iter()
        .flat_map(|size| arguments.blocks.iter().flat_map(move |sizes| each(size, sizes)))
        .map(|(size, sizes, (evict, admission))| Setup {
            cache: Config {
                sizes: sizes.clone(),
                cache_bytes: size.of(footprint_bytes),
                mode: arguments.write,
                gate: AdmissionConfig::new(Admissions::clone(admission)),
                shards: Some(arguments.shards),
                evict: Evict::clone(evict),
                ..Config::default()
            },
            warmup,
            interval,
            clean_every_ns: u64::try_from(arguments.flush_interval.as_nanos()).unwrap_or(u64::MAX),
        })
        .collect();
    let bar = output::progress(setups.len() as u64, "simulating");
    let outcomes = on_all_cores(&setups, |setup| {
        let outcome = simulate(trace, &requests, setup);
        bar.inc(1);
        outcome
    });
    bar.finish_and_clear();
    let outcomes = outcomes.into_iter().collect::<Result<Vec<_>, _>>().or_usage()?;
    arguments.files.write(|command| blocks_report(command, trace, &outcomes))?;
    if arguments.csv && interval.is_some() {
        return output::csv(&of_blocks(&outcomes)).or_failure();
    }
    if arguments.csv {
        return output::csv(&outcomes).or_failure();
    }
    if arguments.json {
        return outcomes.iter().try_for_each(output::json_line).or_failure();
    }
    print_block_results(&outcomes);
    print_blocks(&outcomes);
    Ok(())
}

/// Reads the trace as disk I/O. Returns the requests and the bytes that they touch.
fn load(arguments: &Arguments, path: &str) -> Result<(Vec<Request>, u64), CliError> {
    let mut trace = arguments.open.open_disk(path, "--blocks")?;
    let mut stats = floe_trace::Stats::new(trace.kind());
    let mut requests = Vec::new();
    read_all(path, &mut trace, "reading", |request| {
        stats.add(request);
        requests.push(*request);
        Ok(())
    })?;
    let footprint_bytes = stats.info(path, trace.format().name()).footprint_bytes;
    Ok((requests, footprint_bytes))
}

fn print_block_results(outcomes: &[BlockSimulationResult]) {
    let mut columns = vec![
        "blocks",
        "size",
        "read hits",
        "write hits",
        "backing read",
        "backing written",
        "cache read",
        "cache written",
        "metadata",
        "mean block",
        "mean missed",
    ];
    let is_asked = outcomes.iter().any(|outcome| outcome.admission.is_some());
    let differ = outcomes.iter().any(|outcome| outcome.policy != Evict::default().to_string());
    columns.extend(differ.then_some("policy"));
    columns.extend(is_asked.then_some("admitted"));
    columns.extend(is_asked.then_some("by"));
    let mut table = output::table(&columns, 1);
    let ratio = |hits: u64, all: u64| {
        if all == 0 { "–".into() } else { output::percent(hits as f64 / all as f64) }
    };
    for outcome in outcomes {
        let mut row = vec![
            outcome.blocks.clone(),
            output::bytes(outcome.size),
            ratio(outcome.read_hits, outcome.read_requests),
            ratio(outcome.write_hits, outcome.write_requests),
            output::bytes(outcome.backing_read_bytes),
            output::bytes(outcome.backing_write_bytes),
            output::bytes(outcome.cache_read_bytes),
            output::bytes(outcome.cache_write_bytes),
            output::bytes(outcome.metadata_bytes),
            output::bytes(outcome.mean_block_bytes as u64),
            output::bytes(outcome.mean_missed_bytes as u64),
        ];
        if differ {
            row.push(outcome.policy.clone());
        }
        if is_asked {
            let (share, by) = match &outcome.admission {
                Some(asked) => {
                    (ratio(asked.admitted_blocks, asked.offered_blocks), asked.admission.clone())
                }
                None => (output::percent(1.0), "always".into()),
            };
            row.extend([share, by]);
        }
        table.add_row(row);
    }
    output::print_table(&table);
}
