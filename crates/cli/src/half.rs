//! The half of a pair's mirror that is on this machine.
//!
//! A standby exports it to the active server. It closes the export after it has fenced that server
//! and before it opens the mirror itself. In that order the half has all that was acknowledged: an
//! active server that is fenced cannot go on without it, because its witness refuses the next
//! generation. And nothing is written to the half behind the new active server's back.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use floe_block::WriteMode;
use floe_device::{MirrorRefusal, OpenError, Role, Witness};
use floe_server::config::{ServerConfig, TierConfig, VolumeConfig};
use floe_server::kept::Consent;
use floe_server::limits::Limits;
use floe_server::pair::Turn;
use floe_server::{
    AdminSetup, Bound, CacheDevices, Desk, DeviceSource, NamedDevices, NvmeAccess, PreparedTiers,
    Server, ServerSetup, Volume,
};

use crate::OrFail;
use crate::error::CliError;

/// The name of the export. It is the only one, so that any other name fails.
const NAME: &str = "half";

/// The time after which an export that failed is tried again.
const AGAIN: Duration = Duration::from_secs(2);

/// The time for the active server to take its last replies. It has been fenced, or has ended.
const FAREWELL: Duration = Duration::from_millis(200);

/// The time between two looks for a half without which the mirror does not open.
const LOOK: Duration = Duration::from_millis(500);

/// The export of the half; it ends when this is dropped.
pub(crate) struct HalfExport {
    /// The settings of the server that exports it; `None` where there is nothing to export.
    config: Option<ServerConfig>,
    running: Option<(UnixStream, JoinHandle<()>)>,
    begun: Option<Instant>,
}

impl HalfExport {
    /// Names the half, and exports nothing yet.
    pub(crate) fn new(config: &ServerConfig) -> Self {
        let half = config.exported_half();
        let config = half.map(|(half, address)| {
            let mut export = ServerConfig::default();
            export.first.cache = Some("memory:1MiB".parse().expect("it is a device"));
            export.first.write = Some(WriteMode::Pass);
            export.serving.threads = Some(1);
            export.listen.listen = vec![address.clone()];
            export.listen.insecure = config.listen.insecure;
            let (name, backing) = (Some(NAME.to_owned()), Some(half.clone()));
            export.volume = vec![VolumeConfig { name, backing, ..VolumeConfig::default() }];
            export
        });
        Self { config, running: None, begun: None }
    }

    /// Fails where the export could not be begun for its address.
    pub(crate) fn check(&self) -> Result<(), CliError> {
        self.config.as_ref().map_or(Ok(()), |config| bind(config).map(drop))
    }

    /// Begins the export unless it is there. One that failed is logged, and begun anew later.
    pub(crate) fn keep(&mut self) {
        let Some(config) = &self.config else { return };
        let is_running = self.running.as_ref().is_some_and(|(_, thread)| !thread.is_finished());
        if is_running || self.begun.is_some_and(|begun| begun.elapsed() < AGAIN) {
            return;
        }
        self.begun = Some(Instant::now());
        let config = config.clone();
        let begin = || {
            let (end, signal) = UnixStream::pair()?;
            let export = move || {
                if let Err(error) = export(config, signal.into()) {
                    tracing::error!(
                        error = error.line(),
                        "the half of the mirror cannot be exported to the active server; trying \
                         again"
                    );
                }
            };
            Ok::<_, std::io::Error>((end, Builder::new().name("floe-half".into()).spawn(export)?))
        };
        match begin() {
            Ok(running) => self.running = Some(running),
            Err(error) => tracing::error!(%error, "the half of the mirror cannot be exported"),
        }
    }
}

impl Drop for HalfExport {
    fn drop(&mut self) {
        let Some((end, thread)) = self.running.take() else { return };
        drop(end);
        let _ = thread.join(); // a panic of it has been printed
    }
}

/// Exports the half until `signal` is readable.
fn export(config: ServerConfig, signal: OwnedFd) -> Result<(), CliError> {
    let server = exporter(&config.validated().or_usage()?, signal)?;
    for uri in server.uris() {
        tracing::info!(%uri, "the half of the mirror is exported to the active server");
    }
    server.run().map(drop).or_failure()
}

/// A server without a cache.
fn exporter(config: &ServerConfig, signal: OwnedFd) -> Result<Server, CliError> {
    let tiers = PreparedTiers::new(config, None, Consent::default(), None).or_usage()?;
    let half = config.volume[0].backing();
    let backing = half.prepare(Role::Backing { read_only: false }).or_usage()?;
    let volume = Volume {
        name: NAME.to_owned(),
        description: String::new(),
        backing: Arc::new(backing),
        read_only: false,
        reach: config.volume[0].reach(),
    };
    let tiers = tiers.open(&[], &NamedDevices, &mut |_, _| {}).or_failure()?;
    bind(config)?.serve(tiers, vec![volume], signal).or_failure()
}

/// Binds the address of the export.
fn bind(config: &ServerConfig) -> Result<Bound, CliError> {
    Bound::bind(ServerSetup {
        listen: config.listen.listen.clone(),
        nqn: None,
        nvme_access: NvmeAccess::default(),
        nvme_paths: Arc::default(),
        admin: AdminSetup::default(),
        insecure: config.listen.insecure,
        tls: None,
        limits: Limits { farewell_time: FAREWELL, ..Limits::default() },
        flush_interval: config.serving.flush_interval(),
        memory: None,
        shed_most: None,
        service: None,
        state: None,
        devices: Arc::new(NamedDevices),
        check_program: || Ok(()),
        turn: None,
        log_lines_dropped: || 0,
    })
    .or_usage()
}

/// Opens cache devices. A mirror of a pair that lacks a half waits for it: the other server exports
/// it as soon as it stands by.
#[derive(Debug)]
pub(crate) struct HalfAwaited<'a> {
    /// The pair's turn, and the thread that answers meanwhile.
    waiting: Option<(&'a Turn, Mutex<Desk>)>,
    /// The server was told to end.
    ended: AtomicBool,
}

impl<'a> HalfAwaited<'a> {
    /// `signals` becomes readable when the server is to end.
    pub(crate) fn new(
        turn: Option<&'a Arc<Turn>>,
        bound: &Bound,
        config: &ServerConfig,
        signals: &OwnedFd,
    ) -> Result<Self, CliError> {
        let turn = turn.filter(|_| config.exported_half().is_some());
        let wait = |turn: &'a Arc<Turn>| {
            let desk = bound.attend(turn, signals).or_failure()?;
            Ok::<_, CliError>((&**turn, Mutex::new(desk)))
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
            let (Err(OpenError::Mirror(refusal)), Some((turn, desk))) = (&opened, &self.waiting)
            else {
                self.waiting.iter().for_each(|(turn, _)| turn.lacks(None));
                return opened;
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

/// Returns whether the mirror opens as soon as another half is there.
fn may_pass(refusal: &MirrorRefusal) -> bool {
    match refusal {
        MirrorRefusal::Stale { .. }
        | MirrorRefusal::NoWitness { .. }
        | MirrorRefusal::NotMade { .. } => true,
        MirrorRefusal::Making { .. }
        | MirrorRefusal::OtherMirror { .. }
        | MirrorRefusal::OtherShape { .. }
        | MirrorRefusal::Twice { .. } => false,
    }
}
