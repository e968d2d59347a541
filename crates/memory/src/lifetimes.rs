//! The lifetimes of entries: the clock, how long an entry lives, and the sweeps of those that have
//! expired.

use std::num::NonZeroU64;
use std::time::Duration;

use crate::clock::{Clock, TICK_US, Ticks};
use crate::entry::{Head, Unused};
use crate::maintenance;
use crate::moment::LONGEST;
use crate::options::InsertOptions;
use crate::sweep::Sweep;
use crate::sync::{Arc, AtomicBool, Ordering, Weak};
use crate::upkeep::Upkeep;

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
    /// Tells what the library's threads do for the cache.
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
