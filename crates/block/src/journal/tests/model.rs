//! A model of a shard: a list of blocks, in the order of the last statement about each.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::SIZES;
use crate::geometry::{SECTOR_BYTES, VolumeId};
use crate::journal::{BlockAt, Change, NO_SUM, RestoredBlock, Standing};

/// A sector's place, state and checksum.
pub(super) type Sector = (u64, Standing, u64);

/// The state of each sector of the volumes, if it is valid.
pub(super) type Sectors = Vec<Option<Sector>>;

/// Upper bound of the sectors of a test volume.
const VOLUME_SECTORS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) at: BlockAt,
    /// State and checksum of each sector.
    sectors: Vec<(Standing, u64)>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Model {
    /// Blocks of the shard, coldest first.
    pub(super) blocks: Vec<Block>,
}

impl Block {
    pub(super) fn is_empty(&self) -> bool {
        self.sectors.iter().all(|(standing, _)| *standing == Standing::Invalid)
    }

    /// Returns the changes that describe the block.
    pub(super) fn changes(&self) -> Vec<Change> {
        let start = self.at.sectors.start;
        let each = self
            .sectors
            .iter()
            .enumerate()
            .map(|(number, (standing, _))| (start + number as u64, *standing));
        let each: Vec<_> = each.collect();
        let runs = each.chunk_by(|one, next| one.1 == next.1);
        runs.map(|run| Change::Run {
            block: self.at.clone(),
            run: run[0].0..run[run.len() - 1].0 + 1,
            standing: run[0].1,
        })
        .collect()
    }

    /// Returns the checksum of the sector at a place.
    pub(super) fn sum(&self, place: u64) -> u64 {
        self.sectors[(place - self.at.place) as usize].1
    }
}

impl Model {
    /// Returns the model of a recovered shard.
    pub(super) fn restored(blocks: &[RestoredBlock], sums: &[u64]) -> Model {
        let block = |found: &RestoredBlock| {
            let standing = |sector: u64| {
                let within =
                    |runs: &[std::ops::Range<u64>]| runs.iter().any(|run| run.contains(&sector));
                match (within(&found.valid), within(&found.dirty)) {
                    (true, true) if within(&found.lost) => Standing::Lost,
                    (true, true) => Standing::Dirty,
                    (true, false) => Standing::Clean,
                    (false, false) => Standing::Invalid,
                    (false, true) => panic!("a dirty sector is valid"),
                }
            };
            let sum =
                |sector: u64| sums[(found.at.place + sector - found.at.sectors.start) as usize];
            let sectors = found.at.sectors.clone().map(|sector| (standing(sector), sum(sector)));
            Block { at: found.at.clone(), sectors: sectors.collect() }
        };
        Model { blocks: blocks.iter().map(block).collect() }
    }

    /// Applies a change; `sum` gives the checksum of each clean sector by its place.
    pub(super) fn change(&mut self, change: &Change, sum: impl Fn(u64) -> u64) {
        let at = change.block();
        let size = |block: &BlockAt| block.sectors.end - block.sectors.start;
        let group = |block: &BlockAt| block.place * SECTOR_BYTES / SIZES[2];
        let Change::Run { run, standing, .. } = change else {
            return self.blocks.retain(|block| block.at != *at);
        };
        let mut stated =
            Block { at: at.clone(), sectors: vec![(Standing::Invalid, NO_SUM); size(at) as usize] };
        self.blocks.retain(|block| {
            if block.at == *at {
                stated = block.clone();
                return false;
            }
            let other = &block.at;
            let same_sectors = other.volume == at.volume
                && other.sectors.start < at.sectors.end
                && at.sectors.start < other.sectors.end;
            let same_place =
                other.place < at.place + size(at) && at.place < other.place + size(other);
            !same_sectors && !same_place && (group(other) != group(at) || size(other) == size(at))
        });
        for sector in run.clone() {
            let number = sector - at.sectors.start;
            let sum = if *standing == Standing::Clean { sum(at.place + number) } else { NO_SUM };
            stated.sectors[number as usize] = (*standing, sum);
        }
        self.blocks.push(stated);
    }

    pub(super) fn sectors(&self) -> Sectors {
        let mut all = vec![None; 2 * VOLUME_SECTORS];
        for block in &self.blocks {
            for (number, (standing, sum)) in (0..).zip(&block.sectors) {
                if *standing != Standing::Invalid {
                    let sector = (block.at.sectors.start + number) as usize;
                    let at = usize::from(block.at.volume.0) * VOLUME_SECTORS + sector;
                    let found = (block.at.place + number, *standing, *sum);
                    assert_eq!(all[at].replace(found), None, "two blocks hold sector {sector}");
                }
            }
        }
        all
    }

    /// Returns the blocks with data, coldest first.
    pub(super) fn order(&self) -> Vec<&BlockAt> {
        self.blocks.iter().filter(|block| !block.is_empty()).map(|block| &block.at).collect()
    }
}

/// Returns a possible change in a shard of `groups` groups, mostly of an existing block.
pub(super) fn random_change(random: &mut SmallRng, model: &Model, groups: u64) -> Change {
    let known = random.random_range(0..model.blocks.len() + 4);
    let block = match model.blocks.get(known) {
        Some(block) => block.at.clone(),
        None => {
            let size = SIZES[random.random_range(0..3)] / SECTOR_BYTES;
            let most = groups * SIZES[2] / SECTOR_BYTES / size;
            let start = random.random_range(0..most) * size;
            let volume = VolumeId(random.random_range(0..2));
            BlockAt {
                volume,
                sectors: start..start + size,
                place: random.random_range(0..most) * size,
            }
        }
    };
    if random.random_range(0..8) == 0 {
        return Change::Dropped { block };
    }
    let size = block.sectors.end - block.sectors.start;
    let (one, other) = (random.random_range(0..size), random.random_range(0..size));
    let run = block.sectors.start + one.min(other)..block.sectors.start + one.max(other) + 1;
    let standings = [Standing::Clean, Standing::Dirty, Standing::Lost, Standing::Invalid];
    Change::Run { block, run, standing: standings[random.random_range(0..4)] }
}

pub(super) fn random(seed: u64) -> SmallRng {
    SmallRng::seed_from_u64(seed)
}
