//! Admission: asks the configured admission about sectors that are accessed and not cached, and
//! reports the results to it.
//!
//! The admission is asked about each *smallest block*, so that a block has the same name whatever
//! request it is part of. Neighbours with the same answer stay together. A missed run that is
//! admitted as a whole is fetched and allocated as if there were no admission (AdaCache, Algorithm
//! 2). A rejected run is read past the cache, only its own sectors. Reads ask before they take
//! their lock, for a rejected run needs only a shared one. Writes ask when their data is about to
//! go to a block that does not exist. A write to an existing block is not offered: it goes there,
//! unless the admission declines newer data of clean blocks (`overwrite`). A read of sectors that
//! its block lacks is offered, as it would write to the cache; but it evicts nothing.
//!
//! The admission learns of hits, insertions and removals by counts over a window of
//! [`WINDOW_LOOKUPS`] lookups, shared out among the shards. Evictions are reported one by one, and
//! a whole block of them at once. A fetch that the admission orders (`fetch`) becomes a task like a
//! prefetch. While the admission withholds evictions, none takes place.
//!
//! Counts are in smallest blocks, bytes are those moved on the cache device. An eviction moves
//! none. An overwritten copy counts as put in and replaced; in a persistent cache it counts as
//! removed, too, for the log records that it is gone.
//!
//! Whatever the admission says, [`Fills`](super::fills::Fills) bounds what is stored of clients'
//! reads. A read that finds too many fills under way is rejected; one whose data finds them does
//! not store it.
//!
//! A limit: `duel` knows only the first smallest block of a victim.

use std::collections::VecDeque;

use floe_policy::admission::{
    Admission as _, Admissions, Orders, Room, Times, Traffic, Victim, Window,
};
use floe_policy::{Access, Direction, Tick, mix};

use crate::config::Config;
use crate::geometry::{BlockSizes, Place, SECTOR_BYTES, Sectors, VolumeId};
use crate::mapping::directory::{Block, Directory};
use crate::stats::Counters;
use crate::tasks::units;

/// Number of lookups of all shards together in a window. Divides the 200 between checks of
/// FussyCache, so that these come when they are due. Also the least for one shard.
const WINDOW_LOOKUPS: u64 = 100;
const LEAST_WINDOW_LOOKUPS: u64 = 8;

/// The reason for which a copy leaves the cache without an eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removal {
    /// The copy differs from the block's current content.
    Invalid,
    /// Newer data of the block replaces the copy.
    Replaced,
}

/// An access to a smallest block that is not cached, about which the admission is asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) volume: VolumeId,
    /// The first sector of the smallest block.
    pub(crate) start: u64,
    pub(crate) direction: Direction,
    /// The block's number in a stream of smallest blocks; 0 outside a stream.
    pub(crate) in_a_row: u64,
}

/// The admission of a shard: decides which missed smallest blocks are cached.
#[derive(Debug)]
pub(crate) struct Admission {
    sizes: BlockSizes,
    /// The state of the admission; `None` where everything is admitted.
    active: Option<Box<ActiveAdmission>>,
}

/// The state of an admission that does not admit everything.
#[derive(Debug)]
struct ActiveAdmission {
    admissions: Admissions,
    /// Set if the admission is asked about newer data of clean blocks.
    asks_overwrites: bool,
    window_lookups: u64,
    puts_writes_off: bool,
    /// Counts of the current window.
    window: Window,
    times: Times,
    orders: Orders,
    /// Lookups of all past windows.
    lookups: u64,
}

impl Admission {
    /// Creates the admission of a shard with this many sectors.
    pub(crate) fn new(config: &Config, sectors: u64) -> Self {
        let always = config.gate.admission.is_always();
        let active = (!always).then(|| Box::new(ActiveAdmission::new(config, sectors)));
        Self { sizes: config.sizes.clone(), active }
    }

    /// Tells the admission a new size of its shard in sectors. Tables that are as large as a larger
    /// size needed stay so.
    pub(crate) fn resize(&mut self, config: &Config, sectors: u64) {
        if let Some(active) = &mut self.active {
            active.reserve(config, sectors);
        }
    }

    /// Returns whether the admission may reject blocks.
    #[inline]
    pub(crate) fn asks(&self) -> bool {
        self.active.is_some()
    }

    /// Returns whether newer data of clean blocks may be declined.
    #[inline]
    pub(crate) fn asks_overwrites(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.asks_overwrites)
    }

    /// Returns whether newer data of the clean smallest block that begins at sector `start` is
    /// stored.
    pub(crate) fn overwrites(&mut self, volume: VolumeId, start: u64) -> bool {
        let access = self.access(volume, start, Direction::Write);
        self.active.as_mut().is_none_or(|active| active.admissions.overwrite(&access))
    }

    /// Describes an access to the smallest block that begins at sector `start`.
    fn access(&self, volume: VolumeId, start: u64, direction: Direction) -> Access {
        let unit = self.sizes.smallest();
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

    /// Returns the block that would be evicted for the smallest block at sector `start`; `None`
    /// where there is room.
    fn victim(&self, volume: VolumeId, start: u64, directory: &mut Directory) -> Option<Victim> {
        if directory.blocks.find(volume, start).is_some() {
            return None;
        }
        let slot = directory.coldest_if_full(volume)?;
        let start = directory.blocks.sectors(slot).start;
        let hash = self.access(directory.blocks.volume(slot), start, Direction::Read).hash;
        Some(Victim { slot, hash })
    }

    /// Counts a request that looks up blocks.
    pub(crate) fn request(&mut self) {
        if let Some(active) = &mut self.active {
            active.window.requests += 1;
        }
    }

    /// Counts a lookup of a part of the smallest block that begins at a sector.
    pub(crate) fn look_up(
        &mut self,
        volume: VolumeId,
        start: u64,
        part: &Sectors,
        hit: bool,
        direction: Direction,
    ) {
        let access = self.access(volume, start, direction);
        let Some(active) = &mut self.active else { return };
        let traffic = Traffic { blocks: 1, bytes: (part.end - part.start) * SECTOR_BYTES };
        active.window.lookups += traffic;
        if hit {
            active.window.hits += traffic;
            if direction == Direction::Write {
                active.window.replaced += traffic;
            }
            active.admissions.used(&access);
        }
    }

    /// Returns whether a smallest block is to be inserted.
    pub(crate) fn admits(
        &mut self,
        asked: Asked,
        directory: &mut Directory,
        counters: &mut Counters,
    ) -> bool {
        let Asked { volume, start, direction, in_a_row } = asked;
        let access = Access { in_a_row, ..self.access(volume, start, direction) };
        if !self.asks() {
            return true;
        }
        let victim = self.victim(volume, start, directory);
        let Some(active) = &mut self.active else { return true };
        let admitted = active.admissions.admit(&access, victim.as_ref()).admits();
        counters.offered_blocks += 1;
        counters.admitted_blocks += u64::from(admitted);
        admitted
    }

    /// Ends the window of counts when it has enough lookups.
    pub(crate) fn close_window_in_time(&mut self, directory: &Directory, fetches: &mut Fetches) {
        let Some(active) = &mut self.active else { return };
        if active.window.lookups.blocks >= active.window_lookups {
            active.close_window(directory.smallest_blocks(), &self.sizes, fetches);
        }
    }

    /// Passes the current latencies to the admission.
    pub(crate) fn observe(&mut self, times: &Times, directory: &Directory, fetches: &mut Fetches) {
        if let Some(active) = &mut self.active {
            active.times = *times;
            active.close_window(directory.smallest_blocks(), &self.sizes, fetches);
        }
    }

    /// Returns whether the admission withholds evictions.
    #[inline]
    pub(crate) fn withholds(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.orders.hold)
    }

    /// Counts a run of a block that is being written to the cache.
    #[inline]
    pub(crate) fn inserted(&mut self, run: &Sectors) {
        if let Some(active) = &mut self.active {
            let blocks = units(run, self.sizes.smallest()).count() as u64;
            active.window.inserted +=
                Traffic { blocks, bytes: (run.end - run.start) * SECTOR_BYTES };
        }
    }

    /// Counts runs, in order and valid until now, whose copies were dropped.
    #[inline]
    pub(crate) fn removed(&mut self, runs: &[Sectors], because: Removal) {
        let Some(active) = &mut self.active else { return };
        let mut counted = None;
        for (start, _) in runs.iter().flat_map(|run| units(run, self.sizes.smallest())) {
            let blocks = u64::from(counted != Some(start));
            active.window.removed.blocks += blocks;
            if because == Removal::Replaced {
                active.window.replaced.blocks += blocks;
            }
            counted = Some(start);
        }
    }

    /// Reports a block's eviction to the admission.
    pub(crate) fn evicted(&mut self, block: Block, directory: &Directory) {
        if !self.asks() {
            return;
        }
        let (volume, sectors) = (directory.blocks.volume(block), directory.blocks.sectors(block));
        for (start, part) in units(&sectors, self.sizes.smallest()) {
            if !directory.blocks.has_valid(block, &part) {
                continue; // nothing is lost that was not before
            }
            let access = self.access(volume, start, Direction::Read);
            if let Some(active) = &mut self.active {
                active.window.removed.blocks += 1;
                active.admissions.evicted(&access);
            }
        }
    }

    /// Returns the number of smallest blocks that each of several combined admissions rejected.
    pub(crate) fn declined(&self) -> &[u64] {
        self.active.as_ref().map_or(&[], |active| active.admissions.declined())
    }

    /// Returns the bytes of memory that the admission takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.active.as_ref().map_or(0, |active| {
            let bytes = size_of::<ActiveAdmission>() + active.admissions.memory_bytes();
            bytes as u64
        })
    }
}

impl ActiveAdmission {
    fn new(config: &Config, sectors: u64) -> Self {
        let mut admissions = config.gate.admission.clone();
        admissions.reserve(&room(config, sectors));
        let mut orders = Orders::default();
        admissions.tick(Tick::default(), &mut orders);
        Self {
            asks_overwrites: admissions.needs().overwrites,
            admissions,
            window_lookups: (WINDOW_LOOKUPS / config.shards.unwrap_or(1)).max(LEAST_WINDOW_LOOKUPS),
            puts_writes_off: config.mode.keeps_writes(),
            window: Window::default(),
            times: Times::default(),
            orders,
            lookups: 0,
        }
    }

    fn reserve(&mut self, config: &Config, sectors: u64) {
        self.admissions.reserve(&room(config, sectors));
    }

    fn close_window(&mut self, entries: u64, sizes: &BlockSizes, fetches: &mut Fetches) {
        let (times, puts_writes_off) = (self.times, self.puts_writes_off);
        let window = std::mem::take(&mut self.window);
        self.lookups += window.lookups.blocks;
        self.admissions.observe(&Window { entries, times, puts_writes_off, ..window });
        self.admissions.tick(Tick(self.lookups), &mut self.orders);
        self.orders.fetch.sort_unstable_by_key(|fetch| fetch.position);
        for fetch in self.orders.fetch.drain(..) {
            let place = Place::of_number(fetch.position * sizes.smallest());
            fetches.order(place.volume(), place.sector(), sizes);
        }
    }
}

/// Returns the room of a shard with this many sectors, as admissions are told it.
fn room(config: &Config, sectors: u64) -> Room {
    Room {
        entries: (sectors / config.sizes.smallest()) as usize,
        weight: sectors * SECTOR_BYTES,
        above: config.gate.above_bytes,
    }
}

/// Maximum number of fetches under way at once, and of fetches that wait; further ones are
/// discarded.
const FETCHED_AT_ONCE: usize = 8;
const MOST_FETCHES: usize = 1024;

/// A run to be fetched without a waiting client.
#[derive(Debug, Clone)]
pub(crate) struct Fetch {
    pub(crate) volume: VolumeId,
    pub(crate) run: Sectors,
    /// Start of the stream that the fetch continues; `None` where the admission ordered it.
    pub(crate) stream: Option<u64>,
}

/// The fetches of a shard that wait or are under way.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    waiting: VecDeque<Fetch>,
    under_way: usize,
}

impl Fetches {
    /// Queues a fetch of one smallest block on behalf of the admission. Neighbours within a region
    /// are fetched together.
    pub(crate) fn order(&mut self, volume: VolumeId, start: u64, sizes: &BlockSizes) {
        let end = start + sizes.smallest();
        if let Some(last) = self.waiting.back_mut()
            && (last.volume, last.run.end, last.stream) == (volume, start, None)
            && !start.is_multiple_of(sizes.largest())
        {
            last.run.end = end;
        } else {
            self.push(Fetch { volume, run: start..end, stream: None });
        }
    }

    /// Returns whether a fetch may begin.
    #[inline]
    pub(crate) fn has_next(&self) -> bool {
        !self.waiting.is_empty() && self.under_way < FETCHED_AT_ONCE
    }

    /// Returns the next fetch, if one may begin.
    pub(crate) fn next(&mut self) -> Option<Fetch> {
        if self.has_next() { self.waiting.pop_front() } else { None }
    }

    pub(crate) fn begun(&mut self) {
        self.under_way += 1;
    }

    pub(crate) fn ended(&mut self) {
        self.under_way -= 1;
    }

    pub(crate) fn push(&mut self, fetch: Fetch) {
        if self.waiting.len() < MOST_FETCHES {
            self.waiting.push_back(fetch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AdmissionConfig;
    use crate::mapping::directory::Evict;

    const SECTORS: u64 = 1024;

    fn config(admission: &str) -> Config {
        let gate = AdmissionConfig::new(admission.parse().unwrap());
        Config { sizes: "4KiB".parse().unwrap(), gate, ..Config::default() }
    }

    fn admits(admission: &mut Admission, start: u64, counters: &mut Counters) -> bool {
        let mut directory = Directory::new(admission.sizes.clone(), SECTORS, &Evict::default());
        let asked = Asked { volume: VolumeId(0), start, direction: Direction::Read, in_a_row: 0 };
        admission.admits(asked, &mut directory, counters)
    }

    #[test]
    fn an_admission_that_admits_everything_is_not_asked() {
        let (mut admission, mut counters) =
            (Admission::new(&config("always"), SECTORS), Counters::default());
        assert!(!admission.asks() && admits(&mut admission, 0, &mut counters));
        assert_eq!((counters.offered_blocks, admission.memory_bytes()), (0, 0));
    }

    #[test]
    fn a_block_that_is_asked_about_twice_passes_second_access() {
        let mut admission = Admission::new(&config("second-access"), SECTORS);
        let mut counters = Counters::default();
        assert!(!admits(&mut admission, 8, &mut counters));
        assert!(!admits(&mut admission, 9, &mut counters), "another block");
        assert!(admits(&mut admission, 8, &mut counters));
        assert_eq!((counters.offered_blocks, counters.admitted_blocks), (3, 1));
        assert_eq!(admission.declined().iter().sum::<u64>(), 2);
    }

    #[test]
    fn a_window_counts_a_block_in_two_runs_once() {
        let mut admission = Admission::new(
            &Config { sizes: "32KiB".parse().unwrap(), ..config("second-access") },
            SECTORS,
        );
        admission.inserted(&(0..4));
        admission.removed(&[0..2, 3..4], Removal::Replaced);
        let window = &admission.active.as_ref().unwrap().window;
        assert_eq!((window.inserted.blocks, window.removed.blocks), (1, 1));
        assert_eq!(window.replaced.blocks, 1);
        let directory = Directory::new(admission.sizes.clone(), SECTORS, &Evict::default());
        admission.observe(&Times::default(), &directory, &mut Fetches::default());
        assert_eq!(admission.active.as_ref().unwrap().window.inserted.blocks, 0);
    }
}
