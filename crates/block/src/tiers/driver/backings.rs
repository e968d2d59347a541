//! The backing devices of the volumes, where there is no tier below.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use floe_device::{Action, Completion, Device, Extent, Operation};

use crate::engine::request::Fault;
use crate::geometry::VolumeId;
use crate::order::OpId;
use crate::tiers::watched::Watched;

/// The backing devices of a tier's volumes.
///
/// Invariant: a volume with something under way is there.
#[derive(Default)]
pub(super) struct Backings {
    /// By volume; empty where there is a tier below.
    devices: Vec<Option<Watched>>,
    done: Vec<Completion>,
}

impl Backings {
    /// Sets the backing device of a volume; `name` is the volume's, for the log.
    pub(super) fn add(&mut self, id: VolumeId, name: &str, device: Box<dyn Device>) {
        self.put(id, Some(Watched::new(format!("backing device of volume {name}"), device)));
    }

    /// Sets the backing device of a volume, or none.
    pub(super) fn put(&mut self, id: VolumeId, backing: Option<Watched>) {
        let slot = id.0 as usize;
        self.devices.resize_with(self.devices.len().max(slot + 1), || None);
        self.devices[slot] = backing;
    }

    /// Removes the backing device of a volume, and returns it.
    pub(super) fn take(&mut self, id: VolumeId) -> Option<Watched> {
        self.devices.get_mut(id.0 as usize)?.take()
    }

    /// Begins an operation.
    ///
    /// # Panics
    /// When the volume has no backing device.
    pub(super) fn begin(&mut self, id: VolumeId, op: OpId, offset: u64, action: Action) {
        let backing = self.devices[id.0 as usize].as_mut();
        let device = &mut backing.expect("a volume with something under way is there").device;
        device.submit(Operation { token: op.0, offset, action });
    }

    /// Passes the ended operations of all devices to `ended`.
    pub(super) fn poll(&mut self, mut ended: impl FnMut(OpId, Result<(), Fault>)) {
        for backing in self.devices.iter_mut().flatten() {
            backing.device.poll(&mut self.done);
            for Completion { token, result } in self.done.drain(..) {
                ended(OpId(token), backing.note(&result));
            }
        }
    }

    /// Returns the failed operations of all devices.
    pub(super) fn errors(&self) -> u64 {
        self.devices.iter().flatten().map(Watched::errors).sum()
    }

    /// Returns the latest time of the next poll.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.devices.iter().flatten().filter_map(|backing| backing.device.next_due()).min()
    }

    /// Bounds the time that all devices wait for others.
    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        for backing in self.devices.iter_mut().flatten() {
            backing.device.set_timeout(timeout);
        }
    }

    /// Returns the processor time that the devices have spent busy-waiting.
    pub(super) fn spun(&self) -> Duration {
        self.devices.iter().flatten().map(|backing| backing.device.spun()).sum()
    }

    /// Tells the backing device of a volume, if there is one, its new size.
    ///
    /// # Errors
    /// When the device does not accept it.
    pub(super) fn set_size(&mut self, id: VolumeId, bytes: u64) -> io::Result<()> {
        match self.devices.get_mut(id.0 as usize) {
            Some(Some(backing)) => backing.device.set_size(bytes),
            _ => Ok(()),
        }
    }

    /// Adds the extents that the backing device of a volume, if there is one, reports for a range.
    pub(super) fn allocation(&mut self, id: VolumeId, range: Range<u64>, out: &mut Vec<Extent>) {
        if let Some(Some(backing)) = self.devices.get_mut(id.0 as usize) {
            backing.device.allocation(range, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use floe_device::{MemoryDevice, Pool};

    use super::*;

    #[test]
    fn operations_of_all_volumes_end_with_the_faults_of_their_devices() {
        let mut backings = Backings::default();
        for (id, bytes) in [(VolumeId(2), 8192), (VolumeId(0), 4096)] {
            backings.add(id, "test", Box::new(MemoryDevice::new(bytes)));
        }
        let pool = Pool::new(0);
        for (op, id) in [(OpId(1), VolumeId(0)), (OpId(2), VolumeId(2))] {
            let read = Action::Read(pool.allocate(4096).whole());
            backings.begin(id, op, 4096, read); // beyond the end of the smaller one
        }
        let mut ended = Vec::new();
        backings.poll(|op, result| ended.push((op.0, result.is_ok())));
        assert_eq!((ended, backings.errors()), (vec![(1, false), (2, true)], 1));
        assert!(backings.take(VolumeId(1)).is_none() && backings.take(VolumeId(2)).is_some());
        assert!(backings.take(VolumeId(2)).is_none(), "it was taken");
    }
}
