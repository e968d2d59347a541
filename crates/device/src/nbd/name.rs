//! The name of an export, and the time its server has to answer.

use std::fmt;
use std::time::Duration;

use floe_nbd::uri::Uri;

/// An export, and how long its server may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdName {
    /// The server's address and the export's name.
    pub uri: Uri,
    /// Fail operations that the server has not answered for so long; without it they wait for it.
    pub timeout: Option<Duration>,
}

/// The URI.
impl fmt::Display for NbdName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.uri.fmt(f)
    }
}
