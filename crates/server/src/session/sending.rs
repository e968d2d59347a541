//! The sending side of a session: straight from the reply's buffers, or encrypted, a bounded part
//! at a time.

use std::time::Instant;

use floe_device::Slice;

use super::{Session, Turn};
use crate::limits::{PIECE_BYTES, SEND_TLS_BYTES};
use crate::protocol::slice_of;

impl Session {
    /// Returns the next send, if bytes are pending and no send is under way.
    pub(crate) fn next_send(&mut self, now: Instant) -> Option<Vec<Slice>> {
        if self.output.sending || self.end.silent {
            return None;
        }
        let slices = if !self.output.clear.is_empty() {
            vec![slice_of(&std::mem::take(&mut self.output.clear), &self.common.pool)]
        } else if self.channel.is_some() {
            self.encrypt()?
        } else if self.output.outbox.is_empty() {
            return None;
        } else {
            self.output.outbox.gather(&self.common.pool, PIECE_BYTES)
        };
        self.output.sending = true;
        self.output.since = now;
        Some(slices)
    }

    /// Returns the next send, encrypted.
    fn encrypt(&mut self) -> Option<Vec<Slice>> {
        let channel = self.channel.as_mut()?;
        if !self.output.outbox.is_empty() {
            for slice in self.output.outbox.gather(&self.common.pool, SEND_TLS_BYTES) {
                channel.write(&slice.to_vec());
            }
        } else if self.end.ended
            && self.serving == 0
            && !std::mem::replace(&mut self.end.closed, true)
        {
            channel.close();
        }
        if !channel.wants_send() {
            return None;
        }
        let mut encrypted = Vec::new();
        channel.take(&mut encrypted);
        Some(vec![slice_of(&encrypted, &self.common.pool)])
    }

    /// Keeps an empty list for the next send.
    pub(crate) fn keep(&mut self, list: Vec<Slice>) {
        self.output.outbox.keep(list);
    }

    /// The send under way has ended.
    pub(crate) fn sent(&mut self, now: Instant) {
        self.output.sending = false;
        self.output.since = now; // the next send may begin at once
        let bytes = self.output.outbox.left();
        self.give_back(bytes);
        if let Some(Turn::SetAside(request)) = self.line.turn {
            self.line.turn = Some(self.line_up(request)); // it was slow, and has moved
        }
    }
}
