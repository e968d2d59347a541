//! The volumes that a server currently offers, with their ids, and the NBD and NVMe exports derived
//! from them.

use std::sync::Arc;

use floe_block::{CacheShare, VolumeId};
use floe_nbd::export::{Export, Exports, ExportsError};

use crate::admin::{Reply, Trouble};
use crate::status::VolumeFacts;
use crate::volume::Volume;
use crate::volume_clients::VolumeClients;
use crate::volume_limit::VolumeLimit;
use crate::volume_share;

/// A volume that the server offers, with its ids in the cache.
#[derive(Debug, Clone)]
pub(crate) struct Offered {
    /// The volume's id in the top tier, which requests use.
    pub(crate) id: VolumeId,
    /// The volume's id in each tier, from the top.
    pub(crate) ids: Vec<VolumeId>,
    pub(crate) volume: Volume,
    pub(crate) bytes: u64,
    /// The limit of the volume's requests, which changes while it is served.
    pub(crate) limit: Arc<VolumeLimit>,
    /// The clients of all volumes.
    pub(crate) clients: VolumeClients,
    /// The volume's shares in the tiers, from the top.
    pub(crate) shares: Vec<CacheShare>,
    /// The volume is being removed, and its clients are being disconnected.
    pub(crate) leaving: bool,
}

/// Returns the volumes that the status shows: all but those being removed.
pub(crate) fn facts(volumes: &[Offered]) -> Vec<VolumeFacts> {
    let facts = |offered: &Offered| VolumeFacts {
        id: offered.id,
        ids: offered.ids.clone(),
        name: offered.volume.name.clone(),
        bytes: offered.bytes,
        read_only: offered.volume.read_only,
        limit: offered.limit.limit(),
        refused: offered.clients.refused(&offered.volume.name),
        counted: offered.clients.counted(&offered.volume.name),
        share: offered.volume.share,
        shares: offered.shares.clone(),
    };
    volumes.iter().filter(|offered| !offered.leaving).map(facts).collect()
}

/// Checks that no volume has this name, including volumes that are being removed.
///
/// # Errors
/// The refusal for the admin client.
pub(crate) fn absent(volumes: &[Offered], name: &str) -> Result<(), Reply> {
    match volumes.iter().any(|offered| offered.volume.name == name) {
        true => {
            let problem = format!("there is a volume {name:?} already");
            Err(Reply::trouble(Trouble::Conflict, problem))
        }
        false => Ok(()),
    }
}

/// Finds a volume by name, unless it is being removed.
///
/// # Errors
/// The refusal for the admin client.
pub(crate) fn present<'a>(volumes: &'a [Offered], name: &str) -> Result<&'a Offered, Reply> {
    match volumes.iter().find(|offered| offered.volume.name == name) {
        None => Err(Reply::trouble(Trouble::NotFound, format!("there is no volume {name:?}"))),
        Some(offered) if offered.leaving => {
            Err(Reply::trouble(Trouble::Conflict, format!("volume {name:?} is being removed")))
        }
        Some(offered) => Ok(offered),
    }
}

/// All volumes of the server, the default one first, and the exports derived from them.
#[derive(Debug)]
pub(crate) struct Offer {
    volumes: Vec<Offered>,
    clients: VolumeClients,
    exports: Arc<Exports>,
}

impl Offer {
    /// Creates the offer of a starting server, from the volumes and their ids in the tiers, whose
    /// sizes are `tier_bytes`. Their limits of connections hold from now on.
    ///
    /// # Errors
    /// When a name occurs twice or a volume cannot be described to clients.
    pub(crate) fn new<'a>(
        volumes: impl Iterator<Item = (Vec<VolumeId>, &'a Volume)>,
        tier_bytes: &[u64],
        clients: VolumeClients,
    ) -> Result<Self, ExportsError> {
        let offered = volumes.map(|(ids, volume)| Offered {
            id: ids[0],
            ids,
            bytes: volume.backing.size_bytes(),
            limit: Arc::new(VolumeLimit::new(volume.limit.clone())),
            clients: clients.clone(),
            shares: Vec::new(),
            volume: volume.clone(),
            leaving: false,
        });
        let mut volumes: Vec<Offered> = offered.collect();
        let shares: Vec<_> = volumes.iter().map(|offered| offered.volume.share).collect();
        for bytes in tier_bytes {
            let fitting = volume_share::fit(&shares, *bytes);
            volumes.iter_mut().zip(fitting).for_each(|(offered, share)| offered.shares.push(share));
        }
        let exports = Arc::new(exports_of(&volumes)?);
        for Offered { volume, .. } in &volumes {
            clients.limit(&volume.name, volume.limit.connections);
        }
        Ok(Self { volumes, clients, exports })
    }

    pub(crate) fn exports(&self) -> &Arc<Exports> {
        &self.exports
    }

    /// Returns the clients of all volumes.
    pub(crate) fn clients(&self) -> &VolumeClients {
        &self.clients
    }

    /// Returns all volumes, including those that are being removed.
    pub(crate) fn all(&self) -> &[Offered] {
        &self.volumes
    }

    pub(crate) fn ids(&self) -> Vec<VolumeId> {
        self.volumes.iter().map(|offered| offered.id).collect()
    }

    /// Checks that a volume can be offered in addition to the present ones.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub(crate) fn check(&self, volume: &Volume) -> Result<(), ExportsError> {
        let more = Offered {
            id: VolumeId(u16::MAX),
            ids: Vec::new(),
            bytes: volume.backing.size_bytes(),
            limit: Arc::new(VolumeLimit::new(volume.limit.clone())),
            clients: self.clients.clone(),
            shares: Vec::new(),
            volume: volume.clone(),
            leaving: false,
        };
        // A leaving one keeps its name until it is gone.
        let all = self.volumes.iter().map(|offered| Offered { leaving: false, ..offered.clone() });
        exports_of(&all.chain([more]).collect::<Vec<_>>()).map(drop)
    }

    /// Changes the volumes, and derives the exports anew.
    ///
    /// # Errors
    /// When the changed volumes cannot be offered. Nothing has changed then.
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
        logical_block_bytes: offered.volume.block_size.bytes() as u32,
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
