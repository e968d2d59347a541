//! Errors of opening, creating and changing a cache device.

use std::io;

use super::layout::VERSION;
use crate::geometry::format_size;

/// The reason for which a cache cannot be created, opened or changed. Each message is one line that
/// names the fault and its place.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The device failed.
    #[error("{doing} {bytes} bytes at offset {offset} of the cache device failed: {source}")]
    Io {
        /// The operation that failed, as a participle.
        doing: &'static str,
        /// The number of bytes that it covered.
        bytes: u64,
        /// The offset at which it began.
        offset: u64,
        /// The device's error.
        source: io::Error,
    },
    /// A later version of Floe has written the superblock.
    #[error(
        "the superblock at offset {offset} has format {version}, and this version of floe knows \
         {VERSION}"
    )]
    Newer {
        /// Offset of the superblock.
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
        /// Offset of the superblock.
        offset: u64,
        /// The impossible statement.
        what: String,
    },
    /// The device is smaller than the cache on it.
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
        /// The shard whose log is damaged.
        shard: u64,
        /// The sequence number of the page.
        page: u64,
        /// Offset of the damage on the device, in bytes.
        offset: u64,
        /// The damage.
        what: String,
    },
    /// A checkpoint that was complete once.
    #[error("the checkpoint of shard {shard} is damaged: page {page}, at offset {offset}, {what}")]
    Checkpoint {
        /// The shard whose checkpoint is damaged.
        shard: u64,
        /// The page within the checkpoint.
        page: u64,
        /// Offset of the damage on the device, in bytes.
        offset: u64,
        /// The damage.
        what: String,
    },
    /// A volume that does not fit the superblock.
    #[error("the superblock has no room for {0}")]
    Volume(String),
    /// More peer tiers than the superblock can name.
    #[error("the superblock has room to name 15 other tiers that are kept, no more")]
    Companions,
    /// A checkpoint that is longer than its slot.
    #[error("a checkpoint of what the cache holds has no room")]
    NoRoom,
    /// Two caches on one device need two ids, or the leavings of the first would pass for the
    /// second's.
    #[error("the cache on the device has the same id as the new one")]
    SameId,
}
