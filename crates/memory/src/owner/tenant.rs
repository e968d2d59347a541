//! An entry as its shard's owner knows it: its hash, where that stands in the index, and its state.
//!
//! Eight bytes. Where the entry lies is said by the index, so a value that is replaced changes
//! nothing here; and its weight is beside this where entries are weighed.

use crate::index::{Hash32, Lane};

/// Holds what is known of the entry in a slot.
#[derive(Debug)]
pub(crate) struct Tenant {
    pub(crate) hash: Hash32,
    /// Where it stands in the index; [`Lane::NONE`] when there is no entry.
    pub(crate) lane: Lane,
    pub(crate) pinned: bool,
    pub(crate) frozen: bool,
    /// In which of two indexes it stands while keys are moved: in the new one if this is the
    /// owner's.
    pub(crate) era: bool,
}

impl Tenant {
    pub(crate) const NONE: Self =
        Self { hash: Hash32(0), lane: Lane::NONE, pinned: false, frozen: false, era: false };

    #[inline(always)]
    pub(crate) fn is_some(&self) -> bool {
        self.lane != Lane::NONE
    }

    /// Returns whether the order may evict or freeze it.
    #[inline(always)]
    pub(super) fn is_in_reach(&self) -> bool {
        self.is_some() && !(self.pinned | self.frozen)
    }
}
