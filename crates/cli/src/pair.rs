//! `floe handover` and `takeover`: commands to the servers of a pair, and the state of one.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use floe_device::{OpenError, RbdError};
use floe_server::admin::client;
use floe_server::config::ServerConfig;
use floe_server::pair::{Lease, PairStatus, Role, Turn, Waited};
use floe_server::{Bound, Volume, notify};

use crate::admin::Server;
use crate::error::CliError;
use crate::half::HalfExport;
use crate::{OrFail, output};

const HANDOVER_EXAMPLES: &str = "\
Examples:
  floe handover
  floe handover --admin storage1:10810 --admin-token-file ~/.floe-token";

const TAKEOVER_EXAMPLES: &str = "\
Examples:
  floe takeover
  floe takeover --admin storage2:10810 --admin-token-file ~/.floe-token";

#[derive(Debug, Args)]
#[command(after_help = HANDOVER_EXAMPLES)]
pub(crate) struct HandoverArguments {
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = TAKEOVER_EXAMPLES)]
pub(crate) struct TakeoverArguments {
    #[command(flatten)]
    server: Server,
}

pub(crate) fn hand_over(arguments: &HandoverArguments) -> Result<(), CliError> {
    Ok(client::hand_over(&arguments.server.endpoint()?)?)
}

pub(crate) fn take_over(arguments: &TakeoverArguments) -> Result<(), CliError> {
    Ok(client::take_over(&arguments.server.endpoint()?)?)
}

/// Waits until no other server has the volumes, opens them, and takes their lease; `None` if the
/// server is told to end meanwhile.
pub(crate) fn wait(
    turn: &Arc<Turn>,
    bound: &Bound,
    config: &ServerConfig,
    signals: &OwnedFd,
    open: impl Fn() -> Result<Vec<Volume>, OpenError>,
) -> Result<Option<(Vec<Volume>, Lease)>, CliError> {
    let names = config.volume.iter().filter_map(|volume| volume.backing().image().cloned());
    let names: Vec<_> = names.collect();
    HalfExport::new(config).check()?;
    notify::ready(); // it does what it is for
    loop {
        let mut half = HalfExport::new(config);
        let waited = bound.stand_by(turn, &names, signals, &mut || half.keep()).or_usage()?;
        drop(half); // the other server, which is fenced, writes nothing to it from here on
        let Waited::Free(reason) = waited else { return Ok(None) };
        let volumes = match open() {
            // Another server was faster.
            Err(OpenError::Rbd(RbdError::Locked { .. })) => continue,
            opened => opened.or_usage()?,
        };
        let images = volumes.iter().filter_map(|volume| volume.backing.image().cloned());
        let images: Vec<_> = images.collect();
        let own = bound.own_note(&names);
        let lease = Lease::begin(turn, &images, own.as_ref(), config.serving.lease(), &reason)
            .or_failure()?;
        return Ok(Some((volumes, lease)));
    }
}

/// Prints the state of a server of a pair.
pub(crate) fn print(pair: &PairStatus) {
    let role = match pair.role {
        Role::Active => "ACTIVE",
        Role::Standby => "STANDBY",
    };
    let since = Duration::from_secs(pair.since_seconds as u64);
    let ago = humantime::format_duration(since);
    output::say!("{role}, generation {}, for {ago}: {}", pair.generation, pair.reason);
    if let Some(active) = &pair.active {
        let (lease, renewed) = (pair.lease_seconds, pair.renewed_seconds);
        output::say!(" the lease of {active}, {lease:.1} s, was renewed {renewed:.1} s ago");
    }
    match (&pair.standby, pair.role) {
        (Some(standby), _) => output::say!(" {standby} stands by"),
        (None, Role::Active) => output::say!(" no standby has been seen lately"),
        (None, Role::Standby) => {}
    }
}
