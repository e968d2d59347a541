//! Addition, removal and growth of volumes, in a driver and in the tiers below it.

use std::io;
use std::ops::Range;

use floe_device::{Device, Extent};

use super::Driver;
use crate::geometry::VolumeId;
use crate::volumes::VolumeError;

impl Driver {
    /// Adds a volume on a backing device, in all tiers; `name` is for the log. Returns this tier's
    /// id.
    pub fn add_volume(&mut self, name: &str, backing: Box<dyn Device>) -> VolumeId {
        let bytes = backing.size_bytes();
        let ground = match &mut self.below {
            Some(below) => Ground::Tier(below.driver_mut().add_volume(name, backing)),
            None => Ground::Device(backing),
        };
        let id = self.tier.add_volume(bytes);
        self.put_volume(id, name, ground);
        id
    }

    /// Adds a volume with given free ids, one for each tier from this one down: see
    /// [`BlockCache::add_volume_at`](crate::BlockCache::add_volume_at).
    ///
    /// # Panics
    /// Without an id for each tier, or when one is not free.
    pub fn add_volume_in(&mut self, ids: &[VolumeId], name: &str, backing: Box<dyn Device>) {
        let (&id, lower) = ids.split_first().expect("a volume has an id in each tier");
        let bytes = backing.size_bytes();
        let ground = match &mut self.below {
            Some(below) => {
                below.driver_mut().add_volume_in(lower, name, backing);
                Ground::Tier(lower[0])
            }
            None => Ground::Device(backing),
        };
        self.tier.add_volume_at(id, bytes);
        self.put_volume(id, name, ground);
    }

    /// Adds a volume as [`Driver::add_volume_in`] does, where there is one tier.
    ///
    /// # Panics
    /// When there are more, or the id is not free.
    pub fn add_volume_at(&mut self, id: VolumeId, name: &str, backing: Box<dyn Device>) {
        self.add_volume_in(&[id], name, backing);
    }

    /// Returns the ids of one of this tier's volumes, here and in each tier below, from the top.
    ///
    /// # Panics
    /// When there is no such volume.
    pub fn volume_ids(&self, id: VolumeId) -> Vec<VolumeId> {
        let below = self.below.as_ref().map(|below| below.driver().volume_ids(below.id(id)));
        std::iter::once(id).chain(below.into_iter().flatten()).collect()
    }

    fn put_volume(&mut self, id: VolumeId, name: &str, ground: Ground) {
        match (ground, &mut self.below) {
            (Ground::Device(device), _) => self.backings.add(id, name, device),
            (Ground::Tier(lower), Some(below)) => below.put_volume(id, lower),
            (Ground::Tier(_), None) => unreachable!("there is a tier below"),
        }
    }

    /// Removes a volume, with its backing device, in this part: see
    /// [`BlockCache::remove_volume`](crate::BlockCache::remove_volume).
    ///
    /// With tiers below, the volume is removed in the tier with this number, from 0 for this
    /// driver, and by this driver's id. Remove it tier by tier, each in all parts before the next.
    /// Otherwise a part that still has the volume may send requests for it to any other part below.
    ///
    /// # Errors
    /// As for `BlockCache::remove_volume`; the volume then stays in that tier.
    ///
    /// # Panics
    /// When there is no such tier, or the volume was never there.
    pub fn remove_volume(
        &mut self,
        tier: usize,
        id: VolumeId,
        discard: bool,
    ) -> Result<(), VolumeError> {
        if tier > 0 {
            let below = self.below.as_mut().expect("there is a tier of this number");
            let lower = below.id(id);
            return below.driver_mut().remove_volume(tier - 1, lower, discard);
        }
        self.tier.remove_volume(id, discard)?;
        self.backings.take(id);
        Ok(())
    }

    /// Grows a volume, after its backing device, in this part, the lowest tier first: see
    /// [`BlockCache::resize_volume`](crate::BlockCache::resize_volume).
    ///
    /// # Errors
    /// As for `BlockCache::resize_volume`, or when the device does not accept its new size; this
    /// tier's volume then keeps its size.
    pub fn resize_volume(&mut self, id: VolumeId, bytes: u64) -> io::Result<()> {
        if let Some(below) = &mut self.below {
            let lower = below.id(id);
            below.driver_mut().resize_volume(lower, bytes)?;
        }
        self.backings.set_size(id, bytes)?;
        self.tier.resize_volume(id, bytes).map_err(io::Error::other)
    }

    /// Adds the extents that the backing device of a volume reports for a range: in a row from its
    /// start, perhaps not to its end. Adds nothing for an unknown volume.
    pub fn allocation(&mut self, volume: VolumeId, range: Range<u64>, out: &mut Vec<Extent>) {
        match &mut self.below {
            Some(below) if self.tier.cache.volume_bytes(volume).is_some() => {
                let lower = below.id(volume);
                below.driver_mut().allocation(lower, range, out);
            }
            _ => self.backings.allocation(volume, range, out),
        }
    }
}

/// The storage below a volume.
enum Ground {
    Device(Box<dyn Device>),
    /// The tier below has it under this id.
    Tier(VolumeId),
}
