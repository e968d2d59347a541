//! A key and a value that have yet to move into the memory of an entry.

use std::mem::ManuallyDrop;

use crate::entry::{Entry, Head};
use crate::hash::KeyHash;

/// A key and a value on their way in. They stay where the caller has them until they have their
/// place: values can be large. If they get none, they are dropped with this: by a caller that has
/// no lock then, as they are the user's.
#[derive(Debug)]
pub(crate) struct Unplaced<'a, K, V> {
    pub(crate) hash: KeyHash,
    key: &'a mut ManuallyDrop<K>,
    value: &'a mut ManuallyDrop<V>,
    is_placed: bool,
}

impl<'a, K, V> Unplaced<'a, K, V> {
    /// Takes over key and value; the caller neither uses nor drops them any more.
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

    /// Moves into memory for an entry, which gets a head.
    ///
    /// # Safety
    /// It may be written and holds no entry. Called once.
    #[inline(always)]
    pub(crate) unsafe fn settle(&mut self, head: Head, entry: *mut Entry<K, V>) {
        self.is_placed = true;
        // SAFETY: the memory is the caller's to write. Key and value move there in one copy and
        // are not dropped here: they are in `ManuallyDrop`, and `is_placed` is set.
        unsafe {
            (&raw mut (*entry).head).write(head);
            (&raw mut (*entry).key).copy_from_nonoverlapping(&raw const **self.key, 1);
            (&raw mut (*entry).value).copy_from_nonoverlapping(&raw const **self.value, 1);
        }
    }

    /// Gives key and value back to the caller, who has them where they were.
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
