//! What can be wrong with a cache device.

use std::io;

use super::superblock::VERSION;
use crate::geometry::format_size;

/// Why a cache cannot be created, opened or changed. Each is one line that says what is wrong and
/// where.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The device failed.
    #[error("{doing} {bytes} bytes at offset {offset} of the cache device failed: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To how many bytes.
        bytes: u64,
        /// From where on.
        offset: u64,
        /// What the device said.
        source: io::Error,
    },
    /// A later version of Floe has been here.
    #[error(
        "the superblock at offset {offset} has format {version}, and this version of floe knows \
         {VERSION}"
    )]
    Newer {
        /// Of the superblock.
        offset: u64,
        /// Its version.
        version: u32,
    },
    /// There was a cache, and neither copy of its superblock can be read.
    #[error("no copy of the superblock is intact: {0}; {1}")]
    Superblocks(String, String),
    /// A superblock whose checksum is right and whose content cannot be.
    #[error("the superblock at offset {offset} says {what}")]
    Nonsense {
        /// Of the superblock.
        offset: u64,
        /// What cannot be.
        what: String,
    },
    /// The device is smaller than what stands on it.
    #[error(
        "the cache takes {} of its device, which has only {}",
        format_size(*needs), format_size(*has)
    )]
    DeviceTooSmall {
        /// Bytes that the cache takes.
        needs: u64,
        /// Bytes of the device.
        has: u64,
    },
    /// A log that is not merely torn at its end.
    #[error("the log of shard {shard} is damaged: page {page}, at offset {offset}, {what}")]
    Log {
        /// Whose log.
        shard: u64,
        /// The sequence number of the page.
        page: u64,
        /// Where on the device the damage is, in bytes.
        offset: u64,
        /// What is wrong with it.
        what: String,
    },
    /// A checkpoint that was complete once.
    #[error("the checkpoint of shard {shard} is damaged: page {page}, at offset {offset}, {what}")]
    Checkpoint {
        /// Whose checkpoint.
        shard: u64,
        /// The page within the checkpoint.
        page: u64,
        /// Where on the device the damage is, in bytes.
        offset: u64,
        /// What is wrong with it.
        what: String,
    },
    /// A volume that does not fit the superblock.
    #[error("the superblock has no room for {0}")]
    Volume(String),
    /// More tiers beside it than can be named.
    #[error("the superblock has room to name 15 other tiers that are kept, no more")]
    Companions,
    /// A checkpoint that is longer than any can be.
    #[error("a checkpoint of what the cache holds has no room")]
    NoRoom,
    /// Two caches on one device need two ids, or the leavings of the first would pass for the
    /// second's.
    #[error("the cache on the device has the same id as the new one")]
    SameId,
}

/// Why a cache cannot be laid out.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LayoutError {
    /// None, or more than a page can name.
    #[error("shards = {0} is not between 1 and 65535")]
    Shards(u64),
    /// No room for a group in each shard.
    #[error(
        "a cache of {} is too small: with its metadata it needs {}",
        format_size(*cache_bytes), format_size(*least_bytes)
    )]
    TooSmall {
        /// What was given.
        cache_bytes: u64,
        /// What would do.
        least_bytes: u64,
    },
    /// More than a shard can count.
    #[error("shards of {} are too large: give more than {shards}", format_size(*shard_bytes))]
    ShardTooLarge {
        /// The number of shards.
        shards: u64,
        /// What each would have.
        shard_bytes: u64,
    },
}
