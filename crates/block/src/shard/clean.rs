//! Cleaning: writes dirty blocks to the backing device, one by one, in rounds (`rounds`), to make
//! room, or ahead of eviction. While a block is being cleaned it can be read but not written.
//!
//! Where cleaning is paced, blocks wait for their turn, unless something waits for them. The pacers
//! of the part ([`crate::tier`]) give turns to the shards by urgency.

use super::parts::Parts;
use crate::geometry::{Place, Sectors, VolumeId};
use crate::locks::{Need, TaskId};
use crate::mapping::beyond_half;
use crate::mapping::directory::Block;
use crate::tasks::{Because, Part, TaskStep, Work};

/// A task that cleans a block.
pub(super) struct Cleaning<'a> {
    parts: &'a mut Parts,
    id: TaskId,
}

impl<'a> Cleaning<'a> {
    pub(super) fn of(parts: &'a mut Parts, id: TaskId) -> Self {
        Self { parts, id }
    }

    /// Starts a task that cleans the block at sector `start`.
    pub(super) fn begin(parts: &mut Parts, volume: VolumeId, start: u64, because: Because) {
        parts.dirt.begin_cleaning(volume);
        let work = Work::Clean { block_start: start, because, moves: true };
        let id = parts.tasks.begin(work, volume, start..start + 1);
        Cleaning::of(parts, id).start();
    }

    /// Returns the block to clean, if it still exists and is dirty.
    fn block(&self) -> Option<(Block, Sectors)> {
        let task = &self.parts.tasks[self.id];
        let Work::Clean { block_start, .. } = task.work else {
            unreachable!("pieces are not cleaned")
        };
        let directory = &self.parts.map.directory;
        let block = directory.blocks.find(task.volume, block_start)?;
        let sectors = directory.blocks.sectors(block);
        (sectors.start == block_start && directory.blocks.is_dirty(block))
            .then_some((block, sectors))
    }

    /// Returns the block to clean with its dirty runs. Returns `None` if the task has ended:
    /// another task may have cleaned the block, to make room, or all that is dirty is lost.
    fn dirty_runs(&mut self) -> Option<(Block, Vec<Sectors>)> {
        let Some((block, sectors)) = self.block() else {
            self.parts.finish(self.id);
            return None;
        };
        let runs = self.parts.map.dirty_there(block, &sectors);
        if runs.is_empty() {
            self.parts.fail(self.id);
            return None;
        }
        Some((block, runs))
    }

    /// Starts to clean: locks the block, and waits until the log has no clean copy of it.
    pub(super) fn start(&mut self) {
        let Some((_, sectors)) = self.block() else { return self.parts.finish(self.id) };
        let (parts, id) = (&mut *self.parts, self.id);
        parts.tasks[id].range = sectors.clone();
        if !parts.tasks.lock(id, Need::shared(sectors.clone())) {
            return;
        }
        if parts.logging.has_gone(parts.tasks.region_of(id)) {
            parts.tasks[id].step = TaskStep::Unlogging;
            return parts.await_commit(id, Part::Noted, &sectors);
        }
        self.read();
    }

    /// Continues once the log has no clean copy of the block.
    pub(super) fn unlogged(&mut self) {
        self.parts.has_failed_with_log(self.id); // then its clean copies are void
        match self.parts.tasks[self.id].fault {
            Some(_) => self.parts.finish(self.id),
            None => self.read(),
        }
    }

    /// Orders reads of the dirty runs.
    fn read(&mut self) {
        let Some((block, runs)) = self.dirty_runs() else { return };
        let (parts, id) = (&mut *self.parts, self.id);
        let hull = runs[0].start..runs[runs.len() - 1].end;
        let data = parts.tasks.new_buffer(id, &hull, &mut parts.orders);
        parts.tasks[id].store.data = data;
        parts.tasks[id].step = TaskStep::CleanRead;
        for run in runs {
            parts.read_cache(id, block, &run, data.span(&run));
        }
    }

    /// Begins to write the dirty runs that were read.
    pub(super) fn read_ended(&mut self) {
        if self.parts.tasks[self.id].fault.is_some() {
            self.parts.counters.cache_errors += 1;
            let work = &self.parts.tasks[self.id].work;
            let leaves = matches!(work, Work::Clean { because: Because::Leaving, .. });
            self.parts.leaving.is_unreadable |= leaves;
            return self.parts.finish(self.id);
        }
        let Some((block, runs)) = self.dirty_runs() else { return };
        self.write(block, runs);
    }

    /// Writes the first of these runs: as many as may be under way at once.
    fn write(&mut self, block: Block, runs: Vec<Sectors>) {
        let (parts, id) = (&mut *self.parts, self.id);
        let most = runs_at_once(parts, id);
        parts.tasks[id].step = TaskStep::CleanWrite;
        for run in runs.into_iter().take(most) {
            parts.tasks[id].store.cursor = run.end;
            parts.write_backing(id, Part::Dirty(block), &run, false);
        }
    }

    /// Returns the block with the dirty runs that were not written yet; `None` if there are none.
    fn runs_left(&self) -> Option<(Block, Vec<Sectors>)> {
        let (block, sectors) = self.block()?;
        let left = self.parts.tasks[self.id].store.cursor.max(sectors.start)..sectors.end;
        let runs =
            if left.is_empty() { Vec::new() } else { self.parts.map.dirty_there(block, &left) };
        (!runs.is_empty()).then_some((block, runs))
    }

    /// Ends the write of dirty data to the backing device. In a persistent cache that write has to
    /// be durable before the log may call the data clean.
    pub(super) fn write_ended(&mut self) {
        if self.parts.tasks[self.id].fault.is_none()
            && let Some((block, runs)) = self.runs_left()
        {
            return self.write(block, runs);
        }
        let (parts, id) = (&mut *self.parts, self.id);
        if parts.tasks[id].fault.is_some() || !parts.logging.is_kept() {
            return parts.finish(id);
        }
        // what is left to wait for is no work of the device for this block
        if let Work::Clean { moves, .. } = &mut parts.tasks[id].work {
            *moves = false;
        }
        parts.dirt.end_cleaning(parts.tasks[id].volume);
        if planted!(CleanBeforeFlush) {
            return self.settled();
        }
        parts.tasks[id].step = TaskStep::Settling;
        parts.await_settlement(id);
    }

    /// Continues once the backing device durably has the data: the log may now call it clean.
    pub(super) fn settled(&mut self) {
        match self.parts.tasks[self.id].fault {
            Some(_) => self.parts.finish(self.id),
            None => self.parts.displace_dirty(self.id),
        }
    }

    /// Marks the block clean after the log has recorded it, or cannot record it any more.
    pub(super) fn noted(&mut self) {
        let without_log = self.parts.has_failed_with_log(self.id);
        if self.parts.tasks[self.id].fault.is_some() {
            return self.parts.finish(self.id);
        }
        let Some((block, _)) = self.block() else { return self.parts.finish(self.id) };
        let (parts, id) = (&mut *self.parts, self.id);
        for run in parts.map.dirty_of(block) {
            parts.logging.forget_seals(&parts.map.directory, block, &run);
            parts.map.directory.blocks.set_clean(block, &run);
            if without_log {
                parts.logging.bypass.brought_down(parts.tasks[id].volume, &run);
            }
        }
        match parts.map.directory.blocks.is_dirty(block) {
            true => parts.fail(id), // the rest is lost, and in the way
            false => parts.finish(id),
        }
    }
}

/// Urgency of a round that has not ended when the next one is due: dirty data becomes clean at
/// last, however busy the volume is.
const OVERDUE: f64 = 1.0 / 16.0;

/// Urgency where no victim is clean: cleaning takes what clients leave of the backing device.
const SCARCE: f64 = 0.5;

/// Returns whether blocks wait for their turn to be cleaned. They do not where the log cannot be
/// written, as writes wait for cleaning then.
#[inline]
pub(super) fn is_paced(parts: &Parts) -> bool {
    parts.dirt.is_paced() && !parts.logging.bypass.is_bypassed()
}

/// Returns the number of a block's dirty runs that may be written at once: all if something waits
/// for them, or nothing paces cleaning.
fn runs_at_once(parts: &Parts, id: TaskId) -> usize {
    let task = &parts.tasks[id];
    let waits = match task.work {
        Work::Clean { because: Because::Round, .. } => parts.rounds.is_awaited(task.volume),
        Work::Clean { because, .. } => because != Because::Ahead,
        _ => true,
    };
    // with shares, what is cleaned ahead stands in the way of a new block
    let waits = waits || parts.map.directory.blocks.shares.are_set();
    let is_narrow = is_paced(parts) && !waits && !parts.tasks.keeps_waiting(id);
    if is_narrow { parts.dirt.width() } else { usize::MAX }
}

/// Has these dirty victims cleaned next: see [`Dirt::want`](crate::mapping::Dirt::want). A lost
/// sector stays dirty whatever is cleaned, so its block is not wanted.
pub(super) fn want(
    parts: &mut Parts,
    scarcity: f64,
    victims: impl Iterator<Item = Block>,
    anew: bool,
) {
    let Parts { map, tasks, dirt, .. } = parts;
    let places = victims.filter_map(|block| {
        let (volume, sectors) =
            (map.directory.blocks.volume(block), map.directory.blocks.sectors(block));
        let may_clean = !map.lost.has_any(volume, &sectors) && !tasks.in_use(volume, &sectors);
        may_clean.then(|| Place::new(volume, sectors.start))
    });
    dirt.want(scarcity, places, anew);
}

/// Begins to clean the next wanted block of a volume; returns false if there is none.
pub(super) fn clean_wanted(parts: &mut Parts, volume: VolumeId) -> bool {
    while let Some(start) = parts.dirt.next_wanted(volume) {
        let blocks = &parts.map.directory.blocks;
        let is_there = |block: &Block| blocks.sectors(*block).start == start;
        let Some(block) = blocks.find(volume, start).filter(is_there) else { continue };
        if blocks.is_dirty(block) && !parts.tasks.in_use(volume, &blocks.sectors(block)) {
            parts.dirt.begin_wanted();
            Cleaning::begin(parts, volume, start, Because::Ahead);
            return true;
        }
    }
    false
}

/// Returns the volumes with blocks that wait for their turn to be cleaned; a volume may come
/// several times.
pub(crate) fn waiting_for_turns(parts: &Parts) -> impl Iterator<Item = VolumeId> {
    let volumes = parts.dirt.wanted_volumes().chain(parts.rounds.waiting_for_turns());
    volumes.filter(|_| is_paced(parts))
}

/// Returns the urgency of cleaning, from 0 to 1: how close the dirty data is to its limit, from
/// half of it on, how many of all blocks are dirty, from half of them on, or how scarce clean
/// victims are. A block with a single dirty sector stands in the way of new blocks like any other.
pub(crate) fn urgency(parts: &Parts) -> f64 {
    let directory = &parts.map.directory;
    let by_limit = parts.dirt.urgency(directory.blocks.dirty_sectors());
    let by_blocks = match directory.is_full() {
        true => beyond_half(directory.blocks.dirty.count(), directory.len() as u64),
        false => 0.0,
    };
    let by_age = if parts.rounds.is_overdue() { OVERDUE } else { 0.0 };
    by_limit.max(by_blocks).max(SCARCE * parts.dirt.scarcity()).max(by_age)
}
