//! A part of a cache: what hits go through without a lock, and the lock for all else.

use std::ptr::NonNull;

use equivalent::Equivalent;
use floe_policy::Eviction;

use crate::barrier;
use crate::cell::Cell;
use crate::entry::Entry;
use crate::flight::Flights;
use crate::guard::Keep;
use crate::hazard::Record;
use crate::index::Hash32;
use crate::owner::{Owner, TableOf};
use crate::places::NOWHERE;
use crate::plain::compares_plainly;
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

/// An entry that a reader has found, kept by a cell. Two words, which functions return in
/// registers.
pub(crate) struct Found<'a, K, V> {
    pub(crate) entry: &'a Entry<K, V>,
    pub(crate) cell: &'a Cell,
}

/// An entry with the policy's marks, unless comparing keys has led the thread away from the table.
type Marked<'a, K, V, P> = (Found<'a, K, V>, Option<&'a <P as Eviction>::Marks>);

/// The result of a fast lookup.
pub(crate) enum Fast<'a, K, V, P: Eviction> {
    Hit(Marked<'a, K, V, P>),
    Miss,
    /// Only a slow lookup can tell.
    Unsure,
}

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
    fn published(&self) -> &AtomicPtr<TableOf<P>> {
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

    /// The present table, kept from being freed while `record` names it.
    #[inline(always)]
    pub(crate) fn probe(&self, record: &Record) -> *const TableOf<P> {
        let mut table = self.published().load(Ordering::Relaxed); // not used before it is read again
        loop {
            record.probe(table as usize);
            barrier::light();
            // Acquire: what is in the table was written before it was published.
            let again = self.published().load(Ordering::Acquire);
            if again == table {
                return table;
            }
            table = again;
        }
    }

    /// Looks a key up, whatever happens meanwhile. The lookup is counted already, and the
    /// [fast](Self::fast_lookup) one was unsure.
    #[cold]
    #[inline(never)]
    pub(crate) fn sure_lookup<'a, Q>(
        &'a self,
        record: &'a Record,
        hash: Hash32,
        key: &Q,
    ) -> Option<Marked<'a, K, V, P>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let lookups = record.lookups.get();
        let (found, table) = self.slow_lookup(record, hash, key, true)?;
        // SAFETY: the record names the table, unless comparing keys has looked something else up.
        let marks = (!record.has_strayed(lookups)).then(|| unsafe { &(*table).marks });
        Some((found, marks))
    }

    /// Looks a key up where nearly all are found, at the first place in its first bucket that may
    /// be the key's. The rest is as with [`fast_lookup`](Self::fast_lookup), which is to follow if
    /// this is unsure.
    #[inline(always)]
    pub(crate) fn first_lookup<'a, Q>(
        published: &'a AtomicPtr<TableOf<P>>,
        record: &'a Record,
        hash: Hash32,
        key: &Q,
    ) -> Fast<'a, K, V, P>
    where
        Q: Equivalent<K> + ?Sized,
    {
        // Only keys of the user's can lead astray.
        let is_plain = compares_plainly::<K, Q>();
        let lookups = if is_plain { 0 } else { record.lookups.get() };
        let address = published.load(Ordering::Relaxed); // not used before it is read again
        record.probe(address as usize);
        barrier::light_if_asymmetric();
        if published.load(Ordering::Acquire) != address {
            // as in `probe`
            return Fast::Unsure;
        }
        // SAFETY: the record names the table, and it was published after the record did.
        let table = unsafe { &*address };
        let bucket = table.index.bucket(table.index.first(hash));
        let tags = bucket.tags();
        let Some(lane) = tags.matching(hash).first() else {
            // Acquire: see `slow_lookup`. Where there is an old index, that is to be looked at
            // first.
            let is_miss = !tags.were_passed_by()
                && table.old.is_none()
                && published.load(Ordering::Acquire) == address;
            return if is_miss { Fast::Miss } else { Fast::Unsure };
        };
        let place = bucket.place(lane);
        let Some(cell) = record.first_cell() else { return Fast::Unsure };
        if place == NOWHERE {
            return Fast::Unsure;
        }
        let entry = table.places.address::<Entry<K, V>>(place);
        cell.store(entry, Ordering::Release); // see `Record::looked_at`
        barrier::light_if_asymmetric();
        let keep = Keep::new(cell); // comparing keys is the user's code and may panic
        if bucket.place(lane) != place {
            return Fast::Unsure;
        }
        // SAFETY: a place that stands in a lane is that of an entry.
        unsafe { std::hint::assert_unchecked(entry != 0) };
        // SAFETY: as in `slow_lookup`.
        let entry = unsafe { &*std::ptr::with_exposed_provenance::<Entry<K, V>>(entry) };
        if !key.equivalent(&entry.key) {
            return Fast::Unsure;
        }
        std::mem::forget(keep);
        // Comparing keys is the user's code and may have used this cache: then the table may be
        // gone.
        let astray = !is_plain && record.has_strayed(lookups);
        Fast::Hit((Found { entry, cell }, if astray { None } else { Some(&table.marks) }))
    }

    /// Looks a key up in the usual case, in the shard whose table is published at a place, for a
    /// lookup that is counted already, of a thread that [does without
    /// fences](Record::does_without_fences). Takes no lock, and
    /// writes nothing but the thread's own record. Takes as few instructions as it can: the fewer
    /// there are, the more lookups the processor has under way while it waits for the memory of the
    /// first.
    #[inline(always)]
    pub(crate) fn fast_lookup<'a, Q>(
        published: &'a AtomicPtr<TableOf<P>>,
        record: &'a Record,
        hash: Hash32,
        key: &Q,
    ) -> Fast<'a, K, V, P>
    where
        Q: Equivalent<K> + ?Sized,
    {
        // Only keys of the user's can lead astray.
        let is_plain = compares_plainly::<K, Q>();
        let lookups = if is_plain { 0 } else { record.lookups.get() };
        let address = published.load(Ordering::Relaxed); // not used before it is read again
        record.probe(address as usize);
        barrier::light_if_asymmetric();
        if published.load(Ordering::Acquire) != address {
            // as in `probe`
            return Fast::Unsure;
        }
        // SAFETY: the record names the table, and it was published after the record did.
        let table = unsafe { &*address };
        let first = table.index.first(hash);
        let mut number = first;
        loop {
            let bucket = table.index.bucket(number);
            let tags = bucket.tags();
            for lane in tags.matching(hash) {
                let place = bucket.place(lane);
                let Some(cell) = record.first_cell() else { return Fast::Unsure };
                if place == NOWHERE {
                    return Fast::Unsure;
                }
                let entry = table.places.address::<Entry<K, V>>(place);
                cell.store(entry, Ordering::Release); // see `Record::looked_at`
                barrier::light_if_asymmetric();
                let keep = Keep::new(cell); // comparing keys is the user's code and may panic
                if bucket.place(lane) != place {
                    return Fast::Unsure;
                }
                // SAFETY: as in `slow_lookup`.
                let entry = unsafe { &*std::ptr::with_exposed_provenance::<Entry<K, V>>(entry) };
                let found = key.equivalent(&entry.key);
                // Comparing keys is the user's code and may have used this cache: then the table
                // may be gone.
                let astray = !is_plain && record.has_strayed(lookups);
                if found {
                    std::mem::forget(keep);
                    let marks = if astray { None } else { Some(&table.marks) };
                    return Fast::Hit((Found { entry, cell }, marks));
                }
                if astray {
                    return Fast::Unsure;
                }
            }
            if !tags.were_passed_by() {
                // Acquire: see `slow_lookup`. Where there is an old index, that is to be looked at
                // first.
                let is_miss = table.old.is_none() && published.load(Ordering::Acquire) == address;
                return if is_miss { Fast::Miss } else { Fast::Unsure };
            }
            number = table.index.after(number);
            if number == first {
                return Fast::Unsure;
            }
        }
    }

    /// Looks a key up without counting or marking anything, in the middle of another lookup of the
    /// thread's, too.
    pub(crate) fn peek<'a, Q>(
        &'a self,
        record: &'a Record,
        hash: Hash32,
        key: &Q,
    ) -> Option<Found<'a, K, V>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        Some(self.slow_lookup(record, hash, key, false)?.0)
    }

    /// Looks a key up, whatever happens meanwhile. Also returns the table that was searched, which
    /// the record names after a `counted` lookup, unless comparing keys has [led
    /// astray](Record::has_strayed).
    ///
    /// Comparing keys is the user's code and may use this cache, that is, probe other tables and
    /// replace this one. So a cell names the table throughout.
    #[inline(never)]
    fn slow_lookup<'a, Q>(
        &'a self,
        record: &'a Record,
        hash: Hash32,
        key: &Q,
        counted: bool,
    ) -> Option<(Found<'a, K, V>, *const TableOf<P>)>
    where
        Q: Equivalent<K> + ?Sized,
    {
        // Not where this may be in the middle of another lookup, which does not look at that again.
        if counted && !barrier::is_asymmetric() {
            record.knows_to_fence();
        }
        let kept = Keep::new(record.another_cell());
        'again: loop {
            let address = if counted { self.probe(record) } else { self.probe_by(&kept) };
            // From the record to the cell: that is the order in which they are read.
            kept.name(address as usize);
            // SAFETY: the record or the cell names the table, and it was published after they did;
            // the cell goes on to.
            let table = unsafe { &*address };
            for index in table.indexes() {
                let first = index.first(hash);
                let mut number = first;
                loop {
                    let bucket = index.bucket(number);
                    let tags = bucket.tags();
                    for lane in tags.matching(hash) {
                        let place = bucket.place(lane);
                        if place == NOWHERE {
                            // about to get a key, or just emptied; or the table was replaced, see
                            // below
                            continue;
                        }
                        let entry = table.places.address::<Entry<K, V>>(place);
                        let cell = record.cell();
                        cell.store(entry, Ordering::Release); // see `Record::looked_at`
                        let keep = Keep::new(cell);
                        barrier::light();
                        if bucket.place(lane) != place {
                            continue 'again;
                        }
                        // SAFETY: the place is in the index after the cell names the entry, so a
                        // thread that takes it out later will see the cell and not free it.
                        let entry =
                            unsafe { &*std::ptr::with_exposed_provenance::<Entry<K, V>>(entry) };
                        if key.equivalent(&entry.key) {
                            let cell = keep.into_cell();
                            return Some((Found { entry, cell }, address));
                        }
                    }
                    if !tags.were_passed_by() {
                        break;
                    }
                    number = index.after(number);
                    if number == first {
                        break;
                    }
                }
            }
            // Acquire: if the table has been replaced, what was not found here may be in the next
            // one.
            if self.published().load(Ordering::Acquire).cast_const() == address {
                return None;
            }
        }
    }

    /// The present table, kept from being freed while a cell names it.
    fn probe_by(&self, cell: &Keep<'_>) -> *const TableOf<P> {
        let mut table = self.published().load(Ordering::Relaxed); // not used before it is read again
        loop {
            cell.name(table as usize);
            barrier::light();
            // Acquire: as in `probe`.
            let again = self.published().load(Ordering::Acquire);
            if again == table {
                return table;
            }
            table = again;
        }
    }

    /// The address at which a key's entry may be, to prefetch it. The record must name the table.
    #[inline(always)]
    pub(crate) fn likely_address(table: &TableOf<P>, hash: Hash32) -> *const Entry<K, V> {
        let bucket = table.index.bucket(table.index.first(hash));
        let place = bucket.tags().matching(hash).first().map_or(NOWHERE, |lane| bucket.place(lane));
        std::ptr::without_provenance(table.places.address::<Entry<K, V>>(place))
    }
}

impl<K, V, P: Eviction> Drop for Shard<K, V, P> {
    fn drop(&mut self) {
        // SAFETY: no other user is left, so the table and the tables and entries that wait may be
        // freed: guards borrow the cache or keep it alive.
        unsafe {
            drop(Box::from_raw(self.published().load(Ordering::Relaxed))); // nobody else is left
            let owner = self.owner_mut();
            let (entries, tables) = owner.limbo.take_all();
            tables.into_iter().for_each(|table| drop(Box::from_raw(table)));
            drop_all(entries.into_iter().map(|retired| retired.entry).chain(owner.slots.entries()));
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
