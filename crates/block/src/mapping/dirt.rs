//! The bound on dirty data, and the rate of cleaning.
//!
//! Beyond the bound a write goes through to the backing device, so its client is held to that
//! device's pace. (Writes to the cache that are under way do not count yet.) From half of the bound
//! on, rounds of cleaning begin by themselves. A round yields to clients that wait for the backing
//! devices: the further the bound is, the fewer blocks it then has under way. Without waiting
//! clients, or when a drain waits for the round, it runs at full width.
//!
//! Rounds go through a volume in backing order, which is not the order of eviction. Under LRU the
//! next victim was cleaned long before; under other policies it may have been written just now. So
//! a victim that is found dirty is cleaned *ahead*, and the next clean candidate for eviction is
//! taken in its place. A task waits only when too many blocks are being cleaned ahead.

/// Blocks cleaned at once by all rounds together, though each has at least one.
pub(crate) const CLEANED_AT_ONCE: usize = 32;

/// Most blocks cleaned ahead at once, and their share of all blocks: the blocks evicted in their
/// place were not the coldest.
const AHEAD_AT_ONCE: usize = 32;
const AHEAD_SHARE: usize = 8;

/// The bound on a shard's dirty sectors, and the blocks that are cleaned ahead.
#[derive(Debug, Default)]
pub(crate) struct Dirt {
    /// Sectors that may be dirty below memory.
    most: Option<u64>,
    /// Blocks that are being cleaned ahead.
    ahead: usize,
}

impl Dirt {
    /// Sets how many sectors may be dirty below memory.
    pub(crate) fn limit(&mut self, sectors: u64) {
        self.most = Some(sectors);
    }

    /// Returns whether so many dirty sectors are within the bound.
    #[inline]
    pub(crate) fn allows(&self, dirty: u64) -> bool {
        self.most.is_none_or(|most| dirty <= most)
    }

    /// Returns whether cleaning is to begin with so many dirty sectors.
    #[inline]
    pub(crate) fn is_time_to_clean(&self, dirty: u64) -> bool {
        self.most.is_some_and(|most| dirty > most / 2)
    }

    /// Returns the number of blocks that all rounds together may have under way, with so many dirty
    /// sectors; `yields` says that clients wait for a backing device.
    #[inline]
    pub(crate) fn cleaned_at_once(&self, dirty: u64, yields: bool) -> usize {
        let (Some(most), true) = (self.most, yields) else { return CLEANED_AT_ONCE };
        let beyond_half = dirty.saturating_sub(most / 2);
        let share = (beyond_half * CLEANED_AT_ONCE as u64)
            .checked_div(most.div_ceil(2))
            .unwrap_or(u64::MAX);
        share.clamp(1, CLEANED_AT_ONCE as u64) as usize
    }

    /// Registers some of `all` blocks to be cleaned ahead; returns false when that would be too
    /// many.
    pub(crate) fn clean_ahead(&mut self, blocks: usize, all: usize) -> bool {
        let may = self.ahead + blocks <= AHEAD_AT_ONCE.min(all / AHEAD_SHARE);
        self.ahead += if may { blocks } else { 0 };
        may
    }

    /// Notes that a block cleaned ahead is clean, or cannot be cleaned.
    pub(crate) fn cleaned_ahead(&mut self) {
        self.ahead -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleaning_begins_at_half_of_the_bound_and_nothing_is_dirty_beyond_it() {
        let mut dirt = Dirt::default();
        assert!(dirt.allows(u64::MAX) && !dirt.is_time_to_clean(u64::MAX), "there is no bound");
        dirt.limit(100);
        assert!(dirt.allows(100) && !dirt.allows(101));
        assert!(!dirt.is_time_to_clean(50) && dirt.is_time_to_clean(51));
    }

    #[test]
    fn a_round_yields_to_clients_the_more_the_further_the_bound_is() {
        let mut dirt = Dirt::default();
        dirt.limit(100);
        assert_eq!(dirt.cleaned_at_once(60, false), CLEANED_AT_ONCE, "no client waits");
        let widths = [0, 50, 75, 100, 1000].map(|dirty| dirt.cleaned_at_once(dirty, true));
        assert_eq!(widths, [1, 1, CLEANED_AT_ONCE / 2, CLEANED_AT_ONCE, CLEANED_AT_ONCE]);
    }

    #[test]
    fn an_eighth_of_the_blocks_may_be_cleaned_ahead() {
        let mut dirt = Dirt::default();
        assert!(dirt.clean_ahead(2, 16) && !dirt.clean_ahead(1, 16));
        dirt.cleaned_ahead();
        assert!(dirt.clean_ahead(1, 16) && !dirt.clean_ahead(1, 23));
        assert!(dirt.clean_ahead(30, 1 << 20) && !dirt.clean_ahead(1, 1 << 20));
    }
}
