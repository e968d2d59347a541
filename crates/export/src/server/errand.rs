//! What the front desk has asked its workers to do, and what it does when all have reported.

use floe_block::VolumeId;

use super::aside::Aside;
use super::letter::{Outcome, Problem};
use super::restack::Step;
use super::volume::Volume;
use crate::status::Snapshot;

/// Who is told how an errand went.
pub(super) type Admin = u32;

/// What follows when all workers asked have reported.
#[derive(Debug, Clone)]
pub(super) enum Then {
    /// Tell how things are.
    Status { admin: Admin },
    /// The same as metrics.
    Metrics { admin: Admin },
    /// Tell of the volumes only.
    Volumes { admin: Admin },
    /// Say in the log what is still dirty.
    SayDirty,
    /// Tell that all is flushed.
    Flushed { admin: Admin },
    /// A step that ran aside is done; nobody waits for it any more once the server ends.
    Aside { admin: Option<Admin>, what: Aside },
    /// The devices of a volume to come are open: add it, or close them again.
    Opened { admin: Admin, volume: Volume },
    /// They have been closed again: tell why.
    Closed { admin: Admin, problem: String },
    /// Make durable that nothing is left of another volume of its number.
    Added { admin: Admin, volume: Volume },
    /// Write it down, and offer it.
    Cleared { admin: Admin, ids: Vec<VolumeId>, volume: Volume },
    /// How many clients use a volume that is to go is known.
    Counted { admin: Admin, id: VolumeId, force: bool },
    /// No client uses the volume any more: flush it.
    Retired { admin: Admin, id: VolumeId },
    /// It is flushed: forget it. Or it could not be: offer it again.
    Drained { admin: Admin, id: VolumeId },
    /// It is forgotten in this tier: the next one is next.
    Removed { removal: Removal, tier: usize },
    /// A volume has grown: offer it so.
    Resized { admin: Admin, id: VolumeId, bytes: u64 },
    /// A tier has come so far on its way in or out.
    Tier(Step),
    /// Tell of the tiers only.
    Tiers { admin: Admin },
    /// The cache device is used again.
    Restored { admin: Admin },
    /// What became old meanwhile is forgotten durably.
    Remembered { admin: Admin },
    /// What is dirty when the end begins is known: clients are told to end.
    FirstLook,
    /// All clients have their answers: the last flush is next.
    Quiet,
    /// That has ended.
    LastFlush,
    /// Nothing is under way any more.
    Resting,
    /// What is dirty can be told from something else at the next start.
    Noted,
    /// What was left dirty is known: the end.
    LastLook,
}

/// A volume that is being forgotten.
#[derive(Debug, Clone)]
pub(super) struct Removal {
    pub(super) admin: Admin,
    pub(super) id: VolumeId,
    /// Why it was not even offered, if it was not: what is told in the end.
    pub(super) refused: Option<String>,
}

/// Something asked of one worker or more.
#[derive(Debug)]
pub(super) struct Errand {
    /// Reports that have not come.
    pub(super) left: usize,
    /// The first problem reported.
    pub(super) problem: Option<Problem>,
    /// By worker, where it was asked for.
    pub(super) snapshots: Vec<(usize, Snapshot)>,
    pub(super) added: Option<Vec<VolumeId>>,
    pub(super) prepared: Option<Box<Volume>>,
    pub(super) then: Then,
}

impl Errand {
    pub(super) fn new(left: usize, then: Then) -> Self {
        Self { left, problem: None, snapshots: Vec::new(), added: None, prepared: None, then }
    }

    /// Takes a report in; says whether it was the last one.
    pub(super) fn reported(&mut self, worker: usize, result: Result<Outcome, Problem>) -> bool {
        match result {
            Ok(Outcome::Nothing) => {}
            Ok(Outcome::Snapshot(snapshot)) => self.snapshots.push((worker, *snapshot)),
            Ok(Outcome::Added(ids)) => {
                debug_assert!(
                    self.added.as_ref().is_none_or(|before| *before == ids),
                    "workers number alike"
                );
                self.added = Some(ids);
            }
            Ok(Outcome::Prepared(volume)) => self.prepared = Some(volume),
            Err(problem) => {
                self.problem.get_or_insert(problem);
            }
        }
        self.left -= 1;
        self.left == 0
    }

    /// What the workers handed in, in their order.
    pub(super) fn into_snapshots(self) -> Vec<Snapshot> {
        let mut snapshots = self.snapshots;
        snapshots.sort_by_key(|(worker, _)| *worker);
        snapshots.into_iter().map(|(_, snapshot)| snapshot).collect()
    }
}
