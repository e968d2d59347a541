//! Write-back of unflushed sectors to the tiers below memory, one run at a time.
//!
//! A run is written as a client's write would be, by the write mode: into the cache, or to the
//! backing device and then into the cache. It is released when it is there; until then it is read
//! from memory, and readers that find it in the tier do not wait. Runs are written back in the
//! first half of a round (`rounds`), whose second half writes the cache's dirty data to the backing
//! device.

use super::write::Writing;
use crate::engine::locks::Need;

impl Writing<'_> {
    /// Starts the write-back of the held sectors of a run within a region.
    pub(super) fn start_sink(&mut self) {
        let (parts, id) = (&mut *self.parts, self.id);
        let (volume, range) = (parts.tasks[id].volume, parts.tasks[id].range.clone());
        if !parts.tasks.lock(id, Need::exclusive(range.clone())) {
            return;
        }
        // Other tasks may have released some of it meanwhile.
        let mut runs = parts.map.held.runs(volume, &range).into_iter();
        let Some(run) = runs.next() else { return parts.finish(id) };
        parts.rounds.take_back(volume, runs);
        let data = parts.tasks.new_buffer(id, &run, &mut parts.orders);
        let task = &mut parts.tasks[id];
        (task.range, task.store.data) = (run.clone(), data);
        parts.map.held.recall(volume, run.clone(), data.span(&run), &mut parts.orders);
        self.below();
    }
}
