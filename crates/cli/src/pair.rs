//! `floe handover` and `takeover`: commands to the servers of a pair, and the operation of a
//! standby server.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use floe_block::WriteMode;
use floe_device::{MirrorRefusal, OpenError, RbdError, RbdWatch, Witness};
use floe_server::config::{ServerConfig, TierConfig, VolumeConfig};
use floe_server::limits::Limits;
use floe_server::pair::{Lease, PairStatus, Role, Turn, Waited, last_half};
use floe_server::persistent::ForceFlags;
use floe_server::{
    AdminSetup, Away, Bound, CacheDevices, Desk, DeviceSource, NamedDevices, NvmeSetup,
    PreparedCache, RequestLimit, ServerSetup, TotalLimit, Volume, VolumeShare, notify,
};

use crate::error::{CliError, OrFail};
use crate::output;

pub(crate) const HANDOVER_EXAMPLES: &str = "\
Examples:
  floe handover
  floe handover --admin storage1:10810 --admin-token-file ~/.floe-token";

pub(crate) const TAKEOVER_EXAMPLES: &str = "\
Examples:
  floe takeover
  floe takeover --admin storage2:10810 --admin-token-file ~/.floe-token";

/// Waits until no other server uses the volumes, opens them, and takes their lease. Returns `None`
/// if the server is told to end meanwhile.
pub(crate) fn wait(
    turn: &Arc<Turn>,
    bound: &Bound,
    config: &ServerConfig,
    signals: &OwnedFd,
    open: impl Fn() -> Result<Vec<Volume>, (usize, OpenError)>,
) -> Result<Option<(Vec<Volume>, Lease)>, CliError> {
    let names = config.volume.iter().filter_map(|volume| volume.backing().image().cloned());
    let names: Vec<_> = names.collect();
    drop(export(config)?); // an error in its settings is told now
    let away = Away::of(bound).or_failure()?;
    notify::ready(); // it does what it is for
    loop {
        let paths = away.clone().map(|away| paths(away, config));
        let mut beside: Vec<_> = export(config)?.into_iter().chain(paths).collect();
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

/// Returns an auxiliary server that offers the volumes to NVMe hosts as standby paths.
fn paths(away: Away, config: &ServerConfig) -> Beside {
    let volumes = config.volume.clone();
    Beside::new("the paths of NVMe hosts", move |signal| {
        let size = |volume: &VolumeConfig| {
            let image = volume.backing().image().expect("volumes of a pair are images");
            let watch = RbdWatch::open(image).or_failure()?;
            let bytes = watch.size_bytes().or_failure()?;
            Ok((volume.name().to_owned(), bytes, volume.block_size(), volume.limit()))
        };
        let sizes = volumes.iter().map(size).collect::<Result<Vec<_>, CliError>>()?;
        let mut config = without_cache();
        // That server itself listens nowhere.
        let unseen =
            |volume: &VolumeConfig| VolumeConfig { nvme_block_size: None, ..volume.clone() };
        config.volume = volumes.iter().map(unseen).collect();
        let config = config.validated().or_usage()?;
        let tiers = PreparedCache::new(&config, None, ForceFlags::default(), None).or_usage()?;
        let tiers = tiers.open(&[], &NamedDevices, &mut |_, _| {}).or_failure()?;
        away.serve(tiers, sizes, signal).or_failure()?.run().map(drop).or_failure()
    })
}

/// Prints the state of a server in a pair.
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

/// Time after which a failed auxiliary server is restarted.
const AGAIN: Duration = Duration::from_secs(2);

/// A function that serves until the descriptor becomes readable.
type Serve = dyn Fn(OwnedFd) -> Result<(), CliError> + Send + Sync;

/// An auxiliary server of a standby, in a thread of its own. Dropping this ends the server.
pub(crate) struct Beside {
    what: &'static str,
    serve: Arc<Serve>,
    running: Option<(UnixStream, JoinHandle<()>)>,
    begun: Option<Instant>,
}

impl Beside {
    /// Creates an auxiliary server without starting it. `what` is its name in the log.
    pub(crate) fn new(
        what: &'static str,
        serve: impl Fn(OwnedFd) -> Result<(), CliError> + Send + Sync + 'static,
    ) -> Self {
        Self { what, serve: Arc::new(serve), running: None, begun: None }
    }

    /// Starts the auxiliary server unless it is running. Logs a failure, and restarts the server
    /// some time later.
    pub(crate) fn keep(&mut self) {
        let is_running = self.running.as_ref().is_some_and(|(_, thread)| !thread.is_finished());
        if is_running || self.begun.is_some_and(|begun| begun.elapsed() < AGAIN) {
            return;
        }
        self.begun = Some(Instant::now());
        let (what, serve) = (self.what, Arc::clone(&self.serve));
        let begin = || {
            let (end, signal) = UnixStream::pair()?;
            let run = move || {
                if let Err(error) = serve(signal.into()) {
                    tracing::error!(what, error = error.line(), "it failed; trying again");
                }
            };
            Ok::<_, std::io::Error>((end, Builder::new().name("floe-beside".into()).spawn(run)?))
        };
        match begin() {
            Ok(running) => self.running = Some(running),
            Err(error) => tracing::error!(what, %error, "cannot start it; trying again"),
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let Some((end, thread)) = self.running.take() else { return };
        drop(end);
        let _ = thread.join(); // a panic of it has been printed
    }
}

/// Name of the exported volume. Clients that ask for any other name fail.
const NAME: &str = "half";

/// Time the exporting server waits for the active server to receive its last replies. The active
/// server is fenced by then, or has ended.
const FAREWELL: Duration = Duration::from_millis(200);

/// Interval between two attempts to open a mirror that lacks a half.
const LOOK: Duration = Duration::from_millis(500);

/// Returns the auxiliary server that exports a half of the mirror, if one is configured.
///
/// # Errors
/// When the address cannot be bound.
pub(crate) fn export(config: &ServerConfig) -> Result<Option<Beside>, CliError> {
    let Some((half, address)) = config.exported_half() else { return Ok(None) };
    let mut export = without_cache();
    export.listen.listen = vec![address.clone()];
    export.listen.insecure = config.listen.insecure;
    let (name, backing) = (Some(NAME.to_owned()), Some(half.clone()));
    export.volume = vec![VolumeConfig { name, backing, ..VolumeConfig::default() }];
    drop(bind(&export)?);
    Ok(Some(Beside::new("the export of the half of the mirror", move |signal| {
        let server = exporter(&export.clone().validated().or_usage()?, signal)?;
        for uri in server.uris() {
            tracing::info!(%uri, "the half of the mirror is exported to the active server");
        }
        server.run().map(drop).or_failure()
    })))
}

/// Returns the settings of an auxiliary server, which caches nothing.
pub(crate) fn without_cache() -> ServerConfig {
    let mut config = ServerConfig::default();
    config.first.cache = Some("memory:1MiB".parse().expect("it is a device"));
    config.first.write = Some(WriteMode::Pass);
    config.serving.threads = Some(1);
    config
}

/// Builds a server without a cache that exports the half of the mirror.
fn exporter(config: &ServerConfig, signal: OwnedFd) -> Result<floe_server::Server, CliError> {
    let tiers = PreparedCache::new(config, None, ForceFlags::default(), None).or_usage()?;
    let half = config.volume[0].backing();
    let backing = half.prepare(floe_device::Role::Backing { read_only: false }).or_usage()?;
    let volume = Volume {
        name: NAME.to_owned(),
        description: String::new(),
        backing: Arc::new(backing),
        read_only: false,
        block_size: config.volume[0].block_size(),
        limit: RequestLimit::default(),
        share: VolumeShare::default(),
        reach: config.volume[0].reach(),
    };
    let tiers = tiers.open(&[], &NamedDevices, &mut |_, _| {}).or_failure()?;
    bind(config)?.serve(tiers, vec![volume], signal).or_failure()
}

/// Binds the address of the exported half.
fn bind(config: &ServerConfig) -> Result<Bound, CliError> {
    Bound::bind(ServerSetup {
        listen: config.listen.listen.clone(),
        nvme: NvmeSetup::default(),
        admin: AdminSetup::default(),
        insecure: config.listen.insecure,
        tls: None,
        limits: Limits { farewell_time: FAREWELL, ..Limits::default() },
        total_limit: TotalLimit::NONE,
        flush_interval: config.serving.flush_interval(),
        memory: None,
        shed_most: None,
        service: None,
        state: None,
        devices: Arc::new(NamedDevices),
        check_program: |_| Ok(()),
        turn: None,
        log_lines_dropped: || 0,
    })
    .or_usage()
}

/// Opens cache devices. If a mirror of a pair lacks a half, waits for it: the other server exports
/// the half as soon as it is a standby.
#[derive(Debug)]
pub(crate) struct HalfAwaited<'a> {
    /// The pair's turn, and the thread that answers admin requests during the wait.
    waiting: Option<(&'a Arc<Turn>, Mutex<Desk>)>,
    /// The server was told to end.
    ended: AtomicBool,
}

impl<'a> HalfAwaited<'a> {
    /// Creates an opener. `signals` becomes readable when the server is to end.
    pub(crate) fn new(
        turn: Option<&'a Arc<Turn>>,
        bound: &Bound,
        config: &ServerConfig,
        signals: &OwnedFd,
    ) -> Result<Self, CliError> {
        let turn = turn.filter(|_| config.exported_half().is_some());
        let wait = |turn: &'a Arc<Turn>| {
            let desk = bound.attend(turn, signals).or_failure()?;
            Ok::<_, CliError>((turn, Mutex::new(desk)))
        };
        let waiting = turn.map(wait).transpose()?;
        Ok(Self { waiting, ended: AtomicBool::new(false) })
    }

    /// Returns whether the server was told to end while it waited.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

impl CacheDevices for HalfAwaited<'_> {
    fn prepare(
        &self,
        tier: &TierConfig,
        witness: Option<&Arc<dyn Witness>>,
    ) -> Result<Arc<dyn DeviceSource>, OpenError> {
        let mut told = None;
        loop {
            let opened = NamedDevices.prepare(tier, witness);
            let Some((turn, desk)) = &self.waiting else { return opened };
            let refusal = match (&opened, tier.cache().local_half()) {
                (Err(OpenError::Mirror(refusal)), _) => refusal,
                (Ok(mirror), Some(half)) => {
                    turn.lacks(None);
                    let (mirror, turn) = (Arc::clone(mirror), Arc::clone(turn));
                    return Ok(last_half(mirror, half.to_string(), turn));
                }
                _ => return opened,
            };
            if !may_pass(refusal) {
                return opened;
            }
            let reason = refusal.to_string();
            if told.as_ref() != Some(&reason) {
                tracing::warn!(reason, "waiting for a half of the mirror; serving nothing yet");
                turn.lacks(Some(reason.clone()));
                told = Some(reason);
            }
            if desk.lock().unwrap_or_else(PoisonError::into_inner).has_ended(LOOK) {
                self.ended.store(true, Ordering::Relaxed);
                return opened;
            }
        }
    }
}

/// Returns whether the mirror can be opened as soon as its missing half appears.
fn may_pass(refusal: &MirrorRefusal) -> bool {
    match refusal {
        MirrorRefusal::Stale { .. }
        | MirrorRefusal::NoWitness { .. }
        | MirrorRefusal::NotMade { .. } => true,
        MirrorRefusal::Making { .. }
        | MirrorRefusal::OtherMirror { .. }
        | MirrorRefusal::Foreign { .. }
        | MirrorRefusal::OtherShape { .. }
        | MirrorRefusal::Twice { .. } => false,
    }
}
