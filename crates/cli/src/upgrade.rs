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
use floe_server::take_upgrade_client;
use rustix::net::{Shutdown, shutdown};

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

/// The variable with the number of the process whose standard input is the client.
const CLIENT: &str = "FLOE_UPGRADE_CLIENT";

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
    command.env_remove(CLIENT).arg("--print-config").stdin(Stdio::null()).stdout(Stdio::null());
    let said = command.stderr(Stdio::piped()).output().map_err(|error| error.to_string())?;
    match said.status.success() {
        true => Ok(()),
        false => Err(format!("{}: {}", said.status, String::from_utf8_lossy(&said.stderr).trim())),
    }
}

/// Carries out the program in place of this one. Returns the error if it cannot be begun. The
/// client that has asked for it becomes the standard input of the new program.
pub(crate) fn replace() -> CliError {
    log::end();
    let client = take_upgrade_client();
    let own = client.as_ref().and_then(|client| client.try_clone().ok());
    let problem = match again() {
        Ok(mut command) => {
            command.env_remove(CLIENT);
            if let Some(client) = client {
                command.env(CLIENT, std::process::id().to_string()).stdin(client);
            }
            format!("it cannot be begun: {}", command.exec())
        }
        Err(problem) => problem,
    };
    if let Some(client) = own {
        let _ = rustix::io::write(client, problem.as_bytes()); // it may have left
    }
    CliError::failure(problem)
}

/// Returns whether the standard input is the client that has asked the program before for this one.
fn has_client() -> bool {
    std::env::var(CLIENT).is_ok_and(|of| of == std::process::id().to_string())
}

/// Tells the client that has asked for this program, if there is one, that it serves, or why it has
/// ended.
pub(crate) fn tell_client(result: Result<(), &CliError>) {
    let client = std::io::stdin();
    if has_client() {
        if let Err(error) = result {
            let _ = rustix::io::write(&client, error.line().as_bytes()); // it may have left
        }
        let _ = shutdown(&client, Shutdown::Both);
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
