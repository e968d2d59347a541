//! Messages between the server's threads: commands and questions to workers, their replies and
//! events, and jobs of the control thread.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use floe_block::{Bell, Fault, Kind, VolumeId};
use floe_nbd::export::Exports;

use crate::admin::{Addition, AllowedPaths, AnaState, NewTier, PathRefused, Reply, Trouble};
use crate::protocol::ProtocolFactory;
use crate::sampler::Sampling;
use crate::session::Passed;
use crate::setup::ServeError;
use crate::status::Snapshot;
use crate::tier::{TierKey, TierPart};
use crate::ublk::QueueOrder;
use crate::volume::DeviceSource;

/// A message to a worker.
#[derive(Debug)]
pub(crate) enum Message {
    /// Serve this client, in the protocol that the factory begins.
    Serve(OwnedFd, Arc<dyn ProtocolFactory>),
    /// Serve the client of this connection, which another server has served.
    Adopt(Passed),
    /// Serve this queue of a local block device.
    ServeQueue(QueueOrder),
    /// Fail all requests of the queues of a volume's local block device.
    FailQueues(VolumeId),
    /// These exports are offered now: new clients see them, and clients of others are sent away.
    Offer(Arc<Exports>),
    /// Carry out the command, and reply under the ticket.
    Ask { ticket: Ticket, command: WorkerCommand },
    /// Another worker has found the cache device of a tier failing: stop using it.
    Degrade { tier: TierKey },
    /// The journal of a tier cannot be written: bypass the tier.
    Bypass {
        tier: TierKey,
        /// Some of its dirty data cannot be written back.
        stuck: bool,
    },
    /// Nothing in a tier is valid any more: bypass it altogether.
    Retire { tier: TierKey },
    /// The session with this number may have something to do.
    Touch(u32),
    /// Take no more requests of clients.
    End,
    /// An empty command: a worker that does not take even this hangs.
    Probe,
    /// The server has ended.
    Stop,
}

/// The name of a question or a command, for its replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) asker: Asker,
    pub(crate) number: u32,
}

/// The thread that takes a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    Control,
    Acceptor,
}

/// A worker is asked for this, and replies when it is done.
#[derive(Debug)]
pub(crate) enum WorkerCommand {
    /// Hand in all counters.
    Snapshot,
    /// Hand in all counters and the blocks touched, and sample this part of blocks.
    Sample(Sampling),
    /// Flush or drain a volume, all parts of it.
    Flush(VolumeId, Kind),
    /// Open the backing device of a volume to come.
    OpenVolume { name: String, source: Arc<dyn DeviceSource> },
    /// Close that device again.
    CloseVolume { name: String },
    /// Add the volume whose device was opened.
    AddVolume { name: String },
    /// Wait until no client uses a volume that is no longer offered.
    RetireVolume(VolumeId),
    /// Forget a volume that no client uses and that is clean, in one tier.
    RemoveVolume { tier: usize, volume: VolumeId },
    /// A volume has grown to so many bytes.
    ResizeVolume(VolumeId, u64),
    /// Use the cache devices again.
    Restore,
    /// Open the device of a tier to come.
    OpenTier(Box<TierPart>),
    /// Take a step of attaching or detaching a tier.
    Tier(StackCommand),
    /// Begin no work but clients' requests, and wait until nothing is under way.
    Rest,
    /// Note the checksums of dirty data, and wait until that is done: nothing is under way
    /// anywhere.
    NoteRest,
    /// Take no more requests of clients, and wait until those under way are answered.
    End,
}

/// A step of attaching or detaching a tier, which is named by the tier above it.
#[derive(Debug, Clone)]
pub(crate) enum StackCommand {
    /// Shut the I/O gate below this tier, and wait until nothing is under way there.
    Quiesce { above: TierKey },
    /// Put the tier below this one whose device is open, with the volumes by both tiers' ids, and
    /// open the gate.
    PutIn { above: TierKey, ids: Arc<[(VolumeId, VolumeId)]> },
    /// Close that device again, and open the gate.
    Dismiss { above: TierKey },
    /// Set the limit of a tier's dirty bytes.
    LimitDirty { tier: TierKey, bytes: u64 },
    /// Make the tier below this one write back all dirty data of a volume, which this one has by
    /// this id.
    Empty { above: TierKey, volume: VolumeId },
    /// Wait until nothing is under way in the tier below this one, and check that it has no dirty
    /// data.
    Rest { above: TierKey },
    /// Take out the tier below this one, and open the gate.
    TakeOut { above: TierKey },
    /// Keep the tier below this one, restore its limit of dirty bytes, and open the gate.
    Keep { above: TierKey, bytes: u64 },
}

/// A worker's reply to a question or a command.
#[derive(Debug)]
pub(crate) struct WorkerReply {
    pub(crate) worker: usize,
    pub(crate) number: u32,
    pub(crate) result: Result<Done, Problem>,
}

/// The result of a command.
#[derive(Debug)]
pub(crate) enum Done {
    Nothing,
    Snapshot(Box<Snapshot>),
    /// The numbers of a volume in the tiers, from the top.
    Numbered(Vec<VolumeId>),
}

/// A message to the control thread.
#[derive(Debug)]
pub(crate) enum Event {
    /// A worker has carried out a command, or cannot.
    Replied(WorkerReply),
    /// A worker has observed an event of a tier.
    Tier(TierKey, CacheEvent),
    /// The work of an extra thread is done.
    WorkDone,
    /// An admin client wants this done.
    Job(Job),
    /// The device of a volume may have another size.
    DeviceChanged { volume: String },
    /// The server is to end.
    End { replaced: bool },
    /// The server has failed: nothing is waited for any more.
    Abandon,
}

/// A worker's observation of a tier.
#[derive(Debug)]
pub(crate) enum CacheEvent {
    /// The cache device has failed and is no longer used.
    Degraded,
    /// The journal cannot be written.
    JournalLost,
    /// A worker's part of a tier whose journal cannot be written has no dirty data any more.
    Emptied { worker: usize },
    /// Some of the dirty data could not be written back.
    Blocked,
    /// A worker begins to refuse requests for what its part has, or no longer does.
    Refusing { worker: usize, refusing: bool },
    /// The only copy of a run of a volume, by the tier's id of it, is gone.
    DataLost { volume: VolumeId, run: Range<u64> },
}

/// An operation, and the admin client that waits for its end, if one does.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) admin: Option<u32>,
    pub(crate) operation: Operation,
}

/// An operation of the control thread.
#[derive(Debug)]
pub(crate) enum Operation {
    Restore,
    Upgrade,
    AddVolume { addition: Box<Addition>, paths: AllowedPaths },
    RemoveVolume { name: String, force: bool },
    ResizeVolume { name: String, size_bytes: Option<u64> },
    FollowDevice { name: String },
    SetAccess { name: String, state: AnaState },
    AttachTier { wanted: NewTier, paths: AllowedPaths },
    DetachTier { number: usize },
}

/// A message to the acceptor.
#[derive(Debug)]
pub(crate) enum Notice {
    /// A worker has answered a question.
    Replied(WorkerReply),
    /// A job is done, or could not be.
    JobDone { admin: u32, reply: Reply },
    /// The server is to end, and its program to be replaced. This client is told of the end.
    Replace { admin: u32 },
    /// The server has ended; the reply for the clients that asked for that.
    Ended(Reply),
    /// A thread cannot go on.
    Died(ServeError),
}

/// The reason for which a command could not be carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Problem {
    #[error("{0}")]
    Fault(#[from] Fault),
    #[error("{0}")]
    Path(#[from] PathRefused),
    #[error("the server is ending")]
    Ending,
    #[error(
        "thread {worker} has not answered for {seconds} s, and what it serves hangs: its log lines \
         and stack say why"
    )]
    Silent { worker: usize, seconds: u64 },
    #[error("requests in or below it are still under way after {seconds} s")]
    Late { seconds: u64 },
    #[error("{0}")]
    Other(String),
}

impl Problem {
    /// Converts the problem into the reply for an admin client.
    pub(crate) fn into_reply(self) -> Reply {
        let trouble = match self {
            Self::Ending => Trouble::Ending,
            Self::Path(_) => Trouble::Forbidden,
            _ => Trouble::Failed,
        };
        Reply::trouble(trouble, self.to_string())
    }
}

/// Replies that have come, and workers whose replies have not.
#[derive(Debug)]
pub(crate) struct Replies {
    /// Contains a worker once for each reply it owes.
    missing: Vec<usize>,
    come: Vec<(usize, Done)>,
    /// The first problem reported.
    problem: Option<Problem>,
}

impl Replies {
    /// Expects one reply of each of these workers.
    pub(crate) fn of(workers: impl Iterator<Item = usize>) -> Self {
        Self { missing: workers.collect(), come: Vec::new(), problem: None }
    }

    pub(crate) fn take(&mut self, reply: WorkerReply) {
        let WorkerReply { worker, result, .. } = reply;
        let at = self.missing.iter().position(|missing| *missing == worker);
        self.missing.swap_remove(at.expect("a worker replies once to each command"));
        match result {
            Ok(done) => self.come.push((worker, done)),
            Err(problem) => {
                self.problem.get_or_insert(problem);
            }
        }
    }

    pub(crate) fn missing(&self) -> &[usize] {
        &self.missing
    }

    /// All replies, in the order of the workers, or the first problem.
    pub(crate) fn finish(self) -> Result<Vec<Done>, Problem> {
        let Self { mut come, problem, .. } = self;
        come.sort_by_key(|(worker, _)| *worker);
        problem.map_or_else(|| Ok(come.into_iter().map(|(_, done)| done).collect()), Err)
    }
}

/// The snapshots among replies.
pub(crate) fn snapshots(replies: Vec<Done>) -> Vec<Snapshot> {
    let snapshot = |done| match done {
        Done::Snapshot(snapshot) => Some(*snapshot),
        _ => None,
    };
    replies.into_iter().filter_map(snapshot).collect()
}

/// One thread's messages, and the wake-up for them.
///
/// They are rare, so a lock does no harm; requests of clients never travel this way.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    messages: Mutex<Messages<T>>,
    /// There are messages: spares the thread the lock at every turn of its loop.
    any: AtomicBool,
    wake_up: Arc<Bell>,
}

#[derive(Debug)]
struct Messages<T> {
    queue: VecDeque<T>,
    /// Time at which the first of them came.
    since: Option<Instant>,
}

impl<T> Mailbox<T> {
    pub(crate) fn new(wake_up: Arc<Bell>) -> Self {
        let messages = Messages { queue: VecDeque::new(), since: None };
        Self { messages: Mutex::new(messages), any: AtomicBool::new(false), wake_up }
    }

    pub(crate) fn post(&self, message: T) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.queue.push_back(message);
        messages.since.get_or_insert_with(Instant::now);
        // Set under the lock, so that it is never unset over a message. The wake-up's fence orders
        // it before the check for sleepers.
        self.any.store(true, Ordering::Relaxed);
        drop(messages);
        self.wake_up.ring();
    }

    /// Returns whether there is nothing to take, as far as the thread can know: the wake-up's fence
    /// makes it sure.
    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// All messages, in the order in which they were posted.
    pub(crate) fn take(&self) -> VecDeque<T> {
        if self.is_empty() {
            return VecDeque::new();
        }
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Relaxed);
        messages.since = None;
        std::mem::take(&mut messages.queue)
    }

    /// Since when there is a message that the thread has not taken.
    pub(crate) fn waiting_since(&self) -> Option<Instant> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).since
    }

    pub(crate) fn wake_up(&self) -> &Arc<Bell> {
        &self.wake_up
    }
}

#[cfg(test)]
mod mailbox_tests {
    use super::*;

    #[test]
    fn an_empty_mailbox_is_looked_into_without_its_lock() {
        let mailbox = Mailbox::new(Arc::new(Bell::new().unwrap()));
        let held = mailbox.messages.lock().unwrap();
        assert!(mailbox.take().is_empty()); // would wait for ever
        drop(held);
        let before = Instant::now();
        mailbox.post(1);
        let since = mailbox.waiting_since().unwrap();
        assert!(since >= before);
        mailbox.post(2);
        assert!(!mailbox.is_empty());
        assert_eq!(mailbox.waiting_since(), Some(since), "the first one counts");
        assert_eq!(mailbox.take(), [1, 2]);
        assert!(mailbox.is_empty());
        assert_eq!(mailbox.waiting_since(), None);
    }
}
