//! Guards: references to values in a cache that keep their entries in memory.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;

use crate::entry::Entry;
use crate::hazard::Cell;
use crate::records::Hold;
use crate::sync::Ordering;

/// Ownership of a hazard cell, which keeps the entry that it names in memory until this is dropped.
#[derive(Debug)]
pub(crate) struct Keep<'a>(&'a Cell);

impl<'a> Keep<'a> {
    /// Takes ownership of a cell that names an entry.
    #[inline(always)]
    pub(crate) fn new(cell: &'a Cell) -> Self {
        Self(cell)
    }

    /// Makes the cell name the entry at `address`, and releases the cell's earlier target. The
    /// entry is kept from then on, provided that it cannot have been removed before.
    #[inline(always)]
    pub(crate) fn name(&self, address: usize) {
        self.0.store(address, Ordering::Release); // as in `drop`; and see `Record::looked_at`
    }

    pub(crate) fn cell(&self) -> &'a Cell {
        self.0
    }

    /// Returns the address of the entry that the cell names.
    pub(crate) fn address(&self) -> usize {
        self.0.load(Ordering::Relaxed) // this thread wrote it, or the one it came from
    }

    /// Gives up ownership of the cell, which still names its entry.
    #[inline(always)]
    pub(crate) fn into_cell(self) -> &'a Cell {
        let cell = self.0;
        std::mem::forget(self);
        cell
    }
}

impl Drop for Keep<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // what was read of the entry was read before; see `Record::looked_at`
        self.0.store(0, Ordering::Release);
    }
}

/// An entry that a reader has found, and the cell that keeps it. Two words, so functions return it
/// in registers.
pub(crate) struct Found<'a, K, V> {
    pub(crate) entry: &'a Entry<K, V>,
    pub(crate) cell: &'a Cell,
}

/// A guard for a value in a cache: derefs to the value and keeps it in memory, even after its entry
/// has left the cache.
///
/// It keeps nothing else in memory, makes no thread wait, and touches no reference count. It
/// belongs to the thread that made it. [`hold`](Self::hold) turns it into a [`Held`], which may go
/// to other threads and outlive the cache.
///
/// The last guard of an entry that has left the cache can be turned into the value itself, by
/// [`try_into_inner`](Self::try_into_inner). As guards are not counted, that takes a barrier for
/// all threads and a scan of the guards of each.
///
/// ```
/// # use floe_memory as floe;
/// let cache = floe::Cache::new(10);
/// cache.insert(1, "one".to_string());
/// let value = cache.get(&1).unwrap();
/// cache.insert(1, "uno".to_string());
/// assert_eq!(*value, "one");
/// assert_eq!(*cache.get(&1).unwrap(), "uno");
/// ```
///
/// The compiler refuses to move it to another thread, and so to keep it across an `.await` of a
/// task that may move:
///
/// ```compile_fail,E0277
/// # use floe_memory as floe;
/// let cache = floe::Cache::new(10);
/// cache.insert(1, "one".to_string());
/// let value = cache.get(&1).unwrap();
/// std::thread::scope(|scope| scope.spawn(move || value.len()).join().unwrap());
/// ```
pub struct Ref<'a, V> {
    /// Not a reference: one that is passed to a function promises that its target stays the same
    /// until the function returns, and a value may be moved or freed as soon as `keep` is dropped.
    value: NonNull<V>,
    keep: Keep<'a>,
    /// Makes the guard `!Send`, as the cell belongs to a thread.
    not_send: PhantomData<(*const (), &'a V)>,
}

impl<'a, V> Ref<'a, V> {
    #[inline(always)]
    pub(crate) fn new<K>(entry: &'a Entry<K, V>, keep: Keep<'a>) -> Self {
        Self { value: NonNull::from(&entry.value), keep, not_send: PhantomData }
    }
}

impl<'a, V> Ref<'a, V> {
    /// Creates a guard from the parts of another.
    pub(crate) fn of_parts(value: NonNull<V>, keep: Keep<'a>) -> Self {
        Self { value, keep, not_send: PhantomData }
    }

    /// Returns the value, and the cell that keeps its entry.
    pub(crate) fn into_parts(self) -> (NonNull<V>, Keep<'a>) {
        (self.value, self.keep)
    }
}

// SAFETY: sharing a guard shares the value only.
unsafe impl<V: Sync> Sync for Ref<'_, V> {}

// A guard gives `&V`, and its cell is the thread's.
impl<V: RefUnwindSafe> UnwindSafe for Ref<'_, V> {}
impl<V: RefUnwindSafe> RefUnwindSafe for Ref<'_, V> {}

impl<V> Deref for Ref<'_, V> {
    type Target = V;

    #[inline(always)]
    fn deref(&self) -> &V {
        // SAFETY: `keep` keeps the entry.
        unsafe { self.value.as_ref() }
    }
}

impl<V: fmt::Debug> fmt::Debug for Ref<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<V: fmt::Display> fmt::Display for Ref<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// A guard for an entry of a cache, with its key and its value, as
/// [`Cache::iter`](crate::Cache::iter) yields them. Like a [`Ref`], it keeps the entry in memory
/// and belongs to its thread.
///
/// ```
/// # use floe_memory as floe;
/// let cache = floe::Cache::new(10);
/// cache.insert("one", 1);
/// for item in &cache {
///     println!("{}: {}", item.key(), item.value());
/// }
/// ```
pub struct Item<'a, K, V> {
    entry: &'a Entry<K, V>,
    _keep: Keep<'a>,
    not_send: PhantomData<*const ()>,
}

// As of `Ref`.
impl<K: RefUnwindSafe, V: RefUnwindSafe> UnwindSafe for Item<'_, K, V> {}
impl<K: RefUnwindSafe, V: RefUnwindSafe> RefUnwindSafe for Item<'_, K, V> {}

impl<'a, K, V> Item<'a, K, V> {
    pub(crate) fn new(entry: &'a Entry<K, V>, keep: Keep<'a>) -> Self {
        Self { entry, _keep: keep, not_send: PhantomData }
    }

    /// Returns the entry.
    #[cfg(feature = "serde")]
    pub(crate) fn entry(&self) -> &Entry<K, V> {
        self.entry
    }

    /// Returns the key of the entry.
    pub fn key(&self) -> &K {
        &self.entry.key
    }

    /// Returns the value of the entry.
    pub fn value(&self) -> &V {
        &self.entry.value
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Item<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Item").field(self.key()).field(self.value()).finish()
    }
}

/// A guard for a value that may go to other threads and outlive the cache: derefs to the value.
/// [`Cache::hold`](crate::Cache::hold) and [`Ref::hold`] make one. Making and dropping one takes a
/// lock.
///
/// It keeps its entry, not the cache. When the cache is dropped, it drops all other entries and
/// returns their memory to the system, except the pages with held entries. The last `Held` of an
/// entry then drops that entry.
///
/// ```
/// # use floe_memory as floe;
/// let cache = floe::Cache::new(10);
/// cache.insert(1, "one".to_string());
/// let value = cache.hold(&1).unwrap();
/// drop(cache);
/// std::thread::spawn(move || assert_eq!(*value, "one")).join().unwrap();
/// ```
pub struct Held<V> {
    value: NonNull<V>,
    hold: Hold,
}

// SAFETY: gives out `&V` only, and drops the entry where it is the last to have it, key and value
// being `Send`.
unsafe impl<V: Send + Sync> Send for Held<V> {}
// SAFETY: as above.
unsafe impl<V: Send + Sync> Sync for Held<V> {}

// As of `Ref`; the table of what is held is whole after any panic.
impl<V: RefUnwindSafe> UnwindSafe for Held<V> {}
impl<V: RefUnwindSafe> RefUnwindSafe for Held<V> {}

impl<V> Held<V> {
    /// Creates a guard for the value of an entry that `hold` keeps.
    pub(crate) fn new(value: NonNull<V>, hold: Hold) -> Self {
        Self { value, hold }
    }

    /// Returns the value, and the hold that keeps its entry.
    pub(crate) fn into_parts(self) -> (NonNull<V>, Hold) {
        (self.value, self.hold)
    }
}

impl<V> Deref for Held<V> {
    type Target = V;

    fn deref(&self) -> &V {
        // SAFETY: the hold keeps the entry.
        unsafe { self.value.as_ref() }
    }
}

impl<V: fmt::Debug> fmt::Debug for Held<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
