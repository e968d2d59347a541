//! Errors of the program: one line of text and an exit code.

use floe_server::admin::client::AdminError;

/// Exit code for bad arguments or bad input.
pub(crate) const USAGE: u8 = 2;
/// Exit code for a failure while running.
const FAILURE: u8 = 1;

/// An error that is reported to the user as one line.
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

    pub(crate) fn line(&self) -> &str {
        &self.line
    }

    pub(crate) fn code(&self) -> u8 {
        self.code
    }
}

/// Converts a server's refusal, which counts as bad input.
impl From<AdminError> for CliError {
    fn from(error: AdminError) -> Self {
        let line = error.to_string();
        match error {
            AdminError::Refused { .. } => Self::usage(line),
            _ => Self::failure(line),
        }
    }
}

/// Converts errors of any part of the program to one line for the user.
pub(crate) trait OrFail<T> {
    /// Converts an error caused by the command line, a file or received data: exit code 2.
    fn or_usage(self) -> Result<T, CliError>;
    /// Converts an error that occurred while running: exit code 1.
    fn or_failure(self) -> Result<T, CliError>;
}

impl<T, E: std::fmt::Display> OrFail<T> for Result<T, E> {
    fn or_usage(self) -> Result<T, CliError> {
        self.map_err(|error| CliError::usage(error.to_string()))
    }

    fn or_failure(self) -> Result<T, CliError> {
        self.map_err(|error| CliError::failure(error.to_string()))
    }
}
