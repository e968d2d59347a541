//! Looking a cache over, and mending what can be mended without losing anything.

use std::sync::Arc;

use floe_block::{KeptCache, Report, Rotten, Sectors, VolumeId, scan, write_superblock};

use super::disk::Disk;
use super::keeper::Keeper;
use super::refusal::StartError;
use crate::server::DeviceSource;

/// What is on a cache device.
#[derive(Debug)]
pub struct Checked {
    /// What superblocks and journals say.
    pub report: Report,
    /// Clean data that is not what was stored, for whatever reason; looked for only where the
    /// journals are intact.
    pub rotten: Vec<Rotten>,
    /// Runs of volumes that only the cache had, and that are lost; where a journal is damaged,
    /// those that mending it gives up.
    pub lost: Vec<(VolumeId, Sectors)>,
}

impl Checked {
    /// Whether anything is wrong. A device without a cache is not.
    pub fn has_problems(&self) -> bool {
        self.report.has_problems() || self.rotted().next().is_some()
    }

    /// Whether mending the journals loses anything.
    pub fn gives_up(&self) -> bool {
        let mut salvages = self.report.shards.iter().filter_map(|shard| shard.salvage.as_ref());
        salvages.any(|salvage| !salvage.gone.is_empty())
    }

    /// What has gone bad. Clean copies that a crash may have found half overwritten, in whatever
    /// session, have not: they are not used.
    pub fn rotted(&self) -> impl Iterator<Item = &Rotten> {
        self.rotten.iter().filter(|rotten| !rotten.doubted)
    }

    /// How many clean copies a crash found half overwritten.
    pub fn half_overwritten(&self) -> usize {
        self.rotten.iter().filter(|rotten| rotten.doubted).count()
    }
}

/// Reads everything and changes nothing. `progress` is told what is being done, the bytes read so
/// far, and of how many.
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
    let is_whole =
        report.superblock.is_some() && report.shards.iter().all(|shard| shard.problems.is_empty());
    let mut rotten = Vec::new();
    let salvages = report.shards.iter().filter_map(|shard| shard.salvage.as_ref());
    let mut lost: Vec<(VolumeId, Sectors)> =
        salvages.flat_map(|salvage| salvage.lost.iter().cloned()).collect();
    if is_whole && !report.shards.is_empty() {
        rotten = cache.with_io(|io| {
            let Some(kept) = KeptCache::open(io, &mut |_, _| {})? else { return Ok(Vec::new()) };
            for volume in &kept.superblock().volumes {
                lost.extend(kept.lost_runs(volume.id).into_iter().map(|run| (volume.id, run)));
            }
            kept.verify(io, &mut |read, all| progress("reading what is clean", read, all))
        })?;
    }
    lost.sort_unstable_by_key(|(volume, run)| (volume.0, run.start));
    Ok(Checked { report, rotten, lost })
}

/// Mends what can be mended: a copy of the superblock is written anew from the other, rotten copies
/// of what the volumes have are forgotten, and damaged journals are written anew with what of them
/// can be trusted; [`Checked::lost`] is lost then, and reads as errors. Answers whether that was
/// all that was wrong.
///
/// # Errors
/// When the device fails.
pub fn repair(source: &Arc<dyn DeviceSource>, checked: &Checked) -> Result<bool, StartError> {
    let Some(superblock) = &checked.report.superblock else { return Ok(false) };
    if checked.report.shards.is_empty() {
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
            Keeper::new(Arc::clone(source), superblock, None).end(&[], None)?;
        }
        // What is clean could not be looked over before.
        let again = check(source, &mut |_, _, _| {})?;
        return Ok(!again.has_problems() || repair(source, &again)?);
    }
    if checked.rotten.is_empty() {
        cache.with_io(|io| write_superblock(io, &mut superblock))?;
        return Ok(true);
    }
    let was_clean = superblock.clean;
    let forgotten = cache.with_io(|io| match KeptCache::open(io, &mut |_, _| {})? {
        Some(kept) => kept.forget(io, &checked.rotten),
        None => Ok(None),
    })?;
    let Some(superblock) = forgotten else { return Ok(false) };
    if was_clean {
        drop(cache);
        Keeper::new(Arc::clone(source), superblock, None).end(&[], None)?;
    }
    Ok(true)
}
