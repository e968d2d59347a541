//! A device on a ring of its own, used by one thread that waits for each operation. It serves I/O
//! before a server starts, after it has ended, and rarely in between.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use floe_block::Io;
use floe_device::{Action, Device, OpenError, Operation, Pool, Ring, RingError, SECTOR_BYTES};

use crate::volume::DeviceSource;

/// Submissions its ring takes at a time: more than [`Io`] has in flight.
const RING_ENTRIES: u32 = 64;

/// Devices that imitate a medium do not wake the ring when an operation becomes due.
const LONGEST_WAIT: Duration = Duration::from_millis(1);

/// An error while opening a device for blocking use.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is no ring for it.
    #[error(transparent)]
    Ring(#[from] RingError),
}

/// A device with its ring and buffer pool.
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
    /// When the ring cannot be made or the device cannot be opened.
    pub fn open(source: &Arc<dyn DeviceSource>) -> Result<Self, DiskError> {
        let (ring, pool) = (Ring::new(RING_ENTRIES)?, Pool::new(0));
        Ok(Self { device: source.open(&ring, &pool)?, ring, pool })
    }

    /// Runs `act` with access to the cache on the device.
    pub fn with_io<T>(&mut self, act: impl FnOnce(&mut Io<'_>) -> T) -> T {
        let Self { device, ring, pool } = self;
        let mut wait = || ring.wait(Some(LONGEST_WAIT)).map(drop);
        act(&mut Io { device, pool, wait: &mut wait })
    }

    /// Makes everything written so far survive a power cut.
    ///
    /// # Errors
    /// As the device says.
    pub fn flush(&mut self) -> io::Result<()> {
        self.run(0, Action::Flush)
    }

    /// Reads a range that begins with a sector.
    ///
    /// # Errors
    /// As the device says.
    pub(super) fn read(&mut self, range: Range<u64>) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let into = self.pool.allocate(bytes.len()).slice(0..bytes.len());
        self.run(range.start, Action::Read(into.clone()))?;
        into.copy_to(&mut bytes);
        Ok(bytes)
    }

    /// Reads the first `first` bytes and the last `last` bytes, rounded to a whole sector. The two
    /// ranges are cut where the device is shorter and never overlap.
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
