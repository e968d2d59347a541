//! What the front desk and the workers write to each other.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use floe_block::{Fault, Kind, VolumeId};

use super::config::ServeError;
use super::volume::DeviceSource;
use crate::nbd::export::Exports;
use crate::status::Snapshot;

/// From the front desk to a worker.
#[derive(Debug)]
pub(super) enum Instruction {
    /// Serve this client.
    Welcome(OwnedFd),
    /// What is offered now: new clients see it, and those whose export is gone are sent away.
    Offer(Arc<Exports>),
    /// Do this, and report under this number.
    Do { errand: u32, deed: Deed },
    /// Another worker has found the cache device of a tier failing: stop using it.
    Degrade { tier: usize },
    /// Everything has come to its end.
    Stop,
}

/// What a worker is asked to do, and reports when it is done.
#[derive(Debug, Clone)]
pub(super) enum Deed {
    /// Tell how things are.
    Snapshot,
    /// Flush or drain a volume, all parts of it.
    Flush(VolumeId, Kind),
    /// Open the backing device of a volume to come.
    Open { name: String, source: Arc<dyn DeviceSource> },
    /// Add the volume whose device was opened.
    Add { name: String },
    /// Close that device again.
    Close { name: String },
    /// Wait until no client uses a volume that is not offered any more.
    Retire(VolumeId),
    /// Forget a volume that nobody uses and that is clean, in one tier.
    Remove { tier: usize, volume: VolumeId },
    /// A volume has grown to so many bytes.
    Resize(VolumeId, u64),
    /// Use the cache devices again.
    Restore,
    /// Begin nothing that nobody asks for any more, and wait until nothing is under way.
    Rest,
    /// Take no more requests, and wait until those under way are answered.
    End,
}

/// From a worker to the front desk.
#[derive(Debug)]
pub(super) enum News {
    /// A deed is done, or cannot be.
    Done { worker: usize, errand: u32, result: Result<Outcome, Problem> },
    /// The cache device of a tier is failing and has been given up.
    Degraded { tier: usize },
    /// The journal of a tier cannot be written.
    JournalLost { tier: usize },
    /// A worker cannot go on.
    Died(ServeError),
}

/// What came of a deed.
#[derive(Debug)]
pub(super) enum Outcome {
    Nothing,
    Snapshot(Box<Snapshot>),
    /// The numbers of a volume in the tiers, from the top.
    Added(Vec<VolumeId>),
}

/// Why a deed could not be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Problem {
    #[error("{0}")]
    Fault(#[from] Fault),
    #[error("{0}")]
    Other(String),
}
