//! Checks peer tiers: finds a missing tier that may hold the only copy of some data.
//!
//! While a server runs, the superblock of each persistent tier names its companions: the other
//! persistent tiers that may hold dirty data. An entry is written before that tier accepts any, and
//! stays until a clean shutdown finds none there. So a tier that is served without one of its
//! companions detects it.
//!
//! The entry also says which companions are above the tier. An upper tier answers first and is
//! written back last. In another order a read would return old data, and old data would overwrite
//! new data. Where no tier has dirty data all hold the same, and any order is safe.
//!
//! Every persistent tier also has the number of the stack in which it was last served, a new one
//! for each run. Tiers with different numbers were served apart: clean data in any of them may be
//! old. The number is announced in all tiers before any of them takes it, so that a crash in
//! between is not mistaken for that.

use std::sync::Arc;

use floe_block::{Companion, KeptCache, StoreError, Superblock};

use super::disk::Disk;
use super::options::Consent;
use super::peered::Peered;
use super::refusal::{Difference, Refusal};
use super::start_error::StartError;
use crate::volume::DeviceSource;

/// Identifies the persistent tiers, given from the top with their names. Returns for each tier what
/// its peers know of it.
///
/// # Errors
/// When a tier misses a companion, is above a tier that it was below, or fails. The number is that
/// of the tier. Nothing has been changed.
pub fn company(
    tiers: &[(String, Arc<dyn DeviceSource>)],
    consent: Consent,
) -> Result<Vec<Peered>, (usize, StartError)> {
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
        let is_missing = |it: &&Companion| !is_there(&it.id) && it.passed != Some(true);
        let missing: Vec<_> = companions.filter(is_missing).collect();
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
        let differs = match missing.is_empty() {
            false => Some(Difference::Alone),
            true => apart.then_some(Difference::Apart),
        };
        let passed = superblock.as_ref().and_then(|it| passed(it, &known));
        differences.push(Peered { differs, passed });
    }
    Ok(differences)
}

/// Returns whether a peer notes that requests went past a tier in its last session.
fn passed(tier: &Superblock, known: &[Option<Superblock>]) -> Option<bool> {
    let entries = known.iter().flatten().flat_map(|peer| &peer.companions);
    let of = entries.filter(|it| it.id == tier.id && it.session == tier.session as u32);
    of.filter_map(|it| it.passed).max()
}

/// The order in which tiers are emptied.
pub(super) struct Order {
    /// The tiers' positions in the given list, the lowest tier first.
    pub(super) order: Vec<usize>,
    /// No tier is missing that was below one of these and may hold dirty data.
    pub(super) is_whole: bool,
    /// By position: as [`Peered::passed`].
    pub(super) passed: Vec<Option<bool>>,
}

/// Sorts tiers that are to be emptied, from the lowest to the highest, so that newer data is
/// written later. Returns their positions in `tiers`.
///
/// # Errors
/// When a tier is missing that was below another and may hold older data, unless `accept` is set,
/// or when a device fails.
pub(super) fn from_the_lowest(
    tiers: &[Arc<dyn DeviceSource>],
    accept: bool,
) -> Result<Order, StartError> {
    let known: Vec<Option<Superblock>> = tiers.iter().map(identify).collect::<Result<_, _>>()?;
    let is_there = |id: &[u8; 16]| known.iter().flatten().any(|superblock| superblock.id == *id);
    let mut companions = known.iter().flatten().flat_map(|superblock| &superblock.companions);
    let is_missing = |it: &&Companion| !it.above && !is_there(&it.id) && it.passed != Some(true);
    let missing = companions.find(is_missing);
    if let (Some(lower), false) = (missing, accept) {
        return Err(Refusal::LowerTier { tier: lower.name.clone() }.into());
    }
    let passed = known.iter().map(|tier| passed(tier.as_ref()?, &known)).collect();
    let order = order(&known).into_iter().rev().collect();
    Ok(Order { order, is_whole: missing.is_none(), passed })
}

/// Returns whether two tiers were served together the last time that either was served.
fn were_together(one: &Superblock, other: &Superblock) -> bool {
    // The announced number of one that has not taken it yet: nothing has been served under that.
    one.stack == other.stack || one.stack == other.next_stack || one.next_stack == other.stack
}

/// Returns whether `one` was above `other` when either may have got data that the other lacks.
fn was_above(known: &[Option<Superblock>], one: usize, other: usize) -> bool {
    let (Some(one), Some(other)) = (&known[one], &known[other]) else { return false };
    // A tier's entry for another one counts only while both are in the same stack.
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

/// Returns the tiers in the order in which they were served, as far as their superblocks say.
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

/// Reads the superblock on a device. A damaged one counts as none here: opening the tier reports
/// it.
fn identify(source: &Arc<dyn DeviceSource>) -> Result<Option<Superblock>, StartError> {
    match Disk::open(source)?.with_io(KeptCache::identify) {
        Err(error @ StoreError::Io { .. }) => Err(error.into()),
        found => Ok(found.unwrap_or(None)),
    }
}
