//! A worker's sessions, the list of those with something to do, and the tokens of their socket
//! operations.

use std::fmt::Display;
use std::ops::{Index, IndexMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use floe_device::Sockets;
use floe_nbd::export::Exports;

use crate::limits::WATCH_INTERVAL;
use crate::protocol::ProtocolFactory;
use crate::session::{Common, Passed, Session};
use crate::slots::Slots;
use crate::status::Snapshot;
use crate::warnings::{Complaint, Warnings};

/// The sessions of a worker's clients.
pub(crate) struct Sessions {
    list: Slots<Session>,
    exports: Arc<Exports>,
    /// Numbers of sessions that may have something to do.
    touched: Vec<u32>,
    /// Time of the next check for late clients; `None` if none can be late.
    watch_at: Option<Instant>,
    warnings: Warnings,
    /// Number of this worker's clients, shared with the acceptor, which increments it.
    connections: Arc<AtomicUsize>,
    /// The server ends, and new clients are not served.
    ending: bool,
}

impl Sessions {
    pub(crate) fn new(exports: Arc<Exports>, connections: Arc<AtomicUsize>) -> Self {
        Self {
            list: Slots::default(),
            exports,
            touched: Vec::new(),
            watch_at: None,
            warnings: Warnings::default(),
            connections,
            ending: false,
        }
    }

    /// Begins the session of a client. Returns its number; `None` if the server ends.
    pub(crate) fn begin(
        &mut self,
        socket: OwnedFd,
        protocol: &dyn ProtocolFactory,
        common: &Common,
    ) -> Option<u32> {
        if self.ending {
            self.connections.fetch_sub(1, Ordering::Relaxed); // a count for choosing workers only
            return None; // closes it
        }
        let now = Instant::now();
        let session = |key| Session::new(key, socket, protocol, &self.exports, common, now);
        let index = self.list.insert_with(session);
        self.watch(now);
        self.touch(index);
        Some(index)
    }

    /// Begins the session of a connection that another server has handed off.
    pub(crate) fn adopt(&mut self, passed: Passed, common: &Common) {
        let now = Instant::now();
        let session = |key| passed.adopted(key, &self.exports, common, now);
        let index = self.list.insert_with(session);
        self.watch(now);
        self.touch(index);
    }

    /// Removes and returns a session that is over.
    pub(crate) fn remove(&mut self, index: u32) -> Option<Session> {
        self.connections.fetch_sub(1, Ordering::Relaxed); // a count for choosing workers only
        self.list.remove(index)
    }

    pub(crate) fn indices(&self) -> Vec<u32> {
        self.list.indices()
    }

    /// Marks a session as one that may have something to do.
    pub(crate) fn touch(&mut self, index: u32) {
        self.touched.push(index);
    }

    /// Removes a session from the list of those that may have something to do, and returns it.
    pub(crate) fn next_touched(&mut self) -> Option<u32> {
        while let Some(index) = self.touched.pop() {
            if self.list.contains(index) {
                return Some(index);
            }
        }
        None
    }

    /// Offers these exports from now on, to existing clients as well.
    pub(crate) fn offer(&mut self, exports: Arc<Exports>) {
        for index in self.list.indices() {
            self.list[index].exports_changed(&exports);
            self.touch(index);
        }
        self.exports = exports;
    }

    /// Lets all sessions look at the reservations of NVMe hosts.
    pub(crate) fn reservations_changed(&mut self) {
        for index in self.list.indices() {
            self.list[index].reservations_changed();
            self.touch(index);
        }
    }

    /// Ends all sessions, and refuses new ones. With `hands_off`, connections that the next server
    /// can adopt are handed off instead.
    pub(crate) fn end(&mut self, hands_off: bool, sockets: &mut Sockets, common: &Common) {
        self.ending = true;
        common.throttle.lift(Instant::now()); // those that are handed off wait for no limit
        for index in self.list.indices() {
            if hands_off && self.list[index].leave() {
                sockets.cancel_receive(ClientToken::Receive(index).encode());
            } else {
                self.list[index].end();
            }
            self.touch(index);
        }
    }

    /// Schedules a check for late clients, unless one is scheduled.
    pub(crate) fn watch(&mut self, now: Instant) {
        self.watch_at.get_or_insert(now + WATCH_INTERVAL);
    }

    /// Returns whether the check for late clients is due. The next one must be scheduled by
    /// [`Sessions::watch`].
    pub(crate) fn is_watch_due(&mut self, now: Instant) -> bool {
        self.watch_at.take_if(|due| *due <= now).is_some()
    }

    /// Logs a warning about a client, or only counts it if there were many of its kind lately.
    pub(crate) fn warn(
        &mut self,
        thread: usize,
        complaint: Complaint,
        client: u32,
        error: &dyn Display,
        now: Instant,
    ) {
        if self.warnings.count(complaint, now) {
            tracing::warn!(thread, client, %error, "{}", complaint.text());
        }
    }

    /// Logs the number of warnings that were only counted.
    pub(crate) fn tell_warnings(&mut self, now: Instant) {
        self.warnings.tell(now);
    }

    /// Returns the time at which a check for late clients or a report of warnings is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.watch_at.into_iter().chain(self.warnings.due()).min()
    }

    /// Adds the clients to the counts by protocol and by volume.
    pub(crate) fn count(&self, snapshot: &mut Snapshot) {
        for index in self.list.indices() {
            self.list[index].count(snapshot);
        }
    }
}

impl Index<u32> for Sessions {
    type Output = Session;

    fn index(&self, index: u32) -> &Session {
        &self.list[index]
    }
}

impl IndexMut<u32> for Sessions {
    fn index_mut(&mut self, index: u32) -> &mut Session {
        &mut self.list[index]
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        // a count for choosing workers only
        self.connections.fetch_sub(self.list.len(), Ordering::Relaxed);
    }
}

/// Identifies a socket operation of a worker. The numbers are those of sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientToken {
    Receive(u32),
    Send(u32),
    WakeUp,
}

impl ClientToken {
    pub(crate) fn encode(self) -> u64 {
        let (kind, index) = match self {
            Self::Receive(index) => (0u64, index),
            Self::Send(index) => (1, index),
            Self::WakeUp => (2, 0),
        };
        kind << 32 | u64::from(index)
    }

    pub(crate) fn decode(token: u64) -> Self {
        let index = token as u32;
        match token >> 32 {
            0 => Self::Receive(index),
            1 => Self::Send(index),
            _ => Self::WakeUp,
        }
    }
}
