//! Draws a chart on any drawing area of plotters: into the page as SVG, into pixels for a PNG.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::chart::Chart;
use super::chart_writer::{ChartWriter, Drawn, Tip, WIDTH};
use super::{dots, lines};

/// Where `series` are many, a chart is higher than usual.
pub(super) fn height(chart: &Chart) -> f64 {
    if chart.is_single() { dots::height(chart) } else { lines::height(chart) }
}

/// Draws the chart, with `heading` above it if it is not empty.
pub(super) fn draw<DB: DrawingBackend>(
    writer: &ChartWriter<'_, DB>,
    chart: &Chart,
    heading: &str,
) -> Drawn<DB, Vec<Tip>> {
    let top = if heading.is_empty() { 0.0 } else { 34.0 };
    if !heading.is_empty() {
        writer.heading(heading)?;
    }
    if chart.series.is_empty() {
        writer.text(
            "nothing to draw",
            (WIDTH / 2.0, top + 60.0),
            HPos::Center,
            super::look::FAINT,
        )?;
        return Ok(Vec::new());
    }
    if chart.is_single() { dots::draw(writer, chart, top) } else { lines::draw(writer, chart, top) }
}
