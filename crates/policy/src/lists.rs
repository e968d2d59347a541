//! Several doubly linked lists of slots over one flat array: the building block of segments, queues
//! and stacks.
//!
//! The array starts with a sentinel per list that closes its ring, so no operation has a case for
//! the ends. A slot is in one list at most; its list is stored with its links. Frozen slots are in
//! no list, but their old list stays stored, and their place in the frozen list is in place of a
//! link. A slot takes [five bytes](Near), and [eight](Far) where there are too many slots for links
//! of 16 bits. Weights take four more once they differ.
//!
//! Invariants: `sizes[l]` is the sum of the weights in list `l`; `len` counts listed and frozen
//! slots; a slot whose link is frozen is in `frozen`, at the place in its link.

use self::links::{Far, Link, Links, Near, at, change, own, slot_of};
use crate::count::{Names, Operation};
use crate::{Cursor, Slot};

mod links;

/// Reciprocal of the growth step. Growth by a sixteenth keeps the unused part of the array small,
/// because block caches budget metadata bytes.
const GROWTH_SHARE: usize = 16;

/// `N` lists of slots, each from hot (head) to cold (tail).
#[derive(Debug, Clone)]
pub struct Lists<const N: usize> {
    links: Links<N>,
    /// Weight of each slot, stored only once one differs from 1.
    weights: Vec<u32>,
    sizes: [u64; N],
    len: usize,
    capacity: Option<u64>,
    assumed: Option<u64>,
    frozen: FrozenList,
    frozen_size: u64,
    names: Names<N>,
}

impl<const N: usize> Default for Lists<N> {
    fn default() -> Self {
        const { assert!(N <= Near::LISTS_MAX) };
        Self {
            links: Links {
                near: (0..N).map(|own| Near::new(own as u32, own, own as u32)).collect(),
                far: Vec::new(),
            },
            weights: Vec::new(),
            sizes: [0; N],
            len: 0,
            capacity: None,
            assumed: None,
            frozen: FrozenList::default(),
            frozen_size: 0,
            names: Names::new(["list"; N]),
        }
    }
}

impl<const N: usize> Lists<N> {
    /// Creates empty lists with these names in operation counts.
    pub(crate) fn named(names: [&'static str; N]) -> Self {
        Self { names: Names::new(names), ..Self::default() }
    }

    /// Allocates for slots `0..slots`.
    ///
    /// # Panics
    /// When there are about 2³² slots, or half as many for each doubling of the lists.
    pub fn reserve(&mut self, slots: usize) {
        let (wanted, before) = (slots + N, self.slots() + N);
        let most = (Far::<N>::FROZEN >> Far::<N>::LIST_BITS) as usize;
        assert!(wanted < most, "{N} lists hold fewer than {most} slots, not {slots}");
        if wanted <= before {
            return;
        }
        let step = if self.len == 0 { 0 } else { before / GROWTH_SHARE };
        let room = wanted.max(before + step);
        self.links.resize(wanted, room);
        if !self.weights.is_empty() {
            self.weights.resize(slots, 1);
        }
    }

    /// Returns the number of slots that the lists have room for.
    pub fn slots(&self) -> usize {
        self.links.len() - N
    }

    /// Sets the weight that all lists together may hold.
    pub fn set_capacity(&mut self, weight: u64) {
        self.capacity = Some(weight);
    }

    /// Sets the capacity that applies until [`set_capacity`](Self::set_capacity) is called.
    pub(crate) fn assume_slots(&mut self, slots: usize) {
        self.assumed = Some(slots as u64);
    }

    /// Returns the weight that the lists may hold: the capacity without the weight of frozen slots.
    /// The capacity is the number of slots if none was set.
    #[inline]
    pub fn capacity(&self) -> u64 {
        self.capacity
            .or(self.assumed)
            .unwrap_or(self.slots() as u64)
            .saturating_sub(self.frozen_size)
    }

    /// Returns the number of slots listed or frozen.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no slot is listed or frozen.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the total weight of the slots in a list.
    #[inline]
    pub fn size(&self, list: usize) -> u64 {
        self.sizes[list]
    }

    /// Returns the weight of a slot.
    #[inline]
    pub fn weight(&self, slot: Slot) -> u64 {
        if self.weights.is_empty() { 1 } else { u64::from(self.weights[slot.index()]) }
    }

    /// Sets the weight of a slot that is in no list. The first weight other than 1 allocates for
    /// the weights of all slots.
    #[inline]
    pub fn set_weight(&mut self, slot: Slot, weight: u32) {
        if weight != 1 || !self.weights.is_empty() {
            self.set_unequal_weight(slot, weight);
        }
    }

    #[cold]
    fn set_unequal_weight(&mut self, slot: Slot, weight: u32) {
        self.weights.resize(self.slots(), 1);
        self.weights[slot.index()] = weight;
    }

    /// Changes the weight of a slot; returns whether it is listed or frozen.
    pub fn reweigh(&mut self, slot: Slot, weight: u32) -> bool {
        let before = self.weight(slot);
        if self.contains(slot) {
            let list = self.list_before(slot);
            self.sizes[list] = self.sizes[list] - before + u64::from(weight);
        } else if self.is_frozen(slot) {
            self.frozen_size = self.frozen_size - before + u64::from(weight);
        } else {
            return false;
        }
        self.set_weight(slot, weight);
        true
    }

    /// Returns the list that a slot is in; `None` if it is in none or frozen.
    #[inline]
    pub fn list_of(&self, slot: Slot) -> Option<usize> {
        self.contains(slot).then(|| self.list_before(slot))
    }

    /// Returns the stored list of a slot that is known to be listed or frozen.
    #[inline]
    fn list_before(&self, slot: Slot) -> usize {
        at!(self.links, slot.index() + N, |link| link.list()) % N
    }

    /// Returns whether `slot` is in one of the lists.
    #[inline]
    pub fn contains(&self, slot: Slot) -> bool {
        at!(self.links, slot.index() + N, |link| link.is_listed())
    }

    /// Returns whether `slot` is frozen.
    #[inline]
    pub fn is_frozen(&self, slot: Slot) -> bool {
        at!(self.links, slot.index() + N, |link| link.is_frozen())
    }

    /// Puts a slot at the hot end of a list.
    #[inline(always)]
    pub fn push_head(&mut self, list: usize, slot: Slot) {
        debug_assert!(!self.contains(slot), "slot {} is in a list already", slot.0);
        self.names.note(list, Operation::Head);
        self.links.link_at_head(list, own::<N>(slot));
        self.sizes[list] += self.weight(slot);
        self.len += 1;
    }

    /// Inserts a slot next to `than`, on its hot side; at the cold end of the list if `than` is
    /// `None`.
    #[inline]
    pub fn push_hotter(&mut self, list: usize, slot: Slot, than: Option<Slot>) {
        debug_assert!(!self.contains(slot), "slot {} is in a list already", slot.0);
        self.names.note(list, Operation::Head);
        let (own, colder) = (own::<N>(slot), than.map_or(list as u32, own::<N>));
        let hotter = at!(self.links, colder as usize, |link| link.hotter());
        change!(self.links, own as usize, |link| *link = Link::new(colder, list, hotter));
        change!(self.links, colder as usize, |link| link.set_hotter(own));
        change!(self.links, hotter as usize, |link| link.set_colder(own));
        self.sizes[list] += self.weight(slot);
        self.len += 1;
    }

    /// Removes a slot, listed or frozen, and returns its list.
    #[inline]
    pub fn delink(&mut self, slot: Slot) -> Option<usize> {
        if self.contains(slot) {
            let list = self.list_before(slot);
            self.names.left(list, slot);
            self.links.unlink(own::<N>(slot));
            change!(self.links, slot.index() + N, |link| *link = Link::OUT);
            self.sizes[list] -= self.weight(slot);
            self.len -= 1;
            Some(list)
        } else {
            self.delink_frozen(slot);
            None
        }
    }

    #[cold]
    fn delink_frozen(&mut self, slot: Slot) {
        if self.is_frozen(slot) {
            self.frozen_size -= self.weight(slot);
            self.len -= 1;
            let place = at!(self.links, slot.index() + N, |link| link.place());
            change!(self.links, slot.index() + N, |link| *link = Link::OUT);
            let links = &mut self.links;
            self.frozen.leave(place, |slot, place| {
                change!(links, slot.index() + N, |link| *link = Link::frozen(place, link.list()));
            });
        }
    }

    /// Moves a listed slot to the hot end of `list`; ignores a slot that is in no list.
    #[inline]
    pub fn move_to_head(&mut self, list: usize, slot: Slot) {
        let is_to_move = at!(self.links, slot.index() + N, |link| {
            link.is_listed() && link.hotter() != list as u32
        });
        if !is_to_move {
            return;
        }
        self.names.moved(self.list_before(slot), list, slot);
        if N > 1 {
            let before = self.list_before(slot);
            if before != list {
                let weight = self.weight(slot);
                self.sizes[before] -= weight;
                self.sizes[list] += weight;
            }
        }
        self.links.unlink(own::<N>(slot));
        self.links.link_at_head(list, own::<N>(slot));
    }

    /// Returns the slot at the hot end of a list.
    #[inline]
    pub fn head(&self, list: usize) -> Option<Slot> {
        slot_of::<N>(at!(self.links, list, |link| link.colder()))
    }

    /// Returns the slot at the cold end of a list.
    #[inline]
    pub fn tail(&self, list: usize) -> Option<Slot> {
        let tail = slot_of::<N>(at!(self.links, list, |link| link.hotter()));
        self.names.reached(list, tail);
        tail
    }

    /// Returns the next slot towards the hot end of the slot's list.
    #[inline]
    pub fn hotter(&self, slot: Slot) -> Option<Slot> {
        slot_of::<N>(at!(self.links, slot.index() + N, |link| link.hotter()))
    }

    /// Returns the next slot towards the cold end of the slot's list.
    #[inline]
    pub fn colder(&self, slot: Slot) -> Option<Slot> {
        slot_of::<N>(at!(self.links, slot.index() + N, |link| link.colder()))
    }

    /// Removes the slot at the cold end of a list and returns it.
    #[inline(always)]
    pub fn pop_tail(&mut self, list: usize) -> Option<Slot> {
        let tail = self.tail(list)?;
        self.pop(list, tail);
        Some(tail)
    }

    /// Removes the slot at the cold end of a list, which the caller knows.
    #[inline(always)]
    pub(crate) fn pop(&mut self, list: usize, tail: Slot) {
        self.names.note(list, Operation::Tail);
        let hotter = at!(self.links, tail.index() + N, |link| link.hotter());
        change!(self.links, hotter as usize, |link| link.set_colder(list as u32));
        change!(self.links, list, |link| link.set_hotter(hotter));
        change!(self.links, tail.index() + N, |link| *link = Link::OUT);
        self.sizes[list] -= self.weight(tail);
        self.len -= 1;
    }

    /// Replaces slot `from` by `to`, which is in no list and gets its place and weight; returns
    /// false if `from` had no place.
    pub fn transfer(&mut self, from: Slot, to: Slot) -> bool {
        if from == to || !self.contains(from) && !self.is_frozen(from) {
            return self.contains(from) || self.is_frozen(from);
        }
        debug_assert!(!self.contains(to), "slot {} is in the order already", to.0);
        let (own, now, list) = (from.index() + N, to.index() + N, self.list_before(from));
        if self.is_frozen(from) {
            let place = at!(self.links, own, |link| link.place());
            change!(self.links, now, |link| *link = Link::frozen(place, list));
            self.frozen.replace(place, to);
        } else {
            let (colder, hotter) = at!(self.links, own, |link| (link.colder(), link.hotter()));
            change!(self.links, now, |link| *link = Link::new(colder, list, hotter));
            change!(self.links, colder as usize, |link| link.set_hotter(now as u32));
            change!(self.links, hotter as usize, |link| link.set_colder(now as u32));
        }
        change!(self.links, own, |link| *link = Link::OUT);
        if !self.weights.is_empty() {
            self.weights[to.index()] = self.weights[from.index()];
        }
        true
    }

    /// Returns the bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        self.links.near.capacity() * size_of::<Near>()
            + self.links.far.capacity() * size_of::<Far<N>>()
            + self.weights.capacity() * size_of::<u32>()
            + self.frozen.memory_bytes()
    }
}

impl<const N: usize> Lists<N> {
    /// Takes slots out of the lists until [`thaw`](Self::thaw).
    pub fn freeze(&mut self, slots: &[Slot]) {
        self.frozen.reserve(slots.len());
        for &slot in slots {
            if self.contains(slot) {
                let (list, weight) = (self.list_before(slot), self.weight(slot));
                self.sizes[list] -= weight;
                let place = self.frozen.push(slot);
                self.links.unlink(own::<N>(slot));
                change!(self.links, slot.index() + N, |link| *link = Link::frozen(place, list));
                self.frozen_size += weight;
            }
        }
    }

    /// Returns the frozen slots in the order in which they were frozen.
    pub fn frozen(&self) -> impl DoubleEndedIterator<Item = Slot> + '_ {
        self.frozen.iter()
    }

    /// Puts each frozen slot back at the hot end of its list, last frozen first, so that the first
    /// frozen ends up hottest.
    pub fn thaw(&mut self) {
        while self.thaw_last().is_some() {}
    }

    /// Puts the slot that was frozen last back at the hot end of its list and returns it.
    pub fn thaw_last(&mut self) -> Option<Slot> {
        let slot = self.frozen.pop()?;
        let (list, weight) = (self.list_before(slot), self.weight(slot));
        self.links.link_at_head(list, own::<N>(slot));
        self.sizes[list] += weight;
        self.frozen_size -= weight;
        Some(slot)
    }

    /// Appends slots from the hot end of `lists[0]` to the cold end of the last one, a batch at a
    /// time.
    pub fn rank(&self, lists: &[usize], from: Cursor, out: &mut Vec<Slot>) -> Cursor {
        self.rank_by(lists, 1, |_| 0, from, out)
    }

    /// Appends a batch of slots by class: those of class 0 from all lists first, those of class
    /// `classes` - 1 last. Walks the lists once per class.
    pub(crate) fn rank_by(
        &self,
        lists: &[usize],
        classes: usize,
        class: impl Fn(Slot) -> usize,
        from: Cursor,
        out: &mut Vec<Slot>,
    ) -> Cursor {
        let Cursor { mut part, mut at } = from;
        let mut left = Cursor::BATCH;
        while (part as usize) < classes * lists.len() {
            let (wanted, list) = (part as usize / lists.len(), lists[part as usize % lists.len()]);
            let mut next = match at.checked_sub(1).map(Slot) {
                None => self.head(list),
                Some(slot) => (self.list_of(slot) == Some(list)).then_some(slot),
            };
            while let Some(slot) = next {
                if left == 0 {
                    return Cursor { part, at: slot.0 + 1 };
                }
                left -= 1;
                if classes == 1 || class(slot) == wanted {
                    out.push(slot);
                }
                next = self.colder(slot);
            }
            (part, at) = (part + 1, 0);
        }
        Cursor::END
    }

    /// Returns the slots of a list from the cold end to the hot end.
    pub fn coldest_first(&self, list: usize) -> impl Iterator<Item = Slot> + '_ {
        std::iter::successors(self.tail(list), |&slot| self.hotter(slot))
    }
}

/// Placeholder for a slot that has left the frozen list.
const GONE: Slot = Slot(u32::MAX);
/// Number of placeholders from which the frozen list is compacted, if they also are more than half
/// of it.
const GONE_MIN: usize = 64;

/// Frozen slots in the order in which they were frozen, best first, so that thawing restores their
/// ranks.
///
/// The owner stores the place of each frozen slot, so that a slot that leaves or moves meanwhile is
/// updated at once. Memory stays in proportion to the number of frozen slots.
#[derive(Debug, Clone, Default)]
pub(crate) struct FrozenList {
    slots: Vec<Slot>,
    gone: usize,
}

impl FrozenList {
    pub(crate) fn reserve(&mut self, more: usize) {
        self.slots.reserve(more);
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.gone
    }

    /// Appends a slot and returns its place.
    pub(crate) fn push(&mut self, slot: Slot) -> u32 {
        self.slots.push(slot);
        self.slots.len() as u32 - 1
    }

    /// Replaces the slot at a place.
    pub(crate) fn replace(&mut self, place: u32, slot: Slot) {
        self.slots[place as usize] = slot;
    }

    /// Removes the slot at a place. Other slots may move; `moved` is called with each and its new
    /// place.
    pub(crate) fn leave(&mut self, place: u32, mut moved: impl FnMut(Slot, u32)) {
        self.slots[place as usize] = GONE;
        self.gone += 1;
        if self.gone > GONE_MIN && self.gone > self.slots.len() / 2 {
            self.slots.retain(|&slot| slot != GONE);
            self.gone = 0;
            self.slots.iter().enumerate().for_each(|(place, &slot)| moved(slot, place as u32));
        }
    }

    /// Removes all slots and returns them, best first.
    pub(crate) fn take(&mut self) -> impl DoubleEndedIterator<Item = Slot> + use<> {
        self.gone = 0;
        std::mem::take(&mut self.slots).into_iter().filter(|&slot| slot != GONE)
    }

    /// Removes the last slot and returns it. When the list becomes empty, its memory is freed.
    pub(crate) fn pop(&mut self) -> Option<Slot> {
        loop {
            match self.slots.pop() {
                Some(GONE) => self.gone -= 1,
                None => {
                    *self = Self::default();
                    return None;
                }
                last => return last,
            }
        }
    }

    /// Returns the frozen slots, best first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = Slot> + '_ {
        self.slots.iter().copied().filter(|&slot| slot != GONE)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
    }
}
