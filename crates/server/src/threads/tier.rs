//! A tier of a server's cache, before its threads have it.

use std::sync::Arc;

use crate::kept::Parts;
use crate::volume::DeviceSource;

/// A tier of a server's cache, ready to serve.
#[derive(Debug)]
pub struct Tier {
    /// Its device and settings, as they were written.
    pub name: String,
    /// Its parts, one for each thread.
    pub cache: Parts,
    /// Its cache device.
    pub source: Arc<dyn DeviceSource>,
    /// Bytes it may hold, for the status.
    pub cache_bytes: u64,
}

/// The name of a tier, whatever comes or goes above it: no two of a server have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TierKey(pub(super) u32);
