//! Policies whose order is [`Lists`]: each writes what is its own, and shares the rest of
//! [`Eviction`].
//!
//! A policy says what a hit, an insertion and an eviction do to its lists. Growing, freezing,
//! ranking, moving and reweighing a slot are the same for all of them; the hooks at the end of
//! [`Listed`] let a policy keep more per slot than its lists do.

use crate::lists::Lists;
use crate::{Access, Counters, Cursor, Eviction, Marks, Slot};

/// An order made of lists.
///
/// The contract of each method that [`Eviction`] has, too, is the one there.
pub trait Listed {
    /// The marks that a hit sets.
    type Marks: Marks;
    /// The lists, as many as the policy has.
    type Lists: SlotLists;

    /// True if segments or targets are sized by weight. Otherwise every slot weighs 1.
    const WEIGHTED: bool = false;

    /// The lists.
    fn lists(&self) -> &Self::Lists;

    /// The lists, to change them.
    fn lists_mut(&mut self) -> &mut Self::Lists;

    /// The marks that go with this order.
    fn marks(&self) -> &Self::Marks;

    /// A hit that the marks could not note by themselves. Nothing, where they can.
    fn promote(&mut self, _slot: Slot) {}

    /// Puts a slot into a list; it is in none.
    fn insert(&mut self, slot: Slot, access: &Access);

    /// Takes the slot out that is worth least.
    fn evict(&mut self, incoming: Option<&Access>) -> Option<Slot>;

    /// The slot that `evict` would take out; `None` from orders that cannot say.
    fn victim(&mut self, _incoming: Option<&Access>) -> Option<Slot> {
        None
    }

    /// The lists from the one most worth keeping to the one least worth it.
    fn hottest_first(&self) -> impl AsRef<[usize]> {
        [0]
    }

    /// Counters of hits, where they say more about a slot's worth than its list does.
    fn hits(&self) -> Option<&Counters> {
        None
    }

    /// Sets the most slots that there will be, before the first insertion.
    fn expect(&mut self, _slots: usize) {}

    /// Follows a change of the slots or the capacity: grows what is kept per slot, sets targets.
    fn resized(&mut self) {}

    /// Carries what is kept per slot, beside the lists, from one slot to another.
    fn moved(&mut self, _from: Slot, _to: Slot) {}

    /// Follows a change of a slot's weight.
    fn reweighed(&mut self, _slot: Slot) {}

    /// Bytes held beside the lists.
    fn other_memory_bytes(&self) -> usize {
        0
    }

    /// The length of a stream from which on its owner fetches ahead; `None` for never.
    fn fetches_ahead(&self) -> Option<u64> {
        None
    }
}

/// [`Lists`] of any number, for what does not depend on the number.
pub trait SlotLists {
    /// Makes room for slots `0..slots`.
    fn reserve(&mut self, slots: usize);
    /// Sets the weight that all lists together may hold.
    fn set_capacity(&mut self, weight: u64);
    /// The number of slots in the lists or frozen.
    fn len(&self) -> usize;
    /// Returns whether no slot is listed or frozen.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Takes a slot out, frozen or not.
    fn delink(&mut self, slot: Slot);
    /// Gives `to` the place and weight of `from`; says whether there was one.
    fn transfer(&mut self, from: Slot, to: Slot) -> bool;
    /// Changes the weight of a slot; says whether it is in a list or frozen.
    fn reweigh(&mut self, slot: Slot, weight: u32) -> bool;
    /// Appends a batch of slots, most worth keeping first: by their hits, then in the order of
    /// `lists`.
    fn rank(
        &self,
        lists: &[usize],
        hits: Option<&Counters>,
        from: Cursor,
        out: &mut Vec<Slot>,
    ) -> Cursor;
    /// Takes slots out of the lists until `thaw`.
    fn freeze(&mut self, slots: &[Slot]);
    /// Puts the slot that was frozen last back at the hot end of its list. Returns it.
    fn thaw_last(&mut self) -> Option<Slot>;
    /// Bytes of memory held.
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
