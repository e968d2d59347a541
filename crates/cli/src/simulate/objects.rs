//! `floe simulate --policy`: compares eviction policies.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use floe_device::medium::{Medium, Model};
use floe_lab::interval;
use floe_lab::report::{Sizes, simulation_report};
use floe_lab::simulate::objects::{Latency, Run, SimulationResult, simulate};
use floe_lab::simulate::stream::{Builder, Keep, Stream};
use floe_lab::simulate::{BLOCK_BYTES, Comparison, Grid, GridError, Reading, Reference};
use floe_policy::{Adaptation, Setting};
use floe_trace::{Kind, Stats, Trace};
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};

use super::many::{SavedResults, Traces};
use super::{
    Arguments, admissions, of_policies, on_all_cores, print_policies, refuse_without_times,
};
use crate::error::{CliError, OrFail};
use crate::trace::{object, read_with};
use crate::warmup::Interval;
use crate::{log, output};
use floe_lab::sizes::CacheSize;

/// Default time of a hit in microseconds, used when only the time of a miss is given. It covers a
/// lookup in memory and a copy.
const DEFAULT_HIT_US: f64 = 1.0;

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let policies = arguments.policies()?;
    let rate = arguments.sample.unwrap_or(1.0);
    if !(rate > 0.0 && rate <= 1.0) {
        return Err(CliError::usage(format!("--sample {rate} is not a share above 0 and up to 1")));
    }
    let latency = latency(arguments)?;
    let in_bytes = arguments.bytes
        || arguments.sizes().0.iter().any(|size| matches!(size, CacheSize::Bytes(_)));
    let admissions = match &arguments.admit[..] {
        [] => vec![Vec::new()],
        _ => admissions(arguments, if in_bytes { "bytes" } else { "objects" })?,
    };
    let objects_min = arguments.min_objects;
    if objects_min > 0 && in_bytes {
        let problem = "--min-objects needs sizes in objects or shares, and no --bytes";
        return Err(CliError::usage(problem));
    }
    let sizes = arguments.sizes().clone();
    let grid = Grid { policies, admissions, sizes, objects_min, in_bytes, rate };
    let reference = arguments.relative_to.as_ref().map(|name| {
        Reference::named(name, &grid)
            .map_err(|problem| CliError::usage(format!("--relative-to {name}: {problem}")))
    });
    let reference = reference.transpose()?;
    let given = Traces::of(&arguments.traces, &arguments.open)?;
    if arguments.files.any() && given.names.len() > 1 {
        return Err(CliError::usage("a report takes one trace"));
    }
    let (mut traces, mut refused) = (Vec::new(), Vec::new());
    for (name, result) in
        given.names.iter().zip(simulate_traces(arguments, &given, &grid, latency)?)
    {
        match result {
            Ok(simulated) => traces.push((name, simulated)),
            Err(error) => refused.push(error),
        }
    }
    // A trace that cannot be simulated does not stop the others.
    let last = refused.pop();
    refused.iter().for_each(|error| {
        log::report(error);
    });
    match (traces.is_empty(), reference) {
        (true, _) => {}
        (false, Some(reference)) => print_comparison(arguments, &reference, traces)?,
        (false, None) => print_all(arguments, &grid, &given, traces)?,
    }
    last.map_or(Ok(()), Err)
}

/// Simulates all traces, or takes the results that earlier runs have left, and returns the results
/// in order.
///
/// # Errors
/// When the file of results cannot be used.
fn simulate_traces(
    arguments: &Arguments,
    traces: &Traces,
    grid: &Grid,
    latency: Option<Latency>,
) -> Result<Vec<Result<Simulated, CliError>>, CliError> {
    let saved = match &arguments.resume {
        Some(path) => {
            traces.refuse_pipes()?;
            Some(SavedResults::open(path, settings(arguments, grid, latency))?)
        }
        None => None,
    };
    let simulate = |trace: &String, alone| -> Result<Simulated, CliError> {
        if let Some(results) = saved.as_ref().and_then(|saved| saved.find(trace)) {
            return Ok(results);
        }
        let results = simulate_trace(arguments, trace, grid, latency, alone)?;
        saved.as_ref().map_or(Ok(()), |saved| saved.add(trace, &results))?;
        Ok(results)
    };
    if !arguments.all_cores {
        return Ok(traces.names.iter().map(|trace| simulate(trace, true)).collect());
    }
    let bar = output::progress(traces.names.len() as u64, "simulating traces");
    let results = on_all_cores(&traces.names, |trace| {
        let results = simulate(trace, false);
        bar.inc(1);
        results
    });
    bar.finish_and_clear();
    Ok(results)
}

/// Returns all that changes the results of a trace, as text.
fn settings(arguments: &Arguments, grid: &Grid, latency: Option<Latency>) -> String {
    let Grid { policies, admissions, sizes, objects_min, in_bytes, rate } = grid;
    let list = |of: &mut dyn Iterator<Item = String>| of.collect::<Vec<_>>().join(",");
    let admission = |choices: &Vec<floe_policy::admission::registry::Choice>| {
        choices.iter().map(ToString::to_string).collect::<Vec<_>>().join("+")
    };
    format!(
        "policies {}; admissions {}; sizes {}; bytes {in_bytes}; sample {rate}; times {latency:?}; \
         warmup {:?}; interval {:?}; traces {:?}{}",
        list(&mut policies.iter().map(ToString::to_string)),
        list(&mut admissions.iter().map(admission)),
        list(&mut sizes.0.iter().map(ToString::to_string)),
        arguments.warmup,
        arguments.interval,
        arguments.open,
        if *objects_min > 0 { format!("; at least {objects_min} objects") } else { String::new() },
    )
}

/// Prints the comparison of policies over all traces and sizes.
///
/// # Errors
/// When no cache is left to compare.
fn print_comparison(
    arguments: &Arguments,
    reference: &Reference,
    traces: Vec<(&String, Simulated)>,
) -> Result<(), CliError> {
    let traces: Vec<_> = traces.into_iter().map(|(_, trace)| trace.outcomes).collect();
    let rows = reference.compare(&traces);
    let Some(first) = rows.first() else {
        let problem = format!("no cache has {} objects", arguments.min_objects);
        return Err(CliError::usage(format!("--min-objects: {problem}")));
    };
    if arguments.csv {
        return output::csv(&rows).or_failure();
    }
    if arguments.json {
        return rows.iter().try_for_each(output::json_line).or_failure();
    }
    let with_caches = traces.iter().filter(|trace| !trace.is_empty()).count();
    output::say!("caches compared: {}, of traces: {with_caches}", first.caches);
    let to_reference = format!("to {}", reference.name());
    let columns = [
        "policy",
        &to_reference,
        "best in",
        "worst ratio",
        "gap closed",
        "behind: median",
        "worst tenth",
        "worst",
    ];
    let mut table = output::table(&columns, 1);
    for row in &rows {
        let Comparison { policy, apart, .. } = row;
        table.add_row([
            if *apart { format!("({policy})") } else { policy.clone() },
            format!("{:.3}", row.misses_to_reference),
            row.best_in.to_string(),
            format!("{:.2}", row.worst_to_best),
            row.gap_closed.map_or("–".to_owned(), |gap| format!("{:.0} %", 100.0 * gap)),
            format!("{:.2}", row.behind_median),
            format!("{:.2}", row.behind_worst_tenth),
            format!("{:.2}", row.behind_worst),
        ]);
    }
    output::print_table(&table);
    output::say!("\n{to_reference}: misses to those of {}, geometric mean.", reference.name());
    output::say!("worst ratio: misses to those of the best policy of the same trace and size.");
    output::say!("gap closed: share of the way to belady, by the mean miss ratio.");
    output::say!("behind: points of the miss ratio behind the best; nine caches of ten are not");
    output::say!("behind by more than the worst tenth.");
    if rows.iter().any(|row| row.apart) {
        output::say!("(in brackets): never the best, as it knows the future or fetches ahead.");
    }
    Ok(())
}

/// Prints the results of all traces, and what sums them up. Of folders only the sum is printed as
/// text.
fn print_all(
    arguments: &Arguments,
    grid: &Grid,
    given: &Traces,
    traces: Vec<(&String, Simulated)>,
) -> Result<(), CliError> {
    let several = given.names.len() > 1;
    if arguments.files.any()
        && let [(trace, simulated)] = &traces[..]
    {
        let (sizes, outcomes) = (simulated.sizes(), &simulated.outcomes);
        arguments.files.write(|command| simulation_report(trace, command, sizes, outcomes))?;
    }
    if arguments.csv && arguments.interval.is_some() {
        let outcomes: Vec<_> = traces.into_iter().flat_map(|(_, trace)| trace.outcomes).collect();
        return output::csv(&of_policies(&outcomes)).or_failure();
    }
    if arguments.csv || arguments.json {
        let lines: Vec<_> = traces.into_iter().flat_map(|(_, trace)| trace.lines()).collect();
        return match arguments.csv {
            true => output::csv(&lines).or_failure(),
            false => lines.iter().try_for_each(output::json_line).or_failure(),
        };
    }
    for (name, simulated) in traces.iter().filter(|_| !given.from_folders) {
        if several {
            output::say!("{name}");
        }
        let Simulated { outcomes, in_bytes, kind, trace_requests, .. } = simulated;
        let size = |size: u64| match in_bytes {
            true => output::bytes(size),
            false => format!("{size} {}s", object(*kind)),
        };
        print(outcomes.clone(), size);
        if *kind == Kind::Block {
            output::say!("\n{trace_requests} requests, which touch blocks of 4 KiB.");
        }
        print_policies(outcomes, size);
        if several {
            output::say!();
        }
    }
    if several || given.from_folders {
        output::say!("all {} traces", traces.len());
        let outcomes: Vec<_> = traces.into_iter().map(|(_, trace)| trace.outcomes).collect();
        print_summary(&grid.sizes.0, &outcomes);
    }
    Ok(())
}

/// The results over one trace.
#[derive(Clone, Serialize, Deserialize)]
struct Simulated {
    /// Results, ordered by size, then policy, then admission.
    outcomes: Vec<SimulationResult>,
    /// True if sizes are bytes, false if they are objects.
    in_bytes: bool,
    /// Kind of the trace, which is that of the simulated requests.
    kind: Kind,
    /// Mean bytes of an object; `None` if they are not known, or no report needs them.
    object_bytes: Option<f64>,
    /// Number of requests in the trace. A disk request may cover several blocks.
    trace_requests: u64,
}

/// A result in JSON and CSV.
#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    outcome: SimulationResult,
    /// Unit of the simulated requests: `block` (of 4 KiB), `object` or `key`.
    object: &'static str,
    size_unit: &'static str,
    trace_requests: u64,
}

impl Simulated {
    /// Returns the unit of sizes in a report.
    fn sizes(&self) -> Sizes {
        match (self.in_bytes, self.kind, self.object_bytes) {
            (true, ..) => Sizes::Bytes,
            (false, Kind::Block, _) => Sizes::Blocks(BLOCK_BYTES),
            (false, _, Some(bytes)) => Sizes::ObjectsOf(bytes),
            (false, _, None) => Sizes::Objects,
        }
    }

    fn lines(self) -> impl Iterator<Item = Line> {
        let Self { outcomes, in_bytes, kind, trace_requests, .. } = self;
        let object = object(kind);
        let size_unit = if in_bytes { "byte" } else { object };
        let line = move |outcome| Line { outcome, object, size_unit, trace_requests };
        outcomes.into_iter().map(line)
    }
}

/// Simulates a trace, on all cores if it is alone, else on the calling thread and without progress
/// bars.
fn simulate_trace(
    arguments: &Arguments,
    trace: &str,
    grid: &Grid,
    latency: Option<Latency>,
    alone: bool,
) -> Result<Simulated, CliError> {
    let Loaded { mut stream, unit, kind, object_bytes } = load(arguments, trace, grid, alone)?;
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
    let outcomes = match alone {
        true => simulate_all(trace, &stream, &runs, latency),
        false => {
            let unseen = AtomicU64::new(0);
            runs.iter().map(|run| simulate(trace, &stream, run, latency, &unseen)).collect()
        }
    };
    let (in_bytes, trace_requests) = (grid.in_bytes && unit == 1, stream.trace_requests);
    Ok(Simulated { outcomes, in_bytes, kind, object_bytes, trace_requests })
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
            return Err(CliError::usage(format!(
                "{name} must be a time of at least 0, not {time}"
            )));
        }
    }
    Ok(Some(Latency { hit_us, miss_us, insert_us }))
}

/// Returns the mean time of a 4 KiB read on an idle medium, from its model.
fn mean_read_us(medium: Medium) -> f64 {
    const READS: u64 = 1000;
    /// Nanoseconds between reads, long enough that they do not overlap.
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

/// A trace in memory.
struct Loaded {
    stream: Stream,
    /// Bytes in a unit of its sizes.
    unit: u64,
    kind: Kind,
    /// Mean bytes of an object; `None` if they are not known, or no report needs them.
    object_bytes: Option<f64>,
}

/// Reads the trace.
fn load(
    arguments: &Arguments,
    path: &str,
    grid: &Grid,
    shows_progress: bool,
) -> Result<Loaded, CliError> {
    let trace = arguments.open.open(path, false)?;
    let no_sizes = |_| {
        CliError::usage(format!(
            "{path}: a trace of keys has no sizes; give --size as a count or a share"
        ))
    };
    let kind = trace.kind();
    let Reading { keep, unit } = grid.reading(kind).map_err(no_sizes)?;
    let every = match arguments.interval {
        Some(Interval::Time(every)) => Some(every),
        Some(Interval::Requests(_)) | None => None,
    };
    // A cache of so many objects has their mean size in a report.
    let has_sizes = kind == Kind::Object && !keep.sizes && arguments.files.any();
    let mut stats = has_sizes.then(|| Stats::new(kind));
    let (stream, has_times) = read_timed(path, trace, keep, every, stats.as_mut(), shows_progress)?;
    refuse_without_times(arguments, path, has_times)?;
    let object_bytes = stats.and_then(|stats| {
        let info = stats.info(path, "");
        (info.footprint_bytes > 0).then(|| info.footprint_bytes as f64 / info.unique as f64)
    });
    Ok(Loaded { stream, unit, kind, object_bytes })
}

/// Reads a trace, with disk I/O converted to blocks.
pub(crate) fn read_stream(path: &str, trace: Trace, keep: Keep) -> Result<Stream, CliError> {
    Ok(read_timed(path, trace, keep, None, None, true)?.0)
}

/// Reads a trace and returns whether it has times, by which it can be divided into intervals.
/// `stats` counts its requests.
fn read_timed(
    path: &str,
    mut trace: Trace,
    keep: Keep,
    every: Option<Duration>,
    mut stats: Option<&mut Stats>,
    shows_progress: bool,
) -> Result<(Stream, bool), CliError> {
    let mut builder = Builder::new(trace.kind(), keep, BLOCK_BYTES);
    if let Some(every) = every {
        builder = builder.by_time(every);
    }
    let mut has_times = false;
    let bar = match shows_progress {
        true => output::progress(trace.total_bytes().unwrap_or(0), "reading"),
        false => ProgressBar::hidden(),
    };
    read_with(&bar, path, &mut trace, |request| {
        has_times |= request.time_ns > 0;
        if let Some(stats) = &mut stats {
            stats.add(request);
        }
        builder.add(request).or_usage()
    })?;
    Ok((builder.finish().or_usage()?, has_times))
}

fn simulate_all(
    trace: &str,
    stream: &Stream,
    runs: &[Run],
    latency: Option<Latency>,
) -> Vec<SimulationResult> {
    let requests = (stream.keys.len() * runs.len()) as u64;
    with_progress(requests, |done| {
        on_all_cores(runs, |run| simulate(trace, stream, run, latency, done))
    })
}

/// Shows a bar while `work` counts up to `total`.
pub(super) fn with_progress<R>(total: u64, work: impl FnOnce(&AtomicU64) -> R) -> R {
    let bar = output::progress(total, "simulating");
    let (done, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    let result = std::thread::scope(|scope| {
        // The flag and the count are only displayed: no other memory depends on them.
        scope.spawn(|| {
            while !ended.load(Relaxed) {
                bar.set_position(done.load(Relaxed));
                std::thread::park_timeout(Duration::from_millis(100));
            }
        });
        let result = work(&done);
        ended.store(true, Relaxed);
        result
    });
    bar.finish_and_clear();
    result
}

/// Prints the results at each size, best first: by latency if known, else by miss ratio.
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
    for SimulationResult { policy, size: of, adaptation, .. } in &outcomes {
        if let Some(adaptation) = adaptation {
            output::say!("\n{policy} of {}: {adaptation}", size(*of));
            print_settings(adaptation);
        }
    }
}

/// Prints the settings that a policy chose from, fewest estimated misses first.
fn print_settings(adaptation: &Adaptation) {
    let mut settings: Vec<_> = adaptation.settings.iter().collect();
    settings.sort_by(|one, other| one.miss_ratio.total_cmp(&other.miss_ratio));
    let mut table = output::table(&["setting", "estimated miss ratio"], 1);
    for Setting { name, miss_ratio, .. } in settings {
        table.add_row([name.to_string(), format!("{miss_ratio:.4}")]);
    }
    output::print_table(&table);
}

/// The summary of a policy at one size over all traces.
#[derive(Debug, PartialEq)]
struct Summary {
    policy: String,
    size: String,
    median: f64,
    least: f64,
    most: f64,
    /// Mean rank over the traces. 1 is the best, and ties share the mean of their ranks.
    rank: f64,
    /// Number of traces on which no policy is better.
    best: usize,
}

/// Returns the figure by which results are ranked, lower is better: the mean latency if known, else
/// the miss ratio.
fn cost(outcome: &SimulationResult) -> f64 {
    outcome.mean_latency_us.unwrap_or(outcome.miss_ratio)
}

/// Prints the summary over all traces. The results of each trace must have the same policies and be
/// ordered by size.
fn print_summary(sizes: &[CacheSize], traces: &[Vec<SimulationResult>]) {
    let of_latency = traces.iter().flatten().any(|outcome| outcome.mean_latency_us.is_some());
    let (measure, number): (_, fn(f64) -> String) = match of_latency {
        true => ("median latency", output::microseconds),
        false => ("median miss ratio", |ratio| format!("{ratio:.4}")),
    };
    let columns = ["policy", "size", measure, "least", "most", "mean rank", "best on"];
    let mut table = output::table(&columns, 1);
    for summary in summaries(sizes, traces) {
        table.add_row([
            summary.policy,
            summary.size,
            number(summary.median),
            number(summary.least),
            number(summary.most),
            format!("{:.1}", summary.rank),
            format!("{} of {}", summary.best, traces.len()),
        ]);
    }
    output::print_table(&table);
}

/// Returns the summary of each policy at each size, best rank first within a size.
fn summaries(sizes: &[CacheSize], traces: &[Vec<SimulationResult>]) -> Vec<Summary> {
    let runs = traces.first().map_or(0, Vec::len);
    let policies = runs / sizes.len().max(1);
    let mut summaries = Vec::new();
    for (size, first) in sizes.iter().zip((0..).step_by(policies.max(1))) {
        let all = first..first + policies;
        let mut at_size: Vec<Summary> =
            all.clone().map(|at| summary(&size.to_string(), at, all.clone(), traces)).collect();
        at_size.sort_by(|a, b| a.rank.total_cmp(&b.rank));
        summaries.extend(at_size);
    }
    summaries
}

/// Returns the summary of one run, compared with the others at the same size.
fn summary(
    size: &str,
    run: usize,
    among: std::ops::Range<usize>,
    traces: &[Vec<SimulationResult>],
) -> Summary {
    let mut costs: Vec<f64> = traces.iter().map(|outcomes| cost(&outcomes[run])).collect();
    costs.sort_by(f64::total_cmp);
    let ranks = traces.iter().map(|outcomes| {
        let own = cost(&outcomes[run]);
        let others = || outcomes[among.clone()].iter().map(cost);
        let better = others().filter(|&other| other < own).count();
        let tied = others().filter(|&other| other == own).count() - 1;
        (better, tied)
    });
    let sum: f64 =
        ranks.clone().map(|(better, tied)| (1 + better) as f64 + tied as f64 / 2.0).sum();
    let middle = costs.len() / 2;
    Summary {
        policy: traces[0][run].policy.clone(),
        size: size.to_owned(),
        median: (costs[middle] + costs[(costs.len() - 1) / 2]) / 2.0,
        least: costs[0],
        most: costs[costs.len() - 1],
        rank: sum / traces.len() as f64,
        best: ranks.filter(|(better, _)| *better == 0).count(),
    }
}

#[cfg(test)]
mod summary_tests {
    use super::*;

    fn outcome(policy: &str, miss_ratio: f64) -> SimulationResult {
        SimulationResult {
            trace: "t".to_owned(),
            policy: policy.to_owned(),
            size: 10,
            requests: 100,
            warmup_requests: 0,
            sampled_requests: None,
            hits: 0,
            misses: 0,
            inserted: None,
            prefetches: 0,
            miss_ratio,
            miss_ratio_ci95: None,
            byte_miss_ratio: miss_ratio,
            byte_miss_ratio_ci95: None,
            mean_latency_us: None,
            seconds: 1.0,
            requests_per_second: 1.0,
            policy_bytes_per_object: 1.0,
            adaptation: None,
            series: Vec::new(),
        }
    }

    #[test]
    fn medians_and_ranks_are_those_counted_by_hand() {
        let trace = |ratios: [f64; 4]| {
            ["a", "b", "a", "b"].iter().zip(ratios).map(|(name, at)| outcome(name, at)).collect()
        };
        let traces =
            [trace([0.5, 0.4, 0.3, 0.3]), trace([0.9, 0.8, 0.1, 0.2]), trace([0.2, 0.6, 0.0, 0.9])];
        let sizes = [CacheSize::Percent(1.0), CacheSize::Percent(10.0)];
        let found: Vec<_> = summaries(&sizes, &traces)
            .into_iter()
            .map(|s| (s.policy + " " + &s.size, s.median, s.least, s.most, s.rank, s.best))
            .collect();
        let expected = [
            ("b 1%".to_owned(), 0.6, 0.4, 0.8, 4.0 / 3.0, 2),
            ("a 1%".to_owned(), 0.5, 0.2, 0.9, 5.0 / 3.0, 1),
            ("a 10%".to_owned(), 0.1, 0.0, 0.3, 3.5 / 3.0, 3),
            ("b 10%".to_owned(), 0.3, 0.2, 0.9, 5.5 / 3.0, 1),
        ];
        assert_eq!(found, expected);
        // Of two traces the median is the mean.
        assert_eq!(
            summaries(&sizes[..1], &[trace([0.5; 4])[..2].to_vec(), trace([0.7; 4])[..2].to_vec()])
                [0]
            .median,
            0.6
        );
    }
}
