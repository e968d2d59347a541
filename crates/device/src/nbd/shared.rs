//! The parts of an export that the hub's thread and the others both know.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::connect::Connected;
use super::error::NbdError;
use super::name::NbdName;
use super::request::Job;
use crate::mailbox::Mailbox;

/// A message to the hub.
#[derive(Debug)]
pub(super) enum Event {
    /// To carry an operation out.
    Job(Job),
    /// The end of an attempt to connect.
    Connected(Result<Connected, NbdError>),
    /// To find the export's size, by a new connection.
    Measure(Sender<io::Result<u64>>),
    /// Operations under way fail that have no answer for so long from now.
    Timeout(Duration),
    /// To end.
    End,
}

/// An export that is open.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) name: NbdName,
    pub(super) read_only: bool,
    pub(super) mailbox: Mailbox<Event>,
    /// As last seen. No other memory depends on it, so that relaxed loads and stores do.
    pub(super) size: AtomicU64,
}

impl Shared {
    pub(super) fn size_bytes(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }
}
