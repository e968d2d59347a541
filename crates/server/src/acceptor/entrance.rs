//! The acceptor's record of accepted and refused clients, and the tokens of its socket operations.

use std::time::Instant;

use crate::status::ThreadCounters;
use crate::warnings::{Complaint, Warnings};

/// The acceptor's record of accepted and refused clients.
#[derive(Default)]
pub(crate) struct Entrance {
    /// Listening sockets on which `accept` failed, and the time of the retry.
    pub(crate) accept_again: Option<(Instant, Vec<AcceptorToken>)>,
    /// The last `accept` failed. Only the first failure in a row is logged.
    refusing: bool,
    /// The last client was refused because of the connection limit. Only the first refusal in a row
    /// is logged.
    crowded: bool,
    pub(crate) warnings: Warnings,
    pub(crate) counters: ThreadCounters,
}

impl Entrance {
    /// Records that `accept` has succeeded.
    pub(crate) fn accepted(&mut self) {
        self.refusing = false;
    }

    /// Records that `accept` has failed, and logs the first failure in a row.
    pub(crate) fn not_accepted(&mut self, error: &std::io::Error, now: Instant) {
        let is_first = !std::mem::replace(&mut self.refusing, true);
        if is_first && self.warnings.count(Complaint::NotAccepted, now) {
            tracing::warn!(%error, "{}", Complaint::NotAccepted.text());
        }
    }

    /// Records that a client is within the connection limit.
    pub(crate) fn has_room(&mut self) {
        self.crowded = false;
    }

    /// Records that a client was refused because of the connection limit, and logs the first
    /// refusal in a row.
    pub(crate) fn sent_away(&mut self, connections: usize) {
        let is_first = !std::mem::replace(&mut self.crowded, true);
        if is_first && self.warnings.count(Complaint::TooMany, Instant::now()) {
            tracing::warn!(connections, "{}", Complaint::TooMany.text());
        }
        self.counters.clients.connections_refused += 1;
    }
}

/// Identifies a socket operation of the acceptor. The numbers are those of listeners and admin
/// sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AcceptorToken {
    Accept(u32),
    AcceptAdmin(u32),
    ReceiveAdmin(u32),
    SendAdmin(u32),
    Signal,
    WakeUp,
}

impl AcceptorToken {
    pub(crate) fn encode(self) -> u64 {
        let (kind, index) = match self {
            Self::Accept(index) => (0u64, index),
            Self::AcceptAdmin(index) => (1, index),
            Self::ReceiveAdmin(index) => (2, index),
            Self::SendAdmin(index) => (3, index),
            Self::Signal => (4, 0),
            Self::WakeUp => (5, 0),
        };
        kind << 32 | u64::from(index)
    }

    pub(crate) fn decode(token: u64) -> Self {
        let index = token as u32;
        match token >> 32 {
            0 => Self::Accept(index),
            1 => Self::AcceptAdmin(index),
            2 => Self::ReceiveAdmin(index),
            3 => Self::SendAdmin(index),
            4 => Self::Signal,
            _ => Self::WakeUp,
        }
    }
}
