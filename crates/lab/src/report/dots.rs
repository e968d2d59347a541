//! A chart for one place along x: a row for each series, best first, a dot on a common axis, the
//! number beside it.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::axis::span;
use super::chart::{Chart, Point, Series};
use super::chart_writer::{ChartWriter, Drawn, Tip, WIDTH, shortened};
use super::lines::value;
use super::look::{AXIS, FAINT, GRID, Look, TEXT};

const ROW: f64 = 24.0;
const NAME_LETTERS: usize = 34;
const ABOVE: f64 = 40.0;
const BELOW: f64 = 26.0;

pub(super) fn height(chart: &Chart) -> f64 {
    ABOVE + BELOW + ROW * chart.series.len().max(1) as f64
}

pub(super) fn draw<DB: DrawingBackend>(
    writer: &ChartWriter<'_, DB>,
    chart: &Chart,
    top: f64,
) -> Drawn<DB, Vec<Tip>> {
    let mut rows: Vec<(&Series, &Point)> =
        chart.series.iter().filter_map(|series| Some((series, series.points.first()?))).collect();
    rows.sort_by(|a, b| a.1.y.total_cmp(&b.1.y));
    let names: Vec<String> =
        rows.iter().map(|(series, _)| shortened(&series.name, NAME_LETTERS)).collect();
    let values: Vec<String> = rows.iter().map(|(_, point)| value(chart, point)).collect();
    let widest = |texts: &[String]| texts.iter().map(|text| writer.width(text)).fold(0.0, f64::max);
    let left = 34.0 + widest(&names) * 1.04;
    let right = WIDTH - 30.0 - widest(&values) * 1.04;
    let ticks = chart.y.round_ticks(chart.heights());
    let (low, high) = span(ticks.iter().map(|tick| tick.value));
    let across = |y: f64| left + (y - low) / (high - low) * (right - left);
    let (first, bottom) = (top + ABOVE, top + height(chart) - BELOW);

    let place = chart.places().first().map_or(String::new(), |&x| chart.x.unit.value(x));
    let caption = format!("{}, {}: {place}", chart.y.caption_with(&ticks), chart.x.label);
    writer.text(&caption, (16.0, first - 26.0), HPos::Left, TEXT)?;
    for tick in &ticks {
        let x = across(tick.value);
        let color = if tick.value == 0.0 { AXIS } else { GRID };
        writer.line((x, first), (x, bottom), color.rgb().to_rgba(), 1.0)?;
        writer.text(&tick.text, (x, bottom + 14.0), HPos::Center, FAINT)?;
    }
    let mut tips = Vec::new();
    for (at, (series, point)) in rows.iter().enumerate() {
        let look = Look::of(series.look);
        let (x, y) = (across(point.y), first + (at as f64 + 0.5) * ROW);
        writer.text(&names[at], (left - 12.0, y), HPos::Right, TEXT)?;
        if low <= 0.0 {
            // A stem has a length, which says something only from zero.
            writer.line((across(0.0), y), (x, y), look.colour.rgb().mix(0.5), 3.0)?;
        } else {
            writer.line((left, y), (right, y), GRID.rgb().to_rgba(), 1.0)?;
        }
        if point.error.is_some() {
            writer.line(
                (across(point.low()), y),
                (across(point.high()), y),
                look.colour.rgb().mix(0.35),
                7.0,
            )?;
        }
        writer.marker(&look, (x, y), 5.0)?;
        writer.text(&values[at], (WIDTH - 16.0, y), HPos::Right, TEXT)?;
        let area = [0.0, y - ROW / 2.0, WIDTH, ROW];
        tips.push(Tip { area, is_point: false, text: format!("{}\n{}", series.name, values[at]) });
    }
    Ok(tips)
}
