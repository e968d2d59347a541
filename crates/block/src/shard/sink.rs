//! Bringing what only memory has to the tiers below: a run of held sectors at a time, as a write of
//! them.
//!
//! A run sinks as a client's write would go below, by the write mode: into the cache, or to the
//! backing device and then into the cache. It is let go when it is there; until then it is read
//! from memory, by those who find it in the tier without waiting. Runs sink in the first half of a
//! round (`clean`), whose second half brings what the cache has to the backing device.

use super::Shard;
use super::task::{Data, Task, Work};
use crate::geometry::{Sectors, VolumeId};
use crate::locks::{Need, TaskId};
use crate::order::{BufferId, Order, Paging};

impl Shard {
    /// Starts to sink what is held of a run within a region.
    pub(super) fn sink(&mut self, volume: VolumeId, run: Sectors, orders: &mut Vec<Order>) {
        let id = self.new_task(Work::Sink, volume, run);
        self.start_sink(id, orders);
    }

    pub(super) fn start_sink(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let task = &self.tasks[id as usize];
        let (volume, range) = (task.volume, task.range.clone());
        if !self.lock(id, Need::exclusive(range.clone())) {
            return;
        }
        // Others may have let go of some of it meanwhile.
        let mut runs = self.held.runs(volume, &range).into_iter();
        let Some(run) = runs.next() else { return self.finish(id, orders) };
        self.rounds.take_back(volume, runs);
        self.tasks[id as usize].range = run.clone();
        let scratch = self.new_scratch(id, run.end - run.start, orders);
        let data = Data { buffer: BufferId::Scratch(scratch), sector: run.start, offset: 0 };
        self.tasks[id as usize].data = data;
        let deed = Paging::Recall { to: data.span(&run) };
        orders.push(Order::Memory { volume, sectors: run, deed });
        self.write_below(id, orders);
    }

    /// A run has sunk, or is still held.
    pub(super) fn sunk(&mut self, id: TaskId) {
        let Task { fault, volume, .. } = self.tasks[id as usize];
        self.rounds.ended_one(volume, fault);
    }
}
