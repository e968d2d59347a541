//! A worker's part of a tier, before its device is open there.

use std::sync::Arc;
use std::time::Instant;

use floe_block::{BlockCache, Exchange, PartJournal, Tier};
use floe_device::{OpenError, Pool, Ring};

use super::tier::TierKey;
use crate::volume::DeviceSource;

/// A worker's part of a tier, before its device is open there.
#[derive(Debug)]
pub(super) struct TierPart {
    pub(super) key: TierKey,
    pub(super) cache: BlockCache,
    /// The journal of a persistent tier.
    pub(super) journal: Option<PartJournal>,
    /// The byte of the device at which the data of other tiers begins.
    pub(super) data_start: u64,
    pub(super) exchange: Exchange,
    pub(super) source: Arc<dyn DeviceSource>,
}

impl TierPart {
    /// Opens its device for a thread.
    pub(super) fn open(self, ring: &Ring, pool: &Pool) -> Result<Tier, OpenError> {
        let Self { cache, journal, data_start, exchange, source, .. } = self;
        let device = source.open(ring, pool)?;
        let tier = Tier::of_part(cache, device, pool.clone(), Some(exchange));
        Ok(tier.with_clock(Instant::now).with_data_at(data_start).with_journal(journal))
    }
}
