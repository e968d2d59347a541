//! Identifies the content of a cache device before the device is used, and defines the user's
//! permissions to overwrite it.
//!
//! For a volatile cache on a file or disk, it decides whether the device may be used. It then
//! writes the marker by which the next server recognises the remains of that cache.
//!
//! A volatile cache may leave any content on the device, often that of a volume's own file system.
//! Its data therefore begins after a *marker* in the place of partition tables and file system
//! headers. Creating a partition table or a file system there removes the marker.

use std::sync::{Arc, mpsc};
use std::thread::Builder;
use std::time::Duration;

use floe_block::{BlockSizes, Io, KeptCache, SECTOR_BYTES, StoreError, Superblock, scan};

use super::disk::Disk;
use super::error::{Refusal, StartError};
use crate::volume::{DeviceSource, Volume};

/// Bytes at the start of a device that must be zero for it to count as empty. File systems,
/// partition tables, RAID and LVM have their signatures within the first `FIRST_BYTES` and last
/// `LAST_BYTES`.
const FIRST_BYTES: u64 = 1 << 20;
const LAST_BYTES: u64 = 64 << 10;

/// The magic number of a superblock copy. The copies have it at the byte offsets `MAGIC_AT`.
const MAGIC: &[u8] = b"FloeBlk\n";
const MAGIC_AT: [usize; 2] = [8, (32 << 10) + 8];

/// The user's permissions to lose or overwrite data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForceFlags {
    /// Makes a new cache, whatever is on the cache device.
    pub initialise: bool,
    /// Discards dirty data of the cache where it would otherwise prevent a start.
    pub discard_dirty: bool,
    /// Accepts backing devices that differ from their description in the cache.
    pub accept_backing: bool,
    /// Keeps the dirty data of volumes whose backing device differs, and so may overwrite newer
    /// data there.
    pub keep_dirty: bool,
}

/// The content of a device that is about to be overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// Nothing visible: zeros where file systems and partition tables have their signatures.
    Nothing,
    /// Data that is not a cache of Floe's.
    Data,
    /// A persistent cache, usable or not.
    Cache,
}

/// The content of a cache device.
pub(super) enum Found {
    /// No cache and no foreign data: the places of signatures hold zeros, or the remains of a cache
    /// that may be overwritten.
    Nothing,
    Foreign,
    Cache(Box<KeptCache>),
    /// A retired cache: its journal has failed, and nothing in it is valid any more.
    Retired,
    Unreadable(StoreError),
}

/// Identifies the content of a cache device, and opens a persistent cache found there. `progress`
/// receives the bytes read so far and their total.
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

/// Fails if the device has a persistent cache, which a volatile cache would overwrite.
///
/// # Errors
/// When a persistent cache is found, or the device fails.
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

/// Longest wait for the first sectors of a volume's device.
const LOOK_TIME: Duration = Duration::from_secs(5);

/// Fails if the backing device of a writable volume holds a persistent cache that has volumes:
/// clients would overwrite it, and the only copy of its dirty data.
///
/// Counts only a cache whose first sector is in place, so that the remains of a cache below a file
/// system or a partition table refuse nothing. A device that cannot be read soon causes a warning.
/// Its own timeout stays, because its other users share that.
///
/// # Errors
/// When a persistent cache is found.
pub(crate) fn refuse_as_volume(volume: &Volume) -> Result<(), Refusal> {
    if volume.read_only {
        return Ok(());
    }
    let (done, looked) = mpsc::channel();
    let of = volume.clone();
    let look = move || drop(done.send(cache_on(&of)));
    let problem = match Builder::new().name("floe-look".to_owned()).spawn(look) {
        Err(error) => error.to_string(),
        Ok(_) => match looked.recv_timeout(LOOK_TIME) {
            Ok(Ok(found)) => return found.map_or(Ok(()), Err),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", LOOK_TIME.as_secs()),
        },
    };
    tracing::warn!(
        volume = %volume.name,
        problem,
        "the device could not be read to see whether it is a Floe cache"
    );
    Ok(())
}

/// Returns the refusal of a volume whose backing device holds a persistent cache with volumes.
fn cache_on(volume: &Volume) -> Result<Option<Refusal>, StartError> {
    let mut disk = Disk::open(&volume.backing)?;
    let bytes = disk.device.size_bytes().min(SECTOR_BYTES);
    let first = disk.read(0..bytes).map_err(|source| StartError::Backing {
        volume: volume.name.clone(),
        doing: "reading its first sector",
        source,
    })?;
    if first.get(MAGIC_AT[0]..MAGIC_AT[0] + MAGIC.len()) != Some(MAGIC) {
        return Ok(None);
    }
    let report = disk.with_io(|io| scan(io, &mut |_, _| {}))?;
    let superblock = report.superblock.as_ref();
    if superblock.is_some_and(|it| it.volumes.is_empty() || it.retired.is_some()) {
        return Ok(None); // nothing in it is valid
    }
    let volumes = superblock.into_iter().flat_map(|superblock| &superblock.volumes);
    Ok(Some(Refusal::CacheAsVolume {
        device: volume.backing.name(),
        volume: volume.name.clone(),
        of: volumes.map(|volume| volume.name.clone()).collect(),
        dirty_bytes: report.shards.iter().map(|shard| shard.dirty_bytes).sum(),
        exact: superblock.is_some() && report.shards.iter().all(|it| it.problems.is_empty()),
    }))
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

/// Bytes reserved for the marker. The area covers both superblock copies of a persistent cache,
/// too.
pub(super) const MARK_BYTES: usize = 64 << 10;

const VOLATILE_MAGIC: &[u8; 8] = b"FloeVol\n";

/// Returns whether the first bytes of a device are the marker of a volatile cache.
pub(super) fn is_marked(first: &[u8]) -> bool {
    let mark = mark();
    first.get(..SECTOR_BYTES as usize).is_some_and(|first| first == &mark[..first.len()])
}

/// Returns the marker, a sector with a checksum, followed by zeros up to [`MARK_BYTES`].
pub(super) fn mark() -> Vec<u8> {
    let mut bytes = vec![0; MARK_BYTES];
    bytes[8..16].copy_from_slice(VOLATILE_MAGIC);
    let sum = crc_fast::crc64_nvme(&bytes[8..SECTOR_BYTES as usize]);
    bytes[..8].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Returns the byte offset at which the data of a volatile cache begins on a file or disk. Keeps
/// the largest block aligned.
pub fn volatile_data_start(sizes: &BlockSizes) -> u64 {
    (sizes.largest() * SECTOR_BYTES).max(MARK_BYTES as u64)
}

/// Writes the marker of a volatile cache to a device.
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

/// Tests whether a volatile cache may use a device.
///
/// # Errors
/// When the device holds a persistent cache or fails, or holds foreign data that the user has not
/// allowed to overwrite.
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

/// Tests the device of a volatile cache by writing the marker, if `data_start` leaves room for it,
/// and reading the first sector of data.
///
/// # Errors
/// When the device fails.
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
