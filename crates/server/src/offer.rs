//! The volumes that a server offers at a moment, by number, and the exports made from them.

use std::sync::Arc;

use floe_block::VolumeId;
use floe_nbd::export::{Export, Exports, ExportsError};

use crate::admin::{Reply, Trouble};
use crate::status::VolumeFacts;
use crate::volume::Volume;

/// A volume with its number in the cache.
#[derive(Debug, Clone)]
pub(crate) struct Offered {
    /// Its id in the tier at the top, which requests use.
    pub(crate) id: VolumeId,
    /// Its id in each tier, from the top.
    pub(crate) ids: Vec<VolumeId>,
    pub(crate) volume: Volume,
    pub(crate) bytes: u64,
    /// Its clients are being sent away, and it will be forgotten.
    pub(crate) leaving: bool,
}

/// The volumes as the status tells of them: those that stay.
pub(crate) fn facts(volumes: &[Offered]) -> Vec<VolumeFacts> {
    let facts = |offered: &Offered| VolumeFacts {
        id: offered.id,
        ids: offered.ids.clone(),
        name: offered.volume.name.clone(),
        bytes: offered.bytes,
        read_only: offered.volume.read_only,
    };
    volumes.iter().filter(|offered| !offered.leaving).map(facts).collect()
}

/// Refuses the name of a volume that is there, also of one that is leaving.
pub(crate) fn absent(volumes: &[Offered], name: &str) -> Result<(), Reply> {
    match volumes.iter().any(|offered| offered.volume.name == name) {
        true => {
            let problem = format!("there is a volume {name:?} already");
            Err(Reply::trouble(Trouble::Conflict, problem))
        }
        false => Ok(()),
    }
}

/// The volume of this name, if it is there and stays.
pub(crate) fn present<'a>(volumes: &'a [Offered], name: &str) -> Result<&'a Offered, Reply> {
    match volumes.iter().find(|offered| offered.volume.name == name) {
        None => Err(Reply::trouble(Trouble::NotFound, format!("there is no volume {name:?}"))),
        Some(offered) if offered.leaving => {
            Err(Reply::trouble(Trouble::Conflict, format!("volume {name:?} is being removed")))
        }
        Some(offered) => Ok(offered),
    }
}

/// All volumes, the default one first.
#[derive(Debug)]
pub(crate) struct Offer {
    volumes: Vec<Offered>,
    exports: Arc<Exports>,
}

impl Offer {
    /// The volumes a server begins with, by their numbers in the tiers.
    ///
    /// # Errors
    /// When a name is taken twice or a volume cannot be described to clients.
    pub(crate) fn new<'a>(
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

    pub(crate) fn exports(&self) -> &Arc<Exports> {
        &self.exports
    }

    /// All of them, also those that are leaving.
    pub(crate) fn all(&self) -> &[Offered] {
        &self.volumes
    }

    pub(crate) fn ids(&self) -> Vec<VolumeId> {
        self.volumes.iter().map(|offered| offered.id).collect()
    }

    /// Checks that a volume can be offered beside the others.
    ///
    /// # Errors
    /// Why it cannot.
    pub(crate) fn check(&self, volume: &Volume) -> Result<(), ExportsError> {
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
    pub(crate) fn change(
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
    Exports::new(
        volumes
            .iter()
            .filter(|offered| !offered.leaving && offered.volume.reach.has_clients())
            .map(export)
            .collect(),
    )
}
