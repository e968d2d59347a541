//! One list of slots: what FIFO, LRU and CLOCK are made of. Eight bytes a slot.

use crate::{Cursor, Lists, Slot};

/// A list of slots from hot (head) to cold (tail). Each slot is in it at most once.
#[derive(Debug, Clone, Default)]
pub struct List {
    lists: Lists<1>,
}

impl List {
    /// An empty list that is called so where operations are counted.
    pub(crate) fn named(name: &'static str) -> Self {
        Self { lists: Lists::named([name]) }
    }

    /// Makes room for slots `0..slots`.
    ///
    /// # Panics
    /// When `slots` does not fit in 32 bits.
    pub fn reserve(&mut self, slots: usize) {
        self.lists.reserve(slots);
    }

    pub(crate) fn set_capacity(&mut self, weight: u64) {
        self.lists.set_capacity(weight);
    }

    /// The number of slots in the list or frozen.
    #[inline]
    pub fn len(&self) -> usize {
        self.lists.len()
    }

    /// Whether the list holds no slot.
    pub fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// Whether `slot` is in the list.
    #[inline]
    pub fn contains(&self, slot: Slot) -> bool {
        self.lists.contains(slot)
    }

    /// Puts a slot at the hot end.
    #[inline]
    pub fn push_head(&mut self, slot: Slot) {
        self.lists.push_head(0, slot);
    }

    /// Takes a slot out, frozen or not; one that is not in the list is ignored.
    #[inline]
    pub fn delink(&mut self, slot: Slot) {
        self.lists.delink(slot);
    }

    /// Moves a slot of the list to the hot end; a slot out of the list is left out.
    #[inline]
    pub fn move_to_head(&mut self, slot: Slot) {
        self.lists.move_to_head(0, slot);
    }

    /// The slot at the cold end.
    #[inline]
    pub fn tail(&self) -> Option<Slot> {
        self.lists.tail(0)
    }

    /// Takes the slot at the cold end out.
    #[inline]
    pub fn pop_tail(&mut self) -> Option<Slot> {
        self.lists.pop_tail(0)
    }

    /// Gives `to`, which is out, the place of `from`; says whether there was one.
    pub fn transfer(&mut self, from: Slot, to: Slot) -> bool {
        self.lists.transfer(from, to)
    }

    /// Takes slots out of the list until [`thaw`](Self::thaw).
    pub fn freeze(&mut self, slots: &[Slot]) {
        self.lists.freeze(slots);
    }

    /// The frozen slots, in the order in which they were frozen.
    pub fn frozen(&self) -> impl DoubleEndedIterator<Item = Slot> + '_ {
        self.lists.frozen()
    }

    /// Puts the frozen slots back at the hot end.
    pub fn thaw(&mut self) {
        self.lists.thaw();
    }

    /// Appends slots from the hot end to the cold end, a batch at a time. `lists` is the only one there is.
    pub(crate) fn rank(&self, lists: &[usize], from: Cursor, out: &mut Vec<Slot>) -> Cursor {
        self.lists.rank(lists, from, out)
    }

    /// The same by classes.
    pub(crate) fn rank_by(
        &self,
        lists: &[usize],
        classes: usize,
        class: impl Fn(Slot) -> usize,
        from: Cursor,
        out: &mut Vec<Slot>,
    ) -> Cursor {
        self.lists.rank_by(lists, classes, class, from, out)
    }

    /// Slots from the cold end to the hot end.
    pub fn coldest_first(&self) -> impl Iterator<Item = Slot> + '_ {
        self.lists.coldest_first(0)
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        self.lists.memory_bytes()
    }
}
