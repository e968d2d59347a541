//! Settings, counters and the condition of one tier.

use floe_device::Buffer;

use super::Tier;
use super::io_gate::IoGate;
use crate::cache::BlockCache;
use crate::engine::request::Request;
use crate::exchange::Exchange;
use crate::geometry::{Sectors, VolumeId};
use crate::stats::Stats;

impl Tier {
    /// Degrades the tier; see [`BlockCache::degrade`].
    pub fn degrade(&mut self) {
        self.cache.degrade();
    }

    /// Uses the cache device again; see [`BlockCache::restore`].
    pub fn restore(&mut self) {
        self.cache.restore();
    }

    /// Bypasses a cache whose journal cannot be written; see [`BlockCache::bypass`].
    pub fn bypass(&mut self, stuck: bool) {
        self.cache.bypass(stuck, &mut self.orders);
    }

    /// Retires the cache, so that nothing in its journal is valid; see [`BlockCache::retire`].
    pub fn retire(&mut self) {
        self.cache.retire(&mut self.orders);
    }

    /// Sets the share of the hits on the cache device that is read from the backing device; see
    /// [`BlockCache::shed`].
    pub fn shed(&mut self, share: f64) {
        self.cache.shed(share);
    }

    /// Sets the most dirty bytes of the tier; see [`BlockCache::limit_dirty`].
    pub fn limit_dirty(&mut self, bytes: u64) {
        self.cache.limit_dirty(bytes);
    }

    /// Returns the I/O gate below this tier.
    pub fn io_gate(&self) -> &IoGate {
        &self.io_gate
    }

    /// Returns the I/O gate below this tier, to shut or open it.
    pub fn io_gate_mut(&mut self) -> &mut IoGate {
        &mut self.io_gate
    }

    /// Moves the runs that this tier has found to be lost since the last call into `out`.
    pub fn take_newly_lost(&mut self, out: &mut Vec<(VolumeId, Sectors)>) {
        self.cache.shards.take_newly_lost(out);
    }

    /// Returns the cache.
    pub fn cache(&self) -> &BlockCache {
        &self.cache
    }

    /// Returns this tier's queues to the other parts. Those of all tiers of a part ring the same
    /// [`Bell`](crate::Bell).
    pub fn exchange(&self) -> Option<&Exchange> {
        self.exchange.as_ref()
    }

    /// Returns the counters of the cache.
    pub fn stats(&self) -> Stats {
        let mut stats = self.cache.stats();
        if let Some(pages) = &self.pages {
            pages.count(&mut stats);
        }
        if let Some(journal) = &self.journal {
            journal.count(&mut stats);
        }
        stats
    }

    /// Returns the failed operations of the cache device.
    pub fn device_errors(&self) -> u64 {
        self.device.watched.errors()
    }

    /// Returns whether the cache is persistent.
    pub(in crate::tiers) fn is_kept(&self) -> bool {
        self.journal.is_some()
    }

    /// Returns whether work waits that no completion will announce.
    pub(in crate::tiers) fn has_orders(&self) -> bool {
        let can_go_on = self.journal.as_ref().is_some_and(|journal| journal.can_go_on());
        !self.orders.is_empty() || can_go_on || self.io_gate.can_go_on()
    }

    /// Returns whether nothing is under way in this tier.
    pub fn is_at_rest(&self) -> bool {
        let is_idle = self.relays.is_empty() && self.cache.is_idle();
        let journal_is_idle = self.journal.as_ref().is_none_or(|journal| journal.is_idle());
        is_idle && journal_is_idle && self.orders.is_empty() && !self.io_gate.has_held()
    }

    /// Returns whether there is a memory tier.
    #[inline]
    pub fn has_memory(&self) -> bool {
        self.pages.is_some()
    }

    /// Answers reads from memory, on this thread, whichever thread owns the shards. Marks in
    /// `hits`, of equal length, the reads whose sectors are all in memory; their data is then in
    /// their buffers, which must be from [`Driver::buffer`](crate::Driver::buffer). The others can
    /// be [submitted](crate::Driver::submit) with their buffers, including those that reach beyond
    /// their volume.
    pub fn read_memory(&mut self, reads: &[(Request, Buffer)], hits: &mut [bool]) {
        let Some(pages) = &mut self.pages else { return };
        let is_within = |request: &Request| {
            let end = request.offset.checked_add(request.len);
            end.zip(self.cache.volume_bytes(request.volume)).is_some_and(|(end, size)| end <= size)
        };
        pages.read(reads, is_within, hits);
    }
}
