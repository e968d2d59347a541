//! Entries as they lie in memory: a key, a value, and a head with slot and expiry.

use std::mem::ManuallyDrop;
use std::num::NonZeroU64;

use floe_policy::Priority;

use crate::clock::{Clock, Moment, Ticks};
use crate::hazard::Cell;
use crate::index::KeyHash;
use crate::renewal::{Renewal, Unused};
use crate::sync::{AtomicU64, Ordering};

/// The slot of an entry, its frozen mark, and its expiry. The 8 bytes are next to the key, so that
/// a hit that compares the key reads them with it.
#[derive(Debug)]
pub(crate) struct Head {
    /// The bits of a [`State`] in the lower half. The upper half is the [`Moment`] at which the
    /// entry expires unless it is [renewed](crate::renewal).
    state: AtomicU64,
}

/// Bit of a [`State`] that marks a frozen entry.
const FROZEN: u64 = 1 << 31;
/// Position of the expiry in a [`State`], in bits.
const NEXT_SHIFT: u32 = 32;

/// Snapshot of an entry's slot, frozen mark and next expiry, read by one load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct State(u64);

impl State {
    /// The entry's number in the policy's order, below 2³¹.
    #[inline(always)]
    pub(crate) fn slot(self) -> u32 {
        (self.0 & (FROZEN - 1)) as u32
    }

    /// Returns true if the entry is neither frozen nor able to expire, as most are.
    #[inline(always)]
    pub(crate) fn is_plain(self) -> bool {
        self.0 < FROZEN
    }

    pub(crate) fn is_frozen(self) -> bool {
        self.0 & FROZEN != 0
    }

    /// Returns the moment at which the entry expires unless it is used again.
    #[inline(always)]
    fn next(self) -> Moment {
        Moment((self.0 >> NEXT_SHIFT) as u32)
    }
}

impl Head {
    /// Creates the head of an entry in a slot that expires at a time. `u32::MAX` stands for an
    /// entry without a slot, which then counts as frozen.
    #[inline(always)]
    pub(crate) fn new(slot: u32, next: Moment) -> Self {
        Self { state: AtomicU64::new(u64::from(slot) | u64::from(next.0) << NEXT_SHIFT) }
    }

    #[inline(always)]
    pub(crate) fn state(&self) -> State {
        // The slot stays the same while the entry is in, and the time only moves on: seen late it
        // is a moment earlier. A hit while the entry is frozen may be noted or not.
        State(self.state.load(Ordering::Relaxed))
    }

    /// Sets or clears the frozen mark. Only the owner of the entry calls this.
    pub(crate) fn set_frozen(&self, frozen: bool) {
        if frozen {
            self.state.fetch_or(FROZEN, Ordering::Relaxed); // as above
        } else {
            self.state.fetch_and(!FROZEN, Ordering::Relaxed); // as above
        }
    }

    /// Returns true if the entry can expire. Most caches have no such entries, and then never read
    /// a clock.
    #[inline(always)]
    pub(crate) fn is_set(&self) -> bool {
        self.state().next().is_set()
    }

    #[inline]
    pub(crate) fn has_expired(&self, now: Ticks) -> bool {
        self.state().next().has_come(now)
    }

    /// Returns true if the entry has expired. Reads the clock only if the entry can expire.
    pub(crate) fn is_over(&self, clock: &Clock) -> bool {
        self.is_set() && self.has_expired(clock.now())
    }

    /// Returns the ticks until the entry expires without further use; `None` if it has expired.
    pub(crate) fn left(&self, now: Ticks) -> Option<u64> {
        self.state().next().left(now)
    }

    /// Records a use of an entry that goes idle, which defers its expiry. Writes at most once a
    /// tick.
    #[inline]
    pub(crate) fn used(&self, renewal: Renewal, now: Ticks) {
        let next = renewal.after_use(now);
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

/// The times of an entry to be inserted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expiry {
    /// Time at which the entry expires unless it is renewed.
    pub(crate) next: Moment,
    pub(crate) renewal: Renewal,
}

impl Expiry {
    /// The times of an entry that does not expire.
    pub(crate) const NEVER: Self = Self { next: Moment::NEVER, renewal: Renewal::NONE };

    /// Creates the times of an entry inserted now. Spans must not exceed
    /// [`LONGEST`](crate::clock::LONGEST).
    pub(crate) fn new(now: Ticks, live: Option<Ticks>, unused: Option<Unused<Ticks>>) -> Self {
        let last = live.map_or(Moment::NEVER, |live| Moment::after(now, live));
        let renewal = Renewal::new(last, unused);
        let next = if renewal.goes_idle() { renewal.after_use(now) } else { last };
        Self { next, renewal }
    }
}

/// A key and value of the cache. Only the head changes once readers can see the entry.
#[derive(Debug)]
#[repr(C)] // what every hit reads comes first, in one line more often than not
pub(crate) struct Entry<K, V> {
    pub(crate) head: Head,
    pub(crate) key: K,
    pub(crate) value: V,
}

impl<K, V> Entry<K, V> {
    /// Creates an entry that is in no cache.
    pub(crate) fn alone(key: K, value: V) -> Self {
        Self { head: Head::new(u32::MAX, Moment::NEVER), key, value }
    }

    /// Returns the entry's number in the policy's order, below 2³¹.
    #[inline(always)]
    pub(crate) fn slot(&self) -> u32 {
        self.head.state().slot()
    }
}

/// A key and a value on their way into the cache. Because values can be large, they stay in the
/// caller's memory until their place is found. If they get none, they are dropped with this. The
/// dropping caller must hold no lock, as this runs code of the user.
#[derive(Debug)]
pub(crate) struct Unplaced<'a, K, V> {
    pub(crate) hash: KeyHash,
    key: &'a mut ManuallyDrop<K>,
    value: &'a mut ManuallyDrop<V>,
    is_placed: bool,
}

impl<'a, K, V> Unplaced<'a, K, V> {
    /// Takes over key and value; the caller must neither use nor drop them any more.
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

    /// Moves key and value to the memory of an entry, with the given head.
    ///
    /// # Safety
    /// `entry` must be valid for writes and hold no entry. This may be called once only.
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

    /// Returns ownership of key and value to the caller, in whose memory they still are.
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

/// An entry to be inserted. Its key and value are dropped with this if they get no place.
#[derive(Debug)]
pub(crate) struct Candidate<'a, K, V> {
    pub(crate) unplaced: Unplaced<'a, K, V>,
    pub(crate) weight: u64,
    pub(crate) expiry: Expiry,
    /// Earliest time at which the entry can expire, in microseconds of the system's clock. `None`
    /// if no sweep is needed.
    pub(crate) due: Option<NonZeroU64>,
    pub(crate) pinned: bool,
    /// Priority to tell the policy; `None` if it need not be told.
    pub(crate) priority: Option<Priority>,
    /// True if no admission is to be asked: one has admitted the entry already, or it replaces
    /// another.
    pub(crate) is_admitted: bool,
    /// True if a present entry stays, because it is newer than this one.
    pub(crate) yields: bool,
    /// True if this is a refreshed value of a present entry. It then takes over that entry's pin.
    pub(crate) refreshes: bool,
    /// Cell to fill with the entry's address before others can see the entry, to keep it for the
    /// caller.
    pub(crate) guard: Option<&'a Cell>,
}

impl<'a, K, V> Candidate<'a, K, V> {
    /// Creates a candidate of weight 1 that never expires.
    #[inline(always)]
    pub(crate) fn new(unplaced: Unplaced<'a, K, V>) -> Self {
        Self {
            unplaced,
            weight: 1,
            expiry: Expiry::NEVER,
            due: None,
            pinned: false,
            priority: None,
            is_admitted: false,
            yields: false,
            refreshes: false,
            guard: None,
        }
    }

    /// Returns ownership of key and value to the caller, in whose memory they still are.
    pub(crate) fn hand_back(self) {
        self.unplaced.hand_back();
    }

    /// Moves the candidate to the memory of an entry.
    ///
    /// # Safety
    /// `entry` must be valid for writes and hold no entry. This may be called once only.
    pub(crate) unsafe fn write(&mut self, slot: u32, entry: *mut Entry<K, V>) {
        // SAFETY: as the caller says.
        unsafe { self.unplaced.write(Head::new(slot, self.expiry.next), entry) };
    }
}
