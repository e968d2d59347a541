//! Seals: checksums of dirty data in a persistent cache.
//!
//! A commit *seals* all data that has been stored as dirty since the one before: it notes the data
//! with its checksums. The flush before the log is written covers the data. From then on the log
//! states the content of that place. Before other data is written there, the log must durably
//! permit it (*unsealing*): otherwise a crash in between would leave a log that calls good data
//! lost. Data that is not sealed yet may be overwritten at once, any number of times.
//!
//! For each sector of the shard's space the log has, or will have, one of three states: not dirty,
//! dirty and *open*, or dirty and *sealed*. A *due* sector has been stored and waits for the next
//! commit.

use crate::bits::Bits;
use crate::geometry::Sectors;
use crate::mapping::directory::Block;
use crate::store::journal::Standing;

/// The log's statements on dirty data, by sector of the shard's space.
#[derive(Debug)]
pub(crate) struct Seals {
    open: Bits,
    sealed: Bits,
    due: Bits,
    /// Blocks with due sectors, some of them more than once.
    blocks: Vec<Block>,
}

impl Seals {
    /// Creates the seals of a shard of so many sectors.
    pub(crate) fn new(sectors: u64) -> Self {
        let [open, sealed, due] = [(); 3].map(|()| Bits::new(sectors));
        Self { open, sealed, due, blocks: Vec::new() }
    }

    /// Records the state of a run of places that the log has, or is about to have. A sealed run
    /// that is noted as no longer dirty stays sealed until that is durable and it is
    /// [forgotten](Self::forget): a checkpoint taken before must include the checksum.
    pub(crate) fn note(&mut self, kept: Sectors, standing: Standing) {
        let is_sealed = standing == Standing::Sealed;
        set(&mut self.open, kept.clone(), standing.is_dirty() && !is_sealed);
        set(&mut self.due, kept.clone(), false);
        if standing.is_dirty() {
            set(&mut self.sealed, kept, is_sealed);
        }
    }

    /// Records that nothing in a run of places is dirty any more.
    pub(crate) fn forget(&mut self, kept: Sectors) {
        for bits in [&mut self.open, &mut self.sealed, &mut self.due] {
            set(bits, kept.clone(), false);
        }
    }

    /// Registers places of a block for sealing by the next commit.
    #[inline]
    pub(crate) fn seal_later(&mut self, block: Block, kept: Sectors) {
        self.due.set(kept);
        if self.blocks.last() != Some(&block) {
            self.blocks.push(block);
        }
    }

    /// Prepares an overwrite of places, none of which is sealed. Returns the parts whose data must
    /// be noted now, perhaps that of an answered write: from now on a commit cannot seal it.
    #[inline]
    pub(crate) fn overwrite(&mut self, kept: Sectors) -> Vec<Sectors> {
        if self.due.ones() == 0 || !self.due.any(kept.clone()) {
            return Vec::new();
        }
        let due = ones(&self.due, kept.clone()).filter(|run| !self.open.all(run.clone())).collect();
        self.due.clear(kept);
        due
    }

    /// Takes the blocks that may have due places; [`Seals::reuse`] takes the vector back.
    pub(crate) fn take_blocks(&mut self) -> Vec<Block> {
        std::mem::take(&mut self.blocks)
    }

    /// Reuses the memory of an empty vector.
    pub(crate) fn reuse(&mut self, blocks: Vec<Block>) {
        debug_assert!(blocks.is_empty() && self.blocks.is_empty());
        self.blocks = blocks;
    }

    /// Returns whether some place is due.
    #[inline]
    pub(crate) fn has_due(&self) -> bool {
        self.due.ones() > 0
    }

    /// Returns the due parts of some places.
    pub(crate) fn due(&self, kept: Sectors) -> Vec<Sectors> {
        ones(&self.due, kept).collect()
    }

    /// Returns whether some of these places are sealed.
    #[inline]
    pub(crate) fn has_sealed(&self, kept: impl FnOnce() -> Sectors) -> bool {
        self.sealed.ones() > 0 && self.sealed.any(kept())
    }

    /// Divides places into parts with a checksum in the log and parts without.
    pub(crate) fn by_seal(&self, kept: Sectors) -> impl Iterator<Item = (Sectors, bool)> {
        self.sealed.runs(kept)
    }

    /// Returns the bytes of memory held.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let Self { open, sealed, due, .. } = self;
        [open, sealed, due].map(|bits| bits.memory_bytes() as u64).iter().sum()
    }
}

fn set(bits: &mut Bits, range: Sectors, value: bool) {
    if value {
        bits.set(range);
    } else if bits.ones() > 0 {
        bits.clear(range);
    }
}

/// Returns the parts of a range whose bits are set.
fn ones(bits: &Bits, range: Sectors) -> impl Iterator<Item = Sectors> {
    bits.runs(range).filter_map(|(run, bit)| bit.then_some(run))
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    const BLOCK: Block = floe_policy::Slot(7);

    fn sealed(seals: &Seals) -> Vec<Sectors> {
        seals.by_seal(0..64).filter_map(|(run, sealed)| sealed.then_some(run)).collect()
    }

    #[test]
    fn the_next_commit_seals_what_was_stored() {
        let mut seals = Seals::new(64);
        seals.seal_later(BLOCK, 8..16);
        seals.seal_later(BLOCK, 20..24);
        let mut blocks = seals.take_blocks();
        assert_eq!((&blocks[..], seals.has_due()), (&[BLOCK][..], true));
        for run in seals.due(0..64) {
            seals.note(run, Standing::Sealed);
        }
        blocks.clear();
        seals.reuse(blocks);
        assert_eq!((sealed(&seals), seals.has_due()), (vec![8..16, 20..24], false));
    }

    #[test]
    fn data_that_is_overwritten_before_its_seal_is_noted_once() {
        let mut seals = Seals::new(64);
        seals.seal_later(BLOCK, 8..16);
        assert_eq!(seals.overwrite(0..8), []);
        assert_eq!(seals.overwrite(12..20), slice::from_ref(&(12..16)));
        seals.note(12..16, Standing::Dirty);
        seals.seal_later(BLOCK, 12..16);
        assert_eq!(seals.overwrite(12..16), [], "the log calls it dirty already");
        assert_eq!(seals.due(0..64), slice::from_ref(&(8..12)));
    }

    #[test]
    fn a_seal_stays_until_the_data_is_durably_clean() {
        let mut seals = Seals::new(64);
        seals.note(8..16, Standing::Sealed);
        seals.note(8..16, Standing::Clean);
        assert_eq!(sealed(&seals), slice::from_ref(&(8..16)));
        seals.forget(8..12);
        assert!(seals.has_sealed(|| 10..13) && !seals.has_sealed(|| 8..12));
        seals.note(12..16, Standing::Dirty);
        assert!(!seals.has_sealed(|| 0..64));
    }
}
