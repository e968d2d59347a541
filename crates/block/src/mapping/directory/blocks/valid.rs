//! Valid sectors, and a count of the smallest blocks that come to hold data and cease to.
//!
//! A smallest block *holds data* while any of its sectors is valid. Each change of that counts
//! once, however many runs of it change one after the other, so that those inserted are those
//! removed, those evicted, and those that hold data. Newer data of a smallest block that holds some
//! changes nothing. In a persistent cache it may: the log records first that the older copy is
//! gone.

use std::ops::Range;

use crate::bits::Bits;
use crate::stats::Counters;

/// A bit for each sector of the cache space.
#[derive(Debug)]
pub(crate) struct Valid {
    bits: Bits,
    /// The sectors of a smallest block, and of the cache space.
    unit: u64,
    sectors: u64,
    /// Set where an admission may reject something.
    counts: bool,
    /// Smallest blocks that held data when counting began.
    at_first: u64,
    inserted: u64,
    removed: u64,
    evicted: u64,
}

impl Valid {
    /// Returns none of `sectors`, with smallest blocks of `unit` sectors.
    pub(super) fn new(sectors: u64, unit: u64) -> Self {
        let bits = Bits::new(sectors);
        let (inserted, removed, evicted) = (0, 0, 0);
        Self { bits, unit, sectors, counts: false, at_first: 0, inserted, removed, evicted }
    }

    /// Counts from now on, or not.
    pub(crate) fn count(&mut self, counts: bool) {
        self.counts = counts;
        self.at_first = self.held(&(0..self.sectors));
        (self.inserted, self.removed, self.evicted) = (0, 0, 0);
    }

    /// Adds the counts to those of a shard.
    pub(crate) fn add_to(&self, counters: &mut Counters) {
        counters.inserted_blocks += self.inserted;
        counters.removed_blocks += self.removed;
        counters.evicted_blocks += self.evicted;
    }

    /// Returns the number of smallest blocks which a run touches that hold data.
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
    pub(super) fn set(&mut self, run: Range<u64>) {
        self.counted(run, Bits::set);
    }

    #[inline]
    pub(super) fn clear(&mut self, run: Range<u64>) {
        self.counted(run, Bits::clear);
    }

    /// Marks exactly the sectors with a bit, all of them valid, as valid.
    pub(super) fn assign(&mut self, bits: &Bits) {
        self.counted(0..self.sectors, |valid, _| valid.clone_from(bits));
    }

    /// Marks the sectors of an evicted block as invalid.
    pub(super) fn evict(&mut self, run: Range<u64>) {
        if self.counts {
            self.evicted += self.held(&run);
        }
        self.bits.clear(run);
    }

    #[inline]
    pub(super) fn bits(&self) -> &Bits {
        &self.bits
    }

    /// Returns the number of valid sectors.
    pub(crate) fn sectors(&self) -> u64 {
        self.bits.ones()
    }

    /// Checks that each change was counted once. Slow.
    pub(super) fn check(&self) {
        let held = self.held(&(0..self.sectors));
        let gone = self.removed + self.evicted;
        assert!(!self.counts || self.at_first + self.inserted == gone + held, "{held}: {self:?}");
    }
}

#[cfg(test)]
mod tests {
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
