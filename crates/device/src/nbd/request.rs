//! Operations as they travel to the hub, and requests as they travel to the server.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use floe_nbd::wire::command;

use crate::buffer::{Lent, Slice};
use crate::mailbox::Mailbox;

/// An operation's slot at the thread it came from, and its result.
pub(super) type Answer = (usize, io::Result<()>);

/// An operation of a thread.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) to: Arc<Mailbox<Answer>>,
    pub(super) slot: usize,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) action: JobAction,
    /// When it fails without an answer.
    pub(super) due: Option<Instant>,
}

/// [`Action`](crate::Action), with its slice lent to the hub.
#[derive(Debug)]
pub(super) enum JobAction {
    Read(Lent),
    Write { from: Lent, durable: bool },
    Zero { may_unmap: bool, fast: bool },
    Discard,
    Flush,
}

/// A request to the server.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) command: u16,
    pub(super) flags: u16,
    pub(super) offset: u64,
    pub(super) length: u32,
    /// The bytes to write, or where those that are read go.
    pub(super) data: Option<Slice>,
    pub(super) purpose: Purpose,
}

/// The reason for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Part of an operation, by its place.
    Operation(usize),
    /// An entry of the log.
    Repeat,
    /// A flush that makes the log shorter.
    Shorten,
}

impl Request {
    /// True if the ranges of both have a byte in common.
    pub(super) fn overlaps(&self, other: &Request) -> bool {
        let end = |request: &Request| request.offset + u64::from(request.length);
        self.offset < end(other) && other.offset < end(self)
    }

    /// True if it changes the export.
    pub(super) fn is_change(&self) -> bool {
        matches!(self.command, command::WRITE | command::WRITE_ZEROES | command::TRIM)
    }

    /// A flush.
    pub(super) fn flush(purpose: Purpose) -> Self {
        Self { command: command::FLUSH, flags: 0, offset: 0, length: 0, data: None, purpose }
    }
}
