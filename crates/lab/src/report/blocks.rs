//! The block cache at several sizes as a report: what reads miss, what is written and what
//! admissions let in, against size.

use super::table::{Group, Rank, Row, Table};
use super::{Axis, Chart, Point, Report, Scale, Section, Series, Unit};
use crate::admission::AdmissionOutcome;
use crate::simulate::blocks::{BlockInterval, BlockSimulationResult};

/// A chart's name, its title, how to read it, its unit, and what it shows of an outcome.
type View =
    (&'static str, &'static str, &'static str, Unit, fn(&BlockSimulationResult) -> Option<f64>);

/// Most telling first. A view without data is not drawn.
const VIEWS: [View; 4] = [
    (
        "read-miss-ratio",
        "Reads that miss",
        "Lower is better. A read hits when all of it was cached.",
        Unit::Ratio,
        |o| (o.read_requests > 0).then(|| 1.0 - o.read_hits as f64 / o.read_requests as f64),
    ),
    (
        "backing-bytes",
        "Read from and written to the volumes",
        "Lower is better, where the volumes are what is waited for.",
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
        "The share of the smallest blocks offered that came in, where somebody was asked.",
        Unit::Ratio,
        |o| {
            o.admission
                .as_ref()
                .map(|it| it.admitted_blocks as f64 / it.offered_blocks.max(1) as f64)
        },
    ),
];

/// A report with one section. Block sizes and admissions that were compared have a line each.
pub fn report(command: &str, trace: &str, outcomes: &[BlockSimulationResult]) -> Report {
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

/// Returns the name that tells an outcome from the others.
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

/// The admission that was asked.
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
    (!series.is_empty()).then(|| Chart {
        name: chart.to_owned(),
        title: title.to_owned(),
        note: note.to_owned(),
        x: Axis { scale, ..Axis::new("cache size", Unit::Bytes) },
        y: Axis::new(&title.to_lowercase(), unit),
        series,
        bands: Vec::new(),
    })
}

/// The reads that miss in each interval; none without intervals.
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

/// Everything, by size.
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

/// A count of the admission, if there is one.
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
