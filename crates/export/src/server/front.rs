//! The front desk: a thread of its own, mostly asleep, to which clients come first.
//!
//! It accepts connections and gives each to the worker with the fewest, speaks with admin clients,
//! and takes care of what concerns all workers: volumes that come and go, the state of the whole,
//! and the end. Such an *errand* is asked of the workers by letter; when all have reported,
//! [`Front::follow_up`] does what comes next. No request of a client passes here.
//!
//! An end (a signal, `floe stop`) takes no new requests, lets those under way finish, makes durable
//! what was written (in a cache that ends with the program, by bringing it to the backing devices),
//! and closes the connections.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use floe_block::{Kind, VolumeId};
use floe_device::{Pool, Ring, SocketCompletion, SocketOutcome, Sockets};
use rustix::time::{ClockId, clock_gettime};

use super::admin_listener::AdminListener;
use super::admin_side::AdminSession;
use super::config::{ServeError, ServerConfig};
use super::errand::{Errand, Then};
use super::letter::{Deed, Instruction, News, Problem};
use super::mailbox::Mailbox;
use super::offer::Offer;
use super::restack::Restacking;
use super::slots::Slots;
use super::tier::{Closing, KnownTier};
use super::token::FrontToken;
use super::valve::Valve;
use super::warnings::{Complaint, Warnings};
use crate::listener::Listener;
use crate::notify;
use crate::status::{
    Facts, Lately, LostStatus, MemoryFacts, Report, ServiceTimes, Snapshot, Tally,
};
use crate::uri::Uri;

/// How long to wait before accepting again after the system refused (out of descriptors, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A worker as the front desk knows it.
#[derive(Debug, Clone)]
pub(super) struct Colleague {
    pub(super) instructions: Arc<Mailbox<Instruction>>,
    /// Clients it has, those on their way to it included.
    pub(super) connections: Arc<AtomicUsize>,
}

/// How far the end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Serving,
    /// Requests under way are finishing, then comes the last flush.
    Ending,
    /// Whoever asked for the end is being told.
    Telling,
}

/// The thread to which clients come first.
pub(super) struct Front {
    pub(super) config: Arc<ServerConfig>,
    pub(super) ring: Ring,
    pub(super) pool: Pool,
    pub(super) sockets: Sockets,
    pub(super) listeners: Vec<Listener>,
    pub(super) admin_listeners: Vec<AdminListener>,
    pub(super) admin_sessions: Slots<AdminSession>,
    pub(super) signal: Rc<OwnedFd>,
    pub(super) bell: Rc<OwnedFd>,
    pub(super) news: Arc<Mailbox<News>>,
    pub(super) workers: Vec<Colleague>,
    pub(super) errands: Slots<Errand>,
    pub(super) offer: Offer,
    /// From the top.
    pub(super) tiers: Vec<KnownTier>,
    /// Tells those that are served together from others, whenever they were.
    pub(super) stack: u32,
    /// How many tiers there have been.
    pub(super) keys_given: u32,
    /// A tier that is on its way in or out.
    pub(super) restacking: Option<Restacking>,
    /// The end begins when that is done.
    pub(super) end_due: bool,
    pub(super) phase: Phase,
    /// What is counted here rather than by workers.
    pub(super) tally: Tally,
    pub(super) accept_again: Option<(Instant, Vec<FrontToken>)>,
    /// The last attempt to accept a client failed; the first of a row is worth a line in the log.
    pub(super) refusing: bool,
    /// The last client was sent away for want of room; the first of a row is worth a line in the
    /// log.
    pub(super) crowded: bool,
    pub(super) warnings: Warnings,
    pub(super) begun: Instant,
    /// What advice in the status goes by.
    pub(super) service: ServiceTimes,
    pub(super) lately: Lately,
    /// What decides how much is shed, if anything may be.
    pub(super) valve: Option<Arc<Valve>>,
    pub(super) started: SystemTime,
    /// How the last flush ended, and what it left dirty.
    pub(super) last_flush: Result<(), Problem>,
    /// What the last flush left in the cache, and in memory only.
    pub(super) left_dirty: Dirty,
    /// What is dirty and cannot be brought down, since its only copy is gone.
    pub(super) left_lost: LostStatus,
    /// What requests were refused for, since it cannot be read or replaced.
    pub(super) left_refused_bytes: u64,
    /// When to try again to write down what became of a cache.
    pub(super) note_again: Option<Instant>,
    pub(super) died: Option<ServeError>,
}

impl Front {
    /// What clients connect to, one for each volume and address.
    pub(super) fn uris(&self) -> impl Iterator<Item = Uri> + '_ {
        self.offer.exports().iter().flat_map(|export| {
            let uri =
                |listener: &Listener| Uri { export: export.name.clone(), ..listener.uri.clone() };
            self.listeners.iter().map(uri)
        })
    }

    /// Serves until it is told to end and everything has come to its end.
    ///
    /// # Errors
    /// When a ring or a worker fails, or the last flush leaves dirty data behind.
    pub(super) fn run(mut self) -> Result<Closing, ServeError> {
        for index in 0..self.listeners.len() as u32 {
            self.accept(FrontToken::Accept(index));
        }
        for index in 0..self.admin_listeners.len() as u32 {
            self.accept(FrontToken::AcceptAdmin(index));
        }
        self.sockets.readable(FrontToken::Signal.encode(), &Rc::clone(&self.signal));
        self.sockets.readable(FrontToken::Bell.encode(), &Rc::clone(&self.bell));
        let mut arrived = Vec::new();
        while !(self.phase == Phase::Telling && self.admin_sessions.is_empty()) {
            self.sockets.poll(&mut arrived);
            let news = self.news.take();
            let busy = !arrived.is_empty() || !news.is_empty();
            arrived.drain(..).for_each(|completion| self.take_in(completion));
            self.take_news(news);
            if let Some(died) = self.died.take() {
                return Err(died);
            }
            self.accept_what_was_refused();
            self.hang_up_on_late_admins();
            self.warnings.tell(Instant::now());
            self.note_what_is_due();
            if !busy {
                self.wait()?;
            }
        }
        self.workers.iter().for_each(|worker| worker.instructions.post(Instruction::Stop));
        let (dirty_bytes, held_bytes) = (self.left_dirty.bytes(), self.left_dirty.held_bytes);
        let left = |problem: Problem| ServeError::LastFlush {
            problem: problem.to_string(),
            dirty_bytes,
            held_bytes,
        };
        self.last_flush.clone().map_err(left)?;
        Ok(Closing::of(self))
    }

    fn wait(&mut self) -> Result<(), ServeError> {
        let due = self
            .accept_again
            .as_ref()
            .map(|(due, _)| *due)
            .into_iter()
            .chain(self.sockets.next_due())
            .chain(self.admin_due())
            .chain(self.warnings.due())
            .chain(self.note_again)
            .min();
        let bell = self.news.bell();
        bell.wait(&self.ring, due, || self.news.is_empty()).map(drop).map_err(ServeError::Wait)
    }

    fn take_in(&mut self, completion: SocketCompletion) {
        let token = FrontToken::decode(completion.token);
        match (token, completion.result) {
            (FrontToken::Signal, result) => self.signalled(&result),
            (FrontToken::Bell, _) => {
                self.news.bell().heard();
                self.sockets.readable(FrontToken::Bell.encode(), &Rc::clone(&self.bell));
            }
            (FrontToken::Accept(_) | FrontToken::AcceptAdmin(_), result) => {
                self.accepted(token, result)
            }
            (FrontToken::ReceiveAdmin(index), result) => self.heard_admin(index, result),
            (FrontToken::SendAdmin(index), result) => self.sent_to_admin(index, &result),
        }
    }

    fn take_news(&mut self, news: VecDeque<News>) {
        for news in news {
            match news {
                News::Done { worker, errand, result } => {
                    if self.errands[errand].reported(worker, result) {
                        let errand = self.errands.remove(errand).expect("it has just been there");
                        self.follow_up(errand);
                    }
                }
                News::Degraded { tier } => self.degrade(tier),
                News::JournalLost { tier } => self.lose_journal(tier),
                News::DataLost { tier, volume, run } => self.lose_data(tier, volume, &run),
                News::Emptied { worker, tier } => self.tier_emptied(worker, tier),
                News::Blocked { tier } => self.block_tier(tier),
                News::Refusing { worker, tier, refusing } => {
                    self.tier_refuses(worker, tier, refusing)
                }
                News::TierMade(made) => self.tier_made(made),
                News::Died(error) => self.died = Some(error),
            }
        }
    }

    fn accept(&mut self, token: FrontToken) {
        let listener = match token {
            FrontToken::Accept(index) => &self.listeners[index as usize].socket,
            FrontToken::AcceptAdmin(index) => &self.admin_listeners[index as usize].socket,
            _ => unreachable!("nothing else accepts"),
        };
        self.sockets.accept(token.encode(), &Rc::clone(listener));
    }

    fn accept_what_was_refused(&mut self) {
        if let Some((_, tokens)) = self.accept_again.take_if(|(due, _)| *due <= Instant::now()) {
            tokens.into_iter().for_each(|token| self.accept(token));
        }
    }

    fn accepted(&mut self, token: FrontToken, result: std::io::Result<SocketOutcome>) {
        // While the server ends it can still be asked how far it is.
        let welcome = match self.phase {
            Phase::Serving => true,
            Phase::Ending => matches!(token, FrontToken::AcceptAdmin(_)),
            Phase::Telling => false,
        };
        if !welcome {
            return;
        }
        match (token, result) {
            (FrontToken::AcceptAdmin(listener), Ok(SocketOutcome::Accepted(socket))) => {
                self.greet_admin(listener, socket)
            }
            (_, Ok(SocketOutcome::Accepted(socket))) => {
                self.refusing = false;
                self.welcome(socket);
            }
            (_, Ok(_)) => {}
            (_, Err(error)) => {
                let now = Instant::now();
                let is_first = !std::mem::replace(&mut self.refusing, true);
                if is_first && self.warnings.count(Complaint::NotAccepted, now) {
                    tracing::warn!(%error, "{}", Complaint::NotAccepted.text());
                }
                let due = now + ACCEPT_PAUSE;
                self.accept_again.get_or_insert((due, Vec::new())).1.push(token);
                return;
            }
        }
        self.accept(token);
    }

    /// Gives a client to the worker that has the fewest.
    fn welcome(&mut self, socket: OwnedFd) {
        // roughly is good enough
        let count = |worker: &Colleague| worker.connections.load(Ordering::Relaxed);
        let connections: usize = self.workers.iter().map(count).sum();
        if connections >= self.config.limits.connections {
            let is_first = !std::mem::replace(&mut self.crowded, true);
            if is_first && self.warnings.count(Complaint::TooMany, Instant::now()) {
                tracing::warn!(connections, "{}", Complaint::TooMany.text());
            }
            self.tally.clients.connections_refused += 1;
            return; // closes it
        }
        self.crowded = false;
        let idlest =
            self.workers.iter().min_by_key(|worker| count(worker)).expect("there are workers");
        idlest.connections.fetch_add(1, Ordering::Relaxed);
        idlest.instructions.post(Instruction::Welcome(socket));
    }

    fn signalled(&mut self, result: &std::io::Result<SocketOutcome>) {
        // Read before it is acted on: a signal that comes meanwhile is one more.
        let mut bytes = [0; 16];
        if result.is_ok() && rustix::io::read(&self.signal, &mut bytes).is_ok_and(|bytes| bytes > 0)
        {
            self.sockets.readable(FrontToken::Signal.encode(), &Rc::clone(&self.signal));
        } // else nobody is left to signal, and that would be readable for ever
        if self.phase == Phase::Serving {
            self.begin_end();
        } else {
            self.ask_all(Deed::Snapshot, Then::SayDirty);
        }
    }

    /// Asks all workers for the same.
    pub(super) fn ask_all(&mut self, deed: Deed, then: Then) {
        let errand = self.errands.insert(Errand::new(self.workers.len(), then));
        for worker in &self.workers {
            worker.instructions.post(Instruction::Do { errand, deed: deed.clone() });
        }
    }

    /// Asks for a flush, or a drain, of each of these volumes. Any worker can do it; the first is
    /// as good as others.
    pub(super) fn flush(&mut self, volumes: Vec<VolumeId>, kind: Kind, then: Then) {
        let errand = Errand::new(volumes.len(), then);
        if volumes.is_empty() {
            return self.follow_up(errand);
        }
        let errand = self.errands.insert(errand);
        for (at, volume) in volumes.into_iter().enumerate() {
            let worker = &self.workers[at % self.workers.len()];
            worker.instructions.post(Instruction::Do { errand, deed: Deed::Flush(volume, kind) });
        }
    }

    /// Lets all workers know what is offered now.
    pub(super) fn announce(&self) {
        for worker in &self.workers {
            worker.instructions.post(Instruction::Offer(Arc::clone(self.offer.exports())));
        }
    }

    /// Takes no new requests from now on.
    pub(super) fn begin_end(&mut self) {
        if self.restacking.as_ref().is_some_and(Restacking::is_shut) {
            self.end_due = true; // that does not take long
            return;
        }
        notify::stopping();
        self.phase = Phase::Ending;
        self.leave_aside();
        self.ask_all(Deed::Snapshot, Then::FirstLook);
    }

    /// All workers have reported: what comes next.
    fn follow_up(&mut self, errand: Errand) {
        let problem = errand.problem.clone();
        match errand.then.clone() {
            Then::Status { admin } => self.tell_status(admin, errand.into_snapshots()),
            Then::Metrics { admin } => self.tell_metrics(admin, errand.into_snapshots()),
            Then::Volumes { admin } => self.tell_volumes(admin, errand.into_snapshots()),
            Then::SayDirty => {
                let dirty = Dirty::of(&errand.into_snapshots());
                let (dirty_bytes, held_bytes) = (dirty.bytes(), dirty.held_bytes);
                match dirty_bytes + held_bytes {
                    0 => tracing::warn!("still ending, with nothing that kill -9 would lose"),
                    _ => tracing::warn!(
                        dirty_bytes,
                        held_bytes,
                        "still flushing; kill -9 would lose what is dirty"
                    ),
                }
            }
            Then::Flushed { admin } => self.tell_flushed(admin, problem),
            Then::Aside { admin, what } => self.aside_done(admin, what, errand),
            Then::Opened { admin, volume } => self.volume_opened(admin, volume, problem),
            Then::Closed { admin, problem } => self.volume_refused(admin, problem),
            Then::Added { admin, volume } => {
                let ids =
                    errand.added.expect("workers tell the numbers of a volume they have added");
                self.volume_added(admin, ids, volume);
            }
            Then::Cleared { admin, ids, volume } => {
                self.volume_cleared(admin, ids, volume, problem)
            }
            Then::Counted { admin, id, force } => {
                self.volume_counted(admin, id, force, &errand.into_snapshots());
            }
            Then::Retired { admin, id } => {
                self.flush(vec![id], Kind::Drain, Then::Drained { admin, id })
            }
            Then::Drained { admin, id } => self.volume_drained(admin, id, problem),
            Then::Removed { removal, tier } => self.volume_removed_from(removal, tier, problem),
            Then::Resized { admin, id, bytes } => self.volume_resized(admin, id, bytes, problem),
            Then::Tier(step) => self.restacked(step, problem),
            Then::Tiers { admin } => self.tell_tiers(admin, errand.into_snapshots()),
            Then::Restored { admin } => self.cache_restored(admin),
            Then::Remembered { admin } => self.remembered(admin, problem),
            Then::FirstLook => {
                let dirty = Dirty::of(&errand.into_snapshots());
                tracing::info!(
                    dirty_bytes = dirty.bytes(),
                    held_bytes = dirty.held_bytes,
                    "ending"
                );
                self.ask_all(Deed::End, Then::Quiet);
            }
            Then::Quiet => self.flush(self.offer.ids(), Kind::Flush, Then::LastFlush),
            Then::LastFlush => {
                self.last_flush = problem.map_or(Ok(()), Err);
                self.ask_all(Deed::Rest, Then::Resting);
            }
            Then::Resting => self.ask_all(Deed::NoteRest, Then::Noted),
            Then::Noted => self.ask_all(Deed::Snapshot, Then::LastLook),
            Then::LastLook => {
                let snapshots = errand.into_snapshots();
                self.left_dirty = Dirty::of(&snapshots);
                let Dirty { held_bytes, .. } = self.left_dirty;
                self.left_lost = LostStatus::of(&snapshots, &self.offer.facts());
                let tiers = snapshots.iter().flat_map(Snapshot::tiers);
                self.left_refused_bytes = tiers.map(|(stats, _)| stats.refused_bytes).sum();
                self.note_unnoted();
                tracing::info!(dirty_bytes = self.left_dirty.bytes(), held_bytes, "ended");
                self.phase = Phase::Telling;
                self.tell_stopped();
            }
        }
    }

    /// All there is to know, from what the workers handed in.
    pub(super) fn report(&mut self, snapshots: Vec<Snapshot>) -> Report {
        let facts = Facts {
            volumes: self.offer.facts(),
            tiers: self.tiers.iter().map(KnownTier::facts).collect(),
            started: self.started,
            uptime: self.begun.elapsed(),
            memory: self.config.memory.as_ref().map(|tier| MemoryFacts {
                write: tier.write(),
                usage: tier.usage(),
                freezing: tier.freezing(),
            }),
            shedding: self.valve.as_ref().map(|valve| valve.facts()),
            service: self.service.clone(),
            log_lines_dropped: (self.config.log_lines_dropped)(),
        };
        let mut report = Report::new(facts, snapshots);
        report.sum.tally += &self.tally;
        let processor = clock_gettime(ClockId::ProcessCPUTime);
        let processor = Duration::new(processor.tv_sec as u64, processor.tv_nsec as u32);
        report.advise(&mut self.lately, processor);
        report
    }
}

/// What only some tier of the cache has, from the top, and what only memory has.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    pub(super) tiers: Vec<u64>,
    pub(super) held_bytes: u64,
}

impl Dirty {
    fn of(snapshots: &[Snapshot]) -> Self {
        let mut dirty = Self::default();
        for snapshot in snapshots {
            for (at, (stats, _)) in snapshot.tiers().enumerate() {
                dirty.tiers.resize(dirty.tiers.len().max(at + 1), 0);
                dirty.tiers[at] += stats.dirty_bytes;
                dirty.held_bytes += stats.held_bytes;
            }
        }
        dirty
    }

    fn bytes(&self) -> u64 {
        self.tiers.iter().sum()
    }
}
