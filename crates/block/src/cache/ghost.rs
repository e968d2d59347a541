//! A ghost of a cache that fetches aligned runs of one size: which sectors it would hold, without
//! any data.
//!
//! Runs are kept in LRU order, each with a mask of 64 bits; where a run has more sectors than that,
//! a bit stands for several. A read of something missing fetches the rest of its run. A write adds
//! its own sectors only.

use floe_policy::{Access, Eviction, Lru, Ranked, Slot};

use crate::engine::units;
use crate::geometry::{Place, Sectors, VolumeId};
use crate::mapping::index::Index;

/// The effect of a request on a ghost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Touch {
    /// Reads; fetches what is missing.
    Read,
    /// Adds the sectors.
    Write,
    /// Drops the sectors.
    Drop,
}

/// Reads of the backing device, and the sectors they would move.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Fetched {
    pub(super) operations: u64,
    pub(super) sectors: u64,
}

/// A cache of runs of one size.
#[derive(Debug)]
pub(super) struct Ghost {
    /// Sectors of a run, and of a bit of its mask.
    unit: u64,
    grain: u64,
    /// In sectors.
    capacity: u64,
    held: u64,
    index: Index,
    /// By slot.
    runs: Vec<Place>,
    masks: Vec<u64>,
    order: Lru,
    free: Vec<u32>,
}

impl Ghost {
    /// Returns an empty ghost of this many sectors, which fetches runs of `unit` sectors.
    pub(super) fn new(unit: u64, capacity: u64) -> Self {
        Self {
            unit,
            grain: unit.div_ceil(64),
            capacity: capacity.max(unit),
            held: 0,
            index: Index::default(),
            runs: Vec::new(),
            masks: Vec::new(),
            order: Lru::default(),
            free: Vec::new(),
        }
    }

    /// Returns the size of its runs in sectors.
    pub(super) fn unit(&self) -> u64 {
        self.unit
    }

    /// Lets a request pass, within one region, and returns what it would have fetched. Neighbouring
    /// runs are fetched together.
    pub(super) fn access(&mut self, volume: VolumeId, run: &Sectors, touch: Touch) -> Fetched {
        let mut fetched = Fetched::default();
        let mut goes_on = false;
        for (start, part) in units(run, self.unit) {
            let place = Place::new(volume, start);
            let known = self.find(place);
            if known.is_none() && touch == Touch::Drop {
                continue;
            }
            let slot = known.unwrap_or_else(|| self.add(place));
            let (mask, before) = (self.mask(start, &part), self.masks[slot as usize]);
            let after = match touch {
                Touch::Read if mask & !before != 0 => self.mask(start, &(start..start + self.unit)),
                Touch::Read => before,
                Touch::Write => before | mask,
                Touch::Drop => before & !mask,
            };
            let misses = touch == Touch::Read && after != before;
            if misses {
                fetched.operations += u64::from(!goes_on);
                fetched.sectors += self.sectors(after & !before);
            }
            goes_on = misses;
            self.masks[slot as usize] = after;
            self.held = self.held + self.sectors(after) - self.sectors(before);
            self.order.access(Slot(slot));
            self.evict();
        }
        fetched
    }

    /// Returns the bits of a part of the run that begins at a sector.
    fn mask(&self, start: u64, part: &Sectors) -> u64 {
        let first = (part.start - start) / self.grain;
        let end = (part.end - start).div_ceil(self.grain);
        (u64::MAX >> (64 - (end - first))) << first
    }

    fn sectors(&self, mask: u64) -> u64 {
        u64::from(mask.count_ones()) * self.grain
    }

    fn find(&self, place: Place) -> Option<u32> {
        self.index.find(place.hash(), |slot| self.runs[slot as usize] == place)
    }

    /// Adds an empty run.
    fn add(&mut self, place: Place) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.runs.push(place);
            self.masks.push(0);
            self.order.reserve(self.runs.len());
            self.runs.len() as u32 - 1
        });
        self.runs[slot as usize] = place;
        let runs = &self.runs;
        self.index.insert(slot, |slot| runs[slot as usize].hash());
        self.order.insert(Slot(slot), &Access::new(place.hash()));
        slot
    }

    fn evict(&mut self) {
        while self.held > self.capacity {
            let Some(Slot(slot)) = self.order.coldest_first().next() else { return };
            self.order.remove(Slot(slot));
            let runs = &self.runs;
            self.index.remove(slot, |slot| runs[slot as usize].hash());
            let mask = std::mem::take(&mut self.masks[slot as usize]);
            self.held -= self.sectors(mask);
            self.free.push(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: VolumeId = VolumeId(0);

    fn read(ghost: &mut Ghost, run: Sectors) -> (u64, u64) {
        let Fetched { operations, sectors } = ghost.access(VOLUME, &run, Touch::Read);
        (operations, sectors)
    }

    #[test]
    fn a_read_fetches_the_rest_of_its_run_once() {
        let mut ghost = Ghost::new(8, 64);
        assert_eq!(read(&mut ghost, 3..4), (1, 8));
        assert_eq!(read(&mut ghost, 0..8), (0, 0));
        assert_eq!(read(&mut ghost, 7..9), (1, 8));
        ghost.access(VOLUME, &(18..20), Touch::Write);
        assert_eq!(read(&mut ghost, 19..20), (0, 0), "it was written");
        assert_eq!(read(&mut ghost, 16..32), (1, 14), "two runs, fetched together");
        ghost.access(VOLUME, &(0..4), Touch::Drop);
        assert_eq!(read(&mut ghost, 0..8), (1, 4));
    }

    #[test]
    fn the_run_that_was_used_longest_ago_leaves() {
        let mut ghost = Ghost::new(4, 8);
        read(&mut ghost, 0..1);
        read(&mut ghost, 4..5);
        read(&mut ghost, 0..1);
        assert_eq!(read(&mut ghost, 8..9), (1, 4));
        assert_eq!((read(&mut ghost, 0..4), read(&mut ghost, 4..8)), ((0, 0), (1, 4)));
        // Places of runs that have left are used again.
        for run in 0..100 {
            read(&mut ghost, 4 * run..4 * run + 1);
        }
        assert!(ghost.runs.len() <= 4 && ghost.held == 8);
    }

    #[test]
    fn a_bit_of_a_large_run_stands_for_several_sectors() {
        let mut ghost = Ghost::new(256, 1024);
        ghost.access(VOLUME, &(5..6), Touch::Write);
        assert_eq!(read(&mut ghost, 4..8), (0, 0));
        assert_eq!(read(&mut ghost, 0..256), (1, 252));
    }
}
