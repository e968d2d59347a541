//! Opening a file or block device: choosing the path, checking the size, testing direct I/O, and
//! locking.
//!
//! Two servers on one file would destroy it, so a writer takes an exclusive lock, and readers a
//! shared one (`lock`). A block device is also opened with O_EXCL, which fails for a mounted one. A
//! file that is created is readable by its owner only, since it will hold a volume's data. Direct
//! I/O is tested by reading: some file systems accept the flag and refuse the reads, and a last
//! partial sector may be shorter than the disk's unit.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FlockOperation, SeekFrom, flock, seek};

use crate::buffer::{Pool, SECTOR_BYTES};
use crate::place::{BelowKind, Place, Sysfs};
use crate::system::{MemoryLimit, OWNER_ONLY, patiently};

/// Options for opening a [`FileDevice`](crate::FileDevice).
#[derive(Debug, Clone, Default)]
pub struct FileOptions {
    /// The size that the file must have, or is created with. Required to create a file.
    pub size: Option<u64>,
    /// Create the file, sparse, when it does not exist.
    pub create: bool,
    /// Bypass the page cache where possible.
    pub direct: bool,
    /// Open for reading only.
    pub read_only: bool,
}

/// The reason why a device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A system call failed.
    #[error("cannot {what} {path}: {source}{}", lacks_folder(path, source), path = path.display())]
    System {
        /// The step that failed.
        what: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The error from the kernel.
        source: io::Error,
    },
    /// Another process, or another part of this one, uses the file.
    #[error("{path} {}", used_by(path, by.as_deref()), path = path.display())]
    InUse {
        /// The path of the file.
        path: PathBuf,
        /// The path under which this process already uses the file.
        by: Option<PathBuf>,
    },
    /// The path leads neither to a regular file nor to a block device.
    #[error("{path} is neither a regular file nor a block device", path = path.display())]
    WrongKind {
        /// The path of the file.
        path: PathBuf,
    },
    /// The file does not exist, and no size was given to create it with.
    #[error("{path} does not exist; give a size to create it", path = path.display())]
    SizeUnknown {
        /// The path of the file.
        path: PathBuf,
    },
    /// The file exists, but its size is not the requested one.
    #[error(
        "{path} has {actual} bytes, not the {wanted} asked for; without a size it is used as it is",
        path = path.display()
    )]
    WrongSize {
        /// The path of the file.
        path: PathBuf,
        /// The file's size in bytes.
        actual: u64,
        /// The requested size in bytes.
        wanted: u64,
    },
    /// The size is not a positive multiple of 512 bytes.
    #[error(
        "{path}: a size of {size} bytes is not a positive multiple of 512",
        path = path.display()
    )]
    OddSize {
        /// The path of the file.
        path: PathBuf,
        /// The invalid size in bytes.
        size: u64,
    },
    /// The system refused to map the memory for a memory device.
    #[error("cannot reserve memory for a device of {size} bytes: {source}")]
    Memory {
        /// The requested size in bytes.
        size: u64,
        /// The error from the kernel.
        source: io::Error,
    },
    /// A memory device is larger than the memory available to this process.
    #[error(
        "a device of {size} bytes in memory is more than {limit} ({} bytes); give a smaller size, \
         or a file",
        limit.bytes
    )]
    TooMuchMemory {
        /// The requested size in bytes.
        size: u64,
        /// The machine's memory, or the limit of this process.
        limit: MemoryLimit,
    },
    /// A block device is shorter than it is to become.
    #[error("{path} has {actual} bytes, not the {wanted} asked for", path = path.display())]
    TooShort {
        /// The path of the device.
        path: PathBuf,
        /// The device's size in bytes.
        actual: u64,
        /// The requested size in bytes.
        wanted: u64,
    },
    /// The file system of a file that is to become longer has too little space for it.
    #[error(
        "{path} cannot have {wanted} bytes: its file system has room for {room}",
        path = path.display()
    )]
    TooLittleSpace {
        /// The path of the file.
        path: PathBuf,
        /// The requested size in bytes.
        wanted: u64,
        /// The bytes that the file has on the file system, and those that are free.
        room: u64,
    },
    /// A device of this kind has a size that a running program cannot change.
    #[error("{name} is neither memory, a file nor a disk, and keeps its size while it is used")]
    FixedSize {
        /// The device's name.
        name: String,
    },
    /// The size of a stripe, in bytes, is not a multiple of a sector.
    #[error("a stripe of {0} bytes is not a multiple of {SECTOR_BYTES}")]
    StripeUnit(u64),
    /// The members of a stripe are too small for the requested size.
    #[error(
        "the stripe has room for {room} bytes, not the {wanted} asked for; its smallest member \
         limits it, in whole chunks of {chunk}"
    )]
    StripeSize {
        /// The largest possible size in bytes.
        room: u64,
        /// The requested size in bytes.
        wanted: u64,
        /// The size of a chunk in bytes.
        chunk: u64,
    },
    /// A Ceph image could not be opened.
    #[error(transparent)]
    Rbd(#[from] crate::rbd::RbdError),
    /// A volume in a bucket could not be opened.
    #[error(transparent)]
    S3(#[from] crate::s3::S3Error),
    /// An NBD export could not be opened.
    #[error(transparent)]
    Nbd(#[from] crate::nbd::NbdError),
    /// A mirror could not be opened.
    #[error(transparent)]
    Mirror(#[from] crate::mirror::MirrorRefusal),
    /// The requested size differs from the size in the memory device's specification.
    #[error("the memory device has {actual} bytes, not the {wanted} asked for")]
    WrongMemorySize {
        /// The specified size in bytes.
        actual: u64,
        /// The requested size in bytes.
        wanted: u64,
    },
}

/// A file or block device, opened and locked once, from which each thread opens a
/// [`FileDevice`](crate::FileDevice). Clones share it; the lock ends with the last clone and
/// device.
#[derive(Debug, Clone)]
pub struct FileSource(pub(super) Arc<Opened>);

#[derive(Debug)]
pub(super) struct Opened {
    pub(super) file: File,
    /// Size in bytes when last measured. No other memory depends on it, so relaxed loads and stores
    /// suffice.
    pub(super) size: AtomicU64,
    direct: bool,
    pub(super) block_device: bool,
    pub(super) path: PathBuf,
    _locks: Locks,
}

/// Returns an addition to an error message that names the path's folder, if that is missing.
fn lacks_folder(path: &Path, error: &io::Error) -> String {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists());
    match folder.filter(|_| error.kind() == io::ErrorKind::NotFound) {
        Some(folder) => format!("; the folder {} does not exist", folder.display()),
        None => String::new(),
    }
}

/// Returns the part of an error message that names the user of a file.
fn used_by(path: &Path, by: Option<&Path>) -> String {
    match by {
        None => "is in use by another process".to_owned(),
        Some(by) if by == path => "is in use by this process already".to_owned(),
        Some(by) => format!("is the same as {}, which this process uses already", by.display()),
    }
}

impl FileSource {
    /// Opens the file at `path`, or creates it with `options.create`, and locks it against a second
    /// user.
    ///
    /// # Errors
    /// Names the path and the reason.
    pub fn prepare(path: impl AsRef<Path>, options: &FileOptions) -> Result<FileSource, OpenError> {
        open(path.as_ref(), options).map(|opened| FileSource(Arc::new(opened)))
    }

    /// Returns the size in bytes when the file was opened or last refreshed.
    pub fn size_bytes(&self) -> u64 {
        self.0.size.load(Ordering::Relaxed)
    }

    pub(super) fn is_block_device(&self) -> bool {
        self.0.block_device
    }

    pub(super) fn file(&self) -> &File {
        &self.0.file
    }

    /// Asks the kernel for the current size in bytes.
    pub(super) fn size_now(&self) -> io::Result<u64> {
        Ok(seek(&self.0.file, SeekFrom::End(0))?)
    }

    pub(super) fn is_direct(&self) -> bool {
        self.0.direct
    }

    pub(super) fn fd(&self) -> RawFd {
        self.0.file.as_raw_fd()
    }
}

fn open(path: &Path, options: &FileOptions) -> Result<Opened, OpenError> {
    let failed = |what| move |source| OpenError::System { what, path: path.to_owned(), source };
    if let Some(size) = options.size {
        check_size(path, size)?;
    }
    let block_device = match std::fs::metadata(path) {
        Ok(data) if data.file_type().is_block_device() => true,
        Ok(data) if data.is_file() => {
            if data.len() == 0 && options.create {
                // somebody was stopped between making it and giving it its size
                fill(path, options)?;
            }
            false
        }
        Ok(_) => return Err(OpenError::WrongKind { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound && options.create => {
            create(path, options)?;
            false
        }
        Err(error) => return Err(failed("open")(error)),
    };

    let exclusive = if block_device && !options.read_only { libc::O_EXCL } else { 0 };
    let open = |flags| {
        let mut how = OpenOptions::new();
        how.read(true)
            .write(!options.read_only)
            .custom_flags(flags | exclusive | libc::O_CLOEXEC)
            .open(path)
    };
    let wanted = if options.direct { libc::O_DIRECT } else { 0 };
    let is_busy = |error: &io::Error| exclusive != 0 && error.raw_os_error() == Some(libc::EBUSY);
    let attempt = patiently(|| open(wanted), is_busy);
    let (mut file, mut direct) = match attempt {
        Err(error) if options.direct && error.raw_os_error() == Some(libc::EINVAL) => {
            (open(0).map_err(failed("open"))?, false)
        }
        Err(error) if is_busy(&error) => {
            return Err(OpenError::InUse { path: path.to_owned(), by: held_as(path) });
        }
        other => (other.map_err(failed("open"))?, options.direct),
    };

    let size = seek(&file, SeekFrom::End(0)).map_err(|e| failed("find the size of")(e.into()))?;
    if let Some(wanted) = options.size
        && wanted != size
    {
        return Err(OpenError::WrongSize { path: path.to_owned(), actual: size, wanted });
    }
    check_size(path, size)?;
    if direct && !direct_works(&file, size) {
        // The lock below is on the file that stays open, not on this first attempt.
        (file, direct) = (open(0).map_err(failed("open"))?, false);
    }
    let locks = lock(&file, path, options.read_only).map_err(not_locked(path))?;
    let (size, path) = (AtomicU64::new(size), path.to_owned());
    Ok(Opened { file, size, direct, block_device, path, _locks: locks })
}

/// Creates a sparse file. If two processes try at once, only one creates it.
fn create(path: &Path, options: &FileOptions) -> Result<(), OpenError> {
    let failed = |what| move |source| OpenError::System { what, path: path.to_owned(), source };
    let size = options.size.ok_or_else(|| OpenError::SizeUnknown { path: path.to_owned() })?;
    let made = OpenOptions::new().write(true).create_new(true).mode(OWNER_ONLY).open(path);
    let file = match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        other => other.map_err(failed("create"))?,
    };
    file.set_len(size).and_then(|()| file.sync_all()).map_err(|error| {
        // Half made is worse than not made: the next start would find a file of the wrong size.
        let _ = std::fs::remove_file(path);
        failed("set the size of")(error)
    })
}

/// Sets the size of an empty file that an interrupted creation left behind.
fn fill(path: &Path, options: &FileOptions) -> Result<(), OpenError> {
    let failed = |what| move |source| OpenError::System { what, path: path.to_owned(), source };
    let Some(size) = options.size else { return Ok(()) };
    let file = OpenOptions::new().write(true).open(path).map_err(failed("open"))?;
    lock_briefly(&file).map_err(not_locked(path))?;
    if file.metadata().is_ok_and(|data| data.len() > 0) {
        return Ok(()); // another process was faster
    }
    file.set_len(size).and_then(|()| file.sync_all()).map_err(|error| {
        let _ = std::fs::remove_file(path); // as when it is made
        failed("set the size of")(error)
    })
}

/// Converts the error of a failed attempt to lock.
fn not_locked(path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    move |error| match is_taken(&error) {
        true => OpenError::InUse { path: path.to_owned(), by: held_as(path) },
        false => OpenError::System { what: "lock", path: path.to_owned(), source: error },
    }
}

fn check_size(path: &Path, size: u64) -> Result<(), OpenError> {
    if size == 0 || !size.is_multiple_of(512) {
        return Err(OpenError::OddSize { path: path.to_owned(), size });
    }
    Ok(())
}

/// Returns whether the file accepts direct reads of its first sector and of its last, partial one.
pub(super) fn direct_works(file: &File, size: u64) -> bool {
    let pool = Pool::new(0);
    let tail = size % SECTOR_BYTES;
    let works = |offset: u64, len: u64| {
        let buffer = pool.allocate(len as usize);
        // SAFETY: the buffer is `len` bytes long and lives across the call.
        unsafe {
            libc::pread(
                file.as_raw_fd(),
                buffer.whole().as_ptr().cast(),
                len as usize,
                offset as i64,
            ) >= 0
        }
    };
    works(0, size.min(SECTOR_BYTES)) && (tail == 0 || works(size - tail, tail))
}

/// The number of bytes at the start of a file that Floe leaves unlocked. There qemu's processes
/// keep their own locks, so `qemu-img` can read a volume while it is served.
const BYTES_OF_QEMU: u64 = 4096;

/// The maximum nesting of loop devices that is followed.
const MOST_LEVELS: usize = 8;

/// A file that this process has open.
#[derive(Debug)]
struct Held {
    number: u64,
    place: Place,
    path: PathBuf,
}

static HELD: Mutex<Vec<Held>> = Mutex::new(Vec::new());

/// The number for the next entry of [`HELD`]. No other memory depends on it, so relaxed operations
/// suffice.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// The locks of an open file or block device. Those on the file itself end when it is closed.
#[derive(Debug)]
pub(super) struct Locks {
    /// The number of this file's entry in [`HELD`].
    number: u64,
    /// The files and disks under a block device, locked while the device is open.
    _below: Vec<File>,
}

impl Drop for Locks {
    fn drop(&mut self) {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|held| held.number != self.number);
    }
}

/// Locks an open file or block device, exclusively for a writer or shared for readers. Waits
/// briefly for another user to finish.
///
/// `flock` locks the file as a whole. A lock on a range of bytes, owned by the open file
/// (`F_OFD_SETLK`), separates parts of a file: a loop device takes it on its bytes of the
/// underlying file. An underlying file that cannot be opened is not locked.
///
/// # Errors
/// An error for which [`is_taken`] holds if the file is in use, or the error of the system.
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

/// Locks a file as a whole, until the file is closed.
///
/// # Errors
/// An error for which [`is_taken`] holds if the file is in use, or the error of the system.
pub(super) fn lock_briefly(file: &File) -> io::Result<()> {
    patiently(|| lock_whole(file, false), is_taken)
}

/// Returns whether an error means that another user has locked the file.
pub(super) fn is_taken(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Returns the path under which this process already uses the file, if any.
pub(super) fn held_as(path: &Path) -> Option<PathBuf> {
    let place = Place::of(path)?;
    let held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    held.iter().find(|held| place.overlaps(&held.place)).map(|held| held.path.clone())
}

fn lock_whole(file: &File, read_only: bool) -> io::Result<()> {
    let how = match read_only {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    Ok(flock(file, how)?)
}

/// Locks the files and disks under a block device. A partition's disk needs no lock: the kernel
/// excludes the two from each other.
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

/// Locks a range of an open file, except the bytes reserved for qemu, until the file is closed.
fn lock_part(file: &File, bytes: &Range<u64>, as_reader: bool) -> io::Result<()> {
    let bytes = bytes.start.max(BYTES_OF_QEMU)..bytes.end;
    if bytes.is_empty() { Ok(()) } else { lock_bytes(file, &bytes, as_reader) }
}

/// Locks bytes of an open file until the file is closed. Does nothing on file systems without range
/// locks.
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
mod lock_tests {
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
