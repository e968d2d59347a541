//! The client that has asked for another program. It is told of the end of this program, and its
//! connection is kept for the next one, which tells why it cannot serve, if it cannot.
//!
//! The process has one such client: who asks later is answered only.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

static CLIENT: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// The last word of this program to a client that waits for the next one.
pub(crate) const REPLACING: &str = "replacing";

/// Keeps the connection of a client, unless there is one.
pub(crate) fn keep(socket: OwnedFd) {
    CLIENT.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(socket);
}

/// Takes the connection of the client that waits for the next program.
pub fn take() -> Option<OwnedFd> {
    CLIENT.lock().unwrap_or_else(PoisonError::into_inner).take()
}
