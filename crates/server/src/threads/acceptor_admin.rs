//! The acceptor's part of the admin interface: its connections, and what clients ask for.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use floe_block::Kind;
use floe_device::SocketOutcome;
use rustix::net::{Shutdown, shutdown};

use super::acceptor::{Acceptor, Phase};
use super::admin_session::AdminSession;
use super::admin_tls::{Encryption, Undecipherable};
use super::dirty::Dirty;
use super::messages::{Asker, Command as Ask, Done, Message, Operation, Problem, Ticket};
use super::questions::{Purpose, Question};
use super::replies::snapshots;
use super::token::AcceptorToken;
use crate::admin::{Command, Conversation, Heard, Reply, Trouble};
use crate::metrics;
use crate::status::Report;
use crate::upgrade_client;

/// Bytes received at once.
const RECEIVE_BYTES: usize = 4096;

/// Most connections over Unix sockets, and as many over TCP, so that neither keep the others out.
/// Beyond that the oldest without a request under way is disconnected. Each has
/// [`admin_time`](crate::limits::Limits::admin_time) and no longer.
const MOST_CONNECTIONS: usize = 32;

/// Admin sessions whose requests may wait for workers. The rest is reserved for requests that are
/// answered at once, such as health checks.
const MOST_WAITING: usize = 24;

const NO_STANDBY: &str = "no standby has been seen lately that could take over; start one with \
                          standby = true, or end this server by floe stop";

const LACKS_HALF: &str = "the halves of the mirror are not in sync, so that the standby could not \
                          serve from its own; see floe status";

impl Acceptor {
    pub(super) fn greet_admin(&mut self, listener: u32, socket: OwnedFd) {
        let access = Arc::clone(&self.admin_listeners[listener as usize].access);
        let (is_remote, required) = (access.network.is_some(), access.encrypted_only());
        let encryption = match is_remote {
            true => Encryption::Undecided { tls: self.config.tls.clone(), required },
            false => Encryption::None,
        };
        self.make_room_for_admin(is_remote);
        let now = Instant::now();
        let session = AdminSession {
            socket: Rc::new(socket),
            buffer: self.io.pool.allocate(RECEIVE_BYTES),
            encryption,
            conversation: Conversation::new(access),
            listening: false,
            sending: false,
            outgoing: Vec::new(),
            is_over: false,
            watching: false,
            stopping: false,
            upgrading: false,
            until: Some(now + self.config.limits.admin_time),
            since: now,
            is_remote,
            is_dropped: false,
        };
        let index = self.admin_sessions.insert(session);
        self.listen_to_admin(index);
    }

    /// Hangs up on the oldest client that has asked for nothing, or else takes no answer, if there
    /// are as many as may be.
    fn make_room_for_admin(&mut self, is_remote: bool) {
        let there = |session: &AdminSession| session.is_remote == is_remote && !session.is_dropped;
        let indices = self.admin_sessions.indices();
        let alike: Vec<u32> =
            indices.into_iter().filter(|&index| there(&self.admin_sessions[index])).collect();
        if alike.len() < MOST_CONNECTIONS {
            return;
        }
        let idle = alike.into_iter().filter(|&index| self.admin_sessions[index].is_idle());
        let oldest = idle.min_by_key(|&index| {
            let session = &self.admin_sessions[index];
            (!session.listening, session.since)
        });
        if let Some(oldest) = oldest {
            let session = &mut self.admin_sessions[oldest];
            session.is_dropped = true;
            let _ = shutdown(&session.socket, Shutdown::Both); // it may be gone already
        }
    }

    /// Returns whether one more request of such clients may wait for workers.
    fn may_wait(&self, is_remote: bool) -> bool {
        let sessions =
            self.admin_sessions.indices().into_iter().map(|index| &self.admin_sessions[index]);
        let waiting = |session: &&AdminSession| {
            session.is_remote == is_remote && !session.is_dropped && session.is_waiting()
        };
        sessions.filter(waiting).count() < MOST_WAITING
    }

    /// Returns the time at which the next admin client is late.
    pub(super) fn admin_due(&self) -> Option<Instant> {
        let indices = self.admin_sessions.indices().into_iter();
        indices.filter_map(|index| self.admin_sessions[index].until).min()
    }

    /// Disconnects late admin clients: the operations under way on their sockets end.
    pub(super) fn hang_up_on_late_admins(&mut self) {
        let now = Instant::now();
        for index in self.admin_sessions.indices() {
            let session = &mut self.admin_sessions[index];
            if session.until.take_if(|until| *until <= now).is_some() {
                session.is_dropped = true;
                let _ = shutdown(&session.socket, Shutdown::Both); // it may be gone already
            }
        }
    }

    pub(super) fn listen_to_admin(&mut self, index: u32) {
        let session = &mut self.admin_sessions[index];
        session.listening = true;
        let (socket, into) = (Rc::clone(&session.socket), session.buffer.whole());
        self.io.sockets.receive(AcceptorToken::ReceiveAdmin(index).encode(), &socket, into, false);
    }

    pub(super) fn heard_admin(&mut self, index: u32, result: std::io::Result<SocketOutcome>) {
        let session = &mut self.admin_sessions[index];
        session.listening = false;
        let received = match result {
            Ok(SocketOutcome::Received(bytes)) if bytes > 0 => {
                session.buffer.slice(0..bytes).to_vec()
            }
            _ => return self.leave_admin(index),
        };
        if session.watching {
            return self.leave_admin(index); // it has nothing more to say
        }
        let text = session.encryption.decrypt(received);
        session.outgoing.extend(session.encryption.take());
        let heard = match text {
            Ok(text) => session.conversation.hear(&text),
            Err(Undecipherable::InTheClear) => {
                let problem = "this address takes TLS only, as other machines can reach it or \
                               clients must show certificates; ask by https";
                Heard::Refusal(Reply::trouble(Trouble::Forbidden, problem))
            }
            Err(Undecipherable::Broken(error)) => {
                tracing::debug!(%error, "admin client broke TLS");
                return self.leave_admin(index); // an alert that says why is sent
            }
        };
        match heard {
            Heard::More => {
                self.send_to_admin(index);
                self.listen_to_admin(index);
            }
            Heard::Refusal(refusal) => self.tell_admin(index, &refusal),
            Heard::Command(command) => {
                let is_remote = self.admin_sessions[index].is_remote;
                // The end is what may help if all others hang.
                let is_urgent = matches!(command, Command::Health | Command::Stop);
                if !is_urgent && !self.may_wait(is_remote) {
                    let problem = "too many requests are under way; try again when some are done";
                    return self.tell_admin(index, &Reply::trouble(Trouble::Busy, problem));
                }
                self.admin_sessions[index].until = None;
                self.obey(index, command);
            }
        }
    }

    /// Something was sent: the rest is next, or the end of a connection that is over.
    pub(super) fn sent_to_admin(&mut self, index: u32, result: &std::io::Result<SocketOutcome>) {
        let session = &mut self.admin_sessions[index];
        session.sending = false;
        if result.is_err() {
            session.outgoing.clear();
            let _ = shutdown(&session.socket, Shutdown::Both); // ends a receive that is under way
        }
        if session.watching && session.outgoing.is_empty() {
            session.until = None; // until the next event
        }
        self.send_to_admin(index);
    }

    /// Ends a connection once all is sent.
    fn leave_admin(&mut self, index: u32) {
        self.admin_sessions[index].is_over = true;
        self.send_to_admin(index);
    }

    /// Sends what is to be sent, one thing after the other. With nothing left a connection that is
    /// over goes.
    fn send_to_admin(&mut self, index: u32) {
        let session = &mut self.admin_sessions[index];
        if session.sending {
            return;
        }
        if session.outgoing.is_empty() {
            if session.is_over {
                // The state of TLS cannot be handed on.
                let is_kept = session.upgrading && matches!(session.encryption, Encryption::None);
                if let (true, Ok(socket)) = (is_kept, session.socket.try_clone()) {
                    upgrade_client::keep(socket);
                }
                self.admin_sessions.remove(index);
            }
            return;
        }
        let bytes = std::mem::take(&mut session.outgoing);
        let buffer = self.io.pool.allocate(bytes.len()).slice(0..bytes.len());
        buffer.copy_from(&bytes);
        session.sending = true;
        let socket = Rc::clone(&session.socket);
        self.io.sockets.send(AcceptorToken::SendAdmin(index).encode(), &socket, vec![buffer]);
    }

    fn obey(&mut self, index: u32, command: Command) {
        let begun = match command {
            Command::Health if self.phase != Phase::Serving => {
                Err(Reply::trouble(Trouble::Ending, "ending"))
            }
            Command::Health => Err(self.health()),
            Command::Page => {
                let access = self.admin_sessions[index].conversation.access();
                Err(Reply::Page(access.page_write()))
            }
            Command::Events => self.watch(index),
            Command::Status => return self.ask_snapshots(Purpose::Status { admin: index }),
            Command::Metrics => return self.ask_snapshots(Purpose::Metrics { admin: index }),
            Command::ListVolumes => return self.ask_snapshots(Purpose::Volumes { admin: index }),
            Command::ListTiers => return self.ask_snapshots(Purpose::Tiers { admin: index }),
            Command::Flush => self.flush(index),
            Command::HandOver if !self.has_standby() => {
                Err(Reply::trouble(Trouble::Conflict, NO_STANDBY))
            }
            Command::HandOver if self.board.state().lacks_half() => {
                Err(Reply::trouble(Trouble::Conflict, LACKS_HALF))
            }
            Command::Stop | Command::HandOver => {
                self.admin_sessions[index].stopping = true;
                self.end();
                Ok(())
            }
            Command::TakeOver => {
                Err(Reply::trouble(Trouble::Conflict, "this server serves already"))
            }
            Command::Upgrade => self.begin_job(index, Operation::Upgrade),
            Command::RestoreCache => self.begin_job(index, Operation::Restore),
            Command::AddVolume(addition) => {
                let paths = self.admin_sessions[index].paths();
                self.begin_job(index, Operation::AddVolume { addition, paths })
            }
            Command::RemoveVolume { name, force } => {
                self.begin_job(index, Operation::RemoveVolume { name, force })
            }
            Command::ResizeVolume { name, size_bytes } => {
                self.begin_job(index, Operation::ResizeVolume { name, size_bytes })
            }
            Command::SetAccess { name, state } => {
                self.begin_job(index, Operation::SetAccess { name, state })
            }
            Command::AddTier(wanted) => {
                let paths = self.admin_sessions[index].paths();
                self.begin_job(index, Operation::AttachTier { wanted, paths })
            }
            Command::RemoveTier { number } => {
                self.begin_job(index, Operation::DetachTier { number })
            }
        };
        if let Err(reply) = begun {
            self.tell_admin(index, &reply);
        }
    }

    /// The reply of `/healthz`: a worker that hangs, or what the board says. Each call gives the
    /// workers a message to take, so that a later one notices if it was not taken.
    fn health(&self) -> Reply {
        let (now, patience) = (Instant::now(), self.config.limits.reply_time);
        let silent = (0..self.workers.len()).find_map(|worker| {
            let seconds = self.workers.silence(worker, now, patience)?.as_secs();
            Some(Problem::Silent { worker, seconds })
        });
        match silent {
            Some(problem) => Reply::trouble(Trouble::Refusing, problem.to_string()),
            None => self.board.state().health(),
        }
    }

    /// Asks all workers for their counters.
    pub(super) fn ask_snapshots(&mut self, purpose: Purpose) {
        let sampling = self.reporting.feed.sampling();
        let command = || match purpose {
            Purpose::Sample => Ask::Sample(sampling),
            _ => Ask::Snapshot,
        };
        let number = self.questions.insert(purpose, 0..self.workers.len());
        let ticket = Ticket { asker: Asker::Acceptor, number };
        self.workers.tell_all(|| Message::Ask { ticket, command: command() });
    }

    /// Asks for a flush of each volume. Any worker can do it; they take turns.
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
            let command = Ask::Flush(offered.id, Kind::Drain);
            self.workers.post(worker(at), Message::Ask { ticket, command });
        }
        Ok(())
    }

    /// All workers have answered a question.
    pub(super) fn answer(&mut self, question: Question) {
        let Question { purpose, replies } = question;
        match replies.finish() {
            Ok(replies) => self.answer_with(purpose, replies),
            Err(problem) => self.answer_failed(purpose, problem),
        }
    }

    fn answer_with(&mut self, purpose: Purpose, replies: Vec<Done>) {
        let (admin, reply) = match purpose {
            Purpose::Flushed { admin } => (admin, Reply::Done("flushed")),
            Purpose::Status { admin } => (admin, Reply::json(&self.report(replies).status())),
            Purpose::Metrics { admin } => {
                (admin, Reply::Metrics(metrics::render(&self.report(replies))))
            }
            Purpose::Volumes { admin } => {
                (admin, Reply::json(&self.report(replies).status().volumes))
            }
            Purpose::Tiers { admin } => (admin, Reply::json(&self.report(replies).status().tiers)),
            Purpose::Sample => return self.take_sample(replies),
            Purpose::LogDirty => return Dirty::of(&snapshots(replies)).log(),
        };
        self.tell_admin(admin, &reply);
    }

    /// A question could not be answered.
    pub(super) fn answer_failed(&mut self, purpose: Purpose, problem: Problem) {
        if !matches!(purpose, Purpose::Sample) {
            tracing::error!(%problem, "a question of an admin client is not answered");
        }
        match purpose {
            Purpose::Status { admin }
            | Purpose::Metrics { admin }
            | Purpose::Volumes { admin }
            | Purpose::Tiers { admin }
            | Purpose::Flushed { admin } => self.tell_admin(admin, &problem.into_reply()),
            Purpose::Sample => self.reporting.feed.give_up(),
            Purpose::LogDirty => {}
        }
    }

    fn report(&mut self, replies: Vec<Done>) -> Report {
        let (config, state) = (&self.config, self.board.state());
        self.reporting.report(config, &state, &self.entrance.tally, snapshots(replies))
    }

    /// Sends the server's last result to all clients that asked for the end, and disconnects
    /// clients that have sent no request.
    pub(super) fn tell_stopped(&mut self) {
        let Phase::Telling(reply) = self.phase.clone() else { return };
        for index in self.admin_sessions.indices() {
            let session = &mut self.admin_sessions[index];
            if std::mem::take(&mut session.stopping) {
                session.upgrading &= self.replaced && matches!(reply, Reply::Done(_));
                let is_kept =
                    session.upgrading && !matches!(session.encryption, Encryption::Tls(_));
                let word = Reply::Done(upgrade_client::REPLACING);
                self.tell_admin(index, if is_kept { &word } else { &reply });
            } else if session.listening {
                let _ = shutdown(&session.socket, Shutdown::Both); // ends the receive
            }
        }
    }

    /// Sends something that more will follow.
    pub(super) fn say_to_admin(&mut self, index: u32, text: &str) {
        let session = &mut self.admin_sessions[index];
        let bytes = session.encryption.encrypt(text.as_bytes());
        session.outgoing.extend(bytes);
        session.until = Some(Instant::now() + self.config.limits.admin_time);
        self.send_to_admin(index);
    }

    /// Answers, which ends the connection.
    pub(super) fn tell_admin(&mut self, index: u32, reply: &Reply) {
        let session = &mut self.admin_sessions[index];
        let answer = session.encryption.encrypt_last(reply.encode());
        session.outgoing.extend(answer);
        session.until = Some(Instant::now() + self.config.limits.admin_time);
        self.leave_admin(index);
    }
}
