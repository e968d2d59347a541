//! `floe simulate --blocks`: the block cache at several sizes and block sizes.

use floe_block::{Admissions, Config, Evict, Gate};
use floe_lab::report::blocks;
use floe_lab::simulate::blocks::{BlockSimulationResult, Setup, simulate};
use floe_trace::Request;

use super::{Arguments, admissions, on_all_cores, refuse_without_times, series, write_report};
use crate::error::CliError;
use crate::trace::{PROGRESS_EVERY, tell_skipped};
use crate::{OrFail, output};

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
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
    let trace = super::one_trace(arguments, "--blocks")?;
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
        .size
        .0
        .iter()
        .flat_map(|size| arguments.blocks.iter().flat_map(move |sizes| each(size, sizes)))
        .map(|(size, sizes, (evict, admission))| Setup {
            cache: Config {
                sizes: sizes.clone(),
                cache_bytes: size.of(footprint_bytes),
                mode: arguments.write,
                gate: Gate::new(Admissions::clone(admission)),
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
    write_report(arguments, |command| blocks::report(command, trace, &outcomes))?;
    if arguments.csv && interval.is_some() {
        return output::csv(&series::of_blocks(&outcomes)).or_failure();
    }
    if arguments.csv {
        return output::csv(&outcomes).or_failure();
    }
    if arguments.json {
        return outcomes.iter().try_for_each(output::json_line).or_failure();
    }
    print(&outcomes);
    series::print_blocks(&outcomes);
    Ok(())
}

/// Reads the trace as disk I/O, and how many bytes it touches.
fn load(arguments: &Arguments, path: &str) -> Result<(Vec<Request>, u64), CliError> {
    let mut trace = arguments.open.open_disk(path, "--blocks")?;
    let bar = output::progress(trace.total_bytes().unwrap_or(0), "reading");
    let progress = trace.progress();
    let mut stats = floe_trace::Stats::new(trace.kind());
    let mut requests = Vec::new();
    for request in trace.by_ref() {
        let request = request.or_usage()?;
        stats.add(&request);
        requests.push(request);
        if (requests.len() as u64).is_multiple_of(PROGRESS_EVERY) {
            bar.set_position(progress.bytes_read());
        }
    }
    bar.finish_and_clear();
    tell_skipped(path, &trace);
    let footprint_bytes = stats.info(path, trace.format().name()).footprint_bytes;
    Ok((requests, footprint_bytes))
}

fn print(outcomes: &[BlockSimulationResult]) {
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
