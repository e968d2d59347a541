//! An entry as its shard's owner knows it: its place in the index, its weight, and its state.

use super::gone::RetiredOf;
use crate::entry::Entry;
use crate::index::{Hash32, Lane};
use crate::limbo::Retired;

/// Holds what is known of the entry in a slot.
#[derive(Debug)]
pub(crate) struct Tenant<K, V> {
    /// Null when there is none.
    pub(crate) entry: *mut Entry<K, V>,
    pub(crate) hash: Hash32,
    pub(crate) lane: Lane,
    pub(crate) weight: u32,
    pub(crate) pinned: bool,
    pub(crate) frozen: bool,
    /// In which of two indexes it stands while keys are moved: in the new one if this is the
    /// owner's.
    pub(crate) era: bool,
}

impl<K, V> Tenant<K, V> {
    pub(crate) const NONE: Self = Self {
        entry: std::ptr::null_mut(),
        hash: Hash32(0),
        lane: Lane::NONE,
        weight: 0,
        pinned: false,
        frozen: false,
        era: false,
    };

    pub(crate) fn is_some(&self) -> bool {
        !self.entry.is_null()
    }

    /// Returns whether the order may evict or freeze it.
    #[inline(always)]
    pub(super) fn is_in_reach(&self) -> bool {
        self.is_some() && !(self.pinned | self.frozen)
    }

    /// It has been taken out of the index, where it had a place.
    pub(crate) fn retire(self, place: u32) -> RetiredOf<K, V> {
        Retired { entry: self.entry, place, weight: self.weight }
    }
}
