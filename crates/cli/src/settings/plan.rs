//! Settings understood: devices named, numbers checked against each other, defaults filled in. Nothing is opened.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use floe_block::{
    Admissions, BlockSizes, Freezing, MemoryTier, MemoryWrite, SECTOR_BYTES, WriteMode, format_size,
};
use floe_device::Spec;
use floe_export::admin::DEFAULT_ADDRESS;
use floe_export::limits::MOST_CONNECTIONS;
use floe_export::tls::TlsMode;
use floe_export::uri::Uri;
use floe_model::{Policy, Service, Setting};
use floe_policy::admission::registry::{Choice, choices};
use floe_policy::admission::{Choosable, SmallBypass};

use super::place::Place;
use super::{Settings, VolumeTable, Wrong};
use crate::admin::address;
use crate::calibrate;
use crate::size::{Bytes, Percent};

/// Where clients are awaited unless told otherwise.
const LISTEN: &str = "nbd://127.0.0.1:10809";

/// Most threads that serve.
const THREADS_MAX: u64 = 64;

/// A thread is started by itself only if its shards can hold so many groups; smaller shards choose badly whom to evict.
const GROUPS_A_THREAD: u64 = 16;

/// Clients that can be served at a time at most, whatever is asked for.
const CONNECTIONS_MAX: u64 = 65536;

/// The settings understood.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// At least one; the first is the default one of clients. Names are unique.
    pub(crate) volumes: Vec<VolumePlan>,
    pub(crate) cache: Spec,
    pub(crate) cache_bytes: u64,
    /// The cache ends with the program.
    pub(crate) volatile: bool,
    pub(crate) mode: WriteMode,
    /// Who decides what comes in.
    pub(crate) admit: Admissions,
    /// `None` leaves them to the cache that is there, or are the default ones.
    pub(crate) sizes: Option<BlockSizes>,
    /// Takes memory once it is used.
    pub(crate) memory: Option<MemoryPlan>,
    /// How much of the cache may be dirty, with write-back.
    pub(crate) dirty_max: Option<Percent>,
    /// The most of the hits that may be shed.
    pub(crate) shed: Option<Percent>,
    pub(crate) threads: usize,
    /// They were asked for; otherwise fewer will do.
    pub(crate) threads_given: bool,
    /// At least as many as threads; `None` leaves the number to the cache.
    pub(crate) shards: Option<u64>,
    pub(crate) listen: Vec<Uri>,
    pub(crate) max_connections: usize,
    pub(crate) tls: Option<TlsPlan>,
    pub(crate) admin: String,
    pub(crate) flush_interval: Duration,
    pub(crate) insecure: bool,
}

/// A volume to serve.
#[derive(Debug, Clone)]
pub(crate) struct VolumePlan {
    pub(crate) name: String,
    /// For people; may be empty.
    pub(crate) description: String,
    pub(crate) backing: Spec,
    pub(crate) read_only: bool,
}

/// The tier in memory.
#[derive(Debug, Clone)]
pub(crate) struct MemoryPlan {
    bytes: u64,
    freeze: Freeze,
    pub(crate) tier: MemoryTier,
    pub(crate) service: Option<ServicePlan>,
}

/// What list operations take on this machine.
#[derive(Debug, Clone)]
pub(crate) struct ServicePlan {
    file: PathBuf,
    pub(crate) times: Arc<Service>,
}

impl ServicePlan {
    /// Reads the times, which must be of the tier's policy, too.
    fn read(file: PathBuf, tier: &MemoryTier) -> Result<Self, Wrong> {
        let times = named("service", crate::model::read(&file))?;
        let policy = named("service", Policy::alike(tier.usage().policy))?;
        let network = policy.network(&times, &Setting::new(1.0, 0.0));
        named("service", network.map_err(|error| format!("{}: {error}", file.display())))?;
        Ok(Self { file, times: Arc::new(times) })
    }
}

/// Whether the hottest pages are frozen.
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

/// How connections are encrypted.
#[derive(Debug, Clone)]
pub(crate) struct TlsPlan {
    /// The folder with the certificates.
    pub(crate) certificates: PathBuf,
    /// Clients that do not encrypt are refused.
    pub(crate) required: bool,
    /// Clients must show a certificate.
    pub(crate) verify_peer: bool,
}

/// A setting of the whole run, or of the volume with this number.
fn wrong(volume: Option<usize>, setting: &'static str, problem: impl Into<String>) -> Wrong {
    Wrong { place: Place { volume, setting }, problem: problem.into() }
}

/// The value of a setting, or what is wrong with it after its name.
fn named<T>(setting: &'static str, value: Result<T, impl Display>) -> Result<T, Wrong> {
    value.map_err(|error| wrong(None, setting, format!("{setting}: {error}")))
}

fn parsed<T: FromStr<Err: Display>>(setting: &'static str, text: Option<&str>) -> Result<Option<T>, Wrong> {
    text.map(|text| named(setting, text.parse())).transpose()
}

fn missing(volume: Option<usize>, setting: &'static str) -> Wrong {
    wrong(volume, setting, format!("{setting} is missing: say which device"))
}

impl Settings {
    /// Understands the settings.
    pub(crate) fn plan(self) -> Result<Plan, Wrong> {
        let volumes = self.volumes()?;
        let cache: Spec = parsed("cache", self.cache.as_deref())?.ok_or_else(|| missing(None, "cache"))?;
        if volumes.iter().any(|volume| same_file(&volume.backing, &cache)) {
            return Err(wrong(None, "cache", "backing and cache are the same file"));
        }
        let cache_size: Option<Bytes> = parsed("cache-size", self.cache_size.as_deref())?;
        let cache_bytes = cache_bytes(&cache, cache_size.map(|Bytes(bytes)| bytes))?;
        let sizes: Option<BlockSizes> = parsed("block-sizes", self.block_sizes.as_deref())?;
        let known_sizes = sizes.clone().unwrap_or_default();
        let threads = threads(self.threads, self.shards, cache_bytes, &known_sizes)?;
        let mode = parsed("write", self.write.as_deref())?.unwrap_or_default();
        let memory = memory(
            parsed("memory", self.memory.as_deref())?,
            parsed("memory-write", self.memory_write.as_deref())?,
            parsed("memory-freeze", self.memory_freeze.as_deref())?,
            self.service,
        )?;
        let keeps_writes = keeps_writes(mode, memory.as_ref());
        let listen = if self.listen.is_empty() { vec![LISTEN.to_owned()] } else { self.listen };
        let listen = listen.iter().map(|uri| named("listen", uri.parse())).collect::<Result<_, _>>()?;
        Ok(Plan {
            volumes,
            cache,
            cache_bytes,
            volatile: self.volatile,
            mode,
            admit: admit(self.admit.as_deref(), self.calibration.as_deref(), mode, memory.is_some())?,
            sizes,
            memory,
            dirty_max: dirty_max(self.dirty_max.as_deref(), mode)?,
            shed: shed(self.shed.as_deref(), mode)?,
            threads,
            threads_given: self.threads.is_some(),
            shards: self.shards,
            listen,
            max_connections: max_connections(self.max_connections)?,
            tls: tls(
                parsed("tls", self.tls.as_deref())?.unwrap_or_default(),
                self.tls_certificates,
                self.tls_verify_peer,
            )?,
            admin: named("admin", address(self.admin.as_deref().unwrap_or(DEFAULT_ADDRESS)))?,
            flush_interval: flush_interval(self.flush_interval.as_deref(), keeps_writes, mode)?,
            insecure: self.insecure,
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
            if let Some(other) = volumes.iter().find(|other| same_file(&other.backing, &volume.backing)) {
                let problem = format!("volumes {:?} and {:?} are the same file", other.name, volume.name);
                return Err(wrong(Some(index), "backing", problem));
            }
            volumes.push(volume);
        }
        Ok(volumes)
    }
}

impl Plan {
    /// The same as settings, with what was left to defaults.
    pub(crate) fn settings(&self) -> Settings {
        let volume = |plan: &VolumePlan| VolumeTable {
            name: Some(plan.name.clone()),
            backing: Some(plan.backing.to_string()),
            description: Some(plan.description.clone()).filter(|text| !text.is_empty()),
            read_only: plan.read_only,
        };
        let interval = humantime::format_duration(self.flush_interval).to_string().replace(' ', "");
        Settings {
            cache: Some(self.cache.to_string()),
            cache_size: Some(format_size(self.cache_bytes)),
            volatile: self.volatile,
            write: Some(self.mode.to_string()),
            admit: Some(self.admit.to_string()),
            calibration: None, // it is in the admission
            block_sizes: self.sizes.as_ref().map(BlockSizes::to_string),
            memory: self.memory.as_ref().map(|memory| format_size(memory.bytes)),
            memory_write: self.memory.as_ref().map(|memory| memory.tier.write().to_string()),
            memory_freeze: self.memory.as_ref().map(|memory| match memory.freeze {
                Freeze::Off => "off".to_owned(),
                Freeze::Adaptive => "adaptive".to_owned(),
            }),
            service: self.memory.as_ref().and_then(|memory| Some(memory.service.as_ref()?.file.clone())),
            dirty_max: self.dirty_max.map(|most| most.to_string()),
            shed: self.shed.map(|most| most.to_string()),
            threads: self.threads_given.then_some(self.threads as u64),
            shards: self.shards,
            listen: self.listen.iter().map(Uri::to_string).collect(),
            max_connections: Some(self.max_connections as u64),
            tls: self.tls.as_ref().map(|tls| if tls.required { "require" } else { "on" }.to_owned()),
            tls_certificates: self.tls.as_ref().map(|tls| tls.certificates.clone()),
            tls_verify_peer: self.tls.as_ref().is_some_and(|tls| tls.verify_peer),
            admin: Some(self.admin.clone()),
            flush_interval: keeps_writes(self.mode, self.memory.as_ref()).then_some(interval),
            insecure: self.insecure,
            volume: self.volumes.iter().map(volume).collect(),
        }
    }

    /// Whether the cache goes on with what is on its device.
    pub(crate) fn keeps_cache(&self) -> bool {
        !self.volatile && !self.cache.paths().is_empty()
    }

    /// Says in the log what is served.
    pub(crate) fn log(&self) {
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            cache = %self.cache,
            cache_bytes = self.cache_bytes,
            kept = self.keeps_cache(),
            write = %self.mode,
            admit = %self.admit,
            memory_bytes = self.memory.as_ref().map_or(0, |memory| memory.bytes),
            threads = self.threads,
            max_connections = self.max_connections,
            tls = self.tls.is_some(),
            "started"
        );
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
        let backing =
            backing.parse().map_err(|error| wrong(Some(index), "backing", format!("backing: {error}")))?;
        let description = self.description.clone().unwrap_or_default();
        Ok(VolumePlan { name, description, backing, read_only: self.read_only })
    }
}

fn same_file(one: &Spec, other: &Spec) -> bool {
    one.paths().iter().any(|path| other.paths().contains(path))
}

/// As many threads as asked for, or as there are cores and useful shards for.
fn threads(
    asked: Option<u64>,
    shards: Option<u64>,
    cache_bytes: u64,
    sizes: &BlockSizes,
) -> Result<usize, Wrong> {
    match asked {
        Some(asked) if !(1..=THREADS_MAX).contains(&asked) => {
            Err(wrong(None, "threads", format!("threads = {asked} is not between 1 and {THREADS_MAX}")))
        }
        Some(asked) if shards.is_some_and(|shards| shards < asked) => {
            let problem =
                format!("threads = {asked} is more than there are shards; each needs one of its own");
            Err(wrong(None, "threads", problem))
        }
        Some(asked) => Ok(asked as usize),
        None => {
            let groups = cache_bytes / (sizes.largest() * SECTOR_BYTES);
            let useful = shards.unwrap_or(groups / GROUPS_A_THREAD);
            Ok(cores().min(useful).clamp(1, THREADS_MAX) as usize)
        }
    }
}

/// How many cores this process may run on.
fn cores() -> u64 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64)
}

fn max_connections(asked: Option<u64>) -> Result<usize, Wrong> {
    match asked.unwrap_or(MOST_CONNECTIONS as u64) {
        asked @ 1..=CONNECTIONS_MAX => Ok(asked as usize),
        asked => {
            let problem = format!("max-connections = {asked} is not between 1 and {CONNECTIONS_MAX}");
            Err(wrong(None, "max-connections", problem))
        }
    }
}

fn tls(mode: TlsMode, certificates: Option<PathBuf>, verify_peer: bool) -> Result<Option<TlsPlan>, Wrong> {
    let given = [("tls-certificates", certificates.is_some()), ("tls-verify-peer", verify_peer)];
    match (mode, certificates) {
        (TlsMode::Off, _) => match given.into_iter().find(|(_, given)| *given) {
            Some((setting, _)) => {
                Err(wrong(None, setting, format!("{setting} is for tls = on or require; here tls is off")))
            }
            None => Ok(None),
        },
        (_, None) => {
            let problem = "tls-certificates is missing: say which folder holds the server's certificate";
            Err(wrong(None, "tls", problem))
        }
        (mode, Some(certificates)) => {
            Ok(Some(TlsPlan { certificates, required: mode == TlsMode::Require, verify_peer }))
        }
    }
}

/// Whether writes may be answered before the backing device has them.
fn keeps_writes(mode: WriteMode, memory: Option<&MemoryPlan>) -> bool {
    mode.keeps_writes() || memory.is_some_and(|memory| memory.tier.write() == MemoryWrite::Back)
}

/// The tier in memory, if one is asked for.
fn memory(
    size: Option<Bytes>,
    write: Option<MemoryWrite>,
    freeze: Option<Freeze>,
    service: Option<PathBuf>,
) -> Result<Option<MemoryPlan>, Wrong> {
    let Some(Bytes(bytes)) = size else {
        let given = [
            ("memory-write", write.is_some()),
            ("memory-freeze", freeze.is_some()),
            ("service", service.is_some()),
        ];
        return match given.into_iter().find(|(_, given)| *given) {
            None => Ok(None),
            Some((setting, _)) => {
                Err(wrong(None, setting, format!("{setting} is for a tier in memory; give memory, too")))
            }
        };
    };
    let system = rustix::system::sysinfo();
    let there = u128::from(system.totalram) * u128::from(system.mem_unit);
    if u128::from(bytes) > there {
        let there = format_size((there as u64) >> 20 << 20);
        let problem = format!("memory: {} is more than this machine has ({there})", format_size(bytes));
        return Err(wrong(None, "memory", problem));
    }
    let freeze = freeze.unwrap_or_default();
    let freezing = (freeze == Freeze::Adaptive).then(Freezing::adaptive);
    let tier = named("memory", MemoryTier::new(bytes, write.unwrap_or_default(), freezing))?;
    let service = service.map(|file| ServicePlan::read(file, &tier)).transpose()?;
    Ok(Some(MemoryPlan { bytes, freeze, tier, service }))
}

/// Who decides what comes in, where anything may.
fn admit(
    text: Option<&str>,
    calibration: Option<&Path>,
    mode: WriteMode,
    has_memory: bool,
) -> Result<Admissions, Wrong> {
    let choices = named("admit", choices(text.unwrap_or("always")))?;
    let sees_none = |choice: &Choice| {
        choice.name() == SmallBypass::ABOUT.name && choice.parameters().count("memory") == 0
    };
    if !has_memory && choices.iter().any(sees_none) {
        let problem = "admit: small-bypass is for a cache below memory; say small-bypass:memory=BYTES or give memory, too";
        return Err(wrong(None, "admit", problem));
    }
    let mut admit = Admissions::new(&choices);
    if mode == WriteMode::Pass && !admit.is_always() {
        let problem = "admit is for a cache that something comes into; here write is pass";
        return Err(wrong(None, "admit", problem));
    }
    if let Some(file) = calibration {
        if admit.is_always() {
            let problem = "calibration is for an admission that it tells something, such as admit = obp";
            return Err(wrong(None, "calibration", problem));
        }
        let found = named("calibration", calibrate::read(file))?;
        admit = admit.calibrated(&found.calibrated());
    }
    Ok(admit)
}

/// How much may be dirty, where anything may.
fn dirty_max(text: Option<&str>, mode: WriteMode) -> Result<Option<Percent>, Wrong> {
    let most = parsed("dirty-max", text)?;
    if mode.keeps_writes() {
        return Ok(Some(most.unwrap_or(Percent::HALF)));
    }
    match most {
        None => Ok(None),
        Some(_) => Err(wrong(
            None,
            "dirty-max",
            format!("dirty-max is for write = back and only; here write is {mode}"),
        )),
    }
}

/// How much may be shed, if anything.
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

fn flush_interval(text: Option<&str>, keeps_writes: bool, mode: WriteMode) -> Result<Duration, Wrong> {
    let Some(text) = text else { return Ok(Duration::from_secs(5)) };
    let refuse = |problem: String| Err(wrong(None, "flush-interval", problem));
    match humantime::parse_duration(text) {
        Err(_) => refuse(format!("flush-interval: `{text}` is not a duration; write 500ms, 5s or 1min")),
        Ok(_) if !keeps_writes => {
            let problem = format!(
                "flush-interval is for write = back or only and for memory-write = back; here write is {mode}"
            );
            refuse(problem)
        }
        Ok(interval) if interval.is_zero() => refuse(
            "flush-interval: 0s is too short; without write = back nothing is kept in the cache only".into(),
        ),
        Ok(interval) => Ok(interval),
    }
}

/// The size of the cache: what was asked for, what the spec says, or what is there.
fn cache_bytes(cache: &Spec, asked: Option<u64>) -> Result<u64, Wrong> {
    let there = cache.size_found();
    match (asked, there) {
        (Some(asked), Some(there)) if asked != there => Err(wrong(
            None,
            "cache-size",
            format!("cache-size is {}, but the cache device has {}", format_size(asked), format_size(there)),
        )),
        (Some(bytes), _) | (None, Some(bytes)) => Ok(bytes),
        (None, None) => {
            Err(wrong(None, "cache", format!("cache-size is missing: {cache} does not exist yet")))
        }
    }
}

#[cfg(test)]
mod tests;
