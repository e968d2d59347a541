//! Messages between the server's threads: commands and questions to workers, their replies and
//! events, and jobs of the control thread.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use floe_block::{CacheShare, Fault, Request, SearchPlace, VolumeId, WakeUp};
use floe_nbd::export::Exports;

use crate::acceptor::eviction::Findings;
use crate::admin::{Addition, AllowedPaths, AnaState, NewTier, PathRefused, Reply, Trouble};
use crate::protocol::ProtocolFactory;
use crate::rate::SharedRate;
use crate::sampler::Sampling;
use crate::session::Passed;
use crate::setup::ServeError;
use crate::status::{Snapshot, TierKey};
use crate::tier::CachePart;
use crate::total_limit::TotalLimitChange;
use crate::ublk::QueueOrder;
use crate::volume::DeviceSource;
use crate::volume_limit::{LimitChange, VolumeLimit};
use crate::volume_share::ShareChange;

/// A message to a worker.
#[derive(Debug)]
pub(crate) enum Message {
    /// Serve a new client, in the protocol that the factory creates.
    Serve(OwnedFd, Arc<dyn ProtocolFactory>),
    /// Serve the client of a connection that another server has handed off.
    Adopt(Passed),
    /// Serve a queue of a local block device.
    ServeQueue(QueueOrder),
    /// Fail all requests of the queues of a volume's local block device.
    FailQueues(VolumeId),
    /// Offer these exports: new clients see them, and clients of other exports are disconnected.
    Offer(Arc<Exports>),
    /// Carry out the command, and send the reply with the ticket.
    Ask { ticket: Ticket, command: WorkerCommand },
    /// Stop using the cache device of a tier, which another worker has found failing.
    Degrade { tier: TierKey },
    /// Bypass a tier whose journal cannot be written.
    Bypass {
        tier: TierKey,
        /// True if some of the tier's dirty data cannot be written back.
        stuck: bool,
    },
    /// Bypass a tier altogether: nothing in it is valid any more.
    Retire { tier: TierKey },
    /// Look at the reservations of NVMe hosts, which have changed.
    Reservations,
    /// Look at the session with this number, which may have something to do.
    Touch(u32),
    /// Take no more requests of clients, because the server ends.
    End,
    /// Do nothing. A worker that does not take even this message hangs.
    Probe,
    /// Stop the worker thread: the server has ended.
    Stop,
}

/// Identifies a question or a command in the replies to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) asker: Asker,
    pub(crate) number: u32,
}

/// The thread that receives a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    Control,
    Acceptor,
}

/// A command to a worker, which replies when the command is done.
#[derive(Debug)]
pub(crate) enum WorkerCommand {
    /// Report all counters.
    Snapshot,
    /// Report all counters and the sampled block touches, and sample this set of blocks from now
    /// on.
    Sample(Sampling),
    /// Search this worker's part of the cache for blocks of a part of a volume, from a place on.
    Search { part: Request, from: SearchPlace },
    /// Carry out a request without data, such as a flush, also in the parts of other workers.
    Run(Request),
    /// Open the backing device of a volume that will be added.
    OpenVolume { name: String, source: Arc<dyn DeviceSource> },
    /// Close the device of a volume that will not be added after all.
    CloseVolume { name: String },
    /// Add the volume whose device [`WorkerCommand::OpenVolume`] has opened, and enforce its limit
    /// and its shares in the tiers, from the top.
    AddVolume { name: String, limit: Arc<VolumeLimit>, shares: Arc<[CacheShare]> },
    /// Wait until no client uses a volume that is no longer offered.
    RetireVolume(VolumeId),
    /// Forget a clean volume in one tier; no client uses it any more.
    RemoveVolume { tier: usize, volume: VolumeId },
    /// Grow a volume to this number of bytes.
    ResizeVolume(VolumeId, u64),
    /// Enforce the limit of a volume, which has changed or was lifted for a removal.
    LimitVolume(VolumeId, Arc<VolumeLimit>),
    /// Enforce the rate of the server, which has changed.
    LimitTotal(Arc<SharedRate>),
    /// Enforce these shares of a volume in the tiers, from the top.
    ShareVolume(VolumeId, Arc<[CacheShare]>),
    /// Use failed cache devices again.
    Restore,
    /// Open the device of a tier that will be attached.
    OpenTier(Box<CachePart>),
    /// Use the bytes by which the device of a tier has grown to `bytes`.
    GrowDevice { tier: TierKey, bytes: u64 },
    /// Change the size of a tier, its limit of dirty bytes, if it has one, and the shares of
    /// volumes, which have their ids in that tier.
    ResizeTier {
        tier: TierKey,
        cache_bytes: u64,
        most_dirty_bytes: Option<u64>,
        shares: Arc<[(VolumeId, CacheShare)]>,
    },
    /// Take a step of attaching, detaching or resizing a tier.
    Tier(StackCommand),
    /// Begin no background work any more, and wait until no operation is under way.
    Rest,
    /// Record the checksums of dirty data, and wait until no operation is under way anywhere.
    NoteRest,
    /// Take no more requests of clients, and wait until those under way are answered.
    End,
}

/// A step of attaching, detaching or resizing a tier. A tier that comes or goes is identified by
/// `above`, the key of the tier above it.
#[derive(Debug, Clone)]
pub(crate) enum StackCommand {
    /// Shut the I/O gate below the tier `above`, and wait until no operation is under way there.
    Quiesce { above: TierKey },
    /// Attach the tier whose device is open below `above`, and open the gate. `ids` pairs the
    /// volumes' ids in `above` with those in the new tier.
    PutIn { above: TierKey, ids: Arc<[(VolumeId, VolumeId)]> },
    /// Close the device of a tier that will not be attached after all, and open the gate.
    Dismiss { above: TierKey },
    /// Set the limit of a tier's dirty data, in bytes.
    LimitDirty { tier: TierKey, bytes: u64 },
    /// Write back all dirty data of a volume from the tier below `above`; `volume` is its id in
    /// `above`.
    Empty { above: TierKey, volume: VolumeId },
    /// Wait until no operation is under way in the tier below `above`, and check that it has no
    /// dirty data.
    Rest { above: TierKey },
    /// Detach the tier below `above`, and open the gate.
    TakeOut { above: TierKey },
    /// Keep the tier below `above`, restore its limit of dirty bytes, and open the gate.
    Keep { above: TierKey, bytes: u64 },
    /// Wait until a tier has given back its space above its size.
    GiveBack { tier: TierKey },
}

/// The condition for the end of a step of attaching, detaching or resizing a tier.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StackAwaited {
    /// No operation is under way below the tier `above`.
    Quiet { above: TierKey },
    /// The tier below `above` has written back all its dirty data of a volume.
    Emptied { above: TierKey },
    /// No operation is under way in the tier below `above`.
    Rest { above: TierKey },
    /// The tier has given back its space above its size, or cannot.
    GivenBack { tier: TierKey },
}

/// A worker's reply to a question or a command.
#[derive(Debug)]
pub(crate) struct WorkerReply {
    pub(crate) worker: usize,
    pub(crate) number: u32,
    pub(crate) result: Result<Done, Problem>,
}

/// The result of a command or question.
#[derive(Debug)]
pub(crate) enum Done {
    Nothing,
    Snapshot(Box<Snapshot>),
    Found(Findings),
    /// The ids of an added volume in the tiers, from the top.
    Numbered(Vec<VolumeId>),
}

/// A message to the control thread.
#[derive(Debug)]
pub(crate) enum Event {
    /// A worker has carried out a command, or failed to.
    Replied(WorkerReply),
    /// A worker reports a change of a tier.
    Tier(TierKey, CacheEvent),
    /// Work on an extra thread is done.
    WorkDone,
    /// An admin client requests an operation.
    Job(Job),
    /// The size of a volume's backing device may have changed.
    DeviceChanged { volume: String },
    /// The server is to end. `replaced` means that the program will be upgraded.
    End { replaced: bool },
    /// The server has failed: wait for nothing any more.
    Abandon,
}

/// A change of a tier that a worker reports.
#[derive(Debug)]
pub(crate) enum CacheEvent {
    /// The cache device has failed and is no longer used.
    Degraded,
    /// The journal cannot be written.
    JournalLost,
    /// All dirty data in a worker's part of a tier without a journal has been written back.
    Emptied { worker: usize },
    /// Some dirty data of a tier without a journal could not be written back.
    Blocked,
    /// A worker begins or stops to refuse requests for dirty data in its part of the tier.
    Refusing { worker: usize, refusing: bool },
    /// The only copy of some sectors of a volume is lost. `volume` is the volume's id in the tier,
    /// and `run` counts sectors.
    DataLost { volume: VolumeId, run: Range<u64> },
}

/// An operation for the control thread, and the number of the admin session that waits for its
/// result, if one does.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) admin: Option<u32>,
    pub(crate) operation: Operation,
}

/// An admin operation of the control thread.
#[derive(Debug)]
pub(crate) enum Operation {
    Restore,
    Upgrade,
    AddVolume { addition: Box<Addition>, paths: AllowedPaths },
    RemoveVolume { name: String, force: bool },
    ResizeVolume { name: String, size_bytes: Option<u64> },
    LimitVolume { name: String, change: LimitChange },
    ShareVolume { name: String, change: ShareChange },
    LimitTotal { change: TotalLimitChange },
    FollowDevice { name: String },
    SetAccess { name: String, state: AnaState },
    AttachTier { wanted: NewTier, paths: AllowedPaths },
    DetachTier { number: usize },
    ResizeTier { number: usize, size_bytes: u64 },
}

/// A message to the acceptor.
#[derive(Debug)]
pub(crate) enum Notice {
    /// A worker has answered a question.
    Replied(WorkerReply),
    /// A job has ended; the reply is for the admin session with this number.
    JobDone { admin: u32, reply: Reply },
    /// The server is to end, and its program to be replaced. The admin session with this number
    /// waits for that.
    Replace { admin: u32 },
    /// The server has ended; the reply is for the clients that asked for the shutdown.
    Ended(Reply),
    /// A thread has failed.
    Died(ServeError),
}

/// The reason why a command could not be carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Problem {
    #[error("{0}")]
    Fault(#[from] Fault),
    /// A command's request to a volume has failed.
    #[error("{fault}")]
    Request { volume: VolumeId, fault: Fault },
    #[error("{0}")]
    Path(#[from] PathRefused),
    #[error("the server is ending")]
    Ending,
    #[error(
        "thread {worker} has not answered for {seconds} s, and its requests hang; its log lines \
         and its stack may say why"
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

/// The replies to a question or a command so far, and the workers that still owe one.
#[derive(Debug)]
pub(crate) struct Replies {
    /// The workers that owe a reply; a worker appears once for each reply.
    missing: Vec<usize>,
    come: Vec<(usize, Done)>,
    /// The first problem that a worker reported.
    problem: Option<Problem>,
}

impl Replies {
    /// Creates a collection that expects one reply from each of these workers.
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

    /// Returns the results ordered by worker, or the first problem.
    pub(crate) fn finish(self) -> Result<Vec<Done>, Problem> {
        let Self { mut come, problem, .. } = self;
        come.sort_by_key(|(worker, _)| *worker);
        problem.map_or_else(|| Ok(come.into_iter().map(|(_, done)| done).collect()), Err)
    }
}

/// Returns the snapshots among results.
pub(crate) fn snapshots(replies: Vec<Done>) -> Vec<Snapshot> {
    let snapshot = |done| match done {
        Done::Snapshot(snapshot) => Some(*snapshot),
        _ => None,
    };
    replies.into_iter().filter_map(snapshot).collect()
}

/// A queue of messages to one thread, with the wake-up for that thread.
///
/// Messages are rare, so a lock does no harm; clients' requests never pass through it.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    messages: Mutex<Messages<T>>,
    /// Set while there are messages, so that the thread need not take the lock in every turn of its
    /// loop.
    any: AtomicBool,
    wake_up: Arc<WakeUp>,
}

#[derive(Debug)]
struct Messages<T> {
    queue: VecDeque<T>,
    /// Time at which the oldest queued message was posted.
    since: Option<Instant>,
}

impl<T> Mailbox<T> {
    pub(crate) fn new(wake_up: Arc<WakeUp>) -> Self {
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

    /// Returns whether the thread has no messages to take. The answer is certain only after the
    /// wake-up's fence.
    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// Takes all messages, in the order in which they were posted.
    pub(crate) fn take(&self) -> VecDeque<T> {
        if self.is_empty() {
            return VecDeque::new();
        }
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Relaxed);
        messages.since = None;
        std::mem::take(&mut messages.queue)
    }

    /// Returns the time at which the oldest message was posted that the thread has not taken.
    pub(crate) fn waiting_since(&self) -> Option<Instant> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).since
    }

    pub(crate) fn wake_up(&self) -> &Arc<WakeUp> {
        &self.wake_up
    }
}

#[cfg(test)]
mod mailbox_tests {
    use super::*;

    #[test]
    fn an_empty_mailbox_is_looked_into_without_its_lock() {
        let mailbox = Mailbox::new(Arc::new(WakeUp::new().unwrap()));
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
