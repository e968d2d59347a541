//! The shard's side of its journal: what is noted in the log, and in which order it must become
//! durable.
//!
//! In a persistent cache, each change of the mapping is *noted*. It becomes a record in the shard's
//! log, durable with the next *commit* of the part (`cache/commits.rs`). *Settlements*
//! (`cache/commits.rs`) flush the backing device's own write cache. A task waits for either as for
//! an operation of a device.
//!
//! The state in memory never promises more than the log:
//!
//! - A sector is dirty here as long as the log may say so. It becomes clean, or goes away, when
//!   that is durable, after the backing device has been written *and settled*. So a place that the
//!   log calls dirty is never reused.
//! - Before the backing device changes under a clean copy, the log durably says that the copy is
//!   gone (`unlog`). Copies dropped earlier, for any reason, are remembered by region until that is
//!   durable (`gone`).
//! - Data read from a backing device that may still lose its last writes is not noted as clean
//!   before the device is settled (`deferred`). Until then it is cached, but would not survive a
//!   restart.
//! - A sector with a sealed dirty checksum in the log is not overwritten before the log permits it
//!   (`seal`).
//! - A clean copy may be overwritten in place, or its place be reused, at any time: the checksums
//!   in its record do not match the new content. Its removal is noted all the same. The device may
//!   lose the new content, and would then match the record again.
//! - The removal of a block is always noted: an older checkpoint and the log after it amount to the
//!   content of a newer checkpoint.

use super::Shard;
use super::admission::Removal;
use super::bypass::LogState;
use crate::engine::locks::TaskId;
use crate::engine::request::Fault;
use crate::engine::{Event, Part, Step, Work};
use crate::geometry::{Sectors, VolumeId};
use crate::mapping::directory::Block;
use crate::order::Order;
use crate::store::journal::{BlockAt, Change, Standing};

impl Shard {
    /// Returns whether changes are noted: there is a log, and it can be written.
    pub(super) fn is_logging(&self) -> bool {
        self.log.is_kept() && self.bypass.is_writable()
    }

    /// Returns whether the cache is persistent.
    pub(super) fn is_kept(&self) -> bool {
        self.log.is_kept()
    }

    /// Returns a block's position in the form used by the log.
    pub(super) fn block_at(&self, block: Block) -> BlockAt {
        let sectors = self.directory.sectors(block);
        let place = self.directory.cache_sectors(block, &sectors).start;
        BlockAt { volume: self.directory.volume(block), sectors, place }
    }

    /// Notes the new state of a run of a block.
    pub(super) fn note(
        &mut self,
        block: Block,
        run: &Sectors,
        standing: Standing,
        orders: &mut Vec<Order>,
    ) {
        if !self.is_kept() {
            return;
        }
        let at = self.block_at(block);
        if standing.is_dirty() {
            self.bypass.note_unsure();
            self.log.note_dirty();
        }
        if standing == Standing::Invalid {
            self.note_gone(at.volume, run);
        }
        if !self.is_logging() {
            return;
        }
        if standing != Standing::Clean {
            self.settlements.forget_deferred(at.volume, run);
        }
        self.seals.note(self.directory.cache_sectors(block, run), standing);
        self.log.note(Change::Run { block: at, run: run.clone(), standing }, orders);
    }

    /// Notes an overwrite of data that the log calls dirty, or will: the next commit has to flush
    /// it.
    pub(super) fn note_rewritten(&mut self) {
        if self.is_logging() {
            self.log.note_rewritten();
        } else {
            self.bypass.note_unsure();
        }
    }

    /// Notes that copies in a run's region are gone. When the log has failed, the region stays
    /// registered: the log still has the copies.
    fn note_gone(&mut self, volume: VolumeId, run: &Sectors) {
        self.log.note_gone(self.config.sizes.region(volume, run.start));
    }

    /// Notes a run as clean, at once or when the backing device holds it durably.
    pub(super) fn note_clean(&mut self, block: Block, run: &Sectors, orders: &mut Vec<Order>) {
        if !self.is_logging() {
            return;
        }
        let volume = self.directory.volume(block);
        if !self.settlements.defer(volume, run) {
            self.note(block, run, Standing::Clean, orders);
        }
    }

    /// Notes that a block leaves its place.
    pub(super) fn note_dropped(&mut self, block: Block, orders: &mut Vec<Order>) {
        if self.is_kept() {
            let at = self.block_at(block);
            self.note_gone(at.volume, &at.sectors);
            if self.is_logging() {
                self.seals.forget(self.directory.cache_sectors(block, &at.sectors));
                self.log.note(Change::Dropped { block: at }, orders);
            }
        }
    }

    /// Notes that a failed write has destroyed the clean copies in a run of a block.
    pub(super) fn note_failed(&mut self, block: Block, run: &Sectors, orders: &mut Vec<Order>) {
        let parts: Vec<(Sectors, bool)> = self.directory.dirtiness(block, run).collect();
        let clean = parts.into_iter().filter(|(_, dirty)| !dirty);
        clean.for_each(|(run, _)| self.note(block, &run, Standing::Invalid, orders));
    }

    /// Drops the clean copies of a run.
    pub(super) fn drop_clean(
        &mut self,
        block: Block,
        run: &Sectors,
        because: Removal,
        orders: &mut Vec<Order>,
    ) {
        if self.is_kept() || self.admission.asks() {
            let clean: Vec<Sectors> = self.directory.clean_runs_in(block, run).collect();
            self.admission.removed(&clean, because);
            clean.iter().for_each(|run| self.note(block, run, Standing::Invalid, orders));
        }
        self.directory.set_clean_invalid(block, run);
    }

    /// Notes a change of a volume's backing device that is not durable.
    pub(crate) fn note_unsettled(&mut self, volume: VolumeId) {
        if self.is_kept() {
            self.settlements.note_unsettled(volume);
        }
    }

    /// Returns whether a volume's backing device may lose some of its last writes.
    pub(crate) fn is_unsettled(&self, volume: VolumeId) -> bool {
        self.settlements.is_unsettled(volume)
    }

    /// Returns whether a noted change is not durable yet and not part of the commit under way.
    pub(crate) fn has_noted(&self) -> bool {
        self.log.has_noted()
    }

    /// Makes a task wait until all noted changes are durable.
    pub(super) fn await_commit(&mut self, id: TaskId, part: Part, run: &Sectors) {
        let op = self.tasks.new_op(id, part, run);
        self.log.wait(op);
        self.events.push(Event::WantsCommit);
    }

    /// Makes a task wait until all writes to its volume's backing device are durable.
    pub(super) fn await_settlement(&mut self, id: TaskId) {
        let (volume, range) = (self.tasks[id].volume, self.tasks[id].range.clone());
        let op = self.tasks.new_op(id, Part::Settled, &range);
        self.settlements.wait(volume, op);
        self.events.push(Event::WantsSettlement(volume));
    }

    /// Begins a commit of all noted changes. Returns whether some of them make data dirty: that
    /// data has to be durable first.
    pub(crate) fn commit_begun(&mut self, orders: &mut Vec<Order>) -> bool {
        self.log.flush_late(orders);
        self.seal(orders);
        self.log.begin()
    }

    /// Ends the commit. A failure is permanent: see [`Shard::lose_log`].
    pub(crate) fn commit_ended(&mut self, result: Result<(), Fault>, orders: &mut Vec<Order>) {
        debug_assert!(result.is_ok() || !self.bypass.is_writable());
        let due = self.log.end(result.is_ok());
        due.into_iter().for_each(|op| self.completed(op, result, orders));
    }

    /// Abandons the commit, since the log cannot be written. The tasks that wait for it wait for
    /// its replacement.
    pub(crate) fn commit_abandoned(&mut self) {
        self.log.abandon();
    }

    /// Abandons the commit for lack of room in the log; the next commit serves the tasks that wait.
    ///
    /// Some of its records may be durable, and be missing in the log that is valid after a
    /// checkpoint. So data that is dirty here but was noted otherwise is noted again: the
    /// checkpoint will call it dirty.
    pub(crate) fn commit_put_off(&mut self, orders: &mut Vec<Order>) {
        self.log.abandon();
        self.log.note_rewritten();
        let tasks: Vec<TaskId> = self.log.waiting().map(|op| self.tasks.of_op(op).0).collect();
        for id in tasks {
            let task = &self.tasks[id];
            if task.step == Step::Noting && !task.store.dirty {
                let standing = if let Work::Clean { .. } = task.work {
                    Standing::Clean
                } else {
                    Standing::Invalid
                };
                self.note_displaced(id, standing, orders);
            }
        }
    }

    /// Begins a settlement of a volume's backing device.
    pub(crate) fn settlement_begun(&mut self, volume: VolumeId) {
        self.settlements.begin(volume);
    }

    /// Ends a settlement of a volume's backing device.
    pub(crate) fn settlement_ended(
        &mut self,
        volume: VolumeId,
        result: Result<(), Fault>,
        orders: &mut Vec<Order>,
    ) {
        let (due, settled) = self.settlements.end(volume, result.is_ok());
        for place in settled {
            let run = place.sector()..place.sector() + 1;
            if let Some(block) = self.directory.find(volume, run.start)
                && self.directory.clean_runs_in(block, &run).next().is_some()
            {
                self.note(block, &run, Standing::Clean, orders);
            }
        }
        due.into_iter().for_each(|op| self.completed(op, result, orders));
    }

    /// Makes it durable that a task's range has no clean copies, before its backing device changes
    /// there. Returns whether the task has to wait for that, in [`Step::Unlogging`].
    pub(super) fn unlog(&mut self, id: TaskId, orders: &mut Vec<Order>) -> bool {
        if !self.is_logging() {
            return false;
        }
        let survey = self.survey(id);
        let is_replaced = self.tasks[id].writes() && self.mode().caches_writes();
        let because = if is_replaced { Removal::Replaced } else { Removal::Invalid };
        for (block, run) in &survey.blocks {
            let clean: Vec<Sectors> = self.directory.clean_runs_in(*block, run).collect();
            for run in clean {
                self.unlog_run(*block, &run, because, orders);
            }
        }
        self.spare_survey = survey;
        if !self.has_gone(id) || planted!(BackingBeforeLog) {
            return false;
        }
        self.tasks[id].step = Step::Unlogging;
        let range = self.tasks[id].range.clone();
        self.await_commit(id, Part::Noted, &range);
        true
    }

    /// Drops a clean run; sectors that the log never recorded need no record.
    fn unlog_run(
        &mut self,
        block: Block,
        run: &Sectors,
        because: Removal,
        orders: &mut Vec<Order>,
    ) {
        let volume = self.directory.volume(block);
        self.admission.removed(std::slice::from_ref(run), because);
        if run.clone().all(|sector| self.settlements.is_deferred(volume, sector)) {
            self.settlements.forget_deferred(volume, run);
        } else {
            self.note(block, run, Standing::Invalid, orders);
        }
        self.directory.set_clean_invalid(block, run);
    }

    /// Returns whether the log may still have valid copies in a task's region that are gone.
    pub(super) fn has_gone(&self, id: TaskId) -> bool {
        let counts = matches!(self.bypass.state(), LogState::Writable | LogState::Unwritable);
        self.is_kept() && counts && self.log.has_gone_in(self.tasks.region_of(id))
    }

    /// Returns whether a task's range has dirty sectors below memory.
    pub(super) fn is_dirty_below(&mut self, id: TaskId) -> bool {
        if self.directory.dirty_sectors() == 0 {
            return false;
        }
        let survey = self.survey(id);
        let dirty =
            survey.blocks.iter().any(|(block, run)| self.directory.is_dirty_in(*block, run));
        self.spare_survey = survey;
        dirty
    }

    /// Notes that the dirty sectors of a task's range are superseded, and waits until that is
    /// durable. The backing device has data as new, or newer, and is settled.
    pub(super) fn displace_dirty(
        &mut self,
        id: TaskId,
        standing: Standing,
        orders: &mut Vec<Order>,
    ) {
        self.tasks[id].step = Step::Noting;
        self.note_displaced(id, standing, orders);
        let range = self.tasks[id].range.clone();
        self.await_commit(id, Part::Noted, &range);
    }

    fn note_displaced(&mut self, id: TaskId, standing: Standing, orders: &mut Vec<Order>) {
        let survey = self.survey(id);
        for (block, run) in &survey.blocks {
            let dirty = match standing {
                Standing::Clean => self.dirty_there(*block, run),
                _ => self.directory.dirty_runs_in(*block, run).collect(),
            };
            dirty.iter().for_each(|run| self.note(*block, run, standing, orders));
        }
        self.spare_survey = survey;
    }

    /// Drops the clean copy of a sector, where no order can be emitted.
    pub(super) fn drop_clean_late(&mut self, block: Block, run: &Sectors) {
        let mut late = self.log.take_late();
        self.drop_clean(block, run, Removal::Invalid, &mut late);
        self.log.put_late(late);
    }

    /// Notes the removal of all of a volume's blocks.
    pub(super) fn note_volume_dropped(&mut self, volume: VolumeId) {
        let mut late = self.log.take_late();
        for block in self.directory.blocks_of_volume(volume) {
            self.note_dropped(block, &mut late);
        }
        self.log.put_late(late);
    }
}
