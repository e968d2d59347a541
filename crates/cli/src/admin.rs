//! `floe flush`, `restore` and `stop`: commands to a running server.

use clap::Args;
use std::path::PathBuf;

use floe_server::admin::client::{self, Endpoint};
use floe_server::admin::{AdminAddress, Token};

use crate::OrFail;
use crate::error::CliError;

const FLUSH_EXAMPLES: &str = "\
Examples:
  floe flush
  floe flush --admin storage1:10810 --admin-token-file ~/.floe-token";

const RESTORE_EXAMPLES: &str = "\
Examples:
  floe restore";

const STOP_EXAMPLES: &str = "\
Examples:
  floe stop
  floe flush && floe stop         # with nothing left in the cache that the volumes do not have
  floe stop --admin /run/floe-2/admin.sock";

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
    /// The server to ask.
    ///
    /// # Errors
    /// When it is not said which and there is no default one, or the token cannot be read.
    pub(crate) fn endpoint(&self) -> Result<Endpoint, CliError> {
        let address = match &self.admin {
            Some(address) => address.clone(),
            None => AdminAddress::of_client().or_usage()?,
        };
        let token = self.admin_token_file.as_deref().map(Token::read).transpose().or_usage()?;
        Ok(Endpoint { address, token })
    }
}

#[derive(Debug, Args)]
#[command(after_help = FLUSH_EXAMPLES)]
pub(crate) struct FlushArguments {
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = RESTORE_EXAMPLES)]
pub(crate) struct RestoreArguments {
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = STOP_EXAMPLES)]
pub(crate) struct StopArguments {
    #[command(flatten)]
    server: Server,
}

pub(crate) fn flush(arguments: &FlushArguments) -> Result<(), CliError> {
    Ok(client::flush(&arguments.server.endpoint()?)?)
}

pub(crate) fn restore(arguments: &RestoreArguments) -> Result<(), CliError> {
    Ok(client::restore(&arguments.server.endpoint()?)?)
}

pub(crate) fn stop(arguments: &StopArguments) -> Result<(), CliError> {
    Ok(client::stop(&arguments.server.endpoint()?)?)
}
