//! Sectors, block sizes and regions: the division of a volume's address space.
//!
//! This crate counts in *sectors* of 4 KiB. A block is a power-of-two run of sectors aligned to its
//! size (AdaCache, section III.A). A *region* is an aligned run as long as the largest block, so a
//! block never reaches over a region's end. The region is the unit by which requests are split and
//! shards are chosen.

use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;

pub use floe_device::SECTOR_BYTES;
use floe_device::parse_bytes;

/// A run of sectors of a volume.
pub type Sectors = Range<u64>;

/// Largest block size accepted, in bytes.
pub const LARGEST_BLOCK_BYTES: u64 = 1 << 20;

/// Maximum number of block sizes one cache can have: the powers of two from 4 KiB to 1 MiB.
pub const MOST_CLASSES: usize = 9;

/// The id of a volume of the cache. A new volume gets the lowest free id, unless the caller gives
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumeId(pub u16);

/// The number of a block size of a cache, 0 for the smallest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class(pub u8);

/// A sector of a volume, in one word: the key of maps over blocks and regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Place(u64);

/// Bits of a [`Place`] for the sector. A volume has fewer than 2⁴⁷ sectors, so that the end of a
/// range and twice a sector fit as well.
const SECTOR_BITS: u32 = 48;

/// Largest volume: half an exbibyte.
pub const MOST_VOLUME_BYTES: u64 = SECTOR_BYTES << (SECTOR_BITS - 1);

impl Place {
    #[inline]
    pub(crate) fn new(volume: VolumeId, sector: u64) -> Self {
        debug_assert!(sector < 1 << SECTOR_BITS);
        Self(u64::from(volume.0) << SECTOR_BITS | sector)
    }

    /// Returns all places of a volume.
    pub(crate) fn all_of(volume: VolumeId) -> RangeInclusive<Place> {
        Self::new(volume, 0)..=Self::new(volume, (1 << SECTOR_BITS) - 1)
    }

    /// Returns the places of a run of a volume.
    #[inline]
    pub(crate) fn run(volume: VolumeId, run: &Sectors) -> Range<Place> {
        Self::new(volume, run.start)..Self::new(volume, run.end)
    }

    #[inline]
    pub(crate) fn volume(self) -> VolumeId {
        VolumeId((self.0 >> SECTOR_BITS) as u16)
    }

    #[inline]
    pub(crate) fn sector(self) -> u64 {
        self.0 & ((1 << SECTOR_BITS) - 1)
    }

    /// Returns the place as a number: neighbours in a volume have consecutive numbers.
    #[inline]
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) fn of_number(number: u64) -> Self {
        Self(number)
    }

    /// Returns a well-mixed hash (the finalizer of SplitMix64), equal in every run: the shard of a
    /// region is part of the cache's format.
    #[inline]
    pub(crate) fn hash(self) -> u64 {
        let mut x = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

/// The sectors of a block, with their volume, in one word: the volume, and twice the block's
/// centre.
///
/// Blocks are aligned to their size, a power of two, so the centre's trailing zeros give the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Extent(Place);

impl Extent {
    #[inline]
    pub(crate) fn new(volume: VolumeId, start: u64, sectors: u64) -> Self {
        debug_assert!(sectors.is_power_of_two() && start.is_multiple_of(sectors));
        Self(Place::new(volume, 2 * start + sectors))
    }

    /// Returns all extents of a volume.
    pub(crate) fn all_of(volume: VolumeId) -> RangeInclusive<Extent> {
        let (first, last) = Place::all_of(volume).into_inner();
        Self(first)..=Self(last)
    }

    #[inline]
    pub(crate) fn volume(self) -> VolumeId {
        self.0.volume()
    }

    #[inline]
    pub(crate) fn sectors(self) -> Sectors {
        let centre = self.0.sector();
        let size = 1 << centre.trailing_zeros();
        (centre - size) / 2..(centre + size) / 2
    }

    #[inline]
    pub(crate) fn hash(self) -> u64 {
        self.0.hash()
    }
}

/// The reason for which a list of block sizes is unusable.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BlockSizesError {
    /// The list has no size.
    #[error("no block size given")]
    None,
    /// A size is not a power of two between 4 KiB and 1 MiB.
    #[error("block size {0} is not a power of two from 4KiB to 1MiB")]
    Unusable(String),
    /// A size is listed twice.
    #[error("block size {0} is given twice")]
    Twice(String),
}

/// The block sizes of a cache, smallest first. With a single size the cache is an ordinary
/// fixed-size one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockSizes {
    sectors: Vec<u64>,
}

impl BlockSizes {
    /// Returns the block sizes from a list of bytes in any order.
    ///
    /// # Errors
    /// When the list is empty, names a size twice, or one that is no power of two from 4 KiB to 1
    /// MiB.
    pub fn new(bytes: &[u64]) -> Result<Self, BlockSizesError> {
        let mut sectors = Vec::new();
        for &size in bytes {
            if !size.is_power_of_two() || !(SECTOR_BYTES..=LARGEST_BLOCK_BYTES).contains(&size) {
                return Err(BlockSizesError::Unusable(format_size(size)));
            }
            sectors.push(size / SECTOR_BYTES);
        }
        sectors.sort_unstable();
        if let Some(pair) = sectors.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(BlockSizesError::Twice(format_size(pair[0] * SECTOR_BYTES)));
        }
        if sectors.is_empty() { Err(BlockSizesError::None) } else { Ok(Self { sectors }) }
    }

    /// Returns the number of sizes.
    #[inline]
    pub fn count(&self) -> usize {
        self.sectors.len()
    }

    /// Returns every class, smallest first.
    pub fn classes(&self) -> impl DoubleEndedIterator<Item = Class> + use<> {
        (0..self.sectors.len() as u8).map(Class)
    }

    /// Returns the size of a class in sectors.
    #[inline]
    pub fn sectors(&self, class: Class) -> u64 {
        self.sectors[class.0 as usize]
    }

    /// Returns the class of blocks of this many sectors.
    ///
    /// # Panics
    /// When no class has this size.
    pub(crate) fn class(&self, sectors: u64) -> Class {
        Class(
            self.sectors
                .iter()
                .position(|&size| size == sectors)
                .expect("blocks have one of the sizes") as u8,
        )
    }

    /// Returns the size of a class in bytes.
    pub fn bytes(&self, class: Class) -> u64 {
        self.sectors(class) * SECTOR_BYTES
    }

    /// Returns the size of the smallest block in sectors.
    #[inline]
    pub fn smallest(&self) -> u64 {
        self.sectors[0]
    }

    /// Returns the size of the largest block, of a group and of a region, in sectors.
    #[inline]
    pub fn largest(&self) -> u64 {
        self.sectors[self.sectors.len() - 1]
    }

    /// Returns the region that contains a sector, as the place of its first sector.
    #[inline]
    pub(crate) fn region(&self, volume: VolumeId, sector: u64) -> Place {
        Place::new(volume, sector & !(self.largest() - 1))
    }

    /// Returns the number of blocks of a class that fill a group.
    pub fn per_group(&self, class: Class) -> u64 {
        self.largest() / self.sectors(class)
    }

    /// Returns the range rounded out to whole smallest blocks.
    #[inline]
    pub fn round_out(&self, range: &Sectors) -> Sectors {
        let unit = self.smallest();
        range.start / unit * unit..range.end.div_ceil(unit) * unit
    }

    /// Returns the default block sizes of a cache: the powers of two from 16 KiB to a 64th of the
    /// cache. The largest is at least 256 KiB and at most 1 MiB.
    pub fn automatic(cache_bytes: u64) -> Self {
        let largest = (cache_bytes / LEAST_GROUPS / SECTOR_BYTES).clamp(64, 256);
        let sizes = (0..MOST_CLASSES).map(|class| 1 << class);
        Self { sectors: sizes.filter(|size| (LEAST_SECTORS..=largest).contains(size)).collect() }
    }
}

/// Minimum number of groups of a cache that lets the eviction policy choose its victims well.
const LEAST_GROUPS: u64 = 64;

/// Default for the smallest block size, in sectors. Each block of a request is an operation of its
/// own on the cache device, and takes as much metadata as a large block. Smaller blocks lose more
/// by that than they gain by moving fewer bytes.
const LEAST_SECTORS: u64 = 4;

impl Default for BlockSizes {
    /// Returns AdaCache's sizes: 32, 64, 128 and 256 KiB.
    fn default() -> Self {
        Self { sectors: vec![8, 16, 32, 64] }
    }
}

impl fmt::Display for BlockSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> =
            self.classes().map(|class| format_size(self.bytes(class))).collect();
        f.write_str(&sizes.join(","))
    }
}

impl FromStr for BlockSizes {
    type Err = BlockSizesError;

    /// Reads a list such as `32KiB,64KiB`.
    fn from_str(text: &str) -> Result<Self, BlockSizesError> {
        let parse = |size: &str| {
            parse_bytes(size).ok_or_else(|| BlockSizesError::Unusable(format!("`{}`", size.trim())))
        };
        let bytes: Vec<u64> = text.split(',').map(parse).collect::<Result<_, _>>()?;
        Self::new(&bytes)
    }
}

/// Formats a size with the largest unit that divides it: `32KiB`, `1MiB`, or plain bytes.
pub fn format_size(bytes: u64) -> String {
    let units = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", bytes / unit),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_sorted_and_printed_as_they_are_written() {
        let sizes: BlockSizes = "256KiB, 32KiB,4096".parse().unwrap();
        assert_eq!(sizes.to_string(), "4KiB,32KiB,256KiB");
        assert_eq!((sizes.smallest(), sizes.largest()), (1, 64));
    }

    #[test]
    fn a_cache_has_groups_enough_for_the_sizes_that_it_is_given() {
        let sizes = |bytes: u64| BlockSizes::automatic(bytes).to_string();
        assert_eq!(sizes(1 << 20), "16KiB,32KiB,64KiB,128KiB,256KiB");
        assert_eq!(sizes(40 << 20), "16KiB,32KiB,64KiB,128KiB,256KiB,512KiB");
        assert_eq!(sizes(1 << 40), "16KiB,32KiB,64KiB,128KiB,256KiB,512KiB,1MiB");
    }

    #[test]
    fn unusable_sizes_are_named() {
        let error = |text: &str| text.parse::<BlockSizes>().unwrap_err().to_string();
        assert_eq!(error("48KiB"), "block size 48KiB is not a power of two from 4KiB to 1MiB");
        assert_eq!(error("2MiB"), "block size 2MiB is not a power of two from 4KiB to 1MiB");
        assert_eq!(
            error("32KiB,lots"),
            "block size `lots` is not a power of two from 4KiB to 1MiB"
        );
        assert_eq!(error("4KiB,4096"), "block size 4KiB is given twice");
        assert_eq!(BlockSizes::new(&[]), Err(BlockSizesError::None));
    }
}
