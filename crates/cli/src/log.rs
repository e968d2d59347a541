//! The log of a server: events on standard error, a line each, for people or as JSON.

use std::io::IsTerminal;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

use crate::error::CliError;

/// The variable that says which events are wanted.
const FILTER: &str = "FLOE_LOG";

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
        Ok(text) => EnvFilter::try_new(&text).map_err(|error| refuse(format!("`{text}`: {error}")))?,
        Err(std::env::VarError::NotPresent) => EnvFilter::new("info"),
        Err(error) => return Err(refuse(error.to_string())),
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        Format::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        Format::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}
