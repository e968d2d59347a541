//! Lifetimes of entries: the clock, the expiry of an entry, and the sweeps that remove expired
//! ones.
//!
//! A thread that inserts an expiring entry requests a sweep afterwards. Most entries expire later
//! than another one in the cache; then this only reads the time of the next sweep. A sweep resets
//! that time before it visits the first shard. So either the sweep sees the entry under the shard's
//! lock, or the inserting thread sees the reset and requests another sweep.

use std::num::NonZeroU64;
use std::time::Duration;

use crate::clock::{Clock, LONGEST, Sweep, TICK_US, Ticks};
use crate::entry::{Expiry, Head};
use crate::options::InsertOptions;
use crate::renewal::{Renewal, Unused};
use crate::sync::{Arc, AtomicBool, AtomicU64, Ordering, Weak};
use crate::{fork, maintenance};

/// The rules by which the entries of a cache expire, and the schedule of its sweeps.
pub(crate) struct Lifetimes {
    clock: Clock,
    /// Default time to live of an entry; options of the insertion take precedence.
    live: Option<Duration>,
    /// Default time to idle or refresh time of an entry; options of the insertion take precedence.
    unused: Option<Unused<Duration>>,
    /// True once an entry can expire, so that a thread has to sweep the cache.
    can_expire: AtomicBool,
    /// The cache's schedule with the maintenance threads.
    upkeep: Upkeep,
}

impl Lifetimes {
    pub(crate) fn new(
        clock: Clock,
        live: Option<Duration>,
        unused: Option<Unused<Duration>>,
    ) -> Self {
        Self { clock, live, unused, can_expire: AtomicBool::new(false), upkeep: Upkeep::new() }
    }

    #[inline(always)]
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    #[inline(always)]
    pub(crate) fn upkeep(&self) -> &Upkeep {
        &self.upkeep
    }

    /// Returns true if any entry can expire.
    pub(crate) fn can_expire(&self) -> bool {
        // Set before the caller could know of an entry that expires.
        self.can_expire.load(Ordering::Relaxed)
    }

    /// Returns true if an entry that can expire has not done so, and then records its use.
    #[cold]
    pub(crate) fn is_alive(&self, head: &Head, renewal: Renewal) -> bool {
        let now = self.clock.now();
        let alive = !head.has_expired(now);
        if alive && renewal.goes_idle() {
            head.used(renewal, self.clock.used_in(now));
        }
        alive
    }

    /// Returns the times of an entry inserted now with these options, and the time of the sweep for
    /// it. Returns `None` if the entry does not expire.
    #[inline(always)]
    pub(crate) fn expiry(
        &self,
        cache: &Arc<impl Sweep + 'static>,
        options: &InsertOptions,
    ) -> Option<(Expiry, Option<NonZeroU64>)> {
        if self.upkeep.is_kept() && maintenance::is_alone() {
            self.sweep_without_threads(cache);
        }
        let (live, unused) = (options.live.or(self.live), options.unused.or(self.unused));
        let expires = live.is_some() || matches!(unused, Some(Unused::Expires(_)));
        if expires { self.expiry_of(cache, live, unused) } else { None }
    }

    /// Registers the cache with the maintenance threads, and starts one if none runs.
    pub(crate) fn keep_house(
        &self,
        cache: &Arc<impl Sweep + 'static>,
        ticks: bool,
    ) -> std::io::Result<()> {
        self.upkeep.keep(as_sweep(cache), ticks);
        maintenance::start()
    }

    /// Sweeps the cache if a sweep is due and no maintenance thread can be started.
    #[cold]
    fn sweep_without_threads(&self, cache: &Arc<impl Sweep + 'static>) {
        if maintenance::start().is_err() && self.upkeep.is_due(Clock::system_us()) {
            cache.sweep();
        }
    }

    /// Returns the times of an entry with an expiry, and the time of the sweep for it; `None` if it
    /// stays for ever. Registers the cache for maintenance at the first such entry.
    #[cold]
    fn expiry_of(
        &self,
        cache: &Arc<impl Sweep + 'static>,
        live: Option<Duration>,
        unused: Option<Unused<Duration>>,
    ) -> Option<(Expiry, Option<NonZeroU64>)> {
        let (live, unused) = in_ticks(live, unused);
        let idle = unused.and_then(|unused| match unused {
            Unused::Expires(idle) => Some(idle),
            Unused::Refreshes(_) => None,
        });
        let Ticks(span) = live.into_iter().chain(idle).min()?;
        let is_manual = self.clock.is_manual();
        if !self.can_expire.swap(true, Ordering::Relaxed) {
            if is_manual {
                self.clock.sweeps(as_sweep(cache));
            } else if !self.upkeep.is_kept() {
                let _ = self.keep_house(cache, false); // else those who insert see to it
            }
        }
        let next = self.clock.micros().div_ceil(TICK_US);
        let due = NonZeroU64::new((next + span) * TICK_US);
        Some((Expiry::new(Ticks(next), live, unused), due.filter(|_| !is_manual)))
    }
}

/// Converts the times of an entry to ticks. Times beyond [`LONGEST`] mean for ever, and become
/// `None`.
fn in_ticks(
    live: Option<Duration>,
    unused: Option<Unused<Duration>>,
) -> (Option<Ticks>, Option<Unused<Ticks>>) {
    let told = |span: Duration| Some(Ticks::at_least(span)).filter(|ticks| *ticks <= LONGEST);
    let lives = live.and_then(told);
    match (live, unused) {
        (Some(live), Some(Unused::Refreshes(ahead))) if lives.is_none() => {
            // It is refreshed as soon as was said, though it may not live as long.
            let fresh = told(live.saturating_sub(ahead));
            let stale = fresh.map(|fresh| Unused::Refreshes(Ticks(LONGEST.0 - fresh.0)));
            (fresh.map(|_| LONGEST), stale)
        }
        (_, Some(Unused::Refreshes(ahead))) => {
            (lives, Some(Unused::Refreshes(Ticks::at_least(ahead).min(LONGEST))))
        }
        (_, Some(Unused::Expires(idle))) => (lives, told(idle).map(Unused::Expires)),
        (_, None) => (lives, None),
    }
}

fn as_sweep(cache: &Arc<impl Sweep + 'static>) -> Weak<dyn Sweep> {
    let cache: Weak<_> = Arc::downgrade(cache);
    cache
}

/// Shortest time between two sweeps of a cache, in microseconds.
const PAUSE_US: u64 = 1_000_000;
/// Value of [`Upkeep::sweep_at`] while no sweep is requested.
const NEVER: u64 = u64::MAX;

/// A cache's schedule of maintenance. Times are microseconds of the system's clock.
#[derive(Debug)]
pub(crate) struct Upkeep {
    /// Number of the cache in the list of the maintenance threads; 0 while it is not registered.
    number: AtomicU64,
    /// Time of the next sweep, or [`NEVER`].
    sweep_at: AtomicU64,
    /// Earliest time of the next sweep, a pause after the last one.
    pause_to: AtomicU64,
    /// Requests of threads counted by the last tick.
    requests_seen: AtomicU64,
    /// True if removed entries wait to be freed. The maintenance threads then only free them at
    /// their next visit, unless a sweep is due.
    reclaims: AtomicBool,
}

impl Upkeep {
    /// Creates the schedule of a cache that is not registered.
    pub(crate) fn new() -> Self {
        Self {
            number: AtomicU64::new(0),
            sweep_at: AtomicU64::new(NEVER),
            pause_to: AtomicU64::new(0),
            requests_seen: AtomicU64::new(0),
            reclaims: AtomicBool::new(false),
        }
    }

    /// Returns true if the cache is registered with the maintenance threads.
    #[inline(always)]
    pub(crate) fn is_kept(&self) -> bool {
        self.number.load(Ordering::Relaxed) != 0 // only ever becomes so
    }

    /// Registers the cache with the maintenance threads.
    pub(crate) fn keep(&self, cache: Weak<dyn Sweep>, ticks: bool) {
        fork::prepare();
        let number = maintenance::register(cache, ticks);
        // Sequentially consistent, here and in `ask`: a thread that asks sees the number, or its
        // request is seen.
        self.number.store(number, Ordering::SeqCst);
        let at = self.sweep_at.load(Ordering::SeqCst); // as above
        if at != NEVER {
            maintenance::sweep_at(number, at);
        }
    }

    /// Removes the cache from the maintenance threads when it is dropped.
    pub(crate) fn forget(&self) {
        let number = self.number.swap(0, Ordering::Relaxed); // nobody else is left
        if number != 0 {
            maintenance::forget(number);
        }
    }

    /// Returns a value that requests a sweep when it is dropped, even if a listener panics. `at` is
    /// the earliest expiry of the inserted entry.
    #[inline]
    pub(crate) fn asks(&self, at: NonZeroU64) -> Asks<'_> {
        Asks(self, at)
    }

    /// Requests a sweep for an inserted entry that can expire at a time.
    #[inline]
    fn expires_at(&self, at: NonZeroU64) {
        // Relaxed: numbers. A sweep resets them before it takes a shard's lock, so a thread with
        // the lock afterwards sees that.
        let at = at.get().max(self.pause_to.load(Ordering::Relaxed));
        if at < self.sweep_at.load(Ordering::Relaxed) {
            self.ask(at);
        }
    }

    #[cold]
    fn ask(&self, at: u64) {
        if self.sweep_at.fetch_min(at, Ordering::SeqCst) > at {
            let number = self.number.load(Ordering::SeqCst); // as in `keep`
            if number != 0 {
                maintenance::sweep_at(number, at);
            }
        }
    }

    /// Returns true if threads have made requests since the last tick.
    pub(crate) fn sees_more(&self, requests: u64) -> bool {
        // a number that only ticks look at
        self.requests_seen.swap(requests, Ordering::Relaxed) != requests
    }

    /// Returns true if a sweep is due.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        self.sweep_at.load(Ordering::Relaxed) <= now // a number
    }

    /// Returns the time of the next sweep; `None` if none is requested.
    pub(crate) fn next_sweep(&self) -> Option<u64> {
        Some(self.sweep_at.load(Ordering::Relaxed)).filter(|&at| at != NEVER) // a number
    }

    /// Returns true if a maintenance thread is to sweep the cache, false if it is only to free
    /// removed entries.
    pub(crate) fn is_to_sweep(&self, now: u64) -> bool {
        // A mark that only such threads look at. A child of a process that forked during a sweep
        // finds it cleared, and so sweeps.
        !self.reclaims.swap(false, Ordering::Relaxed) || self.is_due(now)
    }

    /// Records that guards still keep removed entries, and returns the time of the next attempt to
    /// free them.
    pub(crate) fn reclaim_again(&self, now: u64) -> u64 {
        self.reclaims.store(true, Ordering::Relaxed); // as above
        now + PAUSE_US
    }

    /// Resets the time of the next sweep before a sweep begins.
    pub(crate) fn begin_sweep(&self, now: u64) {
        self.pause_to.store(now + PAUSE_US, Ordering::Relaxed); // as in `expires_at`
        self.sweep_at.store(NEVER, Ordering::Relaxed); // as above
    }

    /// Schedules the next sweep after one has ended and left an entry that expires at a time.
    pub(crate) fn end_sweep(&self, at: u64) {
        let at = at.max(self.pause_to.load(Ordering::Relaxed)); // as in `expires_at`
        self.sweep_at.fetch_min(at, Ordering::Relaxed); // as above
    }
}

/// Requests a sweep when dropped, for an inserted entry that can expire at the given time.
pub(crate) struct Asks<'a>(&'a Upkeep, NonZeroU64);

impl Drop for Asks<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.expires_at(self.1);
    }
}
