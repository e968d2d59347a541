//! A report as one page: everything inline, so that it can be mailed, archived and opened without a
//! network.
//!
//! Drawings are made once, in colours for light ground; a rule for each colour replaces it on dark
//! ground, which style sheets may do to the attributes of SVG. Pointing at a drawing shows values
//! by the browser's own means, without scripts.

use std::fmt::Write as _;

use plotters::prelude::*;

use super::chart::Chart;
use super::chart_writer::{ChartWriter, FINE, Letters, Tip, WIDTH, steps};
use super::draw;
use super::legend::legend;
use super::look::colours;
use super::markup::{escaped, inside};
use super::table::{Rank, Table};
use super::{Report, Section};

/// Tables with more rows are folded.
const ROWS_UNFOLDED: usize = 60;

/// The page.
pub fn html(report: &Report) -> String {
    let title = escaped(&report.title);
    let mut page = format!(
        concat!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n",
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n",
            "<title>{title}</title>\n<style>\n{css}{dark}</style>\n</head>\n<body>\n",
            "<h1>{title}</h1>\n",
        ),
        title = title,
        css = include_str!("page.css"),
        dark = dark_drawings(),
    );
    if !report.command.is_empty() {
        page.push_str(&format!("<pre><code>{}</code></pre>\n", escaped(&report.command)));
    }
    if report.sections.len() > 1 {
        page.push_str("<nav><p>");
        for (at, section) in report.sections.iter().enumerate() {
            page.push_str(&format!("<a href=\"#s{at}\">{}</a> ", escaped(&section.heading)));
        }
        page.push_str("</p></nav>\n");
    }
    for (at, section) in report.sections.iter().enumerate() {
        page.push_str(&in_section(at, section));
    }
    page.push_str(&format!(
        "<footer>floe {}</footer>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION")
    ));
    page
}

fn in_section(at: usize, section: &Section) -> String {
    let mut out = format!("<section id=\"s{at}\">\n<h2>{}</h2>\n", escaped(&section.heading));
    out.push_str(&format!("<p>{}</p>\n", escaped(&section.lead)));
    if let Some((name, text)) = &section.file {
        let lines: Vec<String> = text.trim_end().lines().map(escaped).collect();
        let (name, text) = (escaped(name), lines.join("\n"));
        out.push_str(&format!("<h3>{name}</h3>\n<pre><code>{text}\n</code></pre>\n"));
    }
    if let Some(summary) = &section.summary {
        out.push_str(&in_table(summary));
    }
    for chart in &section.charts {
        out.push_str(&format!(
            "<h3>{}</h3>\n<p>{}</p>\n",
            escaped(&chart.title),
            escaped(&chart.note)
        ));
        out.push_str(&format!("<figure>{}</figure>\n", svg(chart, &section.heading)));
        out.push_str(&legend(chart));
    }
    if let Some(figures) = &section.figures {
        let open = if figures.rows() <= ROWS_UNFOLDED { " open=\"open\"" } else { "" };
        let caption = escaped(&figures.caption);
        let table = in_table(&Table { caption: String::new(), ..figures.clone() });
        out.push_str(&format!("<details{open}><summary>{caption}</summary>\n{table}</details>\n"));
    }
    out.push_str("</section>\n");
    out
}

fn in_table(table: &Table) -> String {
    let mut out = "<div class=\"scroll\"><table>\n".to_owned();
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
            let cell =
                |(at, text): (usize, &String)| format!("<td{}>{}</td>", class(at), escaped(text));
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

/// The drawing, as an element for a page.
fn svg(chart: &Chart, about: &str) -> String {
    let chart = chart.drawable();
    let height = draw::height(&chart).ceil();
    let size = (WIDTH as u32 * FINE, height as u32 * FINE);
    let mut drawing = String::new();
    let tips = {
        let area = SVGBackend::with_string(&mut drawing, size).into_drawing_area();
        let tips = draw::draw(&ChartWriter::new(&area, Letters::Browser), &chart, "");
        // A string takes everything: no drawing into one fails.
        area.present().and(tips).unwrap_or_default()
    };
    let label = escaped(&format!("{}, {about}", chart.title));
    let mut out =
        format!("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{label}\">", size.0, size.1);
    out.push_str(inside(&drawing));
    out.extend(tips.iter().map(tip));
    out.push_str("</svg>");
    out
}

/// An invisible area that says something when the pointer rests on it.
fn tip(tip: &Tip) -> String {
    let [left, top, width, height] = tip.area.map(steps);
    let (class, round) = if tip.is_point { ("point", width / 2) } else { ("strip", 0) };
    format!(
        "<rect class=\"tip {class}\" x=\"{left}\" y=\"{top}\" width=\"{width}\" \
         height=\"{height}\" rx=\"{round}\"><title>{}</title></rect>\n",
        tip.text.lines().map(escaped).collect::<Vec<_>>().join("\n")
    )
}

/// Rules that replace each colour of a drawing on dark ground.
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
