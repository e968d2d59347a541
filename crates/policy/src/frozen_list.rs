//! The slots that are frozen, in the order in which they were: for orders that give them back best
//! first.
//!
//! Each frozen slot knows its place here, so that one that leaves or moves meanwhile is noted at
//! once, and memory stays in proportion to the number of frozen slots. The owner keeps the places.

use crate::Slot;

/// Marks the place of a slot that has left.
const GONE: Slot = Slot(u32::MAX);
/// Of the places, more than half and so many have to be left before they are closed up.
const GONE_MIN: usize = 64;

/// Frozen slots, best first.
#[derive(Debug, Clone, Default)]
pub(crate) struct FrozenList {
    slots: Vec<Slot>,
    gone: usize,
}

impl FrozenList {
    pub(crate) fn reserve(&mut self, more: usize) {
        self.slots.reserve(more);
    }

    /// The number of frozen slots.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.gone
    }

    /// Adds a slot behind the others and answers its place.
    pub(crate) fn push(&mut self, slot: Slot) -> u32 {
        self.slots.push(slot);
        self.slots.len() as u32 - 1
    }

    /// Another slot has taken over.
    pub(crate) fn replace(&mut self, place: u32, slot: Slot) {
        self.slots[place as usize] = slot;
    }

    /// The slot in this place has left. Others may get new places by that, which `moved` is told.
    pub(crate) fn leave(&mut self, place: u32, mut moved: impl FnMut(Slot, u32)) {
        self.slots[place as usize] = GONE;
        self.gone += 1;
        if self.gone > GONE_MIN && self.gone > self.slots.len() / 2 {
            self.slots.retain(|&slot| slot != GONE);
            self.gone = 0;
            self.slots.iter().enumerate().for_each(|(place, &slot)| moved(slot, place as u32));
        }
    }

    /// Takes all out, best first.
    pub(crate) fn take(&mut self) -> impl DoubleEndedIterator<Item = Slot> + use<> {
        self.gone = 0;
        std::mem::take(&mut self.slots).into_iter().filter(|&slot| slot != GONE)
    }

    /// Takes the last one out. After the last of all its memory is free.
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

    /// All of them, best first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = Slot> + '_ {
        self.slots.iter().copied().filter(|&slot| slot != GONE)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
    }
}
