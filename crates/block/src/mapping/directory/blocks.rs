//! Blocks: where each is, in its volume and in the cache space, and the state of its sectors.
//!
//! A block is a slot in flat arrays, found by the hash of its extent. The state of its sectors is
//! in `sectors.rs`.
//!
//! Invariants: a dirty sector is valid; `dirty` holds exactly the blocks with dirty sectors; `live`
//! counts the blocks in `index`.

mod ahead;
mod sectors;
mod valid;

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use floe_policy::{Access, Slot};

use super::{Block, reserve_by_share};
use crate::bits::Bits;
use crate::geometry::{BlockSizes, Class, Extent, Sectors, VolumeId};
use crate::mapping::index::Index;
use ahead::Ahead;
use valid::Valid;

/// Marks the absence of a place.
const NO_PLACE: u32 = u32::MAX;

/// A B-tree's share of a key and value, its nodes half to wholly full.
const DIRTY_ENTRY_BYTES: usize = (size_of::<Extent>() + size_of::<Block>()) * 3 / 2;

/// The blocks of one shard.
#[derive(Debug)]
pub(crate) struct Blocks {
    sizes: BlockSizes,
    /// By slot: the extent of a block, and its place in smallest blocks from the start of the
    /// shard's space.
    extents: Vec<Extent>,
    places: Vec<u32>,
    index: Index,
    /// Blocks of each class at present.
    live: Vec<u64>,
    pub(crate) valid: Valid,
    dirty_bits: Bits,
    dirty: BTreeMap<Extent, Block>,
    ahead: Ahead,
}

impl Blocks {
    /// Returns no blocks, with bits for `sectors` of cache space.
    pub(super) fn new(sizes: BlockSizes, sectors: u64, fetches_ahead: bool) -> Self {
        Self {
            extents: Vec::new(),
            places: Vec::new(),
            index: Index::default(),
            live: vec![0; sizes.count()],
            valid: Valid::new(sectors, sizes.smallest()),
            dirty_bits: Bits::new(sectors),
            dirty: BTreeMap::new(),
            ahead: Ahead::new(&sizes, sectors, fetches_ahead),
            sizes,
        }
    }

    /// Returns the block that covers a sector. Sizes are tried from the smallest, as in Algorithm
    /// 1.
    #[inline]
    pub(crate) fn find(&self, volume: VolumeId, sector: u64) -> Option<Block> {
        for class in self.sizes.classes().filter(|class| self.live[class.0 as usize] > 0) {
            let size = self.sizes.sectors(class);
            let extent = Extent::new(volume, sector & !(size - 1), size);
            let found =
                self.index.find(extent.hash(), |slot| self.extents[slot as usize] == extent);
            if found.is_some() {
                return found.map(Slot);
            }
        }
        None
    }

    pub(crate) fn volume(&self, block: Block) -> VolumeId {
        self.extents[block.index()].volume()
    }

    /// Returns whether a slot has a block.
    pub(crate) fn is_live(&self, slot: Block) -> bool {
        let Some(extent) = self.extents.get(slot.index()) else { return false };
        self.index.find(extent.hash(), |other| self.extents[other as usize] == *extent)
            == Some(slot.0)
    }

    /// Returns the sectors of its volume that a block holds.
    #[inline]
    pub(crate) fn sectors(&self, block: Block) -> Sectors {
        self.extents[block.index()].sectors()
    }

    /// Returns the sectors of the shard's space on the cache device that hold a run of a block.
    #[inline]
    pub(crate) fn cache_sectors(&self, block: Block, run: &Sectors) -> Range<u64> {
        let (sectors, at) = (self.sectors(block), self.places[block.index()]);
        debug_assert!(sectors.start <= run.start && run.end <= sectors.end);
        let start = u64::from(at) * self.sizes.smallest() + (run.start - sectors.start);
        start..start + (run.end - run.start)
    }

    pub(super) fn sizes(&self) -> &BlockSizes {
        &self.sizes
    }

    /// Returns the place of a block, in smallest blocks from the start of the shard's space.
    #[inline]
    pub(super) fn place(&self, block: Block) -> u32 {
        self.places[block.index()]
    }

    pub(super) fn class(&self, block: Block) -> Class {
        let Sectors { start, end } = self.sectors(block);
        self.sizes.class(end - start)
    }

    /// Makes the arrays cover the slots before `end`. Returns the slots that there is memory for,
    /// if they have become more.
    pub(super) fn reserve(&mut self, end: u32) -> Option<usize> {
        let end = end as usize;
        if end <= self.extents.len() {
            return None;
        }
        let grows = reserve_by_share(&mut self.extents, end);
        self.extents.resize(end, Extent::new(VolumeId(0), 0, 1));
        reserve_by_share(&mut self.places, end);
        self.places.resize(end, NO_PLACE);
        grows.then_some(self.extents.capacity())
    }

    /// Gives a slot its place.
    pub(super) fn put(&mut self, block: Block, place: u32) {
        self.places[block.index()] = place;
    }

    /// Makes a slot, which has a place and no block, a block without valid sectors.
    pub(super) fn map(&mut self, block: Block, extent: Extent) {
        self.extents[block.index()] = extent;
        let extents = &self.extents;
        self.index.insert(block.0, |slot| extents[slot as usize].hash());
        let class = self.class(block);
        self.live[class.0 as usize] += 1;
        debug_assert!(!self.has_valid(block, &self.sectors(block)), "new blocks are empty");
    }

    /// Makes a slot one without a block.
    ///
    /// # Panics
    /// When the block is dirty.
    pub(super) fn unmap(&mut self, block: Block) {
        assert!(!self.is_dirty(block), "a dirty block was about to be dropped");
        let sectors = self.sectors(block);
        let kept = self.cache_sectors(block, &sectors);
        self.valid.evict(kept);
        self.set_ahead(block, &sectors, false);
        let class = self.class(block);
        self.live[class.0 as usize] -= 1;
        let extents = &self.extents;
        self.index.remove(block.0, |slot| extents[slot as usize].hash());
    }

    /// Returns the number of blocks of each class.
    pub(crate) fn live(&self) -> impl Iterator<Item = u64> + '_ {
        self.live.iter().copied()
    }

    /// Returns the description of a block for its order.
    #[inline]
    pub(super) fn access(&self, block: Block) -> Access {
        arrival(&self.sizes, self.extents[block.index()])
    }

    /// Returns the bytes of memory held for blocks, without the bits of their sectors.
    pub(super) fn memory_bytes(&self) -> usize {
        self.extents.capacity() * size_of::<Extent>()
            + self.places.capacity() * size_of::<u32>()
            + self.index.memory_bytes()
            + self.dirty.len() * DIRTY_ENTRY_BYTES
    }

    /// Checks the invariants of the module's header, and that no two blocks overlap, given all
    /// blocks. Slow.
    pub(super) fn check(&self, blocks: impl Iterator<Item = Block>) {
        self.valid.check();
        let (mut taken, mut seen, mut dirty) = (HashSet::new(), 0, 0);
        for block in blocks {
            let (volume, sectors) = (self.volume(block), self.sectors(block));
            assert_eq!(self.find(volume, sectors.start), Some(block));
            for (at, sector) in self.cache_sectors(block, &sectors).zip(sectors) {
                assert!(taken.insert((volume, sector)), "two blocks cover sector {sector}");
                let kept = self.cache_sectors(block, &(sector..sector + 1));
                assert_eq!(kept, at..at + 1);
                assert!(!self.dirty_bits.any(kept.clone()) || self.valid.bits().all(kept));
            }
            let is_listed = self.dirty.contains_key(&self.extents[block.index()]);
            assert_eq!(self.is_dirty(block), is_listed);
            seen += 1;
            dirty += usize::from(is_listed);
        }
        assert_eq!(seen, self.live().sum::<u64>());
        assert_eq!(dirty, self.dirty.len());
    }
}

/// Returns the description of a new block for its order: its hash, and its size in smallest blocks.
pub(super) fn arrival(sizes: &BlockSizes, extent: Extent) -> Access {
    let Sectors { start, end } = extent.sectors();
    Access { weight: ((end - start) / sizes.smallest()) as u32, ..Access::new(extent.hash()) }
}
