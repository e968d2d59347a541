//! Learns the best amount of data to fetch on a read miss.
//!
//! A fetch costs the backing device an operation, and time for its bytes. Larger fetches save later
//! operations where neighbours are read soon; otherwise they waste bytes and room. The best size
//! depends on the device and on the load. So one [`Ghost`] for each block size simulates a cache
//! that fetches in that size, on a sample of the requests. The size whose ghost would have cost
//! least is used. A cost is a number of operations and of sectors, weighed by the [price](Price) of
//! the backing device's reads.
//!
//! The sample consists of whole regions, chosen by their hash, so that each ghost has all requests
//! of a region. It is as large as keeps a ghost at [`MOST_SECTORS`]. Costs fade, so that the size
//! follows the load.
//!
//! Limits: a ghost is one LRU list, whatever policy and admission the cache has. All volumes of a
//! part have one size and one price.

use floe_policy::{Access, Eviction, Lru, Ranked, Slot, mix};

use super::price::Price;
use crate::config::WriteMode;
use crate::geometry::{BlockSizes, Place, SECTOR_BYTES, Sectors, VolumeId};
use crate::join::{Piece, PieceKind};
use crate::mapping::index::Index;
use crate::tasks::units;

/// Maximum number of sectors of a ghost: 16 MiB of a sampled cache, in at most 200 KiB of memory.
const MOST_SECTORS: u64 = 4096;

/// Number of sampled requests between two decisions.
const WINDOW: u32 = 128;

/// Share of the costs that is kept after a window.
const LEFT: f64 = 0.9;

/// A size replaces the current one only if its cost is below this share of the current one's.
const BETTER: f64 = 0.97;

/// Bytes of a fetch before the first decision.
const FIRST_BYTES: u64 = 64 << 10;

/// Operations and sectors of a ghost, with older ones weighing less.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    operations: f64,
    sectors: f64,
}

/// Learns the size of fetches from the requests of one part.
#[derive(Debug)]
pub(super) struct FetchSize {
    sizes: BlockSizes,
    mode: WriteMode,
    /// Sampling threshold: regions whose hash is not above it are sampled.
    below: u64,
    /// One ghost for each class.
    ghosts: Vec<Ghost>,
    costs: Vec<Cost>,
    price: Price,
    /// Sampled requests since the last decision.
    seen: u32,
    /// The class whose size is used.
    chosen: usize,
}

impl FetchSize {
    /// Creates the learner of a part with this many sectors of cache.
    pub(super) fn new(sizes: &BlockSizes, mode: WriteMode, sectors: u64) -> Self {
        let share = (MOST_SECTORS as f64 / sectors.max(1) as f64).min(1.0);
        let capacity = sectors.min(MOST_SECTORS).max(sizes.largest());
        let ghosts: Vec<Ghost> =
            sizes.classes().map(|class| Ghost::new(sizes.sectors(class), capacity)).collect();
        let fits = |ghost: &&Ghost| ghost.unit() * SECTOR_BYTES <= FIRST_BYTES;
        Self {
            sizes: sizes.clone(),
            mode,
            below: (share * u64::MAX as f64) as u64,
            costs: vec![Cost::default(); ghosts.len()],
            chosen: ghosts.iter().take_while(fits).count().saturating_sub(1),
            ghosts,
            price: Price::default(),
            seen: 0,
        }
    }

    /// Learns anew, for this many sectors of cache, from the size that is used now.
    pub(super) fn resize(&mut self, sectors: u64) {
        let (chosen, price) = (self.chosen, self.price);
        *self = Self { chosen, price, ..Self::new(&self.sizes, self.mode, sectors) };
    }

    /// Returns the current size of a fetch in sectors.
    pub(super) fn sectors(&self) -> u64 {
        self.ghosts[self.chosen].unit()
    }

    /// Sets the price of the backing devices' reads.
    pub(super) fn set_price(&mut self, price: Price) {
        self.price = price;
    }

    /// Learns from a sub-request. Returns whether the size has changed.
    #[inline]
    pub(super) fn learn(&mut self, piece: &Piece) -> bool {
        let region = self.sizes.region(piece.volume, piece.sectors.start);
        // Mixed once more: a region's hash has chosen its shard.
        mix(region.hash()) <= self.below && self.learn_sampled(piece)
    }

    #[inline(never)] // most requests are not sampled
    fn learn_sampled(&mut self, piece: &Piece) -> bool {
        let touch = match piece.kind {
            PieceKind::Read => Touch::Read,
            PieceKind::Write { .. } | PieceKind::ZeroPart { .. } if self.mode.caches_writes() => {
                Touch::Write
            }
            PieceKind::Prefetch { .. } | PieceKind::DirtyMap => return false,
            _ => Touch::Drop,
        };
        for (ghost, cost) in self.ghosts.iter_mut().zip(&mut self.costs) {
            let fetched = ghost.access(piece.volume, &piece.sectors, touch);
            cost.operations += fetched.operations as f64;
            cost.sectors += fetched.sectors as f64;
        }
        if piece.kind == PieceKind::Evict {
            return false; // no request of a client
        }
        self.seen += 1;
        self.seen == WINDOW && self.decide()
    }

    /// Chooses the cheapest size, and returns whether it changed.
    fn decide(&mut self) -> bool {
        self.seen = 0;
        let price = self.price.sectors_an_operation();
        let of = |cost: &Cost| cost.operations * price + cost.sectors;
        let best = (0..self.costs.len())
            .min_by(|&a, &b| of(&self.costs[a]).total_cmp(&of(&self.costs[b])))
            .unwrap_or(self.chosen);
        let changes = of(&self.costs[best]) < BETTER * of(&self.costs[self.chosen]);
        if changes {
            self.chosen = best;
        }
        for cost in &mut self.costs {
            *cost = Cost { operations: cost.operations * LEFT, sectors: cost.sectors * LEFT };
        }
        changes
    }
}

/// The effect of a request on a ghost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Touch {
    /// The sectors are read; missing ones are fetched.
    Read,
    /// The sectors are written, and cached.
    Write,
    /// The sectors leave the cache.
    Drop,
}

/// Cost of an access to a ghost: reads of the backing device and sectors they would move.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Fetched {
    pub(super) operations: u64,
    pub(super) sectors: u64,
}

/// A simulated LRU cache without data, which fetches runs of one size.
#[derive(Debug)]
pub(super) struct Ghost {
    /// Number of sectors of a run, and number of sectors for one bit of a run's mask.
    unit: u64,
    grain: u64,
    /// Capacity in sectors.
    capacity: u64,
    held: u64,
    index: Index,
    /// Position of the run in each slot.
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

    /// Returns the size of a run in sectors.
    pub(super) fn unit(&self) -> u64 {
        self.unit
    }

    /// Simulates a request within one region, and returns what it would have fetched. Neighbouring
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

    /// Returns the mask bits of `part`, a part of the run that begins at sector `start`.
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
    use crate::geometry::{Sectors, VolumeId};
    use crate::join::RequestId;

    fn piece(kind: PieceKind, sectors: Sectors) -> Piece {
        let (request, volume) = (RequestId(0), VolumeId(0));
        Piece { request, volume, kind, sectors, buffer_offset: 0, stream: None }
    }

    /// Returns all block sizes from 4 KiB to 1 MiB.
    fn sizes() -> BlockSizes {
        let sizes: Vec<u64> = (12..=20).map(|power| 1 << power).collect();
        BlockSizes::new(&sizes).unwrap()
    }

    /// Returns a learner for a cache of 16 MiB, in which an operation costs as much as `price`
    /// sectors.
    fn fetch_size(price: f64) -> FetchSize {
        let sizes = sizes();
        let mut learned = FetchSize::new(&sizes, WriteMode::Through, 4096);
        learned.set_price(Price::of(price));
        learned
    }

    /// Returns the learned size, in bytes, after reads of these sectors.
    fn learned(price: f64, reads: impl Iterator<Item = u64>) -> u64 {
        let mut learned = fetch_size(price);
        for sector in reads {
            learned.learn(&piece(PieceKind::Read, sector..sector + 1));
        }
        learned.sectors() * SECTOR_BYTES
    }

    #[test]
    fn single_sectors_all_over_are_fetched_alone() {
        assert_eq!(learned(64.0, (0..2000).map(|at| mix(at) % (1 << 24))), 4096);
    }

    #[test]
    fn neighbours_that_are_read_soon_are_fetched_together() {
        assert_eq!(learned(64.0, 0..4000), 1 << 20);
    }

    #[test]
    fn the_dearer_an_operation_the_more_is_fetched() {
        // Groups of 16 sectors, of which every fourth is read.
        let reads = || (0..4000u64).map(|at| mix(at / 4) % (1 << 20) * 16 + at % 4 * 4);
        assert_eq!(learned(1.0, reads()), 4096);
        assert_eq!(learned(64.0, reads()), 64 << 10);
    }

    #[test]
    fn a_new_load_is_followed() {
        let mut size = fetch_size(64.0);
        for sector in 0..4000 {
            size.learn(&piece(PieceKind::Read, sector..sector + 1));
        }
        assert_eq!(size.sectors(), 256);
        for at in (0..8000).map(|at| mix(at) % (1 << 24)) {
            size.learn(&piece(PieceKind::Read, at..at + 1));
        }
        assert_eq!(size.sectors(), 1);
    }

    #[test]
    fn of_a_large_cache_a_sample_of_regions_is_learned_from() {
        let sizes = sizes();
        let mut size = FetchSize::new(&sizes, WriteMode::Through, 1 << 18);
        let regions = 4000;
        for region in 0..regions {
            size.learn(&piece(PieceKind::Read, region * 256..region * 256 + 1));
        }
        let sampled = size.costs[0].operations / LEFT.powi((regions / 64) as i32 / WINDOW as i32);
        assert!((30.0..=95.0).contains(&sampled), "{sampled} of {regions}, for 62 expected");
    }

    #[test]
    fn what_passes_the_cache_by_is_not_there() {
        let sizes = sizes();
        let mut around = FetchSize::new(&sizes, WriteMode::Around, 4096);
        let write = PieceKind::Write { durable: false, head: 0, tail: 0 };
        around.learn(&piece(PieceKind::Read, 0..1));
        around.learn(&piece(write, 0..1));
        around.learn(&piece(PieceKind::Read, 0..1));
        assert_eq!(around.costs[0].operations, 2.0);
        let mut through = fetch_size(64.0);
        through.learn(&piece(write, 0..1));
        through.learn(&piece(PieceKind::Read, 0..1));
        assert_eq!(through.costs[0].operations, 0.0);
    }
}

#[cfg(test)]
mod ghost_tests {
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
