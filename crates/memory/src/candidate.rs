//! An entry on its way in.

use std::mem::ManuallyDrop;
use std::num::NonZeroU64;

use crate::cell::Cell;
use crate::entry::{Entry, Head};
use crate::hash::KeyHash;

/// An entry that is to come in. Key and value stay where the caller has them until they have their
/// place: values can be large. If they get none, they are dropped with this.
#[derive(Debug)]
pub(crate) struct Candidate<'a, K, V> {
    pub(crate) hash: KeyHash,
    key: &'a mut ManuallyDrop<K>,
    value: &'a mut ManuallyDrop<V>,
    is_placed: bool,
    pub(crate) weight: u32,
    pub(crate) expiry: Head,
    /// The earliest time at which it can expire, in microseconds of the system's clock, where a
    /// sweep is needed.
    pub(crate) due: Option<NonZeroU64>,
    pub(crate) pinned: bool,
    /// No admission is to be asked about it: one has admitted it, or it succeeds another.
    pub(crate) is_admitted: bool,
    /// Does not replace an entry that is there: that is newer.
    pub(crate) yields: bool,
    /// Is a newer value of what is there, and pinned if that is.
    pub(crate) refreshes: bool,
    /// Is filled with the address of the entry before others can see it, to keep it for the caller.
    pub(crate) guard: Option<&'a Cell>,
}

impl<'a, K, V> Candidate<'a, K, V> {
    /// Takes over key and value; the caller neither uses nor drops them any more.
    #[inline(always)]
    pub(crate) fn new(
        hash: KeyHash,
        key: &'a mut ManuallyDrop<K>,
        value: &'a mut ManuallyDrop<V>,
    ) -> Self {
        let expiry = Head::never();
        Self {
            hash,
            key,
            value,
            is_placed: false,
            weight: 1,
            expiry,
            due: None,
            pinned: false,
            is_admitted: false,
            yields: false,
            refreshes: false,
            guard: None,
        }
    }

    pub(crate) fn key(&self) -> &K {
        self.key
    }

    pub(crate) fn value(&self) -> &V {
        self.value
    }

    /// Gives key and value back to the caller, who has them where they were.
    pub(crate) fn hand_back(mut self) {
        debug_assert!(!self.is_placed, "they have moved");
        self.is_placed = true;
    }

    /// Moves into memory for an entry.
    ///
    /// # Safety
    /// It may be written and holds no entry. Called once.
    pub(crate) unsafe fn settle(&mut self, slot: u32, entry: *mut Entry<K, V>) {
        self.is_placed = true;
        // SAFETY: the memory is the caller's to write. Key and value move there in one copy and
        // are not dropped here: they are in `ManuallyDrop`, and `is_placed` is set.
        unsafe {
            (&raw mut (*entry).head).write(self.expiry.at(slot));
            (&raw mut (*entry).key).copy_from_nonoverlapping(&raw const **self.key, 1);
            (&raw mut (*entry).value).copy_from_nonoverlapping(&raw const **self.value, 1);
        }
    }
}

impl<K, V> Drop for Candidate<'_, K, V> {
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
