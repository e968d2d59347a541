//! Reports on models: throughput over the hit ratio by each method, p* where throughput falls, and
//! a comparison of policies.
//!
//! With the policies, disks and MPL of "Can Increasing the Hit Ratio Hurt Cache Throughput?" these
//! are its figures 3, 5, 7, 8, 10, 12 and 14.

use super::blocks::{STEPS, quantiles};
use super::{
    Axis, Band, Chart, Group, Point, Rank, Report, Row, Scale, Section, Series, Table, Unit,
};
use crate::advise::{Advice, Trial};
use crate::interference::Calibration;
use crate::model::{Answer, Identity, Line, Star};
use crate::replay::Latencies;

/// Solved curves: the lines of each, and its peak.
pub type Solved = [(Vec<Line>, Star)];

/// Creates a report with a section for each policy, and before them one that compares several
/// policies.
pub fn model_report(command: &str, solved: &Solved) -> Report {
    let mut policies: Vec<&str> = Vec::new();
    for (_, star) in solved {
        if !policies.contains(&star.identity.policy) {
            policies.push(star.identity.policy);
        }
    }
    let of = |policy: &str| -> Vec<&(Vec<Line>, Star)> {
        solved.iter().filter(|(_, star)| star.identity.policy == policy).collect()
    };
    let mut sections: Vec<Section> =
        policies.iter().map(|policy| section(policy, &of(policy))).collect();
    if policies.len() > 1 {
        sections.insert(0, beside_each_other(solved));
    }
    Report { title: "Throughput by hit ratio".to_owned(), command: command.to_owned(), sections }
}

/// Returns the section of one policy, with a chart for each curve.
fn section(policy: &str, curves: &[&(Vec<Line>, Star)]) -> Section {
    let figure = |star: &Star| match (policy, star.identity.q) {
        ("lru", _) => "Figure 3 of the paper. ",
        ("fifo", _) => "Figure 5 of the paper. ",
        ("prob-lru", Some(q)) if q < 0.9 => "Figure 7 of the paper is for q = 0.5. ",
        ("prob-lru", _) => "Figure 8 of the paper is for q = 1 − 1/72. ",
        ("clock", _) => "Figure 10 of the paper. ",
        ("slru", _) => "Figure 12 of the paper. ",
        ("s3-fifo", _) => "Figure 14 of the paper. ",
        _ => "",
    };
    let chart = |(at, (lines, star)): (usize, &&(Vec<Line>, Star))| {
        let ends = lines.iter().map(|line| line.hit_ratio).fold(0.0, f64::max);
        let past = (star.p_star < ends).then(|| Band {
            name: "past p*".to_owned(),
            from: star.p_star,
            to: ends,
            look: Some(4),
        });
        Chart {
            name: format!("{policy}-{}", at + 1),
            title: conditions(&star.identity),
            note: format!("{}{}", figure(star), verdict(star)),
            x: Axis::new("hit ratio", Unit::Ratio),
            y: axis(lines),
            series: methods(lines),
            bands: past.into_iter().collect(),
        }
    };
    Section {
        file: None,
        heading: policy.to_owned(),
        lead: "Throughput at each hit ratio, computed by several methods.".to_owned(),
        summary: Some(stars(curves)),
        charts: curves.iter().enumerate().map(chart).collect(),
        figures: Some(figures(curves)),
    }
}

/// Returns the section that compares all policies, with a chart for each load and disk.
fn beside_each_other(solved: &Solved) -> Section {
    let place = |identity: &Identity| Identity {
        policy: "",
        q: None,
        frozen: None,
        written: None,
        ..identity.clone()
    };
    let mut charts: Vec<(String, Chart)> = Vec::new();
    for (lines, star) in solved {
        let name = conditions(&place(&star.identity));
        if !charts.iter().any(|(known, _)| *known == name) {
            let chart = Chart {
                name: format!("policies-{}", charts.len() + 1),
                title: name.clone(),
                note: "Policies are compared at the same hit ratio; at the same size their hit \
                     ratios differ."
                    .to_owned(),
                x: Axis::new("hit ratio", Unit::Ratio),
                y: axis(lines),
                series: Vec::new(),
                bands: Vec::new(),
            };
            charts.push((name.clone(), chart));
        }
        let chart = charts.iter_mut().find(|(known, _)| *known == name).map(|(_, chart)| chart);
        let Some(Chart { series, .. }) = chart else { continue };
        let look = Some(series.len());
        series.push(Series { name: variant(&star.identity), look, points: points(lines, best) });
    }
    Section {
        file: None,
        heading: "All policies".to_owned(),
        lead: "Past p* throughput falls for LRU-like policies; for FIFO-like ones it never does."
            .to_owned(),
        summary: Some(stars(&solved.iter().collect::<Vec<_>>())),
        charts: charts.into_iter().map(|(_, chart)| chart).collect(),
        figures: None,
    }
}

fn axis(lines: &[Line]) -> Axis {
    match lines.first().map(|line| &line.answer) {
        Some(Answer::Open { .. }) => Axis::new("mean time of a request", Unit::Microseconds),
        _ => Axis::new("throughput", Unit::PerSecond),
    }
}

/// Returns the value of a line in charts that compare policies: throughput, or response time in an
/// open loop.
fn best(answer: &Answer) -> (Option<f64>, Option<f64>) {
    match *answer {
        Answer::Closed { mva_mrps, .. } => (Some(1e6 * mva_mrps), None),
        Answer::Open { response_us, .. } => (response_us, None),
    }
}

fn points(lines: &[Line], value: impl Fn(&Answer) -> (Option<f64>, Option<f64>)) -> Vec<Point> {
    let point = |line: &Line| {
        let (y, error) = value(&line.answer);
        Some(Point { x: line.hit_ratio, y: y?, error })
    };
    lines.iter().filter_map(point).collect()
}

fn methods(lines: &[Line]) -> Vec<Series> {
    let of = |name: &str, look, points| Series { name: name.to_owned(), look, points };
    if let Some(Answer::Open { .. }) = lines.first().map(|line| &line.answer) {
        return vec![of("mean time", Some(0), points(lines, best))];
    }
    let bound = |answer: &Answer| match *answer {
        Answer::Closed { bound_mrps, .. } => (Some(1e6 * bound_mrps), None),
        Answer::Open { .. } => (None, None),
    };
    let simulated = |answer: &Answer| match *answer {
        Answer::Closed { sim_mrps, sim_ci95, .. } => {
            (sim_mrps.map(|mrps| 1e6 * mrps), sim_ci95.map(|mrps| 1e6 * mrps))
        }
        Answer::Open { .. } => (None, None),
    };
    let exact = if lines[0].identity.cores.is_some() { "approximate" } else { "exact" };
    vec![
        of("bound", None, points(lines, bound)),
        of(exact, Some(0), points(lines, best)),
        of("simulated", Some(1), points(lines, simulated)),
    ]
}

fn variant(identity: &Identity) -> String {
    let option = |name: &str, value: Option<f64>| {
        value.map_or(String::new(), |value| format!(" {name} {value}"))
    };
    let q = if matches!(identity.policy, "lru" | "fifo" | "single-lock-lru") {
        None
    } else {
        identity.q
    };
    format!("{}{}{}", identity.policy, option("q", q), option("frozen", identity.frozen))
}

fn conditions(identity: &Identity) -> String {
    let parts = [
        Some(variant(identity)).filter(|variant| !variant.is_empty()),
        identity.mpl.map(|mpl| format!("MPL {mpl}")),
        identity.arrival_mrps.map(|mrps| format!("{mrps} M/s arrive")),
        identity.cores.map(|cores| format!("{cores} cores")),
        Some(format!("disk {} µs", identity.disk_us)),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

fn rate(mrps: Option<f64>) -> String {
    mrps.map_or("no limit".to_owned(), |mrps| Unit::PerSecond.value(1e6 * mrps))
}

fn verdict(star: &Star) -> String {
    let limit = star.bottleneck.map_or("nothing".to_owned(), str::to_owned);
    let hits = rate(star.all_hits_mrps);
    if star.p_star < 1.0 {
        let p_star = Unit::Ratio.value(star.p_star);
        format!(
            "Throughput falls past {p_star}, from {} to {hits} with hits only, limited by {limit}.",
            rate(star.peak_mrps)
        )
    } else {
        format!("Throughput never falls; with hits only it is {hits}, limited by {limit}.")
    }
}

fn stars(curves: &[&(Vec<Line>, Star)]) -> Table {
    let columns = ["", "class", "bottleneck", "p*", "throughput there", "with hits only"];
    let row = |(_, star): &&(Vec<Line>, Star)| {
        let cells = vec![
            conditions(&star.identity),
            star.classification.to_owned(),
            star.bottleneck.unwrap_or("none").to_owned(),
            Unit::Ratio.value(star.p_star),
            rate(star.peak_mrps),
            rate(star.all_hits_mrps),
        ];
        Row { cells, ..Row::default() }
    };
    table(
        "Where throughput falls",
        &columns,
        3,
        vec![Group { heading: String::new(), rows: curves.iter().map(row).collect() }],
    )
}

fn figures(curves: &[&(Vec<Line>, Star)]) -> Table {
    let is_open = matches!(curves[0].0.first().map(|line| &line.answer), Some(Answer::Open { .. }));
    let columns: &[&str] = if is_open {
        &["limits", "hit ratio", "piles up at", "mean time"]
    } else {
        &["limits", "hit ratio", "bound", "mva", "simulated", "± 95 %"]
    };
    let row = |line: &Line| {
        let mut cells = vec![
            line.bottleneck.unwrap_or("nothing").to_owned(),
            Unit::Ratio.value(line.hit_ratio),
        ];
        let mrps = |mrps: Option<f64>| {
            mrps.map_or("–".to_owned(), |mrps| Unit::PerSecond.value(1e6 * mrps))
        };
        match line.answer {
            Answer::Closed { bound_mrps, mva_mrps, sim_mrps, sim_ci95 } => {
                cells.extend([Some(bound_mrps), Some(mva_mrps), sim_mrps, sim_ci95].map(mrps));
            }
            Answer::Open { saturation_mrps, response_us } => {
                cells.push(rate(saturation_mrps));
                cells.push(
                    response_us.map_or("never ends".to_owned(), |us| Unit::Microseconds.value(us)),
                );
            }
        }
        Row { cells, ..Row::default() }
    };
    let group = |(lines, star): &&(Vec<Line>, Star)| Group {
        heading: conditions(&star.identity),
        rows: lines.iter().map(row).collect(),
    };
    table("All figures", columns, 1, curves.iter().map(group).collect())
}

fn table(caption: &str, columns: &[&str], text_columns: usize, groups: Vec<Group>) -> Table {
    let columns = columns.iter().map(|&column| column.to_owned()).collect();
    Table { caption: caption.to_owned(), columns, text_columns, groups }
}

/// Creates a report from a calibration of a device, with one chart and a line for each operation
/// size.
pub fn calibration_report(calibration: &Calibration) -> Report {
    let line = |(at, size): (usize, &crate::interference::OfBlock)| Series {
        name: format!("reads of {}", Unit::Bytes.value(size.block_bytes as f64)),
        look: Some(at),
        points: size
            .points
            .iter()
            .map(|point| {
                let (low, high) =
                    (point.read_bytes_per_second_low, point.read_bytes_per_second_high);
                let (x, y) = (point.write_share, point.read_bytes_per_second);
                Point { x, y, error: Some((high - low) / 2.0) }
            })
            .collect(),
    };
    let chart = Chart {
        name: "reads".into(),
        title: "Reads beside writes".into(),
        note: "Bytes read in a second, by the share of the operations that write.".into(),
        x: Axis::new("share of writes", Unit::Ratio),
        y: Axis::new("bytes read in a second", Unit::Bytes),
        series: calibration.sizes.iter().enumerate().map(line).collect(),
        bands: Vec::new(),
    };
    let section =
        Section { heading: calibration.device.clone(), charts: vec![chart], ..Section::default() };
    Report {
        title: format!("{} under writes", calibration.device),
        sections: vec![section],
        ..Report::default()
    }
}

/// Creates a report with one section from the result of a search for settings.
pub fn advice_report(command: &str, advice: &Advice) -> Report {
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
            lead: [&[advice.verdict.text.clone()][..], &advice.alternatives(), &advice.warnings]
                .concat()
                .join(" "),
            file: advice.verdict.toml.as_ref().map(|toml| ("floe.toml".to_owned(), toml.clone())),
            summary: Some(trials_summary(&three)),
            charts: charts
                .into_iter()
                .filter(|(.., of)| of(&advice.bare).count() > 0)
                .map(|(name, title, of)| quantile_chart(name, title, &three, of))
                .collect(),
            figures: Some(finalists(advice)),
        }],
    }
}

type LatenciesOf = fn(&Trial) -> &Latencies;

fn quantile_chart(name: &str, title: &str, three: &[(&str, &Trial); 3], of: LatenciesOf) -> Chart {
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
        note: STEPS.into(),
        x: Axis { scale, ..Axis::new("answered within", Unit::Microseconds) },
        y: Axis { scale: Scale::Nines, ..Axis::new("share of requests", Unit::Ratio) },
        series,
        bands: Vec::new(),
    }
}

const TRIAL_COLUMNS: [&str; 10] = [
    "",
    "mean",
    "read p50",
    "read p99",
    "read p99.9",
    "write p99",
    "write p99.9",
    "requests",
    "written a year",
    "memory",
];

fn trials_summary(three: &[(&str, &Trial); 3]) -> Table {
    let row = |(name, trial): &(&str, &Trial)| Row {
        cells: trial_cells(name, trial),
        rank: if *name == "best" { Rank::Best } else { Rank::Usual },
    };
    trials_table("Best, default and bare", three.iter().map(row).collect())
}

fn finalists(advice: &Advice) -> Table {
    let row = |trial: &Trial| Row {
        cells: trial_cells(&trial.candidate.to_string(), trial),
        ..Row::default()
    };
    trials_table("Trials of the last round", advice.finalists.iter().map(row).collect())
}

fn trial_cells(name: &str, trial: &Trial) -> Vec<String> {
    let us = |time: Option<f64>| time.map_or("–".into(), |us| Unit::Microseconds.value(us));
    let result = &trial.result;
    vec![
        name.to_owned(),
        us(Some(trial.mean_us)),
        us(result.read_us_p50),
        us(result.read_us_p99),
        us(result.read_us_p999),
        us(result.write_us_p99),
        us(result.write_us_p999),
        result.requests_per_second.map_or("–".into(), |rate| Unit::PerSecond.value(rate)),
        match trial.has_pace() {
            true => format!("{:.1} TB", trial.written_tb_per_year),
            false => "–".to_owned(),
        },
        Unit::Bytes.value(result.metadata_bytes as f64),
    ]
}

fn trials_table(caption: &str, rows: Vec<Row>) -> Table {
    Table {
        caption: caption.to_owned(),
        columns: TRIAL_COLUMNS.map(str::to_owned).into(),
        text_columns: 1,
        groups: vec![Group { heading: String::new(), rows }],
    }
}
