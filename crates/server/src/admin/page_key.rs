//! The key of the live page: what tells its requests from those of other pages.
//!
//! A browser sends a request for any page that asks for it, through an address that a user can
//! reach. It shows a page the answers of its own server only. So the live page carries a secret of
//! this run of the server, and repeats it in a header, which pages of others can neither know nor
//! send. Without `admin-write` there is no key, and browsers change nothing.

use std::fmt;
use std::io::Read;
use std::sync::Arc;

use subtle::ConstantTimeEq;

/// The header with the key.
pub(super) const HEADER: &str = "Floe-Page";

/// The key of the page of one run of a server. Clones share it.
#[derive(Clone, PartialEq, Eq)]
pub struct PageKey(Arc<str>);

impl fmt::Debug for PageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PageKey")
    }
}

impl PageKey {
    /// Draws a key.
    ///
    /// # Errors
    /// When the machine has no random numbers.
    pub fn draw() -> std::io::Result<Self> {
        let mut bytes = [0; 16];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self(text.into()))
    }

    /// Returns the text of the key.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Compares with a key that was sent.
    pub(super) fn is(&self, given: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(given).into()
    }
}

/// The changes that the live page offers to a client of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PageWrite {
    /// None.
    Off,
    /// None at this address: over TCP there is no token.
    NoToken,
    /// All, with the key; over TCP with the admin token, too.
    On { key: PageKey, needs_token: bool },
}

impl PageWrite {
    /// Returns the attributes of the page's body.
    pub(crate) fn attributes(&self) -> String {
        match self {
            Self::Off => "data-write=\"off\"".to_owned(),
            Self::NoToken => "data-write=\"no-token\"".to_owned(),
            Self::On { key, needs_token } => {
                let word = if *needs_token { "token" } else { "on" };
                format!("data-write=\"{word}\" data-key=\"{}\"", key.text())
            }
        }
    }
}
