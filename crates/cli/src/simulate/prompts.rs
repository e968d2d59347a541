//! `floe simulate --prefix`: caches of the keys and values of language models.

use floe_lab::simulate::on_all_cores;
use floe_lab::simulate::prompts::{KeptLongest, PromptsBuilder, PromptsResult, simulate};
use floe_lab::sizes::CacheSize;
use floe_policy::registry::Choice;

use super::Arguments;
use super::objects::with_progress;
use crate::error::{CliError, OrFail};
use crate::output;
use crate::trace::read_all;

/// Options that have no meaning for a cache of prompts.
pub(super) const CONFLICTS: [&str; 15] = [
    "admit",
    "blocks",
    "flash",
    "memory",
    "bytes",
    "sample",
    "hit_us",
    "miss_us",
    "insert_us",
    "medium",
    "report",
    "png",
    "svg",
    "write",
    "interval",
];

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let policies = arguments.policies()?;
    let block_bytes = arguments.block_bytes.map(|bytes| bytes.0);
    let mut all = Vec::new();
    for trace in &arguments.traces {
        let results = simulate_trace(arguments, trace, &policies)?;
        if !(arguments.json || arguments.csv) {
            if arguments.traces.len() > 1 {
                output::say!("{trace}");
            }
            print(&results, block_bytes);
        }
        all.extend(results);
    }
    match (arguments.csv, arguments.json) {
        (true, _) => output::csv(&all).or_failure(),
        (_, true) => all.iter().try_for_each(output::json_line).or_failure(),
        _ => Ok(()),
    }
}

fn simulate_trace(
    arguments: &Arguments,
    name: &str,
    policies: &[Choice],
) -> Result<Vec<PromptsResult>, CliError> {
    let in_trace = |problem: String| CliError::usage(format!("{name}: {problem}"));
    let mut trace = arguments.open.open(name, false)?;
    if trace.format().name() != "prompts" {
        return Err(in_trace(format!(
            "--prefix needs a trace of prompts, JSON lines with `hash_ids`; this one is {}",
            trace.format()
        )));
    }
    let mut builder = PromptsBuilder::default();
    read_all(name, &mut trace, "reading", |request| builder.add(request).or_usage())?;
    let mut prompts = builder.finish();
    if prompts.is_empty() {
        return Err(in_trace("it has no prompt with a block".to_owned()));
    }
    let warmup = arguments.warmup.of(prompts.len() as u64).map_err(in_trace)?;
    prompts.count_from(warmup as usize);
    let mut runs = Vec::new();
    for size in &arguments.sizes().0 {
        let blocks = match (size, arguments.block_bytes) {
            (CacheSize::Bytes(_), None) => {
                let problem = format!("--size {size}: give the size of a block, --block-bytes");
                return Err(CliError::usage(problem));
            }
            (CacheSize::Bytes(bytes), Some(block)) => bytes / block.0,
            (size, _) => size.of(prompts.distinct() as u64),
        };
        if blocks == 0 {
            return Err(in_trace(format!("--size {size} leaves room for no block")));
        }
        for policy in policies {
            runs.extend(KeptLongest::ALL.map(|keeps| (blocks, policy, keeps)));
        }
    }
    let results = with_progress(runs.len() as u64, |done| {
        on_all_cores(&runs, |(blocks, policy, keeps)| {
            let result = simulate(name, &prompts, policy, *keeps, *blocks).or_usage();
            done.fetch_add(1, std::sync::atomic::Ordering::Relaxed); // only a number to show
            result
        })
    });
    results.into_iter().collect()
}

/// Prints the results at each size, those with the fewest computed blocks first.
fn print(results: &[PromptsResult], block_bytes: Option<u64>) {
    let mut results: Vec<_> = results.iter().collect();
    results.sort_by(|a, b| a.size.cmp(&b.size).then(a.recomputed.cmp(&b.recomputed)));
    let columns =
        ["policy", "keeps", "size", "blocks", "recomputed", "of all", "behind a gap", "whole"];
    let mut table = output::table(&columns, 2);
    for result in results {
        table.add_row([
            result.policy.clone(),
            result.keeps.word().to_owned(),
            match block_bytes {
                Some(bytes) => output::bytes(result.size * bytes),
                None => result.size.to_string(),
            },
            result.blocks.to_string(),
            result.recomputed.to_string(),
            output::percent(result.recompute_ratio),
            output::percent(result.behind_a_gap as f64 / result.blocks.max(1) as f64),
            output::percent(result.whole as f64 / result.prompts.max(1) as f64),
        ]);
    }
    output::print_table(&table);
    output::say!("\nkeeps: the end of a prompt that the policy keeps for longest.");
    output::say!("behind a gap: cached blocks that were computed again, because a block before");
    output::say!("them was missing. whole: prompts that were cached whole.");
}
