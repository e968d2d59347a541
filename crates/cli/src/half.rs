//! The half of a pair's mirror that is on this machine.
//!
//! A standby exports it to the active server. It closes the export after it has fenced that server
//! and before it opens the mirror itself. In that order the half has all that was acknowledged: an
//! active server that is fenced cannot go on without it, because its witness refuses the next
//! generation. And nothing is written to the half behind the new active server's back.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use floe_block::WriteMode;
use floe_device::{MirrorRefusal, OpenError, Role, Witness};
use floe_server::config::{ServerConfig, TierConfig, VolumeConfig};
use floe_server::kept::Consent;
use floe_server::limits::Limits;
use floe_server::pair::{LastHalf, Turn};
use floe_server::{
    AdminSetup, Bound, CacheDevices, Desk, DeviceSource, NamedDevices, NvmeSetup, PreparedTiers,
    Server, ServerSetup, Volume,
};

use crate::OrFail;
use crate::beside::Beside;
use crate::error::CliError;

/// The name of the export. It is the only one, so that any other name fails.
const NAME: &str = "half";

/// The time for the active server to take its last replies. It has been fenced, or has ended.
const FAREWELL: Duration = Duration::from_millis(200);

/// The time between two looks for a half without which the mirror does not open.
const LOOK: Duration = Duration::from_millis(500);

/// Returns the export of the half, where there is one.
///
/// # Errors
/// When it could not be begun for its address.
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

/// The settings of a server beside this one, which caches nothing.
pub(crate) fn without_cache() -> ServerConfig {
    let mut config = ServerConfig::default();
    config.first.cache = Some("memory:1MiB".parse().expect("it is a device"));
    config.first.write = Some(WriteMode::Pass);
    config.serving.threads = Some(1);
    config
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
        nvme: NvmeSetup::default(),
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
    waiting: Option<(&'a Arc<Turn>, Mutex<Desk>)>,
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
                    return Ok(Arc::new(LastHalf::new(mirror, half.to_string(), turn)));
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

/// Returns whether the mirror opens as soon as another half is there.
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
