//! A key with its value, as it lies in memory, and when it expires.

use std::mem::ManuallyDrop;
use std::num::NonZeroU64;

use crate::clock::{Clock, Moment, Span, Ticks};
use crate::hazard::Cell;
use crate::index::KeyHash;
use crate::sync::{AtomicU64, Ordering};

/// The slot of an entry, whether it is frozen, and when it expires: 16 bytes beside the key, so
/// that a hit that compares the key has them.
#[derive(Debug)]
pub(crate) struct Head {
    /// The lower half is a [`State`]'s. The upper one is the [`Moment`] at which the entry expires
    /// if it is not used again.
    state: AtomicU64,
    /// When it expires even if it is.
    last: Moment,
    /// A [`Span`]: how long it may go unused; none is for ever. With [`AHEAD`], how long before
    /// `last` a load refreshes it, and it may go unused for ever.
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

    /// Returns when the entry expires if it is not used again.
    #[inline(always)]
    fn next(self) -> Moment {
        Moment((self.0 >> NEXT_SHIFT) as u32)
    }
}

impl Head {
    /// Of an entry that does not expire.
    pub(crate) fn never() -> Self {
        Self { state: AtomicU64::new(0), last: Moment::NEVER, idle: 0 }
    }

    /// Of an entry made now. Spans are at most the [longest](crate::clock::LONGEST) ones.
    pub(crate) fn new(now: Ticks, live: Option<Ticks>, unused: Option<Unused<Ticks>>) -> Self {
        let last = live.map_or(Moment::NEVER, |live| Moment::after(now, live));
        let idle = match unused {
            None => Span::NONE.bits(),
            Some(Unused::Expires(span)) => Span::at_least(span).bits(),
            Some(Unused::Refreshes(span)) => Span::at_most(span).bits() | AHEAD,
        };
        let state = AtomicU64::new(u64::from(last.0) << NEXT_SHIFT);
        let head = Self { state, last, idle };
        head.used(now);
        head
    }

    /// Returns a head with the same times for a slot, or `u32::MAX` for an entry without one: then
    /// it is as frozen.
    #[inline(always)]
    pub(crate) fn at(&self, slot: u32) -> Self {
        let next = u64::from(self.state().next().0) << NEXT_SHIFT;
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
        self.state().next().is_set()
    }

    /// Returns whether it expires when it is not used.
    pub(crate) fn goes_idle(&self) -> bool {
        self.idle != 0 && self.idle & AHEAD == 0
    }

    /// The span of time that `idle` tells.
    fn span(&self) -> Span {
        Span::of_bits(self.idle & !AHEAD)
    }

    /// Returns whether a load is to refresh it.
    pub(crate) fn is_due(&self, clock: &Clock) -> bool {
        self.idle & AHEAD != 0
            && self.last.left(clock.now()).is_some_and(|left| left <= self.span().ticks().0)
    }

    #[inline]
    pub(crate) fn has_expired(&self, now: Ticks) -> bool {
        self.state().next().has_come(now)
    }

    /// [`has_expired`](Self::has_expired) now. Looks at the time only if that matters.
    pub(crate) fn is_over(&self, clock: &Clock) -> bool {
        self.is_set() && self.has_expired(clock.now())
    }

    /// Returns the ticks until it expires without further use; none if it has.
    pub(crate) fn left(&self, now: Ticks) -> Option<u64> {
        self.state().next().left(now)
    }

    /// Returns the ticks until it expires even if it is used, and what else it was made with.
    #[cfg(feature = "serde")]
    pub(crate) fn spans(&self, now: Ticks) -> (Option<u64>, Option<Unused<u64>>) {
        let Ticks(span) = self.span().ticks();
        let unused = match self.idle {
            0 => None,
            ahead if ahead & AHEAD != 0 => Some(Unused::Refreshes(span)),
            _ => Some(Unused::Expires(span)),
        };
        (self.last.left(now), unused)
    }

    /// Notes a use. Writes at most once a tick.
    #[inline]
    pub(crate) fn used(&self, now: Ticks) {
        if !self.goes_idle() {
            return;
        }
        let next = Moment::after(now, self.span().ticks()).or_earlier(self.last, now);
        let State(before) = self.state();
        if State(before).next() != next {
            let after = u64::from(next.0) << NEXT_SHIFT | u64::from(before as u32);
            // Relaxed: as in `state`. Of two uses at once, which differ by a tick at most, one is
            // noted. An entry that goes idle is not frozen.
            let (relaxed, failed) = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = self.state.compare_exchange(before, after, relaxed, failed);
        }
    }
}

/// The meaning of an entry's second span of time. An entry has one of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unused<T> {
    /// It expires when it was not used for so long.
    Expires(T),
    /// A load refreshes it from so long before its end.
    Refreshes(T),
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

/// A key and a value on their way in. They stay where the caller has them until they have their
/// place: values can be large. If they get none, they are dropped with this: by a caller that has
/// no lock then, as they are the user's.
#[derive(Debug)]
pub(crate) struct Unplaced<'a, K, V> {
    pub(crate) hash: KeyHash,
    key: &'a mut ManuallyDrop<K>,
    value: &'a mut ManuallyDrop<V>,
    is_placed: bool,
}

impl<'a, K, V> Unplaced<'a, K, V> {
    /// Takes over key and value; the caller neither uses nor drops them any more.
    #[inline(always)]
    pub(crate) fn new(
        hash: KeyHash,
        key: &'a mut ManuallyDrop<K>,
        value: &'a mut ManuallyDrop<V>,
    ) -> Self {
        Self { hash, key, value, is_placed: false }
    }

    #[inline(always)]
    pub(crate) fn key(&self) -> &K {
        self.key
    }

    pub(crate) fn value(&self) -> &V {
        self.value
    }

    /// Moves into memory for an entry, which gets a head.
    ///
    /// # Safety
    /// It may be written and holds no entry. Called once.
    #[inline(always)]
    pub(crate) unsafe fn write(&mut self, head: Head, entry: *mut Entry<K, V>) {
        self.is_placed = true;
        // SAFETY: the memory is the caller's to write. Key and value move there in one copy and
        // are not dropped here: they are in `ManuallyDrop`, and `is_placed` is set.
        unsafe {
            (&raw mut (*entry).head).write(head);
            (&raw mut (*entry).key).copy_from_nonoverlapping(&raw const **self.key, 1);
            (&raw mut (*entry).value).copy_from_nonoverlapping(&raw const **self.value, 1);
        }
    }

    /// Gives key and value back to the caller, who has them where they were.
    pub(crate) fn hand_back(mut self) {
        debug_assert!(!self.is_placed, "they have moved");
        self.is_placed = true;
    }
}

impl<K, V> Drop for Unplaced<'_, K, V> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.is_placed {
            // SAFETY: taken over by `new`, and not moved out.
            unsafe {
                ManuallyDrop::drop(self.key);
                ManuallyDrop::drop(self.value);
            }
        }
    }
}

/// An entry that is to come in. Its key and value are dropped with this if they get no place.
#[derive(Debug)]
pub(crate) struct Candidate<'a, K, V> {
    pub(crate) unplaced: Unplaced<'a, K, V>,
    pub(crate) weight: u32,
    pub(crate) expiry: Head,
    /// The earliest time at which it can expire, in microseconds of the system's clock, where a
    /// sweep is needed.
    pub(crate) due: Option<NonZeroU64>,
    pub(crate) pinned: bool,
    /// No admission is to be asked about it: one has admitted it, or it succeeds another.
    pub(crate) is_admitted: bool,
    /// Does not replace an entry that is there: that is newer.
    pub(crate) yields: bool,
    /// Is a newer value of what is there, and pinned if that is.
    pub(crate) refreshes: bool,
    /// Is filled with the address of the entry before others can see it, to keep it for the caller.
    pub(crate) guard: Option<&'a Cell>,
}

impl<'a, K, V> Candidate<'a, K, V> {
    /// Of weight 1, which never expires.
    #[inline(always)]
    pub(crate) fn new(unplaced: Unplaced<'a, K, V>) -> Self {
        Self {
            unplaced,
            weight: 1,
            expiry: Head::never(),
            due: None,
            pinned: false,
            is_admitted: false,
            yields: false,
            refreshes: false,
            guard: None,
        }
    }

    /// Gives key and value back to the caller, who has them where they were.
    pub(crate) fn hand_back(self) {
        self.unplaced.hand_back();
    }

    /// Moves into memory for an entry.
    ///
    /// # Safety
    /// It may be written and holds no entry. Called once.
    pub(crate) unsafe fn write(&mut self, slot: u32, entry: *mut Entry<K, V>) {
        // SAFETY: as the caller says.
        unsafe { self.unplaced.write(self.expiry.at(slot), entry) };
    }
}
