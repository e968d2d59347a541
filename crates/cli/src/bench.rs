//! `floe bench`: caches under load.

pub(crate) mod memory;

use clap::Subcommand;

use crate::error::CliError;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure the cache in memory: throughput and latencies, and what a miss costs
    Memory(Box<memory::Arguments>),
}

pub(crate) fn run(command: &Command) -> Result<(), CliError> {
    match command {
        Command::Memory(arguments) => memory::run(arguments),
    }
}
