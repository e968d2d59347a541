//! Looking a cache over, and mending what can be mended without losing anything.

use std::sync::Arc;

use floe_block::{KeptCache, Report, Rotten, scan, write_superblock};

use super::disk::Disk;
use super::keeper::Keeper;
use super::refusal::StartError;
use crate::server::DeviceSource;

/// What is on a cache device.
#[derive(Debug)]
pub struct Checked {
    /// What superblocks and journals say.
    pub report: Report,
    /// Clean data that is not what was stored, for whatever reason; looked for only where the journals are intact.
    pub rotten: Vec<Rotten>,
}

impl Checked {
    /// Whether anything is wrong. A device without a cache is not.
    pub fn has_problems(&self) -> bool {
        self.report.has_problems() || self.rotted().next().is_some()
    }

    /// What has gone bad. Clean copies that a crash may have found half overwritten, in whatever session, have not: they are not used.
    pub fn rotted(&self) -> impl Iterator<Item = &Rotten> {
        self.rotten.iter().filter(|rotten| !rotten.doubted)
    }

    /// How many clean copies a crash found half overwritten.
    pub fn half_overwritten(&self) -> usize {
        self.rotten.iter().filter(|rotten| rotten.doubted).count()
    }
}

/// Reads everything and changes nothing. `progress` is told what is being done, the bytes read so far, and of how many.
///
/// # Errors
/// When the device fails.
pub fn check(
    source: &Arc<dyn DeviceSource>,
    progress: &mut dyn FnMut(&'static str, u64, u64),
) -> Result<Checked, StartError> {
    let mut cache = Disk::open(source)?;
    let report = cache.with_io(|io| scan(io, &mut |read, all| progress("reading the journal", read, all)))?;
    let is_whole = report.superblock.is_some() && report.shards.iter().all(|shard| shard.problems.is_empty());
    let mut rotten = Vec::new();
    if is_whole && !report.shards.is_empty() {
        rotten = cache.with_io(|io| match KeptCache::open(io, &mut |_, _| {})? {
            Some(kept) => kept.verify(io, &mut |read, all| progress("reading what is clean", read, all)),
            None => Ok(Vec::new()),
        })?;
    }
    Ok(Checked { report, rotten })
}

/// Mends what can be mended without losing anything: a copy of the superblock is written anew from the other, and rotten copies of
/// what the volumes have are forgotten. Answers whether that was all that was wrong.
///
/// # Errors
/// When the device fails.
pub fn repair(source: &Arc<dyn DeviceSource>, checked: &Checked) -> Result<bool, StartError> {
    let Some(superblock) = &checked.report.superblock else { return Ok(false) };
    if checked.report.shards.is_empty()
        || checked.report.shards.iter().any(|shard| !shard.problems.is_empty())
    {
        return Ok(false);
    }
    let mut cache = Disk::open(source)?;
    let mut superblock = superblock.clone();
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
