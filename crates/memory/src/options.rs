//! [`InsertOptions`]: expiry, refresh, priority and pin of a single entry.

use std::time::Duration;

use floe_policy::Priority;

use crate::renewal::Unused;

/// Function that returns the time to live of an entry; `None` for that of the cache, if it has one.
pub(crate) type LiveWith<K, V> = Box<dyn Fn(&K, &V) -> Option<Duration> + Send + Sync>;

/// Options of one entry, for [`Cache::insert_with`](crate::Cache::insert_with): the times at which
/// it expires and is refreshed, a priority, and a pin. The cache's settings apply where an option
/// is not given.
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
    pub(crate) unused: Option<Unused<Duration>>,
    pub(crate) priority: Priority,
    pub(crate) pinned: bool,
}

impl InsertOptions {
    /// Creates options that change nothing: the cache's settings apply to the entry.
    pub const fn new() -> Self {
        Self { live: None, unused: None, priority: Priority::Low, pinned: false }
    }

    /// Sets the time after the insertion at which the entry expires, whether it is used or not.
    /// Replaces the cache's [time to live](crate::Builder::time_to_live). Less than a tick of 5 ms
    /// counts as one tick. More than 174 years, such as [`Duration::MAX`], mean that it never
    /// expires.
    pub const fn time_to_live(self, time: Duration) -> Self {
        Self { live: Some(time), ..self }
    }

    /// Sets the time after the last use at which the entry expires. Replaces the cache's [time to
    /// idle](crate::Builder::time_to_idle). Less than a tick of 5 ms counts as one tick; more than
    /// 174 years mean that it never expires. An entry has either this time or a
    /// [refresh](Self::refresh_ahead) time: the option given last counts.
    pub const fn time_to_idle(self, time: Duration) -> Self {
        Self { unused: Some(Unused::Expires(time)), ..self }
    }

    /// Sets the time before the end of the time to live from which the entry is refreshed. The
    /// first load that asks for the entry then loads it anew, while other callers get the old
    /// value. Replaces the cache's [`refresh_ahead`](crate::Builder::refresh_ahead) or time to
    /// idle. It has no effect on an entry without a time to live. Less than a tick of 5 ms counts
    /// as one tick.
    pub const fn refresh_ahead(self, time: Duration) -> Self {
        Self { unused: Some(Unused::Refreshes(time)), ..self }
    }

    /// Sets HTTP's `max-age` and `stale-while-revalidate`: the entry is fresh for the first time,
    /// and then stale for the second. Loads get a stale value, too, and the first of them refreshes
    /// it. This is short for a time to live of both times together and a
    /// [refresh](Self::refresh_ahead) in the second.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use std::time::Duration;
    /// use floe::{Cache, Clock, InsertOptions};
    ///
    /// let clock = Clock::manual();
    /// let cache = Cache::builder().capacity(10).clock(clock.clone()).build();
    /// let (fresh, stale) = (Duration::from_secs(60), Duration::from_secs(30));
    /// cache.insert_with("page", 1, InsertOptions::new().stale_while_revalidate(fresh, stale));
    /// clock.advance(Duration::from_secs(50));
    /// assert_eq!(*cache.get_with(&"page", || 2), 1); // fresh: nothing is loaded
    /// clock.advance(Duration::from_secs(20));
    /// assert_eq!(cache.get_cloned("page"), Some(1)); // stale
    /// // A source that fails changes nothing before the end.
    /// assert_eq!(*cache.get_or_insert_with(&"page", || Err("no network")).unwrap(), 1);
    /// assert_eq!(*cache.get_with(&"page", || 2), 2);
    /// ```
    pub const fn stale_while_revalidate(self, fresh: Duration, stale: Duration) -> Self {
        let live = fresh.saturating_add(stale);
        self.time_to_live(live).refresh_ahead(live.saturating_sub(fresh))
    }

    /// Sets the priority of the entry; [low](Priority::Low) by default.
    ///
    /// In a cache with [`priority_pools`](crate::Builder::priority_pools) it chooses the pool that
    /// the entry enters. In others, an entry of [high](Priority::High) priority counts as used once
    /// when it is inserted, and the other two are the same. A value that replaces another one can
    /// raise the priority of its key, unless that is frozen, and never lowers it. A pinned entry
    /// has no priority, and low priority once it is unpinned.
    pub const fn priority(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }

    /// Returns the priority to tell the policy; `None` if it treats the entry as any other.
    /// `tells_low` is true if it distinguishes low priority from bottom priority.
    pub(crate) fn told_priority(&self, tells_low: bool) -> Option<Priority> {
        match self.priority {
            Priority::Low if !tells_low => None,
            Priority::Bottom => None,
            priority => Some(priority),
        }
    }

    /// Returns the options completed by what a cache says of an entry's time to live.
    pub(crate) fn with_live<K, V>(
        &self,
        live_with: Option<&LiveWith<K, V>>,
        key: &K,
        value: &V,
    ) -> Self {
        match live_with {
            Some(live) if self.live.is_none() => Self { live: live(key, value), ..*self },
            _ => *self,
        }
    }

    /// Pins the entry, so that it is not evicted. It counts towards the capacity, expires, and can
    /// be removed.
    pub const fn pinned(self) -> Self {
        Self { pinned: true, ..self }
    }
}
