//! The renewal of an entry: a time to idle, which each use begins anew, or a refresh time.

use crate::clock::{Moment, Span, Ticks};

/// The second time of an entry: a time to idle or a refresh time. An entry has at most one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unused<T> {
    /// The entry expires after going unused for this time.
    Expires(T),
    /// A load refreshes the entry from this time before its end.
    Refreshes(T),
}

/// The effect of use and of loads on an entry's expiry. Most entries have none: they never expire,
/// or at a fixed time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Renewal {
    /// Latest expiry of the entry, however often it is used.
    last: Moment,
    /// The [`Span`] for which the entry may go unused; none means for ever. With [`AHEAD`] set, the
    /// span before its expiry in which a load refreshes the entry, which then may go unused for
    /// ever.
    idle: u32,
}

/// Mark in [`Renewal::idle`] that the span is a refresh time before the end. No span is long enough
/// to set this bit.
const AHEAD: u32 = 1 << 31;

impl Renewal {
    /// The renewal of an entry whose expiry stays as it is.
    pub(crate) const NONE: Self = Self { last: Moment::NEVER, idle: 0 };

    /// Creates the renewal of an entry that expires at `last` if it does not go idle before.
    pub(crate) fn new(last: Moment, unused: Option<Unused<Ticks>>) -> Self {
        match unused {
            None => Self::NONE,
            Some(Unused::Expires(span)) => Self { last, idle: Span::at_least(span).bits() },
            Some(Unused::Refreshes(span)) => {
                Self { last: Moment::NEVER, idle: Span::at_most(span).bits() | AHEAD }
            }
        }
    }

    /// Returns true if the entry expires when it goes unused for a time.
    pub(crate) fn goes_idle(self) -> bool {
        self.idle != 0 && self.idle & AHEAD == 0
    }

    /// Returns the time to idle or the refresh time.
    fn span(self) -> Span {
        Span::of_bits(self.idle & !AHEAD)
    }

    /// Returns the expiry of an entry that goes idle, after a use at `now`.
    pub(crate) fn after_use(self, now: Ticks) -> Moment {
        debug_assert!(self.goes_idle());
        Moment::after(now, self.span().ticks()).or_earlier(self.last, now)
    }

    /// Returns true if a load should refresh an entry now that expires in `left` ticks.
    pub(crate) fn is_due(self, left: Option<u64>) -> bool {
        self.idle & AHEAD != 0 && left.is_some_and(|left| left <= self.span().ticks().0)
    }

    /// Returns the ticks until the entry expires even if it is used, and its time to idle or
    /// refresh time. `left` is the time until it expires without further use.
    #[cfg(feature = "serde")]
    pub(crate) fn spans(self, now: Ticks, left: Option<u64>) -> (Option<u64>, Option<Unused<u64>>) {
        let Ticks(span) = self.span().ticks();
        match self.idle {
            0 => (left, None),
            ahead if ahead & AHEAD != 0 => (left, Some(Unused::Refreshes(span))),
            _ => (self.last.left(now), Some(Unused::Expires(span))),
        }
    }

    /// Returns the renewal as [`Renewals`](crate::index::Renewals) store it; 0 is none.
    pub(crate) fn bits(self) -> u64 {
        u64::from(self.last.0) << 32 | u64::from(self.idle)
    }

    /// Creates the renewal from its [`bits`](Self::bits).
    pub(crate) fn of_bits(bits: u64) -> Self {
        Self { last: Moment((bits >> 32) as u32), idle: bits as u32 }
    }
}
