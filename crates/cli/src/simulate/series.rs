//! Simulations over time: a table of intervals, or a line of CSV for each.

use floe_lab::simulate::blocks::{BlockInterval, BlockSimulationResult};
use floe_lab::simulate::intervals::SimulatedInterval;
use floe_lab::simulate::objects::SimulationResult;
use serde::Serialize;

use crate::output;

/// A line of CSV: an interval, and the run that it is of.
#[derive(Serialize)]
pub(super) struct OfPolicy<'a> {
    trace: &'a str,
    policy: &'a str,
    size: u64,
    #[serde(flatten)]
    interval: &'a SimulatedInterval,
}

/// A line of CSV with `--blocks`.
#[derive(Serialize)]
pub(super) struct OfBlocks<'a> {
    trace: &'a str,
    blocks: &'a str,
    policy: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    admission: Option<&'a str>,
    size: u64,
    #[serde(flatten)]
    interval: &'a BlockInterval,
}

pub(super) fn of_policies(outcomes: &[SimulationResult]) -> Vec<OfPolicy<'_>> {
    let mut rows = Vec::new();
    for SimulationResult { trace, policy, size, series, .. } in outcomes {
        let row = |interval| OfPolicy { trace, policy, size: *size, interval };
        rows.extend(series.iter().map(row));
    }
    rows
}

pub(super) fn of_blocks(outcomes: &[BlockSimulationResult]) -> Vec<OfBlocks<'_>> {
    let mut rows = Vec::new();
    for outcome in outcomes {
        let BlockSimulationResult { trace, blocks, policy, admission, size, series, .. } = outcome;
        let admission = admission.as_ref().map(|asked| &asked.admission[..]);
        let row = |interval| OfBlocks { trace, blocks, policy, admission, size: *size, interval };
        rows.extend(series.iter().map(row));
    }
    rows
}

/// The sizes of the caches, each once, in their order.
fn sizes(of: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut sizes: Vec<u64> = of.collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// The first cells of an interval: the requests before its end, and where known the time.
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

/// Prints for each size the miss ratios of all policies in each interval, if there are any.
pub(super) fn print_policies(outcomes: &[SimulationResult], show: impl Fn(u64) -> String) {
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

/// Prints the intervals of each run of the block cache, if there are any.
pub(super) fn print_blocks(outcomes: &[BlockSimulationResult]) {
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
