//! `floe replay`: replays a trace through the cache of a configuration, on its devices or on
//! simulated ones.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use floe_device::Role;
use floe_lab::replay::{
    BucketOutcome, CacheOutcome, Feed, Fit, IntervalResult, LatencyStep, Layout, Pace, Plan,
    ReplayError, ReplayResult, Setup, Stage, Survey, Tier, VolumeOutcome, run as replay,
};
use floe_lab::report::replay_report;
use floe_server::DeviceSource;
use floe_server::config::Percent;
use floe_server::persistent::refuse_kept;

use crate::error::{CliError, OrFail};
use crate::output::{self, ReportFiles};
use crate::settings::Source;
use crate::trace::{PROGRESS_EVERY, TraceArguments, tell_skipped};
use crate::warmup::{Interval, Warmup};

/// Default limit of requests in flight at recorded times: that of a server for one client.
const IN_FLIGHT_RECORDED: u32 = 256;

const EXAMPLES: &str = "\
Examples:
  floe replay disk.vscsi --config floe.toml --in-flight 16
  floe replay disk.vscsi --backing memory:64GiB,medium=cloud --cache memory:1GiB,medium=nvme \
                        --time virtual --verify
  floe replay src1_0.csv.gz --backing file:disk.img,size=64GiB --cache file:cache.img,size=1GiB \
                        --at recorded --speed 10
  floe replay zipf:keys=1000000,read=0.7,block=4KiB --backing memory:4GiB --cache memory:512MiB \
                        --warmup 20% --json
  floe replay disk.vscsi --backing memory:64GiB,medium=nvme --cache memory:1GiB,medium=pmem \
                        --admit obp --time virtual
  floe replay disk.vscsi --backing memory:64GiB,medium=hdd --cache memory:1GiB,medium=nvme --evict \
                        sarc --time virtual
  floe replay disk.vscsi --backing memory:64GiB,medium=hdd --tier memory:1GiB,medium=optane --tier \
                        memory:8GiB,medium=nvme --time virtual
  floe replay ycsb:workload=C,block=4KiB --backing memory:4GiB,medium=nvme --tier \
                        memory:128MiB,medium=dram --tier memory:512MiB,medium=pmem --price \
                        tier0=1,tier1=0.38 --time virtual

One request at a time is fio's default, and the load of a program that waits for its disk. In
virtual time devices take as long as their medium= says, without one no time, and no file is
touched. A volume in a bucket (s3://) takes as long as usual requests to S3, which are counted. The
same replay gives the same figures again. The media `dram` and `pmem` are bandwidth
that all operations share, without a latency of their own: until it is used up they take no time,
and medians of 0.0 µs are right. With several tiers, the JSON fields of the cache beside `tiers`
describe the first; `metadata_bytes` covers all. Written bytes are derived from address and
version, and reads are verified against them: on real devices unless --no-verify is given, in
virtual time with --verify. A replay runs on one thread, whatever `threads` says.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A trace of disk I/O, compressed or not, or a generator such as zipf:keys=1000,block=4KiB
    trace: String,
    #[command(flatten)]
    source: Source,
    /// Requests in flight: this many all the time; with --at recorded, at most this many [default:
    /// 1, with
    /// --at recorded 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16384))]
    in_flight: Option<u32>,
    /// When a request starts: when another one is `answered`, or at its `recorded` time
    #[arg(long, value_name = "WHEN", default_value = "answered", hide_possible_values = true)]
    at: At,
    /// The speed, as a multiple of the recorded one
    #[arg(long, value_name = "X", default_value = "1")]
    speed: Speed,
    /// `real` time on the devices, or `virtual` time on simulated ones
    #[arg(long, value_name = "CLOCK", default_value = "real", hide_possible_values = true)]
    time: Time,
    /// Time for which each write into a tier occupies the processor, in virtual time, such as 0.8;
    /// an admission that asks for the time of insertions measures it
    #[arg(long, value_name = "US")]
    insert_us: Option<f64>,
    /// Verify all reads, also in virtual time; takes memory for all data written and cached
    #[arg(long)]
    verify: bool,
    /// Verify no reads
    #[arg(long, conflicts_with = "verify")]
    no_verify: bool,
    /// Fold addresses beyond a volume into it
    #[arg(long)]
    wrap: bool,
    /// Put the trace's volumes one behind the other on the first volume
    #[arg(long)]
    concatenate: bool,
    /// Allow a trace with writes to overwrite an existing volume
    #[arg(long)]
    overwrite: bool,
    /// Requests at the start that do not count: a number, or a share of the trace such as 20%
    #[arg(long, value_name = "N|SHARE", default_value = "0")]
    warmup: Warmup,
    /// Also print all figures of each interval: a number of requests, a share of the requests that
    /// count, or a time by the replay's clock; a list in JSON, charts in the report
    #[arg(long, value_name = "N|SHARE|TIME")]
    interval: Option<Interval>,
    /// Stop after this many requests
    #[arg(long, value_name = "N", value_parser = count)]
    limit: Option<u64>,
    #[command(flatten)]
    open: TraceArguments,
    /// Prices of all tiers, from tier0, for each byte relative to DRAM; prints the cost, and the
    /// throughput for it
    #[arg(long, value_name = "TIER=PRICE", value_delimiter = ',')]
    price: Vec<Price>,
    /// Also print a histogram of latencies
    #[arg(long)]
    histogram: bool,
    #[command(flatten)]
    files: ReportFiles,
    /// One JSON object instead of tables
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// A line of CSV with the fields of --json, or with --interval a line for each interval
    #[arg(long)]
    csv: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum At {
    /// Begin a request when an earlier one has been answered.
    Answered,
    /// Begin a request at its time in the trace.
    Recorded,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Time {
    /// Real time, on real devices.
    Real,
    /// Virtual time, which simulated devices advance.
    Virtual,
}

/// A speed factor, greater than zero.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Speed(f64);

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<f64>() {
            Ok(speed) if (1e-6..=1e9).contains(&speed) => Ok(Self(speed)),
            _ => Err(format!("`{text}` is not a speed; write 1, 0.5 or 100")),
        }
    }
}

/// Parses a number of requests, at least one.
fn count(text: &str) -> Result<u64, String> {
    let count = text.parse().ok().filter(|&count: &u64| count > 0);
    count.ok_or_else(|| format!("`{text}` is not a number of requests; write 1 or more"))
}

pub(crate) fn run(arguments: Arguments) -> Result<(), CliError> {
    if arguments.at != At::Recorded && arguments.speed != Speed(1.0) {
        return Err(CliError::usage("--speed is for --at recorded"));
    }
    if arguments.insert_us.is_some() && arguments.time != Time::Virtual {
        return Err(CliError::usage("--insert-us is for --time virtual"));
    }
    let insert_us = arguments.insert_us.unwrap_or(0.0);
    if !(0.0..=1e6).contains(&insert_us) {
        return Err(CliError::usage(format!(
            "--insert-us must be a time from 0 to 1000000, not {insert_us}"
        )));
    }
    let insert = Duration::from_secs_f64(insert_us / 1e6);
    let trace = &arguments.trace;
    if trace == "-" {
        let problem = "-: a replay reads its trace twice; write standard input to a file first";
        return Err(CliError::usage(problem));
    }
    let in_trace = |problem: String| CliError::usage(format!("{trace}: {problem}"));
    let settings = arguments.source.config()?;
    if settings.memory.memory.is_some() {
        return Err(CliError::usage(
            "memory applies to floe serve only; in a replay give --tier memory:SIZE",
        ));
    }
    let prices = of_all(&arguments.price, settings.tiers().count())?;
    let survey = survey(trace, &arguments.open, arguments.limit)?;
    let pace =
        pace(arguments.at, arguments.speed, arguments.in_flight, &survey).map_err(in_trace)?;
    let warmup = arguments.warmup.of(survey.requests).map_err(in_trace)?;
    let counted = survey.requests - warmup;
    let setup = Setup {
        pace,
        warmup,
        verify: !arguments.no_verify && (arguments.verify || arguments.time == Time::Real),
        flush_interval: settings.serving.flush_interval(),
        shed_most: settings.serving.shed.map(Percent::share),
        interval: arguments
            .interval
            .map(|interval| interval.of(counted))
            .transpose()
            .map_err(in_trace)?,
    };
    if let Some(volume) =
        settings.volume.iter().find(|volume| volume.read_only && survey.changes > 0)
    {
        return Err(in_trace(format!(
            "the trace writes, but volume {} is read-only",
            volume.name()
        )));
    }
    let plan = Plan::of(&settings, survey.changes == 0).map_err(CliError::usage)?;
    let fit = Fit { wrap: arguments.wrap, concatenate: arguments.concatenate };
    let layout = Layout::new(&survey, &plan.volume_sizes().or_usage()?, fit)
        .map_err(|error| in_trace(error.to_string()))?;
    let stage = match arguments.time {
        Time::Virtual => Stage::simulated(&plan, setup.verify, insert),
        Time::Real => {
            let existing = plan.existing().filter(|_| survey.changes > 0 && !arguments.overwrite);
            if let Some(spec) = existing {
                let problem = format!(
                    "the replay would overwrite the data on {spec}; give --overwrite to allow that"
                );
                return Err(in_trace(problem));
            }
            spare_kept_cache(&plan)?;
            Stage::real(&plan)
        }
    }
    .or_usage()?;
    let limit = arguments.limit.unwrap_or(u64::MAX);
    let feed = Feed::start(arguments.open.open(trace, true)?, limit);
    let bar = output::progress(survey.requests, "replaying");
    let outcome = replay(trace, feed, &layout, &setup, stage, |ended| bar.set_position(ended));
    bar.finish_and_clear();
    let mut outcome = outcome.map_err(|error| match error {
        ReplayError::Trace(_) => CliError::usage(error.to_string()),
        _ => CliError::failure(error.to_string()),
    })?;
    if let Some(prices) = prices {
        outcome.price(prices);
    }
    if arguments.histogram {
        outcome.show_histograms();
    }
    arguments.files.write(|command| replay_report(command, &outcome))?;
    if arguments.csv && arguments.interval.is_some() {
        return output::csv(&outcome.series).or_failure();
    }
    if arguments.csv {
        return output::csv(&[outcome]).or_failure();
    }
    if arguments.json {
        return output::json_line(&outcome).or_failure();
    }
    print(&outcome);
    Ok(())
}

/// Checks that no device contains a persistent cache, which the replay's cache would overwrite.
fn spare_kept_cache(plan: &Plan) -> Result<(), CliError> {
    for Tier { config, device: cache, .. } in &plan.tiers {
        if cache.is_memory() || cache.paths().iter().any(|path| !path.exists()) {
            continue;
        }
        let source: Arc<dyn DeviceSource> =
            Arc::new(cache.prepare(Role::Cache { size: config.cache_bytes }).or_usage()?);
        refuse_kept(&source).or_usage()?;
    }
    Ok(())
}

/// Reads the trace once to determine its volumes and sizes.
fn survey(trace: &str, open: &TraceArguments, limit: Option<u64>) -> Result<Survey, CliError> {
    if std::fs::metadata(trace).is_ok_and(|file| !file.is_file() && !file.is_dir()) {
        let problem = "a trace is read twice, which takes a file";
        return Err(CliError::usage(format!("{trace}: {problem}")));
    }
    let mut requests = open.open_disk(trace, "a replay")?;
    let bar = output::progress(requests.total_bytes().unwrap_or(0), "reading");
    let progress = requests.progress();
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let watched = requests.by_ref().take(limit).enumerate().map(|(count, request)| {
        if (count as u64).is_multiple_of(PROGRESS_EVERY) {
            bar.set_position(progress.bytes_read());
        }
        request
    });
    let survey = Survey::of(watched).or_usage();
    bar.finish_and_clear();
    tell_skipped(trace, &requests);
    match survey? {
        survey if survey.requests == 0 => {
            Err(CliError::usage(format!("{trace}: it has no requests")))
        }
        survey => Ok(survey),
    }
}

fn pace(at: At, speed: Speed, in_flight: Option<u32>, survey: &Survey) -> Result<Pace, String> {
    let in_flight = |otherwise| in_flight.unwrap_or(otherwise) as usize;
    match at {
        At::Answered => Ok(Pace::Closed { in_flight: in_flight(1) }),
        At::Recorded if !survey.has_times => {
            Err("it has no times, which --at recorded needs".into())
        }
        At::Recorded => {
            Ok(Pace::Recorded { speed: speed.0, in_flight: in_flight(IN_FLIGHT_RECORDED) })
        }
    }
}

/// The price of one tier, identified by the tier's number in the replay's tables.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Price {
    tier: usize,
    price: f64,
}

impl FromStr for Price {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no price of a tier; write tier0=1 or tier1=0.38");
        let (tier, price) = text.split_once('=').ok_or_else(wrong)?;
        let tier =
            tier.strip_prefix("tier").and_then(|number| number.parse().ok()).ok_or_else(wrong)?;
        let price =
            price.parse().ok().filter(|price| (1e-6..=1e6).contains(price)).ok_or_else(wrong)?;
        Ok(Self { tier, price })
    }
}

/// Returns the prices of all tiers, from the top; `None` if no price is given.
///
/// # Errors
/// When only some tiers have a price.
fn of_all(told: &[Price], tiers: usize) -> Result<Option<Vec<f64>>, CliError> {
    if told.is_empty() {
        return Ok(None);
    }
    let wrong =
        |tier: usize, problem: &str| CliError::usage(format!("--price: tier{tier} {problem}"));
    let mut prices = vec![None; tiers];
    for Price { tier, price } in told {
        let place = prices.get_mut(*tier).ok_or_else(|| {
            let last = tiers - 1;
            wrong(*tier, &format!("does not exist; the last one is tier{last}"))
        })?;
        if place.replace(*price).is_some() {
            return Err(wrong(*tier, "has two prices; give one"));
        }
    }
    let priced = prices.into_iter().enumerate();
    let all = priced.map(|(tier, price)| {
        price.ok_or_else(|| wrong(tier, "has no price; give one for each tier"))
    });
    all.collect::<Result<_, _>>().map(Some)
}

/// Maximum width of a histogram's bar, in columns.
const BAR_MOST: f64 = 40.0;

fn print(outcome: &ReplayResult) {
    requests(outcome);
    output::say!();
    devices(outcome);
    if !outcome.tiers.is_empty() {
        output::say!();
        tiers(&outcome.tiers);
    }
    if !outcome.volumes.is_empty() {
        output::say!();
        volumes(&outcome.volumes);
    }
    output::say!();
    rest(outcome);
    if !outcome.series.is_empty() {
        output::say!();
        series(&outcome.series);
    }
    for (what, steps) in [("reads", &outcome.read_histogram), ("writes", &outcome.write_histogram)]
    {
        if let Some(steps) = steps.as_ref().filter(|steps| !steps.is_empty()) {
            output::say!();
            histogram(what, steps);
        }
    }
}

fn requests(outcome: &ReplayResult) {
    // Of what the first tier misses, each other has its own hits.
    let hits = if outcome.tiers.is_empty() { "hits" } else { "hits in tier 0" };
    let columns = ["", "requests", "bytes", hits, "mean", "median", "p99", "p99.9"]; // 80 columns
    let mut table = output::table(&columns, 1);
    let us = |us: Option<f64>| us.map_or("–".into(), output::microseconds);
    let o = outcome;
    let latencies = [
        [o.read_us_mean, o.read_us_p50, o.read_us_p99, o.read_us_p999],
        [o.write_us_mean, o.write_us_p50, o.write_us_p99, o.write_us_p999],
    ];
    for (what, requests, bytes, hits, latencies) in [
        ("reads", o.reads, o.read_bytes, o.read_hit_ratio, latencies[0]),
        ("writes", o.writes, o.write_bytes, o.write_hit_ratio, latencies[1]),
    ] {
        if requests > 0 {
            let mut row = vec![
                what.to_owned(),
                requests.to_string(),
                output::bytes(bytes),
                output::percent(hits),
            ];
            row.extend(latencies.map(us));
            table.add_row(row);
        }
    }
    if o.trims > 0 {
        table.add_row(vec!["trims".to_owned(), o.trims.to_string()]);
    }
    output::print_table(&table);
}

/// Prints the figures of each interval: of reads if there are any, else of writes.
fn series(intervals: &[IntervalResult]) {
    let reads = intervals.iter().any(|interval| interval.read_us_mean.is_some());
    let of = if reads { "reads:" } else { "writes:" };
    let hits = format!("{of} hits");
    let columns = ["requests", "end", "requests/s", &hits, "mean", "p99", "p99.9"]; // 80 columns
    let mut table = output::table(&columns, 0);
    let us = |us: Option<f64>| us.map_or("–".into(), output::microseconds);
    for it in intervals {
        let (hits, latencies) = match reads {
            true => (it.read_hit_ratio, [it.read_us_mean, it.read_us_p99, it.read_us_p999]),
            false => (it.write_hit_ratio, [it.write_us_mean, it.write_us_p99, it.write_us_p999]),
        };
        let mut row = vec![
            it.requests.to_string(),
            format!("{:.2} s", it.seconds),
            it.requests_per_second.map_or("–".to_owned(), |rate| format!("{rate:.0}")),
            hits.map_or("–".to_owned(), output::percent),
        ];
        row.extend(latencies.map(us));
        table.add_row(row);
    }
    output::print_table(&table);
}

fn devices(outcome: &ReplayResult) {
    let mut table = output::table(&["", "read", "written"], 1);
    let cache = ("cache device", outcome.cache_read_bytes, outcome.cache_write_bytes);
    let backing = ("backing devices", outcome.backing_read_bytes, outcome.backing_write_bytes);
    let cache = outcome.tiers.is_empty().then_some(cache);
    for (device, read, written) in cache.into_iter().chain([backing]) {
        table.add_row(vec![device.to_owned(), output::bytes(read), output::bytes(written)]);
    }
    output::print_table(&table);
    if let Some(BucketOutcome { requests: it, .. }) = &outcome.bucket {
        output::say!(
            "requests to the bucket: {} GET, {} PUT, {} DELETE",
            it.gets,
            it.puts,
            it.deletes
        );
    }
}

fn tiers(tiers: &[CacheOutcome]) {
    let columns = [
        "tier",
        "size",
        "write",
        "evict",
        "admission",
        "reads",
        "hits",
        "writes",
        "read",
        "written",
        "from below",
        "to below",
        "metadata",
    ];
    let mut table = output::table(&columns, 1);
    for (number, tier) in tiers.iter().enumerate() {
        let mut row = vec![number.to_string(), output::bytes(tier.cache_bytes), tier.write.clone()];
        row.push(tier.evict.clone());
        row.push(tier.admission.as_ref().map_or("always", |asked| &asked.admission).to_owned());
        row.extend([
            tier.reads.to_string(),
            output::percent(tier.read_hit_ratio),
            tier.writes.to_string(),
        ]);
        row.extend(
            [
                tier.cache_read_bytes,
                tier.cache_write_bytes,
                tier.below_read_bytes,
                tier.below_write_bytes,
            ]
            .map(output::bytes),
        );
        row.push(output::bytes(tier.metadata_bytes));
        table.add_row(row);
    }
    output::print_table(&table);
}

/// Prints the reads and the writes of each volume, a line each.
fn volumes(volumes: &[VolumeOutcome]) {
    let columns = ["volume", "", "requests", "hits", "mean", "p99", "volume device", "cached"];
    let mut table = output::table(&columns, 2);
    let us = |us: Option<f64>| us.map_or("–".into(), output::microseconds);
    for it in volumes {
        let reads = (it.reads, it.read_hit_ratio, it.read_us_mean, it.read_us_p99);
        let writes = (it.writes, it.write_hit_ratio, it.write_us_mean, it.write_us_p99);
        let (read, written) = (it.backing_read_bytes, it.backing_write_bytes);
        let lines = [("reads", reads, read), ("writes", writes, written)];
        let lines = lines.into_iter().filter(|(_, (requests, ..), bytes)| requests + bytes > 0);
        for (at, (what, (requests, hits, mean, p99), bytes)) in lines.enumerate() {
            let is_first = at == 0;
            let hits = if requests > 0 { output::percent(hits) } else { "–".to_owned() };
            table.add_row(vec![
                if is_first { output::beginning(&it.volume, 12) } else { String::new() },
                what.to_owned(),
                requests.to_string(),
                hits,
                us(mean),
                us(p99),
                output::bytes(bytes),
                if is_first { output::bytes(it.cached_bytes) } else { String::new() },
            ]);
        }
    }
    output::print_table(&table);
}

fn rest(outcome: &ReplayResult) {
    let mut table = output::table(&["", ""], 2);
    let mut add = |name: &str, value: String| {
        table.add_row(vec![name.to_owned(), value]);
    };
    let time = format!("{:.3} s of {} time", outcome.seconds, outcome.time);
    let per_second = |rate: Option<f64>| rate.map_or("–".to_owned(), |rate| format!("{rate:.0}"));
    add("throughput", format!("{} requests/s in {time}", per_second(outcome.requests_per_second)));
    if let Some(rate) = outcome.bytes_per_second {
        add("", format!("{}/s", output::bytes(rate as u64)));
    }
    if let Some(cost) = &outcome.cost {
        let each = format!("{} requests/s for each", per_second(cost.requests_per_second_per_gib));
        add("cost", format!("as {:.3} GiB of DRAM; {each}", cost.gib));
    }
    if outcome.late_us_max > 0.0 {
        add("latest start", output::microseconds(outcome.late_us_max));
    }
    add("processing of a request", output::microseconds(outcome.processing_us));
    let several = !outcome.tiers.is_empty();
    add(
        if several { "metadata of all tiers" } else { "metadata" },
        output::bytes(outcome.metadata_bytes),
    );
    if !several {
        add("mean block", output::bytes(outcome.mean_block_bytes as u64));
        add("mean missed request", output::bytes(outcome.mean_missed_bytes as u64));
    }
    if let Some(amplification) = outcome.write_amplification.filter(|_| !several) {
        add("written to the cache", format!("{amplification:.2} bytes for each byte written"));
    }
    if let Some(it) = outcome.endurance.as_ref().filter(|it| !several && it.bytes_per_day > 0.0) {
        let (day, drive) = (output::bytes(it.bytes_per_day as u64), it.drive_writes_per_day);
        add("endurance it needs", format!("{day} a day, {drive:.2} drive writes a day"));
        let year = it.terabytes_per_year;
        add("", format!("{year:.1} TB a year, by the times of the {}", it.clock));
    }
    if outcome.warmup_requests > 0 {
        add("warm-up, not counted", format!("{} requests", outcome.warmup_requests));
    }
    let fetched = |bytes: u64, blocks: u64, used: u64| {
        let share = output::percent(used as f64 / blocks as f64);
        format!("{} fetched ahead, of which {share} was read later", output::bytes(bytes))
    };
    if !several {
        add("evict", outcome.evict.clone());
    }
    if outcome.prefetched_blocks > 0 && !several {
        let (bytes, blocks) = (outcome.prefetched_bytes, outcome.prefetched_blocks);
        add("", fetched(bytes, blocks, outcome.prefetched_used_blocks));
    }
    for (number, tier) in
        outcome.tiers.iter().enumerate().filter(|(_, tier)| tier.prefetched_blocks > 0)
    {
        let (bytes, blocks) = (tier.prefetched_bytes, tier.prefetched_blocks);
        add(&format!("tier {number}"), fetched(bytes, blocks, tier.prefetched_used_blocks));
    }
    let alone = outcome
        .admission
        .as_ref()
        .filter(|_| !several)
        .map(|asked| ("admission".to_owned(), asked));
    let each = outcome.tiers.iter().enumerate();
    let each = each.filter_map(|(number, tier)| {
        Some((format!("admission of tier {number}"), tier.admission.as_ref()?))
    });
    for (name, admission) in alone.into_iter().chain(each) {
        let share = admission.admitted_blocks as f64 / admission.offered_blocks.max(1) as f64;
        add(&name, admission.admission.clone());
        add(
            "",
            format!(
                "admitted {} of {} smallest blocks",
                output::percent(share),
                admission.offered_blocks
            ),
        );
        for declined in &admission.declined {
            add("", format!("{} declined by {}", declined.blocks, declined.by));
        }
        if admission.ordered_blocks > 0 {
            add(
                "",
                format!(
                    "{} fetched because the admission asked for them",
                    admission.ordered_blocks
                ),
            );
        }
        if admission.stores_withheld > 0 {
            add(
                "",
                format!(
                    "{} blocks not created because nothing was to be evicted",
                    admission.stores_withheld
                ),
            );
        }
        if admission.declined_overwrites > 0 {
            add("", format!("{} overwrites declined", admission.declined_overwrites));
        }
    }
    if let Some(shed) = &outcome.shed {
        let share = output::percent(shed.share);
        add(
            "shed at the end",
            format!("{share} of the hits; {} in all", output::bytes(shed.bytes)),
        );
        if let Some(last) = shed.decisions.last() {
            add("", last.reason.clone());
        }
    }
    let verified = match outcome.verified_bytes {
        0 => "nothing".to_owned(),
        bytes => output::bytes(bytes),
    };
    add("verified", verified);
    output::print_table(&table);
}

fn histogram(what: &str, steps: &[LatencyStep]) {
    let all: u64 = steps.iter().map(|step| step.count).sum();
    let most = steps.iter().map(|step| step.count).max().unwrap_or(0).max(1);
    let mut table = output::table(&[what, "up to", "share", "together", ""], 0);
    if let Some(column) = table.column_mut(4) {
        column.set_cell_alignment(comfy_table::CellAlignment::Left);
    }
    let mut together = 0;
    for step in steps {
        together += step.count;
        table.add_row(vec![
            step.count.to_string(),
            output::microseconds(step.up_to_us),
            output::percent(step.count as f64 / all as f64),
            output::percent(together as f64 / all as f64),
            "▇".repeat((step.count as f64 / most as f64 * BAR_MOST).ceil() as usize),
        ]);
    }
    output::print_table(&table);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_above_zero() {
        assert_eq!("0.5".parse(), Ok(Speed(0.5)));
        for wrong in ["0", "-1", "inf", "nan", "fast", ""] {
            assert!(wrong.parse::<Speed>().is_err(), "{wrong}");
        }
    }
}

#[cfg(test)]
mod price_tests {
    use super::*;

    fn told(texts: &[&str], tiers: usize) -> Result<Option<Vec<f64>>, String> {
        let prices: Result<Vec<Price>, String> = texts.iter().map(|text| text.parse()).collect();
        of_all(&prices?, tiers).map_err(|error| format!("{error:?}"))
    }

    #[test]
    fn each_tier_has_one_price_or_none_has() {
        assert_eq!(told(&["tier1=0.38", "tier0=1"], 2), Ok(Some(vec![1.0, 0.38])));
        assert_eq!(told(&[], 2), Ok(None));
        for (wrong, tiers, said) in [
            (&["tier0=1"][..], 2, "tier1 has no price"),
            (&["tier1=1", "tier0=1"], 1, "tier1 does not exist; the last one is tier0"),
            (&["tier0=1", "tier0=2"], 1, "tier0 has two prices; give one"),
            (&["tier0"], 1, "`tier0` is no price"),
            (&["memory=1"], 1, "`memory=1` is no price"),
            (&["tier0=0"], 1, "`tier0=0` is no price"),
            (&["tier0=nan"], 1, "`tier0=nan` is no price"),
        ] {
            let error = told(wrong, tiers).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
