//! A heap of slots by a key that can change, for policies that evict the least of something.
//!
//! Each node has four children in a flat array, the least key at the root. The place of each slot
//! is stored, so that its key can change. Frozen slots leave the heap but keep their key. A slot
//! takes eight bytes and its key.

use crate::count::{Names, Operation};
use crate::lists::FrozenList;
use crate::{Cursor, Slot};

const CHILDREN: usize = 4;
/// Stored place of a slot that is neither in the heap nor frozen.
const OUT: u32 = u32::MAX;
/// Flag in the stored place of a frozen slot; the other bits are its place in the frozen list.
const FROZEN: u32 = 1 << 31;

/// Name under which heap operations are counted: each costs at least as much as a list operation.
const NAMES: Names<1> = Names::new(["heap"]);

/// A heap of slots by key. The key is a number, or a pair whose second number breaks ties.
#[derive(Debug, Clone, Default)]
pub(crate) struct Heap<K = u64> {
    heap: Vec<Slot>,
    places: Vec<u32>,
    keys: Vec<K>,
    frozen: FrozenList,
}

impl<K: Copy + Default + Ord> Heap<K> {
    pub(crate) fn reserve(&mut self, slots: usize) {
        if slots > self.places.len() {
            self.heap.reserve(slots - self.heap.len());
            self.places.resize(slots, OUT);
            self.keys.resize(slots, K::default());
        }
    }

    pub(crate) fn slots(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len() + self.frozen.len()
    }

    pub(crate) fn contains(&self, slot: Slot) -> bool {
        self.places[slot.index()] < FROZEN
    }

    pub(crate) fn key(&self, slot: Slot) -> K {
        self.keys[slot.index()]
    }

    pub(crate) fn push(&mut self, slot: Slot, key: K) {
        debug_assert_eq!(self.places[slot.index()], OUT, "slot {} is in the order already", slot.0);
        NAMES.note(0, Operation::Head);
        self.keys[slot.index()] = key;
        self.heap.push(slot);
        self.sift_up(self.heap.len() - 1);
    }

    /// Changes the key of a slot in the heap; ignores other slots.
    pub(crate) fn change(&mut self, slot: Slot, key: K) {
        if self.contains(slot) {
            NAMES.note(0, Operation::Delink);
            NAMES.note(0, Operation::Head);
            let before = std::mem::replace(&mut self.keys[slot.index()], key);
            let place = self.places[slot.index()] as usize;
            if key < before { self.sift_up(place) } else { self.sift_down(place) }
        }
    }

    /// Changes the key of a slot in the heap or frozen.
    pub(crate) fn correct(&mut self, slot: Slot, key: K) {
        match self.places[slot.index()] {
            OUT => {}
            frozen if frozen >= FROZEN => self.keys[slot.index()] = key,
            _ => self.change(slot, key),
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Slot> {
        let least = *self.heap.first()?;
        NAMES.reached(0, Some(least));
        self.remove(least);
        Some(least)
    }

    pub(crate) fn remove(&mut self, slot: Slot) {
        match std::mem::replace(&mut self.places[slot.index()], OUT) {
            OUT => {}
            frozen if frozen >= FROZEN => {
                let places = &mut self.places;
                self.frozen
                    .leave(frozen - FROZEN, |slot, place| places[slot.index()] = FROZEN + place);
            }
            place => {
                NAMES.left(0, slot);
                self.take(place as usize);
            }
        }
    }

    fn take(&mut self, place: usize) {
        self.heap.swap_remove(place);
        if place < self.heap.len() {
            self.sift_up(place);
            let moved = self.heap[place];
            self.sift_down(self.places[moved.index()] as usize);
        }
    }

    fn sift_up(&mut self, mut place: usize) {
        let slot = self.heap[place];
        while place > 0 {
            let parent = (place - 1) / CHILDREN;
            if self.key(self.heap[parent]) <= self.key(slot) {
                break;
            }
            self.put(place, self.heap[parent]);
            place = parent;
        }
        self.put(place, slot);
    }

    fn sift_down(&mut self, mut place: usize) {
        let slot = self.heap[place];
        loop {
            let children =
                place * CHILDREN + 1..(place * CHILDREN + 1 + CHILDREN).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.key(self.heap[child])) else {
                break;
            };
            if self.key(self.heap[least]) >= self.key(slot) {
                break;
            }
            self.put(place, self.heap[least]);
            place = least;
        }
        self.put(place, slot);
    }

    fn put(&mut self, place: usize, slot: Slot) {
        self.heap[place] = slot;
        self.places[slot.index()] = place as u32;
    }

    pub(crate) fn transfer(&mut self, from: Slot, to: Slot) {
        let place = std::mem::replace(&mut self.places[from.index()], OUT);
        self.places[to.index()] = place;
        self.keys[to.index()] = self.keys[from.index()];
        match place {
            OUT => {}
            frozen if frozen >= FROZEN => self.frozen.replace(frozen - FROZEN, to),
            place => self.heap[place as usize] = to,
        }
    }

    /// Appends a batch of slots, walking from the leaves to the root: roughly, not exactly, from
    /// the greatest key to the least.
    pub(crate) fn rank(&self, from: Cursor, out: &mut Vec<Slot>) -> Cursor {
        let end = if from == Cursor::START {
            self.heap.len()
        } else {
            self.heap.len().min(from.at as usize)
        };
        let start = end.saturating_sub(Cursor::BATCH);
        out.extend(self.heap[start..end].iter().rev());
        if start == 0 { Cursor::END } else { Cursor { part: 1, at: start as u32 } }
    }

    pub(crate) fn freeze(&mut self, slots: &[Slot]) {
        for &slot in slots {
            if self.contains(slot) {
                self.take(self.places[slot.index()] as usize);
                self.places[slot.index()] = FROZEN + self.frozen.push(slot);
            }
        }
    }

    pub(crate) fn thaw(&mut self) {
        for slot in self.frozen.take() {
            self.heap.push(slot);
            self.sift_up(self.heap.len() - 1);
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        (self.heap.capacity() + self.places.capacity()) * size_of::<u32>()
            + self.frozen.memory_bytes()
            + self.keys.capacity() * size_of::<K>()
    }
}

/// Implements the methods of [`Eviction`](crate::Eviction) that are equal for every policy whose
/// order is a [`Heap`].
macro_rules! ordered_by_heap {
    (
        order: $order:ident
        $(, resized: $resized:ident)? $(, moved: $moved:ident)? $(, memory: $memory:ident)?
        $(, reweighed: $reweighed:ident)?
    ) => {
        fn reserve(&mut self, slots: usize) {
            self.$order.reserve(slots);
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
                $(self.$moved(from, to);)?
            }
        }

        /// Ignores the weight: each entry counts as one towards the capacity.
        fn reweigh(&mut self, slot: $crate::Slot, weight: u32) {
            let _ = (slot, weight);
            $(self.$reweighed(slot, weight);)?
        }

        fn rank(&self, from: $crate::Cursor, out: &mut Vec<$crate::Slot>) -> $crate::Cursor {
            self.$order.rank(from, out)
        }

        fn freeze(&mut self, slots: &[$crate::Slot]) {
            self.$order.freeze(slots);
        }

        fn thaw(&mut self) {
            self.$order.thaw();
        }

        fn memory_bytes(&self) -> usize {
            self.$order.memory_bytes() $(+ self.$memory())?
        }
    };
}
pub(crate) use ordered_by_heap;
