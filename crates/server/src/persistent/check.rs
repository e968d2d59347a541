//! Checks a cache on its device, and repairs damage that can be repaired without losing data.

use std::sync::Arc;

use floe_block::{KeptCache, Report, Rotten, Sectors, VolumeId, WrongCopy, scan, write_superblock};

use super::disk::Disk;
use super::error::StartError;
use super::superblock_writer::SuperblockWriter;
use crate::volume::DeviceSource;

/// The findings of a check of a cache device.
#[derive(Debug)]
pub struct Checked {
    /// The state of the superblocks and journals.
    pub report: Report,
    /// Data with a wrong checksum, for whatever reason, and dirty data that cannot be read. Empty
    /// unless all journals are intact, because the check reads data only then.
    pub rotten: Vec<Rotten>,
    /// Sectors of volumes whose newest data only the cache had, and that are lost. Where a journal
    /// is damaged, they are the sectors that a repair gives up. Includes [`spoiled`](Self::spoiled)
    /// data.
    pub lost: Vec<(VolumeId, Sectors)>,
    /// Ranges that are damaged in one half of a mirror and intact in another.
    pub wrong_copies: Vec<WrongCopy>,
}

impl Checked {
    /// Returns whether the check found a problem. A device without a cache has none.
    pub fn has_problems(&self) -> bool {
        self.report.has_problems()
            || !self.wrong_copies.is_empty()
            || self.rotten.iter().any(|rotten| !rotten.doubted)
    }

    /// Returns whether a repair of the journals would lose data.
    pub fn gives_up(&self) -> bool {
        let mut salvages = self.report.shards.iter().filter_map(|shard| shard.salvage.as_ref());
        salvages.any(|salvage| !salvage.gone.is_empty())
    }

    /// Returns the clean data whose checksum is wrong. Leaves out data that a crash may have left
    /// half overwritten: the cache never uses it.
    pub fn rotted(&self) -> impl Iterator<Item = &Rotten> {
        self.rotten.iter().filter(|rotten| !rotten.doubted && !rotten.dirty)
    }

    /// Returns the dirty data that is not as it was stored or cannot be read. No repair restores
    /// it.
    pub fn spoiled(&self) -> impl Iterator<Item = &Rotten> {
        self.rotten.iter().filter(|rotten| rotten.dirty)
    }

    /// Returns the number of runs of clean data that a crash may have left half overwritten.
    pub fn half_overwritten(&self) -> usize {
        self.rotten.iter().filter(|rotten| rotten.doubted).count()
    }
}

/// Reads the whole cache on a device, without changing anything, and returns the damage found.
/// `progress` receives the current step, the bytes read so far, and their total.
///
/// # Errors
/// When the device fails.
pub fn check(
    source: &Arc<dyn DeviceSource>,
    progress: &mut dyn FnMut(&'static str, u64, u64),
) -> Result<Checked, StartError> {
    let mut cache = Disk::open(source)?;
    let report = cache
        .with_io(|io| scan(io, &mut |read, all| progress("reading the journal", read, all)))?;
    let is_whole = report.superblock.is_some()
        && report.cut_short_of.is_none()
        && report.shards.iter().all(|shard| shard.problems.is_empty());
    let mut rotten = Vec::new();
    let mut wrong_copies = report.wrong_copies.clone();
    let salvages = report.shards.iter().filter_map(|shard| shard.salvage.as_ref());
    let mut lost: Vec<(VolumeId, Sectors)> =
        salvages.flat_map(|salvage| salvage.lost.iter().cloned()).collect();
    if is_whole && !report.shards.is_empty() {
        rotten = cache.with_io(|io| {
            let Some(kept) = KeptCache::open(io, &mut |_, _| {})? else { return Ok(Vec::new()) };
            for volume in &kept.superblock().volumes {
                lost.extend(kept.lost_runs(volume.id).into_iter().map(|run| (volume.id, run)));
            }
            wrong_copies.extend(kept.verify_copies(io, false)?);
            kept.verify(io, &mut |read, all| progress("reading what is cached", read, all))
        })?;
        lost.extend(rotten.iter().filter(|it| it.dirty).map(|it| (it.volume, it.run.clone())));
    }
    lost.sort_unstable_by_key(|(volume, run)| (volume.0, run.start));
    Ok(Checked { report, rotten, lost, wrong_copies: joined(wrong_copies) })
}

/// Merges adjacent and overlapping damaged ranges of the same mirror half.
fn joined(mut found: Vec<WrongCopy>) -> Vec<WrongCopy> {
    found.sort_unstable_by_key(|it| (it.copy, it.offset));
    let mut joined: Vec<WrongCopy> = Vec::new();
    for next in found {
        match joined.last_mut() {
            Some(last) if last.copy == next.copy && last.offset + last.bytes >= next.offset => {
                last.bytes = last.bytes.max(next.offset + next.bytes - last.offset);
            }
            _ => joined.push(next),
        }
    }
    joined
}

/// Repairs the damage in `checked` as far as possible, and returns whether none is left.
///
/// Rewrites a damaged copy of the superblock from the other copy. Forgets rotten clean data.
/// Rewrites damaged journals from their trustworthy parts: [`Checked::lost`] is lost then, and
/// reads of it fail.
///
/// # Errors
/// When the device fails.
pub fn repair(source: &Arc<dyn DeviceSource>, checked: &Checked) -> Result<bool, StartError> {
    let Some(superblock) = &checked.report.superblock else { return Ok(false) };
    if checked.report.shards.is_empty() || checked.report.cut_short_of.is_some() {
        return Ok(false);
    }
    let mut cache = Disk::open(source)?;
    let mut superblock = superblock.clone();
    if checked.report.shards.iter().any(|shard| shard.salvage.is_some()) {
        let was_clean = superblock.clean;
        let rewritten = cache.with_io(|io| match KeptCache::salvage(io)? {
            Some((kept, salvages)) => kept.rewrite(io, &salvages),
            None => Ok(None),
        })?;
        drop(cache);
        let Some(superblock) = rewritten else { return Ok(false) };
        if was_clean {
            SuperblockWriter::new(Arc::clone(source), superblock, None).end(&[], None, 0)?;
        }
        // Clean data could not be verified before the journals were repaired.
        let again = check(source, &mut |_, _, _| {})?;
        return Ok(!again.has_problems() || repair(source, &again)?);
    }
    if !checked.wrong_copies.is_empty() {
        cache.with_io(KeptCache::mend_copies)?;
    }
    let is_all = checked.spoiled().next().is_none();
    if checked.rotten.iter().all(|rotten| rotten.dirty) {
        cache.with_io(|io| write_superblock(io, &mut superblock))?;
        return Ok(is_all);
    }
    let was_clean = superblock.clean;
    let forgotten = cache.with_io(|io| match KeptCache::open(io, &mut |_, _| {})? {
        Some(kept) => kept.forget(io, &checked.rotten),
        None => Ok(None),
    })?;
    let Some(superblock) = forgotten else { return Ok(false) };
    if was_clean {
        drop(cache);
        SuperblockWriter::new(Arc::clone(source), superblock, None).end(&[], None, 0)?;
    }
    Ok(is_all)
}
