//! A replay over time: latencies and hits of its intervals.

use super::{Axis, Chart, Point, Series, Unit};
use crate::replay::{IntervalResult, ReplayResult};

/// A quantity of an interval, and its name.
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

/// Returns the charts of a replay with intervals; none without.
pub(super) fn charts(outcome: &ReplayResult) -> impl Iterator<Item = Chart> {
    let intervals = &outcome.series;
    let of = |name: &str, title: &str, y: Axis, quantities: &[Quantity]| Chart {
        name: name.to_owned(),
        title: title.to_owned(),
        note: format!("Each point is an interval, at its end: {} of them.", intervals.len()),
        x: Axis::new("requests", Unit::Count),
        y,
        series: quantities.iter().enumerate().map(|(at, it)| line(at, it, intervals)).collect(),
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

fn line(at: usize, (name, value): &Quantity, intervals: &[IntervalResult]) -> Series {
    let point = |interval: &IntervalResult| {
        let x = (interval.after_requests + interval.requests) as f64;
        Some(Point { x, y: value(interval)?, error: None })
    };
    let points = intervals.iter().filter_map(point).collect();
    Series { name: (*name).to_owned(), look: Some(at), points }
}
