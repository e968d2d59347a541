//! The memory tier's view of a shard: when copies enter and leave it, and which sectors are
//! unflushed.
//!
//! Copies enter the tier when a read has them, and leave it when a change of the sector begins on a
//! device. Both happen while the task holds its lock, which keeps the tier coherent
//! ([`crate::memory`]).
//!
//! Where the tier may *hold* writes, a write that is not to be durable ends here. Its sectors are
//! held (unflushed): no tier below has their newest data. They are read from memory, and are
//! released once data as new is below. That happens by their own write-back (`sink`), by a later
//! write that went there, or by a zeroing. A sector whose write-back fails is still held.
//!
//! Invariants: a sector becomes held, or is released, only under an exclusive lock. A held sector
//! is not lost, whatever happened to an older version of it.

use std::collections::BTreeSet;

use super::Shard;
use super::task::Step;
use crate::geometry::{Place, Sectors, VolumeId};
use crate::locks::{Need, TaskId};
use crate::memory::Memory;
use crate::order::{Order, Paging};

/// The unflushed sectors of a shard.
#[derive(Debug, Default)]
pub(crate) struct Held {
    sectors: BTreeSet<Place>,
    most: u64,
}

impl Held {
    pub(super) fn new(memory: Memory) -> Self {
        let most = if let Memory::Holds { sectors } = memory { sectors } else { 0 };
        Self { sectors: BTreeSet::new(), most }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sectors.is_empty()
    }

    pub(crate) fn len(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// Returns the held sectors of a range, in order.
    fn of(&self, volume: VolumeId, range: &Sectors) -> impl Iterator<Item = u64> + use<'_> {
        let places = Place::new(volume, range.start)..Place::new(volume, range.end);
        self.sectors.range(places).map(|place| place.sector())
    }

    pub(super) fn contains(&self, place: Place) -> bool {
        self.sectors.contains(&place)
    }

    pub(super) fn has_any(&self, volume: VolumeId, range: &Sectors) -> bool {
        !self.is_empty() && self.of(volume, range).next().is_some()
    }

    pub(super) fn count(&self, volume: VolumeId) -> u64 {
        self.sectors.range(Place::all_of(volume)).count() as u64
    }

    /// Returns whether the range begins with held sectors, and the end of the sectors that are
    /// alike.
    fn front(&self, volume: VolumeId, range: &Sectors) -> (bool, u64) {
        if self.is_empty() {
            return (false, range.end);
        }
        let mut held = self.of(volume, range);
        match held.next() {
            None => (false, range.end),
            Some(first) if first > range.start => (false, first),
            Some(first) => {
                let alike = held.zip(first + 1..).take_while(|(held, next)| held == next).count();
                (true, first + 1 + alike as u64)
            }
        }
    }

    /// Returns the held runs of a range.
    pub(super) fn runs(&self, volume: VolumeId, range: &Sectors) -> Vec<Sectors> {
        let mut runs: Vec<Sectors> = Vec::new();
        for sector in self.of(volume, range) {
            match runs.last_mut() {
                Some(run) if run.end == sector => run.end += 1,
                _ => runs.push(sector..sector + 1),
            }
        }
        runs
    }

    /// Returns all held sectors of a volume in runs, each within a region of so many sectors.
    pub(super) fn runs_of(
        &self,
        volume: VolumeId,
        region_sectors: u64,
    ) -> impl Iterator<Item = Sectors> {
        let mut runs: Vec<Sectors> = Vec::new();
        for sector in self.sectors.range(Place::all_of(volume)).map(|place| place.sector()) {
            match runs.last_mut() {
                Some(run) if run.end == sector && !sector.is_multiple_of(region_sectors) => {
                    run.end += 1
                }
                _ => runs.push(sector..sector + 1),
            }
        }
        runs.into_iter()
    }

    fn has_room_for(&self, volume: VolumeId, range: &Sectors) -> bool {
        let there = self.of(volume, range).count() as u64;
        self.len() - there + (range.end - range.start) <= self.most
    }

    /// Returns whether it is time to make room.
    fn is_half_full(&self) -> bool {
        self.len() > self.most / 2
    }

    pub(super) fn remove_volume(&mut self, volume: VolumeId) {
        let places = Place::all_of(volume);
        self.sectors.retain(|place| !places.contains(place));
    }
}

impl Shard {
    fn has_tier(&self) -> bool {
        self.config.memory != Memory::None
    }

    /// Puts the sectors that a read has in its buffer into the tier.
    pub(super) fn fill(&self, id: TaskId, orders: &mut Vec<Order>) {
        if !self.has_tier() {
            return;
        }
        if let Some(at) = self.destination(id) {
            let task = &self.tasks[id as usize];
            let (volume, sectors) = (task.volume, task.range.clone());
            let deed = Paging::Fill { from: at.span(&sectors) };
            orders.push(Order::Memory { volume, sectors, deed });
        }
    }

    /// Removes a task's sectors from the tier, before the task changes them on a device.
    pub(super) fn forget(&self, id: TaskId, orders: &mut Vec<Order>) {
        if self.has_tier() {
            let task = &self.tasks[id as usize];
            let (volume, sectors) = (task.volume, task.range.clone());
            orders.push(Order::Memory { volume, sectors, deed: Paging::Forget });
        }
    }

    /// Ends a write by holding its data in memory, if there is room; returns whether it did.
    pub(super) fn hold(&mut self, id: TaskId, orders: &mut Vec<Order>) -> bool {
        let task = &self.tasks[id as usize];
        let (volume, sectors) = (task.volume, task.range.clone());
        if self.held.most == 0 || !self.held.has_room_for(volume, &sectors) {
            return false;
        }
        let from = task.data.span(&sectors);
        self.found_in_memory(volume, &sectors);
        self.held.sectors.extend(sectors.clone().map(|sector| Place::new(volume, sector)));
        orders.push(Order::Memory { volume, sectors, deed: Paging::Hold { from } });
        self.finish(id, orders);
        if self.held.is_half_full() {
            self.sink_all(orders);
        }
        true
    }

    /// Releases what was held of a run that has been written below.
    pub(super) fn let_go(&mut self, volume: VolumeId, run: &Sectors, orders: &mut Vec<Order>) {
        if self.held.is_empty() {
            return;
        }
        for run in self.held.runs(volume, run) {
            for sector in run.clone() {
                self.held.sectors.remove(&Place::new(volume, sector));
            }
            orders.push(Order::Memory { volume, sectors: run, deed: Paging::LetGo });
        }
    }

    /// Cuts a read to its first sectors that are alike, all held or all not held. Returns which,
    /// and the task for the rest.
    pub(super) fn cut_at_held(&mut self, id: TaskId) -> (bool, Option<TaskId>) {
        let task = &self.tasks[id as usize];
        let (range, volume) = (task.range.clone(), task.volume);
        let (held, end) = self.held.front(volume, &range);
        (held, (end < range.end).then(|| self.cut(id, end)))
    }

    /// Reads a task's range, all of which is held.
    pub(super) fn read_held(&mut self, id: TaskId, orders: &mut Vec<Order>) {
        let mut next = Some(id);
        while let Some(id) = next {
            let range = self.tasks[id as usize].range.clone();
            let (taken, rest) = self.lock_front(id, Need::shared(range), 1);
            next = rest;
            if !self.may_begin(id, taken, orders) {
                continue;
            }
            self.tasks[id as usize].hit = true;
            if let Some(to) = self.destination(id) {
                let task = &self.tasks[id as usize];
                let (volume, sectors) = (task.volume, task.range.clone());
                let deed = Paging::Recall { to: to.span(&sectors) };
                orders.push(Order::Memory { volume, sectors, deed });
                self.fill(id, orders);
            }
            self.finish(id, orders);
        }
    }

    /// Reads a held sector that a write changes in part; returns whether it was held.
    pub(super) fn recall_edge(&self, id: TaskId, sector: u64, orders: &mut Vec<Order>) -> bool {
        let task = &self.tasks[id as usize];
        let run = sector..sector + 1;
        let held = self.held.has_any(task.volume, &run);
        if held {
            debug_assert_eq!(task.step, Step::Edges);
            let deed = Paging::Recall { to: task.data.span(&run) };
            orders.push(Order::Memory { volume: task.volume, sectors: run, deed });
        }
        held
    }
}
