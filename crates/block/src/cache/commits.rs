//! Commits make the logs of a part durable; settlements make the writes to its backing devices
//! durable.
//!
//! Both run in turns: all tasks and flushes that arrive while one is under way are served by the
//! next, whatever their number. A commit seals the changes that the logs have in memory, flushes
//! the cache device if some of them make data dirty, and then writes the logs. Changes noted
//! meanwhile, of data that the flush may not cover, belong to the next commit.

use super::{BlockCache, ROUTER};
use crate::engine::request::Fault;
use crate::engine::turns::Turns;
use crate::geometry::{SECTOR_BYTES, VolumeId};
use crate::order::{DeviceId, OpId, Order};
use crate::shard::Shard;

/// Bits below the type of a router's operation. The operations of type 0 are flushes of requests.
const KIND_BITS: u32 = 48;

/// An operation of the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RouterOp {
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
    pub(super) fn op(self) -> OpId {
        let (kind, of) = match self {
            Self::Request(request) => (0, u64::from(request)),
            Self::CommitFlush => (1, 0),
            Self::CommitWrite => (2, 0),
            Self::Settle(volume) => (3, u64::from(volume.0)),
        };
        OpId(u64::from(ROUTER) << 56 | kind << KIND_BITS | of)
    }

    pub(super) fn of(op: OpId) -> Self {
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
pub(super) struct Commits {
    turns: Turns,
    wanted: bool,
    /// The logs came with changes that are not durable yet: blocks removed when the cache was
    /// opened.
    inherited: bool,
    /// A log was full; commits wait until its checkpoint has been written.
    put_off: bool,
    /// A log could not be written.
    failed: bool,
    /// The way in which requests bypass the cache then, once that is decided.
    pub(super) bypass: Option<Bypassing>,
    settlements: Vec<Settlements>,
}

/// The state of a cache whose journal cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bypassing {
    /// Clean data is void at the next start.
    Clean {
        /// Some dirty data could not be cleaned.
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

impl Commits {
    fn of(&mut self, volume: VolumeId) -> &mut Settlements {
        let at = volume.0 as usize;
        self.settlements.resize_with(self.settlements.len().max(at + 1), Settlements::default);
        &mut self.settlements[at]
    }

    /// Requests a commit, and returns its number.
    pub(super) fn want(&mut self) -> u64 {
        self.wanted = true;
        self.turns.next()
    }

    pub(super) fn want_settlement(&mut self, volume: VolumeId) -> u64 {
        let settlements = self.of(volume);
        settlements.wanted = true;
        settlements.turns.next()
    }

    /// Returns whether commits have ended for good, since the whole log is void.
    pub(super) fn is_retired(&self) -> bool {
        self.bypass == Some(Bypassing::Retired)
    }

    /// Returns whether a log could not be written.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Returns whether the logs cannot be written and are still valid.
    pub(super) fn is_lost(&self) -> bool {
        self.failed && !self.is_retired()
    }

    /// Returns whether a commit is under way or wanted.
    pub(super) fn is_busy(&self) -> bool {
        self.wanted || self.turns.is_under_way()
    }

    /// Returns whether no commit or settlement is under way or wanted.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_busy() && self.settlements.iter().all(|s| !s.wanted && !s.turns.is_under_way())
    }
}

impl BlockCache {
    /// Requests a commit because much is noted, unless one is under way or commits have failed.
    pub(crate) fn commit_soon(&mut self, orders: &mut Vec<Order>) {
        if !self.commits.is_busy() && !self.commits.failed {
            self.commits.want();
            self.handle_events(orders);
        }
    }

    /// Notes that a log that was full has room again.
    pub(crate) fn log_has_room(&mut self, orders: &mut Vec<Order>) {
        self.commits.put_off = false;
        self.handle_events(orders);
    }

    /// Handles the absence of a checkpoint, under way or wanted. A commit that waits for room has
    /// it, unless no checkpoint can be written.
    pub(crate) fn no_checkpoint_to_come(&mut self, orders: &mut Vec<Order>) {
        if self.commits.put_off && self.degraded {
            self.checkpoint_failed(orders);
        } else if self.commits.put_off {
            self.log_has_room(orders);
        }
    }

    /// Handles a failed checkpoint: a log that was full stays full, and takes no more changes.
    pub(crate) fn checkpoint_failed(&mut self, orders: &mut Vec<Order>) {
        if self.commits.put_off {
            self.lose_journal();
            self.log_has_room(orders);
        }
    }

    /// Notes that a log cannot be written. Tasks that wait for a commit wait for the decision on
    /// the bypass.
    fn lose_journal(&mut self) {
        (self.commits.failed, self.commits.wanted) = (true, true);
        self.degrade(); // a cache that cannot keep what it takes is none
        self.shards.iter_mut().for_each(Shard::lose_log);
    }

    /// Bypasses a cache whose journal cannot be written, in this part: the next start drops its
    /// clean data, unless that could not be recorded. Dirty data is cleaned now, and writes that
    /// wait for that continue. `stuck` says that some dirty data cannot be cleaned in some part,
    /// and that writes to it are to be refused.
    ///
    /// To be called for all parts alike, including those that could write their logs.
    pub fn bypass(&mut self, stuck: bool, orders: &mut Vec<Order>) {
        if self.commits.is_retired() {
            return;
        }
        self.lose_journal();
        self.commits.bypass = Some(Bypassing::Clean { stuck });
        self.shards.iter_mut().for_each(|shard| shard.bypass(stuck, orders));
        self.go_on_without_journal(orders);
    }

    /// Retires the cache in this part: the next start uses none of its data. All dirty data must
    /// have been [cleaned](BlockCache::is_emptied) in all parts.
    pub fn retire(&mut self, orders: &mut Vec<Order>) {
        self.lose_journal();
        self.commits.bypass = Some(Bypassing::Retired);
        self.shards.iter_mut().for_each(|shard| shard.retire(orders));
        self.go_on_without_journal(orders);
    }

    fn go_on_without_journal(&mut self, orders: &mut Vec<Order>) {
        self.commits.put_off = false;
        self.stirred = u128::MAX;
        self.handle_events(orders);
    }

    /// Returns whether requests bypass the journal since it could not be written.
    pub fn is_bypassed(&self) -> bool {
        self.commits.bypass.is_some()
    }

    /// Returns whether nothing in this part is dirty below memory.
    pub fn is_emptied(&self) -> bool {
        self.shards.iter().all(|shard| shard.directory.dirty_sectors() == 0)
    }

    /// Returns whether dirty data could not be cleaned since the journal could not be written.
    pub fn is_blocked(&self) -> bool {
        self.commits.is_lost() && self.shards.iter().any(Shard::is_blocked)
    }

    /// Returns an upper bound of the bytes with refused requests: data of this part's shards that
    /// is lost, unreadable, or cannot be replaced.
    pub fn refused_bytes(&self) -> u64 {
        self.shards.iter().map(Shard::refused_sectors).sum::<u64>() * SECTOR_BYTES
    }

    /// Requests the settlements and the commit that make more data survive a restart.
    pub(super) fn settle_and_commit(&mut self) {
        for volume in (0..=u16::MAX).map(VolumeId).take(self.volumes.ids()) {
            if self.shards.iter().any(|shard| shard.is_unsettled(volume)) {
                self.commits.want_settlement(volume);
            }
        }
        if self.has_unlogged() {
            self.commits.want();
        }
    }

    /// Returns whether a noted change would not survive a restart yet.
    pub fn has_unlogged(&self) -> bool {
        self.config.kept && !self.commits.failed && self.has_to_commit()
    }

    /// Returns whether a commit would make anything durable.
    pub(super) fn has_to_commit(&self) -> bool {
        self.commits.inherited || self.shards.iter().any(|shard| shard.has_noted())
    }

    /// Notes that the logs of this part's shards have changes that no shard has noted.
    pub(crate) fn inherit_unlogged(&mut self) {
        self.commits.inherited = true;
    }

    /// Returns whether the journal could not be written: its content is fixed, and the data it
    /// describes must stay.
    pub fn has_lost_journal(&self) -> bool {
        self.commits.failed
    }

    /// Begins the commits and settlements that are wanted and not under way. Returns whether a
    /// commit has ended at once, because the logs cannot be written.
    pub(super) fn begin_commits(&mut self, orders: &mut Vec<Order>) -> bool {
        for at in 0..self.commits.settlements.len() {
            let settlements = &mut self.commits.settlements[at];
            if settlements.wanted && !settlements.turns.is_under_way() {
                settlements.wanted = false;
                settlements.turns.begin();
                let volume = VolumeId(at as u16);
                self.shards.iter_mut().for_each(|shard| shard.settlement_begun(volume));
                let op = RouterOp::Settle(volume).op();
                orders.push(Order::Flush { op, device: DeviceId::Backing(volume) });
            }
        }
        if !self.commits.wanted || self.commits.turns.is_under_way() || self.commits.put_off {
            return false;
        }
        if self.commits.failed && self.commits.bypass.is_none() {
            return false;
        }
        (self.commits.wanted, self.commits.inherited) = (false, false);
        self.commits.turns.begin();
        let mut flushes = false;
        for shard in &mut self.shards {
            flushes |= shard.commit_begun(orders);
        }
        if self.commits.failed {
            self.commit_ended(Err(Fault::Io), orders);
            return true;
        }
        orders.push(Order::SealLogs);
        orders.push(match flushes && !planted!(RecordBeforeData) {
            true => Order::Flush { op: RouterOp::CommitFlush.op(), device: DeviceId::Cache },
            false => Order::WriteLogs { op: RouterOp::CommitWrite.op() },
        });
        false
    }

    /// Handles the end of a router's operation.
    pub(super) fn router_completed(
        &mut self,
        op: RouterOp,
        result: Result<(), Fault>,
        orders: &mut Vec<Order>,
    ) {
        match (op, result) {
            (RouterOp::Request(request), _) => self.request_flushed(request, result, orders),
            (RouterOp::CommitFlush | RouterOp::CommitWrite, _) if self.commits.failed => {
                // another part's log cannot be written: none is valid any more
                self.commits.turns.end();
                self.shards.iter_mut().for_each(Shard::commit_abandoned);
                self.commits.wanted = true;
            }
            (RouterOp::CommitFlush, Ok(())) => {
                orders.push(Order::WriteLogs { op: RouterOp::CommitWrite.op() });
            }
            (RouterOp::CommitWrite, Err(Fault::NoSpace)) => {
                self.commits.turns.end();
                (self.commits.wanted, self.commits.put_off) = (true, true);
                self.shards.iter_mut().for_each(|shard| shard.commit_put_off(orders));
            }
            (RouterOp::CommitWrite, Ok(())) => self.commit_ended(result, orders),
            (RouterOp::CommitFlush | RouterOp::CommitWrite, Err(_)) => {
                self.commits.turns.end();
                self.lose_journal();
                self.shards.iter_mut().for_each(Shard::commit_abandoned);
            }
            (RouterOp::Settle(volume), _) => {
                let ended = self.commits.of(volume).turns.end();
                for shard in &mut self.shards {
                    shard.settlement_ended(volume, result, orders);
                }
                self.stirred = u128::MAX;
                self.drains_settled(volume, ended, result, orders);
            }
        }
    }

    fn commit_ended(&mut self, result: Result<(), Fault>, orders: &mut Vec<Order>) {
        let ended = self.commits.turns.end();
        for shard in &mut self.shards {
            shard.commit_ended(result, orders);
        }
        self.stirred = u128::MAX;
        self.drains_committed(ended, result, orders);
    }
}
