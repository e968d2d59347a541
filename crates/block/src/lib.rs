//! The block cache: adaptive blocks, groups and write policies, as state machines without I/O.
//!
//! [`BlockCache`] takes [`Request`]s and completions and emits [`Order`]s; it never touches a byte
//! of data, a device or a clock. So a server runs the same code over io_uring as the simulator over
//! nothing and the tests over failing devices. [`Driver`] executes orders on real
//! [`floe_device::Device`]s.
//!
//! An admission ([`Gate`], `shard::offer`) is asked about each smallest block that is not
//! cached; by default everything is admitted. A policy ([`Evict`], `mapping::directory`) chooses
//! the blocks to evict; by default LRU.
//!
//! Above the cache there may be a memory tier (`tiers::memory`). The shards keep it coherent: they
//! order the insertion and removal of its pages.
//!
//! A cache can be persistent ([`KeptCache`]). Its shards decide which changes are noted, and in
//! which order they must become durable (`shard::logging`). The journal (`store`) defines the
//! bytes, and [`Tier::with_journal`] combines the two.
//!
//! The algorithms are AdaCache's (Yang et al.): `mapping::allocate` has the missing intervals and
//! the greedy allocation, `mapping::directory` the groups and the two-level replacement, `shard`
//! the handling of a request, `cache` the splitting over shards. A shard's tasks and locks are in
//! `engine`, the state of its sectors in `mapping`, what outlives the program in `store`, the
//! drivers and memory in `tiers`.

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
mod engine;
mod evict;
mod exchange;
mod gate;
mod geometry;
mod mapping;
mod mode;
mod order;
mod part;
#[cfg(floe_crash)]
#[doc(hidden)]
pub mod planted;
mod price;
mod shard;
mod shedding;
mod sleep;
mod stats;
mod store;
mod sync;
mod tiers;
mod volumes;

pub use cache::{BlockCache, Condition};
pub use config::{Config, ConfigError, MOST_SHARDS};
pub use counters::{CounterType, Counts, Declaration};
pub use engine::request::{Fault, Kind, MOST_MAPPED_BYTES, Request, RequestId};
pub use evict::{Evict, EvictError};
pub use exchange::{Bell, Exchange, Traffic};
pub use floe::{AdmissionStats, FreezeStats, Freezing};
pub use floe_policy::admission::{Admissions, Calibrated, Times};
pub use floe_policy::shedding::Decision as SheddingDecision;
pub use floe_policy::shedding::Shedder;
pub use gate::Gate;
pub use geometry::{
    BlockSizes, BlockSizesError, Class, LARGEST_BLOCK_BYTES, MOST_CLASSES, MOST_VOLUME_BYTES,
    SECTOR_BYTES, Sectors, VolumeId, format_size,
};
pub use mode::{UnknownWriteMode, WriteMode};
pub use order::{BufferId, DeviceId, Noted, OpId, Order, Paging, ScratchId, Span};
pub use part::{ForeignPiece, MOST_PARTS, Message, PartId};
pub use shedding::shedding_options;
pub use stats::{Counters, Requests, Stats};
pub use store::journal::{
    Companion, Io, Layout, LayoutError, MOST_NAME_BYTES, MOST_VOLUMES, NewCache, Report, Salvage,
    ShardReport, StoreError, Superblock, Volume, WrongCopy, scan, sum_of as sector_sum,
};
pub use store::kept::{BeginError, Begun, KeptCache, Rotten, write_superblock};
pub use store::samples::{MOST_SAMPLES, Samples, sample_sum, sampled_sectors};
pub use tiers::driver::Driver;
pub use tiers::memory::{
    LEAST_MEMORY_BYTES, Memory, MemoryError, MemoryOptions, MemoryTier, MemoryUse, MemoryWrite,
    UnknownMemoryWrite,
};
pub use tiers::tier::{Answer, IoGate, PartJournal, Tier};
pub use volumes::VolumeError;
