//! Verification of the clean data of a persistent cache, sector by sector, and removal of corrupt
//! data.

use super::{KeptCache, forget_runs};
use crate::geometry::{SECTOR_BYTES, Sectors, VolumeId};
use crate::store::journal::{self, Io, NO_SUM, Restored, Salvage, StoreError, Superblock};

/// A run of a volume whose data on the cache device differs from the data that was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rotten {
    /// Its volume.
    pub volume: VolumeId,
    /// Its sectors in the volume.
    pub run: Sectors,
    /// Its offset on the cache device, in bytes.
    pub offset: u64,
    /// A crash may have left it half overwritten: then nothing is wrong, and it is not used.
    pub doubted: bool,
}

/// A clean run and its place.
struct Clean {
    place: u64,
    volume: VolumeId,
    run: Sectors,
}

impl KeptCache {
    /// Reads all clean data, and returns the corrupt runs in the order of their places. Calls
    /// `progress` with the bytes verified so far and their total.
    ///
    /// # Errors
    /// When the device fails.
    pub fn verify(
        &self,
        io: &mut Io<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Vec<Rotten>, StoreError> {
        let all: u64 = (0..self.shards.len())
            .flat_map(|shard| self.clean_runs(shard))
            .map(|it| length(&it))
            .sum();
        let (mut seen, mut rotten) = (0, Vec::new());
        for (number, shard) in self.shards.iter().enumerate() {
            let start = self.superblock.layout.data_offset_bytes(number as u64);
            for clean in self.clean_runs(number) {
                let offset = start + clean.place * SECTOR_BYTES;
                let bytes = io.read(offset..offset + length(&clean))?;
                for (at, sector) in (0..).zip(bytes.chunks(SECTOR_BYTES as usize)) {
                    let stored = shard.sums[(clean.place + at) as usize];
                    if stored == NO_SUM || stored == journal::sum_of(sector) {
                        continue;
                    }
                    let run = clean.run.start + at..clean.run.start + at + 1;
                    let place = clean.place + at;
                    let doubted = shard.doubted.any(place..place + 1);
                    let (volume, offset) = (clean.volume, offset + at * SECTOR_BYTES);
                    note(&mut rotten, Rotten { volume, run, offset, doubted });
                }
                seen += length(&clean);
                progress(seen, all);
            }
        }
        Ok(rotten)
    }

    /// Returns the clean runs of a shard, by place.
    fn clean_runs(&self, shard: usize) -> Vec<Clean> {
        let mut found = Vec::new();
        for block in &self.shards[shard].blocks {
            for run in block.valid.iter().flat_map(|run| super::less(run, &block.dirty)) {
                let place = block.at.place + run.start - block.at.sectors.start;
                found.push(Clean { place, volume: block.at.volume, run });
            }
        }
        found.sort_unstable_by_key(|clean| clean.place);
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
        Ok(found.map(|(journal::Opened { superblock, gone, shards }, salvages)| {
            (Self { superblock, gone, shards }, salvages)
        }))
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

fn length(clean: &Clean) -> u64 {
    (clean.run.end - clean.run.start) * SECTOR_BYTES
}

/// Appends a corrupt run, or extends the one before if it is adjacent.
fn note(rotten: &mut Vec<Rotten>, found: Rotten) {
    match rotten.last_mut() {
        Some(last)
            if (last.volume, last.doubted) == (found.volume, found.doubted)
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
