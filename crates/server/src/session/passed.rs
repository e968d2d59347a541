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

    /// Returns whether the session leaves and nothing of it is under way.
    pub(crate) fn can_pass(&self) -> bool {
        self.is_leaving()
            && !self.input.receiving
            && self.is_quiet()
            && self.payloads.filling.is_none()
            && self.input.used == self.input.bytes.len()
    }

    /// Takes the session apart; `None` when the system is out of descriptors.
    pub(crate) fn pass(self) -> Option<Passed> {
        debug_assert!(self.can_pass());
        // The cancellation of a receive may still hold the socket.
        let socket = self.socket.try_clone().ok()?;
        Some(Passed { socket, protocol: self.protocol })
    }

    /// Makes the session of a connection that was handed on. Its client is told of these exports.
    pub(crate) fn adopt(
        key: u32,
        passed: Passed,
        exports: &Arc<Exports>,
        common: &Common,
        now: Instant,
    ) -> Self {
        let Passed { socket, protocol } = passed;
        let mut session = Self::of(key, socket, protocol, Outbox::default(), common, now);
        session.exports_changed(exports);
        session
    }
}
