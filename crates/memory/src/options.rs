//! Options of one entry, beside its key and value.

use std::time::Duration;

/// Options in which an entry differs from the others of its cache, for
/// [`Cache::insert_with`](crate::Cache::insert_with).
///
/// ```
/// # use floe_memory as floe;
/// use std::time::Duration;
/// use floe::{Cache, InsertOptions};
///
/// let cache = Cache::new(100);
/// cache.insert_with("session", 1, InsertOptions::new().time_to_live(Duration::from_secs(300)));
/// cache.insert_with("root", 2, InsertOptions::new().pinned());
/// assert_eq!(cache.stats().pinned, 1);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InsertOptions {
    pub(crate) live: Option<Duration>,
    pub(crate) idle: Option<Duration>,
    pub(crate) pinned: bool,
}

impl InsertOptions {
    /// No different from others.
    pub const fn new() -> Self {
        Self { live: None, idle: None, pinned: false }
    }

    /// Expires after this time, whether used or not; instead of the cache's [time to
    /// live](crate::Builder::time_to_live). Less than a tick of 5 ms counts as one.
    pub const fn time_to_live(self, time: Duration) -> Self {
        Self { live: Some(time), ..self }
    }

    /// Expires when not used for this time; instead of the cache's [time to
    /// idle](crate::Builder::time_to_idle). Less than a tick of 5 ms counts as one.
    pub const fn time_to_idle(self, time: Duration) -> Self {
        Self { idle: Some(time), ..self }
    }

    /// Is not evicted. It still counts towards the capacity, expires, and can be removed.
    pub const fn pinned(self) -> Self {
        Self { pinned: true, ..self }
    }
}
