//! What the front desk and the workers write to each other.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use floe_block::{Fault, Kind, VolumeId};

use super::config::ServeError;
use super::footing::BeginningTier;
use super::maker::TierRefused;
use super::tier::{Tier, TierKey};
use super::volume::{DeviceSource, Volume};
use crate::admin::PathRefused;
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
    /// Open the device of a tier to come, and report under this number.
    Open { errand: u32, tier: Box<BeginningTier> },
    /// Another worker has found the cache device of a tier failing: stop using it.
    Degrade { tier: TierKey },
    /// The journal of a tier cannot be written: go on past it.
    Bypass {
        tier: TierKey,
        /// Some of its dirty data cannot be brought down.
        stuck: bool,
    },
    /// Nothing that a tier has counts any more: go on past it altogether.
    Retire { tier: TierKey },
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
    /// Take a step with a tier that comes or goes.
    Tier(TierDeed),
    /// Begin nothing that nobody asks for any more, and wait until nothing is under way.
    Rest,
    /// Note the checksums of what is dirty, and wait until that is done: nothing is under way
    /// anywhere.
    NoteRest,
    /// Take no more requests, and wait until those under way are answered.
    End,
}

/// A step of a tier on its way in or out; its place is told by the tier above it.
#[derive(Debug, Clone)]
pub(super) enum TierDeed {
    /// Begin nothing below this tier any more, and wait until nothing is under way there.
    Shut { above: TierKey },
    /// Put the tier below this one whose device is open, with the volumes by both tiers' ids, and
    /// go on.
    PutIn { above: TierKey, ids: Arc<[(VolumeId, VolumeId)]> },
    /// Close that device again, and go on.
    Dismiss { above: TierKey },
    /// Let so much of a tier be dirty.
    LimitDirty { tier: TierKey, bytes: u64 },
    /// Have the tier below this one bring down all it has of a volume, which this one has by this
    /// id.
    Empty { above: TierKey, volume: VolumeId },
    /// Wait until nothing is under way in the tier below this one, and see that it has nothing to
    /// bring down.
    Rest { above: TierKey },
    /// Take out the tier below this one, and go on.
    TakeOut { above: TierKey },
    /// Keep the tier below this one, let so much of it be dirty again, and go on.
    Keep { above: TierKey, bytes: u64 },
}

/// From a worker to the front desk.
#[derive(Debug)]
pub(super) enum News {
    /// A deed is done, or cannot be.
    Done { worker: usize, errand: u32, result: Result<Outcome, Problem> },
    /// The cache device of a tier is failing and has been given up.
    Degraded { tier: TierKey },
    /// The journal of a tier cannot be written.
    JournalLost { tier: TierKey },
    /// Nothing is dirty any more in a worker's part of a tier whose journal cannot be written.
    Emptied { worker: usize, tier: TierKey },
    /// Some of it could not be brought down.
    Blocked { tier: TierKey },
    /// A worker begins to refuse requests for what its part of a tier has, or no longer does.
    Refusing { worker: usize, tier: TierKey, refusing: bool },
    /// The only copy of a run of a volume, by the tier's id of it, is gone.
    DataLost { tier: TierKey, volume: VolumeId, run: Range<u64> },
    /// A tier to come has been made, or cannot be.
    TierMade(Result<Box<Tier>, TierRefused>),
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
    /// A volume whose device is open.
    Prepared(Box<Volume>),
}

/// Why a deed could not be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Problem {
    #[error("{0}")]
    Fault(#[from] Fault),
    #[error("{0}")]
    Path(#[from] PathRefused),
    #[error("{0}")]
    Other(String),
}
