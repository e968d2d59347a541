//! Handles: owners of a value, one pointer wide.
//!
//! The first few handles of a thread are hazard cells of its own: taking one writes no count and
//! nothing that other threads often read. Such a cell names the entry with its lowest bit set,
//! which distinguishes it from the cells of guards. All further handles, and those of values that
//! are in no cache, are the address of the entry with its lowest bit set, and the entry counts
//! them.
//!
//! Any thread that releases the handle empties its cell. Only the thread that owns the cell fills
//! it, and reads it with Acquire first ([`is_free`](crate::hazard::is_free)).

use std::fmt;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, offset_of};
use std::ops::Deref;
use std::ptr::NonNull;

use crate::entry::Entry;
use crate::hazard::{Cell, HANDLE, Record};
use crate::sync::{AtomicUsize, Ordering};

/// Bit of a handle that is counted by its entry.
const COUNTED: usize = 1;

/// An owner of a value of a [`HostCache`](super::HostCache), one pointer wide: derefs to the value.
///
/// The value is dropped after its last handle, whether it is in the cache or not. A handle may be
/// given to any thread. Making, copying and dropping one takes no lock.
///
/// ```
/// # use floe_memory as floe;
/// let cache = floe::host::HostCache::new(1 << 20);
/// let block = cache.insert_held(1, vec![7; 4096], 4096, Default::default()).unwrap();
/// let raw = block.into_raw(); // for a caller in another language
/// // SAFETY: from `into_raw` of this cache's handle, and used once.
/// let block = unsafe { floe::host::Handle::<u64, Vec<u8>>::from_raw(raw) };
/// assert_eq!(block.charge(), 4096);
/// ```
pub struct Handle<'a, K, V> {
    raw: NonNull<()>,
    cache: PhantomData<(&'a (), *const EntryOf<K, V>)>,
}

// SAFETY: a handle gives out `&V` and `&K`, may drop both where it is the last, and releases by
// atomics.
unsafe impl<K: Send + Sync, V: Send + Sync> Send for Handle<'_, K, V> {}
// SAFETY: as above.
unsafe impl<K: Send + Sync, V: Send + Sync> Sync for Handle<'_, K, V> {}

impl<'a, K, V> Handle<'a, K, V> {
    /// Offset in bytes of a value from its entry, for code in other languages: see
    /// [`into_raw`](Self::into_raw).
    pub const VALUE_OFFSET: usize = offset_of!(EntryOf<K, V>, value) + offset_of!(Node<V>, value);

    /// Offset in bytes of a key from its entry, for code in other languages.
    pub const KEY_OFFSET: usize = offset_of!(EntryOf<K, V>, key);

    /// Memory of an entry with its key and value, in bytes. A host that counts its metadata adds
    /// this to charges.
    pub const ENTRY_BYTES: usize = size_of::<EntryOf<K, V>>();

    /// Takes over a cell of the thread's record that names an entry.
    #[inline(always)]
    pub(super) fn of_cell(record: &'a Record, cell: &'a Cell) -> Self {
        match record.handle_cell(cell) {
            Some(own) => Self::new(NonNull::from(own).cast()),
            None => Self::counted(cell),
        }
    }

    /// Creates a counted handle to the entry that a cell names.
    #[inline(never)]
    fn counted(cell: &Cell) -> Self {
        let address = cell.load(Ordering::Relaxed); // this thread wrote it
        let entry = std::ptr::with_exposed_provenance::<EntryOf<K, V>>(address);
        // SAFETY: the cell keeps it.
        unsafe { &*entry }.value.add_owner();
        cell.store(0, Ordering::Release); // after that: a reclaimer that sees this sees the count
        // SAFETY: as above, by the count.
        unsafe { Self::of_counted(entry) }
    }

    /// Creates a handle that takes over an owner counted by the entry.
    ///
    /// # Safety
    /// The entry must count that owner, and the owner must keep the entry.
    pub(super) unsafe fn of_counted(entry: *const EntryOf<K, V>) -> Self {
        let raw = entry.cast::<()>().cast_mut().map_addr(|address| address | COUNTED);
        Self::new(NonNull::new(raw).expect("the address of an entry"))
    }

    fn new(raw: NonNull<()>) -> Self {
        Self { raw, cache: PhantomData }
    }

    /// Returns the cell of the handle; `None` if the handle is counted.
    fn cell(&self) -> Option<&Cell> {
        // SAFETY: a cell of a record, which lives as long as the cache.
        (self.raw.addr().get() & COUNTED == 0).then(|| unsafe { self.raw.cast::<Cell>().as_ref() })
    }

    /// Returns true if the entry counts this handle.
    pub(super) fn is_counted(&self) -> bool {
        self.cell().is_none()
    }

    /// Returns the entry, as a pointer because the last handle may drop it.
    #[inline(always)]
    fn pointer(&self) -> *const EntryOf<K, V> {
        match self.cell() {
            // Relaxed: the thread that gave the handle to this one wrote it before.
            Some(cell) => std::ptr::with_exposed_provenance::<EntryOf<K, V>>(
                cell.load(Ordering::Relaxed) & !HANDLE,
            ),
            None => self.raw.as_ptr().map_addr(|address| address & !COUNTED).cast(),
        }
    }

    #[inline(always)]
    pub(super) fn entry(&self) -> &EntryOf<K, V> {
        // SAFETY: the handle keeps it.
        unsafe { &*self.pointer() }
    }

    /// Returns the key under which the value was inserted.
    pub fn key(&self) -> &K {
        &self.entry().key
    }

    /// Returns the charge given at the insertion of the value.
    pub fn charge(&self) -> usize {
        self.entry().value.charge()
    }

    /// Turns the handle into a plain pointer, which keeps its ownership.
    ///
    /// With the lowest bit set it is the address of an entry plus 1; otherwise it points to a word
    /// that is the address of the entry plus 1. The value is at
    /// [`VALUE_OFFSET`](Self::VALUE_OFFSET) from the entry, so code in other languages reaches it
    /// without a call.
    pub fn into_raw(self) -> NonNull<()> {
        ManuallyDrop::new(self).raw
    }

    /// Restores a handle from its [pointer](Self::into_raw).
    ///
    /// # Safety
    /// The pointer must come from `into_raw` of a handle with these types, and become one handle
    /// only. The cache must not be dropped before that.
    pub unsafe fn from_raw(raw: NonNull<()>) -> Self {
        Self::new(raw)
    }

    /// Turns the handle into a counted one, for an owner that keeps it long. This frees the cell of
    /// the thread that took it, so that this thread's next handles are cheap again.
    pub fn into_long(self) -> Self {
        if self.is_counted() { self } else { self.clone() }
    }
}

impl<K, V> Clone for Handle<'_, K, V> {
    /// Creates another handle to the value, which the entry counts.
    fn clone(&self) -> Self {
        self.entry().value.add_owner();
        // SAFETY: just counted.
        unsafe { Self::of_counted(self.pointer()) }
    }
}

impl<K, V> Drop for Handle<'_, K, V> {
    #[inline(always)]
    fn drop(&mut self) {
        match self.cell() {
            // Release: what was read of the value was read before; see `Record::looked_at`.
            Some(cell) => cell.store(0, Ordering::Release),
            None => end_counted(self),
        }
    }
}

#[inline(never)]
fn end_counted<K, V>(handle: &Handle<'_, K, V>) {
    let entry = handle.pointer();
    // SAFETY: this owner's until it is taken away.
    if unsafe { (*entry).value.drop_owner() } {
        // SAFETY: memory of its own, from a box, and no owner is left.
        drop(unsafe { Box::from_raw(entry.cast_mut()) });
    }
}

impl<K, V> Deref for Handle<'_, K, V> {
    type Target = V;

    #[inline(always)]
    fn deref(&self) -> &V {
        &self.entry().value.value
    }
}

impl<K, V: fmt::Debug> fmt::Debug for Handle<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Bit of a node's state: the node is in no cache, but in memory of its own.
pub(super) const ALONE: usize = 1;
/// Bit of a node's state: it was found outside of the cache with an owner, so its charge is in
/// [`Sums::kept`].
const KEPT: usize = 2;
/// One counted owner in a node's state.
const OWNER: usize = 4;

/// The sums of the charges of a cache's values.
#[derive(Debug, Default)]
#[repr(align(128))] // hits write none of it, and read nothing beside it
pub(super) struct Sums {
    /// Charge of all values that were not dropped yet.
    pub(super) usage: AtomicUsize,
    /// Charge of the values that are outside of the cache with an owner.
    pub(super) kept: AtomicUsize,
    /// Charge of the values that have a counted owner.
    pub(super) counted: AtomicUsize,
}

/// A value with its charge, as entries of a host's cache hold it. Users cannot create one.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Node<V> {
    /// Number of counted owners, and the bits [`ALONE`] and [`KEPT`].
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
    /// Creates a node for a value whose charge is included in the usage already.
    ///
    /// # Safety
    /// `sums` must outlive the node.
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

    /// Returns the weight of the entry in the cache.
    pub(super) fn weight(&self) -> u64 {
        self.charge as u64
    }

    /// Adds a counted owner. The caller must be an owner, or have a cell that names the entry.
    pub(super) fn add_owner(&self) {
        // Relaxed: a reclaimer comes to know of the first owner by the cell that was cleared after
        // this, and of another by the one that made it.
        if self.state.fetch_add(OWNER, Ordering::Relaxed) < OWNER {
            self.sums().counted.fetch_add(self.charge, Ordering::Relaxed); // a sum
        }
    }

    /// Removes a counted owner. Returns true if it was the last of a node that is in no cache: then
    /// the caller must drop the node. Otherwise the node may be gone already.
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

    /// Returns the number of counted owners.
    pub(super) fn owners(&self) -> usize {
        // Acquire: pairs with the Release of the last owner, for whoever drops the node.
        self.state.load(Ordering::Acquire) / OWNER
    }

    /// Marks the node as one that is in no cache, with one owner.
    pub(super) fn stand_alone(&self) {
        self.state.store(OWNER | ALONE | KEPT, Ordering::Relaxed); // nobody else has it yet
        self.sums().counted.fetch_add(self.charge, Ordering::Relaxed); // a sum
        self.sums().kept.fetch_add(self.charge, Ordering::Relaxed); // as above
    }

    /// Returns true if an owner keeps this node of a removed entry. `is_named` is true if a cell
    /// names the entry.
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
