//! A key with its value, as it lies in memory, and when it expires.

use crate::clock::{Clock, Ticks};
use crate::sync::{AtomicU64, Ordering};

/// The slot of an entry, whether it is frozen, and when it expires: 16 bytes beside the key, so
/// that a hit that compares the key has them.
#[derive(Debug)]
pub(crate) struct Head {
    /// The lower half is a [`State`]'s. The upper one tells when the entry expires if it is not
    /// used again; 0 is never.
    state: AtomicU64,
    /// When it expires even if it is; 0 is never.
    last: u32,
    /// Tells how long it may go unused; 0 is for ever. With [`AHEAD`], tells how long before `last`
    /// a load refreshes it, and it may go unused for ever.
    idle: u32,
}

/// Of a span, none of which is so long: one before the end.
const AHEAD: u32 = 1 << 31;
/// Of a state: the entry is frozen.
const FROZEN: u64 = 1 << 31;
/// The position of the time in a state.
const NEXT_SHIFT: u32 = 32;

/// The slot of an entry, whether it is frozen, and whether it expires, at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct State(u64);

impl State {
    /// The entry's number in the policy's order, below 2³¹.
    #[inline(always)]
    pub(crate) fn slot(self) -> u32 {
        (self.0 & (FROZEN - 1)) as u32
    }

    /// Returns whether the entry is neither frozen nor expires: most are such.
    #[inline(always)]
    pub(crate) fn is_plain(self) -> bool {
        self.0 < FROZEN
    }

    pub(crate) fn is_frozen(self) -> bool {
        self.0 & FROZEN != 0
    }

    /// Returns when the entry expires if it is not used again; 0 is never.
    #[inline(always)]
    fn next(self) -> u32 {
        (self.0 >> NEXT_SHIFT) as u32
    }
}

impl Head {
    /// Of an entry that does not expire.
    pub(crate) fn never() -> Self {
        Self { state: AtomicU64::new(0), last: 0, idle: 0 }
    }

    /// Of an entry made now.
    pub(crate) fn new(now: Ticks, live: Option<Ticks>, unused: Option<Unused<Ticks>>) -> Self {
        let last = live.map_or(0, |live| now.after(live));
        let idle = match unused {
            None => 0,
            Some(Unused::Expires(span)) => span.0,
            Some(Unused::Refreshes(span)) => span.0 | AHEAD,
        };
        let state = AtomicU64::new(u64::from(last) << NEXT_SHIFT);
        let head = Self { state, last, idle };
        head.used(now);
        head
    }

    /// The same for an entry that is to have a slot, or `u32::MAX` for one that has none: then it
    /// is as frozen.
    #[inline(always)]
    pub(crate) fn at(&self, slot: u32) -> Self {
        let next = u64::from(self.state().next()) << NEXT_SHIFT;
        Self { state: AtomicU64::new(u64::from(slot) | next), last: self.last, idle: self.idle }
    }

    #[inline(always)]
    pub(crate) fn state(&self) -> State {
        // The slot stays the same while the entry is in, and the time only moves on: seen late it
        // is a moment earlier. A hit while the entry is frozen may be noted or not.
        State(self.state.load(Ordering::Relaxed))
    }

    /// For the owner.
    pub(crate) fn set_frozen(&self, frozen: bool) {
        if frozen {
            self.state.fetch_or(FROZEN, Ordering::Relaxed); // as above
        } else {
            self.state.fetch_and(!FROZEN, Ordering::Relaxed); // as above
        }
    }

    /// Returns whether there is anything to look at: false for most caches, and then no clock is.
    #[inline(always)]
    pub(crate) fn is_set(&self) -> bool {
        self.state().next() != 0
    }

    /// Returns whether it expires when it is not used.
    pub(crate) fn goes_idle(&self) -> bool {
        self.idle != 0 && self.idle & AHEAD == 0
    }

    /// Returns whether a load is to refresh it.
    pub(crate) fn is_due(&self, clock: &Clock) -> bool {
        self.idle & AHEAD != 0
            && self.last != 0
            && clock.now().is_past(self.last.wrapping_sub(self.idle & !AHEAD))
    }

    #[inline]
    pub(crate) fn has_expired(&self, now: Ticks) -> bool {
        match self.state().next() {
            0 => false,
            next => now.is_past(next),
        }
    }

    /// [`has_expired`](Self::has_expired) now. Looks at the time only if that matters.
    pub(crate) fn is_over(&self, clock: &Clock) -> bool {
        self.is_set() && self.has_expired(clock.now())
    }

    /// Returns the ticks until it expires without further use.
    pub(crate) fn left(&self, now: Ticks) -> Option<u32> {
        let next = self.state().next();
        (next != 0).then(|| next.wrapping_sub(now.0))
    }

    /// Returns the ticks until it expires even if it is used, and what else it was made with.
    #[cfg(feature = "serde")]
    pub(crate) fn spans(&self, now: Ticks) -> (Option<u32>, Option<Unused<u32>>) {
        let live = (self.last != 0).then(|| self.last.wrapping_sub(now.0));
        let unused = match self.idle {
            0 => None,
            ahead if ahead & AHEAD != 0 => Some(Unused::Refreshes(ahead & !AHEAD)),
            idle => Some(Unused::Expires(idle)),
        };
        (live, unused)
    }

    /// Notes a use. Writes at most once a tick.
    #[inline]
    pub(crate) fn used(&self, now: Ticks) {
        if !self.goes_idle() {
            return;
        }
        let unused = now.after(Ticks(self.idle));
        let next =
            if self.last != 0 && Ticks(unused).is_past(self.last) { self.last } else { unused };
        let State(before) = self.state();
        if State(before).next() != next {
            let after = u64::from(next) << NEXT_SHIFT | u64::from(before as u32);
            // Relaxed: as in `state`. Of two uses at once, which differ by a tick at most, one is
            // noted. An entry that goes idle is not frozen.
            let (relaxed, failed) = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = self.state.compare_exchange(before, after, relaxed, failed);
        }
    }
}

/// Tells what a span of time means for an entry. An entry has one of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unused<T> {
    /// It expires when it was not used for so long.
    Expires(T),
    /// A load refreshes it from so long before its end.
    Refreshes(T),
}

impl<T> Unused<T> {
    pub(crate) fn map<U>(self, to: impl FnOnce(T) -> U) -> Unused<U> {
        match self {
            Self::Expires(span) => Unused::Expires(to(span)),
            Self::Refreshes(span) => Unused::Refreshes(to(span)),
        }
    }
}

/// An entry. It does not change once readers can see it, but for its head.
#[derive(Debug)]
#[repr(C)] // what every hit reads comes first, in one line more often than not
pub(crate) struct Entry<K, V> {
    pub(crate) head: Head,
    pub(crate) key: K,
    pub(crate) value: V,
}

impl<K, V> Entry<K, V> {
    /// An entry that is in no cache.
    pub(crate) fn alone(key: K, value: V) -> Self {
        Self { head: Head::never().at(u32::MAX), key, value }
    }

    /// Its number in the policy's order, below 2³¹.
    #[inline(always)]
    pub(crate) fn slot(&self) -> u32 {
        self.head.state().slot()
    }
}
