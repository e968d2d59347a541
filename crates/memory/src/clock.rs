//! Clocks of caches, which are coarse, and the compact form in which entries store times.
//!
//! Only lookups of entries that expire read the time. On Linux they read the system's coarse clock,
//! which takes a few nanoseconds without a call into the kernel. Insertions of such entries read
//! the exact one, so that nothing expires early. So the time depends on no thread. Tests and
//! simulations move theirs by hand.
//!
//! # Stored times
//!
//! A stored time has 31 bits, and a bit that gives the unit.
//!
//! Near times count ticks of 5 ms; far ones count units of 1,024 ticks, 5.12 s. Both wrap around,
//! and half of the circle is the future: 62 days of ticks, 174 years of the larger unit. A past
//! time must be forgotten before it has been past for so long, or it would count as future again;
//! sweeps see to that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::sync::{Arc, Weak};
use crate::user_code::FirstPanic;

/// Length of a tick, the unit of stored times.
pub(crate) const TICK: Duration = Duration::from_millis(5);
pub(crate) const TICK_US: u64 = TICK.as_micros() as u64;
/// Distance, in microseconds, after which a manual clock has its caches swept. An entry that
/// expired more than twice that ago could count as one that [has yet to expire](self#stored-times).
const SWEEP_EVERY_US: u64 = 25 * DAY_US;
/// Step, in microseconds, in which a manual clock moves far ahead and sweeps once all near times
/// have expired.
const SWEEP_SELDOM_US: u64 = 60 * 365 * DAY_US;
const DAY_US: u64 = 24 * 3600 * 1_000_000;

/// A time or a span of time in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticks(pub(crate) u64);

impl Ticks {
    /// Returns a span that is at least this long, or the longest one that fits.
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

/// State of a manual clock, which stands still until it is advanced.
#[derive(Debug, Default)]
struct Manual {
    /// Microseconds since the clock's start.
    now_us: AtomicU64,
    swept: Mutex<Swept>,
}

/// The caches whose entries expire by a manual clock.
#[derive(Default)]
struct Swept {
    caches: Vec<Weak<dyn Sweep>>,
    /// Time of the last sweep, in microseconds since the clock's start.
    at_us: u64,
}

impl std::fmt::Debug for Swept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Swept").field("at_us", &self.at_us).finish_non_exhaustive()
    }
}

impl Manual {
    /// Returns the microseconds since the clock's start.
    fn micros(&self) -> u64 {
        self.now_us.load(Ordering::Relaxed) // only a number
    }

    /// Advances the clock. Sweeps the caches if `sweeps` is true or their last sweep is long ago.
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
    /// Creates a handle to the system's monotonic clock. An expired entry is noticed at the next
    /// step of the coarse clock: 1 to 10 ms on Linux.
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// Creates a clock that stands still until it is [advanced](Self::advance), for tests and
    /// simulations. Lookups do not find entries that have expired by it. Such entries are freed
    /// when their key is inserted or removed, or by [`Cache::reclaim`](crate::Cache::reclaim).
    pub fn manual() -> Self {
        Self(Source::Manual(Arc::default()))
    }

    /// Advances a manual clock. Caches notice in steps of 5 ms. Every 25 days this call removes
    /// expired entries from their caches, and runs their destructors and listeners.
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

    /// Registers a cache to be swept whenever a manual clock has moved far.
    pub(crate) fn sweeps(&self, cache: Weak<dyn Sweep>) {
        if let Source::Manual(manual) = &self.0 {
            let mut swept = manual.swept.lock().unwrap_or_else(PoisonError::into_inner);
            swept.caches.retain(|cache| cache.strong_count() > 0);
            swept.caches.push(cache);
        }
    }

    /// Returns true if only [`advance`](Self::advance) moves the clock.
    pub(crate) fn is_manual(&self) -> bool {
        matches!(self.0, Source::Manual(_))
    }

    /// Returns the exact time of the system's clock, in microseconds.
    pub(crate) fn system_us() -> u64 {
        system::exact_us()
    }

    /// Returns the exact time, in microseconds.
    pub(crate) fn micros(&self) -> u64 {
        match &self.0 {
            Source::System => system::exact_us(),
            Source::Manual(manual) => manual.micros(),
        }
    }

    /// Returns the present tick. It is never early, and late by at most a step of the coarse clock.
    #[inline]
    pub(crate) fn now(&self) -> Ticks {
        match &self.0 {
            Source::System => Ticks(system::coarse_ticks()),
            Source::Manual(manual) => Ticks(manual.micros() / TICK_US),
        }
    }

    /// Returns the tick to record for a use in tick `now`. It is not before the exact time, so that
    /// nothing expires early.
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

    /// Longest delay of the coarse clock, in ticks: a step of a kernel with a hundred timer
    /// interrupts a second.
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

    /// Returns the time of the coarse clock in ticks. It has the same origin as the exact time.
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

/// A stored time; 0 means never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment(pub(crate) u32);

/// Bit of a [`Moment`] that is set if the time counts the larger unit.
const FAR: u32 = 1 << 31;
/// Bits of a [`Moment`] that count units.
const COUNT: u32 = FAR - 1;
/// Half of the circle of stored times, in units: times less than this ahead are in the future.
const HALF: u32 = 1 << 30;
/// Ticks in the larger unit, as a power of two.
const FAR_SHIFT: u32 = 10;
/// Longest span, in ticks, that is stored as a near time. The margin allows for a clock that is a
/// second late.
const NEAR: u64 = HALF as u64 - 256;
/// The longest span that can be stored. Longer ones mean for ever.
pub(crate) const LONGEST: Ticks = Ticks((HALF as u64 - 4) << FAR_SHIFT);

impl Moment {
    pub(crate) const NEVER: Self = Self(0);

    /// Returns the time `span` after `now`. If the span is longer than 62 days, the time is up to 6
    /// s later; if it exceeds [`LONGEST`], the time is never.
    pub(crate) fn after(now: Ticks, span: Ticks) -> Self {
        if span.0 > LONGEST.0 {
            return Self::NEVER;
        }
        let at = now.0.wrapping_add(span.0);
        if span.0 <= NEAR {
            Self((at as u32 & COUNT).max(1)) // 0 is never
        } else {
            Self(at.div_ceil(1 << FAR_SHIFT) as u32 & COUNT | FAR)
        }
    }

    /// Returns true unless the time is never.
    #[inline(always)]
    pub(crate) fn is_set(self) -> bool {
        self.0 != 0
    }

    fn shift(self) -> u32 {
        if self.0 & FAR == 0 { 0 } else { FAR_SHIFT }
    }

    /// Returns the units until the time; 0 if it has passed.
    #[inline]
    fn units(self, now: Ticks) -> u32 {
        let units = self.0.wrapping_sub((now.0 >> self.shift()) as u32) & COUNT;
        if units < HALF { units } else { 0 }
    }

    /// Returns true if the time has passed.
    #[inline]
    pub(crate) fn has_come(self, now: Ticks) -> bool {
        self.is_set() && self.units(now) == 0
    }

    /// Returns the ticks until the time; `None` if it is never.
    pub(crate) fn left(self, now: Ticks) -> Option<u64> {
        let whole = u64::from(self.units(now)) << self.shift();
        let begun = now.0 & ((1 << self.shift()) - 1);
        self.is_set().then(|| whole.saturating_sub(begun))
    }

    /// Returns the earlier of two times.
    pub(crate) fn or_earlier(self, other: Self, now: Ticks) -> Self {
        match (self.left(now), other.left(now)) {
            (Some(left), Some(others)) if left <= others => self,
            (_, None) => self,
            _ => other,
        }
    }
}

/// A span of time as entries store it: 30 bits, and a bit that gives the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(u32);

impl Span {
    /// Bit that is set if the span counts the larger unit.
    const FAR: u32 = 1 << 30;

    /// Creates a span of `ticks`, shortened by less than a larger unit if it is longer than 62
    /// days.
    pub(crate) fn at_most(ticks: Ticks) -> Self {
        match u32::try_from(ticks.0) {
            Ok(near) if near < Self::FAR => Self(near),
            _ => Self((ticks.0.min(LONGEST.0) >> FAR_SHIFT) as u32 | Self::FAR),
        }
    }

    /// Creates a span of `ticks`, lengthened by less than a larger unit if it is longer than 62
    /// days.
    pub(crate) fn at_least(ticks: Ticks) -> Self {
        let more = if ticks.0 < Self::FAR.into() { 0 } else { (1 << FAR_SHIFT) - 1 };
        Self::at_most(Ticks(ticks.0.saturating_add(more)))
    }

    /// Returns the stored form, which has 31 bits.
    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    pub(crate) fn of_bits(bits: u32) -> Self {
        Self(bits)
    }

    pub(crate) fn ticks(self) -> Ticks {
        if self.0 & Self::FAR == 0 {
            Ticks(self.0.into())
        } else {
            Ticks(u64::from(self.0 & !Self::FAR) << FAR_SHIFT)
        }
    }
}

/// A cache that needs maintenance. Times are those of the system's clock, in microseconds.
pub(crate) trait Sweep: Send + Sync {
    /// Steps the controller of freezing. Returns true if the cache was used since the last call.
    /// Runs no user code.
    fn tick(&self) -> bool;

    /// Removes expired entries. Returns the earliest time at which another one can expire, as far
    /// as that is known.
    fn sweep(&self) -> Option<u64>;
}

#[cfg(test)]
mod moment_tests {
    use super::*;

    const DAY: u64 = 24 * 3600 * 200;
    /// Present times to test: those at which counts of both units wrap, and others.
    const NOWS: [u64; 9] =
        [0, 1, 12_345, DAY, 1 << 30, (1 << 31) - 1, 1 << 31, 1 << 41, (1 << 41) + 999_999];

    #[test]
    fn a_time_comes_when_it_is_due_and_not_before() {
        for now in NOWS {
            for span in [1, 2, 200, DAY, 61 * DAY, NEAR, NEAR + 1, 365 * DAY, LONGEST.0] {
                let moment = Moment::after(Ticks(now), Ticks(span));
                let late = if span <= NEAR { 1 } else { 1 << FAR_SHIFT };
                assert!(!moment.has_come(Ticks(now + span - 1)), "{now} {span}");
                assert!(!moment.has_come(Ticks(now.saturating_sub(5))), "by a clock that is late");
                assert!(moment.has_come(Ticks(now + span + late)), "{now} {span}");
                let past = if span <= NEAR { 60 * DAY } else { 170 * 365 * DAY };
                assert!(moment.has_come(Ticks(now + span + past)), "{now} {span}");
                let left = moment.left(Ticks(now)).expect("it comes");
                assert!((span..=span + late).contains(&left), "{now} {span}: {left}");
            }
            let never = Moment::after(Ticks(now), Ticks(LONGEST.0 + 1));
            assert_eq!((never, never.left(Ticks(now))), (Moment::NEVER, None));
            assert!(!never.has_come(Ticks(now)) && !never.has_come(Ticks(u64::MAX)));
        }
    }

    #[test]
    fn a_span_is_what_it_was_made_of_or_a_little_less_or_more() {
        for ticks in [0, 1, 200, DAY, 62 * DAY, 63 * DAY, 365 * DAY, LONGEST.0] {
            let [less, more] = [Span::at_most(Ticks(ticks)), Span::at_least(Ticks(ticks))];
            let (Ticks(from), Ticks(to)) = (less.ticks(), more.ticks());
            assert!(from <= ticks && ticks - from < 1 << FAR_SHIFT, "{ticks}: {from}");
            assert!(to >= ticks && to - ticks < 1 << FAR_SHIFT, "{ticks}: {to}");
            assert_eq!(Span::of_bits(less.bits()), less);
            assert!(less.bits() < 1 << 31 && more.bits() < 1 << 31);
        }
        assert_eq!(Span::at_least(Ticks(u64::MAX)).ticks(), LONGEST);
    }

    #[test]
    fn the_earlier_of_two_times_is_the_one_with_less_left() {
        let now = Ticks(7 * DAY);
        let [near, far] = [DAY, 365 * DAY].map(|span| Moment::after(now, Ticks(span)));
        assert_eq!((near.or_earlier(far, now), far.or_earlier(near, now)), (near, near));
        assert_eq!((near.or_earlier(Moment::NEVER, now)), near);
        assert_eq!((Moment::NEVER.or_earlier(far, now)), far);
    }
}
