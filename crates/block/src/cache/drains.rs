//! Drains: a part's share of a client's flush, or of cleaning all dirty data of a volume.
//!
//! In a volatile cache a flush *drains*: every shard writes its dirty data to the backing device,
//! which is then flushed once for all parts. In a persistent cache a flush leaves dirty data in
//! place. Unflushed data is written to the cache device, unflushed changes of the backing device
//! are settled, and the logs are committed, in this order.

use std::collections::VecDeque;

use super::commits::{Commits, Ended};
use super::shards::Shards;
use crate::engine::request::{Fault, RequestId};
use crate::geometry::VolumeId;
use crate::order::Order;
use crate::shard::Shard;

/// A drain that this part works on.
#[derive(Debug, Clone, Copy)]
struct Drain {
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

/// The drains that a part works on.
#[derive(Debug, Default)]
pub(super) struct Drains {
    drains: Vec<Drain>,
    /// Drains that have ended, with their results.
    ended: VecDeque<(RequestId, Result<(), Fault>)>,
}

impl Drains {
    /// Drains all of this part's shards; with `to_backing`, including data that the cache could
    /// keep.
    pub(super) fn begin(
        &mut self,
        request: RequestId,
        volume: VolumeId,
        to_backing: bool,
        shards: &mut Shards,
        commits: &Commits,
        orders: &mut Vec<Order>,
    ) {
        let is_checked = commits.is_retired();
        let stage = match commits.is_lost() {
            true => Stage::Waiting,
            false => Stage::Shards(shards.len()),
        };
        self.drains.push(Drain { request, volume, to_backing, is_checked, stage, fault: None });
        if stage != Stage::Waiting {
            let to_backing = to_backing || !commits.is_kept() || commits.is_retired();
            shards.each().for_each(|shard| shard.drain(request.0, volume, to_backing, orders));
        }
    }

    /// Returns a drain that has ended, with its result; each is returned once.
    #[inline]
    pub(super) fn take_ended(&mut self) -> Option<(RequestId, Result<(), Fault>)> {
        self.ended.pop_front()
    }

    /// Continues the drains that wait for the decision on the bypass, which was made or has
    /// changed.
    ///
    /// While dirty data of the log is valid, the next start may write an older version of it than
    /// was flushed. So a drain waits until the whole log is void, unless some of its data stays for
    /// good ([`super::BlockCache::bypass`]).
    pub(super) fn go_on_without_journal(
        &mut self,
        shards: &mut Shards,
        commits: &mut Commits,
        orders: &mut Vec<Order>,
    ) {
        if !commits.is_settled() {
            return;
        }
        for request in self.waiting(|drain| drain.stage == Stage::Waiting) {
            let drain = self.of(request);
            let Drain { volume, to_backing, .. } = *drain;
            if commits.is_retired() {
                (drain.stage, drain.fault) = (Stage::Shards(shards.len()), None);
                drain.is_checked = true;
                shards.each().for_each(|shard| shard.drain(request.0, volume, true, orders));
                continue;
            }
            let is_missing = |shard: &Shard| {
                shard.is_unsure_of(volume) || to_backing && shard.parts.map.has_dirty_of(volume)
            };
            if shards.iter().any(is_missing) {
                drain.fault = Some(Fault::Io);
                self.end(request);
            } else {
                drain.is_checked = true;
                self.settle(request, shards, commits);
            }
        }
    }

    /// Makes a drain wait that began before the journal was lost; returns whether it does.
    fn waits_without_journal(&mut self, request: RequestId, commits: &Commits) -> bool {
        let drain = self.of(request);
        let waits = commits.has_failed() && !drain.is_checked;
        if waits {
            drain.stage = Stage::Waiting;
        }
        waits
    }

    fn of(&mut self, request: RequestId) -> &mut Drain {
        let drain = self.drains.iter_mut().find(|drain| drain.request == request);
        drain.expect("a drain that goes on was begun")
    }

    /// Notes that one of this part's shards has drained.
    pub(super) fn drained(
        &mut self,
        request: RequestId,
        result: Result<(), Fault>,
        shards: &Shards,
        commits: &mut Commits,
    ) {
        let drain = self.of(request);
        drain.fault = drain.fault.or(result.err());
        let Stage::Shards(left) = drain.stage else { unreachable!("shards drain first") };
        drain.stage = Stage::Shards(left - 1);
        let failed = drain.fault.is_some();
        if left > 1 || self.waits_without_journal(request, commits) {
            return;
        }
        match failed || !commits.is_kept() {
            true => self.end(request),
            false => self.settle(request, shards, commits),
        }
    }

    /// Waits until the writes to a volume's backing device are durable, and then for a commit.
    fn settle(&mut self, request: RequestId, shards: &Shards, commits: &mut Commits) {
        let drain = self.of(request);
        if shards.is_unsettled(drain.volume) {
            drain.stage = Stage::Settling(commits.want_settlement(drain.volume));
        } else {
            self.commit(request, shards, commits);
        }
    }

    /// Waits for a commit, if one would make anything durable.
    fn commit(&mut self, request: RequestId, shards: &Shards, commits: &mut Commits) {
        if planted!(SkippedFlush) {
            return self.end(request);
        }
        if self.waits_without_journal(request, commits) {
            return;
        }
        if commits.has_failed() || !commits.is_busy() && !commits.has_to_commit(shards) {
            return self.end(request);
        }
        self.of(request).stage = Stage::Committing(commits.want());
    }

    /// Continues the drains that waited for a settlement or a commit that has ended.
    pub(super) fn go_on(&mut self, ended: Ended, shards: &Shards, commits: &mut Commits) {
        let Ended { settled, turn, result } = ended;
        let waited = |drain: &Drain| match drain.stage {
            Stage::Settling(due) => settled == Some(drain.volume) && due <= turn,
            Stage::Committing(due) => settled.is_none() && due <= turn,
            _ => false,
        };
        for request in self.waiting(waited) {
            match (settled, result) {
                (Some(_), Ok(())) => self.commit(request, shards, commits),
                (Some(_), Err(fault)) => {
                    self.of(request).fault = Some(fault);
                    self.end(request);
                }
                (None, Ok(())) => self.end(request),
                // the journal cannot be written
                (None, Err(_)) => self.of(request).stage = Stage::Waiting,
            }
        }
    }

    fn waiting(&self, waits: impl Fn(&Drain) -> bool) -> Vec<RequestId> {
        self.drains.iter().filter(|drain| waits(drain)).map(|drain| drain.request).collect()
    }

    fn end(&mut self, request: RequestId) {
        let at = self.drains.iter().position(|drain| drain.request == request);
        let ended = self.drains.swap_remove(at.expect("a drain that ends was begun"));
        self.ended.push_back((request, ended.fault.map_or(Ok(()), Err)));
    }
}
