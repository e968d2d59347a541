//! What tells by its content whether a backing device is the one that was there, and as it was
//! left.
//!
//! - The *marker*, a checksum of both ends, counts after an end in good order. Whoever mounts a
//!   file system writes to its superblock, and partition tables and the metadata of RAID and LVM
//!   are at the ends, too. It costs reading 192 KiB.
//! - *Samples*, the checksums of some sectors, are taken when a session begins and when it ends. They
//!   count after a crash as well: before a session changes one of these sectors, the superblock
//!   forgets its checksum, durably (`guard`). They tell two disks apart whose ends are equal.
//! - *Clean sectors* of the cache count after a crash as well. The journal states that the backing
//!   device holds the same, and stops doing so, durably, before the device is changed there.
//!
//! Content that changed anywhere else is not noticed.

use std::io;
use std::ops::Range;

use floe_block::{
    KeptCache, SECTOR_BYTES, Samples, Volume as Known, sample_sum, sampled_sectors, sector_sum,
};

use super::disk::Disk;

const FIRST_BYTES: u64 = 128 << 10;
const LAST_BYTES: u64 = 64 << 10;

/// Clean sectors of a volume that are compared.
const MOST_CLEAN_SECTORS: usize = 32;

/// The marker of what the device holds now; never 0, which stands for not known.
pub(super) fn sample(disk: &mut Disk) -> io::Result<u64> {
    let ends = disk.ends(FIRST_BYTES, LAST_BYTES)?;
    Ok(crc_fast::crc64_nvme(&ends.concat()).max(1))
}

/// The samples of what the device holds now.
pub(super) fn samples(disk: &mut Disk) -> io::Result<Samples> {
    let of_bytes = disk.device.size_bytes();
    let sum = |sector| Ok(sample_sum(&disk.read(bytes_of(sector, of_bytes))?));
    let sums = sampled_sectors(of_bytes).into_iter().map(sum).collect::<io::Result<_>>()?;
    Ok(Samples { of_bytes, sums })
}

/// The samples of what the device holds now, of which some are known to be right.
pub(super) fn samples_like(known: &Samples, disk: &mut Disk) -> io::Result<Samples> {
    let of_bytes = disk.device.size_bytes();
    if known.of_bytes != of_bytes {
        return samples(disk);
    }
    let mut sum = |(at, sector): (usize, u64)| match known.sums.get(at) {
        Some(sum) if *sum != 0 => Ok(*sum),
        _ => Ok(sample_sum(&disk.read(bytes_of(sector, of_bytes))?)),
    };
    let sectors = sampled_sectors(of_bytes).into_iter().enumerate();
    Ok(Samples { of_bytes, sums: sectors.map(&mut sum).collect::<io::Result<_>>()? })
}

/// Whether the content of a device may be that of a volume the cache knows; with `clean`, also by
/// what the cache has of it as clean.
pub(super) fn is_like(
    kept: &KeptCache,
    known: &Known,
    clean: bool,
    disk: &mut Disk,
) -> io::Result<bool> {
    let bytes = known.bytes.min(disk.device.size_bytes());
    for (sector, sum) in known.samples.known() {
        if sector * SECTOR_BYTES < bytes && sample_sum(&disk.read(bytes_of(sector, bytes))?) != sum
        {
            return Ok(false);
        }
    }
    if kept.superblock().clean && known.marker != 0 && sample(disk)? != known.marker {
        return Ok(false);
    }
    let clean = if clean { kept.clean_sums(known.id, MOST_CLEAN_SECTORS) } else { Vec::new() };
    for (sector, sum) in clean {
        let range = bytes_of(sector, u64::MAX);
        // What cannot be read differs from nothing: clients will be told.
        if range.end <= bytes && disk.read(range).is_ok_and(|found| sector_sum(&found) != sum) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether there is anything to tell the volume by that is not found on most disks.
pub(super) fn is_told_by_content(kept: &KeptCache, known: &Known) -> bool {
    known.samples.known().next().is_some() || !kept.clean_sums(known.id, 1).is_empty()
}

fn bytes_of(sector: u64, of_bytes: u64) -> Range<u64> {
    let start = sector * SECTOR_BYTES;
    start..(start + SECTOR_BYTES).min(of_bytes)
}
