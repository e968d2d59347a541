//! A part's share of a client's flush, and of bringing all that is dirty to the backing devices.
//!
//! In a volatile cache a flush *drains*: every shard brings what is dirty to the backing device, which is then flushed
//! once for all parts. In a cache that outlives the program a flush lets what is dirty stay where it is: what only memory holds
//! is brought to the cache device, changes that the backing device has taken unflushed are settled, and the logs are
//! committed, in this order.

use super::BlockCache;
use crate::geometry::VolumeId;
use crate::order::Order;
use crate::part::Message;
use crate::request::{Fault, RequestId};

/// A drain that this part works on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drain {
    request: RequestId,
    volume: VolumeId,
    stage: Stage,
    fault: Option<Fault>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// So many shards have not drained yet.
    Shards(usize),
    /// The settlement, and then the commit, that is waited for.
    Settling(u64),
    Committing(u64),
}

impl BlockCache {
    /// Lets all of this part's shards drain; with `to_backing`, whatever the cache could keep.
    pub(super) fn drain(
        &mut self,
        request: RequestId,
        volume: VolumeId,
        to_backing: bool,
        orders: &mut Vec<Order>,
    ) {
        let stage = Stage::Shards(self.shards.len());
        self.drains.push(Drain { request, volume, stage, fault: None });
        for shard in &mut self.shards {
            shard.drain(request.0, volume, to_backing || !self.kept, orders);
        }
        self.stirred = u128::MAX;
    }

    fn drain_of(&mut self, request: RequestId) -> &mut Drain {
        let drain = self.drains.iter_mut().find(|drain| drain.request == request);
        drain.expect("a drain that goes on was begun")
    }

    /// One of this part's shards has drained.
    pub(super) fn drained(&mut self, request: RequestId, result: Result<(), Fault>, orders: &mut Vec<Order>) {
        let drain = self.drain_of(request);
        drain.fault = drain.fault.or(result.err());
        let Stage::Shards(left) = drain.stage else { unreachable!("shards drain first") };
        drain.stage = Stage::Shards(left - 1);
        if left > 1 {
            return;
        }
        let (volume, failed) = (drain.volume, drain.fault.is_some());
        if failed || !self.kept {
            return self.end_drain(request, orders);
        }
        if self.shards.iter().any(|shard| shard.is_unsettled(volume)) {
            self.drain_of(request).stage = Stage::Settling(self.commits.want_settlement(volume));
        } else {
            self.commit_drain(request, orders);
        }
    }

    /// Waits for a commit, if there is anything that one would make durable.
    fn commit_drain(&mut self, request: RequestId, orders: &mut Vec<Order>) {
        if planted!(SkippedFlush) {
            return self.end_drain(request, orders);
        }
        if !self.commits.is_busy() && !self.has_to_commit() {
            return self.end_drain(request, orders);
        }
        self.drain_of(request).stage = Stage::Committing(self.commits.want());
    }

    /// A settlement has ended.
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

    /// A commit has ended.
    pub(super) fn drains_committed(
        &mut self,
        ended: u64,
        result: Result<(), Fault>,
        orders: &mut Vec<Order>,
    ) {
        for request in
            self.waiting_drains(|drain| matches!(drain.stage, Stage::Committing(due) if due <= ended))
        {
            match result {
                Ok(()) => self.end_drain(request, orders),
                Err(fault) => self.fail_drain(request, fault, orders),
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
