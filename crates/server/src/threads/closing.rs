//! The end of a server whose workers have stopped.

use std::sync::Arc;

use floe_block::{Companion, VolumeId};

use super::dirty::Dirty;
use super::known_tier::{KnownTier, others};
use super::offer::Offered;
use crate::kept::{Keeper, StartError};
use crate::volume::DeviceSource;

/// The last step, once all workers have stopped: it records the clean shutdown of each tier that is
/// in order.
pub(super) struct Closing {
    in_order: Vec<InOrder>,
    lost: Option<String>,
}

/// A tier that is in order, and the backing devices of its volumes.
struct InOrder {
    keeper: Keeper,
    backings: Vec<(VolumeId, Arc<dyn DeviceSource>)>,
    /// Peer tiers that hold dirty data.
    companions: Vec<Companion>,
    dirty_bytes: u64,
}

impl Closing {
    /// Of the tiers and volumes at the end, of which so much is dirty, and `lost` for good.
    pub(super) fn new(
        tiers: Vec<KnownTier>,
        volumes: &[Offered],
        dirty: &Dirty,
        lost: Option<String>,
    ) -> Self {
        let all = tiers.iter().zip(&dirty.tiers);
        let all: Vec<_> = all.map(|(tier, bytes)| tier.companion(*bytes > 0)).collect();
        let in_order = |(at, tier): (usize, KnownTier)| {
            let keeper =
                tier.keeper.filter(|_| !tier.failing.degraded && !tier.failing.journal_lost)?;
            let backings = volumes.iter().map(|it| (it.ids[at], Arc::clone(&it.volume.backing)));
            let (backings, companions) = (backings.collect(), others(&all, at));
            let dirty_bytes = dirty.tiers.get(at).copied().unwrap_or_default();
            Some(InOrder { keeper, backings, companions, dirty_bytes })
        };
        Self { in_order: tiers.into_iter().enumerate().filter_map(in_order).collect(), lost }
    }

    /// Data that cannot be read any more, if there is any.
    pub(super) fn lost(&self) -> Option<String> {
        self.lost.clone()
    }

    /// Writes the clean shutdown to the tiers' superblocks.
    ///
    /// # Errors
    /// The first failure of a device; the other tiers' superblocks are written all the same.
    pub(super) fn finish(self) -> Result<(), StartError> {
        let ended = self
            .in_order
            .into_iter()
            .map(|it| it.keeper.end(&it.backings, Some(it.companions), it.dirty_bytes));
        ended.fold(Ok(()), Result::and)
    }
}
