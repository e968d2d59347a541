//! The mirror of a failover pair, which ends its server instead of reporting a failure.
//!
//! A cache whose device fails is retired, and requests bypass it. The other server of the pair
//! could not know that. It would still have the dirty data, and might serve it although the image
//! has newer data. So this server's turn ends before the cache sees an error, if the mirror fails
//! while the local half is out of sync, while another server has the mirror, or while its
//! generation cannot be raised. The server with the newest half goes on.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use floe_device::{
    Completion, Device, Extent, Halves, Identity, Judge, MirrorWatch, OpenError, Operation, Pool,
    Ring,
};

use super::Turn;
use crate::volume::DeviceSource;

/// A mirror that has one half on this machine, as a cache device of a failover pair.
#[derive(Debug)]
pub struct LastHalf {
    mirror: Arc<dyn DeviceSource>,
    /// The name of the mirror half on this machine.
    local: String,
    turn: Arc<Turn>,
}

impl LastHalf {
    /// Wraps a mirror so that its failures end this server's turn, unless only the local half has
    /// failed.
    pub fn new(mirror: Arc<dyn DeviceSource>, local: String, turn: Arc<Turn>) -> Self {
        Self { mirror, local, turn }
    }
}

impl DeviceSource for LastHalf {
    fn size_bytes(&self) -> u64 {
        self.mirror.size_bytes()
    }

    fn identity(&self) -> Identity {
        self.mirror.identity()
    }

    fn name(&self) -> String {
        self.mirror.name()
    }

    fn refresh(&self) -> io::Result<u64> {
        self.mirror.refresh()
    }

    fn mirror(&self) -> Option<MirrorWatch> {
        self.mirror.mirror()
    }

    fn open(&self, ring: &Ring, pool: &Pool) -> Result<Box<dyn Device>, OpenError> {
        let device = self.mirror.open(ring, pool)?;
        let (watch, local) = (self.mirror.mirror(), self.local.clone());
        Ok(Box::new(LastHalfDevice { device, watch, local, turn: Arc::clone(&self.turn) }))
    }
}

struct LastHalfDevice {
    device: Box<dyn Device>,
    watch: Option<MirrorWatch>,
    local: String,
    turn: Arc<Turn>,
}

impl LastHalfDevice {
    /// Returns whether an error comes from the local half alone. The cache treats it like the error
    /// of a single disk.
    fn is_local(&self) -> bool {
        let Some(status) = self.watch.as_ref().and_then(MirrorWatch::status) else { return true };
        let in_sync = |name: &str| {
            status.halves.iter().any(|half| half.name == name && half.state == "in-sync")
        };
        in_sync(&self.local) && !status.fenced && status.witness_error.is_none()
    }
}

impl Device for LastHalfDevice {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn submit(&mut self, operation: Operation) {
        self.device.submit(operation);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let before = done.len();
        self.device.poll(done);
        let failed = done[before..].iter().filter_map(|it| it.result.as_ref().err());
        // No mirror can write zeros faster than data.
        let mut failed = failed.filter(|error| error.kind() != io::ErrorKind::Unsupported);
        if let Some(error) = failed.next().filter(|_| !self.is_local()) {
            tracing::error!(%error, "the mirror fails without its half on this machine");
            self.turn.end("no half of the mirror that is in sync can be used");
        }
    }

    fn copies(&self) -> Halves {
        self.device.copies()
    }

    fn read_copy(&mut self, copy: usize, operation: Operation) {
        self.device.read_copy(copy, operation);
    }

    fn may_differ(&self, range: Range<u64>) -> bool {
        self.device.may_differ(range)
    }

    fn mend(&mut self, wrong: Halves, operation: Operation) {
        self.device.mend(wrong, operation);
    }

    fn set_judge(&mut self, judge: Option<Arc<dyn Judge>>) {
        self.device.set_judge(judge);
    }

    fn set_size(&mut self, bytes: u64) -> io::Result<()> {
        self.device.set_size(bytes)
    }

    fn allocation(&mut self, range: Range<u64>, extents: &mut Vec<Extent>) {
        self.device.allocation(range, extents);
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.device.set_timeout(timeout);
    }

    fn spun(&self) -> Duration {
        self.device.spun()
    }

    fn next_due(&self) -> Option<Instant> {
        self.device.next_due()
    }
}
