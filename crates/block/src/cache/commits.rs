//! Making durable what the logs of a part say (*commits*), and what its backing devices have been
//! told (*settlements*).
//!
//! Both go in turns, so that however many tasks and flushes want one, all that wait while one is
//! under way are served by the next. A commit seals what the logs have in memory, flushes the cache
//! device if that says anything of dirty data, and then writes the logs. What is noted meanwhile,
//! of data that the flush may not cover, is for the next.

use super::{BlockCache, ROUTER};
use crate::geometry::{SECTOR_BYTES, VolumeId};
use crate::order::{DeviceId, OpId, Order};
use crate::request::Fault;
use crate::shard::Shard;
use crate::turns::Turns;

/// What an operation of the router is for, in the bits below its mark. A request's own flush has
/// none.
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
    /// The logs came with something that is not durable yet: what was forgotten as the cache was
    /// opened.
    inherited: bool,
    /// A log was full; no use trying again before its checkpoint has been written.
    put_off: bool,
    /// A log could not be written.
    failed: bool,
    /// What becomes of requests then, once that is known.
    pub(super) bypass: Option<Bypassing>,
    settlements: Vec<Settlements>,
}

/// What is known of a cache whose journal cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bypassing {
    /// The next start forgets what is clean.
    Clean {
        /// Some dirty data could not be brought down.
        stuck: bool,
    },
    /// The next start forgets everything.
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

    /// Whether nothing is to be committed any more, since nothing that the logs say counts.
    pub(super) fn is_retired(&self) -> bool {
        self.bypass == Some(Bypassing::Retired)
    }

    /// Whether a log could not be written.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Whether the logs cannot be written and still count.
    pub(super) fn is_lost(&self) -> bool {
        self.failed && !self.is_retired()
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

    /// No checkpoint is under way, nor does a log want one. Whoever waits for room has it, unless
    /// no checkpoint can be written.
    pub(crate) fn no_checkpoint_to_come(&mut self, orders: &mut Vec<Order>) {
        if self.commits.put_off && self.degraded {
            self.checkpoint_failed(orders);
        } else if self.commits.put_off {
            self.log_has_room(orders);
        }
    }

    /// A checkpoint could not be written: a log that was full stays so, and can be told nothing
    /// more.
    pub(crate) fn checkpoint_failed(&mut self, orders: &mut Vec<Order>) {
        if self.commits.put_off {
            self.lose_journal();
            self.log_has_room(orders);
        }
    }

    /// A log cannot be written. Whoever waits for a commit waits until it is known what becomes of
    /// requests.
    fn lose_journal(&mut self) {
        (self.commits.failed, self.commits.wanted) = (true, true);
        self.degrade(); // a cache that cannot keep what it takes is none
        self.shards.iter_mut().for_each(Shard::lose_log);
    }

    /// Goes on past a cache whose journal cannot be written, in this part: the next start forgets
    /// what is clean, or cannot be told. What is dirty is brought down now, and with it come writes
    /// that wait for that; `stuck` says that some of it cannot be brought down in some part, and
    /// that such writes are to be refused.
    ///
    /// It is for all parts alike, also those that could write their logs.
    pub fn bypass(&mut self, stuck: bool, orders: &mut Vec<Order>) {
        if self.commits.is_retired() {
            return;
        }
        self.lose_journal();
        self.commits.bypass = Some(Bypassing::Clean { stuck });
        self.shards.iter_mut().for_each(|shard| shard.bypass(stuck, orders));
        self.go_on_without_journal(orders);
    }

    /// Goes on past a cache of which the next start forgets everything, in this part. All of it has
    /// been [brought down](BlockCache::is_emptied) in all parts.
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

    /// Whether requests go past the journal since it could not be written.
    pub fn is_bypassed(&self) -> bool {
        self.commits.bypass.is_some()
    }

    /// Whether nothing in this part is dirty below memory.
    pub fn is_emptied(&self) -> bool {
        self.shards.iter().all(Shard::is_emptied)
    }

    /// Whether dirty data could not be brought down since the journal could not be written.
    pub fn is_blocked(&self) -> bool {
        self.commits.is_lost() && self.shards.iter().any(Shard::is_blocked)
    }

    /// Bytes of which some requests are refused, at most, for what this part's shards have of them
    /// is lost, cannot be read, or cannot be replaced.
    pub fn refused_bytes(&self) -> u64 {
        self.shards.iter().map(Shard::refused_sectors).sum::<u64>() * SECTOR_BYTES
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

    /// Whether the journal could not be written: what it says stays as it is, and so must what it
    /// speaks of.
    pub fn has_lost_journal(&self) -> bool {
        self.commits.failed
    }

    /// Begins what is wanted and not under way. Says whether a commit has ended at once, for the
    /// logs cannot be written.
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

    /// An operation of the router has ended.
    pub(super) fn router_completed(
        &mut self,
        op: RouterOp,
        result: Result<(), Fault>,
        orders: &mut Vec<Order>,
    ) {
        match (op, result) {
            (RouterOp::Request(request), _) => self.request_flushed(request, result, orders),
            (RouterOp::CommitFlush | RouterOp::CommitWrite, _) if self.commits.failed => {
                // some other part's log cannot be written: none counts any more
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
