//! The shard's side of its journal: what is noted in the log, and in which order it must become
//! durable.
//!
//! In a persistent cache, each change of the mapping is *noted*. It becomes a record in the shard's
//! log, durable with the next *commit* of the part (`cache/commits.rs`). *Settlements*
//! (`cache/commits.rs`) flush the backing device's own write cache. A task waits for either as for
//! an operation of a device.
//!
//! The state in memory never promises more than the log:
//!
//! - A sector is dirty here as long as the log may say so. It becomes clean, or goes away, when
//!   that is durable, after the backing device has been written *and settled*. So a place that the
//!   log calls dirty is never reused.
//! - Before the backing device changes under a clean copy, the log durably says that the copy is
//!   gone (`unlog`). Copies dropped earlier, for any reason, are remembered by region until that is
//!   durable (`gone`).
//! - Data read from a backing device that may still lose its last writes is not noted as clean
//!   before the device is settled (`deferred`). Until then it is cached, but would not survive a
//!   restart.
//! - A sector with a sealed dirty checksum in the log is not overwritten before the log permits it
//!   (`seal`).
//! - A clean copy may be overwritten in place, or its place be reused, at any time: the checksums
//!   in its record do not match the new content. Its removal is noted all the same. The device may
//!   lose the new content, and would then match the record again.
//! - The removal of a block is always noted: an older checkpoint and the log after it amount to the
//!   content of a newer checkpoint.

use super::bypass::{Bypass, LogState};
use super::log::Log;
use super::settlements::Settlements;
use crate::config::Config;
use crate::geometry::{BlockSizes, Place, Sectors, VolumeId};
use crate::mapping::Seals;
use crate::mapping::directory::{Block, Directory};
use crate::order::Order;
use crate::store::journal::{BlockAt, Change, Standing};

/// A shard's side of its journal.
#[derive(Debug)]
pub(crate) struct Logging {
    pub(crate) log: Log,
    pub(crate) settlements: Settlements,
    pub(crate) bypass: Bypass,
    pub(super) seals: Seals,
    sizes: BlockSizes,
}

/// Returns a block's position in the form used by the log.
pub(super) fn block_at(directory: &Directory, block: Block) -> BlockAt {
    let sectors = directory.blocks.sectors(block);
    let place = directory.blocks.cache_sectors(block, &sectors).start;
    BlockAt { volume: directory.blocks.volume(block), sectors, place }
}

impl Logging {
    /// Returns the state of the shard of this number, which has so many sectors.
    pub(super) fn new(config: &Config, number: u8, sectors: u64) -> Self {
        Self {
            log: Log::new(config.kept, number),
            settlements: Settlements::default(),
            bypass: Bypass::default(),
            seals: Seals::new(if config.kept { sectors } else { 0 }),
            sizes: config.sizes.clone(),
        }
    }

    /// Returns whether changes are noted: there is a log, and it can be written.
    pub(super) fn is_on(&self) -> bool {
        self.log.is_kept() && self.bypass.is_writable()
    }

    /// Returns whether the cache is persistent.
    pub(super) fn is_kept(&self) -> bool {
        self.log.is_kept()
    }

    /// Returns the bytes of memory held for seals.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.seals.memory_bytes()
    }

    /// Notes the new state of a run of a block.
    pub(super) fn note(
        &mut self,
        directory: &Directory,
        block: Block,
        run: &Sectors,
        standing: Standing,
        orders: &mut Vec<Order>,
    ) {
        if !self.is_kept() {
            return;
        }
        let at = block_at(directory, block);
        if standing.is_dirty() {
            self.bypass.note_unsure();
            self.log.note_dirty();
        }
        if standing == Standing::Invalid {
            self.note_gone(at.volume, run);
        }
        if !self.is_on() {
            return;
        }
        if standing != Standing::Clean {
            self.settlements.forget_deferred(at.volume, run);
        }
        self.seals.note(directory.blocks.cache_sectors(block, run), standing);
        self.log.note(Change::Run { block: at, run: run.clone(), standing }, orders);
    }

    /// Notes an overwrite of data that the log calls dirty, or will: the next commit has to flush
    /// it.
    pub(super) fn note_rewritten(&mut self) {
        if self.is_on() {
            self.log.note_rewritten();
        } else {
            self.bypass.note_unsure();
        }
    }

    /// Notes that copies in a run's region are gone. When the log has failed, the region stays
    /// registered: the log still has the copies.
    fn note_gone(&mut self, volume: VolumeId, run: &Sectors) {
        self.log.note_gone(self.sizes.region(volume, run.start));
    }

    /// Returns whether the log may still have valid copies in a region that are gone.
    pub(super) fn has_gone(&self, region: Place) -> bool {
        let counts = matches!(self.bypass.state(), LogState::Writable | LogState::Unwritable);
        self.is_kept() && counts && self.log.has_gone_in(region)
    }

    /// Notes a run as clean, at once or when the backing device holds it durably.
    pub(super) fn note_clean(
        &mut self,
        directory: &Directory,
        block: Block,
        run: &Sectors,
        orders: &mut Vec<Order>,
    ) {
        if self.is_on() && !self.settlements.defer(directory.blocks.volume(block), run) {
            self.note(directory, block, run, Standing::Clean, orders);
        }
    }

    /// Notes that a block leaves its place.
    pub(super) fn note_dropped(
        &mut self,
        directory: &Directory,
        block: Block,
        orders: &mut Vec<Order>,
    ) {
        if self.is_kept() {
            let at = block_at(directory, block);
            self.note_gone(at.volume, &at.sectors);
            if self.is_on() {
                self.seals.forget(directory.blocks.cache_sectors(block, &at.sectors));
                self.log.note(Change::Dropped { block: at }, orders);
            }
        }
    }

    /// Notes a change of a volume's backing device that is not durable.
    pub(crate) fn note_unsettled(&mut self, volume: VolumeId) {
        if self.is_kept() {
            self.settlements.note_unsettled(volume);
        }
    }

    /// Notes that the log cannot be written.
    pub(crate) fn lose(&mut self) {
        self.bypass.lose(self.log.has_uncommitted_dirty());
    }
}
