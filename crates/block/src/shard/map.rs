//! The map of data that the backing device lacks, for a client that asks which sectors are
//! allocated.
//!
//! Unflushed and lost sectors are included: they are not holes. No lock is needed. A write's
//! sectors are dirty, or on the backing device, before it is answered. Data being cleaned is dirty
//! until the backing device has it.

use super::parts::Parts;
use crate::engine::locks::TaskId;
use crate::geometry::Sectors;
use crate::order::{Order, Span};

impl Parts {
    /// Marks a sub-request's dirty sectors in its request's buffer, a byte each, and ends it.
    pub(super) fn mark_dirty(&mut self, id: TaskId) {
        let task = &self.tasks[id];
        let (volume, sectors, at) = (task.volume, task.range.clone(), task.request_data());
        let mark = |run: Sectors| {
            let offset = at.offset + (run.start - at.sector);
            Order::Mark { span: Span { buffer: at.buffer, offset, len: run.end - run.start } }
        };
        if self.map.directory.blocks.dirty_sectors() > 0 {
            let survey = self.survey(id);
            for (block, run) in &survey.blocks {
                self.orders.extend(self.map.directory.blocks.dirty_runs_in(*block, run).map(mark));
            }
            self.map.reuse(survey);
        }
        self.orders.extend(self.map.held.runs(volume, &sectors).into_iter().map(mark));
        self.orders.extend(self.map.lost.of(volume, &sectors).map(|lost| mark(lost..lost + 1)));
        self.finish(id);
    }
}
