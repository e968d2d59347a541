//! Errors that end a session.

use crate::protocol::{Broken, NotWelcome};

/// An error that ends a session.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// The client broke the protocol.
    #[error(transparent)]
    Protocol(#[from] Broken),
    /// The client broke the protocol, and its last reply says so.
    #[error(transparent)]
    Told(Broken),
    /// The client broke TLS, or its certificate is not valid.
    #[error("TLS failed: {0}")]
    Tls(std::io::Error),
}

impl SessionError {
    /// Returns whether the client has broken nothing, but cannot be trusted.
    pub(crate) fn is_distrust(&self) -> bool {
        match self {
            Self::Protocol(error) | Self::Told(error) => error.is::<NotWelcome>(),
            Self::Tls(_) => true,
        }
    }
}

/// The action with which a client is late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Overdue {
    #[error("no export chosen in time")]
    Handshake,
    #[error("the connection that it belongs to has ended")]
    Orphaned,
    #[error("it has sent nothing for longer than it promised")]
    Silent,
    /// The client takes no replies, or sends no more of a write.
    #[error("it neither takes nor gives, and others wait for the memory")]
    Stalled,
}
