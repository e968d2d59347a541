//! Smallest blocks that were fetched ahead and not read since.

use std::ops::Range;

use crate::bits::Bits;
use crate::geometry::BlockSizes;

/// A bit for each smallest block of the cache space; none without fetching ahead.
#[derive(Debug)]
pub(super) struct Ahead {
    bits: Option<Bits>,
    /// The sectors of a smallest block.
    unit: u64,
}

impl Ahead {
    /// Of `sectors` of cache space.
    pub(super) fn new(sizes: &BlockSizes, sectors: u64, fetches_ahead: bool) -> Self {
        let unit = sizes.smallest();
        Self { bits: fetches_ahead.then(|| Bits::new(sectors / unit)), unit }
    }

    /// Returns whether anything is ever fetched ahead.
    #[inline]
    pub(super) fn is_used(&self) -> bool {
        self.bits.is_some()
    }

    /// Records whether the smallest blocks that a run of cache sectors touches were fetched ahead.
    #[inline]
    pub(super) fn set(&mut self, run: Range<u64>, ahead: bool) {
        let units = self.units(run);
        match &mut self.bits {
            Some(bits) if ahead => bits.set(units),
            Some(bits) => bits.clear(units),
            None => {}
        }
    }

    /// Returns the number of smallest blocks in a run of cache sectors that were fetched ahead and
    /// are read for the first time.
    #[inline]
    pub(super) fn take(&mut self, run: Range<u64>) -> u64 {
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

    pub(super) fn memory_bytes(&self) -> u64 {
        self.bits.as_ref().map_or(0, |bits| bits.memory_bytes() as u64)
    }
}

#[cfg(test)]
mod tests {
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
