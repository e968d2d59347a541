//! Admission: asks the configured admission about sectors that are accessed and not cached, and
//! reports the results to it.
//!
//! The question is put for each *smallest block*, so that a block has the same name whatever
//! request it is part of. Neighbours with the same answer stay together. A missed run that is
//! admitted as a whole is fetched and allocated as if there were no admission (AdaCache, Algorithm
//! 2). A rejected run is read past the cache, only its own sectors. Reads ask before they take
//! their lock, for a rejected run needs only a shared one. Writes ask when their data is about to
//! go to a block that does not exist. A write to an existing block is not offered: it always goes
//! there. A read of sectors that its block lacks is offered, as it would write to the cache; but it
//! evicts nothing.
//!
//! The admission learns of hits, insertions and removals by counts over a window of
//! [`WINDOW_LOOKUPS`] lookups, shared out among the shards. Evictions are reported one by one, and
//! a whole block of them at once. A fetch that it orders (`fetch`) becomes a task like a prefetch;
//! while it holds, nothing is evicted.
//!
//! Counts are in smallest blocks, bytes are those moved on the cache device. An eviction moves
//! none. An overwritten copy counts as put in and replaced; in a persistent cache it counts as
//! removed, too, for the log records that it is gone.
//!
//! A limit: `duel` knows only the first smallest block of a victim.

use floe_policy::admission::{Admission, Admissions, Orders, Room, Times, Traffic, Victim, Window};
use floe_policy::{Access, Direction, Tick, mix};

use super::Shard;
use super::fetch::Fetches;
use crate::config::Config;
use crate::directory::Block;
use crate::engine::{Offer, common, units};
use crate::geometry::{BlockSizes, Place, SECTOR_BYTES, Sectors, VolumeId};
use crate::locks::TaskId;

/// Lookups between two windows of all shards together: divides the 200 between checks of
/// FussyCache, so that these come when they are due. And the least for one shard.
const WINDOW_LOOKUPS: u64 = 100;
const LEAST_WINDOW_LOOKUPS: u64 = 8;

/// The reason for which a copy is gone without an eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Removal {
    /// The copy differs from the block's current content.
    Invalid,
    /// Newer data of the block takes its place.
    Replaced,
}

/// A shard's admission, where not everything is admitted.
#[derive(Debug)]
pub(super) struct Door {
    admissions: Admissions,
    window_lookups: u64,
    /// Counts since the last window.
    window: Window,
    times: Times,
    orders: Orders,
    /// Lookups of all windows that have ended.
    lookups: u64,
}

impl Door {
    /// Returns a shard's admission; `None` where everything is admitted.
    pub(super) fn new(config: &Config, sectors: u64) -> Option<Box<Self>> {
        let gate = &config.gate;
        if gate.admission.is_always() {
            return None;
        }
        let mut admissions = gate.admission.clone();
        admissions.reserve(&Room {
            entries: (sectors / config.sizes.smallest()) as usize,
            weight: sectors * SECTOR_BYTES,
            above: gate.above_bytes,
        });
        let mut orders = Orders::default();
        admissions.tick(Tick::default(), &mut orders);
        Some(Box::new(Self {
            admissions,
            window_lookups: (WINDOW_LOOKUPS / config.shards.unwrap_or(1)).max(LEAST_WINDOW_LOOKUPS),
            window: Window::default(),
            times: Times::default(),
            orders,
            lookups: 0,
        }))
    }

    fn close_window(&mut self, entries: u64, sizes: &BlockSizes, fetches: &mut Fetches) {
        let (entries, times) = (entries, self.times);
        let window = std::mem::take(&mut self.window);
        self.lookups += window.lookups.blocks;
        self.admissions.observe(&Window { entries, times, ..window });
        self.admissions.tick(Tick(self.lookups), &mut self.orders);
        self.orders.fetch.sort_unstable_by_key(|fetch| fetch.position);
        for fetch in self.orders.fetch.drain(..) {
            let place = Place::of_number(fetch.position * sizes.smallest());
            fetches.order(place.volume(), place.sector(), sizes);
        }
    }
}

impl Shard {
    /// Returns the admission's description of an access to the smallest block that begins at a
    /// sector.
    fn access(&self, volume: VolumeId, start: u64, direction: Direction) -> Access {
        let unit = self.config.sizes.smallest();
        let place = Place::new(volume, start);
        Access {
            weight: (unit * SECTOR_BYTES) as u32,
            direction,
            position: place.number() / unit,
            // Mixed once more: some bits of a region's hash chose the shard, and a region's hash is
            // that of its first block.
            ..Access::new(mix(place.hash()))
        }
    }

    /// Returns the block that the smallest block beginning at a sector would evict; `None` where it
    /// has a place.
    fn victim(&mut self, volume: VolumeId, start: u64) -> Option<Victim> {
        if self.directory.find(volume, start).is_some() {
            return None;
        }
        let slot = self.directory.coldest_if_full()?;
        let start = self.directory.sectors(slot).start;
        Some(Victim {
            slot,
            hash: self.access(self.directory.volume(slot), start, Direction::Read).hash,
        })
    }

    /// Counts a lookup of a part of a smallest block.
    fn look_up(
        &mut self,
        volume: VolumeId,
        start: u64,
        part: &Sectors,
        hit: bool,
        direction: Direction,
    ) {
        let access = self.access(volume, start, direction);
        let Some(door) = &mut self.door else { return };
        let traffic = Traffic { blocks: 1, bytes: (part.end - part.start) * SECTOR_BYTES };
        door.window.lookups += traffic;
        if hit {
            door.window.hits += traffic;
            if direction == Direction::Write {
                door.window.replaced += traffic;
            }
            door.admissions.used(&access);
        }
    }

    /// Asks the admission whether the smallest block that begins at a sector is to be inserted.
    fn ask(&mut self, id: TaskId, start: u64, direction: Direction) -> bool {
        if self.door.is_none() {
            return true;
        }
        let in_a_row = self.tasks[id].in_a_row(start, self.config.sizes.smallest());
        let volume = self.tasks[id].volume;
        let access = Access { in_a_row, ..self.access(volume, start, direction) };
        let victim = self.victim(volume, start);
        let Some(door) = &mut self.door else { return true };
        let admitted = door.admissions.admit(&access, victim.as_ref()).admits();
        self.counters.offered_blocks += 1;
        self.counters.admitted_blocks += u64::from(admitted);
        admitted
    }

    fn close_window_in_time(&mut self) {
        if self.door.as_ref().is_some_and(|door| door.window.lookups.blocks >= door.window_lookups)
        {
            self.close_window();
        }
    }

    fn close_window(&mut self) {
        let units = self.directory.smallest_blocks();
        if let Some(door) = &mut self.door {
            door.close_window(units, &self.config.sizes, &mut self.fetches);
        }
    }

    /// Takes in the current latencies.
    pub(crate) fn observe(&mut self, times: &Times) {
        if let Some(door) = &mut self.door {
            door.times = *times;
            self.close_window();
        }
    }

    /// Decides which of a read's missing runs are admitted, and moves them into `offered`.
    pub(super) fn offer_fetches(
        &mut self,
        id: TaskId,
        fetches: &mut Vec<Sectors>,
        offered: &mut Vec<(Sectors, bool)>,
    ) {
        let task = &self.tasks[id];
        let (volume, range) = (task.volume, task.range.clone());
        let may_come_in = self.mode().caches_reads();
        let known = match task.offer {
            Offer::Admitted => Some(may_come_in),
            Offer::Bypassed => Some(false),
            Offer::NotMade => self.door.is_none().then_some(may_come_in),
        };
        if let Some(admitted) = known {
            return offered.extend(fetches.drain(..).map(|run| (run, admitted)));
        }
        let mut last = None;
        for fetch in fetches.drain(..) {
            let mut before: Option<bool> = None;
            for (start, part) in units(&fetch, self.config.sizes.smallest()) {
                let admitted = match last {
                    Some((asked, admitted)) if asked == start => admitted, // of another part of it
                    _ => {
                        self.look_up(volume, start, &common(&part, &range), false, Direction::Read);
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

    /// Counts a read whose whole range is cached.
    pub(super) fn note_read_hit(&mut self, id: TaskId) {
        let task = &mut self.tasks[id];
        if self.door.is_none() || task.offer != Offer::NotMade {
            return; // it was looked up before it had to wait
        }
        task.offer = Offer::Admitted;
        let (volume, range) = (task.volume, task.range.clone());
        for (start, part) in units(&range, self.config.sizes.smallest()) {
            self.look_up(volume, start, &part, true, Direction::Read);
        }
        self.close_window_in_time();
    }

    /// Decides which blocks a write may make, just before its data goes to the cache.
    pub(super) fn offer_write(&mut self, id: TaskId) {
        if self.door.is_none() {
            return;
        }
        let survey = self.survey(id);
        let task = &mut self.tasks[id];
        let (volume, range) = (task.volume, task.range.clone());
        let mut bypassed = std::mem::take(&mut task.store.bypassed);
        for (start, part) in units(&range, self.config.sizes.smallest()) {
            let missing = survey.missing.iter().any(|run| run.contains(&start));
            self.look_up(volume, start, &part, !missing, Direction::Write);
            if missing && !self.ask(id, start, Direction::Write) {
                match bypassed.last_mut() {
                    Some(run) if run.end == part.start => run.end = part.end,
                    _ => bypassed.push(part),
                }
            }
        }
        self.tasks[id].store.bypassed = bypassed;
        self.spare_survey = survey;
        self.close_window_in_time();
    }

    /// Returns whether evictions are suspended.
    pub(super) fn withholds(&self) -> bool {
        self.door.as_ref().is_some_and(|door| door.orders.hold)
    }

    /// Counts a run of a block that is being written to the cache.
    pub(super) fn note_inserted(&mut self, run: &Sectors) {
        if let Some(door) = &mut self.door {
            let blocks = units(run, self.config.sizes.smallest()).count() as u64;
            door.window.inserted += Traffic { blocks, bytes: (run.end - run.start) * SECTOR_BYTES };
        }
    }

    /// Counts runs, in order and valid until now, whose copies are gone.
    pub(super) fn note_removed(&mut self, runs: &[Sectors], because: Removal) {
        let Some(door) = &mut self.door else { return };
        let mut counted = None;
        for (start, _) in runs.iter().flat_map(|run| units(run, self.config.sizes.smallest())) {
            let blocks = u64::from(counted != Some(start));
            door.window.removed.blocks += blocks;
            if because == Removal::Replaced {
                door.window.replaced.blocks += blocks;
            }
            counted = Some(start);
        }
    }

    /// Reports a block's eviction to the admission.
    pub(super) fn note_evicted(&mut self, block: Block) {
        if self.door.is_none() {
            return;
        }
        let (volume, sectors) = (self.directory.volume(block), self.directory.sectors(block));
        for (start, part) in units(&sectors, self.config.sizes.smallest()) {
            if !self.directory.has_valid(block, &part) {
                continue; // nothing is lost that was not before
            }
            let access = self.access(volume, start, Direction::Read);
            if let Some(door) = &mut self.door {
                door.window.removed.blocks += 1;
                door.admissions.evicted(&access);
            }
        }
    }

    /// Returns the number of smallest blocks that each admission rejected.
    pub(crate) fn declined(&self) -> &[u64] {
        self.door.as_ref().map_or(&[], |door| door.admissions.declined())
    }

    /// Returns the bytes of memory that the admission takes.
    pub(crate) fn admission_bytes(&self) -> u64 {
        self.door
            .as_ref()
            .map_or(0, |door| (size_of::<Door>() + door.admissions.memory_bytes()) as u64)
    }
}
