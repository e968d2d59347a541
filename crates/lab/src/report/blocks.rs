//! Reports on the block cache. A simulation shows missed reads, written bytes and admitted blocks
//! over the cache size; a replay shows latencies and intervals.

use super::{Axis, Chart, Group, Point, Rank, Report, Row, Scale, Section, Series, Table, Unit};
use crate::admission::AdmissionOutcome;
use crate::replay::{CacheOutcome, IntervalResult, Latencies, ReplayResult};
use crate::simulate::blocks::{BlockInterval, BlockSimulationResult};

/// A chart of simulation results: its name, title, note, unit, and the value it shows of a result.
type View =
    (&'static str, &'static str, &'static str, Unit, fn(&BlockSimulationResult) -> Option<f64>);

/// Name of the chart whose lines should not rise.
const MISSES: &str = "read-miss-ratio";

/// Charts of a simulation report, the most informative first. A chart without data is not drawn.
const VIEWS: [View; 4] = [
    (
        MISSES,
        "Reads that miss",
        "Lower is better. A read hits when all of it was cached.",
        Unit::Ratio,
        |o| (o.read_requests > 0).then(|| 1.0 - o.read_hits as f64 / o.read_requests as f64),
    ),
    (
        "backing-bytes",
        "Read from and written to the volumes",
        "Lower is better where the volumes limit the throughput.",
        Unit::Bytes,
        |o| Some((o.backing_read_bytes + o.backing_write_bytes) as f64),
    ),
    (
        "cache-written",
        "Written to the cache device",
        "Lower is better, where writes slow its reads.",
        Unit::Bytes,
        |o| Some(o.cache_write_bytes as f64),
    ),
    (
        "admitted",
        "Admitted",
        "Share of the smallest blocks that the admission let in, where one is set.",
        Unit::Ratio,
        |o| {
            o.admission
                .as_ref()
                .map(|it| it.admitted_blocks as f64 / it.offered_blocks.max(1) as f64)
        },
    ),
];

/// Creates a report with one section from simulations of the block cache. Each combination of block
/// sizes and admission policy that was compared has a line.
pub fn blocks_report(command: &str, trace: &str, outcomes: &[BlockSimulationResult]) -> Report {
    let mut names: Vec<String> = Vec::new();
    for name in outcomes.iter().map(|outcome| name(outcome, outcomes)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let requests = outcomes.iter().map(|o| o.read_requests + o.write_requests).max().unwrap_or(0);
    Report {
        title: trace.to_owned(),
        command: command.to_owned(),
        sections: vec![Section {
            file: None,
            heading: trace.to_owned(),
            lead: format!(
                "{} reads and writes · the block cache",
                Unit::Count.value(requests as f64)
            ),
            summary: None,
            charts: VIEWS
                .iter()
                .filter_map(|view| chart(view, &names, outcomes))
                .chain(over_time(outcomes))
                .collect(),
            figures: Some(figures(outcomes)),
        }],
    }
}

/// Returns a name that distinguishes a result from the others.
fn name(outcome: &BlockSimulationResult, among: &[BlockSimulationResult]) -> String {
    let admission = admission_of(outcome);
    let alike = |of: &dyn Fn(&BlockSimulationResult) -> bool| among.iter().all(of);
    let blocks_alike = alike(&|other| other.blocks == outcome.blocks);
    let admission_alike = alike(&|other| admission_of(other) == admission);
    match (blocks_alike, admission_alike) {
        (_, true) => outcome.blocks.clone(),
        (true, false) => admission.to_owned(),
        (false, false) => format!("{}, {admission}", outcome.blocks),
    }
}

/// Returns the name of a result's admission policy.
fn admission_of(outcome: &BlockSimulationResult) -> &str {
    outcome.admission.as_ref().map_or("always", |it| &it.admission)
}

fn chart(view: &View, names: &[String], outcomes: &[BlockSimulationResult]) -> Option<Chart> {
    let (chart, title, note, unit, value) = *view;
    let points = |of: &String| -> Vec<Point> {
        let of_name = outcomes.iter().filter(|outcome| name(outcome, outcomes) == *of);
        of_name
            .filter_map(|o| Some(Point { x: o.size as f64, y: value(o)?, error: None }))
            .collect()
    };
    let series = names.iter().enumerate().map(|(look, name)| Series {
        name: name.clone(),
        look: Some(look),
        points: points(name),
    });
    let series: Vec<Series> = series.filter(|series| !series.points.is_empty()).collect();
    let scale = Scale::of(outcomes.iter().map(|outcome| outcome.size as f64));
    let mut made = Chart {
        name: chart.to_owned(),
        title: title.to_owned(),
        note: note.to_owned(),
        x: Axis { scale, ..Axis::new("cache size", Unit::Bytes) },
        y: Axis::new(&title.to_lowercase(), unit),
        series,
        bands: Vec::new(),
    };
    if chart == MISSES {
        made.note_rise();
    }
    (!made.series.is_empty()).then_some(made)
}

/// Returns a chart of missed reads in each interval; `None` without intervals.
fn over_time(outcomes: &[BlockSimulationResult]) -> Option<Chart> {
    let point = |it: &BlockInterval| {
        let misses = (it.read_requests - it.read_hits) as f64;
        let x = (it.after_requests + it.requests) as f64;
        let y = misses / it.read_requests as f64;
        (it.read_requests > 0).then_some(Point { x, y, error: None })
    };
    let several = outcomes.iter().any(|outcome| outcome.size != outcomes[0].size);
    let series = outcomes.iter().enumerate().map(|(look, outcome)| {
        let size = if several { format!(", {}", bytes(outcome.size)) } else { String::new() };
        let name = format!("{}{size}", name(outcome, outcomes));
        let points = outcome.series.iter().filter_map(point).collect();
        Series { name, look: Some(look), points }
    });
    let series: Vec<Series> = series.filter(|series| !series.points.is_empty()).collect();
    (!series.is_empty()).then(|| Chart {
        name: "read-miss-ratio-over-time".to_owned(),
        title: "Reads that miss over time".to_owned(),
        note: "Each point is an interval, at its end. Lower is better.".to_owned(),
        x: Axis::new("requests", Unit::Count),
        y: Axis::new("reads that miss", Unit::Ratio),
        series,
        bands: Vec::new(),
    })
}

/// Returns a table of all figures, by cache size.
fn figures(outcomes: &[BlockSimulationResult]) -> Table {
    type Cell = fn(&BlockSimulationResult) -> String;
    let mut columns: Vec<(&str, Cell)> = vec![
        ("blocks", |o| o.blocks.clone()),
        ("admission", |o| admission_of(o).to_owned()),
        ("read hits", |o| ratio(o.read_hits, o.read_requests)),
        ("write hits", |o| ratio(o.write_hits, o.write_requests)),
        ("backing read", |o| bytes(o.backing_read_bytes)),
        ("backing written", |o| bytes(o.backing_write_bytes)),
        ("cache read", |o| bytes(o.cache_read_bytes)),
        ("cache written", |o| bytes(o.cache_write_bytes)),
    ];
    if outcomes.iter().any(|outcome| outcome.admission.is_some()) {
        columns.push(("offered", |o| asked(o, |it| it.offered_blocks)));
        columns.push(("admitted", |o| asked(o, |it| it.admitted_blocks)));
        columns.push(("bypassed", |o| asked(o, |it| it.bypassed_blocks)));
        columns.push(("declined by each", |o| match &o.admission {
            Some(it) if !it.declined.is_empty() => {
                let each = it.declined.iter().map(|it| Unit::Count.value(it.blocks as f64));
                each.collect::<Vec<_>>().join(" + ")
            }
            _ => "–".to_owned(),
        }));
        columns.push(("fetched as ordered", |o| asked(o, |it| it.ordered_blocks)));
        columns.push(("not made", |o| asked(o, |it| it.stores_withheld)));
    }
    columns.push(("metadata", |o| bytes(o.metadata_bytes)));
    columns.push(("mean block", |o| bytes(o.mean_block_bytes as u64)));
    let mut sizes: Vec<u64> = outcomes.iter().map(|outcome| outcome.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let group = |size: u64| {
        let here = outcomes.iter().filter(|outcome| outcome.size == size);
        let row = |o: &BlockSimulationResult| Row {
            cells: columns.iter().map(|(_, cell)| cell(o)).collect(),
            rank: Rank::Usual,
        };
        Group { heading: bytes(size), rows: here.map(row).collect() }
    };
    Table {
        caption: "All figures".to_owned(),
        columns: columns.iter().map(|(name, _)| (*name).to_owned()).collect(),
        text_columns: 2,
        groups: sizes.into_iter().map(group).collect(),
    }
}

/// Formats a counter of the admission policy, or a dash without such a policy.
fn asked(outcome: &BlockSimulationResult, count: fn(&AdmissionOutcome) -> u64) -> String {
    let counted = outcome.admission.as_ref().map(count);
    counted.map_or("–".to_owned(), |blocks| Unit::Count.value(blocks as f64))
}

fn ratio(hits: u64, all: u64) -> String {
    if all == 0 { "–".to_owned() } else { Unit::Ratio.value(hits as f64 / all as f64) }
}

fn bytes(bytes: u64) -> String {
    Unit::Bytes.value(bytes as f64)
}

/// Shares of requests at which latency charts have points, denser at the tail.
const SHARES: [f64; 23] = [
    0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99,
    0.995, 0.999, 0.9995, 0.9999, 0.99999, 0.999999,
];

/// Creates a report with one section from a replay.
pub fn replay_report(command: &str, outcome: &ReplayResult) -> Report {
    let cache = match outcome.tiers.len() {
        0 => {
            let size = Unit::Bytes.value(outcome.cache_bytes as f64);
            format!("blocks of {} · {size} of cache · write {}", outcome.blocks, outcome.write)
        }
        tiers => format!("{tiers} tiers of cache"),
    };
    let lead = format!(
        "{} requests in {:.3} s of {} time · {cache}",
        Unit::Count.value(outcome.requests as f64),
        outcome.seconds,
        outcome.time,
    );
    Report {
        title: format!("{} replayed", outcome.trace),
        command: command.to_owned(),
        sections: vec![Section {
            file: None,
            heading: outcome.trace.clone(),
            lead,
            summary: Some(latencies(outcome)),
            charts: std::iter::once(latency_chart(outcome))
                .chain(interval_charts(outcome))
                .chain(
                    admissions(outcome).map(|(tier, admission)| admission_chart(tier, admission)),
                )
                .collect(),
            figures: Some(replay_figures(outcome)),
        }],
    }
}

fn kinds(outcome: &ReplayResult) -> [(&'static str, &Latencies, u64, f64); 2] {
    [
        ("reads", &outcome.read_latencies, outcome.reads, outcome.read_hit_ratio),
        ("writes", &outcome.write_latencies, outcome.writes, outcome.write_hit_ratio),
    ]
}

fn latency_chart(outcome: &ReplayResult) -> Chart {
    let series = |(look, (name, latencies, ..)): (usize, (&str, &Latencies, u64, f64))| Series {
        name: name.to_owned(),
        look: Some(look),
        points: quantiles(latencies),
    };
    let series: Vec<Series> = kinds(outcome).into_iter().enumerate().map(series).collect();
    let scale =
        Scale::of(series.iter().flat_map(|series| series.points.iter().map(|point| point.x)));
    Chart {
        name: "latency".into(),
        title: "Latency".into(),
        note: STEPS.into(),
        x: Axis { scale, ..Axis::new("answered within", Unit::Microseconds) },
        y: Axis { scale: Scale::Nines, ..Axis::new("share of requests", Unit::Ratio) },
        series,
        bands: Vec::new(),
    }
}

/// Explains a chart of [`quantiles`].
pub(super) const STEPS: &str = "The share of requests answered within a time. Between two points \
                                the share is at least that of the left one.";

/// Returns latency quantiles as points of a chart, as long as some requests were slower.
pub(super) fn quantiles(latencies: &Latencies) -> Vec<Point> {
    let beyond = |share: &&f64| (1.0 - **share) * latencies.count() as f64 >= 1.0;
    let point = |share: &f64| {
        let x = latencies.quantile_us(*share)?;
        Some(Point { x, y: *share, error: None })
    };
    // A time of zero, as of a device without a latency, has no place on a logarithmic axis.
    SHARES.iter().filter(beyond).filter_map(point).filter(|point| point.x > 0.0).collect()
}

fn latencies(outcome: &ReplayResult) -> Table {
    // Of what the first tier misses, each other has its own hits.
    let hits = if outcome.tiers.is_empty() { "hits" } else { "hits in tier 0" };
    let columns = ["", "requests", hits, "median", "p99", "p99.9", "longest"];
    let row = |(name, latencies, requests, hits): (&str, &Latencies, u64, f64)| {
        let mut cells =
            vec![name.to_owned(), Unit::Count.value(requests as f64), Unit::Ratio.value(hits)];
        let at = |share| {
            latencies.quantile_us(share).map_or("–".into(), |us| Unit::Microseconds.value(us))
        };
        cells.extend([0.5, 0.99, 0.999, 1.0].map(at));
        Row { cells, ..Row::default() }
    };
    let rows =
        kinds(outcome).into_iter().filter(|(_, _, requests, _)| *requests > 0).map(row).collect();
    table("Latencies", &columns, rows)
}

fn replay_figures(outcome: &ReplayResult) -> Table {
    let bytes = |bytes: f64| Unit::Bytes.value(bytes);
    let us = |us: Option<f64>| us.map_or("–".into(), |us| Unit::Microseconds.value(us));
    let per_second =
        |rate: Option<f64>| rate.map_or("–".into(), |rate| Unit::PerSecond.value(rate));
    let mut rows = vec![
        ("mean read", us(outcome.read_us_mean)),
        ("mean write", us(outcome.write_us_mean)),
        ("throughput", per_second(outcome.requests_per_second)),
        ("read from backing devices", bytes(outcome.backing_read_bytes as f64)),
        ("written to backing devices", bytes(outcome.backing_write_bytes as f64)),
        ("metadata", bytes(outcome.metadata_bytes as f64)),
        ("processing of a request", us(Some(outcome.processing_us))),
    ];
    let several = !outcome.tiers.is_empty();
    if !several {
        rows.extend([
            ("read from the cache device", bytes(outcome.cache_read_bytes as f64)),
            ("written to the cache device", bytes(outcome.cache_write_bytes as f64)),
            ("mean block", bytes(outcome.mean_block_bytes)),
            ("mean missed request", bytes(outcome.mean_missed_bytes)),
        ]);
    }
    if let Some(it) = outcome.endurance.as_ref().filter(|_| !several) {
        rows.push(("written to the cache device a day", bytes(it.bytes_per_day)));
        rows.push(("drive writes a day", format!("{:.2}", it.drive_writes_per_day)));
    }
    if let Some(cost) = &outcome.cost {
        rows.push(("cost, in DRAM", format!("{:.3} GiB", cost.gib)));
        let each = per_second(cost.requests_per_second_per_gib);
        rows.push(("throughput for the cost of a GiB of DRAM", each));
    }
    let row = |(name, value): (&str, String)| Row {
        cells: vec![name.to_owned(), value],
        ..Row::default()
    };
    let mut figures = table("Figures", &["", "value"], rows.into_iter().map(row).collect());
    figures.groups.extend(outcome.tiers.iter().enumerate().map(|(number, of)| tier(number, of)));
    figures.groups.extend(admissions(outcome).map(|(tier, admission)| {
        let about =
            if several { format!("Admission of tier {tier}") } else { "Admission".to_owned() };
        admission_rows(&about, admission)
    }));
    figures
}

/// Returns the table rows for a tier's settings and counters.
fn tier(number: usize, tier: &CacheOutcome) -> Group {
    let bytes = |bytes: u64| Unit::Bytes.value(bytes as f64);
    let rows = [
        ("reads", Unit::Count.value(tier.reads as f64)),
        ("hits", Unit::Ratio.value(tier.read_hit_ratio)),
        ("writes", Unit::Count.value(tier.writes as f64)),
        ("read from its device", bytes(tier.cache_read_bytes)),
        ("written to its device", bytes(tier.cache_write_bytes)),
        ("read from below", bytes(tier.below_read_bytes)),
        ("written below", bytes(tier.below_write_bytes)),
        ("metadata", bytes(tier.metadata_bytes)),
    ];
    let row = |(name, value): (&str, String)| Row {
        cells: vec![name.to_owned(), value],
        ..Row::default()
    };
    let (size, write, evict) = (bytes(tier.cache_bytes), &tier.write, &tier.evict);
    let heading =
        format!("Tier {number}: {size} in blocks of {}, write {write}, evict {evict}", tier.blocks);
    Group { heading, rows: rows.map(row).into() }
}

/// Returns the admission counters of tiers that have an admission policy, with the number of the
/// tier from the top.
fn admissions(outcome: &ReplayResult) -> impl Iterator<Item = (usize, &AdmissionOutcome)> {
    let alone = outcome.admission.as_ref().filter(|_| outcome.tiers.is_empty());
    let tiers = outcome.tiers.iter().map(|tier| tier.admission.as_ref()).enumerate();
    alone
        .map(|admission| (0, admission))
        .into_iter()
        .chain(tiers.filter_map(|(at, it)| Some((at, it?))))
}

fn table(caption: &str, columns: &[&str], rows: Vec<Row>) -> Table {
    Table {
        caption: caption.to_owned(),
        columns: columns.iter().map(|&column| column.to_owned()).collect(),
        text_columns: 1,
        groups: vec![Group { heading: String::new(), rows }],
    }
}

/// Name of a quantity, and its value in an interval.
type Quantity = (&'static str, fn(&IntervalResult) -> Option<f64>);

const READS: [Quantity; 4] = [
    ("p99.9", |it| it.read_us_p999),
    ("p99", |it| it.read_us_p99),
    ("median", |it| it.read_us_p50),
    ("mean", |it| it.read_us_mean),
];
const WRITES: [Quantity; 4] = [
    ("p99.9", |it| it.write_us_p999),
    ("p99", |it| it.write_us_p99),
    ("median", |it| it.write_us_p50),
    ("mean", |it| it.write_us_mean),
];
const HITS: [Quantity; 2] =
    [("reads", |it| it.read_hit_ratio), ("writes", |it| it.write_hit_ratio)];
const PACE: [Quantity; 1] = [("requests", |it| it.requests_per_second)];

/// Returns the charts of a replay over time; none without intervals.
fn interval_charts(outcome: &ReplayResult) -> impl Iterator<Item = Chart> {
    let intervals = &outcome.series;
    let of = |name: &str, title: &str, y: Axis, quantities: &[Quantity]| Chart {
        name: name.to_owned(),
        title: title.to_owned(),
        note: format!("Each point is an interval, at its end: {} of them.", intervals.len()),
        x: Axis::new("requests", Unit::Count),
        y,
        series: quantities
            .iter()
            .enumerate()
            .map(|(at, it)| interval_line(at, it, intervals))
            .collect(),
        bands: Vec::new(),
    };
    let us = || Axis::new("latency", Unit::Microseconds);
    let charts = [
        of("hits-over-time", "Hits over time", Axis::new("hit ratio", Unit::Ratio), &HITS),
        of("read-latency-over-time", "Reads over time", us(), &READS),
        of("write-latency-over-time", "Writes over time", us(), &WRITES),
        of("pace-over-time", "Requests over time", Axis::new("rate", Unit::PerSecond), &PACE),
    ];
    let told = |chart: &Chart| chart.series.iter().any(|series| !series.points.is_empty());
    charts.into_iter().filter(told)
}

fn interval_line(at: usize, (name, value): &Quantity, intervals: &[IntervalResult]) -> Series {
    let point = |interval: &IntervalResult| {
        let x = (interval.after_requests + interval.requests) as f64;
        Some(Point { x, y: value(interval)?, error: None })
    };
    let points = intervals.iter().filter_map(point).collect();
    Series { name: (*name).to_owned(), look: Some(at), points }
}

/// Returns the table rows for the counters of an admission policy; the heading `about` names its
/// tier.
fn admission_rows(about: &str, admission: &AdmissionOutcome) -> Group {
    let row =
        |name: &str, value: String| Row { cells: vec![name.to_owned(), value], ..Row::default() };
    let count = |blocks: u64| Unit::Count.value(blocks as f64);
    let share = |blocks: u64| {
        let of = blocks as f64 / admission.offered_blocks.max(1) as f64;
        format!("{}, {}", count(blocks), Unit::Ratio.value(of))
    };
    let mut rows = vec![
        row("smallest blocks offered", count(admission.offered_blocks)),
        row("admitted", share(admission.admitted_blocks)),
        row("bypassed", share(admission.bypassed_blocks)),
    ];
    let declined = admission.declined.iter();
    rows.extend(declined.map(|it| row(&format!("declined by {}", it.by), share(it.blocks))));
    if admission.ordered_blocks > 0 {
        rows.push(row("fetched as ordered", count(admission.ordered_blocks)));
    }
    if admission.stores_withheld > 0 {
        rows.push(row(
            "blocks not created because nothing was to be evicted",
            count(admission.stores_withheld),
        ));
    }
    rows.push(row("memory of the admission", Unit::Bytes.value(admission.admission_bytes as f64)));
    Group { heading: format!("{about}: {}", admission.admission), rows }
}

/// Returns a chart of admitted, bypassed and declined blocks, a row each; `tier` is counted from
/// the top.
fn admission_chart(tier: usize, admission: &AdmissionOutcome) -> Chart {
    let one = |(look, (name, blocks)): (usize, (String, u64))| Series {
        name,
        look: Some(look),
        points: vec![Point { x: tier as f64, y: blocks as f64, error: None }],
    };
    let fates = [("admitted", admission.admitted_blocks), ("bypassed", admission.bypassed_blocks)];
    let fates = fates.map(|(name, blocks)| (name.to_owned(), blocks)).into_iter();
    let declined =
        admission.declined.iter().map(|it| (format!("declined by {}", it.by), it.blocks));
    let several = if admission.declined.is_empty() {
        ""
    } else {
        " A block that several declined is counted \
                                                        for each of them."
    };
    Chart {
        name: format!("admission-{tier}"),
        title: format!("Admission: {}", admission.admission),
        note: format!(
            "What became of the {} smallest blocks that were read or written and not \
             cached.{several}",
            Unit::Count.value(admission.offered_blocks as f64)
        ),
        x: Axis::new("tier", Unit::Count),
        y: Axis::new("smallest blocks", Unit::Count),
        series: fates.chain(declined).enumerate().map(one).collect(),
        bands: Vec::new(),
    }
}
