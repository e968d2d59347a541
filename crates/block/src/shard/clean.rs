//! Cleaning: writes dirty blocks to the backing device, one by one, in rounds (`rounds`), to make
//! room, or ahead of eviction. While a block is being cleaned it can be read but not written.

use std::collections::VecDeque;

use super::Shard;
use super::rounds::{Drain, Next};
use crate::engine::locks::{Need, TaskId};
use crate::engine::request::Fault;
use crate::engine::{Because, Data, Event, Part, Step, Task, Work};
use crate::geometry::{Sectors, VolumeId};
use crate::mapping::directory::Block;
use crate::order::{BufferId, Order};

impl Shard {
    /// Writes all data of a volume that is dirty now to its backing device. [`Event::Drained`]
    /// reports the end and the result.
    ///
    /// Without `to_backing` only unflushed data is written, and only to the cache device.
    pub(crate) fn drain(
        &mut self,
        number: u32,
        volume: VolumeId,
        to_backing: bool,
        orders: &mut Vec<Order>,
    ) {
        // The loss in a persistent cache concerns data that had been flushed: a later flush need
        // not fail for it.
        let has_to_go = to_backing || !self.is_kept();
        let lost = has_to_go && self.lost.has_any_of(volume);
        let drain = Drain { number, lost, to_backing };
        if !to_backing && self.held.count(volume) == 0 {
            let result = if lost { Err(Fault::Io) } else { Ok(()) };
            return self.events.push(Event::Drained { drain: number, result });
        }
        if !self.rounds.wait(volume, drain) {
            self.begin_round(volume, vec![drain], !to_backing);
        }
        self.run_round(volume, orders);
        self.run_ready(orders);
    }

    /// Starts rounds for all dirty data that no round covers.
    pub(crate) fn clean_all(&mut self, orders: &mut Vec<Order>) {
        self.begin_rounds(orders);
        self.run_ready(orders);
    }

    /// Begins a round for each volume with dirty data and without a round.
    pub(super) fn begin_rounds(&mut self, orders: &mut Vec<Order>) {
        for volume in (0..self.volumes.len()).map(|volume| VolumeId(volume as u16)) {
            let dirty =
                self.directory.dirty_blocks(volume).next().is_some() || self.held.count(volume) > 0;
            if !self.rounds.has(volume) && dirty {
                self.begin_round(volume, Vec::new(), false);
                self.run_round(volume, orders);
            }
        }
    }

    /// Begins to clean once half of the bound is dirty.
    pub(super) fn clean_in_time(&mut self, orders: &mut Vec<Order>) {
        if self.dirt.is_time_to_clean(self.directory.dirty_sectors()) {
            self.begin_rounds(orders);
        }
    }

    /// Starts rounds that make room in memory, for volumes without a round.
    pub(super) fn sink_all(&mut self, orders: &mut Vec<Order>) {
        for volume in (0..self.volumes.len()).map(|volume| VolumeId(volume as u16)) {
            if !self.rounds.has(volume) && self.held.count(volume) > 0 {
                self.begin_round(volume, Vec::new(), true);
                self.run_round(volume, orders);
            }
        }
    }

    fn begin_round(&mut self, volume: VolumeId, serving: Vec<Drain>, only_sinks: bool) {
        let sinks = !self.bypass.is_waited_for();
        let left = match sinks {
            true => self.held.runs_of(volume, self.config.sizes.largest()).collect(),
            false => VecDeque::new(), // what is held may have to wait for what is cleaned
        };
        self.rounds.begin(volume, left, serving, only_sinks);
    }

    /// Starts as many operations of a volume's round as may be under way; ends the round, and
    /// begins the next if one is wanted.
    pub(super) fn run_round(&mut self, volume: VolumeId, orders: &mut Vec<Order>) {
        loop {
            let dirty = self.directory.dirty_sectors();
            let yielding = self.dirt.cleaned_at_once(dirty, self.tasks.await_backing());
            match self.rounds.next(volume, yielding) {
                Next::Sink(run) => self.sink(volume, run, orders),
                Next::Clean(start) => self.clean(volume, start, Because::Round, orders),
                Next::Blocks => {
                    let blocks = self.directory.dirty_blocks(volume);
                    let sectors = blocks.map(|block| self.directory.sectors(block)).collect();
                    self.rounds.clean(volume, sectors);
                }
                Next::Ended { fault, serving, waiting } => {
                    self.note_round(volume, fault.is_some());
                    self.events.extend(serving.iter().map(|drain| Event::Drained {
                        drain: drain.number,
                        result: drain.result(fault),
                    }));
                    if !waiting.is_empty() {
                        let only_sinks = !waiting.iter().any(|drain| drain.to_backing);
                        self.begin_round(volume, waiting, only_sinks);
                    } else if fault.is_none() && self.is_to_be_emptied(volume) {
                        self.begin_round(volume, Vec::new(), false);
                    }
                }
                Next::Wait => return,
            }
        }
    }

    /// Starts to clean the block that begins at a sector.
    pub(super) fn clean(
        &mut self,
        volume: VolumeId,
        block_start: u64,
        because: Because,
        orders: &mut Vec<Order>,
    ) {
        let work = Work::Clean { block_start, because };
        let id = self.tasks.begin(work, volume, block_start..block_start + 1);
        self.start_clean(id, orders);
    }

    /// Handles the end of the cleaning task `id`.
    pub(super) fn cleaned(&mut self, id: TaskId, because: Because, orders: &mut Vec<Order>) {
        let Task { fault, volume, range, .. } = &self.tasks[id];
        let (fault, volume, start) = (*fault, *volume, range.start);
        if because == Because::Round {
            return self.rounds.ended_one(volume, fault);
        }
        if let (Some(_), Some(block)) = (fault, self.directory.find(volume, start)) {
            // or the next task that needs room would try it again and fail
            self.directory.spare(block);
        }
        match because {
            Because::Room(task) => self.victim_cleaned(task, fault.is_none(), orders),
            _ => self.dirt.cleaned_ahead(),
        }
    }

    /// Returns the block to clean, if it still exists and is dirty.
    fn block_to_clean(&self, id: TaskId) -> Option<(Block, Sectors)> {
        let task = &self.tasks[id];
        let Work::Clean { block_start, .. } = task.work else {
            unreachable!("pieces are not cleaned")
        };
        let block = self.directory.find(task.volume, block_start)?;
        let sectors = self.directory.sectors(block);
        (sectors.start == block_start && self.directory.is_dirty(block)).then_some((block, sectors))
    }

    pub(super) fn start_clean(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let Some((_, sectors)) = self.block_to_clean(id) else { return self.finish(id, orders) };
        self.tasks[id].range = sectors.clone();
        if !self.tasks.lock(id, Need::shared(sectors)) {
            return;
        }
        if self.has_gone(id) {
            self.tasks[id].step = Step::Unlogging;
            let range = self.tasks[id].range.clone();
            return self.await_commit(id, Part::Noted, &range);
        }
        self.clean_read(id, orders);
    }

    /// Reads the dirty runs. The log has no clean copy of them by now.
    pub(super) fn clean_read(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let Some((block, _)) = self.block_to_clean(id) else { return self.finish(id, orders) };
        let runs = self.dirty_there(block, &self.directory.sectors(block));
        let ends = runs.first().zip(runs.last()).map(|(first, last)| first.start..last.end);
        let Some(hull) = ends else {
            self.tasks[id].fault = Some(Fault::Io); // all that is dirty is lost
            return self.finish(id, orders);
        };
        let scratch = self.tasks.new_scratch(id, hull.end - hull.start, orders);
        let data = Data { buffer: BufferId::Scratch(scratch), sector: hull.start, offset: 0 };
        self.tasks[id].store.data = data;
        self.tasks[id].step = Step::CleanRead;
        for run in runs {
            self.order_cache_read(id, Part::Dirty(block), block, &run, data.span(&run), orders);
        }
    }

    pub(super) fn clean_read_ended(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        if self.tasks[id].fault.is_some() {
            self.counters.cache_errors += 1;
            return self.finish(id, orders);
        }
        // Another task may have cleaned the block meanwhile, to make room.
        let Some((block, _)) = self.block_to_clean(id) else { return self.finish(id, orders) };
        let runs = self.dirty_there(block, &self.directory.sectors(block));
        if runs.is_empty() {
            self.tasks[id].fault = Some(Fault::Io);
            return self.finish(id, orders);
        }
        self.tasks[id].step = Step::CleanWrite;
        for run in runs {
            let from = self.tasks[id].store.data.span(&run);
            self.counters.cleaned_bytes += from.len;
            self.order_backing_write(id, Part::Dirty(block), &run, from, false, orders);
        }
    }

    /// Ends the write of dirty data to the backing device. In a persistent cache that write has to
    /// be durable before the log may call the data clean.
    pub(super) fn clean_write_ended(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        if self.tasks[id].fault.is_some() || !self.is_kept() {
            return self.finish(id, orders);
        }
        if planted!(CleanBeforeFlush) {
            return self.settling_ended(id, orders);
        }
        self.tasks[id].step = Step::Settling;
        self.await_settlement(id);
    }

    /// Marks a block clean after the log has recorded it.
    pub(super) fn clean_noted(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        self.set_clean(id, false, orders);
    }

    /// Marks a block clean that the backing device durably has, although the log cannot record it.
    pub(super) fn brought_down(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        self.set_clean(id, true, orders);
    }

    fn set_clean(&mut self, id: TaskId, without_log: bool, orders: &mut Vec<Order>) {
        if let Some((block, _)) = self.block_to_clean(id) {
            let volume = self.directory.volume(block);
            for run in self.dirty_there(block, &self.directory.sectors(block)) {
                self.forget_seals(block, &run);
                self.directory.set_clean(block, &run);
                if without_log {
                    self.bypass.brought_down(volume, &run);
                }
            }
            if self.directory.is_dirty(block) {
                self.tasks[id].fault = Some(Fault::Io); // the rest is lost, and in the way
            }
        }
        self.finish(id, orders);
    }
}
