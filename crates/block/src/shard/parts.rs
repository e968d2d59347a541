//! The parts of a shard, and the ends and beginnings that all kinds of tasks have in common.
//!
//! Steps of tasks ([`super::read`], [`super::write`], [`super::store`], [`super::clean`]) name the
//! parts that they touch. Nothing here begins a step: a task that is to go on is queued
//! ([`Tasks::resume`]), a round that is to go on is marked, and the shard's loop finds both.

use super::admission::{Admission, Removal};
use super::fetch::Fetches;
use super::health::Health;
use super::logging::Logging;
use super::rounds::{Drain, Rounds};
use super::shed::Shed;
use crate::config::Config;
use crate::engine::locks::TaskId;
use crate::engine::piece::Piece;
use crate::engine::{Because, Event, Step, Task, Tasks, Work, units};
use crate::geometry::{Sectors, VolumeId};
use crate::mapping::directory::Block;
use crate::mapping::{Dirt, Mapping, Survey};
use crate::mode::WriteMode;
use crate::order::Order;
use crate::stats::Counters;
use crate::store::journal::Standing;

/// The parts of a shard.
#[derive(Debug)]
pub(crate) struct Parts {
    /// The cache's configuration, with this shard's share of `gate` and `memory`.
    pub(crate) config: Config,
    pub(crate) map: Mapping,
    pub(crate) tasks: Tasks,
    pub(crate) logging: Logging,
    pub(crate) rounds: Rounds,
    pub(crate) fetches: Fetches,
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
    /// Returns the parts of the shard of this number, which has `cache` of the cache device.
    pub(super) fn new(number: u8, cache: &Sectors, config: Config) -> Self {
        let sectors = cache.end - cache.start;
        Self {
            map: Mapping::new(&config, cache),
            tasks: Tasks::new(number, config.sizes.clone()),
            logging: Logging::new(&config, number, sectors),
            rounds: Rounds::default(),
            fetches: Fetches::default(),
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

    /// Returns the write mode in force.
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

    /// Returns whether a task's range has dirty sectors below memory.
    pub(super) fn is_dirty_below(&mut self, id: TaskId) -> bool {
        let task = &self.tasks[id];
        self.map.is_dirty(task.volume, &task.range)
    }

    /// Notes the new state of a run of a block.
    pub(super) fn note(&mut self, block: Block, run: &Sectors, standing: Standing) {
        self.logging.note(&self.map.directory, block, run, standing, &mut self.orders);
    }

    /// Drops the clean copies of a run, and tells the admission why unless the caller has.
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

    /// Handles new content of a run: it is no longer lost, nor held in memory.
    pub(super) fn found(&mut self, id: TaskId, run: &Sectors) {
        let volume = self.tasks[id].volume;
        self.map.held.let_go(volume, run, &mut self.orders);
        self.map.lost.written(volume, run);
    }

    /// Ends a task: answers, releases its buffers and lock, and wakes the tasks that wait for the
    /// lock.
    pub(super) fn finish(&mut self, id: TaskId) {
        self.events.extend(self.tasks.answer(id));
        debug_assert_eq!(self.tasks[id].outstanding, 0);
        self.tasks[id].step = Step::Done;
        self.tasks.release(id, &mut self.orders);
        match self.tasks[id].work {
            Work::Piece(Piece { request, .. }) => {
                if self.tasks.is_last(id) {
                    self.events.push(Event::Finished { request });
                }
            }
            Work::Clean { because, .. } => self.cleaned(id, because),
            // after a failure the run is still held
            Work::Sink => self.rounds.ended_one(self.tasks[id].volume, self.tasks[id].fault),
            Work::Fetch => {
                if self.tasks.is_last(id) {
                    self.fetches.ended();
                }
            }
        }
        self.tasks.free(id);
    }

    /// Ends a task with a failure.
    pub(super) fn fail(&mut self, id: TaskId) {
        self.tasks[id].fault = Some(crate::engine::request::Fault::Io);
        self.finish(id);
    }

    /// Handles the end of the cleaning task `id`. If a victim cannot be cleaned, the rest of the
    /// task that needs its room is not cached.
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
        let Because::Room(waiting) = because else { return self.dirt.cleaned_ahead() };
        let store = &mut self.tasks[waiting].store;
        store.cleaning -= 1;
        store.no_room |= fault.is_some();
        if store.cleaning == 0 {
            self.tasks.resume(waiting);
        }
    }

    /// Begins a round for each volume with dirty data and without a round.
    pub(super) fn begin_rounds(&mut self) {
        for volume in self.map.volumes() {
            if !self.rounds.has(volume) && self.map.has_dirty_of(volume) {
                self.begin_round(volume, Vec::new(), false);
            }
        }
    }

    /// Begins rounds that make room in memory, for volumes without a round.
    pub(super) fn sink_all(&mut self) {
        for volume in self.map.volumes() {
            if !self.rounds.has(volume) && self.map.held.count(volume) > 0 {
                self.begin_round(volume, Vec::new(), true);
            }
        }
    }

    /// Begins a round of a volume, for these drains.
    pub(super) fn begin_round(&mut self, volume: VolumeId, serving: Vec<Drain>, only_sinks: bool) {
        let left = match self.logging.bypass.is_waited_for() {
            true => Default::default(), // what is held may have to wait for what is cleaned
            false => self.map.held.runs_of(volume, self.config.sizes.largest()).collect(),
        };
        self.rounds.begin(volume, left, serving, only_sinks);
    }

    /// Notes the end of a round of a volume. A round that only made room in memory has read
    /// nothing: it does not tell whether dirty data can be read.
    pub(super) fn note_round(&mut self, volume: VolumeId, failed: bool, has_cleaned: bool) {
        if !failed && !has_cleaned {
            return;
        }
        self.logging.bypass.round_ended(volume, failed);
        if !failed {
            self.health.note_readable(volume);
        }
    }
}
