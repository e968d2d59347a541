//! The cache device of a tier: data begins at an offset, the journal's pages anywhere.

use std::time::{Duration, Instant};

use floe_device::{Action, Completion, Device, Halves, Operation, Slice};

use crate::order::OpId;
use crate::tiers::watched::Watched;

/// The cache device of a tier.
pub(crate) struct CacheDevice {
    pub(super) watched: Watched,
    /// Offset of the data, in bytes.
    data_start: u64,
}

impl CacheDevice {
    /// Returns a device with data from its first byte on.
    pub(super) fn new(device: Box<dyn Device>) -> Self {
        Self { watched: Watched::new("cache device".into(), device), data_start: 0 }
    }

    /// Reserves so many bytes before the data.
    pub(super) fn put_data_at(&mut self, bytes: u64) {
        self.data_start = bytes;
    }

    /// Begins an operation of the cache, at an offset in the data.
    #[inline]
    pub(super) fn begin(&mut self, op: OpId, offset: u64, action: Action) {
        self.begin_at(op.0, self.data_start + offset, action);
    }

    /// Begins an operation at an offset on the device.
    #[inline]
    pub(super) fn begin_at(&mut self, token: u64, offset: u64, action: Action) {
        self.watched.device.submit(Operation { token, offset, action });
    }

    /// Returns the copies that can be read one by one.
    pub(super) fn copies(&self) -> Halves {
        self.watched.device.copies()
    }

    /// Begins a read of one copy, from an offset in the data.
    pub(super) fn read_copy(&mut self, copy: usize, op: OpId, offset: u64, to: Slice) {
        let (offset, action) = (self.data_start + offset, Action::Read(to));
        self.watched.device.read_copy(copy, Operation { token: op.0, offset, action });
    }

    /// Begins a write of data that these copies lack, at an offset in the data.
    pub(super) fn mend(&mut self, wrong: Halves, op: OpId, offset: u64, from: Slice) {
        let (offset, action) = (self.data_start + offset, Action::Write { from, durable: false });
        self.watched.device.mend(wrong, Operation { token: op.0, offset, action });
    }

    /// Moves the ended operations into `out`.
    #[inline]
    pub(super) fn poll(&mut self, out: &mut Vec<Completion>) {
        self.watched.device.poll(out);
    }

    /// Returns the latest time of the next poll.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.watched.device.next_due()
    }

    /// Bounds the time that the device waits for others.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.watched.device.set_timeout(timeout);
    }

    /// Returns the processor time spent busy-waiting.
    pub(crate) fn spun(&self) -> Duration {
        self.watched.device.spun()
    }
}

#[cfg(test)]
mod tests {
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
