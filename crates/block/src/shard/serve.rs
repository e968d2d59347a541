//! Reads that are served from the buffer of another task, while that is being stored.

use super::Shard;
use crate::engine::locks::TaskId;
use crate::engine::{Data, Step};
use crate::geometry::Sectors;
use crate::order::Order;

impl Shard {
    /// Serves the reads that wait for a task from its buffer, if it covers them and is being stored
    /// in the cache.
    pub(super) fn serve_waiting(&mut self, holder: TaskId, orders: &mut Vec<Order>) {
        if self.tasks[holder].step == Step::Done {
            return;
        }
        let waiting = self.tasks.waiting(holder);
        for &id in &waiting {
            if self.tasks[id].reads() && self.has_all(holder, id) {
                self.serve_from(holder, id, false, orders);
            }
        }
        self.tasks.reuse(waiting);
    }

    /// Returns whether a task's buffer covers a waiting read. Data of an unanswered write does not
    /// count: clients must not see it yet.
    #[inline]
    pub(super) fn has_all(&self, holder: TaskId, id: TaskId) -> bool {
        let range = &self.tasks[id].range;
        let task = &self.tasks[holder];
        matches!(task.step, Step::Storing | Step::Room)
            && !task.store.dirty
            && task.store.run.start <= range.start
            && range.end <= task.store.run.end
            && !self.held.has_any(task.volume, range) // it may have fetched what is older
            // a fetch may have more sectors than its reader wanted, and lost ones among them
            && !self.is_lost(id)
    }

    pub(super) fn serve_from(
        &mut self,
        holder: TaskId,
        id: TaskId,
        hit: bool,
        orders: &mut Vec<Order>,
    ) {
        let from = self.tasks[holder].store.data;
        let range = self.tasks[id].range.clone();
        self.counters.joined_reads += 1;
        self.note_read_hit(id);
        let task = &mut self.tasks[id];
        task.hit = hit;
        task.step = Step::Reading;
        if let Some(to) = self.tasks[id].destination() {
            self.note_used_early(holder, &range);
            self.copy(from, to, &range, orders);
        }
        self.finish(id, orders);
    }

    pub(super) fn copy(&mut self, from: Data, to: Data, run: &Sectors, orders: &mut Vec<Order>) {
        if !run.is_empty() {
            orders.push(Order::Copy { from: from.span(run), to: to.span(run) });
        }
    }
}
