//! The lifetimes of entries: the clock, how long an entry lives, and the sweeps of those that have
//! expired.
//!
//! # Sweeps
//!
//! Maintenance of one cache: its number in their list, and when it is to be swept.
//!
//! A thread that inserts an entry that expires says so after it has come in. Most expire later than
//! something else that is in, and then that is a look at a number. A sweep forgets the number
//! before it looks at the first shard: so it either sees an entry, under the shard's lock, or the
//! inserting thread sees that the number was forgotten, and asks for a sweep anew.

use std::num::NonZeroU64;
use std::time::Duration;

use crate::clock::{Clock, LONGEST, Sweep, TICK_US, Ticks};
use crate::entry::{Head, Unused};
use crate::options::InsertOptions;
use crate::sync::{Arc, AtomicBool, AtomicU64, Ordering, Weak};
use crate::{fork, maintenance};

/// Decides when the entries of a cache expire.
pub(crate) struct Lifetimes {
    clock: Clock,
    /// An entry lives so long, unless its insertion says otherwise.
    live: Option<Duration>,
    /// An unused entry lives so long, or a load refreshes it so long before its end, unless its
    /// insertion says otherwise.
    unused: Option<Unused<Duration>>,
    /// Entries can expire, so that a thread has to sweep them.
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

    /// Returns whether any entry can expire.
    pub(crate) fn can_expire(&self) -> bool {
        // Set before the caller could know of an entry that expires.
        self.can_expire.load(Ordering::Relaxed)
    }

    /// Returns whether an entry whose expiry is set is still to be had; notes its use if so.
    #[cold]
    pub(crate) fn is_alive(&self, expiry: &Head) -> bool {
        let now = self.clock.now();
        let alive = !expiry.has_expired(now);
        if alive && expiry.goes_idle() {
            expiry.used(self.clock.used_in(now));
        }
        alive
    }

    /// Returns the expiry of an entry made now with these options, if it expires, and the time of
    /// the sweep for it.
    #[inline(always)]
    pub(crate) fn expiry(
        &self,
        cache: &Arc<impl Sweep + 'static>,
        options: &InsertOptions,
    ) -> Option<(Head, Option<NonZeroU64>)> {
        if self.upkeep.is_kept() && maintenance::is_alone() {
            self.sweep_without_threads(cache);
        }
        let (live, unused) = (options.live.or(self.live), options.unused.or(self.unused));
        let expires = live.is_some() || matches!(unused, Some(Unused::Expires(_)));
        if expires { self.expiry_of(cache, live, unused) } else { None }
    }

    /// Has the library's threads look after the cache from now on, if there are any or one can be
    /// started.
    pub(crate) fn keep_house(
        &self,
        cache: &Arc<impl Sweep + 'static>,
        ticks: bool,
    ) -> std::io::Result<()> {
        self.upkeep.keep(as_sweep(cache), ticks);
        maintenance::start()
    }

    /// Does what is due, where the library has no thread for that and still cannot start one.
    #[cold]
    fn sweep_without_threads(&self, cache: &Arc<impl Sweep + 'static>) {
        if maintenance::start().is_err() && self.upkeep.is_due(Clock::system_us()) {
            cache.sweep();
        }
    }

    /// When an entry expires that does, and not for ever. Starts maintenance with the first.
    #[cold]
    fn expiry_of(
        &self,
        cache: &Arc<impl Sweep + 'static>,
        live: Option<Duration>,
        unused: Option<Unused<Duration>>,
    ) -> Option<(Head, Option<NonZeroU64>)> {
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
        Some((Head::new(Ticks(next), live, unused), due.filter(|_| !is_manual)))
    }
}

/// The times of an entry in ticks. Those beyond the [longest](LONGEST) that can be told are for
/// ever, which is none.
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

/// Between two sweeps of a cache.
const PAUSE_US: u64 = 1_000_000;
/// No sweep is asked for.
const NEVER: u64 = u64::MAX;

/// Times are those of the system's clock, in microseconds.
#[derive(Debug)]
pub(crate) struct Upkeep {
    /// In the list; 0 when it is not there.
    number: AtomicU64,
    /// When the next sweep is.
    sweep_at: AtomicU64,
    /// Before that there is none, as one has just been.
    pause_to: AtomicU64,
    /// Requests of threads that the last tick has seen.
    requests_seen: AtomicU64,
    /// True if something that left waits to be freed, for which the library's threads come next
    /// unless it is time to sweep.
    reclaims: AtomicBool,
}

impl Upkeep {
    /// Of a cache that is not in the list.
    pub(crate) fn new() -> Self {
        Self {
            number: AtomicU64::new(0),
            sweep_at: AtomicU64::new(NEVER),
            pause_to: AtomicU64::new(0),
            requests_seen: AtomicU64::new(0),
            reclaims: AtomicBool::new(false),
        }
    }

    /// Returns whether it is in the list.
    #[inline(always)]
    pub(crate) fn is_kept(&self) -> bool {
        self.number.load(Ordering::Relaxed) != 0 // only ever becomes so
    }

    /// Puts the cache into the list.
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

    /// Takes it out of the list, for the end.
    pub(crate) fn forget(&self) {
        let number = self.number.swap(0, Ordering::Relaxed); // nobody else is left
        if number != 0 {
            maintenance::forget(number);
        }
    }

    /// Is dropped when an entry has come in that can expire at a time, even if a listener panics
    /// then.
    #[inline]
    pub(crate) fn asks(&self, at: NonZeroU64) -> Asks<'_> {
        Asks(self, at)
    }

    /// An entry has come in that can expire at a time.
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

    /// Returns whether threads have made requests since the last tick.
    pub(crate) fn sees_more(&self, requests: u64) -> bool {
        // a number that only ticks look at
        self.requests_seen.swap(requests, Ordering::Relaxed) != requests
    }

    /// Returns whether it is time to sweep.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        self.sweep_at.load(Ordering::Relaxed) <= now // a number
    }

    /// When the next sweep is, if one is asked for.
    pub(crate) fn next_sweep(&self) -> Option<u64> {
        Some(self.sweep_at.load(Ordering::Relaxed)).filter(|&at| at != NEVER) // a number
    }

    /// Returns whether a thread that comes to the cache is to sweep it, or only to free what waits.
    pub(crate) fn is_to_sweep(&self, now: u64) -> bool {
        // A mark that only such threads look at. A child of a process that forked during a sweep
        // finds it cleared, and so sweeps.
        !self.reclaims.swap(false, Ordering::Relaxed) || self.is_due(now)
    }

    /// Something that left still waits to be freed, as guards keep it. Says when to look again.
    pub(crate) fn reclaim_again(&self, now: u64) -> u64 {
        self.reclaims.store(true, Ordering::Relaxed); // as above
        now + PAUSE_US
    }

    /// A sweep begins.
    pub(crate) fn begin_sweep(&self, now: u64) {
        self.pause_to.store(now + PAUSE_US, Ordering::Relaxed); // as in `expires_at`
        self.sweep_at.store(NEVER, Ordering::Relaxed); // as above
    }

    /// A sweep has ended, and something is left that expires at a time.
    pub(crate) fn end_sweep(&self, at: u64) {
        let at = at.max(self.pause_to.load(Ordering::Relaxed)); // as in `expires_at`
        self.sweep_at.fetch_min(at, Ordering::Relaxed); // as above
    }
}

/// Reports, when dropped, an entry that can expire at a time.
pub(crate) struct Asks<'a>(&'a Upkeep, NonZeroU64);

impl Drop for Asks<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.expires_at(self.1);
    }
}
