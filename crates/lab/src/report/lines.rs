//! Draws charts on any drawing area of plotters: into the page as SVG, into pixels for a PNG.
//!
//! A chart with several values of x has lines, each named at its right end, so that readers need no
//! legend; a narrow one leaves the names to a list below it. With a single value of x it has a row
//! for each series, best first: a dot on a common axis and the number beside it.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::chart::{Band, Chart, Point, Scale, Series, Tick, span};
use super::chart_writer::{
    AXIS, ChartWriter, Drawn, FAINT, FINE, Form, GRID, Look, TEXT, Tip, shortened, steps,
};

/// Smallest vertical distance between names of series, in units.
const NAME_STEP: f64 = 17.0;
const NAME_LETTERS: usize = 28;
/// Height of the heading above a chart, in units.
pub(super) const HEADING: f64 = 34.0;
/// Height of a narrow chart of lines, in units.
const NARROW_HEIGHT: f64 = 290.0;
const ABOVE: f64 = 34.0;
const BELOW: f64 = 52.0;
/// Space in units that names of series may take below the x axis.
const NAMES_BELOW: f64 = 36.0;
/// Space in units at both ends of a row of band names. [`BAND_GAP`] is that between two names.
const BAND_MARGIN: f64 = 21.0;
const BAND_GAP: f64 = 26.0;
/// Upper bound of the mean width of a letter, in units.
const WIDEST_LETTER: f64 = 8.0;
/// Largest number of points that get a marker each on a line.
const MARKED: usize = 24;

/// Returns the height of a chart in units, which grows with the number of series.
pub(super) fn height(chart: &Chart, form: Form) -> f64 {
    if chart.is_single() { dots_height(chart, form) } else { lines_height(chart, form) }
}

/// Draws a chart, with `heading` above it unless that is empty. Returns its tips.
pub(super) fn draw<DB: DrawingBackend>(
    writer: &ChartWriter<'_, DB>,
    chart: &Chart,
    heading: &str,
) -> Drawn<DB, Vec<Tip>> {
    let top = if heading.is_empty() { 0.0 } else { HEADING };
    if !heading.is_empty() {
        writer.heading(heading)?;
    }
    if chart.series.is_empty() {
        writer.text(
            "nothing to draw",
            (writer.form.width() / 2.0, top + 60.0),
            HPos::Center,
            FAINT,
        )?;
        return Ok(Vec::new());
    }
    if chart.is_single() { draw_dots(writer, chart, top) } else { draw_lines(writer, chart, top) }
}

fn lines_height(chart: &Chart, form: Form) -> f64 {
    if !form.has_names() {
        return NARROW_HEIGHT;
    }
    let rows = band_rows(&chart.bands).len() as f64;
    NAME_STEP * rows + (ABOVE + BELOW + NAME_STEP * chart.series.len() as f64).max(380.0)
}

/// Divides the names of bands into rows above the chart. Each name occurs once.
fn band_rows(bands: &[Band]) -> Vec<Vec<&Band>> {
    let (mut rows, mut used): (Vec<Vec<&Band>>, f64) = (Vec::new(), f64::INFINITY);
    for band in bands {
        if rows.iter().flatten().any(|named| named.name == band.name) {
            continue;
        }
        let wide = BAND_GAP + WIDEST_LETTER * band.name.chars().count() as f64;
        if used + wide > Form::Wide.width() - 2.0 * BAND_MARGIN {
            rows.push(Vec::new());
            used = 0.0;
        }
        used += wide;
        rows.last_mut().expect("a row was begun").push(band);
    }
    rows
}

/// The area inside the axes, and the mapping of values to it.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    x: (f64, f64),
    /// Ends of the y axis as positions by its scale; `x` likewise.
    y: (f64, f64),
    scale: Scale,
}

impl Frame {
    fn across(&self, place: f64) -> f64 {
        self.left + (place - self.x.0) / (self.x.1 - self.x.0) * (self.right - self.left)
    }

    fn down(&self, y: f64) -> f64 {
        let y = self.scale.place(y);
        self.bottom - (y - self.y.0) / (self.y.1 - self.y.0) * (self.bottom - self.top)
    }
}

fn draw_lines<DB: DrawingBackend>(
    writer: &ChartWriter<'_, DB>,
    chart: &Chart,
    top: f64,
) -> Drawn<DB, Vec<Tip>> {
    let names: Vec<String> =
        chart.series.iter().map(|series| shortened(&series.name, NAME_LETTERS)).collect();
    let form = writer.form;
    let rows = if form.has_names() { band_rows(&chart.bands) } else { Vec::new() };
    let y_ticks = chart.y.ticks(chart.heights());
    let widest = |texts: &mut dyn Iterator<Item = &String>| {
        texts.map(|text| writer.width(text)).fold(0.0, f64::max)
    };
    let beside = if form.has_names() { 52.0 + widest(&mut names.iter()) * 1.04 } else { 30.0 };
    let frame = Frame {
        left: 24.0 + widest(&mut y_ticks.iter().map(|tick| &tick.text)),
        right: form.width() - beside,
        top: top + ABOVE + NAME_STEP * rows.len() as f64,
        bottom: top + lines_height(chart, form) - BELOW,
        x: span(chart.places().iter().map(|&x| chart.x.scale.place(x))),
        y: span(y_ticks.iter().map(|tick| chart.y.scale.place(tick.value))),
        scale: chart.y.scale,
    };
    bands(writer, chart, &frame, &rows)?;
    axes(writer, chart, &frame, &y_ticks)?;
    let caption = chart.y.caption_with(&y_ticks);
    writer.text(&caption, (16.0, top + ABOVE - 20.0), HPos::Left, TEXT)?;
    series(writer, chart, &frame)?;
    if !form.has_names() {
        return Ok(Vec::new());
    }
    let ends: Vec<(f64, f64)> = chart
        .series
        .iter()
        .map(|series| series.points[series.points.len() - 1])
        .map(|last| (frame.across(chart.x.scale.place(last.x)), frame.down(last.y)))
        .collect();
    let heights: Vec<f64> = ends.iter().map(|end| end.1).collect();
    for (at, height) in
        spread(&heights, NAME_STEP, frame.top, frame.bottom + NAMES_BELOW).into_iter().enumerate()
    {
        let look = Look::of(chart.series[at].look);
        let (x, y) = ends[at];
        let faint = look.colour.rgb().mix(0.45);
        let bend = (x + 6.0).max(frame.right + 8.0);
        writer.line((x + 6.0, y), (bend, y), faint, 1.0)?;
        writer.line((bend, y), (frame.right + 26.0, height), faint, 1.0)?;
        writer.marker(&look, (frame.right + 32.0, height), 4.5)?;
        writer.text(&names[at], (frame.right + 42.0, height), HPos::Left, TEXT)?;
    }
    Ok(tips(chart, &frame))
}

fn axes<DB: DrawingBackend>(
    writer: &ChartWriter<'_, DB>,
    chart: &Chart,
    frame: &Frame,
    y_ticks: &[Tick],
) -> Drawn<DB, ()> {
    for tick in y_ticks {
        let y = frame.down(tick.value);
        let color = if tick.value == 0.0 { AXIS } else { GRID };
        writer.line((frame.left, y), (frame.right, y), color.rgb().to_rgba(), 1.0)?;
        writer.text(&tick.text, (frame.left - 8.0, y), HPos::Right, FAINT)?;
    }
    let mut taken: Vec<(f64, f64)> = Vec::new();
    for tick in chart.x.value_ticks(&chart.places()) {
        let x = frame.across(chart.x.scale.place(tick.value));
        let half = writer.width(&tick.text) / 2.0 + 7.0;
        if taken.iter().any(|&(left, right)| x - half < right && x + half > left) {
            continue;
        }
        taken.push((x - half, x + half));
        writer.line((x, frame.top), (x, frame.bottom), GRID.rgb().to_rgba(), 1.0)?;
        writer.line((x, frame.bottom), (x, frame.bottom + 5.0), AXIS.rgb().to_rgba(), 1.0)?;
        writer.text(&tick.text, (x, frame.bottom + 15.0), HPos::Center, FAINT)?;
    }
    writer.line(
        (frame.left, frame.bottom),
        (frame.right, frame.bottom),
        AXIS.rgb().to_rgba(),
        1.0,
    )?;
    writer.text(
        &chart.x.caption(),
        ((frame.left + frame.right) / 2.0, frame.bottom + 37.0),
        HPos::Center,
        TEXT,
    )
}

/// Draws the bands behind everything else, and their names above the chart.
fn bands<DB: DrawingBackend>(
    writer: &ChartWriter<'_, DB>,
    chart: &Chart,
    frame: &Frame,
    rows: &[Vec<&Band>],
) -> Drawn<DB, ()> {
    for band in &chart.bands {
        let colour = Look::of(band.look).colour.rgb().mix(0.22);
        let [left, right] = [band.from, band.to]
            .map(|x| frame.across(chart.x.scale.place(x)).clamp(frame.left, frame.right));
        let corners = [(left, frame.top), (right, frame.bottom)].map(|corner| writer.at(corner));
        writer.area.draw(&Rectangle::new(corners, colour.filled()))?;
    }
    for (above, row) in rows.iter().rev().enumerate() {
        let y = frame.top - 14.0 - NAME_STEP * above as f64;
        let mut x = BAND_MARGIN;
        for band in row {
            writer.marker(&Look::of_band(band.look), (x, y), 4.5)?;
            writer.text(&band.name, (x + 9.0, y), HPos::Left, FAINT)?;
            x += BAND_GAP + writer.width(&band.name);
        }
    }
    Ok(())
}

/// Draws all series: first the intervals, then lines, then markers. Theoretical bounds lie lowest.
fn series<DB: DrawingBackend>(
    writer: &ChartWriter<'_, DB>,
    chart: &Chart,
    frame: &Frame,
) -> Drawn<DB, ()> {
    let area = writer.area.clone().shrink(
        writer.at((frame.left, frame.top)),
        (steps(frame.right - frame.left), steps(frame.bottom - frame.top)),
    );
    let mut plot =
        ChartBuilder::on(&area).build_cartesian_2d(frame.x.0..frame.x.1, frame.y.0..frame.y.1)?;
    let place = |x: f64| chart.x.scale.place(x);
    let up = |y: f64| chart.y.scale.place(y);
    let mut ordered: Vec<&Series> = chart.series.iter().collect();
    ordered.sort_by_key(|series| std::cmp::Reverse(series.look.unwrap_or(usize::MAX)));
    for series in &ordered {
        if series.points.iter().any(|point| point.error.is_some()) {
            let upper = series.points.iter().map(|point| (place(point.x), up(point.high())));
            let lower = series.points.iter().rev().map(|point| (place(point.x), up(point.low())));
            let color = Look::of(series.look).colour.rgb().mix(0.16);
            plot.draw_series([Polygon::new(
                upper.chain(lower).collect::<Vec<_>>(),
                color.filled(),
            )])?;
        }
    }
    for series in &ordered {
        let look = Look::of(series.look);
        let style = look.colour.rgb().stroke_width(steps(2.0) as u32);
        let points = path(chart, series).into_iter().map(|(x, y)| (place(x), up(y)));
        match look.dash {
            None => plot.draw_series(LineSeries::new(points, style))?,
            Some((dash, gap)) => plot.draw_series(DashedLineSeries::new(
                points,
                steps(dash) as u32,
                steps(gap) as u32,
                style,
            ))?,
        };
    }
    for series in ordered.iter().filter(|series| series.points.len() <= MARKED) {
        for point in &series.points {
            let (x, y) = plot.backend_coord(&(place(point.x), up(point.y)));
            let fine = f64::from(FINE);
            writer.marker(
                &Look::of(series.look),
                (f64::from(x) / fine, f64::from(y) / fine),
                3.5,
            )?;
        }
    }
    Ok(())
}

/// Returns the corners of a series' line. That of shares answered within a time rises in steps: up
/// to the next point only the share of the one before is known.
fn path(chart: &Chart, series: &Series) -> Vec<(f64, f64)> {
    let mut corners: Vec<(f64, f64)> = Vec::new();
    for point in &series.points {
        if let Some(&(_, before)) = corners.last().filter(|_| chart.is_cumulative()) {
            corners.push((point.x, before));
        }
        corners.push((point.x, point.y));
    }
    corners
}

/// Returns the tips of a chart: a strip for each x with all its values, and above it an area for
/// each point.
fn tips(chart: &Chart, frame: &Frame) -> Vec<Tip> {
    let places = chart.places();
    let across: Vec<f64> = places.iter().map(|&x| frame.across(chart.x.scale.place(x))).collect();
    let mut tips = Vec::new();
    for (at, &x) in places.iter().enumerate() {
        let left = if at == 0 { frame.left } else { (across[at - 1] + across[at]) / 2.0 };
        let right =
            if at + 1 == places.len() { frame.right } else { (across[at] + across[at + 1]) / 2.0 };
        let mut here: Vec<(&str, &Point)> = Vec::new();
        for series in &chart.series {
            here.extend(
                series
                    .points
                    .iter()
                    .filter(|p| p.x == x)
                    .map(|point| (series.name.as_str(), point)),
            );
        }
        here.sort_by(|a, b| a.1.y.total_cmp(&b.1.y));
        let lines = here.iter().map(|(name, point)| format!("{} {name}", value(chart, point)));
        let text = [chart.x.unit.value(x)].into_iter().chain(lines).collect::<Vec<_>>().join("\n");
        let area = [left, frame.top, right - left, frame.bottom - frame.top];
        tips.push(Tip { area, is_point: false, text });
    }
    for series in &chart.series {
        for point in &series.points {
            let (x, y) = (frame.across(chart.x.scale.place(point.x)), frame.down(point.y));
            let text = format!(
                "{}\n{} at {}",
                series.name,
                value(chart, point),
                chart.x.unit.value(point.x)
            );
            tips.push(Tip { area: [x - 6.0, y - 6.0, 12.0, 12.0], is_point: true, text });
        }
    }
    tips
}

/// Formats the value of a point, with its interval.
fn value(chart: &Chart, point: &Point) -> String {
    let value = chart.y.unit.value(point.y);
    match point.error {
        Some(error) => format!("{value} ± {}", chart.y.unit.value(error)),
        None => value,
    }
}

/// Returns positions near the `wanted` ones, in their order, at least `step` apart and between
/// `top` and `bottom`.
fn spread(wanted: &[f64], step: f64, top: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|&a, &b| wanted[a].total_cmp(&wanted[b]));
    let mut heights = vec![0.0; wanted.len()];
    // Names that touch form a run around the mean of what they want; a run that touches the one
    // above joins it.
    let mut runs: Vec<(f64, Vec<usize>)> = Vec::new();
    for at in order {
        let mut run = vec![at];
        loop {
            let length = (run.len() - 1) as f64 * step;
            let mean = run.iter().map(|&at| wanted[at]).sum::<f64>() / run.len() as f64;
            let start = (mean - length / 2.0).min(bottom - length).max(top);
            match runs.pop_if(|(above, held)| *above + held.len() as f64 * step > start) {
                Some((_, mut above)) => {
                    above.append(&mut run);
                    run = above;
                }
                None => {
                    runs.push((start, run));
                    break;
                }
            }
        }
    }
    for (start, run) in runs {
        for (nth, at) in run.into_iter().enumerate() {
            heights[at] = start + nth as f64 * step;
        }
    }
    heights
}

const DOT_ROW: f64 = 24.0;
const DOT_NAME_LETTERS: usize = 34;
const ABOVE_DOTS: f64 = 40.0;
const BELOW_DOTS: f64 = 26.0;

/// Returns the height of a row of dots. In a narrow chart the name stands above the axis.
fn dot_row(form: Form) -> f64 {
    if form.has_names() { DOT_ROW } else { DOT_ROW + NAME_STEP }
}

fn dots_height(chart: &Chart, form: Form) -> f64 {
    ABOVE_DOTS + BELOW_DOTS + dot_row(form) * chart.series.len().max(1) as f64
}

fn draw_dots<DB: DrawingBackend>(
    writer: &ChartWriter<'_, DB>,
    chart: &Chart,
    top: f64,
) -> Drawn<DB, Vec<Tip>> {
    let mut rows: Vec<(&Series, &Point)> =
        chart.series.iter().filter_map(|series| Some((series, series.points.first()?))).collect();
    rows.sort_by(|a, b| a.1.y.total_cmp(&b.1.y));
    let names: Vec<String> =
        rows.iter().map(|(series, _)| shortened(&series.name, DOT_NAME_LETTERS)).collect();
    let values: Vec<String> = rows.iter().map(|(_, point)| value(chart, point)).collect();
    let widest = |texts: &[String]| texts.iter().map(|text| writer.width(text)).fold(0.0, f64::max);
    let (form, width) = (writer.form, writer.form.width());
    let left = if form.has_names() { 34.0 + widest(&names) * 1.04 } else { 24.0 };
    let right = width - 30.0 - widest(&values) * 1.04;
    let ticks = chart.y.round_ticks(chart.heights());
    let (low, high) = span(ticks.iter().map(|tick| tick.value));
    let across = |y: f64| left + (y - low) / (high - low) * (right - left);
    let (first, bottom) = (top + ABOVE_DOTS, top + dots_height(chart, form) - BELOW_DOTS);

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
        let row = dot_row(form);
        let bottom = first + (at as f64 + 1.0) * row;
        let (x, y) = (across(point.y), bottom - DOT_ROW / 2.0);
        if form.has_names() {
            writer.text(&names[at], (left - 12.0, y), HPos::Right, TEXT)?;
        } else {
            writer.text(&names[at], (16.0, y - NAME_STEP), HPos::Left, TEXT)?;
        }
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
        writer.text(&values[at], (width - 16.0, y), HPos::Right, TEXT)?;
        let area = [0.0, bottom - row, width, row];
        tips.push(Tip { area, is_point: false, text: format!("{}\n{}", series.name, values[at]) });
    }
    Ok(tips)
}

#[cfg(test)]
mod tests {
    use super::super::chart::{Axis, Unit};
    use super::super::chart_writer::EM;
    use super::*;

    #[test]
    fn names_never_overlap_and_stay_inside() {
        for wanted in [
            vec![10.0; 12],
            vec![0.0, 1.0, 100.0, 101.0, 300.0],
            vec![300.0, 10.0, 299.0],
            vec![5.0],
        ] {
            let heights = spread(&wanted, 17.0, 0.0, 300.0);
            let mut sorted = heights.clone();
            sorted.sort_by(f64::total_cmp);
            assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] >= 17.0 - 1e-9), "{heights:?}");
            assert!(sorted[0] >= 0.0 && sorted[sorted.len() - 1] <= 300.0, "{heights:?}");
        }
        assert_eq!(spread(&[40.0, 200.0], 17.0, 0.0, 300.0), [40.0, 200.0]);
    }

    #[test]
    fn names_of_many_bands_take_several_rows_and_each_stands_once() {
        let name = |number: usize| format!("learning, fewer hits {}", number % 9);
        let band = |number| Band { name: name(number), from: 0.0, to: 1.0, look: Some(0) };
        let bands: Vec<Band> = (0..20).map(band).collect();
        let rows = band_rows(&bands);
        let letters = |row: &Vec<&Band>| row.iter().map(|band| band.name.len()).sum::<usize>();
        assert!(
            rows.iter().all(|row| letters(row) as f64 * EM / 2.0 < Form::Wide.width()),
            "{rows:?}"
        );
        let named: Vec<_> = rows.iter().flatten().map(|band| band.name.clone()).collect();
        assert_eq!(named, (0..9).map(name).collect::<Vec<_>>());
        assert!(rows.len() > 1 && band_rows(&[]).is_empty());
    }

    #[test]
    fn shares_within_a_time_rise_in_steps_and_other_lines_are_straight() {
        let point = |x, y| Point { x, y, error: None };
        let series =
            Series { name: "a".into(), look: None, points: vec![point(1.0, 0.5), point(9.0, 0.9)] };
        let shares = Axis { scale: Scale::Nines, ..Axis::new("share", Unit::Ratio) };
        let mut chart = Chart {
            name: String::new(),
            title: String::new(),
            note: String::new(),
            x: Axis::new("time", Unit::Microseconds),
            y: shares,
            series: Vec::new(),
            bands: Vec::new(),
        };
        assert_eq!(path(&chart, &series), [(1.0, 0.5), (9.0, 0.5), (9.0, 0.9)]);
        chart.y.scale = Scale::Linear;
        assert_eq!(path(&chart, &series), [(1.0, 0.5), (9.0, 0.9)]);
    }

    #[test]
    fn a_line_of_text_fits_between_two_names() {
        const { assert!(NAME_STEP > EM * 1.2) };
    }
}
