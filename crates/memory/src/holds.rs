//! Entries held by guards that may travel between threads and outlive the cache: a table of
//! addresses under one lock.
//!
//! A [`Hold`] is made while a guard names the entry, and a reclaimer reads this table after all
//! cells: so a guard can become a hold, and the entry is seen in one place or the other. The way
//! back is [`Records::adopt`](crate::records::Records::adopt)'s.
//!
//! A cache that ends leaves what is held to its holders (an [`Estate`]): the last hold of an entry
//! drops it, and the last of all gives the memory back.

use std::collections::HashMap;
use std::time::Instant;

use crate::sync::{Arc, Mutex, MutexGuard, lock, lock_until};

/// Room for so many addresses is kept.
const ROOM: usize = 64;

/// Holds what is held of one cache.
#[derive(Debug, Default)]
pub(crate) struct Holds(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// Counts how many hold each entry, by its address.
    counts: HashMap<usize, usize, foldhash::fast::RandomState>,
    /// Tells what the cache has left, once it has ended.
    estate: Option<Arc<Estate>>,
}

/// The lock of what is held, for a fork.
pub(crate) struct HoldsLock<'a>(
    #[expect(dead_code, reason = "dropped")] Option<MutexGuard<'a, Table>>,
);

/// Keeps an entry, wherever this is and whether or not the cache is still there.
#[derive(Debug)]
pub(crate) struct Hold {
    holds: Arc<Holds>,
    address: usize,
}

impl Holds {
    /// Takes the lock for a fork.
    pub(crate) fn locked(&self, until: Instant) -> HoldsLock<'_> {
        HoldsLock(lock_until(&self.0, until))
    }

    /// Holds the entry at an address, which a guard of the caller's or another hold keeps
    /// meanwhile.
    pub(crate) fn hold(self: &Arc<Self>, address: usize) -> Hold {
        *lock(&self.0).counts.entry(address).or_insert(0) += 1;
        Hold { holds: Arc::clone(self), address }
    }

    /// Returns whether no entry is held.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).counts.is_empty()
    }

    /// Appends those of some addresses that are held, and returns how many were looked at: none
    /// where nothing is held.
    pub(crate) fn held_of(
        &self,
        addresses: impl Iterator<Item = usize>,
        out: &mut Vec<usize>,
    ) -> usize {
        let table = lock(&self.0);
        if table.counts.is_empty() {
            return 0;
        }
        let mut visited = 0;
        out.extend(addresses.inspect(|_| visited += 1).filter(|it| table.counts.contains_key(it)));
        visited
    }

    /// Appends the addresses of all that is held, and returns how many they are.
    pub(crate) fn held(&self, out: &mut Vec<usize>) -> usize {
        let table = lock(&self.0);
        out.extend(table.counts.keys());
        table.counts.len()
    }

    /// Leaves the held entries to their holders, and returns them in order. The cache drops none of
    /// them from here on.
    pub(crate) fn leave(&self, estate: &Arc<Estate>) -> Vec<usize> {
        let mut table = lock(&self.0);
        let mut held: Vec<_> = table.counts.keys().copied().collect();
        table.estate = (!held.is_empty()).then(|| Arc::clone(estate));
        held.sort_unstable();
        held
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut table = lock(&self.holds.0);
        let count = table.counts.get_mut(&self.address).expect("counted while this is there");
        *count -= 1;
        if *count > 0 {
            return;
        }
        table.counts.remove(&self.address);
        let (len, room) = (table.counts.len(), table.counts.capacity());
        if room > ROOM && room > 8 * len {
            table.counts.shrink_to(2 * len); // whoever reclaims goes through it
        }
        let estate = if len == 0 { table.estate.take() } else { table.estate.clone() };
        drop(table);
        if let Some(estate) = estate {
            // SAFETY: left to its holders, of which this was the last; the estate has its memory.
            unsafe { (estate.drop_entry)(self.address) };
        }
    }
}

/// The memory of entries that outlive their cache.
#[derive(Debug)]
pub(crate) struct Estate {
    /// From a box.
    memory: *mut (),
    free: unsafe fn(*mut ()),
    drop_entry: unsafe fn(usize),
}

// SAFETY: only memory, and how to drop what is in it, which is `Send` and `Sync` wherever a hold
// can be made.
unsafe impl Send for Estate {}
// SAFETY: as above.
unsafe impl Sync for Estate {}

impl Estate {
    /// Of some memory that has entries in it.
    ///
    /// # Safety
    /// The entries that are [left](Holds::leave) with it are valid, lie in that memory, and are
    /// dropped by no other code. They and the memory may be dropped by any thread and at any time.
    pub(crate) unsafe fn new<E, M>(memory: M) -> Arc<Self> {
        /// # Safety
        /// The address is that of an entry to be dropped.
        unsafe fn drop_entry<E>(address: usize) {
            // SAFETY: the caller says so.
            unsafe { std::ptr::with_exposed_provenance_mut::<E>(address).drop_in_place() };
        }
        /// # Safety
        /// `memory` is that of `new`, and this its last use.
        unsafe fn free<M>(memory: *mut ()) {
            // SAFETY: from `Box::into_raw`, of that type.
            drop(unsafe { Box::from_raw(memory.cast::<M>()) });
        }
        let memory = Box::into_raw(Box::new(memory)).cast();
        Arc::new(Self { memory, free: free::<M>, drop_entry: drop_entry::<E> })
    }
}

impl Drop for Estate {
    fn drop(&mut self) {
        // SAFETY: no user of it is left.
        unsafe { (self.free)(self.memory) };
    }
}
