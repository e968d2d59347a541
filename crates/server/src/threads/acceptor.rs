//! The acceptor: a thread of its own, mostly asleep, to which clients come first.
//!
//! It accepts connections and gives each to the worker with the fewest, speaks with admin clients,
//! and takes signals. It answers questions after health, status and metrics by itself, and gives
//! jobs to the control thread. No request of a client passes here, and nothing here blocks.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use floe_device::{Pool, Ring, SocketCompletion, SocketOutcome, Sockets};

use super::admin_listener::AdminListener;
use super::admin_session::AdminSession;
use super::board::Board;
use super::entrance::Entrance;
use super::mailbox::Mailbox;
use super::messages::{Event, Message, Notice};
use super::questions::{Purpose, Questions};
use super::reporting::Reporting;
use super::setup::{ServeError, ServerSetup};
use super::slots::Slots;
use super::token::AcceptorToken;
use super::worker_handle::Workers;
use crate::admin::Reply;
use crate::listener::Listener;

/// The pause before accepting again after the system refused (out of descriptors, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The progress of the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    Serving,
    /// The control thread ends the server.
    Ending,
    /// Clients that asked for the end get this reply.
    Telling(Reply),
}

/// A change of the volumes or tiers under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Volume,
    Tier,
}

impl Change {
    /// The answer to a client that wants another change.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Volume => {
                "another volume is being added, removed or resized; try again when that is done"
            }
            Self::Tier => "a tier is being added or removed; try again when that is done",
        }
    }
}

/// The acceptor's ring, its memory and sockets on it, and the descriptor that signals come by.
pub(super) struct Io {
    pub(super) ring: Ring,
    pub(super) pool: Pool,
    pub(super) sockets: Sockets,
    pub(super) signal: Rc<OwnedFd>,
}

/// The thread to which clients come first.
pub(super) struct Acceptor {
    pub(super) config: Arc<ServerSetup>,
    pub(super) io: Io,
    pub(super) listeners: Vec<Listener>,
    pub(super) admin_listeners: Vec<AdminListener>,
    pub(super) admin_sessions: Slots<AdminSession>,
    pub(super) inbox: Arc<Mailbox<Notice>>,
    pub(super) workers: Workers,
    pub(super) control: Sender<Event>,
    pub(super) board: Arc<Board>,
    pub(super) questions: Questions,
    pub(super) reporting: Reporting,
    pub(super) entrance: Entrance,
    pub(super) phase: Phase,
    /// The program is to be replaced when the server has ended.
    pub(super) replaced: bool,
    /// A change of the volumes or tiers under way, and the client that asked for it.
    pub(super) change: Option<(u32, Change)>,
}

impl Acceptor {
    /// Takes clients until the control thread has ended the server, and tells those that asked for
    /// the end. Returns whether the program is to be replaced.
    ///
    /// # Errors
    /// When the ring fails, or another thread cannot go on.
    pub(super) fn run(mut self) -> Result<bool, ServeError> {
        for index in 0..self.listeners.len() as u32 {
            self.accept(AcceptorToken::Accept(index));
        }
        for index in 0..self.admin_listeners.len() as u32 {
            self.accept(AcceptorToken::AcceptAdmin(index));
        }
        for passed in self.config.nvme.hand_off.take() {
            self.to_idlest(Message::Adopt(passed));
        }
        let signal = Rc::clone(&self.io.signal);
        self.io.sockets.readable(AcceptorToken::Signal.encode(), &signal);
        let wake_up = self.inbox.wake_up().descriptor().map_err(ServeError::Wake)?;
        self.io.sockets.readable(AcceptorToken::WakeUp.encode(), &wake_up);
        let mut arrived = Vec::new();
        while !(matches!(self.phase, Phase::Telling(_)) && self.admin_sessions.is_empty()) {
            self.io.sockets.poll(&mut arrived);
            let notices = self.inbox.take();
            let busy = !arrived.is_empty() || !notices.is_empty();
            arrived.drain(..).for_each(|completion| self.take_in(completion, &wake_up));
            for notice in notices {
                self.take_notice(notice)?;
            }
            self.accept_what_was_refused();
            self.hang_up_on_late_admins();
            self.give_up_questions();
            self.sample_when_due();
            self.entrance.warnings.tell(Instant::now());
            if !busy {
                self.wait()?;
            }
        }
        Ok(self.replaced)
    }

    fn wait(&mut self) -> Result<(), ServeError> {
        let again = self.entrance.accept_again.as_ref().map(|(due, _)| *due);
        let due = again
            .into_iter()
            .chain(self.io.sockets.next_due())
            .chain(self.admin_due())
            .chain(self.entrance.warnings.due())
            .chain(self.reporting.feed.due())
            .chain(self.questions.due(self.config.limits.reply_time))
            .min();
        let wake_up = self.inbox.wake_up();
        let waited = wake_up.wait(&self.io.ring, due, || self.inbox.is_empty());
        waited.map(drop).map_err(ServeError::Wait)
    }

    fn take_in(&mut self, completion: SocketCompletion, wake_up: &Rc<OwnedFd>) {
        let token = AcceptorToken::decode(completion.token);
        match (token, completion.result) {
            (AcceptorToken::Signal, result) => self.signalled(&result),
            (AcceptorToken::WakeUp, _) => {
                self.inbox.wake_up().heard();
                self.io.sockets.readable(AcceptorToken::WakeUp.encode(), wake_up);
            }
            (AcceptorToken::Accept(_) | AcceptorToken::AcceptAdmin(_), result) => {
                self.accepted(token, result)
            }
            (AcceptorToken::ReceiveAdmin(index), result) => self.heard_admin(index, result),
            (AcceptorToken::SendAdmin(index), result) => self.sent_to_admin(index, &result),
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
                let session = &mut self.admin_sessions[admin];
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

    /// Answers questions to workers that hang.
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
        self.io.sockets.accept(token.encode(), &Rc::clone(listener));
    }

    fn accept_what_was_refused(&mut self) {
        let again = self.entrance.accept_again.take_if(|(due, _)| *due <= Instant::now());
        if let Some((_, tokens)) = again {
            tokens.into_iter().for_each(|token| self.accept(token));
        }
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
                self.greet_admin(listener, socket)
            }
            (AcceptorToken::Accept(listener), Ok(SocketOutcome::Accepted(socket))) => {
                self.entrance.accepted();
                self.welcome(listener, socket);
            }
            (_, Ok(_)) => {}
            (_, Err(error)) => {
                let now = Instant::now();
                self.entrance.not_accepted(&error, now);
                let due = now + ACCEPT_PAUSE;
                self.entrance.accept_again.get_or_insert((due, Vec::new())).1.push(token);
                return;
            }
        }
        self.accept(token);
    }

    /// Gives a client to the worker that has the fewest.
    fn welcome(&mut self, listener: u32, socket: OwnedFd) {
        let connections = self.workers.connections();
        if connections >= self.config.limits.connections {
            return self.entrance.sent_away(connections); // closes it
        }
        self.entrance.has_room();
        let protocol = Arc::clone(&self.listeners[listener as usize].protocol);
        self.to_idlest(Message::Serve(socket, protocol));
    }

    /// Gives the worker with the fewest clients one more.
    fn to_idlest(&self, client: Message) {
        let idlest = self.workers.idlest();
        idlest.connections.fetch_add(1, Ordering::Relaxed); // roughly is good enough
        idlest.mailbox.post(client);
    }

    fn signalled(&mut self, result: &std::io::Result<SocketOutcome>) {
        // Read before it is acted on: a signal that comes meanwhile is one more.
        let mut bytes = [0; 16];
        if result.is_ok()
            && rustix::io::read(&self.io.signal, &mut bytes).is_ok_and(|bytes| bytes > 0)
        {
            let signal = Rc::clone(&self.io.signal);
            self.io.sockets.readable(AcceptorToken::Signal.encode(), &signal);
        } // else nobody is left to signal, and that would be readable for ever
        self.replaced = false; // it is to end for good
        if self.phase == Phase::Serving {
            self.end();
        } else {
            self.ask_snapshots(Purpose::LogDirty);
        }
    }

    /// True if another server would take over if this one ended.
    pub(super) fn has_standby(&self) -> bool {
        self.config.turn.as_ref().is_some_and(|turn| turn.status().standby.is_some())
    }

    /// Stops workers from taking requests, and makes the control thread end the server. Clients
    /// that ask for the end later are told, too.
    pub(super) fn end(&mut self) {
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

    pub(super) fn send_to_control(&self, event: Event) {
        let _ = self.control.send(event); // it has said so if it could not go on
    }
}
