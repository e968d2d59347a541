//! What a server offers at a moment: its volumes by number, and the list of exports made from them.

use std::sync::Arc;

use floe_block::VolumeId;

use super::volume::Volume;
use crate::nbd::export::{Export, Exports, ExportsError};
use crate::status::VolumeFacts;

/// A volume with its number in the cache.
#[derive(Debug, Clone)]
pub(super) struct Offered {
    /// In the tier at the top, for which requests are.
    pub(super) id: VolumeId,
    /// In each tier, from the top.
    pub(super) ids: Vec<VolumeId>,
    pub(super) volume: Volume,
    pub(super) bytes: u64,
    /// Its clients are being sent away, and it will be forgotten.
    pub(super) leaving: bool,
}

/// All volumes, the default one first.
#[derive(Debug)]
pub(super) struct Offer {
    volumes: Vec<Offered>,
    exports: Arc<Exports>,
}

impl Offer {
    /// The volumes a server begins with, by their numbers in the tiers.
    ///
    /// # Errors
    /// When a name is taken twice or a volume cannot be described to clients.
    pub(super) fn new<'a>(
        volumes: impl Iterator<Item = (Vec<VolumeId>, &'a Volume)>,
    ) -> Result<Self, ExportsError> {
        let offered = volumes.map(|(ids, volume)| Offered {
            id: ids[0],
            ids,
            bytes: volume.backing.size_bytes(),
            volume: volume.clone(),
            leaving: false,
        });
        let volumes: Vec<Offered> = offered.collect();
        let exports = Arc::new(exports_of(&volumes)?);
        Ok(Self { volumes, exports })
    }

    pub(super) fn exports(&self) -> &Arc<Exports> {
        &self.exports
    }

    /// All of them, also those that are leaving.
    pub(super) fn all(&self) -> &[Offered] {
        &self.volumes
    }

    pub(super) fn ids(&self) -> Vec<VolumeId> {
        self.volumes.iter().map(|offered| offered.id).collect()
    }

    pub(super) fn facts(&self) -> Vec<VolumeFacts> {
        let facts = |offered: &Offered| VolumeFacts {
            id: offered.id,
            ids: offered.ids.clone(),
            name: offered.volume.name.clone(),
            bytes: offered.bytes,
            read_only: offered.volume.read_only,
        };
        self.volumes.iter().filter(|offered| !offered.leaving).map(facts).collect()
    }

    /// The volume of this name, also one that is leaving.
    pub(super) fn named(&self, name: &str) -> Option<&Offered> {
        self.volumes.iter().find(|offered| offered.volume.name == name)
    }

    /// The volume with this number.
    pub(super) fn get(&self, id: VolumeId) -> Option<&Offered> {
        self.volumes.iter().find(|offered| offered.id == id)
    }

    /// Whether a volume could be offered beside the others.
    ///
    /// # Errors
    /// Why it cannot.
    pub(super) fn check(&self, volume: &Volume) -> Result<(), ExportsError> {
        let more = Offered {
            id: VolumeId(u16::MAX),
            ids: Vec::new(),
            bytes: volume.backing.size_bytes(),
            volume: volume.clone(),
            leaving: false,
        };
        // A leaving one keeps its name until it is gone.
        let all = self.volumes.iter().map(|offered| Offered { leaving: false, ..offered.clone() });
        exports_of(&all.chain([more]).collect::<Vec<_>>()).map(drop)
    }

    /// Changes the volumes; the exports follow.
    ///
    /// # Errors
    /// When a volume cannot be offered so. Nothing has changed then.
    pub(super) fn change(
        &mut self,
        change: impl FnOnce(&mut Vec<Offered>),
    ) -> Result<(), ExportsError> {
        let mut volumes = self.volumes.clone();
        change(&mut volumes);
        self.exports = Arc::new(exports_of(&volumes)?);
        self.volumes = volumes;
        Ok(())
    }
}

fn exports_of(volumes: &[Offered]) -> Result<Exports, ExportsError> {
    let export = |offered: &Offered| Export {
        volume: offered.id.0,
        description: offered.volume.description.clone(),
        read_only: offered.volume.read_only,
        ..Export::new(offered.volume.name.clone(), offered.bytes)
    };
    Exports::new(volumes.iter().filter(|offered| !offered.leaving).map(export).collect())
}
