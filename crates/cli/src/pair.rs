//! `floe handover` and `takeover`: commands to the servers of a pair, and the state of one.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use floe_device::{OpenError, RbdError, RbdWatch};
use floe_server::admin::client;
use floe_server::config::{ServerConfig, VolumeConfig};
use floe_server::kept::Consent;
use floe_server::pair::{Lease, PairStatus, Role, Turn, Waited};
use floe_server::{Away, Bound, NamedDevices, PreparedTiers, Volume, notify};

use crate::admin::Server;
use crate::beside::Beside;
use crate::error::CliError;
use crate::{OrFail, half, output};

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
    open: impl Fn() -> Result<Vec<Volume>, (usize, OpenError)>,
) -> Result<Option<(Vec<Volume>, Lease)>, CliError> {
    let names = config.volume.iter().filter_map(|volume| volume.backing().image().cloned());
    let names: Vec<_> = names.collect();
    drop(half::export(config)?); // an error in its settings is told now
    let away = Away::of(bound).or_failure()?;
    notify::ready(); // it does what it is for
    loop {
        let paths = away.clone().map(|away| paths(away, config));
        let mut beside: Vec<_> = half::export(config)?.into_iter().chain(paths).collect();
        let mut keep = || beside.iter_mut().for_each(Beside::keep);
        let waited = bound.stand_by(turn, &names, signals, &mut keep).or_usage()?;
        drop(beside); // the other server, which is fenced, writes nothing to the half from here on
        away.iter().for_each(|away| away.end(config.volume.iter().map(VolumeConfig::name)));
        let Waited::Free(reason) = waited else { return Ok(None) };
        let volumes = match open() {
            // Another server was faster.
            Err((_, OpenError::Rbd(RbdError::Locked { .. }))) => continue,
            Err((volume, error)) => {
                return Err(CliError::usage(config.unusable_backing(volume, error)));
            }
            Ok(volumes) => volumes,
        };
        let images = volumes.iter().filter_map(|volume| volume.backing.image().cloned());
        let images: Vec<_> = images.collect();
        let own = bound.own_note(&names);
        let lease = Lease::begin(turn, &images, own.as_ref(), config.serving.lease(), &reason)
            .or_failure()?;
        return Ok(Some((volumes, lease)));
    }
}

/// The paths of NVMe hosts to a server that stands by.
fn paths(away: Away, config: &ServerConfig) -> Beside {
    let volumes = config.volume.clone();
    Beside::new("the paths of NVMe hosts", move |signal| {
        let size = |volume: &VolumeConfig| {
            let image = volume.backing().image().expect("volumes of a pair are images");
            let watch = RbdWatch::open(image).or_failure()?;
            Ok((volume.name().to_owned(), watch.size_bytes().or_failure()?))
        };
        let sizes = volumes.iter().map(size).collect::<Result<Vec<_>, CliError>>()?;
        let mut config = half::without_cache();
        config.volume = volumes.clone();
        let config = config.validated().or_usage()?;
        let tiers = PreparedTiers::new(&config, None, Consent::default(), None).or_usage()?;
        let tiers = tiers.open(&[], &NamedDevices, &mut |_, _| {}).or_failure()?;
        away.serve(tiers, sizes, signal).or_failure()?.run().map(drop).or_failure()
    })
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
