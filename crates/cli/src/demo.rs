//! `floe demo`.

use clap::Args;

use crate::error::CliError;

#[derive(Debug, Args)]
pub(crate) struct Arguments {}

pub(crate) fn run(_: &Arguments) -> Result<(), CliError> {
    Ok(())
}
