//! The map of data that the backing device lacks, for a client that asks which sectors are
//! allocated.
//!
//! Unflushed and lost sectors are included: they are not holes. No lock is needed. A write's
//! sectors are dirty, or on the backing device, before it is answered. Data being cleaned is dirty
//! until the backing device has it.

use super::Shard;
use crate::engine::Work;
use crate::engine::locks::TaskId;
use crate::engine::piece::Piece;
use crate::geometry::Sectors;
use crate::order::{BufferId, Order, Span};

impl Shard {
    /// Marks a sub-request's dirty sectors in its request's buffer, a byte each, and ends it.
    pub(super) fn mark_dirty(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let Work::Piece(Piece { request, volume, buffer_offset, sectors, .. }) =
            self.tasks[id].work.clone()
        else {
            unreachable!("only pieces are mapped")
        };
        let mark = |run: Sectors| {
            let offset = buffer_offset + (run.start - sectors.start);
            Order::Mark {
                span: Span { buffer: BufferId::Request(request), offset, len: run.end - run.start },
            }
        };
        if self.directory.dirty_sectors() > 0 {
            let survey = self.survey(id);
            for (block, run) in &survey.blocks {
                orders.extend(self.directory.dirty_runs_in(*block, run).map(mark));
            }
            self.spare_survey = survey;
        }
        orders.extend(self.held.runs(volume, &sectors).into_iter().map(mark));
        orders.extend(self.lost.of(volume, &sectors).map(|lost| mark(lost..lost + 1)));
        self.finish(id, orders);
    }
}
