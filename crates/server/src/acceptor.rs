//! The acceptor: the thread that accepts connections. It is idle most of the time.
//!
//! It gives each connection to the worker with the fewest, talks to admin clients, and handles
//! signals. It answers requests for health, status and metrics by itself, and passes jobs to the
//! control thread. No client's data request passes through this thread, and nothing here blocks.

pub(crate) mod admin;
pub(crate) mod entrance;
pub(crate) mod eviction;
pub(crate) mod questions;
pub(crate) mod reporting;

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Instant;

use floe_block::{Fault, Request, RequestKind};
use floe_device::{SocketCompletion, SocketOutcome};
use rustix::net::{Shutdown, shutdown};

use crate::acceptor::admin::{AdminClients, AdminListener, Encryption};
use crate::acceptor::entrance::{AcceptorToken, Entrance};
use crate::acceptor::eviction::{CacheSearch, Eviction};
use crate::acceptor::questions::{Purpose, Question, Questions};
use crate::acceptor::reporting::{Audience, Reporting};
use crate::admin::{AdminCommand, Reply, Trouble, VolumePart};
use crate::control::board::{Board, Dirty};
use crate::listener::Listener;
use crate::messages::{
    Asker, Done, Event, Job, Mailbox, Message, Notice, Operation, Problem, Ticket, WorkerCommand,
    snapshots,
};
use crate::metrics;
use crate::offer::{Offered, absent, present};
use crate::setup::{ServeError, ServerSetup};
use crate::status::Report;
use crate::worker::handle::Workers;

/// Stages of the server's shutdown, as the acceptor sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    Serving,
    /// The control thread is shutting the server down.
    Ending,
    /// The server has ended. Admin clients that asked for the shutdown get this reply.
    Telling(Reply),
}

/// The end of the acceptor.
pub(crate) struct Farewell {
    /// The server ends because a new program replaces it.
    pub(crate) replaced: bool,
    /// Connections to close once the server's caches are closed.
    pub(crate) told: Vec<OwnedFd>,
}

/// A kind of configuration change that excludes others while it is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Volume,
    Tier,
}

impl Change {
    /// Returns the refusal for a client that asks for another change meanwhile.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Volume => {
                "another volume is being added, removed or resized; try again when that is done"
            }
            Self::Tier => "a tier is being added, removed or resized; try again when that is done",
        }
    }
}

/// State of the acceptor thread.
pub(crate) struct Acceptor {
    pub(crate) config: Arc<ServerSetup>,
    pub(crate) admin: AdminClients,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) admin_listeners: Vec<AdminListener>,
    pub(crate) inbox: Arc<Mailbox<Notice>>,
    pub(crate) workers: Workers,
    pub(crate) control: Sender<Event>,
    pub(crate) board: Arc<Board>,
    pub(crate) questions: Questions,
    pub(crate) reporting: Reporting,
    pub(crate) entrance: Entrance,
    pub(crate) phase: Phase,
    /// The program is replaced (upgraded) once the server has ended.
    pub(crate) replaced: bool,
    /// The change of volumes or tiers under way, and the number of the admin session that asked for
    /// it.
    pub(crate) change: Option<(u32, Change)>,
}

impl Acceptor {
    /// Accepts clients until the control thread has ended the server, then sends the result to
    /// those that asked for the shutdown. Returns whether the program is to be replaced.
    ///
    /// # Errors
    /// When the ring fails, or another thread has died.
    pub(crate) fn run(mut self) -> Result<Farewell, ServeError> {
        for index in 0..self.listeners.len() as u32 {
            self.accept(AcceptorToken::Accept(index));
        }
        for index in 0..self.admin_listeners.len() as u32 {
            self.accept(AcceptorToken::AcceptAdmin(index));
        }
        for passed in self.config.nvme.hand_off.take() {
            self.to_idlest(Message::Adopt(passed));
        }
        let signal = Rc::clone(&self.admin.io.signal);
        self.admin.io.sockets.readable(AcceptorToken::Signal.encode(), &signal);
        let wake_up = self.inbox.wake_up().descriptor().map_err(ServeError::Wake)?;
        self.admin.io.sockets.readable(AcceptorToken::WakeUp.encode(), &wake_up);
        let mut arrived = Vec::new();
        while !(matches!(self.phase, Phase::Telling(_)) && self.admin.sessions.is_empty()) {
            self.admin.io.sockets.poll(&mut arrived);
            let notices = self.inbox.take();
            let busy = !arrived.is_empty() || !notices.is_empty();
            arrived.drain(..).for_each(|completion| self.take_in(completion, &wake_up));
            for notice in notices {
                self.take_notice(notice)?;
            }
            self.accept_what_was_refused();
            self.admin.hang_up_on_late();
            self.give_up_questions();
            self.sample_when_due();
            self.entrance.warnings.tell(Instant::now());
            if !busy {
                self.wait()?;
            }
        }
        Ok(Farewell { replaced: self.replaced, told: self.admin.told })
    }

    fn wait(&mut self) -> Result<(), ServeError> {
        let due = self.entrance.due().into_iter();
        let due = due
            .chain(self.admin.due())
            .chain(self.reporting.feed.due())
            .chain(self.questions.due(self.config.limits.reply_time))
            .min();
        let wake_up = self.inbox.wake_up();
        let waited = wake_up.wait(&self.admin.io.ring, due, || self.inbox.is_empty());
        waited.map(drop).map_err(ServeError::Wait)
    }

    fn take_in(&mut self, completion: SocketCompletion, wake_up: &Rc<OwnedFd>) {
        let token = AcceptorToken::decode(completion.token);
        match (token, completion.result) {
            (AcceptorToken::Signal, result) => self.signalled(&result),
            (AcceptorToken::WakeUp, _) => {
                self.inbox.wake_up().heard();
                self.admin.io.sockets.readable(AcceptorToken::WakeUp.encode(), wake_up);
            }
            (AcceptorToken::Accept(_) | AcceptorToken::AcceptAdmin(_), result) => {
                self.accepted(token, result)
            }
            (AcceptorToken::ReceiveAdmin(index), result) => {
                if let Some(command) = self.admin.heard(index, result) {
                    self.obey(index, command);
                }
            }
            (AcceptorToken::SendAdmin(index), result) => self.admin.sent(index, &result),
        }
    }

    fn take_notice(&mut self, notice: Notice) -> Result<(), ServeError> {
        match notice {
            Notice::Replied(reply) => {
                if let Some(question) = self.questions.replied(reply) {
                    self.answer(question);
                }
            }
            Notice::JobDone { admin, reply } => self.job_done(admin, &reply),
            Notice::Replace { admin } => {
                let session = &mut self.admin.sessions[admin];
                (session.stopping, session.upgrading) = (true, true);
                self.replaced = self.phase == Phase::Serving;
                self.end();
            }
            Notice::Ended(reply) => {
                self.phase = Phase::Telling(reply);
                self.tell_stopped();
            }
            Notice::Died(error) => return Err(error),
        }
        Ok(())
    }

    /// Fails the questions under way if a worker hangs, and tells the clients that wait for them.
    fn give_up_questions(&mut self) {
        let patience = self.config.limits.reply_time;
        for (purpose, problem) in self.questions.give_up(&self.workers, patience) {
            self.answer_failed(purpose, problem);
        }
    }

    fn accept(&mut self, token: AcceptorToken) {
        let listener = match token {
            AcceptorToken::Accept(index) => &self.listeners[index as usize].socket,
            AcceptorToken::AcceptAdmin(index) => &self.admin_listeners[index as usize].socket,
            _ => unreachable!("nothing else accepts"),
        };
        self.admin.io.sockets.accept(token.encode(), &Rc::clone(listener));
    }

    fn accept_what_was_refused(&mut self) {
        let again = self.entrance.accept_again(Instant::now());
        again.into_iter().for_each(|token| self.accept(token));
    }

    fn accepted(&mut self, token: AcceptorToken, result: std::io::Result<SocketOutcome>) {
        // While the server ends it can still be asked how far it is.
        let welcome = match &self.phase {
            Phase::Serving => true,
            Phase::Ending => matches!(token, AcceptorToken::AcceptAdmin(_)),
            Phase::Telling(_) => false,
        };
        if !welcome {
            return;
        }
        match (token, result) {
            (AcceptorToken::AcceptAdmin(listener), Ok(SocketOutcome::Accepted(socket))) => {
                let access = &self.admin_listeners[listener as usize].access;
                self.admin.greet(Arc::clone(access), socket);
            }
            (AcceptorToken::Accept(listener), Ok(SocketOutcome::Accepted(socket))) => {
                self.entrance.accepted();
                self.welcome(listener, socket);
            }
            (_, Ok(_)) => {}
            (_, Err(error)) => {
                return self.entrance.not_accepted(token, &error, Instant::now());
            }
        }
        self.accept(token);
    }

    /// Gives a client of a data listener to the least loaded worker, or disconnects it if there are
    /// too many connections.
    fn welcome(&mut self, listener: u32, socket: OwnedFd) {
        let connections = self.workers.connections();
        if connections >= self.config.limits.connections {
            return self.entrance.sent_away(connections); // closes it
        }
        self.entrance.has_room();
        let protocol = Arc::clone(&self.listeners[listener as usize].protocol);
        self.to_idlest(Message::Serve(socket, protocol));
    }

    /// Posts a message with a client to the worker that has the fewest clients, and counts the
    /// client there.
    fn to_idlest(&self, client: Message) {
        let idlest = self.workers.idlest();
        idlest.connections.fetch_add(1, Ordering::Relaxed); // roughly is good enough
        idlest.mailbox.post(client);
    }

    fn signalled(&mut self, result: &std::io::Result<SocketOutcome>) {
        // Read before it is acted on: a signal that comes meanwhile is one more.
        let mut bytes = [0; 16];
        if result.is_ok()
            && rustix::io::read(&self.admin.io.signal, &mut bytes).is_ok_and(|bytes| bytes > 0)
        {
            let signal = Rc::clone(&self.admin.io.signal);
            self.admin.io.sockets.readable(AcceptorToken::Signal.encode(), &signal);
        } // else nobody is left to signal, and that would be readable for ever
        self.replaced = false; // it is to end for good
        if self.phase == Phase::Serving {
            self.end();
        } else {
            self.ask_snapshots(Purpose::LogDirty);
        }
    }

    /// Returns whether another server of the pair would take over if this one ended.
    pub(crate) fn has_standby(&self) -> bool {
        self.config.turn.as_ref().is_some_and(|turn| turn.status().standby.is_some())
    }

    /// Begins the shutdown: workers take no more requests, and the control thread ends the server.
    /// If the server has ended already, clients that wait for the shutdown get its result.
    pub(crate) fn end(&mut self) {
        match self.phase {
            Phase::Serving => {
                self.phase = Phase::Ending;
                // At once, also while a job is under way: no request is taken after the next
                // status.
                self.workers.tell_all(|| Message::End);
                self.send_to_control(Event::End { replaced: self.replaced });
            }
            Phase::Ending => {}
            Phase::Telling(_) => self.tell_stopped(),
        }
    }

    pub(crate) fn send_to_control(&self, event: Event) {
        let _ = self.control.send(event); // it has said so if it could not go on
    }

    fn obey(&mut self, index: u32, command: AdminCommand) {
        let begun = match command {
            AdminCommand::Health if self.phase != Phase::Serving => {
                Err(Reply::trouble(Trouble::Ending, "ending"))
            }
            AdminCommand::Health => Err(self.health()),
            AdminCommand::Page => {
                let access = self.admin.sessions[index].conversation.access();
                Err(Reply::Page(access.page_write()))
            }
            AdminCommand::Events => self.watch(index),
            AdminCommand::Status => return self.ask_snapshots(Purpose::Status { admin: index }),
            AdminCommand::Metrics => return self.ask_snapshots(Purpose::Metrics { admin: index }),
            AdminCommand::ListVolumes => {
                return self.ask_snapshots(Purpose::Volumes { admin: index });
            }
            AdminCommand::ListTiers => return self.ask_snapshots(Purpose::Tiers { admin: index }),
            AdminCommand::Flush => self.flush(index),
            AdminCommand::WarmVolume { name, part } => self.warm(index, &name, part),
            AdminCommand::EvictVolume { name, part } => self.evict(index, &name, part),
            AdminCommand::HandOver if !self.has_standby() => {
                Err(Reply::trouble(Trouble::Conflict, NO_STANDBY))
            }
            AdminCommand::HandOver if self.board.state().lacks_half() => {
                Err(Reply::trouble(Trouble::Conflict, LACKS_HALF))
            }
            AdminCommand::Stop | AdminCommand::HandOver => {
                self.admin.sessions[index].stopping = true;
                self.end();
                Ok(())
            }
            AdminCommand::TakeOver => {
                Err(Reply::trouble(Trouble::Conflict, "this server serves already"))
            }
            AdminCommand::Upgrade => self.begin_job(index, Operation::Upgrade),
            AdminCommand::RestoreCache => self.begin_job(index, Operation::Restore),
            AdminCommand::AddVolume(addition) => {
                let paths = self.admin.sessions[index].paths();
                self.begin_job(index, Operation::AddVolume { addition, paths })
            }
            AdminCommand::RemoveVolume { name, force } => {
                self.begin_job(index, Operation::RemoveVolume { name, force })
            }
            AdminCommand::ResizeVolume { name, size_bytes } => {
                self.begin_job(index, Operation::ResizeVolume { name, size_bytes })
            }
            AdminCommand::LimitVolume { name, change } => {
                self.begin_job(index, Operation::LimitVolume { name, change })
            }
            AdminCommand::LimitTotal { change } => {
                self.begin_job(index, Operation::LimitTotal { change })
            }
            AdminCommand::ShareVolume { name, change } => {
                self.begin_job(index, Operation::ShareVolume { name, change })
            }
            AdminCommand::SetAccess { name, state } => {
                self.begin_job(index, Operation::SetAccess { name, state })
            }
            AdminCommand::AddTier(wanted) => {
                let paths = self.admin.sessions[index].paths();
                self.begin_job(index, Operation::AttachTier { wanted, paths })
            }
            AdminCommand::RemoveTier { number } => {
                self.begin_job(index, Operation::DetachTier { number })
            }
            AdminCommand::ResizeTier { number, size_bytes } => {
                self.begin_job(index, Operation::ResizeTier { number, size_bytes })
            }
        };
        if let Err(reply) = begun {
            self.admin.tell(index, &reply);
        }
    }

    /// Returns the reply of `/healthz`: an error if a worker hangs, otherwise the published state.
    /// Each call posts a probe to the workers, so that a later call notices if it was not taken.
    fn health(&self) -> Reply {
        match self.workers.silent(Instant::now(), self.config.limits.reply_time) {
            Some(problem) => Reply::trouble(Trouble::Refusing, problem.to_string()),
            None => self.board.state().health(),
        }
    }

    /// Requests the counters of all workers.
    pub(crate) fn ask_snapshots(&mut self, purpose: Purpose) {
        let sampling = self.reporting.feed.sampling();
        let samples = matches!(purpose, Purpose::Sample);
        let command = || match samples {
            true => WorkerCommand::Sample(sampling),
            false => WorkerCommand::Snapshot,
        };
        let number = self.questions.insert(purpose, 0..self.workers.len());
        let ticket = Ticket { asker: Asker::Acceptor, number };
        self.workers.tell_all(|| Message::Ask { ticket, command: command() });
    }

    /// Requests a drain of each volume. Any worker can do it, so they take turns.
    fn flush(&mut self, admin: u32) -> Result<(), Reply> {
        let state = self.board.state();
        if state.volumes.is_empty() {
            return Err(Reply::Done("flushed"));
        }
        let worker = |at: usize| at % self.workers.len();
        let workers = (0..state.volumes.len()).map(worker);
        let number = self.questions.insert(Purpose::Flushed { admin }, workers);
        let ticket = Ticket { asker: Asker::Acceptor, number };
        for (at, offered) in state.volumes.iter().enumerate() {
            let kind = RequestKind::Drain;
            let command =
                WorkerCommand::Run(Request { volume: offered.id, kind, offset: 0, len: 0 });
            self.workers.post(worker(at), Message::Ask { ticket, command });
        }
        Ok(())
    }

    /// Has a worker bring a part of a volume into the cache.
    fn warm(&mut self, admin: u32, name: &str, part: VolumePart) -> Result<(), Reply> {
        let request = self.part(name, part, RequestKind::Warm, VolumePart::WARM_BYTES_MAX)?;
        if let Some(tier) = self.board.state().tiers.first()
            && !tier.config.mode.caches_reads()
        {
            let mode = tier.config.mode;
            let problem = format!("the cache keeps nothing that is read (write = \"{mode}\")");
            return Err(Reply::trouble(Trouble::Conflict, problem));
        }
        self.ask_one(request, Purpose::Warmed { admin });
        Ok(())
    }

    /// Has a worker write a volume's dirty data back; [`Purpose::Drained`] then drops the part.
    fn evict(&mut self, admin: u32, name: &str, part: VolumePart) -> Result<(), Reply> {
        let part = self.part(name, part, RequestKind::Evict, VolumePart::EVICT_BYTES_MAX)?;
        let drain = Request { kind: RequestKind::Drain, offset: 0, len: 0, ..part };
        self.ask_one(drain, Purpose::Drained { admin, part });
        Ok(())
    }

    /// Begins to drop a part of a volume from the cache. In a part larger than the cache, searches
    /// for cached blocks first. Memory has no such search.
    fn evict_part(&mut self, admin: u32, part: Request) {
        let cache_bytes: u64 = self.board.state().tiers.iter().map(|tier| tier.size_bytes).sum();
        if part.len > cache_bytes && self.config.memory.is_none() {
            let search = CacheSearch::new(part, self.workers.len());
            return self.search(admin, search);
        }
        self.evict_next(admin, Eviction::of(&part));
    }

    /// Has workers go on with a search, or drops what was found.
    fn search(&mut self, admin: u32, search: CacheSearch) {
        let (part, places) = (search.part(), search.places().to_vec());
        if !self.board.state().volumes.iter().any(|it| it.id == part.volume) {
            return self.admin.tell(admin, &Reply::trouble(Trouble::Conflict, GONE));
        }
        if places.is_empty() {
            return self.evict_next(admin, search.into_eviction());
        }
        let workers = places.iter().map(|(worker, _)| *worker);
        let number = self.questions.insert(Purpose::Search { admin, search }, workers);
        let ticket = Ticket { asker: Asker::Acceptor, number };
        for (worker, from) in places {
            let command = WorkerCommand::Search { part, from };
            self.workers.post(worker, Message::Ask { ticket, command });
        }
    }

    /// Has a worker drop the next range of an eviction, or answers if none is left.
    fn evict_next(&mut self, admin: u32, mut eviction: Eviction) {
        let Some(request) = eviction.next() else {
            return self.admin.tell(admin, &Reply::Done("evicted"));
        };
        let end = request.offset + request.len;
        let is_there = |it: &Offered| it.id == request.volume && end <= it.bytes;
        if !self.board.state().volumes.iter().any(is_there) {
            return self.admin.tell(admin, &Reply::trouble(Trouble::Conflict, GONE));
        }
        self.ask_one(request, Purpose::Evict { admin, left: eviction });
    }

    /// Returns the request for a part of a volume that is at most `most` bytes long.
    fn part(
        &self,
        name: &str,
        part: VolumePart,
        kind: RequestKind,
        most: u64,
    ) -> Result<Request, Reply> {
        let state = self.board.state();
        let offered = present(&state.volumes, name)?;
        let VolumePart { offset, bytes } = part;
        if bytes > most {
            let problem = format!("{bytes} bytes are more than {most} at once");
            return Err(Reply::trouble(Trouble::Input, problem));
        }
        if offset.checked_add(bytes).is_none_or(|end| end > offered.bytes) {
            let problem = format!(
                "{bytes} bytes from {offset} on are not all within volume {name:?} of {} bytes",
                offered.bytes
            );
            return Err(Reply::trouble(Trouble::Input, problem));
        }
        Ok(Request { volume: offered.id, kind, offset, len: bytes })
    }

    /// Has one worker run a request. Parts of a volume take turns among the workers.
    fn ask_one(&mut self, request: Request, purpose: Purpose) {
        let worker = (request.offset / VolumePart::WARM_BYTES_MAX) as usize % self.workers.len();
        let number = self.questions.insert(purpose, [worker].into_iter());
        let ticket = Ticket { asker: Asker::Acceptor, number };
        let command = WorkerCommand::Run(request);
        self.workers.post(worker, Message::Ask { ticket, command });
    }

    /// Answers the client of a question to which all workers have replied.
    pub(crate) fn answer(&mut self, question: Question) {
        let Question { purpose, replies } = question;
        match replies.finish() {
            Ok(replies) => self.answer_with(purpose, replies),
            Err(problem) => self.answer_failed(purpose, problem),
        }
    }

    fn answer_with(&mut self, purpose: Purpose, replies: Vec<Done>) {
        let (admin, reply) = match purpose {
            Purpose::Flushed { admin } => (admin, Reply::Done("flushed")),
            Purpose::Warmed { admin } => (admin, Reply::Done("warmed")),
            Purpose::Drained { admin, part } => return self.evict_part(admin, part),
            Purpose::Search { admin, mut search } => {
                let found = |done| match done {
                    Done::Found(findings) => findings,
                    other => unreachable!("workers find something or nothing, not {other:?}"),
                };
                search.take(replies.into_iter().map(found));
                return self.search(admin, search);
            }
            Purpose::Evict { admin, left } => return self.evict_next(admin, left),
            Purpose::Status { admin } => {
                (admin, Reply::json(&self.report(Audience::Admin, replies).status()))
            }
            Purpose::Metrics { admin } => {
                (admin, Reply::Metrics(metrics::render(&self.report(Audience::Admin, replies))))
            }
            Purpose::Volumes { admin } => {
                (admin, Reply::json(&self.report(Audience::Admin, replies).status().volumes))
            }
            Purpose::Tiers { admin } => {
                (admin, Reply::json(&self.report(Audience::Admin, replies).status().tiers))
            }
            Purpose::Sample => return self.take_sample(replies),
            Purpose::LogDirty => return Dirty::of(&snapshots(replies)).log(),
        };
        self.admin.tell(admin, &reply);
    }

    /// Reports to the client of a question that it could not be answered.
    pub(crate) fn answer_failed(&mut self, purpose: Purpose, problem: Problem) {
        let is_device = matches!(problem, Problem::Request { fault: Fault::Io, .. });
        let problem = self.board.state().name_volume(problem);
        match &purpose {
            Purpose::Sample => {}
            Purpose::LogDirty => tracing::error!(%problem, "cannot log how much is dirty"),
            // The device that failed has a line of its own.
            _ if is_device => tracing::info!(%problem, "a request of an admin client failed"),
            _ => tracing::error!(%problem, "a request of an admin client failed"),
        }
        match purpose {
            Purpose::Status { admin }
            | Purpose::Metrics { admin }
            | Purpose::Volumes { admin }
            | Purpose::Tiers { admin }
            | Purpose::Flushed { admin }
            | Purpose::Warmed { admin }
            | Purpose::Drained { admin, .. }
            | Purpose::Search { admin, .. }
            | Purpose::Evict { admin, .. } => self.admin.tell(admin, &problem.into_reply()),
            Purpose::Sample => self.reporting.feed.give_up(),
            Purpose::LogDirty => {}
        }
    }

    fn report(&mut self, audience: Audience, replies: Vec<Done>) -> Report {
        let (config, state) = (&self.config, self.board.state());
        let counters = &self.entrance.counters;
        self.reporting.report(audience, config, &state, counters, snapshots(replies))
    }

    /// Sends the result of the shutdown to all clients that asked for it, and disconnects clients
    /// that have sent no request.
    pub(crate) fn tell_stopped(&mut self) {
        let Phase::Telling(reply) = self.phase.clone() else { return };
        for index in self.admin.sessions.indices() {
            let session = &mut self.admin.sessions[index];
            if std::mem::take(&mut session.stopping) {
                session.upgrading &= self.replaced && matches!(reply, Reply::Done(_));
                let is_kept =
                    session.upgrading && !matches!(session.encryption, Encryption::Tls(_));
                let word = Reply::Done(crate::admin::REPLACING);
                self.admin
                    .told
                    .extend((!is_kept).then(|| session.socket.try_clone().ok()).flatten());
                self.admin.tell(index, if is_kept { &word } else { &reply });
            } else if session.listening {
                let _ = shutdown(&session.socket, Shutdown::Both); // ends the receive
            }
        }
    }

    /// Passes a job to the control thread. Volumes and tiers change one at a time: while a change
    /// is under way, another one is refused.
    ///
    /// # Errors
    /// The refusal for the client, also while the server ends.
    pub(crate) fn begin_job(&mut self, admin: u32, operation: Operation) -> Result<(), Reply> {
        if self.phase != Phase::Serving {
            return Err(Problem::Ending.into_reply());
        }
        let change = match &operation {
            Operation::Restore | Operation::Upgrade => None,
            Operation::AttachTier { .. }
            | Operation::DetachTier { .. }
            | Operation::ResizeTier { .. } => Some(Change::Tier),
            _ => Some(Change::Volume),
        };
        if let (Some(_), Some((_, under_way))) = (change, self.change) {
            let state = self.board.state();
            match &operation {
                Operation::AddVolume { addition, .. } => absent(&state.volumes, &addition.name)?,
                Operation::RemoveVolume { name, .. }
                | Operation::ResizeVolume { name, .. }
                | Operation::LimitVolume { name, .. }
                | Operation::ShareVolume { name, .. }
                | Operation::SetAccess { name, .. } => present(&state.volumes, name).map(drop)?,
                _ => {}
            }
            return Err(Reply::trouble(Trouble::Conflict, under_way.text()));
        }
        if let Some(change) = change {
            self.change = Some((admin, change));
        }
        self.send_to_control(Event::Job(Job { admin: Some(admin), operation }));
        Ok(())
    }

    /// Sends the result of a finished job to the admin client that asked for it.
    pub(crate) fn job_done(&mut self, admin: u32, reply: &Reply) {
        self.change.take_if(|(by, _)| *by == admin);
        self.admin.tell(admin, reply);
    }

    /// Requests a sample for the live page if one is due.
    pub(crate) fn sample_when_due(&mut self) {
        let (feed, now) = (&mut self.reporting.feed, Instant::now());
        if !feed.begin(now) {
            return;
        }
        self.ask_snapshots(Purpose::Sample);
    }

    /// Adds a sample to the live page's history and sends it to the watching clients.
    pub(crate) fn take_sample(&mut self, replies: Vec<Done>) {
        let mut report = self.report(Audience::LivePage, replies);
        self.reporting.log_switches(&mut report);
        let Some(update) = self.reporting.feed.take(&mut report) else { return };
        for index in self.admin.sessions.indices() {
            // A client that has not taken the last event misses this one.
            if self.admin.sessions[index].is_ready_to_watch() {
                self.admin.say(index, &update);
            }
        }
    }

    /// Begins to stream the live page's events to an admin client.
    ///
    /// # Errors
    /// Too many clients watch already.
    pub(crate) fn watch(&mut self, index: u32) -> Result<(), Reply> {
        let is_remote = self.admin.sessions[index].is_remote;
        let alike =
            self.admin.sessions.iter().filter(|(_, it)| it.watching && it.is_remote == is_remote);
        if alike.count() >= MOST_WATCHING {
            let problem = format!(
                "{MOST_WATCHING} live pages are open, which is the most; close \
                                   one"
            );
            return Err(Reply::trouble(Trouble::Busy, problem));
        }
        self.admin.sessions[index].watching = true;
        let beginning = self.reporting.feed.beginning();
        self.admin.say(index, &beginning);
        self.admin.listen(index); // it ends when the client leaves
        Ok(())
    }
}

const GONE: &str = "the volume was removed or shrunk meanwhile";

const NO_STANDBY: &str = "no standby has been seen lately that could take over; start one with \
                          standby = true, or end this server by floe stop";

const LACKS_HALF: &str = "the halves of the mirror are not in sync, so that the standby could not \
                          serve from its own; see floe status";

/// Maximum number of clients that watch the live page's events over Unix sockets, and as many over
/// TCP. The limit is below that of connections, so that other clients still get in.
const MOST_WATCHING: usize = 8;
