//! A part of a cache: what hits go through without a lock, and the lock for all else.

use std::ptr::NonNull;
use std::time::Instant;

use floe_policy::Eviction;

use crate::entry::Entry;
use crate::flight::Flights;
use crate::index::Hash32;
use crate::owner::{Owner, TableOf};
use crate::places::Places;
use crate::sync::{Arc, AtomicPtr, AtomicUsize, Mutex, MutexGuard, Ordering, lock, lock_until};
use crate::thrown::FirstPanic;

/// Something on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Apart<T>(T);

/// Where the table of a shard is published.
///
/// A table that was replaced is freed with its shard, not before: readers need not say which one
/// they look at. There are few, as a shard grows by a quarter at least, and the memory of their
/// indexes goes back to the system.
pub(crate) struct Published<'a, P: Eviction>(pub(crate) &'a AtomicPtr<TableOf<P>>);

impl<P: Eviction> Clone for Published<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Eviction> Copy for Published<'_, P> {}

impl<'a, P: Eviction> Published<'a, P> {
    /// The present table.
    #[inline(always)]
    pub(crate) fn table(self) -> &'a TableOf<P> {
        // SAFETY: a table lives as long as the shard, which this borrows. Acquire: it was whole
        // before it was published; and what was taken out of it before is not found in it.
        unsafe { &*self.0.load(Ordering::Acquire) }
    }
}

/// A shard.
#[repr(C)]
pub(crate) struct Shard<K, V, P: Eviction> {
    /// Where the table is published: written when the shard grows, and outlives this.
    table: NonNull<AtomicPtr<TableOf<P>>>,
    owner: Apart<Owned<Owner<K, V, P>>>,
    /// Loads under way.
    pub(crate) flights: Mutex<Flights<K, V>>,
    /// Where entries lie.
    places: Arc<Places>,
}

/// Holds what is under the lock, and what is looked at with it.
#[derive(Debug)]
#[repr(C)] // on one line
struct Owned<T> {
    /// Loads that are or were just under way. Goes up under the lock.
    loading: AtomicUsize,
    owner: Mutex<T>,
}

// SAFETY: the table's raw memory holds keys and values, which are `Send` and `Sync` where the cache
// is to be shared. Everything else in here is shared by locks and atomics.
unsafe impl<K: Send + Sync, V: Send + Sync, P: Eviction<Marks: Send + Sync> + Send> Sync
    for Shard<K, V, P>
{
}
// SAFETY: as above.
unsafe impl<K: Send, V: Send, P: Eviction + Send> Send for Shard<K, V, P> {}

impl<K, V, P: Eviction> Shard<K, V, P> {
    /// A shard whose table is published at a place of its own.
    ///
    /// # Safety
    /// The place outlives the shard.
    pub(crate) unsafe fn new(
        owner: Owner<K, V, P>,
        table: TableOf<P>,
        at: &AtomicPtr<TableOf<P>>,
    ) -> Self {
        let places = Arc::clone(&table.places);
        // Release: a thread that sees the table sees it whole.
        at.store(Box::into_raw(Box::new(table)), Ordering::Release);
        Self {
            table: NonNull::from(at),
            owner: Apart(Owned { loading: AtomicUsize::new(0), owner: Mutex::new(owner) }),
            flights: Mutex::default(),
            places,
        }
    }

    /// The entry that is, or was, at a place.
    pub(crate) fn entry(&self, place: u32) -> *mut Entry<K, V> {
        std::ptr::with_exposed_provenance_mut(self.places.address::<Entry<K, V>>(place))
    }

    /// Where the table is published.
    pub(crate) fn published(&self) -> Published<'_, P> {
        // SAFETY: it outlives the shard, as whoever made it has promised.
        Published(unsafe { self.table.as_ref() })
    }

    /// Takes the lock.
    pub(crate) fn owner(&self) -> MutexGuard<'_, Owner<K, V, P>> {
        lock(&self.owner.0.owner)
    }

    /// Asks for what an insertion writes beside the lock: it is on its way while the lock is.
    #[inline(always)]
    pub(crate) fn prefetch_to_write(&self, hash: Hash32) {
        let owned = (&raw const self.owner).cast::<u8>();
        crate::prefetch::line_to_write(owned.wrapping_add(64));
        self.published().table().index.prefetch_to_write(hash);
    }

    /// Returns the owner, for code that has the shard exclusively.
    pub(crate) fn owner_mut(&mut self) -> &mut Owner<K, V, P> {
        // see `sync::lock`
        self.owner.0.owner.get_mut().unwrap_or_else(crate::sync::PoisonError::into_inner)
    }

    /// The entries of all slots and those that wait, for the end.
    pub(crate) fn take_entries(&mut self) -> Vec<*mut Entry<K, V>> {
        let table: *const _ = self.table();
        // SAFETY: it lives as long as the shard.
        let table = unsafe { &*table };
        self.owner_mut().take_entries(table)
    }

    /// Takes the lock if it is free.
    pub(crate) fn try_owner(&self) -> Option<MutexGuard<'_, Owner<K, V, P>>> {
        match self.owner.0.owner.try_lock() {
            Ok(owner) => Some(owner),
            // see `sync::lock`
            Err(std::sync::TryLockError::Poisoned(owner)) => Some(owner.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// For the owner, that is with the lock held: whether a load may be under way.
    #[inline(always)]
    pub(crate) fn is_loading(&self) -> bool {
        self.owner.0.loading.load(Ordering::Relaxed) != 0 // counted under the lock
    }

    /// Counts a load, whose flight is attached.
    pub(crate) fn begins_loading(&self) {
        let owner = self.owner();
        self.owner.0.loading.fetch_add(1, Ordering::Relaxed); // the lock orders
        drop(owner);
    }

    /// A load has brought in what it brings, or never will. It was counted, unless the process has
    /// forked since.
    pub(crate) fn ends_loading(&self, is_counted: bool) {
        if is_counted {
            // seen late, a thread only looks for flights in vain
            self.owner.0.loading.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// In a forked process: so many loads are under way.
    pub(crate) fn loads_only(&self, loads: usize) {
        self.owner.0.loading.store(loads, Ordering::Relaxed); // there is one thread
    }

    /// Takes the lock for a fork.
    pub(crate) fn owner_until(&self, until: Instant) -> Option<MutexGuard<'_, Owner<K, V, P>>> {
        lock_until(&self.owner.0.owner, until)
    }

    /// For the owner, that is with the lock held: the present table.
    pub(crate) fn table(&self) -> &TableOf<P> {
        self.published().table()
    }

    /// For the owner: publishes another table, and returns the old one, to be freed with the shard.
    pub(crate) fn replace_table(&self, table: TableOf<P>) -> *mut TableOf<P> {
        // Release: a thread that sees the table sees it whole.
        self.published().0.swap(Box::into_raw(Box::new(table)), Ordering::AcqRel)
    }
}

impl<K, V, P: Eviction> Drop for Shard<K, V, P> {
    fn drop(&mut self) {
        let entries = self.take_entries();
        let present = self.published().0.load(Ordering::Relaxed); // nobody else is left
        let replaced = std::mem::take(&mut self.owner_mut().replaced_tables);
        // SAFETY: no other user is left, so tables and entries may be freed: guards borrow the
        // cache or keep it alive.
        unsafe {
            replaced.into_iter().chain([present]).for_each(|table| drop(Box::from_raw(table)));
            drop_all(entries.into_iter());
        }
    }
}

/// Drops entries in place, also where the user's code panics for some. The first panic is raised
/// after all of them.
///
/// # Safety
/// They are valid, come once each, and are not used afterwards.
pub(crate) unsafe fn drop_all<T>(entries: impl Iterator<Item = *mut T>) {
    let (mut entries, mut panic) = (entries, FirstPanic::none());
    // Called again after a panic, to go on with the next.
    // SAFETY: the caller says so.
    while panic.catch(|| entries.by_ref().for_each(|it| unsafe { it.drop_in_place() })).is_none() {}
    panic.raise();
}
