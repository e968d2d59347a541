//! Making durable what the logs of a part say (*commits*), and what its backing devices have been told (*settlements*).
//!
//! Both go in turns, so that however many tasks and flushes want one, all that wait while one is under way are served by the
//! next. A commit seals what the logs have in memory, flushes the cache device if that says anything of dirty data, and then
//! writes the logs. What is noted meanwhile, of data that the flush may not cover, is for the next.

use super::{BlockCache, ROUTER};
use crate::geometry::VolumeId;
use crate::order::{DeviceId, OpId, Order};
use crate::request::Fault;
use crate::turns::Turns;

/// What an operation of the router is for, in the bits below its mark. A request's own flush has none.
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
    /// The logs came with something that is not durable yet: what was forgotten as the cache was opened.
    inherited: bool,
    /// A log was full; no use trying again before its checkpoint has been written.
    put_off: bool,
    /// A log could not be written.
    failed: bool,
    settlements: Vec<Settlements>,
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

    /// The commit that serves who asks now.
    pub(super) fn want(&mut self) -> u64 {
        self.wanted = true;
        self.turns.next()
    }

    pub(super) fn want_settlement(&mut self, volume: VolumeId) -> u64 {
        let settlements = self.of(volume);
        settlements.wanted = true;
        settlements.turns.next()
    }

    /// Whether a commit is under way or wanted.
    pub(super) fn is_busy(&self) -> bool {
        self.wanted || self.turns.is_under_way()
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_busy() && self.settlements.iter().all(|s| !s.wanted && !s.turns.is_under_way())
    }
}

impl BlockCache {
    /// Much is noted: has it committed, unless that is going on or of no use.
    pub(crate) fn commit_soon(&mut self, orders: &mut Vec<Order>) {
        if !self.commits.is_busy() && !self.commits.failed {
            self.commits.want();
            self.handle_events(orders);
        }
    }

    /// A log that was full has room again.
    pub(crate) fn log_has_room(&mut self, orders: &mut Vec<Order>) {
        self.commits.put_off = false;
        self.handle_events(orders);
    }

    /// No checkpoint is under way, nor does a log want one. Whoever waits for room has it, unless no checkpoint can be written.
    pub(crate) fn no_checkpoint_to_come(&mut self, orders: &mut Vec<Order>) {
        if self.commits.put_off && self.degraded {
            self.checkpoint_failed(orders);
        } else if self.commits.put_off {
            self.log_has_room(orders);
        }
    }

    /// A checkpoint could not be written: a log that was full stays so, and can be told nothing more.
    pub(crate) fn checkpoint_failed(&mut self, orders: &mut Vec<Order>) {
        if self.commits.put_off {
            self.commits.failed = true;
            self.degrade();
            self.log_has_room(orders);
        }
    }

    /// Wants what would let the next start of the program find more.
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

    /// Whether something is noted that would not outlive the program yet.
    pub fn has_unlogged(&self) -> bool {
        self.kept && !self.commits.failed && self.has_to_commit()
    }

    /// Whether a commit would make anything durable.
    pub(super) fn has_to_commit(&self) -> bool {
        self.commits.inherited || self.shards.iter().any(|shard| shard.has_noted())
    }

    /// The logs of this part's shards have something to say that no shard has noted.
    pub(crate) fn inherit_unlogged(&mut self) {
        self.commits.inherited = true;
    }

    /// Whether the journal could not be written: what it says stays as it is, and so must what it speaks of.
    pub fn has_lost_journal(&self) -> bool {
        self.commits.failed
    }

    /// Begins what is wanted and not under way. Says whether a commit has ended at once, for the logs cannot be written.
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

    /// An operation of the router has ended.
    pub(super) fn router_completed(
        &mut self,
        op: RouterOp,
        result: Result<(), Fault>,
        orders: &mut Vec<Order>,
    ) {
        match (op, result) {
            (RouterOp::Request(request), _) => self.request_flushed(request, result, orders),
            (RouterOp::CommitFlush, Ok(())) => {
                orders.push(Order::WriteLogs { op: RouterOp::CommitWrite.op() });
            }
            (RouterOp::CommitWrite, Err(Fault::NoSpace)) => {
                self.commits.turns.end();
                (self.commits.wanted, self.commits.put_off) = (true, true);
                self.shards.iter_mut().for_each(|shard| shard.commit_put_off(orders));
            }
            (RouterOp::CommitFlush | RouterOp::CommitWrite, _) => {
                if result.is_err() {
                    self.commits.failed = true;
                    self.degrade(); // a cache that cannot keep what it takes is none
                }
                self.commit_ended(result, orders);
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
