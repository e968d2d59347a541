//! Layout of the cache device; docs/format.md draws it.
//!
//! Two copies of the superblock, then for each shard two slots for checkpoints and a ring of log
//! pages, then the data of each shard. A slot has a page for its header and room for the longest
//! possible dump: every block of the smallest size, every sector with its checksum. (A run costs
//! less than the checksums it spares, so one with invalid sectors is never longer; runs with
//! checksums that alternate become [mixtures](super::record::mix), a 32nd longer, which the slack
//! has room for.) A ring is twice as long, so that a checkpoint is due when as much has been logged
//! as it will write.

use std::io;
use std::ops::Range;

use super::page::{PAGE_BYTES, PAYLOAD_BYTES};
use super::record::{BLOCK_BYTES, Change, RUN_BYTES, SUM_BYTES};
use crate::geometry::{BlockSizes, SECTOR_BYTES, Sectors, format_size};

/// The current version of the on-disk format.
pub(super) const VERSION: u32 = 3;

/// Size of a copy of the superblock.
pub(super) const SUPERBLOCK_BYTES: usize = 32 << 10;

/// Offsets of the copies of the superblock: those of even and of odd generations.
pub(super) const SUPERBLOCK_OFFSETS: [u64; 2] = [0, SUPERBLOCK_BYTES as u64];

/// Minimum number of pages of a ring. Fewer where crashes are simulated, so that the ring fills
/// sooner.
const LEAST_RING_PAGES: u64 = if cfg!(floe_crash) { 16 } else { 64 };

/// Divisor for the slack of a dump slot, for blocks that change places while the dump is taken: a
/// 16th of the longest dump.
const DUMP_SLACK_SHARE: u64 = 16;

/// Maximum number of sectors of a shard: a record has 32 bits for a place.
const MOST_SHARD_SECTORS: u64 = u32::MAX as u64;

/// Positions of all structures on the cache device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub(super) sizes: BlockSizes,
    pub(super) shards: u64,
    pub(super) shard_sectors: u64,
    /// Pages of the longest checkpoint, without its header.
    pub(super) dump_pages: u64,
    pub(super) ring_pages: u64,
    /// Offset of the first shard's data on the device, in bytes.
    pub(super) data_start: u64,
}

/// Returns whether a dump's records of one block fit into the room reserved for a block.
pub(crate) fn fits_dump(changes: &[Change]) -> bool {
    let (mut taken, mut room) = (BLOCK_BYTES, 0);
    for change in changes {
        let Change::Run { block, run, standing } = change else { continue };
        let sums = if standing.has_sums() { run.end - run.start } else { 0 };
        taken += RUN_BYTES + sums as usize * SUM_BYTES;
        room = BLOCK_BYTES
            + RUN_BYTES
            + (block.sectors.end - block.sectors.start) as usize * SUM_BYTES;
    }
    taken <= room
}

/// The reason for which a cache cannot be laid out.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LayoutError {
    /// The number of shards is 0, or more than a page can name.
    #[error("shards = {0} is not between 1 and 65535")]
    Shards(u64),
    /// The cache has no room for a group in each shard.
    #[error(
        "a cache of {} is too small: with its metadata it needs {}",
        format_size(*cache_bytes), format_size(*least_bytes)
    )]
    TooSmall {
        /// The given size of the cache in bytes.
        cache_bytes: u64,
        /// The least possible size of the cache in bytes.
        least_bytes: u64,
    },
    /// Each shard would have more sectors than can be counted.
    #[error("shards of {} are too large: give more than {shards}", format_size(*shard_bytes))]
    ShardTooLarge {
        /// The number of shards.
        shards: u64,
        /// The bytes that each shard would have.
        shard_bytes: u64,
    },
}

impl Layout {
    /// Returns the layout of a cache that takes at most `cache_bytes` of its device, its metadata
    /// included.
    ///
    /// # Errors
    /// When there is no room for a group (of the largest block's size) in each shard, or the number
    /// of shards is out of bounds.
    pub fn new(sizes: &BlockSizes, cache_bytes: u64, shards: u64) -> Result<Layout, LayoutError> {
        if shards == 0 || shards > u64::from(u16::MAX) {
            return Err(LayoutError::Shards(shards));
        }
        let of = |groups: u64| Layout::of(sizes, shards, groups * sizes.largest());
        let fits = |groups: u64| of(groups).end_bytes() <= cache_bytes;
        if !fits(1) {
            return Err(LayoutError::TooSmall { cache_bytes, least_bytes: of(1).end_bytes() });
        }
        let shard_bytes = cache_bytes / shards;
        if shard_bytes / SECTOR_BYTES > MOST_SHARD_SECTORS {
            return Err(LayoutError::ShardTooLarge { shards, shard_bytes });
        }
        // As many groups as fit: `fits` holds for `low` and not for `high`.
        let (mut low, mut high) = (1, shard_bytes / SECTOR_BYTES / sizes.largest() + 1);
        while high - low > 1 {
            let middle = low.midpoint(high);
            *(if fits(middle) { &mut low } else { &mut high }) = middle;
        }
        Ok(of(low))
    }

    /// Returns the layout of `shards` shards with `shard_sectors` sectors of data each.
    pub(super) fn of(sizes: &BlockSizes, shards: u64, shard_sectors: u64) -> Layout {
        let blocks = shard_sectors / sizes.smallest();
        let longest = blocks * (BLOCK_BYTES + RUN_BYTES) as u64 + shard_sectors * SUM_BYTES as u64;
        // A page may end with less room than a record needs, and the next begins with its block
        // again.
        let least_filled = PAYLOAD_BYTES - 2 * (BLOCK_BYTES + RUN_BYTES + SUM_BYTES);
        let dump_pages = (longest + longest / DUMP_SLACK_SHARE).div_ceil(least_filled as u64) + 1;
        let mut layout = Layout {
            sizes: sizes.clone(),
            shards,
            shard_sectors,
            dump_pages,
            ring_pages: (2 * dump_pages).max(LEAST_RING_PAGES),
            data_start: 0,
        };
        layout.data_start = layout.metadata_end().next_multiple_of(sizes.largest() * SECTOR_BYTES);
        layout
    }

    /// Checks and returns the layout that a superblock states.
    ///
    /// # Errors
    /// When the layout is impossible; the text has its values.
    pub(super) fn stated(self) -> Result<Layout, String> {
        let in_bounds = (1..=u64::from(u16::MAX)).contains(&self.shards)
            && (1..=MOST_SHARD_SECTORS).contains(&self.shard_sectors)
            && self.shard_sectors.is_multiple_of(self.sizes.largest())
            && (1..=1 << 32).contains(&self.dump_pages)
            && (LEAST_RING_PAGES..=1 << 32).contains(&self.ring_pages)
            && self.data_start.is_multiple_of(SECTOR_BYTES)
            && self.data_start <= 1 << 62;
        if in_bounds && self.metadata_end() <= self.data_start {
            return Ok(self);
        }
        let Layout { shards, shard_sectors, dump_pages, ring_pages, data_start, .. } = self;
        Err(format!(
            "{shards} shards of {shard_sectors} sectors, {dump_pages} pages a checkpoint, \
             {ring_pages} a log, data from {data_start} on"
        ))
    }

    /// Returns the block sizes.
    pub fn sizes(&self) -> &BlockSizes {
        &self.sizes
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> u64 {
        self.shards
    }

    /// Returns the sectors of data of each shard: a multiple of the largest block's sectors.
    pub fn shard_sectors(&self) -> u64 {
        self.shard_sectors
    }

    /// Returns the offset of a shard's data on the device, in bytes.
    pub fn data_offset_bytes(&self, shard: u64) -> u64 {
        self.data_start + shard * self.shard_sectors * SECTOR_BYTES
    }

    /// Returns the sectors of the device that hold a shard's data.
    pub fn data_sectors(&self, shard: u64) -> Sectors {
        let start = self.data_offset_bytes(shard) / SECTOR_BYTES;
        start..start + self.shard_sectors
    }

    /// Returns the bytes of data of all shards.
    pub fn data_bytes(&self) -> u64 {
        self.shards * self.shard_sectors * SECTOR_BYTES
    }

    /// Returns the bytes of data of all shards in a cache that takes at most `cache_bytes` of its
    /// device, its metadata included.
    pub(super) fn data_bytes_within(&self, cache_bytes: u64) -> u64 {
        let group_bytes = self.sizes.largest() * SECTOR_BYTES;
        let shard_bytes = cache_bytes.saturating_sub(self.data_start) / self.shards;
        let used = shard_bytes / group_bytes * group_bytes;
        used.min(self.shard_sectors * SECTOR_BYTES) * self.shards
    }

    /// Returns the end of the cache on its device, in bytes.
    pub fn end_bytes(&self) -> u64 {
        self.data_offset_bytes(self.shards)
    }

    /// Returns the bytes of a shard's two slots and its ring.
    pub(super) fn journal_bytes(&self) -> u64 {
        (2 * self.slot_pages() + self.ring_pages) * PAGE_BYTES as u64
    }

    fn slot_pages(&self) -> u64 {
        1 + self.dump_pages
    }

    fn metadata_end(&self) -> u64 {
        self.slot_offset(self.shards, 0)
    }

    /// Returns the offset of a shard's checkpoint slot in bytes. The header comes first, then the
    /// pages.
    pub(super) fn slot_offset(&self, shard: u64, slot: usize) -> u64 {
        let metadata_start = SUPERBLOCK_OFFSETS[1] + SUPERBLOCK_BYTES as u64;
        metadata_start
            + shard * self.journal_bytes()
            + slot as u64 * self.slot_pages() * PAGE_BYTES as u64
    }

    /// Returns the byte range of a shard's ring on the device.
    pub(super) fn ring(&self, shard: u64) -> Range<u64> {
        self.slot_offset(shard, 2)..self.slot_offset(shard + 1, 0)
    }

    /// Returns the offset in bytes of the log page with this sequence number.
    pub(super) fn page_offset(&self, shard: u64, seq: u64) -> u64 {
        self.ring(shard).start + seq % self.ring_pages * PAGE_BYTES as u64
    }
}

/// The reason for which a cache cannot be created, opened or changed. Each message is one line that
/// names the fault and its place.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The device failed.
    #[error("{doing} {bytes} bytes at offset {offset} of the cache device failed: {source}")]
    Io {
        /// The operation that failed, as a participle such as "reading".
        doing: &'static str,
        /// Length of the failed operation in bytes.
        bytes: u64,
        /// Offset of the failed operation on the device, in bytes.
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
        /// Offset of the superblock on the device, in bytes.
        offset: u64,
        /// The format version in the superblock.
        version: u32,
    },
    /// The device had a cache, and neither copy of its superblock can be read.
    #[error("no copy of the superblock is intact: {0}; {1}")]
    Superblocks(String, String),
    /// A superblock has a right checksum and impossible content.
    #[error("the superblock at offset {offset} states something impossible: {what}")]
    Nonsense {
        /// Offset of the superblock on the device, in bytes.
        offset: u64,
        /// A description of the impossible content.
        what: String,
    },
    /// The device is smaller than the cache on it.
    #[error(
        "the cache takes {} of its device, which has only {}",
        format_size(*needs), format_size(*has)
    )]
    DeviceTooSmall {
        /// Bytes that the cache takes on its device.
        needs: u64,
        /// Bytes that the device has.
        has: u64,
    },
    /// A log is damaged, not merely torn at its end by a crash.
    #[error("the log of shard {shard} is damaged: page {page}, at offset {offset}, {what}")]
    Log {
        /// The shard whose log is damaged.
        shard: u64,
        /// The sequence number of the damaged page.
        page: u64,
        /// Offset of the damage on the device, in bytes.
        offset: u64,
        /// A description of the damage.
        what: String,
    },
    /// A checkpoint is damaged that was complete once.
    #[error("the checkpoint of shard {shard} is damaged: page {page}, at offset {offset}, {what}")]
    Checkpoint {
        /// The shard whose checkpoint is damaged.
        shard: u64,
        /// The index of the damaged page within the checkpoint.
        page: u64,
        /// Offset of the damage on the device, in bytes.
        offset: u64,
        /// A description of the damage.
        what: String,
    },
    /// A volume does not fit the superblock; the text says why.
    #[error("the superblock has no room for {0}")]
    Volume(String),
    /// The stack has more peer tiers than the superblock can name.
    #[error("the superblock has room to name 15 other tiers that are kept, no more")]
    Companions,
    /// A checkpoint is longer than its slot.
    #[error("a checkpoint of what the cache holds has no room")]
    NoRoom,
    /// The new cache has the id of the cache already on the device. With one id, pages of the old
    /// cache would pass for the new one's.
    #[error("the cache on the device has the same id as the new one")]
    SameId,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_cache_uses_what_it_is_given_and_its_parts_do_not_overlap(
            sizes in proptest::sample::subsequence(
                vec![4096u64, 8192, 32768, 131_072, 1 << 20], 1..=5,
            ),
            cache_bytes in (1u64 << 19)..(1 << 40),
            shards in 1u64..=128,
        ) {
            let sizes = BlockSizes::new(&sizes).unwrap();
            match Layout::new(&sizes, cache_bytes, shards) {
                Ok(layout) => {
                    prop_assert!(layout.end_bytes() <= cache_bytes);
                    let group = sizes.largest();
                    let more = Layout::of(&sizes, shards, layout.shard_sectors() + group);
                    prop_assert!(more.end_bytes() > cache_bytes, "room for more was left");
                    prop_assert!(layout.clone().stated() == Ok(layout.clone()));
                    prop_assert!(layout.slot_offset(0, 0) >= 2 * SUPERBLOCK_BYTES as u64);
                    prop_assert!(layout.ring(shards - 1).end <= layout.data_offset_bytes(0));
                    let end = layout.data_sectors(shards - 1).end;
                    prop_assert_eq!(end * SECTOR_BYTES, layout.end_bytes());
                    let ring_bytes = layout.ring(0).end - layout.slot_offset(0, 2);
                    prop_assert!(ring_bytes == layout.ring_pages * 4096);
                }
                Err(LayoutError::TooSmall { least_bytes, .. }) => {
                    prop_assert!(Layout::new(&sizes, least_bytes, shards).is_ok());
                    prop_assert!(Layout::new(&sizes, least_bytes - 1, shards).is_err());
                }
                Err(error) => prop_assert!(false, "{}", error),
            }
        }
    }

    #[test]
    fn metadata_is_a_small_share_of_a_cache() {
        let layout = Layout::new(&BlockSizes::default(), 100 << 30, 64).unwrap();
        let share = layout.data_start as f64 / layout.end_bytes() as f64;
        assert!(share < 0.0125, "{share}");
    }

    #[test]
    fn what_is_out_of_bounds_is_named() {
        let sizes = BlockSizes::default();
        let error = |bytes, shards| Layout::new(&sizes, bytes, shards).unwrap_err().to_string();
        assert_eq!(error(1 << 30, 0), "shards = 0 is not between 1 and 65535");
        assert_eq!(
            error(1 << 20, 4),
            "a cache of 1MiB is too small: with its metadata it needs 2304KiB"
        );
        assert!(error(1 << 50, 2).starts_with("shards of 512TiB are too large"));
    }
}
