//! Reads that are served from the buffer of another task, while that is being stored.

use super::parts::Parts;
use super::read::Reading;
use crate::engine::Step;
use crate::engine::locks::TaskId;
use crate::geometry::Sectors;
use crate::mapping::directory::Block;

impl Reading<'_> {
    /// Serves the reads that wait for a task from its buffer, if it covers them and is being stored
    /// in the cache.
    pub(super) fn serve_waiting(&mut self) {
        let holder = self.id;
        if self.parts.tasks[holder].step == Step::Done {
            return;
        }
        let waiting = self.parts.tasks.waiting(holder);
        for &id in &waiting {
            let mut reader = Reading::of(self.parts, id);
            if reader.parts.tasks[id].reads() && reader.is_in(holder) {
                reader.serve_from(holder, false);
            }
        }
        self.parts.tasks.reuse(waiting);
    }

    /// Returns whether another task's buffer covers the range. Data of an unanswered write does not
    /// count: clients must not see it yet.
    #[inline]
    pub(super) fn is_in(&self, holder: TaskId) -> bool {
        let range = &self.parts.tasks[self.id].range;
        let task = &self.parts.tasks[holder];
        matches!(task.step, Step::Storing | Step::Room)
            && !task.store.dirty
            && task.store.run.start <= range.start
            && range.end <= task.store.run.end
            // it may have fetched what is older
            && !self.parts.map.held.has_any(task.volume, range)
            // a fetch may have more sectors than its reader wanted, and lost ones among them
            && !self.parts.is_lost(self.id)
    }

    /// Answers the read from another task's buffer.
    pub(super) fn serve_from(&mut self, holder: TaskId, hit: bool) {
        let (parts, id) = (&mut *self.parts, self.id);
        let from = parts.tasks[holder].store.data;
        parts.counters.joined_reads += 1;
        parts.note_read_hit(id);
        let task = &mut parts.tasks[id];
        (task.hit, task.step) = (hit, Step::Reading);
        let range = task.range.clone();
        if let Some(to) = task.destination() {
            parts.note_used_early(holder, &range);
            parts.copy(from, to, &range);
        }
        parts.finish(id);
    }
}

impl Parts {
    /// Counts a client's first read of a run that was fetched ahead.
    pub(super) fn note_used(&mut self, block: Block, run: &Sectors) {
        self.counters.prefetched_used_blocks += self.map.directory.blocks.take_ahead(block, run);
    }

    /// Counts a client's read of a run that a fetch is still putting into the cache.
    fn note_used_early(&mut self, holder: TaskId, run: &Sectors) {
        if !self.tasks[holder].is_ahead() {
            return;
        }
        let (volume, mut start) = (self.tasks[holder].volume, run.start);
        while start < run.end {
            let Some(block) = self.map.directory.blocks.find(volume, start) else { return };
            let end = self.map.directory.blocks.sectors(block).end.min(run.end);
            self.note_used(block, &(start..end));
            start = end;
        }
    }
}
