//! Detaches a tier from the running server.

use floe_block::VolumeId;

use super::super::known_tier::link;
use super::super::messages::{Command, Problem, TierCommand};
use super::super::tier::TierKey;
use super::attach_tier::GATE_TIME;
use super::core::{Control, Wait};
use crate::admin::{Reply, Trouble};

/// Cleans a tier, for the most part while clients go on, and detaches it while nothing is under way
/// there. A tier that cannot be cleaned stays.
pub(super) fn detach_tier(control: &mut Control, number: usize) -> Result<Reply, Reply> {
    if number == 0 {
        let problem = "the first tier stays: clients, memory and shedding depend on it";
        return Err(Reply::trouble(Trouble::Conflict, problem));
    }
    let Some(tier) = control.tiers.get(number) else {
        let last = control.tiers.len() - 1;
        let problem = format!("there is no tier {number}: the last one is number {last}");
        return Err(Reply::trouble(Trouble::NotFound, problem));
    };
    let (tier, above) = (tier.key, control.tiers[number - 1].key);
    if let Err(problem) = clean(control, number, tier, above) {
        return Err(keep(control, number, above, &problem));
    }

    // It leaves nothing on its device, for its data will be old: then it is taken out.
    let vacated = vacate(control, number);
    let taken_out = control.ask_all(Wait::Long, || {
        Command::Tier(TierCommand::TakeOut { above }) // also a worker that is late will
    });
    let gone = control.tiers.remove(number);
    control.renumber(|offered| {
        offered.ids.remove(number);
    });
    tracing::info!(tier = number, name = %gone.name, "tier removed");
    let taken_out = taken_out.map_err(|problem| format!("the tier is removed, but {problem}"));
    match vacated.and(taken_out.map(drop)) {
        Ok(()) => Ok(Reply::Done("removed")),
        Err(problem) => Err(Reply::trouble(Trouble::Failed, problem)),
    }
}

/// Cleans a tier. In the end the I/O gate above it is shut, and nothing is under way in it.
fn clean(
    control: &mut Control,
    number: usize,
    tier: TierKey,
    above: TierKey,
) -> Result<(), Problem> {
    let limit = || Command::Tier(TierCommand::LimitDirty { tier, bytes: 0 });
    control.ask_all(Wait::UntilEnd, limit)?;
    empty(control, Wait::UntilEnd, number, above)?;
    let gate = Wait::AtMost(GATE_TIME);
    control.ask_all(gate, || Command::Tier(TierCommand::Quiesce { above }))?;
    empty(control, gate, number, above)?;
    control.ask_all(gate, || Command::Tier(TierCommand::Rest { above })).map(drop)
}

/// Makes a worker clean a tier's dirty data of all volumes, by their numbers in the tier above it.
/// Any worker can do it, as for a flush.
fn empty(control: &mut Control, wait: Wait, number: usize, above: TierKey) -> Result<(), Problem> {
    let ids = control.offer.all().iter().map(|offered| offered.ids[number - 1]);
    let volumes: Vec<VolumeId> = ids.collect();
    let empty = |volume| Command::Tier(TierCommand::Empty { above, volume });
    let workers = (0..control.workers.len()).cycle();
    control.ask(wait, workers.zip(volumes.into_iter().map(empty)).collect()).map(drop)
}

/// Undoes all steps before a tier is taken out: it may be dirty again, and workers open the I/O
/// gate.
fn keep(control: &mut Control, number: usize, above: TierKey, problem: &Problem) -> Reply {
    let bytes = control.tiers[number].most_dirty_bytes.unwrap_or(u64::MAX);
    // The first problem is what counts.
    let _ = control.ask_all(Wait::Long, || Command::Tier(TierCommand::Keep { above, bytes }));
    Reply::trouble(
        Trouble::Failed,
        format!("tier {number} stays, since it could not bring down what only it has: {problem}"),
    )
}

/// Empties the device of a detached persistent tier: later writes bypass it and make its content
/// old.
fn vacate(control: &mut Control, number: usize) -> Result<(), String> {
    let Some(keeper) = control.tiers[number].keeper.take() else { return Ok(()) };
    keeper.note_clean();
    // The peer tiers forget it before its device may be reused.
    let linked = link(control.stack, control.tiers.iter_mut());
    // A tier whose device has failed may still accept its superblock.
    let given_up = control.tiers.iter().filter(|tier| tier.failing.degraded);
    let peers = given_up.filter_map(|tier| tier.keeper.as_ref());
    let forgotten = peers.map(|peer| peer.forget_companion(&keeper)).fold(Ok(()), Result::and);
    let unlinked = linked.and(forgotten).map_err(|error| {
        format!(
            "the tier is removed, but others could not be told so, and will ask for it at the next \
             start: {error}"
        )
    });
    let vacated = keeper.vacate().map_err(|error| {
        format!(
            "the tier is removed, but its device could not be told so: {error}; do not serve it \
             again without --initialise"
        )
    });
    unlinked.and(vacated)
}
