//! Reads and writes of sectors that memory holds ([`crate::mapping`]), and copies for the memory
//! tier.
//!
//! Copies enter the tier when a read has them, and leave it when a change of the sector begins on a
//! device. Both happen while the task holds its lock, which keeps the tier coherent
//! ([`crate::tiers::memory`]).

use super::Shard;
use crate::engine::locks::{Need, TaskId};
use crate::order::Order;

impl Shard {
    /// Puts the sectors that a read has in its buffer into the tier.
    pub(super) fn fill(&self, id: TaskId, orders: &mut Vec<Order>) {
        if !self.held.has_tier() {
            return;
        }
        if let Some(at) = self.tasks[id].destination() {
            let task = &self.tasks[id];
            self.held.fill(task.volume, task.range.clone(), at.span(&task.range), orders);
        }
    }

    /// Ends a write by holding its data in memory, if there is room; returns whether it did.
    pub(super) fn hold(&mut self, id: TaskId, orders: &mut Vec<Order>) -> bool {
        let task = &self.tasks[id];
        let (volume, sectors) = (task.volume, task.range.clone());
        let from = task.store.data.span(&sectors);
        if !self.held.hold(volume, sectors.clone(), from, orders) {
            return false;
        }
        self.lost.held(volume, &sectors);
        self.finish(id, orders);
        if self.held.is_half_full() {
            self.sink_all(orders);
        }
        true
    }

    /// Cuts a read to its first sectors that are alike, all held or all not held. Returns which,
    /// and the task for the rest.
    pub(super) fn cut_at_held(&mut self, id: TaskId) -> (bool, Option<TaskId>) {
        let task = &self.tasks[id];
        let (range, volume) = (task.range.clone(), task.volume);
        let (held, end) = self.held.front(volume, &range);
        (held, (end < range.end).then(|| self.tasks.cut(id, end)))
    }

    /// Reads a task's range, all of which is held.
    pub(super) fn read_held(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let mut next = Some(id);
        while let Some(id) = next {
            let range = self.tasks[id].range.clone();
            let (taken, rest) = self.tasks.lock_front(id, Need::shared(range), 1);
            next = rest;
            if !self.may_begin(id, taken, orders) {
                continue;
            }
            self.tasks[id].hit = true;
            if let Some(to) = self.tasks[id].destination() {
                let task = &self.tasks[id];
                self.held.recall(task.volume, task.range.clone(), to.span(&task.range), orders);
                self.fill(id, orders);
            }
            self.finish(id, orders);
        }
    }
}
