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

use super::Shard;
use super::clean::CLEANED_AT_ONCE;
use super::task::{Part, Work};
use crate::locks::TaskId;
use crate::order::Order;

/// Most blocks cleaned ahead at once, and their share of all blocks: the blocks evicted in their
/// place were not the coldest.
const AHEAD_AT_ONCE: usize = 32;
const AHEAD_SHARE: usize = 8;

/// The state of the bound and of cleaning ahead.
#[derive(Debug, Default)]
pub(super) struct Dirt {
    /// Sectors that may be dirty below memory.
    most: Option<u64>,
    /// Operations of backing devices that clients wait for.
    awaited: usize,
    /// Blocks that are being cleaned ahead.
    ahead: usize,
}

impl Shard {
    /// Sets how many sectors may be dirty below memory.
    pub(crate) fn limit_dirty(&mut self, sectors: u64) {
        self.dirt.most = Some(sectors);
    }

    /// Returns whether the data of a task's write may stay in the cache only.
    pub(super) fn may_be_dirty(&mut self, id: TaskId) -> bool {
        let Some(most) = self.dirt.most else { return true };
        let range = self.tasks[id as usize].range.clone();
        let len = range.end - range.start;
        if self.directory.dirty_sectors() + len <= most {
            return true;
        }
        // An overwrite of dirty sectors does not increase their number.
        let survey = self.survey(id);
        let runs =
            survey.blocks.iter().flat_map(|(block, run)| self.directory.dirty_runs_in(*block, run));
        let dirty: u64 = runs.map(|run| run.end - run.start).sum();
        self.spare_survey = survey;
        dirty == len
    }

    /// Begins to clean once half of the bound is dirty.
    pub(super) fn clean_in_time(&mut self, orders: &mut Vec<Order>) {
        if self.dirt.most.is_some_and(|most| self.directory.dirty_sectors() > most / 2) {
            self.begin_rounds(orders);
        }
    }

    /// Returns the number of blocks that all rounds together may have under way.
    pub(super) fn cleaned_at_once(&self) -> usize {
        let (Some(most), true) = (self.dirt.most, self.dirt.awaited > 0) else {
            return CLEANED_AT_ONCE;
        };
        let beyond_half = self.directory.dirty_sectors().saturating_sub(most / 2);
        let share = (beyond_half * CLEANED_AT_ONCE as u64)
            .checked_div(most.div_ceil(2))
            .unwrap_or(u64::MAX);
        share.clamp(1, CLEANED_AT_ONCE as u64) as usize
    }

    /// Registers blocks to be cleaned ahead; returns false when that would be too many.
    pub(super) fn clean_ahead(&mut self, blocks: usize) -> bool {
        let most = AHEAD_AT_ONCE.min(self.directory.len() / AHEAD_SHARE);
        let may = self.dirt.ahead + blocks <= most;
        self.dirt.ahead += if may { blocks } else { 0 };
        may
    }

    /// Notes that a block cleaned ahead is clean, or cannot be cleaned.
    pub(super) fn cleaned_ahead(&mut self) {
        self.dirt.ahead -= 1;
    }

    /// Notes that a client begins to wait for a backing device, or no longer does.
    pub(super) fn note_awaited(&mut self, id: TaskId, part: Part, begins: bool) {
        let on_backing =
            matches!(part, Part::Uncached | Part::Shed | Part::Fetch | Part::Around | Part::Whole);
        if on_backing && matches!(self.tasks[id as usize].work, Work::Piece(_)) {
            self.dirt.awaited = if begins { self.dirt.awaited + 1 } else { self.dirt.awaited - 1 };
        }
    }
}
