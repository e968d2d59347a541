//! The line at the budget: requests of a session that wait until there is memory for them.

use std::collections::VecDeque;
use std::time::Instant;

use floe_block::Kind;

use super::{Session, Want, bytes_of};
use crate::protocol::Request;

/// A request on its way to the server.
#[derive(Debug, Clone, Copy)]
pub(super) enum Turn {
    /// In line at the budget.
    Waiting(Request),
    /// Not in line, until the client has taken the send under way.
    SetAside(Request),
    Come(Request),
}

/// Requests that wait for their turn at the budget.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) turn: Option<Turn>,
    /// Requests behind the one in `turn`.
    pub(super) behind: VecDeque<Request>,
}

impl Session {
    /// Takes out the request whose memory is there.
    pub(super) fn take_request(&mut self, now: Instant) -> Option<Want> {
        let Some(Turn::Come(request)) = self.line.turn else { return None };
        let next = self.line.behind.pop_front();
        self.line.turn = next.map(|next| self.take_turn(next, now));
        self.serving += 1;
        Some(Want::Serve(request))
    }

    /// The request passes those that wait for memory. A write does whose payload is in front of the
    /// payload of earlier writes, because only that may free the memory. So does a request that
    /// needs none, because nothing else bounds how many wait.
    pub(super) fn goes_first(&self, request: &Request) -> bool {
        let is_write = matches!(request.kind, Kind::Write { .. });
        request.payload_follows && !self.payloads.incoming.is_empty()
            || self.line.turn.is_some() && !is_write && bytes_of(request) == 0
    }

    /// Takes the memory of a request, or has it wait.
    pub(super) fn take_turn(&self, request: Request, now: Instant) -> Turn {
        match self.common.budget.take_own(self.key, bytes_of(&request)) {
            true => Turn::Come(request),
            false if self.output.is_slow(now) => Turn::SetAside(request),
            false => self.line_up(request),
        }
    }

    /// Asks the budget for the memory of a request.
    pub(super) fn line_up(&self, request: Request) -> Turn {
        let at_once = self.common.budget.take(self.key, bytes_of(&request));
        if at_once { Turn::Come(request) } else { Turn::Waiting(request) }
    }

    /// Removes a client from the line if it takes its replies slowly.
    pub(crate) fn leave_the_line_if_slow(&mut self, now: Instant) {
        if let Some(Turn::Waiting(request)) = self.line.turn
            && self.output.is_slow(now)
        {
            self.common.budget.leave(self.key);
            self.line.turn = Some(Turn::SetAside(request));
        }
    }

    /// The session's turn at the budget has come.
    pub(crate) fn turn_has_come(&mut self) {
        let Some(Turn::Waiting(request)) = self.line.turn else {
            unreachable!("only who waits has a turn")
        };
        self.line.turn = Some(Turn::Come(request));
    }
}
