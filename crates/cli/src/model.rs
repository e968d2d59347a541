//! `floe model`: computes throughput as a function of the hit ratio, from queueing networks.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use floe_lab::classes::{self, Conditions, Point, Verdict};
use floe_lab::model::{Answer, Curve, Demand, Identity, Line, Star};
use floe_lab::report::model_report;
use floe_lab::simulate::operations::{Candidate, Operations};
use floe_lab::simulate::stream::{Keep, Stream};
use floe_model::events::{Distribution, Distributions, Effort};
use floe_model::policies::POLICIES;
use floe_model::{Load, Locks, Policy, Service, Setting};
use floe_server::config::read_times;
use indicatif::ProgressBar;

use crate::bench::DiskTimes;
use crate::error::{CliError, OrFail};
use crate::numbers::{Counts, Numbers};
use crate::output::{self, ReportFiles};
use crate::simulate::{on_all_cores, read_stream};
use crate::trace::TraceArguments;
use floe_lab::sizes::{CacheSize, Sizes};

const EXAMPLES: &str = "\
Examples:
  floe model
  floe model --policy lru,fifo,slru --hit-ratio 0.4..=1:0.05 --mpl 16,72,144 --disk-us 5,100,500
  floe model --policy prob-lru --q 0.5,0.9,0.986 --json
  floe model --policy lru,fifo,prob-lru,clock,slru,s3-fifo --disk-us 500,100,5 --report paper.html
  floe model --policy lru --frozen 0,0.5,0.9
  floe model --policy lru,slru --distribution hyperexponential:4 --precision 0.002
  floe model --policy lru,fifo --arrival-rate 0.5,1,1.5 --hit-ratio 0.9,0.99
  floe model --policy lru,s3-fifo --mpl 72 --cores 2 --service this-machine.json
  floe model --policy arc,lirs,sieve --trace zipf:keys=100000,theta=0.9 --disk-us 5,100";

const NOTES: &str = "\
A closed network keeps --mpl requests in flight at all times. A request looks its key up, waits for
the disk if it misses, and changes lists one after the other with all others. Throughput is in
million requests a second. `bound` is the limit of every such network, `mva` is exact for it, and
`sim` a simulation with its 95 % interval. Policies whose throughput falls past p* are LRU-like, the
others FIFO-like. Without --service the service times are those of
\"Can Increasing the Hit Ratio Hurt Cache Throughput?\".

With --trace, any policy of `floe simulate` runs over a trace at several sizes. The counts of its
own list operations are the network: with a station for each operation on each list, and with one
lock for all.";

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
    /// Time that a miss waits for the disk, which serves any number at once
    #[arg(long, value_name = "LIST", default_value = "100")]
    disk_us: Numbers,
    /// Shares of hits that skip the list, for prob-lru, or for relaxed-lru instead of the measured
    /// ones
    #[arg(long, value_name = "LIST")]
    q: Option<Numbers>,
    /// Shares of hits on frozen entries, which need no list operation
    #[arg(long, value_name = "LIST")]
    frozen: Option<Numbers>,
    /// Share of hits whose mark has to be written because it was not set (clock, sieve, s3-fifo);
    /// `written-mark` of --service is its price
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    written: f64,
    /// Cores that the requests in flight share [default: one for each]
    #[arg(long, value_name = "LIST")]
    cores: Option<Counts>,
    /// Million requests that arrive in a second, instead of requests in flight; prints response
    /// times
    #[arg(long, value_name = "LIST", conflicts_with = "mpl")]
    arrival_rate: Option<Numbers>,
    /// The distribution of simulated service times: exponential, deterministic,
    /// hyperexponential:CV2 (the squared coefficient of variation), or measured (histograms in the
    /// --service file)
    #[arg(long, value_name = "NAME", default_value = "exponential")]
    distribution: Distribution,
    /// The distribution of the simulated disk's times
    #[arg(long, value_name = "HOW", default_value = "fixed")]
    disk_times: DiskTimes,
    /// Simulate until half the 95 % interval is no more than this share of the mean; 0 does not
    /// simulate
    #[arg(long, value_name = "SHARE", default_value_t = 0.005)]
    precision: f64,
    /// Service times of another machine, as JSON
    #[arg(long, value_name = "FILE")]
    service: Option<PathBuf>,
    #[command(flatten)]
    files: ReportFiles,
    /// Derive the networks from the list operations of the policies' own code over this trace
    #[arg(long, value_name = "TRACE", conflicts_with_all = [
        "hit_ratio", "q", "frozen", "written", "arrival_rate", "distribution", "disk_times",
        "precision", "report", "png", "svg",
    ])]
    trace: Option<String>,
    /// Cache sizes, with --trace: entries (1000) or shares of what the trace touches (10%)
    /// [default: 20 from 0.1% to 100%]
    #[arg(long, value_name = "LIST", requires = "trace")]
    size: Option<Sizes>,
    #[command(flatten)]
    open: TraceArguments,
    /// One JSON object per line instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    if let Some(trace) = &arguments.trace {
        return run_counted(arguments, trace);
    }
    if arguments.open.is_told() {
        return Err(CliError::usage("--format, --columns, --skip-bad and --filter need a --trace"));
    }
    let precision = arguments.precision;
    if !(0.0..=0.5).contains(&precision) {
        return Err(CliError::usage(format!(
            "--precision {precision} is not a share from 0 to 0.5"
        )));
    }
    if arguments.distribution == Distribution::Measured && arguments.service.is_none() {
        return Err(CliError::usage(
            "--distribution measured needs a --service file with histograms",
        ));
    }
    // All that can be refused is refused before anything is printed.
    let mut solved = Vec::new();
    for curve in curves(arguments)? {
        let lines = arguments.hit_ratio.0.iter().map(|&at| curve.line(at).or_usage());
        solved.push((lines.collect::<Result<Vec<Line>, _>>()?, curve.star().or_usage()?, curve));
    }
    let simulates = precision > 0.0 && arguments.arrival_rate.is_none();
    let bar = output::progress(
        if simulates { solved.iter().map(|(lines, ..)| lines.len() as u64).sum() } else { 0 },
        "simulating",
    );
    let mut shown = Vec::new();
    for (mut lines, star, curve) in solved {
        if simulates {
            simulate(arguments, &curve, &mut lines, &bar)?;
        }
        if arguments.json {
            lines
                .iter()
                .try_for_each(output::json_line)
                .and_then(|()| output::json_line(&star))
                .or_failure()?;
        } else {
            bar.suspend(|| print_curve(&lines, &star));
        }
        shown.push((lines, star));
    }
    bar.finish_and_clear();
    arguments.files.write(|command| model_report(command, &shown))
}

/// Adds the result of a simulation to each point of a curve.
fn simulate(
    arguments: &Arguments,
    curve: &Curve,
    lines: &mut Vec<Line>,
    bar: &ProgressBar,
) -> Result<(), CliError> {
    let effort = Effort { precision: arguments.precision, ..Effort::default() };
    let disk = match arguments.disk_times {
        DiskTimes::Fixed => Distribution::Deterministic,
        DiskTimes::Exponential => Distribution::Exponential,
    };
    let distributions = Distributions { service: arguments.distribution, disk };
    let simulated = on_all_cores(lines, |line| {
        let mut line = line.clone();
        let result = curve.simulate(&mut line, &distributions, &effort);
        bar.inc(1);
        result.map(|()| line)
    });
    *lines = simulated.into_iter().map(OrFail::or_usage).collect::<Result<_, _>>()?;
    Ok(())
}

/// Returns a curve for every combination of the arguments' lists.
fn curves(arguments: &Arguments) -> Result<Vec<Curve>, CliError> {
    let service = Arc::new(
        arguments
            .service
            .as_ref()
            .map_or_else(|| Ok(Service::paper()), |file| read_times(file))
            .or_usage()?,
    );
    let options = |list: &Option<Numbers>| match list {
        Some(Numbers(numbers)) => numbers.iter().copied().map(Some).collect(),
        None => vec![None],
    };
    let cores: Vec<Option<u32>> = match &arguments.cores {
        Some(Counts(counts)) => counts.iter().map(|&count| Some(count as u32)).collect(),
        None => vec![None],
    };
    let demands: Vec<Demand> = match &arguments.arrival_rate {
        Some(Numbers(rates)) => rates.iter().map(|&mrps| Demand::Open(mrps)).collect(),
        None => arguments.mpl.0.iter().map(|&mpl| Demand::Closed(mpl as u32)).collect(),
    };
    let policies: Vec<_> = arguments
        .policy
        .iter()
        .map(|name| Policy::named(name).or_usage())
        .collect::<Result<_, _>>()?;
    if arguments.q.is_some() && !policies.iter().any(|policy| policy.takes_q()) {
        return Err(CliError::usage(
            "--q applies to prob-lru and relaxed-lru, and --policy names neither",
        ));
    }
    let mut curves = Vec::new();
    for policy in policies {
        let qs = if policy.takes_q() { options(&arguments.q) } else { vec![None] };
        for q in qs {
            for frozen in options(&arguments.frozen) {
                for &disk_us in &arguments.disk_us.0 {
                    for &demand in &demands {
                        for &cores in &cores {
                            let setting = Setting {
                                q,
                                frozen,
                                written: arguments.written,
                                ..Setting::new(1.0, disk_us)
                            };
                            let service = service.clone();
                            curves.push(Curve { policy, service, setting, demand, cores });
                        }
                    }
                }
            }
        }
    }
    Ok(curves)
}

/// Default sizes, which cover most hit ratios.
const SIZES: &str =
    "0.1%,0.3%,1%,2%,4%,7%,10%,15%,20%,30%,40%,50%,60%,70%,80%,90%,95%,98%,99%,100%";

fn run_counted(arguments: &Arguments, trace: &str) -> Result<(), CliError> {
    let candidates: Vec<Candidate> = arguments
        .policy
        .iter()
        .map(|policy| policy.parse().or_usage())
        .collect::<Result<_, _>>()?;
    let conditions = conditions(arguments)?;
    let opened = arguments.open.open(trace, false)?;
    let stream = read_stream(trace, opened, Keep { rate: 1.0, sizes: false, next_use: false })?;
    let sizes = sizes(arguments, stream.footprint)?;
    for (candidate, runs) in candidates.iter().zip(count(&candidates, &stream, &sizes)) {
        for conditions in &conditions {
            let point = |(size, operations): &(u64, Operations)| {
                conditions.point(trace, candidate, *size, operations)
            };
            let mut points: Vec<Point> =
                runs.iter().map(|run| point(run).or_usage()).collect::<Result<_, _>>()?;
            let Some(verdict) = Verdict::of(candidate.name(), &mut points) else { continue };
            if arguments.json {
                points.iter().try_for_each(output::json_line).or_failure()?;
                output::json_line(&verdict).or_failure()?;
            } else {
                counted(&points, &verdict);
            }
        }
    }
    Ok(())
}

/// Returns every combination of load and locking.
fn conditions(arguments: &Arguments) -> Result<Vec<Conditions>, CliError> {
    let service = Arc::new(
        arguments
            .service
            .as_ref()
            .map_or_else(|| Ok(Service::paper()), |file| read_times(file))
            .or_usage()?,
    );
    let cores = arguments
        .cores
        .as_ref()
        .map_or(vec![None], |cores| cores.0.iter().map(|&count| Some(count as u32)).collect());
    let mut all = Vec::new();
    for locks in [Locks::Operation, Locks::List] {
        for &disk_us in &arguments.disk_us.0 {
            for &mpl in &arguments.mpl.0 {
                for &cores in &cores {
                    let load = Load { mpl: mpl as u32, cores };
                    all.push(Conditions { service: service.clone(), load, disk_us, locks });
                }
            }
        }
    }
    Ok(all)
}

/// Returns the distinct cache sizes in entries.
fn sizes(arguments: &Arguments, footprint: u64) -> Result<Vec<u64>, CliError> {
    let usual = || SIZES.parse::<Sizes>().expect("the usual sizes are sizes");
    let Sizes(given) = arguments.size.clone().unwrap_or_else(usual);
    if given.iter().any(|size| matches!(size, CacheSize::Bytes(_))) {
        return Err(CliError::usage(
            "--size counts entries here: a number, or a share such as 10%",
        ));
    }
    let mut sizes: Vec<u64> = given.iter().map(|size| size.of(footprint).max(1)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    Ok(sizes)
}

/// Counts the list operations of each candidate at each size.
fn count(candidates: &[Candidate], stream: &Stream, sizes: &[u64]) -> Vec<Vec<(u64, Operations)>> {
    let runs: Vec<(&Candidate, u64)> = candidates
        .iter()
        .flat_map(|candidate| sizes.iter().map(move |&size| (candidate, size)))
        .collect();
    let bar = output::progress(runs.len() as u64, "counting");
    let counted = on_all_cores(&runs, |&(candidate, size)| {
        let operations = candidate.count(stream, size);
        bar.inc(1);
        (size, operations)
    });
    bar.finish_and_clear();
    counted.chunks(sizes.len()).map(<[_]>::to_vec).collect()
}

/// Prints a table for a curve, and the conclusion from it.
fn print_curve(lines: &[Line], star: &Star) {
    output::say!("{}", heading(&star.identity));
    let (rate, time) = (|mrps: f64| format!("{mrps:.4}"), |us: f64| format!("{us:.2}"));
    let columns: &[&str] = match lines.first().map(|line| &line.answer) {
        Some(Answer::Open { .. }) => &["hit ratio", "saturation M/s", "response µs", "limits"],
        Some(Answer::Closed { sim_mrps: Some(_), .. }) => {
            &["hit ratio", "bound M/s", "mva M/s", "sim M/s", "± 95 %", "limits"]
        }
        _ => &["hit ratio", "bound M/s", "mva M/s", "limits"],
    };
    let mut table = output::table(columns, 0);
    for line in lines {
        let mut cells = vec![line.hit_ratio.to_string()];
        match line.answer {
            Answer::Closed { bound_mrps, mva_mrps, sim_mrps, sim_ci95 } => {
                cells.extend([rate(bound_mrps), rate(mva_mrps)]);
                cells.extend([sim_mrps, sim_ci95].into_iter().flatten().map(rate));
            }
            Answer::Open { saturation_mrps, response_us } => {
                cells.push(saturation_mrps.map_or("none".to_owned(), rate));
                cells.push(response_us.map_or("piles up".to_owned(), time));
            }
        }
        cells.push(line.bottleneck.unwrap_or("nothing").to_owned());
        table.add_row(cells);
    }
    output::print_table(&table);
    output::say!("{}\n", verdict(star));
}

fn heading(identity: &Identity) -> String {
    let Identity { policy, q, frozen, written, mpl, arrival_mrps, cores, disk_us } = identity;
    let option = |name: &str, value: Option<f64>| {
        value.map_or(String::new(), |value| format!(" · {name} {value}"))
    };
    let q =
        if matches!(*policy, "prob-lru" | "relaxed-lru") { option("q", *q) } else { String::new() };
    let mpl = mpl.map_or(String::new(), |mpl| format!(" · MPL {mpl}"));
    let arrivals = arrival_mrps.map_or(String::new(), |mrps| format!(" · {mrps} M/s arrive"));
    let cores =
        cores.map_or(String::new(), |cores| format!(" · {cores} cores, so mva is approximate"));
    let shares = option("frozen", *frozen) + &option("written", *written);
    format!("{policy}{q}{shares}{mpl}{arrivals}{cores} · disk {disk_us} µs")
}

/// Returns the conclusion from a curve in one line.
fn verdict(star: &Star) -> String {
    let Star { p_star, peak_mrps, all_hits_mrps, classification, bottleneck, .. } = star;
    let rate =
        |mrps: &Option<f64>| mrps.map_or("any rate".to_owned(), |mrps| format!("{mrps:.4} M/s"));
    let limit = bottleneck.map_or("no bottleneck".to_owned(), |name| format!("bottleneck {name}"));
    let (peak, hits) = (rate(peak_mrps), rate(all_hits_mrps));
    if *p_star < 1.0 {
        format!(
            "p* {p_star:.3}: {peak} at that hit ratio, {hits} at a hit ratio of 1; \
                 {classification}, {limit}"
        )
    } else {
        format!(
            "p* 1: throughput never falls, {hits} at a hit ratio of 1; {classification}, \
                 {limit}"
        )
    }
}

/// Prints the operations that were counted for a policy over a trace, and the resulting curve.
fn counted(points: &[Point], verdict: &Verdict) {
    let classes::Identity { policy, mpl, cores, disk_us, locks, .. } = &verdict.identity;
    let cores = cores.map_or(String::new(), |cores| format!(" · {cores} cores (mva approximate)"));
    let locks = match locks {
        Locks::Operation => "a lock for each operation",
        Locks::List => "one lock",
    };
    output::say!("{policy} · {locks} · MPL {mpl}{cores} · disk {disk_us} µs");
    let columns = [
        "size",
        "hit ratio",
        "mva M/s",
        "list operations a hit",
        "hits that lock",
        "longest",
        "its µs a request",
    ];
    let mut table = output::table(&columns, 0);
    for point in points {
        table.add_row([
            point.size.to_string(),
            format!("{:.4}", point.hit_ratio),
            format!("{:.4}", point.mva_mrps),
            format!("{:.3}", point.operations_per_hit),
            output::percent(point.hits_locking),
            point.bottleneck.clone().unwrap_or_else(|| "–".into()),
            format!("{:.3}", point.bottleneck_us),
        ]);
    }
    output::print_table(&table);
    let paper = verdict.paper.map_or(String::new(), |paper| {
        let agrees = if paper == verdict.classification { "as" } else { "not as" };
        format!(", {agrees} the paper says")
    });
    let limit = verdict
        .bottleneck
        .as_deref()
        .map_or(String::new(), |station| format!("; {station} limits it"));
    let Verdict { p_star, fall, lowest_at, classification, .. } = verdict;
    if *p_star < 1.0 {
        output::say!(
            "p* {p_star:.3}: throughput then falls by {}, furthest at {lowest_at:.3}; \
             {classification}{paper}{limit}\n",
            output::percent(*fall)
        );
    } else {
        output::say!("throughput never falls; {classification}{paper}{limit}\n");
    }
}
