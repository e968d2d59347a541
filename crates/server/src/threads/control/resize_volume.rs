//! Lets a volume of the running server grow.

use std::sync::Arc;

use super::super::messages::{Command, Event, Problem};
use super::super::offer::present;
use super::core::{Control, Wait};
use super::opening::beside;
use crate::admin::{Reply, Trouble};
use crate::volume::Volume;

/// Has the control thread told when the volume's device may have another size.
pub(super) fn watch(control: &Control, volume: &Volume) {
    let (sender, name) = (control.inbox.sender.clone(), volume.name.clone());
    let notify = move || {
        let _ = sender.send(Event::DeviceChanged { volume: name.clone() }); // unless it has ended
    };
    volume.backing.on_change(Box::new(notify));
}

/// Lets a volume grow with its device, if it was as large as that. Others were given their size.
pub(super) fn follow_device(control: &mut Control, name: &str) {
    let Ok(offered) = present(control.offer.all(), name) else { return };
    let (before, backing) = (offered.bytes, Arc::clone(&offered.volume.backing));
    if offered.volume.reach.is_local() || backing.size_bytes() != before {
        return;
    }
    match beside(control, move || backing.refresh()) {
        Ok(Ok(bytes)) if bytes > before => match resize_volume(control, name, None) {
            Ok(_) => {}
            Err(problem) => tracing::warn!(volume = name, ?problem, "volume not resized"),
        },
        Ok(Ok(bytes)) if bytes < before => {
            tracing::error!(volume = name, bytes, before, "the backing device has shrunk");
        }
        Ok(Ok(_)) | Err(_) => {} // another change, or the end
        Ok(Err(error)) => tracing::warn!(volume = name, %error, "backing device not measured"),
    }
}

/// Lets a volume have the size its device has by now, or `wanted`: in the workers first, then for
/// clients.
pub(super) fn resize_volume(
    control: &mut Control,
    name: &str,
    wanted: Option<u64>,
) -> Result<Reply, Reply> {
    let offered = present(control.offer.all(), name)?;
    if offered.volume.reach.is_local() {
        let problem = format!("volume {name:?} is attached to this machine, and stays as it is");
        return Err(Reply::trouble(Trouble::Conflict, problem));
    }
    let (id, ids, before) = (offered.id, offered.ids.clone(), offered.bytes);
    let backing = Arc::clone(&offered.volume.backing);
    let refuse = |problem: String| Reply::trouble(Trouble::Conflict, problem);
    let measured = beside(control, move || backing.refresh()).map_err(Problem::into_reply)?;
    let there = measured.map_err(|error| refuse(error.to_string()))?;
    let bytes = wanted.unwrap_or(there);
    if bytes > there {
        return Err(refuse(format!(
            "the backing device has {there} bytes, not {bytes}: enlarge it first"
        )));
    }
    if !bytes.is_multiple_of(512) {
        return Err(refuse(format!("{bytes} bytes are no size: it has to be a multiple of 512")));
    }
    if bytes < before {
        return Err(refuse(format!(
            "volume {name:?} has {before} bytes: it can grow, but not shrink to {bytes}"
        )));
    }
    // There is no undo: a volume that has grown in some workers reads as its device does, and its
    // clients see the new size only in the end.
    let grown = control.ask_all(Wait::Long, || Command::ResizeVolume(id, bytes));
    grown.map_err(Problem::into_reply)?;
    let failed = |problem: String| Reply::trouble(Trouble::Failed, problem);
    control.write_down(&ids, |keeper, id| keeper.resize(id, there)).map_err(failed)?;
    let offer = control.change_volume(id, |offered| offered.bytes = bytes);
    offer.map_err(|error| failed(error.to_string()))?;
    tracing::info!(volume = name, bytes, "volume resized");
    Ok(Reply::Done("resized"))
}
