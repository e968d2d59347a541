//! A judge tells stored bytes from damaged ones.
//!
//! A mirror knows nothing of checksums. Before it copies bytes from one half to another it asks the
//! judge, so that a damaged copy never replaces an intact one.

use std::fmt;
use std::ops::Range;

/// Bytes that are not what was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Their places among the bytes that were judged.
    pub range: Range<usize>,
    /// Only the bytes that were stored last pass. Otherwise older ones pass too.
    pub exact: bool,
}

/// Tells stored bytes from damaged ones. Any thread may ask.
pub trait Judge: fmt::Debug + Send + Sync {
    /// Returns the parts of `bytes` that are not what was stored from this offset on. Each part can
    /// be judged by itself.
    fn damage(&self, offset: u64, bytes: &[u8]) -> Vec<Damage>;
}
