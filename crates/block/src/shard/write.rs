//! Writes, zeroing and trimming.
//!
//! A write that covers sectors in part first reads those (at most the first and the last) and
//! completes them, so that everything after is whole sectors. Nothing else is ever filled. The
//! write mode decides where the data goes: to the backing device and after the answer into the
//! cache (through), to the backing device only (around, pass), or into the cache only (back, only).
//! A durable write is written through in every mode.
//!
//! After a failed backing write the content of the backing device is unknown there, so clean copies
//! of it are dropped. Dirty ones are newer than the failed write's target, and stay. A degraded
//! shard writes as `pass` does.

use super::Shard;
use super::admission::Removal;
use super::bypass::LogState;
use crate::engine::locks::{Need, TaskId};
use crate::engine::piece::{Piece, PieceKind};
use crate::engine::request::Fault;
use crate::engine::{Data, Part, Step, Work};
use crate::geometry::{SECTOR_BYTES, Sectors};
use crate::mapping::directory::Block;
use crate::mode::WriteMode;
use crate::order::{BufferId, DeviceId, Order, Span};
use crate::store::journal::Standing;

impl Shard {
    pub(super) fn start_write(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let mut next = Some(id);
        while let Some(id) = next {
            let range = self.tasks[id].range.clone();
            let (taken, rest) = self.tasks.lock_front(id, Need::exclusive(range), 1);
            next = rest;
            if taken {
                self.begin_write(id, orders);
            }
        }
    }

    /// Begins a write that has its lock.
    fn begin_write(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let range = self.tasks[id].range.clone();
        self.note_bypass(&range);
        if self.mode() != WriteMode::Pass {
            let survey = self.survey(id);
            self.tasks[id].hit = survey.missing.is_empty();
            if self.mode() != WriteMode::Around {
                for (block, _) in &survey.blocks {
                    self.directory.touch(*block);
                }
            }
            self.spare_survey = survey;
        }
        let (head, tail) = self.tasks[id].edges();
        let (first, last) = (range.start, range.end - 1);
        let whole = matches!(self.tasks[id].piece().kind, PieceKind::Write { .. })
            && head == 0
            && tail == 0;
        if whole {
            self.tasks[id].store.data = self.tasks[id].request_data();
            return self.write_out(id, orders);
        }
        if self.is_lost(id) {
            // the sectors that it changes in part cannot be read
            self.tasks[id].fault = Some(Fault::Io);
            return self.finish(id, orders);
        }
        let scratch = self.tasks.new_scratch(id, range.end - range.start, orders);
        self.tasks[id].store.data =
            Data { buffer: BufferId::Scratch(scratch), sector: first, offset: 0 };
        self.tasks[id].step = Step::Edges;
        if head > 0 || (first == last && tail > 0) {
            self.read_edge(id, first, orders);
        }
        if tail > 0 && last != first {
            self.read_edge(id, last, orders);
        }
        if self.tasks[id].outstanding == 0 {
            self.edges_ended(id, orders); // a part of the last sector that ends with the volume
        }
    }

    fn read_edge(&mut self, id: TaskId, sector: u64, orders: &mut Vec<Order>) {
        let run = sector..sector + 1;
        let task = &self.tasks[id];
        let (volume, to) = (task.volume, task.store.data.span(&run));
        if self.held.has_any(volume, &run) {
            return self.held.recall(volume, run, to, orders);
        }
        let block = self.directory.find(volume, sector);
        let usable = |block: &Block| match self.is_degraded() {
            true => self.directory.is_dirty_in(*block, &run),
            false => self.directory.is_valid(*block, &run),
        };
        match block.filter(usable) {
            Some(block) => self.order_cache_read(id, Part::Cached(block), block, &run, to, orders),
            None => self.order_backing_read(id, Part::Uncached, &run, to, orders),
        }
    }

    /// Completes the sectors covered in part, after they have been read.
    pub(super) fn edges_ended(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        if self.tasks[id].fault.is_some() {
            return self.finish(id, orders);
        }
        let scratch = self.tasks[id].store.data.span(&self.tasks[id].range);
        let (head, tail) = self.tasks[id].edges();
        let part = |span: &Span, offset: u64, len: u64| Span {
            offset: span.offset + offset,
            len,
            ..*span
        };
        if let PieceKind::ZeroPart { .. } = self.tasks[id].piece().kind {
            orders.push(Order::Clear { span: part(&scratch, head, scratch.len - head - tail) });
        } else {
            let request = self.tasks[id].request_data();
            let to = request.span(&self.tasks[id].range);
            for (offset, len) in [(0, head), (scratch.len - tail, tail)] {
                if len > 0 {
                    orders.push(Order::Copy {
                        from: part(&scratch, offset, len),
                        to: part(&to, offset, len),
                    });
                }
            }
            self.tasks[id].store.data = request;
        }
        self.write_out(id, orders);
    }

    /// Writes whole sectors, to memory or below.
    fn write_out(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        if self.tasks[id].is_durable() || !self.hold(id, orders) {
            self.write_below(id, orders);
        }
    }

    /// Writes whole sectors to the tiers below memory.
    pub(super) fn write_below(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let range = self.tasks[id].range.clone();
        if !self.may_change(id, orders) {
            return;
        }
        if !matches!(self.tasks[id].work, Work::Sink) {
            // a write-back leaves the tier as it is
            self.held.forget(self.tasks[id].volume, range.clone(), orders);
        }
        let keeps = self.mode().keeps_writes() && !self.tasks[id].store.through;
        let may_stay = keeps && (self.is_kept() || !self.tasks[id].is_durable());
        if may_stay && self.may_be_dirty(id) {
            self.offer_write(id);
            return self.begin_store(id, range, true, orders);
        }
        if !self.unlog(id, orders) {
            self.write_backing(id, orders);
        }
    }

    /// Returns whether the data of a task's write may stay in the cache only.
    fn may_be_dirty(&mut self, id: TaskId) -> bool {
        let range = self.tasks[id].range.clone();
        let len = range.end - range.start;
        if self.dirt.allows(self.directory.dirty_sectors() + len) {
            return true;
        }
        // An overwrite of dirty sectors does not increase their number.
        let survey = self.survey(id);
        let runs =
            survey.blocks.iter().flat_map(|(block, run)| self.directory.dirty_runs_in(*block, run));
        let dirty: u64 = runs.map(|run| run.end - run.start).sum();
        self.spare_survey = survey;
        dirty == len
    }

    /// Continues once no clean copy of a task's range would come back: its backing device may
    /// change.
    pub(super) fn unlogging_ended(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        if self.has_failed_with_log(id) {
            let cleans = matches!(self.tasks[id].work, Work::Clean { .. });
            if !cleans && !self.may_change(id, orders) {
                return;
            }
        }
        if self.tasks[id].fault.is_some() {
            return self.finish(id, orders);
        }
        match &self.tasks[id].work {
            Work::Clean { .. } => self.clean_read(id, orders),
            Work::Piece(Piece { kind: PieceKind::Zero { .. } | PieceKind::Trim, .. }) => {
                self.zero_or_trim(id, orders);
            }
            _ => self.write_backing(id, orders),
        }
    }

    fn write_backing(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        self.tasks[id].step = Step::Backing;
        let range = self.tasks[id].range.clone();
        let (from, durable) = (self.tasks[id].store.data.span(&range), self.tasks[id].is_durable());
        self.order_backing_write(id, Part::Whole, &range, from, durable, orders);
    }

    pub(super) fn start_zero_or_trim(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let range = self.tasks[id].range.clone();
        if !self.tasks.lock(id, Need::exclusive(range.clone())) {
            return;
        }
        self.held.forget(self.tasks[id].volume, range, orders);
        if !self.may_change(id, orders) {
            return;
        }
        if !self.unlog(id, orders) {
            self.zero_or_trim(id, orders);
        }
    }

    fn zero_or_trim(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let range = self.tasks[id].range.clone();
        self.tasks[id].step = Step::Backing;
        let device = DeviceId::Backing(self.tasks[id].volume);
        let (offset, len) = (range.start * SECTOR_BYTES, (range.end - range.start) * SECTOR_BYTES);
        let kind = self.tasks[id].piece().kind;
        let op = self.tasks.new_op(id, Part::Whole, &range);
        orders.push(match kind {
            PieceKind::Zero { may_unmap, fast } => {
                Order::Zero { op, device, offset, len, may_unmap, fast }
            }
            _ => Order::Discard { op, device, offset, len },
        });
    }

    /// Handles the end of a write to the backing device. Dirty sectors stay until that is durable
    /// and noted in the log.
    pub(super) fn backing_ended(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let counts = self.is_kept() && self.bypass.state() != LogState::Retired;
        if self.tasks[id].fault.is_none() && counts && self.is_dirty_below(id) {
            self.tasks[id].step = Step::Settling;
            return self.await_settlement(id);
        }
        self.backing_settled(id, orders);
    }

    /// Ends a write to the backing device once no dirty sectors are left below it.
    fn backing_settled(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        if self.tasks[id].fault.is_none() {
            let range = self.tasks[id].range.clone();
            self.found(id, &range, orders);
        }
        let task = &self.tasks[id];
        let range = task.range.clone();
        let (failed, refused) = (task.fault.is_some(), task.fault == Some(Fault::Unsupported));
        let kind = match &task.work {
            Work::Piece(piece) => Some(piece.kind),
            _ => None, // a write-back
        };
        if !failed && self.tasks[id].writes() && self.mode().caches_writes() {
            self.events.extend(self.tasks.answer(id));
            self.offer_write(id);
            self.begin_store(id, range, false, orders);
            return self.serve_waiting(id, orders);
        }
        let nothing_changed = refused && matches!(kind, Some(PieceKind::Zero { fast: true, .. }));
        if !nothing_changed {
            self.drop_copies(id, failed, orders);
        }
        self.finish(id, orders);
    }

    /// Continues once the writes to the backing device are durable: the log may now say that the
    /// dirty sectors are superseded.
    pub(super) fn settling_ended(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        if self.tasks[id].fault.is_some() {
            return self.finish(id, orders);
        }
        match self.tasks[id].work {
            Work::Clean { .. } => self.displace_dirty(id, Standing::Clean, orders),
            _ => self.displace_dirty(id, Standing::Invalid, orders),
        }
    }

    /// Continues once the changes noted for a task's range are durable.
    pub(super) fn noting_ended(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let without_log = self.has_failed_with_log(id);
        let failed = self.tasks[id].fault.is_some();
        match self.tasks[id].work {
            Work::Clean { .. } if without_log => self.brought_down(id, orders),
            // The log may call dirty the data that this write replaces.
            _ if without_log => self.start_anew(id, orders),
            _ if failed => self.finish(id, orders),
            Work::Clean { .. } => self.clean_noted(id, orders),
            // a durable write in the cache
            _ if self.tasks[id].store.dirty => self.finish(id, orders),
            _ => {
                self.drop_copies(id, false, orders);
                self.backing_settled(id, orders);
            }
        }
    }

    /// Drops the cached copies of a task's range; with `only_clean`, only the clean ones.
    fn drop_copies(&mut self, id: TaskId, only_clean: bool, orders: &mut Vec<Order>) {
        let survey = self.survey(id);
        for (block, run) in &survey.blocks {
            self.drop_clean(*block, run, Removal::Invalid, orders);
            if only_clean {
                continue;
            }
            if self.admission.asks() {
                let dirty: Vec<Sectors> = self.directory.dirty_runs_in(*block, run).collect();
                self.admission.removed(&dirty, Removal::Invalid);
            }
            self.forget_seals(*block, run);
            self.directory.set_invalid(*block, run);
        }
        self.spare_survey = survey;
    }
}
