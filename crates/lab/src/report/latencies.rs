//! A replay as a report: how many requests took how long, and the figures.

use super::table::{Group, Row, Table};
use super::{Axis, Chart, Point, Report, Scale, Section, Series, Unit, admissions};
use crate::admission::AdmissionOutcome;
use crate::replay::{Latencies, ReplayResult, TierOutcome};

/// The shares at which the lines have points: close where they bend, and with ever more nines.
const SHARES: [f64; 23] = [
    0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99,
    0.995, 0.999, 0.9995, 0.9999, 0.99999, 0.999999,
];

/// A report with one section.
pub fn report(command: &str, outcome: &ReplayResult) -> Report {
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
            charts: std::iter::once(chart(outcome))
                .chain(super::series::charts(outcome))
                .chain(asked(outcome).map(|(tier, admission)| admissions::chart(tier, admission)))
                .collect(),
            figures: Some(figures(outcome)),
        }],
    }
}

fn kinds(outcome: &ReplayResult) -> [(&'static str, &Latencies, u64, f64); 2] {
    [
        ("reads", &outcome.read_latencies, outcome.reads, outcome.read_hit_ratio),
        ("writes", &outcome.write_latencies, outcome.writes, outcome.write_hit_ratio),
    ]
}

fn chart(outcome: &ReplayResult) -> Chart {
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
        note: "The share of requests answered within a time.".into(),
        x: Axis { scale, ..Axis::new("answered within", Unit::Microseconds) },
        y: Axis { scale: Scale::Nines, ..Axis::new("share of requests", Unit::Ratio) },
        series,
        bands: Vec::new(),
    }
}

/// Returns the latencies that shares of the requests do not exceed, as far as there are requests
/// beyond.
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

fn figures(outcome: &ReplayResult) -> Table {
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
    figures.groups.extend(asked(outcome).map(|(tier, admission)| {
        let about =
            if several { format!("Admission of tier {tier}") } else { "Admission".to_owned() };
        admissions::group(&about, admission)
    }));
    figures
}

/// Makes the rows of a tier's settings and work.
fn tier(number: usize, tier: &TierOutcome) -> Group {
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

/// The tiers with an admission, by their numbers from the top.
fn asked(outcome: &ReplayResult) -> impl Iterator<Item = (usize, &AdmissionOutcome)> {
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
