//! The end of a session: by the client, by the server, or because the client is late.

use std::time::Instant;

use super::{Overdue, Session, Turn, bytes_of};

impl Session {
    /// Takes no further requests; complete ones are still answered.
    pub(crate) fn end(&mut self) {
        self.end.ended = true;
        self.payloads.filling = None;
        while let Some(incoming) = self.payloads.incoming.pop() {
            self.serving -= 1;
            self.give_back(bytes_of(&incoming.request));
        }
        self.line.behind.clear();
        match self.line.turn.take() {
            Some(Turn::Waiting(_)) => self.common.budget.leave(self.key),
            Some(Turn::Come(request)) => self.give_back(bytes_of(&request)),
            Some(Turn::SetAside(_)) | None => {}
        }
    }

    /// Stops sending anything to the client.
    pub(crate) fn break_off(&mut self) {
        self.drop_replies();
        self.end.silent = true;
        self.output.clear.clear();
    }

    pub(super) fn drop_replies(&mut self) {
        self.end();
        self.end.broken = true;
        let bytes = self.output.outbox.clear();
        self.give_back(bytes);
    }

    /// Returns the action with which the client is late, if any. The caller then calls
    /// [`Session::break_off`].
    pub(crate) fn overdue(&self, now: Instant) -> Option<Overdue> {
        if self.is_in_handshake() {
            return (now >= self.begun + self.common.limits.handshake_time)
                .then_some(Overdue::Handshake);
        }
        if self.protocol.has_parent() == Some(false) {
            return Some(Overdue::Orphaned);
        }
        if self.protocol.longest_silence().is_some_and(|most| now >= self.input.heard + most) {
            return Some(Overdue::Silent);
        }
        let giving = self.payloads.incoming.iter().filter_map(|incoming| incoming.since);
        let taking = self.output.sending.then_some(self.output.since);
        let since = giving.chain(taking).min();
        let late = since.is_some_and(|since| now >= since + self.common.limits.stall_time);
        (late && self.common.budget.is_in_the_way(self.key)).then_some(Overdue::Stalled)
    }

    /// The client has not chosen an export yet.
    pub(crate) fn is_in_handshake(&self) -> bool {
        !self.protocol.is_established() && !self.end.silent
    }

    /// The client can be late while no other waits for its memory.
    pub(crate) fn is_watched(&self) -> bool {
        let is_bound =
            || self.protocol.longest_silence().is_some() || self.protocol.has_parent().is_some();
        self.is_in_handshake() || !self.end.ended && is_bound()
    }

    /// No request is in flight, no reply is pending and no send is under way.
    pub(crate) fn is_quiet(&self) -> bool {
        let to_say =
            self.channel.as_ref().is_some_and(|channel| channel.wants_send() && !self.end.silent);
        !self.output.sending
            && self.serving == 0
            && self.output.outbox.is_empty()
            && self.output.clear.is_empty()
            && !to_say
    }

    /// The session only waits for a receive with no purpose: the caller shuts the socket down.
    pub(crate) fn is_done_listening(&self) -> bool {
        self.end.ended && self.input.receiving && self.is_quiet()
    }

    /// All replies have been sent and nothing is under way.
    pub(crate) fn is_over(&self) -> bool {
        self.end.ended && !self.input.receiving && self.is_quiet()
    }
}
