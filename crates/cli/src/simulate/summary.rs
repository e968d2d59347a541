//! Policies over several traces: medians, ranges and ranks at each size.

use floe_lab::simulate::objects::SimulationResult;

use crate::output;
use crate::size::CacheSize;

/// A policy at a size, over all traces.
#[derive(Debug, PartialEq)]
struct Summary {
    policy: String,
    size: String,
    median: f64,
    least: f64,
    most: f64,
    /// Mean over the traces; 1 is the best, and ties share the mean of their ranks.
    rank: f64,
    /// Traces on which none is better.
    best: usize,
}

/// Returns the number that is the smaller the better a policy is: the mean latency where that is
/// known, else the miss ratio.
pub(super) fn cost(outcome: &SimulationResult) -> f64 {
    outcome.mean_latency_us.unwrap_or(outcome.miss_ratio)
}

/// Prints the summary of the outcomes of each trace, which are ordered by size and all have the
/// same policies.
pub(super) fn print(sizes: &[CacheSize], traces: &[Vec<SimulationResult>]) {
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

/// Returns the summary of each policy at each size, at each size the best rank first.
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

/// Returns the summary of one run among those at the same size.
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
mod tests {
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
