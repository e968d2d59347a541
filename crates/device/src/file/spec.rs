//! Files and block devices as text: `file:PATH,size=SIZE,write-cache=volatile`.

use std::fmt;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::fstatvfs;

use super::FileDevice;
use super::open::{FileOptions, FileSource, OpenError, Opened, direct_works};
use crate::buffer::{Pool, SECTOR_BYTES};
use crate::device::Device;
use crate::identity::{Identity, identify};
use crate::queue::check_measured;
use crate::ring::Ring;
use crate::source::{PreparedDevice, Source};
use crate::spec::{DeviceSpec, Exact, Setting, SpecError, Wanted};
use crate::volatile::{Habit, VolatileDevice, VolatileDisk};

/// The longest time after which an imitated volatile write cache writes some of its content to the
/// medium.
const RESTLESS: Duration = Duration::from_millis(20);

/// A file or block device, before it is opened.
#[derive(Debug, Clone)]
pub(crate) struct FileSpec {
    path: PathBuf,
    size: Option<u64>,
    /// Imitate a volatile write cache: unflushed data is lost when the process ends.
    volatile: bool,
}

impl FileSpec {
    pub(crate) fn parse(spec: &str, path: &str) -> Result<Box<dyn DeviceSpec>, SpecError> {
        if path.is_empty() {
            return Err(SpecError::NoPath(spec.to_owned()));
        }
        Ok(Box::new(FileSpec { path: path.into(), size: None, volatile: false }))
    }

    /// Returns the current size of the file or block device in bytes; `None` if it has none.
    fn size_present(&self) -> Option<u64> {
        let kind = std::fs::metadata(&self.path).ok()?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return None; // opening a pipe would wait for its other end
        }
        let mut file = File::open(&self.path).ok()?;
        file.seek(SeekFrom::End(0)).ok().filter(|&bytes| bytes > 0)
    }
}

impl DeviceSpec for FileSpec {
    fn kind(&self) -> &'static str {
        "file"
    }

    fn title(&self) -> String {
        format!("file:{}", self.path.display())
    }

    fn write_settings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.size.map_or(Ok(()), |size| write!(f, ",size={}", Exact(size)))?;
        if self.volatile { f.write_str(",write-cache=volatile") } else { Ok(()) }
    }

    fn settings(&self) -> &'static str {
        "size=SIZE, write-cache=volatile, medium=NAME, interference=off, iops=N and bandwidth=SIZE"
    }

    fn set(&mut self, setting: &Setting<'_>) -> Result<bool, SpecError> {
        match (setting.name, setting.value) {
            ("size", _) => self.size = Some(setting.size(512)?),
            ("write-cache", "volatile") => self.volatile = true,
            ("write-cache", found) => {
                return Err(SpecError::WriteCache(setting.spec.to_owned(), found.to_owned()));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn become_half(&mut self, _timeout: Duration) -> bool {
        true
    }

    fn size_bytes(&self) -> Option<u64> {
        self.size
    }

    fn size_found(&self) -> Option<u64> {
        self.size.or_else(|| self.size_present())
    }

    fn paths(&self) -> &[PathBuf] {
        std::slice::from_ref(&self.path)
    }

    fn prepare(&self, wanted: &Wanted<'_>) -> Result<Source, OpenError> {
        let (path, size) = (&self.path, wanted.size);
        if let (Some(actual), Some(wanted)) = (self.size, size)
            && actual != wanted
        {
            return Err(OpenError::WrongSize { path: path.clone(), actual, wanted });
        }
        let is_longer = self.size_present().is_some_and(|actual| wanted.is_longer(actual));
        let size = size.filter(|_| !is_longer); // used as it is
        let (create, read_only) = (size.is_some(), wanted.read_only());
        let file =
            FileSource::prepare(path, &FileOptions { size, create, direct: true, read_only })?;
        let start = || {
            let seed = RandomState::new().hash_one(path);
            let (opened, habit) = (file.clone(), Habit::Restless { at_most: RESTLESS, seed });
            VolatileDisk::start(habit, move |ring, pool| FileDevice::new(ring, pool, &opened))
        };
        let disk = self.volatile.then(start).transpose().map_err(|source| OpenError::System {
            what: "imitate the write cache of",
            path: path.clone(),
            source,
        })?;
        Ok(Source::new(PreparedFile { file, disk }, wanted.imitation, wanted.number))
    }
}

/// A file or block device that is open.
#[derive(Debug)]
struct PreparedFile {
    file: FileSource,
    /// The imitated disk with a volatile write cache, if one is configured.
    disk: Option<VolatileDisk>,
}

/// Returns the bytes that a file has on its file system, and those that are free for it.
fn room_for(file: &File) -> io::Result<u64> {
    let (there, space) = (file.metadata()?.blocks() * 512, fstatvfs(file)?);
    Ok(there.saturating_add(space.f_bavail.saturating_mul(space.f_frsize)))
}

impl PreparedDevice for PreparedFile {
    fn size_bytes(&self) -> u64 {
        self.file.size_bytes()
    }

    fn name(&self) -> String {
        self.file.0.path.display().to_string()
    }

    fn identity(&self) -> Identity {
        identify(&self.file.0.file, self.file.0.block_device)
    }

    fn has_kernel_name(&self) -> bool {
        let Opened { path, block_device, .. } = &*self.file.0;
        let is_link = || path.symlink_metadata().is_ok_and(|data| data.is_symlink());
        *block_device && path.parent() == Some(Path::new("/dev")) && !is_link()
    }

    fn refresh(&self) -> io::Result<u64> {
        let Opened { file, size: last, .. } = &*self.file.0;
        let mut size = self.file.size_now()?;
        check_measured(size)?;
        let is_direct = self.file.is_direct();
        if is_direct && !direct_works(file, size) {
            size -= size % SECTOR_BYTES; // an odd end that only the page cache could read
        }
        let before = last.load(Ordering::Relaxed);
        if is_direct && size > before && !before.is_multiple_of(SECTOR_BYTES) {
            // Whoever let the file grow has changed the page of its old end in the page cache.
            // Linux fails the next flush if a direct write finds that page there, not written yet.
            file.sync_data()?;
        }
        last.store(size, Ordering::Relaxed);
        Ok(size)
    }

    fn grow(&self, wanted: u64) -> Result<(), OpenError> {
        let Opened { file, path, block_device, .. } = &*self.file.0;
        let failed = |what| move |source| OpenError::System { what, path: path.clone(), source };
        let actual = self.file.size_now().map_err(failed("find the size of"))?;
        if *block_device {
            if actual < wanted {
                return Err(OpenError::TooShort { path: path.clone(), actual, wanted });
            }
        } else {
            // A cache fills up, and a full file system would look like a failing device. A file
            // that is as long may have holes.
            let room = room_for(file).map_err(failed("find the space left for"))?;
            if wanted > room {
                return Err(OpenError::TooLittleSpace { path: path.clone(), wanted, room });
            }
            if actual < wanted {
                file.set_len(wanted).map_err(failed("set the size of"))?;
            }
        }
        self.refresh().map(drop).map_err(failed("find the size of"))
    }

    fn open(&self, ring: &Ring, pool: &Pool) -> Result<Box<dyn Device>, OpenError> {
        let device = FileDevice::new(ring, pool, &self.file);
        Ok(match &self.disk {
            Some(disk) => Box::new(VolatileDevice::new(device, disk.clone())),
            None => Box::new(device),
        })
    }

    fn volatile(&self) -> Option<VolatileDisk> {
        self.disk.clone()
    }
}
