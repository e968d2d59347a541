//! Commands to a running server, such as `floe flush`, `restore` and `stop`, and the exchange of
//! the running program by `floe upgrade`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use clap::Args;
use floe_server::admin::client::{self, AdminError, Endpoint};
use floe_server::admin::{AdminAddress, Token};
use floe_server::config::{ServerConfig, VolumeConfig};
use floe_server::{Added, take_upgrade_client};
use rustix::net::{Shutdown, shutdown};
use serde::Serialize;

use crate::error::{CliError, OrFail};
use crate::{draining, log, output};

pub(crate) const FLUSH_EXAMPLES: &str = "\
Examples:
  floe flush
  floe flush --admin storage1:10810 --admin-token-file ~/.floe-token";

pub(crate) const RESTORE_EXAMPLES: &str = "\
Examples:
  floe restore";

pub(crate) const STOP_EXAMPLES: &str = "\
Examples:
  floe stop
  floe flush && floe stop         # writes dirty data to the volumes first
  floe stop --admin /run/floe-2/admin.sock";

pub(crate) const UPGRADE_EXAMPLES: &str = "\
Examples:
  floe upgrade
  floe upgrade --admin /run/floe-attach-pictures/admin.sock";

/// The server that a command is for.
#[derive(Debug, Args)]
pub(crate) struct Server {
    /// The server's admin address, unix:PATH or HOST:PORT [default: unix:/run/floe/admin.sock, or
    /// $XDG_RUNTIME_DIR/floe/admin.sock]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<AdminAddress>,
    /// The file with the server's admin token, for changes over TCP
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
}

impl Server {
    /// Returns the address and token of the server to talk to.
    ///
    /// # Errors
    /// When no server is given and there is no default one, or the token cannot be read.
    pub(crate) fn endpoint(&self) -> Result<Endpoint, CliError> {
        let address = match &self.admin {
            Some(address) => address.clone(),
            None => AdminAddress::of_client().or_usage()?,
        };
        let token = self.admin_token_file.as_deref().map(Token::read).transpose().or_usage()?;
        Ok(Endpoint { address, token })
    }
}

/// The server that is asked for a change, and the form of its answer.
#[derive(Debug, Args)]
pub(crate) struct Answer {
    #[command(flatten)]
    server: Server,
    /// One JSON object instead of a line
    #[arg(long)]
    json: bool,
}

impl Answer {
    pub(crate) fn endpoint(&self) -> Result<Endpoint, CliError> {
        self.server.endpoint()
    }

    /// Prints the result of a change: as JSON if the user asked for it, else as a line.
    pub(crate) fn print(&self, result: &impl Serialize, line: &str) -> Result<(), CliError> {
        if self.json {
            return output::json_line(result).or_failure();
        }
        output::say!("{line}");
        Ok(())
    }
}

/// Sends a command without parameters to a server.
pub(crate) fn send(
    server: &Server,
    command: fn(&Endpoint) -> Result<(), AdminError>,
) -> Result<(), CliError> {
    Ok(command(&server.endpoint()?)?)
}

/// Has a server write all dirty data to its volumes, and shows the progress.
pub(crate) fn flush(server: &Server) -> Result<(), CliError> {
    let server = server.endpoint()?;
    Ok(draining::show(&server, |_| true, || client::flush(&server))?)
}

/// Environment variable that marks the standard input as the upgrade client's connection. Its value
/// is this process's number.
const CLIENT: &str = "FLOE_UPGRADE_CLIENT";

/// Path of this process's program file. The system reports it correctly only until another file
/// takes its name.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Records the path of this program file, before another file can take its name.
pub(crate) fn note_program() {
    if let Ok(program) = std::env::current_exe() {
        PROGRAM.get_or_init(|| program);
    }
}

/// Checks that the new program accepts this process's arguments and settings, and that these have
/// what was added: runs it with `--print-config`.
pub(crate) fn check_program(added: &Added) -> Result<(), String> {
    let mut command = again()?;
    command.env_remove(CLIENT).arg("--print-config").stdin(Stdio::null());
    let said = command.output().map_err(|error| error.to_string())?;
    if !said.status.success() {
        return Err(format!("{}: {}", said.status, String::from_utf8_lossy(&said.stderr).trim()));
    }
    match ServerConfig::from_text(&String::from_utf8_lossy(&said.stdout)) {
        Ok(settings) => has_all(&settings, added),
        Err(_) => Ok(()), // they are those of a newer version
    }
}

/// Checks that settings have all added volumes, by their names, and tiers, by their devices or by
/// the number of those in memory, and that the tiers are in the order in which they are served.
/// Another server would refuse to start where there is dirty data.
fn has_all(settings: &ServerConfig, added: &Added) -> Result<(), String> {
    let lacks = |what: &str, name: &str| {
        Err(format!(
            "its settings lack the {what} {name}, which was added while the server ran: add it to \
             them, or remove it from the server"
        ))
    };
    let names: Vec<_> = settings.volume.iter().map(VolumeConfig::name).collect();
    if let Some(name) = added.volumes.iter().find(|name| !names.contains(&name.as_str())) {
        return lacks("volume", &format!("{name:?}"));
    }
    let device = |tier: &str| {
        let device = tier.split(',').next().unwrap_or_default();
        // The size of a tier in memory may have changed meanwhile, so only their number counts.
        let is_memory = device.starts_with("memory:");
        if is_memory { "memory".to_owned() } else { device.to_owned() }
    };
    let devices: Vec<_> = settings.tiers().map(|tier| device(&tier.name())).collect();
    let count = |all: &[String], of: &str| all.iter().filter(|other| *other == of).count();
    let served: Vec<_> = added.order.iter().map(|tier| device(tier)).collect();
    // Tiers in memory may have equal names.
    let is_lacking = |tier: &&String| {
        let device = device(tier);
        let is_there = devices.contains(&device);
        !is_there || count(&devices, &device) < count(&served, &device)
    };
    if let Some(tier) = added.tiers.iter().find(is_lacking) {
        return lacks("tier", tier);
    }
    let kept = settings.tiers().filter(|tier| tier.is_persistent());
    let devices: Vec<_> = kept.map(|tier| device(&tier.name())).collect();
    let order: Vec<_> = served.into_iter().filter(|tier| devices.contains(tier)).collect();
    let mut left = devices.iter();
    if order.iter().all(|device| left.any(|other| other == device)) {
        return Ok(());
    }
    Err(format!(
        "its settings have the persistent tiers in another order than they are served in: write \
         them in the order {}, from the top",
        order.join(", ")
    ))
}

/// Replaces this process by the new program (exec). Returns only on failure, with the error. The
/// client that asked for the upgrade becomes the new program's standard input.
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
            format!("cannot start the new program: {}", command.exec())
        }
        Err(problem) => problem,
    };
    if let Some(client) = own {
        let _ = rustix::io::write(client, problem.as_bytes()); // it may have left
    }
    CliError::failure(problem)
}

/// Returns whether the standard input is the connection of a client that asked the previous program
/// for the upgrade.
fn has_client() -> bool {
    std::env::var(CLIENT).is_ok_and(|of| of == std::process::id().to_string())
}

/// Reports to the client that asked for an upgrade that this program serves, or why it failed. Does
/// nothing without such a client.
pub(crate) fn tell_client(result: Result<(), &CliError>) {
    let client = std::io::stdin();
    if has_client() {
        if let Err(error) = result {
            let _ = rustix::io::write(&client, error.line().as_bytes()); // it may have left
        }
        let _ = shutdown(&client, Shutdown::Both);
    }
}

/// Options that permit a loss of data at one start. An upgrade is another start.
const ONE_START: [&str; 4] =
    ["--initialise", "--discard-dirty", "--accept-backing", "--keep-dirty"];

/// Returns a command that runs the program file with this process's arguments, but for those of
/// [`ONE_START`].
fn again() -> Result<Command, String> {
    let program = PROGRAM.get().ok_or("the path of the running program is unknown")?;
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| OsString::from("floe"));
    let mut command = Command::new(program);
    command.arg0(name).args(arguments.filter(|it| !ONE_START.iter().any(|once| it == once)));
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_an_upgrade_have_what_was_added_in_the_order_served() {
        let settings = |tiers: &[&str]| {
            let tier = |tier: &&str| format!("[[tier]]\ncache = '{tier},size=64MiB'\n");
            let tiers: String = tiers.iter().map(tier).collect();
            let text = format!("{tiers}[[volume]]\nname = 'a'\nbacking = 'memory:1GiB'\n");
            ServerConfig::from_text(&text).unwrap()
        };
        let added = |tiers: &[&str], order: &[&str]| {
            let names = |tiers: &[&str]| {
                tiers.iter().map(|tier| format!("{tier},size=64MiB,write=through")).collect()
            };
            Added { volumes: vec!["a".to_owned()], tiers: names(tiers), order: names(order) }
        };
        let (a, b, c) = ("file:/a", "file:/b", "file:/c");
        for (of, tiers, order) in [
            (&[a, b][..], &[b][..], &[a, b][..]),
            // A tier that was removed comes back, and one that only the settings lack goes.
            (&[a, c, b], &[b], &[a, b]),
            (&[a, b], &[b], &[a, c, b]),
        ] {
            assert_eq!(has_all(&settings(of), &added(tiers, order)), Ok(()), "{of:?}");
        }
        let memory = |bytes: &str| {
            let tier = format!("[[tier]]\ncache = 'memory:{bytes}'\n");
            let text = format!("{tier}[[volume]]\nname = 'a'\nbacking = 'memory:1GiB'\n");
            ServerConfig::from_text(&text).unwrap()
        };
        let resized = |count: usize| Added {
            volumes: vec!["a".to_owned()],
            tiers: vec!["memory:64MiB,write=through".to_owned()],
            order: vec!["memory:64MiB,write=through".to_owned(); count],
        };
        assert_eq!(has_all(&memory("32MiB"), &resized(1)), Ok(()), "it was resized");
        let said = has_all(&memory("32MiB"), &resized(2));
        assert!(said.unwrap_err().contains("lack the tier memory:64MiB"));
        let said = has_all(&settings(&[a]), &added(&[b], &[a, b]));
        assert!(said.unwrap_err().contains("lack the tier file:/b"));
        let said = has_all(&settings(&[a, b]), &added(&[b], &[a, b, b]));
        assert!(said.unwrap_err().contains("lack the tier file:/b"), "one is not two");
        let said = has_all(&settings(&[a, c, b]), &added(&[b], &[a, b, c])).unwrap_err();
        assert!(said.contains("in another order"), "{said}");
        assert!(said.contains("file:/a, file:/b, file:/c"), "{said}");
    }
}
