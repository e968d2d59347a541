//! The log of a server: events on standard error, a line each, for people or as JSON.

use std::io::IsTerminal;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

use crate::error::CliError;

/// The variable that says which events are wanted.
const FILTER: &str = "FLOE_LOG";

/// From nothing to everything.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// How events look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people, with colours on a terminal
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Logs to standard error from now on.
pub(crate) fn begin(format: Format) -> Result<(), CliError> {
    let refuse = |problem: String| CliError::usage(format!("{FILTER}: {problem}"));
    let filter = match std::env::var(FILTER) {
        Ok(text) => {
            if let Some(word) = not_a_level(&text) {
                return Err(refuse(format!(
                    "`{word}` is not a level; levels are {}, and of a part of floe such as floe_export=debug",
                    LEVELS.join(", ")
                )));
            }
            EnvFilter::try_new(&text).map_err(|error| refuse(format!("`{text}`: {error}")))?
        }
        Err(std::env::VarError::NotPresent) => EnvFilter::new("info"),
        Err(error) => return Err(refuse(error.to_string())),
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A closed terminal takes no more lines, and is no reason to panic.
    let log = log.log_internal_errors(false);
    match format {
        Format::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        Format::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}

/// The first word of a filter that would be taken for the name of a part, of which everything and beside which nothing is logged, and is
/// not floe's.
fn not_a_level(filter: &str) -> Option<&str> {
    let is_meant = |word: &&str| {
        let is_level = LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
        word.is_empty() || is_level || word.contains(['=', '[']) || word.starts_with("floe")
    };
    filter.split(',').map(str::trim).find(|word| !is_meant(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_neither_a_level_nor_a_part_is_found() {
        for good in
            ["info", "WARN", "floe_export=debug,warn", "floe_block", "", "off", "floe_export=debug, warn"]
        {
            assert_eq!(not_a_level(good), None, "{good}");
        }
        assert_eq!(not_a_level("warning"), Some("warning"));
        assert_eq!(not_a_level("floe_export=debug,loud"), Some("loud"));
    }
}
