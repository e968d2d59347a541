//! `floe coherence`: simulates the cache lines that a cache's requests pass between many cores.

use clap::Args;
use floe_lab::coherence::{CACHES, Coherence, Machine, Setting, SharedCache, measure, simulate};

use crate::error::{CliError, OrFail};
use crate::numbers::Counts;
use crate::output;
use crate::simulate::on_all_cores;

const EXAMPLES: &str = "\
Examples:
  floe coherence
  floe coherence --cache floe,moka --cores 1,2,72 --hit-ratio 0.9 --json
  floe coherence --cache quick_cache --cores 1,64,256 --shards 1 --keys 50000 --theta 0 --hit-ns 83
  floe coherence --measure";

const NOTES: &str = "\
Each core makes one request after the other, on keys by Zipf's law. The steps of a request on cache
lines are those of the cache's code; lines and read-modify-writes were counted. A line that another
core has written takes a transfer to come, and goes to one core at a time. Without --measure, times
are those of two cores of an AMD EPYC, which now share a cache and now do not. Sockets, sleeping
threads and memory bandwidth are left out.";

/// Times between two cores of an AMD EPYC (docs/results/appendix/memory.md).
const MEASURED: Machine = Machine { transfer_ns: 30.0, far_ns: 125.0, group: 8, pause_ns: 25.0 };

fn caches_help() -> String {
    CACHES.iter().map(|cache| format!("    {:<12} {}\n", cache.name, cache.about)).collect()
}

#[derive(Debug, Args)]
#[command(after_help = format!("{NOTES}\n\nCaches:\n{}\n{EXAMPLES}", caches_help()))]
pub(crate) struct Arguments {
    /// Caches [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cache: Option<Vec<String>>,
    /// Numbers of cores
    #[arg(long, value_name = "LIST", default_value = "1,2,4,8,16,24,36,48,72")]
    cores: Counts,
    /// Number of keys
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    keys: u32,
    /// Exponent of Zipf's law; 0 makes all keys equally popular
    #[arg(long, value_name = "EXPONENT", default_value_t = 0.99)]
    theta: f64,
    /// Share of requests that hit
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    hit_ratio: f64,
    /// Shards of each cache [default: what the cache chooses on so many cores]
    #[arg(long, value_name = "N")]
    shards: Option<u32>,
    /// Time of a hit on one core [default: the measured one of each cache]
    #[arg(long, value_name = "NS")]
    hit_ns: Option<f64>,
    /// Time in which a line comes from another core of the same group
    #[arg(long, value_name = "NS", default_value_t = MEASURED.transfer_ns)]
    transfer_ns: f64,
    /// Time in which a line comes from a core of another group
    #[arg(long, value_name = "NS", default_value_t = MEASURED.far_ns)]
    far_ns: f64,
    /// Number of cores in a group
    #[arg(long, value_name = "N", default_value_t = MEASURED.group)]
    group: u32,
    /// Time of a pause in a loop that waits
    #[arg(long, value_name = "NS", default_value_t = MEASURED.pause_ns)]
    pause_ns: f64,
    /// Measure a transfer and a pause between two cores of this machine; all cores then are as far
    /// from each other
    #[arg(long, conflicts_with_all = ["transfer_ns", "far_ns", "group", "pause_ns"])]
    measure: bool,
    /// Let every compare-and-swap succeed, which bounds the throughput from above
    #[arg(long)]
    no_retries: bool,
    /// Number of requests to simulate for each result
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    requests: u64,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// One JSON object per line instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let caches: Vec<&'static SharedCache> = match &arguments.cache {
        None => CACHES.iter().collect(),
        Some(names) => names
            .iter()
            .map(|name| SharedCache::named(name).or_usage())
            .collect::<Result<_, _>>()?,
    };
    let machine = if arguments.measure {
        measure().or_failure()?
    } else {
        let Arguments { transfer_ns, far_ns, group, pause_ns, .. } = *arguments;
        Machine { transfer_ns, far_ns, group, pause_ns }
    };
    let setting = |cache, cores: usize| Setting {
        cache,
        machine,
        cores: cores as u32,
        keys: arguments.keys,
        theta: arguments.theta,
        hit_ratio: arguments.hit_ratio,
        shards: arguments.shards,
        hit_ns: arguments.hit_ns,
        retries: !arguments.no_retries,
        requests: arguments.requests,
        seed: arguments.seed,
    };
    let settings: Vec<Setting> = caches
        .iter()
        .flat_map(|cache| arguments.cores.0.iter().map(|&cores| setting(*cache, cores)))
        .collect();
    let bar = output::progress(settings.len() as u64, "simulating");
    let found = on_all_cores(&settings, |setting| {
        let found = simulate(setting);
        bar.inc(1);
        found
    });
    bar.finish_and_clear();
    let found: Vec<Coherence> =
        found.into_iter().map(OrFail::or_usage).collect::<Result<_, _>>()?;
    if arguments.json {
        return found.iter().try_for_each(output::json_line).or_failure();
    }
    output::say!(
        "{} keys · hit ratio {} · transfer {:.1} ns, {:.1} between groups of {} · pause {:.1} ns",
        arguments.keys,
        arguments.hit_ratio,
        machine.transfer_ns,
        machine.far_ns,
        machine.group,
        machine.pause_ns
    );
    let columns = ["cache", "cores", "shards", "M/s", "ns a request", "transfers", "retries"];
    let mut table = output::table(&columns, 1);
    for line in &found {
        table.add_row([
            line.cache.to_owned(),
            line.cores.to_string(),
            line.shards.to_string(),
            format!("{:.2}", line.mrps),
            format!("{:.1}", line.request_ns),
            format!("{:.2}", line.transfers_per_request),
            format!("{:.2}", line.retries_per_request),
        ]);
    }
    output::print_table(&table);
    Ok(())
}
