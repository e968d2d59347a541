//! The [renewals](crate::renewal::Renewal) of a shard's entries, by slot.
//!
//! Most entries have none. So renewals are not part of an entry: a shard has an array of them once
//! one of its entries has needed it.
//!
//! The owner stores the renewal of a slot before it publishes the entry there, so a reader that has
//! found the entry sees it in the present table. A reader that is late sees that of the slot's next
//! entry, and may give the earlier one another expiry; nobody finds that one any more. A reader
//! that keeps entries for later takes their renewals under the owner's lock.

use crate::sync::{Arc, AtomicU64, Ordering};

/// The bits of renewals, by slot. Clones are handles to the same array.
#[derive(Debug, Clone)]
pub(crate) struct Renewals(Arc<[AtomicU64]>);

impl Renewals {
    /// Creates the array of a shard in which no entry has needed a renewal so far.
    pub(crate) fn none() -> Self {
        Self(Arc::new([]))
    }

    /// Returns true if no entry has needed a renewal so far.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns an array for slots `0..slots` that begins with a copy of this one. Only the owner
    /// may call this.
    pub(crate) fn grown(&self, slots: usize) -> Self {
        Self((0..slots).map(|slot| AtomicU64::new(self.bits(slot as u32))).collect())
    }

    /// Returns the bits for the entry in a slot, which can expire; 0 stands for none.
    pub(crate) fn bits(&self, slot: u32) -> u64 {
        // Relaxed: the entry was published after they were stored.
        self.0.get(slot as usize).map_or(0, |bits| bits.load(Ordering::Relaxed))
    }

    /// Stores the bits for an entry that is not published yet. Only the owner may call this.
    pub(crate) fn set(&self, slot: u32, bits: u64) {
        if let Some(stored) = self.0.get(slot as usize) {
            stored.store(bits, Ordering::Relaxed); // as in `bits`
        }
    }

    /// Returns the bytes of memory held.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}
