//! The map from blocks to places, as recovery builds it from the statements of a log.
//!
//! Flat arrays cover the shard's space. By smallest block they hold the block that begins there and
//! the number of the last statement about it. By sector they hold a bit for each state, and a
//! checksum. A statement says that its block stands at its place, so it removes everything that
//! contradicts it. That is another block in that place, blocks of another size in its group, and
//! blocks elsewhere that hold some of the same sectors of the volume.

use zerocopy::little_endian::U64;

use super::record::{BlockAt, Change, NO_SUM, Standing, Statement};
use crate::bits::Bits;
use crate::geometry::{BlockSizes, Class, Extent, SECTOR_BYTES, Sectors, VolumeId};
use crate::mapping::index::Index;

/// Marks a group, or a place, without blocks.
const NONE: u8 = u8::MAX;

/// A block that recovery found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RestoredBlock {
    pub(crate) at: BlockAt,
    /// Valid runs of the block, in order, as sectors of its volume.
    pub(crate) valid: Vec<Sectors>,
    /// Runs of `valid` that the backing device does not have.
    pub(crate) dirty: Vec<Sectors>,
    /// Runs of `dirty` whose data is gone.
    pub(crate) lost: Vec<Sectors>,
    /// Runs of `dirty` whose checksums the log has.
    pub(crate) sealed: Vec<Sectors>,
}

impl RestoredBlock {
    /// Returns the changes that describe this block to an empty log.
    pub(super) fn changes(&self, sums: &[u64], doubted: &Bits) -> Vec<Change> {
        let within = |runs: &[Sectors], sector: u64| runs.iter().any(|run| run.contains(&sector));
        let standing = |sector: u64| {
            let place = self.at.place + (sector - self.at.sectors.start);
            let has_sum = sums[place as usize] != NO_SUM;
            match () {
                () if within(&self.lost, sector) => Standing::Lost,
                () if within(&self.dirty, sector) && has_sum => Standing::Sealed,
                () if within(&self.dirty, sector) => Standing::Dirty,
                () if !within(&self.valid, sector) || !has_sum => Standing::Invalid,
                () if doubted.any(place..place + 1) => Standing::Doubted,
                () => Standing::Clean,
            }
        };
        let each: Vec<(u64, Standing)> =
            self.at.sectors.clone().map(|sector| (sector, standing(sector))).collect();
        let runs = each.chunk_by(|one, other| one.1 == other.1);
        let stated = runs.filter(|run| run[0].1 != Standing::Invalid);
        let change = |run: &[(u64, Standing)]| {
            let (first, standing) = run[0];
            Change::Run { block: self.at.clone(), run: first..first + run.len() as u64, standing }
        };
        stated.map(change).collect()
    }
}

/// The result of recovering a shard.
#[derive(Debug)]
pub(super) struct Finished {
    /// The blocks with data, ordered by the last statement about each, oldest first.
    pub(super) blocks: Vec<RestoredBlock>,
    /// The checksums of all sectors of the shard's space, [`NO_SUM`] where none is known.
    pub(super) sums: Vec<u64>,
    /// The sectors that are clean if their checksums are right: see [`Standing::Doubted`].
    pub(super) doubted: Bits,
}

/// The standing of each sector of a shard's space.
#[derive(Debug)]
struct Stands {
    valid: Bits,
    dirty: Bits,
    lost: Bits,
    sealed: Bits,
    doubted: Bits,
    /// Dirty sectors from before a gap in the log, with no later statement about them.
    suspect: Bits,
}

impl Stands {
    /// Creates the standing of `sectors` invalid sectors.
    fn new(sectors: u64) -> Self {
        let none = || Bits::new(sectors);
        Self {
            valid: none(),
            dirty: none(),
            lost: none(),
            sealed: none(),
            doubted: none(),
            suspect: none(),
        }
    }
}

/// The blocks and sector states of one shard during recovery.
#[derive(Debug)]
pub(super) struct Map {
    sizes: BlockSizes,
    sectors: u64,
    /// Block that begins at each smallest block of the shard's space, if `begins` is set there. The
    /// array ends with the last that ever began a block, so that an empty cache of any size is read
    /// at once.
    extents: Vec<Extent>,
    begins: Vec<bool>,
    /// Number of the last statement about the block that begins at each smallest block.
    stated: Vec<u64>,
    statements: u64,
    /// Class of the blocks of each group, or `NONE`.
    classes: Vec<u8>,
    index: Index,
    /// Number of blocks of each class.
    live: Vec<u64>,
    stands: Stands,
    sums: Vec<u64>,
}

impl Map {
    pub(super) fn new(sizes: &BlockSizes, sectors: u64) -> Self {
        let units = (sectors / sizes.smallest()) as usize;
        Self {
            sizes: sizes.clone(),
            sectors,
            extents: Vec::new(),
            begins: vec![false; units],
            stated: vec![0; units],
            statements: 0,
            classes: vec![NONE; (sectors / sizes.largest()) as usize],
            index: Index::default(),
            live: vec![0; sizes.count()],
            stands: Stands::new(sectors),
            sums: vec![NO_SUM; sectors as usize],
        }
    }

    /// Applies a statement of the log. With `at_rest`, dirty data has not been overwritten since,
    /// so its checksums hold.
    ///
    /// # Errors
    /// When the block cannot be in the stated place. The map is unchanged then.
    pub(super) fn state(
        &mut self,
        statement: &Statement<'_>,
        at_rest: bool,
    ) -> Result<(), &'static str> {
        let (Statement::Run { block, .. } | Statement::Dropped { block }) = statement else {
            self.doubt();
            return Ok(());
        };
        let size = block.sectors.end - block.sectors.start;
        let class = self.sizes.classes().find(|class| self.sizes.sectors(*class) == size);
        let class = class.ok_or("names a block of a size that the cache does not have")?;
        if !block.place.is_multiple_of(size) || block.place + size > self.sectors {
            return Err("names a block in a place that the shard does not have");
        }
        let unit = (block.place / self.sizes.smallest()) as usize;
        let extent = Extent::new(block.volume, block.sectors.start, size);
        let stands = self.begins[unit] && self.extents[unit] == extent;
        match statement {
            Statement::Dropped { .. } if stands => self.remove(unit),
            Statement::Dropped { .. } | Statement::Crashed => {}
            Statement::Run { run, standing, sums, .. } => {
                if !stands {
                    self.make_way(unit, class, extent);
                    self.insert(unit, class, extent);
                }
                self.statements += 1;
                self.stated[unit] = self.statements;
                let at = block.place + (run.start - block.sectors.start);
                let standing = match standing {
                    Standing::Resting if !at_rest => Standing::Dirty,
                    standing => *standing,
                };
                self.set(at..at + (run.end - run.start), standing, sums);
            }
        }
        Ok(())
    }

    /// Marks all clean sectors as doubted: a crash came after all statements so far.
    pub(super) fn doubt(&mut self) {
        if planted!(NeverDoubted) {
            return;
        }
        self.stands.doubted.assign_difference(&self.stands.valid, &self.stands.dirty);
    }

    /// Handles a gap in the log. Clean sectors are forgotten; dirty sectors become suspect until a
    /// later statement confirms them.
    pub(super) fn suspect(&mut self) {
        if planted!(GapTrusted) {
            return;
        }
        self.stands.valid.clone_from(&self.stands.dirty);
        self.stands.doubted = Bits::new(self.sectors);
        self.stands.suspect.assign_difference(&self.stands.dirty, &self.stands.lost);
    }

    /// Declares all suspect sectors lost, and returns them in the order of their places.
    pub(super) fn condemn(&mut self) -> Vec<(VolumeId, Sectors)> {
        let mut lost = Vec::new();
        for unit in (0..self.extents.len()).filter(|unit| self.begins[*unit]).collect::<Vec<_>>() {
            let BlockAt { volume, sectors, place } = self.block_at(unit);
            let kept = place..place + (sectors.end - sectors.start);
            let suspects: Vec<Sectors> = self
                .stands
                .suspect
                .runs(kept)
                .filter_map(|(run, suspect)| suspect.then_some(run))
                .collect();
            for run in suspects {
                if planted!(GapForgotten) {
                    self.set(run, Standing::Invalid, &[]);
                    continue;
                }
                self.set(run.clone(), Standing::Lost, &[]);
                let within = |at: u64| at - place + sectors.start;
                lost.push((volume, within(run.start)..within(run.end)));
            }
        }
        lost
    }

    fn set(&mut self, kept: Sectors, standing: Standing, sums: &[U64]) {
        let range = kept.start as usize..kept.end as usize;
        if standing.has_sums() {
            for (to, from) in self.sums[range].iter_mut().zip(sums) {
                *to = from.get();
            }
        } else {
            self.sums[range].fill(NO_SUM);
        }
        let bits = [
            (&mut self.stands.valid, standing != Standing::Invalid),
            (&mut self.stands.dirty, standing.is_dirty()),
            (&mut self.stands.lost, standing == Standing::Lost),
            (&mut self.stands.sealed, standing == Standing::Sealed),
            (&mut self.stands.doubted, standing == Standing::Doubted),
            (&mut self.stands.suspect, false),
        ];
        for (bits, is_so) in bits {
            if is_so { bits.set(kept.clone()) } else { bits.clear(kept.clone()) }
        }
    }

    /// Removes all blocks that contradict the position of a new block.
    fn make_way(&mut self, unit: usize, class: Class, extent: Extent) {
        let per_group = (self.sizes.largest() / self.sizes.smallest()) as usize;
        let group = unit / per_group;
        if self.classes[group] != class.0 {
            for other in group * per_group..(group + 1) * per_group {
                self.remove_if_any(other);
            }
            self.classes[group] = class.0;
        }
        self.remove_if_any(unit);
        let wanted = extent.sectors();
        for class in self.sizes.classes() {
            if self.live[class.0 as usize] == 0 {
                continue;
            }
            let size = self.sizes.sectors(class);
            for start in (wanted.start / size * size..wanted.end).step_by(size as usize) {
                let other = Extent::new(extent.volume(), start, size);
                let extents = &self.extents;
                let found = self.index.find(other.hash(), |slot| extents[slot as usize] == other);
                if let Some(found) = found {
                    self.remove(found as usize);
                }
            }
        }
    }

    fn insert(&mut self, unit: usize, class: Class, extent: Extent) {
        if self.extents.len() <= unit {
            self.extents.resize(unit + 1, Extent::new(VolumeId(0), 0, 1));
        }
        self.extents[unit] = extent;
        self.begins[unit] = true;
        self.live[class.0 as usize] += 1;
        let extents = &self.extents;
        self.index.insert(unit as u32, |slot| extents[slot as usize].hash());
    }

    fn remove_if_any(&mut self, unit: usize) {
        if self.begins[unit] {
            self.remove(unit);
        }
    }

    fn remove(&mut self, unit: usize) {
        let Sectors { start, end } = self.extents[unit].sectors();
        let place = unit as u64 * self.sizes.smallest();
        self.set(place..place + (end - start), Standing::Invalid, &[]);
        let extents = &self.extents;
        self.index.remove(unit as u32, |slot| extents[slot as usize].hash());
        self.begins[unit] = false;
        let class = self.sizes.class(end - start);
        self.live[class.0 as usize] -= 1;
    }

    /// Removes the blocks of all volumes for which `known` does not hold, and returns them.
    pub(super) fn forget_unknown(&mut self, known: impl Fn(VolumeId) -> bool) -> Vec<BlockAt> {
        let unknown = |unit: &usize| self.begins[*unit] && !known(self.extents[*unit].volume());
        let units: Vec<usize> = (0..self.extents.len()).filter(unknown).collect();
        units
            .into_iter()
            .map(|unit| {
                let at = self.block_at(unit);
                self.remove(unit);
                at
            })
            .collect()
    }

    fn block_at(&self, unit: usize) -> BlockAt {
        let extent = self.extents[unit];
        let place = unit as u64 * self.sizes.smallest();
        BlockAt { volume: extent.volume(), sectors: extent.sectors(), place }
    }

    /// Returns the number of blocks, and the bytes of valid and of dirty data.
    pub(super) fn totals(&self) -> (u64, u64, u64) {
        let blocks = self.live.iter().sum();
        (blocks, self.stands.valid.ones() * SECTOR_BYTES, self.stands.dirty.ones() * SECTOR_BYTES)
    }

    /// Returns the recovered blocks, checksums and doubted sectors.
    pub(super) fn finish(self) -> Finished {
        let mut units: Vec<usize> =
            (0..self.extents.len()).filter(|unit| self.begins[*unit]).collect();
        units.sort_unstable_by_key(|unit| self.stated[*unit]);
        let restored = |unit: usize| {
            let at = self.block_at(unit);
            let runs = |bits: &Bits| -> Vec<Sectors> {
                let kept = at.place..at.place + (at.sectors.end - at.sectors.start);
                let set = bits.runs(kept).filter_map(|(run, bit)| bit.then_some(run));
                let within = |sector: u64| sector - at.place + at.sectors.start;
                set.map(|run| within(run.start)..within(run.end)).collect()
            };
            let (valid, dirty) = (runs(&self.stands.valid), runs(&self.stands.dirty));
            let (lost, sealed) = (runs(&self.stands.lost), runs(&self.stands.sealed));
            (!valid.is_empty()).then(|| RestoredBlock {
                at: at.clone(),
                valid,
                dirty,
                lost,
                sealed,
            })
        };
        let blocks = units.into_iter().filter_map(restored).collect();
        Finished { blocks, sums: self.sums, doubted: self.stands.doubted }
    }
}
