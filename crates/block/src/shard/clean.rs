//! Cleaning: writes dirty blocks to the backing device, one by one, in rounds (`rounds`), to make
//! room, or ahead of eviction. While a block is being cleaned it can be read but not written.

use super::parts::Parts;
use crate::geometry::{Sectors, VolumeId};
use crate::locks::{Need, TaskId};
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
        let work = Work::Clean { block_start: start, because };
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

    /// Writes the dirty runs that were read.
    pub(super) fn read_ended(&mut self) {
        if self.parts.tasks[self.id].fault.is_some() {
            self.parts.counters.cache_errors += 1;
            return self.parts.finish(self.id);
        }
        let Some((block, runs)) = self.dirty_runs() else { return };
        let (parts, id) = (&mut *self.parts, self.id);
        parts.tasks[id].step = TaskStep::CleanWrite;
        for run in runs {
            parts.counters.cleaned_bytes += parts.tasks[id].store.data.span(&run).len;
            parts.write_backing(id, Part::Dirty(block), &run, false);
        }
    }

    /// Ends the write of dirty data to the backing device. In a persistent cache that write has to
    /// be durable before the log may call the data clean.
    pub(super) fn write_ended(&mut self) {
        let (parts, id) = (&mut *self.parts, self.id);
        if parts.tasks[id].fault.is_some() || !parts.logging.is_kept() {
            return parts.finish(id);
        }
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
