//! Locks a file or block device, and what it lies on, against a second user.
//!
//! Two programs on one file would destroy it. `flock` locks the file as a whole, as earlier
//! versions do. A lock on a range of bytes, owned by the open file (`F_OFD_SETLK`), tells parts of
//! a file apart. A loop device takes it on its bytes of the file below, so that one cache cannot be
//! served both by the file and by a loop device over it. A file below that cannot be opened is not
//! locked.
//!
//! The files that this process has open are noted, so that a refusal can say that it is this
//! program itself which uses a file under another name.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};

use crate::patience::patiently;
use crate::place::{BelowKind, Place, Sysfs};

/// The first bytes of a file carry the locks by which qemu tells its processes what each does with
/// an image. They are left out, so that `qemu-img` can read a volume that is served.
const BYTES_OF_QEMU: u64 = 4096;

/// A loop device may stand on a file that is on another one; not for ever.
const MOST_LEVELS: usize = 8;

/// A file that this process has open.
#[derive(Debug)]
struct Held {
    number: u64,
    place: Place,
    path: PathBuf,
}

static HELD: Mutex<Vec<Held>> = Mutex::new(Vec::new());

/// A number for each entry of [`HELD`]; nothing else depends on it, so that relaxed operations do.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// The locks of an open file or block device. Those on itself end with the file.
#[derive(Debug)]
pub(super) struct Locks {
    /// Its entry among the files that this process has open.
    number: u64,
    /// The files and disks below it, locked as long as it is open.
    _below: Vec<File>,
}

impl Drop for Locks {
    fn drop(&mut self) {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|held| held.number != self.number);
    }
}

/// Locks an open file or block device for one writer, or for readers. Waits a little for another
/// user to end.
///
/// # Errors
/// One for which [`is_taken`] holds if the file is in use, or that of the system.
pub(super) fn lock(file: &File, path: &Path, read_only: bool) -> io::Result<Locks> {
    let mut below = Vec::new();
    let attempt = || {
        below.clear();
        lock_whole(file, read_only)?;
        lock_part(file, &(0..u64::MAX), read_only)?;
        let data = file.metadata()?;
        if data.file_type().is_block_device() {
            lock_below(data.rdev(), &(0..u64::MAX), read_only, MOST_LEVELS, &mut below)?;
        }
        Ok(())
    };
    patiently(attempt, is_taken)?;
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    if let Some(place) = Place::of(path) {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        held.push(Held { number, place, path: path.to_owned() });
    }
    Ok(Locks { number, _below: below })
}

/// Locks a file as a whole, until it is closed.
///
/// # Errors
/// As of [`lock`].
pub(super) fn lock_briefly(file: &File) -> io::Result<()> {
    patiently(|| lock_whole(file, false), is_taken)
}

/// Returns whether an error says that another user has locked the file.
pub(super) fn is_taken(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Returns the path by which this process uses the file, if it does.
pub(super) fn held_as(path: &Path) -> Option<PathBuf> {
    let place = Place::of(path)?;
    let held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    held.iter().find(|held| place.overlaps(&held.place)).map(|held| held.path.clone())
}

/// Locks the file as a whole.
fn lock_whole(file: &File, read_only: bool) -> io::Result<()> {
    let how = match read_only {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    Ok(flock(file, how)?)
}

/// Locks what a block device lies on. The kernel sees to disks and their partitions.
fn lock_below(
    number: u64,
    bytes: &Range<u64>,
    read_only: bool,
    levels: usize,
    locked: &mut Vec<File>,
) -> io::Result<()> {
    if levels == 0 {
        return Ok(());
    }
    for below in Sysfs::here().below(number) {
        let path = &below.path;
        let Ok(data) = std::fs::metadata(path) else { continue };
        let (bytes, as_reader) = (below.part(bytes), read_only || below.kind == BelowKind::Member);
        if data.file_type().is_block_device() {
            // To open a disk for writing, even for a moment, has udev read it again.
            if below.kind == BelowKind::LoopFile
                && let Ok(disk) = File::open(path)
            {
                lock_part(&disk, &bytes, true)?;
                locked.push(disk);
            }
            lock_below(data.rdev(), &bytes, as_reader, levels - 1, locked)?;
        } else if data.is_file() {
            let open = |write| OpenOptions::new().read(true).write(write).open(path);
            let opened = match open(!as_reader) {
                Err(_) if !as_reader => open(false).map(|file| (file, true)),
                opened => opened.map(|file| (file, as_reader)),
            };
            let Ok((file, as_reader)) = opened else { continue };
            lock_part(&file, &bytes, as_reader)?;
            locked.push(file);
        }
    }
    Ok(())
}

/// Locks a part of an open file, without the bytes that are qemu's, until it is closed.
fn lock_part(file: &File, bytes: &Range<u64>, as_reader: bool) -> io::Result<()> {
    let bytes = bytes.start.max(BYTES_OF_QEMU)..bytes.end;
    if bytes.is_empty() { Ok(()) } else { lock_bytes(file, &bytes, as_reader) }
}

/// Locks bytes of an open file until it is closed. File systems without such locks have none.
fn lock_bytes(file: &File, bytes: &Range<u64>, as_reader: bool) -> io::Result<()> {
    // A length of 0 is all up to the end, wherever that will be.
    let length = i64::try_from(bytes.end - bytes.start).unwrap_or(0);
    let lock = libc::flock {
        l_type: if as_reader { libc::F_RDLCK } else { libc::F_WRLCK } as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: i64::try_from(bytes.start).unwrap_or(i64::MAX),
        l_len: length,
        l_pid: 0,
    };
    // SAFETY: the file is open, and the kernel reads the structure during the call only.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) };
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        _ if result == 0 => Ok(()),
        Some(libc::EAGAIN | libc::EACCES) => Err(io::ErrorKind::WouldBlock.into()),
        _ => Ok(()), // as on a network's file system without a lock daemon
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_file_are_locked_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        std::fs::write(&path, [0; 4096]).unwrap();
        let open = || OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let (one, two, whole, reader) = (open(), open(), open(), open());
        lock_bytes(&one, &(0..1024), false).unwrap();
        lock_bytes(&two, &(1024..u64::MAX), false).unwrap();
        let refused = |file: &File, bytes| lock_bytes(file, &bytes, false).unwrap_err().kind();
        assert_eq!(refused(&whole, 0..u64::MAX), io::ErrorKind::WouldBlock);
        assert_eq!(refused(&two, 1000..1024), io::ErrorKind::WouldBlock);
        assert!(lock_bytes(&reader, &(0..1), true).is_err(), "a writer has it");
        drop(one);
        lock_bytes(&reader, &(0..512), true).unwrap();
        lock_bytes(&whole, &(0..512), true).unwrap();
        assert!(lock_bytes(&two, &(0..512), false).is_err(), "readers have it");
    }
}
