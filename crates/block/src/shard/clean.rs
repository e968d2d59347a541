//! Bringing dirty data to the backing device: a block at a time, in rounds or to make room.
//!
//! A round takes every block that is dirty when it begins, in backing order, a bounded number at once. Drains
//! (a client's flush, the end of the program) that arrive during a round wait for the next one, so any number of
//! them costs at most two rounds. While a block is being cleaned it can be read but not written.

use std::collections::VecDeque;

use floe_policy::Ranked;

use super::Shard;
use super::read::hull;
use super::task::{Because, Data, Event, Part, Step, Task, Work};
use crate::directory::Block;
use crate::geometry::{Place, Sectors, VolumeId};
use crate::locks::{Need, TaskId};
use crate::order::{BufferId, Order};
use crate::request::Fault;

/// Blocks cleaned at once by a round.
const CLEANED_AT_ONCE: usize = 32;

/// The round under way and what waits for it.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    running: bool,
    /// Blocks have been cleaned since the round was last looked after.
    moved: bool,
    left: VecDeque<Place>,
    under_way: usize,
    /// The first failure of each volume.
    faults: Vec<(VolumeId, Fault)>,
    /// Drains that the running round answers, and those for the next.
    serving: Vec<Drain>,
    waiting: Vec<Drain>,
}

#[derive(Debug, Clone, Copy)]
struct Drain {
    number: u32,
    volume: VolumeId,
    /// Some answered write of the volume was on no device when the drain came or since. That it has been replaced
    /// meanwhile does not help: what replaced it need not be part of the round.
    lost: bool,
}

impl Rounds {
    pub(super) fn is_idle(&self) -> bool {
        !self.running
    }

    /// Data of a volume has been lost: drains that came before cannot promise it.
    pub(super) fn note_loss(&mut self, volume: VolumeId) {
        for drain in self.serving.iter_mut().chain(&mut self.waiting) {
            drain.lost |= drain.volume == volume;
        }
    }

    /// Whether the round is to be looked after, asked once.
    pub(super) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }
}

impl<E: Ranked + Default> Shard<E> {
    /// Brings everything that is dirty now to the backing devices; [`Event::Drained`] tells when, and whether all of
    /// `volume` is there.
    pub(crate) fn drain(&mut self, drain: u32, volume: VolumeId, orders: &mut Vec<Order>) {
        let lost = self.lost.range(Place::all_of(volume)).next().is_some();
        self.rounds.waiting.push(Drain { number: drain, volume, lost });
        self.run_round(orders);
        self.run_ready(orders);
    }

    /// Brings everything dirty to the backing device, unless that is going on anyway.
    pub(crate) fn clean_all(&mut self, orders: &mut Vec<Order>) {
        if !self.rounds.running && self.directory.dirty_sectors() > 0 {
            self.begin_round();
            self.run_round(orders);
            self.run_ready(orders);
        }
    }

    fn begin_round(&mut self) {
        self.rounds.running = true;
        self.rounds.faults.clear();
        self.rounds.serving = std::mem::take(&mut self.rounds.waiting);
        let blocks = self.directory.dirty_blocks();
        self.rounds.left = blocks
            .map(|block| Place::new(self.directory.volume(block), self.directory.sectors(block).start))
            .collect();
    }

    /// Starts as many blocks of the round as may be under way; ends the round, and begins the next if one is wanted.
    pub(super) fn run_round(&mut self, orders: &mut Vec<Order>) {
        loop {
            if !self.rounds.running {
                if self.rounds.waiting.is_empty() {
                    return;
                }
                self.begin_round();
            }
            while self.rounds.under_way < CLEANED_AT_ONCE {
                let Some(place) = self.rounds.left.pop_front() else { break };
                self.rounds.under_way += 1;
                self.clean(place.volume(), place.sector(), Because::Round, orders);
            }
            if self.rounds.under_way > 0 {
                return;
            }
            self.rounds.running = false;
            let Rounds { faults, serving, .. } = &mut self.rounds;
            let result = |drain: &Drain| match faults.iter().find(|(volume, _)| *volume == drain.volume) {
                Some((_, fault)) => Err(*fault),
                None if drain.lost => Err(Fault::Io),
                None => Ok(()),
            };
            let served = serving.drain(..);
            self.events
                .extend(served.map(|drain| Event::Drained { drain: drain.number, result: result(&drain) }));
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
        let id = self.new_task(work, volume, block_start..block_start + 1);
        self.start_clean(id, orders);
    }

    /// The cleaning task `id` has ended, for better or worse.
    pub(super) fn cleaned(&mut self, id: TaskId, because: Because, orders: &mut Vec<Order>) {
        let Task { fault, volume, range, .. } = &self.tasks[id as usize];
        let (fault, volume, start) = (*fault, *volume, range.start);
        match because {
            Because::Room(task) => {
                if let (Some(_), Some(block)) = (fault, self.directory.find(volume, start)) {
                    self.directory.touch(block); // or whoever needs room next would try, and fail, with it again
                }
                self.victim_cleaned(task, fault.is_none(), orders);
            }
            Because::Round => {
                self.rounds.under_way -= 1;
                self.rounds.moved = true;
                let faults = &mut self.rounds.faults;
                if let (Some(fault), false) = (fault, faults.iter().any(|(of, _)| *of == volume)) {
                    faults.push((volume, fault));
                }
            }
        }
    }

    /// The block to clean, if it is still there and dirty.
    fn block_to_clean(&self, id: TaskId) -> Option<(Block, Sectors)> {
        let task = &self.tasks[id as usize];
        let Work::Clean { block_start, .. } = task.work else { unreachable!("pieces are not cleaned") };
        let block = self.directory.find(task.volume, block_start)?;
        let sectors = self.directory.sectors(block);
        (sectors.start == block_start && self.directory.is_dirty(block)).then_some((block, sectors))
    }

    pub(super) fn start_clean(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let Some((block, sectors)) = self.block_to_clean(id) else { return self.finish(id, orders) };
        self.tasks[id as usize].range = sectors.clone();
        if !self.lock(id, Need::shared(sectors)) {
            return;
        }
        let runs: Vec<Sectors> = self.directory.dirty_runs(block).collect();
        let hull = hull(&runs).expect("the block is dirty");
        let scratch = self.new_scratch(id, hull.end - hull.start, orders);
        let data = Data { buffer: BufferId::Scratch(scratch), sector: hull.start, offset: 0 };
        self.tasks[id as usize].data = data;
        self.tasks[id as usize].step = Step::CleanRead;
        for run in runs {
            self.order_cache_read(id, Part::Dirty(block), block, &run, data.span(&run), orders);
        }
    }

    pub(super) fn clean_read_ended(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        if self.tasks[id as usize].fault.is_some() {
            self.counters.cache_errors += 1;
            return self.finish(id, orders);
        }
        // Another task may have cleaned it meanwhile: to make room, while this one does for a round.
        let Some((block, _)) = self.block_to_clean(id) else { return self.finish(id, orders) };
        self.tasks[id as usize].step = Step::CleanWrite;
        let runs: Vec<Sectors> = self.directory.dirty_runs(block).collect();
        for run in runs {
            let from = self.tasks[id as usize].data.span(&run);
            self.order_backing_write(id, Part::Dirty(block), &run, from, false, orders);
        }
    }
}
