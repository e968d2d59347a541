//! The sessions of a worker's clients, and the ones with something to do.

use std::fmt::Display;
use std::ops::{Index, IndexMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use floe_device::Sockets;
use floe_nbd::export::Exports;

use super::slots::Slots;
use super::token::ClientToken;
use super::warnings::{Complaint, Warnings};
use crate::limits::WATCH_INTERVAL;
use crate::protocol::ProtocolFactory;
use crate::session::{Common, Passed, Session};
use crate::status::Snapshot;

/// The clients of a worker.
pub(super) struct Sessions {
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
    pub(super) fn new(exports: Arc<Exports>, connections: Arc<AtomicUsize>) -> Self {
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
    pub(super) fn begin(
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
    pub(super) fn adopt(&mut self, passed: Passed, common: &Common) {
        let now = Instant::now();
        let session = |key| passed.adopted(key, &self.exports, common, now);
        let index = self.list.insert_with(session);
        self.watch(now);
        self.touch(index);
    }

    /// Takes out a session that is over.
    pub(super) fn remove(&mut self, index: u32) -> Option<Session> {
        self.connections.fetch_sub(1, Ordering::Relaxed); // a count for choosing workers only
        self.list.remove(index)
    }

    pub(super) fn indices(&self) -> Vec<u32> {
        self.list.indices()
    }

    /// Notes that a session may have something to do.
    pub(super) fn touch(&mut self, index: u32) {
        self.touched.push(index);
    }

    /// Takes a session that may have something to do.
    pub(super) fn next_touched(&mut self) -> Option<u32> {
        while let Some(index) = self.touched.pop() {
            if self.list.contains(index) {
                return Some(index);
            }
        }
        None
    }

    /// Offers these exports from now on, to clients that are there as well.
    pub(super) fn offer(&mut self, exports: Arc<Exports>) {
        for index in self.list.indices() {
            self.list[index].exports_changed(&exports);
            self.touch(index);
        }
        self.exports = exports;
    }

    /// Ends all sessions, and begins no more. With `hands_off` those leave whose connections the
    /// next server can adopt.
    pub(super) fn end(&mut self, hands_off: bool, sockets: &mut Sockets) {
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
    pub(super) fn watch(&mut self, now: Instant) {
        self.watch_at.get_or_insert(now + WATCH_INTERVAL);
    }

    /// Returns whether the check for late clients is due. It takes place again only after
    /// [`Sessions::watch`].
    pub(super) fn is_watch_due(&mut self, now: Instant) -> bool {
        self.watch_at.take_if(|due| *due <= now).is_some()
    }

    /// Warns of a client, unless there were many such warnings lately.
    pub(super) fn warn(
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
    pub(super) fn tell_warnings(&mut self, now: Instant) {
        self.warnings.tell(now);
    }

    /// Returns the time at which something is due for the clients.
    pub(super) fn due(&self) -> Option<Instant> {
        self.watch_at.into_iter().chain(self.warnings.due()).min()
    }

    /// Counts the clients by protocol, and by the volumes they use.
    pub(super) fn count(&self, snapshot: &mut Snapshot) {
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
