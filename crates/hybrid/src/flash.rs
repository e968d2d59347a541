//! Access to the file or block device that holds a cache's objects.
//!
//! [`Flash::read`] blocks the caller. [`Flash::start`] returns a future, which any executor may
//! poll: the read goes on in the kernel, by one io_uring per file. Where io_uring is missing or
//! forbidden, a few threads read. Neither exists before the first such read.
//!
//! After a fork, the child's reads block. Reads that the parent has begun fail in the child.
#![allow(unsafe_code)] // io_uring and aligned memory; each block says why it is sound
#![cfg_attr(not(target_os = "linux"), allow(dead_code))] // the ring is elsewhere missing

use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use request::{Request, forks, watch_forks};
use target::Target;
use threads::Threads;

pub(crate) use buffer::{Buffer, Buffers};
pub(crate) use request::Reading;
pub(crate) use switch::FlashSwitch;
pub use target::OpenError;

mod buffer;
#[cfg(all(test, target_os = "linux"))]
mod cost;
mod request;
#[cfg(target_os = "linux")]
mod ring;
mod switch;
mod target;
#[cfg(test)]
mod tests;
mod threads;

/// Alignment in bytes of memory, offsets and lengths.
pub(crate) const ALIGNMENT: usize = 4096;

/// The place where a hybrid cache keeps its objects: a file, or a simulation of one.
///
/// Offsets, lengths and the addresses of memory are multiples of [`ALIGNMENT`].
pub(crate) trait Flash: Send + Sync + Debug + 'static {
    /// Returns the size in bytes, a multiple of [`ALIGNMENT`].
    fn size_bytes(&self) -> u64;

    /// Returns the pool for the buffers of reads.
    fn buffers(&self) -> &Buffers;

    /// Returns whether reads and writes bypass the page cache.
    fn is_direct(&self) -> bool {
        true
    }

    /// Returns whether this process is a child of the one that opened the file.
    fn is_forked(&self) -> bool {
        false
    }

    /// Gives up the lock, so that the file can be opened again.
    fn release(&self) {}

    /// Fills `into` from `offset` on, blocking.
    ///
    /// # Errors
    /// The error of the medium; `InvalidInput` for a range beyond the size, `UnexpectedEof` if a
    /// file became shorter. The content of `into` is then unspecified.
    fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `from` at `offset`, blocking.
    ///
    /// # Errors
    /// As for [`Flash::read`]. The content of the range is then unspecified.
    fn write(&self, from: &[u8], offset: u64) -> io::Result<()>;

    /// Writes all of `from` at `offset`, blocking. The write survives the end of the process at
    /// once, and a loss of power after the next [`Flash::sync`]. Nothing needs to be aligned, and
    /// the range is never written otherwise.
    ///
    /// # Errors
    /// The error of the medium.
    fn write_cached(&self, from: &[u8], offset: u64) -> io::Result<()>;

    /// Makes all earlier writes durable: they survive a loss of power.
    ///
    /// # Errors
    /// The error of the medium. Any write since the last success may be lost.
    fn sync(&self) -> io::Result<()>;

    /// Begins a read of `len` bytes at `offset`. The future's errors are those of [`Flash::read`].
    fn start(&self, offset: u64, len: usize) -> Reading {
        let mut buffer = self.buffers().take(len);
        Reading::ready(self.read(&mut buffer, offset).map(|()| buffer))
    }

    /// Begins several reads, each an offset and a length in bytes, at the cost of one submission.
    fn start_all(&self, ranges: &[(u64, usize)]) -> Vec<Reading> {
        ranges.iter().map(|&(offset, len)| self.start(offset, len)).collect()
    }
}

/// Options for opening a [`FileFlash`].
#[derive(Debug, Clone)]
pub(crate) struct FlashOptions {
    /// The size in bytes that a new file is created with, that an existing file must have, and that
    /// is used of a block device. Required to create a file.
    pub(crate) size: Option<u64>,
    /// Bypass the page cache where possible.
    pub(crate) direct: bool,
    /// Read by io_uring where possible. Otherwise threads read.
    pub(crate) io_uring: bool,
    /// Limit of the free buffers that are kept, in bytes.
    pub(crate) kept_bytes: usize,
}

impl Default for FlashOptions {
    fn default() -> FlashOptions {
        FlashOptions { size: None, direct: true, io_uring: true, kept_bytes: 4 << 20 }
    }
}

/// A file or block device, locked against other users while open.
///
/// Dropping it waits for the reads in flight. Their futures keep the results.
#[derive(Debug)]
pub(crate) struct FileFlash {
    /// The read engine, set up at the first [`Flash::start`]. Dropped before `target`.
    engine: OnceLock<Engine>,
    target: Arc<Target>,
    buffers: Buffers,
    io_uring: bool,
    /// Number of the process that opened the file, from [`forks`].
    forks: u64,
}

#[derive(Debug)]
enum Engine {
    #[cfg(target_os = "linux")]
    Ring(ring::Ring),
    Threads(Threads),
    /// No thread could be started: reads block the caller.
    Caller,
}

impl FileFlash {
    /// Opens and locks the file or block device at `path`. A file that does not exist is created,
    /// readable by its owner only, and its space is reserved where the file system can.
    ///
    /// # Errors
    /// Names the path and the reason. A file that could not be created is not left behind.
    pub(crate) fn open(path: &Path, options: &FlashOptions) -> Result<FileFlash, OpenError> {
        watch_forks();
        Ok(FileFlash {
            engine: OnceLock::new(),
            target: Arc::new(Target::open(path, options.size, options.direct)?),
            buffers: Buffers::new(options.kept_bytes),
            io_uring: options.io_uring,
            forks: forks(),
        })
    }

    /// Opens a file or block device for reading only. Returns whether a cache has it open; unless
    /// one has, none can open it meanwhile. With `patience`, waits for a process that was killed.
    ///
    /// # Errors
    /// Names the path and the reason.
    pub(crate) fn inspect(path: &Path, patience: bool) -> Result<(FileFlash, bool), OpenError> {
        watch_forks();
        let (target, in_use) = Target::inspect(path, patience)?;
        let flash = FileFlash {
            engine: OnceLock::new(),
            target: Arc::new(target),
            buffers: Buffers::new(0),
            io_uring: false,
            forks: forks(),
        };
        Ok((flash, in_use))
    }

    fn engine(&self) -> &Engine {
        self.engine.get_or_init(|| {
            #[cfg(target_os = "linux")]
            if self.io_uring
                && let Ok(ring) = ring::Ring::new(Arc::clone(&self.target), self.buffers.clone())
            {
                return Engine::Ring(ring);
            }
            match Threads::new(Arc::clone(&self.target), self.buffers.clone()) {
                Ok(threads) => Engine::Threads(threads),
                Err(_) => Engine::Caller,
            }
        })
    }

    /// Submits reads to the engine. All ranges must be inside the file.
    fn begin(&self, requests: &[Arc<Request>]) {
        match self.engine() {
            #[cfg(target_os = "linux")]
            Engine::Ring(ring) => ring.begin(requests),
            Engine::Threads(threads) => threads.begin(requests),
            Engine::Caller => {
                for request in requests {
                    request.complete(self.target.read_new(&self.buffers, request));
                }
            }
        }
    }

    /// Returns the request for a range, or a read that has ended already. That is an empty read, a
    /// read outside the file, or one by a forked child, which cannot use the engine.
    fn request(&self, offset: u64, len: usize) -> Result<Arc<Request>, Reading> {
        if let Err(error) = self.target.check_range(len, offset, std::ptr::null()) {
            return Err(Reading::ready(Err(error)));
        }
        let request = Request::new(offset, len);
        if len == 0 || self.forks != forks() {
            return Err(Reading::ready(self.target.read_new(&self.buffers, &request)));
        }
        Ok(request)
    }
}

impl Flash for FileFlash {
    fn size_bytes(&self) -> u64 {
        self.target.size_bytes
    }

    fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    fn is_direct(&self) -> bool {
        self.target.direct
    }

    fn is_forked(&self) -> bool {
        self.forks != forks()
    }

    fn release(&self) {
        self.target.release();
    }

    fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        self.target.read(into, offset)
    }

    fn write(&self, from: &[u8], offset: u64) -> io::Result<()> {
        self.target.write(from, offset)
    }

    fn write_cached(&self, from: &[u8], offset: u64) -> io::Result<()> {
        self.target.write_cached(from, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.target.sync()
    }

    fn start(&self, offset: u64, len: usize) -> Reading {
        match self.request(offset, len) {
            Ok(request) => {
                self.begin(std::slice::from_ref(&request));
                Reading::pending(request)
            }
            Err(ended) => ended,
        }
    }

    fn start_all(&self, ranges: &[(u64, usize)]) -> Vec<Reading> {
        let mut requests = Vec::with_capacity(ranges.len());
        let begin = |&(offset, len): &(u64, usize)| match self.request(offset, len) {
            Ok(request) => {
                requests.push(Arc::clone(&request));
                Reading::pending(request)
            }
            Err(ended) => ended,
        };
        let readings = ranges.iter().map(begin).collect();
        if !requests.is_empty() {
            self.begin(&requests);
        }
        readings
    }
}
