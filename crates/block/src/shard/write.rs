//! Writes, zeroing, trimming, and eviction at an operator's request.
//!
//! A write that covers sectors in part first reads those (at most the first and the last) and
//! completes them, so that everything after is whole sectors. Nothing else is ever filled. The
//! write mode decides where the data goes: to the backing device and after the answer into the
//! cache (through), to the backing device only (around, pass), or into the cache only (back, only).
//! In a persistent cache, a durable write may stay dirty once its log records are durable.
//! Otherwise it is written through.
//!
//! After a failed backing write the content of the backing device is unknown there, so clean copies
//! of it are dropped. Dirty ones are newer than the failed write's target, and stay. A degraded
//! shard writes as `pass` does.

use floe_policy::Direction;

use super::admission::Removal;
use super::parts::{Parts, Way, free_if_empty};
use super::read::Reading;
use super::store::Storing;
use crate::config::WriteMode;
use crate::geometry::{SECTOR_BYTES, Sectors};
use crate::join::{Fault, PieceKind};
use crate::journal::Standing;
use crate::journal::bypass::LogState;
use crate::locks::{Need, TaskId};
use crate::mapping::directory::{Block, resize};
use crate::order::{DeviceId, Order, Span};
use crate::tasks::{Part, TaskStep, Work, units};

/// A task that changes its range, or drops its copies: a client's write, zeroing or trim, a
/// write-back, or an eviction.
pub(super) struct Writing<'a> {
    pub(super) parts: &'a mut Parts,
    pub(super) id: TaskId,
}

impl<'a> Writing<'a> {
    #[inline]
    pub(super) fn of(parts: &'a mut Parts, id: TaskId) -> Self {
        Self { parts, id }
    }

    pub(super) fn start(&mut self) {
        let mut next = Some(self.id);
        while let Some(id) = next {
            self.id = id;
            let range = self.parts.tasks[id].range.clone();
            let (taken, rest) = self.parts.tasks.lock_front(id, Need::exclusive(range), 1);
            next = rest;
            if taken {
                self.begin();
            }
        }
    }

    /// Begins a write that has its lock.
    fn begin(&mut self) {
        let (parts, id) = (&mut *self.parts, self.id);
        let range = parts.tasks[id].range.clone();
        parts.counters.bypassed_bytes += parts.health.bypassed_sectors(&range) * SECTOR_BYTES;
        if parts.mode() != WriteMode::Pass {
            let survey = parts.survey(id);
            parts.tasks[id].hit = survey.missing.is_empty();
            if parts.mode() != WriteMode::Around {
                for (block, _) in &survey.blocks {
                    parts.map.directory.touch(*block);
                }
            }
            parts.map.reuse(survey);
        }
        let (head, tail) = parts.tasks[id].edges();
        let (first, last) = (range.start, range.end - 1);
        let is_write = matches!(parts.tasks[id].piece().kind, PieceKind::Write { .. });
        if is_write && head == 0 && tail == 0 {
            parts.tasks[id].store.data = parts.tasks[id].request_data();
            return self.out();
        }
        if parts.is_lost(id) {
            return parts.fail(id); // the sectors that it changes in part cannot be read
        }
        parts.tasks[id].store.data = parts.tasks.new_buffer(id, &range, &mut parts.orders);
        parts.tasks[id].step = TaskStep::Edges;
        if head > 0 || (first == last && tail > 0) {
            self.read_edge(first);
        }
        if tail > 0 && last != first {
            self.read_edge(last);
        }
        if self.parts.tasks[id].outstanding == 0 {
            self.edges_ended(); // a part of the last sector that ends with the volume
        }
    }

    /// Reads a sector that the write changes in part.
    fn read_edge(&mut self, sector: u64) {
        let (parts, id) = (&mut *self.parts, self.id);
        let run = sector..sector + 1;
        let (volume, to) = (parts.tasks[id].volume, parts.tasks[id].store.data.span(&run));
        if parts.map.unflushed.has_any(volume, &run) {
            return parts.map.unflushed.recall(volume, run, to, &mut parts.orders);
        }
        let usable = |block: &Block| match parts.health.is_degraded() {
            true => parts.map.directory.blocks.is_dirty_in(*block, &run),
            false => parts.map.directory.blocks.is_valid(*block, &run),
        };
        match parts.map.directory.blocks.find(volume, sector).filter(usable) {
            Some(block) => parts.read_cache(id, block, &run, to),
            None => parts.read_backing(id, Part::Uncached, &run, to),
        }
    }

    /// Completes the sectors covered in part, after they have been read.
    pub(super) fn edges_ended(&mut self) {
        let (parts, id) = (&mut *self.parts, self.id);
        let task = &mut parts.tasks[id];
        if task.fault.is_some() {
            return parts.finish(id);
        }
        let scratch = task.store.data.span(&task.range);
        let (head, tail) = task.edges();
        let part = |span: &Span, offset: u64, len: u64| Span {
            offset: span.offset + offset,
            len,
            ..*span
        };
        if let PieceKind::ZeroPart { .. } = task.piece().kind {
            let span = part(&scratch, head, scratch.len - head - tail);
            parts.orders.push(Order::Clear { span });
        } else {
            task.store.data = task.request_data();
            let to = task.store.data.span(&task.range);
            for (offset, len) in [(0, head), (scratch.len - tail, tail)] {
                if len > 0 {
                    let (from, to) = (part(&scratch, offset, len), part(&to, offset, len));
                    parts.orders.push(Order::Copy { from, to });
                }
            }
        }
        self.out();
    }

    /// Writes whole sectors, to memory or to the tiers below.
    fn out(&mut self) {
        if self.parts.tasks[self.id].is_durable() || !self.hold() {
            self.below();
        }
    }

    /// Ends a write by holding its data in memory, if there is room; returns whether there was.
    fn hold(&mut self) -> bool {
        let (parts, id) = (&mut *self.parts, self.id);
        let task = &parts.tasks[id];
        let (volume, sectors) = (task.volume, task.range.clone());
        let from = task.store.data.span(&sectors);
        if !parts.map.unflushed.hold(volume, sectors.clone(), from, &mut parts.orders) {
            return false;
        }
        parts.map.lost.held(volume, &sectors);
        parts.finish(id);
        if parts.map.unflushed.is_half_full() {
            parts.write_back_all();
        }
        true
    }

    /// Writes whole sectors to the tiers below memory.
    pub(super) fn below(&mut self) {
        let (parts, id) = (&mut *self.parts, self.id);
        let range = parts.tasks[id].range.clone();
        if !parts.may_change(id) {
            return;
        }
        if !matches!(parts.tasks[id].work, Work::WriteBack) {
            // a write-back leaves the tier as it is
            parts.map.unflushed.forget(parts.tasks[id].volume, range.clone(), &mut parts.orders);
        }
        decide_overwrite(parts, id);
        let store = &parts.tasks[id].store;
        let keeps = parts.mode().keeps_writes() && !store.through && !store.around;
        let may_stay = keeps && (parts.logging.is_kept() || !parts.tasks[id].is_durable());
        if may_stay && self.may_be_dirty() {
            self.parts.offer_write(id);
            return Storing::of(self.parts, id).begin(range, true);
        }
        if !self.unlog() {
            self.write_backing();
        }
    }

    /// Returns whether the data may stay dirty in the cache.
    fn may_be_dirty(&mut self) -> bool {
        let parts = &mut *self.parts;
        if resize::has_leaving(&parts.map.directory) && self.is_leaving() {
            return false;
        }
        let parts = &mut *self.parts;
        let range = &parts.tasks[self.id].range;
        let len = range.end - range.start;
        if parts.dirt.allows(parts.map.directory.blocks.dirty_sectors() + len) {
            return true;
        }
        // An overwrite of dirty sectors does not increase their number.
        let survey = parts.survey(self.id);
        let dirty_runs =
            |(block, run): &(Block, Sectors)| parts.map.directory.blocks.dirty_runs_in(*block, run);
        let dirty: u64 =
            survey.blocks.iter().flat_map(dirty_runs).map(|run| run.end - run.start).sum();
        parts.map.reuse(survey);
        dirty == len
    }

    /// Returns whether some block of the range is in a group that is being emptied.
    fn is_leaving(&mut self) -> bool {
        let survey = self.parts.survey(self.id);
        let directory = &self.parts.map.directory;
        let is_leaving =
            survey.blocks.iter().any(|(block, _)| resize::is_leaving(directory, *block));
        self.parts.map.reuse(survey);
        is_leaving
    }

    /// Restarts a write that the cache could not take: it writes to the backing device first, from
    /// its buffer.
    pub(super) fn through(&mut self) {
        let (parts, id) = (&mut *self.parts, self.id);
        let store = &mut parts.tasks[id].store;
        (store.retry, store.through, store.no_room, store.dirty) = (false, true, false, false);
        // A sector that the write changes in part cannot be read again: a failed store may have
        // overwritten it.
        let task = &parts.tasks[id];
        if task.store.damaged && task.scratch.is_some() && parts.way(id) == Way::Wait {
            return parts.fail(id);
        }
        self.below();
    }

    /// Logs durably that the range has no clean copies, before its backing device changes there.
    /// Returns whether the task has to wait for that, in [`TaskStep::Unlogging`].
    fn unlog(&mut self) -> bool {
        let (parts, id) = (&mut *self.parts, self.id);
        if !parts.logging.is_on() {
            return false;
        }
        let survey = parts.survey(id);
        let is_replaced = puts_in(parts, id);
        let because = if is_replaced { Removal::Replaced } else { Removal::Invalid };
        for (block, run) in &survey.blocks {
            let clean: Vec<Sectors> =
                parts.map.directory.blocks.clean_runs_in(*block, run).collect();
            parts.admission.removed(&clean, because);
            for run in clean {
                // sectors that the log never recorded need no record
                if !parts.logging.settlements.take_deferred(parts.tasks[id].volume, &run) {
                    parts.note(*block, &run, Standing::Invalid);
                }
                parts.map.directory.blocks.set_clean_invalid(*block, &run);
            }
        }
        parts.map.reuse(survey);
        if !parts.logging.has_gone(parts.tasks.region_of(id)) || planted!(BackingBeforeLog) {
            return false;
        }
        parts.tasks[id].step = TaskStep::Unlogging;
        let range = parts.tasks[id].range.clone();
        parts.await_commit(id, Part::Noted, &range);
        true
    }

    /// Continues once a restart would restore no clean copy of the range: its backing device may
    /// change.
    pub(super) fn unlogged(&mut self) {
        let (parts, id) = (&mut *self.parts, self.id);
        if parts.has_failed_with_log(id) && !parts.may_change(id) {
            return;
        }
        if parts.tasks[id].fault.is_some() {
            return parts.finish(id);
        }
        match &parts.tasks[id].work {
            Work::Piece(piece)
                if matches!(piece.kind, PieceKind::Zero { .. } | PieceKind::Trim) =>
            {
                self.zero_or_trim();
            }
            _ => self.write_backing(),
        }
    }

    fn write_backing(&mut self) {
        let task = &mut self.parts.tasks[self.id];
        task.step = TaskStep::Backing;
        let (range, durable) = (task.range.clone(), task.is_durable());
        self.parts.write_backing(self.id, Part::Whole, &range, durable);
    }

    /// Starts to zero or trim whole sectors.
    pub(super) fn start_zero_or_trim(&mut self) {
        let (parts, id) = (&mut *self.parts, self.id);
        let range = parts.tasks[id].range.clone();
        if !parts.tasks.lock(id, Need::exclusive(range.clone())) {
            return;
        }
        parts.map.unflushed.forget(parts.tasks[id].volume, range, &mut parts.orders);
        if parts.may_change(id) && !self.unlog() {
            self.zero_or_trim();
        }
    }

    /// Drops the clean copies of the range, in memory and on the cache device; dirty and unflushed
    /// data stays. Groups that hold no data then are free at once. Other places are used again when
    /// they are the coldest, as after a trim.
    pub(super) fn start_evict(&mut self) {
        let (parts, id) = (&mut *self.parts, self.id);
        let (volume, range) = (parts.tasks[id].volume, parts.tasks[id].range.clone());
        if !parts.tasks.lock(id, Need::exclusive(range.clone())) {
            return;
        }
        parts.map.unflushed.forget(volume, range, &mut parts.orders);
        let survey = parts.survey(id);
        let group_of = |(block, _): &(Block, Sectors)| parts.map.directory.group_of(*block);
        let mut groups: Vec<u32> = survey.blocks.iter().map(group_of).collect();
        parts.map.reuse(survey);
        let before = parts.map.directory.blocks.valid.sectors();
        self.drop_copies(true);
        let dropped = before - self.parts.map.directory.blocks.valid.sectors();
        self.parts.counters.dropped_bytes += dropped * SECTOR_BYTES;
        self.parts.finish(id);
        groups.sort_unstable();
        groups.dedup();
        groups.into_iter().for_each(|group| free_if_empty(self.parts, group));
    }

    fn zero_or_trim(&mut self) {
        let (parts, id) = (&mut *self.parts, self.id);
        let range = parts.tasks[id].range.clone();
        parts.tasks[id].step = TaskStep::Backing;
        let device = DeviceId::Backing(parts.tasks[id].volume);
        let (offset, len) = (range.start * SECTOR_BYTES, (range.end - range.start) * SECTOR_BYTES);
        let kind = parts.tasks[id].piece().kind;
        let op = parts.tasks.new_op(id, Part::Whole, &range);
        parts.orders.push(match kind {
            PieceKind::Zero { may_unmap, fast } => {
                Order::Zero { op, device, offset, len, may_unmap, fast }
            }
            _ => Order::Discard { op, device, offset, len },
        });
    }

    /// Handles the end of a write to the backing device. Dirty sectors stay until that is durable
    /// and noted in the log.
    pub(super) fn backing_ended(&mut self) {
        let (parts, id) = (&mut *self.parts, self.id);
        let logging = &parts.logging;
        let counts = logging.is_kept() && logging.bypass.state() != LogState::Retired;
        if parts.tasks[id].fault.is_none() && counts && parts.is_dirty_below(id) {
            parts.tasks[id].step = TaskStep::Settling;
            return parts.await_settlement(id);
        }
        self.backing_settled();
    }

    /// Ends a write to the backing device once no dirty sectors are left below it.
    fn backing_settled(&mut self) {
        let (parts, id) = (&mut *self.parts, self.id);
        let task = &parts.tasks[id];
        let (range, fault) = (task.range.clone(), task.fault);
        if fault.is_none() {
            parts.found(id, &range);
            if puts_in(parts, id) {
                parts.events.extend(parts.tasks.answer(id));
                parts.offer_write(id);
                Storing::of(parts, id).begin(range, false);
                return Reading::of(parts, id).serve_waiting();
            }
        }
        let is_fast = matches!(
            &parts.tasks[id].work,
            Work::Piece(piece) if matches!(piece.kind, PieceKind::Zero { fast: true, .. })
        );
        if !is_fast || fault != Some(Fault::Unsupported) {
            self.drop_copies(fault.is_some()); // something may have changed
        }
        self.parts.finish(id);
    }

    /// Continues once the writes to the backing device are durable: the log may now say that the
    /// dirty sectors are superseded.
    pub(super) fn settled(&mut self) {
        match self.parts.tasks[self.id].fault {
            Some(_) => self.parts.finish(self.id),
            None => self.parts.displace_dirty(self.id),
        }
    }

    /// Continues once the logged changes of the range are durable.
    pub(super) fn noted(&mut self) {
        let (parts, id) = (&mut *self.parts, self.id);
        if parts.has_failed_with_log(id) {
            // The log may call dirty the data that this write replaces.
            return parts.start_anew(id);
        }
        let task = &parts.tasks[id];
        if task.fault.is_some() || task.store.dirty {
            return parts.finish(id); // a durable write in the cache
        }
        self.drop_copies(false);
        self.backing_settled();
    }

    /// Drops the cached copies of the range; with `only_clean`, only the clean ones.
    fn drop_copies(&mut self, only_clean: bool) {
        let parts = &mut *self.parts;
        let survey = parts.survey(self.id);
        for (block, run) in &survey.blocks {
            if only_clean {
                parts.drop_clean(*block, run, Some(Removal::Invalid));
                continue;
            }
            if parts.admission.asks() {
                // At once, as a smallest block with clean and dirty sectors counts once.
                let validity = parts.map.directory.blocks.validity(*block, run);
                let valid: Vec<Sectors> =
                    validity.filter_map(|(run, valid)| valid.then_some(run)).collect();
                parts.admission.removed(&valid, Removal::Invalid);
            }
            parts.drop_clean(*block, run, None);
            let directory = &mut parts.map.directory;
            parts.logging.forget_seals(directory, *block, run);
            directory.blocks.set_invalid(*block, run);
        }
        parts.map.reuse(survey);
    }
}

/// Returns whether a task's data goes to the cache after the backing device has it.
fn puts_in(parts: &Parts, id: TaskId) -> bool {
    let task = &parts.tasks[id];
    task.writes() && parts.mode().caches_writes() && !task.store.around
}

/// Decides whether a write goes around the cache, because the admission declines newer data of some
/// of its clean blocks.
fn decide_overwrite(parts: &mut Parts, id: TaskId) {
    parts.tasks[id].store.around = false;
    let asks = parts.admission.asks_overwrites() && puts_in(parts, id);
    if !asks || parts.is_dirty_below(id) {
        return;
    }
    let survey = parts.survey(id);
    let (volume, range) = (parts.tasks[id].volume, parts.tasks[id].range.clone());
    let unit = parts.config.sizes.smallest();
    let mut taken = true;
    for (block, run) in &survey.blocks {
        for (start, part) in units(run, unit) {
            taken &= if parts.map.directory.blocks.has_valid(*block, &part) {
                parts.admission.overwrites(volume, start)
            } else {
                parts.ask(id, start, Direction::Write) // an earlier copy was dropped
            };
        }
    }
    if !taken {
        parts.admission.request();
        for (start, part) in units(&range, unit) {
            parts.admission.look_up(volume, start, &part, false, Direction::Write);
        }
        parts.tasks[id].store.around = true;
        parts.counters.declined_overwrites += 1;
    }
    parts.map.reuse(survey);
    parts.close_window_in_time();
}

impl Writing<'_> {
    /// Starts the write-back of the unflushed sectors of a run within a region.
    pub(super) fn start_write_back(&mut self) {
        let (parts, id) = (&mut *self.parts, self.id);
        let (volume, range) = (parts.tasks[id].volume, parts.tasks[id].range.clone());
        if !parts.tasks.lock(id, Need::exclusive(range.clone())) {
            return;
        }
        // Other tasks may have released some of it meanwhile.
        let mut runs = parts.map.unflushed.runs(volume, &range).into_iter();
        let Some(run) = runs.next() else { return parts.finish(id) };
        parts.rounds.take_back(volume, runs);
        let data = parts.tasks.new_buffer(id, &run, &mut parts.orders);
        let task = &mut parts.tasks[id];
        (task.range, task.store.data) = (run.clone(), data);
        parts.map.unflushed.recall(volume, run.clone(), data.span(&run), &mut parts.orders);
        self.below();
    }
}
