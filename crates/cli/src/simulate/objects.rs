//! `floe simulate --policy`: compares policies.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use floe_device::medium::{Medium, Model};
use floe_lab::interval;
use floe_lab::report::outcomes::{Sizes, report};
use floe_lab::simulate::grid::{BLOCK_BYTES, Grid, GridError, Reading};
use floe_lab::simulate::objects::{Latency, Run, SimulationResult, simulate};
use floe_lab::simulate::stream::{Builder, Keep, Stream};
use floe_policy::registry::Choice;
use floe_trace::Trace;
use serde::Serialize;

use super::summary::{self, cost};
use super::{Arguments, admissions, on_all_cores, refuse_without_times, series, write_report};
use crate::error::CliError;
use crate::size::CacheSize;
use crate::trace::{PROGRESS_EVERY, object, tell_skipped};
use crate::warmup::Interval;
use crate::{OrFail, output};

/// Default time of a hit when only that of a miss is given: a lookup in memory and a copy.
const DEFAULT_HIT_US: f64 = 1.0;

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let policies: Vec<Choice> = arguments
        .policy
        .iter()
        .map(|policy| policy.parse().or_usage())
        .collect::<Result<_, _>>()?;
    let rate = arguments.sample.unwrap_or(1.0);
    if !(rate > 0.0 && rate <= 1.0) {
        return Err(CliError::usage(format!("--sample {rate} is not a share above 0 and up to 1")));
    }
    let latency = latency(arguments)?;
    let in_bytes =
        arguments.bytes || arguments.size.0.iter().any(|size| matches!(size, CacheSize::Bytes(_)));
    let admissions = match &arguments.admit[..] {
        [] => vec![Vec::new()],
        _ => admissions(arguments, if in_bytes { "bytes" } else { "objects" })?,
    };
    let grid = Grid { policies, admissions, sizes: arguments.size.clone(), in_bytes, rate };
    let mut traces = Vec::new();
    for trace in &arguments.traces {
        traces.push(simulate_trace(arguments, trace, &grid, latency)?);
    }
    if let [Simulated { outcomes, .. }] = &traces[..] {
        let trace = super::one_trace(arguments, "a report")?;
        let sizes = if in_bytes { Sizes::Bytes } else { Sizes::Objects };
        write_report(arguments, |command| report(trace, command, sizes, outcomes))?;
    }
    if arguments.csv && arguments.interval.is_some() {
        let outcomes: Vec<_> = traces.into_iter().flat_map(|trace| trace.outcomes).collect();
        return output::csv(&series::of_policies(&outcomes)).or_failure();
    }
    if arguments.csv || arguments.json {
        let lines: Vec<_> = traces.into_iter().flat_map(Simulated::lines).collect();
        return match arguments.csv {
            true => output::csv(&lines).or_failure(),
            false => lines.iter().try_for_each(output::json_line).or_failure(),
        };
    }
    let several = traces.len() > 1;
    for (name, simulated) in arguments.traces.iter().zip(&traces) {
        if several {
            output::say!("{name}");
        }
        let Simulated { outcomes, in_bytes, object, trace_requests } = simulated;
        let size = |size: u64| match in_bytes {
            true => output::bytes(size),
            false => format!("{size} {object}s"),
        };
        print(outcomes.clone(), size);
        if *object == "block" {
            output::say!("\n{trace_requests} requests, which touch blocks of 4 KiB.");
        }
        series::print_policies(outcomes, size);
        if several {
            output::say!();
        }
    }
    if several {
        output::say!("all {} traces", traces.len());
        let outcomes: Vec<_> = traces.into_iter().map(|trace| trace.outcomes).collect();
        summary::print(&grid.sizes.0, &outcomes);
    }
    Ok(())
}

/// The outcomes over one trace.
struct Simulated {
    /// By size, then by policy, then by admission.
    outcomes: Vec<SimulationResult>,
    /// True if sizes are bytes, false if they are objects.
    in_bytes: bool,
    /// The thing that a simulated request is for: `block`, of 4 KiB, `object` or `key`.
    object: &'static str,
    /// Requests of the trace, of which one of disk I/O is for several blocks.
    trace_requests: u64,
}

/// An outcome in JSON and CSV.
#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    outcome: SimulationResult,
    object: &'static str,
    size_unit: &'static str,
    trace_requests: u64,
}

impl Simulated {
    fn lines(self) -> impl Iterator<Item = Line> {
        let Self { outcomes, in_bytes, object, trace_requests } = self;
        let size_unit = if in_bytes { "byte" } else { object };
        let line = move |outcome| Line { outcome, object, size_unit, trace_requests };
        outcomes.into_iter().map(line)
    }
}

fn simulate_trace(
    arguments: &Arguments,
    trace: &str,
    grid: &Grid,
    latency: Option<Latency>,
) -> Result<Simulated, CliError> {
    let (mut stream, unit, object) = load(arguments, trace, grid)?;
    let in_trace = |problem| CliError::usage(format!("{trace}: {problem}"));
    let requests = stream.keys.len() as u64;
    let warmup = arguments.warmup.of(requests).map_err(in_trace)?;
    let interval = arguments.interval.map(|length| length.of(requests - warmup)).transpose();
    let every = match interval.map_err(in_trace)? {
        Some(interval::Interval::Requests(every)) => Some(every),
        Some(interval::Interval::Time(_)) | None => None,
    };
    stream.count_from(warmup as usize, every);
    let no_room = |error: GridError| CliError::usage(format!("--size: {error}"));
    let runs = grid.runs(&stream, unit).map_err(no_room)?;
    let outcomes = simulate_all(trace, &stream, &runs, latency);
    let (in_bytes, trace_requests) = (grid.in_bytes && unit == 1, stream.trace_requests);
    Ok(Simulated { outcomes, in_bytes, object, trace_requests })
}

/// Returns the times of hits and misses, if the arguments give them.
fn latency(arguments: &Arguments) -> Result<Option<Latency>, CliError> {
    let of_medium = |name: &String| -> Result<f64, CliError> {
        let medium = Medium::named(name).ok_or_else(|| {
            CliError::usage(format!("there is no medium `{name}`; there are {}", Medium::names()))
        })?;
        Ok(mean_read_us(medium))
    };
    let miss_us = arguments.medium.as_ref().map(of_medium).transpose()?.or(arguments.miss_us);
    let given = [("--hit-us", arguments.hit_us), ("--insert-us", arguments.insert_us)];
    let Some(miss_us) = miss_us else {
        return match given.iter().find(|(_, time)| time.is_some()) {
            None => Ok(None),
            Some((name, _)) => Err(CliError::usage(format!(
                "{name} needs the time of a miss: --miss-us or --medium"
            ))),
        };
    };
    let hit_us = arguments.hit_us.unwrap_or(DEFAULT_HIT_US);
    let insert_us = arguments.insert_us.unwrap_or(0.0);
    for (name, time) in [("--hit-us", hit_us), ("--miss-us", miss_us), ("--insert-us", insert_us)] {
        if !(time >= 0.0 && time.is_finite()) {
            return Err(CliError::usage(format!("{name} {time} is not a time of at least 0")));
        }
    }
    Ok(Some(Latency { hit_us, miss_us, insert_us }))
}

/// Returns the mean time of a 4 KiB read on an idle medium, from its model.
fn mean_read_us(medium: Medium) -> f64 {
    const READS: u64 = 1000;
    /// Time between reads that keeps them from overlapping.
    const APART_NS: u64 = 1_000_000_000;
    let mut model = Model::new(medium, 1);
    let total_ns: u64 = (0..READS)
        .map(|read| {
            model.start(read * APART_NS, floe_device::medium::Direction::Read, BLOCK_BYTES)
                - read * APART_NS
        })
        .sum();
    total_ns as f64 / READS as f64 / 1e3
}

/// Reads the trace. Returns it with the number of bytes in a unit of its sizes, and the word for
/// what its requests are for.
fn load(
    arguments: &Arguments,
    path: &str,
    grid: &Grid,
) -> Result<(Stream, u64, &'static str), CliError> {
    let trace = arguments.open.open(path, false)?;
    let no_sizes = |_| {
        CliError::usage(format!(
            "{path}: a trace of keys has no sizes; give --size as a count or a share"
        ))
    };
    let object = object(trace.kind());
    let Reading { keep, unit } = grid.reading(trace.kind()).map_err(no_sizes)?;
    let every = match arguments.interval {
        Some(Interval::Time(every)) => Some(every),
        Some(Interval::Requests(_)) | None => None,
    };
    let (stream, has_times) = read_timed(path, trace, keep, every)?;
    refuse_without_times(arguments, path, has_times)?;
    Ok((stream, unit, object))
}

/// Reads a trace; disk I/O is converted to blocks.
pub(crate) fn read_stream(path: &str, trace: Trace, keep: Keep) -> Result<Stream, CliError> {
    Ok(read_timed(path, trace, keep, None)?.0)
}

/// Reads a trace that may be divided into intervals of a time. Returns also whether it has times.
fn read_timed(
    path: &str,
    mut trace: Trace,
    keep: Keep,
    every: Option<Duration>,
) -> Result<(Stream, bool), CliError> {
    let mut builder = Builder::new(trace.kind(), keep, BLOCK_BYTES);
    if let Some(every) = every {
        builder = builder.by_time(every);
    }
    let mut has_times = false;
    let bar = output::progress(trace.total_bytes().unwrap_or(0), "reading");
    let progress = trace.progress();
    for (request, count) in trace.by_ref().zip(0u64..) {
        let request = request.or_usage()?;
        has_times |= request.time_ns > 0;
        builder.add(&request).or_usage()?;
        if count.is_multiple_of(PROGRESS_EVERY) {
            bar.set_position(progress.bytes_read());
        }
    }
    bar.finish_and_clear();
    tell_skipped(path, &trace);
    Ok((builder.finish().or_usage()?, has_times))
}

fn simulate_all(
    trace: &str,
    stream: &Stream,
    runs: &[Run],
    latency: Option<Latency>,
) -> Vec<SimulationResult> {
    let bar = output::progress((stream.keys.len() * runs.len()) as u64, "simulating");
    let (done, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    let outcomes = std::thread::scope(|scope| {
        // The flag and the count are only displayed: no other memory depends on them.
        scope.spawn(|| {
            while !ended.load(Relaxed) {
                bar.set_position(done.load(Relaxed));
                std::thread::park_timeout(Duration::from_millis(100));
            }
        });
        let outcomes = on_all_cores(runs, |run| simulate(trace, stream, run, latency, &done));
        ended.store(true, Relaxed);
        outcomes
    });
    bar.finish_and_clear();
    outcomes
}

/// Prints the outcomes at each size, best first, by latency where that is known.
fn print(mut outcomes: Vec<SimulationResult>, size: impl Fn(u64) -> String) {
    outcomes.sort_by(|a, b| a.size.cmp(&b.size).then(cost(a).total_cmp(&cost(b))));
    let latency = outcomes.iter().any(|outcome| outcome.mean_latency_us.is_some());
    let of_bytes = |outcome: &SimulationResult| outcome.byte_miss_ratio != outcome.miss_ratio;
    let bytes_differ = outcomes.iter().any(of_bytes);
    let mut columns = vec!["policy", "size", "requests", "miss ratio"];
    columns.extend(bytes_differ.then_some("of bytes"));
    columns.extend(latency.then_some("mean latency"));
    let admits = outcomes.iter().any(|outcome| outcome.inserted.is_some());
    columns.extend(admits.then_some("inserted"));
    columns.extend(["requests/s", "bytes an object"]);
    let mut table = output::table(&columns, 1);
    for outcome in &outcomes {
        let ratio = |ratio: f64, bound: Option<f64>| {
            format!("{ratio:.4}{}", bound.map_or(String::new(), |bound| format!(" ± {bound:.4}")))
        };
        let mut cells = vec![
            outcome.policy.clone(),
            size(outcome.size),
            outcome.requests.to_string(),
            ratio(outcome.miss_ratio, outcome.miss_ratio_ci95),
        ];
        cells.extend(
            bytes_differ.then(|| ratio(outcome.byte_miss_ratio, outcome.byte_miss_ratio_ci95)),
        );
        cells.extend(outcome.mean_latency_us.map(output::microseconds));
        cells.extend(outcome.inserted.map(|count| count.to_string()));
        cells.push(match outcome.requests_per_second {
            rate if rate >= 1e6 => format!("{:.1} M", rate / 1e6),
            rate => format!("{:.1} k", rate / 1e3),
        });
        cells.push(format!("{:.1}", outcome.policy_bytes_per_object));
        table.add_row(cells);
    }
    output::print_table(&table);
}
