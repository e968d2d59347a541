//! The control thread's state, and its commands to the workers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use floe_block::{Kind, VolumeId};

use super::super::board::Board;
use super::super::known_tier::KnownTier;
use super::super::mailbox::Mailbox;
use super::super::messages::{
    Asker, Command, Done, Event, Job, Message, Notice, Operation, Problem, Ticket, WorkerReply,
};
use super::super::offer::{Offer, Offered};
use super::super::replies::{Replies, snapshots};
use super::super::setup::ServerSetup;
use super::super::tier::TierKey;
use super::super::worker_handle::Workers;
use crate::admin::Reply;
use crate::kept::{Keeper, StartError};
use crate::status::Snapshot;
use crate::ublk::LocalDevices;

/// Number of checks for silent workers within the time that one may be silent.
const LOOKS: u32 = 4;

/// The control thread's state. Operations are functions of it, one file each.
pub(in crate::threads) struct Control {
    pub(in crate::threads) config: Arc<ServerSetup>,
    pub(in crate::threads) workers: Workers,
    pub(in crate::threads) offer: Offer,
    /// The local block devices.
    pub(in crate::threads) local: LocalDevices,
    /// The tiers, from the top.
    pub(in crate::threads) tiers: Vec<KnownTier>,
    /// The random number of the tiers served together.
    pub(in crate::threads) stack: u32,
    /// The number of tiers ever attached.
    pub(in crate::threads) keys_given: u32,
    pub(in crate::threads) board: Arc<Board>,
    pub(in crate::threads) inbox: Inbox,
    pub(in crate::threads) acceptor: Arc<Mailbox<Notice>>,
    /// Jobs that wait for the one under way.
    pub(in crate::threads) jobs: VecDeque<Job>,
    pub(in crate::threads) end: End,
    /// The number of the last command.
    pub(in crate::threads) last_number: u32,
    /// Time of the next attempt to write a tier's state to its superblock.
    pub(in crate::threads) note_again: Option<Instant>,
}

/// The end of the server, as far as it is decided.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::threads) struct End {
    /// The server is to end.
    pub(in crate::threads) is_due: bool,
    /// The program is to be replaced then: local devices stay for the next one.
    pub(in crate::threads) replaces: bool,
    /// The server has failed: nothing is waited for.
    pub(in crate::threads) is_abandoned: bool,
}

/// The control thread's events, and the way to send it more.
pub(in crate::threads) struct Inbox {
    pub(in crate::threads) events: Receiver<Event>,
    pub(in crate::threads) sender: Sender<Event>,
}

/// The bound of a wait for replies. The wait for a worker that takes no messages ends in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::threads) enum Wait {
    /// Until all have come.
    Long,
    /// Until all have come, or the server is to end.
    UntilEnd,
    /// At most so long, because requests of clients wait meanwhile.
    AtMost(Duration),
}

/// An event that concerns the job under way.
pub(in crate::threads) enum Next {
    Replied(WorkerReply),
    /// Work is done, a job has come, or the end is due.
    Woken,
    /// The bound of the wait has passed.
    Due,
}

impl Control {
    /// Takes events until one concerns the job under way; those of tiers are acted on here.
    pub(in crate::threads) fn next(&mut self, due: Option<Instant>) -> Next {
        loop {
            self.note_when_due();
            self.publish();
            let until = due.into_iter().chain(self.note_again).min();
            let event = match until {
                None => self.inbox.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(until) => {
                    let time = until.saturating_duration_since(Instant::now());
                    self.inbox.events.recv_timeout(time)
                }
            };
            match event {
                Ok(Event::Replied(reply)) => return Next::Replied(reply),
                Ok(Event::Tier(tier, event)) => self.tier_event(tier, event),
                Ok(Event::WorkDone) => return Next::Woken,
                Ok(Event::Job(job)) => {
                    self.jobs.push_back(job);
                    return Next::Woken;
                }
                Ok(Event::DeviceChanged { volume: name }) => {
                    let operation = Operation::FollowDevice { name };
                    self.jobs.push_back(Job { admin: None, operation });
                    return Next::Woken;
                }
                Ok(Event::End { replaced }) => {
                    (self.end.is_due, self.end.replaces) = (true, replaced);
                    return Next::Woken;
                }
                Ok(Event::Abandon) => {
                    (self.end.is_due, self.end.is_abandoned) = (true, true);
                    return Next::Woken;
                }
                Err(RecvTimeoutError::Timeout) if due.is_some_and(|due| due <= Instant::now()) => {
                    return Next::Due;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("a sender is held here"),
            }
        }
    }

    /// Makes these workers carry out a command, and waits for all replies.
    ///
    /// # Errors
    /// The first problem that a worker reports, once all have replied; or the reason for which the
    /// wait ends early. Later replies are dropped.
    pub(in crate::threads) fn ask(
        &mut self,
        wait: Wait,
        commands: Vec<(usize, Command)>,
    ) -> Result<Vec<Done>, Problem> {
        self.last_number = self.last_number.wrapping_add(1);
        let ticket = Ticket { asker: Asker::Control, number: self.last_number };
        let mut replies = Replies::of(commands.iter().map(|(worker, _)| *worker));
        for (worker, command) in commands {
            self.workers.post(worker, Message::Ask { ticket, command });
        }
        let (begun, patience) = (Instant::now(), self.config.limits.reply_time);
        let (mut look, mut warn) = (begun + patience / LOOKS, begun + patience);
        while !replies.missing().is_empty() {
            if self.end.is_abandoned || self.end.is_due && wait == Wait::UntilEnd {
                return Err(Problem::Ending);
            }
            match self.next(Some(look)) {
                Next::Replied(reply) if reply.number == ticket.number => replies.take(reply),
                Next::Replied(_) | Next::Woken => {} // a reply that was given up
                Next::Due => {
                    let now = Instant::now();
                    look = now + patience / LOOKS;
                    // Any of them: a worker that replies may wait for another one's shards.
                    for worker in 0..self.workers.len() {
                        if let Some(silence) = self.workers.silence(worker, now, patience) {
                            let seconds = silence.as_secs();
                            tracing::error!(thread = worker, seconds, "a thread does not answer");
                            return Err(Problem::Silent { worker, seconds });
                        }
                    }
                    if let Wait::AtMost(time) = wait
                        && begun + time <= now
                    {
                        return Err(Problem::Late { seconds: time.as_secs() });
                    }
                    if warn <= now {
                        let seconds = (now - begun).as_secs();
                        let threads = replies.missing();
                        tracing::warn!(?threads, seconds, "threads are still at work on a command");
                        warn = now + (now - begun); // less and less often
                    }
                }
            }
        }
        replies.finish()
    }

    /// Makes all workers carry out a command, and waits for all replies.
    ///
    /// # Errors
    /// As [`Control::ask`].
    pub(in crate::threads) fn ask_all(
        &mut self,
        wait: Wait,
        command: impl Fn() -> Command,
    ) -> Result<Vec<Done>, Problem> {
        let commands = (0..self.workers.len()).map(|worker| (worker, command())).collect();
        self.ask(wait, commands)
    }

    /// Returns the counters of all workers.
    pub(in crate::threads) fn snapshots(&mut self, wait: Wait) -> Result<Vec<Snapshot>, Problem> {
        self.ask_all(wait, || Command::Snapshot).map(snapshots)
    }

    /// Flushes, or drains, each of these volumes. Any worker can do it; they take turns.
    pub(in crate::threads) fn flush(
        &mut self,
        wait: Wait,
        volumes: Vec<VolumeId>,
        kind: Kind,
    ) -> Result<(), Problem> {
        let workers = (0..self.workers.len()).cycle();
        let commands = volumes.into_iter().map(|volume| Command::Flush(volume, kind));
        self.ask(wait, workers.zip(commands).collect()).map(drop)
    }

    /// Publishes the volumes and tiers as they are now.
    pub(in crate::threads) fn publish(&self) {
        self.board.publish(&self.offer, &self.tiers);
    }

    /// Sends the result of a job to its admin client.
    pub(in crate::threads) fn answer(&self, admin: Option<u32>, reply: Reply) {
        self.publish();
        if let Some(admin) = admin {
            self.acceptor.post(Notice::JobDone { admin, reply });
        }
    }

    /// Changes the volume of this number, and tells all workers the new offer.
    pub(in crate::threads) fn change_volume(
        &mut self,
        id: VolumeId,
        change: impl Fn(&mut Offered),
    ) -> Result<(), floe_nbd::export::ExportsError> {
        self.offer.change(|volumes| {
            volumes.iter_mut().filter(|offered| offered.id == id).for_each(change);
        })?;
        self.announce();
        Ok(())
    }

    /// Changes the numbers of all volumes in the tiers.
    pub(in crate::threads) fn renumber(&mut self, change: impl FnMut(&mut Offered)) {
        let changed = self.offer.change(|volumes| volumes.iter_mut().for_each(change));
        changed.expect("what is offered stays the same");
    }

    /// Tells all workers the present offer.
    pub(in crate::threads) fn announce(&self) {
        self.workers.tell_all(|| Message::Offer(Arc::clone(self.offer.exports())));
    }

    /// Returns whether some tier is persistent.
    pub(in crate::threads) fn is_persistent(&self) -> bool {
        self.tiers.iter().any(|tier| tier.keeper.is_some())
    }

    /// Returns the position of a tier, from the top; `None` once it is detached.
    pub(in crate::threads) fn at(&self, key: TierKey) -> Option<usize> {
        self.tiers.iter().position(|tier| tier.key == key)
    }

    /// Changes the volumes in the superblocks of all persistent tiers, by each tier's id of the
    /// volume. Returns the first failure.
    pub(in crate::threads) fn write_down(
        &mut self,
        ids: &[VolumeId],
        change: impl Fn(&mut Keeper, VolumeId) -> Result<(), StartError>,
    ) -> Result<(), String> {
        // A tier with a lost journal is not used again, so its superblock can stay.
        let used = self.tiers.iter_mut().zip(ids).filter(|(tier, _)| !tier.failing.journal_lost);
        let keepers = used.filter_map(|(tier, id)| Some((tier.keeper.as_mut()?, *id)));
        let failed = keepers.filter_map(|(keeper, id)| change(keeper, id).err());
        let first = failed.map(|error| error.to_string()).reduce(|first, _| first);
        first.map_or(Ok(()), Err)
    }
}
