//! A connection of the admin interface.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use floe_device::Buffer;

use super::admin_tls::Encryption;
use crate::admin::{AllowedPaths, Conversation};

/// A connection of the admin interface.
#[derive(Debug)]
pub(super) struct AdminSession {
    pub(super) socket: Rc<OwnedFd>,
    pub(super) buffer: Buffer,
    pub(super) encryption: Encryption,
    pub(super) conversation: Conversation,
    /// A receive is under way; otherwise an answer is, or what is to be answered.
    pub(super) listening: bool,
    /// A send is under way.
    pub(super) sending: bool,
    /// The client waits for the next program, too.
    pub(super) upgrading: bool,
    /// Bytes to be sent next.
    pub(super) outgoing: Vec<u8>,
    /// The answer is given, or the connection broken: nothing is listened to any more.
    pub(super) is_over: bool,
    /// The client gets events until it leaves.
    pub(super) watching: bool,
    /// The client waits for the end of the server.
    pub(super) stopping: bool,
    /// Time by which it must have sent its request, or taken its answer; `None` while the server
    /// works on it.
    pub(super) until: Option<Instant>,
    pub(super) since: Instant,
    /// The client came over TCP.
    pub(super) is_remote: bool,
    /// The client was disconnected, and the session will end soon.
    pub(super) is_dropped: bool,
}

impl AdminSession {
    /// It has asked for nothing so far, or does not take its answer.
    pub(super) fn is_idle(&self) -> bool {
        self.until.is_some() && !self.watching
    }

    /// The server works on its request.
    pub(super) fn is_waiting(&self) -> bool {
        self.until.is_none() && !self.watching
    }

    /// It watches, and has taken all events so far.
    pub(super) fn is_ready_to_watch(&self) -> bool {
        self.watching && self.until.is_none() && !self.is_over
    }

    /// Returns the limit on devices that the client may name.
    pub(super) fn paths(&self) -> AllowedPaths {
        self.conversation.access().paths.clone()
    }
}
