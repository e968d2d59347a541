//! A cache that outlives the program, as its device has it: made, opened, and brought to life
//! again.

mod verify;

use std::collections::BTreeSet;

use crate::cache::{BlockCache, Config, ConfigError};
use crate::driver::PartJournal;
use crate::evict::Evict;
use crate::gate::Gate;
use crate::geometry::{SECTOR_BYTES, Sectors, VolumeId};
use crate::journal::{
    self, Change, Io, NewCache, Restored, RestoredBlock, Standing, StoreError, Superblock, Volume,
};
use crate::memory::Memory;
use crate::mode::WriteMode;

pub use verify::Rotten;

/// A cache that was read from its device and does not serve yet.
#[derive(Debug)]
pub struct KeptCache {
    superblock: Superblock,
    gone: BTreeSet<VolumeId>,
    shards: Vec<Restored>,
}

/// How a cache that was opened is to serve.
#[derive(Debug, Clone)]
pub struct Serving {
    /// When writes reach which device.
    pub mode: WriteMode,
    /// Who comes in.
    pub gate: Gate,
    /// Who leaves.
    pub evict: Evict,
    /// Whether there is a tier in memory above it, and what for.
    pub memory: Memory,
    /// How many threads share it.
    pub parts: usize,
}

impl KeptCache {
    /// Makes an empty cache in place of whatever is on the device, and opens it.
    ///
    /// # Errors
    /// When the device fails or is too small, or a volume does not fit.
    pub fn create(io: &mut Io<'_>, new: NewCache) -> Result<Self, StoreError> {
        journal::create(io, new)?;
        Ok(Self::open(io, &mut |_, _| {})?.expect("it has just been made"))
    }

    /// Leaves an empty cache of no volumes, called `id`, in place of the one with this superblock,
    /// as large as that.
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

    /// Reads the cache on a device; `None` when there is none. `progress` is told the bytes read so
    /// far, and of how many. Nothing is written.
    ///
    /// # Errors
    /// When there is one that cannot be read whole, or the device fails.
    pub fn open(
        io: &mut Io<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Option<Self>, StoreError> {
        let opened = journal::open(io, progress)?;
        Ok(opened.map(|journal::Opened { superblock, gone, shards }| Self {
            superblock,
            gone,
            shards,
        }))
    }

    /// What the cache on a device says of itself; `None` when there is none.
    ///
    /// # Errors
    /// When there is one whose superblock cannot be read, or the device fails.
    pub fn identify(io: &mut Io<'_>) -> Result<Option<Superblock>, StoreError> {
        journal::superblock_of(io)
    }

    /// What the cache says of itself.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Whether an id was a volume's of which the logs still speak. That it is gone is durable only
    /// some time after the session has begun, so the id must not be given again with that.
    pub fn is_of_gone(&self, volume: VolumeId) -> bool {
        self.gone.contains(&volume)
    }

    /// Bytes of a volume that only the cache has.
    pub fn dirty_bytes(&self, volume: VolumeId) -> u64 {
        self.bytes(|block| &block.dirty, volume)
    }

    /// Bytes of a volume that the cache has.
    pub fn valid_bytes(&self, volume: VolumeId) -> u64 {
        self.bytes(|block| &block.valid, volume)
    }

    fn bytes(&self, runs: impl Fn(&RestoredBlock) -> &Vec<Sectors>, volume: VolumeId) -> u64 {
        let blocks = self.shards.iter().flat_map(|shard| &shard.blocks);
        let sectors = blocks.filter(|block| block.at.volume == volume).flat_map(runs);
        sectors.map(|run| run.end - run.start).sum::<u64>() * SECTOR_BYTES
    }

    /// The dirty runs of a volume, in its order, with the byte of the cache device where each
    /// begins.
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

    /// Up to so many clean sectors of a volume, spread over what the cache has of it, with the
    /// checksums of what the backing device has there, too. Sectors of zeros, which tell nothing,
    /// are left out.
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

    /// The dirty runs of a volume of which no checksum is known, by which one could tell whether
    /// they are as they were stored: they were about to be overwritten when the cache was last
    /// used, or a version of Floe that notes none has written them. What is known to be lost is not
    /// among them.
    pub fn unsealed_runs(&self, volume: VolumeId) -> Vec<Sectors> {
        let blocks = self.shards.iter().flat_map(|shard| &shard.blocks);
        let blocks = blocks.filter(|block| block.at.volume == volume);
        let unsealed = blocks.flat_map(|block| {
            let runs = block.dirty.iter().flat_map(|run| less(run, &block.sealed));
            runs.flat_map(|run| less(&run, &block.lost)).collect::<Vec<_>>()
        });
        unsealed.collect()
    }

    /// Forgets what the cache has of a volume that the backing device should have too, when that
    /// may be another than it was.
    pub fn forget_clean(&mut self, volume: VolumeId) {
        self.shards.iter_mut().for_each(|shard| forget_clean(shard, |of| of == volume));
    }

    /// Begins a session with these volumes, and brings the cache to life in so many parts, each
    /// with its journal for [`Driver::with_journal`](crate::Driver::with_journal). What the cache
    /// has of other volumes is forgotten. Volumes are to be added by their ids
    /// ([`Driver::add_volume_at`](crate::Driver::add_volume_at)), their backing devices flushed
    /// before: a process that was killed may have left in their write caches what clients would
    /// read, and a power cut then take back.
    ///
    /// # Errors
    /// When the device fails, a volume does not fit, or there is not a shard for each part.
    pub fn begin(
        self,
        io: &mut Io<'_>,
        volumes: Vec<Volume>,
        serving: &Serving,
    ) -> Result<Begun, BeginError> {
        let Self { mut superblock, mut shards, .. } = self;
        let layout = superblock.layout.clone();
        let config = Config {
            sizes: layout.sizes().clone(),
            cache_bytes: layout.data_bytes(),
            mode: serving.mode,
            gate: serving.gate.clone(),
            evict: serving.evict.clone(),
            shards: Some(layout.shards()),
            memory: serving.memory,
            kept: true,
        };
        let mut caches = BlockCache::parts(config, serving.parts)?;
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
        let mut journals: Vec<Vec<Restored>> = caches.iter().map(|_| Vec::new()).collect();
        for (number, shard) in shards.into_iter().enumerate() {
            let part = number % serving.parts;
            caches[part].restore_shard(number / serving.parts, &shard.blocks);
            if shard.journal.has_pending() {
                caches[part].inherit_unlogged();
            }
            journals[part].push(Restored { blocks: Vec::new(), ..shard });
        }
        let journal = |(part, shards)| PartJournal::new(part, serving.parts, &layout, shards);
        let journals = journals.into_iter().enumerate().map(journal);
        Ok(Begun { superblock, parts: caches.into_iter().zip(journals).collect() })
    }
}

/// A cache that has come to life.
#[derive(Debug)]
pub struct Begun {
    /// To be written again when volumes come or go, and at the end.
    pub superblock: Superblock,
    /// By part: the cache, and its journal.
    pub parts: Vec<(BlockCache, PartJournal)>,
}

/// Why a cache cannot begin to serve.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// Its device.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What is asked of it.
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

/// Forgets the blocks of other volumes than those known, also in the log.
fn forget_others(shard: &mut Restored, known: impl Fn(VolumeId) -> bool) {
    let (kept, others) =
        std::mem::take(&mut shard.blocks).into_iter().partition(|block| known(block.at.volume));
    let others: Vec<RestoredBlock> = others;
    shard.blocks = kept;
    for block in others {
        shard.journal.log(&Change::Dropped { block: block.at }, |_| journal::NO_SUM);
    }
}

/// Forgets everything of these volumes that the backing devices have too, also in the log.
fn forget_clean(shard: &mut Restored, of: impl Fn(VolumeId) -> bool) {
    forget_runs(shard, |volume, run| if of(volume) { vec![run.clone()] } else { Vec::new() });
}

/// Forgets of each run what `which` says, in order, as far as it is clean, also in the log.
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

/// What is left of a run without others, which are in order.
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
