//! Access to a file that can be replaced by another opening of it, after a failure.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use super::request::forks;
use super::{Buffers, FileFlash, Flash, FlashOptions, OpenError, Reading};

/// A file that can be opened again while it is in use. Operations that have begun end at the old
/// opening.
#[derive(Debug)]
pub(crate) struct FlashSwitch {
    path: PathBuf,
    options: FlashOptions,
    current: RwLock<Arc<dyn Flash>>,
    buffers: Buffers,
    size_bytes: u64,
    /// Number of the process that opened the file, from [`forks`].
    forks: u64,
}

impl FlashSwitch {
    /// Opens a file or block device as [`FileFlash::open`] does.
    ///
    /// # Errors
    /// Those of [`FileFlash::open`].
    pub(crate) fn open(path: &Path, options: FlashOptions) -> Result<Self, OpenError> {
        let flash = FileFlash::open(path, &options)?;
        Ok(Self::new(path, options, Arc::new(flash)))
    }

    fn new(path: &Path, options: FlashOptions, flash: Arc<dyn Flash>) -> Self {
        let (buffers, size_bytes) = (flash.buffers().clone(), flash.size_bytes());
        let (path, forks) = (path.to_owned(), forks());
        Self { path, options, current: RwLock::new(flash), buffers, size_bytes, forks }
    }

    /// Creates a switch for a simulated drive.
    pub(crate) fn simulated(flash: Arc<dyn Flash>) -> Self {
        Self::new(Path::new("simulated"), FlashOptions::default(), flash)
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file a second time, and gives up the lock of the first opening for that. The first
    /// one stays the current one.
    ///
    /// # Errors
    /// Those of [`FileFlash::open`].
    pub(crate) fn open_again(&self) -> Result<Arc<dyn Flash>, OpenError> {
        let options = FlashOptions { size: Some(self.size_bytes), ..self.options.clone() };
        self.now().release();
        Ok(Arc::new(FileFlash::open(&self.path, &options)?))
    }

    /// Makes another opening the current one. Returns the old one.
    pub(crate) fn replace(&self, flash: Arc<dyn Flash>) -> Arc<dyn Flash> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut current, flash)
    }

    /// Returns the current opening. Its user may block, so it does not keep the lock.
    fn now(&self) -> Arc<dyn Flash> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Flash for FlashSwitch {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    fn is_direct(&self) -> bool {
        self.now().is_direct()
    }

    fn is_forked(&self) -> bool {
        self.forks != forks() // none is opened again after a fork
    }

    fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        self.now().read(into, offset)
    }

    fn write(&self, from: &[u8], offset: u64) -> io::Result<()> {
        self.now().write(from, offset)
    }

    fn write_cached(&self, from: &[u8], offset: u64) -> io::Result<()> {
        self.now().write_cached(from, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.now().sync()
    }

    fn start(&self, offset: u64, len: usize) -> Reading {
        self.now().start(offset, len)
    }

    fn start_all(&self, ranges: &[(u64, usize)]) -> Vec<Reading> {
        self.now().start_all(ranges)
    }
}
