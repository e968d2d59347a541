//! Write-back of unflushed sectors to the tiers below memory, one run at a time.
//!
//! A run is written as a client's write would be, by the write mode: into the cache, or to the
//! backing device and then into the cache. It is released when it is there; until then it is read
//! from memory, and readers that find it in the tier do not wait. Runs are written back in the
//! first half of a round (`clean`), whose second half writes the cache's dirty data to the backing
//! device.

use super::Shard;
use crate::engine::locks::{Need, TaskId};
use crate::engine::{Data, Task, Work};
use crate::geometry::{Sectors, VolumeId};
use crate::order::{BufferId, Order};

impl Shard {
    /// Starts the write-back of the held sectors of a run within a region.
    pub(super) fn sink(&mut self, volume: VolumeId, run: Sectors, orders: &mut Vec<Order>) {
        let id = self.tasks.begin(Work::Sink, volume, run);
        self.start_sink(id, orders);
    }

    pub(super) fn start_sink(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let task = &self.tasks[id];
        let (volume, range) = (task.volume, task.range.clone());
        if !self.tasks.lock(id, Need::exclusive(range.clone())) {
            return;
        }
        // Other tasks may have released some of it meanwhile.
        let mut runs = self.held.runs(volume, &range).into_iter();
        let Some(run) = runs.next() else { return self.finish(id, orders) };
        self.rounds.take_back(volume, runs);
        self.tasks[id].range = run.clone();
        let scratch = self.tasks.new_scratch(id, run.end - run.start, orders);
        let data = Data { buffer: BufferId::Scratch(scratch), sector: run.start, offset: 0 };
        self.tasks[id].store.data = data;
        self.held.recall(volume, run.clone(), data.span(&run), orders);
        self.write_below(id, orders);
    }

    /// Ends a write-back; after a failure the run is still held.
    pub(super) fn sunk(&mut self, id: TaskId) {
        let Task { fault, volume, .. } = self.tasks[id];
        self.rounds.ended_one(volume, fault);
    }
}
