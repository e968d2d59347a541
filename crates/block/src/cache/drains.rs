//! Drains: a part's share of a client's flush, or of cleaning all dirty data of a volume.
//!
//! In a volatile cache a flush *drains*: every shard writes its dirty data to the backing device,
//! which is then flushed once for all parts. In a persistent cache a flush leaves dirty data in
//! place. Unflushed data is written to the cache device, unflushed changes of the backing device
//! are settled, and the logs are committed, in this order.

use super::BlockCache;
use super::commits::Bypassing;
use crate::engine::request::{Fault, RequestId};
use crate::geometry::VolumeId;
use crate::order::Order;
use crate::part::Message;
use crate::shard::Shard;

/// A drain that this part works on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drain {
    request: RequestId,
    volume: VolumeId,
    /// All dirty data is to be cleaned, including data that the cache could keep.
    to_backing: bool,
    /// Without a journal: dirty data was checked after the journal was lost.
    is_checked: bool,
    stage: Stage,
    fault: Option<Fault>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The number of shards that have not drained yet.
    Shards(usize),
    /// The settlement, and then the commit, that the drain waits for.
    Settling(u64),
    Committing(u64),
    /// The journal cannot be written, and the bypass is not decided yet.
    Waiting,
}

impl BlockCache {
    /// Drains all of this part's shards; with `to_backing`, including data that the cache could
    /// keep.
    pub(super) fn drain(
        &mut self,
        request: RequestId,
        volume: VolumeId,
        to_backing: bool,
        orders: &mut Vec<Order>,
    ) {
        let stage = Stage::Shards(self.shards.len());
        let is_checked = self.commits.is_retired();
        self.drains.push(Drain { request, volume, to_backing, is_checked, stage, fault: None });
        if self.commits.is_lost() {
            self.drain_of(request).stage = Stage::Waiting;
            return;
        }
        let to_backing = to_backing || !self.config.kept || self.commits.is_retired();
        for shard in &mut self.shards {
            shard.drain(request.0, volume, to_backing, orders);
        }
        self.stirred = u128::MAX;
    }

    /// Continues the drains that wait for the decision on the bypass, which was made or has
    /// changed.
    ///
    /// While dirty data of the log is valid, the next start may write an older version of it than
    /// was flushed. So a drain waits until the whole log is void, unless some of its data stays for
    /// good ([`BlockCache::bypass`]).
    pub(super) fn drains_without_journal(&mut self, orders: &mut Vec<Order>) {
        if !matches!(
            self.commits.bypass,
            Some(Bypassing::Retired | Bypassing::Clean { stuck: true })
        ) {
            return;
        }
        for request in self.waiting_drains(|drain| drain.stage == Stage::Waiting) {
            let Drain { volume, to_backing, .. } = *self.drain_of(request);
            if self.commits.is_retired() {
                let shards = self.shards.len();
                let drain = self.drain_of(request);
                (drain.stage, drain.fault, drain.is_checked) = (Stage::Shards(shards), None, true);
                for shard in &mut self.shards {
                    shard.drain(request.0, volume, true, orders);
                }
                self.stirred = u128::MAX;
                continue;
            }
            let is_missing = |shard: &Shard| match to_backing {
                true => shard.has_dirty_of(volume) || shard.is_unsure_of(volume),
                false => shard.is_unsure_of(volume),
            };
            match self.shards.iter().any(is_missing) {
                true => self.fail_drain(request, Fault::Io, orders),
                false => {
                    self.drain_of(request).is_checked = true;
                    self.settle_drain(request, volume, orders);
                }
            }
        }
    }

    /// Makes a drain wait that began before the journal was lost; returns whether it does.
    fn waits_without_journal(&mut self, request: RequestId) -> bool {
        let waits = self.commits.has_failed() && !self.drain_of(request).is_checked;
        if waits {
            self.drain_of(request).stage = Stage::Waiting;
        }
        waits
    }

    fn drain_of(&mut self, request: RequestId) -> &mut Drain {
        let drain = self.drains.iter_mut().find(|drain| drain.request == request);
        drain.expect("a drain that goes on was begun")
    }

    /// Notes that one of this part's shards has drained.
    pub(super) fn drained(
        &mut self,
        request: RequestId,
        result: Result<(), Fault>,
        orders: &mut Vec<Order>,
    ) {
        let drain = self.drain_of(request);
        drain.fault = drain.fault.or(result.err());
        let Stage::Shards(left) = drain.stage else { unreachable!("shards drain first") };
        drain.stage = Stage::Shards(left - 1);
        if left > 1 {
            return;
        }
        let (volume, failed) = (drain.volume, drain.fault.is_some());
        if self.waits_without_journal(request) {
            return;
        }
        if failed || !self.config.kept {
            return self.end_drain(request, orders);
        }
        self.settle_drain(request, volume, orders);
    }

    /// Waits until the writes to a volume's backing device are durable, and then for a commit.
    fn settle_drain(&mut self, request: RequestId, volume: VolumeId, orders: &mut Vec<Order>) {
        if self.shards.iter().any(|shard| shard.is_unsettled(volume)) {
            self.drain_of(request).stage = Stage::Settling(self.commits.want_settlement(volume));
        } else {
            self.commit_drain(request, orders);
        }
    }

    /// Waits for a commit, if one would make anything durable.
    fn commit_drain(&mut self, request: RequestId, orders: &mut Vec<Order>) {
        if planted!(SkippedFlush) {
            return self.end_drain(request, orders);
        }
        if self.waits_without_journal(request) {
            return;
        }
        if self.commits.has_failed() || !self.commits.is_busy() && !self.has_to_commit() {
            return self.end_drain(request, orders);
        }
        self.drain_of(request).stage = Stage::Committing(self.commits.want());
    }

    /// Continues the drains that waited for a settlement.
    pub(super) fn drains_settled(
        &mut self,
        volume: VolumeId,
        ended: u64,
        result: Result<(), Fault>,
        orders: &mut Vec<Order>,
    ) {
        let waited = |drain: &Drain| {
            drain.volume == volume && matches!(drain.stage, Stage::Settling(due) if due <= ended)
        };
        for request in self.waiting_drains(waited) {
            match result {
                Ok(()) => self.commit_drain(request, orders),
                Err(fault) => self.fail_drain(request, fault, orders),
            }
        }
    }

    /// Continues the drains that waited for a commit.
    pub(super) fn drains_committed(
        &mut self,
        ended: u64,
        result: Result<(), Fault>,
        orders: &mut Vec<Order>,
    ) {
        for request in self
            .waiting_drains(|drain| matches!(drain.stage, Stage::Committing(due) if due <= ended))
        {
            match result {
                Ok(()) => self.end_drain(request, orders),
                // the journal cannot be written
                Err(_) => self.drain_of(request).stage = Stage::Waiting,
            }
        }
    }

    fn waiting_drains(&self, waits: impl Fn(&Drain) -> bool) -> Vec<RequestId> {
        self.drains.iter().filter(|drain| waits(drain)).map(|drain| drain.request).collect()
    }

    fn fail_drain(&mut self, request: RequestId, fault: Fault, orders: &mut Vec<Order>) {
        self.drain_of(request).fault = Some(fault);
        self.end_drain(request, orders);
    }

    fn end_drain(&mut self, request: RequestId, orders: &mut Vec<Order>) {
        let at = self.drains.iter().position(|drain| drain.request == request);
        let ended = self.drains.swap_remove(at.expect("a drain that ends was begun"));
        let result = ended.fault.map_or(Ok(()), Err);
        self.tell(Message::Drained { request, result }, request, orders);
    }
}
