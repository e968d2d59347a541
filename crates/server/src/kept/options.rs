//! The options for opening a persistent cache.

use floe_block::{BlockSizes, Config};

use super::peered::Peered;
use super::state_dir::StateDir;

/// The user's permissions to lose or overwrite data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Consent {
    /// Make a new cache, whatever is on the device.
    pub initialise: bool,
    /// Lose dirty data of the cache that cannot be kept.
    pub discard_dirty: bool,
    /// Use backing devices that are not as the cache knows them.
    pub accept_backing: bool,
    /// Keep the cache's dirty data of such devices.
    pub keep_dirty: bool,
}

/// The options for opening a cache.
#[derive(Debug, Clone)]
pub struct Wishes {
    /// The block sizes; `None` accepts those of an existing cache.
    pub sizes: Option<BlockSizes>,
    /// The number of shards; `None` accepts that of an existing cache.
    pub shards: Option<u64>,
    /// The number of shards of a new cache.
    pub new_shards: u64,
    /// The configuration in which it is served, with the device bytes that a new cache may take.
    pub config: Config,
    /// The number of threads that share it.
    pub threads: usize,
    /// Use fewer threads if the cache has fewer shards.
    pub fewer_threads: bool,
    /// The facts about the tier that its peers have, from [`company()`](super::company()).
    pub peered: Peered,
    /// The cache joins a running server: its content of the volumes may be old by now.
    pub joins: bool,
    /// No persistent tier is below it.
    pub lowest: bool,
    /// The state directory, by which an old copy of the cache is detected.
    pub state: Option<StateDir>,
    /// The user's permissions.
    pub consent: Consent,
}
