//! A device with its error count; failures are reported in the log.

use std::io;
use std::time::{Duration, Instant};

use floe_device::{Action, Completion, Device, Halves, Operation, Slice};

use crate::join::Fault;
use crate::order::OpId;

/// A device that counts its errors. The first failure in a row is reported in the log.
pub(super) struct Watched {
    pub(super) device: Box<dyn Device>,
    name: String,
    failing: bool,
    errors: u64,
}

impl Watched {
    pub(super) fn new(name: String, device: Box<dyn Device>) -> Self {
        Self { device, name, failing: false, errors: 0 }
    }

    pub(super) fn errors(&self) -> u64 {
        self.errors
    }

    /// Records the result of an operation, and converts it to the cache's error type.
    #[inline]
    pub(super) fn note(&mut self, result: &io::Result<()>) -> Result<(), Fault> {
        let Err(error) = result else {
            if self.failing {
                tracing::info!(device = %self.name, errors = self.errors, "works again");
                self.failing = false;
            }
            return Ok(());
        };
        if error.kind() == io::ErrorKind::Unsupported {
            return Err(Fault::Unsupported); // it works as it can
        }
        self.errors += 1;
        if !self.failing {
            tracing::warn!(device = %self.name, %error, "operation failed");
        }
        self.failing = true;
        Err(match error.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => Fault::NoSpace,
            _ => Fault::Io,
        })
    }
}

/// The cache device of a tier.
pub(crate) struct CacheDevice {
    pub(super) watched: Watched,
    /// Offset of the data, in bytes.
    data_start: u64,
}

impl CacheDevice {
    /// Creates a cache device with data from its first byte on.
    pub(super) fn new(device: Box<dyn Device>) -> Self {
        Self { watched: Watched::new("cache device".into(), device), data_start: 0 }
    }

    /// Reserves `bytes` before the data.
    pub(super) fn put_data_at(&mut self, bytes: u64) {
        self.data_start = bytes;
    }

    /// Returns whether no operation waits for another on this device.
    pub(super) fn is_immediate(&self) -> bool {
        self.watched.device.is_immediate()
    }

    /// Tells the device its new size in bytes.
    ///
    /// # Errors
    /// When the device does not have that size.
    pub(super) fn set_size(&mut self, bytes: u64) -> io::Result<()> {
        if bytes <= self.watched.device.size_bytes() {
            return Ok(()); // some devices accept no size, not even their own
        }
        self.watched.device.set_size(bytes)
    }

    /// Begins an operation that the cache has ordered, at an offset in the data.
    #[inline]
    pub(super) fn begin(&mut self, op: OpId, offset: u64, action: Action) {
        self.begin_at(op.0, self.data_start + offset, action);
    }

    /// Begins an operation at an offset on the device.
    #[inline]
    pub(super) fn begin_at(&mut self, token: u64, offset: u64, action: Action) {
        self.watched.device.submit(Operation { token, offset, action });
    }

    /// Returns the copies (halves of a mirror) that can be read one by one.
    pub(super) fn copies(&self) -> Halves {
        self.watched.device.copies()
    }

    /// Begins a read of one copy, at an offset in the data.
    pub(super) fn read_copy(&mut self, copy: usize, op: OpId, offset: u64, to: Slice) {
        let (offset, action) = (self.data_start + offset, Action::Read(to));
        self.watched.device.read_copy(copy, Operation { token: op.0, offset, action });
    }

    /// Begins a write of data to copies that are wrong, at an offset in the data.
    pub(super) fn mend(&mut self, wrong: Halves, op: OpId, offset: u64, from: Slice) {
        let (offset, action) = (self.data_start + offset, Action::Write { from, durable: false });
        self.watched.device.mend(wrong, Operation { token: op.0, offset, action });
    }

    /// Moves the completions since the last call into `out`.
    #[inline]
    pub(super) fn poll(&mut self, out: &mut Vec<Completion>) {
        self.watched.device.poll(out);
    }

    /// Returns the time by which the device must be polled again.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.watched.device.next_due()
    }

    /// Sets the timeout of the device's network operations.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.watched.device.set_timeout(timeout);
    }

    /// Returns the processor time that the device has spent busy-waiting.
    pub(crate) fn spun(&self) -> Duration {
        self.watched.device.spun()
    }
}

#[cfg(test)]
mod tests {
    use floe_device::MemoryDevice;

    use super::*;

    #[test]
    fn an_operation_that_a_device_does_not_support_is_no_failure() {
        let mut watched = Watched::new("device".into(), Box::new(MemoryDevice::new(4096)));
        let faults = [
            (io::ErrorKind::Unsupported, Fault::Unsupported),
            (io::ErrorKind::StorageFull, Fault::NoSpace),
            (io::ErrorKind::TimedOut, Fault::Io),
        ];
        for (kind, fault) in faults {
            assert_eq!(watched.note(&Err(kind.into())), Err(fault));
        }
        assert_eq!(watched.note(&Ok(())), Ok(()));
        assert_eq!(watched.errors(), 2);
    }
}

#[cfg(test)]
mod device_tests {
    use floe_device::{MemoryDevice, Pool};

    use super::*;
    use crate::geometry::SECTOR_BYTES;

    #[test]
    fn data_lies_behind_the_reserved_bytes() {
        let mut device = CacheDevice::new(Box::new(MemoryDevice::new(4 * SECTOR_BYTES)));
        device.put_data_at(2 * SECTOR_BYTES);
        let pool = Pool::new(0);
        let (data, read) =
            (pool.allocate(SECTOR_BYTES as usize), pool.allocate(SECTOR_BYTES as usize));
        data.whole().copy_from(&[7; SECTOR_BYTES as usize]);
        device.begin(OpId(1), SECTOR_BYTES, Action::Write { from: data.whole(), durable: false });
        device.begin_at(2, 3 * SECTOR_BYTES, Action::Read(read.whole()));
        let mut done = Vec::new();
        device.poll(&mut done);
        assert_eq!(done.iter().map(|done| done.token).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(read.whole().to_vec(), data.whole().to_vec());
    }
}
