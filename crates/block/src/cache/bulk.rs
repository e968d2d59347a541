//! Turns of long trims and zeroings.
//!
//! A trim of a whole volume has thousands of sub-requests, and a client may send hundreds of such
//! trims at once. All of them together have as many sub-requests under way as one of them may, so
//! that a read waits for few. They take turns, one sub-request each.

use std::collections::VecDeque;

use crate::engine::join::PIECES_AT_ONCE;
use crate::engine::request::{Kind, RequestId};

#[derive(Debug, Default)]
pub(super) struct Bulk {
    /// Requests that may have a sub-request to submit, in the order of their turns.
    turns: VecDeque<RequestId>,
    /// Sub-requests of all of them that have not finished.
    under_way: u32,
}

impl Bulk {
    /// Returns whether requests of a kind take turns.
    pub(super) fn is_for(kind: Kind) -> bool {
        matches!(kind, Kind::Trim | Kind::Zero { .. })
    }

    /// Puts a request at the end of the line.
    pub(super) fn queue(&mut self, id: RequestId) {
        self.turns.push_back(id);
    }

    /// Takes the request whose turn it is, unless enough sub-requests are under way.
    pub(super) fn next(&mut self) -> Option<RequestId> {
        if self.under_way < PIECES_AT_ONCE { self.turns.pop_front() } else { None }
    }

    /// Notes that a request has submitted a sub-request, and may have another.
    pub(super) fn submitted(&mut self, id: RequestId) {
        self.under_way += 1;
        self.queue(id);
    }

    /// Notes that a sub-request of a request of some kind has finished.
    pub(super) fn finished(&mut self, kind: Kind) {
        self.under_way -= u32::from(Self::is_for(kind));
    }
}
