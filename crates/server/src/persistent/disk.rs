//! A device for blocking I/O, with a ring of its own and used by one thread. It serves before a
//! server starts, after the server has ended, and rarely in between.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use floe_block::Io;
use floe_device::{Action, Device, OpenError, Operation, Pool, Ring, RingError, SECTOR_BYTES};

use crate::volume::DeviceSource;

/// Submission queue entries of the ring, more than [`Io`] has in flight.
const RING_ENTRIES: u32 = 64;

/// Longest wait between two polls of a device. Simulated media do not wake the ring when an
/// operation becomes due.
const LONGEST_WAIT: Duration = Duration::from_millis(1);

/// An error while opening a device for blocking use.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The io_uring for the device cannot be created.
    #[error(transparent)]
    Ring(#[from] RingError),
}

/// A device opened for blocking I/O, with its ring and buffer pool.
pub struct Disk {
    // Before the ring it is on.
    pub(super) device: Box<dyn Device>,
    pub(super) ring: Ring,
    pub(super) pool: Pool,
}

impl Disk {
    /// Opens the device.
    ///
    /// # Errors
    /// When the ring cannot be created or the device cannot be opened.
    pub fn open(source: &Arc<dyn DeviceSource>) -> Result<Self, DiskError> {
        let (ring, pool) = (Ring::new(RING_ENTRIES)?, Pool::new(0));
        Ok(Self { device: source.open(&ring, &pool)?, ring, pool })
    }

    /// Calls `act` with the interface for blocking I/O through which caches are read and written.
    pub fn with_io<T>(&mut self, act: impl FnOnce(&mut Io<'_>) -> T) -> T {
        let Self { device, ring, pool } = self;
        let mut wait = || ring.wait(Some(LONGEST_WAIT)).map(drop);
        act(&mut Io { device, pool, wait: &mut wait })
    }

    /// Flushes the device: all completed writes survive a power cut.
    ///
    /// # Errors
    /// When the device fails.
    pub fn flush(&mut self) -> io::Result<()> {
        self.run(0, Action::Flush)
    }

    /// Reads a range of bytes that starts at a sector boundary.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn read(&mut self, range: Range<u64>) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let into = self.pool.allocate(bytes.len()).slice(0..bytes.len());
        self.run(range.start, Action::Read(into.clone()))?;
        into.copy_to(&mut bytes);
        Ok(bytes)
    }

    /// Reads about `first` bytes at the start of the device and `last` bytes at its end, the latter
    /// rounded up to a whole sector. On a short device the ranges are cut and never overlap.
    pub(super) fn ends(&mut self, first: u64, last: u64) -> io::Result<[Vec<u8>; 2]> {
        let bytes = self.device.size_bytes();
        let first = first.min(bytes);
        let last = (bytes.saturating_sub(last) / SECTOR_BYTES * SECTOR_BYTES).max(first);
        Ok([self.read(0..first)?, self.read(last..bytes)?])
    }

    fn run(&mut self, offset: u64, action: Action) -> io::Result<()> {
        if matches!(&action, Action::Read(into) if into.is_empty()) {
            return Ok(());
        }
        self.device.submit(Operation { token: 0, offset, action });
        let mut done = Vec::new();
        loop {
            self.device.poll(&mut done);
            match done.pop() {
                Some(completion) => return completion.result,
                None => self.ring.wait(Some(LONGEST_WAIT)).map(drop)?,
            }
        }
    }
}
