//! Errors as users see them: one line on standard error, and an exit code.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};

use crate::error::{CliError, USAGE};
use crate::log;
use crate::settings::refused_by_replay;

/// Prints an error, and returns the exit code it ends in.
pub(crate) fn report(error: &CliError) -> ExitCode {
    let line = format!("floe: {}", error.line().replace('\n', " "));
    if !log::end_with(&line) {
        eprintln!("{line}");
    }
    ExitCode::from(error.code())
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
    if let Some(line) = refused_by_replay(refusal) {
        return report(&CliError::usage(line));
    }
    // clap lists what is missing on lines of their own.
    let lines = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim);
    let line = lines.collect::<Vec<_>>().join(" ");
    let hint = meant(refusal).map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
    report(&CliError::usage(format!("{}{hint}", line.trim_start_matches("error: "))))
}

/// The word that looks like the one clap does not know.
fn meant(refusal: &clap::Error) -> Option<&str> {
    let suggested =
        [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    match suggested.into_iter().find_map(|kind| refusal.get(kind))? {
        ContextValue::String(one) => Some(one),
        ContextValue::Strings(some) => some.first().map(String::as_str),
        _ => None,
    }
}
