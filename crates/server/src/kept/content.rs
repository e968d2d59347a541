//! The content of a cache device, before it is used.

use std::sync::Arc;

use floe_block::{Io, KeptCache, SECTOR_BYTES, StoreError, Superblock, scan};

use super::disk::Disk;
use super::refusal::Refusal;
use super::start_error::StartError;
use super::volatile_mark::is_marked;
use crate::volume::DeviceSource;

/// File systems, partition tables, RAID and LVM have their signatures within these ends.
const FIRST_BYTES: u64 = 1 << 20;
const LAST_BYTES: u64 = 64 << 10;

/// The magic number of each superblock copy, and its positions.
const MAGIC: &[u8] = b"FloeBlk\n";
const MAGIC_AT: [usize; 2] = [8, (32 << 10) + 8];

/// The content of a device that is about to be overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// Nothing visible: zeros in the places of file system signatures and partition tables.
    Nothing,
    /// Data that is not a cache's.
    Data,
    /// A persistent cache, usable or not.
    Cache,
}

/// The content of a cache device.
pub(super) enum Found {
    /// Zeros in all places that matter.
    Nothing,
    Foreign,
    Cache(Box<KeptCache>),
    /// A cache of which nothing is valid any more.
    Retired,
    Unreadable(StoreError),
}

/// Identifies the content of a cache device.
pub(super) fn look(
    io: &mut Io<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Found, StoreError> {
    if let Ok(Some(Superblock { retired: Some(_), .. })) = KeptCache::identify(io) {
        return Ok(Found::Retired);
    }
    match KeptCache::open(io, progress) {
        Ok(Some(kept)) => return Ok(Found::Cache(Box::new(kept))),
        Ok(None) => {}
        Err(error @ StoreError::Io { .. }) => return Err(error),
        Err(error) => return Ok(Found::Unreadable(error)),
    }
    let bytes = io.device.size_bytes();
    let first = io.read(0..FIRST_BYTES.min(bytes))?;
    if is_marked(&first) {
        return Ok(Found::Nothing);
    }
    let is_ours = MAGIC_AT.iter().any(|&at| first.get(at..at + MAGIC.len()) == Some(MAGIC));
    let last = bytes.saturating_sub(LAST_BYTES) / SECTOR_BYTES * SECTOR_BYTES..bytes;
    let is_blank = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    // One of ours that is intact and cannot be opened: its creation was interrupted.
    Ok(if is_ours || is_blank(&first) && is_blank(&io.read(last)?) {
        Found::Nothing
    } else {
        Found::Foreign
    })
}

/// Refuses a device with a persistent cache, which a volatile one would overwrite.
///
/// # Errors
/// When there is one, or the device fails.
pub fn refuse_kept(source: &Arc<dyn DeviceSource>) -> Result<(), StartError> {
    let mut cache = Disk::open(source)?;
    let report = cache.with_io(|io| scan(io, &mut |_, _| {}))?;
    let has_volumes = report.superblock.as_ref().is_some_and(|it| !it.volumes.is_empty());
    if !has_volumes && report.problems.is_empty() {
        return Ok(());
    }
    let dirty_bytes = report.shards.iter().map(|shard| shard.dirty_bytes).sum();
    Err(Refusal::Kept { dirty_bytes }.into())
}

/// Identifies the content of a device.
///
/// # Errors
/// When the device fails.
pub fn holds(source: &Arc<dyn DeviceSource>) -> Result<Holds, StartError> {
    let mut disk = Disk::open(source)?;
    Ok(match disk.with_io(|io| look(io, &mut |_, _| {}))? {
        Found::Nothing => Holds::Nothing,
        Found::Foreign => Holds::Data,
        Found::Cache(_) | Found::Retired | Found::Unreadable(_) => Holds::Cache,
    })
}
