//! Adds a volume to the running server.

use std::sync::Arc;

use floe_block::Kind;
use floe_device::Role;

use super::super::messages::{Command, Done, Problem};
use super::super::offer::{Offered, absent};
use super::core::{Control, Wait};
use super::opening::beside;
use super::remove_volume::forget;
use super::resize_volume::watch;
use crate::admin::{Addition, AllowedPaths, Reply, Trouble};
use crate::kept::without;
use crate::volume::{Reach, Volume};

/// Opens the device, adds the volume in all workers, writes it down, and offers it.
pub(super) fn add_volume(
    control: &mut Control,
    addition: Addition,
    paths: AllowedPaths,
) -> Result<Reply, Reply> {
    absent(control.offer.all(), &addition.name)?;
    let prepared = beside(control, move || prepare(addition, &paths));
    let volume = prepared.map_err(Problem::into_reply)?.map_err(|problem| match problem {
        Problem::Path(_) => problem.into_reply(),
        _ => Reply::trouble(Trouble::Input, problem.to_string()),
    })?;
    let offerable = control.offer.check(&volume);
    offerable.map_err(|error| Reply::trouble(Trouble::Input, error.to_string()))?;

    let ids: Vec<_> =
        control.tiers.iter().filter_map(|tier| Some(tier.keeper.as_ref()?.id())).collect();
    if let Some(state) = &control.config.state {
        let missing = without(state, std::slice::from_ref(&volume), &ids, |_| false);
        let missing =
            missing.map_err(|refusal| Reply::trouble(Trouble::Conflict, refusal.to_string()))?;
        missing.go_on();
    }

    // Every worker opens the device.
    let name = volume.name.clone();
    let open = || Command::OpenVolume { name: name.clone(), source: Arc::clone(&volume.backing) };
    if let Err(problem) = control.ask_all(Wait::UntilEnd, open) {
        // Undo: those that have it open close it. The first problem is what counts.
        let _ = control.ask_all(Wait::Long, || Command::CloseVolume { name: name.clone() });
        return Err(problem.into_reply());
    }

    // They add it, and number it alike.
    let added = control.ask_all(Wait::Long, || Command::AddVolume { name: name.clone() });
    let ids = match added.map_err(Problem::into_reply)?.pop() {
        Some(Done::Numbered(ids)) => ids,
        other => unreachable!("workers number the volume they add, not {other:?}"),
    };

    // The volume's own drain makes durable, in every tier, that nothing is left of another one of
    // its number. Then the tiers know of it.
    if control.is_persistent() {
        let drained = control.flush(Wait::UntilEnd, vec![ids[0]], Kind::Drain);
        let known = match drained {
            Ok(()) => control.write_down(&ids, |keeper, id| keeper.add(id, &volume)),
            Err(problem) => Err(problem.to_string()),
        };
        if let Err(problem) = known {
            // Undo: the workers forget it again.
            for tier in 0..control.tiers.len() {
                if let Err(second) = forget(control, tier, ids[0]) {
                    return Err(Reply::trouble(
                        Trouble::Failed,
                        format!(
                            "the volume is not served any more, but tier {tier} still has it: \
                             {second}"
                        ),
                    ));
                }
            }
            return Err(Reply::trouble(Trouble::Failed, problem));
        }
    }

    watch(control, &volume);
    let bytes = volume.backing.size_bytes();
    let offered = Offered { id: ids[0], ids, volume, bytes, leaving: false };
    let offer = control.offer.change(|volumes| volumes.push(offered));
    offer.map_err(|error| Reply::trouble(Trouble::Failed, error.to_string()))?;
    control.announce();
    tracing::info!(volume = %name, bytes, "volume added");
    Ok(Reply::Done("added"))
}

/// Makes the device ready, if the client may name it.
fn prepare(addition: Addition, paths: &AllowedPaths) -> Result<Volume, Problem> {
    let Addition { name, backing, read_only, description } = addition;
    paths.check_device(&backing)?;
    let source = backing.prepare(Role::Backing { read_only });
    let source = source.map_err(|error| Problem::Other(error.to_string()))?;
    paths.check_device(&backing)?; // a link may have been changed meanwhile
    let backing = Arc::new(source);
    Ok(Volume { name, description, backing, read_only, reach: Reach::Clients })
}
