//! [`InsertOptions`]: lifetime and place of a single object.

use std::time::Duration;

/// Options of one object, for [`Hybrid::insert_with`](crate::Hybrid::insert_with): its lifetime and
/// its place. The cache's settings apply where an option is not given.
///
/// | option | insertion | memory evicts the object | the cache is closed |
/// |---|---|---|---|
/// | none | into memory | written to flash | written to flash |
/// | [`memory_only`](Self::memory_only) | into memory | dropped | dropped |
/// | [`do_not_admit`](Self::do_not_admit) | into memory | dropped | written to flash |
/// | [`to_flash`](Self::to_flash) | written to flash | – | – |
///
/// Of the last three options, the one given last counts. Dropped objects are
/// [counted](crate::FlashStats::declined_by_options).
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("cache");
/// use std::time::Duration;
/// use floe_hybrid::{Hybrid, InsertOptions, Inserted};
///
/// let cache: Hybrid<String, Vec<u8>> =
///     Hybrid::builder().memory(8 << 20).flash(path, 64 << 20).open()?;
/// let session = InsertOptions::new().memory_only().time_to_live(Duration::from_secs(300));
/// cache.insert_with("session".to_string(), vec![1], session);
/// let part = InsertOptions::new().to_flash();
/// assert_eq!(cache.insert_with("part".to_string(), vec![2], part), Inserted::ToFlash);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InsertOptions {
    pub(crate) live: Option<Duration>,
    pub(crate) ahead: Option<Duration>,
    pub(crate) placement: Placement,
}

/// The parts of the cache that may have an object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Memory, and flash once memory evicts the object.
    #[default]
    Both,
    /// Memory, and flash when the cache is closed.
    NotAdmitted,
    /// Memory, never flash.
    MemoryOnly,
    /// Flash at once.
    ToFlash,
}

impl InsertOptions {
    /// Creates options that change nothing: the cache's settings apply to the object.
    pub const fn new() -> Self {
        Self { live: None, ahead: None, placement: Placement::Both }
    }

    /// Sets the time after the insertion at which the object expires. Replaces the cache's [time to
    /// live](crate::Builder::time_to_live). On flash, times are rounded down to seconds, and are at
    /// least one second. After more than 80 years, as with [`Duration::MAX`], the object never
    /// expires.
    pub const fn time_to_live(self, time: Duration) -> Self {
        Self { live: Some(time), ..self }
    }

    /// Sets the time before the end of the time to live from which the object is refreshed: the
    /// first [`get_or_fetch`](crate::Hybrid::get_or_fetch) of it then fetches it anew, while other
    /// callers get the old value. Replaces the cache's
    /// [`refresh_ahead`](crate::Builder::refresh_ahead). It has no effect on an object without a
    /// time to live.
    pub const fn refresh_ahead(self, time: Duration) -> Self {
        Self { ahead: Some(time), ..self }
    }

    /// Sets HTTP's `max-age` and `stale-while-revalidate`: the object is fresh for the first time,
    /// and then stale for the second. This is short for a time to live of both times together and
    /// a [refresh](Self::refresh_ahead) in the second. The times count on flash and through
    /// restarts, too.
    pub const fn stale_while_revalidate(self, fresh: Duration, stale: Duration) -> Self {
        let live = fresh.saturating_add(stale);
        self.time_to_live(live).refresh_ahead(live.saturating_sub(fresh))
    }

    /// Keeps the object off flash, for data that must not be stored or that is useless after a
    /// restart. If memory evicts it, it is lost.
    pub const fn memory_only(self) -> Self {
        Self { placement: Placement::MemoryOnly, ..self }
    }

    /// Saves the write to flash if memory evicts the object, for objects that are rarely used
    /// again, such as those of a scan. [`close`](crate::Hybrid::close) writes the object, so that
    /// the next start finds the content of memory.
    pub const fn do_not_admit(self) -> Self {
        Self { placement: Placement::NotAdmitted, ..self }
    }

    /// Writes the object to flash without a stay in memory, for objects that are not used soon. It
    /// comes to memory by its second hit on flash, as other objects do.
    pub const fn to_flash(self) -> Self {
        Self { placement: Placement::ToFlash, ..self }
    }
}
