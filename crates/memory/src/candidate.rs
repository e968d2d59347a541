//! An entry on its way in.

use std::num::NonZeroU64;

use crate::cell::Cell;
use crate::entry::{Entry, Head};
use crate::unplaced::Unplaced;

/// An entry that is to come in. Its key and value are dropped with this if they get no place.
#[derive(Debug)]
pub(crate) struct Candidate<'a, K, V> {
    pub(crate) unplaced: Unplaced<'a, K, V>,
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
    /// Of weight 1, which never expires.
    #[inline(always)]
    pub(crate) fn new(unplaced: Unplaced<'a, K, V>) -> Self {
        Self {
            unplaced,
            weight: 1,
            expiry: Head::never(),
            due: None,
            pinned: false,
            is_admitted: false,
            yields: false,
            refreshes: false,
            guard: None,
        }
    }

    /// Gives key and value back to the caller, who has them where they were.
    pub(crate) fn hand_back(self) {
        self.unplaced.hand_back();
    }

    /// Moves into memory for an entry.
    ///
    /// # Safety
    /// It may be written and holds no entry. Called once.
    pub(crate) unsafe fn settle(&mut self, slot: u32, entry: *mut Entry<K, V>) {
        // SAFETY: as the caller says.
        unsafe { self.unplaced.settle(self.expiry.at(slot), entry) };
    }
}
