//! What was measured, as a table for people or a line of JSON for each number.

use std::io::Write;

use comfy_table::{CellAlignment, Table, TableComponent, presets};
use serde_json::json;

use crate::roster::Named;

/// The rows of one figure.
pub struct Results {
    figure: &'static str,
    about: &'static str,
    subjects: Vec<String>,
    rows: Vec<(String, Vec<f64>)>,
}

impl Results {
    pub fn new(figure: &'static str, about: &'static str, subjects: &[Named]) -> Self {
        let subjects = subjects.iter().map(|subject| subject.name.clone()).collect();
        Self { figure, about, subjects, rows: Vec::new() }
    }

    /// Sets the value of one subject in a row. Adds the row if there is none of this name.
    pub fn set(&mut self, row: impl Into<String>, subject: usize, value: f64) {
        let row = row.into();
        let index = self.rows.iter().position(|(name, _)| *name == row).unwrap_or_else(|| {
            self.rows.push((row, vec![f64::NAN; self.subjects.len()]));
            self.rows.len() - 1
        });
        self.rows[index].1[subject] = value;
    }

    pub fn print_json(&self) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        for (row, values) in &self.rows {
            for (subject, &value) in self.subjects.iter().zip(values) {
                if !value.is_nan() {
                    let figure = self.figure;
                    let line = json!({
                        "figure": figure, "row": row, "subject": subject, "value": value,
                    });
                    writeln!(out, "{line}")?;
                }
            }
        }
        Ok(())
    }

    pub fn print_table(&self) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        for line in [TableComponent::HeaderLines, TableComponent::MiddleHeaderIntersections] {
            table.set_style(line, '─');
        }
        // A name with settings would not fit 80 columns: it is a letter, told below.
        let is_long = |name: &str| name.contains('/');
        let letter = |index: usize| format!("({})", char::from(b'a' + (index % 26) as u8));
        let heads = self.subjects.iter().enumerate();
        let heads = heads.map(|(i, name)| if is_long(name) { letter(i) } else { name.clone() });
        table.set_header(std::iter::once(self.figure.to_owned()).chain(heads));
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for (row, values) in &self.rows {
            table.add_row(std::iter::once(row.clone()).chain(values.iter().map(|&n| text(n))));
        }
        writeln!(out, "{}\n{table}", self.about)?;
        for (index, name) in self.subjects.iter().enumerate() {
            if is_long(name) {
                writeln!(out, "{}: {name}", letter(index))?;
            }
        }
        writeln!(out)
    }
}

fn text(value: f64) -> String {
    match value.abs() {
        _ if value.is_nan() => "–".into(),
        0.0 => "0".into(),
        ..10.0 => format!("{value:.3}"),
        ..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}
