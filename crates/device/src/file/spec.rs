//! Files and block devices as text: `file:PATH,size=SIZE,write-cache=volatile`.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::time::Duration;

use super::FileDevice;
use super::open::{FileOptions, FileSource, OpenError};
use crate::buffer::Pool;
use crate::device::Device;
use crate::identity::Identity;
use crate::ring::Ring;
use crate::source::{PreparedDevice, Source};
use crate::spec::{DeviceSpec, Exact, Setting, SpecError, Wanted};
use crate::volatile::{Habit, VolatileDevice, VolatileDisk};

/// The longest time after which an imitated volatile write cache writes out some of its content.
const RESTLESS: Duration = Duration::from_millis(20);

/// A file or block device, before it is opened.
#[derive(Debug, Clone)]
pub(crate) struct FileSpec {
    path: PathBuf,
    size: Option<u64>,
    /// Loses what is not flushed when the process ends.
    volatile: bool,
}

impl FileSpec {
    pub(crate) fn parse(spec: &str, path: &str) -> Result<Box<dyn DeviceSpec>, SpecError> {
        if path.is_empty() {
            return Err(SpecError::NoPath { spec: spec.to_owned() });
        }
        Ok(Box::new(FileSpec { path: path.into(), size: None, volatile: false }))
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
                let (spec, found) = (setting.spec.to_owned(), found.to_owned());
                return Err(SpecError::WriteCache { spec, found });
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
        let present = || {
            let kind = std::fs::metadata(&self.path).ok()?.file_type();
            let seekable = kind.is_file() || kind.is_block_device();
            let mut file = std::fs::File::open(&self.path).ok().filter(|_| seekable)?;
            file.seek(SeekFrom::End(0)).ok().filter(|&bytes| bytes > 0)
        };
        self.size.or_else(present)
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
        let (create, read_only) = (size.is_some(), wanted.read_only());
        let file =
            FileSource::prepare(path, &FileOptions { size, create, direct: true, read_only })?;
        if !self.volatile {
            return Ok(Source::new(file, wanted.imitation, wanted.number));
        }
        let seed = RandomState::new().hash_one(path);
        let (opened, habit) = (file.clone(), Habit::Restless { at_most: RESTLESS, seed });
        let disk =
            VolatileDisk::start(habit, move |ring, pool| FileDevice::new(ring, pool, &opened));
        let disk = disk.map_err(|source| OpenError::System {
            what: "imitate the write cache of",
            path: path.clone(),
            source,
        })?;
        Ok(Source::new(VolatileFile { file, disk }, wanted.imitation, wanted.number))
    }
}

impl PreparedDevice for FileSource {
    fn size_bytes(&self) -> u64 {
        FileSource::size_bytes(self)
    }

    fn name(&self) -> String {
        self.path().display().to_string()
    }

    fn identity(&self) -> Identity {
        FileSource::identity(self)
    }

    fn has_kernel_name(&self) -> bool {
        FileSource::has_kernel_name(self)
    }

    fn refresh(&self) -> io::Result<u64> {
        FileSource::refresh(self)
    }

    fn open(&self, ring: &Ring, pool: &Pool) -> Result<Box<dyn Device>, OpenError> {
        Ok(Box::new(FileDevice::new(ring, pool, self)))
    }
}

/// A file that imitates a disk with a volatile write cache.
#[derive(Debug)]
struct VolatileFile {
    file: FileSource,
    disk: VolatileDisk,
}

impl PreparedDevice for VolatileFile {
    fn size_bytes(&self) -> u64 {
        self.file.size_bytes()
    }

    fn name(&self) -> String {
        PreparedDevice::name(&self.file)
    }

    fn identity(&self) -> Identity {
        self.file.identity()
    }

    fn has_kernel_name(&self) -> bool {
        self.file.has_kernel_name()
    }

    fn refresh(&self) -> io::Result<u64> {
        self.file.refresh()
    }

    fn open(&self, ring: &Ring, pool: &Pool) -> Result<Box<dyn Device>, OpenError> {
        let device = FileDevice::new(ring, pool, &self.file);
        Ok(Box::new(VolatileDevice::new(device, self.disk.clone())))
    }

    fn volatile(&self) -> Option<VolatileDisk> {
        Some(self.disk.clone())
    }
}
