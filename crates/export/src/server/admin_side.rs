//! The front desk's part of the admin interface: its connections, and what commands do.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use floe_block::Kind;
use floe_device::{Buffer, SocketOutcome};
use rustix::net::{Shutdown, shutdown};

use super::admin_tls::{Encryption, Undecipherable};
use super::errand::Then;
use super::front::{Front, Phase};
use super::letter::{Deed, Problem};
use super::token::FrontToken;
use crate::admin::{AllowedPaths, Command, Conversation, Heard, Reply, Trouble};
use crate::metrics;
use crate::status::Snapshot;

/// What is received at once.
const RECEIVE_BYTES: usize = 4096;

/// Connections over Unix sockets, and as many over TCP, so that neither keep the others out. Beyond
/// that the oldest of which no request is carried out is hung up on; each has
/// [`admin_time`](crate::limits::Limits::admin_time) and no longer.
const MOST_CONNECTIONS: usize = 32;

/// Those of them whose requests wait for workers. The rest is a reserve: for questions after the
/// health, which are answered at once.
const MOST_WAITING: usize = 24;

/// A connection of the admin interface.
#[derive(Debug)]
pub(super) struct AdminSession {
    socket: Rc<OwnedFd>,
    buffer: Buffer,
    encryption: Encryption,
    conversation: Conversation,
    /// A receive is under way; otherwise an answer is, or what is to be answered.
    listening: bool,
    /// A send is under way.
    sending: bool,
    /// To be sent after that.
    outgoing: Vec<u8>,
    /// The answer is given, or the connection broken: nothing is listened to any more.
    is_over: bool,
    /// To be told when the server has ended.
    stopping: bool,
    /// When it must have asked, or taken its answer; `None` while the server works on that.
    until: Option<Instant>,
    since: Instant,
    /// It came over TCP.
    is_remote: bool,
    /// It was hung up on, and will soon be gone.
    is_dropped: bool,
}

impl AdminSession {
    /// Where devices may be that it names.
    pub(super) fn paths(&self) -> AllowedPaths {
        self.conversation.access().paths.clone()
    }
}

impl Front {
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
            buffer: self.pool.allocate(RECEIVE_BYTES),
            encryption,
            conversation: Conversation::new(access),
            listening: false,
            sending: false,
            outgoing: Vec::new(),
            is_over: false,
            stopping: false,
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
        let idle = alike.into_iter().filter(|&index| self.admin_sessions[index].until.is_some());
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

    /// True if one more request of such clients may wait for workers.
    fn may_wait(&self, is_remote: bool) -> bool {
        let sessions =
            self.admin_sessions.indices().into_iter().map(|index| &self.admin_sessions[index]);
        let alike =
            sessions.filter(|session| session.is_remote == is_remote && !session.is_dropped);
        alike.filter(|session| session.until.is_none()).count() < MOST_WAITING
    }

    /// When the next admin client is late.
    pub(super) fn admin_due(&self) -> Option<Instant> {
        let indices = self.admin_sessions.indices().into_iter();
        indices.filter_map(|index| self.admin_sessions[index].until).min()
    }

    /// Hangs up on admin clients that are late: what is under way on their sockets ends.
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

    fn listen_to_admin(&mut self, index: u32) {
        let session = &mut self.admin_sessions[index];
        session.listening = true;
        let (socket, into) = (Rc::clone(&session.socket), session.buffer.whole());
        self.sockets.receive(FrontToken::ReceiveAdmin(index).encode(), &socket, into, false);
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
        let text = session.encryption.decrypt(received);
        session.outgoing.extend(session.encryption.take());
        let heard = match text {
            Ok(text) => session.conversation.hear(&text),
            Err(Undecipherable::InTheClear) => {
                let problem = "this address can be reached from other machines and takes TLS \
                               only; ask by https";
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
                self.admin_sessions.remove(index);
            }
            return;
        }
        let bytes = std::mem::take(&mut session.outgoing);
        let buffer = self.pool.allocate(bytes.len()).slice(0..bytes.len());
        buffer.copy_from(&bytes);
        session.sending = true;
        let socket = Rc::clone(&session.socket);
        self.sockets.send(FrontToken::SendAdmin(index).encode(), &socket, vec![buffer]);
    }

    fn obey(&mut self, index: u32, command: Command) {
        let changes = matches!(
            command,
            Command::RestoreCache
                | Command::AddVolume(_)
                | Command::RemoveVolume { .. }
                | Command::ResizeVolume { .. }
                | Command::AddTier(_)
                | Command::RemoveTier { .. }
        );
        if changes && self.phase != Phase::Serving {
            return self
                .tell_admin(index, &Reply::trouble(Trouble::Ending, "the server is ending"));
        }
        let begun = match command {
            Command::Health if self.phase != Phase::Serving => {
                Err(Reply::trouble(Trouble::Ending, "ending"))
            }
            Command::Health => Err(self.health()),
            Command::Status => self.ask_status(Then::Status { admin: index }),
            Command::Metrics => self.ask_status(Then::Metrics { admin: index }),
            Command::ListVolumes => self.ask_status(Then::Volumes { admin: index }),
            Command::ListTiers => self.ask_status(Then::Tiers { admin: index }),
            Command::Flush => {
                self.flush(self.offer.ids(), Kind::Drain, Then::Flushed { admin: index });
                Ok(())
            }
            Command::Stop => {
                self.admin_sessions[index].stopping = true;
                match self.phase {
                    Phase::Serving => self.begin_end(),
                    Phase::Telling => self.tell_stopped(),
                    Phase::Ending => {}
                }
                Ok(())
            }
            Command::RestoreCache => self.restore(index),
            Command::AddVolume(addition) => self.add_volume(index, *addition),
            Command::RemoveVolume { name, force } => self.remove_volume(index, &name, force),
            Command::ResizeVolume { name, size_bytes } => {
                self.resize_volume(index, &name, size_bytes)
            }
            Command::AddTier(wanted) => self.add_tier(index, wanted),
            Command::RemoveTier { number } => self.remove_tier(index, number),
        };
        if let Err(reply) = begun {
            self.tell_admin(index, &reply);
        }
    }

    /// What tells about everything needs a look at all workers first.
    fn ask_status(&mut self, then: Then) -> Result<(), Reply> {
        self.ask_all(Deed::Snapshot, then);
        Ok(())
    }

    pub(super) fn tell_status(&mut self, index: u32, snapshots: Vec<Snapshot>) {
        let reply = Reply::json(&self.report(snapshots).status());
        self.tell_admin(index, &reply);
    }

    pub(super) fn tell_metrics(&mut self, index: u32, snapshots: Vec<Snapshot>) {
        let reply = Reply::Metrics(metrics::render(&self.report(snapshots)));
        self.tell_admin(index, &reply);
    }

    pub(super) fn tell_volumes(&mut self, index: u32, snapshots: Vec<Snapshot>) {
        let reply = Reply::json(&self.report(snapshots).status().volumes);
        self.tell_admin(index, &reply);
    }

    pub(super) fn tell_tiers(&mut self, index: u32, snapshots: Vec<Snapshot>) {
        let reply = Reply::json(&self.report(snapshots).status().tiers);
        self.tell_admin(index, &reply);
    }

    pub(super) fn tell_flushed(&mut self, index: u32, problem: Option<Problem>) {
        let reply = match problem {
            None => Reply::Done("flushed"),
            Some(problem) => Reply::trouble(Trouble::Failed, problem.to_string()),
        };
        self.tell_admin(index, &reply);
    }

    /// Tells everyone who asked for the end how it went, and hangs up on those who have asked for
    /// nothing yet.
    pub(super) fn tell_stopped(&mut self) {
        let reply = match (&self.last_flush, self.says_what_is_lost()) {
            (Ok(()), Some(lost)) => {
                Reply::trouble(Trouble::Failed, format!("the server has ended, but {lost}"))
            }
            (Ok(()), None) => Reply::Done("stopped"),
            (Err(problem), _) => {
                Reply::trouble(Trouble::Failed, format!("the last flush failed: {problem}"))
            }
        };
        for index in self.admin_sessions.indices() {
            let session = &mut self.admin_sessions[index];
            if std::mem::take(&mut session.stopping) {
                self.tell_admin(index, &reply);
            } else if session.listening {
                let _ = shutdown(&session.socket, Shutdown::Both); // ends the receive
            }
        }
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
