//! Time as caches need it: coarse, and free to look at.
//!
//! A hit must not read a clock, which would cost as much as the hit. So time is a number in memory that moves every few
//! milliseconds: [`crate::keeper`] moves it while there are caches whose entries expire. Tests and simulations move
//! theirs by hand.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::sync::Arc;

/// Length of a tick: entries expire at most twice so much late.
pub(crate) const TICK: Duration = Duration::from_millis(5);
/// Longer times count as this: numbers of ticks wrap, and half of the circle is the future.
const FAR: u32 = u32::MAX / 2 - 1;

/// A time or a span of time in ticks. Times wrap around after 248 days; they are only compared with near ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticks(pub(crate) u32);

impl Ticks {
    /// A span that is at least this long; spans over 124 days are 124 days.
    pub(crate) fn at_least(span: Duration) -> Self {
        let ticks = span.as_nanos().div_ceil(TICK.as_nanos());
        Self(u32::try_from(ticks).unwrap_or(FAR).clamp(1, FAR))
    }

    /// The time so much later. Never 0, which means "never" where times are stored.
    pub(crate) fn after(self, span: Self) -> u32 {
        self.0.wrapping_add(span.0).max(1)
    }

    /// Whether a stored time has come.
    pub(crate) fn is_past(self, time: u32) -> bool {
        self.0.wrapping_sub(time) <= FAR
    }
}

/// Where a cache takes the time from.
///
/// ```
/// # use floe_memory as floe;
/// use std::time::Duration;
/// use floe::{Cache, Clock};
///
/// let clock = Clock::manual();
/// let cache = Cache::builder().capacity(10).time_to_live(Duration::from_secs(60)).clock(clock.clone()).build();
/// cache.insert("key", 1);
/// clock.advance(Duration::from_secs(59));
/// assert!(cache.contains_key("key"));
/// clock.advance(Duration::from_secs(2));
/// assert!(!cache.contains_key("key"));
/// ```
#[derive(Debug, Clone)]
pub struct Clock {
    /// Microseconds since the start.
    now_us: Arc<AtomicU64>,
    manual: bool,
}

impl Clock {
    /// The time of the system, monotonic, in steps of 5 ms.
    pub fn system() -> Self {
        static SYSTEM: OnceLock<Arc<AtomicU64>> = OnceLock::new();
        let now_us = Arc::clone(SYSTEM.get_or_init(Arc::default));
        Self { now_us, manual: false }
    }

    /// A clock that stands still until it is [advanced](Self::advance): for tests and simulations. What has expired by it is
    /// not found, and leaves when its key is inserted or removed, or by [`Cache::reclaim`](crate::Cache::reclaim).
    pub fn manual() -> Self {
        Self { now_us: Arc::default(), manual: true }
    }

    /// Moves a manual clock on. Caches notice in steps of 5 ms.
    ///
    /// # Panics
    /// When the clock is the system's.
    pub fn advance(&self, span: Duration) {
        assert!(self.manual, "only a manual clock can be moved");
        self.now_us.fetch_add(span.as_micros() as u64, Ordering::Relaxed); // only a number
    }

    /// Whether somebody has to [look](Self::look) at the system's time for it to move.
    pub(crate) fn is_manual(&self) -> bool {
        self.manual
    }

    /// Takes the time from the system.
    pub(crate) fn look(&self) {
        static START: OnceLock<Instant> = OnceLock::new();
        if !self.manual {
            let now_us = START.get_or_init(Instant::now).elapsed().as_micros() as u64;
            self.now_us.fetch_max(now_us, Ordering::Relaxed); // only a number; several may look
        }
    }

    /// Microseconds since the start, as last looked at.
    pub(crate) fn micros(&self) -> u64 {
        self.now_us.load(Ordering::Relaxed) // only a number; late by a tick at most
    }

    /// The first tick that is not before the present time: what begins now, begins then, so that nothing ends early.
    pub(crate) fn next(&self) -> Ticks {
        Ticks(self.micros().div_ceil(TICK.as_micros() as u64) as u32)
    }

    /// The present tick, as last looked at.
    pub(crate) fn now(&self) -> Ticks {
        Ticks((self.micros() / TICK.as_micros() as u64) as u32)
    }
}
