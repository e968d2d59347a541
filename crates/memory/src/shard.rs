//! A part of a cache: what hits go through without a lock, and the lock for all else.

use std::ptr::NonNull;

use floe_policy::Eviction;

use crate::flight::Flights;
use crate::owner::{Owner, TableOf};
use crate::sync::{AtomicPtr, AtomicUsize, Mutex, MutexGuard, Ordering, lock};

/// Something on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Apart<T>(T);

/// A shard.
#[repr(C)]
pub(crate) struct Shard<K, V, P: Eviction> {
    /// Where the table is published: written when the shard grows, and outlives this.
    table: NonNull<AtomicPtr<TableOf<P>>>,
    owner: Apart<Owned<Owner<K, V, P>>>,
    /// Loads under way.
    pub(crate) flights: Mutex<Flights<K, V>>,
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
        // Release: a thread that sees the table sees it whole.
        at.store(Box::into_raw(Box::new(table)), Ordering::Release);
        Self {
            table: NonNull::from(at),
            owner: Apart(Owned { loading: AtomicUsize::new(0), owner: Mutex::new(owner) }),
            flights: Mutex::default(),
        }
    }

    /// Where the table is published.
    pub(crate) fn published(&self) -> &AtomicPtr<TableOf<P>> {
        // SAFETY: it outlives the shard, as whoever made it has promised.
        unsafe { self.table.as_ref() }
    }

    /// Takes the lock.
    pub(crate) fn owner(&self) -> MutexGuard<'_, Owner<K, V, P>> {
        lock(&self.owner.0.owner)
    }

    /// Returns the owner, for code that has the shard exclusively.
    pub(crate) fn owner_mut(&mut self) -> &mut Owner<K, V, P> {
        // see `sync::lock`
        self.owner.0.owner.get_mut().unwrap_or_else(crate::sync::PoisonError::into_inner)
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

    /// A load has brought in what it brings, or never will.
    pub(crate) fn ends_loading(&self) {
        // seen late, a thread only looks for flights in vain
        self.owner.0.loading.fetch_sub(1, Ordering::Relaxed);
    }

    /// For the owner, that is with the lock held: the present table.
    pub(crate) fn table(&self) -> &TableOf<P> {
        // SAFETY: the present table is freed only after it was replaced, by the owner. Relaxed: the
        // lock orders.
        unsafe { &*self.published().load(Ordering::Relaxed) }
    }

    /// For the owner: publishes another table. The old one may be freed once no thread probes it.
    pub(crate) fn replace_table(&self, table: TableOf<P>) -> *mut TableOf<P> {
        // Release: a thread that sees the table sees it whole.
        self.published().swap(Box::into_raw(Box::new(table)), Ordering::AcqRel)
    }
}

impl<K, V, P: Eviction> Drop for Shard<K, V, P> {
    fn drop(&mut self) {
        // SAFETY: no other user is left, so the table and the tables and entries that wait may be
        // freed: guards borrow the cache or keep it alive.
        unsafe {
            drop(Box::from_raw(self.published().load(Ordering::Relaxed))); // nobody else is left
            let owner = self.owner_mut();
            let entries = owner.take_entries();
            let (_, tables) = owner.limbo.take_all();
            tables.into_iter().for_each(|table| drop(Box::from_raw(table)));
            drop_all(entries.into_iter());
        }
    }
}

/// Drops entries in place. Goes on when the user's code panics; twice aborts, as for a vector.
///
/// # Safety
/// They are valid, come once each, and are not used afterwards.
pub(crate) unsafe fn drop_all<T>(entries: impl Iterator<Item = *mut T>) {
    struct Rest<T, I: Iterator<Item = *mut T>>(I);
    impl<T, I: Iterator<Item = *mut T>> Drop for Rest<T, I> {
        fn drop(&mut self) {
            // SAFETY: the caller of `drop_all` says so.
            self.0.by_ref().for_each(|entry| unsafe { entry.drop_in_place() });
        }
    }
    let mut rest = Rest(entries);
    // SAFETY: as above.
    rest.0.by_ref().for_each(|entry| unsafe { entry.drop_in_place() });
}
