//! Adds, removes, resizes and limits volumes of the running server, sets their shares of the tiers,
//! and the access to them.

use std::sync::Arc;
use std::time::Instant;

use floe_block::{CacheShare, RequestKind, VolumeId};
use floe_device::Role;

use super::{Control, Wait, beside};
use crate::admin::{Addition, AllowedPaths, AnaState, Reply, Trouble};
use crate::messages::{Done, Event, Problem, WorkerCommand};
use crate::offer::{Offered, absent, present};
use crate::persistent::{SuperblockWriter, refuse_as_volume, without};
use crate::status::ByProtocol;
use crate::total_limit::{TotalLimit, TotalLimitChange};
use crate::volume::{Reach, Volume, too_long};
use crate::volume_limit::{LimitChange, RequestLimit, VolumeLimit};
use crate::volume_share::{self, ShareChange, VolumeShare};

/// Adds a volume: opens its device, adds it in all workers, records it in the superblocks, and
/// offers it to clients.
pub(crate) fn add_volume(
    control: &mut Control,
    addition: Addition,
    paths: AllowedPaths,
) -> Result<Reply, Reply> {
    absent(control.offer.all(), &addition.name)?;
    if let Some(problem) = too_long(&addition.name).filter(|_| control.is_persistent()) {
        return Err(Reply::trouble(Trouble::Input, problem));
    }
    let prepared = beside(control, move || prepare(addition, &paths));
    let volume = prepared.map_err(Problem::into_reply)?.map_err(|problem| match problem {
        Problem::Path(_) => problem.into_reply(),
        _ => Reply::trouble(Trouble::Input, problem.to_string()),
    })?;
    let offerable = control.offer.check(&volume);
    offerable.map_err(|error| Reply::trouble(Trouble::Input, error.to_string()))?;
    check_share(control, &volume.name, volume.share)?;

    let ids: Vec<_> =
        control.tiers.iter().filter_map(|tier| Some(tier.cache.writer.as_ref()?.id())).collect();
    if let Some(state) = &control.config.state {
        let missing = without(state, std::slice::from_ref(&volume), &ids, &[], |_| false);
        let missing =
            missing.map_err(|refusal| Reply::trouble(Trouble::Conflict, refusal.to_string()))?;
        missing.go_on();
    }

    // Every worker opens the device.
    let name = volume.name.clone();
    let open =
        || WorkerCommand::OpenVolume { name: name.clone(), source: Arc::clone(&volume.backing) };
    if let Err(problem) = control.ask_all(Wait::UntilEnd, open) {
        // Undo: those that have it open close it. The first problem is what counts.
        let _ = control.ask_all(Wait::Long, || WorkerCommand::CloseVolume { name: name.clone() });
        return Err(problem.into_reply());
    }

    // They add it, and number it alike.
    let limit = Arc::new(VolumeLimit::new(volume.limit.clone()));
    let tier_bytes = control.tier_bytes();
    let shares: Arc<[CacheShare]> =
        tier_bytes.iter().map(|bytes| volume.share.of(*bytes)).collect();
    let add = || WorkerCommand::AddVolume {
        name: name.clone(),
        limit: Arc::clone(&limit),
        shares: Arc::clone(&shares),
    };
    let added = control.ask_all(Wait::Long, add);
    let ids = match added.map_err(Problem::into_reply)?.pop() {
        Some(Done::Numbered(ids)) => ids,
        other => unreachable!("workers number the volume they add, not {other:?}"),
    };

    // The volume's own drain makes durable, in every tier, that nothing is left of another one of
    // its number. Then the tiers know of it.
    if control.is_persistent() {
        let drained = control.flush(Wait::UntilEnd, vec![ids[0]], RequestKind::Drain);
        let known = match drained {
            Ok(()) => control.write_down(&ids, |writer, id| writer.add(id, &volume)),
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
    let RequestLimit { weight, clients, .. } = &volume.limit;
    control.total.set_weights(ids[0].0, *weight, clients.weights(), Instant::now());
    let bytes = volume.backing.size_bytes();
    let shares = shares.to_vec();
    let (clients, connections) = (control.offer.clients().clone(), volume.limit.connections);
    let offered =
        Offered { id: ids[0], ids, volume, bytes, limit, clients, shares, leaving: false };
    let offer = control.offer.change(|volumes| volumes.push(offered));
    offer.map_err(|error| Reply::trouble(Trouble::Failed, error.to_string()))?;
    limit_connections(control, &name, connections);
    control.announce();
    tracing::info!(volume = %name, bytes, "volume added");
    Ok(Reply::Done("added"))
}

/// Opens the backing device of a volume to add, if the admin client may name it.
fn prepare(addition: Addition, paths: &AllowedPaths) -> Result<Volume, Problem> {
    let Addition { name, backing, read_only, holds_cache, .. } = addition;
    let Addition { block_size, description, limit, share, .. } = addition;
    paths.check_device(&backing)?;
    let source = backing.prepare(Role::Backing { read_only });
    let source = source.map_err(|error| Problem::Other(error.to_string()))?;
    paths.check_device(&backing)?; // a link may have been changed meanwhile
    let backing = Arc::new(source);
    let reach = Reach::Clients;
    let volume = Volume { name, description, backing, read_only, block_size, limit, share, reach };
    if !holds_cache {
        refuse_as_volume(&volume).map_err(|refusal| Problem::Other(refusal.to_string()))?;
    }
    Ok(volume)
}

/// Removes a volume: disconnects its clients, flushes it, and forgets it in all tiers. A volume
/// that cannot be flushed stays. Once the removal has begun, a shutdown waits for it.
pub(crate) fn remove_volume(
    control: &mut Control,
    name: &str,
    force: bool,
) -> Result<Reply, Reply> {
    let offered = present(control.offer.all(), name)?;
    if offered.volume.reach.is_local() {
        let problem = format!("volume {name:?} is attached to this machine, and stays as it is");
        return Err(Reply::trouble(Trouble::Conflict, problem));
    }
    let (id, ids, limit) = (offered.id, offered.ids.clone(), Arc::clone(&offered.limit));
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
    let clients = control.offer.clients().clone();
    clients.limit(name, None); // NVMe hosts use the others
    let cleaned = control
        .ask_all(Wait::Long, || WorkerCommand::RetireVolume(id))
        .and_then(|_| control.flush(Wait::Long, vec![id], RequestKind::Drain))
        .and_then(|()| forget(control, 0, id));
    if let Err(problem) = cleaned {
        // Undo: it is offered again.
        let _ = enforce(control, id, &limit); // a thread that hangs limits nothing either
        clients.limit(name, limit.limit().connections);
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
    clients.forget(name);
    tracing::info!(volume = %name, "volume removed");
    if let Some(reservations) = &control.config.nvme.reservations
        && let Err(error) = reservations.forget(name)
    {
        tracing::warn!(volume = %name, %error, "the reservation of the volume is still kept");
    }
    let recorded = control.write_down(&ids, SuperblockWriter::remove);
    let refitted = refit_shares(control, Vec::new())
        .inspect_err(|problem| tracing::error!(%problem, "guaranteed parts do not rise"))
        .map_err(|problem| format!("the shares of others do not rise in all threads: {problem}"));
    match recorded.and(refitted) {
        Ok(()) => Ok(Reply::Done("removed")),
        Err(problem) => {
            Err(Reply::trouble(Trouble::Failed, format!("the volume is removed, but {problem}")))
        }
    }
}

/// Makes all workers forget a volume in one tier.
pub(crate) fn forget(control: &mut Control, tier: usize, volume: VolumeId) -> Result<(), Problem> {
    control.ask_all(Wait::Long, || WorkerCommand::RemoveVolume { tier, volume }).map(drop)
}

fn set_leaving(control: &mut Control, id: VolumeId, leaving: bool) {
    let changed = control.change_volume(id, |offered| offered.leaving = leaving);
    changed.expect("a part of what can be offered can be");
    control.publish();
}

/// Arranges that the control thread gets an event when the size of the volume's device may have
/// changed.
pub(crate) fn watch(control: &Control, volume: &Volume) {
    let (sender, name) = (control.inbox.sender.clone(), volume.name.clone());
    let notify = move || {
        let _ = sender.send(Event::DeviceChanged { volume: name.clone() }); // unless it has ended
    };
    volume.backing.on_change(Box::new(notify));
}

/// Grows a volume after its device has grown. Volumes smaller than their device keep the size they
/// were given.
pub(crate) fn follow_device(control: &mut Control, name: &str) {
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

/// Grows a volume to `wanted` bytes, or to the present size of its device: first in the workers,
/// then for clients.
pub(crate) fn resize_volume(
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
        return Err(refuse(format!("a size of {bytes} bytes is not a multiple of 512")));
    }
    if bytes < before {
        return Err(refuse(format!(
            "volume {name:?} has {before} bytes: it can grow, but not shrink to {bytes}"
        )));
    }
    // There is no undo: a volume that has grown in some workers reads as its device does, and its
    // clients see the new size only in the end.
    let grown = control.ask_all(Wait::Long, || WorkerCommand::ResizeVolume(id, bytes));
    grown.map_err(Problem::into_reply)?;
    let failed = |problem: String| Reply::trouble(Trouble::Failed, problem);
    control.write_down(&ids, |writer, id| writer.resize(id, there)).map_err(failed)?;
    let offer = control.change_volume(id, |offered| offered.bytes = bytes);
    offer.map_err(|error| failed(error.to_string()))?;
    tracing::info!(volume = name, bytes, "volume resized");
    Ok(Reply::Done("resized"))
}

/// Changes the limits of a volume. Requests that wait go on by the new limits, and clients that are
/// connected stay.
pub(crate) fn limit_volume(
    control: &mut Control,
    name: &str,
    change: &LimitChange,
) -> Result<Reply, Reply> {
    let offered = present(control.offer.all(), name)?;
    if offered.volume.reach.is_local() {
        let problem = format!("volume {name:?} is attached to this machine, and has no limits");
        return Err(Reply::trouble(Trouble::Conflict, problem));
    }
    let (id, limit) = (offered.id, Arc::clone(&offered.limit));
    let wanted = change.applied(&limit.limit());
    let wanted = wanted.map_err(|problem| Reply::trouble(Trouble::Input, problem))?;
    limit.change(wanted.clone(), Instant::now());
    control.total.set_weights(id.0, wanted.weight, wanted.clients.weights(), Instant::now());
    limit_connections(control, name, wanted.connections);
    let enforced = enforce(control, id, &limit);
    control.publish();
    enforced.map_err(|problem| {
        let problem =
            format!("the limits are changed, but not yet enforced by all threads: {problem}");
        Reply::trouble(Trouble::Failed, problem)
    })?;
    tracing::info!(
        volume = name,
        requests_per_second = wanted.requests_per_second,
        bytes_per_second = wanted.bytes_per_second,
        limit_burst_ms = wanted.limit_burst_ms,
        connections = wanted.connections,
        client_requests_per_second = wanted.client_requests_per_second,
        client_bytes_per_second = wanted.client_bytes_per_second,
        clients = %wanted.clients,
        weight = wanted.weight,
        "volume limited"
    );
    Ok(Reply::Done("limited"))
}

/// Changes the limits of all volumes together. Requests that wait go on by the new limits.
pub(crate) fn limit_total(control: &mut Control, change: TotalLimitChange) -> Result<Reply, Reply> {
    let wanted = change.applied(TotalLimit::of(control.total.rates()));
    let wanted = wanted.map_err(|problem| Reply::trouble(Trouble::Input, problem))?;
    let has_clients = |offered: &Offered| offered.volume.reach.has_clients();
    if wanted.is_any() && !control.offer.all().iter().any(has_clients) {
        let problem = "there is no volume for clients that limits would apply to";
        return Err(Reply::trouble(Trouble::Conflict, problem));
    }
    control.total.change(wanted.rates(), Instant::now());
    let total = Arc::clone(&control.total);
    let enforced = control.ask_all(Wait::Long, || WorkerCommand::LimitTotal(Arc::clone(&total)));
    enforced.map_err(|problem| {
        let problem =
            format!("the limits are changed, but not yet enforced by all threads: {problem}");
        Reply::trouble(Trouble::Failed, problem)
    })?;
    tracing::info!(
        total_requests_per_second = wanted.total_requests_per_second,
        total_bytes_per_second = wanted.total_bytes_per_second,
        total_burst_ms = wanted.total_burst_ms,
        "server limited"
    );
    Ok(Reply::Done("limited"))
}

/// Limits the connections of a volume, and logs a warning if it has more.
fn limit_connections(control: &Control, name: &str, most: Option<u64>) {
    let clients = control.offer.clients();
    clients.limit(name, most);
    let counted = clients.counted(name);
    if let Some(most) = most.filter(|most| counted.nbd.max(counted.nvme_tcp) > *most) {
        tracing::warn!(
            volume = %name,
            connections = most,
            clients = %counted,
            "more clients are connected than the limit allows; they stay"
        );
    }
}

/// Checks that each tier can guarantee what it is to guarantee once a volume has this share. A
/// change that guarantees no more than before is always possible.
fn check_share(control: &Control, name: &str, share: VolumeShare) -> Result<(), Reply> {
    let volumes = || control.offer.all().iter().filter(|offered| !offered.leaving);
    let before = volumes().find(|offered| offered.volume.name == name);
    let before = before.map_or(VolumeShare::default(), |offered| offered.volume.share);
    for tier in &control.tiers {
        let facts = &tier.facts;
        let guaranteed = |share: VolumeShare| share.of(facts.size_bytes).guaranteed_bytes;
        let rises = guaranteed(share) > guaranteed(before);
        let others = volumes().map(|offered| &offered.volume);
        let others = others.filter(|volume| rises && volume.name != name);
        let others = others.map(|volume| (volume.name.as_str(), volume.share));
        let tier_bytes =
            if rises { facts.size_bytes } else { facts.size_bytes.max(guaranteed(share)) };
        volume_share::check(others.chain([(name, share)]), &facts.name, tier_bytes)
            .map_err(|problem| Reply::trouble(Trouble::Conflict, problem))?;
    }
    Ok(())
}

/// Changes the share of a volume in all tiers.
pub(crate) fn share_volume(
    control: &mut Control,
    name: &str,
    change: ShareChange,
) -> Result<Reply, Reply> {
    let offered = present(control.offer.all(), name)?;
    let id = offered.id;
    let wanted = change.applied(offered.volume.share);
    let wanted = wanted.map_err(|problem| Reply::trouble(Trouble::Input, problem))?;
    check_share(control, name, wanted)?;
    control.renumber(|offered| {
        if offered.id == id && !offered.leaving {
            offered.volume.share = wanted;
        }
    });
    refit_shares(control, vec![id]).map_err(|problem| {
        let problem =
            format!("the share is changed, but not yet enforced by all threads: {problem}");
        Reply::trouble(Trouble::Failed, problem)
    })?;
    tracing::info!(volume = name, share = %wanted, "share of the volume set");
    Ok(Reply::Done("shared"))
}

/// Derives the shares of all volumes in all tiers, and makes all workers enforce those that have
/// changed, now or as `changed` says. A tier that has too little for all guaranteed parts
/// guarantees more of each once a volume needs less or is gone.
fn refit_shares(control: &mut Control, mut changed: Vec<VolumeId>) -> Result<(), Problem> {
    for tier in 0..control.tiers.len() {
        changed.extend(fit_shares(control, tier));
    }
    changed.sort_unstable();
    changed.dedup();
    let mut enforced = Ok(());
    for id in changed {
        enforced = enforced.and(enforce_share(control, id));
    }
    control.publish();
    enforced
}

/// Derives the shares of all volumes in a tier from its size. Returns the volumes whose shares have
/// changed; workers do not know of it yet.
pub(crate) fn fit_shares(control: &mut Control, tier: usize) -> Vec<VolumeId> {
    let staying = control.offer.all().iter().filter(|offered| !offered.leaving);
    let shares: Vec<VolumeShare> = staying.map(|offered| offered.volume.share).collect();
    let mut fitting = volume_share::fit(&shares, control.tiers[tier].facts.size_bytes).into_iter();
    let mut changed = Vec::new();
    control.renumber(|offered| {
        if !offered.leaving {
            let share = fitting.next().expect("each volume has a share");
            if std::mem::replace(&mut offered.shares[tier], share) != share {
                changed.push(offered.id);
            }
        }
    });
    changed
}

/// Makes all workers enforce a volume's shares in the tiers.
pub(crate) fn enforce_share(control: &mut Control, id: VolumeId) -> Result<(), Problem> {
    let mut volumes = control.offer.all().iter().filter(|offered| !offered.leaving);
    let offered = volumes.find(|offered| offered.id == id);
    let shares: Arc<[CacheShare]> = offered.map_or(&[][..], |offered| &offered.shares).into();
    let share = || WorkerCommand::ShareVolume(id, Arc::clone(&shares));
    control.ask_all(Wait::Long, share).map(drop)
}

/// Makes all workers enforce a volume's limit.
fn enforce(control: &mut Control, id: VolumeId, limit: &Arc<VolumeLimit>) -> Result<(), Problem> {
    control.ask_all(Wait::Long, || WorkerCommand::LimitVolume(id, Arc::clone(limit))).map(drop)
}

/// Sets the NVMe hosts' access to a volume. Once this returns, no connection begins a request that
/// the state forbids. Requests begun before may still be under way.
pub(crate) fn set_access(
    control: &mut Control,
    name: &str,
    state: AnaState,
) -> Result<Reply, Reply> {
    present(control.offer.all(), name)?;
    control.config.nvme.paths.set_access(name, state.into());
    control.announce();
    // Workers take messages in order, so all have taken the offer when they answer.
    control.snapshots(Wait::UntilEnd).map_err(Problem::into_reply)?;
    tracing::info!(volume = name, %state, "access of NVMe hosts set");
    Ok(Reply::Done("set"))
}
