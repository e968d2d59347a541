//! `floe policies` and `floe admissions`: list the names that options accept.

use clap::Args;
use floe_policy::admission::ADMISSIONS;
use floe_policy::{HitKind, POLICIES, PolicyInfo};
use serde::Serialize;

use crate::error::{CliError, OrFail};
use crate::output;

/// Width of lists in columns, which fits a terminal.
const WIDTH: usize = 80;

/// Number of columns before the descriptions in a list.
const INDENT: usize = 15;

const POLICIES_EXAMPLES: &str = "\
Examples:
  floe policies
  floe policies --json";

const ADMISSIONS_EXAMPLES: &str = "\
Examples:
  floe admissions
  floe admissions --json";

#[derive(Debug, Args)]
#[command(after_help = POLICIES_EXAMPLES)]
pub(crate) struct PoliciesArguments {
    /// One JSON object per policy instead of a list
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = ADMISSIONS_EXAMPLES)]
pub(crate) struct AdmissionsArguments {
    /// One JSON object per admission instead of a list
    #[arg(long)]
    json: bool,
}

/// A policy or an admission in JSON.
#[derive(Serialize)]
struct Line {
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    admission: Option<&'static str>,
    /// True if a hit only sets a mark; false if a hit moves entries in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    fifo_like: Option<bool>,
    idea: &'static str,
    source: &'static str,
    parameters: Vec<ParameterLine>,
}

/// A parameter in JSON.
#[derive(Serialize)]
struct ParameterLine {
    name: &'static str,
    about: &'static str,
    default: f64,
    min: f64,
    max: f64,
    /// Names that stand for the values from `min` to `max`.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    names: &'static [&'static str],
}

pub(crate) fn policies(arguments: &PoliciesArguments) -> Result<(), CliError> {
    if !arguments.json {
        output::say!("{}", list(POLICIES.iter().map(|entry| &entry.info)).trim_end());
        return Ok(());
    }
    let line = |entry: &floe_policy::registry::Entry| {
        let fifo_like = Some(matches!(entry.kind, HitKind::FifoLike));
        output::json_line(&Line { policy: Some(entry.info.name), fifo_like, ..of(&entry.info) })
    };
    POLICIES.iter().try_for_each(line).or_failure()
}

pub(crate) fn admissions(arguments: &AdmissionsArguments) -> Result<(), CliError> {
    if !arguments.json {
        output::say!("{}", list(ADMISSIONS.iter()).trim_end());
        return Ok(());
    }
    let line =
        |info: &PolicyInfo| output::json_line(&Line { admission: Some(info.name), ..of(info) });
    ADMISSIONS.iter().try_for_each(line).or_failure()
}

fn of(info: &PolicyInfo) -> Line {
    let parameters = info.parameters.iter().map(|parameter| ParameterLine {
        name: parameter.name,
        about: parameter.about,
        default: parameter.default,
        min: parameter.min,
        max: parameter.max,
        names: parameter.names,
    });
    Line {
        policy: None,
        admission: None,
        fifo_like: None,
        idea: info.idea,
        source: info.source,
        parameters: parameters.collect(),
    }
}

/// Formats names with descriptions and parameters, wrapped.
fn list<'a>(infos: impl Iterator<Item = &'a PolicyInfo>) -> String {
    let mut text = String::new();
    for info in infos {
        text += &wrapped(info.name, info.idea, INDENT);
        for parameter in info.parameters {
            let (name, about, values) = (parameter.name, parameter.about, parameter.values());
            let default = parameter.written(parameter.default);
            text += &wrapped("", &format!("  :{name}={default} {about} ({values})"), INDENT + 4);
        }
    }
    text
}

/// Formats a name followed by a text, whose further lines are indented.
fn wrapped(name: &str, text: &str, indent: usize) -> String {
    let first = text.len() - text.trim_start().len();
    let mut lines = format!("{name:<INDENT$}{}", &text[..first]);
    let mut width = lines.chars().count();
    let mut fresh = true;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if !fresh && width + 1 + length > WIDTH {
            lines += &format!("\n{:indent$}", "");
            width = indent;
            fresh = true;
        }
        if !fresh {
            lines.push(' ');
            width += 1;
        }
        lines += word;
        width += length;
        fresh = false;
    }
    lines + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_fit_80_columns_and_lose_no_word() {
        let policies = list(POLICIES.iter().map(|entry| &entry.info));
        let admissions = list(ADMISSIONS.iter());
        for line in policies.lines().chain(admissions.lines()) {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&policies), words(&floe_policy::registry::help()));
        assert_eq!(words(&admissions), words(&floe_policy::admission::registry::help()));
    }
}
