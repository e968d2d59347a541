//! Attaches, detaches, resizes and restores tiers of the running server.
//!
//! The first tier is never replaced: its volume ids are those that clients' requests carry, and the
//! memory tier and load shedding are made for it.

use std::sync::Arc;
use std::time::Duration;

use floe_block::{
    CacheShare, Config, ConfigError, Exchange, RequestKind, SECTOR_BYTES, VolumeId, format_size,
};

use super::volumes::{enforce_share, fit_shares};
use super::{Control, Wait, beside};
use crate::admin::{AllowedPaths, NewTier, Reply, Trouble};
use crate::config::{too_large_tables, too_large_tiers};
use crate::messages::{Message, Problem, StackCommand, WorkerCommand};
use crate::persistent::{CacheSizes, ForceFlags};
use crate::status::{CacheFacts, TierKey};
use crate::tier::open::CacheMaker;
use crate::tier::{Tier, link};
use crate::volume_share;

/// Longest time that clients' requests wait at the I/O gate while a tier is attached or detached.
/// Beyond that the operation fails.
pub(crate) const GATE_TIME: Duration = Duration::from_secs(60);

/// Opens the device of a tier and attaches it below another one while that place is quiescent. The
/// peer tiers record the new tier before it accepts any data.
pub(crate) fn attach_tier(
    control: &mut Control,
    wanted: NewTier,
    paths: AllowedPaths,
) -> Result<Reply, Reply> {
    let at = wanted.at.unwrap_or(control.tiers.len());
    check_place(at, control.tiers.len())?;
    let mut tier = {
        let NewTier { tier: spec, initialise, discard_dirty, .. } = wanted;
        let memory = control.config.memory.as_ref().map_or(0, |memory| memory.usage().size_bytes);
        let above_bytes =
            control.tiers[..at].iter().map(|tier| tier.facts.size_bytes).sum::<u64>() + memory;
        let volumes = control.offer.all().iter().map(|offered| offered.volume.clone()).collect();
        let force = ForceFlags { initialise, discard_dirty, ..ForceFlags::default() };
        let threads = control.workers.len();
        let (state, devices) = (control.config.state.clone(), Arc::clone(&control.config.devices));
        let order =
            CacheMaker { spec, force, threads, above_bytes, paths, volumes, state, devices };
        let made = beside(control, move || order.make()).map_err(Problem::into_reply)?;
        made.map_err(|error| {
            let trouble = if error.is_failure { Trouble::Failed } else { Trouble::Conflict };
            Reply::trouble(trouble, error.to_string())
        })?
    };
    let above = control.tiers[at - 1].facts.key;
    let key = TierKey(control.keys_given);
    control.keys_given += 1;
    let new_ids: Vec<VolumeId> =
        (0..control.offer.all().len()).map(|volume| tier.cache.id(volume)).collect();
    let parts = tier.take_parts(key, Exchange::between(&control.workers.wake_ups()));

    // Every worker opens the device.
    let open = parts.into_iter().enumerate();
    let open =
        open.map(|(worker, part)| (worker, WorkerCommand::OpenTier(Box::new(part)))).collect();
    if let Err(problem) = control.ask(Wait::UntilEnd, open) {
        return Err(dismiss(control, above, problem));
    }

    // Nothing is under way at its place.
    let quiesce = || WorkerCommand::Tier(StackCommand::Quiesce { above });
    if let Err(problem) = control.ask_all(Wait::AtMost(GATE_TIME), quiesce) {
        return Err(dismiss(control, above, problem));
    }

    // The peer tiers record it before it may hold dirty data. From here on its device may be found
    // failing.
    let ids: Arc<[(VolumeId, VolumeId)]> = {
        let volumes = control.offer.all().iter().zip(&new_ids);
        volumes.map(|(offered, new)| (offered.ids[at - 1], *new)).collect()
    };
    control.tiers.insert(at, tier);
    if let Err(error) = link(control.stack, control.tiers.iter_mut()) {
        // Undo: remove it from the peer tiers' records.
        let tier = control.tiers.remove(at);
        if let Err(error) = link(control.stack, control.tiers.iter_mut()) {
            tracing::error!(
                name = %tier.facts.name,
                %error,
                "at the next start a cache may ask for a tier that was not attached"
            );
        }
        let problem = format!("the superblock of a cache could not be written: {error}");
        return Err(dismiss(control, above, Problem::Other(problem)));
    }
    let mut new_ids = new_ids.into_iter();
    control.renumber(|offered| {
        offered.ids.insert(at, new_ids.next().expect("it has numbered all volumes"));
        offered.shares.insert(at, CacheShare::default());
    });
    fit_shares(control, at);

    // It is put in, and there is no way back but to detach it: also a worker that is late will.
    let put_in = || WorkerCommand::Tier(StackCommand::PutIn { above, ids: Arc::clone(&ids) });
    let mut put_in = control.ask_all(Wait::Long, put_in).map(drop);
    let all = control.offer.all().iter();
    let shared: Vec<_> = all
        .filter(|it| !it.leaving && it.volume.share.is_any())
        .map(|offered| offered.id)
        .collect();
    for id in shared {
        put_in = put_in.and(enforce_share(control, id));
    }
    let CacheFacts { name, size_bytes: bytes, .. } = &control.tiers[at].facts;
    tracing::info!(tier = at, %name, bytes, "tier added");
    match put_in {
        Ok(()) => Ok(Reply::Done("added")),
        Err(problem) => {
            Err(Reply::trouble(Trouble::Failed, format!("the tier is added, but {problem}")))
        }
    }
}

/// Undoes the attaching of a tier up to the last step: workers close its device and open the I/O
/// gate.
fn dismiss(control: &mut Control, above: TierKey, problem: Problem) -> Reply {
    // The first problem is what counts.
    let _ = control.ask_all(Wait::Long, || WorkerCommand::Tier(StackCommand::Dismiss { above }));
    Reply::trouble(Trouble::Failed, problem.to_string())
}

fn check_place(at: usize, tiers: usize) -> Result<(), Reply> {
    if at == 0 {
        return Err(conflict(
            "a tier cannot be above the first one, which clients, memory and shedding depend on: \
             give 1 or more",
        ));
    }
    if at > tiers {
        return Err(conflict(match tiers {
            1 => format!("a tier cannot be number {at}: below the only one it is number 1"),
            _ => format!(
                "a tier cannot be number {at}: with {tiers} tiers, one more is number 1 to {tiers}"
            ),
        }));
    }
    Ok(())
}

fn conflict(problem: impl Into<String>) -> Reply {
    Reply::trouble(Trouble::Conflict, problem)
}

/// Cleans a tier, mostly while clients go on, and detaches it while it is quiescent. A tier that
/// cannot be cleaned stays.
pub(crate) fn detach_tier(control: &mut Control, number: usize) -> Result<Reply, Reply> {
    if number == 0 {
        let problem = "the first tier stays: clients, memory and shedding depend on it";
        return Err(Reply::trouble(Trouble::Conflict, problem));
    }
    let Some(tier) = control.tiers.get(number) else {
        let last = control.tiers.len() - 1;
        let problem = format!("there is no tier {number}: the last one is number {last}");
        return Err(Reply::trouble(Trouble::NotFound, problem));
    };
    let (tier, above) = (tier.facts.key, control.tiers[number - 1].facts.key);
    if let Err(problem) = clean(control, number, tier, above) {
        return Err(keep(control, number, above, &problem));
    }

    // It leaves nothing on its device, for its data will be old: then it is taken out.
    let vacated = vacate(control, number);
    let taken_out = control.ask_all(Wait::Long, || {
        WorkerCommand::Tier(StackCommand::TakeOut { above }) // also a worker that is late will
    });
    let gone = control.tiers.remove(number);
    control.renumber(|offered| {
        offered.ids.remove(number);
        offered.shares.remove(number);
    });
    tracing::info!(tier = number, name = %gone.facts.name, "tier removed");
    let taken_out = taken_out.map_err(|problem| format!("the tier is removed, but {problem}"));
    match vacated.and(taken_out.map(drop)) {
        Ok(()) => Ok(Reply::Done("removed")),
        Err(problem) => Err(Reply::trouble(Trouble::Failed, problem)),
    }
}

/// Writes back a tier's dirty data. On success the I/O gate above it is shut, and no operation is
/// under way in it.
fn clean(
    control: &mut Control,
    number: usize,
    tier: TierKey,
    above: TierKey,
) -> Result<(), Problem> {
    let limit = || WorkerCommand::Tier(StackCommand::LimitDirty { tier, bytes: 0 });
    control.ask_all(Wait::UntilEnd, limit)?;
    empty(control, Wait::UntilEnd, number, above)?;
    let gate = Wait::AtMost(GATE_TIME);
    control.ask_all(gate, || WorkerCommand::Tier(StackCommand::Quiesce { above }))?;
    empty(control, gate, number, above)?;
    control.ask_all(gate, || WorkerCommand::Tier(StackCommand::Rest { above })).map(drop)
}

/// Writes back a tier's dirty data of all volumes. Any worker can do it, as for a flush; volumes
/// have their ids in the tier above.
fn empty(control: &mut Control, wait: Wait, number: usize, above: TierKey) -> Result<(), Problem> {
    let ids = control.offer.all().iter().map(|offered| offered.ids[number - 1]);
    let volumes: Vec<VolumeId> = ids.collect();
    let empty = |volume| WorkerCommand::Tier(StackCommand::Empty { above, volume });
    let workers = (0..control.workers.len()).cycle();
    control.ask(wait, workers.zip(volumes.into_iter().map(empty)).collect()).map(drop)
}

/// Undoes the detaching of a tier: it may hold dirty data again, and workers open the I/O gate.
fn keep(control: &mut Control, number: usize, above: TierKey, problem: &Problem) -> Reply {
    let bytes = control.tiers[number].cache.most_dirty_bytes.unwrap_or(u64::MAX);
    // The first problem is what counts.
    let _ =
        control.ask_all(Wait::Long, || WorkerCommand::Tier(StackCommand::Keep { above, bytes }));
    Reply::trouble(
        Trouble::Failed,
        format!(
            "tier {number} stays, because its dirty data could not be written to the devices \
                 below: {problem}"
        ),
    )
}

/// Marks the device of a detached persistent tier as empty, because later writes bypass it and make
/// its content stale.
fn vacate(control: &mut Control, number: usize) -> Result<(), String> {
    let Some(writer) = control.tiers[number].cache.writer.take() else { return Ok(()) };
    writer.note_clean();
    // The peer tiers forget it before its device may be reused.
    let linked = link(control.stack, control.tiers.iter_mut());
    // A tier whose device has failed may still accept its superblock.
    let given_up = control.tiers.iter().filter(|tier| tier.failing.degraded);
    let peers = given_up.filter_map(|tier| tier.cache.writer.as_ref());
    let forgotten = peers.map(|peer| peer.forget_companion(&writer)).fold(Ok(()), Result::and);
    let unlinked = linked.and(forgotten).map_err(|error| {
        format!(
            "the tier is removed, but that could not be recorded on the other tiers, which will \
             ask for it at the next start: {error}"
        )
    });
    let vacated = writer.vacate().map_err(|error| {
        format!(
            "the tier is removed, but that could not be recorded on its device: {error}; do not \
             serve it again without --initialise"
        )
    });
    unlinked.and(vacated)
}

/// Changes the size of a tier while clients go on. A smaller tier gives its space back before this
/// returns. On failure the tier keeps its size; blocks that have left stay away.
///
/// The superblock of a persistent tier has a larger size before the tier uses it, and a smaller one
/// once no more is used: a crash in between leaves the old size.
pub(crate) fn resize_tier(
    control: &mut Control,
    number: usize,
    size_bytes: u64,
) -> Result<Reply, Reply> {
    let Some(tier) = control.tiers.get(number) else {
        let last = control.tiers.len() - 1;
        let problem = format!("there is no tier {number}: the last one is number {last}");
        return Err(Reply::trouble(Trouble::NotFound, problem));
    };
    check_size(control, tier, number, size_bytes)?;
    let (key, before, sizes) = (tier.facts.key, tier.facts.size_bytes, tier.sizes);
    let is_unsettled = tier.unsettled;
    if size_bytes == before && !is_unsettled {
        return Ok(Reply::Done("unchanged"));
    }
    // Where the last resize has failed, the tier may serve another size than it has recorded.
    let recorded = sizes.map_or(before, |sizes| sizes.used);
    if size_bytes > before || is_unsettled && size_bytes == before {
        make_room(control, number, size_bytes)?;
    }
    if sizes.is_some() && (size_bytes > recorded || is_unsettled) {
        record_size(control, number, size_bytes.max(recorded))
            .map_err(|problem| kept_size(control, number, problem))?;
    }
    set_size(control, number, size_bytes).map_err(|problem| {
        control.tiers[number].unsettled = true;
        let problem = format!(
            "tier {number} has no certain size now: {problem}; repeat the command when that is over"
        );
        Reply::trouble(Trouble::Failed, problem)
    })?;
    control.publish();
    let give_back = || WorkerCommand::Tier(StackCommand::GiveBack { tier: key });
    let given_back = control.ask_all(Wait::UntilEnd, give_back).map(drop);
    let given_back = given_back
        .map_err(|problem| format!("not all of the space could be given back: {problem}"));
    let done = given_back.and_then(|()| match sizes.is_some() && size_bytes < recorded {
        true => record_size(control, number, size_bytes),
        false => Ok(()),
    });
    if let Err(problem) = done {
        // The first problem is what counts.
        control.tiers[number].unsettled |= set_size(control, number, before).is_err();
        return Err(kept_size(control, number, problem));
    }
    control.tiers[number].unsettled = false;
    let name = &control.tiers[number].facts.name;
    tracing::info!(tier = number, %name, before, bytes = size_bytes, "tier resized");
    Ok(Reply::Done("resized"))
}

/// Records the size of a persistent tier in its superblock.
///
/// While the device hangs, the writer is locked. The control thread then waits for the device when
/// any persistent tier fails, as that is recorded in the superblocks of all of them. If the server
/// ends first, the device may get the size later or not, as in a crash.
fn record_size(control: &mut Control, number: usize, size_bytes: u64) -> Result<(), String> {
    let tier = &mut control.tiers[number];
    let mut writer = tier.cache.writer.clone().expect("a persistent tier has a superblock");
    tier.unsettled = true; // until the device has it
    let record = move || writer.set_cache_bytes(size_bytes);
    let recorded = beside(control, record).map_err(|problem| problem.to_string())?;
    recorded.map_err(|error| format!("the size could not be recorded on its device: {error}"))?;
    let sizes = &mut control.tiers[number].sizes;
    sizes.iter_mut().for_each(|sizes| sizes.used = size_bytes);
    Ok(())
}

fn kept_size(control: &Control, number: usize, problem: String) -> Reply {
    let size = format_size(control.tiers[number].facts.size_bytes);
    Reply::trouble(Trouble::Failed, format!("tier {number} keeps {size}, because {problem}"))
}

/// Checks that a tier can have another size, as far as that is known without its device.
fn check_size(control: &Control, tier: &Tier, number: usize, size_bytes: u64) -> Result<(), Reply> {
    let size = format_size(size_bytes);
    if let Some(CacheSizes { most, .. }) = tier.sizes.filter(|sizes| size_bytes > sizes.most) {
        return Err(conflict(format!(
            "tier {number} cannot have {size}: its cache was made for {}; {}",
            format_size(most),
            match number {
                0 => "floe flush && floe stop, and start with a new cache (--initialise)",
                _ => "add a tier of that size, then remove this one",
            }
        )));
    }
    if !size_bytes.is_multiple_of(SECTOR_BYTES) {
        return Err(conflict(format!(
            "the size of a tier is a multiple of {SECTOR_BYTES} bytes, not {size}"
        )));
    }
    let (config, data_start, shards) = (&tier.facts.config, tier.cache.data_start, tier.shards);
    match config.check_size(size_bytes.saturating_sub(data_start), shards) {
        Ok(()) => {}
        Err(ConfigError::TooSmall { group_bytes, .. }) => {
            let least = format_size(data_start + shards * group_bytes);
            return Err(conflict(format!(
                "tier {number} cannot have {size}: with shards = {shards} and blocks of up to {} \
                 it has at least {least}",
                format_size(group_bytes)
            )));
        }
        Err(error) => return Err(conflict(format!("tier {number}: {error}"))),
    }
    if let Some(problem) = too_large_tables(size_bytes) {
        return Err(conflict(format!("tier {number} cannot have {size}: {problem}")));
    }
    let before = tier.facts.size_bytes;
    if size_bytes > before {
        let memory = control.config.memory.as_ref().map_or(0, |memory| memory.usage().size_bytes);
        let tiers = control.tiers.iter().enumerate().map(|(at, tier)| {
            let bytes = if at == number { size_bytes } else { tier.facts.size_bytes };
            (bytes, tier.is_in_memory())
        });
        if let Some(problem) = too_large_tiers(memory, tiers) {
            return Err(conflict(format!("tier {number} cannot have {size}: {problem}")));
        }
    }
    if tier.failing.degraded || !tier.failing.refusing.is_empty() {
        let problem = "its device fails: floe cache restore when it works again";
        return Err(conflict(format!("tier {number} cannot be resized while {problem}")));
    }
    let shares_fit = |bytes| {
        let offered = control.offer.all().iter().filter(|offered| !offered.leaving);
        let shares = offered.map(|offered| (offered.volume.name.as_str(), offered.volume.share));
        volume_share::check(shares, &name_with_size(&tier.facts, bytes), bytes)
    };
    // A tier that is too small for its shares already may become larger.
    let is_better = size_bytes >= before && shares_fit(before).is_err();
    if is_better { Ok(()) } else { shares_fit(size_bytes).map_err(conflict) }
}

/// Makes the device of a tier as large as the tier is to become, where it is smaller. Checks that
/// the file system below it has room for as much.
fn make_room(control: &mut Control, number: usize, size_bytes: u64) -> Result<(), Reply> {
    let keeps = |problem: String, control: &Control| {
        let facts = &control.tiers[number].facts;
        format!("tier {number} keeps {}: {problem}", format_size(facts.size_bytes))
    };
    let (source, key) =
        (Arc::clone(&control.tiers[number].source), control.tiers[number].facts.key);
    let device = Arc::clone(&source);
    let grown = beside(control, move || device.grow(size_bytes)).map_err(Problem::into_reply)?;
    grown.map_err(|error| conflict(keeps(error.to_string(), control)))?;
    if control.tiers[number].sizes.is_some() {
        return Ok(()); // its device is as long as it can become
    }
    // A device that was larger before has data beyond the tier's new size.
    let bytes = source.size_bytes();
    let grow = || WorkerCommand::GrowDevice { tier: key, bytes };
    let grown = control.ask_all(Wait::Long, grow);
    grown
        .map(drop)
        .map_err(|problem| Reply::trouble(Trouble::Failed, keeps(problem.to_string(), control)))
}

/// Sets the size of a tier in all workers, and all that depends on it: the limit of dirty data and
/// the shares of volumes. A worker sets all of it before a block leaves.
fn set_size(control: &mut Control, number: usize, size_bytes: u64) -> Result<(), Problem> {
    let tier = &mut control.tiers[number];
    let key = tier.facts.key;
    let cache_bytes = size_bytes.saturating_sub(tier.cache.data_start);
    let most_dirty_bytes = tier.dirty_share.map(|share| (share * size_bytes as f64) as u64);
    tier.cache.most_dirty_bytes = most_dirty_bytes;
    tier.facts.name = name_with_size(&tier.facts, size_bytes);
    tier.facts.size_bytes = size_bytes;
    tier.facts.config = Arc::new(Config { cache_bytes, ..Config::clone(&tier.facts.config) });
    fit_shares(control, number);
    let offered = control.offer.all().iter();
    let shares: Arc<[_]> = offered
        .filter(|it| !it.leaving && it.volume.share.is_any())
        .map(|offered| (offered.ids[number], offered.shares[number]))
        .collect();
    let resize = || {
        let shares = Arc::clone(&shares);
        WorkerCommand::ResizeTier { tier: key, cache_bytes, most_dirty_bytes, shares }
    };
    control.ask_all(Wait::Long, resize).map(drop)
}

/// Returns the name of a tier with another size. The name of a persistent tier has the size of its
/// device, which stays.
fn name_with_size(facts: &CacheFacts, size_bytes: u64) -> String {
    if facts.config.kept { facts.name.clone() } else { resized(&facts.name, size_bytes) }
}

/// Returns the name of a volatile tier, its device and settings, with another size.
fn resized(name: &str, size_bytes: u64) -> String {
    let size = format_size(size_bytes);
    let parts = name.split(',').map(|part| match part.split_once([':', '=']) {
        Some(("memory", _)) => format!("memory:{size}"),
        Some(("size", _)) => format!("size={size}"),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join(",")
}

/// Tests failed cache devices and makes all workers use them again. A flush then tests that
/// persistent tiers accept writes.
pub(crate) fn restore(control: &mut Control) -> Result<Reply, Reply> {
    let refuse = |at: usize, problem: &dyn std::fmt::Display| {
        Err(Reply::trouble(Trouble::Failed, format!("tier {at} is not restored: {problem}")))
    };
    control.note_unnoted();
    for at in 0..control.tiers.len() {
        if !control.tiers[at].failing.degraded {
            continue;
        }
        if let Err(error) = control.tiers[at].try_device() {
            return refuse(at, &format!("its cache device still fails: {error}"));
        }
        let failing = &control.tiers[at].failing;
        if failing.retired {
            let problem = "its cache was ended when its journal could not be written; start floe \
                           again to use the device again";
            return refuse(at, &problem);
        }
        if failing.journal_lost {
            let (tier, stuck) = (control.tiers[at].facts.key, failing.stuck);
            control.workers.tell_all(|| Message::Bypass { tier, stuck });
            let problem = "its journal could not be written, and what is dirty in it is being \
                           written back; start floe again after that";
            return refuse(at, &problem);
        }
    }

    // They are used again, unless a worker says otherwise from here on.
    control.tiers.iter_mut().for_each(|tier| tier.failing.degraded = false);
    let failed = |problem: String| Reply::trouble(Trouble::Failed, problem);
    let restored = control.ask_all(Wait::Long, || WorkerCommand::Restore);
    restored.map_err(|problem| failed(problem.to_string()))?;
    tracing::info!("the cache device is used again");
    // Data that could not be read is read to be written back: only that shows that it can be.
    let refuses = control.tiers.iter().any(|tier| !tier.failing.refusing.is_empty());
    let kind = if refuses { RequestKind::Drain } else { RequestKind::Flush };
    let flushed = match control.is_persistent() || refuses {
        true => control.flush(Wait::UntilEnd, control.offer.ids(), kind),
        false => Ok(()),
    };
    // Workers reply after they have reported how their tiers are now.
    let flushed = flushed.and(control.snapshots(Wait::UntilEnd).map(drop));
    if let Some(at) = control.tiers.iter().position(|tier| tier.failing.degraded) {
        return refuse(at, &"its cache device fails again");
    }
    flushed.map_err(|problem| {
        failed(format!("the cache device is used again, but a flush failed: {problem}"))
    })?;
    for tier in 0..control.tiers.len() {
        control.note(tier);
    }
    Ok(Reply::Done("restored"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_tier_follows_its_size() {
        for (name, expected) in [
            ("memory:64MiB,write=back,volatile", "memory:1GiB,write=back,volatile"),
            ("file:/srv/a,size=64MiB,write=back", "file:/srv/a,size=1GiB,write=back"),
            ("file:/srv/a,block-sizes=4KiB+64KiB", "file:/srv/a,block-sizes=4KiB+64KiB"),
        ] {
            assert_eq!(resized(name, 1 << 30), expected);
        }
    }
}
