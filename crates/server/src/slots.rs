//! A map from small numbers, which are reused, to values such as a worker's sessions.

use std::ops::{Index, IndexMut};

#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        self.insert_with(|_| value)
    }

    /// Inserts the value that `make` returns for its number. Returns the number.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> u32 {
        let index = self.free.pop().unwrap_or(self.slots.len() as u32);
        if index as usize == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[index as usize] = Some(make(index));
        index
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.slots[index as usize].take();
        if value.is_some() {
            self.free.push(index);
        }
        value
    }

    pub(crate) fn contains(&self, index: u32) -> bool {
        self.slots.get(index as usize).is_some_and(Option::is_some)
    }

    pub(crate) fn indices(&self) -> Vec<u32> {
        (0..self.slots.len() as u32).filter(|&index| self.contains(index)).collect()
    }

    /// Returns all values with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.slots).filter_map(|(index, slot)| Some((index, slot.as_ref()?)))
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Index<u32> for Slots<T> {
    type Output = T;

    fn index(&self, index: u32) -> &T {
        self.slots[index as usize].as_ref().expect("the slot is taken")
    }
}

impl<T> IndexMut<u32> for Slots<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        self.slots[index as usize].as_mut().expect("the slot is taken")
    }
}
