//! Tells the bytes of a cache that are what was stored from those that are not, for mirrors.
//!
//! Sectors of data have their checksums in memory, while the cache is served; superblocks and pages
//! have theirs within. An empty page counts as intact: nothing was stored there yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use floe_device::{Damage, Judge};

use super::change::NO_SUM;
use super::layout::{Layout, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use super::page::{Owner, PAGE_BYTES, read};
use super::sum::sum_of;
use super::superblock::{Copy, Superblock};
use crate::geometry::SECTOR_BYTES;

/// The checksums of a shard's sectors. One thread changes them, and others compare.
#[derive(Debug)]
pub(crate) struct Sums(Vec<AtomicU64>);

impl Sums {
    pub(crate) fn new(sums: Vec<u64>) -> Arc<Self> {
        Arc::new(Self(sums.into_iter().map(AtomicU64::new).collect()))
    }

    /// Returns the checksum of a sector, `NO_SUM` where none is known.
    #[inline]
    pub(crate) fn get(&self, sector: u64) -> u64 {
        // A judge that sees an older checksum finds no copy that matches, and takes the first.
        self.0[sector as usize].load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set(&self, sector: u64, sum: u64) {
        self.0[sector as usize].store(sum, Ordering::Relaxed);
    }

    /// Returns the bytes of memory they take.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.0.capacity() * size_of::<u64>()
    }
}

/// The judge of a cache that is served.
#[derive(Debug)]
pub(crate) struct CacheJudge {
    pub(crate) layout: Layout,
    pub(crate) id: [u8; 16],
    /// By shard.
    pub(crate) sums: Vec<Arc<Sums>>,
}

impl CacheJudge {
    fn is_intact(&self, offset: u64, sector: &[u8]) -> bool {
        let layout = &self.layout;
        if offset < layout.data_offset_bytes(0) {
            let journals = SUPERBLOCK_OFFSETS[1] + SUPERBLOCK_BYTES as u64;
            let shard = (offset - journals) / layout.journal_bytes();
            let owner = Owner { cache: self.id, shard: shard as u16 };
            let is_of_none = shard >= layout.shards();
            return is_of_none
                || read(sector, owner).is_some()
                || sector.iter().all(|byte| *byte == 0);
        }
        let at = (offset - layout.data_offset_bytes(0)) / SECTOR_BYTES;
        let Some(sums) = self.sums.get((at / layout.shard_sectors()) as usize) else { return true };
        let sum = sums.get(at % layout.shard_sectors());
        sum == NO_SUM || sum == sum_of(sector)
    }
}

impl Judge for CacheJudge {
    fn damage(&self, offset: u64, bytes: &[u8]) -> Vec<Damage> {
        let (mut found, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let place = offset + at as u64;
            let is_superblock = SUPERBLOCK_OFFSETS.contains(&place);
            let len = if is_superblock { SUPERBLOCK_BYTES } else { PAGE_BYTES };
            let range = at..(at + len).min(bytes.len());
            let part = &bytes[range.clone()];
            let is_whole = part.len() == len;
            let is_intact = match is_superblock {
                true => !is_whole || matches!(Superblock::decode(part), Copy::Good(_)),
                false => !is_whole || self.is_intact(place, part),
            };
            if !is_intact {
                let exact = place >= self.layout.data_offset_bytes(0);
                found.push(Damage { range: range.clone(), exact });
            }
            at = range.end;
        }
        found
    }
}
