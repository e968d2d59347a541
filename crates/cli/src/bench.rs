//! `floe bench memory`: measures the in-memory cache under a closed loop of clients.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use floe_lab::bench::{
    BenchResult, Cache, Competitor, Curve, Decided, Found, Frozen, Identity, Lifetime, Load,
    Looped, MeasureStep, Measured, PassOrder, Plan, SAMPLED, capacity_for, decided,
    disturbance_is_known, measure_from,
};
use floe_lab::report::{
    PictureFormat, Report, Section, Timeline, timeline_section, write_pictures,
};
use floe_lab::simulate::stream::{Builder, Keep, Stream};
use indicatif::ProgressBar;

use self::plan::Capacity;
use crate::error::{CliError, OrFail};
use crate::numbers::{Counts, Numbers};
use crate::output::{self, Column, tables};
use crate::trace::{TraceArguments, read_all};
use floe_lab::sizes::Sizes;
use floe_server::config::Bytes;
use plan::Configuration;

mod plan;

/// Size of the blocks into which block traces are cut.
const BLOCK_BYTES: u64 = 4096;

/// The default plan for measurements of caches under load.
const PLAN: Plan = Plan {
    repetitions: 5,
    seconds: 1.0,
    warm_up_seconds_max: 60.0,
    in_step: true,
    disturbed_max: None,
};

/// Maximum number of repetitions.
const REPETITIONS_MAX: usize = 10_000;
const SECONDS_MAX: f64 = 3600.0;

const LISTS: &str = "`floe policies` lists all policies, `floe admissions` all admissions.";

const EXAMPLES: &str = "\
Examples:
  floe bench memory
  floe bench memory --policy s3-fifo,lru --capacity 1%,10%,50% --threads 1,2
  floe bench memory --policy lru --hit-ratio 0.5..=0.95:0.05,0.99 --mpl 72 --disk-us 5,100,500 \
                        --json
  floe bench memory --policy s3-fifo --vs policy=lru,shards=1 --vs shards=1 --repetitions 30
  floe bench memory --keys 100000 --capacity 200000 --value 4KiB --writes 0.05
  floe bench memory zipf:keys=1000000,theta=0.8,requests=10000000 --capacity 10%
  floe bench memory P3.lis.zst --policy arc --capacity 10% --seconds 5
  floe bench memory --policy lru --vs admit=duel --vs policy=w-tinylfu
  floe bench memory --policy lru --disk-us 5 --vs frozen=adaptive --seconds 0.2 --repetitions 30
  floe bench memory drift:keys=1000000,every=10000,shift=100,requests=20000000 --frozen adaptive \
                        --repetitions 1 --seconds 60 --png drift
  floe bench memory --keys 20000 --calibrate --service-out this-machine.json";

const NOTES: &str = "\
Each client requests one key after the other; the clients share the threads. After a hit a client
continues at once. After a miss it waits for the emulated disk, and its thread serves other clients.
At its end the load starts again.

All caches with the same settings of the lists take turns, and each is compared with the first, pair
by pair of turns. Each is warmed up before; one that freezes is warm when it has tried to freeze.
All turns begin at the same request: a cache that has served fewer catches up first, which does not
count. A cache is built anew for each hash seed, so the intervals include the effect of the seed,
unless --hash-seeds is 1. A thread whose clients all wait for the disk spins, which takes processor
time (idle).

--calibrate measures the operations of caches of one shard, without a disk: lookups, and list
operations under their lock, by one thread and by several. It writes the file that floe model reads
with --service.";

/// The distribution of the emulated disk's times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiskTimes {
    /// Always the same
    Fixed,
    /// Exponentially distributed
    Exponential,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure the cache in memory: throughput and latencies, and what a miss costs
    Memory(Box<Arguments>),
}

pub(crate) fn run(command: &BenchCommand) -> Result<(), CliError> {
    match command {
        BenchCommand::Memory(arguments) => run_memory(arguments),
    }
}

#[derive(Debug, Args)]
#[command(after_help = format!("{NOTES}\n\n{LISTS}\n\n{EXAMPLES}"))]
pub(crate) struct Arguments {
    /// The keys: a trace, compressed or not, or a generator; without one, keys by Zipf's law
    trace: Option<String>,
    /// Number of keys, without a trace
    #[arg(long, value_name = "N", default_value_t = 1_000_000, conflicts_with = "trace",
          value_parser = clap::value_parser!(u64).range(1..1 << 31))]
    keys: u64,
    /// Exponent of Zipf's law, without a trace
    #[arg(long, value_name = "EXPONENT", default_value_t = 0.99, conflicts_with = "trace")]
    theta: f64,
    /// After a first pass, draw chunks of the trace at random, which suits independent requests;
    /// always so without a trace
    #[arg(long)]
    shuffle: bool,
    /// Share of operations that write, chosen at random [default: as in the trace]
    #[arg(long, value_name = "SHARE")]
    writes: Option<f64>,
    /// Size of a value; values of 8 or 64 bytes are stored in the entry, others in an allocation of
    /// their own
    #[arg(long, value_name = "SIZE", default_value = "64")]
    value: Bytes,
    /// Entries (1000) or shares of the keys (10%)
    #[arg(long, value_name = "LIST", default_value = "10%", conflicts_with = "hit_ratio")]
    capacity: Sizes,
    /// Find, by simulation, the capacity that hits this often
    #[arg(long, value_name = "LIST")]
    hit_ratio: Option<Numbers>,
    /// Policies, such as s3-fifo,slru:segments=4; each is compared with the first [default:
    /// qd-clock]. A policy is chosen at run time, as by name in the library, unless the program was
    /// built with the feature compiled-policies
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    policy: Option<Vec<String>>,
    /// The admission, such as obp:target=0.2 or second-access+obp; off admits everything
    #[arg(long, value_name = "ADMISSION", default_value = "off", conflicts_with = "hit_ratio")]
    admit: String,
    /// Independent parts of each cache [default: the cache's own choice]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    shards: Option<u32>,
    /// Freezing of the hottest entries: off, adaptive, or always this share of them (0.3)
    #[arg(long, value_name = "HOW", default_value = "off")]
    frozen: Frozen,
    /// The lifetime of a frozen part: drift (the cheapest), constructions (20x), or seconds (1.5)
    #[arg(long, value_name = "WHEN", default_value = "drift")]
    lifetime: Lifetime,
    /// Threads [default: as many as cores]
    #[arg(long, value_name = "LIST")]
    threads: Option<Counts>,
    /// Clients on all threads together, which is the maximum of requests in flight [default: one a
    /// thread]
    #[arg(long, value_name = "LIST")]
    mpl: Option<Counts>,
    /// Time of a miss on the emulated disk, which serves any number at once; with 0 a miss takes no
    /// time
    #[arg(long, value_name = "LIST", default_value = "0")]
    disk_us: Numbers,
    /// The distribution of the disk's times
    #[arg(long, value_name = "HOW", default_value = "fixed")]
    disk_times: DiskTimes,
    /// Another cache to compare with the first, by its differences, such as policy=lru,shards=1;
    /// may be repeated
    #[arg(long, value_name = "NAME=VALUE,…")]
    vs: Vec<String>,
    /// The number of runs of each cache [default: 5, or 21 with --calibrate]
    #[arg(long, value_name = "N")]
    repetitions: Option<usize>,
    /// Number of hash seeds; for each one the caches are built and warmed up anew, and the
    /// repetitions are divided among them [default: one a repetition; 1 where a cache freezes, or
    /// with --png]
    #[arg(long, value_name = "N")]
    hash_seeds: Option<usize>,
    /// The length of each run [default: 1, or 0.05 with --calibrate]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Leave out runs of which other work on the machine took more than this share, such as 0.01:
    /// their threads waited for a processor, or a hypervisor ran another machine. Such a run is
    /// made again, up to three times; then all caches go without that repetition
    #[arg(long, value_name = "SHARE")]
    drop_disturbed: Option<f64>,
    /// Longest time to warm each cache up for
    #[arg(long, value_name = "SECONDS", default_value_t = PLAN.warm_up_seconds_max)]
    warm_up: f64,
    /// Write charts of throughput and frozen share over time, with the phases of freezing:
    /// STEM-throughput.png, …
    #[arg(long, value_name = "STEM")]
    png: Option<PathBuf>,
    /// Measure service times of policies, for floe model, instead of caches at work
    #[arg(long, conflicts_with_all = [
        "trace", "shuffle", "writes", "admit", "capacity", "hit_ratio", "shards", "frozen",
        "lifetime", "mpl", "disk_us", "disk_times", "vs", "png", "hash_seeds", "drop_disturbed",
    ])]
    calibrate: bool,
    /// The file for them, as JSON
    #[arg(long, value_name = "FILE", requires = "calibrate")]
    service_out: Option<PathBuf>,
    #[command(flatten)]
    open: TraceArguments,
    /// One JSON object per cache instead of a table
    #[arg(long)]
    json: bool,
}

fn run_memory(arguments: &Arguments) -> Result<(), CliError> {
    if arguments.calibrate {
        return self::plan::run(arguments);
    }
    let plan = plan(arguments, &PLAN)?;
    let points = plan::points(arguments)?;
    let most = points.iter().flatten().map(|cache| cache.setup().threads).max();
    if plan.disturbed_max.is_some() && most > Some(plan::cores()) {
        return Err(CliError::usage(format!(
            "--drop-disturbed takes up to {} --threads here, one for each processor: more always \
             wait for each other",
            plan::cores()
        )));
    }
    let stream = read(arguments, REQUESTS_MIN)?;
    let order = if arguments.shuffle || arguments.trace.is_none() {
        PassOrder::Drawn
    } else {
        PassOrder::AsIs
    };
    let load = Load::new(&stream, arguments.writes, order).or_usage()?;
    let mut capacities = Capacities::new(&stream, order);
    let seeds = hash_seeds(arguments, &points, plan.repetitions)?;
    let runs: usize = points.iter().map(|caches| caches.len() * (plan.repetitions + seeds)).sum();
    let bar = output::progress(runs as u64, "measuring");
    let (mut outcomes, mut decisions, mut sections) = (Vec::new(), Vec::new(), Vec::new());
    for caches in &points {
        let mut identities = Vec::new();
        let mut measured: Vec<Measured> = Vec::new();
        for seed in 0..seeds {
            // Repetitions are divided among the seeds, each of which has caches of its own.
            let [first, end] = [seed, seed + 1].map(|it| plan.repetitions * it / seeds);
            let part = Plan { repetitions: end - first, ..plan };
            let point = build(caches, &load, &mut capacities, &bar)?;
            identities = point.identities;
            let progress = |step| show(&bar, step, &identities);
            let found = measure_from(&load, &point.competitors, &part, first, progress);
            if measured.is_empty() {
                measured = found;
            } else {
                measured.iter_mut().zip(found).for_each(|(sum, later)| sum.join(later));
            }
        }
        bar.inc(1);
        let at_point = describe(&identities, &measured)?;
        if arguments.json {
            at_point.iter().try_for_each(output::json_line).or_failure()?;
        }
        let decided: Vec<Decided> = identities
            .iter()
            .zip(&measured)
            .flat_map(|(identity, found)| decided(identity, found))
            .collect();
        if arguments.json {
            decided.iter().try_for_each(output::json_line).or_failure()?;
        }
        decisions.extend(decided);
        if arguments.png.is_some() {
            sections.push(section(&identities, &measured));
        }
        outcomes.extend(at_point);
    }
    bar.finish_and_clear();
    if !arguments.json {
        print(&outcomes, seeds);
        print_decisions(&decisions);
    }
    if let Some(stem) = &arguments.png {
        write(sections, stem)?;
    }
    Ok(())
}

/// Returns the plan of the measurement, with `default` for missing settings.
fn plan(arguments: &Arguments, default: &Plan) -> Result<Plan, CliError> {
    let &Arguments { repetitions, seconds, warm_up, writes, drop_disturbed, .. } = arguments;
    let (repetitions, seconds) =
        (repetitions.unwrap_or(default.repetitions), seconds.unwrap_or(default.seconds));
    if !(1..=REPETITIONS_MAX).contains(&repetitions) {
        return Err(CliError::usage(format!(
            "--repetitions {repetitions} is not 1 to {REPETITIONS_MAX}"
        )));
    }
    for (option, seconds) in [("--seconds", seconds), ("--warm-up", warm_up)] {
        if !(seconds > 0.0 && seconds <= SECONDS_MAX) {
            return Err(CliError::usage(format!(
                "{option} {seconds} is not above 0 and up to {SECONDS_MAX}"
            )));
        }
    }
    if let Some(share) = drop_disturbed {
        if !(0.0..1.0).contains(&share) {
            return Err(CliError::usage(format!(
                "--drop-disturbed {share} is not a share from 0 to below 1"
            )));
        }
        if !disturbance_is_known() {
            return Err(CliError::usage(
                "--drop-disturbed: this system does not say how long threads wait for a processor",
            ));
        }
    }
    if let Some(writes) = writes.filter(|writes| !(0.0..=1.0).contains(writes)) {
        return Err(CliError::usage(format!("--writes {writes} is not a share from 0 to 1")));
    }
    let disturbed_max = drop_disturbed;
    Ok(Plan { repetitions, seconds, warm_up_seconds_max: warm_up, disturbed_max, ..*default })
}

/// Returns the number of hash seeds: as given, or one for each repetition. The default is 1 for
/// caches that freeze, which take long to learn, and with charts, which show the course of one
/// cache.
fn hash_seeds(
    arguments: &Arguments,
    points: &[Vec<Configuration>],
    repetitions: usize,
) -> Result<usize, CliError> {
    let freezes = |cache: &Configuration| cache.freezing.options().is_some();
    let is_one = arguments.png.is_some() || points.iter().flatten().any(freezes);
    let seeds = arguments.hash_seeds.unwrap_or(if is_one { 1 } else { repetitions });
    if !(1..=repetitions).contains(&seeds) {
        return Err(CliError::usage(format!(
            "--hash-seeds {seeds} is not 1 to {repetitions}, the number of repetitions"
        )));
    }
    Ok(seeds)
}

/// Minimum number of requests that are generated by Zipf's law.
const REQUESTS_MIN: u64 = 1_000_000;

/// Reads the trace. Without one, generates ten requests per key by Zipf's law, and at least
/// `requests_min`.
fn read(arguments: &Arguments, requests_min: u64) -> Result<Stream, CliError> {
    let zipf = |keys: u64| {
        format!(
            "zipf:keys={keys},theta={},requests={}",
            arguments.theta,
            (10 * keys).max(requests_min)
        )
    };
    let source = arguments.trace.clone().unwrap_or_else(|| zipf(arguments.keys));
    let mut trace = arguments.open.open(&source, false)?;
    let keep = Keep { rate: 1.0, sizes: false, next_use: false };
    let mut builder = Builder::new(trace.kind(), keep, BLOCK_BYTES);
    read_all(&source, &mut trace, "reading", |request| builder.add(request).or_usage())?;
    builder.finish().or_usage()
}

/// The caches of a point, with their identities in the results.
struct Point {
    identities: Vec<Identity>,
    competitors: Vec<Box<dyn Competitor>>,
}

fn build(
    caches: &[Configuration],
    load: &Load,
    capacities: &mut Capacities<'_>,
    bar: &ProgressBar,
) -> Result<Point, CliError> {
    let mut point = Point { identities: Vec::new(), competitors: Vec::new() };
    for cache in caches {
        let capacity = capacities.of(cache, bar)?;
        let Configuration { policy, admission, shards, value_bytes, freezing, .. } = cache;
        let parts = Cache {
            policy,
            admission: admission.as_ref(),
            shards: *shards,
            capacity,
            value_bytes: *value_bytes,
            freezing: *freezing,
        };
        let (competitor, shards) = parts.build(cache.setup()).or_usage()?;
        point.competitors.push(competitor);
        point.identities.push(Identity {
            policy: match admission {
                Some(admission) => format!("{policy} with {admission}"),
                None => policy.to_string(),
            },
            shards,
            capacity,
            value_bytes: *value_bytes,
            keys: load.keys(),
            freezing: *freezing,
            setup: cache.setup(),
        });
    }
    Ok(point)
}

fn show(bar: &ProgressBar, step: MeasureStep, identities: &[Identity]) {
    let name = |at: usize| {
        let Identity { policy, capacity, setup, .. } = &identities[at % identities.len()];
        format!("{policy} {capacity} ×{} mpl {}", setup.threads, setup.mpl)
    };
    match step {
        MeasureStep::WarmingUp(at) => bar.set_message(format!("warming up {}", name(at))),
        MeasureStep::PlayingOn => return bar.set_message("catching up to the same request"),
        MeasureStep::Run(..) => bar.set_message(name(0)),
    }
    bar.inc(1);
}

fn describe(identities: &[Identity], measured: &[Measured]) -> Result<Vec<BenchResult>, CliError> {
    let mut outcomes = Vec::new();
    for (at, (identity, found)) in identities.iter().zip(measured).enumerate() {
        if found.repetitions.is_empty() {
            return Err(CliError::failure(format!(
                "{}: other work on the machine disturbed every repetition; measure when the \
                 machine has less to do, or raise --drop-disturbed",
                identity.policy,
            )));
        }
        if found.repetitions.iter().any(|repetition| repetition.ops_per_second == 0.0) {
            let problem =
                "one of the runs was too short to serve a request; give a larger --seconds";
            return Err(CliError::failure(format!("{}: {problem}", identity.policy)));
        }
        if !found.warmed.settled {
            let seconds = found.warmed.seconds;
            eprintln!(
                "floe: {} was not warm after {seconds:.1} s; it was measured all the same",
                identity.policy
            );
        }
        outcomes.push(BenchResult::new(identity, found, (at > 0).then(|| &measured[0])));
    }
    Ok(outcomes)
}

/// Deviation from the requested hit ratio above which a message is printed.
const FAR: f64 = 0.01;

/// Finds the capacities at which caches reach given hit ratios under a load.
struct Capacities<'a> {
    looped: Option<Looped>,
    stream: &'a Stream,
    order: PassOrder,
    /// Hit ratio curve of each policy that was simulated so far.
    known: HashMap<String, Curve>,
}

impl<'a> Capacities<'a> {
    fn new(stream: &'a Stream, order: PassOrder) -> Self {
        Self { looped: None, stream, order, known: HashMap::new() }
    }

    /// Returns the capacity of a cache in entries.
    fn of(&mut self, cache: &Configuration, bar: &ProgressBar) -> Result<u64, CliError> {
        let capacity = match cache.capacity {
            Capacity::Size(size) => size.of(self.stream.distinct as u64),
            Capacity::HitRatio(ratio) => self.find(cache, ratio, bar),
        };
        if capacity == 0 {
            let keys = self.stream.distinct;
            return Err(CliError::usage(format!(
                "--capacity: this share of {keys} keys is less than one entry"
            )));
        }
        Ok(capacity)
    }

    fn find(&mut self, cache: &Configuration, ratio: f64, bar: &ProgressBar) -> u64 {
        let looped = self.looped.get_or_insert_with(|| Looped::new(self.stream, self.order));
        let known = self.known.entry(cache.policy.to_string()).or_default();
        bar.set_message(format!("{} for {ratio}", cache.policy));
        let Found { capacity, hit_ratio } = capacity_for(ratio, &cache.policy, looped, known);
        if (hit_ratio - ratio).abs() > FAR {
            let policy = &cache.policy;
            let nearest = format!("the nearest is {hit_ratio:.4}, with {capacity} entries");
            bar.suspend(|| eprintln!("floe: {policy} does not hit {ratio}; {nearest}"));
        }
        capacity
    }
}

/// Builds the report section of a point, with a timeline for each of its caches.
fn section(identities: &[Identity], measured: &[Measured]) -> Section {
    let timeline = |(identity, measured): (&Identity, &Measured)| Timeline {
        name: format!("{}, frozen {}", identity.policy, identity.freezing.frozen),
        samples: measured.watch.samples.clone(),
    };
    let timelines: Vec<Timeline> = identities.iter().zip(measured).map(timeline).collect();
    let heading = identities.first().map_or_else(String::new, |identity| {
        let disk_us = identity.setup.disk.mean_ns as f64 / 1e3;
        format!(
            "{} entries, {} threads, {disk_us} us a miss",
            identity.capacity, identity.setup.threads
        )
    });
    timeline_section(&heading, &timelines)
}

/// Writes the charts of all points to files whose names begin with `stem`.
fn write(sections: Vec<Section>, stem: &Path) -> Result<(), CliError> {
    let report = Report { sections, ..Report::default() };
    write_pictures(&report, stem, PictureFormat::Png).or_failure()?;
    Ok(())
}

/// Figures of all caches, with the name of the row. A row without any figure is left out.
type Row = (&'static str, fn(&BenchResult) -> Option<String>);

const ROWS: [Row; 18] = [
    ("shards", |it| Some(it.shards.to_string())),
    ("capacity", |it| Some(it.capacity.to_string())),
    ("threads", |it| Some(it.threads.to_string())),
    ("clients (MPL)", |it| Some(it.mpl.to_string())),
    ("disk", |it| (it.disk_us > 0.0).then(|| output::microseconds(it.disk_us))),
    ("hit ratio", |it| Some(format!("{:.4}", it.hit_ratio))),
    ("freezing", |it| it.frozen.then(|| it.freezing.clone())),
    ("frozen entries", |it| it.frozen.then(|| output::percent(it.frozen_ratio))),
    ("hits on them", |it| it.frozen.then(|| output::percent(it.frozen_share))),
    ("M requests/s", |it| Some(millions(it.ops_per_second))),
    ("  interval", |it| {
        Some(format!("{}–{}", millions(it.ops_per_second_low), millions(it.ops_per_second_high)))
    }),
    ("ratio to the first", |it| it.ratio.as_ref().map(|it| format!("{:.3}", it.ratio))),
    ("  interval", |it| {
        it.ratio.as_ref().map(|it| format!("{:.3}–{:.3}", it.ratio_low, it.ratio_high))
    }),
    ("CPU time a request", |it| Some(format!("{:.1} ns", it.cpu_ns_per_op))),
    ("hit p50, p99", |it| {
        let [half, most] = [it.hit_ns_p50, it.hit_ns_p99].map(|ns| ns.map(|ns| ns as f64));
        pair(half, most, 0, "ns")
    }),
    ("miss p50, p99", |it| pair(it.miss_us_p50, it.miss_us_p99, 2, "µs")),
    ("disk wait mean, p99", |it| {
        let park = it.park.as_ref()?;
        pair(Some(park.park_us_mean), Some(park.park_us_p99), 1, "µs")
    }),
    ("threads idle", |it| Some(output::percent(it.idle_share))),
];

fn millions(count: f64) -> String {
    format!("{:.3}", count / 1e6)
}

/// Prints a table with a column for each cache, and an explanation.
fn print(outcomes: &[BenchResult], hash_seeds: usize) {
    let rows: Vec<&Row> = ROWS
        .iter()
        .filter(|(_, figure)| outcomes.iter().any(|outcome| figure(outcome).is_some()))
        .collect();
    let columns: Vec<Column> = outcomes
        .iter()
        .map(|outcome| Column {
            name: outcome.policy.clone(),
            rows: rows
                .iter()
                .map(|(name, figure)| {
                    let value = figure(outcome).unwrap_or_else(|| "–".to_owned());
                    ((*name).to_owned(), value)
                })
                .collect(),
        })
        .collect();
    output::say!("{}", tables("cache", &columns).trim_end());
    if let Some(outcome) = outcomes.first() {
        eprintln!(
            "The intervals hold the median of {} on {} with {:.1} %. Latencies are of 1 in \
             {SAMPLED} requests, less the {} ns that reading the clock takes.",
            output::counted(outcome.repetitions, "run"),
            output::counted(hash_seeds, "hash seed"),
            100.0 * outcome.confidence,
            outcome.clock_ns,
        );
        let disturbed: usize = outcomes.iter().map(|outcome| outcome.disturbed_runs).sum();
        if disturbed > 0 {
            let runs = output::counted(disturbed, "run");
            eprintln!("Left out as disturbed by other work on the machine: {runs}.");
        }
    }
}

/// Prints the controllers' decisions with their reasons, if there were any.
fn print_decisions(decisions: &[Decided]) {
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
fn pair(half: Option<f64>, most: Option<f64>, digits: usize, unit: &str) -> Option<String> {
    Some(format!("{:.digits$}, {:.digits$} {unit}", half?, most?))
}
