//! An error of the program: one line, and the exit code it ends in.

use floe_server::admin::client::AdminError;

/// Bad arguments or bad input.
pub(crate) const USAGE: u8 = 2;
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

    pub(crate) fn line(&self) -> &str {
        &self.line
    }

    pub(crate) fn code(&self) -> u8 {
        self.code
    }
}

/// A refusal by the server is bad input as well.
impl From<AdminError> for CliError {
    fn from(error: AdminError) -> Self {
        let line = error.to_string();
        match error {
            AdminError::Refused { .. } => Self::usage(line),
            _ => Self::failure(line),
        }
    }
}

/// Makes one line of a failure in any part of the program.
pub(crate) trait OrFail<T> {
    /// The command line, a file or a packet was wrong: exit code 2.
    fn or_usage(self) -> Result<T, CliError>;
    /// Something failed while running: exit code 1.
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
