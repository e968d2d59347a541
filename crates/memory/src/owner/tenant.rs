//! An entry as its shard's owner knows it: its place, its weight, and its state.

use crate::index::{Hash32, Lane};
use crate::places::NOWHERE;

/// Holds what is known of the entry in a slot.
#[derive(Debug)]
pub(crate) struct Tenant {
    /// Where the entry lies; [`NOWHERE`] when there is none.
    pub(crate) place: u32,
    pub(crate) hash: Hash32,
    pub(crate) weight: u32,
    pub(crate) lane: Lane,
    pub(crate) pinned: bool,
    pub(crate) frozen: bool,
    /// In which of two indexes it stands while keys are moved: in the new one if this is the
    /// owner's.
    pub(crate) era: bool,
}

impl Tenant {
    pub(crate) const NONE: Self = Self {
        place: NOWHERE,
        hash: Hash32(0),
        weight: 0,
        lane: Lane::NONE,
        pinned: false,
        frozen: false,
        era: false,
    };

    pub(crate) fn is_some(&self) -> bool {
        self.place != NOWHERE
    }

    /// Returns whether the order may evict or freeze it.
    #[inline(always)]
    pub(super) fn is_in_reach(&self) -> bool {
        self.is_some() && !(self.pinned | self.frozen)
    }
}
