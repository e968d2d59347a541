//! Reports on simulations of the cache of objects in memory and on flash: hits and writes over the
//! size of the flash, and the recommended sizes beside the largest.

use super::{Axis, Chart, Group, Point, Rank, Report, Row, Scale, Section, Series, Table, Unit};
use crate::advise::objects::ObjectAdvice;
use crate::simulate::hybrid::HybridResult;

/// The value that a chart shows of a result.
type Height = fn(&HybridResult) -> Option<f64>;

/// Creates a report from simulations, with a section for each trace in order of appearance.
pub fn hybrid_report(title: &str, command: &str, results: &[HybridResult]) -> Report {
    let sections = results.chunk_by(|one, other| one.trace == other.trace).map(section).collect();
    Report { title: title.to_owned(), command: command.to_owned(), sections }
}

/// Creates a report with one section from the advice on the sizes of memory and flash.
pub fn object_advice_report(command: &str, advice: &ObjectAdvice) -> Report {
    let mut section = section(&advice.simulations);
    let warnings = advice.warnings.iter().map(|warning| format!(" Warning: {warning}"));
    section.lead = std::iter::once(advice.verdict.clone()).chain(warnings).collect();
    let ObjectAdvice { best, .. } = advice;
    section.file = Some((
        "In your program".to_owned(),
        format!(
            "Hybrid::builder()\n    .memory({})\n    .flash(\"/mnt/nvme/cache\", {})\n    .open()?",
            best.memory, best.flash
        ),
    ));
    section.summary = advice.simulations.last().map(|largest| beside(best, largest));
    let is_best =
        |result: &HybridResult| (result.memory, result.flash) == (best.memory, best.flash);
    if let Some(figures) = &mut section.figures {
        let rows = figures.groups.iter_mut().flat_map(|group| &mut group.rows);
        for (row, result) in rows.zip(&advice.simulations) {
            row.rank = if is_best(result) { Rank::Best } else { Rank::Usual };
        }
    }
    Report {
        title: format!("{}: memory and flash for its objects", advice.trace),
        command: command.to_owned(),
        sections: vec![section],
    }
}

/// A row of the comparison with the largest sizes: its name, and the value of a result.
type Figure = (&'static str, fn(&HybridResult) -> Option<String>);

/// Returns a table of the recommended sizes beside the largest that were simulated.
fn beside(best: &HybridResult, largest: &HybridResult) -> Table {
    let figures: [Figure; 7] = [
        ("memory", |of| Some(Unit::Bytes.value(of.memory as f64))),
        ("flash", |of| Some(Unit::Bytes.value(of.flash as f64))),
        ("reads that hit", |of| Some(Unit::Ratio.value(of.hit_ratio))),
        ("bytes that hit", |of| Some(Unit::Ratio.value(of.byte_hit_ratio))),
        ("bytes that the source is spared", |of| Some(Unit::Bytes.value(of.hit_bytes as f64))),
        ("written to flash a day", |of| {
            of.written_bytes_per_second.map(|rate| Unit::Bytes.value(rate * 86_400.0))
        }),
        ("drive writes a day", |of| of.writes_per_day.map(|writes| format!("{writes:.2}"))),
    ];
    let row = |(name, value): Figure| {
        let cells = vec![name.to_owned(), value(best)?, value(largest)?];
        Some(Row { cells, ..Row::default() })
    };
    Table {
        caption: "Recommended".to_owned(),
        columns: ["", "recommended", "largest tried"].map(str::to_owned).to_vec(),
        text_columns: 1,
        groups: vec![Group {
            rows: figures.into_iter().filter_map(row).collect(),
            ..Group::default()
        }],
    }
}

fn section(results: &[HybridResult]) -> Section {
    let first = &results[0];
    let writes: Height = |result| result.written_bytes_per_second.map(|rate| rate * 86_400.0);
    let a_day = results.iter().any(|result| writes(result).is_some());
    let written = if a_day {
        chart(results, "written-a-day", "Bytes written to flash a day", Unit::Bytes, writes)
    } else {
        let all: Height = |result| Some(result.flash_written_bytes as f64);
        chart(results, "written", "Bytes written to flash", Unit::Bytes, all)
    };
    Section {
        heading: first.trace.clone(),
        lead: format!("{} reads that count", Unit::Count.value(first.requests as f64)),
        charts: vec![
            chart(results, "hits", "Hits in memory and on flash", Unit::Ratio, |result| {
                Some(result.hit_ratio)
            }),
            chart(results, "hits-of-bytes", "Bytes that hit", Unit::Ratio, |result| {
                Some(result.byte_hit_ratio)
            }),
            written,
        ],
        figures: Some(figures(results)),
        ..Section::default()
    }
}

/// Returns a chart over the size of the flash with a line for each size of memory.
fn chart(results: &[HybridResult], name: &str, title: &str, unit: Unit, height: Height) -> Chart {
    let mut memories: Vec<u64> = results.iter().map(|result| result.memory).collect();
    memories.sort_unstable();
    memories.dedup();
    let point = |result: &HybridResult| {
        Some(Point { x: result.flash as f64, y: height(result)?, error: None })
    };
    let series = |(look, memory): (usize, &u64)| Series {
        name: format!("{} of memory", Unit::Bytes.value(*memory as f64)),
        look: Some(look),
        points: results.iter().filter(|of| of.memory == *memory).filter_map(point).collect(),
    };
    let scale = Scale::of(results.iter().map(|result| result.flash as f64));
    Chart {
        name: name.to_owned(),
        title: title.to_owned(),
        note: match unit {
            Unit::Ratio => "Higher is better.".to_owned(),
            _ => "Lower is better.".to_owned(),
        },
        x: Axis { scale, ..Axis::new("flash", Unit::Bytes) },
        y: Axis::new(&title.to_lowercase(), unit),
        series: memories.iter().enumerate().map(series).collect(),
        bands: Vec::new(),
    }
}

fn figures(results: &[HybridResult]) -> Table {
    let columns = [
        "memory",
        "flash",
        "hits",
        "in memory",
        "on flash",
        "bytes that hit",
        "inserted",
        "written",
        "drive writes a day",
    ];
    let row = |result: &HybridResult| {
        let share = |hits: u64| hits as f64 / result.requests.max(1) as f64;
        let bytes = |bytes: u64| Unit::Bytes.value(bytes as f64);
        let cells = vec![
            bytes(result.memory),
            bytes(result.flash),
            Unit::Ratio.value(result.hit_ratio),
            Unit::Ratio.value(share(result.memory_hits)),
            Unit::Ratio.value(share(result.flash_hits)),
            Unit::Ratio.value(result.byte_hit_ratio),
            bytes(result.inserted_bytes),
            bytes(result.flash_written_bytes),
            result.writes_per_day.map_or("–".to_owned(), |writes| format!("{writes:.2}")),
        ];
        Row { cells, ..Row::default() }
    };
    Table {
        caption: "All figures".to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        groups: vec![Group { rows: results.iter().map(row).collect(), ..Group::default() }],
        ..Table::default()
    }
}
