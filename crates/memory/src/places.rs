//! From the number of a place to the address of the entry there.
//!
//! An index has numbers of 32 bits in place of addresses, so that twice as many keys fit into a
//! cache line. A slab takes its memory in chunks; the upper bits of a number say which chunk, the
//! lower ones which entry of it, counted from 1. Number 0 is no place.

use crate::sync::{AtomicUsize, Ordering};

/// The number of no place.
pub(crate) const NOWHERE: u32 = 0;
/// Bits of a number that say which entry of its chunk.
const ENTRY_BITS: u32 = 24;
/// Chunks of a slab at most.
pub(crate) const CHUNKS: usize = 1 << (u32::BITS - ENTRY_BITS);
/// Entries of a chunk at most.
pub(crate) const ENTRIES: usize = (1 << ENTRY_BITS) - 1;

/// Where the chunks of a slab lie.
#[derive(Debug)]
pub(crate) struct Places {
    /// For each chunk, where place 0 would lie if the numbers before the chunk's were places, too.
    bases: [AtomicUsize; CHUNKS],
}

impl Places {
    pub(crate) fn new() -> Self {
        Self { bases: std::array::from_fn(|_| AtomicUsize::new(0)) }
    }

    /// Notes where a chunk begins, before any number of a place in it is shared.
    pub(crate) fn add<E>(&self, chunk: usize, begin: usize) {
        let before = (chunk << ENTRY_BITS) + 1;
        let base = begin.wrapping_sub(before.wrapping_mul(size_of::<E>()));
        self.bases[chunk].store(base, Ordering::Relaxed); // the index publishes it with a number
    }

    /// The number of an entry's place.
    ///
    /// # Panics
    /// When the chunk or the entry has a number that is too high.
    #[inline(always)]
    pub(crate) fn number(chunk: usize, entry: usize) -> u32 {
        assert!(chunk < CHUNKS && entry < ENTRIES, "there are no numbers for so many places");
        (chunk as u32) << ENTRY_BITS | (entry as u32 + 1)
    }

    /// The address of a place.
    #[inline(always)]
    pub(crate) fn address<E>(&self, place: u32) -> usize {
        // Relaxed: the place's number was read with Acquire, or by the owner.
        let base = self.bases[(place >> ENTRY_BITS) as usize].load(Ordering::Relaxed);
        base.wrapping_add((place as usize).wrapping_mul(size_of::<E>()))
    }
}
