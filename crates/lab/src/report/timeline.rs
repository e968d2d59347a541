//! Caches over time: throughput and frozen share, with the phases of freezing behind them.

use floe_memory::Phase;

use super::{Axis, Band, Chart, Point, Section, Series, Unit};
use crate::bench::Sample;

/// Points of a line at most: more would only be noise on top of each other.
const POINTS: usize = 240;

/// A cache over time.
#[derive(Debug, Clone)]
pub struct Timeline {
    /// The name of the cache.
    pub name: String,
    /// The samples over time.
    pub samples: Vec<Sample>,
}

/// The charts of some caches at one point. The phases are those of the first cache that has any.
pub fn section(heading: &str, timelines: &[Timeline]) -> Section {
    let phases = timelines.iter().map(phases).find(|bands| !bands.is_empty()).unwrap_or_default();
    let chart = |name: &str, title: &str, unit, value: &dyn Fn(&Sample) -> Option<f64>| Chart {
        name: name.to_owned(),
        title: title.to_owned(),
        note: String::new(),
        x: Axis::new("time of the cache\u{2019}s own runs", Unit::Seconds),
        y: Axis::new(&title.to_lowercase(), unit),
        series: timelines
            .iter()
            .enumerate()
            .map(|(at, timeline)| line(at, timeline, value))
            .collect(),
        bands: phases.clone(),
    };
    Section {
        file: None,
        heading: heading.to_owned(),
        lead: String::new(),
        summary: None,
        charts: vec![
            chart("throughput", "Operations a second", Unit::PerSecond, &|sample| {
                Some(sample.ops_per_second)
            }),
            chart("hit-ratio", "Hit ratio", Unit::Ratio, &|sample| Some(sample.hit_ratio)),
            chart("frozen-share", "Frozen share of hits", Unit::Ratio, &|sample| {
                sample.phase.map(|_| sample.frozen_share)
            }),
        ],
        figures: None,
    }
}

/// A line of means over equal numbers of samples, weighed by how long they were.
fn line(at: usize, timeline: &Timeline, value: &dyn Fn(&Sample) -> Option<f64>) -> Series {
    let together = timeline.samples.len().div_ceil(POINTS).max(1);
    let mean = |samples: &[Sample]| {
        let span: f64 = samples.iter().map(|sample| sample.span).sum();
        let sum: Option<f64> =
            samples.iter().map(|sample| Some(value(sample)? * sample.span)).sum();
        Some(Point { x: samples.last()?.seconds, y: sum? / span, error: None })
    };
    Series {
        name: timeline.name.clone(),
        look: Some(at),
        points: timeline.samples.chunks(together).filter_map(mean).collect(),
    }
}

/// Stretches with the same phase.
fn phases(timeline: &Timeline) -> Vec<Band> {
    let mut bands: Vec<Band> = Vec::new();
    for sample in &timeline.samples {
        let Some(phase) = sample.phase else { continue };
        let name = phase.name();
        match bands.last_mut().filter(|band| band.name == name) {
            Some(band) => band.to = sample.seconds,
            None => {
                let from = bands.last().map_or(sample.seconds - sample.span, |band| band.to);
                bands.push(Band {
                    name: name.to_owned(),
                    from,
                    to: sample.seconds,
                    look: look(phase),
                });
            }
        }
    }
    bands
}

/// No two phases share a colour; a cache that warms up is grey.
fn look(phase: Phase) -> Option<usize> {
    match phase {
        Phase::Measuring => Some(1),
        Phase::Learning => Some(4),
        Phase::TryingAll => Some(3),
        Phase::Proving => Some(6),
        Phase::Constructing => Some(0),
        Phase::Frozen => Some(5),
        Phase::Waiting => Some(2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn sample(at: u32, phase: Phase) -> Sample {
        Sample {
            seconds: f64::from(at + 1),
            span: 1.0,
            ops_per_second: f64::from(at),
            hit_ratio: 1.0,
            frozen_share: 0.5,
            frozen_ratio: 0.1,
            phase: Some(phase),
        }
    }

    #[test]
    fn no_two_phases_share_a_colour() {
        let phases = [
            Phase::WarmingUp,
            Phase::Measuring,
            Phase::Learning,
            Phase::TryingAll,
            Phase::Proving,
            Phase::Constructing,
            Phase::Frozen,
            Phase::Waiting,
        ];
        let looks: HashSet<_> = phases.into_iter().map(look).collect();
        assert_eq!(looks.len(), phases.len());
    }

    #[test]
    fn phases_follow_each_other_without_gaps_and_long_lines_are_made_shorter() {
        let phase = |at| if at % 300 < 100 { Phase::Learning } else { Phase::Frozen };
        let timeline = Timeline {
            name: "a".into(),
            samples: (0..900).map(|at| sample(at, phase(at))).collect(),
        };
        let section = section("", &[timeline]);
        let chart = &section.charts[0];
        let edges: Vec<(f64, f64)> = chart.bands.iter().map(|band| (band.from, band.to)).collect();
        assert_eq!(
            edges,
            [
                (0.0, 100.0),
                (100.0, 300.0),
                (300.0, 400.0),
                (400.0, 600.0),
                (600.0, 700.0),
                (700.0, 900.0)
            ]
        );
        let points = &chart.series[0].points;
        assert!(points.len() <= POINTS);
        assert_eq!((points[0].x, points[0].y), (4.0, 1.5)); // of the first four
    }
}
