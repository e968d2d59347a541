//! The sessions of a worker's clients, those with something to do, and the tokens of their sockets.

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

/// The clients of a worker.
pub(crate) struct Sessions {
    list: Slots<Session>,
    exports: Arc<Exports>,
    /// Sessions that may have something to do.
    touched: Vec<u32>,
    /// Time of the next check for late clients, if any can be late.
    watch_at: Option<Instant>,
    warnings: Warnings,
    /// Clients of this worker, for the acceptor, which counts them in.
    connections: Arc<AtomicUsize>,
    /// The server ends: new clients are not served.
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

    /// Begins the session of a client; `None` when the server ends.
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

    /// Begins the session of a connection that another server has served.
    pub(crate) fn adopt(&mut self, passed: Passed, common: &Common) {
        let now = Instant::now();
        let session = |key| passed.adopted(key, &self.exports, common, now);
        let index = self.list.insert_with(session);
        self.watch(now);
        self.touch(index);
    }

    /// Takes out a session that is over.
    pub(crate) fn remove(&mut self, index: u32) -> Option<Session> {
        self.connections.fetch_sub(1, Ordering::Relaxed); // a count for choosing workers only
        self.list.remove(index)
    }

    pub(crate) fn indices(&self) -> Vec<u32> {
        self.list.indices()
    }

    /// Notes that a session may have something to do.
    pub(crate) fn touch(&mut self, index: u32) {
        self.touched.push(index);
    }

    /// Takes a session that may have something to do.
    pub(crate) fn next_touched(&mut self) -> Option<u32> {
        while let Some(index) = self.touched.pop() {
            if self.list.contains(index) {
                return Some(index);
            }
        }
        None
    }

    /// Offers these exports from now on, to clients that are there as well.
    pub(crate) fn offer(&mut self, exports: Arc<Exports>) {
        for index in self.list.indices() {
            self.list[index].exports_changed(&exports);
            self.touch(index);
        }
        self.exports = exports;
    }

    /// Ends all sessions, and begins no more. With `hands_off` those leave whose connections the
    /// next server can adopt.
    pub(crate) fn end(&mut self, hands_off: bool, sockets: &mut Sockets) {
        self.ending = true;
        for index in self.list.indices() {
            if hands_off && self.list[index].leave() {
                sockets.cancel_receive(ClientToken::Receive(index).encode());
            } else {
                self.list[index].end();
            }
            self.touch(index);
        }
    }

    /// Has clients checked for being late, if none can have been late so far.
    pub(crate) fn watch(&mut self, now: Instant) {
        self.watch_at.get_or_insert(now + WATCH_INTERVAL);
    }

    /// Returns whether the check for late clients is due. It takes place again only after
    /// [`Sessions::watch`].
    pub(crate) fn is_watch_due(&mut self, now: Instant) -> bool {
        self.watch_at.take_if(|due| *due <= now).is_some()
    }

    /// Warns of a client, unless there were many such warnings lately.
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

    /// Tells of warnings that were only counted.
    pub(crate) fn tell_warnings(&mut self, now: Instant) {
        self.warnings.tell(now);
    }

    /// Returns the time at which something is due for the clients.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.watch_at.into_iter().chain(self.warnings.due()).min()
    }

    /// Counts the clients by protocol, and by the volumes they use.
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

/// The use of one of a worker's socket operations.
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
