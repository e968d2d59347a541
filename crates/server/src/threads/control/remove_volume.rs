//! Removes a volume from the running server.

use floe_block::{Kind, VolumeId};

use super::super::messages::{Command, Problem};
use super::super::offer::present;
use super::core::{Control, Wait};
use crate::admin::{Reply, Trouble};
use crate::kept::Keeper;
use crate::status::ByProtocol;

/// Sends the clients of a volume away, flushes it, and forgets it. A volume that cannot be flushed
/// stays. Once it has begun to go the server ends after it.
pub(super) fn remove_volume(
    control: &mut Control,
    name: &str,
    force: bool,
) -> Result<Reply, Reply> {
    let offered = present(control.offer.all(), name)?;
    if offered.volume.reach.is_local() {
        let problem = format!("volume {name:?} is attached to this machine, and stays as it is");
        return Err(Reply::trouble(Trouble::Conflict, problem));
    }
    let (id, ids) = (offered.id, offered.ids.clone());
    let snapshots = control.snapshots(Wait::UntilEnd).map_err(Problem::into_reply)?;
    let mut clients = ByProtocol::default();
    snapshots.iter().for_each(|thread| clients += &thread.users(id));
    if clients.total() > 0 && !force {
        let uses = if clients.total() == 1 { "client uses" } else { "clients use" };
        let problem = format!(
            "{} {uses} volume {name:?} ({clients}); --force (?force) takes it from them",
            clients.total()
        );
        return Err(Reply::trouble(Trouble::Conflict, problem));
    }
    if clients.total() > 0 {
        tracing::warn!(volume = %name, %clients, "taking the volume from clients by force");
    }

    // Clients do not see it any more, and those that use it are sent away; workers break off with
    // clients that hang.
    set_leaving(control, id, true);
    let cleaned = control
        .ask_all(Wait::Long, || Command::RetireVolume(id))
        .and_then(|_| control.flush(Wait::Long, vec![id], Kind::Drain))
        .and_then(|()| forget(control, 0, id));
    if let Err(problem) = cleaned {
        // Undo: it is offered again.
        set_leaving(control, id, false);
        let problem = format!("the volume stays, since it could not be flushed: {problem}");
        return Err(Reply::trouble(Trouble::Failed, problem));
    }

    // One tier after the other: a worker that still has it in one may ask any other for what is in
    // the tier below.
    for tier in 1..control.tiers.len() {
        forget(control, tier, id).map_err(|problem| {
            let problem = format!(
                "the volume is not served any more, but tier {tier} still has it: {problem}"
            );
            Reply::trouble(Trouble::Failed, problem)
        })?;
    }
    let removed = control.offer.change(|volumes| volumes.retain(|offered| offered.id != id));
    removed.expect("a part of what can be offered can be");
    tracing::info!(volume = %name, "volume removed");
    match control.write_down(&ids, Keeper::remove) {
        Ok(()) => Ok(Reply::Done("removed")),
        Err(problem) => {
            Err(Reply::trouble(Trouble::Failed, format!("the volume is removed, but {problem}")))
        }
    }
}

/// Makes all workers forget a volume in one tier.
pub(super) fn forget(control: &mut Control, tier: usize, volume: VolumeId) -> Result<(), Problem> {
    control.ask_all(Wait::Long, || Command::RemoveVolume { tier, volume }).map(drop)
}

fn set_leaving(control: &mut Control, id: VolumeId, leaving: bool) {
    let changed = control.change_volume(id, |offered| offered.leaving = leaving);
    changed.expect("a part of what can be offered can be");
    control.publish();
}
