//! Values in a cache, looked at in place.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;

use crate::entry::Entry;
use crate::hazard::Cell;
use crate::records::Hold;
use crate::sync::Ordering;

/// A cell that keeps an entry as long as this is there.
#[derive(Debug)]
pub(crate) struct Keep<'a>(&'a Cell);

impl<'a> Keep<'a> {
    /// Takes over a cell that names an entry.
    #[inline(always)]
    pub(crate) fn new(cell: &'a Cell) -> Self {
        Self(cell)
    }

    /// Makes the cell name an entry, which is kept from then on if it cannot have been
    /// taken out before, and nothing of the cell's earlier target.
    #[inline(always)]
    pub(crate) fn name(&self, address: usize) {
        self.0.store(address, Ordering::Release); // as in `drop`; and see `Record::looked_at`
    }

    /// The cell.
    pub(crate) fn cell(&self) -> &'a Cell {
        self.0
    }

    /// The address that it names.
    pub(crate) fn address(&self) -> usize {
        self.0.load(Ordering::Relaxed) // this thread wrote it, or the one it came from
    }

    /// Hands the cell on, filled.
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

/// An entry that a reader has found, kept by a cell. Two words, which functions return in
/// registers.
pub(crate) struct Found<'a, K, V> {
    pub(crate) entry: &'a Entry<K, V>,
    pub(crate) cell: &'a Cell,
}

/// A guard for a value in a cache: derefs to the value and keeps it in memory, even after its entry
/// has left the cache.
///
/// It keeps nothing else, no thread waits for it, and it touches no reference count. It belongs to
/// the thread that made it. [`hold`](Self::hold) makes a [`Held`] of it, which may go to other
/// threads and outlive the cache.
///
/// A guard gives the value by reference only, also when its entry has left the cache. Guards are
/// not counted, so none knows whether it is the last: to find out takes a barrier for all threads
/// and a look at the guards of each. For an owned value, clone it, or keep values in an
/// [`Arc`](std::sync::Arc).
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
    value: &'a V,
    keep: Keep<'a>,
    /// The cell belongs to a thread.
    not_send: PhantomData<*const ()>,
}

impl<'a, V> Ref<'a, V> {
    #[inline(always)]
    pub(crate) fn new<K>(entry: &'a Entry<K, V>, keep: Keep<'a>) -> Self {
        Self { value: &entry.value, keep, not_send: PhantomData }
    }
}

impl<'a, V> Ref<'a, V> {
    /// The value, and the cell that keeps its entry.
    pub(crate) fn into_parts(self) -> (&'a V, Keep<'a>) {
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
        self.value
    }
}

impl<V: fmt::Debug> fmt::Debug for Ref<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<V: fmt::Display> fmt::Display for Ref<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

/// A guard for an entry of a cache, with its key and its value, as
/// [`Cache::iter`](crate::Cache::iter) yields them. As a [`Ref`], it keeps them in memory and
/// belongs to its thread.
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

    /// The times of the entry.
    #[cfg(feature = "serde")]
    pub(crate) fn expiry(&self) -> &crate::entry::Head {
        &self.entry.head
    }

    /// The key.
    pub fn key(&self) -> &K {
        &self.entry.key
    }

    /// The value.
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
/// It keeps its entry, not the cache. When the cache is dropped, all other entries are, and their
/// memory goes back to the system but for the pages with held entries. The last `Held` of an entry
/// then drops that.
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
    _hold: Hold,
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
    /// Of a value whose entry is held.
    pub(crate) fn new(value: NonNull<V>, hold: Hold) -> Self {
        Self { value, _hold: hold }
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
