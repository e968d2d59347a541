//! Commits make the logs of a part durable; settlements make the writes to its backing devices
//! durable.
//!
//! Both run in turns: all tasks and flushes that arrive while one is under way are served by the
//! next, whatever their number. A commit seals the pending changes of the logs, flushes the cache
//! device if some of them make data dirty, and then writes the logs. Changes logged meanwhile, of
//! data that the flush may not cover, belong to the next commit.

use std::collections::VecDeque;

use crate::cache::shards::{ROUTER, Shards};
use crate::geometry::VolumeId;
use crate::join::{Fault, RequestId};
use crate::locks::Turns;
use crate::order::{DeviceId, OpId, Order};
use crate::shard::Shard;

/// Position of the type of a router's operation in its id. Operations of type 0 are flushes of
/// requests.
const KIND_BITS: u32 = 48;

/// An operation of the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouterOp {
    /// A request's flush of the backing device.
    Request(u32),
    /// A commit's flush of the cache device.
    CommitFlush,
    /// A commit's writing of the logs.
    CommitWrite,
    /// A settlement's flush of a backing device.
    Settle(VolumeId),
}

impl RouterOp {
    pub(crate) fn op(self) -> OpId {
        let (kind, of) = match self {
            Self::Request(request) => (0, u64::from(request)),
            Self::CommitFlush => (1, 0),
            Self::CommitWrite => (2, 0),
            Self::Settle(volume) => (3, u64::from(volume.0)),
        };
        OpId(u64::from(ROUTER) << 56 | kind << KIND_BITS | of)
    }

    pub(crate) fn of(op: OpId) -> Self {
        match (op.0 >> KIND_BITS) as u8 {
            0 => Self::Request(op.0 as u32),
            1 => Self::CommitFlush,
            2 => Self::CommitWrite,
            _ => Self::Settle(VolumeId(op.0 as u16)),
        }
    }
}

/// The commits and settlements of a part.
#[derive(Debug, Default)]
pub(crate) struct Commits {
    /// Set if the cache has a journal.
    kept: bool,
    turns: Turns,
    wanted: bool,
    /// Set if the logs were opened with changes that are not durable yet: blocks removed when the
    /// cache was opened.
    inherited: bool,
    /// Set while a log is full; commits wait until its checkpoint has been written.
    put_off: bool,
    /// Set once a log could not be written.
    failed: bool,
    /// The way in which requests bypass a cache without a writable log, once that is decided.
    bypass: Option<Bypassing>,
    settlements: Vec<Settlements>,
}

/// The content that stays valid in a cache whose journal cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bypassing {
    /// Clean data is void at the next start; dirty data is valid.
    Clean {
        /// True if some dirty data could not be cleaned.
        stuck: bool,
    },
    /// The whole log is void at the next start.
    Retired,
}

#[derive(Debug, Default)]
struct Settlements {
    turns: Turns,
    wanted: bool,
}

/// The end of a commit or a settlement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    /// The volume of a settlement; `None` for a commit.
    pub(super) settled: Option<VolumeId>,
    pub(super) turn: u64,
    pub(super) result: Result<(), Fault>,
}

/// A message from the journal to the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JournalEvent {
    /// Pending changes of a log fill more than a quarter of its ring: a commit should begin soon.
    MuchNoted,
    /// A log that was full has room again.
    HasRoom,
    /// No checkpoint is under way or wanted. A commit that waits for room can start, unless no
    /// checkpoint can be written.
    NoCheckpoint,
    /// A checkpoint has failed: a log that was full stays full, and takes no more changes.
    CheckpointFailed,
}

impl Commits {
    pub(crate) fn new(kept: bool) -> Self {
        Self { kept, ..Self::default() }
    }

    fn of(&mut self, volume: VolumeId) -> &mut Settlements {
        let at = volume.0 as usize;
        self.settlements.resize_with(self.settlements.len().max(at + 1), Settlements::default);
        &mut self.settlements[at]
    }

    /// Requests a commit, and returns its number.
    pub(crate) fn want(&mut self) -> u64 {
        self.wanted = true;
        self.turns.next()
    }

    /// Requests a settlement of a volume's backing device, and returns its number.
    pub(crate) fn want_settlement(&mut self, volume: VolumeId) -> u64 {
        let settlements = self.of(volume);
        settlements.wanted = true;
        settlements.turns.next()
    }

    /// Returns whether the cache has a journal.
    #[inline]
    pub(super) fn is_kept(&self) -> bool {
        self.kept
    }

    /// Returns whether the way in which requests bypass the cache is decided.
    #[inline]
    pub(crate) fn is_bypassed(&self) -> bool {
        self.bypass.is_some()
    }

    /// Returns whether the bypass has reached its end: the whole log is void, or some dirty data
    /// stays for good.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self.bypass, Some(Bypassing::Retired | Bypassing::Clean { stuck: true }))
    }

    /// Returns whether commits have ended for good, since the whole log is void.
    pub(super) fn is_retired(&self) -> bool {
        self.bypass == Some(Bypassing::Retired)
    }

    /// Returns whether a log could not be written.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Returns whether the logs cannot be written while some of their content is still valid.
    pub(crate) fn is_lost(&self) -> bool {
        self.failed && !self.is_retired()
    }

    /// Returns whether a commit is under way or wanted.
    pub(super) fn is_busy(&self) -> bool {
        self.wanted || self.turns.is_under_way()
    }

    /// Returns whether no commit or settlement is under way or wanted.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_busy() && self.settlements.iter().all(|s| !s.wanted && !s.turns.is_under_way())
    }

    /// Handles a message from the journal. Returns whether waiting work may continue.
    pub(crate) fn hear(&mut self, news: JournalEvent, shards: &mut Shards) -> bool {
        match news {
            JournalEvent::MuchNoted if self.is_busy() || self.failed => return false,
            JournalEvent::MuchNoted => self.wanted = true,
            JournalEvent::HasRoom => self.put_off = false,
            _ if !self.put_off => return false,
            JournalEvent::NoCheckpoint if !shards.is_degraded() => self.put_off = false,
            JournalEvent::NoCheckpoint | JournalEvent::CheckpointFailed => {
                self.lose(shards);
                self.put_off = false;
            }
        }
        true
    }

    /// Handles the failure of a log. Tasks that wait for a commit now wait for the decision on the
    /// bypass.
    fn lose(&mut self, shards: &mut Shards) {
        (self.failed, self.wanted) = (true, true);
        shards.degrade(); // a cache that cannot keep what it takes is none
        shards.each().for_each(|shard| shard.parts.logging.lose());
    }

    /// Bypasses the journal: see [`crate::cache::BlockCache::bypass`].
    pub(crate) fn bypass(&mut self, stuck: bool, shards: &mut Shards, orders: &mut Vec<Order>) {
        if self.is_retired() {
            return;
        }
        self.lose(shards);
        (self.bypass, self.put_off) = (Some(Bypassing::Clean { stuck }), false);
        shards.each().for_each(|shard| shard.bypass(stuck, orders));
    }

    /// Retires the journal: see [`crate::cache::BlockCache::retire`].
    pub(crate) fn retire(&mut self, shards: &mut Shards, orders: &mut Vec<Order>) {
        self.lose(shards);
        (self.bypass, self.put_off) = (Some(Bypassing::Retired), false);
        shards.each().for_each(|shard| shard.retire(orders));
    }

    /// Requests settlements of the first `volumes` volumes, and the commit, that make more data
    /// survive a restart.
    pub(crate) fn want_all(&mut self, volumes: usize, shards: &Shards) {
        for volume in (0..=u16::MAX).map(VolumeId).take(volumes) {
            if shards.is_unsettled(volume) {
                self.want_settlement(volume);
            }
        }
        self.wanted |= self.has_unlogged(shards);
    }

    /// Returns whether a commit would make anything durable.
    pub(super) fn has_to_commit(&self, shards: &Shards) -> bool {
        self.inherited || shards.iter().any(|shard| shard.parts.logging.log.has_noted())
    }

    /// Returns whether a logged change would not survive a restart yet.
    pub(crate) fn has_unlogged(&self, shards: &Shards) -> bool {
        self.kept && !self.failed && self.has_to_commit(shards)
    }

    /// Records that opening the cache left pending changes in the logs of this part's shards.
    pub(crate) fn inherit(&mut self) {
        self.inherited = true;
    }

    /// Begins the commits and settlements that are wanted and not under way. Returns a commit that
    /// ended at once because the logs cannot be written.
    pub(crate) fn begin(&mut self, shards: &mut Shards, orders: &mut Vec<Order>) -> Option<Ended> {
        for (at, settlements) in self.settlements.iter_mut().enumerate() {
            if settlements.wanted && !settlements.turns.is_under_way() {
                settlements.wanted = false;
                settlements.turns.begin();
                let volume = VolumeId(at as u16);
                shards.each().for_each(|shard| shard.parts.logging.settlements.begin(volume));
                let op = RouterOp::Settle(volume).op();
                orders.push(Order::Flush { op, device: DeviceId::Backing(volume) });
            }
        }
        let must_wait = self.failed && self.bypass.is_none();
        if !self.wanted || self.turns.is_under_way() || self.put_off || must_wait {
            return None;
        }
        (self.wanted, self.inherited) = (false, false);
        self.turns.begin();
        let mut flushes = false;
        for shard in shards.each() {
            flushes |= shard.commit_begun(orders);
        }
        if self.failed {
            return Some(self.commit_ended(Err(Fault::Io), shards, orders));
        }
        orders.push(Order::SealLogs);
        orders.push(match flushes && !planted!(RecordBeforeData) {
            true => Order::Flush { op: RouterOp::CommitFlush.op(), device: DeviceId::Cache },
            false => Order::WriteLogs { op: RouterOp::CommitWrite.op() },
        });
        None
    }

    /// Handles the end of an operation of a commit or a settlement. Returns the commit or
    /// settlement, if it has ended.
    pub(crate) fn op_ended(
        &mut self,
        op: RouterOp,
        result: Result<(), Fault>,
        shards: &mut Shards,
        orders: &mut Vec<Order>,
    ) -> Option<Ended> {
        match (op, result) {
            (RouterOp::Settle(volume), _) => {
                let turn = self.of(volume).turns.end();
                shards.each().for_each(|shard| shard.settlement_ended(volume, result, orders));
                return Some(Ended { settled: Some(volume), turn, result });
            }
            // another part's log cannot be written: none is valid any more
            _ if self.failed => self.abandon(shards),
            (RouterOp::CommitWrite, Ok(())) => {
                return Some(self.commit_ended(result, shards, orders));
            }
            (_, Ok(())) => orders.push(Order::WriteLogs { op: RouterOp::CommitWrite.op() }),
            (RouterOp::CommitWrite, Err(Fault::NoSpace)) => {
                self.turns.end();
                (self.wanted, self.put_off) = (true, true);
                shards.each().for_each(|shard| shard.commit_put_off(orders));
            }
            (_, Err(_)) => {
                self.lose(shards);
                self.abandon(shards);
            }
        }
        None
    }

    /// Abandons the commit under way: the next one serves the tasks that wait for it.
    fn abandon(&mut self, shards: &mut Shards) {
        self.turns.end();
        self.wanted = true;
        shards.each().for_each(|shard| shard.parts.logging.log.abandon());
    }

    fn commit_ended(
        &mut self,
        result: Result<(), Fault>,
        shards: &mut Shards,
        orders: &mut Vec<Order>,
    ) -> Ended {
        let turn = self.turns.end();
        shards.each().for_each(|shard| shard.commit_ended(result, orders));
        Ended { settled: None, turn, result }
    }
}

/// A drain that this part works on.
#[derive(Debug, Clone, Copy)]
struct Drain {
    request: RequestId,
    volume: VolumeId,
    /// Set if all dirty data is to be cleaned, including data that the cache could keep.
    to_backing: bool,
    /// Set once the drain takes the loss of the journal into account, and need not wait for the
    /// bypass any more.
    is_checked: bool,
    stage: Stage,
    fault: Option<Fault>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Waiting for this many shards to drain.
    Shards(usize),
    /// Waiting for the settlement of this number, to be followed by a commit.
    Settling(u64),
    Committing(u64),
    /// Waiting for the decision on the bypass, as the journal cannot be written.
    Waiting,
}

/// The drains that a part works on.
#[derive(Debug, Default)]
pub(crate) struct Drains {
    drains: Vec<Drain>,
    /// Ended drains that were not returned yet, with their results.
    ended: VecDeque<(RequestId, Result<(), Fault>)>,
}

impl Drains {
    /// Drains all of this part's shards; with `to_backing`, data that the cache could keep is
    /// cleaned too.
    pub(crate) fn begin(
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
    pub(crate) fn take_ended(&mut self) -> Option<(RequestId, Result<(), Fault>)> {
        self.ended.pop_front()
    }

    /// Continues the drains that wait for the decision on the bypass, after a decision was made or
    /// has changed.
    ///
    /// While dirty data of the log is valid, the next start may write an older version of it than
    /// was flushed. So a drain waits until the whole log is void, unless some of its data stays for
    /// good ([`crate::cache::BlockCache::bypass`]).
    pub(crate) fn go_on_without_journal(
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
                self.flush_backing(request, shards, commits);
            }
        }
    }

    /// Makes a drain wait for the bypass if the journal was lost after the drain began. Returns
    /// whether it waits.
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

    /// Handles the end of a drain in one of this part's shards.
    pub(crate) fn drained(
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
            false => self.flush_backing(request, shards, commits),
        }
    }

    /// Makes a flush wait for a settlement of the volume's backing device, and then for a commit.
    fn flush_backing(&mut self, request: RequestId, shards: &Shards, commits: &mut Commits) {
        let drain = self.of(request);
        if shards.is_unsettled(drain.volume) {
            drain.stage = Stage::Settling(commits.want_settlement(drain.volume));
        } else {
            self.commit(request, shards, commits);
        }
    }

    /// Makes a flush wait for a commit, if one would make anything durable.
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

    /// Continues the drains that waited for the settlement or commit that has ended.
    pub(crate) fn go_on(&mut self, ended: Ended, shards: &Shards, commits: &mut Commits) {
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
