//! What goes wrong, in one line on standard error, and the exit code it ends in.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use floe_export::admin::client::AdminError;

use crate::log;

/// Bad arguments or bad input.
const USAGE: u8 = 2;
/// A failure while running.
const FAILURE: u8 = 1;

/// One line for the user.
#[derive(Debug)]
pub(crate) struct CliError {
    line: String,
    code: u8,
}

impl CliError {
    pub(crate) fn usage(line: impl Into<String>) -> Self {
        Self { line: line.into(), code: USAGE }
    }

    pub(crate) fn failure(line: impl Into<String>) -> Self {
        Self { line: line.into(), code: FAILURE }
    }

    /// The same, with what it is about before it.
    pub(crate) fn about(self, what: &str) -> Self {
        Self { line: format!("{what}: {}", self.line), ..self }
    }

    pub(crate) fn line(&self) -> &str {
        &self.line
    }

    /// Whether something failed, rather than being wrong.
    pub(crate) fn is_failure(&self) -> bool {
        self.code == FAILURE
    }

    pub(crate) fn report(&self) -> ExitCode {
        let line = format!("floe: {}", self.line.replace('\n', " "));
        if !log::end_with(&line) {
            eprintln!("{line}");
        }
        ExitCode::from(self.code)
    }
}

/// What the server refuses is bad input as well.
impl From<AdminError> for CliError {
    fn from(error: AdminError) -> Self {
        let line = error.to_string();
        match error {
            AdminError::Refused { .. } => Self::usage(line),
            _ => Self::failure(line),
        }
    }
}

/// Prints help where it was asked for, and otherwise the first line of what clap has to say.
pub(crate) fn explain(refusal: &clap::Error) -> ExitCode {
    if !refusal.use_stderr() {
        let _ = refusal.print(); // a reader who has seen enough and closed the pipe is no error
        return ExitCode::SUCCESS;
    }
    let text = refusal.render().to_string();
    if refusal.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        eprint!("{text}");
        return ExitCode::from(USAGE);
    }
    // clap lists what is missing on lines of their own.
    let lines = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim);
    let line = lines.collect::<Vec<_>>().join(" ");
    let hint = meant(refusal).map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
    CliError::usage(format!("{}{hint}", line.trim_start_matches("error: "))).report()
}

/// What looks like the word that clap does not know.
fn meant(refusal: &clap::Error) -> Option<&str> {
    let suggested =
        [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    match suggested.into_iter().find_map(|kind| refusal.get(kind))? {
        ContextValue::String(one) => Some(one),
        ContextValue::Strings(some) => some.first().map(String::as_str),
        _ => None,
    }
}
