//! The content of a cache device, before it is used, and the user's permissions to overwrite it.
//!
//! Volatile caches on a file or disk: decides whether one may be made there, and writes the marker
//! by which the next server recognises its remains.
//!
//! A volatile cache may leave any content, often that of the volume's own file system. So its data
//! begins after a *marker* in the place of partition tables and file system headers: writing one of
//! those removes the marker.

use std::sync::Arc;

use floe_block::{BlockSizes, Io, KeptCache, SECTOR_BYTES, StoreError, Superblock, scan};

use super::disk::Disk;
use super::error::{Refusal, StartError};
use crate::volume::DeviceSource;

/// File systems, partition tables, RAID and LVM have their signatures within these ends.
const FIRST_BYTES: u64 = 1 << 20;
const LAST_BYTES: u64 = 64 << 10;

/// The magic number of each superblock copy, and its positions.
const MAGIC: &[u8] = b"FloeBlk\n";
const MAGIC_AT: [usize; 2] = [8, (32 << 10) + 8];

/// The user's permissions to lose or overwrite data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForceFlags {
    /// Make a new cache, whatever is on the device.
    pub initialise: bool,
    /// Lose dirty data of the cache that cannot be kept.
    pub discard_dirty: bool,
    /// Use backing devices that are not as the cache knows them.
    pub accept_backing: bool,
    /// Keep the cache's dirty data of such devices.
    pub keep_dirty: bool,
}

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

/// Length of the marker's area, which also covers both superblock copies of a persistent cache.
pub(super) const MARK_BYTES: usize = 64 << 10;

const VOLATILE_MAGIC: &[u8; 8] = b"FloeVol\n";

/// Returns whether the first bytes of a device are the marker of a volatile cache.
pub(super) fn is_marked(first: &[u8]) -> bool {
    let mark = mark();
    first.get(..SECTOR_BYTES as usize).is_some_and(|first| first == &mark[..first.len()])
}

/// Returns the marker's sector, all of which counts, followed by zeros.
pub(super) fn mark() -> Vec<u8> {
    let mut bytes = vec![0; MARK_BYTES];
    bytes[8..16].copy_from_slice(VOLATILE_MAGIC);
    let sum = crc_fast::crc64_nvme(&bytes[8..SECTOR_BYTES as usize]);
    bytes[..8].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Returns the byte at which the data of a volatile cache begins on a file or disk. The largest
/// block keeps its alignment.
pub fn volatile_data_start(sizes: &BlockSizes) -> u64 {
    (sizes.largest() * SECTOR_BYTES).max(MARK_BYTES as u64)
}

/// Marks a device as that of a volatile cache.
///
/// # Errors
/// When the device holds a persistent cache, or foreign data that the user has not allowed to
/// overwrite: nothing was changed then. Also when the device fails.
pub fn claim(source: &Arc<dyn DeviceSource>, force: ForceFlags) -> Result<(), StartError> {
    may_claim(source, force)?;
    let mut disk = Disk::open(source)?;
    // Nothing tells of what is on a half, and nothing of it counts.
    disk.device.set_judge(None);
    Ok(disk.with_io(|io| io.write_durably(0, &mark()))?)
}

/// Tests whether a device may become that of a volatile cache.
///
/// # Errors
/// When it holds a persistent cache, or foreign data that the user has not allowed to overwrite, or
/// fails.
pub(crate) fn may_claim(
    source: &Arc<dyn DeviceSource>,
    force: ForceFlags,
) -> Result<(), StartError> {
    refuse_kept(source)?;
    let mut disk = Disk::open(source)?;
    if !force.initialise && matches!(disk.with_io(|io| look(io, &mut |_, _| {}))?, Found::Foreign) {
        return Err(Refusal::Foreign.into());
    }
    Ok(())
}

/// Tests the device of a volatile cache whose data begins at `data_start`: reads it, and writes the
/// marker where there is room.
///
/// # Errors
/// As the device says.
pub(crate) fn try_volatile(
    source: &Arc<dyn DeviceSource>,
    data_start: u64,
) -> Result<(), StartError> {
    let mut disk = Disk::open(source)?;
    if data_start > 0 {
        disk.with_io(|io| io.write_durably(0, &mark()))?;
    }
    disk.with_io(|io| io.read(data_start..data_start + SECTOR_BYTES)).map(drop)?;
    Ok(())
}
