//! Writes text, lines and markers of charts on any drawing area of plotters.
//!
//! Lengths are in units; a drawing is as many wide as its [`Form`] says. A drawing area has whole
//! coordinates, so it has [`FINE`] steps to a unit. Text is measured with the font of PNG pictures.

use std::sync::OnceLock;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, FontTransform, RGBColor, register_font};

use super::chart::Chart;
use super::{escaped, inside};

/// Number of steps of the drawing area per unit.
pub(super) const FINE: u32 = 4;

/// The screen that a drawing is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A desktop's, or paper: names stand beside the lines.
    Wide,
    /// A telephone's: a list below the drawing has the names of lines.
    Narrow,
}

impl Form {
    /// Returns the width of a drawing in units.
    pub(super) fn width(self) -> f64 {
        if self == Form::Wide { 900.0 } else { 380.0 }
    }

    /// Returns whether the drawing has the names of lines and bands.
    pub(super) fn has_names(self) -> bool {
        self == Form::Wide
    }
}

/// Font size of text in units.
pub(super) const EM: f64 = 13.0;

/// Ascent plus descent of the font in em. Plotters takes this height as the size of glyphs that it
/// draws itself.
const NOTO_LINE: f64 = 1.362;

/// Factor by which plotters divides the size of text in SVG.
const SVG_LINE: f64 = 1.24;

/// The renderer of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Letters {
    /// Text in SVG, which the browser renders.
    Browser,
    /// Text in pixels, which plotters renders with the embedded font.
    Embedded,
}

/// Text that a page shows when the pointer rests on an area of the chart.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tip {
    /// Left, top, width and height of the area in units.
    pub(super) area: [f64; 4],
    /// True for the area of a single point, which lies above the others.
    pub(super) is_point: bool,
    pub(super) text: String,
}

pub(super) type Drawn<DB, T> = Result<T, DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>>;

/// A drawing area, with functions to draw on it in units.
pub(super) struct ChartWriter<'a, DB: DrawingBackend> {
    pub(super) area: &'a DrawingArea<DB, Shift>,
    letters: Letters,
    pub(super) form: Form,
}

impl<'a, DB: DrawingBackend> ChartWriter<'a, DB> {
    pub(super) fn new(area: &'a DrawingArea<DB, Shift>, letters: Letters, form: Form) -> Self {
        register_fonts();
        Self { area, letters, form }
    }

    /// Converts a position in units to steps.
    pub(super) fn at(&self, (x, y): (f64, f64)) -> (i32, i32) {
        (steps(x), steps(y))
    }

    /// Returns the width of a text in units.
    pub(super) fn width(&self, text: &str) -> f64 {
        let size = EM * f64::from(FINE) * NOTO_LINE;
        let style = TextStyle::from(("sans-serif", size));
        // Without a font, which is always there, about half an em for each letter.
        let wide = self.area.estimate_text_size(&clean(text), &style).map(|(width, _)| width);
        wide.map_or(text.chars().count() as f64 * EM / 2.0, |wide| {
            f64::from(wide) / f64::from(FINE)
        })
    }

    /// Draws text that is vertically centred on `place`.
    pub(super) fn text(
        &self,
        text: &str,
        place: (f64, f64),
        anchor: HPos,
        colour: Colour,
    ) -> Drawn<DB, ()> {
        self.letters(text, place, anchor, colour, EM, FontStyle::Normal)
    }

    pub(super) fn heading(&self, text: &str) -> Drawn<DB, ()> {
        let text = shortened(text, 90);
        self.letters(&text, (16.0, 24.0), HPos::Left, TEXT, 16.0, FontStyle::Bold)
    }

    fn letters(
        &self,
        text: &str,
        (x, y): (f64, f64),
        anchor: HPos,
        colour: Colour,
        em: f64,
        font: FontStyle,
    ) -> Drawn<DB, ()> {
        // Plotters sets its own letters higher than a browser does.
        let (line, lower) = match self.letters {
            Letters::Browser => (SVG_LINE, 0.0),
            Letters::Embedded => (NOTO_LINE, 0.22),
        };
        let size = em * f64::from(FINE) * line;
        let style = FontDesc::new(FontFamily::SansSerif, size, font)
            .transform(FontTransform::None)
            .color(&colour.rgb())
            .pos(Pos::new(anchor, VPos::Center));
        self.area.draw(&Text::new(clean(text), self.at((x, y + lower * em)), style))
    }

    /// Draws a straight line.
    pub(super) fn line(
        &self,
        from: (f64, f64),
        to: (f64, f64),
        color: RGBAColor,
        width: f64,
    ) -> Drawn<DB, ()> {
        let style = color.stroke_width(steps(width) as u32);
        self.area.draw(&PathElement::new([self.at(from), self.at(to)], style))
    }

    /// Draws the marker of a series.
    pub(super) fn marker(&self, look: &Look, place: (f64, f64), radius: f64) -> Drawn<DB, ()> {
        let (x, y) = place;
        let fill = look.colour.rgb().filled();
        let corners = |corners: &[(f64, f64)]| -> Vec<(i32, i32)> {
            corners
                .iter()
                .map(|(right, down)| self.at((x + right * radius, y + down * radius)))
                .collect()
        };
        match look.marker {
            Marker::Disc => self.area.draw(&Circle::new(self.at(place), steps(radius), fill)),
            Marker::Ring => {
                self.area.draw(&Circle::new(self.at(place), steps(radius), fill))?;
                let ground = GROUND.rgb().filled();
                self.area.draw(&Circle::new(self.at(place), steps(radius * 0.55), ground))
            }
            Marker::Square => {
                let square = corners(&[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]);
                self.area.draw(&Polygon::new(square, fill))
            }
            Marker::Triangle => {
                let triangle = corners(&[(0.0, -1.25), (1.15, 0.85), (-1.15, 0.85)]);
                self.area.draw(&Polygon::new(triangle, fill))
            }
            Marker::Diamond => {
                let diamond = corners(&[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)]);
                self.area.draw(&Polygon::new(diamond, fill))
            }
        }
    }
}

/// Converts a length in units to whole steps.
pub(super) fn steps(units: f64) -> i32 {
    (units * f64::from(FINE)).round() as i32
}

/// Returns a text of at most `most` characters; a longer one ends in dots.
pub(super) fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

/// Removes the characters that pages or pictures cannot show.
pub(super) fn clean(text: &str) -> String {
    text.chars()
        .map(
            |c| if c.is_control() || matches!(c, '\u{FFFE}' | '\u{FFFF}') { '\u{FFFD}' } else { c },
        )
        .collect()
}

/// Registers the embedded font Noto Sans, so that pictures need no font of the system.
fn register_fonts() {
    static DONE: OnceLock<()> = OnceLock::new();
    DONE.get_or_init(|| {
        for (style, font) in
            [(FontStyle::Normal, notosans::REGULAR_TTF), (FontStyle::Bold, notosans::BOLD_TTF)]
        {
            let known = register_font("sans-serif", style, font).is_ok();
            assert!(known, "the embedded font is a font");
        }
    });
}

/// A colour on a light background, and its counterpart on a dark one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Colour {
    /// Colour on a light background, as 0xRRGGBB.
    pub(super) light: u32,
    /// Colour on a dark background, as 0xRRGGBB.
    pub(super) dark: u32,
}

/// Colour of text.
pub(super) const TEXT: Colour = Colour { light: 0x1F2328, dark: 0xE6EDF3 };
/// Colour of the text beside ticks.
pub(super) const FAINT: Colour = Colour { light: 0x59636E, dark: 0x9DA7B1 };
/// Colour of the lines behind the data.
pub(super) const GRID: Colour = Colour { light: 0xE3E6EA, dark: 0x2C333B };
/// Colour of the axes.
pub(super) const AXIS: Colour = Colour { light: 0x8C959F, dark: 0x6E7781 };
/// Colour of the background, also inside hollow markers.
pub(super) const GROUND: Colour = Colour { light: 0xFFFFFF, dark: 0x0D1117 };
/// Colour of a series that is a theoretical bound.
const BOUND: Colour = Colour { light: 0x6B7280, dark: 0xA1A9B2 };

const HUES: [Colour; 7] = [
    Colour { light: 0x0072B2, dark: 0x58A6FF },
    Colour { light: 0xD55E00, dark: 0xFF8B3D },
    Colour { light: 0x009E73, dark: 0x2FC99B },
    Colour { light: 0xB84D8F, dark: 0xEE8FC6 },
    Colour { light: 0xB07D00, dark: 0xE9B933 },
    Colour { light: 0x3B9BD9, dark: 0xA5DCFA },
    Colour { light: 0x4B3B8F, dark: 0xB3A5F5 },
];

/// Returns all colours that a drawing may contain.
pub(super) fn colours() -> impl Iterator<Item = Colour> {
    [TEXT, FAINT, GRID, AXIS, GROUND, BOUND].into_iter().chain(HUES)
}

impl Colour {
    pub(super) fn rgb(self) -> RGBColor {
        let [_, red, green, blue] = self.light.to_be_bytes();
        RGBColor(red, green, blue)
    }
}

/// The shape at each point of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marker {
    Disc,
    Square,
    Triangle,
    Diamond,
    Ring,
}

/// Colour, marker and dashes of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Look {
    pub(super) colour: Colour,
    pub(super) marker: Marker,
    /// Lengths of a dash and of the gap after it; `None` for a solid line.
    pub(super) dash: Option<(f64, f64)>,
}

impl Look {
    /// Returns the look of bands with this number; the legend shows a square.
    pub(super) fn of_band(number: Option<usize>) -> Self {
        Self { marker: Marker::Square, ..Self::of(number) }
    }

    /// Returns the look of series with this number, or of a theoretical bound without a number.
    pub(super) fn of(number: Option<usize>) -> Self {
        let Some(number) = number else {
            return Self { colour: BOUND, marker: Marker::Ring, dash: Some((5.0, 4.0)) };
        };
        let (marker, dash) = match number / HUES.len() % 4 {
            0 => (Marker::Disc, None),
            1 => (Marker::Square, Some((9.0, 4.0))),
            2 => (Marker::Triangle, Some((3.0, 3.0))),
            _ => (Marker::Diamond, Some((14.0, 4.0))),
        };
        Self { colour: HUES[number % HUES.len()], marker, dash }
    }
}

/// Width of a legend's markers in units.
const KEY: u32 = 12;

/// Returns the legend as an HTML list; empty for a chart of dots, whose rows have names.
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

/// Returns a marker as an SVG element for the legend.
fn key(look: &Look) -> String {
    let side = KEY * FINE;
    let middle = f64::from(KEY) / 2.0;
    let mut drawing = String::new();
    {
        let area = SVGBackend::with_string(&mut drawing, (side, side)).into_drawing_area();
        let writer = ChartWriter::new(&area, Letters::Browser, Form::Narrow);
        let drawn = writer.marker(look, (middle, middle), 4.5);
        // A string takes everything: no drawing into one fails.
        area.present().and(drawn).unwrap_or_default();
    }
    format!(
        "<svg class=\"key\" viewBox=\"0 0 {side} {side}\" aria-hidden=\"true\">{}</svg>",
        inside(&drawing)
    )
}

#[cfg(test)]
mod look_tests {
    use super::*;

    #[test]
    fn the_first_twenty_eight_series_look_different() {
        let looks: Vec<Look> = (0..28).map(|number| Look::of(Some(number))).collect();
        for (at, look) in looks.iter().enumerate() {
            assert!(!looks[..at].contains(look));
            assert_ne!(*look, Look::of(None));
        }
    }

    #[test]
    fn no_two_inks_share_a_light_colour() {
        let mut lights: Vec<u32> = colours().map(|colour| colour.light).collect();
        lights.sort_unstable();
        assert!(lights.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
