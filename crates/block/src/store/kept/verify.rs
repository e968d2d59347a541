//! Verification of the data of a persistent cache, sector by sector, and removal of corrupt clean
//! data.

use super::{KeptCache, forget_runs};
use crate::geometry::{SECTOR_BYTES, Sectors, VolumeId};
use crate::store::journal::{
    self, Io, NO_SUM, Restored, Salvage, StoreError, Superblock, WrongCopy,
};

/// A run of a volume whose data on the cache device differs from the data that was stored, or is
/// dirty and cannot be read.
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
    /// Only the cache had the data.
    pub dirty: bool,
    /// The device fails to read it.
    pub unreadable: bool,
}

/// A run of valid data, all clean or all dirty, and its place.
struct Stored {
    place: u64,
    dirty: bool,
    volume: VolumeId,
    run: Sectors,
}

impl KeptCache {
    /// Reads all data that is not known to be lost, and returns the corrupt runs, in each shard in
    /// the order of their places. Calls `progress` with the bytes verified so far and their total.
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

    /// Reads all data of each copy of the device, and returns where one copy is not as stored and
    /// another one is. With `mend`, such a copy is mended. A device with one copy is not read.
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

    /// Mends all copies of a device of which another copy is intact. Returns the damage of the
    /// data; `None` when there is no cache.
    ///
    /// # Errors
    /// When the cache cannot be read completely, or the device fails.
    pub fn mend_copies(io: &mut Io<'_>) -> Result<Option<Vec<WrongCopy>>, StoreError> {
        let Some(opened) = journal::open_all_copies(io)? else { return Ok(None) };
        let mut kept = Self::from(opened);
        kept.mend_journal(io)?;
        kept.verify_copies(io, true).map(Some)
    }

    /// Returns the clean and the dirty runs of a shard, by place, without lost ones.
    fn stored(&self, shard: usize) -> Vec<Stored> {
        let mut found = Vec::new();
        for block in &self.shards[shard].blocks {
            let mut add = |run: Sectors, dirty| {
                let place = block.at.place + run.start - block.at.sectors.start;
                found.push(Stored { place, dirty, volume: block.at.volume, run });
            };
            let clean = block.valid.iter().flat_map(|run| super::less(run, &block.dirty));
            clean.for_each(|run| add(run, false));
            let dirty = block.dirty.iter().flat_map(|run| super::less(run, &block.lost));
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
