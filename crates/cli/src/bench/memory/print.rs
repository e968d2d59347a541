//! Prints measurements for users.

use floe_lab::bench::{BenchResult, Decided, Park, Ratio, SAMPLED};

use crate::output;

const COLUMNS: [&str; 16] = [
    "policy",
    "shards",
    "capacity",
    "threads",
    "mpl",
    "disk",
    "hit ratio",
    "frozen",
    "M ops/s",
    "interval",
    "to the first",
    "CPU an op",
    "a hit",
    "a miss",
    "parked",
    "idle",
];

/// Prints a table with a line for each cache, and an explanation.
pub(super) fn print(outcomes: &[BenchResult], hash_seeds: usize) {
    let mut table = output::table(&COLUMNS, 1);
    for outcome in outcomes {
        let millions = |count: f64| format!("{:.3}", count / 1e6);
        let ratio = |Ratio { ratio, ratio_low, ratio_high, .. }| {
            format!("{ratio:.3} ({ratio_low:.3}–{ratio_high:.3})")
        };
        let parked = |Park { park_us_mean, park_us_p99, .. }| {
            format!("{park_us_mean:.1}, {park_us_p99:.1} µs")
        };
        table.add_row([
            outcome.policy.clone(),
            outcome.shards.to_string(),
            outcome.capacity.to_string(),
            outcome.threads.to_string(),
            outcome.mpl.to_string(),
            if outcome.disk_us > 0.0 {
                output::microseconds(outcome.disk_us)
            } else {
                "–".to_owned()
            },
            format!("{:.4}", outcome.hit_ratio),
            frozen(outcome),
            millions(outcome.ops_per_second),
            format!(
                "{}–{}",
                millions(outcome.ops_per_second_low),
                millions(outcome.ops_per_second_high)
            ),
            outcome.ratio.map_or_else(|| "–".to_owned(), ratio),
            format!("{:.1} ns", outcome.cpu_ns_per_op),
            pair(
                outcome.hit_ns_p50.map(|ns| ns as f64),
                outcome.hit_ns_p99.map(|ns| ns as f64),
                0,
                "ns",
            ),
            pair(outcome.miss_us_p50, outcome.miss_us_p99, 2, "µs"),
            outcome.park.map_or_else(|| "–".to_owned(), parked),
            output::percent(outcome.idle_share),
        ]);
    }
    output::print_table(&table);
    if let Some(outcome) = outcomes.first() {
        eprintln!(
            "Frozen: how; of the entries, and of the hits. Hits and misses: latencies p50, p99 of \
             1 in {SAMPLED} operations, less the {} ns that reading the clock takes; parked: \
             mean, p99. Intervals hold the median of {} run(s) on {hash_seeds} hash seed(s) with \
             {:.1} %.",
            outcome.clock_ns,
            outcome.repetitions,
            100.0 * outcome.confidence
        );
    }
}

/// Formats the share of frozen entries, and the share of hits on them.
fn frozen(outcome: &BenchResult) -> String {
    if !outcome.frozen {
        return "–".to_owned();
    }
    let [ratio, share] = [outcome.frozen_ratio, outcome.frozen_share].map(output::percent);
    format!("{}: {ratio}, {share}", outcome.freezing)
}

/// Prints the controllers' decisions with their reasons, if there were any.
pub(super) fn print_decisions(decisions: &[Decided]) {
    if decisions.is_empty() {
        return;
    }
    let mut table = output::table(&["policy", "s", "phase", "frozen, other, miss", "why"], 1);
    for column in [2, 4] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(comfy_table::CellAlignment::Left);
        }
    }
    for decided in decisions {
        let ns = |ns: Option<f64>| ns.map_or_else(|| "–".to_owned(), |ns| format!("{ns:.0}"));
        let known = &decided.known;
        table.add_row([
            decided.policy.clone(),
            format!("{:.2}", decided.at_seconds),
            decided.phase.to_owned(),
            format!("{}, {}, {} ns", ns(known.frozen_ns), ns(known.dynamic_ns), ns(known.miss_ns)),
            decided.reason.clone(),
        ]);
    }
    output::print_table(&table);
}

/// Formats two latencies, if there were any.
fn pair(half: Option<f64>, most: Option<f64>, digits: usize, unit: &str) -> String {
    match (half, most) {
        (Some(half), Some(most)) => format!("{half:.digits$}, {most:.digits$} {unit}"),
        _ => "–".to_owned(),
    }
}
