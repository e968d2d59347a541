//! A key with its value, as it lies in memory, and when it expires.

use crate::clock::{Clock, Ticks};
use crate::sync::{AtomicU32, Ordering};

/// When an entry expires: 16 bytes with the slot, beside the key, so that a hit that compares the
/// key has it.
#[derive(Debug)]
pub(crate) struct Expiry {
    /// When it expires if it is not used again; 0 is never.
    next: AtomicU32,
    /// When it expires even if it is; 0 is never.
    last: u32,
    /// Tells how long it may go unused; 0 is for ever. With [`AHEAD`], tells how long before `last`
    /// a load refreshes it, and it may go unused for ever.
    idle: u32,
}

/// Of a span, none of which is so long: one before the end.
const AHEAD: u32 = 1 << 31;

impl Expiry {
    /// Of an entry that does not expire.
    pub(crate) fn never() -> Self {
        Self { next: AtomicU32::new(0), last: 0, idle: 0 }
    }

    /// Of an entry made now.
    pub(crate) fn new(now: Ticks, live: Option<Ticks>, unused: Option<Unused<Ticks>>) -> Self {
        let last = live.map_or(0, |live| now.after(live));
        let idle = match unused {
            None => 0,
            Some(Unused::Expires(span)) => span.0,
            Some(Unused::Refreshes(span)) => span.0 | AHEAD,
        };
        let expiry = Self { next: AtomicU32::new(last), last, idle };
        expiry.used(now);
        expiry
    }

    /// Returns whether there is anything to look at: false for most caches, and then no clock is.
    #[inline(always)]
    pub(crate) fn is_set(&self) -> bool {
        // only ever moves on; a time seen late is a moment earlier
        self.next.load(Ordering::Relaxed) != 0
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
        match self.next.load(Ordering::Relaxed) {
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
        let next = self.next.load(Ordering::Relaxed); // as in `is_set`
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
        if self.next.load(Ordering::Relaxed) != next {
            self.next.store(next, Ordering::Relaxed); // two uses at once differ by a tick at most
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

/// Of an entry's slot: it is frozen.
const FROZEN: u32 = 1 << 31;

/// An entry. It does not change once readers can see it, but for `expiry` and whether it is frozen.
#[derive(Debug)]
#[repr(C)] // what every hit reads comes first, in one line more often than not
pub(crate) struct Entry<K, V> {
    slot: AtomicU32,
    pub(crate) expiry: Expiry,
    pub(crate) key: K,
    pub(crate) value: V,
}

impl<K, V> Entry<K, V> {
    /// An entry that is in no cache.
    pub(crate) fn alone(key: K, value: V) -> Self {
        Self { slot: AtomicU32::new(u32::MAX), expiry: Expiry::never(), key, value }
    }

    /// Writes the slot of an entry that is being made.
    ///
    /// # Safety
    /// The place may be written.
    pub(crate) unsafe fn settle(entry: *mut Self, slot: u32) {
        // SAFETY: the caller says so.
        unsafe { (&raw mut (*entry).slot).write(AtomicU32::new(slot)) };
    }

    /// Its number in the policy's order, below 2³¹.
    #[inline(always)]
    pub(crate) fn slot(&self) -> u32 {
        self.slot.load(Ordering::Relaxed) & !FROZEN // it stays the same while the entry is in
    }

    /// Its number in the policy's order, unless it is frozen: then hits are of no interest to the
    /// policy.
    #[inline(always)]
    pub(crate) fn slot_unless_frozen(&self) -> Option<u32> {
        let slot = self.slot.load(Ordering::Relaxed); // a hit at the same time may be noted or not
        (slot & FROZEN == 0).then_some(slot)
    }

    /// For the owner.
    pub(crate) fn set_frozen(&self, frozen: bool) {
        let slot = self.slot();
        self.slot.store(if frozen { slot | FROZEN } else { slot }, Ordering::Relaxed); // as above
    }
}
