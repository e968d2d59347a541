//! Cleaning: writes dirty blocks to the backing device, one by one, in rounds, to make room, or
//! ahead of eviction.
//!
//! A round takes every block of a volume that is dirty when it begins, in backing order, a bounded
//! number at once. Before that it writes back the volume's unflushed sectors (`sink`); a round that
//! only makes room in memory ends there. Drains (a client's flush, the end of the server) that
//! arrive during their volume's round wait for the next one. So any number of them costs at most
//! two rounds, and none waits for another volume's device. While a block is being cleaned it can be
//! read but not written.

use std::collections::VecDeque;

use super::Shard;
use crate::directory::Block;
use crate::engine::{Because, Data, Event, Part, Step, Task, Work};
use crate::geometry::{Sectors, VolumeId};
use crate::locks::{Need, TaskId};
use crate::mapping::CLEANED_AT_ONCE;
use crate::order::{BufferId, Order};
use crate::request::Fault;

/// The rounds under way, at most one a volume.
#[derive(Debug, Default)]
pub(super) struct Rounds(Vec<Round>);

/// A round of a volume, and the drains that wait for it.
#[derive(Debug)]
struct Round {
    volume: VolumeId,
    /// Blocks have been cleaned since the round was last advanced.
    moved: bool,
    stage: Stage,
    /// Runs still to be written back, or blocks still to be cleaned.
    left: VecDeque<Sectors>,
    under_way: usize,
    /// The first failure.
    fault: Option<Fault>,
    /// Drains that the round answers, and those for the next.
    serving: Vec<Drain>,
    waiting: Vec<Drain>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Writing unflushed sectors to the tiers below. `last`: the round ends with this stage.
    Sinking {
        last: bool,
    },
    Cleaning,
}

#[derive(Debug, Clone, Copy)]
struct Drain {
    number: u32,
    /// The drain goes to the backing device, and not only from memory to the cache device.
    to_backing: bool,
    /// Some answered write of the volume was on no device when the drain came or since. A
    /// replacement written meanwhile does not help: it need not be part of the round.
    lost: bool,
}

impl Rounds {
    pub(super) fn is_idle(&self) -> bool {
        self.0.is_empty()
    }

    fn of(&mut self, volume: VolumeId) -> Option<&mut Round> {
        self.0.iter_mut().find(|round| round.volume == volume)
    }

    /// Notes a loss of a volume's data: the drains that came before cannot promise it.
    pub(super) fn note_loss(&mut self, volume: VolumeId) {
        if let Some(round) = self.of(volume) {
            round.serving.iter_mut().chain(&mut round.waiting).for_each(|drain| drain.lost = true);
        }
    }

    /// Puts unflushed runs back into the round, to be written back one by one.
    pub(super) fn take_back(
        &mut self,
        volume: VolumeId,
        runs: impl DoubleEndedIterator<Item = Sectors>,
    ) {
        let round = self.of(volume).expect("what sinks does so in a round");
        runs.rev().for_each(|run| round.left.push_front(run));
    }

    /// Notes the end of one of the operations under way in a volume's round.
    pub(super) fn ended_one(&mut self, volume: VolumeId, fault: Option<Fault>) {
        let round = self.of(volume).expect("a round ends after the last of it");
        round.under_way -= 1;
        round.moved = true;
        round.fault = round.fault.or(fault);
    }

    /// Returns a volume whose round is to be advanced; each is returned once.
    pub(super) fn take_moved(&mut self) -> Option<VolumeId> {
        let round = self.0.iter_mut().find(|round| round.moved)?;
        round.moved = false;
        Some(round.volume)
    }
}

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
        match self.rounds.of(volume) {
            Some(round) => round.waiting.push(drain),
            None => self.begin_round(volume, vec![drain], !to_backing),
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
            if self.rounds.of(volume).is_none() && dirty {
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
            if self.rounds.of(volume).is_none() && self.held.count(volume) > 0 {
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
        self.rounds.0.push(Round {
            volume,
            moved: false,
            stage: Stage::Sinking { last: only_sinks },
            left,
            under_way: 0,
            fault: None,
            serving,
            waiting: Vec::new(),
        });
    }

    /// Starts as many operations of a volume's round as may be under way; ends the round, and
    /// begins the next if one is wanted.
    pub(super) fn run_round(&mut self, volume: VolumeId, orders: &mut Vec<Order>) {
        loop {
            let yielding = self
                .dirt
                .cleaned_at_once(self.directory.dirty_sectors(), self.tasks.await_backing());
            let rounds = self.rounds.0.len().max(1);
            let Some(round) = self.rounds.of(volume) else { return };
            let is_awaited = !round.serving.is_empty() || !round.waiting.is_empty();
            let at_once = (if is_awaited { CLEANED_AT_ONCE } else { yielding } / rounds).max(1);
            if round.under_way < at_once
                && let Some(run) = round.left.pop_front()
            {
                round.under_way += 1;
                match round.stage {
                    Stage::Sinking { .. } => self.sink(volume, run, orders),
                    Stage::Cleaning => self.clean(volume, run.start, Because::Round, orders),
                }
                continue;
            }
            if round.under_way > 0 {
                return;
            }
            if round.stage == (Stage::Sinking { last: false }) {
                round.stage = Stage::Cleaning;
                let blocks = self.directory.dirty_blocks(volume);
                round.left = blocks.map(|block| self.directory.sectors(block)).collect();
                continue;
            }
            let at = self.rounds.0.iter().position(|round| round.volume == volume);
            let ended = self.rounds.0.swap_remove(at.expect("it has just been found"));
            self.note_round(volume, ended.fault.is_some());
            let result = |drain: &Drain| match ended.fault {
                Some(fault) => Err(fault),
                None if drain.lost => Err(Fault::Io),
                None => Ok(()),
            };
            let served = ended.serving.iter();
            self.events.extend(
                served.map(|drain| Event::Drained { drain: drain.number, result: result(drain) }),
            );
            if !ended.waiting.is_empty() {
                let only_sinks = !ended.waiting.iter().any(|drain| drain.to_backing);
                self.begin_round(volume, ended.waiting, only_sinks);
            } else if ended.fault.is_none() && self.is_to_be_emptied(volume) {
                self.begin_round(volume, Vec::new(), false);
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
        self.tasks[id].data = data;
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
            let from = self.tasks[id].data.span(&run);
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
