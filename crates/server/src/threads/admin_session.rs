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
    /// Bytes to be sent next.
    pub(super) outgoing: Vec<u8>,
    /// The answer is given, or the connection broken: nothing is listened to any more.
    pub(super) is_over: bool,
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
    /// Returns the limit on devices that the client may name.
    pub(super) fn paths(&self) -> AllowedPaths {
        self.conversation.access().paths.clone()
    }
}
