//! Prints results: tables for users, one JSON object a line for programs, progress on standard
//! error.

use std::io::Write;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, TableComponent, presets};
use floe_block::format_size;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::csv;

/// Prints one JSON object on a line of its own.
pub(crate) fn json_line(value: &impl Serialize) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, value)?;
    out.write_all(b"\n")
}

/// Prints results as a table in CSV.
pub(crate) fn csv<T: Serialize>(results: &[T]) -> std::io::Result<()> {
    std::io::stdout().lock().write_all(csv::csv(results)?.as_bytes())
}

/// Makes a table with these columns, the first `left_aligned` to the left and the others to the
/// right.
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

/// Aligns one column of a table to the left.
pub(crate) fn align_left(table: &mut Table, column: usize) {
    if let Some(column) = table.column_mut(column) {
        column.set_cell_alignment(CellAlignment::Left);
    }
}

/// Prints a line for users. A reader that has closed the pipe is no error.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}
pub(crate) use say;

/// Prints a table. A reader that has closed the pipe is no error.
pub(crate) fn print_table(table: &Table) {
    let _ = writeln!(std::io::stdout(), "{table}");
}

/// Formats bytes for users: exact where a unit divides them, else with one decimal.
pub(crate) fn bytes(bytes: u64) -> String {
    let exact = format_size(bytes);
    if bytes < 1024 || exact.len() < 8 && exact.ends_with('B') {
        return if bytes < 1024 { format!("{bytes} B") } else { exact };
    }
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = (63 - bytes.leading_zeros() as usize) / 10;
    format!("{:.1} {}", bytes as f64 / (1u64 << (10 * power)) as f64, units[power - 1])
}

/// Formats a share in percent.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Formats a time in microseconds, in the unit that fits.
pub(crate) fn microseconds(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{:.2} s", us / 1e6),
        us if us >= 1e3 => format!("{:.2} ms", us / 1e3),
        us => format!("{us:.1} µs"),
    }
}

/// Makes a bar on standard error, drawn only when that is a terminal.
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

/// Makes a spinner on standard error for work of unknown length.
pub(crate) fn spinner(what: &str) -> ProgressBar {
    let spinner = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    spinner.set_message(what.to_owned());
    spinner.enable_steady_tick(Duration::from_millis(200));
    spinner
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
