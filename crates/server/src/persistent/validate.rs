//! Compares a cache with the volumes to be served, and decides which of its content stays.
//!
//! A backing device and its state are recognised by their content:
//!
//! - The *marker*, a checksum of both ends of the device, is valid after a clean shutdown. Mounting
//!   a file system writes to its superblock there, and partition tables and the metadata of RAID
//!   and LVM are at the ends, too. Checking the marker reads 192 KiB.
//! - *Samples*, the checksums of some sectors, are taken when a session begins and when it ends.
//!   They are valid after a crash as well: before a session changes one of these sectors, the
//!   superblock durably forgets its checksum (`guard`). They distinguish two disks with equal ends.
//! - *Clean sectors* of the cache are valid after a crash as well. The journal states that the
//!   backing device holds the same data, and durably revokes that before the device is changed
//!   there.
//!
//! A change of any other content goes undetected.

use std::io;
use std::ops::Range;

use floe_block::{
    KeptCache, MOST_VOLUMES, SECTOR_BYTES, Samples, StoreError, Volume as Known, VolumeId,
    sample_sum, sampled_sectors, sector_sum,
};
use floe_device::Likeness;

use super::content::ForceFlags;
use super::disk::Disk;
use super::error::{Bytes, Difference, Given, Refusal, StartError};
use crate::volume::Volume;

/// A volume to be served, and its backing device opened for blocking I/O.
pub(super) struct Candidate<'a> {
    pub(super) volume: &'a Volume,
    pub(super) disk: Disk,
}

/// Returns a volume's superblock entry while the volume is served: without marker and samples.
pub(super) fn known(id: VolumeId, volume: &Volume) -> Known {
    let identity = volume.backing.identity();
    Known { identity, ..Known::new(id, volume.name.clone(), volume.backing.size_bytes()) }
}

/// Returns a volume's superblock entry with samples of its device's content. Valid samples in
/// `right` are copied; the others are read, and unreadable ones stay unknown.
pub(super) fn sampled(id: VolumeId, candidate: &mut Candidate<'_>, right: &Samples) -> Known {
    let samples = samples_like(right, &mut candidate.disk).unwrap_or_default();
    Known { samples, ..known(id, candidate.volume) }
}

/// Decides which content of the cache stays, and returns the volume entries with which its session
/// begins, in the order of `candidates`.
///
/// Forgets content that may be old. With `apart`, that is all content; `without` names volumes that
/// were served without the cache. `lowest` says that no persistent tier is below.
///
/// # Errors
/// When the user has to decide something first, or a device fails. The cache device has not been
/// changed.
pub(super) fn validate_volumes(
    kept: &mut KeptCache,
    candidates: &mut [Candidate<'_>],
    apart: Option<Difference>,
    without: &[String],
    lowest: bool,
    force: ForceFlags,
) -> Result<Vec<Known>, StartError> {
    let before = kept.superblock().volumes.clone();
    let is_wanted =
        |known: &Known| candidates.iter().any(|candidate| candidate.volume.name == known.name);
    if let Some(first) = candidates.first()
        && !before.is_empty()
        && !before.iter().any(is_wanted)
    {
        let of = before.into_iter().map(|known| known.name).collect();
        return Err(Refusal::OtherVolume { of, wanted: first.volume.name.clone() }.into());
    }
    for known in before.iter().filter(|known| !is_wanted(known)) {
        let dirty_bytes = kept.dirty_bytes(known.id);
        if dirty_bytes > 0 && !force.discard_dirty {
            return Err(Refusal::MissingVolume { volume: known.name.clone(), dirty_bytes }.into());
        }
        lost(&known.name, dirty_bytes);
        let valid_bytes = kept.valid_bytes(known.id);
        tracing::info!(
            volume = %known.name,
            valid_bytes,
            "a volume that is not served any more is forgotten"
        );
    }
    // An id of a removed volume is not reused before its content is durably forgotten.
    let is_free =
        |id: &VolumeId| before.iter().all(|known| known.id != *id) && !kept.is_of_gone(*id);
    let free: Vec<_> = (0..MOST_VOLUMES as u16).map(VolumeId).filter(is_free).collect();
    let mut free = free.into_iter();
    let mut volumes = Vec::new();
    for candidate in candidates {
        let Candidate { volume, disk } = candidate;
        let mut new = |volume| {
            let id = free.next().ok_or_else(|| StoreError::Volume(format!("volume {volume:?}")))?;
            Ok::<_, StartError>(id)
        };
        let Some(old) = before.iter().find(|known| known.name == volume.name) else {
            let id = new(&volume.name)?;
            volumes.push(sampled(id, candidate, &Samples::default()));
            continue;
        };
        let dirty_bytes = kept.dirty_bytes(old.id);
        let without = without.contains(&volume.name).then_some(Difference::Without);
        let differs = match other_device(old, volume).or(apart).or(without) {
            Some(difference) => Some(difference),
            None => other_content(kept, old, volume, lowest, disk)?,
        };
        // The old samples have just been compared, unless something else differs.
        let right = if differs.is_none() { old.samples.clone() } else { Samples::default() };
        let stays = match differs {
            Some(difference @ (Difference::Apart | Difference::Without)) if dirty_bytes == 0 => {
                tracing::warn!(
                    volume = %volume.name,
                    %difference,
                    "the cache's clean copies of it are dropped"
                );
                false
            }
            None => {
                // Few sectors are compared: the user may know of a change elsewhere.
                if force.accept_backing {
                    kept.forget_clean(old.id);
                    tracing::warn!(
                        volume = %volume.name,
                        kept_bytes = dirty_bytes,
                        "no change was noticed; it is read anew, as --accept-backing says"
                    );
                }
                true
            }
            Some(difference) => {
                let swapped = match difference {
                    Difference::Identity | Difference::Content if !force.accept_backing => {
                        whose(kept, old, volume, disk)?
                    }
                    _ => None,
                };
                if let Some(of) = swapped {
                    let (device, volume) = (Given::of(volume), volume.name.clone());
                    return Err(Refusal::Swapped { volume, device, of }.into());
                }
                accept(kept, old, volume, difference, force)?
            }
        };
        if stays && volume.read_only && dirty_bytes > 0 {
            return Err(Refusal::ReadOnly { volume: volume.name.clone(), dirty_bytes }.into());
        }
        let id = if stays { old.id } else { new(&volume.name)? };
        volumes.push(sampled(id, candidate, &right));
    }
    Ok(volumes)
}

/// Compares a volume's backing device with its description in the cache. Returns `None` if they
/// agree.
pub(super) fn difference(
    kept: &KeptCache,
    old: &Known,
    volume: &Volume,
    lowest: bool,
    disk: &mut Disk,
) -> Result<Option<Difference>, StartError> {
    match other_device(old, volume) {
        None => other_content(kept, old, volume, lowest, disk),
        difference => Ok(difference),
    }
}

/// Compares the size and identity of a volume's device with those recorded in the cache.
fn other_device(old: &Known, volume: &Volume) -> Option<Difference> {
    let bytes = volume.backing.size_bytes();
    if bytes != old.bytes {
        return Some(Difference::Size { was: old.bytes, is: bytes });
    }
    match old.identity.compare(&volume.backing.identity()) {
        Likeness::Same | Likeness::Unknown => None,
        Likeness::Other(_) | Likeness::OtherClass => Some(Difference::Identity),
    }
}

/// Compares a volume's content with the cache. Clean sectors are left out in two cases: an upper
/// tier's clean data may be dirty in a lower tier, and clean data of a void cache may be old.
fn other_content(
    kept: &KeptCache,
    old: &Known,
    volume: &Volume,
    lowest: bool,
    disk: &mut Disk,
) -> Result<Option<Difference>, StartError> {
    let clean = lowest && !kept.superblock().void;
    let is_same = is_like(kept, old, clean, disk).map_err(|source| unread(volume, source))?;
    Ok((!is_same).then_some(Difference::Content))
}

fn unread(volume: &Volume, source: std::io::Error) -> StartError {
    StartError::Backing {
        volume: volume.name.clone(),
        doing: "reading some of its sectors",
        source,
    }
}

/// Returns the name of the other volume whose data is on the device given for this one, if any is
/// recognised.
fn whose(
    kept: &KeptCache,
    old: &Known,
    volume: &Volume,
    disk: &mut Disk,
) -> Result<Option<String>, StartError> {
    let (bytes, identity) = (volume.backing.size_bytes(), volume.backing.identity());
    let others = kept.superblock().volumes.iter().filter(|other| other.id != old.id);
    for other in others.filter(|other| other.bytes == bytes) {
        // Its data may be on another device than it was.
        let is_it = other.identity.compare(&identity) == Likeness::Same
            || is_told_by_content(kept, other)
                && is_like(kept, other, true, disk).map_err(|source| unread(volume, source))?;
        if is_it {
            return Ok(Some(other.name.clone()));
        }
    }
    Ok(None)
}

/// Applies the user's decision about cached content of a volume that differs. Returns whether any
/// of the content stays.
fn accept(
    kept: &mut KeptCache,
    old: &Known,
    volume: &Volume,
    difference: Difference,
    force: ForceFlags,
) -> Result<bool, StartError> {
    let (name, dirty_bytes) = (volume.name.clone(), kept.dirty_bytes(old.id));
    let stays = match (force.accept_backing, dirty_bytes > 0) {
        (false, _) => {
            let device = Given::of(volume);
            return Err(Refusal::Changed { volume: name, device, difference, dirty_bytes }.into());
        }
        (true, false) => false,
        (true, true) if force.discard_dirty => {
            lost(&name, dirty_bytes);
            false
        }
        (true, true) if volume.backing.size_bytes() < old.bytes => {
            return Err(Refusal::Shrunk { volume: name, difference, dirty_bytes }.into());
        }
        (true, true) if force.keep_dirty => {
            kept.forget_clean(old.id);
            true
        }
        (true, true) => {
            return Err(Refusal::Undecided { volume: name, difference, dirty_bytes }.into());
        }
    };
    let kept_bytes = if stays { dirty_bytes } else { 0 };
    tracing::warn!(
        volume = %name,
        %difference,
        kept_bytes,
        "accepted as it is; the cache's clean copies of it are dropped"
    );
    Ok(stays)
}

/// Logs a warning that dirty data is discarded, if there is any.
pub(super) fn lost(volume: &str, dirty_bytes: u64) {
    if dirty_bytes > 0 {
        tracing::warn!(
            volume,
            "{} of dirty data are discarded, as --discard-dirty says",
            Bytes(dirty_bytes)
        );
    }
}

const FIRST_BYTES: u64 = 128 << 10;
const LAST_BYTES: u64 = 64 << 10;

/// Maximum number of clean sectors of a volume that are compared with its backing device.
const MOST_CLEAN_SECTORS: usize = 32;

/// Returns the marker of the device's content. It is never 0, which means unknown.
pub(super) fn marker_of(disk: &mut Disk) -> io::Result<u64> {
    let ends = disk.ends(FIRST_BYTES, LAST_BYTES)?;
    Ok(crc_fast::crc64_nvme(&ends.concat()).max(1))
}

/// Reads all sampled sectors of a device and returns their checksums.
pub(super) fn samples(disk: &mut Disk) -> io::Result<Samples> {
    let of_bytes = disk.device.size_bytes();
    let sum = |sector| Ok(sample_sum(&disk.read(bytes_of(sector, of_bytes))?));
    let sums = sampled_sectors(of_bytes).into_iter().map(sum).collect::<io::Result<_>>()?;
    Ok(Samples { of_bytes, sums })
}

/// Returns the samples of a device. Copies those in `known`, and reads only the others.
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

/// Returns whether a device's content matches a volume's samples and marker. With `clean`, the
/// clean sectors of the cache must match, too.
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
    if kept.superblock().clean && known.marker != 0 && marker_of(disk)? != known.marker {
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

/// Returns whether the cache has samples or clean sectors of a volume, which distinguish it from
/// most disks.
pub(super) fn is_told_by_content(kept: &KeptCache, known: &Known) -> bool {
    known.samples.known().next().is_some() || !kept.clean_sums(known.id, 1).is_empty()
}

fn bytes_of(sector: u64, of_bytes: u64) -> Range<u64> {
    let start = sector * SECTOR_BYTES;
    start..(start + SECTOR_BYTES).min(of_bytes)
}
