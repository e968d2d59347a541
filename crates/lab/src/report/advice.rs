//! Advice as a report: the answer, the three columns, and all finalists.

use super::latencies::quantiles;
use super::table::{Group, Rank, Row, Table};
use super::{Axis, Chart, Report, Scale, Section, Series, Unit};
use crate::advise::{Advice, Trial};
use crate::replay::Latencies;

/// A report with one section.
pub fn report(command: &str, advice: &Advice) -> Report {
    let three = [("best", &advice.best), ("default", &advice.default), ("bare", &advice.bare)];
    let charts = [
        ("read-latency", "Reads", (|trial| &trial.result.read_latencies) as LatenciesOf),
        ("write-latency", "Writes", |trial| &trial.result.write_latencies),
    ];
    Report {
        title: format!("{}: a cache for it", advice.trace),
        command: command.to_owned(),
        sections: vec![Section {
            heading: advice.trace.clone(),
            lead: [&[advice.verdict.clone()][..], &advice.warnings].concat().join(" "),
            file: advice.toml.as_ref().map(|toml| ("floe.toml".to_owned(), toml.clone())),
            summary: Some(summary(&three)),
            charts: charts
                .into_iter()
                .filter(|(.., of)| of(&advice.bare).count() > 0)
                .map(|(name, title, of)| chart(name, title, &three, of))
                .collect(),
            figures: Some(finalists(advice)),
        }],
    }
}

type LatenciesOf = fn(&Trial) -> &Latencies;

fn chart(name: &str, title: &str, three: &[(&str, &Trial); 3], of: LatenciesOf) -> Chart {
    let series = |(look, (name, trial)): (usize, &(&str, &Trial))| Series {
        name: (*name).to_owned(),
        look: Some(look),
        points: quantiles(of(trial)),
    };
    let series: Vec<Series> = three.iter().enumerate().map(series).collect();
    let scale =
        Scale::of(series.iter().flat_map(|series| series.points.iter().map(|point| point.x)));
    Chart {
        name: name.into(),
        title: title.into(),
        note: "The share of requests answered within a time.".into(),
        x: Axis { scale, ..Axis::new("answered within", Unit::Microseconds) },
        y: Axis { scale: Scale::Nines, ..Axis::new("share of requests", Unit::Ratio) },
        series,
        bands: Vec::new(),
    }
}

const COLUMNS: [&str; 9] = [
    "",
    "mean",
    "read p50",
    "read p99",
    "read p99.9",
    "write p99",
    "requests",
    "written a year",
    "memory",
];

fn summary(three: &[(&str, &Trial); 3]) -> Table {
    let row = |(name, trial): &(&str, &Trial)| Row {
        cells: cells(name, trial),
        rank: if *name == "best" { Rank::Best } else { Rank::Usual },
    };
    table("Best, default and bare", three.iter().map(row).collect())
}

fn finalists(advice: &Advice) -> Table {
    let row =
        |trial: &Trial| Row { cells: cells(&trial.candidate.to_string(), trial), ..Row::default() };
    table("Trials of the last round", advice.finalists.iter().map(row).collect())
}

fn cells(name: &str, trial: &Trial) -> Vec<String> {
    let us = |time: Option<f64>| time.map_or("–".into(), |us| Unit::Microseconds.value(us));
    let result = &trial.result;
    vec![
        name.to_owned(),
        us(Some(trial.mean_us)),
        us(result.read_us_p50),
        us(result.read_us_p99),
        us(result.read_us_p999),
        us(result.write_us_p99),
        result.requests_per_second.map_or("–".into(), |rate| Unit::PerSecond.value(rate)),
        match trial.has_pace() {
            true => format!("{:.1} TB", trial.written_tb_per_year),
            false => "–".to_owned(),
        },
        Unit::Bytes.value(result.metadata_bytes as f64),
    ]
}

fn table(caption: &str, rows: Vec<Row>) -> Table {
    Table {
        caption: caption.to_owned(),
        columns: COLUMNS.map(str::to_owned).into(),
        text_columns: 1,
        groups: vec![Group { heading: String::new(), rows }],
    }
}
