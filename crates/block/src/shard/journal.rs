//! The shard's part in commits, settlements and the bypass of its log, which the router conducts
//! for all shards (`cache/commits.rs`).

use super::Shard;
use super::admission::Removal;
use super::bypass::LogState;
use crate::engine::Step;
use crate::engine::locks::TaskId;
use crate::engine::request::Fault;
use crate::geometry::VolumeId;
use crate::order::Order;
use crate::store::journal::Standing;

impl Shard {
    /// Begins a commit of all noted changes. Returns whether some of them make data dirty: that
    /// data has to be durable first.
    pub(crate) fn commit_begun(&mut self, orders: &mut Vec<Order>) -> bool {
        self.emit(orders, |shard| {
            let parts = &mut shard.parts;
            parts.logging.seal(&parts.map.directory, &mut parts.orders);
            parts.logging.log.begin()
        })
    }

    /// Ends the commit. A failure is permanent: see [`super::logging::Logging::lose`].
    pub(crate) fn commit_ended(&mut self, result: Result<(), Fault>, orders: &mut Vec<Order>) {
        debug_assert!(result.is_ok() || !self.parts.logging.bypass.is_writable());
        let due = self.parts.logging.log.end(result.is_ok());
        self.emit(orders, |shard| due.into_iter().for_each(|op| shard.op_ended(op, result)));
    }

    /// Abandons the commit for lack of room in the log; the next commit serves the tasks that wait.
    ///
    /// Some of its records may be durable, and be missing in the log that is valid after a
    /// checkpoint. So data that is dirty here but was noted otherwise is noted again: the
    /// checkpoint will call it dirty.
    pub(crate) fn commit_put_off(&mut self, orders: &mut Vec<Order>) {
        let parts = &mut self.parts;
        parts.logging.log.abandon();
        parts.logging.log.note_rewritten();
        let tasks = parts.logging.log.waiting().map(|op| parts.tasks.of_op(op).0);
        let tasks: Vec<TaskId> = tasks.collect();
        self.emit(orders, |shard| {
            for id in tasks {
                let task = &shard.parts.tasks[id];
                if task.step == Step::Noting && !task.store.dirty {
                    shard.parts.note_displaced(id);
                }
            }
        });
    }

    /// Ends a settlement of a volume's backing device.
    pub(crate) fn settlement_ended(
        &mut self,
        volume: VolumeId,
        result: Result<(), Fault>,
        orders: &mut Vec<Order>,
    ) {
        let (due, settled) = self.parts.logging.settlements.end(volume, result.is_ok());
        self.emit(orders, |shard| {
            let parts = &mut shard.parts;
            for place in settled {
                let run = place.sector()..place.sector() + 1;
                if let Some(block) = parts.map.directory.blocks.find(volume, run.start)
                    && parts.map.directory.blocks.clean_runs_in(block, &run).next().is_some()
                {
                    parts.note(block, &run, Standing::Clean);
                }
            }
            due.into_iter().for_each(|op| shard.op_ended(op, result));
        });
    }

    /// Makes the log's clean copies void at the next start. With `stuck`, some dirty data cannot be
    /// cleaned.
    pub(crate) fn bypass(&mut self, stuck: bool, orders: &mut Vec<Order>) {
        self.parts.logging.lose();
        self.parts.logging.bypass.void_clean(stuck);
        self.restart_waiting();
        self.emit(orders, |shard| {
            shard.run_ready();
            shard.parts.begin_rounds();
            shard.run_ready();
        });
    }

    /// Makes the whole log void at the next start.
    pub(crate) fn retire(&mut self, orders: &mut Vec<Order>) {
        self.parts.logging.lose();
        self.parts.logging.bypass.retire();
        self.forget_clean();
        self.restart_waiting();
        self.emit(orders, Self::run_ready);
    }

    /// Restarts the tasks that wait for a change of the log's validity.
    fn restart_waiting(&mut self) {
        for id in self.parts.logging.bypass.take_waiting() {
            self.parts.tasks.resume(id);
        }
    }

    /// Returns whether a flush of a volume cannot be promised although nothing is under way: some
    /// answered writes may be on no device.
    pub(crate) fn is_unsure_of(&self, volume: VolumeId) -> bool {
        let map = &self.parts.map;
        let dirty = || map.directory.blocks.dirty_blocks(volume).next().is_some();
        self.parts.logging.bypass.is_unsure_of(volume, dirty) || map.held.count(volume) > 0
    }

    /// Returns an upper bound of the sectors with refused requests: writes that would have to wait
    /// for ever, and reads of dirty data that the cache device does not return.
    pub(crate) fn refused_sectors(&self) -> u64 {
        let (bypass, dirty) =
            (&self.parts.logging.bypass, self.parts.map.directory.blocks.dirty_sectors());
        let stuck = match bypass.state() {
            LogState::Bypassed { stuck: true } => dirty + bypass.brought_down_sectors(),
            _ if self.parts.health.is_unreadable() => dirty,
            _ => 0,
        };
        self.parts.map.lost.len().max(stuck)
    }

    /// Drops all clean data. I/O need not be quiesced: a task that reads such a sector has its
    /// lock, and the sector keeps its place.
    pub(crate) fn forget_clean(&mut self) {
        let parts = &mut self.parts;
        if parts.logging.is_kept() {
            for block in parts.map.directory.by_heat() {
                let sectors = parts.map.directory.blocks.sectors(block);
                parts.drop_clean(block, &sectors, Some(Removal::Invalid));
            }
        }
        parts.map.directory.blocks.set_all_clean_invalid();
    }

    /// Drops the copy of a clean sector.
    pub(crate) fn forget_sector(&mut self, id: VolumeId, sector: u64) {
        if let Some(block) = self.parts.map.directory.blocks.find(id, sector) {
            self.parts.drop_clean(block, &(sector..sector + 1), Some(Removal::Invalid));
        }
    }
}
