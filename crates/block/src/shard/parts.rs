//! The parts of a shard, and the common first and last steps of all tasks.
//!
//! Steps of tasks ([`super::read`], [`super::write`], [`super::store`], [`super::clean`]) name the
//! parts that they touch. Nothing here begins a step: a task that is to continue is queued
//! ([`Tasks::resume`]), a round that is to continue is marked, and the shard's loop finds both.

use std::collections::BTreeSet;

use floe_policy::Direction;

use super::admission::{Admission, Asked, Fetches, Removal};
use super::fills::Fills;
use super::rounds::{Drain, Rounds};
use crate::config::{Config, WriteMode};
use crate::geometry::{SECTOR_BYTES, Sectors, VolumeId};
use crate::join::Piece;
use crate::journal::Standing;
use crate::journal::bypass::LogState;
use crate::journal::logging::Logging;
use crate::locks::TaskId;
use crate::mapping::directory::Block;
use crate::mapping::directory::resize::Leaving;
use crate::mapping::{Dirt, Mapping, Survey};
use crate::order::{DeviceId, Order, Span};
use crate::stats::Counters;
use crate::tasks::{Because, Data, Event, Offer, Part, Task, TaskStep, Tasks, Work, common, units};

#[derive(Debug)]
pub(crate) struct Parts {
    /// The cache's configuration, with this shard's share of `gate` and `memory`.
    pub(crate) config: Config,
    pub(crate) map: Mapping,
    pub(crate) tasks: Tasks,
    pub(crate) logging: Logging,
    pub(crate) rounds: Rounds,
    pub(crate) leaving: Leaving,
    pub(crate) fetches: Fetches,
    pub(crate) fills: Fills,
    pub(crate) admission: Admission,
    pub(crate) health: Health,
    pub(crate) shed: Shed,
    /// The sectors that a read miss fetches, aligned; 0 for whole smallest blocks.
    pub(crate) fetch_sectors: u64,
    pub(crate) dirt: Dirt,
    pub(crate) events: Vec<Event>,
    /// Orders that the shard has not handed out yet.
    pub(crate) orders: Vec<Order>,
    pub(crate) counters: Counters,
}

impl Parts {
    /// Creates the parts of the shard of this number, which owns the run `cache` of the cache
    /// device.
    pub(super) fn new(number: u8, cache: &Sectors, config: Config) -> Self {
        let sectors = cache.end - cache.start;
        Self {
            map: Mapping::new(&config, cache),
            tasks: Tasks::new(number, config.sizes.clone()),
            logging: Logging::new(&config, number, sectors),
            rounds: Rounds::default(),
            leaving: Leaving::default(),
            fetches: Fetches::default(),
            fills: Fills::default(),
            admission: Admission::new(&config, sectors),
            health: Health::default(),
            shed: Shed::default(),
            fetch_sectors: 0,
            dirt: Dirt::default(),
            events: Vec::new(),
            orders: Vec::new(),
            counters: Counters::default(),
            config,
        }
    }

    /// Returns the write mode in force: a degraded shard passes everything through.
    #[inline]
    pub(super) fn mode(&self) -> WriteMode {
        if self.health.is_degraded() { WriteMode::Pass } else { self.config.mode }
    }

    /// Returns the number of smallest blocks that a run touches.
    pub(super) fn smallest_blocks(&self, run: &Sectors) -> u64 {
        units(run, self.config.sizes.smallest()).count() as u64
    }

    /// Returns the blocks and gaps of a task's range.
    pub(super) fn survey(&mut self, id: TaskId) -> Survey {
        let task = &self.tasks[id];
        self.map.survey(task.volume, &task.range)
    }

    /// Returns whether a task's range includes a lost sector.
    pub(super) fn is_lost(&self, id: TaskId) -> bool {
        self.map.lost.has_any(self.tasks[id].volume, &self.tasks[id].range)
    }

    /// Returns whether a task's range has dirty sectors on the cache device.
    pub(super) fn is_dirty_below(&mut self, id: TaskId) -> bool {
        let task = &self.tasks[id];
        self.map.is_dirty(task.volume, &task.range)
    }

    /// Logs the new state of a run of a block.
    pub(super) fn note(&mut self, block: Block, run: &Sectors, standing: Standing) {
        self.logging.note(&self.map.directory, block, run, standing, &mut self.orders);
    }

    /// Drops the clean copies of a run. `because` is the reason to report to the admission; `None`
    /// if the caller has reported it.
    pub(super) fn drop_clean(&mut self, block: Block, run: &Sectors, because: Option<Removal>) {
        if self.logging.is_kept() || self.admission.asks() {
            let clean: Vec<Sectors> = self.map.directory.blocks.clean_runs_in(block, run).collect();
            if let Some(because) = because {
                self.admission.removed(&clean, because);
            }
            clean.iter().for_each(|run| self.note(block, run, Standing::Invalid));
        }
        self.map.directory.blocks.set_clean_invalid(block, run);
    }

    /// Handles new content of a run below memory: the run is no longer lost, nor held in memory.
    pub(super) fn found(&mut self, id: TaskId, run: &Sectors) {
        let volume = self.tasks[id].volume;
        self.map.unflushed.let_go(volume, run, &mut self.orders);
        self.map.lost.written(volume, run);
    }

    /// Ends a task: answers its sub-request, releases its buffers and lock, and wakes the tasks
    /// that wait for the lock.
    pub(super) fn finish(&mut self, id: TaskId) {
        self.events.extend(self.tasks.answer(id));
        debug_assert_eq!(self.tasks[id].outstanding, 0);
        self.tasks[id].step = TaskStep::Done;
        self.tasks.release(id, &mut self.orders);
        match self.tasks[id].work {
            Work::Piece(Piece { request, .. }) => {
                if self.tasks.is_last(id) {
                    self.events.push(Event::Finished { request });
                }
            }
            Work::Clean { because, moves, .. } => {
                if moves {
                    self.dirt.end_cleaning(self.tasks[id].volume);
                }
                self.cleaned(id, because);
            }
            // after a failure the run is still held
            Work::WriteBack => self.rounds.ended_one(self.tasks[id].volume, self.tasks[id].fault),
            Work::Fetch => {
                if self.tasks.is_last(id) {
                    self.fetches.ended();
                }
            }
            Work::GiveBack { .. } => unreachable!("it ends without a lock"),
        }
        self.tasks.free(id);
    }

    /// Ends a task with a failure.
    pub(super) fn fail(&mut self, id: TaskId) {
        self.tasks[id].fault = Some(crate::join::Fault::Io);
        self.finish(id);
    }

    /// Handles the end of the cleaning task `id`. If a victim could not be cleaned, the task that
    /// needs its room does not cache the rest of its data.
    fn cleaned(&mut self, id: TaskId, because: Because) {
        let Task { fault, volume, range, .. } = &self.tasks[id];
        let (fault, volume, start) = (*fault, *volume, range.start);
        if because == Because::Round {
            return self.rounds.ended_one(volume, fault);
        }
        if let (Some(_), Some(block)) = (fault, self.map.directory.blocks.find(volume, start)) {
            // or the next task that needs room would try it again and fail
            self.map.directory.spare(block);
        }
        let waiting = match because {
            Because::Room(waiting) => waiting,
            Because::Leaving => return self.leaving.cleaned(fault.is_some()),
            Because::Ahead | Because::Round => return self.dirt.cleaned_ahead(),
        };
        let store = &mut self.tasks[waiting].store;
        store.cleaning -= 1;
        store.no_room |= fault.is_some();
        if store.cleaning == 0 {
            self.tasks.resume(waiting);
        }
    }

    /// Begins a round of cleaning for each volume that has dirty data and no round.
    pub(super) fn begin_rounds(&mut self) {
        if self.dirt.is_resting() && !self.logging.bypass.is_bypassed() {
            return;
        }
        for volume in self.map.volumes() {
            if !self.rounds.has(volume) && self.map.has_dirty_of(volume) {
                self.begin_round(volume, Vec::new(), false);
            }
        }
    }

    /// Begins rounds of write-back from memory, for volumes without a round.
    pub(super) fn write_back_all(&mut self) {
        for volume in self.map.volumes() {
            if !self.rounds.has(volume) && self.map.unflushed.count(volume) > 0 {
                self.begin_round(volume, Vec::new(), true);
            }
        }
    }

    /// Begins a volume's round of cleaning, which these drains wait for.
    pub(super) fn begin_round(
        &mut self,
        volume: VolumeId,
        serving: Vec<Drain>,
        only_write_back: bool,
    ) {
        let left = match self.logging.bypass.is_waited_for() {
            true => Default::default(), // what is held may have to wait for what is cleaned
            false => self.map.unflushed.runs_of(volume, self.config.sizes.largest()).collect(),
        };
        self.rounds.begin(volume, left, serving, only_write_back);
    }

    /// Handles the end of a volume's round. A round that only made room in memory has read nothing:
    /// it does not tell whether dirty data can be read.
    pub(super) fn note_round(&mut self, volume: VolumeId, failed: bool, has_cleaned: bool) {
        if !failed && !has_cleaned {
            return;
        }
        self.logging.bypass.round_ended(volume, failed);
        if !failed {
            self.health.note_readable(volume);
        }
    }

    /// Asks the admission whether a task's smallest block at sector `start` is to be inserted.
    pub(super) fn ask(&mut self, id: TaskId, start: u64, direction: Direction) -> bool {
        let task = &self.tasks[id];
        let in_a_row = task.in_a_row(start, self.config.sizes.smallest());
        let asked = Asked { volume: task.volume, start, direction, in_a_row };
        self.map.directory.may_make(task.volume)
            && self.admission.admits(asked, &mut self.map.directory, &mut self.counters)
    }

    /// Ends the admission's window of counts when it has enough lookups.
    pub(super) fn close_window_in_time(&mut self) {
        self.admission.close_window_in_time(&self.map.directory, &mut self.fetches);
    }

    /// Decides which of a read's missing runs are admitted, and moves them into `offered`.
    pub(super) fn offer_fetches(
        &mut self,
        id: TaskId,
        fetches: &mut Vec<Sectors>,
        offered: &mut Vec<(Sectors, bool)>,
    ) {
        if fetches.is_empty() && !self.admission.asks() {
            return; // all of it is cached
        }
        let task = &self.tasks[id];
        let (volume, range) = (task.volume, task.range.clone());
        let skipped = task.offer != Offer::Bypassed && self.fills.skips(task);
        let may_come_in =
            self.mode().caches_reads() && self.map.directory.may_make(volume) && !skipped;
        let known = match task.offer {
            Offer::Admitted => Some(may_come_in),
            Offer::Bypassed => Some(false),
            Offer::NotMade => (!self.admission.asks()).then_some(may_come_in),
        };
        if skipped {
            fetches.iter().for_each(|run| self.counters.skip_fill(run));
        }
        if let Some(admitted) = known {
            return offered.extend(fetches.drain(..).map(|run| (run, admitted)));
        }
        self.admission.request();
        let mut last = None;
        for fetch in fetches.drain(..) {
            let mut before: Option<bool> = None;
            for (start, part) in units(&fetch, self.config.sizes.smallest()) {
                let admitted = match last {
                    Some((asked, admitted)) if asked == start => admitted, // of another part of it
                    _ => {
                        self.admission.look_up(
                            volume,
                            start,
                            &common(&part, &range),
                            false,
                            Direction::Read,
                        );
                        may_come_in && self.ask(id, start, Direction::Read)
                    }
                };
                last = Some((start, admitted));
                match offered.last_mut() {
                    Some((run, _)) if before == Some(admitted) => run.end = part.end,
                    _ => offered.push((part, admitted)),
                }
                before = Some(admitted);
            }
        }
        self.close_window_in_time();
    }

    pub(super) fn note_read_hit(&mut self, id: TaskId) {
        let task = &mut self.tasks[id];
        if !self.admission.asks() || task.offer != Offer::NotMade {
            return; // it was looked up before it had to wait
        }
        task.offer = Offer::Admitted;
        let (volume, range) = (task.volume, task.range.clone());
        self.admission.request();
        for (start, part) in units(&range, self.config.sizes.smallest()) {
            self.admission.look_up(volume, start, &part, true, Direction::Read);
        }
        self.close_window_in_time();
    }

    /// Decides which blocks a write may make, just before its data goes to the cache.
    pub(super) fn offer_write(&mut self, id: TaskId) {
        if !self.admission.asks() {
            return;
        }
        self.admission.request();
        let survey = self.survey(id);
        let task = &mut self.tasks[id];
        let (volume, range) = (task.volume, task.range.clone());
        let mut bypassed = std::mem::take(&mut task.store.bypassed);
        for (start, part) in units(&range, self.config.sizes.smallest()) {
            let missing = survey.missing.iter().any(|run| run.contains(&start));
            self.admission.look_up(volume, start, &part, !missing, Direction::Write);
            if missing && !self.ask(id, start, Direction::Write) {
                match bypassed.last_mut() {
                    Some(run) if run.end == part.start => run.end = part.end,
                    _ => bypassed.push(part),
                }
            }
        }
        self.tasks[id].store.bypassed = bypassed;
        self.map.reuse(survey);
        self.close_window_in_time();
    }

    /// Returns whether a task may change its range below the cache, must wait for the log, or is
    /// refused.
    pub(super) fn way(&mut self, id: TaskId) -> Way {
        let state = self.logging.bypass.state();
        let is_in_the_way = match state {
            LogState::Writable | LogState::Retired => false,
            LogState::Unwritable => self.has_copies(id),
            LogState::Bypassed { .. } => self.is_dirty_in_log(id),
        };
        match is_in_the_way {
            false => Way::Free,
            true if state == (LogState::Bypassed { stuck: true }) => Way::Refused,
            true => Way::Wait,
        }
    }

    fn has_copies(&mut self, id: TaskId) -> bool {
        let task = &self.tasks[id];
        self.map.has_valid(task.volume, &task.range)
            || self.logging.log.has_gone_in(self.tasks.region_of(id))
    }

    fn is_dirty_in_log(&mut self, id: TaskId) -> bool {
        let task = &self.tasks[id];
        self.logging.bypass.is_brought_down(task.volume, &task.range) || self.is_dirty_below(id)
    }

    /// Returns whether a task may change its range below the cache. If not, the task waits, or has
    /// ended.
    pub(super) fn may_change(&mut self, id: TaskId) -> bool {
        match self.way(id) {
            Way::Free => return true,
            // Cleaning comes after the write-back of memory, so a write-back cannot wait for it.
            // The data stays unflushed.
            Way::Wait if !matches!(self.tasks[id].work, Work::WriteBack) => {
                self.give_back(id);
                self.logging.bypass.put_off(id);
            }
            Way::Wait | Way::Refused => self.fail(id),
        }
        false
    }

    /// Returns whether a commit that a task waited for has failed for good, and clears the failure.
    pub(super) fn has_failed_with_log(&mut self, id: TaskId) -> bool {
        let failed = self.tasks[id].fault.is_some() && !self.logging.bypass.is_writable();
        if failed {
            self.tasks[id].fault = None;
        }
        failed
    }

    /// Restarts an unanswered task as soon as it may continue.
    pub(super) fn start_anew(&mut self, id: TaskId) {
        match self.way(id) {
            Way::Wait if matches!(self.tasks[id].work, Work::WriteBack) => self.fail(id),
            Way::Wait => {
                self.give_back(id);
                self.logging.bypass.put_off(id);
            }
            Way::Free | Way::Refused => {
                self.give_back(id);
                self.tasks.resume(id);
            }
        }
    }

    /// Releases the locks and buffers that a task holds.
    fn give_back(&mut self, id: TaskId) {
        let task = &mut self.tasks[id];
        debug_assert!(
            task.outstanding == 0 && !task.answered,
            "only what has not been answered starts anew"
        );
        (task.step, task.fault) = (TaskStep::Waiting, None);
        (task.store.retry, task.store.no_room, task.store.dirty) = (false, false, false);
        self.tasks.release(id, &mut self.orders);
    }

    /// Logs that the dirty sectors of a task's range are superseded, and waits until that is
    /// durable. The backing device has the same data or newer, and is settled.
    pub(super) fn displace_dirty(&mut self, id: TaskId) {
        self.tasks[id].step = TaskStep::Noting;
        self.note_displaced(id);
        let range = self.tasks[id].range.clone();
        self.await_commit(id, Part::Noted, &range);
    }

    /// Logs that the dirty sectors of a task's range are superseded: clean if a cleaning has
    /// written them, invalid otherwise.
    pub(super) fn note_displaced(&mut self, id: TaskId) {
        let cleans = matches!(self.tasks[id].work, Work::Clean { .. });
        let survey = self.survey(id);
        for (block, run) in &survey.blocks {
            let (dirty, standing): (Vec<Sectors>, _) = match cleans {
                true => (self.map.dirty_there(*block, run), Standing::Clean),
                false => {
                    let dirty = self.map.directory.blocks.dirty_runs_in(*block, run);
                    (dirty.collect(), Standing::Invalid)
                }
            };
            dirty.iter().for_each(|run| self.note(*block, run, standing));
        }
        self.map.reuse(survey);
    }

    #[inline(always)] // every read that hits comes here
    pub(super) fn read_cache(&mut self, id: TaskId, block: Block, run: &Sectors, to: Span) {
        let offset = self.map.cache_offset(block, run);
        let cleans = matches!(self.tasks[id].work, Work::Clean { .. });
        let part = if cleans { Part::Dirty(block) } else { Part::Cached(block) };
        let op = self.tasks.new_op(id, part, run);
        self.counters.cache_read_bytes += to.len;
        self.orders.push(Order::Read { op, device: DeviceId::Cache, offset, to });
    }

    /// Writes a run of a task's data to its place in a block.
    pub(super) fn write_cache(&mut self, id: TaskId, block: Block, run: &Sectors) {
        let offset = self.map.cache_offset(block, run);
        let from = self.tasks[id].store.data.span(run);
        let op = self.tasks.new_op(id, Part::Store(block), run);
        self.admission.inserted(run);
        self.counters.cache_write_bytes += from.len;
        if self.tasks[id].reads() {
            self.fills.begin(run);
        }
        let device = DeviceId::Cache;
        self.orders.push(Order::Write { op, device, offset, from, durable: false });
    }

    pub(super) fn read_backing(&mut self, id: TaskId, part: Part, run: &Sectors, to: Span) {
        let op = self.tasks.new_op(id, part, run);
        self.counters.backing_read_bytes += to.len;
        let device = DeviceId::Backing(self.tasks[id].volume);
        self.orders.push(Order::Read { op, device, offset: run.start * SECTOR_BYTES, to });
    }

    /// Writes a run of a task's data to the backing device.
    pub(super) fn write_backing(&mut self, id: TaskId, part: Part, run: &Sectors, durable: bool) {
        let op = self.tasks.new_op(id, part, run);
        let from = self.tasks[id].store.data.span(run);
        self.counters.backing_write_bytes += from.len;
        let device = DeviceId::Backing(self.tasks[id].volume);
        let offset = run.start * SECTOR_BYTES;
        self.orders.push(Order::Write { op, device, offset, from, durable });
    }

    pub(super) fn copy(&mut self, from: Data, to: Data, run: &Sectors) {
        if !run.is_empty() {
            self.orders.push(Order::Copy { from: from.span(run), to: to.span(run) });
        }
    }

    /// Makes a task wait until all pending changes of the log are durable.
    pub(super) fn await_commit(&mut self, id: TaskId, part: Part, run: &Sectors) {
        let op = self.tasks.new_op(id, part, run);
        self.logging.log.wait(op);
        self.events.push(Event::WantsCommit);
    }

    /// Makes a task wait until all writes to its volume's backing device are durable.
    pub(super) fn await_settlement(&mut self, id: TaskId) {
        let (volume, range) = (self.tasks[id].volume, self.tasks[id].range.clone());
        let op = self.tasks.new_op(id, Part::Settled, &range);
        self.logging.settlements.wait(volume, op);
        self.events.push(Event::WantsSettlement(volume));
    }

    /// Marks a sub-request's dirty sectors in its request's buffer, a byte each, and ends it.
    pub(super) fn mark_dirty(&mut self, id: TaskId) {
        let task = &self.tasks[id];
        let (volume, sectors, at) = (task.volume, task.range.clone(), task.request_data());
        let mark = |run: Sectors| {
            let offset = at.offset + (run.start - at.sector);
            Order::Mark { span: Span { buffer: at.buffer, offset, len: run.end - run.start } }
        };
        if self.map.directory.blocks.dirty_sectors() > 0 {
            let survey = self.survey(id);
            for (block, run) in &survey.blocks {
                self.orders.extend(self.map.directory.blocks.dirty_runs_in(*block, run).map(mark));
            }
            self.map.reuse(survey);
        }
        self.orders.extend(self.map.unflushed.runs(volume, &sectors).into_iter().map(mark));
        self.orders.extend(self.map.lost.of(volume, &sectors).map(|lost| mark(lost..lost + 1)));
        self.finish(id);
    }
}

/// Frees a group whose blocks hold no data, unless a task uses one of them.
pub(super) fn free_if_empty(parts: &mut Parts, group: u32) {
    let Parts { map, tasks, logging, orders, .. } = parts;
    let (directory, blocks) = (&map.directory, &map.directory.blocks);
    let is_needed = |block| {
        let sectors = blocks.sectors(block);
        blocks.has_valid(block, &sectors) || tasks.in_use(blocks.volume(block), &sectors)
    };
    if directory.blocks_of(group).any(is_needed) {
        return;
    }
    for block in directory.blocks_of(group) {
        logging.note_dropped(directory, block, orders);
    }
    map.directory.empty(group);
}

/// The permission for a task to change its range below the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Free,
    Wait,
    Refused,
}

/// Decides which hits are shed: one each time the sum of the shares reaches the next whole number.
#[derive(Debug, Default)]
pub(crate) struct Shed {
    /// The share of shed hits, in units of 2⁻³².
    share: u32,
    sum: u32,
}

impl Shed {
    /// Sets the share of the hits on the cache device that are shed, in units of 2⁻³².
    pub(crate) fn set(&mut self, share: u32) {
        self.share = share;
    }

    /// Returns whether the next hit is to be read from the backing device.
    #[inline]
    pub(crate) fn draw(&mut self) -> bool {
        let is_whole;
        (self.sum, is_whole) = self.sum.overflowing_add(self.share);
        is_whole
    }
}

/// Number of consecutive failures after which a shard degrades. A request has a few operations on a
/// bad spot, and others succeed between them. A failed device fails all operations under way, so
/// this many come at once and cost one time-out.
const FAILURES_IN_A_ROW: u32 = 16;

/// The health of the cache device: failures in a row, and volumes with unreadable data.
#[derive(Debug, Default)]
pub(crate) struct Health {
    failures: u32,
    degraded: bool,
    /// Volumes with dirty data that the device has failed to read, and has not read completely
    /// since.
    unreadable: BTreeSet<VolumeId>,
}

impl Health {
    #[inline]
    pub(crate) fn is_degraded(&self) -> bool {
        self.degraded
    }

    /// Returns the number of a range's sectors to count as bypassed because of the device: all if
    /// it is degraded, else 0.
    pub(crate) fn bypassed_sectors(&self, range: &Sectors) -> u64 {
        if self.degraded { range.end - range.start } else { 0 }
    }

    /// Stops the use of the device.
    pub(crate) fn degrade(&mut self) {
        self.degraded = true;
    }

    /// Uses the device again. It must still hold every write it has acknowledged; data that it may
    /// have lost must be dropped before. Volumes marked as unreadable stay so until all their dirty
    /// data has been read.
    pub(crate) fn restore(&mut self) {
        (self.failures, self.degraded) = (0, false);
    }

    /// Records an operation's result, if the cache device carried it out. `cleans` is the volume
    /// whose dirty data the task reads to clean it.
    #[inline]
    pub(crate) fn note_op(&mut self, part: Part, cleans: Option<VolumeId>, ok: bool) {
        match part {
            Part::Cached(_) | Part::Store(_) => self.note(ok, None),
            Part::Dirty(_) if cleans.is_some() => self.note(ok, cleans),
            _ => {}
        }
    }

    /// Records the result of an operation of the cache device; `dirty_of` is the volume whose dirty
    /// data it read, if any.
    #[inline]
    fn note(&mut self, ok: bool, dirty_of: Option<VolumeId>) {
        if ok {
            self.failures = 0;
        } else {
            self.unreadable.extend(dirty_of);
            self.failures += 1;
            self.degraded |= self.failures >= FAILURES_IN_A_ROW;
        }
    }

    /// Returns whether the device has failed to read some dirty data.
    #[inline]
    pub(crate) fn is_unreadable(&self) -> bool {
        !self.unreadable.is_empty()
    }

    /// Records that all dirty data of a volume could be read, or that the volume is gone.
    pub(crate) fn note_readable(&mut self, volume: VolumeId) {
        self.unreadable.remove(&volume);
    }

    /// Records that dirty data of a volume could not be read.
    pub(crate) fn note_unreadable(&mut self, volume: VolumeId) {
        self.unreadable.insert(volume);
    }
}

#[cfg(test)]
mod shed_tests {
    use super::*;

    #[test]
    fn hits_are_drawn_by_their_share() {
        let mut shed = Shed::default();
        let mut drawn = |share| {
            shed.set(share);
            (0..16).filter(|_| shed.draw()).count()
        };
        assert_eq!([0, 1 << 30, 1 << 31].map(&mut drawn), [0, 4, 8]);
    }
}

#[cfg(test)]
mod health_tests {
    use super::*;

    #[test]
    fn a_device_is_given_up_after_failures_in_a_row() {
        let mut health = Health::default();
        (1..FAILURES_IN_A_ROW).for_each(|_| health.note(false, None));
        health.note(true, None);
        (1..FAILURES_IN_A_ROW).for_each(|_| health.note(false, None));
        assert!(!health.is_degraded() && !health.is_unreadable());
        health.note(false, Some(VolumeId(1)));
        assert!(health.is_degraded() && health.is_unreadable());
        health.note_readable(VolumeId(1));
        assert!(health.is_degraded() && !health.is_unreadable());
    }

    #[test]
    fn unreadable_data_is_readable_again_when_all_of_its_volume_was_read() {
        let mut health = Health::default();
        health.note(false, Some(VolumeId(1)));
        health.note_unreadable(VolumeId(2));
        health.note(true, Some(VolumeId(1)));
        health.note_readable(VolumeId(2));
        health.restore();
        assert!(health.is_unreadable());
        health.note_readable(VolumeId(1));
        assert!(!health.is_unreadable());
    }
}
