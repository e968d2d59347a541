//! Time as caches need it: coarse, and read where it is needed.
//!
//! Only lookups of entries that expire look at the time. On Linux they read the system's coarse
//! clock, a few nanoseconds without a call into the kernel; insertions of such entries read the
//! exact one, so that nothing ends early. So the time depends on no thread. Tests and simulations
//! move theirs by hand.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::sweep::Sweep;
use crate::sync::{Arc, Weak};
use crate::thrown::FirstPanic;

/// Length of a tick, in which times are stored.
pub(crate) const TICK: Duration = Duration::from_millis(5);
pub(crate) const TICK_US: u64 = TICK.as_micros() as u64;
/// A manual clock that has moved so far since has its caches swept: what expired more than twice
/// that ago could be taken for what has [yet to expire](crate::moment).
const SWEEP_EVERY_US: u64 = 25 * DAY_US;
/// The same where all that expires within some weeks has.
const SWEEP_SELDOM_US: u64 = 60 * 365 * DAY_US;
const DAY_US: u64 = 24 * 3600 * 1_000_000;

/// A time or a span of time in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticks(pub(crate) u64);

impl Ticks {
    /// A span that is at least this long, or as long as can be told.
    pub(crate) fn at_least(span: Duration) -> Self {
        let ticks = span.as_nanos().div_ceil(TICK.as_nanos());
        Self(u64::try_from(ticks).unwrap_or(u64::MAX).max(1))
    }
}

/// The clock by which a cache's entries expire: the system's, or one that a test moves by hand.
///
/// ```
/// # use floe_memory as floe;
/// use std::time::Duration;
/// use floe::{Cache, Clock};
///
/// let clock = Clock::manual();
/// let cache = Cache::builder()
///     .capacity(10)
///     .time_to_live(Duration::from_secs(60))
///     .clock(clock.clone())
///     .build();
/// cache.insert("key", 1);
/// clock.advance(Duration::from_secs(59));
/// assert!(cache.contains_key("key"));
/// clock.advance(Duration::from_secs(2));
/// assert!(!cache.contains_key("key"));
/// ```
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    System,
    Manual(Arc<Manual>),
}

/// A clock that stands still.
#[derive(Debug, Default)]
struct Manual {
    /// Microseconds since the start.
    now_us: AtomicU64,
    swept: Mutex<Swept>,
}

/// The caches whose entries expire by a manual clock.
#[derive(Default)]
struct Swept {
    caches: Vec<Weak<dyn Sweep>>,
    /// When they were last swept.
    at_us: u64,
}

impl std::fmt::Debug for Swept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Swept").field("at_us", &self.at_us).finish_non_exhaustive()
    }
}

impl Manual {
    /// Microseconds since the start.
    fn micros(&self) -> u64 {
        self.now_us.load(Ordering::Relaxed) // only a number
    }

    /// Moves on, and has the caches swept if it `sweeps` or they have not been for long.
    fn advance(&self, step_us: u64, sweeps: bool) {
        // only a number
        let now_us = self.now_us.fetch_add(step_us, Ordering::Relaxed).wrapping_add(step_us);
        let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        if sweeps || now_us.wrapping_sub(swept.at_us) > SWEEP_EVERY_US {
            swept.at_us = now_us;
            let caches: Vec<_> = swept.caches.iter().filter_map(Weak::upgrade).collect();
            drop(swept); // sweeping runs the user's code
            let mut panic = FirstPanic::none();
            for cache in caches {
                panic.catch(|| cache.sweep()); // time passes for the others all the same
            }
            panic.raise();
        }
    }
}

impl Clock {
    /// Makes the system's monotonic clock. An expired entry is noticed at the next step of the
    /// coarse clock: 1 to 10 ms on Linux.
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// Makes a clock that stands still until it is [advanced](Self::advance), for tests and
    /// simulations.
    /// Entries expired by it are not found, and leave when their key is inserted or removed, or by
    /// [`Cache::reclaim`](crate::Cache::reclaim).
    pub fn manual() -> Self {
        Self(Source::Manual(Arc::default()))
    }

    /// Moves a manual clock on. Caches notice in steps of 5 ms. Every 25 days what has expired
    /// leaves its cache here, with its destructors and listeners.
    ///
    /// # Panics
    /// When the clock is the system's.
    pub fn advance(&self, span: Duration) {
        let Source::Manual(manual) = &self.0 else { panic!("only a manual clock can be moved") };
        let mut left_us = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        // After three steps of a size all has expired whose time is counted in a unit.
        for step_us in [SWEEP_EVERY_US; 3].into_iter().chain([SWEEP_SELDOM_US; 3]) {
            if left_us <= step_us {
                break;
            }
            left_us -= step_us;
            manual.advance(step_us, true);
        }
        manual.advance(left_us, false);
    }

    /// Has a cache swept whenever a manual clock has moved far.
    pub(crate) fn sweeps(&self, cache: Weak<dyn Sweep>) {
        if let Source::Manual(manual) = &self.0 {
            let mut swept = manual.swept.lock().unwrap_or_else(PoisonError::into_inner);
            swept.caches.retain(|cache| cache.strong_count() > 0);
            swept.caches.push(cache);
        }
    }

    /// Returns whether the time passes only by [`advance`](Self::advance).
    pub(crate) fn is_manual(&self) -> bool {
        matches!(self.0, Source::Manual(_))
    }

    /// The time of the system in microseconds, exactly.
    pub(crate) fn system_us() -> u64 {
        system::exact_us()
    }

    /// Microseconds, exactly.
    pub(crate) fn micros(&self) -> u64 {
        match &self.0 {
            Source::System => system::exact_us(),
            Source::Manual(manual) => manual.micros(),
        }
    }

    /// The present tick: never a later one, and late by a step of the coarse clock at most.
    #[inline]
    pub(crate) fn now(&self) -> Ticks {
        match &self.0 {
            Source::System => Ticks(system::coarse_ticks()),
            Source::Manual(manual) => Ticks(manual.micros() / TICK_US),
        }
    }

    /// The tick of something used in a tick: one that is not before the present time, so that
    /// nothing ends early.
    #[inline]
    pub(crate) fn used_in(&self, now: Ticks) -> Ticks {
        match &self.0 {
            Source::System => Ticks(now.0 + 1 + system::LATE_TICKS),
            Source::Manual(manual) => Ticks(manual.micros().div_ceil(TICK_US)),
        }
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use super::TICK_US;

    /// By how much the coarse clock can be late: a step of a kernel that interrupts a hundred times
    /// a second.
    pub(super) const LATE_TICKS: u64 = 2;

    fn read(clock: libc::clockid_t) -> libc::timespec {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes to `now` only. It fails for clocks that the system does not have only, and
        // Linux has both.
        unsafe { libc::clock_gettime(clock, &raw mut now) };
        now
    }

    pub(super) fn exact_us() -> u64 {
        let now = read(libc::CLOCK_MONOTONIC);
        now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
    }

    /// Of the same beginning as the exact time.
    #[inline]
    pub(super) fn coarse_ticks() -> u64 {
        let now = read(libc::CLOCK_MONOTONIC_COARSE);
        let part = now.tv_nsec as u32 / (TICK_US as u32 * 1_000); // of 32 bits: a multiplication
        now.tv_sec as u64 * (1_000_000 / TICK_US) + u64::from(part)
    }
}

#[cfg(any(not(target_os = "linux"), miri))]
mod system {
    use std::sync::OnceLock;
    use std::time::Instant;

    pub(super) const LATE_TICKS: u64 = 0;

    pub(super) fn exact_us() -> u64 {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_micros() as u64
    }

    pub(super) fn coarse_ticks() -> u64 {
        exact_us() / super::TICK_US
    }
}
