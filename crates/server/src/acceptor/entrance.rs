//! The acceptor's record of accepted and refused clients, and the tokens of its socket operations.

use std::time::{Duration, Instant};

use crate::status::ThreadCounters;
use crate::warnings::{Complaint, Warnings};

/// Pause before the next attempt to accept clients after the system has refused one, for instance
/// because descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The acceptor's record of accepted and refused clients.
#[derive(Default)]
pub(crate) struct Entrance {
    /// Listening sockets on which `accept` failed, and the time of the retry.
    refused: Option<(Instant, Vec<AcceptorToken>)>,
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

    /// Schedules the retry of an `accept` that has failed, and logs the first failure in a row.
    pub(crate) fn not_accepted(
        &mut self,
        token: AcceptorToken,
        error: &std::io::Error,
        now: Instant,
    ) {
        self.refused.get_or_insert((now + ACCEPT_PAUSE, Vec::new())).1.push(token);
        let is_first = !std::mem::replace(&mut self.refusing, true);
        if is_first && self.warnings.count(Complaint::NotAccepted, now) {
            tracing::warn!(%error, "{}", Complaint::NotAccepted.text());
        }
    }

    /// Returns the listening sockets whose retry is due.
    pub(crate) fn accept_again(&mut self, now: Instant) -> Vec<AcceptorToken> {
        self.refused.take_if(|(due, _)| *due <= now).map_or(Vec::new(), |(_, tokens)| tokens)
    }

    /// Returns the time of the next retry or warning.
    pub(crate) fn due(&self) -> Option<Instant> {
        let retry = self.refused.as_ref().map(|(due, _)| *due);
        retry.into_iter().chain(self.warnings.due()).min()
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
