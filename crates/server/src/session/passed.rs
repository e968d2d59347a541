//! Connections that outlive their server: a server that stands by hands them to the one that it
//! becomes.
//!
//! A session that leaves receives no further request. It answers what has arrived, and is taken
//! apart when nothing is under way. The next server makes a session of the connection, which goes
//! on where the first one stopped. An encrypted connection ends like that of any other server.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use floe_nbd::export::Exports;

use super::{Common, Session};
use crate::protocol::{Outbox, Protocol};

/// A connection between two sessions.
#[derive(Debug)]
pub(crate) struct Passed {
    socket: OwnedFd,
    protocol: Box<dyn Protocol>,
}

/// The connections that a server leaves to the next one of this process.
#[derive(Debug, Clone, Default)]
pub struct HandOff(Arc<Mutex<Vec<Passed>>>);

impl HandOff {
    pub(crate) fn put(&self, passed: Passed) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(passed);
    }

    /// Takes all of them.
    pub(crate) fn take(&self) -> Vec<Passed> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Session {
    /// Has the session leave, so that its connection can be handed on. Returns whether it can.
    pub(crate) fn leave(&mut self) -> bool {
        self.end.leaving = self.channel.is_none() && !self.is_in_handshake() && !self.end.ended;
        self.end.leaving
    }

    /// Returns whether the session leaves.
    pub(crate) fn is_leaving(&self) -> bool {
        self.end.leaving && !self.end.ended
    }

    /// The receive under way was cancelled before anything came.
    pub(crate) fn receive_cancelled(&mut self) {
        self.input.receiving = false;
    }
}

impl Passed {
    /// Returns whether the session leaves and nothing of it is under way.
    pub(crate) fn can_be_of(session: &Session) -> bool {
        session.is_leaving()
            && !session.input.receiving
            && session.is_quiet()
            && session.payloads.filling.is_none()
            && session.input.used == session.input.bytes.len()
    }

    /// Takes a session apart; `None` when the system is out of descriptors.
    pub(crate) fn of(session: Session) -> Option<Self> {
        debug_assert!(Self::can_be_of(&session));
        // The cancellation of a receive may still hold the socket.
        let socket = session.socket.try_clone().ok()?;
        Some(Self { socket, protocol: session.protocol })
    }

    /// Makes a session of the connection. Its client is told of these exports.
    pub(crate) fn adopted(
        self,
        key: u32,
        exports: &Arc<Exports>,
        common: &Common,
        now: Instant,
    ) -> Session {
        let outbox = Outbox::default();
        let mut session = Session::of(key, self.socket, self.protocol, outbox, common, now);
        session.exports_changed(exports);
        session
    }
}
