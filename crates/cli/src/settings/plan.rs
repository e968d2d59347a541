//! Validates settings: parses devices, checks numbers against each other, fills in defaults. It
//! opens nothing.

mod admin;
mod tiers;

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use floe_block::{
    Admissions, Freezing, MemoryError, MemoryOptions, MemoryTier, MemoryWrite, WriteMode,
    format_size,
};
use floe_device::Spec;
use floe_model::{Policy, Service, Setting};
use floe_nbd::uri::Uri;
use floe_policy::admission::registry::choices;
use floe_policy::admission::{RegisteredAdmission, SmallBypass};
use floe_server::limits::MOST_CONNECTIONS;
use floe_server::tls::TlsMode;

use super::place::{Place, Table};
use super::tier::TierTable;
use super::{Settings, VolumeTable, Wrong};
use crate::size::{Bytes, Percent};
use admin::AdminPlan;
pub(crate) use tiers::TierPlan;
use tiers::{same_file, threads};

/// The error for an admission that a tier can have but memory cannot.
const ASKED_OF_A_TIER: &str = "a tier on DRAM can have it: use --tier \
                               memory:SIZE,write=back,volatile,admit=fussy:tune=1 instead";

/// The default address for clients.
const LISTEN: &str = "nbd://127.0.0.1:10809";

/// The largest number of connections that a setting may allow.
const CONNECTIONS_MAX: u64 = 65536;

/// The validated settings.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// At least one; the first is the clients' default. Names are unique.
    pub(crate) volumes: Vec<VolumePlan>,
    /// At least one; from the top. No two are on one device.
    pub(crate) tiers: Vec<TierPlan>,
    /// The tier above the first one. Takes memory once it is used.
    pub(crate) memory: Option<MemoryPlan>,
    /// The largest share of hits that may be shed.
    pub(crate) shed: Option<Percent>,
    pub(crate) threads: usize,
    /// The number of threads is a setting; otherwise fewer will do.
    pub(crate) threads_given: bool,
    pub(crate) listen: Vec<Uri>,
    pub(crate) max_connections: usize,
    pub(crate) tls: Option<TlsPlan>,
    pub(crate) admin: AdminPlan,
    pub(crate) flush_interval: Duration,
    pub(crate) insecure: bool,
    /// The state directory of persistent caches, if one is given.
    pub(crate) state_dir: Option<PathBuf>,
}

/// A volume to serve.
#[derive(Debug, Clone)]
pub(crate) struct VolumePlan {
    pub(crate) name: String,
    /// A description for users; may be empty.
    pub(crate) description: String,
    pub(crate) backing: Spec,
    pub(crate) read_only: bool,
}

/// The tier in memory.
#[derive(Debug, Clone)]
pub(crate) struct MemoryPlan {
    bytes: u64,
    admit: Admissions,
    freeze: Freeze,
    pub(crate) tier: MemoryTier,
    pub(crate) service: Option<ServicePlan>,
}

/// The service times of list operations on this machine.
#[derive(Debug, Clone)]
pub(crate) struct ServicePlan {
    file: PathBuf,
    pub(crate) times: Arc<Service>,
}

impl ServicePlan {
    /// Reads the times, which must include those of the tier's policy.
    fn read(file: PathBuf, tier: &MemoryTier) -> Result<Self, Wrong> {
        let times = named("service", crate::model::read(&file))?;
        let policy = named("service", Policy::alike(tier.usage().policy))?;
        let network = policy.network(&times, &Setting::new(1.0, 0.0));
        named("service", network.map_err(|error| format!("{}: {error}", file.display())))?;
        Ok(Self { file, times: Arc::new(times) })
    }
}

/// The freezing of the hottest pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Freeze {
    #[default]
    Off,
    Adaptive,
}

impl FromStr for Freeze {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "off" => Ok(Self::Off),
            "adaptive" => Ok(Self::Adaptive),
            _ => Err(format!("there is no way `{name}` to freeze; there are adaptive and off")),
        }
    }
}

/// The encryption of connections.
#[derive(Debug, Clone)]
pub(crate) struct TlsPlan {
    /// The folder with the certificates.
    pub(crate) certificates: PathBuf,
    /// Clients that do not encrypt are refused.
    pub(crate) required: bool,
    /// Clients must show a certificate.
    pub(crate) verify_peer: bool,
}

/// Makes the error of a setting of the whole run, or of the volume with this number.
fn wrong(volume: Option<usize>, setting: &'static str, problem: impl Into<String>) -> Wrong {
    Wrong { place: Place { table: volume.map(Table::Volume), setting }, problem: problem.into() }
}

/// Returns the value of a setting, or the error with the setting's name.
fn named<T>(setting: &'static str, value: Result<T, impl Display>) -> Result<T, Wrong> {
    value.map_err(|error| wrong(None, setting, format!("{setting}: {error}")))
}

fn parsed<T: FromStr<Err: Display>>(
    setting: &'static str,
    text: Option<&str>,
) -> Result<Option<T>, Wrong> {
    text.map(|text| named(setting, text.parse())).transpose()
}

fn missing(volume: Option<usize>, setting: &'static str) -> Wrong {
    wrong(volume, setting, format!("{setting} is missing: say which device"))
}

impl Settings {
    /// Validates the settings.
    pub(crate) fn plan(self) -> Result<Plan, Wrong> {
        let volumes = self.volumes()?;
        let tiers = self.tiers()?;
        let is_backing =
            |tier: &TierPlan| volumes.iter().any(|volume| same_file(&volume.backing, &tier.cache));
        if tiers.iter().any(is_backing) {
            return Err(wrong(None, "cache", "backing and cache are the same file"));
        }
        let threads = threads(self.threads, &tiers)?;
        let admin = AdminPlan::of(&self)?;
        let memory = memory(
            parsed("memory", self.memory.as_deref())?,
            parsed("memory-write", self.memory_write.as_deref())?,
            self.memory_admit.as_deref(),
            parsed("memory-freeze", self.memory_freeze.as_deref())?,
            self.service,
        )?;
        let listen = if self.listen.is_empty() { vec![LISTEN.to_owned()] } else { self.listen };
        let listen =
            listen.iter().map(|uri| named("listen", uri.parse())).collect::<Result<_, _>>()?;
        Ok(Plan {
            volumes,
            shed: shed(self.shed.as_deref(), tiers[0].mode)?,
            flush_interval: flush_interval(
                self.flush_interval.as_deref(),
                &tiers,
                memory.as_ref(),
            )?,
            tiers,
            memory,
            threads,
            threads_given: self.threads.is_some(),
            listen,
            max_connections: max_connections(self.max_connections)?,
            tls: tls(
                parsed("tls", self.tls.as_deref())?.unwrap_or_default(),
                self.tls_certificates,
                self.tls_verify_peer,
            )?,
            admin,
            insecure: self.insecure,
            state_dir: self.state_dir,
        })
    }

    fn volumes(&self) -> Result<Vec<VolumePlan>, Wrong> {
        if self.volume.is_empty() {
            return Err(wrong(
                None,
                "volume",
                "volume is missing: describe at least one in a [[volume]] table",
            ));
        }
        let mut volumes: Vec<VolumePlan> = Vec::new();
        for (index, table) in self.volume.iter().enumerate() {
            let volume = table.plan(index)?;
            if volumes.iter().any(|other| other.name == volume.name) {
                let problem = format!("two volumes are named {:?}", volume.name);
                return Err(wrong(Some(index), "name", problem));
            }
            if let Some(other) =
                volumes.iter().find(|other| same_file(&other.backing, &volume.backing))
            {
                let problem =
                    format!("volumes {:?} and {:?} are the same file", other.name, volume.name);
                return Err(wrong(Some(index), "backing", problem));
            }
            volumes.push(volume);
        }
        Ok(volumes)
    }
}

impl Plan {
    /// Returns the plan as settings, with all defaults filled in.
    pub(crate) fn settings(&self) -> Settings {
        let volume = |plan: &VolumePlan| VolumeTable {
            name: Some(plan.name.clone()),
            backing: Some(plan.backing.to_string()),
            description: Some(plan.description.clone()).filter(|text| !text.is_empty()),
            read_only: plan.read_only,
        };
        let interval = humantime::format_duration(self.flush_interval).to_string().replace(' ', "");
        let TierTable {
            cache,
            cache_size,
            volatile,
            write,
            admit,
            evict,
            dirty_max,
            block_sizes,
            shards,
            ..
        } = self.tiers[0].table();
        let mut settings = Settings {
            cache,
            cache_size,
            volatile,
            state_dir: self.state_dir.clone(),
            write,
            admit,
            evict,
            calibration: None, // it is in the admission
            dirty_max,
            block_sizes,
            shards,
            memory: self.memory.as_ref().map(|memory| format_size(memory.bytes)),
            memory_write: self.memory.as_ref().map(|memory| memory.tier.write().to_string()),
            memory_admit: self.memory.as_ref().map(|memory| memory.admit.to_string()),
            memory_freeze: self.memory.as_ref().map(|memory| match memory.freeze {
                Freeze::Off => "off".to_owned(),
                Freeze::Adaptive => "adaptive".to_owned(),
            }),
            service: self
                .memory
                .as_ref()
                .and_then(|memory| Some(memory.service.as_ref()?.file.clone())),
            shed: self.shed.map(|most| most.to_string()),
            threads: self.threads_given.then_some(self.threads as u64),
            listen: self.listen.iter().map(Uri::to_string).collect(),
            max_connections: Some(self.max_connections as u64),
            tls: self
                .tls
                .as_ref()
                .map(|tls| if tls.required { "require" } else { "on" }.to_owned()),
            tls_certificates: self.tls.as_ref().map(|tls| tls.certificates.clone()),
            tls_verify_peer: self.tls.as_ref().is_some_and(|tls| tls.verify_peer),
            flush_interval: keeps_writes(&self.tiers, self.memory.as_ref()).then_some(interval),
            insecure: self.insecure,
            tier: self.tiers[1..].iter().map(TierPlan::table).collect(),
            volume: self.volumes.iter().map(volume).collect(),
            ..Settings::default()
        };
        self.admin.write(&mut settings);
        settings
    }

    /// Logs the served devices and settings.
    pub(crate) fn log(&self) {
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            cache = %self.tiers[0].cache,
            cache_bytes = self.tiers[0].cache_bytes,
            kept = self.tiers[0].is_kept(),
            write = %self.tiers[0].mode,
            admit = %self.tiers[0].admit,
            evict = %self.tiers[0].evict,
            memory_bytes = self.memory.as_ref().map_or(0, |memory| memory.bytes),
            threads = self.threads,
            max_connections = self.max_connections,
            tls = self.tls.is_some(),
            "started"
        );
        for (number, tier) in self.tiers.iter().enumerate().skip(1) {
            let TierPlan { cache, cache_bytes, mode, evict, .. } = tier;
            tracing::info!(tier = number, %cache, cache_bytes, kept = tier.is_kept(), write = %mode, %evict, "tier");
        }
        for VolumePlan { name, backing, read_only, .. } in &self.volumes {
            tracing::info!(volume = name, %backing, read_only, "volume");
        }
    }
}

impl VolumeTable {
    fn plan(&self, index: usize) -> Result<VolumePlan, Wrong> {
        let name = self.name.clone().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| {
            wrong(Some(index), "name", "name is missing: say what clients call this volume")
        })?;
        let backing = self.backing.as_ref().ok_or_else(|| missing(Some(index), "backing"))?;
        let backing = backing
            .parse()
            .map_err(|error| wrong(Some(index), "backing", format!("backing: {error}")))?;
        let description = self.description.clone().unwrap_or_default();
        Ok(VolumePlan { name, description, backing, read_only: self.read_only })
    }
}

fn max_connections(asked: Option<u64>) -> Result<usize, Wrong> {
    match asked.unwrap_or(MOST_CONNECTIONS as u64) {
        asked @ 1..=CONNECTIONS_MAX => Ok(asked as usize),
        asked => {
            let problem =
                format!("max-connections = {asked} is not between 1 and {CONNECTIONS_MAX}");
            Err(wrong(None, "max-connections", problem))
        }
    }
}

fn tls(
    mode: TlsMode,
    certificates: Option<PathBuf>,
    verify_peer: bool,
) -> Result<Option<TlsPlan>, Wrong> {
    let given = [("tls-certificates", certificates.is_some()), ("tls-verify-peer", verify_peer)];
    match (mode, certificates) {
        (TlsMode::Off, _) => match given.into_iter().find(|(_, given)| *given) {
            Some((setting, _)) => Err(wrong(
                None,
                setting,
                format!("{setting} is for tls = on or require; here tls is off"),
            )),
            None => Ok(None),
        },
        (_, None) => {
            let problem =
                "tls-certificates is missing: say which folder holds the server's certificate";
            Err(wrong(None, "tls", problem))
        }
        (mode, Some(certificates)) => {
            Ok(Some(TlsPlan { certificates, required: mode == TlsMode::Require, verify_peer }))
        }
    }
}

/// Returns whether writes may be answered before the backing device has them.
fn keeps_writes(tiers: &[TierPlan], memory: Option<&MemoryPlan>) -> bool {
    tiers.iter().any(|tier| tier.mode.keeps_writes())
        || memory.is_some_and(|memory| memory.tier.write() == MemoryWrite::Back)
}

/// Parses the tier in memory, if there is one.
fn memory(
    size: Option<Bytes>,
    write: Option<MemoryWrite>,
    admit: Option<&str>,
    freeze: Option<Freeze>,
    service: Option<PathBuf>,
) -> Result<Option<MemoryPlan>, Wrong> {
    let Some(Bytes(bytes)) = size else {
        let given = [
            ("memory-write", write.is_some()),
            ("memory-admit", admit.is_some()),
            ("memory-freeze", freeze.is_some()),
            ("service", service.is_some()),
        ];
        return match given.into_iter().find(|(_, given)| *given) {
            None => Ok(None),
            Some((setting, _)) => Err(wrong(
                None,
                setting,
                format!("{setting} is for a tier in memory; give memory, too"),
            )),
        };
    };
    let system = rustix::system::sysinfo();
    let there = u128::from(system.totalram) * u128::from(system.mem_unit);
    if u128::from(bytes) > there {
        let there = format_size((there as u64) >> 20 << 20);
        let problem =
            format!("memory: {} is more than this machine has ({there})", format_size(bytes));
        return Err(wrong(None, "memory", problem));
    }
    let freeze = freeze.unwrap_or_default();
    let freezing = (freeze == Freeze::Adaptive).then(Freezing::adaptive);
    let admit = memory_admit(admit)?;
    let options =
        MemoryOptions { write: write.unwrap_or_default(), freezing, admission: admit.clone() };
    let tier = MemoryTier::new(bytes, options).map_err(|error| match error {
        MemoryError::Admission(_) => {
            wrong(None, "memory-admit", format!("memory-admit: {error}; {ASKED_OF_A_TIER}"))
        }
        _ => wrong(None, "memory", format!("memory: {error}")),
    })?;
    let service = service.map(|file| ServicePlan::read(file, &tier)).transpose()?;
    Ok(Some(MemoryPlan { bytes, admit, freeze, tier, service }))
}

/// Parses the admission to memory.
fn memory_admit(text: Option<&str>) -> Result<Admissions, Wrong> {
    let choices = named("memory-admit", choices(text.unwrap_or("always")))?;
    if choices.iter().any(|choice| choice.name() == SmallBypass::INFO.name) {
        let problem =
            "memory-admit: small-bypass is for what is below memory, and nothing is above that";
        return Err(wrong(None, "memory-admit", problem));
    }
    Ok(Admissions::new(&choices))
}

/// Parses the largest share to shed, if there is one.
fn shed(text: Option<&str>, mode: WriteMode) -> Result<Option<Percent>, Wrong> {
    let most = parsed("shed", text)?;
    if most.is_some() && mode == WriteMode::Pass {
        return Err(wrong(
            None,
            "shed",
            "shed is for a cache that reads are answered from; here write is pass",
        ));
    }
    Ok(most)
}

fn flush_interval(
    text: Option<&str>,
    tiers: &[TierPlan],
    memory: Option<&MemoryPlan>,
) -> Result<Duration, Wrong> {
    let Some(text) = text else { return Ok(Duration::from_secs(5)) };
    let refuse = |problem: String| Err(wrong(None, "flush-interval", problem));
    match humantime::parse_duration(text) {
        Err(_) => {
            refuse(format!("flush-interval: `{text}` is not a duration; write 500ms, 5s or 1min"))
        }
        Ok(_) if !keeps_writes(tiers, memory) => {
            let mode = tiers[0].mode;
            let problem = format!(
                "flush-interval is for write = back or only and for memory-write = back; here \
                 write is {mode}"
            );
            refuse(problem)
        }
        Ok(interval) if interval.is_zero() => refuse(
            "flush-interval: 0s is too short; without write = back nothing is kept in the cache \
             only"
                .into(),
        ),
        Ok(interval) => Ok(interval),
    }
}

#[cfg(test)]
mod tests;
