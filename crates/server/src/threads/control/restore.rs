//! Restores failed cache devices.

use floe_block::Kind;

use super::super::messages::{Command, Message};
use super::core::{Control, Wait};
use crate::admin::{Reply, Trouble};

/// Tests the failed cache devices, makes all workers use them again, and tests by a flush that
/// persistent ones accept writes.
pub(super) fn restore(control: &mut Control) -> Result<Reply, Reply> {
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
            let (tier, stuck) = (control.tiers[at].key, failing.stuck);
            control.workers.tell_all(|| Message::Bypass { tier, stuck });
            let problem = "its journal could not be written, and what is dirty in it is being \
                           written back; start floe again after that";
            return refuse(at, &problem);
        }
    }

    // They are used again, unless a worker says otherwise from here on.
    control.tiers.iter_mut().for_each(|tier| tier.failing.degraded = false);
    let failed = |problem: String| Reply::trouble(Trouble::Failed, problem);
    let restored = control.ask_all(Wait::Long, || Command::Restore);
    restored.map_err(|problem| failed(problem.to_string()))?;
    tracing::info!("the cache device is used again");
    // Data that could not be read is read to be written back: only that shows that it can be.
    let refuses = control.tiers.iter().any(|tier| !tier.failing.refusing.is_empty());
    let kind = if refuses { Kind::Drain } else { Kind::Flush };
    let flushed = match control.is_persistent() || refuses {
        true => control.flush(Wait::UntilEnd, control.offer.ids(), kind),
        false => control.snapshots(Wait::UntilEnd).map(drop),
    };
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
