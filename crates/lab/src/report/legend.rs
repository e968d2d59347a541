//! The names in a drawing as a list, for screens that show only a part of it.

use plotters::prelude::*;

use super::chart::Chart;
use super::chart_writer::{ChartWriter, FINE, Letters};
use super::look::Look;
use super::markup::{escaped, inside};

/// Width of a key.
const KEY: u32 = 12;

/// The list; empty where each name stands at the beginning of its row.
pub(super) fn legend(chart: &Chart) -> String {
    let chart = chart.drawable();
    if chart.is_single() {
        return String::new();
    }
    let series = chart.series.iter().map(|series| (&series.name, Look::of(series.look)));
    let mut entries: Vec<(&String, Look)> = series.collect();
    for band in &chart.bands {
        let entry = (&band.name, Look::of_band(band.look));
        if !entries.contains(&entry) {
            entries.push(entry);
        }
    }
    let item = |(name, look): (&String, Look)| format!("<li>{}{}</li>", key(&look), escaped(name));
    let items: String = entries.into_iter().map(item).collect();
    format!("<ul class=\"legend\">{items}</ul>\n")
}

/// A marker, as an element for a page.
fn key(look: &Look) -> String {
    let side = KEY * FINE;
    let middle = f64::from(KEY) / 2.0;
    let mut drawing = String::new();
    {
        let area = SVGBackend::with_string(&mut drawing, (side, side)).into_drawing_area();
        let drawn = ChartWriter::new(&area, Letters::Browser).marker(look, (middle, middle), 4.5);
        // A string takes everything: no drawing into one fails.
        area.present().and(drawn).unwrap_or_default();
    }
    format!(
        "<svg class=\"key\" viewBox=\"0 0 {side} {side}\" aria-hidden=\"true\">{}</svg>",
        inside(&drawing)
    )
}
