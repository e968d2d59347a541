//! Attaches a tier to the running server.
//!
//! The first tier stays the first: it numbers the volumes for clients, and memory and shedding are
//! made for it.

use std::sync::Arc;
use std::time::Duration;

use floe_block::{Exchange, VolumeId};

use super::super::known_tier::{in_threads, link};
use super::super::messages::{Command, Problem, TierCommand};
use super::super::tier::TierKey;
use super::super::tiers::TierOrder;
use super::core::{Control, Wait};
use super::opening::beside;
use crate::admin::{AllowedPaths, NewTier, Reply, Trouble};
use crate::kept::Consent;

/// The longest that requests of clients wait at the I/O gate for those below it. Attaching or
/// detaching a tier fails after that.
pub(super) const GATE_TIME: Duration = Duration::from_secs(60);

/// Opens the device of a tier, attaches it below another one while nothing is under way there, and
/// records it in the peer tiers before it has any data.
pub(super) fn attach_tier(
    control: &mut Control,
    wanted: NewTier,
    paths: AllowedPaths,
) -> Result<Reply, Reply> {
    let at = wanted.at.unwrap_or(control.tiers.len());
    check_place(at, control.tiers.len())?;
    let tier = {
        let NewTier { tier: spec, initialise, discard_dirty, .. } = wanted;
        let memory = control.config.memory.as_ref().map_or(0, |memory| memory.usage().size_bytes);
        let above_bytes =
            control.tiers[..at].iter().map(|tier| tier.cache_bytes).sum::<u64>() + memory;
        let volumes = control.offer.all().iter().map(|offered| offered.volume.clone()).collect();
        let consent = Consent { initialise, discard_dirty, ..Consent::default() };
        let threads = control.workers.len();
        let (state, devices) = (control.config.state.clone(), Arc::clone(&control.config.devices));
        let order =
            TierOrder { spec, consent, threads, above_bytes, paths, volumes, state, devices };
        let made = beside(control, move || order.make()).map_err(Problem::into_reply)?;
        made.map_err(|error| {
            let trouble = if error.is_failure { Trouble::Failed } else { Trouble::Conflict };
            Reply::trouble(trouble, error.to_string())
        })?
    };
    let above = control.tiers[at - 1].key;
    let key = TierKey(control.keys_given);
    control.keys_given += 1;
    let new_ids: Vec<VolumeId> =
        (0..control.offer.all().len()).map(|volume| tier.cache.id(volume)).collect();
    let (known, parts) = in_threads(tier, key, Exchange::between(&control.workers.wake_ups()));

    // Every worker opens the device.
    let open = parts.into_iter().enumerate();
    let open = open.map(|(worker, part)| (worker, Command::OpenTier(Box::new(part)))).collect();
    if let Err(problem) = control.ask(Wait::UntilEnd, open) {
        return Err(dismiss(control, above, problem));
    }

    // Nothing is under way at its place.
    let quiesce = || Command::Tier(TierCommand::Quiesce { above });
    if let Err(problem) = control.ask_all(Wait::AtMost(GATE_TIME), quiesce) {
        return Err(dismiss(control, above, problem));
    }

    // The peer tiers record it before it may hold dirty data. From here on its device may be found
    // failing.
    let ids: Arc<[(VolumeId, VolumeId)]> = {
        let volumes = control.offer.all().iter().zip(&new_ids);
        volumes.map(|(offered, new)| (offered.ids[at - 1], *new)).collect()
    };
    control.tiers.insert(at, known);
    if let Err(error) = link(control.stack, control.tiers.iter_mut()) {
        // Undo: remove it from the peer tiers' records.
        let known = control.tiers.remove(at);
        if let Err(error) = link(control.stack, control.tiers.iter_mut()) {
            tracing::error!(
                name = %known.name,
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
    });

    // It is put in, and there is no way back but to detach it: also a worker that is late will.
    let put_in = || Command::Tier(TierCommand::PutIn { above, ids: Arc::clone(&ids) });
    let put_in = control.ask_all(Wait::Long, put_in);
    let (name, bytes) = (&control.tiers[at].name, control.tiers[at].cache_bytes);
    tracing::info!(tier = at, %name, bytes, "tier added");
    match put_in {
        Ok(_) => Ok(Reply::Done("added")),
        Err(problem) => {
            Err(Reply::trouble(Trouble::Failed, format!("the tier is added, but {problem}")))
        }
    }
}

/// Undoes all steps before a tier is put in: workers close its device and open the I/O gate.
fn dismiss(control: &mut Control, above: TierKey, problem: Problem) -> Reply {
    // The first problem is what counts.
    let _ = control.ask_all(Wait::Long, || Command::Tier(TierCommand::Dismiss { above }));
    Reply::trouble(Trouble::Failed, problem.to_string())
}

fn check_place(at: usize, tiers: usize) -> Result<(), Reply> {
    if at == 0 {
        return Err(conflict(
            "a tier comes below the first one, which clients, memory and shedding depend on: say 1 \
             or more",
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
