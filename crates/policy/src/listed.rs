//! Shared implementation of [`Eviction`] for policies whose order is made of [`Lists`].
//!
//! A policy implements only the effect of a hit, an insertion and an eviction on its lists.
//! Growing, freezing, ranking, moving and reweighing a slot are common to all of them. Hooks at the
//! end of [`Listed`] let a policy keep more per slot than its lists do.

use crate::lists::Lists;
use crate::{Access, Counters, Cursor, Eviction, Marks, Slot};

/// An order made of lists.
///
/// Methods that [`Eviction`] has, too, have the contract documented there.
pub trait Listed {
    /// The marks that hits set.
    type Marks: Marks;
    /// The type of the policy's lists, with their number.
    type Lists: SlotLists;

    /// True if segments or targets are sized by weight. Otherwise every slot counts as weight 1.
    const WEIGHTED: bool = false;

    /// True if the marks can be in the order of places.
    const BY_PLACE: bool = false;

    /// Returns the policy's lists.
    fn lists(&self) -> &Self::Lists;

    /// Returns the policy's lists for changes.
    fn lists_mut(&mut self) -> &mut Self::Lists;

    /// Returns the marks of this order.
    fn marks(&self) -> &Self::Marks;

    /// Moves a slot after a hit that owes a promotion. Does nothing in policies whose hits only set
    /// marks.
    fn promote(&mut self, _slot: Slot) {}

    /// Puts a slot, which is in no list, into one.
    fn insert(&mut self, slot: Slot, access: &Access);

    /// Removes the slot that is least worth keeping and returns it.
    fn evict(&mut self, incoming: Option<&Access>) -> Option<Slot>;

    /// Returns the slot that `evict` would remove; `None` from orders that cannot name it.
    fn victim(&mut self, _incoming: Option<&Access>) -> Option<Slot> {
        None
    }

    /// Returns the numbers of the lists, most worth keeping first.
    fn hottest_first(&self) -> impl AsRef<[usize]> {
        [0]
    }

    /// Returns the hit counters that rank slots, for policies where they say more about a slot's
    /// worth than its list does.
    fn hits(&self) -> Option<&Counters> {
        None
    }

    /// Sets the largest number of slots that will ever be reserved, before the first insertion.
    fn expect(&mut self, _slots: usize) {}

    /// Allocates marks for entries at places `0..places`, in policies that mark hits by place.
    fn reserve_places(&mut self, _places: usize) {}

    /// Drops the tags of keys, which the owner keeps, in policies with ghosts.
    fn leave_tags_to_owner(&mut self) {}

    /// Takes the tag of the key in the slot that was evicted last.
    #[inline]
    fn departed(&mut self, _tag: u32) {}

    /// Adapts per-slot data and targets after a change of the slots or the capacity.
    fn resized(&mut self) {}

    /// Moves per-slot data outside the lists from one slot to another.
    fn moved(&mut self, _from: Slot, _to: Slot) {}

    /// Adapts targets after a change of a slot's weight.
    fn reweighed(&mut self, _slot: Slot) {}

    /// Returns the bytes of memory held outside the lists.
    fn other_memory_bytes(&self) -> usize {
        0
    }

    /// Returns the length of a stream from which the order's owner fetches ahead; `None` for never.
    fn fetches_ahead(&self) -> Option<u64> {
        None
    }
}

/// The operations of [`Lists`] that do not depend on the number of lists.
pub trait SlotLists {
    /// Allocates for slots `0..slots`.
    fn reserve(&mut self, slots: usize);
    /// Sets the weight that all lists together may hold.
    fn set_capacity(&mut self, weight: u64);
    /// Returns the number of slots listed or frozen.
    fn len(&self) -> usize;
    /// Returns whether no slot is listed or frozen.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Removes a slot, listed or frozen.
    fn delink(&mut self, slot: Slot);
    /// Replaces slot `from` by `to`, which gets its place and weight; returns false if `from` had
    /// no place.
    fn transfer(&mut self, from: Slot, to: Slot) -> bool;
    /// Changes the weight of a slot; returns whether it is listed or frozen.
    fn reweigh(&mut self, slot: Slot, weight: u32) -> bool;
    /// Appends a batch of slots, most worth keeping first: by hits, then in the order of `lists`.
    fn rank(
        &self,
        lists: &[usize],
        hits: Option<&Counters>,
        from: Cursor,
        out: &mut Vec<Slot>,
    ) -> Cursor;
    /// Freezes slots: takes them out of the lists until they are thawed.
    fn freeze(&mut self, slots: &[Slot]);
    /// Returns the slot that was frozen last to the hot end of its list. Returns `None` if no slot
    /// is frozen.
    fn thaw_last(&mut self) -> Option<Slot>;
    /// Returns the bytes of memory held.
    fn memory_bytes(&self) -> usize;
}

impl<const N: usize> SlotLists for Lists<N> {
    fn reserve(&mut self, slots: usize) {
        self.reserve(slots);
    }

    fn set_capacity(&mut self, weight: u64) {
        self.set_capacity(weight);
    }

    #[inline]
    fn len(&self) -> usize {
        self.len()
    }

    #[inline]
    fn delink(&mut self, slot: Slot) {
        self.delink(slot);
    }

    fn transfer(&mut self, from: Slot, to: Slot) -> bool {
        self.transfer(from, to)
    }

    fn reweigh(&mut self, slot: Slot, weight: u32) -> bool {
        self.reweigh(slot, weight)
    }

    fn rank(
        &self,
        lists: &[usize],
        hits: Option<&Counters>,
        from: Cursor,
        out: &mut Vec<Slot>,
    ) -> Cursor {
        match hits {
            None => self.rank(lists, from, out),
            Some(hits) => {
                self.rank_by(lists, Counters::CLASSES, |slot| hits.class(slot), from, out)
            }
        }
    }

    fn freeze(&mut self, slots: &[Slot]) {
        self.freeze(slots);
    }

    fn thaw_last(&mut self) -> Option<Slot> {
        self.thaw_last()
    }

    fn memory_bytes(&self) -> usize {
        self.memory_bytes()
    }
}

impl<P: Listed> Eviction for P {
    type Marks = <P as Listed>::Marks;

    const BY_PLACE: bool = P::BY_PLACE;

    #[inline]
    fn marks(&self) -> &Self::Marks {
        Listed::marks(self)
    }

    fn expect(&mut self, slots: usize) {
        Listed::expect(self, slots);
    }

    fn reserve(&mut self, slots: usize) {
        self.lists_mut().reserve(slots);
        self.resized();
    }

    fn reserve_places(&mut self, places: usize) {
        Listed::reserve_places(self, places);
    }

    #[inline(always)]
    fn place(&mut self, slot: Slot, place: u32, moves: bool) {
        Listed::marks(self).place(slot, place, moves);
    }

    fn leave_tags_to_owner(&mut self) {
        Listed::leave_tags_to_owner(self);
    }

    #[inline(always)]
    fn departed(&mut self, tag: u32) {
        Listed::departed(self, tag);
    }

    fn set_capacity(&mut self, weight: u64) {
        self.lists_mut().set_capacity(weight);
        self.resized();
    }

    #[inline]
    fn len(&self) -> usize {
        self.lists().len()
    }

    #[inline]
    fn promote(&mut self, slot: Slot) {
        Listed::promote(self, slot);
    }

    #[inline(always)]
    fn insert(&mut self, slot: Slot, access: &Access) {
        Listed::insert(self, slot, access);
    }

    #[inline(always)]
    fn evict(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        Listed::evict(self, incoming)
    }

    fn victim(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        Listed::victim(self, incoming)
    }

    #[inline]
    fn remove(&mut self, slot: Slot) {
        self.lists_mut().delink(slot);
    }

    fn transfer(&mut self, from: Slot, to: Slot) {
        if self.lists_mut().transfer(from, to) {
            self.moved(from, to);
        }
    }

    fn reweigh(&mut self, slot: Slot, weight: u32) {
        if P::WEIGHTED && self.lists_mut().reweigh(slot, weight) {
            self.reweighed(slot);
        }
    }

    fn rank(&self, from: Cursor, out: &mut Vec<Slot>) -> Cursor {
        self.lists().rank(self.hottest_first().as_ref(), self.hits(), from, out)
    }

    fn remembered_hits(&self, slot: Slot) -> u32 {
        self.hits().map_or(0, |hits| hits.get(slot).into())
    }

    fn freeze(&mut self, slots: &[Slot]) {
        self.lists_mut().freeze(slots);
    }

    fn thaw(&mut self) {
        self.thaw_some(usize::MAX);
    }

    fn thaw_some(&mut self, most: usize) -> bool {
        for _ in 0..most {
            let Some(slot) = self.lists_mut().thaw_last() else { return true };
            // Hits from before the freeze may be forgotten by now: a slot has to show its worth
            // again.
            if let Some(hits) = self.hits() {
                hits.set(slot, hits.get(slot).min(1));
            }
        }
        false
    }

    fn fetches_ahead(&self) -> Option<u64> {
        Listed::fetches_ahead(self)
    }

    fn memory_bytes(&self) -> usize {
        self.lists().memory_bytes() + self.other_memory_bytes()
    }
}
