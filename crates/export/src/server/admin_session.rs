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
    /// To be sent after that.
    pub(super) outgoing: Vec<u8>,
    /// The answer is given, or the connection broken: nothing is listened to any more.
    pub(super) is_over: bool,
    /// To be told when the server has ended.
    pub(super) stopping: bool,
    /// When it must have asked, or taken its answer; `None` while the server works on that.
    pub(super) until: Option<Instant>,
    pub(super) since: Instant,
    /// It came over TCP.
    pub(super) is_remote: bool,
    /// It was hung up on, and will soon be gone.
    pub(super) is_dropped: bool,
}

impl AdminSession {
    /// Where devices may be that it names.
    pub(super) fn paths(&self) -> AllowedPaths {
        self.conversation.access().paths.clone()
    }
}
