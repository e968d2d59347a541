//! A persistent cache on its device: creation, opening and restart.

use std::collections::BTreeSet;
use std::sync::Arc;

use floe_device::Halves;

use super::journal::{NO_SUM, Salvage, WrongCopy};
use crate::cache::{BlockCache, resize};
use crate::config::{Config, ConfigError};
use crate::geometry::{SECTOR_BYTES, Sectors, VolumeId};
use crate::journal::{
    self, CacheJudge, Change, Io, Mend, NewCache, PartJournal, Restored, RestoredBlock, Standing,
    StoreError, Sums, Superblock, Volume,
};

/// A persistent cache that was read from its device and is not served yet.
#[derive(Debug)]
pub struct KeptCache {
    superblock: Superblock,
    gone: BTreeSet<VolumeId>,
    shards: Vec<Restored>,
    /// Superblocks and pages to be written before a session begins.
    mends: Vec<Mend>,
    /// Messages about pages among `mends` that the ends of logs lacked, one for each.
    restored: Vec<String>,
}

impl From<journal::Opened> for KeptCache {
    fn from(opened: journal::Opened) -> Self {
        let journal::Opened { superblock, gone, shards, mends, restored } = opened;
        Self { superblock, gone, shards, mends, restored }
    }
}

impl KeptCache {
    /// Creates an empty cache in place of whatever is on the device, and opens it.
    ///
    /// # Errors
    /// When the device fails or is too small, or a volume does not fit.
    pub fn create(io: &mut Io<'_>, new: NewCache) -> Result<Self, StoreError> {
        journal::create(io, new)?;
        Ok(Self::open(io, &mut |_, _| {})?.expect("it has just been made"))
    }

    /// Replaces the cache with this superblock by an empty one of equal size, with a new id and
    /// without volumes.
    ///
    /// # Errors
    /// When the device fails.
    pub fn vacate(
        io: &mut Io<'_>,
        superblock: &Superblock,
        id: [u8; 16],
    ) -> Result<(), StoreError> {
        let new = NewCache { id, layout: superblock.layout.clone(), volumes: Vec::new() };
        journal::create(io, new).map(drop)
    }

    /// Reads the cache on a device; `None` when there is none. Calls `progress` with the bytes read
    /// so far and their total. Writes nothing.
    ///
    /// # Errors
    /// When the cache cannot be read completely, or the device fails.
    pub fn open(
        io: &mut Io<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Option<Self>, StoreError> {
        Ok(journal::open(io, progress)?.map(Self::from))
    }

    /// Repairs pages and superblocks that are missing or damaged in some copy of the device, or at
    /// the end of a log. Runs before each session.
    pub(super) fn mend_journal(&mut self, io: &mut Io<'_>) -> Result<(), StoreError> {
        for page in self.restored.drain(..) {
            tracing::warn!(page, "a page of the journal was damaged, and was rebuilt from others");
        }
        let mends = std::mem::take(&mut self.mends);
        let wrong = mends.iter().filter(|mend| mend.wrong != Halves::NONE);
        let bytes: u64 = wrong.map(|mend| mend.bytes.len() as u64).sum();
        if bytes > 0 {
            tracing::warn!(bytes, "a half had damaged metadata, and was repaired from another");
        }
        mends.iter().try_for_each(|mend| io.mend(mend))
    }

    /// Reads the superblock of the cache on a device; `None` when there is no cache.
    ///
    /// # Errors
    /// When the superblock cannot be read, or the device fails.
    pub fn identify(io: &mut Io<'_>) -> Result<Option<Superblock>, StoreError> {
        journal::superblock_of(io)
    }

    /// Returns the superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns whether `volume` was the id of a removed volume that the logs still mention. The
    /// removal becomes durable only some time after the session has begun, so that session must not
    /// reuse the id.
    pub fn is_of_gone(&self, volume: VolumeId) -> bool {
        self.gone.contains(&volume)
    }

    /// Returns the dirty bytes of a volume.
    pub fn dirty_bytes(&self, volume: VolumeId) -> u64 {
        self.bytes(|block| &block.dirty, volume)
    }

    /// Returns the valid bytes of a volume.
    pub fn valid_bytes(&self, volume: VolumeId) -> u64 {
        self.bytes(|block| &block.valid, volume)
    }

    fn bytes(&self, runs: impl Fn(&RestoredBlock) -> &Vec<Sectors>, volume: VolumeId) -> u64 {
        let blocks = self.shards.iter().flat_map(|shard| &shard.blocks);
        let sectors = blocks.filter(|block| block.at.volume == volume).flat_map(runs);
        sectors.map(|run| run.end - run.start).sum::<u64>() * SECTOR_BYTES
    }

    /// Returns the dirty runs of a volume, in address order, each with its offset on the cache
    /// device.
    pub fn dirty_runs(&self, volume: VolumeId) -> Vec<(Sectors, u64)> {
        let mut found = Vec::new();
        for (number, shard) in self.shards.iter().enumerate() {
            let start = self.superblock.layout.data_offset_bytes(number as u64);
            for block in shard.blocks.iter().filter(|block| block.at.volume == volume) {
                let offset = |run: &Sectors| block.at.place + run.start - block.at.sectors.start;
                found.extend(
                    block.dirty.iter().map(|run| (run.clone(), start + offset(run) * SECTOR_BYTES)),
                );
            }
        }
        found.sort_unstable_by_key(|(run, _)| run.start);
        found
    }

    /// Returns up to `most` clean sectors of a volume, spread over its cached data, with their
    /// checksums, which hold for the backing device too. Sectors of zeros are omitted, as they
    /// identify nothing.
    pub fn clean_sums(&self, volume: VolumeId, most: usize) -> Vec<(u64, u64)> {
        let zeros = journal::sum_of(&[0; SECTOR_BYTES as usize]);
        let of_shard = |shard: &'_ Restored| -> Vec<(u64, u64)> {
            let sums = &shard.sums;
            let of = shard.blocks.iter().filter(|block| block.at.volume == volume);
            let first = |block: &RestoredBlock| {
                let runs = block.valid.iter().flat_map(|run| less(run, &block.dirty));
                let sum =
                    |sector| sums[(block.at.place + sector - block.at.sectors.start) as usize];
                let telling = |sum: u64| sum != journal::NO_SUM && sum != zeros;
                runs.flatten().map(|sector| (sector, sum(sector))).find(|(_, sum)| telling(*sum))
            };
            of.filter_map(first).collect()
        };
        let all: Vec<(u64, u64)> = self.shards.iter().flat_map(of_shard).collect();
        let step = all.len().div_ceil(most.max(1)).max(1);
        all.into_iter().step_by(step).collect()
    }

    /// Returns the dirty runs of a volume without checksums, which cannot be verified. They were
    /// about to be overwritten when the cache was last used, or a version of Floe without such
    /// checksums has written them. Lost runs are not included.
    pub fn unsealed_runs(&self, volume: VolumeId) -> Vec<Sectors> {
        let blocks = self.shards.iter().flat_map(|shard| &shard.blocks);
        let blocks = blocks.filter(|block| block.at.volume == volume);
        let unsealed = blocks.flat_map(|block| {
            let runs = block.dirty.iter().flat_map(|run| less(run, &block.sealed));
            runs.flat_map(|run| less(&run, &block.lost)).collect::<Vec<_>>()
        });
        unsealed.collect()
    }

    /// Marks the cache as bypassed: volumes were written without it. Its clean data and its records
    /// of the volumes' content may be outdated; its dirty data is valid.
    pub fn pass_by(&mut self) {
        self.superblock.void = true;
        for volume in &mut self.superblock.volumes {
            (volume.marker, volume.samples) = (0, Default::default());
        }
    }

    /// Drops the clean data of a volume whose backing device may have been replaced.
    pub fn forget_clean(&mut self, volume: VolumeId) {
        self.shards.iter_mut().for_each(|shard| forget_clean(shard, |of| of == volume));
    }

    /// Returns the configuration for serving the cache: the given one, with the properties stored
    /// on the device.
    fn config(&self, config: &Config) -> Config {
        let layout = &self.superblock.layout;
        Config {
            sizes: layout.sizes().clone(),
            cache_bytes: layout.data_bytes(),
            shards: Some(layout.shards()),
            kept: true,
            ..config.clone()
        }
    }

    /// Tests whether [`KeptCache::begin`] can start the cache in `parts` parts. Writes nothing.
    ///
    /// # Errors
    /// When the configuration is unusable.
    pub fn try_parts(&self, config: &Config, parts: usize) -> Result<(), BeginError> {
        BlockCache::parts(self.config(config), parts)?;
        Ok(())
    }

    /// Begins a session with these volumes, and starts the cache in `parts` parts, each with its
    /// journal for [`Tier::with_journal`](crate::Tier::with_journal). Data of other volumes is
    /// dropped. The cache's size, block sizes and number of shards come from the device, not from
    /// `config`. The size is that which the cache had last: see
    /// [`Superblock::set_cache_bytes`].
    ///
    /// Flush the backing devices first. A killed process may have left data in their write caches
    /// that clients could read, and that a power cut would then lose. Then add the volumes by their
    /// ids ([`Driver::add_volume_at`](crate::Driver::add_volume_at)).
    ///
    /// # Errors
    /// When the device fails, a volume does not fit, or there is not a shard for each part.
    pub fn begin(
        mut self,
        io: &mut Io<'_>,
        volumes: Vec<Volume>,
        config: &Config,
        parts: usize,
    ) -> Result<Begun, BeginError> {
        let config = self.config(config);
        self.mend_journal(io)?;
        let Self { mut superblock, mut shards, .. } = self;
        let layout = superblock.layout.clone();
        // There are addresses for all the cache was made for: it may become as large again.
        let mut caches = BlockCache::parts(config, parts)?;
        let known = |id: VolumeId| volumes.iter().any(|volume| volume.id == id);
        for shard in &mut shards {
            forget_others(shard, known);
            if superblock.void {
                forget_clean(shard, |_| true);
            }
        }
        superblock.volumes = volumes;
        if !superblock.clean {
            journal::clear_torn_pages(
                io,
                shards.iter().filter_map(|shard| shard.journal.free_page_offset()),
            )?;
        }
        journal::begin_session(io, &mut superblock)?;
        let mut journals: Vec<Vec<(Restored, Arc<Sums>)>> =
            caches.iter().map(|_| Vec::new()).collect();
        let mut all_sums = Vec::new();
        for (number, mut shard) in shards.into_iter().enumerate() {
            let part = number % parts;
            caches[part].shards.restore_shard(number / parts, &shard.blocks);
            if shard.journal.has_pending() {
                caches[part].inherit_unlogged();
            }
            let sums = Sums::new(std::mem::take(&mut shard.sums));
            all_sums.push(Arc::clone(&sums));
            journals[part].push((Restored { blocks: Vec::new(), ..shard }, sums));
        }
        if superblock.cache_bytes.is_some() {
            let bytes = superblock.data_bytes();
            // Any free place may have data: of volumes that were removed since, or that a killed
            // session wrote and its log never named. So all above the size is given back again.
            caches.iter_mut().try_for_each(|cache| resize(cache, bytes))?;
            // A mirror may have to write zeros for that. The size was recorded when all above it
            // had been given back, so what is left is what sessions used since.
            if io.device.copies() != Halves::NONE {
                caches.iter_mut().for_each(|cache| cache.shards.waive_excess());
            }
        }
        let (layout_of_judge, id) = (layout.clone(), superblock.id);
        let judge = CacheJudge { layout: layout_of_judge, id, sums: all_sums };
        io.device.set_judge(Some(Arc::new(judge)));
        let journal = |(part, shards)| PartJournal::new(part, parts, &layout, shards);
        let journals = journals.into_iter().enumerate().map(journal);
        Ok(Begun { superblock, parts: caches.into_iter().zip(journals).collect() })
    }

    /// Verifies all data that is not known to be lost against its checksums. Returns the corrupt
    /// runs, in each shard in the order of their places. Calls `progress` with the bytes verified
    /// so far and their total.
    ///
    /// # Errors
    /// When the device fails to read clean data. Dirty data that cannot be read is a finding.
    pub fn verify(
        &self,
        io: &mut Io<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Vec<Rotten>, StoreError> {
        let stored: Vec<Vec<Stored>> = (0..self.shards.len()).map(|at| self.stored(at)).collect();
        let all: u64 = stored.iter().flatten().map(length).sum();
        let (mut seen, mut rotten) = (0, Vec::new());
        for ((number, shard), stored) in self.shards.iter().enumerate().zip(&stored) {
            let start = self.superblock.layout.data_offset_bytes(number as u64);
            for Stored { place, dirty, volume, run } in stored {
                let bytes = (run.end - run.start) * SECTOR_BYTES;
                let offset = start + place * SECTOR_BYTES;
                let is_intact = |at: u64, sector: &[u8]| {
                    let stored = shard.sums[((at - start) / SECTOR_BYTES) as usize];
                    stored == NO_SUM || stored == journal::sum_of(sector)
                };
                let read = match io.read_intact(offset..offset + bytes, is_intact) {
                    Err(error) if !dirty => return Err(error),
                    read => read.ok(),
                };
                for at in 0..run.end - run.start {
                    let (place, offset) = (place + at, offset + at * SECTOR_BYTES);
                    let sector = at as usize * SECTOR_BYTES as usize..;
                    let sum = match &read {
                        Some(bytes) => {
                            Some(journal::sum_of(&bytes[sector][..SECTOR_BYTES as usize]))
                        }
                        // A bad spot of the medium spoils no other sector.
                        None => io
                            .read_intact(offset..offset + SECTOR_BYTES, is_intact)
                            .ok()
                            .map(|bytes| journal::sum_of(&bytes)),
                    };
                    let wanted = shard.sums[place as usize];
                    if sum.is_some_and(|found| wanted == NO_SUM || wanted == found) {
                        continue;
                    }
                    let run = run.start + at..run.start + at + 1;
                    let doubted = !dirty && shard.doubted.any(place..place + 1);
                    let (volume, dirty, unreadable) = (*volume, *dirty, sum.is_none());
                    note(&mut rotten, Rotten { volume, run, offset, doubted, dirty, unreadable });
                }
                seen += bytes;
                progress(seen, all);
            }
        }
        Ok(rotten)
    }

    /// Reads all data of each copy of a mirrored device. Returns the runs that are wrong in one
    /// copy and intact in another. With `mend`, such a copy is mended. A device with one copy is
    /// not read.
    ///
    /// # Errors
    /// When no copy can be read, or the device fails to write.
    pub fn verify_copies(&self, io: &mut Io<'_>, mend: bool) -> Result<Vec<WrongCopy>, StoreError> {
        let mut wrong = Vec::new();
        if io.device.copies().len() < 2 {
            return Ok(wrong);
        }
        for (number, shard) in self.shards.iter().enumerate() {
            let start = self.superblock.layout.data_offset_bytes(number as u64);
            for block in &shard.blocks {
                for run in &block.valid {
                    let place = block.at.place + run.start - block.at.sectors.start;
                    let offset = start + place * SECTOR_BYTES;
                    let range = offset..offset + (run.end - run.start) * SECTOR_BYTES;
                    let sum = |at: u64| shard.sums[((at - start) / SECTOR_BYTES) as usize];
                    let mut mends = Vec::new();
                    // A crash may have come while clean data was overwritten.
                    let is_doubted = |at: u64| {
                        let place = (at - start) / SECTOR_BYTES;
                        shard.doubted.any(place..place + 1)
                    };
                    io.damaged_copies(
                        range,
                        |at, sector| match sum(at) {
                            NO_SUM => None,
                            _ if is_doubted(at) => None,
                            sum => Some(sum == journal::sum_of(sector)),
                        },
                        &mut mends,
                    )?;
                    wrong.extend(mends.iter().flat_map(WrongCopy::of));
                    if mend {
                        mends.iter().try_for_each(|mend| io.mend(mend))?;
                    }
                }
            }
        }
        Ok(wrong)
    }

    /// Mends damaged copies of a mirrored device from intact ones. Returns the damaged data; `None`
    /// when there is no cache.
    ///
    /// # Errors
    /// When the cache cannot be read completely, or the device fails.
    pub fn mend_copies(io: &mut Io<'_>) -> Result<Option<Vec<WrongCopy>>, StoreError> {
        let Some(opened) = journal::open_all_copies(io)? else { return Ok(None) };
        let mut kept = Self::from(opened);
        kept.mend_journal(io)?;
        kept.verify_copies(io, true).map(Some)
    }

    /// Returns the valid runs of a shard, clean and dirty ones apart, in the order of their places
    /// on the cache device. Lost runs are omitted.
    fn stored(&self, shard: usize) -> Vec<Stored> {
        let mut found = Vec::new();
        for block in &self.shards[shard].blocks {
            let mut add = |run: Sectors, dirty| {
                let place = block.at.place + run.start - block.at.sectors.start;
                found.push(Stored { place, dirty, volume: block.at.volume, run });
            };
            let clean = block.valid.iter().flat_map(|run| less(run, &block.dirty));
            clean.for_each(|run| add(run, false));
            let dirty = block.dirty.iter().flat_map(|run| less(run, &block.lost));
            dirty.for_each(|run| add(run, true));
        }
        found.sort_unstable_by_key(|stored| stored.place);
        found
    }

    /// Drops clean runs, durably, in a session of its own without clients. Returns the superblock,
    /// which is to be written again as clean. Returns `None` when a log has no room even after a
    /// checkpoint.
    ///
    /// # Errors
    /// When the device fails.
    pub fn forget(
        mut self,
        io: &mut Io<'_>,
        rotten: &[Rotten],
    ) -> Result<Option<Superblock>, StoreError> {
        for shard in &mut self.shards {
            forget_runs(shard, |volume, run| {
                let of = rotten.iter().filter(|it| it.volume == volume);
                of.filter_map(|it| overlap(run, &it.run)).collect()
            });
        }
        self.mend_journal(io)?;
        journal::begin_session(io, &mut self.superblock)?;
        for shard in &mut self.shards {
            if !commit(io, shard)? {
                return Ok(None);
            }
        }
        Ok(Some(self.superblock))
    }

    /// Salvages the cache on a device with damaged journals, with a report for each damaged shard;
    /// `None` when there is no cache. Writes nothing.
    ///
    /// # Errors
    /// When the superblock cannot be read, or the device fails.
    pub fn salvage(io: &mut Io<'_>) -> Result<Option<(Self, Vec<Salvage>)>, StoreError> {
        let found = journal::salvage(io, &mut |_, _| {})?;
        Ok(found.map(|(opened, salvages)| (Self::from(opened), salvages)))
    }

    /// Rewrites the journals of these shards, durably, in a session of its own without clients.
    /// Returns the superblock, which is to be written again as clean. Returns `None` when a log has
    /// no room even after a checkpoint.
    ///
    /// # Errors
    /// When the device fails.
    pub fn rewrite(
        mut self,
        io: &mut Io<'_>,
        salvages: &[Salvage],
    ) -> Result<Option<Superblock>, StoreError> {
        self.mend_journal(io)?;
        journal::begin_session(io, &mut self.superblock)?;
        for (number, shard) in (0..).zip(&mut self.shards) {
            if salvages.iter().any(|salvage| salvage.shard == number) {
                journal::rewrite(io, shard)?;
            }
            if !commit(io, shard)? {
                return Ok(None);
            }
        }
        Ok(Some(self.superblock))
    }

    /// Returns the lost runs of a volume.
    pub fn lost_runs(&self, volume: VolumeId) -> Vec<Sectors> {
        let blocks = self.shards.iter().flat_map(|shard| &shard.blocks);
        blocks
            .filter(|block| block.at.volume == volume)
            .flat_map(|block| block.lost.iter().cloned())
            .collect()
    }
}

/// A persistent cache that was started: its superblock, and its parts with their journals.
#[derive(Debug)]
pub struct Begun {
    /// The superblock. The owner writes it again when volumes are added or removed, and at
    /// shutdown.
    pub superblock: Superblock,
    /// The cache and the journal of each part.
    pub parts: Vec<(BlockCache, PartJournal)>,
}

/// The reason for which a persistent cache cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// The device failed, or its content is unusable.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The configuration is unusable.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Writes a superblock that has changed.
///
/// # Errors
/// When the device fails, or a volume does not fit.
pub fn write_superblock(io: &mut Io<'_>, superblock: &mut Superblock) -> Result<(), StoreError> {
    journal::write_superblock(io, superblock)
}

/// Drops the blocks of unknown volumes, in the log as well.
fn forget_others(shard: &mut Restored, known: impl Fn(VolumeId) -> bool) {
    let (kept, others) =
        std::mem::take(&mut shard.blocks).into_iter().partition(|block| known(block.at.volume));
    let others: Vec<RestoredBlock> = others;
    shard.blocks = kept;
    for block in others {
        shard.journal.log(&Change::Dropped { block: block.at }, |_| journal::NO_SUM);
    }
}

/// Drops all clean data of the volumes that `of` selects, in the log as well.
fn forget_clean(shard: &mut Restored, of: impl Fn(VolumeId) -> bool) {
    forget_runs(shard, |volume, run| if of(volume) { vec![run.clone()] } else { Vec::new() });
}

/// Drops clean sectors, in the log as well: `which` returns, for each valid run, the parts to drop,
/// in order.
fn forget_runs(shard: &mut Restored, which: impl Fn(VolumeId, &Sectors) -> Vec<Sectors>) {
    for block in &mut shard.blocks {
        let mut left = Vec::new();
        for run in std::mem::take(&mut block.valid) {
            let clean = which(block.at.volume, &run);
            let gone: Vec<Sectors> = clean.iter().flat_map(|run| less(run, &block.dirty)).collect();
            left.extend(less(&run, &gone));
            for run in gone {
                let change =
                    Change::Run { block: block.at.clone(), run, standing: Standing::Invalid };
                shard.journal.log(&change, |_| journal::NO_SUM);
            }
        }
        block.valid = left;
    }
    shard.blocks.retain(|block| !block.valid.is_empty());
}

/// Returns the parts of a run that are in none of `others`, which are in order.
fn less(run: &Sectors, others: &[Sectors]) -> Vec<Sectors> {
    let (mut start, mut left) = (run.start, Vec::new());
    for other in others.iter().filter(|other| other.start < run.end && run.start < other.end) {
        if start < other.start {
            left.push(start..other.start);
        }
        start = start.max(other.end);
    }
    if start < run.end {
        left.push(start..run.end);
    }
    left
}

/// A run of a volume whose data on the cache device differs from the data that was stored, or is
/// dirty and cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rotten {
    /// The volume of the run.
    pub volume: VolumeId,
    /// The sectors of the run in the volume.
    pub run: Sectors,
    /// The offset of the run's data on the cache device, in bytes.
    pub offset: u64,
    /// A crash may have left the run half overwritten. Such data is never used, so nothing is lost.
    pub doubted: bool,
    /// The run is dirty: only the cache had the data.
    pub dirty: bool,
    /// The device failed to read the run.
    pub unreadable: bool,
}

/// A run of valid data, all clean or all dirty, and its place on the cache device.
struct Stored {
    place: u64,
    dirty: bool,
    volume: VolumeId,
    run: Sectors,
}

/// Makes the pending changes of a shard durable, with a checkpoint where its log has no room.
/// Returns whether there was room for all of them.
fn commit(io: &mut Io<'_>, shard: &mut Restored) -> Result<bool, StoreError> {
    if write_log(io, shard)? {
        return Ok(true);
    }
    journal::rewrite(io, shard)?;
    write_log(io, shard)
}

/// Writes the pending changes of a shard into its log. Returns whether there was room for all of
/// them.
fn write_log(io: &mut Io<'_>, shard: &mut Restored) -> Result<bool, StoreError> {
    let mut pages = Vec::new();
    let had_room = shard.journal.commit(&mut pages);
    for page in &pages {
        io.write(page.offset, &page.bytes[..], true)?;
    }
    shard.journal.committed();
    Ok(had_room)
}

fn length(stored: &Stored) -> u64 {
    (stored.run.end - stored.run.start) * SECTOR_BYTES
}

/// Appends a corrupt run, or extends the one before if it is adjacent.
fn note(rotten: &mut Vec<Rotten>, found: Rotten) {
    match rotten.last_mut() {
        Some(last)
            if (last.volume, last.doubted, last.dirty, last.unreadable)
                == (found.volume, found.doubted, found.dirty, found.unreadable)
                && last.run.end == found.run.start
                && last.offset + (last.run.end - last.run.start) * SECTOR_BYTES == found.offset =>
        {
            last.run.end = found.run.end;
        }
        _ => rotten.push(found),
    }
}

fn overlap(one: &Sectors, other: &Sectors) -> Option<Sectors> {
    let both = one.start.max(other.start)..one.end.min(other.end);
    (both.start < both.end).then_some(both)
}
