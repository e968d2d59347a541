//! Opening a file or block device: which one, how large, direct or not, and for us alone.
//!
//! Two servers on one file would destroy it, so a writer locks it for itself, and readers for
//! readers (`lock`); a block device is also opened with O_EXCL, which a mounted one refuses. A file
//! that is made is for its owner only: it will hold a volume's data. Whether direct I/O works is
//! tried rather than believed: some file systems accept the flag and refuse the reads, and a last
//! sector that is not whole may be shorter than the disk's unit.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{SeekFrom, seek};

use super::lock::{Locks, held_as, is_taken, lock, lock_briefly};
use crate::SECTOR_BYTES;
use crate::buffer::Pool;
use crate::identity::{Identity, identify};
use crate::memory_limit::MemoryLimit;
use crate::patience::patiently;
use crate::private::OWNER_ONLY;

/// Options for opening a [`FileDevice`](crate::FileDevice).
#[derive(Debug, Clone, Default)]
pub struct FileOptions {
    /// The size it must have, or is made with. Needed to create.
    pub size: Option<u64>,
    /// Make the file, sparse, when it does not exist.
    pub create: bool,
    /// Bypass the page cache where possible.
    pub direct: bool,
    /// Open for reading only.
    pub read_only: bool,
}

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A system call failed.
    #[error("cannot {what} {path}: {source}{}", lacks_folder(path, source), path = path.display())]
    System {
        /// The action that failed.
        what: &'static str,
        /// To which file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Another process (or another part of this one) uses the file.
    #[error("{path} {}", used_by(path, by.as_deref()), path = path.display())]
    InUse {
        /// The file.
        path: PathBuf,
        /// The path by which this process uses it already.
        by: Option<PathBuf>,
    },
    /// A directory, a socket, a terminal.
    #[error("{path} is neither a regular file nor a block device", path = path.display())]
    WrongKind {
        /// The file.
        path: PathBuf,
    },
    /// A file must be created but nobody said how large.
    #[error("{path} does not exist; give a size to create it", path = path.display())]
    SizeUnknown {
        /// The file.
        path: PathBuf,
    },
    /// The file exists with another size.
    #[error(
        "{path} has {actual} bytes, not the {wanted} asked for; without a size it is used as it is",
        path = path.display()
    )]
    WrongSize {
        /// The file.
        path: PathBuf,
        /// Its size.
        actual: u64,
        /// The size asked for.
        wanted: u64,
    },
    /// Disks come in units of 512 bytes.
    #[error(
        "{path}: a size of {size} bytes is not a positive multiple of 512",
        path = path.display()
    )]
    OddSize {
        /// The file.
        path: PathBuf,
        /// Its size.
        size: u64,
    },
    /// A memory device too large for the machine.
    #[error("cannot reserve memory for a device of {size} bytes: {source}")]
    Memory {
        /// Its size.
        size: u64,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A memory device larger than the machine.
    #[error(
        "a device of {size} bytes in memory is more than {limit} ({} bytes); give a smaller size, \
         or a file",
        limit.bytes
    )]
    TooMuchMemory {
        /// Its size.
        size: u64,
        /// The machine's memory, or what this process may have of it.
        limit: MemoryLimit,
    },
    /// A stripe ends with a whole sector.
    #[error("a stripe of {size} bytes is not a multiple of {SECTOR_BYTES}")]
    StripeUnit {
        /// Its size.
        size: u64,
    },
    /// The members of a stripe are too small for it.
    #[error(
        "the stripe has room for {room} bytes, not the {wanted} asked for; its smallest member \
         limits it, in whole chunks of {chunk}"
    )]
    StripeSize {
        /// Bytes there is room for.
        room: u64,
        /// Bytes asked for.
        wanted: u64,
        /// Its chunks' size.
        chunk: u64,
    },
    /// An image of Ceph could not be opened.
    #[error(transparent)]
    Rbd(#[from] crate::rbd::RbdError),
    /// An export of an NBD server could not be opened.
    #[error(transparent)]
    Nbd(#[from] crate::nbd::NbdError),
    /// A mirror could not be opened.
    #[error(transparent)]
    Mirror(#[from] crate::mirror::MirrorRefusal),
    /// A memory device has the size it was specified with.
    #[error("the memory device has {actual} bytes, not the {wanted} asked for")]
    WrongMemorySize {
        /// Its size.
        actual: u64,
        /// The size asked for.
        wanted: u64,
    },
}

/// A file or block device, opened and locked once, of which every thread can have a
/// [`FileDevice`](crate::FileDevice). Clones are the same one; the lock ends with the last clone
/// and device.
#[derive(Debug, Clone)]
pub struct FileSource(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    file: File,
    /// As last seen. No other memory depends on it, so that relaxed loads and stores do.
    size: AtomicU64,
    direct: bool,
    block_device: bool,
    path: PathBuf,
    _locks: Locks,
}

/// Names the folder of a path where that is missing.
fn lacks_folder(path: &Path, error: &io::Error) -> String {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists());
    match folder.filter(|_| error.kind() == io::ErrorKind::NotFound) {
        Some(folder) => format!("; the folder {} does not exist", folder.display()),
        None => String::new(),
    }
}

/// Says who uses a file.
fn used_by(path: &Path, by: Option<&Path>) -> String {
    match by {
        None => "is in use by another process".to_owned(),
        Some(by) if by == path => "is in use by this process already".to_owned(),
        Some(by) => format!("is the same as {}, which this process uses already", by.display()),
    }
}

impl FileSource {
    /// Opens (or with `options.create` makes) the file at `path`, and locks it against a second
    /// user.
    ///
    /// # Errors
    /// Names the path and what was wrong with it.
    pub fn prepare(path: impl AsRef<Path>, options: &FileOptions) -> Result<FileSource, OpenError> {
        open(path.as_ref(), options).map(|opened| FileSource(Arc::new(opened)))
    }

    /// Its size when it was opened or last refreshed.
    pub fn size_bytes(&self) -> u64 {
        self.0.size.load(Ordering::Relaxed)
    }

    /// Looks how large it is now. Devices opened from here on have that size; open ones take it by
    /// [`Device::set_size`](crate::Device::set_size).
    ///
    /// # Errors
    /// When the size cannot be found out or is not a positive multiple of 512; the old one is kept.
    pub fn refresh(&self) -> io::Result<u64> {
        let mut size = self.size_now()?;
        if size == 0 || !size.is_multiple_of(512) {
            let message = format!("{size} bytes are not a positive multiple of 512");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        if self.is_direct() && !direct_works(&self.0.file, size) {
            size -= size % SECTOR_BYTES; // an odd end that only the page cache could read
        }
        let before = self.0.size.load(Ordering::Relaxed);
        if self.is_direct() && size > before && !before.is_multiple_of(SECTOR_BYTES) {
            // Whoever let the file grow has changed the page of its old end in the page cache.
            // Linux fails the next flush if a direct write finds that page there, not written yet.
            self.0.file.sync_data()?;
        }
        self.0.size.store(size, Ordering::Relaxed);
        Ok(size)
    }

    /// The facts that tell it from other files and block devices.
    pub fn identity(&self) -> Identity {
        identify(&self.0.file, self.0.block_device)
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// True if the path is a name which the kernel gives to disks in the order in which it finds
    /// them.
    pub fn has_kernel_name(&self) -> bool {
        let is_link = || self.0.path.symlink_metadata().is_ok_and(|data| data.is_symlink());
        self.0.block_device && self.0.path.parent() == Some(Path::new("/dev")) && !is_link()
    }

    pub(super) fn is_block_device(&self) -> bool {
        self.0.block_device
    }

    pub(super) fn file(&self) -> &File {
        &self.0.file
    }

    /// Its size at this moment.
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

/// Makes a sparse file; of two processes that try, one does.
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

/// Gives an empty file its size.
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

/// Makes the error of a lock that was not given.
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

/// True if the file takes direct reads of its first sector and of the odd end of its last.
fn direct_works(file: &File, size: u64) -> bool {
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
