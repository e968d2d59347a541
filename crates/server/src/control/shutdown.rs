//! The shutdown, and the preparation of an upgrade.

use std::sync::Arc;

use floe_block::{Companion, RequestKind, VolumeId};

use super::{Control, Wait, beside, beside_the_end};
use crate::admin::{Reply, Trouble};
use crate::control::board::Dirty;
use crate::messages::{Notice, Problem, WorkerCommand};
use crate::notify;
use crate::offer::{Offered, facts};
use crate::persistent::{StartError, SuperblockWriter};
use crate::setup::ServeError;
use crate::status::{LostStatus, Snapshot};
use crate::tier::{Tier, others};
use crate::volume::DeviceSource;

/// Shuts the server down, and reports the result to the acceptor.
///
/// Workers take no new requests, finish those under way, and make written data durable; a volatile
/// cache writes it to the backing devices. There is no undo: each step is taken even if one before
/// it failed.
///
/// # Errors
/// When the last flush leaves dirty data behind, or a thread does not answer.
pub(crate) fn shutdown(mut control: Control) -> Result<Closing, ServeError> {
    if !control.end.replaces {
        notify::stopping();
    }
    if let Ok(snapshots) = control.snapshots(Wait::Long) {
        let Dirty { held_bytes, .. } = Dirty::of(&snapshots);
        tracing::info!(dirty_bytes = Dirty::of(&snapshots).bytes(), held_bytes, "ending");
    }
    if !control.end.replaces && !control.local.is_empty() {
        let local = control.local.clone();
        // Workers serve what the kernel writes now.
        let stopped = beside_the_end(&mut control, move || local.stop());
        stopped.unwrap_or_else(|problem| tracing::warn!(%problem, "a local device stays"));
    }
    // Clients have all their answers, or are broken off with. A thread that does not answer does
    // not keep the others from making durable what they have.
    let quiet = control.ask_all(Wait::Long, || WorkerCommand::End).map(drop);
    let flushed = control.flush(Wait::Long, control.offer.ids(), RequestKind::Flush);
    let resting = control.ask_all(Wait::Long, || WorkerCommand::Rest).map(drop);
    let noted = control.ask_all(Wait::Long, || WorkerCommand::NoteRest).map(drop);
    let snapshots = control.snapshots(Wait::Long);
    let looked = snapshots.as_ref().map(drop).map_err(Problem::clone);
    let ended = [flushed, quiet, resting, noted, looked].into_iter().fold(Ok(()), Result::and);

    let snapshots = snapshots.unwrap_or_default();
    let dirty = Dirty::of(&snapshots);
    let lost = lost(&control, &snapshots);
    control.note_unnoted();
    let (dirty_bytes, held_bytes) = (dirty.bytes(), dirty.held_bytes);
    tracing::info!(dirty_bytes, held_bytes, "ended");
    let reply = match (&ended, &lost) {
        (Ok(()), Some(lost)) => {
            Reply::trouble(Trouble::Failed, format!("the server has ended, but {lost}"))
        }
        (Ok(()), None) => Reply::Done("stopped"),
        (Err(problem), _) => {
            Reply::trouble(Trouble::Failed, format!("the last flush failed: {problem}"))
        }
    };
    control.acceptor.post(Notice::Ended(reply));
    if let Err(Problem::Silent { worker, .. }) = ended {
        return Err(ServeError::Hangs(worker)); // nobody knows how much is dirty
    }
    ended.map_err(|problem| ServeError::LastFlush {
        problem: problem.to_string(),
        dirty_bytes,
        held_bytes,
    })?;
    let Control { tiers, offer, .. } = control;
    Ok(Closing::new(tiers, offer.all(), &dirty, lost))
}

/// Describes data that is lost or can be read only from a failing device; `None` if there is none.
fn lost(control: &Control, snapshots: &[Snapshot]) -> Option<String> {
    let lost = LostStatus::of(snapshots, &facts(control.offer.all()));
    if lost.bytes > 0 {
        return Some(lost.to_string());
    }
    let tiers = snapshots.iter().flat_map(Snapshot::tiers);
    let bytes: u64 = tiers.map(|(stats, _)| stats.refused_bytes).sum();
    (bytes > 0).then(|| {
        format!(
            "{} of dirty data are only on a cache device that fails: requests for them were \
             refused",
            floe_block::format_size(bytes)
        )
    })
}

/// Prepares an upgrade: checks that the new program accepts this server's settings, and that they
/// have the volumes and tiers that were added to the running server. Makes written data durable, so
/// that requests wait only briefly.
///
/// The server then shuts down normally, except that its local devices stay. The process executes
/// the new program with the same arguments, but for permissions to lose data. Requests to local
/// devices wait from the last answer of this program until the new one has opened the cache.
///
/// # Errors
/// The reply that refuses the upgrade. The server goes on.
pub(crate) fn make_ready(control: &mut Control) -> Result<(), Reply> {
    let check = control.config.check_program;
    let added = control.added();
    let checked = beside(control, move || check(&added)).map_err(Problem::into_reply)?;
    checked.map_err(|problem| {
        let problem = format!("the new program is not taken: {problem}");
        Reply::trouble(Trouble::Failed, problem)
    })?;
    let flushed = control.flush(Wait::UntilEnd, control.offer.ids(), RequestKind::Flush);
    flushed.map_err(|problem| problem.into_reply())
}

/// The last step of the shutdown, after all workers have stopped: it records the clean shutdown of
/// each intact persistent tier.
pub(crate) struct Closing {
    in_order: Vec<InOrder>,
    lost: Option<String>,
}

/// An intact persistent tier, and the backing devices of its volumes.
struct InOrder {
    writer: SuperblockWriter,
    backings: Vec<(VolumeId, Arc<dyn DeviceSource>)>,
    /// Peer tiers that hold dirty data.
    companions: Vec<Companion>,
    dirty_bytes: u64,
}

impl Closing {
    /// Selects the tiers whose clean shutdown is to be recorded. `dirty` is the dirty data at the
    /// end, and `lost` describes data that cannot be read any more.
    pub(crate) fn new(
        tiers: Vec<Tier>,
        volumes: &[Offered],
        dirty: &Dirty,
        lost: Option<String>,
    ) -> Self {
        let all = tiers.iter().zip(&dirty.tiers);
        let all: Vec<_> = all.map(|(tier, bytes)| tier.companion(*bytes > 0)).collect();
        let in_order = |(at, tier): (usize, Tier)| {
            let writer = tier
                .cache
                .writer
                .filter(|_| !tier.failing.degraded && !tier.failing.journal_lost)?;
            let backings = volumes.iter().map(|it| (it.ids[at], Arc::clone(&it.volume.backing)));
            let (backings, companions) = (backings.collect(), others(&all, at));
            let dirty_bytes = dirty.tiers.get(at).copied().unwrap_or_default();
            Some(InOrder { writer, backings, companions, dirty_bytes })
        };
        Self { in_order: tiers.into_iter().enumerate().filter_map(in_order).collect(), lost }
    }

    /// Describes data that cannot be read any more; `None` if there is none.
    pub(crate) fn lost(&self) -> Option<String> {
        self.lost.clone()
    }

    /// Records the clean shutdown in the tiers' superblocks.
    ///
    /// # Errors
    /// The first failure of a device; the other tiers' superblocks are written all the same.
    pub(crate) fn finish(self) -> Result<(), StartError> {
        let ended = self
            .in_order
            .into_iter()
            .map(|it| it.writer.end(&it.backings, Some(it.companions), it.dirty_bytes));
        ended.fold(Ok(()), Result::and)
    }
}
