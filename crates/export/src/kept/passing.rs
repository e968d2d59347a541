//! A cache that ends with its server, on a file or disk: whether it may be made there, and the mark
//! by which the next one knows whose the leavings are.
//!
//! What such a cache leaves looks like anything, often like the volume's own file system. So its
//! data begins after a *mark*, which stands where partition tables, file systems and others that
//! come after it have theirs: who makes one of those takes the mark away.

use std::sync::Arc;

use floe_block::{BlockSizes, SECTOR_BYTES};

use super::disk::Disk;
use super::refusal::{Refusal, StartError};
use super::start::{Consent, Found, look, refuse_kept};
use crate::server::DeviceSource;

/// What is written when the mark is: also where a kept cache would have the copies of its
/// superblock.
const MARK_BYTES: usize = 64 << 10;

const MAGIC: &[u8; 8] = b"FloeVol\n";

/// Where the data of a cache that ends with its server begins on a file or disk, in bytes: the
/// largest block keeps its alignment.
pub fn volatile_data_start(sizes: &BlockSizes) -> u64 {
    (sizes.largest() * SECTOR_BYTES).max(MARK_BYTES as u64)
}

/// Makes a device one for a cache that ends with its server.
///
/// # Errors
/// When it holds a kept cache, or data of somebody else's and the user has not allowed to overwrite
/// that, in which case nothing was changed; or the device fails.
pub fn claim(source: &Arc<dyn DeviceSource>, consent: Consent) -> Result<(), StartError> {
    refuse_kept(source)?;
    let mut disk = Disk::open(source)?;
    if !consent.initialise && matches!(disk.with_io(|io| look(io, &mut |_, _| {}))?, Found::Foreign)
    {
        return Err(Refusal::Foreign.into());
    }
    Ok(disk.with_io(|io| io.write_durably(0, &mark()))?)
}

/// Whether the device of a cache that ends with its server, with its data from so many bytes on,
/// can be read, and written where the mark has room for it.
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

/// Whether the first bytes of a device say that a cache used it which ended with its server.
pub(super) fn is_marked(first: &[u8]) -> bool {
    let mark = mark();
    first.get(..SECTOR_BYTES as usize).is_some_and(|first| first == &mark[..first.len()])
}

/// The mark's sector, all of which counts, and zeros.
fn mark() -> Vec<u8> {
    let mut bytes = vec![0; MARK_BYTES];
    bytes[8..16].copy_from_slice(MAGIC);
    let sum = crc_fast::crc64_nvme(&bytes[8..SECTOR_BYTES as usize]);
    bytes[..8].copy_from_slice(&sum.to_le_bytes());
    bytes
}
