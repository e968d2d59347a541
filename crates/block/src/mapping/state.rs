//! The state of a shard's sectors as a whole: which of them are cached, unflushed or lost.

use super::allocate::missing_intervals;
use super::directory::{Block, Blocks, Directory};
use super::{Held, Lost};
use crate::config::Config;
use crate::engine::common;
use crate::geometry::{BlockSizes, SECTOR_BYTES, Sectors, VolumeId};

/// The cached and missing parts of a range. The mapping keeps one for the next request, which then
/// allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// Cached blocks in address order, each with its part of the range.
    pub(crate) blocks: Vec<(Block, Sectors)>,
    /// Runs that no block covers, rounded out to smallest blocks.
    pub(crate) missing: Vec<Sectors>,
    /// The valid runs of `blocks`, in address order.
    pub(crate) cached: Vec<(Block, Sectors)>,
    /// Missing runs and the invalid runs of `blocks`, in address order.
    pub(crate) fetches: Vec<Sectors>,
    /// The runs of `fetches`, each with whether it is admitted.
    pub(crate) offered: Vec<(Sectors, bool)>,
}

/// The state of a shard's sectors.
#[derive(Debug)]
pub(crate) struct Mapping {
    sizes: BlockSizes,
    /// First sector of the shard's part of the cache device.
    first: u64,
    /// The sectors of each volume.
    volumes: Vec<u64>,
    pub(crate) directory: Directory,
    pub(crate) held: Held,
    pub(crate) lost: Lost,
    /// A spare survey, empty but for its memory.
    spare: Survey,
}

impl Mapping {
    /// Returns the empty mapping of a shard with this part of the cache device.
    pub(crate) fn new(config: &Config, cache: &Sectors) -> Self {
        let mut directory =
            Directory::new(config.sizes.clone(), cache.end - cache.start, &config.evict);
        directory.blocks.valid.count(!config.gate.admission.is_always());
        Self {
            sizes: config.sizes.clone(),
            first: cache.start,
            volumes: Vec::new(),
            directory,
            held: Held::new(config.memory),
            lost: Lost::default(),
            spare: Survey::default(),
        }
    }

    /// Walks a range as Algorithm 1 does, and returns its blocks and gaps; [`Mapping::reuse`] takes
    /// the survey back.
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

    /// Reuses the memory of a survey.
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

    /// Returns whether a range has dirty sectors below memory.
    pub(crate) fn is_dirty(&mut self, volume: VolumeId, range: &Sectors) -> bool {
        self.directory.blocks.dirty_sectors() > 0 && self.any(volume, range, Blocks::is_dirty_in)
    }

    /// Returns the offset on the cache device of a run of a block, in bytes.
    #[inline]
    pub(crate) fn cache_offset(&self, block: Block, run: &Sectors) -> u64 {
        (self.first + self.directory.blocks.cache_sectors(block, run).start) * SECTOR_BYTES
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
        self.directory.blocks.dirty_blocks(volume).next().is_some() || self.held.count(volume) > 0
    }

    /// Returns the bytes of a volume that the backing device does not have.
    pub(crate) fn dirty_bytes(&self, volume: VolumeId) -> u64 {
        let blocks = self.directory.blocks.dirty_blocks(volume);
        let runs = blocks.flat_map(|block| self.directory.blocks.dirty_runs(block));
        let dirty = runs.map(|run| run.end - run.start).sum::<u64>();
        (dirty + self.held.count(volume)) * SECTOR_BYTES // what is both is counted twice
    }

    /// Adds a volume, or changes the size of one.
    pub(crate) fn set_volume(&mut self, id: VolumeId, sectors: u64) {
        let at = id.0 as usize;
        self.volumes.resize(self.volumes.len().max(at + 1), 0);
        self.volumes[at] = sectors;
    }

    /// Returns the ids of all volumes, and of those that were removed.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = VolumeId> + use<> {
        (0..self.volumes.len()).map(|volume| VolumeId(volume as u16))
    }

    /// Returns a run without the sectors beyond the volume's end.
    #[inline]
    pub(crate) fn within_volume(&self, volume: VolumeId, run: &Sectors) -> Sectors {
        run.start..run.end.min(self.volumes[volume.0 as usize])
    }
}
