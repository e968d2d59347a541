//! Values of a host's cache, with their charge and the count of their owners, and the sums of the
//! charges.

use crate::entry::Entry;
use crate::sync::{AtomicUsize, Ordering};

/// Of a node's state: it is in no cache, but in memory of its own.
pub(super) const ALONE: usize = 1;
/// Of a node's state: it was found outside of the cache with an owner, so its charge is in
/// [`Sums::kept`].
const KEPT: usize = 2;
/// In a node's state: one owner by count.
const OWNER: usize = 4;

/// The sums of the charges of a cache's values.
#[derive(Debug, Default)]
#[repr(align(128))] // hits write none of it, and read nothing beside it
pub(super) struct Sums {
    /// Of all values that were not dropped yet.
    pub(super) usage: AtomicUsize,
    /// Of those that are outside of the cache with an owner.
    pub(super) kept: AtomicUsize,
    /// Of those that have an owner by count.
    pub(super) counted: AtomicUsize,
}

/// A value with its charge: what entries of a host's cache hold. It cannot be made outside.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Node<V> {
    /// Owners by count, and [`ALONE`] and [`KEPT`].
    state: AtomicUsize,
    charge: usize,
    sums: *const Sums,
    pub(super) value: V,
}

// SAFETY: the sums are atomics and live longer, and all else is the value.
unsafe impl<V: Send> Send for Node<V> {}
// SAFETY: as above.
unsafe impl<V: Sync> Sync for Node<V> {}

impl<V> Node<V> {
    /// A value whose charge is in the usage already.
    ///
    /// # Safety
    /// The sums live longer than the node.
    pub(super) unsafe fn new(value: V, charge: usize, sums: &Sums) -> Self {
        Self { state: AtomicUsize::new(0), charge, sums, value }
    }

    fn sums(&self) -> &Sums {
        // SAFETY: see `new`.
        unsafe { &*self.sums }
    }

    pub(super) fn charge(&self) -> usize {
        self.charge
    }

    /// The weight of the entry in the cache.
    pub(super) fn weight(&self) -> u32 {
        u32::try_from(self.charge).unwrap_or(u32::MAX)
    }

    /// Adds an owner. The caller is one, or has a cell that names the entry.
    pub(super) fn add_owner(&self) {
        // Relaxed: a reclaimer comes to know of the first owner by the cell that was cleared after
        // this, and of another by the one that made it.
        if self.state.fetch_add(OWNER, Ordering::Relaxed) < OWNER {
            self.sums().counted.fetch_add(self.charge, Ordering::Relaxed); // a sum
        }
    }

    /// Takes an owner away. Returns true if it was the last of a node that is in no cache, which
    /// the caller drops then; otherwise the node may be gone.
    pub(super) fn drop_owner(&self) -> bool {
        let (sums, charge) = (self.sums, self.charge);
        // Release: what this owner did with the value comes before its end. Acquire: and so did
        // what others did, where this thread is the one to end it.
        let before = self.state.fetch_sub(OWNER, Ordering::AcqRel);
        if before < 2 * OWNER {
            // SAFETY: see `new`; the cache is there as long as a handle.
            unsafe { &*sums }.counted.fetch_sub(charge, Ordering::Relaxed); // a sum
        }
        before & !KEPT == OWNER | ALONE
    }

    /// Returns how many owners there are by count.
    pub(super) fn owners(&self) -> usize {
        // Acquire: pairs with the Release of the last owner, for whoever drops the node.
        self.state.load(Ordering::Acquire) / OWNER
    }

    /// Makes it one that is in no cache, with one owner.
    pub(super) fn stand_alone(&self) {
        self.state.store(OWNER | ALONE | KEPT, Ordering::Relaxed); // nobody else has it yet
        self.sums().counted.fetch_add(self.charge, Ordering::Relaxed); // a sum
        self.sums().kept.fetch_add(self.charge, Ordering::Relaxed); // as above
    }

    /// Asked of an entry that has left the cache: whether an owner keeps it. `is_named` says that a
    /// cell does.
    pub(super) fn is_kept(&self, is_named: bool) -> bool {
        let kept = is_named || self.owners() > 0;
        // Relaxed: one reclaimer at a time has the entry.
        if kept && self.state.fetch_or(KEPT, Ordering::Relaxed) & KEPT == 0 {
            self.sums().kept.fetch_add(self.charge, Ordering::Relaxed); // a sum
        }
        kept
    }
}

impl<V> Drop for Node<V> {
    fn drop(&mut self) {
        let is_kept = self.state.load(Ordering::Relaxed) & KEPT != 0; // nobody else has it
        let sums = self.sums();
        if is_kept {
            sums.kept.fetch_sub(self.charge, Ordering::Relaxed); // a sum
        }
        sums.usage.fetch_sub(self.charge, Ordering::Relaxed); // as above
    }
}

/// An entry of a host's cache.
pub(super) type EntryOf<K, V> = Entry<K, Node<V>>;
