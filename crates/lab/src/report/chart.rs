//! A chart as data: series of points over two axes.
//!
//! With several places along x it is drawn as lines; with one place as dots in a row for each
//! series, best first. The colour of a series follows from its place in the list, so that a policy
//! looks the same in every chart of a report.

use super::axis::{Axis, Scale, Unit, span};

/// A chart; see the module for how it is drawn.
#[derive(Debug, Clone)]
pub struct Chart {
    /// Ends the name of its file: `miss-ratio`.
    pub name: String,
    /// Its title.
    pub title: String,
    /// A sentence on reading the chart; may be empty.
    pub note: String,
    /// Across.
    pub x: Axis,
    /// Up.
    pub y: Axis,
    /// The lines.
    pub series: Vec<Series>,
    /// Stretches of the x axis that stand out, from left to right.
    pub bands: Vec<Band>,
}

/// A stretch of the x axis: those with the same name look the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Band {
    /// Its name in the legend.
    pub name: String,
    /// Where it begins.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
    /// Its colour, by number, like that of a series; grey without.
    pub look: Option<usize>,
}

/// Points that belong together.
#[derive(Debug, Clone)]
pub struct Series {
    /// The text beside it.
    pub name: String,
    /// Its look: series of one report with the same number look the same. `None` for a bound that
    /// nothing real reaches.
    pub look: Option<usize>,
    /// The points, from left to right.
    pub points: Vec<Point>,
}

/// A measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Where on the x axis.
    pub x: f64,
    /// Where on the y axis.
    pub y: f64,
    /// Half the width of the interval around `y` that should be shown.
    pub error: Option<f64>,
}

impl Chart {
    /// A chart without the points that cannot be drawn, and without the series that have no others.
    pub(super) fn drawable(&self) -> Chart {
        let mut chart = self.clone();
        for series in &mut chart.series {
            let place = |p: &Point| (self.x.scale.place(p.x), self.y.scale.place(p.y));
            series.points.retain(|p| place(p).0.is_finite() && place(p).1.is_finite());
            series.points.sort_by(|a, b| a.x.total_cmp(&b.x));
        }
        chart.series.retain(|series| !series.points.is_empty());
        // Shares are told apart from zero on; other values by their ratio.
        let shares = matches!(chart.y.unit, Unit::Ratio | Unit::Points);
        if chart.y.scale == Scale::Linear && !shares && !chart.is_single() {
            chart.y.scale = Scale::of(chart.heights());
        }
        chart
    }

    /// Returns whether all points lie at one place along x.
    pub(super) fn is_single(&self) -> bool {
        self.places().len() <= 1
    }

    /// The different places along x, from left to right.
    pub(super) fn places(&self) -> Vec<f64> {
        let mut places: Vec<f64> = self.points().map(|point| point.x).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        places
    }

    /// Everything that has to fit on the y axis.
    pub(super) fn heights(&self) -> impl Iterator<Item = f64> {
        self.points().flat_map(|point| [point.low(), point.y, point.high()])
    }

    /// Largest error shown, if any is.
    pub(super) fn has_errors(&self) -> bool {
        span(self.points().filter_map(|point| point.error)).1 > 0.0
    }

    fn points(&self) -> impl Iterator<Item = &Point> {
        self.series.iter().flat_map(|series| &series.points)
    }
}

impl Point {
    /// Lower end of the interval; not below zero where the value is not.
    pub(super) fn low(&self) -> f64 {
        let low = self.y - self.error.unwrap_or(0.0);
        if self.y >= 0.0 { low.max(0.0) } else { low }
    }

    /// Upper end of the interval.
    pub(super) fn high(&self) -> f64 {
        self.y + self.error.unwrap_or(0.0)
    }
}
