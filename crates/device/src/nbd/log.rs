//! Writes that the server has answered and may lose: those since its last flush.
//!
//! Entries are in the order of their answers, so of two writes to one place the later one comes
//! last. A flush covers the entries that were there when it was sent.

use std::collections::VecDeque;

use floe_nbd::wire::command_flag;

use super::request::{Purpose, Request};
use crate::buffer::{Pool, Slice};

/// Bytes from which on the hub has the server flush.
pub(super) const MANY_BYTES: u64 = 16 << 20;
/// Bytes from which on writes wait for that.
pub(super) const FULL_BYTES: u64 = 64 << 20;

/// Bytes that an entry takes up besides its data.
const ENTRY_BYTES: u64 = 128;

#[derive(Debug, Default)]
pub(super) struct Log {
    entries: VecDeque<Request>,
    bytes: u64,
    /// The number of the first entry.
    first: u64,
}

fn bytes_of(request: &Request) -> u64 {
    ENTRY_BYTES + request.data.as_ref().map_or(0, |data| data.len() as u64)
}

impl Log {
    /// Keeps a copy of a change that was answered. One that is durable is kept if an older one,
    /// which could be repeated over it, is.
    pub(super) fn keep(&mut self, request: &Request, pool: &Pool) {
        let is_durable = request.flags & command_flag::FUA != 0;
        if !request.is_change() || is_durable && self.entries.is_empty() {
            return;
        }
        let copy = |from: &Slice| {
            let copy = pool.allocate(from.len()).whole();
            Slice::copy(from, &copy);
            copy
        };
        let data = request.data.as_ref().map(copy);
        let entry = Request { data, purpose: Purpose::Repeat, ..request.clone() };
        self.bytes += bytes_of(&entry);
        self.entries.push_back(entry);
    }

    /// The number of the next entry, which says what a flush that is sent now covers.
    pub(super) fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Forgets the entries before a number.
    pub(super) fn forget(&mut self, end: u64) {
        while self.first < end
            && let Some(entry) = self.entries.pop_front()
        {
            self.first += 1;
            self.bytes -= bytes_of(&entry);
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The entries, to be sent again in this order.
    pub(super) fn entries(&self) -> impl DoubleEndedIterator<Item = &Request> {
        self.entries.iter()
    }
}
