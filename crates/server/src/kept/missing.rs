//! Finds caches that the state directory knows of volumes, and that are not given: a cache whose
//! file system is not mounted, whose file was deleted, or that was left out.
//!
//! A missing cache that may hold dirty data is refused, since a new one would serve old data. One
//! that is clean is named in the log. Both are noted as passed by: when they come back, the data
//! they have of these volumes may be old.

use std::path::PathBuf;
use std::sync::Arc;

use floe_block::{KeptCache, StoreError};

use super::disk::Disk;
use super::noted::Noted;
use super::options::Consent;
use super::refusal::Refusal;
use super::start_error::StartError;
use super::state_dir::StateDir;
use crate::volume::{DeviceSource, Volume};

/// Caches that these volumes were served with, and are to be served without.
#[derive(Debug, Default)]
pub(crate) struct Missing {
    state: Option<StateDir>,
    list: Vec<(Noted, PathBuf)>,
}

impl Missing {
    /// Returns whether one of them may hold dirty data.
    pub(crate) fn is_dirty(&self) -> bool {
        self.list.iter().any(|(noted, _)| noted.dirty)
    }

    /// Notes that the volumes are served without them, and says so in the log.
    pub(crate) fn go_on(self) {
        let Some(state) = self.state else { return };
        for (noted, file) in self.list {
            let volumes = noted.without.join(", ");
            let (cache, file_name) = (&noted.device, file.display());
            match noted.dirty {
                true => tracing::warn!(
                    %cache, %volumes, note = %file_name,
                    "goes on without a cache that may hold what nothing else has, as \
                     --discard-dirty or --accept-backing says"
                ),
                false => tracing::warn!(
                    %cache, %volumes, note = %file_name,
                    "goes on without the cache that was served last: nothing is lost, for it held \
                     nothing that the volumes lack"
                ),
            }
            state.write(&file, &noted);
        }
    }
}

/// Finds the caches of these volumes that are not among `tiers`, the devices of persistent ones.
///
/// # Errors
/// When one may hold dirty data and the user has not agreed to lose it, or a device fails. Nothing
/// has been changed.
pub(crate) fn missing(
    state: Option<&StateDir>,
    volumes: &[Volume],
    tiers: &[Arc<dyn DeviceSource>],
    consent: Consent,
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
    let accepted = |id: &_| consent.discard_dirty || companions.contains(id);
    without(state, volumes, &there, accepted).map_err(StartError::from)
}

/// Finds the caches of these volumes that are not among those with the ids `there`.
///
/// # Errors
/// When one may hold dirty data and is not `accepted`.
pub(crate) fn without(
    state: &StateDir,
    volumes: &[Volume],
    there: &[[u8; 16]],
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
