//! The server's part of the admin interface: its connections, and what commands do.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use floe_block::Fault;
use floe_device::{Buffer, SocketOutcome};
use rustix::net::{Shutdown, shutdown};

use super::{Origin, Phase, Server, Token};
use crate::admin::{Command, Conversation, Heard, Reply, Trouble};
use crate::metrics;

/// What is received at once.
const RECEIVE_BYTES: usize = 4096;

/// A connection of the admin interface.
#[derive(Debug)]
pub(super) struct AdminSession {
    socket: Rc<OwnedFd>,
    buffer: Buffer,
    conversation: Conversation,
    /// A receive is under way; otherwise an answer is, or what is to be answered.
    listening: bool,
    /// To be told when the server has ended.
    stopping: bool,
}

impl Server {
    pub(super) fn greet_admin(&mut self, socket: OwnedFd) {
        let session = AdminSession {
            socket: Rc::new(socket),
            buffer: self.common.pool.allocate(RECEIVE_BYTES),
            conversation: Conversation::default(),
            listening: false,
            stopping: false,
        };
        let index = self.admin_sessions.insert(session);
        self.listen_to_admin(index);
    }

    fn listen_to_admin(&mut self, index: u32) {
        let session = &mut self.admin_sessions[index];
        session.listening = true;
        let (socket, into) = (Rc::clone(&session.socket), session.buffer.whole());
        self.sockets.receive(Token::ReceiveAdmin(index).encode(), &socket, into, false);
    }

    pub(super) fn heard_admin(&mut self, index: u32, result: std::io::Result<SocketOutcome>) {
        let bytes = match result {
            Ok(SocketOutcome::Received(bytes)) if bytes > 0 => bytes,
            _ => {
                self.admin_sessions.remove(index);
                return;
            }
        };
        let session = &mut self.admin_sessions[index];
        session.listening = false;
        let heard = session.conversation.hear(&session.buffer.slice(0..bytes).to_vec());
        match heard {
            Heard::More => self.listen_to_admin(index),
            Heard::Refusal(refusal) => self.tell_admin(index, &refusal),
            Heard::Command(command) => self.obey(index, command),
        }
    }

    fn obey(&mut self, index: u32, command: Command) {
        let reply = match command {
            Command::Health if self.phase != Phase::Serving => Reply::trouble(Trouble::Ending, "ending"),
            Command::Health if self.driver.stats().degraded_shards > 0 => Reply::Done("degraded"),
            Command::Health => Reply::Done("ok"),
            Command::Status => Reply::json(&self.report().status()),
            Command::Metrics => Reply::Metrics(metrics::render(&self.report())),
            Command::ListVolumes => Reply::json(&self.report().status().volumes),
            Command::Flush => return self.flush_for(Origin::AdminFlush { index }),
            Command::Stop => {
                self.admin_sessions[index].stopping = true;
                return match self.phase {
                    Phase::Serving => self.begin_end(),
                    Phase::Telling => self.tell_stopped(),
                    Phase::Finishing { .. } | Phase::Flushing => {}
                };
            }
            Command::RestoreCache
            | Command::AddVolume(_)
            | Command::RemoveVolume { .. }
            | Command::ResizeVolume { .. } => {
                Reply::trouble(Trouble::NotYet, "this server cannot do that yet")
            }
        };
        self.tell_admin(index, &reply);
    }

    pub(super) fn tell_flushed(&mut self, index: u32, result: Result<(), Fault>) {
        let reply = match result {
            Ok(()) => Reply::Done("flushed"),
            Err(fault) => Reply::trouble(Trouble::Failed, fault.to_string()),
        };
        self.tell_admin(index, &reply);
    }

    /// Tells everyone who asked for the end how it went, and hangs up on those who have asked for nothing yet.
    pub(super) fn tell_stopped(&mut self) {
        let reply = match self.last_flush {
            Ok(()) => Reply::Done("stopped"),
            Err(fault) => Reply::trouble(Trouble::Failed, format!("the last flush failed: {fault}")),
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

    fn tell_admin(&mut self, index: u32, reply: &Reply) {
        let answer = reply.encode();
        let buffer = self.common.pool.allocate(answer.len()).slice(0..answer.len());
        buffer.copy_from(&answer);
        let socket = Rc::clone(&self.admin_sessions[index].socket);
        self.sockets.send(Token::SendAdmin(index).encode(), &socket, vec![buffer]);
    }
}
