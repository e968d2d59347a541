//! The block cache: adaptive blocks, groups and write policies, as state machines without I/O.
//!
//! [`BlockCache`] takes [`Request`]s and completions and gives [`Order`]s; it never touches a byte of data, a
//! device or a clock. So the code that a server runs over io_uring is the code that the simulator runs over nothing
//! and the tests run over failing devices. [`Driver`] carries orders out on real [`floe_device::Device`]s.
//!
//! Above it there may be a tier in memory (`memory`), which the shards keep coherent: they say what enters and leaves it.
//!
//! The algorithms are AdaCache's (Yang et al.): `allocate` has the missing intervals and the greedy allocation,
//! `directory` the groups and the two-level replacement, `shard` what happens to a request, `cache` the splitting
//! over shards.

mod allocate;
mod bits;
mod cache;
mod directory;
mod driver;
mod exchange;
mod geometry;
mod index;
mod join;
mod locks;
mod memory;
mod mode;
mod order;
mod part;
mod piece;
mod request;
mod runs;
mod shard;
mod sleep;
mod stats;
mod sync;
mod volumes;

pub use cache::{BlockCache, Config, ConfigError, MOST_SHARDS};
pub use driver::{Answer, Driver};
pub use exchange::{Bell, Exchange, Traffic};
pub use floe::{FreezeStats, Freezing};
pub use geometry::{
    BlockSizes, BlockSizesError, Class, LARGEST_BLOCK_BYTES, MOST_CLASSES, SECTOR_BYTES, Sectors, VolumeId,
    format_size,
};
pub use memory::{
    LEAST_MEMORY_BYTES, Memory, MemoryError, MemoryTier, MemoryUse, MemoryWrite, UnknownMemoryWrite,
};
pub use mode::{UnknownWriteMode, WriteMode};
pub use order::{BufferId, DeviceId, OpId, Order, Paging, ScratchId, Span};
pub use part::{ForeignPiece, MOST_PARTS, Message, PartId};
pub use request::{Fault, Kind, MOST_MAPPED_BYTES, Request, RequestId};
pub use stats::{Counters, Requests, Stats};
pub use volumes::VolumeError;
