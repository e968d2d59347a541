//! The marks that hits set without owning the order: nothing, a small counter, or the time.
//!
//! All accesses are `Relaxed`: a mark is a hint about one slot, no other memory is published
//! through it, and a lost update between two concurrent hits costs at most one count. Plain loads
//! and stores are used instead of read-modify-writes for the same reason. A hit writes only if the
//! mark changes, so a hit on a marked slot only reads, unless the policy needs every single hit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering::Relaxed};

use crate::{HitKind, Marks, Plain, Slot, Touch, count};

/// Marks of policies for which a hit changes nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoMarks;

impl Marks for NoMarks {
    const KIND: HitKind = HitKind::FifoLike;
    const PLAIN: Option<Plain<Self>> = Plain::YES;

    #[inline]
    fn touch(&self, _: Slot) -> Touch {
        Touch::Noted
    }
}

/// Marks of policies that move an entry on every hit.
#[derive(Debug, Clone, Copy, Default)]
pub struct AlwaysPromote;

impl Marks for AlwaysPromote {
    const KIND: HitKind = HitKind::LruLike;
    const PLAIN: Option<Plain<Self>> = Plain::YES;

    #[inline]
    fn touch(&self, _: Slot) -> Touch {
        Touch::Promote
    }
}

/// Marks of policies that move an entry on a hit if the list's lock is free.
#[derive(Debug, Clone, Copy, Default)]
pub struct TryPromote;

impl Marks for TryPromote {
    const KIND: HitKind = HitKind::LruLike;
    const PLAIN: Option<Plain<Self>> = Plain::YES;

    #[inline]
    fn touch(&self, _: Slot) -> Touch {
        Touch::TryPromote
    }
}

/// A hit counter per entry that stops at a limit; hits beyond the limit only read. One byte each.
///
/// The counters are in the order of slots, or of the entries' places in memory where the owner
/// [says](crate::Eviction::place) which those are. Then a map from slots to places takes two more
/// bytes a slot, or four where there are more than 2¹⁶ places. Only the owner reads the map.
#[derive(Debug, Clone)]
pub struct Counters {
    counts: Arc<[AtomicU8]>,
    /// Place of the entry in each slot; empty where counters are in the order of slots.
    places: Arc<[AtomicU16]>,
    /// The same where there are too many places for 16 bits.
    far_places: Arc<[AtomicU32]>,
    limit: u8,
}

impl Counters {
    /// Creates counters from 0 to `limit`.
    pub fn new(limit: u8) -> Self {
        Self { counts: Arc::default(), places: Arc::default(), far_places: Arc::default(), limit }
    }

    /// Returns the number of a slot's counter.
    #[inline(always)]
    fn number(&self, slot: Slot) -> usize {
        match self.places.get(slot.index()) {
            Some(place) => place.load(Relaxed).into(), // the owner alone reads and writes it
            None => self.far_number(slot),
        }
    }

    #[cold]
    fn far_number(&self, slot: Slot) -> usize {
        match self.far_places.get(slot.index()) {
            Some(place) => place.load(Relaxed) as usize, // as above
            None => slot.index(),
        }
    }

    #[inline(always)]
    pub(crate) fn get(&self, slot: Slot) -> u8 {
        self.counts[self.number(slot)].load(Relaxed) // a hint: see the module's head
    }

    #[inline(always)]
    pub(crate) fn set(&self, slot: Slot, count: u8) {
        self.counts[self.number(slot)].store(count, Relaxed); // a hint: see the module's head
    }

    /// Changes the count of a slot by `spend` if it is `least` or more. Returns false if it is
    /// below.
    #[inline(always)]
    pub(crate) fn spend(&self, slot: Slot, least: u8, spend: impl FnOnce(u8) -> u8) -> bool {
        let count = &self.counts[self.number(slot)];
        let seen = count.load(Relaxed); // a hint: see the module's head
        if seen >= least {
            count.store(spend(seen), Relaxed); // as above
        }
        seen >= least
    }

    /// Allocates counters for entries at places `0..places`, and puts counters in the order of
    /// places, if no slot was in use before.
    pub(crate) fn reserve_places(&mut self, places: usize) {
        let (counts, is_far) = (self.counts.len(), places > 1 << u16::BITS);
        if self.places.is_empty() && self.far_places.is_empty() {
            self.places = (0..counts).map(|_| AtomicU16::new(0)).collect();
        }
        if is_far && !self.places.is_empty() {
            let place = |place: &AtomicU16| AtomicU32::new(place.load(Relaxed).into());
            self.far_places = std::mem::take(&mut self.places).iter().map(place).collect();
        }
        if places > counts {
            self.grow_counts(places.max(counts + counts / 4));
        }
    }

    fn grow_counts(&mut self, counts: usize) {
        grow(&mut self.counts, counts, |old| {
            AtomicU8::new(old.map_or(0, |count| count.load(Relaxed)))
        });
    }

    #[cold]
    fn far_place(&self, slot: Slot, place: u32, moves: bool) {
        let Some(lies_at) = self.far_places.get(slot.index()) else { return };
        if moves {
            self.counts[place as usize].store(self.get(slot), Relaxed); // as in `set`
        }
        lies_at.store(place, Relaxed); // the owner alone reads and writes it
    }

    /// Number of classes that [`class`](Self::class) distinguishes.
    pub(crate) const CLASSES: usize = 4;

    /// Returns the class of a slot by its hits: 0 for four or more, 1 for two or three, 2 for one,
    /// 3 for none.
    #[inline]
    pub(crate) fn class(&self, slot: Slot) -> usize {
        3 - ((u8::BITS - self.get(slot).leading_zeros()) as usize).min(3)
    }

    /// Adds a hit to a counter, unless the counter is at its limit.
    #[inline(always)]
    fn hit(&self, count: &AtomicU8) {
        let seen = count.load(Relaxed); // a lost count is one hit less: see the module's head
        if seen < self.limit {
            count.store(seen + 1, Relaxed);
            count::wrote_mark();
        }
    }
}

impl Marks for Counters {
    const KIND: HitKind = HitKind::FifoLike;
    const PLAIN: Option<Plain<Self>> = Plain::YES;

    fn reserve(&mut self, slots: usize) {
        // There are about as many places as slots. Late readers keep replaced counts in memory, so
        // counts do not grow little by little as places do.
        self.grow_counts(slots);
        if !self.places.is_empty() {
            grow(&mut self.places, slots, |old| {
                AtomicU16::new(old.map_or(0, |place| place.load(Relaxed)))
            });
        } else if !self.far_places.is_empty() {
            grow(&mut self.far_places, slots, |old| {
                AtomicU32::new(old.map_or(0, |place| place.load(Relaxed)))
            });
        }
    }

    fn memory_bytes(&self) -> usize {
        size_of_val(&*self.counts) + size_of_val(&*self.places) + size_of_val(&*self.far_places)
    }

    fn of_readers(&self) -> Self {
        let (places, far_places) = (Arc::default(), Arc::default());
        Self { counts: Arc::clone(&self.counts), places, far_places, limit: self.limit }
    }

    #[inline(always)] // with each replacement, of which a call is a twentieth
    fn touch(&self, slot: Slot) -> Touch {
        self.hit(&self.counts[self.number(slot)]);
        Touch::Noted
    }

    #[inline]
    fn touch_at(&self, _slot: impl FnOnce() -> Slot, place: impl FnOnce() -> u32) -> Touch {
        // A late reader has marks of fewer places.
        if let Some(count) = self.counts.get(place() as usize) {
            self.hit(count);
        }
        Touch::Noted
    }

    #[inline(always)]
    fn place(&self, slot: Slot, place: u32, moves: bool) {
        let Some(lies_at) = self.places.get(slot.index()) else {
            return self.far_place(slot, place, moves);
        };
        if moves {
            let count = &self.counts[usize::from(lies_at.load(Relaxed))]; // the owner's, see below
            self.counts[place as usize].store(count.load(Relaxed), Relaxed); // a hint: see the head
        }
        lies_at.store(place as u16, Relaxed); // the owner alone reads and writes it
    }
}

/// A coin per hit that decides for a promotion with a fixed probability. Two bytes a slot.
///
/// Each slot counts its hits, and the coin is a hash of slot and count. So no generator is shared
/// between threads, and the same hits always give the same coins. Every hit writes the count of its
/// slot, because otherwise the next coin would be equal.
#[derive(Debug, Clone)]
pub struct Coins {
    hits: Arc<[AtomicU16]>,
    /// Limit below which a coin, a number of 32 bits, decides for a promotion.
    promote_below: u64,
    seed: u64,
}

impl Coins {
    /// Creates coins that skip the promotion with probability `skip`.
    pub fn new(skip: f64, seed: u64) -> Self {
        Self {
            hits: Arc::default(),
            promote_below: ((1.0 - skip) * (1u64 << 32) as f64) as u64,
            seed,
        }
    }
}

impl Marks for Coins {
    const KIND: HitKind = HitKind::LruLike;
    const PLAIN: Option<Plain<Self>> = Plain::YES;

    fn reserve(&mut self, slots: usize) {
        grow(&mut self.hits, slots, |old| AtomicU16::new(old.map_or(0, |hits| hits.load(Relaxed))));
    }

    fn memory_bytes(&self) -> usize {
        size_of_val(&*self.hits)
    }

    #[inline]
    fn touch(&self, slot: Slot) -> Touch {
        let hits = &self.hits[slot.index()];
        // two hits at once may toss the same coin: see the module's head
        let count = hits.load(Relaxed);
        hits.store(count.wrapping_add(1), Relaxed);
        let coin =
            crate::sketch::mix(self.seed ^ (u64::from(slot.0) << 16 | u64::from(count))) >> 32;
        if coin < self.promote_below { Touch::Promote } else { Touch::Noted }
    }
}

/// Time of the last use of each slot, in insertions. Four bytes a slot. A hit writes only if there
/// was an insertion since the last hit on that slot.
#[derive(Debug, Clone, Default)]
pub struct LastUses {
    last: Arc<[AtomicU32]>,
    now: Arc<AtomicU32>,
}

impl LastUses {
    /// Returns the number of slots that were reserved.
    pub(crate) fn slots(&self) -> usize {
        self.last.len()
    }

    /// Advances the time by one insertion.
    #[inline]
    pub(crate) fn advance(&self) -> u32 {
        let now = self.now().wrapping_add(1);
        self.now.store(now, Relaxed); // only the owner writes it; readers may see it late
        now
    }

    #[inline]
    pub(crate) fn now(&self) -> u32 {
        self.now.load(Relaxed) // a late clock makes a stamp a little older, nothing else
    }

    /// Returns the insertions since the slot was last used.
    #[inline]
    pub(crate) fn age(&self, slot: Slot) -> u32 {
        // a hint: see the module's head
        self.now().wrapping_sub(self.last[slot.index()].load(Relaxed))
    }

    /// Sets the slot's last use to the present.
    #[inline]
    pub(crate) fn stamp(&self, slot: Slot) {
        let now = self.now();
        let last = &self.last[slot.index()];
        if last.load(Relaxed) != now {
            last.store(now, Relaxed); // a hint: see the module's head
        }
    }

    pub(crate) fn transfer(&self, from: Slot, to: Slot) {
        // `to` is not yet visible
        self.last[to.index()].store(self.last[from.index()].load(Relaxed), Relaxed);
    }
}

impl Marks for LastUses {
    const KIND: HitKind = HitKind::FifoLike;
    const PLAIN: Option<Plain<Self>> = Plain::YES;

    fn reserve(&mut self, slots: usize) {
        if slots > self.slots() {
            // A clock of its own: until now it may have been shared with a clone.
            self.now = Arc::new(AtomicU32::new(self.now()));
        }
        grow(&mut self.last, slots, |old| AtomicU32::new(old.map_or(0, |last| last.load(Relaxed))));
    }

    fn memory_bytes(&self) -> usize {
        size_of_val(&*self.last) + size_of::<AtomicU32>()
    }

    #[inline]
    fn touch(&self, slot: Slot) -> Touch {
        self.stamp(slot);
        Touch::Noted
    }
}

/// Time of the last use and number of hits of each slot, up to a limit. Eight bytes a slot. A hit
/// writes the count of its slot until the limit is reached; policies that need every hit set no
/// limit.
#[derive(Debug, Clone)]
pub struct Stamps {
    uses: LastUses,
    counts: Arc<[AtomicU32]>,
    limit: u32,
}

impl Stamps {
    /// Creates stamps whose counts go from 0 to `limit`.
    pub(crate) fn new(limit: u32) -> Self {
        Self { uses: LastUses::default(), counts: Arc::default(), limit }
    }

    #[inline]
    pub(crate) fn times(&self) -> &LastUses {
        &self.uses
    }

    /// Returns the hits since the slot's count was last set.
    #[inline]
    pub(crate) fn count(&self, slot: Slot) -> u32 {
        self.counts[slot.index()].load(Relaxed) // a hint: see the module's head
    }

    /// Sets the slot's last use to the present and its count to 0.
    #[inline]
    pub(crate) fn start(&self, slot: Slot) {
        self.uses.stamp(slot);
        self.set_count(slot, 0);
    }

    /// Sets the slot's last use to the present and keeps its count.
    pub(crate) fn stamp(&self, slot: Slot) {
        self.uses.stamp(slot);
    }

    /// Sets the slot's count and keeps its last use.
    #[inline]
    pub(crate) fn set_count(&self, slot: Slot, count: u32) {
        // may swallow a hit that comes at the same time
        self.counts[slot.index()].store(count, Relaxed);
    }

    pub(crate) fn transfer(&self, from: Slot, to: Slot) {
        self.uses.transfer(from, to);
        self.set_count(to, self.count(from));
    }
}

impl Marks for Stamps {
    const KIND: HitKind = HitKind::FifoLike;
    const PLAIN: Option<Plain<Self>> = Plain::YES;

    fn reserve(&mut self, slots: usize) {
        self.uses.reserve(slots);
        grow(&mut self.counts, slots, |old| {
            AtomicU32::new(old.map_or(0, |count| count.load(Relaxed)))
        });
    }

    fn memory_bytes(&self) -> usize {
        self.uses.memory_bytes() + size_of_val(&*self.counts)
    }

    #[inline]
    fn touch(&self, slot: Slot) -> Touch {
        self.uses.stamp(slot);
        let count = &self.counts[slot.index()];
        let seen = count.load(Relaxed); // a lost count is one hit less: see the module's head
        if seen < self.limit {
            count.store(seen + 1, Relaxed);
        }
        Touch::Noted
    }
}

/// Replaces a shared array by a longer one that begins with a copy of the old elements.
fn grow<T>(array: &mut Arc<[T]>, slots: usize, copy: impl Fn(Option<&T>) -> T) {
    if slots > array.len() {
        *array = (0..slots).map(|at| copy(array.get(at))).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_move_with_entries_whatever_the_bits_of_places() {
        const MANY: u32 = 1 << u16::BITS;
        let mut counters = Counters::new(7);
        counters.reserve(3);
        counters.reserve_places(0);
        counters.reserve_places(MANY as usize);
        counters.place(Slot(0), MANY - 1, false);
        counters.place(Slot(1), 5, false);
        counters.touch(Slot(0));
        counters.touch_at(|| Slot(0), || MANY - 1);
        assert!(counters.far_places.is_empty());
        counters.reserve_places(MANY as usize + 2);
        assert!(counters.places.is_empty());
        assert_eq!((counters.get(Slot(0)), counters.get(Slot(1))), (2, 0));
        counters.place(Slot(0), MANY + 1, true);
        counters.touch_at(|| Slot(0), || MANY + 1);
        counters.touch_at(|| Slot(1), || 5);
        counters.reserve(4);
        counters.place(Slot(3), MANY, false);
        assert!(counters.spend(Slot(0), 3, |count| count - 2));
        assert_eq!([0, 1, 3].map(|slot| counters.get(Slot(slot))), [1, 1, 0]);
    }
}
