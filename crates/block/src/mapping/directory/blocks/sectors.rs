//! The state of the sectors of blocks: valid or not, dirty or clean, fetched ahead or not.

use super::{Block, Blocks};
use crate::bits::Bits;
use crate::geometry::{Extent, Sectors, VolumeId};

impl Blocks {
    /// Returns the run divided into parts of equal validity.
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

    /// Returns the run divided into parts that are dirty and parts that are not.
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
        self.dirty.insert(self.extents[block.index()], block);
    }

    /// Marks a run as invalid.
    pub(crate) fn set_invalid(&mut self, block: Block, run: &Sectors) {
        let kept = self.cache_sectors(block, run);
        self.valid.clear(kept.clone());
        self.dirty_bits.clear(kept);
        self.forget_if_clean(block);
    }

    /// Marks the clean sectors of a run as invalid. Dirty sectors stay: they are the only copy.
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
    /// read for the first time.
    #[inline]
    pub(crate) fn take_ahead(&mut self, block: Block, run: &Sectors) -> u64 {
        if !self.ahead.is_used() {
            return 0;
        }
        self.ahead.take(self.cache_sectors(block, run))
    }

    #[inline]
    fn forget_if_clean(&mut self, block: Block) {
        if !self.dirty.is_empty() && !self.is_dirty(block) {
            self.dirty.remove(&self.extents[block.index()]);
        }
    }

    /// Returns a volume's blocks with dirty sectors, in backing order.
    pub(crate) fn dirty_blocks(&self, volume: VolumeId) -> impl Iterator<Item = Block> + '_ {
        self.dirty.range(Extent::all_of(volume)).map(|(_, block)| *block)
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
