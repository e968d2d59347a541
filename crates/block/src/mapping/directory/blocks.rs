//! Blocks: the position of each in its volume and in the cache space, and the state of its sectors.
//!
//! A block is a slot in flat arrays, found by the hash of its extent.
//!
//! Invariants: a dirty sector is valid; `dirty` holds exactly the blocks with dirty sectors; `live`
//! counts the blocks in `index`, and `shares` their sizes by volume.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use floe_policy::{Access, Slot};

use super::shares::Shares;
use super::{Block, reserve_by_share};
use crate::bits::Bits;
use crate::geometry::{BlockSizes, Class, Extent, Sectors, VolumeId};
use crate::mapping::index::Index;
use crate::stats::Counters;

/// Marks a slot without a place.
const NO_PLACE: u32 = u32::MAX;

/// Estimated memory of a B-tree entry, key and value, with nodes half to wholly full.
const DIRTY_ENTRY_BYTES: usize = (size_of::<Extent>() + size_of::<Block>()) * 3 / 2;

/// The blocks of one shard.
#[derive(Debug)]
pub(crate) struct Blocks {
    sizes: BlockSizes,
    /// Extent of the block in each slot, and its place, counted in smallest blocks from the start
    /// of the shard's space.
    extents: Vec<Extent>,
    places: Vec<u32>,
    index: Index,
    /// Current number of blocks of each class.
    live: Vec<u64>,
    pub(crate) shares: Shares,
    pub(crate) valid: Valid,
    dirty_bits: Bits,
    pub(crate) dirty: DirtyBlocks,
    ahead: Ahead,
}

/// The blocks with dirty sectors.
#[derive(Debug, Default)]
pub(crate) struct DirtyBlocks {
    blocks: BTreeMap<Extent, Block>,
    /// Number of blocks that have ever become clean.
    cleaned: u64,
}

impl DirtyBlocks {
    /// Returns their number.
    #[inline]
    pub(crate) fn count(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Returns the number of blocks that have ever become clean.
    #[inline]
    pub(super) fn cleaned(&self) -> u64 {
        self.cleaned
    }
}

impl Blocks {
    /// Creates an empty set of blocks, with bits for `sectors` of cache space.
    pub(super) fn new(sizes: BlockSizes, sectors: u64, fetches_ahead: bool) -> Self {
        Self {
            extents: Vec::new(),
            places: Vec::new(),
            index: Index::default(),
            live: vec![0; sizes.count()],
            shares: Shares::new(sizes.largest() / sizes.smallest()),
            valid: Valid::new(sectors, sizes.smallest()),
            dirty_bits: Bits::new(sectors),
            dirty: DirtyBlocks::default(),
            ahead: Ahead::new(&sizes, sectors, fetches_ahead),
            sizes,
        }
    }

    /// Returns the block that covers a sector. Sizes are tried from the smallest, as in AdaCache's
    /// Algorithm 1.
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

    /// Returns whether a slot is mapped to a block.
    pub(crate) fn is_live(&self, slot: Block) -> bool {
        let Some(extent) = self.extents.get(slot.index()) else { return false };
        self.index.find(extent.hash(), |other| self.extents[other as usize] == *extent)
            == Some(slot.0)
    }

    /// Returns the sectors of the volume that a block holds.
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

    /// Returns the size of a block in smallest blocks.
    pub(super) fn size(&self, block: Block) -> u64 {
        let Sectors { start, end } = self.sectors(block);
        (end - start) / self.sizes.smallest()
    }

    /// Extends the arrays to cover the slots before `end`. Returns the new number of slots with
    /// memory, if it has grown.
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

    /// Sets the place of a slot.
    pub(super) fn put(&mut self, block: Block, place: u32) {
        self.places[block.index()] = place;
    }

    /// Maps a slot, which has a place and no block, to a block without valid sectors.
    pub(super) fn map(&mut self, block: Block, extent: Extent) {
        self.extents[block.index()] = extent;
        let extents = &self.extents;
        self.index.insert(block.0, |slot| extents[slot as usize].hash());
        let class = self.class(block);
        self.live[class.0 as usize] += 1;
        let size = self.sizes.sectors(class) / self.sizes.smallest();
        self.shares.mapped(block, self.places[block.index()], extent.volume(), size);
        debug_assert!(!self.has_valid(block, &self.sectors(block)), "new blocks are empty");
    }

    /// Removes the block of a slot; the slot keeps its place.
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
        let size = self.sizes.sectors(class) / self.sizes.smallest();
        self.shares.unmapped(block, self.places[block.index()], self.volume(block), size);
        let extents = &self.extents;
        self.index.remove(block.0, |slot| extents[slot as usize].hash());
    }

    /// Returns the number of blocks of each class.
    pub(crate) fn live(&self) -> impl Iterator<Item = u64> + '_ {
        self.live.iter().copied()
    }

    /// Returns the description of a block for its eviction order.
    #[inline]
    pub(super) fn access(&self, block: Block) -> Access {
        arrival(&self.sizes, self.extents[block.index()])
    }

    /// Returns the bytes of memory held for blocks, without the bits of their sectors.
    pub(super) fn memory_bytes(&self) -> usize {
        self.extents.capacity() * size_of::<Extent>()
            + self.places.capacity() * size_of::<u32>()
            + self.index.memory_bytes()
            + self.dirty.blocks.len() * DIRTY_ENTRY_BYTES
            + self.shares.memory_bytes()
    }

    /// Checks the invariants of the module's header, and that no two blocks overlap, given all
    /// blocks. Slow.
    pub(super) fn check(&self, blocks: impl Iterator<Item = Block>) {
        self.valid.check();
        let (mut taken, mut seen, mut dirty) = (HashSet::new(), 0, 0);
        let mut owned = Vec::new();
        for block in blocks {
            owned.push((block, self.place(block), self.volume(block), self.size(block)));
            let (volume, sectors) = (self.volume(block), self.sectors(block));
            assert_eq!(self.find(volume, sectors.start), Some(block));
            for (at, sector) in self.cache_sectors(block, &sectors).zip(sectors) {
                assert!(taken.insert((volume, sector)), "two blocks cover sector {sector}");
                let kept = self.cache_sectors(block, &(sector..sector + 1));
                assert_eq!(kept, at..at + 1);
                assert!(!self.dirty_bits.any(kept.clone()) || self.valid.bits().all(kept));
            }
            let is_listed = self.dirty.blocks.contains_key(&self.extents[block.index()]);
            assert_eq!(self.is_dirty(block), is_listed);
            seen += 1;
            dirty += usize::from(is_listed);
        }
        assert_eq!(seen, self.live().sum::<u64>());
        assert_eq!(dirty, self.dirty.blocks.len());
        self.shares.check(&owned);
    }

    /// Divides a run of a block into parts of equal validity.
    #[inline]
    pub(crate) fn validity(
        &self,
        block: Block,
        run: &Sectors,
    ) -> impl Iterator<Item = (Sectors, bool)> + use<'_> {
        self.bit_runs(self.valid.bits(), block, run)
    }

    /// Returns the dirty parts of a block, in order.
    pub(crate) fn dirty_runs(&self, block: Block) -> impl Iterator<Item = Sectors> + '_ {
        self.dirty_runs_in(block, &self.sectors(block))
    }

    /// Returns the dirty parts of a run of a block, in order.
    #[inline]
    pub(crate) fn dirty_runs_in(
        &self,
        block: Block,
        run: &Sectors,
    ) -> impl Iterator<Item = Sectors> + use<'_> {
        let runs = self.bit_runs(&self.dirty_bits, block, run);
        runs.filter_map(|(run, dirty)| dirty.then_some(run))
    }

    #[inline]
    fn bit_runs<'a>(
        &self,
        bits: &'a Bits,
        block: Block,
        run: &Sectors,
    ) -> impl Iterator<Item = (Sectors, bool)> + use<'a> {
        let kept = self.cache_sectors(block, run);
        let (kept_start, start) = (kept.start, run.start);
        bits.runs(kept)
            .map(move |(at, bit)| (at.start - kept_start + start..at.end - kept_start + start, bit))
    }

    /// Returns the clean parts of a run of a block, in order.
    #[inline]
    pub(crate) fn clean_runs_in(
        &self,
        block: Block,
        run: &Sectors,
    ) -> impl Iterator<Item = Sectors> + use<'_> {
        let valid = self
            .bit_runs(self.valid.bits(), block, run)
            .filter_map(|(run, valid)| valid.then_some(run));
        let parts = valid.flat_map(move |run| self.bit_runs(&self.dirty_bits, block, &run));
        parts.filter_map(|(run, dirty)| (!dirty).then_some(run))
    }

    /// Divides a run of a block into dirty parts and others.
    #[inline]
    pub(crate) fn dirtiness(
        &self,
        block: Block,
        run: &Sectors,
    ) -> impl Iterator<Item = (Sectors, bool)> + use<'_> {
        self.bit_runs(&self.dirty_bits, block, run)
    }

    #[inline]
    pub(crate) fn is_valid(&self, block: Block, run: &Sectors) -> bool {
        self.valid.bits().all(self.cache_sectors(block, run))
    }

    #[inline]
    pub(crate) fn has_valid(&self, block: Block, run: &Sectors) -> bool {
        self.valid.bits().any(self.cache_sectors(block, run))
    }

    #[inline]
    pub(crate) fn is_dirty(&self, block: Block) -> bool {
        self.dirty_bits.any(self.cache_sectors(block, &self.sectors(block)))
    }

    #[inline]
    pub(crate) fn is_all_dirty(&self, block: Block, run: &Sectors) -> bool {
        self.dirty_bits.all(self.cache_sectors(block, run))
    }

    #[inline]
    pub(crate) fn is_dirty_in(&self, block: Block, run: &Sectors) -> bool {
        self.dirty_bits.any(self.cache_sectors(block, run))
    }

    /// Marks a run as clean: the cache and the backing device hold the same data.
    #[inline]
    pub(crate) fn set_clean(&mut self, block: Block, run: &Sectors) {
        let kept = self.cache_sectors(block, run);
        self.valid.set(kept.clone());
        self.dirty_bits.clear(kept);
        self.forget_if_clean(block);
    }

    /// Marks a run as dirty: only the cache holds its data.
    #[inline]
    pub(crate) fn set_dirty(&mut self, block: Block, run: &Sectors) {
        let kept = self.cache_sectors(block, run);
        self.valid.set(kept.clone());
        self.dirty_bits.set(kept);
        self.dirty.blocks.insert(self.extents[block.index()], block);
    }

    /// Marks a run as invalid.
    pub(crate) fn set_invalid(&mut self, block: Block, run: &Sectors) {
        let kept = self.cache_sectors(block, run);
        self.valid.clear(kept.clone());
        self.dirty_bits.clear(kept);
        self.forget_if_clean(block);
    }

    /// Marks the clean sectors of a run as invalid. Dirty sectors, which are the only copy, stay
    /// valid.
    #[inline]
    pub(crate) fn set_clean_invalid(&mut self, block: Block, run: &Sectors) {
        let kept = self.cache_sectors(block, run);
        for (run, dirty) in self.dirty_bits.runs(kept) {
            if !dirty {
                self.valid.clear(run);
            }
        }
    }

    /// Marks all clean sectors as invalid.
    pub(crate) fn set_all_clean_invalid(&mut self) {
        self.valid.assign(&self.dirty_bits); // a dirty sector is valid
    }

    /// Records whether a run of a block was fetched ahead.
    #[inline]
    pub(crate) fn set_ahead(&mut self, block: Block, run: &Sectors, ahead: bool) {
        if self.ahead.is_used() {
            self.ahead.set(self.cache_sectors(block, run), ahead);
        }
    }

    /// Returns the number of smallest blocks in a run of a block that were fetched ahead and are
    /// now read for the first time.
    #[inline]
    pub(crate) fn take_ahead(&mut self, block: Block, run: &Sectors) -> u64 {
        if !self.ahead.is_used() {
            return 0;
        }
        self.ahead.take(self.cache_sectors(block, run))
    }

    #[inline]
    fn forget_if_clean(&mut self, block: Block) {
        if !self.dirty.blocks.is_empty() && !self.is_dirty(block) {
            let was_dirty = self.dirty.blocks.remove(&self.extents[block.index()]).is_some();
            self.dirty.cleaned += u64::from(was_dirty);
        }
    }

    /// Returns a volume's blocks with dirty sectors, in address order.
    pub(crate) fn dirty_blocks(&self, volume: VolumeId) -> impl Iterator<Item = Block> + '_ {
        self.dirty.blocks.range(Extent::all_of(volume)).map(|(_, block)| *block)
    }

    #[inline]
    pub(crate) fn dirty_sectors(&self) -> u64 {
        self.dirty_bits.ones()
    }

    /// Returns the bytes of memory held for valid and dirty bits.
    pub(crate) fn sector_metadata_bytes(&self) -> u64 {
        (self.valid.bits().memory_bytes() + self.dirty_bits.memory_bytes()) as u64
            + self.ahead.memory_bytes()
    }
}

/// Adds bits for more cache space, until there are some for `sectors`.
pub(super) fn grow(blocks: &mut Blocks, sectors: u64) {
    blocks.valid.grow(sectors);
    blocks.dirty_bits.grow(sectors);
    blocks.ahead.grow(sectors);
}

/// Returns the number of slots, with and without blocks.
pub(crate) fn slots(blocks: &Blocks) -> u32 {
    blocks.extents.len() as u32
}

/// Returns the sectors of the blocks of a volume in these slots.
pub(crate) fn of_volume(
    blocks: &Blocks,
    volume: VolumeId,
    slots: Range<u32>,
) -> impl Iterator<Item = Sectors> + '_ {
    let is_one = move |slot: &Slot| blocks.volume(*slot) == volume && blocks.is_live(*slot);
    slots.map(Slot).filter(is_one).map(move |slot| blocks.sectors(slot))
}

/// Returns the description of a new block for the eviction order: its hash, and its size in
/// smallest blocks.
pub(super) fn arrival(sizes: &BlockSizes, extent: Extent) -> Access {
    let Sectors { start, end } = extent.sectors();
    Access { weight: ((end - start) / sizes.smallest()) as u32, ..Access::new(extent.hash()) }
}

/// A bit for each smallest block of the cache space: fetched ahead and not read yet. Empty where
/// nothing is fetched ahead.
#[derive(Debug)]
struct Ahead {
    bits: Option<Bits>,
    /// Number of sectors of a smallest block.
    unit: u64,
}

impl Ahead {
    /// Creates the bits for `sectors` of cache space.
    fn new(sizes: &BlockSizes, sectors: u64, fetches_ahead: bool) -> Self {
        let unit = sizes.smallest();
        Self { bits: fetches_ahead.then(|| Bits::new(sectors / unit)), unit }
    }

    /// Adds bits until there are some for `sectors` of cache space.
    fn grow(&mut self, sectors: u64) {
        if let Some(bits) = &mut self.bits {
            bits.grow(sectors / self.unit);
        }
    }

    /// Returns whether anything is ever fetched ahead.
    #[inline]
    fn is_used(&self) -> bool {
        self.bits.is_some()
    }

    /// Records whether the smallest blocks that a run of cache sectors touches were fetched ahead.
    #[inline]
    fn set(&mut self, run: Range<u64>, ahead: bool) {
        let units = self.units(run);
        match &mut self.bits {
            Some(bits) if ahead => bits.set(units),
            Some(bits) => bits.clear(units),
            None => {}
        }
    }

    /// Clears the bits of a run of cache sectors. Returns the number of smallest blocks in it that
    /// were fetched ahead and are read for the first time.
    #[inline]
    fn take(&mut self, run: Range<u64>) -> u64 {
        let units = self.units(run);
        let Some(bits) = &mut self.bits else { return 0 };
        let before = bits.ones();
        bits.clear(units);
        before - bits.ones()
    }

    #[inline]
    fn units(&self, run: Range<u64>) -> Range<u64> {
        run.start / self.unit..run.end.div_ceil(self.unit)
    }

    fn memory_bytes(&self) -> u64 {
        self.bits.as_ref().map_or(0, |bits| bits.memory_bytes() as u64)
    }
}

/// A bit for each sector of the cache space, set for valid data, with counts of changes.
#[derive(Debug)]
pub(crate) struct Valid {
    bits: Bits,
    /// Number of sectors of a smallest block, and number of sectors of the cache space.
    unit: u64,
    sectors: u64,
    /// Set where an admission may reject something; only then are changes counted.
    counts: bool,
    /// Number of smallest blocks that held data when counting began.
    at_first: u64,
    inserted: u64,
    removed: u64,
    evicted: u64,
}

impl Valid {
    /// Creates the bits for `sectors`, none valid, with smallest blocks of `unit` sectors.
    fn new(sectors: u64, unit: u64) -> Self {
        let bits = Bits::new(sectors);
        let (inserted, removed, evicted) = (0, 0, 0);
        Self { bits, unit, sectors, counts: false, at_first: 0, inserted, removed, evicted }
    }

    /// Adds bits until there are `sectors`.
    fn grow(&mut self, sectors: u64) {
        self.bits.grow(sectors);
        self.sectors = self.sectors.max(sectors);
    }

    /// Sets whether changes are counted, and resets the counts.
    pub(crate) fn count(&mut self, counts: bool) {
        self.counts = counts;
        self.at_first = self.held(&(0..self.sectors));
        (self.inserted, self.removed, self.evicted) = (0, 0, 0);
    }

    /// Adds the counts to a shard's counters.
    pub(crate) fn add_to(&self, counters: &mut Counters) {
        counters.inserted_blocks += self.inserted;
        counters.removed_blocks += self.removed;
        counters.evicted_blocks += self.evicted;
    }

    /// Returns the number of smallest blocks with data among those that a run touches.
    fn held(&self, run: &Range<u64>) -> u64 {
        let units = run.start / self.unit..run.end.div_ceil(self.unit);
        let of = |unit: u64| unit * self.unit..(unit + 1) * self.unit;
        units.filter(|&unit| self.bits.any(of(unit))).count() as u64
    }

    #[inline]
    fn counted(&mut self, run: Range<u64>, change: impl FnOnce(&mut Bits, Range<u64>)) {
        if !self.counts {
            return change(&mut self.bits, run);
        }
        let before = self.held(&run);
        change(&mut self.bits, run.clone());
        let after = self.held(&run);
        self.inserted += after.saturating_sub(before);
        self.removed += before.saturating_sub(after);
    }

    #[inline]
    fn set(&mut self, run: Range<u64>) {
        self.counted(run, Bits::set);
    }

    #[inline]
    fn clear(&mut self, run: Range<u64>) {
        self.counted(run, Bits::clear);
    }

    /// Sets the valid sectors to exactly those with a bit in `bits`, all of which are valid now.
    fn assign(&mut self, bits: &Bits) {
        self.counted(0..self.sectors, |valid, _| valid.clone_from(bits));
    }

    /// Marks the sectors of an evicted block as invalid.
    fn evict(&mut self, run: Range<u64>) {
        if self.counts {
            self.evicted += self.held(&run);
        }
        self.bits.clear(run);
    }

    #[inline]
    fn bits(&self) -> &Bits {
        &self.bits
    }

    /// Returns the number of valid sectors.
    pub(crate) fn sectors(&self) -> u64 {
        self.bits.ones()
    }

    /// Checks that each change was counted once. Slow.
    fn check(&self) {
        let held = self.held(&(0..self.sectors));
        let gone = self.removed + self.evicted;
        assert!(!self.counts || self.at_first + self.inserted == gone + held, "{held}: {self:?}");
    }
}

#[cfg(test)]
mod ahead_tests {
    use super::*;

    #[test]
    fn a_block_fetched_ahead_counts_once_and_only_if_it_is_read() {
        let sizes = BlockSizes::new(&[4096, 32768]).unwrap();
        let unit = sizes.smallest();
        let mut ahead = Ahead::new(&sizes, 16 * unit, true);
        ahead.set(unit..4 * unit, true);
        ahead.set(3 * unit..4 * unit, false);
        assert_eq!(ahead.take(0..2 * unit + 1), 2, "a part of a block is a read of it");
        assert_eq!(ahead.take(0..16 * unit), 0);
    }

    #[test]
    fn nothing_is_counted_without_fetching_ahead() {
        let mut ahead = Ahead::new(&BlockSizes::new(&[4096]).unwrap(), 64, false);
        ahead.set(0..64, true);
        assert_eq!((ahead.take(0..64), ahead.memory_bytes()), (0, 0));
    }
}

#[cfg(test)]
mod valid_tests {
    use super::*;

    fn counts(valid: &Valid) -> [u64; 3] {
        let mut counters = Counters::default();
        valid.add_to(&mut counters);
        [counters.inserted_blocks, counters.removed_blocks, counters.evicted_blocks]
    }

    #[test]
    fn a_smallest_block_counts_once_however_many_runs_of_it_change() {
        let mut valid = Valid::new(64, 8);
        valid.count(true);
        valid.set(0..3);
        valid.set(5..8);
        assert_eq!(counts(&valid), [1, 0, 0]);
        valid.set(2..12);
        assert_eq!(counts(&valid), [2, 0, 0], "newer data adds nothing");
        valid.clear(0..6);
        assert_eq!(counts(&valid), [2, 0, 0], "a part of it is left");
        valid.clear(6..12);
        assert_eq!(counts(&valid), [2, 2, 0]);
        valid.set(0..20);
        valid.evict(0..16);
        assert_eq!(counts(&valid), [5, 2, 2]);
        valid.check();
        valid.count(true);
        assert_eq!(counts(&valid), [0, 0, 0]);
        valid.assign(&Bits::new(64));
        assert_eq!(counts(&valid), [0, 1, 0], "what was there before is removed as well");
        valid.check();
    }

    #[test]
    fn nothing_is_counted_unless_it_is_wanted() {
        let mut valid = Valid::new(64, 8);
        valid.set(0..8);
        valid.clear(0..8);
        assert_eq!(counts(&valid), [0, 0, 0]);
    }
}
