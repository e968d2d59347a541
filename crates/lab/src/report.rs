//! Reports: results as pages and pictures that a person understands at a glance.
//!
//! A report is data first: sections of charts and tables, built from results by one function a kind
//! of result ([`outcomes`], [`blocks`], [`latencies`], [`advice`], [`models`], [`interference`]).
//! Two writers then only draw: [`html()`], one page that needs no network, and [`png::write`], a
//! picture for each chart. Both draw a chart with the same code, so page and picture say the same.
//!
//! Invariants: names come from users and reach the page only escaped; a page refers to nothing
//! outside itself; the same report gives the same bytes.

mod admissions;
pub mod advice;
mod axis;
pub mod blocks;
pub mod chart;
mod chart_writer;
mod dots;
mod draw;
mod html;
pub mod interference;
pub mod latencies;
mod legend;
mod lines;
mod look;
mod markup;
pub mod models;
pub mod outcomes;
pub mod png;
mod series;
pub mod table;
pub mod timeline;

pub use axis::{Axis, Scale, Unit};
pub use chart::{Band, Chart, Point, Series};
pub use html::html;
pub use table::Table;

/// The contents of a page, from top to bottom.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Heading of the page.
    pub title: String,
    /// The command line that produces it.
    pub command: String,
    /// One for each trace, or whatever else stands apart.
    pub sections: Vec<Section>,
}

/// A part of a report with a heading of its own.
#[derive(Debug, Clone, Default)]
pub struct Section {
    /// The subject: a trace's name.
    pub heading: String,
    /// The command, in a line.
    pub lead: String,
    /// The name and the text of a file to copy.
    pub file: Option<(String, String)>,
    /// The summary; stands before the charts.
    pub summary: Option<Table>,
    /// Pictures, most telling first.
    pub charts: Vec<Chart>,
    /// All figures, behind a fold when there are many.
    pub figures: Option<Table>,
}

#[cfg(test)]
mod tests;
