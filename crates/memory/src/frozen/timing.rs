//! Latencies of about one lookup in a hundred, by result. The other lookups read no clock.

use std::time::{Duration, Instant};

use crate::index::KeyHash;
use crate::sync::{AtomicU64, Ordering};
use floe_freeze::Latencies;

/// Returns the time since an epoch of the process, which all caches share.
pub(crate) fn now() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// A floating-point number that one thread adds to and others read.
#[derive(Debug, Default)]
struct Total(Count);

impl Total {
    fn add(&self, value: f64) {
        self.0.set((self.get() + value).to_bits());
    }

    fn get(&self) -> f64 {
        f64::from_bits(self.0.get())
    }
}

/// Limit of a time, as a multiple of the typical one; longer times are cut to it and some
/// nanoseconds. The thread was then preempted, which says nothing about the cache, and one such
/// time would outweigh ten thousand others. The cache's own occasional work, such as freeing a
/// batch of entries, is shorter.
const STALL: f64 = 4.0;
const STALL_NS: f64 = 16_000.0;
/// Times over which the typical one is smoothed. It follows a real change within some dozens.
const SMOOTHED: f64 = 64.0;

/// Times of one kind of lookup.
#[derive(Debug, Default)]
struct LookupTimes {
    typical: Total,
    count: Count,
    sum: Total,
    squares: Total,
}

impl LookupTimes {
    fn note(&self, took: Duration) {
        let typical = self.typical.get();
        let nanoseconds = match took.as_nanos() as f64 {
            first if typical == 0.0 => first,
            any => any.min(STALL * typical + STALL_NS),
        };
        let weight = if typical == 0.0 { 1.0 } else { 1.0 / SMOOTHED };
        self.typical.add((nanoseconds - typical) * weight);
        self.count.add(1);
        self.sum.add(nanoseconds);
        self.squares.add(nanoseconds * nanoseconds);
    }

    fn sums(&self) -> floe_policy::trial::Sums {
        floe_policy::trial::Sums {
            count: self.count.get(),
            sum: self.sum.get(),
            squares: self.squares.get(),
        }
    }
}

/// The result of a timed lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimedResult {
    Frozen,
    Dynamic,
    Miss,
}

/// Latencies that one thread has measured since the cache was made.
#[derive(Debug, Default)]
pub(crate) struct Timings {
    frozen: LookupTimes,
    dynamic: LookupTimes,
    miss: LookupTimes,
    /// Number of the next lookup to be timed, or a later one.
    pub(crate) next: Count,
    /// Hash of the key of a timed miss; 0 for none. `missed_at` is its start in nanoseconds. The
    /// miss includes the load, and the insertion of that key that follows.
    missed: Count,
    missed_at: Count,
    /// Source of random numbers for the choice of the next timed lookup.
    pub(crate) random: Random,
}

impl Timings {
    /// Returns the number of lookups until the next timed one. All numbers up to twice the mean are
    /// equally likely, so that the choice does not coincide with a pattern of the keys.
    pub(crate) fn draw(&self, mean: u32) -> u64 {
        1 + u64::from(self.random.next()) * (2 * u64::from(mean) - 1) / (1 << 32)
    }

    pub(crate) fn note(&self, outcome: TimedResult, hash: KeyHash, began: Duration) {
        match outcome {
            TimedResult::Frozen => self.frozen.note(now() - began),
            TimedResult::Dynamic => self.dynamic.note(now() - began),
            TimedResult::Miss => {
                self.missed.set(hash.whole().max(1));
                self.missed_at.set(began.as_nanos() as u64);
            }
        }
    }

    /// Returns true if a timed miss waits for its [insertion](Self::inserted).
    #[inline(always)]
    pub(crate) fn waits_for_insertion(&self) -> bool {
        self.missed.get() != 0
    }

    /// Records the insertion of a key, which ends a timed miss of that key.
    #[cold]
    pub(crate) fn inserted(&self, hash: KeyHash) {
        if self.missed.get() == hash.whole().max(1) {
            self.miss.note(now().saturating_sub(Duration::from_nanos(self.missed_at.get())));
        }
        self.missed.set(0); // the thread went on to something else
    }

    pub(crate) fn latencies(&self) -> Latencies {
        Latencies {
            frozen: self.frozen.sums(),
            dynamic: self.dynamic.sums(),
            miss: self.miss.sums(),
        }
    }
}

/// A counter that one thread advances and others read.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline(always)]
    pub(crate) fn add(&self, count: u64) {
        // Only the owner writes, so no read-modify-write is needed; a sum over threads may be a
        // moment late.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Adds one, and returns the new count.
    #[inline(always)]
    pub(crate) fn next(&self) -> u64 {
        let count = self.0.load(Ordering::Relaxed).wrapping_add(1); // as in `add`
        self.0.store(count, Ordering::Relaxed);
        count
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed) // see `add`
    }

    pub(crate) fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed); // see `add`
    }
}

/// Random numbers for one thread, good enough to choose requests (SplitMix64 without its last
/// step).
#[derive(Debug, Default)]
pub(crate) struct Random(Count);

impl Random {
    /// Returns the next number; all are equally likely.
    pub(crate) fn next(&self) -> u32 {
        let random = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(random);
        ((random ^ random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as u32
    }
}
