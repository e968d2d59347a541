//! Lost sectors: a failed write overwrote their only copy, or the cache device returns other data
//! than was stored.
//!
//! They read as errors, not as the older data of the backing device, until they are written again,
//! and are not cleaned. In a persistent cache they keep their place and are dirty, and the log says
//! that they are lost.

use super::Shard;
use super::operations::part_of;
use super::task::{Part, Step};
use crate::directory::Block;
use crate::geometry::{Place, SECTOR_BYTES, Sectors, VolumeId};
use crate::journal::Standing;
use crate::locks::TaskId;
use crate::order::{Bad, OpId, Order};
use crate::request::Fault;

impl Shard {
    /// Handles a read of `bad` sectors, whose data is not what was stored. Dirty ones are lost from
    /// now on. Clean ones that a crash left half overwritten are dropped, and do not count as
    /// errors. Returns the number of bad sectors not known before.
    pub(crate) fn read_corrupt(&mut self, op: OpId, bad: &[Bad], orders: &mut Vec<Order>) -> u64 {
        let (id, part) = part_of(op);
        let (part, run) = self.tasks[id as usize].parts[part].clone();
        let (Part::Cached(block) | Part::Dirty(block)) = part else {
            unreachable!("nothing else reads the cache device");
        };
        let (mut are_all_lost, mut found) = (true, 0);
        let mut is_excused = true;
        for (sector, doubted) in bad.iter().map(|bad| (run.start + bad.number, bad.doubted)) {
            let place = Place::new(self.tasks[id as usize].volume, sector);
            // Of held sectors memory has newer data, which becomes dirty in their stead.
            let is_dirty = self.directory.is_all_dirty(block, &(sector..sector + 1));
            let is_lost = is_dirty && !self.held.contains(place);
            is_excused &= doubted && !is_dirty;
            found += u64::from(match is_dirty {
                _ if is_lost => self.lose(block, place, orders),
                true => true,
                false if doubted => false,
                // or another read has found it before
                false => self.directory.is_valid(block, &(sector..sector + 1)),
            });
            are_all_lost &= is_lost;
        }
        // The other dirty sectors of the block can be cleaned.
        let goes_on = are_all_lost && self.tasks[id as usize].step == Step::CleanRead;
        match part {
            Part::Cached(block) if is_excused => self.forgotten(op, block, run, orders),
            _ => self.completed(op, if goes_on { Ok(()) } else { Err(Fault::Io) }, orders),
        }
        found
    }

    /// Marks a sector as lost. Returns whether it was not lost before.
    fn lose(&mut self, block: Block, place: Place, orders: &mut Vec<Order>) -> bool {
        let is_new = self.lost.insert(place);
        if is_new {
            let run = place.sector()..place.sector() + 1;
            self.rounds.note_loss(place.volume());
            self.note(block, &run, Standing::Lost, orders);
            self.newly_lost.push(place);
        }
        is_new
    }

    /// Moves the sectors found to be lost since the last call into `out`.
    pub(crate) fn take_newly_lost(&mut self, out: &mut Vec<(VolumeId, Sectors)>) {
        let places = std::mem::take(&mut self.newly_lost);
        extend_runs(out, places.into_iter(), usize::MAX);
    }

    /// Adds the first lost runs, until `out` has `most` runs.
    pub(crate) fn lost_runs(&self, most: usize, out: &mut Vec<(VolumeId, Sectors)>) {
        extend_runs(out, self.lost.iter().copied(), most);
    }

    /// Returns the bytes whose only copy is gone.
    pub(crate) fn lost_bytes(&self) -> u64 {
        self.lost.len() as u64 * SECTOR_BYTES
    }

    /// Registers a run of a volume that was found to be lost when the cache was opened.
    pub(crate) fn restore_lost(&mut self, volume: VolumeId, run: &Sectors) {
        let places = run.clone().map(|sector| Place::new(volume, sector));
        self.newly_lost.extend(places.clone());
        self.lost.extend(places);
    }

    /// Returns whether a task's range includes a lost sector.
    pub(super) fn is_lost(&self, id: TaskId) -> bool {
        self.is_lost_in(self.tasks[id as usize].volume, &self.tasks[id as usize].range)
    }

    /// Returns whether a run of a volume includes a lost sector.
    pub(super) fn is_lost_in(&self, volume: VolumeId, run: &Sectors) -> bool {
        !self.lost.is_empty() && self.lost_in(volume, run).next().is_some()
    }

    fn lost_in(&self, volume: VolumeId, run: &Sectors) -> impl Iterator<Item = u64> {
        self.lost
            .range(Place::new(volume, run.start)..Place::new(volume, run.end))
            .map(|place| place.sector())
    }

    /// Returns the dirty runs of a block within a range, without lost sectors.
    pub(super) fn dirty_there(&self, block: Block, range: &Sectors) -> Vec<Sectors> {
        let dirty = self.directory.dirty_runs_in(block, range);
        if self.lost.is_empty() {
            return dirty.collect();
        }
        let (volume, mut there) = (self.directory.volume(block), Vec::new());
        for run in dirty {
            let mut start = run.start;
            for lost in self.lost_in(volume, &run) {
                if start < lost {
                    there.push(start..lost);
                }
                start = lost + 1;
            }
            if start < run.end {
                there.push(start..run.end);
            }
        }
        there
    }

    /// Divides a run of a dirty block into parts that the cache device has lost and parts that it
    /// has not. Newer data in memory does not count.
    pub(super) fn by_loss(&self, block: Block, run: &Sectors) -> Vec<(Sectors, bool)> {
        if self.lost.is_empty() && self.lost_below.is_empty() {
            return vec![(run.clone(), false)];
        }
        let volume = self.directory.volume(block);
        let is_lost = |sector: u64| {
            let place = Place::new(volume, sector);
            self.lost.contains(&place) || self.lost_below.contains(&place)
        };
        let mut parts: Vec<(Sectors, bool)> = Vec::new();
        for sector in run.clone() {
            let lost = is_lost(sector);
            match parts.last_mut() {
                Some((part, of)) if *of == lost => part.end = sector + 1,
                _ => parts.push((sector..sector + 1, lost)),
            }
        }
        parts
    }
}

/// Appends places to a list of runs, up to `most` runs.
fn extend_runs(
    out: &mut Vec<(VolumeId, Sectors)>,
    places: impl Iterator<Item = Place>,
    most: usize,
) {
    for place in places {
        let count = out.len();
        match out.last_mut() {
            Some((volume, run)) if *volume == place.volume() && run.end == place.sector() => {
                run.end += 1
            }
            _ if count >= most => return,
            _ => out.push((place.volume(), place.sector()..place.sector() + 1)),
        }
    }
}
