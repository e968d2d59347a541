//! Slots in a flat array, whose places are stored: a [`Heap`] for policies that evict the entry
//! with the smallest key, and a [`SampleSet`] for those that draw at random.

use crate::count::{Names, Operation};
use crate::lists::FrozenList;
use crate::sketch::Random;
use crate::{Cursor, Slot};

/// Stored place of a slot that is neither in the array nor frozen.
const OUT: u32 = u32::MAX;
/// Flag in the stored place of a frozen slot; the other bits are its place in the frozen list.
const FROZEN: u32 = 1 << 31;

/// An array of slots with the place of each, and the frozen slots, which are not in the array. A
/// slot takes eight bytes.
#[derive(Debug, Clone, Default)]
struct SlotArray {
    slots: Vec<Slot>,
    places: Vec<u32>,
    frozen: FrozenList,
}

impl SlotArray {
    /// Allocates for slots `0..slots`; returns false if there is room already.
    fn reserve(&mut self, slots: usize) -> bool {
        let grows = slots > self.places.len();
        if grows {
            self.slots.reserve(slots - self.slots.len());
            self.places.resize(slots, OUT);
        }
        grows
    }

    fn len(&self) -> usize {
        self.slots.len() + self.frozen.len()
    }

    fn contains(&self, slot: Slot) -> bool {
        self.places[slot.index()] < FROZEN
    }

    fn is_frozen(&self, slot: Slot) -> bool {
        self.places[slot.index()] >= FROZEN && self.places[slot.index()] != OUT
    }

    /// Returns the place of a slot that is in the array.
    fn place(&self, slot: Slot) -> usize {
        self.places[slot.index()] as usize
    }

    fn put(&mut self, place: usize, slot: Slot) {
        self.slots[place] = slot;
        self.places[slot.index()] = place as u32;
    }

    /// Appends a slot.
    fn push(&mut self, slot: Slot) {
        debug_assert!(!self.contains(slot), "slot {} is in the order already", slot.0);
        self.places[slot.index()] = self.slots.len() as u32;
        self.slots.push(slot);
    }

    /// Removes the slot at a place of the array, and puts the last slot there.
    fn take(&mut self, place: usize) {
        self.slots.swap_remove(place);
        if let Some(moved) = self.slots.get(place) {
            self.places[moved.index()] = place as u32;
        }
    }

    /// Forgets the place of a slot. Returns it if the slot was in the array, from which the caller
    /// [takes](Self::take) it.
    fn forget(&mut self, slot: Slot) -> Option<usize> {
        match std::mem::replace(&mut self.places[slot.index()], OUT) {
            OUT => None,
            frozen if frozen >= FROZEN => {
                let places = &mut self.places;
                self.frozen
                    .leave(frozen - FROZEN, |slot, place| places[slot.index()] = FROZEN + place);
                None
            }
            place => Some(place as usize),
        }
    }

    fn transfer(&mut self, from: Slot, to: Slot) {
        let place = std::mem::replace(&mut self.places[from.index()], OUT);
        self.places[to.index()] = place;
        match place {
            OUT => {}
            frozen if frozen >= FROZEN => self.frozen.replace(frozen - FROZEN, to),
            place => self.slots[place as usize] = to,
        }
    }

    /// Adds a slot that was just taken from the array to the frozen ones.
    fn freeze(&mut self, slot: Slot) {
        self.places[slot.index()] = FROZEN + self.frozen.push(slot);
    }

    fn memory_bytes(&self) -> usize {
        (self.slots.capacity() + self.places.capacity()) * size_of::<u32>()
            + self.frozen.memory_bytes()
    }
}

const CHILDREN: usize = 4;

/// Name under which heap operations are counted: each costs at least as much as a list operation.
const HEAP: Names<1> = Names::new(["heap"]);

/// A heap of slots by a key that can change. The key is a number, or a pair whose second number
/// breaks ties. Each node has four children, and the least key is at the root. Frozen slots leave
/// the heap but keep their key.
#[derive(Debug, Clone, Default)]
pub(crate) struct Heap<K = u64> {
    array: SlotArray,
    keys: Vec<K>,
}

impl<K: Copy + Default + Ord> Heap<K> {
    pub(crate) fn reserve(&mut self, slots: usize) {
        if self.array.reserve(slots) {
            self.keys.resize(slots, K::default());
        }
    }

    pub(crate) fn slots(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.array.len()
    }

    pub(crate) fn contains(&self, slot: Slot) -> bool {
        self.array.contains(slot)
    }

    pub(crate) fn key(&self, slot: Slot) -> K {
        self.keys[slot.index()]
    }

    pub(crate) fn push(&mut self, slot: Slot, key: K) {
        HEAP.note(0, Operation::Head);
        self.keys[slot.index()] = key;
        self.push_back(slot);
    }

    /// Inserts a slot by its stored key.
    fn push_back(&mut self, slot: Slot) {
        self.array.push(slot);
        self.sift_up(self.array.slots.len() - 1);
    }

    /// Changes the key of a slot in the heap; ignores other slots.
    pub(crate) fn change(&mut self, slot: Slot, key: K) {
        if self.contains(slot) {
            HEAP.note(0, Operation::Delink);
            HEAP.note(0, Operation::Head);
            let before = std::mem::replace(&mut self.keys[slot.index()], key);
            let place = self.array.place(slot);
            if key < before { self.sift_up(place) } else { self.sift_down(place) }
        }
    }

    /// Changes the key of a slot in the heap or frozen.
    pub(crate) fn correct(&mut self, slot: Slot, key: K) {
        if self.array.is_frozen(slot) {
            self.keys[slot.index()] = key;
        } else {
            self.change(slot, key);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Slot> {
        let least = *self.array.slots.first()?;
        HEAP.reached(0, Some(least));
        self.remove(least);
        Some(least)
    }

    pub(crate) fn remove(&mut self, slot: Slot) {
        if let Some(place) = self.array.forget(slot) {
            HEAP.left(0, slot);
            self.take(place);
        }
    }

    fn take(&mut self, place: usize) {
        self.array.take(place);
        if place < self.array.slots.len() {
            self.sift_up(place);
            self.sift_down(place);
        }
    }

    fn sift_up(&mut self, mut place: usize) {
        let slot = self.array.slots[place];
        while place > 0 {
            let parent = (place - 1) / CHILDREN;
            if self.key(self.array.slots[parent]) <= self.key(slot) {
                break;
            }
            self.array.put(place, self.array.slots[parent]);
            place = parent;
        }
        self.array.put(place, slot);
    }

    fn sift_down(&mut self, mut place: usize) {
        let slot = self.array.slots[place];
        loop {
            let children =
                place * CHILDREN + 1..(place * CHILDREN + 1 + CHILDREN).min(self.array.slots.len());
            let Some(least) = children.min_by_key(|&child| self.key(self.array.slots[child]))
            else {
                break;
            };
            if self.key(self.array.slots[least]) >= self.key(slot) {
                break;
            }
            self.array.put(place, self.array.slots[least]);
            place = least;
        }
        self.array.put(place, slot);
    }

    pub(crate) fn transfer(&mut self, from: Slot, to: Slot) {
        self.array.transfer(from, to);
        self.keys[to.index()] = self.keys[from.index()];
    }

    /// Appends a batch of slots, walking from the leaves to the root: roughly, not exactly, from
    /// the greatest key to the least.
    pub(crate) fn rank(&self, from: Cursor, out: &mut Vec<Slot>) -> Cursor {
        let heap = &self.array.slots;
        let end = if from == Cursor::START { heap.len() } else { heap.len().min(from.at as usize) };
        let start = end.saturating_sub(Cursor::BATCH);
        out.extend(heap[start..end].iter().rev());
        if start == 0 { Cursor::END } else { Cursor { part: 1, at: start as u32 } }
    }

    pub(crate) fn freeze(&mut self, slots: &[Slot]) {
        for &slot in slots {
            if self.contains(slot) {
                self.take(self.array.place(slot));
                self.array.freeze(slot);
            }
        }
    }

    /// Returns the frozen slots to the heap and calls `back` with each.
    pub(crate) fn thaw(&mut self, back: impl Fn(Slot)) {
        for slot in self.array.frozen.take() {
            self.push_back(slot);
            back(slot);
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.array.memory_bytes() + self.keys.capacity() * size_of::<K>()
    }
}

/// Seed of the random draws; any number works.
const SEED: u64 = 0xf10e;

/// Name under which insertions and removals, which share one array, are counted.
const ENTRIES: Names<1> = Names::new(["entries"]);

/// An unordered set of slots with random draws. Frozen slots leave the set.
#[derive(Debug, Clone)]
pub(crate) struct SampleSet {
    array: SlotArray,
    random: Random,
}

impl Default for SampleSet {
    fn default() -> Self {
        Self { array: SlotArray::default(), random: Random::new(SEED) }
    }
}

impl SampleSet {
    pub(crate) fn reserve(&mut self, slots: usize) {
        self.array.reserve(slots);
    }

    pub(crate) fn slots(&self) -> usize {
        self.array.places.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.array.len()
    }

    /// Returns the slots that are not frozen, in no particular order.
    pub(crate) fn members(&self) -> &[Slot] {
        &self.array.slots
    }

    pub(crate) fn contains(&self, slot: Slot) -> bool {
        self.array.contains(slot)
    }

    #[inline]
    pub(crate) fn insert(&mut self, slot: Slot) {
        ENTRIES.note(0, Operation::Head);
        self.array.push(slot);
    }

    #[inline]
    pub(crate) fn remove(&mut self, slot: Slot) {
        if let Some(place) = self.array.forget(slot) {
            ENTRIES.note(0, Operation::Tail);
            self.array.take(place);
        }
    }

    /// Returns a random member, which stays in the set.
    #[inline]
    pub(crate) fn draw(&mut self) -> Option<Slot> {
        ENTRIES.note(0, Operation::Draw);
        let members = &self.array.slots;
        (!members.is_empty()).then(|| members[self.random.below(members.len())])
    }

    /// Draws `samples` members and returns the one with the least `worth`.
    #[inline]
    pub(crate) fn worst<W: PartialOrd>(
        &mut self,
        samples: u64,
        worth: impl Fn(Slot) -> W,
    ) -> Option<Slot> {
        let mut worst = self.draw()?;
        let mut least = worth(worst);
        for _ in 1..samples {
            let slot = self.draw()?;
            let its = worth(slot);
            if its < least {
                (worst, least) = (slot, its);
            }
        }
        Some(worst)
    }

    pub(crate) fn transfer(&mut self, from: Slot, to: Slot) {
        self.array.transfer(from, to);
    }

    /// Appends a batch of members by class, class 0 first and [`CLASSES`](Self::CLASSES) - 1 last.
    /// Each class is one walk through the members from the last to the first, so that removing the
    /// returned members skips none.
    pub(crate) fn rank(
        &self,
        from: Cursor,
        out: &mut Vec<Slot>,
        class: impl Fn(Slot) -> u32,
    ) -> Cursor {
        let Cursor { mut part, mut at } = from;
        let mut left = Cursor::BATCH;
        while part < Self::CLASSES {
            let end = at
                .checked_sub(1)
                .map_or(self.members().len(), |end| self.members().len().min(end as usize));
            let start = end.saturating_sub(left);
            let seen = self.members()[start..end].iter().rev();
            out.extend(seen.filter(|&&slot| class(slot).min(Self::CLASSES - 1) == part));
            left -= end - start;
            if start > 0 {
                return Cursor { part, at: start as u32 + 1 };
            }
            (part, at) = (part + 1, 0);
        }
        Cursor::END
    }

    /// Number of classes that [`rank`](Self::rank) distinguishes.
    pub(crate) const CLASSES: u32 = 32;

    pub(crate) fn freeze(&mut self, slots: &[Slot]) {
        for &slot in slots {
            if self.contains(slot) {
                self.array.take(self.array.place(slot));
                self.array.freeze(slot);
            }
        }
    }

    /// Returns the frozen slots to the set and calls `back` with each.
    pub(crate) fn thaw(&mut self, back: impl Fn(Slot)) {
        for slot in self.array.frozen.take() {
            self.array.push(slot);
            back(slot);
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.array.memory_bytes()
    }
}

/// Implements the methods of [`Eviction`](crate::Eviction) that are equal for every policy whose
/// `order` is a [`Heap`] or a [`SampleSet`].
///
/// A set comes with the `marks` that store the last use, and the `class` by which a slot is ranked,
/// 0 for slots most worth keeping. The others name methods, where a policy has them: `resized` and
/// `moved` keep its own data per slot, `reweighed` stores the new weight of a slot, which otherwise
/// counts as one, and `memory` returns the bytes of its own data.
macro_rules! ordered_by_array {
    (
        order: $order:ident
        $(, marks: $marks:ident, class: |$this:ident, $slot:ident| $class:expr)?
        $(, resized: $resized:ident)? $(, moved: $moved:ident)?
        $(, reweighed: $reweighed:ident)? $(, memory: $memory:ident)?
    ) => {
        fn reserve(&mut self, slots: usize) {
            self.$order.reserve(slots);
            $($crate::Marks::reserve(&mut self.$marks, slots);)?
            $(self.$resized();)?
        }

        fn set_capacity(&mut self, _: u64) {}

        fn len(&self) -> usize {
            self.$order.len()
        }

        fn remove(&mut self, slot: $crate::Slot) {
            self.$order.remove(slot);
        }

        fn transfer(&mut self, from: $crate::Slot, to: $crate::Slot) {
            if from != to {
                self.$order.transfer(from, to);
                $(self.$marks.transfer(from, to);)?
                $(self.$moved(from, to);)?
            }
        }

        fn reweigh(&mut self, _slot: $crate::Slot, _weight: u32) {
            $(self.$reweighed(_slot, _weight);)?
        }

        fn rank(&self, from: $crate::Cursor, out: &mut Vec<$crate::Slot>) -> $crate::Cursor {
            $(let $this = self;)?
            self.$order.rank(from, out $(, |$slot| $class)?)
        }

        fn freeze(&mut self, slots: &[$crate::Slot]) {
            self.$order.freeze(slots);
        }

        fn thaw(&mut self) {
            self.$order.thaw(|_slot| {
                $(self.$marks.stamp(_slot);)?
            });
        }

        fn memory_bytes(&self) -> usize {
            self.$order.memory_bytes()
                $(+ $crate::Marks::memory_bytes(&self.$marks))?
                $(+ self.$memory())?
        }
    };
}
pub(crate) use ordered_by_array;
