//! The marker at the beginning of a device with a volatile cache.

use floe_block::SECTOR_BYTES;

/// Length of the marker's area, which also covers both superblock copies of a persistent cache.
pub(super) const MARK_BYTES: usize = 64 << 10;

const MAGIC: &[u8; 8] = b"FloeVol\n";

/// Returns whether the first bytes of a device are the marker of a volatile cache.
pub(super) fn is_marked(first: &[u8]) -> bool {
    let mark = mark();
    first.get(..SECTOR_BYTES as usize).is_some_and(|first| first == &mark[..first.len()])
}

/// Returns the marker's sector, all of which counts, followed by zeros.
pub(super) fn mark() -> Vec<u8> {
    let mut bytes = vec![0; MARK_BYTES];
    bytes[8..16].copy_from_slice(MAGIC);
    let sum = crc_fast::crc64_nvme(&bytes[8..SECTOR_BYTES as usize]);
    bytes[..8].copy_from_slice(&sum.to_le_bytes());
    bytes
}
