//! The acceptor's memory of clients that it took or sent away.

use std::time::Instant;

use super::token::AcceptorToken;
use super::warnings::{Complaint, Warnings};
use crate::status::Tally;

/// The acceptor's memory of clients that it took or sent away.
#[derive(Default)]
pub(super) struct Entrance {
    /// Sockets to accept from again, and when.
    pub(super) accept_again: Option<(Instant, Vec<AcceptorToken>)>,
    /// The last attempt to accept a client failed; the first of a row is worth a line in the log.
    refusing: bool,
    /// The last client was sent away for want of room; the first of a row is worth a line in the
    /// log.
    crowded: bool,
    pub(super) warnings: Warnings,
    pub(super) tally: Tally,
}

impl Entrance {
    /// A client was accepted.
    pub(super) fn accepted(&mut self) {
        self.refusing = false;
    }

    /// The system refused to accept a client.
    pub(super) fn not_accepted(&mut self, error: &std::io::Error, now: Instant) {
        let is_first = !std::mem::replace(&mut self.refusing, true);
        if is_first && self.warnings.count(Complaint::NotAccepted, now) {
            tracing::warn!(%error, "{}", Complaint::NotAccepted.text());
        }
    }

    /// A client goes to a worker.
    pub(super) fn has_room(&mut self) {
        self.crowded = false;
    }

    /// A client is sent away, for there are so many already.
    pub(super) fn sent_away(&mut self, connections: usize) {
        let is_first = !std::mem::replace(&mut self.crowded, true);
        if is_first && self.warnings.count(Complaint::TooMany, Instant::now()) {
            tracing::warn!(connections, "{}", Complaint::TooMany.text());
        }
        self.tally.clients.connections_refused += 1;
    }
}
