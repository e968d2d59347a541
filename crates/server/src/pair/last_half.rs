//! The mirror of a failover pair, which ends its server instead of reporting a failure.
//!
//! A cache whose device fails is retired, and requests bypass it. The other server of the pair
//! could not know that. It would still have the dirty data, and might serve it although the image
//! has newer data. So this server's turn ends before the cache sees an error, if the mirror fails
//! while the local half is out of sync, while another server has the mirror, or while its
//! generation cannot be raised. The server with the newest half goes on.

use std::io;
use std::sync::Arc;

use floe_device::{Completion, Device, MirrorWatch, delegate_device};

use super::Turn;
use crate::volume::{DeviceSource, WrappedSource};

/// Wraps a mirror that has one half on this machine, called `local`: its failures end this server's
/// turn, unless only the local half has failed.
pub fn last_half(
    mirror: Arc<dyn DeviceSource>,
    local: String,
    turn: Arc<Turn>,
) -> Arc<dyn DeviceSource> {
    let watch = mirror.mirror();
    let wrap = move |device: Box<dyn Device>| -> Box<dyn Device> {
        let (watch, local) = (watch.clone(), local.clone());
        Box::new(LastHalfDevice { device, watch, local, turn: Arc::clone(&turn) })
    };
    Arc::new(WrappedSource::new(mirror, wrap))
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
    delegate_device!(this => this.device; size_bytes submit copies read_copy may_differ mend);
    delegate_device!(this => this.device; set_judge set_size allocation set_timeout spun next_due);

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
}
