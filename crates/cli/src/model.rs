//! `floe model`: what a hit ratio is worth in throughput, from queueing networks.

mod print;

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use floe_lab::model::{Curve, Line, Star};
use floe_model::policies::POLICIES;
use floe_model::{Load, Policy, Service, Setting};

use crate::error::CliError;
use crate::list::{Counts, Numbers};
use crate::{OrFail, output};

const EXAMPLES: &str = "\
Examples:
  floe model
  floe model --policy lru,fifo,slru --hit-ratio 0.4..=1:0.05 --mpl 16,72,144 --disk-us 5,100,500
  floe model --policy prob-lru --q 0.5,0.9,0.986 --json
  floe model --policy lru --frozen 0,0.5,0.9
  floe model --policy lru,s3-fifo --mpl 72 --cores 2 --service this-machine.json";

const NOTES: &str = "\
A closed network: so many requests are in flight at all times. A request looks its key up, waits for the disk if it misses, and
changes lists one after the other with all others; throughput is in million requests a second. `bound` is what no such network can
pass, `mva` is exact for it. Past p*, more hits cost throughput: such policies are LRU-like, others FIFO-like. Service times are those of
\"Can Increasing the Hit Ratio Hurt Cache Throughput?\" without --service.";

fn policies_help() -> String {
    POLICIES.iter().map(|policy| format!("  {:<16} {}\n", policy.name, policy.about)).collect()
}

#[derive(Debug, Args)]
#[command(after_help = format!("{NOTES}\n\nPolicies:\n{}\n{EXAMPLES}", policies_help()))]
pub(crate) struct Arguments {
    /// Policies
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "lru,fifo")]
    policy: Vec<String>,
    /// Shares of requests that hit
    #[arg(long, value_name = "LIST", default_value = "0.4..=0.95:0.05,0.98,0.99,1")]
    hit_ratio: Numbers,
    /// Requests in flight
    #[arg(long, value_name = "LIST", default_value = "72")]
    mpl: Counts,
    /// Time a miss waits for the disk, any number at once
    #[arg(long, value_name = "LIST", default_value = "100")]
    disk_us: Numbers,
    /// Shares of hits that skip the list, for prob-lru, or instead of what was measured for relaxed-lru
    #[arg(long, value_name = "LIST")]
    q: Option<Numbers>,
    /// Shares of hits that find their entry frozen, and so end before any list
    #[arg(long, value_name = "LIST")]
    frozen: Option<Numbers>,
    /// Cores that the requests in flight share [default: one for each]
    #[arg(long, value_name = "LIST")]
    cores: Option<Counts>,
    /// Service times of another machine, as JSON
    #[arg(long, value_name = "FILE")]
    service: Option<PathBuf>,
    /// One JSON object per line instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    for curve in curves(arguments)? {
        let lines: Vec<Line> =
            arguments.hit_ratio.0.iter().map(|&at| curve.line(at).or_usage()).collect::<Result<_, _>>()?;
        let star: Star = curve.star().or_usage()?;
        if arguments.json {
            lines
                .iter()
                .try_for_each(output::json_line)
                .and_then(|()| output::json_line(&star))
                .or_failure()?;
        } else {
            print::curve(&lines, &star);
        }
    }
    Ok(())
}

/// Every combination of what the arguments list.
fn curves(arguments: &Arguments) -> Result<Vec<Curve>, CliError> {
    let service = Arc::new(arguments.service.as_ref().map_or_else(|| Ok(Service::paper()), read)?);
    let options = |list: &Option<Numbers>| match list {
        Some(Numbers(numbers)) => numbers.iter().copied().map(Some).collect(),
        None => vec![None],
    };
    let cores: Vec<Option<u32>> = match &arguments.cores {
        Some(Counts(counts)) => counts.iter().map(|&count| Some(count as u32)).collect(),
        None => vec![None],
    };
    let mut curves = Vec::new();
    for name in &arguments.policy {
        let policy = Policy::named(name).or_usage()?;
        let qs = if policy.takes_q() { options(&arguments.q) } else { vec![None] };
        for q in qs {
            for frozen in options(&arguments.frozen) {
                for &disk_us in &arguments.disk_us.0 {
                    for &mpl in &arguments.mpl.0 {
                        for &cores in &cores {
                            let setting = Setting { q, frozen, ..Setting::new(1.0, disk_us) };
                            let load = Load { mpl: mpl as u32, cores };
                            let service = service.clone();
                            curves.push(Curve { policy, service, setting, load });
                        }
                    }
                }
            }
        }
    }
    Ok(curves)
}

fn read(file: &PathBuf) -> Result<Service, CliError> {
    let refused = |error: &dyn std::fmt::Display| CliError::usage(format!("{}: {error}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| refused(&error))?;
    serde_json::from_str(&text).map_err(|error| refused(&error))
}
