//! Recognises a backing device, and its state, by its content.
//!
//! - The *marker*, a checksum of both ends, counts after a clean shutdown. Mounting a file system
//!   writes to its superblock there, and partition tables and the metadata of RAID and LVM are at
//!   the ends, too. It costs reading 192 KiB.
//! - *Samples*, the checksums of some sectors, are taken when a session begins and when it ends.
//!   They count after a crash as well: before a session changes one of these sectors, the
//!   superblock durably forgets its checksum (`guard`). They distinguish two disks with equal ends.
//! - *Clean sectors* of the cache count after a crash as well. The journal states that the backing
//!   device holds the same data, and durably takes that back before the device is changed there.
//!
//! A change of any other content goes undetected.

use std::io;
use std::ops::Range;

use floe_block::{
    KeptCache, SECTOR_BYTES, Samples, Volume as Known, sample_sum, sampled_sectors, sector_sum,
};

use super::disk::Disk;

const FIRST_BYTES: u64 = 128 << 10;
const LAST_BYTES: u64 = 64 << 10;

/// Number of clean sectors of a volume that are compared.
const MOST_CLEAN_SECTORS: usize = 32;

/// Returns the marker of the device's content; never 0, which means unknown.
pub(super) fn sample(disk: &mut Disk) -> io::Result<u64> {
    let ends = disk.ends(FIRST_BYTES, LAST_BYTES)?;
    Ok(crc_fast::crc64_nvme(&ends.concat()).max(1))
}

/// Reads the samples of the device's content.
pub(super) fn samples(disk: &mut Disk) -> io::Result<Samples> {
    let of_bytes = disk.device.size_bytes();
    let sum = |sector| Ok(sample_sum(&disk.read(bytes_of(sector, of_bytes))?));
    let sums = sampled_sectors(of_bytes).into_iter().map(sum).collect::<io::Result<_>>()?;
    Ok(Samples { of_bytes, sums })
}

/// Reads the samples of the device's content, but takes those in `known` from there.
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

/// Compares a device's content with a known volume's samples and marker. With `clean`, it also
/// compares the clean sectors of the cache.
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
        // An unreadable sector is no difference: clients get the error.
        if range.end <= bytes && disk.read(range).is_ok_and(|found| sector_sum(&found) != sum) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns whether the volume has samples or clean sectors that tell it from most disks.
pub(super) fn is_told_by_content(kept: &KeptCache, known: &Known) -> bool {
    known.samples.known().next().is_some() || !kept.clean_sums(known.id, 1).is_empty()
}

fn bytes_of(sector: u64, of_bytes: u64) -> Range<u64> {
    let start = sector * SECTOR_BYTES;
    start..(start + SECTOR_BYTES).min(of_bytes)
}
