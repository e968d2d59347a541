//! The mapping of a shard: the directory of its blocks, and which sectors are dirty, lost,
//! unflushed or sealed.
//!
//! Each component owns its fields alone. None does I/O or knows of tasks; the shard calls them.

use std::collections::{BTreeSet, VecDeque};

use self::directory::{Block, Blocks, Directory, missing_intervals, resize};
use crate::config::Config;
use crate::geometry::{BlockSizes, Place, SECTOR_BYTES, Sectors, VolumeId};
use crate::tasks::common;

pub(crate) use unflushed::Unflushed;

pub(crate) mod directory;
pub(crate) mod index;
mod unflushed;

/// The cached and missing parts of a range. The mapping keeps one for the next request, which then
/// allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// Cached blocks in address order, each with the part of the range that it covers.
    pub(crate) blocks: Vec<(Block, Sectors)>,
    /// Runs that no block covers, rounded out to smallest blocks.
    pub(crate) missing: Vec<Sectors>,
    /// The valid runs of `blocks`, in address order.
    pub(crate) cached: Vec<(Block, Sectors)>,
    /// Missing runs and the invalid runs of `blocks`, in address order.
    pub(crate) fetches: Vec<Sectors>,
    /// The runs of `fetches`, each with a flag: whether it is admitted.
    pub(crate) offered: Vec<(Sectors, bool)>,
}

/// The state of a shard's blocks and sectors.
#[derive(Debug)]
pub(crate) struct Mapping {
    sizes: BlockSizes,
    space: Space,
    /// The sectors of each volume.
    volumes: Vec<u64>,
    pub(crate) directory: Directory,
    pub(crate) unflushed: Unflushed,
    pub(crate) lost: Lost,
    /// A spare survey, kept for its allocations; empty between uses.
    spare: Survey,
}

impl Mapping {
    /// Creates the empty mapping of a shard that owns this part of the cache device.
    pub(crate) fn new(config: &Config, cache: &Sectors) -> Self {
        let mut directory =
            Directory::new(config.sizes.clone(), cache.end - cache.start, &config.evict);
        directory.blocks.valid.count(!config.gate.admission.is_always());
        Self {
            sizes: config.sizes.clone(),
            space: Space::new(cache),
            volumes: Vec::new(),
            directory,
            unflushed: Unflushed::new(config.memory),
            lost: Lost::default(),
            spare: Survey::default(),
        }
    }

    /// Walks a range as AdaCache's Algorithm 1 does, and returns its blocks and gaps.
    /// [`Mapping::reuse`] takes the survey back.
    pub(crate) fn survey(&mut self, volume: VolumeId, range: &Sectors) -> Survey {
        let mut survey = std::mem::take(&mut self.spare);
        let Survey { blocks, missing, cached, fetches, offered } = &mut survey;
        blocks.clear();
        missing.clear();
        cached.clear();
        fetches.clear();
        offered.clear();
        let cached_until = |sector: u64| {
            let block = self.directory.blocks.find(volume, sector)?;
            let sectors = self.directory.blocks.sectors(block);
            blocks.push((block, common(&sectors, range)));
            Some(sectors.end)
        };
        missing_intervals(&self.sizes, range, cached_until, missing);
        survey
    }

    /// Keeps a survey's memory for the next [`Mapping::survey`].
    pub(crate) fn reuse(&mut self, survey: Survey) {
        self.spare = survey;
    }

    /// Returns whether a condition holds for some block of a range, given its part of the range.
    fn any(
        &mut self,
        volume: VolumeId,
        range: &Sectors,
        holds: impl Fn(&Blocks, Block, &Sectors) -> bool,
    ) -> bool {
        let survey = self.survey(volume, range);
        let any =
            survey.blocks.iter().any(|(block, run)| holds(&self.directory.blocks, *block, run));
        self.reuse(survey);
        any
    }

    /// Returns whether a range has valid sectors.
    pub(crate) fn has_valid(&mut self, volume: VolumeId, range: &Sectors) -> bool {
        self.any(volume, range, Blocks::has_valid)
    }

    /// Returns whether the cache device has dirty sectors of a range; unflushed data in memory does
    /// not count.
    pub(crate) fn is_dirty(&mut self, volume: VolumeId, range: &Sectors) -> bool {
        self.directory.blocks.dirty_sectors() > 0 && self.any(volume, range, Blocks::is_dirty_in)
    }

    /// Returns the offset on the cache device of a run of a block, in bytes.
    #[inline]
    pub(crate) fn cache_offset(&self, block: Block, run: &Sectors) -> u64 {
        self.space.at(self.directory.blocks.cache_sectors(block, run).start) * SECTOR_BYTES
    }

    /// Returns the offset and the length of a group on the cache device, in bytes.
    pub(crate) fn group_bytes(&self, group: u32) -> (u64, u64) {
        let Sectors { start, end } = resize::sectors_of(&self.directory, group);
        (self.space.at(start) * SECTOR_BYTES, (end - start) * SECTOR_BYTES)
    }

    /// Changes the number of groups that may take space on the cache device. `more` is the space
    /// behind that of all shards that the shard gets for further addresses, if it needs some.
    pub(crate) fn resize(&mut self, groups: u32, more: Option<Sectors>) {
        self.space.extend(more);
        resize::resize(&mut self.directory, groups);
    }

    /// Returns the dirty runs of a block within a range, without lost sectors.
    pub(crate) fn dirty_there(&self, block: Block, range: &Sectors) -> Vec<Sectors> {
        let dirty = self.directory.blocks.dirty_runs_in(block, range);
        self.lost.without(self.directory.blocks.volume(block), dirty)
    }

    /// Returns the dirty runs of a whole block, without lost sectors.
    pub(crate) fn dirty_of(&self, block: Block) -> Vec<Sectors> {
        self.dirty_there(block, &self.directory.blocks.sectors(block))
    }

    /// Returns whether the backing device lacks data of a volume.
    pub(crate) fn has_dirty_of(&self, volume: VolumeId) -> bool {
        self.directory.blocks.dirty_blocks(volume).next().is_some()
            || self.unflushed.count(volume) > 0
    }

    /// Returns the number of a volume's bytes that the backing device does not have.
    pub(crate) fn dirty_bytes(&self, volume: VolumeId) -> u64 {
        let blocks = self.directory.blocks.dirty_blocks(volume);
        let runs = blocks.flat_map(|block| self.directory.blocks.dirty_runs(block));
        let dirty = runs.map(|run| run.end - run.start).sum::<u64>();
        (dirty + self.unflushed.count(volume)) * SECTOR_BYTES // what is both is counted twice
    }

    /// Adds a volume, or changes the size of one.
    pub(crate) fn set_volume(&mut self, id: VolumeId, sectors: u64) {
        let at = id.0 as usize;
        self.volumes.resize(self.volumes.len().max(at + 1), 0);
        self.volumes[at] = sectors;
    }

    /// Returns the ids of all volumes, including removed ones.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = VolumeId> + use<> {
        (0..self.volumes.len()).map(|volume| VolumeId(volume as u16))
    }

    /// Returns a run without the sectors beyond the volume's end.
    #[inline]
    pub(crate) fn within_volume(&self, volume: VolumeId, run: &Sectors) -> Sectors {
        run.start..run.end.min(self.volumes[volume.0 as usize])
    }
}

/// The sectors of the cache device that a shard owns: one run, and another for each time that the
/// cache has grown beyond its largest size. Together they are the shard's space.
#[derive(Debug)]
struct Space {
    /// The first run begins at this sector of the device, and is this long.
    first: u64,
    len: u64,
    /// Further runs, each with its first sector in the shard's space and on the device.
    more: Vec<(u64, u64)>,
    /// Number of sectors of all runs.
    end: u64,
}

impl Space {
    fn new(run: &Sectors) -> Self {
        let len = run.end - run.start;
        Self { first: run.start, len, more: Vec::new(), end: len }
    }

    fn extend(&mut self, run: Option<Sectors>) {
        if let Some(run) = run {
            self.more.push((self.end, run.start));
            self.end += run.end - run.start;
        }
    }

    /// Returns the sector on the device of a sector of the shard's space.
    #[inline]
    fn at(&self, sector: u64) -> u64 {
        if sector < self.len { self.first + sector } else { self.beyond_first(sector) }
    }

    #[inline(never)] // a cache that was never resized does not come here
    fn beyond_first(&self, sector: u64) -> u64 {
        debug_assert!(sector < self.end);
        let after = self.more.partition_point(|(start, _)| *start <= sector);
        let (start, device) = self.more[after - 1];
        device + (sector - start)
    }
}

#[cfg(test)]
mod space_tests {
    use super::*;

    #[test]
    fn each_run_has_its_place_on_the_device() {
        let mut space = Space::new(&(100..110));
        space.extend(None);
        space.extend(Some(500..504));
        space.extend(Some(300..306));
        let places = [0, 9, 10, 13, 14, 19].map(|sector| space.at(sector));
        assert_eq!(places, [100, 109, 500, 503, 300, 305]);
    }
}

/// Maximum number of blocks that all rounds together clean at once; each round has at least one.
pub(crate) const CLEANED_AT_ONCE: usize = 32;

/// Maximum number of blocks cleaned ahead at once, and their largest share of all blocks: the
/// blocks evicted in their place were not the coldest.
const AHEAD_AT_ONCE: usize = 32;
const AHEAD_SHARE: usize = 8;

/// Returns how far a part of `all` is beyond the half: 0 up to it, 1 for all.
pub(crate) fn beyond_half(part: u64, all: u64) -> f64 {
    let (half, beyond) = (all.div_ceil(2), part.saturating_sub(all / 2));
    (beyond as f64 / half.max(1) as f64).min(1.0)
}

/// The limit of a shard's dirty sectors, and the blocks that are to be cleaned to make room.
///
/// Cleaning is *paced* once the tier knows how long the backing devices take ([`Dirt::pace`]).
/// While no volume has a share, a new block then never has victims cleaned in its stead: it
/// replaces clean blocks. The dirty victims that it passed over are *wanted*, and are cleaned
/// before all others. The fewer clean victims there are, the more urgent that is
/// ([`Dirt::scarcity`]). Without any, new data is not cached.
#[derive(Debug, Default)]
pub(crate) struct Dirt {
    /// Maximum number of sectors that may be dirty on the cache device; `None` without a limit.
    most: Option<u64>,
    /// Blocks that are being cleaned ahead.
    ahead: usize,
    /// Set once blocks wait for their turn to be cleaned.
    paced: bool,
    /// Set while only what something waits for is cleaned.
    resting: bool,
    /// Runs of a block that are written at once.
    width: usize,
    /// Blocks that are read, or written to the backing device, to be cleaned, by volume.
    cleaning: Vec<usize>,
    /// First sectors of the dirty victims that the last search passed over, the coldest first.
    wanted: VecDeque<Place>,
    /// Share of the next victims that are dirty; 1 if a search found no clean one.
    scarcity: f64,
}

impl Dirt {
    /// Sets the maximum of sectors that may be dirty on the cache device.
    pub(crate) fn limit(&mut self, sectors: u64) {
        self.most = Some(sectors);
    }

    /// Returns whether this many dirty sectors are within the limit.
    #[inline]
    pub(crate) fn allows(&self, dirty: u64) -> bool {
        self.most.is_none_or(|most| dirty <= most)
    }

    /// Returns whether this many dirty sectors are more than half of the limit, at which cleaning
    /// begins.
    #[inline]
    pub(crate) fn is_time_to_clean(&self, dirty: u64) -> bool {
        self.most.is_some_and(|most| dirty > most / 2)
    }

    /// Returns the number of blocks that all rounds together may clean at once, with this many
    /// dirty sectors, where nothing paces them. `yields` says that clients wait for a backing
    /// device.
    #[inline]
    pub(crate) fn cleaned_at_once(&self, dirty: u64, yields: bool) -> usize {
        if !yields || self.most.is_none() {
            return CLEANED_AT_ONCE;
        }
        ((self.urgency(dirty) * CLEANED_AT_ONCE as f64) as usize).clamp(1, CLEANED_AT_ONCE)
    }

    /// Returns how close this many dirty sectors are to the limit: 0 up to half of it, 1 at it.
    pub(crate) fn urgency(&self, dirty: u64) -> f64 {
        self.most.map_or(0.0, |most| beyond_half(dirty, most))
    }

    /// Has blocks wait for their turn to be cleaned from now on.
    pub(crate) fn pace(&mut self) {
        self.paced = true;
    }

    /// Returns whether blocks wait for their turn to be cleaned.
    #[inline]
    pub(crate) fn is_paced(&self) -> bool {
        self.paced
    }

    /// Sets the number of a block's runs that are written at once.
    pub(crate) fn set_width(&mut self, runs: usize) {
        self.width = runs;
    }

    /// Returns the number of a block's runs that are written at once, at least 1.
    #[inline]
    pub(crate) fn width(&self) -> usize {
        self.width.max(1)
    }

    /// Counts a block of a volume that begins to be cleaned.
    pub(crate) fn begin_cleaning(&mut self, volume: VolumeId) {
        let at = volume.0 as usize;
        self.cleaning.resize(self.cleaning.len().max(at + 1), 0);
        self.cleaning[at] += 1;
    }

    /// Counts a block that has been written to the backing device, or was not to be cleaned.
    pub(crate) fn end_cleaning(&mut self, volume: VolumeId) {
        self.cleaning[volume.0 as usize] -= 1;
    }

    /// Returns the number of a volume's blocks that are read or written to be cleaned.
    #[inline]
    pub(crate) fn cleaning(&self, volume: VolumeId) -> usize {
        self.cleaning.get(volume.0 as usize).copied().unwrap_or_default()
    }

    /// Registers `blocks` of `all` blocks to be cleaned ahead; returns false when those would be
    /// too many.
    pub(crate) fn clean_ahead(&mut self, blocks: usize, all: usize) -> bool {
        let may = self.ahead + blocks <= AHEAD_AT_ONCE.min(all / AHEAD_SHARE);
        self.ahead += if may { blocks } else { 0 };
        may
    }

    /// Counts the end of a block's cleaning ahead, successful or not.
    pub(crate) fn cleaned_ahead(&mut self) {
        self.ahead -= 1;
    }

    /// Records the share of the next victims that are dirty, and which are to be cleaned, the
    /// coldest first. Those that were wanted before still are, unless the search began `anew`.
    pub(crate) fn want(&mut self, scarcity: f64, victims: impl Iterator<Item = Place>, anew: bool) {
        self.scarcity = scarcity;
        if self.resting {
            return;
        }
        if anew {
            self.wanted.clear();
        }
        if self.wanted.is_empty() {
            self.wanted.extend(victims);
        }
    }

    /// Returns whether some wanted block is still to be cleaned.
    #[inline]
    pub(crate) fn has_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Returns the volumes that have wanted blocks; a volume may come several times.
    pub(crate) fn wanted_volumes(&self) -> impl Iterator<Item = VolumeId> {
        self.wanted.iter().filter(|_| self.may_clean_wanted()).map(|place| place.volume())
    }

    /// Takes the next wanted block of a volume, by its first sector, unless many are being cleaned.
    pub(crate) fn next_wanted(&mut self, volume: VolumeId) -> Option<u64> {
        if !self.may_clean_wanted() {
            return None;
        }
        let at = self.wanted.iter().position(|place| place.volume() == volume)?;
        self.wanted.remove(at).map(|place| place.sector())
    }

    fn may_clean_wanted(&self) -> bool {
        self.ahead < AHEAD_AT_ONCE
    }

    /// Counts a wanted block that begins to be cleaned.
    pub(crate) fn begin_wanted(&mut self) {
        self.ahead += 1;
    }

    /// Ends cleaning that nothing waits for, with `resting`, or has it go on.
    pub(crate) fn rest(&mut self, resting: bool) {
        self.resting = resting;
        if resting {
            self.wanted.clear();
        }
    }

    /// Returns whether only what something waits for is cleaned.
    pub(crate) fn is_resting(&self) -> bool {
        self.resting
    }

    /// Returns how scarce clean victims are, from 0 to 1.
    pub(crate) fn scarcity(&self) -> f64 {
        if self.ahead > 0 || self.has_wanted() { self.scarcity } else { 0.0 }
    }
}

/// The lost sectors of a shard: dirty ones whose only copy is gone.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    /// Sectors whose only copy the cache device has lost.
    sectors: BTreeSet<Place>,
    /// Sectors lost on the cache device that have newer data in memory, and only there.
    below: BTreeSet<Place>,
    /// Lost sectors not reported yet, in the order in which they were found.
    unreported: Vec<Place>,
}

impl Lost {
    /// Adds a sector whose loss needs no report.
    pub(crate) fn insert(&mut self, place: Place) {
        self.sectors.insert(place);
    }

    /// Adds a lost sector that is to be reported. Returns whether it was not lost before.
    pub(crate) fn find(&mut self, place: Place) -> bool {
        let is_new = self.sectors.insert(place);
        if is_new {
            self.unreported.push(place);
        }
        is_new
    }

    /// Adds a run that was found lost when the cache was opened.
    pub(crate) fn restore(&mut self, volume: VolumeId, run: &Sectors) {
        let places = run.clone().map(|sector| Place::new(volume, sector));
        self.unreported.extend(places.clone());
        self.sectors.extend(places);
    }

    /// Moves the runs of sectors found lost since the last call into `out`.
    pub(crate) fn report(&mut self, out: &mut Vec<(VolumeId, Sectors)>) {
        extend_runs(out, std::mem::take(&mut self.unreported).into_iter(), usize::MAX);
    }

    /// Adds the first lost runs, until `out` has `most` runs.
    pub(crate) fn runs(&self, most: usize, out: &mut Vec<(VolumeId, Sectors)>) {
        extend_runs(out, self.sectors.iter().copied(), most);
    }

    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// Returns whether any sector of a volume is lost.
    #[inline]
    pub(crate) fn has_any_of(&self, volume: VolumeId) -> bool {
        self.sectors.range(Place::all_of(volume)).next().is_some()
    }

    /// Returns whether a run of a volume includes a lost sector.
    #[inline]
    pub(crate) fn has_any(&self, volume: VolumeId, run: &Sectors) -> bool {
        !self.sectors.is_empty() && self.of(volume, run).next().is_some()
    }

    /// Returns the lost sectors of a run, in order.
    pub(crate) fn of(&self, volume: VolumeId, run: &Sectors) -> impl Iterator<Item = u64> {
        self.sectors.range(Place::run(volume, run)).map(|place| place.sector())
    }

    /// Returns runs of a volume without their lost sectors.
    #[inline]
    pub(crate) fn without(
        &self,
        volume: VolumeId,
        runs: impl Iterator<Item = Sectors>,
    ) -> Vec<Sectors> {
        if self.sectors.is_empty() {
            return runs.collect();
        }
        let mut rest = Vec::new();
        for run in runs {
            let mut start = run.start;
            for lost in self.of(volume, &run) {
                if start < lost {
                    rest.push(start..lost);
                }
                start = lost + 1;
            }
            if start < run.end {
                rest.push(start..run.end);
            }
        }
        rest
    }

    /// Divides a run into parts that the cache device has lost and parts that it has not. Newer
    /// data in memory does not count.
    pub(crate) fn by_loss(&self, volume: VolumeId, run: &Sectors) -> Vec<(Sectors, bool)> {
        if self.sectors.is_empty() && self.below.is_empty() {
            return vec![(run.clone(), false)];
        }
        let mut parts: Vec<(Sectors, bool)> = Vec::new();
        for sector in run.clone() {
            let place = Place::new(volume, sector);
            let lost = self.sectors.contains(&place) || self.below.contains(&place);
            match parts.last_mut() {
                Some((part, of)) if *of == lost => part.end = sector + 1,
                _ => parts.push((sector..sector + 1, lost)),
            }
        }
        parts
    }

    /// Removes a run for which a device has new content.
    #[inline]
    pub(crate) fn written(&mut self, volume: VolumeId, run: &Sectors) {
        self.held(volume, run);
        while let Some(&place) = self.below.range(Place::run(volume, run)).next() {
            self.below.remove(&place);
        }
    }

    /// Removes a run for which memory has new content: the run is no longer lost. The log still
    /// calls it lost, as it outlives memory.
    #[inline]
    pub(crate) fn held(&mut self, volume: VolumeId, run: &Sectors) {
        while let Some(&place) = self.sectors.range(Place::run(volume, run)).next() {
            self.sectors.remove(&place);
            self.below.insert(place);
        }
    }

    /// Removes the lost sectors of a volume.
    pub(crate) fn remove_volume(&mut self, volume: VolumeId) {
        let places = Place::all_of(volume);
        self.sectors.retain(|place| !places.contains(place));
        self.below.retain(|place| !places.contains(place));
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

#[cfg(test)]
mod dirt_tests {
    use super::*;

    #[test]
    fn cleaning_begins_at_half_of_the_bound_and_nothing_is_dirty_beyond_it() {
        let mut dirt = Dirt::default();
        assert!(dirt.allows(u64::MAX) && !dirt.is_time_to_clean(u64::MAX), "there is no bound");
        dirt.limit(100);
        assert!(dirt.allows(100) && !dirt.allows(101));
        assert!(!dirt.is_time_to_clean(50) && dirt.is_time_to_clean(51));
    }

    #[test]
    fn a_round_yields_to_clients_the_more_the_further_the_bound_is() {
        let mut dirt = Dirt::default();
        dirt.limit(100);
        assert_eq!(dirt.cleaned_at_once(60, false), CLEANED_AT_ONCE, "no client waits");
        let widths = [0, 50, 75, 100, 1000].map(|dirty| dirt.cleaned_at_once(dirty, true));
        assert_eq!(widths, [1, 1, CLEANED_AT_ONCE / 2, CLEANED_AT_ONCE, CLEANED_AT_ONCE]);
        assert_eq!(
            [0, 50, 75, 100, 1000].map(|dirty| dirt.urgency(dirty)),
            [0.0, 0.0, 0.5, 1.0, 1.0]
        );
    }

    #[test]
    fn an_eighth_of_the_blocks_may_be_cleaned_ahead() {
        let mut dirt = Dirt::default();
        assert!(dirt.clean_ahead(2, 16) && !dirt.clean_ahead(1, 16));
        dirt.cleaned_ahead();
        assert!(dirt.clean_ahead(1, 16) && !dirt.clean_ahead(1, 23));
        assert!(dirt.clean_ahead(30, 1 << 20) && !dirt.clean_ahead(1, 1 << 20));
    }

    #[test]
    fn victims_are_scarce_until_those_that_are_wanted_are_clean() {
        let mut dirt = Dirt::default();
        let place = |sector| Place::new(VolumeId(0), sector);
        dirt.want(0.0, std::iter::empty(), true);
        assert!(!dirt.has_wanted() && dirt.scarcity() == 0.0);
        dirt.want(0.5, [place(8), place(0)].into_iter(), true);
        assert!(dirt.has_wanted() && dirt.scarcity() == 0.5);
        dirt.want(1.0, [place(16)].into_iter(), false);
        assert_eq!(dirt.scarcity(), 1.0, "there is none");
        let volumes: Vec<_> = dirt.wanted_volumes().collect();
        assert_eq!(volumes, [VolumeId(0), VolumeId(0)]);
        assert_eq!(dirt.next_wanted(VolumeId(1)), None, "it has none");
        assert_eq!([(); 3].map(|()| dirt.next_wanted(VolumeId(0))), [Some(8), Some(0), None]);
        assert_eq!(dirt.scarcity(), 0.0, "nothing is in the way any more");
        dirt.begin_wanted();
        assert_eq!(dirt.scarcity(), 1.0, "it is being cleaned");
        (1..AHEAD_AT_ONCE).for_each(|_| dirt.begin_wanted());
        dirt.want(1.0, [place(8)].into_iter(), true);
        assert_eq!(dirt.next_wanted(VolumeId(0)), None, "many are being cleaned");
        dirt.cleaned_ahead();
        assert_eq!(dirt.next_wanted(VolumeId(0)), Some(8));
        dirt.want(1.0, [place(8)].into_iter(), true);
        dirt.want(0.0, std::iter::empty(), true);
        assert!(!dirt.has_wanted(), "the coldest are clean");
        dirt.rest(true);
        dirt.want(1.0, [place(8)].into_iter(), true);
        assert!(!dirt.has_wanted() && dirt.is_resting());
    }
}

#[cfg(test)]
mod lost_tests {
    use super::*;

    const VOLUME: VolumeId = VolumeId(1);

    fn lost(sectors: &[u64]) -> Lost {
        let mut lost = Lost::default();
        sectors.iter().for_each(|&sector| assert!(lost.find(Place::new(VOLUME, sector))));
        lost
    }

    #[test]
    fn a_loss_is_reported_once_and_in_runs() {
        let mut lost = lost(&[3, 4, 9]);
        assert!(!lost.find(Place::new(VOLUME, 4)), "it is known");
        lost.insert(Place::new(VOLUME, 20));
        lost.restore(VolumeId(2), &(0..2));
        let mut out = Vec::new();
        lost.report(&mut out);
        assert_eq!(out, [(VOLUME, 3..5), (VOLUME, 9..10), (VolumeId(2), 0..2)]);
        out.clear();
        lost.report(&mut out);
        assert_eq!(out, []);
        lost.runs(2, &mut out);
        assert_eq!((out, lost.len()), (vec![(VOLUME, 3..5), (VOLUME, 9..10)], 6));
    }

    #[test]
    fn runs_are_divided_at_lost_sectors() {
        let lost = lost(&[3, 4, 9]);
        assert_eq!(lost.without(VOLUME, [0..5, 8..12].into_iter()), [0..3, 8..9, 10..12]);
        assert_eq!(lost.by_loss(VOLUME, &(2..6)), [(2..3, false), (3..5, true), (5..6, false)]);
        assert!(lost.has_any(VOLUME, &(4..8)) && !lost.has_any(VOLUME, &(5..9)));
        assert!(!lost.has_any(VolumeId(0), &(4..8)) && !lost.has_any_of(VolumeId(0)));
    }

    #[test]
    fn newer_data_in_memory_ends_a_loss_but_not_for_the_log() {
        let mut lost = lost(&[3, 4]);
        lost.held(VOLUME, &(3..4));
        assert!(!lost.has_any(VOLUME, &(3..4)) && lost.has_any(VOLUME, &(4..5)));
        assert_eq!(lost.by_loss(VOLUME, &(3..5)), [(3..5, true)]);
        lost.written(VOLUME, &(3..5));
        assert_eq!(lost.by_loss(VOLUME, &(3..5)), [(3..5, false)]);
    }

    #[test]
    fn a_removed_volume_has_lost_nothing() {
        let mut lost = lost(&[3, 4]);
        lost.insert(Place::new(VolumeId(2), 3));
        lost.held(VOLUME, &(3..4));
        lost.remove_volume(VOLUME);
        assert_eq!(lost.by_loss(VOLUME, &(3..5)), [(3..5, false)]);
        assert!(lost.has_any_of(VolumeId(2)) && !lost.has_any_of(VOLUME));
    }
}
