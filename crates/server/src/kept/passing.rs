//! Volatile caches on a file or disk: decides whether one may be made there, and writes the marker
//! by which the next server recognises its remains.
//!
//! A volatile cache may leave any content, often that of the volume's own file system. So its data
//! begins after a *marker* in the place of partition tables and file system headers: writing one of
//! those removes the marker.

use std::sync::Arc;

use floe_block::{BlockSizes, SECTOR_BYTES};

use super::content::{Found, look, refuse_kept};
use super::disk::Disk;
use super::options::Consent;
use super::refusal::Refusal;
use super::start_error::StartError;
use super::volatile_mark::{MARK_BYTES, mark};
use crate::volume::DeviceSource;

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
pub fn claim(source: &Arc<dyn DeviceSource>, consent: Consent) -> Result<(), StartError> {
    may_claim(source, consent)?;
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
    consent: Consent,
) -> Result<(), StartError> {
    refuse_kept(source)?;
    let mut disk = Disk::open(source)?;
    if !consent.initialise && matches!(disk.with_io(|io| look(io, &mut |_, _| {}))?, Found::Foreign)
    {
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
