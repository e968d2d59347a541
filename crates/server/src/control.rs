//! The control thread: runs admin operations one after the other, each as straight-line code in its
//! own function, and handles the workers' reports of failing tiers.
//!
//! An operation broadcasts a command to the workers and waits for their replies; its undo stands
//! beside each step. Workers never wait for the control thread. If a worker takes no messages for
//! [`Limits::reply_time`](crate::limits::Limits::reply_time), the control thread stops waiting and
//! the operation fails with the worker's number. Meanwhile the acceptor answers health, status and
//! metrics from the `board`.

pub(crate) mod board;
mod shutdown;
mod tiers;
mod volumes;

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use floe_block::{Request, RequestKind, SECTOR_BYTES, VolumeId};

use self::shutdown::Closing;
use self::tiers::restore;
use crate::admin::Reply;
use crate::control::board::Board;
use crate::messages::{
    Asker, CacheEvent, Done, Event, Job, Mailbox, Message, Notice, Operation, Problem, Replies,
    Ticket, WorkerCommand, WorkerReply, snapshots,
};
use crate::offer::{Offer, Offered};
use crate::persistent::{StartError, SuperblockWriter};
use crate::rate::SharedRate;
use crate::setup::{Added, ServeError, ServerSetup};
use crate::status::{Snapshot, TierKey};
use crate::tier::{Tier, link};
use crate::ublk::LocalDevices;
use crate::worker::handle::Workers;

/// Runs jobs until the server is to end, then shuts it down.
///
/// # Errors
/// When the last flush leaves dirty data behind, or a thread does not answer.
pub(crate) fn run(mut control: Control) -> Result<Closing, ServeError> {
    control.offer.all().iter().for_each(|offered| self::volumes::watch(&control, &offered.volume));
    loop {
        if control.end.is_due {
            for job in std::mem::take(&mut control.jobs) {
                control.answer(job.admin, Problem::Ending.into_reply());
            }
            return shutdown::shutdown(control);
        }
        match control.jobs.pop_front() {
            Some(Job { admin: Some(admin), operation: Operation::Upgrade }) => {
                match self::shutdown::make_ready(&mut control) {
                    Ok(()) => control.acceptor.post(Notice::Replace { admin }),
                    Err(refusal) => control.answer(Some(admin), refusal),
                }
            }
            Some(Job { admin, operation }) => {
                let reply = carry_out(&mut control, operation).unwrap_or_else(|refusal| refusal);
                control.answer(admin, reply);
            }
            None => drop(control.next(None)),
        }
    }
}

fn carry_out(control: &mut Control, operation: Operation) -> Result<Reply, Reply> {
    match operation {
        Operation::Upgrade => unreachable!("it is answered by the end of the server"),
        Operation::Restore => self::tiers::restore(control),
        Operation::AddVolume { addition, paths } => volumes::add_volume(control, *addition, paths),
        Operation::RemoveVolume { name, force } => {
            self::volumes::remove_volume(control, &name, force)
        }
        Operation::ResizeVolume { name, size_bytes } => {
            self::volumes::resize_volume(control, &name, size_bytes)
        }
        Operation::LimitVolume { name, change } => {
            self::volumes::limit_volume(control, &name, &change)
        }
        Operation::LimitTotal { change } => self::volumes::limit_total(control, change),
        Operation::ShareVolume { name, change } => {
            self::volumes::share_volume(control, &name, change)
        }
        Operation::FollowDevice { name } => {
            self::volumes::follow_device(control, &name);
            Ok(Reply::Done("looked at"))
        }
        Operation::SetAccess { name, state } => self::volumes::set_access(control, &name, state),
        Operation::AttachTier { wanted, paths } => tiers::attach_tier(control, wanted, paths),
        Operation::DetachTier { number } => self::tiers::detach_tier(control, number),
        Operation::ResizeTier { number, size_bytes } => {
            self::tiers::resize_tier(control, number, size_bytes)
        }
    }
}

/// Number of checks for silent workers within
/// [`Limits::reply_time`](crate::limits::Limits::reply_time).
const LOOKS: u32 = 4;

/// The control thread's state. Operations are functions that take it, grouped in files of their
/// own.
pub(crate) struct Control {
    pub(crate) config: Arc<ServerSetup>,
    pub(crate) workers: Workers,
    pub(crate) offer: Offer,
    /// The rate of all volumes together.
    pub(crate) total: Arc<SharedRate>,
    pub(crate) local: LocalDevices,
    /// The tiers, from the top.
    pub(crate) tiers: Vec<Tier>,
    /// The names of the volumes, and the number of tiers, with which the server began.
    pub(crate) begun: (Vec<String>, u32),
    /// A random number that identifies the tiers served together.
    pub(crate) stack: u32,
    /// Number of tiers ever attached; the next tier's key.
    pub(crate) keys_given: u32,
    pub(crate) board: Arc<Board>,
    pub(crate) inbox: Inbox,
    pub(crate) acceptor: Arc<Mailbox<Notice>>,
    /// Jobs queued behind the one under way.
    pub(crate) jobs: VecDeque<Job>,
    pub(crate) end: End,
    /// Number of the last command sent to workers.
    pub(crate) last_number: u32,
    /// Time of the next attempt to record a tier's failure in its superblock.
    pub(crate) note_again: Option<Instant>,
}

/// The shutdown requests that have arrived so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct End {
    /// True if a shutdown was requested.
    pub(crate) is_due: bool,
    /// True if an upgrade replaces the program: local devices stay for the next program.
    pub(crate) replaces: bool,
    /// True if the server has failed: the control thread waits for nothing any more.
    pub(crate) is_abandoned: bool,
}

/// The queue of the control thread's events, and a sender for it.
pub(crate) struct Inbox {
    pub(crate) events: Receiver<Event>,
    pub(crate) sender: Sender<Event>,
}

/// The limit of a wait for replies. Every wait also ends when a worker takes no messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Wait until all replies have arrived.
    Long,
    /// Wait until all replies have arrived, or the server is to end.
    UntilEnd,
    /// Wait at most this long, because clients' requests are held up meanwhile.
    AtMost(Duration),
}

/// The reason why [`Control::next`] returned.
pub(crate) enum Wakening {
    Replied(WorkerReply),
    /// Work on an extra thread is done, a job has arrived, or the server is to end.
    Woken,
    /// The time limit of the wait has passed.
    Due,
}

impl Control {
    /// Handles events until one concerns the job under way, or until the time `due`. Events of
    /// tiers are handled inside.
    pub(crate) fn next(&mut self, due: Option<Instant>) -> Wakening {
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
                Ok(Event::Replied(reply)) => return Wakening::Replied(reply),
                Ok(Event::Tier(tier, event)) => self.tier_event(tier, event),
                Ok(Event::WorkDone) => return Wakening::Woken,
                Ok(Event::Job(job)) => {
                    self.jobs.push_back(job);
                    return Wakening::Woken;
                }
                Ok(Event::DeviceChanged { volume: name }) => {
                    let operation = Operation::FollowDevice { name };
                    self.jobs.push_back(Job { admin: None, operation });
                    return Wakening::Woken;
                }
                Ok(Event::End { replaced }) => {
                    (self.end.is_due, self.end.replaces) = (true, replaced);
                    return Wakening::Woken;
                }
                Ok(Event::Abandon) => {
                    (self.end.is_due, self.end.is_abandoned) = (true, true);
                    return Wakening::Woken;
                }
                Err(RecvTimeoutError::Timeout) if due.is_some_and(|due| due <= Instant::now()) => {
                    return Wakening::Due;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("a sender is held here"),
            }
        }
    }

    /// Sends each of these workers its command, and waits for all replies.
    ///
    /// # Errors
    /// The first problem that a worker reports, once all have replied; or the reason why the wait
    /// ended early. Replies that arrive later are dropped.
    pub(crate) fn ask(
        &mut self,
        wait: Wait,
        commands: Vec<(usize, WorkerCommand)>,
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
                Wakening::Replied(reply) if reply.number == ticket.number => replies.take(reply),
                Wakening::Replied(_) | Wakening::Woken => {} // a reply that was given up
                Wakening::Due => {
                    let now = Instant::now();
                    look = now + patience / LOOKS;
                    // Any of them: a worker that replies may wait for another one's shards.
                    if let Some(problem) = self.workers.silent(now, patience) {
                        if let Problem::Silent { worker, seconds } = problem {
                            tracing::error!(thread = worker, seconds, "a thread does not answer");
                        }
                        return Err(problem);
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

    /// Sends all workers a command, and waits for all replies.
    ///
    /// # Errors
    /// As [`Control::ask`].
    pub(crate) fn ask_all(
        &mut self,
        wait: Wait,
        command: impl Fn() -> WorkerCommand,
    ) -> Result<Vec<Done>, Problem> {
        let commands = (0..self.workers.len()).map(|worker| (worker, command())).collect();
        self.ask(wait, commands)
    }

    /// Requests and returns the counters of all workers.
    pub(crate) fn snapshots(&mut self, wait: Wait) -> Result<Vec<Snapshot>, Problem> {
        self.ask_all(wait, || WorkerCommand::Snapshot).map(snapshots)
    }

    /// Flushes or drains these volumes. Any worker can do it, so they take turns.
    pub(crate) fn flush(
        &mut self,
        wait: Wait,
        volumes: Vec<VolumeId>,
        kind: RequestKind,
    ) -> Result<(), Problem> {
        let workers = (0..self.workers.len()).cycle();
        let commands = volumes
            .into_iter()
            .map(|volume| WorkerCommand::Run(Request { volume, kind, offset: 0, len: 0 }));
        self.ask(wait, workers.zip(commands).collect()).map(drop)
    }

    /// Publishes the current volumes and tiers on the `board`.
    pub(crate) fn publish(&self) {
        self.board.publish(&self.offer, &self.tiers);
    }

    /// Publishes the state, and sends the result of a job to its admin client, if it has one.
    pub(crate) fn answer(&self, admin: Option<u32>, reply: Reply) {
        self.publish();
        if let Some(admin) = admin {
            self.acceptor.post(Notice::JobDone { admin, reply });
        }
    }

    /// Changes an offered volume, and sends the new offer to all workers.
    ///
    /// # Errors
    /// When the volume cannot be offered with the change. Nothing has changed then.
    pub(crate) fn change_volume(
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

    /// Changes the ids that the volumes have in the tiers.
    pub(crate) fn renumber(&mut self, change: impl FnMut(&mut Offered)) {
        let changed = self.offer.change(|volumes| volumes.iter_mut().for_each(change));
        changed.expect("what is offered stays the same");
    }

    /// Returns the capacity of each tier in bytes, from the top.
    pub(crate) fn tier_bytes(&self) -> Vec<u64> {
        self.tiers.iter().map(|tier| tier.facts.size_bytes).collect()
    }

    /// Sends the current offer to all workers.
    pub(crate) fn announce(&self) {
        self.workers.tell_all(|| Message::Offer(Arc::clone(self.offer.exports())));
    }

    /// Returns the volumes and tiers that were added since the server began.
    pub(crate) fn added(&self) -> Added {
        let (volumes, tiers) = &self.begun;
        let served = self.offer.all().iter().map(|offered| &offered.volume.name);
        let later = self.tiers.iter().map(|tier| &tier.facts).filter(|it| it.key.0 >= *tiers);
        Added {
            volumes: served.filter(|name| !volumes.contains(name)).cloned().collect(),
            tiers: later.map(|facts| facts.name.clone()).collect(),
            order: self.tiers.iter().map(|tier| tier.facts.name.clone()).collect(),
        }
    }

    /// Returns whether any tier is persistent.
    pub(crate) fn is_persistent(&self) -> bool {
        self.tiers.iter().any(|tier| tier.cache.writer.is_some())
    }

    /// Returns the index of a tier, counted from the top; `None` once it is detached.
    pub(crate) fn at(&self, key: TierKey) -> Option<usize> {
        self.tiers.iter().position(|tier| tier.facts.key == key)
    }

    /// Applies a change of a volume to the superblocks of all persistent tiers. `ids` are the
    /// volume's ids in the tiers. Returns the first failure.
    pub(crate) fn write_down(
        &mut self,
        ids: &[VolumeId],
        change: impl Fn(&mut SuperblockWriter, VolumeId) -> Result<(), StartError>,
    ) -> Result<(), String> {
        // A tier with a lost journal is not used again, so its superblock can stay.
        let used = self.tiers.iter_mut().zip(ids).filter(|(tier, _)| !tier.failing.journal_lost);
        let writers = used.filter_map(|(tier, id)| Some((tier.cache.writer.as_mut()?, *id)));
        let failed = writers.filter_map(|(writer, id)| change(writer, id).err());
        let first = failed.map(|error| error.to_string()).reduce(|first, _| first);
        first.map_or(Ok(()), Err)
    }

    /// Handles a worker's report on a tier. Reports on a detached tier are ignored.
    ///
    /// `restore` makes a device usable again that has only failed. A *journal* that could not be
    /// written is worse: its last state remains on the device. So before clients change the data it
    /// describes, the tier's superblock records that the journal is invalid: first for clean data
    /// and, once all dirty data has been written back, for all data. If the device refuses that
    /// record, it is written to the state directory, where the next start finds it, and retried
    /// later. Requests bypass the cache even if neither accepts the record. Status, log and
    /// `/healthz` then say what the next start must not do.
    fn tier_event(&mut self, key: TierKey, event: CacheEvent) {
        let Some(tier) = self.at(key) else { return };
        match event {
            CacheEvent::Degraded => self.degrade(tier),
            CacheEvent::JournalLost => self.lose_journal(tier),
            CacheEvent::Emptied { worker } => self.tier_emptied(worker, tier),
            CacheEvent::Blocked => self.block_tier(tier),
            CacheEvent::Refusing { worker, refusing } => self.tier_refuses(worker, tier, refusing),
            CacheEvent::DataLost { volume, run } => self.lose_data(tier, volume, &run),
        }
    }

    /// Stops all workers from using a cache device that a worker has found failing.
    fn degrade(&mut self, tier: usize) {
        let key = self.tiers[tier].facts.key;
        if !std::mem::replace(&mut self.tiers[tier].failing.degraded, true) {
            tracing::error!(
                tier,
                "the cache device is failing and is not used any more; `floe restore` tries it \
                 again"
            );
        }
        self.workers.tell_all(|| Message::Degrade { tier: key });
        self.note(tier);
    }

    /// Bypasses a tier whose journal a worker could not write, and writes its dirty data back.
    fn lose_journal(&mut self, tier: usize) {
        let key = self.tiers[tier].facts.key;
        if std::mem::replace(&mut self.tiers[tier].failing.journal_lost, true) {
            return;
        }
        tracing::error!(
            tier,
            "the journal of the cache cannot be written: nothing is cached any more, and what is \
             dirty is written back"
        );
        self.tiers[tier].failing.degraded = true;
        self.note(tier);
        self.workers.tell_all(|| Message::Bypass { tier: key, stuck: false });
    }

    /// Refuses requests for dirty data of a bypassed tier, because some of it could not be written
    /// back.
    fn block_tier(&mut self, tier: usize) {
        let key = self.tiers[tier].facts.key;
        let failing = &mut self.tiers[tier].failing;
        if failing.retired || std::mem::replace(&mut failing.stuck, true) {
            return;
        }
        tracing::error!(
            tier,
            "dirty data of the cache cannot be written back: requests for it are refused, others \
             are served past the cache; it is tried again every --flush-interval"
        );
        self.workers.tell_all(|| Message::Bypass { tier: key, stuck: true });
    }

    /// Records that one worker's part of a bypassed tier is clean. After the last part the tier is
    /// retired.
    fn tier_emptied(&mut self, worker: usize, tier: usize) {
        let key = self.tiers[tier].facts.key;
        let workers = self.workers.len();
        let failing = &mut self.tiers[tier].failing;
        failing.emptied.insert(worker);
        if failing.emptied.len() < workers || std::mem::replace(&mut failing.retired, true) {
            return;
        }
        failing.stuck = false;
        self.note(tier);
        match self.tiers[tier].failing.unnoted {
            false => tracing::warn!(
                tier,
                "the cache was ended: the volumes have all that was in it, and the next start \
                 finds it empty"
            ),
            true => tracing::error!(
                tier,
                "the cache was ended, but that could not be recorded on its device: the volumes \
                 have all that was in it; without the note in the state folder, start Floe with it \
                 again only with --initialise"
            ),
        }
        self.workers.tell_all(|| Message::Retire { tier: key });
    }

    /// Records that a worker begins or stops to refuse requests for a tier's dirty data.
    fn tier_refuses(&mut self, worker: usize, tier: usize, refusing: bool) {
        let of = &mut self.tiers[tier].failing.refusing;
        let changed = if refusing { of.insert(worker) } else { of.remove(&worker) };
        if changed && refusing && of.len() == 1 {
            tracing::error!(tier, "requests for some dirty data of the cache are refused");
        } else if changed && of.is_empty() {
            tracing::info!(tier, "no requests are refused any more");
        }
    }

    /// Logs a range of a volume whose only copy is lost.
    fn lose_data(&mut self, tier: usize, volume: VolumeId, run: &Range<u64>) {
        let known = &mut self.tiers[tier];
        known.lost_places += 1;
        if known.lost_places > MOST_LOST_LINES {
            return;
        }
        let offered =
            self.offer.all().iter().find(|offered| offered.ids.get(tier) == Some(&volume));
        let name = offered.map_or("one that is gone", |offered| offered.volume.name.as_str());
        tracing::error!(
            tier,
            volume = name,
            offset = run.start * SECTOR_BYTES,
            bytes = (run.end - run.start) * SECTOR_BYTES,
            "dirty data is lost: the cache device returns something else in its place; reads of it \
             fail until it is written anew"
        );
        if self.tiers[tier].lost_places == MOST_LOST_LINES {
            tracing::error!(
                tier,
                "further places with lost data are not logged; `floe status` counts them"
            );
        }
    }

    /// Records in the superblock how much of a tier's data may be stale, and schedules a retry if
    /// that fails.
    fn note(&mut self, tier: usize) {
        let written = self.tiers[tier].note();
        let failing = &mut self.tiers[tier].failing;
        let was_unnoted = std::mem::replace(&mut failing.unnoted, written.is_err());
        match written {
            Err(error) if !was_unnoted => {
                tracing::error!(
                    tier,
                    %error,
                    "the superblock of the cache could not be written; it is tried again"
                );
            }
            Ok(()) if was_unnoted => {
                tracing::info!(
                    tier,
                    "the superblock of the cache now says that it must not be used"
                );
            }
            _ => {}
        }
        // The peer tiers know of it, too: they may be there where the state directory is not.
        if let Err(error) = link(self.stack, self.tiers.iter_mut()) {
            tracing::error!(tier, %error, "the superblock of a peer tier could not be written");
        }
        let unnoted = self.tiers.iter().any(|tier| tier.failing.unnoted);
        self.note_again = unnoted.then(|| Instant::now() + NOTE_AGAIN);
    }

    /// Retries failed superblock records if the time for that has come.
    fn note_when_due(&mut self) {
        if self.note_again.take_if(|due| *due <= Instant::now()).is_some() {
            self.note_unnoted();
        }
    }

    /// Retries the superblock records that failed before.
    fn note_unnoted(&mut self) {
        let unnoted = |tier: &usize| self.tiers[*tier].failing.unnoted;
        let unnoted: Vec<usize> = (0..self.tiers.len()).filter(unnoted).collect();
        unnoted.into_iter().for_each(|tier| self.note(tier));
    }
}

/// Pause before a failed superblock record is retried.
const NOTE_AGAIN: Duration = Duration::from_secs(10);

/// Maximum number of ranges of lost data that the log names for each tier.
const MOST_LOST_LINES: u32 = 32;

/// Runs work on an extra thread, and waits for it or for the order to end the server.
///
/// # Errors
/// When the server is to end first, the work panics, or no thread can be started.
fn beside<T: Send + 'static>(
    control: &mut Control,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    wait_for(control, work, |control| control.end.is_due)
}

/// Runs work of the shutdown on an extra thread, and waits for it.
///
/// # Errors
/// When the server is abandoned first, the work panics, or no thread can be started.
fn beside_the_end<T: Send + 'static>(
    control: &mut Control,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    wait_for(control, work, |control| control.end.is_abandoned)
}

/// Runs slow work that concerns no worker, such as opening a device, on an extra thread. Meanwhile
/// the control thread handles events, and runs `restore` jobs.
///
/// Opening a device may take any time. If `is_over` holds before the work is done, this returns at
/// once, and the result of the work is dropped.
fn wait_for<T: Send + 'static>(
    control: &mut Control,
    work: impl FnOnce() -> T + Send + 'static,
    is_over: impl Fn(&Control) -> bool,
) -> Result<T, Problem> {
    let (result, results) = mpsc::channel();
    let sender = control.inbox.sender.clone();
    let run = move || {
        let done = catch_unwind(AssertUnwindSafe(work));
        // The receiver is gone when the server ends.
        let _ = result.send(done);
        let _ = sender.send(Event::WorkDone);
    };
    let thread = Builder::new().name("floe-open".to_owned()).spawn(run);
    thread.map_err(|error| Problem::Other(format!("cannot start a thread: {error}")))?;
    loop {
        match results.try_recv() {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(_)) => return Err(Problem::Other("the work on a device panicked".to_owned())),
            Err(TryRecvError::Disconnected) => unreachable!("it sends a result first"),
            Err(TryRecvError::Empty) if is_over(control) => return Err(Problem::Ending),
            Err(TryRecvError::Empty) => {}
        }
        let restores = |job: &Job| matches!(job.operation, Operation::Restore);
        if let Some(at) = control.jobs.iter().position(restores) {
            let job = control.jobs.remove(at).expect("it has just been there");
            let reply = restore(control).unwrap_or_else(|refusal| refusal);
            control.answer(job.admin, reply);
        } else {
            control.next(None);
        }
    }
}
