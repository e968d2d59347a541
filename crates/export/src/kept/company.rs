//! Tiers that were served together: whether one is missing that may hold what nothing else has.
//!
//! While a server runs, the superblock of each kept tier names the others that are kept and may
//! hold what was written to the volumes and nothing else has: from before they get any of it until
//! a clean end finds them without. So whoever is served again without one of them knows.
//!
//! It also says which of them are above it: what is nearer to clients answers first and is written
//! last, so in another order old data would be read, and written over the new. Where no tier has
//! anything of its own they hold the same, and any order will do.
//!
//! Every kept tier also has the number of the stack in which it was served last, a new one each
//! time. Tiers with different numbers were apart: what is clean in any of them may be old. The
//! number is announced in all of them before any takes it, so that a crash in between is not taken
//! for that.

use std::sync::Arc;

use floe_block::{KeptCache, StoreError, Superblock};

use super::disk::Disk;
use super::refusal::{Difference, Refusal, StartError};
use super::start::Consent;
use crate::server::DeviceSource;

/// Looks at the devices of all tiers that are kept, given from the top with their names: by tier,
/// how what it has of the volumes may differ from what others have.
///
/// # Errors
/// By the tier that misses another one, is above one that it was below, or fails. Nothing has been
/// changed.
pub fn company(
    tiers: &[(String, Arc<dyn DeviceSource>)],
    consent: Consent,
) -> Result<Vec<Option<Difference>>, (usize, StartError)> {
    let known = tiers.iter().map(|(_, source)| identify(source)).enumerate();
    let known = known.map(|(at, found)| found.map_err(|error| (at, error)));
    let known: Vec<Option<Superblock>> = known.collect::<Result<_, _>>()?;
    let is_there = |id: &[u8; 16]| known.iter().flatten().any(|superblock| superblock.id == *id);
    let served: Vec<_> =
        known.iter().flatten().filter(|superblock| superblock.stack != 0).collect();
    let apart = served.iter().any(|one| served.iter().any(|other| !were_together(one, other)));
    let mut differences = Vec::new();
    for (at, superblock) in known.iter().enumerate() {
        let companions = superblock.iter().flat_map(|superblock| &superblock.companions);
        let missing: Vec<_> = companions.filter(|companion| !is_there(&companion.id)).collect();
        if let (Some(first), false) = (missing.first(), consent.accept_backing) {
            return Err((at, Refusal::MissingTier { tier: first.name.clone() }.into()));
        }
        for companion in &missing {
            tracing::warn!(
                missing = %companion.name,
                "goes on without a tier that may hold what nothing else has"
            );
        }
        if let Some(upper) = (at + 1..known.len()).find(|&lower| was_above(&known, lower, at)) {
            let name = |at: usize| tiers[at].0.clone();
            let order = order(&known).into_iter().map(name).collect();
            return Err((at, Refusal::Order { upper: name(upper), order }.into()));
        }
        differences.push(match missing.is_empty() {
            false => Some(Difference::Alone),
            true => apart.then_some(Difference::Apart),
        });
    }
    Ok(differences)
}

/// In which order tiers are emptied.
pub(super) struct Order {
    /// Their places, the lowest first.
    pub(super) order: Vec<usize>,
    /// None is missing that was below one of them and may hold what nothing else has.
    pub(super) is_whole: bool,
}

/// Tiers that are to be emptied by themselves, by the places where they are given: the lowest
/// first, so that what is newer is written later.
///
/// # Errors
/// When one that was below another and may hold older data is not among them and that is not
/// `accept`ed, or a device fails.
pub(super) fn from_the_lowest(
    tiers: &[Arc<dyn DeviceSource>],
    accept: bool,
) -> Result<Order, StartError> {
    let known: Vec<Option<Superblock>> = tiers.iter().map(identify).collect::<Result<_, _>>()?;
    let is_there = |id: &[u8; 16]| known.iter().flatten().any(|superblock| superblock.id == *id);
    let companions = known.iter().flatten().flat_map(|superblock| &superblock.companions);
    let mut missing = companions.filter(|companion| !companion.above && !is_there(&companion.id));
    let missing = missing.next();
    if let (Some(lower), false) = (missing, accept) {
        return Err(Refusal::LowerTier { tier: lower.name.clone() }.into());
    }
    Ok(Order { order: order(&known).into_iter().rev().collect(), is_whole: missing.is_none() })
}

/// Whether two tiers were served together the last time that either was.
fn were_together(one: &Superblock, other: &Superblock) -> bool {
    // The announced number of one that has not taken it yet: nothing has been served under that.
    one.stack == other.stack || one.stack == other.next_stack || one.next_stack == other.stack
}

/// Whether one tier was above another when either may have got what the other has not.
fn was_above(known: &[Option<Superblock>], one: usize, other: usize) -> bool {
    let (Some(one), Some(other)) = (&known[one], &known[other]) else { return false };
    // What a tier says of one that was in another stack since is nothing to go by.
    let says = |tier: &Superblock, of: &Superblock, above: bool| {
        tier.stack != 0
            && (tier.stack == of.stack || tier.stack == of.next_stack)
            && tier
                .companions
                .iter()
                .any(|companion| companion.id == of.id && companion.above == above)
    };
    says(one, other, false) || says(other, one, true)
}

/// The tiers in the order in which they were served, as far as they say.
fn order(known: &[Option<Superblock>]) -> Vec<usize> {
    let mut left: Vec<usize> = (0..known.len()).collect();
    let mut order = Vec::new();
    while !left.is_empty() {
        let is_next = |&at: &usize| !left.iter().any(|&other| was_above(known, other, at));
        let next = left.iter().position(is_next).unwrap_or(0);
        order.push(left.remove(next));
    }
    order
}

/// The superblock on a device; what keeps it from being read is told when the tier is opened.
fn identify(source: &Arc<dyn DeviceSource>) -> Result<Option<Superblock>, StartError> {
    match Disk::open(source)?.with_io(KeptCache::identify) {
        Err(error @ StoreError::Io { .. }) => Err(error.into()),
        found => Ok(found.unwrap_or(None)),
    }
}
