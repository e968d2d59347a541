//! How much may be dirty, and how hard it is brought down.
//!
//! Beyond the bound a write goes through to the backing device, so its client is held to that
//! device's pace. (Writes to the cache that are under way do not count yet.) From half of it on
//! rounds of cleaning begin by themselves. A round yields to clients that wait for the backing
//! devices: while there are any, it has the fewer blocks under way the further the bound is; with
//! nobody waiting, or somebody waiting for the round, it has as many as ever.
//!
//! Rounds go through a volume in its order and know nothing of who leaves next: under LRU that was
//! cleaned long before, under other policies it may have been written just now. So who is found
//! dirty when it is to leave is cleaned *ahead*, and whoever is next and clean leaves in its place.
//! Only if too many are being cleaned that way does anybody wait.

use super::Shard;
use super::clean::CLEANED_AT_ONCE;
use super::task::{Part, Work};
use crate::locks::TaskId;
use crate::order::Order;

/// Blocks cleaned ahead at once, and the share of all blocks that they may be: who leaves in their
/// place was not to leave yet.
const AHEAD_AT_ONCE: usize = 32;
const AHEAD_SHARE: usize = 8;

/// What is known of it.
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

    /// Whether what a task writes may stay in the cache only.
    pub(super) fn may_be_dirty(&mut self, id: TaskId) -> bool {
        let Some(most) = self.dirt.most else { return true };
        let range = self.tasks[id as usize].range.clone();
        let len = range.end - range.start;
        if self.directory.dirty_sectors() + len <= most {
            return true;
        }
        // What is dirty already makes it no more.
        let survey = self.survey(id);
        let runs =
            survey.blocks.iter().flat_map(|(block, run)| self.directory.dirty_runs_in(*block, run));
        let dirty: u64 = runs.map(|run| run.end - run.start).sum();
        self.spare_survey = survey;
        dirty == len
    }

    /// Begins to clean once there is half of what may be dirty.
    pub(super) fn clean_in_time(&mut self, orders: &mut Vec<Order>) {
        if self.dirt.most.is_some_and(|most| self.directory.dirty_sectors() > most / 2) {
            self.begin_rounds(orders);
        }
    }

    /// How many blocks the rounds may have under way together.
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

    /// Counts so many blocks as cleaned ahead from now on; false where that would be too many.
    pub(super) fn clean_ahead(&mut self, blocks: usize) -> bool {
        let most = AHEAD_AT_ONCE.min(self.directory.len() / AHEAD_SHARE);
        let may = self.dirt.ahead + blocks <= most;
        self.dirt.ahead += if may { blocks } else { 0 };
        may
    }

    /// One of them is clean, or cannot be cleaned.
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
