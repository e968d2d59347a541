//! Checks peer tiers: finds a missing tier that may hold the only copy of some data.
//!
//! While a server runs, the superblock of each persistent tier names its companions: the other
//! persistent tiers that may hold dirty data. A companion's entry is written before that tier
//! accepts dirty data. It stays until a clean shutdown finds no dirty data there. A tier that is
//! started without one of its companions therefore detects that.
//!
//! The entry also records which companions are above the tier. An upper tier answers first and is
//! written back last. In another order a read would return old data, and old data would overwrite
//! new data. Where no tier has dirty data, the copies of all tiers are equal, and any order is
//! safe.
//!
//! Each persistent tier also records the number of its stack: a random number that all tiers served
//! together share, new for each run. Tiers with different numbers were served apart: clean data in
//! any of them may be old. All tiers announce the number before one of them adopts it. So a crash
//! in between does not look as if the tiers had been served apart.

use std::path::PathBuf;
use std::sync::Arc;

use floe_block::{Companion, KeptCache, StoreError, Superblock};

use super::content::ForceFlags;
use super::disk::Disk;
use super::error::{Difference, Refusal, StartError};
use super::state_dir::{Noted, StateDir};
use crate::volume::{DeviceSource, Volume};

/// Reads the superblocks of the persistent tiers, given from the top with their names. Returns for
/// each tier the facts that its peers record about it.
///
/// # Errors
/// When a companion of a tier is missing, the order of the tiers is wrong, or a device fails. The
/// number is the position of the tier. Nothing has been changed.
pub fn check_peers(
    tiers: &[(String, Arc<dyn DeviceSource>)],
    force: ForceFlags,
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
        if let (Some(first), false) = (missing.first(), force.accept_backing) {
            return Err((at, Refusal::MissingTier { tier: first.name.clone() }.into()));
        }
        for companion in &missing {
            tracing::warn!(
                missing = %companion.name,
                "continues without a tier that may hold dirty data"
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

/// Returns whether peers record that a tier was bypassed in its last session: `Some(true)` if it
/// was retired as well, `None` if it was not bypassed.
fn passed(tier: &Superblock, known: &[Option<Superblock>]) -> Option<bool> {
    let entries = known.iter().flatten().flat_map(|peer| &peer.companions);
    let of = entries.filter(|it| it.id == tier.id && it.session == tier.session as u32);
    of.filter_map(|it| it.passed).max()
}

/// The order in which tiers are drained.
pub(super) struct DrainOrder {
    /// Positions of the tiers in the given list, the lowest tier first.
    pub(super) order: Vec<usize>,
    /// True if no lower tier that may hold dirty data is missing.
    pub(super) is_whole: bool,
    /// For each tier of the given list, whether it was bypassed: see [`Peered::passed`].
    pub(super) passed: Vec<Option<bool>>,
}

/// Sorts the tiers to be drained from the lowest to the highest, so that newer data is written
/// later.
///
/// # Errors
/// When a lower tier that may hold older data is missing, unless `accept` is set, or when a device
/// fails.
pub(super) fn from_the_lowest(
    tiers: &[Arc<dyn DeviceSource>],
    accept: bool,
) -> Result<DrainOrder, StartError> {
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
    Ok(DrainOrder { order, is_whole: missing.is_none(), passed })
}

/// Returns whether two tiers belonged to one stack when either was served last.
fn were_together(one: &Superblock, other: &Superblock) -> bool {
    // The announced number of one that has not taken it yet: nothing has been served under that.
    one.stack == other.stack || one.stack == other.next_stack || one.next_stack == other.stack
}

/// Returns whether the tier at `one` was above the tier at `other`, by the superblock of either.
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

/// Returns the positions of the tiers in the order in which they were served, as far as their
/// superblocks record it.
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

/// Reads the superblock on a device. Returns `None` for a damaged one, too: opening the tier
/// reports the damage.
fn identify(source: &Arc<dyn DeviceSource>) -> Result<Option<Superblock>, StartError> {
    match Disk::open(source)?.with_io(KeptCache::identify) {
        Err(error @ StoreError::Io { .. }) => Err(error.into()),
        found => Ok(found.unwrap_or(None)),
    }
}

/// Facts about a tier from the superblocks of its peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peered {
    /// Reason why the tier's clean data may be older than that of its peers.
    pub differs: Option<Difference>,
    /// The tier was bypassed in its last session, and its device refused to record that. True: it
    /// was also retired, so nothing in it is valid. False: only its dirty data is valid.
    pub passed: Option<bool>,
}

/// Caches that served these volumes before and are not given now.
///
/// A missing cache that may hold dirty data prevents the start, because the volumes without it have
/// old data. A clean one is only logged. When a missing cache comes back, its data of these volumes
/// may be old: notes in the state directory record that.
#[derive(Debug, Default)]
pub(crate) struct Missing {
    state: Option<StateDir>,
    list: Vec<(Noted, PathBuf)>,
}

impl Missing {
    /// Returns whether a missing cache may hold dirty data.
    pub(crate) fn is_dirty(&self) -> bool {
        self.list.iter().any(|(noted, _)| noted.dirty)
    }

    /// Records in the state directory that the volumes are served without the missing caches, and
    /// logs a warning for each.
    pub(crate) fn go_on(self) {
        let Some(state) = self.state else { return };
        for (noted, file) in self.list {
            let volumes = noted.without.join(", ");
            let (cache, file_name) = (&noted.device, file.display());
            match noted.dirty {
                true => tracing::warn!(
                    %cache, %volumes, note = %file_name,
                    "continues without a cache that may hold dirty data, as --discard-dirty or \
                     --accept-backing says"
                ),
                false => tracing::warn!(
                    %cache, %volumes, note = %file_name,
                    "continues without the cache that was served last: nothing is lost, because it \
                     held no dirty data"
                ),
            }
            state.write(&file, &noted);
        }
    }
}

/// Finds caches that served these volumes before and are not on `tiers`, the devices of the
/// persistent tiers. `given` are the names of the devices of all tiers, including those that do not
/// exist yet.
///
/// # Errors
/// When a missing cache may hold dirty data and the user has not agreed to lose it, or a device
/// fails. Nothing has been changed.
pub(crate) fn missing(
    state: Option<&StateDir>,
    volumes: &[Volume],
    tiers: &[Arc<dyn DeviceSource>],
    given: &[String],
    force: ForceFlags,
) -> Result<Missing, StartError> {
    let Some(state) = state else { return Ok(Missing::default()) };
    let (mut there, mut companions) = (Vec::new(), Vec::new());
    for tier in tiers {
        match Disk::open(tier)?.with_io(KeptCache::identify) {
            Ok(Some(superblock)) => {
                there.push(superblock.id);
                companions.extend(superblock.companions.into_iter().map(|it| it.id));
            }
            Ok(None) => {}
            Err(error @ StoreError::Io { .. }) => return Err(error.into()),
            // It may be any of them. Opening it says more.
            Err(_) => return Ok(Missing::default()),
        }
    }
    // A tier that another one names is looked for by `company`.
    let accepted = |id: &_| force.discard_dirty || companions.contains(id);
    without(state, volumes, &there, given, accepted).map_err(StartError::from)
}

/// Finds caches that served these volumes before and whose ids are not in `there`. `given` are the
/// names of the tiers' devices.
///
/// # Errors
/// When a missing cache may hold dirty data and is not `accepted`.
pub(crate) fn without(
    state: &StateDir,
    volumes: &[Volume],
    there: &[[u8; 16]],
    given: &[String],
    accepted: impl Fn(&[u8; 16]) -> bool,
) -> Result<Missing, Refusal> {
    let mut list = Vec::new();
    for (id, mut noted, file) in state.all() {
        if there.contains(&id) {
            continue;
        }
        let is_news = |volume: &&Volume| noted.has(volume) && !noted.without.contains(&volume.name);
        let names: Vec<String> =
            volumes.iter().filter(is_news).map(|volume| volume.name.clone()).collect();
        let Some(first) = names.first() else { continue };
        if noted.dirty && !accepted(&id) {
            return Err(Refusal::MissingCache {
                volume: first.clone(),
                given: given.contains(&noted.device),
                cache: noted.device,
                session: noted.session,
                dirty_bytes: noted.dirty_bytes,
                witness: file.display().to_string(),
            });
        }
        noted.without.extend(names);
        list.push((noted, file));
    }
    Ok(Missing { state: Some(state.clone()), list })
}
