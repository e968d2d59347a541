//! A persistent cache on its device: created, opened, and started again.

mod verify;

use std::collections::BTreeSet;
use std::sync::Arc;

use floe_device::Halves;

use crate::cache::BlockCache;
use crate::config::{Config, ConfigError};
use crate::geometry::{SECTOR_BYTES, Sectors, VolumeId};
use crate::store::journal::{
    self, CacheJudge, Change, Io, Mend, NewCache, Restored, RestoredBlock, Standing, StoreError,
    Sums, Superblock, Volume,
};
use crate::tiers::tier::PartJournal;

pub use verify::Rotten;

/// A cache that was read from its device and is not served yet.
#[derive(Debug)]
pub struct KeptCache {
    superblock: Superblock,
    gone: BTreeSet<VolumeId>,
    shards: Vec<Restored>,
    /// Superblocks and pages to be written before a session begins.
    mends: Vec<Mend>,
    /// Pages among them that the ends of logs lacked, a line each.
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

    /// Replaces the cache with this superblock by an empty one of equal size, without volumes, with
    /// the id `id`.
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

    /// Writes what pages and superblocks lack in some copy of the device, or at the end of a log.
    /// Runs before each session.
    pub(super) fn mend_journal(&mut self, io: &mut Io<'_>) -> Result<(), StoreError> {
        for page in self.restored.drain(..) {
            tracing::warn!(
                page,
                "a page of the journal was damaged, and is made again from others"
            );
        }
        let mends = std::mem::take(&mut self.mends);
        let wrong = mends.iter().filter(|mend| mend.wrong != Halves::NONE);
        let bytes: u64 = wrong.map(|mend| mend.bytes.len() as u64).sum();
        if bytes > 0 {
            tracing::warn!(bytes, "a half had damaged metadata, and gets that of another");
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

    /// Returns whether an id belonged to a removed volume that the logs still mention. The removal
    /// becomes durable only some time after the session has begun, so that session must not reuse
    /// the id.
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

    /// Returns the dirty runs of a volume, in its order, with the offset of each on the cache
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

    /// Returns up to so many clean sectors of a volume, spread over its cached data, with their
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

    /// Marks the cache as passed by: its clean data and all it says of the volumes' content may be
    /// old, and its dirty data is valid.
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

    /// Returns the configuration in which it is served.
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

    /// Tests whether [`KeptCache::begin`] can start it in so many parts. Writes nothing.
    ///
    /// # Errors
    /// When the configuration is unusable.
    pub fn try_parts(&self, config: &Config, parts: usize) -> Result<(), BeginError> {
        BlockCache::parts(self.config(config), parts)?;
        Ok(())
    }

    /// Begins a session with these volumes, and starts the cache in so many parts, each with its
    /// journal for [`Tier::with_journal`](crate::Tier::with_journal). Data of other volumes is
    /// dropped. The device says what the cache's size, block sizes and number of shards are, not
    /// `config`.
    ///
    /// Add the volumes by their ids ([`Driver::add_volume_at`](crate::Driver::add_volume_at)),
    /// after a flush of their backing devices. A killed process may have left data in their write
    /// caches that clients could read, and that a power cut would then lose.
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
        let (layout_of_judge, id) = (layout.clone(), superblock.id);
        let judge = CacheJudge { layout: layout_of_judge, id, sums: all_sums };
        io.device.set_judge(Some(Arc::new(judge)));
        let journal = |(part, shards)| PartJournal::new(part, parts, &layout, shards);
        let journals = journals.into_iter().enumerate().map(journal);
        Ok(Begun { superblock, parts: caches.into_iter().zip(journals).collect() })
    }
}

/// A cache that has been started.
#[derive(Debug)]
pub struct Begun {
    /// The superblock, to be written again when volumes are added or removed, and at the end.
    pub superblock: Superblock,
    /// The cache and the journal of each part.
    pub parts: Vec<(BlockCache, PartJournal)>,
}

/// The reason for which a cache cannot be started.
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

/// Drops the blocks of unknown volumes, also in the log.
fn forget_others(shard: &mut Restored, known: impl Fn(VolumeId) -> bool) {
    let (kept, others) =
        std::mem::take(&mut shard.blocks).into_iter().partition(|block| known(block.at.volume));
    let others: Vec<RestoredBlock> = others;
    shard.blocks = kept;
    for block in others {
        shard.journal.log(&Change::Dropped { block: block.at }, |_| journal::NO_SUM);
    }
}

/// Drops all clean data of these volumes, also in the log.
fn forget_clean(shard: &mut Restored, of: impl Fn(VolumeId) -> bool) {
    forget_runs(shard, |volume, run| if of(volume) { vec![run.clone()] } else { Vec::new() });
}

/// Drops the clean sectors of the runs that `which` returns, in order, for each valid run, also in
/// the log.
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

/// Returns the rest of a run without others, which are in order.
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
