//! The stack of tiers: access to each, and a tier attached or detached while those above go on.
//!
//! A tier is exchanged behind the shut [I/O gate](crate::IoGate) of the one above. An attached tier
//! is empty, so it has no old data. It treats the backing devices as unflushed: the tier above has
//! written there, and its next flush ends at the new tier. A tier to be detached must have no dirty
//! data: its own drain, [`Driver::drain_below`], passes the shut gate.

use super::Driver;
use super::below::Below;
use crate::geometry::VolumeId;
use crate::tiers::tier::Tier;

impl Driver {
    /// Returns the tier at the top.
    #[inline]
    pub fn top(&self) -> &Tier {
        &self.tier
    }

    /// Returns the tier at the top, for operations on that tier alone.
    #[inline]
    pub fn top_mut(&mut self) -> &mut Tier {
        &mut self.tier
    }

    /// Returns the tiers, from the top.
    pub fn tiers(&self) -> impl Iterator<Item = &Tier> {
        let drivers = std::iter::successors(Some(self), |driver| {
            driver.below.as_ref().map(|below| below.driver())
        });
        drivers.map(|driver| &driver.tier)
    }

    /// Returns the tier with this number, from 0 for the top, for operations on that tier alone.
    pub fn tier_mut(&mut self, number: usize) -> Option<&mut Tier> {
        self.driver_of(number).map(|driver| &mut driver.tier)
    }

    /// Calls `act` for each tier, from the top.
    pub(super) fn each_tier(&mut self, act: impl Fn(&mut Tier)) {
        let mut next = Some(self);
        while let Some(driver) = next {
            act(&mut driver.tier);
            next = driver.below.as_mut().map(|below| below.driver_mut());
        }
    }

    /// Returns the driver of the tier with this number and those below it.
    fn driver_of(&mut self, number: usize) -> Option<&mut Self> {
        (0..number)
            .try_fold(self, |driver, _| driver.below.as_mut().map(|below| below.driver_mut()))
    }

    /// Returns the driver of the lowest tier.
    pub(super) fn lowest(&self) -> &Self {
        self.below.as_ref().map_or(self, |below| below.driver().lowest())
    }

    /// Drains a volume in the tier below the one with the number `above` only, durably, even
    /// through a shut I/O gate. The volume has the upper tier's id. That tier's gate
    /// ([`IoGate::take_drained`](crate::IoGate::take_drained)) reports the end by this number.
    ///
    /// # Panics
    /// When there is no tier below that one.
    pub fn drain_below(&mut self, above: usize, volume: VolumeId, number: u32) {
        let upper = self.driver_of(above).expect("there is a tier of this number");
        upper.tier.io_gate.begun();
        let below = upper.below.as_mut().expect("there is a tier below");
        below.drain_it_alone(volume, number);
    }

    /// Attaches an empty tier below the one with the number `above`; `ids` has its id of each of
    /// that tier's volumes. To be done in all parts alike, when the I/O gate is shut in all and
    /// quiet in all.
    ///
    /// # Panics
    /// When the I/O gate is not shut and quiet here, an id is not free, or there is no such tier.
    pub fn put_below(&mut self, above: usize, newcomer: Tier, ids: &[(VolumeId, VolumeId)]) {
        let upper = self.driver_of(above).expect("there is a tier of this number");
        assert!(upper.tier.io_gate.is_shut_and_quiet(), "a tier is put where nothing is under way");
        let mut newcomer = Self::new(newcomer);
        for (id, new) in ids {
            let bytes = upper.tier.cache.volume_bytes(*id).expect("the volume is in this tier");
            newcomer.tier.add_volume_at(*new, bytes);
            // The upper tier has written there, and relies on the new tier to have it flushed.
            newcomer.tier.cache.shards.note_unsettled(*new);
        }
        match upper.below.take() {
            Some(lower) => {
                let ids: Vec<_> = ids.iter().map(|(id, new)| (*new, lower.id(*id))).collect();
                newcomer.below = Some(Box::new(Below::new(lower.into_driver(), &ids)));
            }
            None => {
                for (id, new) in ids {
                    newcomer.backings.put(*new, upper.backings.take(*id));
                }
            }
        }
        upper.below = Some(Box::new(Below::new(newcomer, ids)));
    }

    /// Detaches the tier below the one with the number `above`, which then uses the tier or devices
    /// below that one. To be done in all parts alike, when the I/O gate is shut and quiet in all,
    /// and the tier to detach [at rest](Tier::is_at_rest) in all.
    ///
    /// # Panics
    /// When there is no such tier, something is under way, or the tier has dirty data.
    pub fn take_below(&mut self, above: usize) -> Tier {
        let upper = self.driver_of(above).expect("there is a tier of this number");
        assert!(
            upper.tier.io_gate.is_shut_and_quiet(),
            "a tier is taken from where nothing is under way"
        );
        let below = upper.below.take().expect("there is a tier below");
        let ids: Vec<_> =
            below.ids().filter(|(id, _)| upper.tier.cache.volume_bytes(*id).is_some()).collect();
        let mut gone = below.into_driver();
        assert!(
            gone.tier.is_at_rest() && !gone.tier.cache.condition().has_dirty_data(),
            "a tier goes when it has brought all down"
        );
        match gone.below.take() {
            Some(lower) => {
                let ids: Vec<_> = ids.iter().map(|(id, gone)| (*id, lower.id(*gone))).collect();
                upper.below = Some(Box::new(Below::new(lower.into_driver(), &ids)));
            }
            None => {
                for (id, gone_id) in ids {
                    upper.backings.put(id, gone.backings.take(gone_id));
                }
            }
        }
        gone.tier
    }
}
