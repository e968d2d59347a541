//! Numbers of bytes in messages.

use std::fmt;

use floe_block::format_size;

/// Formats bytes, followed by a larger unit where that is exact.
pub(super) struct Bytes(pub(super) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match format_size(self.0) {
            text if text == self.0.to_string() => write!(f, "{text} bytes"),
            text => write!(f, "{} bytes ({text})", self.0),
        }
    }
}

/// Formats a number of bytes that may be too small.
pub(super) struct AtLeast {
    pub(super) bytes: u64,
    pub(super) exact: bool,
}

impl fmt::Display for AtLeast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.exact, self.bytes) {
            (true, bytes) => write!(f, "{}", Bytes(bytes)),
            (false, 0) => f.write_str("an unknown number of bytes"),
            (false, bytes) => write!(f, "at least {}", Bytes(bytes)),
        }
    }
}
