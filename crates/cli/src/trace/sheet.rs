//! The figures of several traces: a row for each figure and a column for each trace, in as many
//! tables as it takes to fit a terminal.

use std::fmt::Write as _;

use crate::output;

/// Columns of a terminal.
const WIDTH: usize = 80;

/// Characters of a trace's name that are shown: its end, as the folders come first.
const NAME: usize = 50;

/// The figures of a trace.
pub(super) struct Figures {
    pub(super) trace: String,
    /// Names and values; the same names in the same order for all traces.
    pub(super) rows: Vec<(String, String)>,
}

impl Figures {
    /// The width of this trace's column, with the blanks around it.
    fn width(&self) -> usize {
        let values = self.rows.iter().map(|(_, value)| length(value));
        2 + values.chain([length(&shown(&self.trace))]).max().unwrap_or(0)
    }
}

/// Returns tables of all figures.
pub(super) fn tables(traces: &[Figures]) -> String {
    let mut text = String::new();
    let mut left = traces;
    while let Some(first) = left.first() {
        let names = first.rows.iter().map(|(name, _)| length(name));
        let mut width = 2 + names.max().unwrap_or(0);
        let fitting = left.iter().take_while(|trace| {
            width += trace.width();
            width <= WIDTH
        });
        let (together, rest) = left.split_at(fitting.count().max(1));
        if !text.is_empty() {
            text.push('\n');
        }
        let _ = writeln!(text, "{}", table(first, together));
        left = rest;
    }
    text
}

fn table(first: &Figures, traces: &[Figures]) -> comfy_table::Table {
    let shown: Vec<String> = traces.iter().map(|trace| shown(&trace.trace)).collect();
    let columns: Vec<&str> =
        ["trace"].into_iter().chain(shown.iter().map(String::as_str)).collect();
    let mut table = output::table(&columns, 1);
    for (at, (name, _)) in first.rows.iter().enumerate() {
        let values = traces.iter().map(|trace| trace.rows[at].1.clone());
        table.add_row([name.clone()].into_iter().chain(values));
    }
    table
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// Returns the part of a name that is shown.
fn shown(name: &str) -> String {
    match length(name) {
        length if length > NAME => {
            "…".chars().chain(name.chars().skip(length + 1 - NAME)).collect()
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_fit_80_columns_and_lose_no_figure() {
        let trace = |name: &str, digits: usize| Figures {
            trace: name.to_owned(),
            rows: ["requests", "LRU of 10%"].map(|row| (row.to_owned(), "7".repeat(digits))).into(),
        };
        let long = format!("{}/name", "folder/".repeat(30));
        let traces = [trace("a", 30), trace("b", 20), trace("c", 30), trace(&long, 3)];
        let text = tables(&traces);
        for line in text.lines() {
            assert!(length(line) <= WIDTH, "{line}");
        }
        assert_eq!(text.matches("requests").count(), 3, "{text}");
        assert_eq!(text.matches(&"7".repeat(30)).count(), 4, "{text}");
        assert!(text.contains("/name"), "{text}");
    }
}
