//! Errors that prevent the use of a persistent cache. Each message is one line with the finding and
//! the possible remedies.

use std::fmt;
use std::sync::Arc;

use floe_block::{BeginError, LayoutError, StoreError, format_size};

use super::disk::DiskError;
use crate::volume::{DeviceSource, Volume};

/// A reason why a cache, its device or its volumes cannot be used as they are.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The cache device holds data that is not a cache of Floe's.
    #[error(
        "the cache device holds data that is not a Floe cache; if it may be overwritten, give \
         --initialise"
    )]
    Foreign,
    /// The cache cannot be read completely.
    #[error("the cache cannot be used: {0}; {way}", way = way_out(.0))]
    Unreadable(StoreError),
    /// A new cache would replace an existing one, which may hold dirty data.
    #[error(
        "a new cache would lose {} of dirty data in the old one; write it back first with floe \
         export-dirty, or give --discard-dirty to lose it",
        AtLeast { bytes: *dirty_bytes, exact: *exact }
    )]
    WouldLose {
        /// Dirty bytes found in the existing cache.
        dirty_bytes: u64,
        /// True if `dirty_bytes` is exact. Otherwise the cache could not be read completely, and
        /// may hold more.
        exact: bool,
    },
    /// The cache has none of the volumes to be served.
    #[error(
        "the cache belongs to {}, not to {wanted:?}; use another cache device, or give \
         --initialise to make a new one here",
        names(of)
    )]
    OtherVolume {
        /// Names of the cache's volumes.
        of: Vec<String>,
        /// Name of a volume that was to be served.
        wanted: String,
    },
    /// The cache has dirty data of a volume that is not to be served.
    #[error(
        "the cache has {} of dirty data of volume {volume:?}, which is not served; serve it too, \
         write the data back with floe export-dirty, or give --discard-dirty to lose it",
        Bytes(*dirty_bytes)
    )]
    MissingVolume {
        /// Name of the volume.
        volume: String,
        /// Bytes of dirty data that would be lost.
        dirty_bytes: u64,
    },
    /// A peer tier that may hold dirty data is not among the tiers to be served.
    #[error(
        "the cache was served together with the tier {tier}, which may hold dirty data and is not \
         given: give it, too, or write its data back with floe export-dirty and give \
         --accept-backing, which forgets the clean data of this cache"
    )]
    MissingTier {
        /// Device and settings of the missing tier.
        tier: String,
    },
    /// A tier below this one is missing: its older data would later overwrite newer data.
    #[error(
        "the cache was served above the tier {tier}, which may hold older dirty data that would \
         overwrite newer data later: give both, in any order, or --accept-backing if that tier has \
         no dirty data any more"
    )]
    LowerTier {
        /// Device and settings of the missing tier.
        tier: String,
    },
    /// The cache has no volumes any more, and so no data to write back.
    #[error("the cache has no volumes any more, and so nothing to write back")]
    NoVolumes,
    /// The tiers were served in another order, and one of them may hold newer data than another.
    #[error(
        "it was served below {upper}, and one of them may hold newer data than the other: give the \
         tiers in the order {}; after floe flush and floe stop any order will do",
        order.join(", ")
    )]
    Order {
        /// The tier that was above this one.
        upper: String,
        /// All persistent tiers in the order required, from the top.
        order: Vec<String>,
    },
    /// A backing device differs from its description in the cache.
    #[error(
        "volume {volume:?} on {device} is not as the cache knows it: {difference}; if this is the \
         right device, give --accept-backing: what the cache has of it is then forgotten{}",
        if *dirty_bytes > 0 {
            format!(
                ", and {} it has not written back are kept with --keep-dirty, which overwrites \
                 what the device has there, or lost with --discard-dirty",
                Bytes(*dirty_bytes)
            )
        } else {
            String::new()
        }
    )]
    Changed {
        /// Name of the volume.
        volume: String,
        /// The device given for the volume.
        device: Given,
        /// The difference between the device and its description in the cache.
        difference: Difference,
        /// Bytes of the volume that are dirty in the cache.
        dirty_bytes: u64,
    },
    /// The device given for a volume has the data of another volume.
    #[error(
        "the device given for volume {volume:?}, {device}, has the data of volume {of:?}: give \
         each volume its own device"
    )]
    Swapped {
        /// Name of the volume for which the device was given.
        volume: String,
        /// The device given for the volume.
        device: Given,
        /// Name of the volume whose data the device has.
        of: String,
    },
    /// A cache that served the volume before, and that may hold dirty data, is not given.
    #[error(
        "volume {volume:?} was served with the cache {cache}, which {}, and {}; or, if it is gone \
         for good, give --discard-dirty, which loses that data and serves the older data of the \
         volume ({witness} records session {session} of that cache)",
        match dirty_bytes {
            Some(bytes) => {
                format!("has {} of dirty data", Bytes(*bytes))
            }
            None => "may have dirty data, flushed by clients".to_owned(),
        },
        match given {
            false => {
                "that cache is not there: mount or attach its device and give it again".to_owned()
            }
            true => format!(
                "the given {cache} does not hold that cache now: its file system is not mounted, \
                 its file was made anew or zeroed, or another device has its name; give the device \
                 that holds it"
            ),
        }
    )]
    MissingCache {
        /// Name of the volume.
        volume: String,
        /// Name of the missing cache's device.
        cache: String,
        /// True if a device of this name is given, which holds something else.
        given: bool,
        /// Number of the latest session of the missing cache.
        session: u64,
        /// Bytes of dirty data in the missing cache. `None` if its last session did not end
        /// cleanly.
        dirty_bytes: Option<u64>,
        /// Path of the file in the state directory that names the missing cache.
        witness: String,
    },
    /// The cache was bypassed, and its dirty data may or may not have been written back.
    #[error(
        "requests bypassed the cache in session {noted} when its device failed, as {witness} \
         records, so its data may be older than the volumes: give --accept-backing, which forgets \
         its clean data{}",
        if *dirty_bytes > 0 {
            let dirty = Bytes(*dirty_bytes);
            format!(
                ", and decide about {dirty} of dirty data, of which nothing records whether it was \
                 written back. If it was not, give --keep-dirty: --discard-dirty would lose it. If \
                 it was, give --discard-dirty: --keep-dirty would overwrite newer data. Compare \
                 first, on a copy of the volume, with floe export-dirty --accept-backing"
            )
        } else {
            String::new()
        }
    )]
    Unclear {
        /// Number of the session in which the cache was bypassed.
        noted: u64,
        /// Path of the file in the state directory that records the bypass.
        witness: String,
        /// Bytes of dirty data in the cache.
        dirty_bytes: u64,
    },
    /// The cache is an old copy: a newer state of it was served.
    #[error(
        "the cache is an old copy: it is in the state of session {session}, and {witness} records \
         a later session, {noted}; use the cache that was served last, or give --accept-backing, \
         which forgets the clean data of this one{}",
        if *dirty_bytes > 0 {
            let dirty = Bytes(*dirty_bytes);
            format!(
                ", and decide about {dirty} of dirty data: --keep-dirty writes it over the data of \
                 the volumes, which may be newer, and --discard-dirty loses it"
            )
        } else {
            String::new()
        }
    )]
    OldCache {
        /// Number of the session in which the copy was made.
        session: u64,
        /// Number of the latest session of the cache, by the state directory.
        noted: u64,
        /// Path of the file in the state directory that records the latest session.
        witness: String,
        /// Bytes of dirty data in the old copy.
        dirty_bytes: u64,
    },
    /// The state directory that the user gave cannot be used.
    #[error("state-dir: {dir} cannot be used: {source}")]
    StateDir {
        /// Path of the state directory.
        dir: String,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The user accepts a changed backing device, but has not decided whether to keep its dirty
    /// data.
    #[error(
        "volume {volume:?} is not as the cache knows it ({difference}), and the cache has {} that \
         were not written back: give --keep-dirty to write them to this device, or \
         --discard-dirty to lose them",
        Bytes(*dirty_bytes)
    )]
    Undecided {
        /// Name of the volume.
        volume: String,
        /// The difference between the device and its description in the cache.
        difference: Difference,
        /// Bytes of the volume that are dirty in the cache.
        dirty_bytes: u64,
    },
    /// The backing device has shrunk, and dirty data of the cache may lie beyond its end.
    #[error(
        "volume {volume:?} has shrunk ({difference}), and the cache has {} that were not written \
         back: enlarge it again, or give --discard-dirty to lose them",
        Bytes(*dirty_bytes)
    )]
    Shrunk {
        /// Name of the volume.
        volume: String,
        /// The difference between the device and its description in the cache.
        difference: Difference,
        /// Bytes of the volume that are dirty in the cache.
        dirty_bytes: u64,
    },
    /// The cache has dirty data of a volume that is to be served read-only.
    #[error(
        "volume {volume:?} is read-only now, and the cache has {} that were not written back to \
         it: serve it writable, or write them back with floe export-dirty",
        Bytes(*dirty_bytes)
    )]
    ReadOnly {
        /// Name of the volume.
        volume: String,
        /// Bytes of the volume that are dirty in the cache.
        dirty_bytes: u64,
    },
    /// A layout setting differs from that of the existing cache, which cannot be changed.
    #[error(
        "the cache was made with {setting} = {has}, not {asked}: leave {setting} out, or give \
         --initialise to make a new one"
    )]
    Layout {
        /// Name of the setting.
        setting: &'static str,
        /// Value with which the cache was made.
        has: String,
        /// Requested value.
        asked: String,
    },
    /// The cache has fewer shards than the requested number of threads, and each thread needs one.
    #[error(
        "the cache was made with shards = {shards}, which {threads} threads cannot share; give \
         fewer --threads, or --initialise and --shards to make a new one"
    )]
    Threads {
        /// Number of shards of the cache.
        shards: u64,
        /// Requested number of threads.
        threads: usize,
    },
    /// A device to be attached to the running server holds a cache, whose data may be old by now.
    #[error(
        "the device holds a cache whose data may be older than the volumes; write its dirty data \
         back with floe export-dirty, if there is any, and give --initialise to make a new cache \
         in its place"
    )]
    Joins,
    /// The device holds no cache.
    #[error("{device}: there is no Floe cache")]
    NoCache {
        /// Name of the device.
        device: String,
    },
    /// The cache has no volume of the requested name.
    #[error("the cache has no volume {wanted:?}; it has {}", names(of))]
    NoVolume {
        /// Names of the cache's volumes.
        of: Vec<String>,
        /// Name of the requested volume.
        wanted: String,
    },
    /// The target of a write-back differs from the volume's description in the cache.
    #[error(
        "{device} is not volume {volume:?} as the cache knows it: {difference}; if it is the \
         right device, give --accept-backing"
    )]
    OtherTarget {
        /// Name of the volume.
        volume: String,
        /// The device given for the volume.
        device: Given,
        /// The difference between the device and its description in the cache.
        difference: Difference,
    },
    /// A device is given without a volume's name, and the cache has several volumes.
    #[error("the cache has {}: give the volume of the device, as NAME=SPEC", names(of))]
    WhichVolume {
        /// Names of the cache's volumes.
        of: Vec<String>,
    },
    /// The backing device of a volume holds a persistent cache, which clients would overwrite.
    #[error(
        "{device} is a Floe cache {}, which clients of volume {volume:?} would overwrite: give the \
         device that has the volume's own data; if a Floe server that is a client keeps its cache \
         in this volume, give holds-cache",
        content_of(of, *dirty_bytes, *exact)
    )]
    CacheAsVolume {
        /// Name of the backing device.
        device: String,
        /// Name of the volume.
        volume: String,
        /// Names of the cache's volumes; empty if its superblock cannot be read.
        of: Vec<String>,
        /// Bytes of dirty data in the cache.
        dirty_bytes: u64,
        /// True if `dirty_bytes` is exact. Otherwise the cache could not be read completely, and
        /// may hold more.
        exact: bool,
    },
    /// The device of a volatile cache holds a persistent cache, which would be overwritten.
    #[error(
        "the cache device holds a persistent cache{}, which a volatile one would overwrite; use \
         another device",
        if *dirty_bytes > 0 {
            format!(" with {} that were not written back", Bytes(*dirty_bytes))
        } else {
            String::new()
        }
    )]
    Kept {
        /// Bytes of dirty data in the persistent cache.
        dirty_bytes: u64,
    },
}

/// A difference between a backing device and its description in the cache's superblock, or a reason
/// to suspect one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// The size of the device has changed.
    Size {
        /// Size in bytes before.
        was: u64,
        /// Size in bytes now.
        is: u64,
    },
    /// The device is another file or disk, with the size of the one before.
    Identity,
    /// The content of the device was changed while no server ran, or the device is another disk.
    Content,
    /// The cache is an old copy, so its data of the volume may be old.
    Old,
    /// A peer tier that may have newer data of the volume is missing.
    Alone,
    /// The volume was served by some of the tiers without the others.
    Apart,
    /// The volume was served without this cache since the cache was last used.
    Without,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size { was, is } => write!(f, "it had {} and has {}", Bytes(*was), Bytes(*is)),
            Self::Identity => f.write_str(
                "it is another file than before, or another disk, though it has the same name and \
                 size",
            ),
            Self::Old => f.write_str("the cache is an old copy"),
            Self::Alone => f.write_str("a tier that may hold newer data of it is missing"),
            Self::Apart => f.write_str("it was served through some of the tiers without others"),
            Self::Without => f.write_str("it was served without this cache since"),
            Self::Content => f.write_str("it was changed while no server ran, or is another disk"),
        }
    }
}

/// The device given for a volume. Prints a warning if its name may change at a reboot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    name: String,
    has_kernel_name: bool,
}

impl Given {
    pub(super) fn of(volume: &Volume) -> Self {
        Self::of_source(&volume.backing)
    }

    pub(super) fn of_source(backing: &Arc<dyn DeviceSource>) -> Self {
        Self { name: backing.name(), has_kernel_name: backing.has_kernel_name() }
    }
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if self.has_kernel_name {
            f.write_str(
                " (another disk may have this name after a reboot: use a name below \
                 /dev/disk/by-id)",
            )?;
        }
        Ok(())
    }
}

fn names(of: &[String]) -> String {
    let names: Vec<String> = of.iter().map(|name| format!("{name:?}")).collect();
    format!("volume{} {}", if of.len() == 1 { "" } else { "s" }, names.join(", "))
}

/// Describes the content of a cache: its volumes and dirty data, as far as they are known.
fn content_of(volumes: &[String], dirty_bytes: u64, exact: bool) -> String {
    let dirty = AtLeast { bytes: dirty_bytes, exact };
    match (volumes, exact && dirty_bytes == 0) {
        ([], _) => format!("that cannot be read, with {dirty} of dirty data"),
        (of, true) => format!("of {}", names(of)),
        (of, false) => format!("of {} with {dirty} of dirty data", names(of)),
    }
}

/// Returns the remedy for a cache that cannot be read, as part of the error message.
fn way_out(error: &StoreError) -> &'static str {
    match error {
        StoreError::Log { .. } | StoreError::Checkpoint { .. } => {
            "`floe check --repair CACHE` writes its journal anew and says what is lost, if \
             anything is"
        }
        StoreError::Newer { .. } => "a newer version of floe can use it",
        StoreError::DeviceTooSmall { .. } => {
            "it was cut short: make it that long again, which brings back what it still has, also \
             dirty data; --initialise makes a new one in its place and loses that"
        }
        _ => "`floe check` says more, and --initialise makes a new one in its place",
    }
}

/// An error that prevents a cache from being opened, checked, or written back.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The user must decide first: the devices are not as the cache expects them.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A device could not be opened.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The cache device failed while the cache was read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The device is too small for a new cache, or the requested layout is invalid.
    #[error("{0}")]
    Layout(#[from] LayoutError),
    /// The cache cannot begin a session with these settings.
    #[error(transparent)]
    Begin(#[from] BeginError),
    /// A backing device failed.
    #[error("backing device of volume {volume}: {doing}: {source}")]
    Backing {
        /// Name of the volume.
        volume: String,
        /// The operation that failed, such as "flushing".
        doing: &'static str,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// Dirty data could not be written to its volume.
    #[error(
        "writing back to volume {volume} failed: {fault}; {} are left in the cache",
        Bytes(*left_bytes)
    )]
    WriteBack {
        /// Name of the volume.
        volume: String,
        /// The backing device's error.
        fault: floe_block::Fault,
        /// Bytes of dirty data that remain in the cache.
        left_bytes: u64,
    },
    /// The cache device does not return the superblock just written to it.
    #[error("it does not return data that was just written to it")]
    Forgets,
    /// Waiting for completions on the ring failed.
    #[error("waiting for I/O failed: {0}")]
    Wait(std::io::Error),
    /// The operating system returned no random bytes.
    #[error("cannot read /dev/urandom: {0}")]
    Random(std::io::Error),
}

impl StartError {
    /// Returns whether a device or the system failed, so that a retry may succeed without a
    /// decision by the user.
    pub fn is_failure(&self) -> bool {
        match self {
            Self::Store(error) | Self::Begin(BeginError::Store(error)) => {
                matches!(error, StoreError::Io { .. })
            }
            Self::Backing { .. } | Self::WriteBack { .. } | Self::Wait(_) | Self::Random(_) => true,
            Self::Forgets | Self::Disk(DiskError::Ring(_)) => true,
            Self::Refused(_) | Self::Layout(_) | Self::Begin(_) | Self::Disk(_) => false,
        }
    }
}

/// A number of bytes for messages. Prints a larger unit behind the number where the conversion is
/// exact.
pub(super) struct Bytes(pub(super) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match format_size(self.0) {
            text if text == self.0.to_string() => write!(f, "{text} bytes"),
            text => write!(f, "{} bytes ({text})", self.0),
        }
    }
}

/// A number of bytes for messages. Prints as a lower bound unless `exact`.
pub(super) struct AtLeast {
    pub(super) bytes: u64,
    pub(super) exact: bool,
}

impl fmt::Display for AtLeast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.exact, self.bytes) {
            (true, bytes) => write!(f, "{}", Bytes(bytes)),
            (false, 0) => f.write_str("an unknown number of bytes"),
            (false, bytes) => write!(f, "at least {}", Bytes(bytes)),
        }
    }
}
