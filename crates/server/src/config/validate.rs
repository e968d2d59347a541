//! Validates all settings in one pass: compares them with each other, and sets defaults that depend
//! on other settings. No device is opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use floe_block::{
    Freezing, MOST_VOLUME_BYTES, MemoryError, MemoryOptions, MemoryTier, MemoryWrite, WriteMode,
    format_size,
};
use floe_device::Spec;
use floe_model::{Policy, Service, Setting as Load};
use floe_nvme::target::io::BlockSize;
use floe_policy::admission::{RegisteredAdmission, SmallBypass};

use super::place::{TableRef, Wrong, named, wrong};
use super::tier::{Where, always, too_large_tiers, too_much_memory};
use super::value::{Attach, Bytes, Freeze, Interval};
use super::{
    AdminConfig, ListenConfig, MemoryConfig, ServerConfig, ServingConfig, Table, TierConfig,
    VolumeConfig,
};
use crate::admin::{AdminAddress, AdminChoice};
use crate::client_name::ClientName;
use crate::listener::ListenAddress;
use crate::nvme_access::NvmeAccess;
use crate::tls::{TlsConfig, TlsError, TlsMode};
use crate::total_limit::{TOTAL_BURST_NEEDS, TotalLimit};
use crate::volume::{Reach, too_long};
use crate::volume_limit::{BURST_NEEDS, RequestLimit};
use crate::volume_share::VolumeShare;

/// Addition to the error for an admission that only a tier can have, not memory.
const ASKED_OF_A_TIER: &str = "a tier on DRAM can have it: use --tier \
                               memory:SIZE,write=back,volatile,admit=fussy:tune=1 instead";

const LISTEN: &str = "nbd://127.0.0.1:10809";

/// Default of the setting `flush-interval`.
const FLUSH_INTERVAL: Interval = Interval(Duration::from_secs(5));

/// Settings that limit a volume, in the order in which errors name them.
const LIMITS: [&str; 7] = [
    "requests-per-second",
    "bytes-per-second",
    "client-requests-per-second",
    "client-bytes-per-second",
    "clients",
    "connections",
    "weight",
];

impl ServerConfig {
    /// Validates all settings and sets defaults for missing ones.
    ///
    /// # Errors
    /// The first setting that cannot be used.
    pub fn validated(mut self) -> Result<Self, Wrong> {
        if let Some((setting, problem)) = self.out_of_range() {
            return Err(wrong(&setting, problem));
        }
        self.validate_volumes()?;
        let files = self.files();
        self.validate_tiers()?;
        self.validate_apart(&files)?;
        self.validate_names()?;
        self.validate_threads()?;
        self.admin.validate()?;
        self.memory.validate()?;
        self.validate_memory()?;
        let has_clients = self.volume.iter().any(|volume| volume.reach().has_clients());
        if self.listen.listen.is_empty() && has_clients {
            self.listen.listen = vec![named("listen", LISTEN.parse())?];
        }
        let mode = self.tiers().next().map_or(WriteMode::default(), TierConfig::mode);
        if self.serving.shed.is_some() && mode == WriteMode::Pass {
            let problem = "shed has no effect with write = pass, by which the cache answers no \
                           reads";
            return Err(wrong("shed", problem));
        }
        self.validate_flush_interval(mode)?;
        self.validate_standby()?;
        self.listen.validate()?;
        self.validate_total_limit()?;
        self.validate_logical_blocks()?;
        self.validate_certified()?;
        Ok(self)
    }

    /// Checks that limits of all volumes together have a volume to limit.
    fn validate_total_limit(&self) -> Result<(), Wrong> {
        let total = self.listen.total_limit();
        if !total.is_any() || self.volume.iter().any(|volume| volume.reach().has_clients()) {
            return Ok(());
        }
        let setting = match total.total_requests_per_second {
            Some(_) => "total-requests-per-second",
            None => "total-bytes-per-second",
        };
        Err(wrong(setting, format!("{setting} does not apply to attached volumes")))
    }

    /// Checks that only volumes which NVMe hosts can reach have a size of logical blocks.
    fn validate_logical_blocks(&self) -> Result<(), Wrong> {
        let has_hosts = self.listen.listen.iter().any(ListenAddress::is_nvme);
        let reaches = |volume: &VolumeConfig| has_hosts && volume.reach().has_clients();
        let is_wrong = |it: &VolumeConfig| it.nvme_block_size.is_some() && !reaches(it);
        let Some(index) = self.volume.iter().position(is_wrong) else { return Ok(()) };
        let problem = "nvme-block-size applies to volumes that are served at listen = \
                       nvme-tcp://HOST";
        Err(Wrong::new(Some(TableRef::Volume(index)), "nvme-block-size", problem))
    }

    fn validate_volumes(&self) -> Result<(), Wrong> {
        if self.volume.is_empty() {
            let problem = "volume is missing: describe at least one in a [[volume]] table";
            return Err(wrong("volume", problem));
        }
        for (index, volume) in self.volume.iter().enumerate() {
            let of_volume = |setting: &str, problem: String| {
                Err(Wrong::new(Some(TableRef::Volume(index)), setting, problem))
            };
            let Some(name) = volume.name.as_ref().filter(|name| !name.is_empty()) else {
                let problem = "name is missing: give the name by which clients ask for this volume";
                return of_volume("name", problem.to_owned());
            };
            if name.contains(char::is_control) {
                let problem = format!("name {name:?} contains a control character");
                return of_volume("name", problem);
            }
            let Some(backing) = &volume.backing else {
                return of_volume(
                    "backing",
                    "backing is missing: name the device of the volume".to_owned(),
                );
            };
            // Another machine is not asked before signals are heard.
            let size = if backing.is_remote() { None } else { backing.size_found() };
            if let Some(bytes) = size.filter(|bytes| *bytes > MOST_VOLUME_BYTES) {
                let (has, most) = (format_size(bytes), format_size(MOST_VOLUME_BYTES));
                return of_volume(
                    "backing",
                    format!("{backing} has {has}; a volume may have at most {most}"),
                );
            }
            if volume.share && volume.attach.is_none() {
                let problem = "share applies to attached volumes; give attach, too";
                return of_volume("share", problem.to_owned());
            }
            if let Some(problem) = volume.cache_share().contradiction() {
                return of_volume("cache-guaranteed", problem);
            }
            let limit = volume.limit();
            if let Some((setting, problem)) = limit.out_of_range() {
                return of_volume(setting, problem);
            }
            if let Some(twice) = volume.client_named_twice() {
                return of_volume("clients", format!("clients names {twice} twice"));
            }
            if volume.limit_burst.is_some() && !limit.has_rate() {
                return of_volume("limit-burst", BURST_NEEDS.to_owned());
            }
            let has_any = limit.is_any() || volume.weight.is_some() || !volume.clients.is_empty();
            if has_any && volume.attach.is_some() {
                let given = volume.given();
                let setting = LIMITS.into_iter().find(|name| given.iter().any(|it| it == name));
                let setting = setting.expect("a limit is given");
                let problem = format!("{setting} does not apply to attached volumes");
                return of_volume(setting, problem);
            }
            for other in &self.volume[..index] {
                if other.name() == name {
                    return of_volume("name", format!("two volumes are named {name:?}"));
                }
                if other.backing().overlaps(backing) {
                    let (one, same) = (other.name(), same_file(other.backing(), backing));
                    return of_volume(
                        "backing",
                        format!("volumes {one:?} and {name:?} are {same}"),
                    );
                }
            }
        }
        Ok(())
    }

    /// Checks that a persistent cache can record the names of the volumes.
    fn validate_names(&self) -> Result<(), Wrong> {
        if !self.tiers().any(TierConfig::is_persistent) {
            return Ok(());
        }
        let too_long = |(at, volume): (usize, &VolumeConfig)| Some((at, too_long(volume.name())?));
        match self.volume.iter().enumerate().find_map(too_long) {
            Some((at, problem)) => Err(Wrong::new(Some(TableRef::Volume(at)), "name", problem)),
            None => Ok(()),
        }
    }

    fn validate_tiers(&mut self) -> Result<(), Wrong> {
        let has_memory = self.memory.memory.is_some();
        if self.first.cache.is_some() || self.tier.is_empty() {
            self.first = std::mem::take(&mut self.first).validated(Where::Server, has_memory)?;
        } else if let Some(setting) = self.first.given().first() {
            let problem = format!("{setting} applies to cache; each tier has its own");
            return Err(Where::Server.wrong(setting, problem));
        }
        for index in 0..self.tier.len() {
            // An upper tier holds data for this one like memory.
            let has_above = has_memory || self.first.cache.is_some() || index > 0;
            let tier = std::mem::take(&mut self.tier[index]);
            let tier = tier.validated(Where::Table(index), has_above)?;
            let mut above =
                self.first.cache.iter().chain(self.tier[..index].iter().map(TierConfig::cache));
            if let Some(other) = above.find(|other| other.overlaps(tier.cache())) {
                let same = same_file(other, tier.cache());
                let problem = format!("this cache and the tier {other} above it are {same}");
                return Err(Where::Table(index).wrong("cache", problem));
            }
            self.tier[index] = tier;
        }
        Ok(())
    }

    /// Checks that no cache is also a volume, and that no device is a file with another purpose.
    fn validate_apart(&self, files: &[(Wrong, PathBuf)]) -> Result<(), Wrong> {
        for (index, tier) in self.tiers().enumerate() {
            let place = match index.checked_sub(usize::from(self.first.cache.is_some())) {
                Some(index) => Where::Table(index),
                None => Where::Server,
            };
            let cache = tier.cache();
            for volume in &self.volume {
                let backing = volume.backing();
                if backing.overlaps(cache) {
                    let name = volume.name();
                    let same = same_file(cache, backing);
                    let problem =
                        format!("the cache and the backing of volume {name:?} are {same}");
                    return Err(place.wrong("cache", problem));
                }
            }
        }
        let devices = self.tiers().map(TierConfig::cache);
        let mut devices = devices.chain(self.volume.iter().map(VolumeConfig::backing));
        devices.try_for_each(|device| match files.iter().find(|(_, file)| device.is_on(file)) {
            Some((wrong, file)) => Err(wrong.saying(format!(
                "{} and the device {device} are the same file{}",
                wrong.setting(),
                by_name(device, file)
            ))),
            None => Ok(()),
        })
    }

    /// Returns the configured files that are not devices, each with an error that names its
    /// setting.
    fn files(&self) -> Vec<(Wrong, PathBuf)> {
        let ListenConfig { listen, tls_certificates, nvme_secrets_file, .. } = &self.listen;
        let mut files = Vec::new();
        let mut note =
            |setting: &str, file: &Path| files.push((wrong(setting, ""), file.to_owned()));
        let single = [
            ("calibration", &self.first.calibration),
            ("service", &self.memory.service),
            ("nvme-secrets-file", nvme_secrets_file),
            ("admin-token-file", &self.admin.admin_token_file),
        ];
        for (setting, file) in single {
            file.iter().for_each(|file| note(setting, file));
        }
        if let Some(folder) = tls_certificates {
            crate::tls::FILES.iter().for_each(|name| note("tls-certificates", &folder.join(name)));
        }
        for address in listen {
            address.socket().iter().for_each(|path| note("listen", path));
        }
        for choice in &self.admin.admin {
            if let AdminChoice::At(AdminAddress::Unix(path)) = choice {
                note("admin", path);
            }
        }
        for (index, tier) in self.tier.iter().enumerate() {
            let file = tier.calibration.iter().map(|file| {
                (Wrong::new(Some(TableRef::Tier(index)), "calibration", ""), file.clone())
            });
            files.extend(file);
        }
        files
    }

    /// Checks that the tiers in memory, and the directories of all tiers, fit into memory together.
    fn validate_memory(&self) -> Result<(), Wrong> {
        let above = self.memory.memory.map_or(0, |Bytes(bytes)| bytes);
        let tiers = self.tiers().map(|tier| (tier.cache_bytes(), tier.cache().is_memory()));
        let tiers: Vec<_> = tiers.collect();
        let Some(problem) = too_large_tiers(above, tiers.into_iter()) else { return Ok(()) };
        let setting = if self.memory.memory.is_some() { "memory" } else { "cache-size" };
        Err(wrong(setting, format!("{setting}: {problem}")))
    }

    fn validate_threads(&self) -> Result<(), Wrong> {
        let Some(asked) = self.serving.threads else { return Ok(()) };
        if self.tiers().filter_map(|tier| tier.shards).any(|shards| shards < asked) {
            let problem = format!(
                "threads = {asked} is more than there are shards; each needs one of its own"
            );
            return Err(wrong("threads", problem));
        }
        Ok(())
    }

    /// Returns the number of threads: the setting, or the number of cores limited to the useful
    /// shards of the smallest tier.
    pub fn threads(&self) -> usize {
        let useful = self.tiers().map(TierConfig::useful_threads).min().unwrap_or(1);
        let (_, most) = ServingConfig::range("threads");
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
        self.serving.threads.unwrap_or_else(|| cores.min(useful).clamp(1, most)) as usize
    }

    /// Returns whether writes may be answered before the backing device has them.
    pub(super) fn keeps_writes(&self) -> bool {
        self.tiers().any(|tier| tier.mode().keeps_writes())
            || self.memory.memory_write == Some(MemoryWrite::Back)
    }

    /// Checks that `tls-verify-peer` is not used with protocols that have no certificates, unless
    /// the user has set `insecure`.
    fn validate_certified(&self) -> Result<(), Wrong> {
        if !self.listen.tls_verify_peer || self.listen.insecure {
            return Ok(());
        }
        let mut listen = self.listen.listen.iter();
        let unknowing = match listen.find(|address| address.is_nvme()) {
            Some(address) => ("listen", format!("hosts of listen = {address}")),
            None => match &self.serving.half_listen {
                Some(address) => ("half-listen", format!("the server at half-listen = {address}")),
                None => return Ok(()),
            },
        };
        let (setting, clients) = unknowing;
        let problem = format!(
            "tls-verify-peer serves only clients with a certificate, and {clients} cannot show \
             one; serve them by another server, or give insecure if that network is trusted"
        );
        Err(wrong(setting, problem))
    }

    fn validate_flush_interval(&mut self, mode: WriteMode) -> Result<(), Wrong> {
        let problem = match self.serving.flush_interval {
            Some(_) if !self.keeps_writes() => format!(
                "flush-interval applies to write = back or only, and to memory-write = back; here \
                 write is {mode}"
            ),
            Some(Interval(Duration::ZERO)) => "flush-interval: 0s is too short; without write = \
                                               back nothing is kept in the cache only"
                .to_owned(),
            None if self.keeps_writes() => {
                self.serving.flush_interval = Some(FLUSH_INTERVAL);
                return Ok(());
            }
            _ => return Ok(()),
        };
        Err(wrong("flush-interval", problem))
    }

    /// Checks that a server of a pair keeps all data where the other server can take it over: in
    /// Ceph images and on the mirror of both.
    fn validate_standby(&self) -> Result<(), Wrong> {
        let lease = self.serving.lease.map(|Interval(lease)| lease);
        if lease.is_some_and(|lease| !self.serving.standby || lease < SHORTEST_LEASE) {
            return Err(wrong("lease", "lease needs standby, and is at least 1s"));
        }
        self.validate_half()?;
        if !self.serving.standby {
            return Ok(());
        }
        let own = || self.tiers().filter(|tier| !is_shared(tier));
        let other = self.volume.iter().find(|it| !it.backing().is_image() || it.read_only);
        let problem = if let Some(volume) = other {
            let name = volume.name();
            format!("standby needs volumes on writable images of Ceph (rbd:); {name:?} is not one")
        } else if self.volume.iter().any(|volume| volume.reach().is_local()) {
            "standby does not work with attached volumes".to_owned()
        } else if let Some(tier) = own().find(|tier| tier.is_persistent()) {
            let cache = tier.cache();
            format!(
                "cache {cache} outlives the server, and would be old when it takes over; give \
                 volatile, or a mirror of a disk here and one of the other server"
            )
        } else if own().any(|tier| tier.mode().keeps_writes())
            || self.memory.memory_write == Some(MemoryWrite::Back)
        {
            "write-back would leave writes behind that the other server cannot have; give write = \
             through (and memory-write = through), or a mirror of a disk here and one of the other \
             server as the cache"
                .to_owned()
        } else if self.tiers().any(is_shared) && self.serving.half_listen.is_none() {
            "the other server needs the half that is here while this one stands by; give \
             half-listen"
                .to_owned()
        } else {
            return Ok(());
        };
        Err(wrong("standby", problem))
    }

    fn validate_half(&self) -> Result<(), Wrong> {
        let problem = match &self.serving.half_listen {
            None => return Ok(()),
            Some(ListenAddress::NvmeTcp(_)) => "half-listen: a half is exported over NBD",
            Some(_) if !self.serving.standby => "half-listen needs standby",
            Some(_) => match self.tiers().filter(|tier| is_shared(tier)).count() {
                1 => return Ok(()),
                0 => {
                    "half-listen needs a cache on a mirror of a disk here and one of the other \
                     server"
                }
                _ => "half-listen needs exactly one mirror; there are several",
            },
        };
        Err(wrong("half-listen", problem))
    }

    /// Returns the half of the pair's mirror that is on this machine, and the address on which it
    /// is exported.
    pub fn exported_half(&self) -> Option<(&Spec, &ListenAddress)> {
        let half =
            self.tiers().filter(|tier| is_shared(tier)).find_map(|it| it.cache().local_half());
        half.zip(self.serving.half_listen.as_ref())
    }
}

impl ServingConfig {
    /// Returns the age at which unflushed data is written, approximately.
    pub fn flush_interval(&self) -> Duration {
        self.flush_interval.unwrap_or(FLUSH_INTERVAL).0
    }

    /// Returns the least and largest value of a number setting.
    fn range(name: &str) -> (u64, u64) {
        let setting = Self::SETTINGS.iter().find(|setting| setting.name() == name);
        setting.and_then(|setting| setting.range).unwrap_or((0, u64::MAX))
    }

    /// Returns the time after which a standby takes over from a server that does not renew its
    /// lease.
    pub fn lease(&self) -> Duration {
        self.lease.unwrap_or(LEASE).0
    }
}

impl VolumeConfig {
    /// Returns the name by which clients ask for the volume.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// Returns who may reach the volume: clients, this machine, or both. Clients may use an
    /// attached volume if it is read-only or the user allows sharing.
    pub fn reach(&self) -> Reach {
        match self.attach {
            None => Reach::Clients,
            Some(Attach::Ublk) if self.read_only || self.share => Reach::Both,
            Some(Attach::Ublk) => Reach::Local,
        }
    }

    /// Returns the size of the logical blocks that NVMe hosts see.
    pub fn block_size(&self) -> BlockSize {
        self.nvme_block_size.unwrap_or_default().0
    }

    /// Returns the limits of the volume's requests and connections.
    pub fn limit(&self) -> RequestLimit {
        let default = RequestLimit::default();
        let burst = self.limit_burst.map(|Interval(burst)| burst.as_millis() as u64);
        RequestLimit {
            requests_per_second: self.requests_per_second,
            bytes_per_second: self.bytes_per_second.map(|Bytes(bytes)| bytes),
            limit_burst_ms: burst.unwrap_or(default.limit_burst_ms),
            connections: self.connections,
            client_requests_per_second: self.client_requests_per_second,
            client_bytes_per_second: self.client_bytes_per_second.map(|Bytes(bytes)| bytes),
            clients: self.clients.iter().map(|it| (it.name.clone(), it.limit)).collect(),
            weight: self.weight.unwrap_or(default.weight),
        }
    }

    /// Returns the first client that the settings name for the second time.
    fn client_named_twice(&self) -> Option<&ClientName> {
        let mut names = self.clients.iter().map(|client| &client.name).enumerate();
        let is_second = |(at, name): &(usize, &ClientName)| {
            self.clients[..*at].iter().any(|earlier| earlier.name == **name)
        };
        names.find(is_second).map(|(_, name)| name)
    }

    /// Returns the share of the volume in each tier.
    pub fn cache_share(&self) -> VolumeShare {
        VolumeShare { guaranteed: self.cache_guaranteed, most: self.cache_most }
    }

    /// Returns the backing device.
    ///
    /// # Panics
    /// When the volume has not been validated.
    pub fn backing(&self) -> &Spec {
        self.backing.as_ref().expect("a validated volume has a device")
    }
}

impl MemoryConfig {
    fn validate(&mut self) -> Result<(), Wrong> {
        let Some(Bytes(bytes)) = self.memory else {
            return match self.given().first() {
                None => Ok(()),
                Some(setting) => {
                    let problem = format!(
                        "{setting} applies to the tier in memory; give memory, \
                                           too"
                    );
                    Err(wrong(setting, problem))
                }
            };
        };
        if let Some(too_much) = too_much_memory(bytes) {
            return Err(wrong("memory", format!("memory: {} is {too_much}", format_size(bytes))));
        }
        self.memory_write.get_or_insert_default();
        self.memory_freeze.get_or_insert_default();
        let admit = self.memory_admit.get_or_insert_with(always);
        if admit.names().any(|name| name.split(':').next() == Some(SmallBypass::INFO.name)) {
            let problem = "memory-admit: small-bypass needs memory above the cache, and memory is \
                           the uppermost tier";
            return Err(wrong("memory-admit", problem));
        }
        self.times().map(drop)
    }

    /// Creates the memory tier, if the settings ask for one. Memory is allocated only as the tier
    /// fills.
    ///
    /// # Errors
    /// When the settings conflict with each other.
    pub fn tier(&self) -> Result<Option<MemoryTier>, Wrong> {
        let Some(Bytes(bytes)) = self.memory else { return Ok(None) };
        let is_adaptive = self.memory_freeze == Some(Freeze::Adaptive);
        let options = MemoryOptions {
            write: self.memory_write.unwrap_or_default(),
            freezing: is_adaptive.then(Freezing::adaptive),
            admission: self.memory_admit.clone().unwrap_or_else(always),
        };
        let tier = MemoryTier::new(bytes, options).map_err(|error| match error {
            MemoryError::Admission(_) => {
                wrong("memory-admit", format!("memory-admit: {error}; {ASKED_OF_A_TIER}"))
            }
            _ => wrong("memory", format!("memory: {error}")),
        })?;
        Ok(Some(tier))
    }

    /// Reads the service times of list operations, which must include those of the tier's policy.
    /// Returns `None` without a memory tier or a file.
    ///
    /// # Errors
    /// When the memory tier cannot be created, or the file cannot be used.
    pub fn times(&self) -> Result<Option<Arc<Service>>, Wrong> {
        let Some(tier) = self.tier()? else { return Ok(None) };
        let Some(file) = &self.service else { return Ok(None) };
        let times = named("service", read_times(file))?;
        let policy = named("service", Policy::alike(tier.usage().policy))?;
        let network = policy.network(&times, &Load::new(1.0, 0.0));
        named("service", network.map_err(|error| format!("{}: {error}", file.display())))?;
        Ok(Some(Arc::new(times)))
    }
}

/// Reads service times of list operations from a JSON file.
///
/// # Errors
/// The problem, preceded by the file's name.
pub fn read_times(file: &Path) -> Result<Service, String> {
    let refused = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let text = std::fs::read_to_string(file).map_err(|error| refused(&error))?;
    serde_json::from_str(&text).map_err(|error| refused(&error))
}

impl ListenConfig {
    /// Loads the TLS certificates. Returns `None` if encryption is off.
    ///
    /// # Errors
    /// When a certificate cannot be used.
    pub fn certificates(&self) -> Result<Option<TlsConfig>, TlsError> {
        let mode = self.tls.unwrap_or_default();
        let folder = self.tls_certificates.as_deref().filter(|_| mode != TlsMode::Off);
        let is_required = mode == TlsMode::Require;
        folder.map(|folder| TlsConfig::load(folder, self.tls_verify_peer, is_required)).transpose()
    }

    /// Returns the NVMe hosts that may connect, with their secrets.
    ///
    /// # Errors
    /// When the file of secrets cannot be used.
    pub fn nvme_access(&self) -> Result<NvmeAccess, Wrong> {
        let hosts = self.nvme_hosts.iter().map(ToString::to_string).collect();
        let access = NvmeAccess::new(hosts, self.nvme_secrets_file.as_deref());
        named("nvme-secrets-file", access)
    }

    /// Returns the limits of all volumes together.
    pub fn total_limit(&self) -> TotalLimit {
        let burst = self.total_burst.map(|Interval(burst)| burst.as_millis() as u64);
        TotalLimit {
            total_requests_per_second: self.total_requests_per_second,
            total_bytes_per_second: self.total_bytes_per_second.map(|Bytes(bytes)| bytes),
            total_burst_ms: burst.unwrap_or(TotalLimit::NONE.total_burst_ms),
        }
    }

    fn validate(&self) -> Result<(), Wrong> {
        let total = self.total_limit();
        if let Some((setting, problem)) = total.out_of_range() {
            return Err(wrong(setting, problem));
        }
        if self.total_burst.is_some() && !total.is_any() {
            return Err(wrong("total-burst", TOTAL_BURST_NEEDS));
        }
        let of_nvme = [
            ("nvme-hosts", !self.nvme_hosts.is_empty()),
            ("nvme-secrets-file", self.nvme_secrets_file.is_some()),
        ];
        if let Some((setting, _)) = of_nvme.into_iter().find(|(_, given)| *given)
            && !self.listen.iter().any(ListenAddress::is_nvme)
        {
            let problem = format!(
                "{setting} applies to listen = nvme-tcp://HOST; there is no such \
                                   address"
            );
            return Err(wrong(setting, problem));
        }
        let is_on = self.tls.unwrap_or_default() != TlsMode::Off;
        let given = [
            ("tls-certificates", self.tls_certificates.is_some()),
            ("tls-verify-peer", self.tls_verify_peer),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((setting, _)) if !is_on => {
                let problem = format!("{setting} applies to tls = on or require; here tls is off");
                Err(wrong(setting, problem))
            }
            _ if is_on && self.tls_certificates.is_none() => {
                let problem =
                    "tls-certificates is missing: name the folder with the server's certificate";
                Err(wrong("tls", problem))
            }
            _ => Ok(()),
        }
    }
}

impl AdminConfig {
    fn validate(&self) -> Result<(), Wrong> {
        let of_tcp = [
            ("admin-token-file", self.admin_token_file.is_some()),
            ("admin-hosts", !self.admin_hosts.is_empty()),
        ];
        if let Some((setting, _)) = of_tcp.into_iter().find(|(_, given)| *given)
            && !self.admin.iter().any(is_tcp)
        {
            let problem = format!(
                "{setting} applies to admin = HOST:PORT; there is no such \
                                   address"
            );
            return Err(wrong(setting, problem));
        }
        if self.admin_group.is_some() && !self.is_on_a_socket() {
            let problem = "admin-group applies to the Unix socket, which admin = none leaves out";
            return Err(wrong("admin-group", problem));
        }
        let is_socket =
            |choice: &&AdminChoice| matches!(choice, AdminChoice::At(AdminAddress::Unix(_)));
        match self.admin.iter().find(is_socket) {
            Some(socket) if self.admin.contains(&AdminChoice::NoSocket) => {
                let problem = format!("admin: none means no socket, but {socket} is given, too");
                Err(wrong("admin", problem))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the admin interface has a Unix socket, at a given path or the default one.
    pub(crate) fn is_on_a_socket(&self) -> bool {
        !self.admin.contains(&AdminChoice::NoSocket)
    }

    /// Returns whether no client can change anything while the server runs.
    pub fn is_read_only(&self) -> bool {
        !self.is_on_a_socket() && self.admin_token_file.is_none()
    }
}

/// Returns a message that two devices are one file, with both names if they differ.
fn same_file(one: &Spec, other: &Spec) -> String {
    match (one.paths(), other.paths()) {
        (one, other) if one == other => "the same file".to_owned(),
        _ => {
            format!("the same file, under the names {one} and {other}; it cannot be in use as both")
        }
    }
}

/// Returns the file's name for an error message, or nothing if the device has the file under the
/// same name.
fn by_name(device: &Spec, file: &Path) -> String {
    match device.paths().iter().any(|path| path == file) {
        true => String::new(),
        false => format!(", under the name {}", file.display()),
    }
}

fn is_tcp(choice: &AdminChoice) -> bool {
    matches!(choice, AdminChoice::At(AdminAddress::Tcp(_)))
}

#[cfg(test)]
mod tests;

/// Default of the setting `lease`. Its minimum is `SHORTEST_LEASE`, because a renewal takes a
/// fraction of a second.
const LEASE: Interval = Interval(Duration::from_secs(5));
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// Returns whether both servers of a pair have the tier: it is persistent, and on a mirror with a
/// half on each server.
fn is_shared(tier: &TierConfig) -> bool {
    tier.is_persistent() && tier.cache().local_half().is_some()
}
