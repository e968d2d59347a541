//! The note on a cache in the state directory.

use std::collections::BTreeMap;

use floe_block::Superblock;
use floe_device::{Identity, Likeness};
use serde::{Deserialize, Serialize};

use crate::volume::Volume;

/// Added to the noted generation of a cache that was passed by, so that earlier versions of Floe,
/// which know nothing of [`Noted::passed`], refuse it as an old copy.
pub(super) const UNWRITTEN: u64 = 1 << 20;

/// The note on a cache. Earlier versions of Floe noted the first two fields only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Noted {
    pub(super) session: u64,
    pub(super) generation: u64,
    /// The device refused its superblock, and requests go past the cache since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) passed: Option<Passed>,
    /// The name of its device.
    pub(super) device: String,
    /// The volumes it has.
    pub(super) volumes: Vec<NotedVolume>,
    /// It may have data that its volumes do not have.
    pub(super) dirty: bool,
    /// The dirty bytes, where the session has ended cleanly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dirty_bytes: Option<u64>,
    /// Names of volumes that were served without it since.
    pub(super) without: Vec<String>,
}

/// A cache that requests went past.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Passed {
    /// All of its dirty data was written back, and nothing in it is valid any more. Otherwise its
    /// dirty data is valid, and nothing else is.
    pub(super) retired: bool,
    /// The generation of the last superblock that the device took.
    pub(super) generation: u64,
}

/// A volume of a noted cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NotedVolume {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// The words of its device's identity.
    pub(super) identity: Vec<u64>,
    /// The name of its device.
    pub(super) backing: String,
}

impl Noted {
    /// Returns the note on a cache with this superblock. `backings` has the names of the volumes'
    /// devices.
    pub(super) fn of(superblock: &Superblock, backings: &BTreeMap<String, String>) -> Self {
        let volume = |volume: &floe_block::Volume| NotedVolume {
            name: volume.name.clone(),
            bytes: volume.bytes,
            identity: volume.identity.words().collect(),
            backing: backings.get(&volume.name).cloned().unwrap_or_default(),
        };
        Self {
            session: superblock.session,
            generation: superblock.generation,
            volumes: superblock.volumes.iter().map(volume).collect(),
            ..Self::default()
        }
    }

    /// Returns whether it has data of a volume: of this device, under whatever name. Where nothing
    /// identifies the device, its name, size and volume have to be the same.
    pub(super) fn has(&self, volume: &Volume) -> bool {
        let backing = &volume.backing;
        self.volumes.iter().any(|noted| {
            let identity = Identity::from_words(noted.identity.iter().copied());
            match identity.compare(&backing.identity()) {
                Likeness::Same => true,
                Likeness::Unknown => {
                    (&noted.name, noted.bytes, &noted.backing)
                        == (&volume.name, backing.size_bytes(), &backing.name())
                        && backing.name() != "memory"
                }
                Likeness::Other(_) | Likeness::OtherClass => false,
            }
        })
    }
}
