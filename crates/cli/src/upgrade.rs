//! `floe upgrade`: a running server carries out the program that its file has now.
//!
//! The process stays the same one, so a service manager sees no end, and what requires the service
//! is not stopped.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use clap::Args;
use floe_server::admin::client;

use crate::admin::Server;
use crate::error::CliError;
use crate::log;

const EXAMPLES: &str = "\
Examples:
  floe upgrade
  floe upgrade --admin /run/floe-attach-pictures/admin.sock";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct UpgradeArguments {
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(arguments: &UpgradeArguments) -> Result<(), CliError> {
    Ok(client::upgrade(&arguments.server.endpoint()?)?)
}

/// The file of this process's program. Once another has its name, the system tells no usable one.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Notes the file of this program, before another can have its name.
pub(crate) fn note_program() {
    if let Ok(program) = std::env::current_exe() {
        PROGRAM.get_or_init(|| program);
    }
}

/// Checks that the program takes this process's arguments and settings, by having it print them.
pub(crate) fn check_program() -> Result<(), String> {
    let mut command = again()?;
    command.arg("--print-config").stdin(Stdio::null()).stdout(Stdio::null());
    let said = command.stderr(Stdio::piped()).output().map_err(|error| error.to_string())?;
    match said.status.success() {
        true => Ok(()),
        false => Err(format!("{}: {}", said.status, String::from_utf8_lossy(&said.stderr).trim())),
    }
}

/// Carries out the program in place of this one. Returns the error if it cannot be begun.
pub(crate) fn replace() -> CliError {
    log::end();
    match again() {
        Ok(mut command) => CliError::failure(format!("it cannot be begun: {}", command.exec())),
        Err(problem) => CliError::failure(problem),
    }
}

/// The program's file with the arguments of this process.
fn again() -> Result<Command, String> {
    let program = PROGRAM.get().ok_or("the program's file is not known")?;
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| OsString::from("floe"));
    let mut command = Command::new(program);
    command.arg0(name).args(arguments);
    Ok(command)
}
