//! `floe serve`: binds addresses, opens devices, and runs the server.

mod cache;
mod signals;

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use clap::Args;
use floe_device::{OpenError, Role};
use floe_server::kept::{Consent, StateDir};
use floe_server::limits::Limits;
use floe_server::notify;
use floe_server::tls::TlsConfig;
use floe_server::{Bound, ServeError, Server, ServerConfig, Volume};

use crate::OrFail;
use crate::descriptors;
use crate::error::CliError;
use crate::log::{self, Format};
use crate::settings::{Plan, Source, VolumePlan};
use crate::size::Percent;
use crate::state_dir::state_dir;
pub(crate) use signals::Reloadable;

const EXAMPLES: &str = "\
Examples:
  floe serve --backing file:/dev/vdb --cache file:/var/cache/floe.img --cache-size 10GiB
  floe serve --backing file:disk.img --cache memory:256MiB --write back --listen \
                        'nbd+unix:///?socket=/run/floe.sock'
  floe serve --backing file:/dev/vdb --cache file:/dev/nvme0n1 --memory 8GiB --memory-write back
  floe serve --backing file:/dev/vdb --cache file:/dev/nvme0n1 --memory 8GiB --memory-admit \
                        second-access --admit obp
  floe serve --backing file:/dev/nvme0n1 --tier \
                        memory:8GiB,write=back,volatile,admit=fussy:tune=1,block-sizes=4KiB
  floe serve --backing file:disk.img,medium=cloud --cache file:cache.img,size=1GiB,medium=nvme
  floe serve --backing file:/dev/sdb --tier file:/dev/pmem0,write=back,volatile --tier \
                        file:/dev/nvme0n1 --memory 8GiB
  floe serve --backing file:/dev/sdb --cache file:/dev/nvme0n1 --evict sarc
  floe serve --config floe.toml
  floe serve --backing file:disk.img --cache memory:256MiB --print-config > floe.toml

floe.toml has the same settings without the dashes, and a table for each volume and each tier \
                        below the first:
  cache = \"file:/var/cache/floe.img\"
  cache-size = \"10GiB\"
  listen = [\"nbd://127.0.0.1:10809\"]

  [[tier]]
  cache = \"file:/dev/sdc\"
  write = \"back\"

  [[volume]]
  name = \"pictures\"
  backing = \"file:/dev/vdb\"

FLOE_LOG says what is logged: error, warn, info (the default), debug or trace; debug tells of \
                        every client.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: Source,
    /// Print the settings as a file for --config, with defaults, and serve nothing
    #[arg(long)]
    print_config: bool,
    #[command(flatten)]
    consent: cache::Allowed,
    /// The format of log events on standard error
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    log_format: Format,
}

pub(crate) fn run(arguments: Arguments) -> Result<(), CliError> {
    let mut plan = arguments.source.plan()?;
    if arguments.print_config {
        let text = toml::to_string(&plan.settings()).or_failure()?;
        return std::io::stdout().write_all(text.as_bytes()).or_failure();
    }
    log::begin(arguments.log_format)?;
    let room = descriptors::make_room(
        plan.max_connections,
        plan.threads,
        plan.tiers.len() + plan.volumes.len(),
    )?;
    if room < plan.max_connections {
        let asked = std::mem::replace(&mut plan.max_connections, room);
        tracing::warn!(asked, room, "the limit of open files leaves room for fewer clients");
    }
    let (ended, reloading) = signals::catch()?;
    let state = state_dir(plan.state_dir.as_deref());
    let (server, reloadable) = prepare(plan.clone(), arguments.consent.into(), state, ended)?;
    reloadable.whenever(reloading)?;
    plan.log();
    if plan.admin.only_tells() {
        tracing::warn!(
            "admin is on TCP only, where clients can look and change nothing: for floe flush, \
             floe stop and the like leave `admin` out, add \"unix:PATH\" to it, or give an \
             admin-token-file"
        );
    }
    print(server.uris().map(|uri| format!("{uri}\n")).collect())?;
    let admin: Vec<_> = server.admin_addresses().map(ToString::to_string).collect();
    tracing::info!(admin = %admin.join(","), "serving");
    notify::ready();
    server.run().or_failure()
}

/// Prints the addresses on a separate thread. A stalled reader of standard output, such as a pipe
/// full of an earlier server's log, delays no client.
fn print(uris: String) -> Result<(), CliError> {
    let print = move || {
        let mut out = std::io::stdout();
        if let Err(error) = out.write_all(uris.as_bytes()).and_then(|()| out.flush()) {
            tracing::warn!(%error, "the addresses could not be printed");
        }
    };
    let thread = std::thread::Builder::new().name("floe-uris".into());
    thread
        .spawn(print)
        .map(drop)
        .map_err(|error| CliError::failure(format!("cannot start a thread: {error}")))
}

/// Binds addresses and opens devices. Returns the server, and the parts of it that can be reloaded.
/// `signals` becomes readable when the server is to end.
///
/// Steps that can fail without a trace come first: opening devices may create files.
pub(crate) fn prepare(
    plan: Plan,
    consent: Consent,
    state: Option<StateDir>,
    signals: OwnedFd,
) -> Result<(Server, Reloadable), CliError> {
    let cache = cache::Prepared::new(&plan, consent, state.clone())?;
    let (memory, service) = match plan.memory {
        Some(memory) => (Some(memory.tier), memory.service.map(|service| service.times)),
        None => (None, None),
    };
    let devices = plan.volumes.iter().map(|volume| &volume.backing);
    let devices = devices.chain(plan.tiers.iter().map(|tier| &tier.cache));
    let admin = plan.admin.config(devices).or_usage()?;
    let tls = plan
        .tls
        .as_ref()
        .map(|tls| TlsConfig::load(&tls.certificates, tls.verify_peer, tls.required));
    let tls = tls.transpose().or_usage()?;
    let reloadable = Reloadable { tls: tls.clone(), token: admin.token.clone() };
    let bound = Bound::bind(ServerConfig {
        listen: plan.listen,
        admin,
        insecure: plan.insecure,
        tls,
        limits: Limits { connections: plan.max_connections, ..Limits::default() },
        flush_interval: plan.flush_interval,
        memory,
        shed_most: plan.shed.map(Percent::share),
        service,
        tiers: Some(Arc::new(cache::Newcomers { state })),
        log_lines_dropped: log::dropped_lines,
    })
    .or_usage()?;
    let volume = |VolumePlan { name, description, backing, read_only }| {
        let backing = Arc::new(backing.prepare(Role::Backing { read_only })?);
        Ok(Volume { name, description, backing, read_only })
    };
    let volumes =
        plan.volumes.into_iter().map(volume).collect::<Result<Vec<_>, OpenError>>().or_usage()?;
    let tiers = cache.open(&volumes)?;
    let server = bound.serve(tiers, volumes, signals);
    let server = server.map_err(|error| match error {
        ServeError::Open(_) | ServeError::Export(_) => CliError::usage(error.to_string()),
        _ => CliError::failure(error.to_string()), // the system is short of something
    })?;
    Ok((server, reloadable))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::settings::{Settings, VolumeTable};

    fn settings(folder: &Path, cache_size: &str, admin: &str) -> Settings {
        let place = |name: &str| folder.join(name).display().to_string();
        Settings {
            volume: vec![VolumeTable {
                name: Some("floe".into()),
                backing: Some(format!("file:{},size=1MiB", place("volume"))),
                ..VolumeTable::default()
            }],
            cache: Some(format!("file:{}", place("cache"))),
            cache_size: Some(cache_size.into()),
            listen: vec![format!("nbd+unix:///?socket={}", place("socket"))],
            admin: vec![admin.into()],
            ..Settings::default()
        }
    }

    #[test]
    fn a_server_that_cannot_begin_leaves_no_files_behind() {
        let folder = tempfile::tempdir().unwrap();
        let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = holder.local_addr().unwrap().to_string();
        for settings in [
            settings(folder.path(), "1MiB", &taken),
            settings(folder.path(), "4KiB", "127.0.0.1:0"),
        ] {
            let (_stop, signals) = std::os::unix::net::UnixStream::pair().unwrap();
            assert!(
                prepare(settings.plan().unwrap(), Consent::default(), None, signals.into())
                    .is_err()
            );
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }
}
