//! Opening, locking and blocking access of the file or block device.
//!
//! Two caches on one file would destroy it, so it is locked while open; a block device is also
//! opened with O_EXCL, which fails for a mounted one. Direct I/O is tested by reading: some file
//! systems accept the flag and refuse the reads.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::ALIGNMENT;
use super::buffer::{Buffer, Buffers};
use super::request::{Request, forks};

/// The longest wait for a file in use. The kernel releases a killed process's files only when it
/// has closed its io_uring, after the process has ended.
const PATIENCE: Duration = Duration::from_secs(2);

/// The time between two attempts to lock a file.
const RETRY: Duration = Duration::from_millis(5);

/// The reason why the file of a cache could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A system call failed.
    #[error(
        "cannot {what} {path}: {source}{}",
        missing_folder(path, source),
        path = path.display()
    )]
    System {
        /// The step that failed.
        what: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Another process, or another cache of this process, has the file open.
    #[error("{path} is in use by another process or by another cache", path = path.display())]
    InUse {
        /// The path of the file.
        path: PathBuf,
    },
    /// The path leads neither to a regular file nor to a block device.
    #[error("{path} is neither a regular file nor a block device", path = path.display())]
    NotAFile {
        /// The path of the file.
        path: PathBuf,
    },
    /// The file does not exist, and no size was given to create it with.
    #[error("{path} does not exist; give a size to create it", path = path.display())]
    SizeUnknown {
        /// The path of the file.
        path: PathBuf,
    },
    /// A file exists with another size than requested, or a block device is too small.
    #[error(
        "{path} has {actual} bytes, not the {wanted} asked for; a cache keeps the size that it was \
         created with: give that size, or remove the file to begin anew",
        path = path.display()
    )]
    WrongSize {
        /// The path of the file.
        path: PathBuf,
        /// The size of the file in bytes.
        actual: u64,
        /// The requested size in bytes.
        wanted: u64,
    },
    /// The size is zero or not a multiple of 4096 bytes.
    #[error(
        "{path}: a size of {size} bytes is not a positive multiple of {ALIGNMENT}",
        path = path.display()
    )]
    OddSize {
        /// The path of the file.
        path: PathBuf,
        /// The invalid size in bytes.
        size: u64,
    },
    /// The file system has no room for a new file. None was left behind.
    #[error(
        "cannot create {path}: {size} bytes are more than its file system has free{}",
        of_free(*free_bytes),
        path = path.display()
    )]
    NoSpace {
        /// The path of the file.
        path: PathBuf,
        /// The requested size in bytes.
        size: u64,
        /// The free space in bytes, if the system reports it.
        free_bytes: Option<u64>,
    },
}

/// Returns an addition to an error message that names the path's folder, if that is missing.
fn missing_folder(path: &Path, error: &io::Error) -> String {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists());
    match folder.filter(|_| error.kind() == io::ErrorKind::NotFound) {
        Some(folder) => format!("; the folder {} does not exist", folder.display()),
        None => String::new(),
    }
}

fn of_free(bytes: Option<u64>) -> String {
    bytes.map(|bytes| format!(" ({bytes})")).unwrap_or_default()
}

/// A locked file or block device, with blocking access.
#[derive(Debug)]
pub(super) struct Target {
    file: File,
    /// A second handle that uses the page cache, if `file` bypasses it.
    cached: Option<File>,
    pub(super) size_bytes: u64,
    pub(super) direct: bool,
    block_device: bool,
    /// Number of the process that opened the file, from [`forks`].
    forks: u64,
}

impl Target {
    pub(super) fn open(path: &Path, size: Option<u64>, direct: bool) -> Result<Target, OpenError> {
        let failed = |what| move |source| OpenError::System { what, path: path.to_owned(), source };
        if let Some(size) = size {
            check_size(path, size)?;
        }
        let (block_device, created) = match std::fs::metadata(path) {
            Ok(data) if is_block_device(&data) => (true, false),
            Ok(data) if data.is_file() => (false, false),
            Ok(_) => return Err(OpenError::NotAFile { path: path.to_owned() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (false, create(path, size)?),
            Err(error) => return Err(failed("open")(error)),
        };
        // An error before the new file has its size removes it: an empty file is of no use.
        let undo = |error| {
            if created {
                let _ = std::fs::remove_file(path);
            }
            error
        };
        let (file, direct) = open_file(path, direct, block_device).map_err(undo)?;
        lock_file(&file, path).map_err(undo)?;
        let end = |file: &File| (&mut &*file).seek(SeekFrom::End(0));
        let mut actual = end(&file).map_err(failed("find the size of"))?;
        if let (0, false, Some(size)) = (actual, block_device, size) {
            // New, or left by a process that ended before the file had its size.
            allocate(&file, path, size).map_err(undo)?;
            actual = size;
        }
        let size_bytes = match size {
            Some(wanted) if wanted > actual || wanted < actual && !block_device => {
                return Err(OpenError::WrongSize { path: path.to_owned(), actual, wanted });
            }
            Some(wanted) => wanted,
            None => actual - actual % ALIGNMENT as u64,
        };
        check_size(path, size_bytes)?;
        let cached = if direct { Some(open_cached(&file).map_err(failed("open"))?) } else { None };
        Ok(Target { file, cached, size_bytes, direct, block_device, forks: forks() })
    }

    /// Opens an existing file or block device for reading only. With `patience`, waits for the end
    /// of a process that has just been killed. Returns the target, and whether another process, or
    /// a cache of this one, has it open for writing. Unless it has, the lock keeps writers away.
    pub(super) fn inspect(path: &Path, patience: bool) -> Result<(Target, bool), OpenError> {
        let failed = |what| move |source| OpenError::System { what, path: path.to_owned(), source };
        let data = std::fs::metadata(path).map_err(failed("open"))?;
        let block_device = is_block_device(&data);
        if !block_device && !data.is_file() {
            return Err(OpenError::NotAFile { path: path.to_owned() });
        }
        let open = |direct| {
            let mut how = OpenOptions::new();
            how.read(true);
            set_flags(&mut how, direct, false);
            how.open(path)
        };
        let (file, direct) = match open_direct(&open).map_err(failed("open"))? {
            Some(file) => (file, true),
            None => (open(false).map_err(failed("open"))?, false),
        };
        let is_taken = |error: &TryLockError| patience && matches!(error, TryLockError::WouldBlock);
        let in_use = match patiently(|| file.try_lock_shared(), is_taken) {
            Ok(()) => false,
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
        };
        let end = (&mut &file).seek(SeekFrom::End(0)).map_err(failed("find the size of"))?;
        let size_bytes = end - end % ALIGNMENT as u64;
        let cached = None;
        let target = Target { file, cached, size_bytes, direct, block_device, forks: forks() };
        Ok((target, in_use))
    }

    /// Fills `into` from `offset` on, blocking.
    pub(super) fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        self.check_range(into.len(), offset, into.as_ptr())?;
        let mut done = 0;
        while done < into.len() {
            match read_at(&self.file, &mut into[done..], offset + done as u64) {
                Ok(0) => return Err(self.shortened(offset + done as u64)),
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.refused(error, offset, done)),
            }
        }
        Ok(())
    }

    /// Serves a request with a new buffer, blocking.
    pub(super) fn read_new(&self, buffers: &Buffers, request: &Request) -> io::Result<Buffer> {
        let mut buffer = buffers.take(request.len);
        self.read(&mut buffer, request.offset)?;
        Ok(buffer)
    }

    /// Writes all of `from` at `offset`, blocking.
    pub(super) fn write(&self, from: &[u8], offset: u64) -> io::Result<()> {
        self.check_range(from.len(), offset, from.as_ptr())?;
        let end = offset + from.len() as u64;
        // A write would make a shortened file longer again, with a hole before it.
        if !self.block_device && self.file.metadata()?.len() < end {
            return Err(self.shortened(end));
        }
        let mut done = 0;
        while done < from.len() {
            match write_at(&self.file, &from[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes all of `from` at `offset` to the page cache, where it survives the end of the
    /// process.
    pub(super) fn write_cached(&self, from: &[u8], offset: u64) -> io::Result<()> {
        let file = self.cached.as_ref().unwrap_or(&self.file);
        let mut done = 0;
        while done < from.len() {
            match write_at(file, &from[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes all earlier writes durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Unlocks the file.
    pub(super) fn release(&self) {
        if self.forks == forks() {
            let _ = self.file.unlock(); // its end unlocks it, too
        }
    }

    /// Returns an error unless the range is inside the file.
    ///
    /// # Panics
    /// With debug assertions, when the range or the memory is not aligned.
    pub(super) fn check_range(&self, len: usize, offset: u64, at: *const u8) -> io::Result<()> {
        debug_assert!(
            [len, offset as usize, at.addr()].iter().all(|number| number % ALIGNMENT == 0),
            "{len} bytes at {offset}, in memory at {at:?}, are not aligned"
        );
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.size_bytes => Ok(()),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{len} bytes at {offset} are not within the {} bytes", self.size_bytes),
            )),
        }
    }

    /// Returns the error for a transfer that found the end of the file before `end`.
    pub(super) fn shortened(&self, end: u64) -> io::Error {
        let size = self.size_bytes;
        io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("the file has been shortened from {size} bytes: byte {end} is missing"),
        )
    }

    /// Converts the error of a read after `done` bytes. Direct I/O refuses to continue inside of a
    /// sector, where a shortened file ends.
    pub(super) fn refused(&self, error: io::Error, offset: u64, done: usize) -> io::Error {
        match error.kind() {
            io::ErrorKind::InvalidInput if done > 0 => self.shortened(offset + done as u64),
            _ => error,
        }
    }

    #[cfg(target_os = "linux")]
    pub(super) fn fd(&self) -> std::os::fd::RawFd {
        std::os::fd::AsRawFd::as_raw_fd(&self.file)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Closing alone might release the lock late: the kernel and forked children may hold the
        // file. A child leaves its parent the lock.
        self.release();
    }
}

fn check_size(path: &Path, size: u64) -> Result<(), OpenError> {
    if size == 0 || !size.is_multiple_of(ALIGNMENT as u64) {
        return Err(OpenError::OddSize { path: path.to_owned(), size });
    }
    Ok(())
}

/// Creates an empty file. Returns whether it did: another process may have been faster.
fn create(path: &Path, size: Option<u64>) -> Result<bool, OpenError> {
    if size.is_none() {
        return Err(OpenError::SizeUnknown { path: path.to_owned() });
    }
    let mut how = OpenOptions::new();
    how.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut how, 0o600); // it will hold the cache's objects
    match how.open(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(source) => Err(OpenError::System { what: "create", path: path.to_owned(), source }),
    }
}

/// Opens a file for direct I/O if wanted and possible. Returns it and whether it is direct.
fn open_file(path: &Path, direct: bool, exclusive: bool) -> Result<(File, bool), OpenError> {
    let open = |direct| {
        let mut how = OpenOptions::new();
        how.read(true).write(true);
        set_flags(&mut how, direct, exclusive);
        patiently(
            || how.open(path),
            |error| exclusive && error.kind() == io::ErrorKind::ResourceBusy,
        )
    };
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::ResourceBusy => OpenError::InUse { path: path.to_owned() },
        _ => OpenError::System { what: "open", path: path.to_owned(), source },
    };
    if direct && let Some(file) = open_direct(&open).map_err(failed)? {
        return Ok((file, true));
    }
    Ok((open(false).map_err(failed)?, false))
}

/// Opens an open file a second time, for access through the page cache.
fn open_cached(file: &File) -> io::Result<File> {
    #[cfg(target_os = "linux")]
    {
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
        OpenOptions::new().read(true).write(true).open(path)
    }
    #[cfg(not(target_os = "linux"))]
    file.try_clone()
}

/// Opens a file for direct I/O; `None` if its file system offers none.
fn open_direct(open: &impl Fn(bool) -> io::Result<File>) -> io::Result<Option<File>> {
    if !cfg!(target_os = "linux") {
        return Ok(None);
    }
    match open(true) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
        Err(error) => Err(error),
        Ok(file) => {
            let works = read_at(&file, &mut Buffers::new(0).take(ALIGNMENT), 0).is_ok();
            Ok(works.then_some(file))
        }
    }
}

fn lock_file(file: &File, path: &Path) -> Result<(), OpenError> {
    let is_taken = |error: &TryLockError| matches!(error, TryLockError::WouldBlock);
    patiently(|| file.try_lock(), is_taken).map_err(|error| match error {
        TryLockError::WouldBlock => OpenError::InUse { path: path.to_owned() },
        TryLockError::Error(source) => {
            OpenError::System { what: "lock", path: path.to_owned(), source }
        }
    })
}

/// Gives an empty file its size, and blocks on the disk where the file system can reserve them.
fn allocate(file: &File, path: &Path, size: u64) -> Result<(), OpenError> {
    let free_bytes = free_bytes(file);
    let no_space = || OpenError::NoSpace { path: path.to_owned(), size, free_bytes };
    if free_bytes.is_some_and(|free| free < size) {
        return Err(no_space()); // before it fills the disk of others
    }
    // The size comes last: a file whose allocation was interrupted stays recognisably empty.
    reserve(file, size).and_then(|()| file.set_len(size)).and_then(|()| file.sync_all()).map_err(
        |source| {
            let _ = file.set_len(0); // frees reserved blocks
            match source.kind() {
                io::ErrorKind::StorageFull => no_space(),
                _ => OpenError::System { what: "allocate", path: path.to_owned(), source },
            }
        },
    )
}

/// Repeats an attempt for up to two seconds while it fails because of another user.
fn patiently<T, E>(
    mut attempt: impl FnMut() -> Result<T, E>,
    is_in_use: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let begun = Instant::now();
    loop {
        match attempt() {
            Err(error) if is_in_use(&error) && begun.elapsed() < PATIENCE => {
                std::thread::sleep(RETRY);
            }
            result => return result,
        }
    }
}

#[cfg(target_os = "linux")]
fn set_flags(how: &mut OpenOptions, direct: bool, exclusive: bool) {
    use std::os::unix::fs::OpenOptionsExt;

    let flag = |set, flag| if set { flag } else { 0 };
    how.custom_flags(flag(direct, libc::O_DIRECT) | flag(exclusive, libc::O_EXCL));
}

#[cfg(not(target_os = "linux"))]
fn set_flags(_: &mut OpenOptions, _direct: bool, _exclusive: bool) {}

#[cfg(unix)]
fn is_block_device(data: &std::fs::Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_block_device(&data.file_type())
}

#[cfg(not(unix))]
fn is_block_device(_: &std::fs::Metadata) -> bool {
    false
}

#[cfg(target_os = "linux")]
fn reserve(file: &File, size: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;

    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, size) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        result => Ok(result?),
    }
}

#[cfg(not(target_os = "linux"))]
fn reserve(_: &File, _: u64) -> io::Result<()> {
    Ok(())
}

#[cfg(target_os = "linux")]
fn free_bytes(file: &File) -> Option<u64> {
    let system = rustix::fs::fstatvfs(file).ok()?;
    system.f_bavail.checked_mul(system.f_frsize)
}

#[cfg(not(target_os = "linux"))]
fn free_bytes(_: &File) -> Option<u64> {
    None
}

#[cfg(unix)]
use std::os::unix::fs::FileExt as _;

#[cfg(unix)]
fn read_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    file.read_at(into, offset)
}

#[cfg(unix)]
fn write_at(file: &File, from: &[u8], offset: u64) -> io::Result<usize> {
    file.write_at(from, offset)
}

#[cfg(windows)]
fn read_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, into, offset)
}

#[cfg(windows)]
fn write_at(file: &File, from: &[u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_write(file, from, offset)
}
