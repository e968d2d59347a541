//! The configuration of a cache, carried whole by the cache and by each of its shards.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use floe_policy::admission::{Admission, Admissions};
use floe_policy::shedding::SheddingOptions;
use floe_policy::trial::TrialOptions;

use crate::geometry::{BlockSizes, SECTOR_BYTES, format_size};
use crate::mapping::directory::Evict;
use crate::memory::Memory;

/// Maximum number of shards a cache can have.
pub const MOST_SHARDS: u64 = 128;

/// Maximum number of smallest blocks of a shard: their numbers have 32 bits.
const MOST_SHARD_BLOCKS: u64 = 1 << 31;

/// Cache space of a shard when the number of shards is not configured.
const SHARD_BYTES: u64 = 1 << 30;

/// Minimum number of shards for each part, so that the parts have equal load, and minimum number of
/// groups of a shard that is useful.
const SHARDS_A_PART: u64 = 4;
const GROUPS_A_SHARD: u64 = 16;

/// The configuration of a cache.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Sizes that a block may have.
    pub sizes: BlockSizes,
    /// Read misses fetch as much as pays, up to the largest block, instead of whole smallest
    /// blocks.
    pub adapts_fetches: bool,
    /// Bytes of the cache device to use.
    pub cache_bytes: u64,
    /// The write mode: which devices a write goes to before it is answered.
    pub mode: WriteMode,
    /// The number of shards; `None` for the default ([`Config::natural_shards`]).
    pub shards: Option<u64>,
    /// The admission policy.
    pub gate: AdmissionConfig,
    /// The eviction policy.
    pub evict: Evict,
    /// The properties of the memory tier above the cache, if there is one.
    pub memory: Memory,
    /// Set for a persistent cache, whose driver keeps a journal.
    pub kept: bool,
}

/// The reason for which a configuration is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// The number of shards is 0 or above [`MOST_SHARDS`].
    #[error("shards = {0} is not between 1 and {MOST_SHARDS}")]
    Shards(u64),
    /// The cache has less than a group for each shard.
    #[error("a cache of {} is too small: with shards = {shards} and blocks of up to {} it needs {}",
        format_size(*cache_bytes), format_size(*group_bytes), format_size(shards * group_bytes))]
    TooSmall {
        /// The configured size of the cache in bytes.
        cache_bytes: u64,
        /// The number of shards in the configuration.
        shards: u64,
        /// The size of a group in bytes.
        group_bytes: u64,
    },
    /// A shard has more smallest blocks than can be numbered.
    #[error("a cache of {} is too large: with shards = {shards} and blocks of {} it may have up to \
             {}",
        format_size(*cache_bytes), format_size(*block_bytes), format_size(*most_bytes))]
    TooLarge {
        /// The configured size of the cache in bytes.
        cache_bytes: u64,
        /// The number of shards in the configuration.
        shards: u64,
        /// The size of the smallest blocks in bytes.
        block_bytes: u64,
        /// The largest possible size of the cache in bytes.
        most_bytes: u64,
    },
    /// The memory tier is too small to hold unflushed writes of each shard.
    #[error(
        "memory that holds writes needs at least {} with shards = {shards}; give more, or fewer \
         --shards",
        format_size(*least_bytes)
    )]
    Memory {
        /// The number of shards in the configuration.
        shards: u64,
        /// The least size of the memory tier in bytes.
        least_bytes: u64,
    },
    /// More parts than shards, or no part.
    #[error(
        "a cache with shards = {shards} cannot be shared by {parts} threads; give more --shards or \
         fewer --threads"
    )]
    Parts {
        /// The requested number of parts.
        parts: usize,
        /// The number of shards in the configuration.
        shards: u64,
    },
}

impl Config {
    /// Checks that a cache of this many bytes can have this many shards.
    ///
    /// # Errors
    /// When there is not a group for each shard, or a shard would have too many blocks.
    ///
    /// # Panics
    /// When `shards` is 0.
    pub fn check_size(&self, cache_bytes: u64, shards: u64) -> Result<(), ConfigError> {
        let group_bytes = self.sizes.largest() * SECTOR_BYTES;
        if cache_bytes / shards < group_bytes {
            return Err(ConfigError::TooSmall { cache_bytes, shards, group_bytes });
        }
        let block_bytes = self.sizes.smallest() * SECTOR_BYTES;
        let most_bytes = block_bytes.saturating_mul(shards * MOST_SHARD_BLOCKS);
        if cache_bytes > most_bytes {
            return Err(ConfigError::TooLarge { cache_bytes, shards, block_bytes, most_bytes });
        }
        Ok(())
    }

    /// Returns the default number of shards: one per gibibyte of cache, as a power of two. With
    /// several parts, each part gets several shards, for equal load.
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

/// The share of a volume in a cache, all parts together. By default nothing is guaranteed, and all
/// of the cache may be used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheShare {
    /// Bytes of the volume's blocks that other volumes do not evict.
    pub guaranteed_bytes: u64,
    /// The most bytes that the volume's blocks may take; `None` for the whole cache.
    pub most_bytes: Option<u64>,
}

/// The admission of a cache: the policy that decides which missed blocks are cached. By default
/// everything is admitted.
#[derive(Debug, Clone, Default)]
pub struct AdmissionConfig {
    /// The admission policy; each shard has one of its own.
    pub admission: Admissions,
    /// Bytes of the memory tier above the cache, which answers hits before the cache is asked; 0
    /// without a memory tier.
    pub above_bytes: u64,
}

impl AdmissionConfig {
    /// Creates the configuration of this admission policy, without a memory tier above.
    pub fn new(admission: Admissions) -> Self {
        Self { admission, above_bytes: 0 }
    }

    /// Returns the admission policy in the form that [`Admissions`] parses; `None` where everything
    /// is admitted.
    pub fn policy(&self) -> Option<String> {
        (!self.admission.is_always()).then(|| self.admission.to_string())
    }

    /// Returns the admission of one of `shards` shards, with its share of the memory above.
    pub(crate) fn share(&self, shard: u64, shards: u64) -> Self {
        let mut admission = self.admission.clone();
        admission.split(shard as usize, shards as usize);
        Self { admission, above_bytes: self.above_bytes / shards }
    }
}

/// The write mode of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteMode {
    /// Write-through: writes go to the backing device and the cache, and are answered when the
    /// backing device has them.
    #[default]
    Through,
    /// Write-around: writes go to the backing device only, and cached copies are dropped.
    Around,
    /// Write-back: writes go to the cache only, and are cleaned later.
    Back,
    /// Write-only: like [`Back`](Self::Back), but only writes make blocks; missed reads are not
    /// cached.
    Only,
    /// Pass-through: neither reads nor writes are cached.
    Pass,
}

impl WriteMode {
    const NAMES: [(&'static str, Self); 5] = [
        ("through", Self::Through),
        ("around", Self::Around),
        ("back", Self::Back),
        ("only", Self::Only),
        ("pass", Self::Pass),
    ];

    /// Returns whether writes may stay dirty in the cache, to be cleaned later.
    pub fn keeps_writes(self) -> bool {
        matches!(self, Self::Back | Self::Only)
    }

    /// Returns whether written data may be inserted into the cache.
    pub fn caches_writes(self) -> bool {
        matches!(self, Self::Through | Self::Back | Self::Only)
    }

    /// Returns whether missed reads may be inserted into the cache.
    pub fn caches_reads(self) -> bool {
        !matches!(self, Self::Only | Self::Pass)
    }
}

impl fmt::Display for WriteMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, mode)| mode == self).map_or("", |(name, _)| name);
        f.pad(name)
    }
}

/// A name that is not a write mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no write mode `{0}`; there are through, around, back, only and pass")]
pub struct UnknownWriteMode(String);

impl FromStr for WriteMode {
    type Err = UnknownWriteMode;

    fn from_str(name: &str) -> Result<Self, UnknownWriteMode> {
        let known = Self::NAMES.iter().find(|(known, _)| *known == name);
        known.map(|(_, mode)| *mode).ok_or_else(|| UnknownWriteMode(name.to_owned()))
    }
}

/// Returns the options of a shed controller for devices, which sheds at most the share `most` of
/// the hits, above 0 and at most 1. Its trial windows are long enough for a disk to answer earlier
/// requests, and to serve enough new ones.
///
/// ```
/// let shedder = floe_block::Shedder::new(floe_block::shedding_options(0.5));
/// assert_eq!(shedder.share(), 0.0);
/// ```
pub fn shedding_options(most: f64) -> SheddingOptions {
    let default = SheddingOptions::default();
    let (window, settle) = (Duration::from_millis(50), Duration::from_millis(20));
    SheddingOptions {
        step: default.step.min(most), // or less than a step would be nothing
        max: most,
        trial: TrialOptions { window, settle, ..default.trial },
    }
}

#[cfg(test)]
mod gate_tests {
    use floe_policy::Access;

    use super::*;

    #[test]
    fn two_shards_do_not_throw_the_same_coins() {
        let gate = AdmissionConfig::new("probability:p=0.5".parse().unwrap());
        let thrown = |shard| {
            let mut admission = gate.share(shard, 4).admission;
            (0..64).map(|key| admission.admit(&Access::new(key), None).admits()).collect::<Vec<_>>()
        };
        assert_ne!(thrown(1), thrown(2));
    }
}
