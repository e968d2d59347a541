//! Errors that keep a persistent cache from being used. Each is one line with the finding and the
//! possible remedies.

use std::fmt;
use std::sync::Arc;

use floe_block::{BeginError, LayoutError, StoreError, format_size};

use super::disk::DiskError;
use crate::volume::{DeviceSource, Volume};

/// A reason not to use the content of a cache device.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The data is not a cache of Floe's.
    #[error(
        "the cache device holds data that is not a cache of floe's; if it may be overwritten, \
         give --initialise"
    )]
    Foreign,
    /// The cache cannot be read completely.
    #[error("the cache cannot be used: {0}; {way}", way = way_out(.0))]
    Unreadable(StoreError),
    /// A new cache would replace this one, which may hold dirty data.
    #[error(
        "a new cache would lose {} that were written and only the old one has; bring them back \
         first with floe export-dirty, or give --discard-dirty to lose them",
        AtLeast { bytes: *dirty_bytes, exact: *exact }
    )]
    WouldLose {
        /// Dirty bytes found.
        dirty_bytes: u64,
        /// All of the old cache was read, so that the number is exact.
        exact: bool,
    },
    /// The cache belongs to other volumes.
    #[error(
        "the cache belongs to {}, not to {wanted:?}; use another cache device, or give \
         --initialise to make a new one here",
        names(of)
    )]
    OtherVolume {
        /// The volumes it has.
        of: Vec<String>,
        /// A volume that was to be served.
        wanted: String,
    },
    /// One of the cache's volumes is not among those to be served.
    #[error(
        "the cache has {} of volume {volume:?} that its backing device does not have, and no such \
         volume is to be served; serve it too, bring the data back with floe export-dirty, or \
         give --discard-dirty to lose it",
        Bytes(*dirty_bytes)
    )]
    MissingVolume {
        /// The volume's name.
        volume: String,
        /// Dirty bytes that would be lost.
        dirty_bytes: u64,
    },
    /// A companion that may hold dirty data is not to be served.
    #[error(
        "the cache was served together with the tier {tier}, which may hold what was written to \
         the volumes and nothing else has, and is not given: give it, too, or bring its data back \
         with floe export-dirty and give --accept-backing, which forgets what this cache has"
    )]
    MissingTier {
        /// The tier's device and settings.
        tier: String,
    },
    /// A companion below this tier is missing: its older data would later overwrite newer data.
    #[error(
        "the cache was served above the tier {tier}, which may hold older data that would be \
         written over its own later: give both, in any order, or --accept-backing if that one has \
         nothing any more"
    )]
    LowerTier {
        /// The tier's device and settings.
        tier: String,
    },
    /// The last volume was removed.
    #[error("the cache has no volumes any more, and so nothing to write back")]
    NoVolumes,
    /// The tiers were in another order, and one of them may hold newer data than another.
    #[error(
        "it was served below {upper}, and one of them may hold newer data than the other: give \
         the tiers in the order {}; after floe flush and an end in good order another one will do",
        order.join(", ")
    )]
    Order {
        /// The tier that was above it.
        upper: String,
        /// All persistent tiers, from the top.
        order: Vec<String>,
    },
    /// The backing device is not as the cache left it.
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
        /// The volume's name.
        volume: String,
        /// The device given for the volume.
        device: Given,
        /// The difference found.
        difference: Difference,
        /// Bytes of the volume that only the cache has.
        dirty_bytes: u64,
    },
    /// The device has the data of another volume.
    #[error(
        "the device given for volume {volume:?}, {device}, has the data of volume {of:?}: give \
         each volume its own device"
    )]
    Swapped {
        /// The volume the device was given for.
        volume: String,
        /// The device given for the volume.
        device: Given,
        /// The volume whose data the device has.
        of: String,
    },
    /// A cache with which a volume was served, and which may hold dirty data, is not given.
    #[error(
        "volume {volume:?} was served with the cache {cache}, which {}, and that cache is not \
         there: mount or attach its device and give it again; or, if it is gone for good, give \
         --discard-dirty, which serves the older data that the volume itself has and loses the \
         rest ({witness} notes session {session} of it)",
        match dirty_bytes {
            Some(bytes) => {
                format!("has {} of what was written and the volume lacks", Bytes(*bytes))
            }
            None => "may have what was written and flushed and the volume lacks".to_owned(),
        }
    )]
    MissingCache {
        /// The volume's name.
        volume: String,
        /// The name of the cache's device.
        cache: String,
        /// The latest session of the cache.
        session: u64,
        /// Its dirty bytes, where it ended cleanly.
        dirty_bytes: Option<u64>,
        /// The file in which that is noted.
        witness: String,
    },
    /// Requests went past the cache, and nothing tells whether its dirty data was written back.
    #[error(
        "the cache was passed by in session {noted} when its device failed, as {witness} notes, \
         and what it has of the volumes may be old: give --accept-backing, which forgets its clean \
         data{}",
        if *dirty_bytes > 0 {
            let dirty = Bytes(*dirty_bytes);
            format!(
                ", and decide about {dirty} of dirty data, of which nothing tells whether it was \
                 written back: if not, --discard-dirty loses it and --keep-dirty is right; if it \
                 was, --keep-dirty overwrites what was written there since, and --discard-dirty is \
                 right; compare them first, on a copy of the volume, with floe export-dirty \
                 --accept-backing"
            )
        } else {
            String::new()
        }
    )]
    Unclear {
        /// The session in which it was passed by.
        noted: u64,
        /// The file in which that is noted.
        witness: String,
        /// Its dirty bytes.
        dirty_bytes: u64,
    },
    /// A newer state of the cache was served.
    #[error(
        "the cache is an old copy: it is in the state of session {session}, and {witness} notes a \
         later one, of session {noted}; use the cache that was served last, or give \
         --accept-backing, which forgets what this one has of the volumes{}",
        if *dirty_bytes > 0 {
            let dirty = Bytes(*dirty_bytes);
            format!(
                ", and decide about {dirty} of dirty data: --keep-dirty writes it over what the \
                 volumes have there, which may be newer, and --discard-dirty loses it"
            )
        } else {
            String::new()
        }
    )]
    OldCache {
        /// The session of this cache.
        session: u64,
        /// The latest session of the cache.
        noted: u64,
        /// The file in which that session is noted.
        witness: String,
        /// Bytes that only this copy has.
        dirty_bytes: u64,
    },
    /// The given state directory cannot be used.
    #[error("state-dir: {dir} cannot be used: {source}")]
    StateDir {
        /// The directory.
        dir: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The user accepts a changed device but has not decided about dirty data.
    #[error(
        "volume {volume:?} is not as the cache knows it ({difference}), and the cache has {} that \
         were not written back: give --keep-dirty to write them to this device, or \
         --discard-dirty to lose them",
        Bytes(*dirty_bytes)
    )]
    Undecided {
        /// The volume's name.
        volume: String,
        /// The difference found.
        difference: Difference,
        /// Bytes of the volume that only the cache has.
        dirty_bytes: u64,
    },
    /// The cache has dirty data beyond the end of its volume.
    #[error(
        "volume {volume:?} has shrunk ({difference}), and the cache has {} that were not written \
         back: enlarge it again, or give --discard-dirty to lose them",
        Bytes(*dirty_bytes)
    )]
    Shrunk {
        /// The volume's name.
        volume: String,
        /// The difference found.
        difference: Difference,
        /// Bytes of the volume that only the cache has.
        dirty_bytes: u64,
    },
    /// The cache has dirty data of a volume that must not be written to.
    #[error(
        "volume {volume:?} is read-only now, and the cache has {} that were not written back to \
         it: serve it writable, or bring them back with floe export-dirty",
        Bytes(*dirty_bytes)
    )]
    ReadOnly {
        /// The volume's name.
        volume: String,
        /// Bytes of the volume that only the cache has.
        dirty_bytes: u64,
    },
    /// The cache has another layout than the one asked for. It keeps the layout it was made with.
    #[error(
        "the cache was made with {setting} = {has}, not {asked}: leave {setting} out, or give \
         --initialise to make a new one"
    )]
    Layout {
        /// The name of the setting.
        setting: &'static str,
        /// The cache's value.
        has: String,
        /// The value asked for.
        asked: String,
    },
    /// The cache has fewer shards than there are threads, and each thread needs one.
    #[error(
        "the cache was made with {shards} shard(s), which {threads} threads cannot share; give \
         fewer --threads, or --initialise and --shards to make a new one"
    )]
    Threads {
        /// The number of shards of the cache.
        shards: u64,
        /// The number of threads asked for.
        threads: usize,
    },
    /// The device holds a cache that the running server did not use.
    #[error(
        "the device holds a cache, and what that has of the volumes may be old by now; bring back \
         what only it has with floe export-dirty, if there is anything, and give --initialise to \
         make a new one in its place"
    )]
    Joins,
    /// There is no cache on the device.
    #[error("there is no cache on the device")]
    NoCache,
    /// The cache has no volume of this name.
    #[error("the cache has no volume {wanted:?}; it has {}", names(of))]
    NoVolume {
        /// The volumes it has.
        of: Vec<String>,
        /// The volume asked for.
        wanted: String,
    },
    /// The device is not the volume to which dirty data would be written back.
    #[error(
        "{device} is not volume {volume:?} as the cache knows it: {difference}; if it is the \
         right device, give --accept-backing"
    )]
    OtherTarget {
        /// The volume's name.
        volume: String,
        /// The device given for the volume.
        device: Given,
        /// The difference found.
        difference: Difference,
    },
    /// The cache has several volumes, and the command does not say to which one the device belongs.
    #[error("the cache has {}: say which one the device is, as NAME=SPEC", names(of))]
    WhichVolume {
        /// The volumes it has.
        of: Vec<String>,
    },
    /// A volatile cache would overwrite a persistent one.
    #[error(
        "the cache device holds a kept cache{}, which one that ends with the program would \
         overwrite; use another device for that",
        if *dirty_bytes > 0 {
            format!(" with {} that were not written back", Bytes(*dirty_bytes))
        } else {
            String::new()
        }
    )]
    Kept {
        /// Bytes that only the persistent cache has.
        dirty_bytes: u64,
    },
}

/// A difference between a backing device and the cache's knowledge of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// Its size.
    Size {
        /// Before.
        was: u64,
        /// Now.
        is: u64,
    },
    /// The device is another file or disk.
    Identity,
    /// Its content, where that is known.
    Content,
    /// The cache is an old copy, so what that has of it may be old.
    Old,
    /// A companion is missing that may have newer data of it.
    Alone,
    /// The volume was served without this tier, or without others that are given now.
    Apart,
    /// The volume was served without this cache.
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
            Self::Content => {
                f.write_str("it was changed while no server was there, or is another disk")
            }
        }
    }
}

/// The device that was given for a volume.
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
                " (a name that another disk may have after a boot: give one of /dev/disk/by-id)",
            )?;
        }
        Ok(())
    }
}

fn names(of: &[String]) -> String {
    let names: Vec<String> = of.iter().map(|name| format!("{name:?}")).collect();
    format!("volume{} {}", if of.len() == 1 { "" } else { "s" }, names.join(", "))
}

/// Returns the remedy for a cache that cannot be read.
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

/// An error that keeps a persistent cache from serving.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The content of the device needs a decision by the user.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A device could not be opened.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The cache device failed while the cache was read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no room for a new cache.
    #[error("{0}")]
    Layout(#[from] LayoutError),
    /// The cache cannot begin a session with these settings.
    #[error(transparent)]
    Begin(#[from] BeginError),
    /// A backing device failed.
    #[error("backing device of volume {volume}: {doing}: {source}")]
    Backing {
        /// The volume's name.
        volume: String,
        /// The operation that failed.
        doing: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// Dirty data could not be written to its volume.
    #[error(
        "writing back to volume {volume} failed: {fault}; {} are left in the cache",
        Bytes(*left_bytes)
    )]
    WriteBack {
        /// The volume's name.
        volume: String,
        /// The fault of the device.
        fault: floe_block::Fault,
        /// Dirty bytes that remain in the cache.
        left_bytes: u64,
    },
    /// The cache device does not return what was written to it.
    #[error("what was written to it is not there")]
    Forgets,
    /// The ring does not wait.
    #[error("waiting for I/O failed: {0}")]
    Wait(std::io::Error),
    /// The system has no random numbers.
    #[error("cannot read /dev/urandom: {0}")]
    Random(std::io::Error),
}

impl StartError {
    /// Returns whether a retry may succeed, without a decision by the user.
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

/// Formats bytes, followed by a larger unit where that is exact.
pub(super) struct Bytes(pub(super) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match format_size(self.0) {
            text if text == self.0.to_string() => write!(f, "{text} bytes"),
            text => write!(f, "{} bytes ({text})", self.0),
        }
    }
}

/// Formats a number of bytes that may be too small.
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
