//! Ends the server.

use floe_block::Kind;

use super::super::closing::Closing;
use super::super::dirty::Dirty;
use super::super::messages::{Command, Notice, Problem};
use super::super::offer::facts;
use super::super::setup::ServeError;
use super::core::{Control, Wait};
use super::opening::beside_the_end;
use crate::admin::{Reply, Trouble};
use crate::notify;
use crate::status::{LostStatus, Snapshot};

/// Takes no new requests, lets those under way finish, makes durable what was written (in a cache
/// that ends with the program, by bringing it to the backing devices), and tells the acceptor how
/// that went. There is no undo: each step is taken, also after one that failed.
///
/// # Errors
/// When the last flush leaves dirty data behind, or a thread does not answer.
pub(super) fn shutdown(mut control: Control) -> Result<Closing, ServeError> {
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
    let quiet = control.ask_all(Wait::Long, || Command::End).map(drop);
    let flushed = control.flush(Wait::Long, control.offer.ids(), Kind::Flush);
    let resting = control.ask_all(Wait::Long, || Command::Rest).map(drop);
    let noted = control.ask_all(Wait::Long, || Command::NoteRest).map(drop);
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

/// Data that cannot be read any more, if there is any.
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
