//! Reports on simulations and benchmarks. Simulations show miss ratio, latency and the distance to
//! Belady over the cache size; benchmarks show caches over time.

use std::cmp::Ordering;

use floe_memory::Phase;

use super::{
    Axis, Band, Chart, Group, Point, Rank, Report, Row, Scale, Section, Series, Table, Unit,
};
use crate::bench::Sample;
use crate::simulate::objects::{SimulatedInterval, SimulationResult};

/// Unit of cache sizes. Reports show bytes where they are known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sizes {
    /// Number of objects of unknown size.
    Objects,
    /// Number of objects that have so many bytes on average.
    ObjectsOf(f64),
    /// Number of blocks of so many bytes.
    Blocks(u64),
    /// Number of bytes.
    Bytes,
}

impl Sizes {
    fn unit(self) -> Unit {
        if self == Sizes::Objects { Unit::Count } else { Unit::Bytes }
    }

    /// Returns a size in the unit of the axis.
    fn place(self, size: u64) -> f64 {
        let each = match self {
            Sizes::Objects | Sizes::Bytes => 1.0,
            Sizes::ObjectsOf(bytes) => bytes,
            Sizes::Blocks(bytes) => bytes as f64,
        };
        size as f64 * each
    }

    fn text(self, size: u64) -> String {
        let text = self.unit().value(self.place(size));
        if matches!(self, Sizes::ObjectsOf(_)) { format!("≈ {text}") } else { text }
    }

    /// Returns a size for a heading, with its number of objects.
    fn heading(self, size: u64) -> String {
        let text = self.text(size);
        match self {
            Sizes::Objects => format!("{text} objects"),
            Sizes::ObjectsOf(_) => {
                format!("{text} ({} objects)", Unit::Count.value(size as f64))
            }
            Sizes::Blocks(_) | Sizes::Bytes => text,
        }
    }

    fn label(self) -> &'static str {
        match self {
            Sizes::Objects => "cache size (objects)",
            Sizes::ObjectsOf(_) => "cache size (estimated)",
            Sizes::Blocks(_) | Sizes::Bytes => "cache size",
        }
    }
}

/// The value that a chart shows of a result, and half the width of its interval.
type Height<'a> = &'a dyn Fn(&SimulationResult) -> Option<(f64, Option<f64>)>;

/// Creates a report from simulations, with a section for each trace in order of appearance.
pub fn simulation_report(
    title: &str,
    command: &str,
    sizes: Sizes,
    outcomes: &[SimulationResult],
) -> Report {
    let mut traces: Vec<&str> = Vec::new();
    for outcome in outcomes {
        if !traces.contains(&outcome.trace.as_str()) {
            traces.push(&outcome.trace);
        }
    }
    let policies = names(outcomes);
    let section = |trace: &&str| {
        let of_trace: Vec<&SimulationResult> =
            outcomes.iter().filter(|outcome| outcome.trace == *trace).collect();
        Trace { sizes, policies: &policies, outcomes: of_trace }.section(trace)
    };
    Report {
        title: title.to_owned(),
        command: command.to_owned(),
        sections: traces.iter().map(section).collect(),
    }
}

/// Returns the distinct policies in order of appearance.
fn names(outcomes: &[SimulationResult]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for outcome in outcomes {
        if !names.contains(&outcome.policy.as_str()) {
            names.push(&outcome.policy);
        }
    }
    names
}

/// Returns whether a policy knows the future, so that it is a bound for the others.
fn is_bound(policy: &str) -> bool {
    policy.split(':').next().is_some_and(|name| name.eq_ignore_ascii_case("belady"))
}

struct Trace<'a> {
    sizes: Sizes,
    /// Policies of the whole report, so that each has the same colour for every trace.
    policies: &'a [&'a str],
    outcomes: Vec<&'a SimulationResult>,
}

impl Trace<'_> {
    fn section(&self, trace: &str) -> Section {
        let sizes = self.all_sizes().len();
        let policies =
            self.policies.iter().filter(|name| self.outcomes.iter().any(|o| o.policy == **name));
        let count = |many: usize, one: &str, more: &str| {
            format!("{many} {}", if many == 1 { one } else { more })
        };
        let mut lead = format!(
            "{} requests · {} · {}",
            Unit::Count.value(self.outcomes.iter().map(|o| o.requests).max().unwrap_or(0) as f64),
            count(policies.count(), "policy", "policies"),
            count(sizes, "size", "sizes"),
        );
        if self.outcomes.iter().any(|o| o.miss_ratio_ci95.is_some()) {
            lead.push_str(" · estimated from a sample");
        }
        if let Sizes::ObjectsOf(bytes) = self.sizes {
            let each = Unit::Bytes.value(bytes);
            lead.push_str(&format!(" · sizes count objects, which have {each} on average"));
        }
        Section {
            file: None,
            heading: trace.to_owned(),
            lead,
            summary: self.summary(),
            charts: self.charts(),
            figures: Some(self.figures()),
        }
    }

    fn charts(&self) -> Vec<Chart> {
        let mut charts = vec![self.chart("miss-ratio", "Miss ratio", Unit::Ratio, &|outcome| {
            Some((outcome.miss_ratio, outcome.miss_ratio_ci95))
        })];
        if self.outcomes.iter().any(|o| o.mean_latency_us.is_some()) {
            charts.push(self.chart("latency", "Mean latency", Unit::Microseconds, &|o| {
                Some((o.mean_latency_us?, None))
            }));
        }
        if self.has_bytes() {
            let byte_miss_ratio =
                |outcome: &SimulationResult| Some((outcome.byte_miss_ratio, None));
            charts.push(self.chart(
                "byte-miss-ratio",
                "Byte miss ratio",
                Unit::Ratio,
                &byte_miss_ratio,
            ));
        }
        let gap = |outcome: &SimulationResult| Some((self.gap(outcome)?, None));
        let mut gaps = self.chart("gap-to-belady", "Gap to Belady", Unit::Points, &gap);
        gaps.y.label = "miss ratio above Belady’s".to_owned();
        gaps.series.retain(|series| series.look.is_some());
        gaps.note =
            "Miss ratio above Belady's, which knows the future, at the same size; lower is \
                     better."
                .to_owned();
        if gaps.series.iter().any(|series| !series.points.is_empty()) {
            charts.push(gaps);
        }
        charts.extend(self.all_sizes().into_iter().filter_map(|size| self.over_time(size)));
        charts
    }

    /// Returns a chart of the miss ratios of intervals at one cache size; `None` without intervals.
    fn over_time(&self, size: u64) -> Option<Chart> {
        let point = |it: &SimulatedInterval| Point {
            x: (it.after_requests + it.requests) as f64,
            y: it.miss_ratio,
            error: None,
        };
        let mut chart = self.chart("", "Miss ratio over time", Unit::Ratio, &|_| None);
        for (look, policy) in self.policies.iter().enumerate() {
            let outcome =
                self.outcomes.iter().find(|it| it.policy == **policy && it.size == size)?;
            let points = outcome.series.iter().map(point).collect();
            let name = (*policy).to_owned();
            chart.series.push(Series { name, look: (!is_bound(policy)).then_some(look), points });
        }
        let at = self.sizes.text(size);
        chart.name = format!(
            "miss-ratio-over-time-{}",
            at.trim_start_matches("≈ ")
                .replace(|it: char| !it.is_ascii_alphanumeric(), "-")
                .to_lowercase()
        );
        chart.title = format!("Miss ratio over time, size {at}");
        chart.note = "Each point is an interval, at its end. Lower is better.".to_owned();
        chart.x = Axis::new("requests", Unit::Count);
        chart.series.iter().any(|series| !series.points.is_empty()).then_some(chart)
    }

    fn chart(&self, name: &str, title: &str, unit: Unit, value: Height<'_>) -> Chart {
        let series = |(at, policy): (usize, &&str)| Series {
            name: (*policy).to_owned(),
            look: (!is_bound(policy)).then(|| {
                let before = self.policies[..at].iter();
                before.filter(|policy| !is_bound(policy)).count()
            }),
            points: self
                .outcomes
                .iter()
                .filter(|outcome| outcome.policy == **policy)
                .filter_map(|o| {
                    let (y, error) = value(o)?;
                    Some(Point { x: self.sizes.place(o.size), y, error })
                })
                .collect(),
        };
        let scale = Scale::of(self.outcomes.iter().map(|o| o.size as f64));
        let mut chart = Chart {
            name: name.to_owned(),
            title: title.to_owned(),
            note: "Lower is better.".to_owned(),
            x: Axis { scale, ..Axis::new(self.sizes.label(), self.sizes.unit()) },
            y: Axis::new(&title.to_lowercase(), unit),
            series: self.policies.iter().enumerate().map(series).collect(),
            bands: Vec::new(),
        };
        if chart.has_errors() {
            chart
                .note
                .push_str(" Shaded: where the whole trace’s value lies with 95 % confidence.");
        }
        if chart.series.iter().any(|series| series.look.is_none() && !series.points.is_empty()) {
            chart.note.push_str(match self.sizes {
                Sizes::Objects | Sizes::ObjectsOf(_) | Sizes::Blocks(_) => {
                    " Belady knows the future: no policy can do better."
                }
                Sizes::Bytes => {
                    " Belady knows the future but does not weigh sizes: a guide, not a strict \
                     bound."
                }
            });
        }
        chart.series.retain(|series| !series.points.is_empty());
        chart.note_rise();
        chart
    }

    fn all_sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<u64> = self.outcomes.iter().map(|outcome| outcome.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    fn has_bytes(&self) -> bool {
        self.outcomes.iter().any(|o| (o.byte_miss_ratio - o.miss_ratio).abs() > 1e-9)
            && self.sizes == Sizes::Bytes
    }

    fn gap(&self, outcome: &SimulationResult) -> Option<f64> {
        let belady =
            self.outcomes.iter().find(|o| is_bound(&o.policy) && o.size == outcome.size)?;
        Some(outcome.miss_ratio - belady.miss_ratio)
    }

    /// Returns the results at a cache size, best first: by latency if known, else by miss ratio.
    fn at(&self, size: u64) -> Vec<&SimulationResult> {
        let mut here: Vec<&SimulationResult> =
            self.outcomes.iter().copied().filter(|o| o.size == size).collect();
        let by = |o: &SimulationResult| o.mean_latency_us.unwrap_or(o.miss_ratio);
        here.sort_by(|a, b| match by(a).total_cmp(&by(b)) {
            Ordering::Equal => a.miss_ratio.total_cmp(&b.miss_ratio),
            order => order,
        });
        here
    }

    /// Returns a table of the best policy at each cache size and its gain over LRU; `None` without
    /// a choice of policies.
    fn summary(&self) -> Option<Table> {
        let latency = self.outcomes.iter().any(|o| o.mean_latency_us.is_some());
        let gaps = self.outcomes.iter().any(|o| self.gap(o).is_some());
        let real = |outcome: &&SimulationResult| !is_bound(&outcome.policy);
        if self.policies.iter().filter(|policy| !is_bound(policy)).count() < 2 {
            return None;
        }
        let lru = self.outcomes.iter().any(|o| o.policy == "lru");
        let mut columns = vec!["size", "best policy", "miss ratio"];
        columns.extend(latency.then_some("mean latency"));
        columns.extend(lru.then_some("less than lru"));
        columns.extend(gaps.then_some("above Belady"));
        let mut rows = Vec::new();
        for size in self.all_sizes() {
            let here = self.at(size);
            let Some(best) = here.iter().copied().find(real) else { continue };
            let equal = |o: &&&SimulationResult| {
                real(o) && o.miss_ratio == best.miss_ratio && o.policy != best.policy
            };
            let ties = here.iter().filter(equal).count();
            let name = if ties == 0 {
                best.policy.clone()
            } else {
                format!("{} and {ties} equal", best.policy)
            };
            let mut cells = vec![self.sizes.text(size), name, Unit::Ratio.value(best.miss_ratio)];
            if latency {
                cells.push(optional(Unit::Microseconds, best.mean_latency_us));
            }
            if lru {
                let lru = here.iter().find(|outcome| outcome.policy == "lru");
                cells.push(optional(Unit::Points, lru.map(|lru| lru.miss_ratio - best.miss_ratio)));
            }
            if gaps {
                cells.push(optional(Unit::Points, self.gap(best)));
            }
            rows.push(Row { cells, rank: Rank::Usual });
        }
        Some(Table {
            caption: if rows.len() == 1 { "Best" } else { "Best at each size" }.to_owned(),
            columns: columns.into_iter().map(str::to_owned).collect(),
            text_columns: 2,
            groups: vec![Group { heading: String::new(), rows }],
        })
    }

    /// Returns a table of all figures, best first at each cache size.
    fn figures(&self) -> Table {
        type Cell<'a> = Box<dyn Fn(&SimulationResult) -> String + 'a>;
        let latency = self.outcomes.iter().any(|o| o.mean_latency_us.is_some());
        let mut columns: Vec<(&str, Cell<'_>)> = vec![
            ("policy", Box::new(|o| o.policy.clone())),
            (
                "miss ratio",
                Box::new(|o| match o.miss_ratio_ci95 {
                    Some(bound) => {
                        format!(
                            "{} ± {}",
                            Unit::Ratio.value(o.miss_ratio),
                            Unit::Ratio.value(bound)
                        )
                    }
                    None => Unit::Ratio.value(o.miss_ratio),
                }),
            ),
        ];
        if latency {
            columns.push((
                "mean latency",
                Box::new(|o| optional(Unit::Microseconds, o.mean_latency_us)),
            ));
        }
        if self.has_bytes() {
            columns.push(("byte miss ratio", Box::new(|o| Unit::Ratio.value(o.byte_miss_ratio))));
        }
        if self.outcomes.iter().any(|o| self.gap(o).is_some()) {
            columns.push(("above Belady", Box::new(|o| optional(Unit::Points, self.gap(o)))));
        }
        columns.push(("simulated", Box::new(|o| Unit::PerSecond.value(o.requests_per_second))));
        columns.push(("bytes/object", Box::new(|o| format!("{:.1}", o.policy_bytes_per_object))));
        let group = |size: u64| {
            let here = self.at(size);
            let best = here.iter().find(|o| !is_bound(&o.policy)).map(|o| o.miss_ratio);
            let rank = |o: &SimulationResult| match is_bound(&o.policy) {
                true => Rank::Bound,
                false if best == Some(o.miss_ratio) && here.len() > 1 => Rank::Best,
                false => Rank::Usual,
            };
            let row = |o: &&SimulationResult| Row {
                cells: columns.iter().map(|(_, cell)| cell(o)).collect(),
                rank: rank(o),
            };
            Group { heading: self.sizes.heading(size), rows: here.iter().map(row).collect() }
        };
        let order = if latency { "mean latency" } else { "miss ratio" };
        Table {
            caption: format!("All figures, by {order}"),
            columns: columns.iter().map(|(name, _)| (*name).to_owned()).collect(),
            text_columns: 1,
            groups: self.all_sizes().into_iter().map(group).collect(),
        }
    }
}

/// Formats a number, or a dash if it is missing.
fn optional(unit: Unit, value: Option<f64>) -> String {
    value.map_or("–".to_owned(), |value| unit.value(value))
}

/// Largest number of points on a line over time; more would only add noise.
const POINTS: usize = 240;

/// Observations of a cache over time.
#[derive(Debug, Clone)]
pub struct Timeline {
    /// Name of the cache.
    pub name: String,
    /// Observations in order of time.
    pub samples: Vec<Sample>,
}

/// Returns a section with charts of caches over time. Bands show the phases of the first cache that
/// freezes.
pub fn timeline_section(heading: &str, timelines: &[Timeline]) -> Section {
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
            .map(|(at, timeline)| timeline_line(at, timeline, value))
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

/// Returns a line of at most [`POINTS`] points, each the mean of equally many samples weighted by
/// their length.
fn timeline_line(at: usize, timeline: &Timeline, value: &dyn Fn(&Sample) -> Option<f64>) -> Series {
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

/// Returns the phases of the freeze controller as bands.
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
                    look: phase_look(phase),
                });
            }
        }
    }
    bands
}

/// Returns the colour number of a phase, different for each; `None` is grey, for the warm-up.
fn phase_look(phase: Phase) -> Option<usize> {
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
mod timeline_tests {
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
        let looks: HashSet<_> = phases.into_iter().map(phase_look).collect();
        assert_eq!(looks.len(), phases.len());
    }

    #[test]
    fn phases_follow_each_other_without_gaps_and_long_lines_are_made_shorter() {
        let phase = |at| if at % 300 < 100 { Phase::Learning } else { Phase::Frozen };
        let timeline = Timeline {
            name: "a".into(),
            samples: (0..900).map(|at| sample(at, phase(at))).collect(),
        };
        let section = timeline_section("", &[timeline]);
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
