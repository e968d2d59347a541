//! Output of results: tables for users, JSON lines for programs, progress on standard error.

use std::fmt::{self, Write as _};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, Table, TableComponent, presets,
};
use floe_block::format_size;
use floe_lab::report::{PictureFormat, Report, html, write_pictures};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::Error;
use serde_json::Value;

use crate::error::{CliError, OrFail};

/// Prints one JSON object on a line of its own.
pub(crate) fn json_line(value: &impl Serialize) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, value)?;
    out.write_all(b"\n")
}

/// Prints results as a table in CSV.
pub(crate) fn csv<T: Serialize>(results: &[T]) -> std::io::Result<()> {
    std::io::stdout().lock().write_all(csv_text(results)?.as_bytes())
}

/// Returns an empty table with these columns. The first `left_aligned` columns are aligned left,
/// the others right.
pub(crate) fn table(columns: &[&str], left_aligned: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for line in [TableComponent::HeaderLines, TableComponent::MiddleHeaderIntersections] {
        table.set_style(line, '─');
    }
    table.set_header(columns.to_vec());
    for (column, index) in table.column_iter_mut().zip(0..) {
        let alignment =
            if index < left_aligned { CellAlignment::Left } else { CellAlignment::Right };
        column.set_cell_alignment(alignment);
        column.set_padding((1, 1));
    }
    table
}

pub(crate) fn align_left(table: &mut Table, column: usize) {
    if let Some(column) = table.column_mut(column) {
        column.set_cell_alignment(CellAlignment::Left);
    }
}

/// Prints a line for users. A closed pipe is not an error.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

pub(crate) use say;

/// Prints a table. A closed pipe is not an error.
pub(crate) fn print_table(table: &Table) {
    let _ = writeln!(std::io::stdout(), "{table}");
}

/// Prints a table of names or texts. On a terminal, cells of the `flexible` columns are wrapped
/// where the table would be wider than [`WIDTH`].
pub(crate) fn print_list(table: Table, flexible: &[usize]) {
    print_table(&if std::io::stdout().is_terminal() { fitted(table, flexible) } else { table });
}

/// Wraps cells of the `flexible` columns so that a table fits [`WIDTH`].
fn fitted(mut table: Table, flexible: &[usize]) -> Table {
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH as u16);
    let columns = table.column_iter_mut().zip(0..);
    for (column, _) in columns.filter(|(_, index)| !flexible.contains(index)) {
        column.set_constraint(ColumnConstraint::ContentWidth);
    }
    table
}

/// Width of tables in columns, which fits a terminal.
const WIDTH: usize = 80;

/// Maximum characters of a subject's name. The end of the name is shown, because folders come
/// first.
const NAME: usize = 50;

/// The figures of a subject, such as a trace.
pub(crate) struct Column {
    /// Name of the subject.
    pub name: String,
    /// Name and value of each row. All columns of a table have the same names in the same order.
    pub rows: Vec<(String, String)>,
}

impl Column {
    /// Returns the width of the column, including the blanks around it.
    fn width(&self) -> usize {
        let values = self.rows.iter().map(|(_, value)| length(value));
        2 + values.chain([length(&shown(&self.name))]).max().unwrap_or(0)
    }
}

/// Formats all columns as one table, or as several below each other where they are too wide for
/// one. `subject` is the heading of the row names.
pub(crate) fn tables(subject: &str, columns: &[Column]) -> String {
    let mut text = String::new();
    let mut left = columns;
    while let Some(first) = left.first() {
        let names = first.rows.iter().map(|(name, _)| length(name));
        let mut width = 2 + names.chain([length(subject)]).max().unwrap_or(0);
        let fitting = left.iter().take_while(|column| {
            width += column.width();
            width <= WIDTH
        });
        let (together, rest) = left.split_at(fitting.count().max(1));
        if !text.is_empty() {
            text.push('\n');
        }
        let _ = writeln!(text, "{}", pivoted(subject, first, together));
        left = rest;
    }
    text
}

fn pivoted(subject: &str, first: &Column, columns: &[Column]) -> Table {
    let shown: Vec<String> = columns.iter().map(|column| shown(&column.name)).collect();
    let heads: Vec<&str> = [subject].into_iter().chain(shown.iter().map(String::as_str)).collect();
    let mut table = table(&heads, 1);
    for (at, (name, _)) in first.rows.iter().enumerate() {
        let values = columns.iter().map(|column| column.rows[at].1.clone());
        table.add_row([name.clone()].into_iter().chain(values));
    }
    table
}

/// Shortens a text to its first `most` characters, the last of which says that some are left out.
pub(crate) fn beginning(text: &str, most: usize) -> String {
    match length(text) > most {
        true => text.chars().take(most - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// Shortens a name to the part that is shown.
fn shown(name: &str) -> String {
    match length(name) {
        length if length > NAME => {
            "…".chars().chain(name.chars().skip(length + 1 - NAME)).collect()
        }
        _ => name.to_owned(),
    }
}

/// Formats a number of bytes for users: exactly if a unit divides it, else with one decimal.
pub(crate) fn bytes(bytes: u64) -> String {
    let exact = format_size(bytes);
    if bytes < 1024 || exact.len() < 8 && exact.ends_with('B') {
        return if bytes < 1024 { format!("{bytes} B") } else { exact };
    }
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = (63 - bytes.leading_zeros() as usize) / 10;
    format!("{:.1} {}", bytes as f64 / (1u64 << (10 * power)) as f64, units[power - 1])
}

/// Formats a count with its noun, which gets an `s` unless the count is 1.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Formats a time given in microseconds, in the unit that fits.
pub(crate) fn microseconds(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{:.2} s", us / 1e6),
        us if us >= 1e3 => format!("{:.2} ms", us / 1e3),
        us => format!("{us:.1} µs"),
    }
}

/// Creates a progress bar on standard error, which is drawn only on a terminal.
pub(crate) fn progress(length: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template(
        "{msg:28} {bar:32} {percent:>3} %  {elapsed} of about {duration}",
    );
    bar.set_style(style.expect("the template is well formed"));
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Creates a spinner on standard error for work of unknown length.
pub(crate) fn spinner(what: &str) -> ProgressBar {
    let spinner = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    spinner.set_message(what.to_owned());
    spinner.enable_steady_tick(Duration::from_millis(200));
    spinner
}

/// Writes text to a file that the user has named.
pub(crate) fn write_file(file: &Path, text: &str) -> Result<(), CliError> {
    std::fs::write(file, text)
        .map_err(|error| CliError::failure(format!("cannot write {}: {error}", file.display())))
}

/// The files to which a command writes its report.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ReportFiles {
    /// Write a page with charts that needs no network
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Write the same charts as pictures, named STEM-CHART.png
    #[arg(long, value_name = "STEM")]
    png: Option<PathBuf>,
    /// Write them as SVG, for papers, named STEM-CHART.svg
    #[arg(long, value_name = "STEM")]
    svg: Option<PathBuf>,
}

impl ReportFiles {
    /// Returns whether the user asked for any file.
    pub(crate) fn any(&self) -> bool {
        self.report.is_some() || self.png.is_some() || self.svg.is_some()
    }

    /// Writes a report to the files that the user asked for. `report` builds the report from the
    /// text of the command line.
    pub(crate) fn write(&self, report: impl FnOnce(&str) -> Report) -> Result<(), CliError> {
        if !self.any() {
            return Ok(());
        }
        let line = |line: String, word: String| line + " " + &word;
        let report = report(&std::env::args().skip(1).fold("floe".to_owned(), line));
        if let Some(file) = &self.report {
            write_file(file, &html(&report))?;
        }
        let pictures = [(&self.png, PictureFormat::Png), (&self.svg, PictureFormat::Svg)];
        for (stem, format) in pictures {
            if let Some(stem) = stem {
                write_pictures(&report, stem, format).or_failure()?;
            }
        }
        Ok(())
    }
}

/// The fields of a result, in order.
struct Fields(Vec<(String, Cell)>);

/// The value of a field in CSV.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Cell {
    Object(Fields),
    Other(Value),
}

/// Returns results as CSV with a header line.
fn csv_text<T: Serialize>(results: &[T]) -> serde_json::Result<String> {
    let mut columns: Vec<String> = Vec::new();
    let mut rows = Vec::new();
    for result in results {
        let fields: Fields = serde_json::from_str(&serde_json::to_string(result)?)?;
        let mut row = Vec::new();
        fields.flatten("", &mut row);
        let mut after = 0;
        for (name, _) in &row {
            // A field that earlier results lack comes behind the one before it.
            after = match columns.iter().position(|column| column == name) {
                Some(at) => at + 1,
                None => {
                    columns.insert(after, name.clone());
                    after + 1
                }
            };
        }
        rows.push(row);
    }
    if columns.is_empty() {
        return Err(serde_json::Error::custom("there are no results"));
    }
    let mut text = line(columns.iter().map(String::as_str));
    for row in &rows {
        let cell = |column: &String| row.iter().find(|(name, _)| name == column);
        text += &line(columns.iter().map(|column| cell(column).map_or("", |(_, cell)| cell)));
    }
    Ok(text)
}

impl Fields {
    fn flatten(self, before: &str, row: &mut Vec<(String, String)>) {
        for (name, cell) in self.0 {
            let name = format!("{before}{name}");
            match cell {
                Cell::Object(fields) => fields.flatten(&(name + "."), row),
                Cell::Other(Value::Null) => row.push((name, String::new())),
                Cell::Other(Value::String(text)) => row.push((name, text)),
                Cell::Other(value) => row.push((name, value.to_string())),
            }
        }
    }
}

/// Returns a line of CSV, with quotation marks around cells that need them.
fn line<'a>(cells: impl Iterator<Item = &'a str>) -> String {
    let quoted = |cell: &str| match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    };
    cells.map(quoted).collect::<Vec<_>>().join(",") + "\n"
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Ordered;
        impl<'de> Visitor<'de> for Ordered {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Fields, M::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        from.deserialize_map(Ordered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_naturally() {
        let cases = [
            (0, "0 B"),
            (512, "512 B"),
            (65536, "64KiB"),
            (1_500_000, "1.4 MiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (count, text) in cases {
            assert_eq!(bytes(count), text);
        }
    }
}

#[cfg(test)]
mod csv_tests {
    use serde_json::json;

    use super::*;

    #[derive(serde::Serialize)]
    struct Result {
        policy: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        admission: Option<Inner>,
        hits: u64,
        list: Vec<u8>,
        #[serde(skip_serializing_if = "Option::is_none")]
        last: Option<f64>,
    }

    #[derive(serde::Serialize)]
    struct Inner {
        name: &'static str,
        share: f64,
    }

    #[test]
    fn columns_keep_the_order_of_fields_and_take_in_those_that_some_lack() {
        let plain =
            Result { policy: "lru", admission: None, hits: 5, list: vec![], last: Some(0.5) };
        let inner = Inner { name: "a \"b\"", share: 0.25 };
        let other =
            Result { policy: "x,y", admission: Some(inner), hits: 6, list: vec![1, 2], last: None };
        let expected = "policy,admission.name,admission.share,hits,list,last\n\
                        lru,,,5,[],0.5\n\
                        \"x,y\",\"a \"\"b\"\"\",0.25,6,\"[1,2]\",\n";
        assert_eq!(csv_text(&[plain, other]).unwrap(), expected);
    }

    #[test]
    fn what_is_no_object_is_no_row() {
        assert!(csv_text(&[json!(5)]).is_err());
        assert_eq!(csv_text(&[json!({"a": null, "b": true})]).unwrap(), "a,b\n,true\n");
    }
}

#[cfg(test)]
mod column_tests {
    use super::*;

    #[test]
    fn lists_fit_a_terminal_and_lose_nothing() {
        let list = |name: &str, limit: &str| {
            let mut list = table(&["volume", "access", "size", "limit"], 2);
            list.add_row([name, "read-write", "16GiB", limit]);
            list
        };
        let short = list("floe", "no limit");
        assert_eq!(fitted(short.clone(), &[0, 3]).to_string(), short.to_string());
        let limit = "1000000 requests/s, 100MiB/s, bursts of 1s";
        for name in ["n".repeat(200), "a name of words ".repeat(12)] {
            let text = fitted(list(&name, limit), &[0, 3]).to_string();
            for line in text.lines() {
                assert!(length(line) <= WIDTH, "{line}");
            }
            for whole in ["read-write", "16GiB"] {
                assert!(text.contains(whole), "{whole}: {text}");
            }
            let letters = |of: &str| {
                let letters = of.chars().filter(|it| !it.is_whitespace() && *it != '─');
                let mut letters: Vec<char> = letters.collect();
                letters.sort_unstable();
                letters
            };
            let all = ["volume access size limit read-write 16GiB", &name, limit].concat();
            assert_eq!(letters(&text), letters(&all), "{text}");
        }
    }

    #[test]
    fn tables_fit_80_columns_and_lose_no_figure() {
        let column = |name: &str, digits: usize| Column {
            name: name.to_owned(),
            rows: ["requests", "LRU misses at 10%"]
                .map(|row| (row.to_owned(), "7".repeat(digits)))
                .into(),
        };
        let long = format!("{}/name", "folder/".repeat(30));
        let columns = [column("a", 30), column("b", 20), column("c", 30), column(&long, 3)];
        let text = tables("trace", &columns);
        for line in text.lines() {
            assert!(length(line) <= WIDTH, "{line}");
        }
        assert_eq!(text.matches("requests").count(), 3, "{text}");
        assert_eq!(text.matches(&"7".repeat(30)).count(), 4, "{text}");
        assert!(text.contains("/name"), "{text}");
    }
}
