//! Reports: results as pages and pictures.
//!
//! A report is data first: sections of charts and tables, built from results by one function for
//! each kind of result: [`simulation_report`], [`replay_report`], [`model_report`] and others. Two
//! writers then only draw: [`html()`], one page that needs no network, and [`write_pictures`], a
//! picture for each chart. Both draw a chart with the same code, so page and picture agree.
//!
//! Invariants: names come from users and reach the page only escaped; a page refers to nothing
//! outside itself; the same report gives the same bytes.

use std::fmt::Write as _;

use plotters::prelude::*;

use self::chart_writer::{ChartWriter, FINE, Form, Letters, Tip, clean, colours, legend, steps};

pub use blocks::{blocks_report, replay_report};
pub use chart::{Axis, Band, Chart, Point, Scale, Series, Unit};
pub use hybrid::{hybrid_report, object_advice_report};
pub use models::{Solved, advice_report, calibration_report, model_report};
pub use outcomes::{Sizes, Timeline, simulation_report, timeline_section};
pub use pictures::{Error as PictureError, PictureFormat, write_pictures};

mod blocks;
mod chart;
mod chart_writer;
mod hybrid;
mod lines;
mod models;
mod outcomes;
mod pictures;
mod png;

/// The contents of a report, from top to bottom of its page.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Heading of the page.
    pub title: String,
    /// Command line that produces the report.
    pub command: String,
    /// Sections of the report, such as one for each trace.
    pub sections: Vec<Section>,
}

/// A part of a report with a heading of its own.
#[derive(Debug, Clone, Default)]
pub struct Section {
    /// Heading of the section, such as the name of a trace.
    pub heading: String,
    /// Introduction of the section, in a line.
    pub lead: String,
    /// Name and text of a file to copy from the page.
    pub file: Option<(String, String)>,
    /// Table of the main results, after the first chart.
    pub summary: Option<Table>,
    /// Charts of the section, the most informative first.
    pub charts: Vec<Chart>,
    /// Table of all figures; long ones are folded.
    pub figures: Option<Table>,
}

#[cfg(test)]
mod tests;

/// A table with groups of rows.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Caption of the table.
    pub caption: String,
    /// Headings of the columns.
    pub columns: Vec<String>,
    /// Number of columns at the left that hold text; the others hold numbers.
    pub text_columns: usize,
    /// Rows of the table, in groups.
    pub groups: Vec<Group>,
}

/// Rows of a table under a heading of their own.
#[derive(Debug, Clone, Default)]
pub struct Group {
    /// Heading of the group; empty for none.
    pub heading: String,
    /// Rows of the group, in order.
    pub rows: Vec<Row>,
}

/// A row of a table.
#[derive(Debug, Clone, Default)]
pub struct Row {
    /// Text of each column.
    pub cells: Vec<String>,
    /// Emphasis of the row.
    pub rank: Rank,
}

/// Emphasis of a row in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rank {
    /// No emphasis.
    #[default]
    Usual,
    /// The best row of its group.
    Best,
    /// A theoretical bound, which no practical policy reaches.
    Bound,
}

impl Table {
    /// Returns the number of rows in all groups.
    fn rows(&self) -> usize {
        self.groups.iter().map(|group| group.rows.len()).sum()
    }
}

/// Escapes a text for HTML.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in clean(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Returns the contents of a drawing's `svg` element.
fn inside(drawing: &str) -> &str {
    let begin = drawing.find('>').map_or(0, |at| at + 1);
    let end = drawing.rfind("</svg>").unwrap_or(drawing.len());
    &drawing[begin..end]
}

/// Largest number of rows that a table shows without being folded.
const ROWS_UNFOLDED: usize = 60;

/// Returns the report as an HTML page.
pub fn html(report: &Report) -> String {
    let title = escaped(without_folders(&report.title));
    let mut page = format!(
        concat!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n",
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n",
            "<title>{title}</title>\n<style>\n{css}{dark}</style>\n</head>\n<body>\n",
            "<h1>{title}</h1>\n",
        ),
        title = title,
        css = include_str!("report/page.css"),
        dark = dark_drawings(),
    );
    if !report.command.is_empty() {
        page.push_str(&format!("<pre><code>{}</code></pre>\n", escaped(&report.command)));
    }
    if report.sections.len() > 1 {
        page.push_str("<nav><p>");
        for (at, section) in report.sections.iter().enumerate() {
            let heading = escaped(without_folders(&section.heading));
            page.push_str(&format!("<a href=\"#s{at}\">{heading}</a> "));
        }
        page.push_str("</p></nav>\n");
    }
    for (at, section) in report.sections.iter().enumerate() {
        let heading = match section.heading == report.title {
            true => String::new(), // the page's heading says it
            false => format!("<h2>{}</h2>\n", escaped(without_folders(&section.heading))),
        };
        page.push_str(&format!("<section id=\"s{at}\">\n{heading}{}", in_section(section)));
    }
    page.push_str(&format!(
        "<footer>floe {}</footer>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION")
    ));
    page
}

/// Returns a heading without the folders of the file name that it begins with, if it does.
fn without_folders(heading: &str) -> &str {
    let name = heading.split(' ').next().unwrap_or(heading);
    match name.rfind('/') {
        Some(at) if at + 1 < name.len() => &heading[at + 1..],
        _ => heading,
    }
}

fn in_section(section: &Section) -> String {
    let mut out = format!("<p>{}</p>\n", escaped(&section.lead));
    if let Some((name, text)) = &section.file {
        let lines: Vec<String> = text.trim_end().lines().map(escaped).collect();
        let (name, text) = (escaped(name), lines.join("\n"));
        out.push_str(&format!("<h3>{name}</h3>\n<pre><code>{text}\n</code></pre>\n"));
    }
    out.push_str("<div class=\"charts\">\n");
    let mut summary = section.summary.as_ref().map_or(String::new(), in_table);
    for chart in &section.charts {
        out.push_str(&in_figure(chart, &section.heading));
        out.push_str(&std::mem::take(&mut summary));
    }
    out.push_str(&format!("{summary}</div>\n"));
    if let Some(figures) = &section.figures {
        let open = if figures.rows() <= ROWS_UNFOLDED { " open=\"open\"" } else { "" };
        let caption = escaped(&figures.caption);
        let table = in_table(&Table { caption: String::new(), ..figures.clone() });
        out.push_str(&format!("<details{open}><summary>{caption}</summary>\n{table}</details>\n"));
    }
    out.push_str("</section>\n");
    out
}

/// Returns a chart with its title and note, drawn for wide screens and for narrow ones. The page
/// shows the one that fits.
fn in_figure(chart: &Chart, about: &str) -> String {
    let [wide, narrow] = [Form::Wide, Form::Narrow].map(|form| svg(chart, about, form));
    format!(
        "<div>\n<h3>{}</h3>\n<p>{}</p>\n<figure>{wide}{narrow}</figure>\n{}</div>\n",
        escaped(&chart.title),
        escaped(&chart.note),
        legend(chart)
    )
}

/// Largest number of columns of a table that fits into the width of a telephone.
const COLUMNS_NARROW: usize = 4;

/// Returns a table. On a narrow screen each row of one with many columns becomes a list, each
/// value after the heading of its column.
fn in_table(table: &Table) -> String {
    let many = table.columns.len() > COLUMNS_NARROW;
    let mut out = "<div class=\"scroll\">".to_owned();
    out.push_str(if many { "<table class=\"many\">\n" } else { "<table>\n" });
    if !table.caption.is_empty() {
        out.push_str(&format!("<caption>{}</caption>\n", escaped(&table.caption)));
    }
    let class = |column: usize| if column < table.text_columns { " class=\"text\"" } else { "" };
    let heading = |(at, text): (usize, &String)| {
        format!("<th scope=\"col\"{}>{}</th>", class(at), escaped(text))
    };
    let headings: String = table.columns.iter().enumerate().map(heading).collect();
    out.push_str(&format!("<thead><tr>{headings}</tr></thead>\n"));
    for group in &table.groups {
        out.push_str("<tbody>\n");
        if !group.heading.is_empty() {
            let (wide, heading) = (table.columns.len(), escaped(&group.heading));
            out.push_str(&format!(
                "<tr><th colspan=\"{wide}\" scope=\"rowgroup\">{heading}</th></tr>\n"
            ));
        }
        for row in &group.rows {
            let cell = |(at, text): (usize, &String)| {
                let heading = match many {
                    true => format!(" data-head=\"{}\"", escaped(&table.columns[at])),
                    false => String::new(),
                };
                format!("<td{}{heading}>{}</td>", class(at), escaped(text))
            };
            let cells: String = row.cells.iter().enumerate().map(cell).collect();
            out.push_str(&format!("<tr{}>{cells}</tr>\n", row_class(row.rank)));
        }
        out.push_str("</tbody>\n");
    }
    out.push_str("</table></div>\n");
    out
}

fn row_class(rank: Rank) -> &'static str {
    match rank {
        Rank::Usual => "",
        Rank::Best => " class=\"best\"",
        Rank::Bound => " class=\"bound\"",
    }
}

/// Returns a chart as an SVG element for a page.
fn svg(chart: &Chart, about: &str, form: Form) -> String {
    let chart = chart.drawable();
    let Drawn { size: (width, height), marks, tips } = drawn(&chart, form, "");
    let label = escaped(&format!("{}, {about}", chart.title));
    let class = if form == Form::Wide { "wide" } else { "narrow" };
    let mut out = format!(
        "<svg class=\"{class}\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-label=\"{label}\">"
    );
    out.push_str(&marks);
    out.extend(tips.iter().map(tip));
    out.push_str("</svg>");
    out
}

/// Returns a chart under a heading as an SVG file on a white background.
fn svg_file(chart: &Chart, heading: &str) -> String {
    let Drawn { size: (width, height), marks, .. } = drawn(&chart.drawable(), Form::Wide, heading);
    let (across, down) = (width / FINE, height / FINE);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{across}\" height=\"{down}\" \
         viewBox=\"0 0 {width} {height}\">\n<style>text{{font-family:system-ui,\"Segoe UI\",\
         Roboto,\"Noto Sans\",sans-serif}}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#FFFFFF\"/>\n{marks}</svg>\n"
    )
}

/// A drawing in SVG, without the `svg` element around it.
struct Drawn {
    /// Width and height in steps.
    size: (u32, u32),
    marks: String,
    tips: Vec<Tip>,
}

/// Draws a chart, under a heading unless that is empty.
fn drawn(chart: &Chart, form: Form, heading: &str) -> Drawn {
    let above = if heading.is_empty() { 0.0 } else { lines::HEADING };
    let height = (lines::height(chart, form) + above).ceil();
    let size = (form.width() as u32 * FINE, height as u32 * FINE);
    let mut drawing = String::new();
    let tips = {
        let area = SVGBackend::with_string(&mut drawing, size).into_drawing_area();
        let writer = ChartWriter::new(&area, Letters::Browser, form);
        let tips = lines::draw(&writer, chart, heading);
        // A string takes everything: no drawing into one fails.
        area.present().and(tips).unwrap_or_default()
    };
    Drawn { size, marks: inside(&drawing).to_owned(), tips }
}

/// Returns an invisible SVG area that shows a text when the pointer rests on it.
fn tip(tip: &Tip) -> String {
    let [left, top, width, height] = tip.area.map(steps);
    let (class, round) = if tip.is_point { ("point", width / 2) } else { ("strip", 0) };
    format!(
        "<rect class=\"tip {class}\" x=\"{left}\" y=\"{top}\" width=\"{width}\" \
         height=\"{height}\" rx=\"{round}\"><title>{}</title></rect>\n",
        tip.text.lines().map(escaped).collect::<Vec<_>>().join("\n")
    )
}

/// Returns the CSS rules that replace each colour of a drawing on a dark background.
fn dark_drawings() -> String {
    let mut rules = "@media screen and (prefers-color-scheme:dark){\n".to_owned();
    for colour in colours() {
        for attribute in ["fill", "stroke"] {
            // Writing to a string does not fail.
            let _ = writeln!(
                rules,
                "svg [{attribute}=\"#{:06X}\"]{{{attribute}:#{:06X}}}",
                colour.light, colour.dark
            );
        }
    }
    rules.push_str("}\n");
    rules
}
