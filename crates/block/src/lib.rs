//! The block cache: adaptive blocks, groups and write policies, as state machines without I/O.
//!
//! [`BlockCache`] takes [`Request`]s and completions and emits [`Order`]s; it never touches a byte
//! of data, a device or a clock. So one code runs in the server over io_uring, in the simulator
//! without devices, and in tests over failing devices. [`Driver`] executes orders on real
//! [`floe_device::Device`]s.
//!
//! An admission ([`AdmissionConfig`], `shard::admission`) is asked about each smallest block that
//! is not cached; by default everything is admitted. A policy ([`Evict`], `mapping::directory`)
//! chooses the blocks to evict; by default LRU.
//!
//! Above the cache there may be a memory tier (`memory`). The shards keep it coherent: they order
//! the insertion and removal of its pages.
//!
//! A cache can be persistent ([`KeptCache`]). Its shards decide which changes are logged, and in
//! which order they must become durable (`journal::logging`). The journal (`journal::store`)
//! defines the bytes, and [`Tier::with_journal`] combines the two.
//!
//! The algorithms are AdaCache's (Yang et al.). `mapping::directory` has the missing intervals, the
//! greedy allocation, the groups and the two-level replacement. `shard` handles requests, and
//! `cache` splits them over shards. A shard's tasks and locks are in `tasks` and `locks`, the state
//! of its sectors in `mapping`, the persistent state in `journal`. `driver`, `tier` and `memory`
//! execute orders.

/// Returns whether a fault has been planted here, for the crash simulator to find. Without `--cfg
/// floe_crash` there are none.
#[cfg(floe_crash)]
macro_rules! planted {
    ($fault:ident) => {
        crate::planted::is(crate::planted::Planted::$fault)
    };
}
#[cfg(not(floe_crash))]
macro_rules! planted {
    ($fault:ident) => {
        false
    };
}

mod bits;
mod cache;
mod config;
mod counters;
mod driver;
mod exchange;
mod geometry;
mod join;
mod journal;
mod kept;
mod locks;
mod mapping;
mod memory;
mod order;
#[cfg(floe_crash)]
#[doc(hidden)]
pub mod planted;
mod search;
mod shard;
mod sleep;
mod stats;
mod tasks;
mod tier;
mod volumes;
mod watched;

/// The atomics that `sleep` uses; a test of `sleep` replaces them by a model checker's.
mod sync {
    pub(crate) use std::sync::atomic::{AtomicBool, Ordering, fence};
}

pub use cache::{BlockCache, Condition, give_back, resize};
pub use config::{
    AdmissionConfig, CacheShare, Config, ConfigError, MOST_SHARDS, UnknownWriteMode, WriteMode,
    shedding_options,
};
pub use counters::{CounterType, Counts, Declaration};
pub use driver::Driver;
pub use exchange::{Exchange, ForeignPiece, MOST_PARTS, Message, PartId, Traffic, WakeUp};
pub use floe::{AdmissionStats, FreezeStats, Freezing};
pub use floe_policy::admission::{Admissions, Calibrated, Times};
pub use floe_policy::shedding::{Decision as SheddingDecision, Shedder};
pub use geometry::{
    BlockSizes, BlockSizesError, Class, LARGEST_BLOCK_BYTES, MOST_CLASSES, MOST_VOLUME_BYTES,
    SECTOR_BYTES, Sectors, VolumeId, format_size,
};
pub use join::{Fault, MOST_MAPPED_BYTES, Request, RequestId, RequestKind};
pub use journal::{
    Companion, Io, Layout, LayoutError, MOST_NAME_BYTES, MOST_SAMPLES, MOST_VOLUMES, NewCache,
    PartJournal, Report, Salvage, Samples, ShardReport, StoreError, Superblock, Volume, WrongCopy,
    sample_sum, sampled_sectors, scan, sum_of as sector_sum,
};
pub use kept::{BeginError, Begun, KeptCache, Rotten, write_superblock};
pub use mapping::directory::{Evict, EvictError};
pub use memory::{
    LEAST_MEMORY_BYTES, Memory, MemoryError, MemoryOptions, MemoryTier, MemoryUse, MemoryWrite,
    UnknownMemoryWrite,
};
pub use order::{BufferId, DeviceId, Noted, OpId, Order, Paging, ScratchId, Span};
pub use search::{SearchPlace, search};
pub use stats::{Counters, Requests, Stats};
pub use tier::{Answer, IoGate, Tier, grow_device, resize_tier};
pub use volumes::VolumeError;
