//! Orders about the journal, and to the cache device of a persistent cache.

use super::super::Driver;
use super::{Journal, PartJournal};
use crate::geometry::{Sectors, VolumeId};
use crate::order::{OpId, Order};
use floe_device::Slice;

impl Driver {
    /// Adds the journal that came with a [part](crate::KeptCache::begin) of a cache, before there
    /// are volumes.
    #[must_use]
    pub fn with_journal(mut self, journal: Option<PartJournal>) -> Self {
        if let Some(journal) = journal {
            self.data_start = journal.data_start;
            self.journal = Some(Journal::new(journal));
        }
        self
    }

    pub(crate) fn prepare_cache_write(&mut self, offset: u64, from: &Slice) {
        if let Some(journal) = &mut self.journal {
            journal.storing(offset, from);
        }
    }

    pub(crate) fn prepare_cache_read(&mut self, op: OpId, offset: u64, to: &Slice) {
        if let Some(journal) = &mut self.journal {
            journal.reading(op, offset, to);
        }
    }

    /// Notes the checksums of dirty data, in all tiers, so that the next session can verify it. To
    /// be called when nothing is under way in any tier, just before the end.
    pub fn note_rest(&mut self) {
        self.cache.note_rest(&mut self.orders);
        if let Some(below) = self.below_mut() {
            below.note_rest();
        }
    }

    /// Moves the runs that this tier has found to be lost since the last call into `out`.
    pub fn take_newly_lost(&mut self, out: &mut Vec<(VolumeId, Sectors)>) {
        self.cache.shards.take_newly_lost(out);
    }

    /// Executes an order about the logs.
    pub(crate) fn keep_journal(&mut self, order: Order) {
        match order {
            Order::WriteLogs { op } => self.write_logs(op),
            Order::SealLogs => self.journal.as_mut().expect("a kept cache has a journal").seal(),
            Order::Note { shard, noted } => {
                self.journal.as_mut().expect("a kept cache has a journal").note(shard, &noted.0);
            }
            _ => unreachable!("not about the logs"),
        }
    }
}
