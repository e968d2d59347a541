//! Why a cache is not used as it was found. Each is one line that says what was found and what can
//! be done.

use std::fmt;

use floe_block::{BeginError, LayoutError, StoreError, format_size};

use super::disk::DiskError;
use crate::server::Volume;

/// Why a kept cache cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// What is on the device is not used without a word from the user.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A device.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The cache's device, while the cache was read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no room for a new cache.
    #[error("{0}")]
    Layout(#[from] LayoutError),
    /// What was asked of the cache.
    #[error(transparent)]
    Begin(#[from] BeginError),
    /// A backing device.
    #[error("backing device of volume {volume}: {doing}: {source}")]
    Backing {
        /// Whose.
        volume: String,
        /// What was being done.
        doing: &'static str,
        /// What it said.
        source: std::io::Error,
    },
    /// Dirty data that could not be brought to its volume.
    #[error(
        "writing back to volume {volume} failed: {fault}; {} are left in the cache",
        Bytes(*left_bytes)
    )]
    WriteBack {
        /// Its name.
        volume: String,
        /// Why.
        fault: floe_block::Fault,
        /// What is left.
        left_bytes: u64,
    },
    /// The cache device does not keep what it is given.
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
    /// Whether something failed that may work another time, rather than the user having to decide.
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

/// What is on a cache device, and why it is not used.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Somebody else's data.
    #[error(
        "the cache device holds data that is not a cache of floe's; if it may be overwritten, \
         give --initialise"
    )]
    Foreign,
    /// A cache that cannot be read whole.
    #[error("the cache cannot be used: {0}; {way}", way = way_out(.0))]
    Unreadable(StoreError),
    /// It would be replaced, and may hold the only copy of something.
    #[error(
        "a new cache would lose {} that were written and only the old one has; bring them back \
         first with floe export-dirty, or give --discard-dirty to lose them",
        AtLeast { bytes: *dirty_bytes, exact: *exact }
    )]
    WouldLose {
        /// How much.
        dirty_bytes: u64,
        /// Whether it is known to be no more.
        exact: bool,
    },
    /// Another volume's cache.
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
        /// Its name.
        volume: String,
        /// What would be lost.
        dirty_bytes: u64,
    },
    /// Another tier, which has something of the cache's volumes, is not to be served.
    #[error(
        "the cache was served together with the tier {tier}, which may hold what was written to \
         the volumes and nothing else has, and is not given: give it, too, or bring its data back \
         with floe export-dirty and give --accept-backing, which forgets what this cache has"
    )]
    MissingTier {
        /// Its device and settings.
        tier: String,
    },
    /// A tier would be emptied before one that was below it, which would then be written over it.
    #[error(
        "the cache was served above the tier {tier}, which may hold older data that would be \
         written over its own later: give both, in any order, or --accept-backing if that one has \
         nothing any more"
    )]
    LowerTier {
        /// Its device and settings.
        tier: String,
    },
    /// The last volume was removed.
    #[error("the cache has no volumes any more, and so nothing to write back")]
    NoVolumes,
    /// Tiers in another order than before, of which one may hold what the others do not.
    #[error(
        "it was served below {upper}, and one of them may hold newer data than the other: give \
         the tiers in the order {}; after floe flush and an end in good order another one will do",
        order.join(", ")
    )]
    Order {
        /// Which tier was above it.
        upper: String,
        /// All those that are kept, from the top.
        order: Vec<String>,
    },
    /// The backing device is not as the cache left it.
    #[error(
        "volume {volume:?} on {device} is not as the cache knows it: {difference}; if this is the \
         right device, give --accept-backing: what the cache has of it is then forgotten{}",
        if *dirty_bytes > 0 {
            format!(
                ", and {} it has not written back are kept with --keep-dirty or lost with \
                 --discard-dirty",
                Bytes(*dirty_bytes)
            )
        } else {
            String::new()
        }
    )]
    Changed {
        /// Its name.
        volume: String,
        /// What was given for it.
        device: Given,
        /// What differs.
        difference: Difference,
        /// What only the cache has.
        dirty_bytes: u64,
    },
    /// Another volume's device.
    #[error(
        "the device given for volume {volume:?}, {device}, has the data of volume {of:?}: give \
         each volume its own device"
    )]
    Swapped {
        /// The volume it was given for.
        volume: String,
        /// What was given for it.
        device: Given,
        /// The volume it is of.
        of: String,
    },
    /// A newer state of the cache was served.
    #[error(
        "the cache is an old copy: it is in the state of session {session}, and {witness} notes a \
         later one, of session {noted}; use the cache that was served last, or give \
         --accept-backing, which forgets what this one has of the volumes{}",
        if *dirty_bytes > 0 {
            let dirty = Bytes(*dirty_bytes);
            format!(
                ", and --keep-dirty or --discard-dirty for {dirty} of it that may be older than \
                 what the volumes have"
            )
        } else {
            String::new()
        }
    )]
    OldCache {
        /// Of the cache.
        session: u64,
        /// Of the cache as it was last.
        noted: u64,
        /// Where that is noted.
        witness: String,
        /// What only it has.
        dirty_bytes: u64,
    },
    /// Nothing can be noted of the cache outside it, though that was asked for.
    #[error("state-dir: {dir} cannot be used: {source}")]
    StateDir {
        /// The folder.
        dir: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The same, accepted, without a word on what is to become of dirty data.
    #[error(
        "volume {volume:?} is not as the cache knows it ({difference}), and the cache has {} that \
         were not written back: give --keep-dirty to write them to this device, or \
         --discard-dirty to lose them",
        Bytes(*dirty_bytes)
    )]
    Undecided {
        /// Its name.
        volume: String,
        /// What differs.
        difference: Difference,
        /// What only the cache has.
        dirty_bytes: u64,
    },
    /// Dirty data beyond the end of its volume.
    #[error(
        "volume {volume:?} has shrunk ({difference}), and the cache has {} that were not written \
         back: enlarge it again, or give --discard-dirty to lose them",
        Bytes(*dirty_bytes)
    )]
    Shrunk {
        /// Its name.
        volume: String,
        /// What differs.
        difference: Difference,
        /// What only the cache has.
        dirty_bytes: u64,
    },
    /// Dirty data of a volume that must not be written to.
    #[error(
        "volume {volume:?} is read-only now, and the cache has {} that were not written back to \
         it: serve it writable, or bring them back with floe export-dirty",
        Bytes(*dirty_bytes)
    )]
    ReadOnly {
        /// Its name.
        volume: String,
        /// What only the cache has.
        dirty_bytes: u64,
    },
    /// A cache has the layout it was made with.
    #[error(
        "the cache was made with {setting} = {has}, not {asked}: leave {setting} out, or give \
         --initialise to make a new one"
    )]
    Layout {
        /// Which setting.
        setting: &'static str,
        /// Of the cache.
        has: String,
        /// What was asked for.
        asked: String,
    },
    /// A thread needs a shard of its own.
    #[error(
        "the cache was made with {shards} shard(s), which {threads} threads cannot share; give \
         fewer --threads, or --initialise and --shards to make a new one"
    )]
    Threads {
        /// Of the cache.
        shards: u64,
        /// What was asked for.
        threads: usize,
    },
    /// A cache that a running server did not use.
    #[error(
        "the device holds a cache, and what that has of the volumes may be old by now; bring back \
         what only it has with floe export-dirty, if there is anything, and give --initialise to \
         make a new one in its place"
    )]
    Joins,
    /// There is nothing to work on.
    #[error("there is no cache on the device")]
    NoCache,
    /// Not the cache's.
    #[error("the cache has no volume {wanted:?}; it has {}", names(of))]
    NoVolume {
        /// The volumes it has.
        of: Vec<String>,
        /// What was asked for.
        wanted: String,
    },
    /// A device that data would be written back to.
    #[error(
        "{device} is not volume {volume:?} as the cache knows it: {difference}; if it is the \
         right device, give --accept-backing"
    )]
    OtherTarget {
        /// Its name.
        volume: String,
        /// What was given for it.
        device: Given,
        /// What differs.
        difference: Difference,
    },
    /// Which volume a device is has to be said.
    #[error("the cache has {}: say which one the device is, as NAME=SPEC", names(of))]
    WhichVolume {
        /// The volumes it has.
        of: Vec<String>,
    },
    /// A volatile cache would overwrite a kept one.
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
        /// What only it has.
        dirty_bytes: u64,
    },
}

/// How a backing device differs from what the cache knows of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// Its size.
    Size {
        /// Before.
        was: u64,
        /// Now.
        is: u64,
    },
    /// It is another file or disk.
    Identity,
    /// Its content, where that is known.
    Content,
    /// The cache is an old copy, so what that has of it may be old.
    Old,
    /// What a tier that is missing has of it, or had.
    Alone,
    /// It was served without this tier, or without others that are given now.
    Apart,
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
        let backing = &volume.backing;
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

/// What helps when a cache cannot be read.
fn way_out(error: &StoreError) -> &'static str {
    match error {
        StoreError::Log { .. } | StoreError::Checkpoint { .. } => {
            "`floe check --repair CACHE` writes its journal anew and says what is lost, if \
             anything is"
        }
        StoreError::Newer { .. } => "a newer version of floe can use it",
        _ => "`floe check` says more, and --initialise makes a new one in its place",
    }
}

/// Bytes, and in a unit where that says the same.
pub(super) struct Bytes(pub(super) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match format_size(self.0) {
            text if text == self.0.to_string() => write!(f, "{text} bytes"),
            text => write!(f, "{} bytes ({text})", self.0),
        }
    }
}

struct AtLeast {
    bytes: u64,
    exact: bool,
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
