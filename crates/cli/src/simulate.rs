//! `floe simulate`: traces through the block cache's own code, without devices.

use clap::Args;
use floe_block::{BlockSizes, WriteMode};
use floe_lab::simulate::blocks::{Ordering, Outcome, Setup, simulate};
use floe_trace::{Kind, Request};

use crate::error::CliError;
use crate::size::CacheSize;
use crate::trace::{PROGRESS_EVERY, TraceArguments};
use crate::{OrFail, output};

const EXAMPLES: &str = "\
Examples:
  floe simulate disk.vscsi --blocks 32KiB,64KiB,128KiB,256KiB --size 10%
  floe simulate P2.lis.zst --blocks 32KiB,64KiB --blocks 32KiB --blocks 64KiB --size 45MiB --json";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A trace of disk I/O, or of pages that can be read as such
    trace: String,
    /// Block sizes of one cache, smallest to largest; repeat to compare caches
    #[arg(long, value_name = "LIST", required = true)]
    blocks: Vec<BlockSizes>,
    /// Cache size, in bytes or as a share of what the trace touches; repeat to compare
    #[arg(long, value_name = "SIZE|SHARE%", required = true, value_delimiter = ',')]
    size: Vec<CacheSize>,
    /// When writes reach which device: through, around, back or pass
    #[arg(long, value_name = "MODE", default_value = "back")]
    write: WriteMode,
    /// Who leaves: lru or fifo
    #[arg(long, value_name = "ORDER", default_value = "lru")]
    policy: Ordering,
    /// Number of shards
    #[arg(long, value_name = "N", default_value_t = 1)]
    shards: u64,
    /// How long written data stays in the cache only, in the trace's time
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    flush_interval: humantime::Duration,
    #[command(flatten)]
    open: TraceArguments,
    /// One JSON object per cache instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let (requests, footprint_bytes) = load(arguments)?;
    let setups: Vec<Setup> = arguments
        .size
        .iter()
        .flat_map(|size| arguments.blocks.iter().map(move |sizes| (size, sizes)))
        .map(|(size, sizes)| Setup {
            sizes: sizes.clone(),
            cache_bytes: size.of_footprint(footprint_bytes),
            mode: arguments.write,
            shards: arguments.shards,
            ordering: arguments.policy,
            clean_every_ns: u64::try_from(arguments.flush_interval.as_nanos()).unwrap_or(u64::MAX),
        })
        .collect();
    let bar = output::progress(setups.len() as u64, "simulating");
    let outcomes = on_all_cores(&setups, |setup| {
        let outcome = simulate(&arguments.trace, &requests, setup);
        bar.inc(1);
        outcome
    });
    bar.finish_and_clear();
    let outcomes = outcomes.into_iter().collect::<Result<Vec<_>, _>>().or_usage()?;
    if arguments.json {
        return outcomes.iter().try_for_each(output::json_line).or_failure();
    }
    print(&outcomes);
    Ok(())
}

/// Reads the trace as disk I/O, and how many bytes it touches.
fn load(arguments: &Arguments) -> Result<(Vec<Request>, u64), CliError> {
    let mut trace = arguments.open.open(&arguments.trace, true)?;
    if trace.kind() != Kind::Block {
        return Err(CliError::usage(format!(
            "{}: {} traces have no disk addresses, which --blocks needs",
            arguments.trace,
            trace.format()
        )));
    }
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
    if trace.skipped() > 0 {
        eprintln!("floe: {}: {} bad record(s) passed over", arguments.trace, trace.skipped());
    }
    let footprint_bytes = stats.info(&arguments.trace, trace.format().name()).footprint_bytes;
    Ok((requests, footprint_bytes))
}

/// Maps a list on as many threads as there are cores, keeping its order.
fn on_all_cores<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(items.len());
    let worker = || {
        let mut done = Vec::new();
        loop {
            // Relaxed: the counter only hands out numbers; results travel by the join.
            let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(item) = items.get(at) else { return done };
            done.push((at, work(item)));
        }
    };
    let mut done: Vec<(usize, R)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a simulation does not panic")).collect()
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

fn print(outcomes: &[Outcome]) {
    let columns = [
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
    let mut table = output::table(&columns, 1);
    let ratio =
        |hits: u64, all: u64| if all == 0 { "–".into() } else { output::percent(hits as f64 / all as f64) };
    for outcome in outcomes {
        table.add_row(vec![
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
        ]);
    }
    output::print_table(&table);
}
