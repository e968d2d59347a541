//! The configuration of a cache, carried whole by the cache and by each of its shards.

use crate::evict::Evict;
use crate::gate::Gate;
use crate::geometry::{BlockSizes, SECTOR_BYTES, format_size};
use crate::mode::WriteMode;
use crate::tiers::memory::Memory;

/// Most shards a cache can have.
pub const MOST_SHARDS: u64 = 128;

/// Cache space of a shard when the number of shards is not configured.
const SHARD_BYTES: u64 = 1 << 30;

/// Shards a part, so that the parts have equal load, and the least groups that keep such a shard
/// useful.
const SHARDS_A_PART: u64 = 4;
const GROUPS_A_SHARD: u64 = 16;

/// The configuration of a cache.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Block sizes.
    pub sizes: BlockSizes,
    /// Read misses fetch as much as pays, up to the largest block, instead of whole smallest
    /// blocks.
    pub adapts_fetches: bool,
    /// Bytes of the cache device to use.
    pub cache_bytes: u64,
    /// The write mode: which writes wait for which device.
    pub mode: WriteMode,
    /// The number of shards; `None` for one a gibibyte of cache, as a power of two.
    pub shards: Option<u64>,
    /// The admission policy.
    pub gate: Gate,
    /// The eviction policy.
    pub evict: Evict,
    /// The memory tier above, if there is one, and its use.
    pub memory: Memory,
    /// The cache is persistent: its driver then keeps a journal.
    pub kept: bool,
}

/// The reason for which a cache cannot be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// Too many shards, or none.
    #[error("shards = {0} is not between 1 and {MOST_SHARDS}")]
    Shards(u64),
    /// Less than a group for each shard.
    #[error("a cache of {} is too small: {shards} shard(s) with blocks of up to {} need {}",
        format_size(*cache_bytes), format_size(*group_bytes), format_size(shards * group_bytes))]
    TooSmall {
        /// The size that was given.
        cache_bytes: u64,
        /// The number of shards.
        shards: u64,
        /// The size of a group.
        group_bytes: u64,
    },
    /// More smallest blocks in a shard than can be numbered.
    #[error("a cache of {} is too large: {shards} shard(s) with blocks of {} have up to {}",
        format_size(*cache_bytes), format_size(*block_bytes), format_size(*most_bytes))]
    TooLarge {
        /// The size that was given.
        cache_bytes: u64,
        /// The number of shards.
        shards: u64,
        /// The size of the smallest blocks.
        block_bytes: u64,
        /// The largest size.
        most_bytes: u64,
    },
    /// Too little memory for unflushed writes of each shard.
    #[error(
        "memory that {shards} shard(s) hold writes in has to have {} at least; give more, or \
         fewer --shards",
        format_size(*least_bytes)
    )]
    Memory {
        /// The number of shards.
        shards: u64,
        /// The least size of a tier that would do.
        least_bytes: u64,
    },
    /// More parts than shards, or none.
    #[error(
        "a cache of {shards} shard(s) cannot be shared by {parts} threads; give more --shards or \
         fewer --threads"
    )]
    Parts {
        /// The number of parts that was asked for.
        parts: usize,
        /// The number of shards.
        shards: u64,
    },
}

impl Config {
    /// Returns the default number of shards: one a gibibyte, as a power of two, and several for
    /// each of many parts, for equal load.
    pub fn natural_shards(&self, parts: usize) -> u64 {
        let by_size = (self.cache_bytes / SHARD_BYTES).clamp(1, MOST_SHARDS).next_power_of_two();
        if parts == 1 {
            return by_size;
        }
        let groups = self.cache_bytes / (self.sizes.largest() * SECTOR_BYTES);
        let several =
            (SHARDS_A_PART * parts as u64).next_power_of_two().min(groups / GROUPS_A_SHARD);
        by_size.max(several).clamp(parts as u64, MOST_SHARDS.max(parts as u64))
    }
}
