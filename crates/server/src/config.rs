//! The settings of a server: one typed tree, read from floe.toml, the command line or an admin
//! request, validated in one pass, and passed on as a whole.
//!
//! Each setting is declared once, here. Its name in files and options, its help, the manual page
//! and the reference in docs/service/settings.md follow from the declaration.

mod declare;
mod place;
mod tier;
mod validate;
mod value;

use std::fmt::{self, Display, Formatter};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use floe_block::{Admissions, BlockSizes, Evict, MemoryWrite, WriteMode};
use floe_device::Spec;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use self::declare::{Name, settings};
use self::place::{Place, TableRef, line_at, setting_at};
use self::value::{Read, Value, Written};
use crate::admin::AdminChoice;
use crate::listener::ListenAddress;
use crate::named_clients::NamedClient;
use crate::tls::TlsMode;

pub use crate::volume_share::CachePortion;
pub use declare::{Given, Setting, SettingKind, read_given};
pub use place::{Origin, Wrong};
pub use tier::own_forms;
pub use validate::read_times;
pub use value::{Attach, Bytes, Freeze, Group, Interval, LogicalBlock, Nqn, Percent};

pub(crate) use place::named;
pub(crate) use tier::{too_large_tables, too_large_tiers};

/// A table of settings, implemented by `settings!`.
trait Table: Default {
    /// Declarations of the settings, in the order of help.
    const SETTINGS: &'static [Setting];

    /// Reads the value of a setting. Returns false if the table has no setting of this name.
    fn take<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error>;

    /// Writes the settings that the user has given.
    fn give<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error>;

    /// Returns the names of the settings that the user has given.
    fn given(&self) -> Vec<String>;

    /// Returns the first number that is outside its range: the setting's name, and an error
    /// message.
    fn out_of_range(&self) -> Option<(String, String)>;
}

settings! {
    /// Settings of one tier of the cache. In a file, those of the first tier are among the settings
    /// of the whole server.
    TierConfig {
        /// The cache device; a file that is missing is created
        cache: Option<Spec> { example: "file:/dev/nvme0n1", replayed: true }
        /// Size of the cache, its metadata included
        cache_size: Option<Bytes> {
            default: "the device's size", example: "10GiB", replayed: true
        }
        /// When a write is acknowledged, and which devices it goes to
        write: Option<WriteMode> {
            default: "through", example: "back", replayed: true,
            guide: "configure.md#decide-when-writes-reach-the-volume"
        }
        /// The admission, which decides what enters the cache; `floe admissions` lists them
        admit: Option<Admissions> {
            default: "always", example: "small-bypass+obp:target=0.2", replayed: true,
            guide: "tuning.md#admission"
        }
        /// The policy, which decides what leaves the cache; `floe policies` lists them
        evict: Option<Evict> {
            default: "lru", example: "sarc:threshold=4", replayed: true, guide: "tuning.md#eviction"
        }
        /// A file written by `floe calibrate`, with the target for the admission obp if `admit`
        /// does not set one
        calibration: Option<PathBuf> {
            default: "what the cache has recorded, if anything", example: "pmem.json",
            replayed: true
        }
        /// Sizes of cached blocks, powers of two from 4KiB to 1MiB; if not set, Floe learns how
        /// much a read miss should fetch
        block_sizes: Option<BlockSizes> {
            default: "those of the existing cache, or all from 16KiB to 1MiB (256KiB in a small \
                      cache)",
            example: "4KiB,64KiB", replayed: true, guide: "tuning.md#block-sizes"
        }
        /// The largest share of the cache that may be dirty, with write = back or only; further
        /// writes go through to the volume
        dirty_max: Option<Percent> { default: "50%", example: "25%", replayed: true }
        /// The number of shards, parts of the cache; fixed when the cache is made
        shards: Option<u64> {
            default: "those of the existing cache, or one for each GiB, at most 128, and several \
                      for each thread",
            example: "16", unit: "shards", replayed: true
        }
        /// Start with an empty cache each time, instead of reusing the one on the device
        volatile: bool { default: "false", guide: "durability.md#the-cache-is-kept" }
    }

    /// Settings of the memory tier, which is above all others.
    MemoryConfig {
        /// Size of a cache in memory above the others, its own records included; it holds pages of
        /// 4KiB that were read
        memory: Option<Bytes> { example: "8GiB", guide: "tuning.md#memory" }
        /// When writes reach the tiers below memory; back acknowledges a write once it is in
        /// memory, and keeps up to a quarter of the memory unflushed
        memory_write: Option<MemoryWrite> { default: "through", example: "back" }
        /// The admission of the memory tier, with the same names as admit
        memory_admit: Option<Admissions> {
            default: "always", example: "second-access", guide: "tuning.md#admission"
        }
        /// Freezing of the hottest pages in memory, used only while it is measured to be faster
        memory_freeze: Option<Freeze> { default: "off", example: "adaptive" }
        /// A file with the times of list operations on this machine, written by floe bench memory
        /// --calibrate, for the advice in floe status
        service: Option<PathBuf> {
            default: "the paper's times", example: "times.json", guide: "tuning.md#advice"
        }
    }

    /// Settings of threads, background work and failover.
    ServingConfig {
        /// The directory in which Floe records the state of persistent caches, to refuse old copies
        /// of them, and reservations of NVMe hosts
        state_dir: Option<PathBuf> {
            value: "DIR", default: "$STATE_DIRECTORY, /var/lib/floe, or ~/.local/state/floe",
            guide: "durability.md#old-copies"
        }
        /// The largest share of hits to read from the volume instead of the cache device, used only
        /// while that is faster
        shed: Option<Percent> {
            value: "MOST", default: "none; 50% without a value on the command line",
            bare: Some("50%"), replayed: true, guide: "tuning.md#load-shedding"
        }
        /// Threads that serve, each with its own shards
        threads: Option<u64> {
            default: "the number of cores, or fewer where shards would be too small",
            example: "4", unit: "threads", range: Some((1, 64)), guide: "tuning.md#threads"
        }
        /// Run as one server of a failover pair: wait while the other one serves, and take over
        /// when it dies; all volumes must be images of Ceph
        standby: bool { default: "false", guide: "failover.md" }
        /// The time after which a standby takes over from a server that does not renew its lease
        lease: Option<Interval> { default: "5s", example: "10s", guide: "failover.md" }
        /// The address at which a standby exports its half of the pair's mirrored cache
        half_listen: Option<ListenAddress> {
            example: "nbd://10.0.0.2:10811", guide: "failover.md#write-back"
        }
        /// The interval at which written data goes from the cache to the volume (write = back or
        /// only), and from memory to the tiers below (memory-write = back)
        flush_interval: Option<Interval> { default: "5s", example: "1min", replayed: true }
        /// At shutdown, the longest time to wait for an answer of another machine, such as a Ceph
        /// cluster or an NBD server
        stop_timeout: Option<Interval> { default: "1min", example: "10s" }
    }

    /// Settings of the addresses for clients, and limits on clients.
    ListenConfig {
        /// An address at which clients connect; may be repeated
        listen: Vec<ListenAddress> {
            default: "nbd://127.0.0.1:10809", example: "nbd+unix:///?socket=/run/floe.sock"
        }
        /// The most clients at one time; further ones are disconnected
        max_connections: u64 = 1024 {
            default: "1024", example: "100", unit: "clients", range: Some((1, 65536))
        }
        /// The most requests per second of all volumes together, which they share by weight; more
        /// wait in line
        total_requests_per_second: Option<u64> {
            example: "20000", unit: "requests", range: Some((1, 1_000_000_000)),
            guide: "limits.md#divide-the-servers-rate-by-weights"
        }
        /// The most bytes per second that the clients of all volumes together read, write and zero
        total_bytes_per_second: Option<Bytes> {
            example: "1GiB", guide: "limits.md#divide-the-servers-rate-by-weights"
        }
        /// The time's worth of the limits of all volumes together that may start at once after a
        /// pause
        total_burst: Option<Interval> {
            default: "100ms", example: "1s", guide: "limits.md#divide-the-servers-rate-by-weights"
        }
        /// Encryption of client connections: on allows it, require refuses clients without it
        tls: Option<TlsMode> { default: "off", example: "require", guide: "configure.md#encrypt" }
        /// The directory with ca-cert.pem, server-cert.pem and server-key.pem
        tls_certificates: Option<PathBuf> {
            value: "DIR", example: "/etc/floe/tls", guide: "configure.md#encrypt"
        }
        /// Serve only clients with a certificate signed by ca-cert.pem; they must then encrypt,
        /// also with tls = on
        tls_verify_peer: bool { default: "false", guide: "configure.md#encrypt" }
        /// The name (NQN) by which NVMe hosts know this server; generated if not set
        nqn: Option<Nqn> { example: "nqn.2026-11.com.example:cache", guide: "nvme.md#names" }
        /// The name (NQN) of an NVMe host that may connect; hosts that are not named are refused;
        /// may be repeated
        nvme_hosts: Vec<Nqn> {
            default: "anyone", example: "nqn.2014-08.org.nvmexpress:uuid:…",
            guide: "nvme.md#who-may-connect"
        }
        /// A file with the secrets by which NVMe hosts prove their names; other users must not be
        /// able to read it
        nvme_secrets_file: Option<PathBuf> {
            example: "/etc/floe/nvme-secrets", guide: "nvme.md#who-may-connect"
        }
        /// Allow unencrypted addresses that other machines can reach, and, with tls-verify-peer,
        /// protocols that have no certificates
        insecure: bool { default: "false" }
    }

    /// Settings of the admin interface.
    AdminConfig {
        /// An address of the admin interface: unix:PATH in place of the default socket, or
        /// HOST:PORT beside it, which is read-only; none for no socket; may be repeated
        admin: Vec<AdminChoice> {
            default: "unix:/run/floe/admin.sock or unix:$XDG_RUNTIME_DIR/floe/admin.sock",
            example: "127.0.0.1:10810", guide: "administer.md#who-may-administer"
        }
        /// The group that may use the admin socket too, by name or number
        admin_group: Option<Group> { default: "only the server's user", example: "disk" }
        /// A file with the token that allows changes over TCP; other users must not be able to read
        /// it
        admin_token_file: Option<PathBuf> { example: "/etc/floe/token" }
        /// Let browsers change tiers and volumes on the live page, each time after a confirmation
        admin_write: bool { default: "false", guide: "live.md#change-the-server" }
        /// A host name, beside localhost, by which clients may call the admin interface over TCP;
        /// may be repeated
        admin_hosts: Vec<String> { example: "cache.example.com" }
        /// A directory from which volumes and tiers may be added to the running server; may be
        /// repeated
        admin_paths: Option<Vec<PathBuf>> {
            value: "DIR", example: "/srv",
            default: "anywhere for the server's user, otherwise beside the files served"
        }
    }

    /// Settings of one volume.
    VolumeConfig {
        /// The name of the volume, by which clients ask for it
        name: Option<String> { option: "volume", example: "pictures" }
        /// The device with the volume's data; for tests it may end in
        /// ,medium=NAME[,interference=off], and a file in ,write-cache=volatile
        backing: Option<Spec> { example: "file:/dev/vdb", replayed: true }
        /// Refuse clients' writes to the volume
        read_only: bool { default: "false" }
        /// The volume may hold a cache of Floe: that of a client, which is a Floe server itself;
        /// without this the log warns
        holds_cache: bool { default: "false", guide: "exports.md#as-a-cache" }
        /// The size of the logical blocks that NVMe hosts see; with another size the volume is
        /// another disk to them
        nvme_block_size: Option<LogicalBlock> {
            default: "512", example: "4KiB", guide: "nvme.md#logical-blocks"
        }
        /// The most requests per second of all clients of the volume; more wait in line
        requests_per_second: Option<u64> {
            example: "5000", unit: "requests", range: Some((1, 1_000_000_000)),
            guide: "limits.md"
        }
        /// The most bytes per second that all clients of the volume read, write and zero
        bytes_per_second: Option<Bytes> { example: "100MiB", guide: "limits.md" }
        /// The most requests per second of each client of the volume: an NVMe host by its name, NBD
        /// clients by the address of their machine or, on a Unix socket, by user
        client_requests_per_second: Option<u64> {
            example: "500", unit: "requests", range: Some((1, 1_000_000_000)),
            guide: "limits.md#limit-each-client"
        }
        /// The most bytes per second that each client of the volume reads, writes and zeroes
        client_bytes_per_second: Option<Bytes> {
            example: "20MiB", guide: "limits.md#limit-each-client"
        }
        /// A client with limits of its own instead of those of each client, and with a weight among
        /// the clients of the volume: the NQN of an NVMe host, an address or network of NBD
        /// clients, user:UID, loopback or others; may be repeated
        clients: Vec<NamedClient> {
            option: "client", example: "10.0.0.0/8,weight=300",
            guide: "limits.md#limit-clients-by-name"
        }
        /// The time's worth of the limits that may start at once after a pause
        limit_burst: Option<Interval> { default: "100ms", example: "1s", guide: "limits.md" }
        /// The volume's part of total-requests-per-second and total-bytes-per-second while volumes
        /// compete, in proportion to the weights of the others
        weight: Option<u64> {
            default: "100", example: "300", range: Some((1, 1000)),
            guide: "limits.md#divide-the-servers-rate-by-weights"
        }
        /// The most connections to the volume at one time, of NBD clients and NVMe hosts; further
        /// ones are refused
        connections: Option<u64> {
            example: "20", unit: "connections", range: Some((1, 65536)),
            guide: "limits.md#limit-the-connections-of-a-volume"
        }
        /// The part of each tier, a size or a percentage, that other volumes do not evict; they use
        /// it while this volume does not
        cache_guaranteed: Option<CachePortion> {
            default: "nothing", example: "10GiB", guide: "shares.md"
        }
        /// The largest part of each tier, a size or a percentage, that the volume uses
        cache_most: Option<CachePortion> {
            default: "all of the tier", example: "50%", guide: "shares.md"
        }
        /// Attach the volume to this machine as a block device, instead of serving it to clients
        attach: Option<Attach> { example: "ublk", guide: "attach.md", is_option: false }
        /// Serve an attached volume to clients as well, although this machine can write to it
        share: bool { default: "false", guide: "attach.md#clients-beside-it", is_option: false }
        /// A text that clients see when they list the volumes
        description: Option<String> { value: "TEXT", example: "until 2024", is_option: false }
    }
}

/// All settings of a server.
#[derive(Debug, Clone, Default)]
pub struct ServerConfig {
    /// The first tier, if it is described by settings of the whole server.
    pub first: TierConfig,
    /// Settings of the memory tier.
    pub memory: MemoryConfig,
    /// Settings of threads, background work and failover.
    pub serving: ServingConfig,
    /// Addresses for clients, and limits on clients.
    pub listen: ListenConfig,
    /// Settings of the admin interface.
    pub admin: AdminConfig,
    /// Tiers with tables of their own, from the top.
    pub tier: Vec<TierConfig>,
    /// The volumes; the first is the default for clients.
    pub volume: Vec<VolumeConfig>,
    /// The file from which the settings were read.
    pub origin: Origin,
}

impl ServerConfig {
    /// Returns the declarations of all settings of the whole server, including those of the first
    /// tier.
    pub fn settings() -> impl Iterator<Item = &'static Setting> {
        let tables = [
            TierConfig::SETTINGS,
            MemoryConfig::SETTINGS,
            ServingConfig::SETTINGS,
            ListenConfig::SETTINGS,
            AdminConfig::SETTINGS,
        ];
        tables.into_iter().flatten()
    }

    /// Returns all tiers, from the top.
    pub fn tiers(&self) -> impl DoubleEndedIterator<Item = &TierConfig> {
        self.first.cache.iter().map(|_| &self.first).chain(&self.tier)
    }

    /// Returns the first number that is outside its range: the setting's name, and an error
    /// message.
    fn out_of_range(&self) -> Option<(String, String)> {
        let Self { memory, serving, listen, admin, .. } = self;
        let first = memory.out_of_range().or_else(|| serving.out_of_range());
        first.or_else(|| listen.out_of_range()).or_else(|| admin.out_of_range())
    }

    /// Reads and validates the settings in a file.
    ///
    /// # Errors
    /// The problem, preceded by the file, the line and the setting as far as they are known.
    pub fn from_file(file: &Path) -> Result<Self, String> {
        let refuse = |problem: String| format!("{}: {problem}", file.display());
        let bytes = std::fs::read(file).map_err(|error| refuse(error.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let intact = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = 1 + intact.iter().filter(|byte| **byte == b'\n').count();
            refuse(format!("line {line}: this is not text in UTF-8"))
        })?;
        let config = Self::from_text(&text).map_err(refuse)?;
        Ok(Self { origin: Origin::new(file, &text), ..config })
    }

    /// Reads and validates settings from the text of a file.
    ///
    /// # Errors
    /// The problem, preceded by its line and the setting.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let at = |line: Option<usize>, problem: String| match line {
            Some(line) => format!("line {line}: {problem}"),
            None => problem,
        };
        let config: Self = toml::from_str(text).map_err(|error| {
            let start = error.span().map(|span| span.start);
            let setting = start.and_then(|start| setting_at(text, start));
            let setting = setting.map(|setting| format!("{setting}: ")).unwrap_or_default();
            let line = start.map(|start| line_at(text, start));
            at(line, format!("{setting}{}", error.message()))
        })?;
        config.validated().map_err(|wrong| at(wrong.place.line(text), wrong.to_string()))
    }

    /// Returns the settings in the format of a file.
    pub fn to_text(&self) -> String {
        toml::to_string(self).expect("settings are tables of texts, numbers and flags")
    }

    /// Returns the error message for a setting that proved unusable: its file and line, its name,
    /// and the problem.
    pub fn unusable(&self, setting: &str, problem: impl Display) -> String {
        let place = Place { table: None, setting: setting.to_owned() };
        format!("{}{setting}: {problem}", self.origin.before(&place))
    }

    /// Returns the error message for the unusable backing device of a volume, given by its index.
    pub fn unusable_backing(&self, volume: usize, problem: impl Display) -> String {
        let place = Place { table: Some(TableRef::Volume(volume)), setting: "backing".to_owned() };
        format!("{}backing: {problem}", self.origin.before(&place))
    }

    /// Returns the file and line of a tier's device, to precede an error message. `tier` counts
    /// from the top. The text is empty for settings of a command line.
    pub(crate) fn before_cache(&self, tier: usize) -> String {
        let table = match (self.first.cache.is_some(), tier) {
            (true, 0) => None,
            (has_first, tier) => Some(TableRef::Tier(tier - usize::from(has_first))),
        };
        self.origin.before(&Place { table, setting: "cache".to_owned() })
    }

    /// Returns the message of an error, preceded by the file and line of its setting.
    pub fn wrong(&self, wrong: &Wrong) -> String {
        format!("{}{wrong}", self.origin.before(&wrong.place))
    }
}

impl TierConfig {
    /// Returns the declarations of a tier's settings.
    pub fn settings() -> impl Iterator<Item = &'static Setting> {
        Self::SETTINGS.iter()
    }
}

impl VolumeConfig {
    /// Returns the declarations of a volume's settings.
    pub fn settings() -> impl Iterator<Item = &'static Setting> {
        Self::SETTINGS.iter()
    }
}

/// A table in the format of a file: settings, and tables inside it.
trait FileTable: Default {
    /// Returns the names of the table's settings, and of the tables inside it.
    fn names() -> Vec<String>;

    /// Reads the value of the setting or table of this name.
    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error>;
}

impl FileTable for ServerConfig {
    fn names() -> Vec<String> {
        let tables = ["tier", "volume"].map(str::to_owned);
        Self::settings().map(Setting::name).chain(tables).collect()
    }

    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "tier" => self.tier = map.next_value_seed(Tables("tier", PhantomData))?,
            "volume" => self.volume = map.next_value_seed(Tables("volume", PhantomData))?,
            _ => {
                let _ = self.first.take(name, map)?
                    || self.memory.take(name, map)?
                    || self.serving.take(name, map)?
                    || self.listen.take(name, map)?
                    || self.admin.take(name, map)?;
            }
        }
        Ok(())
    }
}

/// Implements [`FileTable`] for tables that contain only settings.
macro_rules! file_tables {
    ($($table:ty),*) => { $(
        impl FileTable for $table {
            fn names() -> Vec<String> {
                Self::SETTINGS.iter().map(Setting::name).collect()
            }

            fn read<'de, A: MapAccess<'de>>(
                &mut self,
                name: &str,
                map: &mut A,
            ) -> Result<(), A::Error> {
                self.take(name, map).map(drop)
            }
        }

        impl<'de> Deserialize<'de> for $table {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_map(Settings(PhantomData))
            }
        }

        impl Serialize for $table {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                let mut map = to.serialize_map(None)?;
                self.give(&mut map)?;
                map.end()
            }
        }
    )* };
}
file_tables!(TierConfig, VolumeConfig);

impl<'de> Deserialize<'de> for ServerConfig {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Settings(PhantomData))
    }
}

impl Serialize for ServerConfig {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self { first, memory, serving, listen, admin, tier, volume, origin: _ } = self;
        let mut map = to.serialize_map(None)?;
        first.give(&mut map)?;
        memory.give(&mut map)?;
        serving.give(&mut map)?;
        listen.give(&mut map)?;
        admin.give(&mut map)?;
        // Tables come last in TOML.
        if !tier.is_empty() {
            map.serialize_entry("tier", tier)?;
        }
        map.serialize_entry("volume", volume)?;
        map.end()
    }
}

/// Deserialises a list of tables with this name.
struct Tables<T>(&'static str, PhantomData<T>);

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Tables<T> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Vec<T>, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Tables<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "tables [[{}]]", self.0)
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Vec<T>, A::Error> {
        let name = self.0;
        Err(A::Error::custom(format!(
            "there may be several {name}s: write [[{name}]] in place of [{name}]"
        )))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut tables = Vec::new();
        while let Some(table) = list.next_element()? {
            tables.push(table);
        }
        Ok(tables)
    }
}

/// Deserialises a table of settings.
struct Settings<T>(PhantomData<T>);

impl<'de, T: FileTable> Visitor<'de> for Settings<T> {
    type Value = T;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a table of settings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let names = T::names();
        let mut table = T::default();
        while let Some(name) = map.next_key_seed(Name(&names))? {
            table.read(&name, &mut map)?;
        }
        Ok(table)
    }
}
