//! A part of a cache: what hits go through without a lock, and the lock for all else.

use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use equivalent::Equivalent;
use floe_policy::{Cursor, Eviction, Replacement};

use crate::barrier;
use crate::entry::Entry;
use crate::guard::{Found, Keep};
use crate::hazard::Record;
use crate::index::{Hash32, KeyHash, NOWHERE, Places, Published, TableOf};
use crate::owner::Owner;
use crate::pending::PendingLoads;
use crate::sync::{Arc, AtomicPtr, AtomicUsize, Mutex, MutexGuard, Ordering, lock, lock_until};
use crate::user_code::FirstPanic;

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
    pub(crate) pending_loads: Mutex<PendingLoads<K, V>>,
    /// Where entries lie.
    places: Arc<Places>,
}

/// The owner under its lock, and the count of loads beside it.
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
            pending_loads: Mutex::default(),
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
        crate::hints::line_to_write(owned.wrapping_add(64));
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

    /// Counts a load, whose pending load is attached.
    pub(crate) fn begins_loading(&self) {
        let owner = self.owner();
        self.owner.0.loading.fetch_add(1, Ordering::Relaxed); // the lock orders
        drop(owner);
    }

    /// A load has brought in what it brings, or never will. It was counted, unless the process has
    /// forked since.
    pub(crate) fn ends_loading(&self, is_counted: bool) {
        if is_counted {
            // seen late, a thread only looks for pending loads in vain
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

/// Slots looked at under one lock when something goes through all of them.
pub(crate) const SLOTS_PER_LOCK: u32 = 256;

/// All shards of a cache: a power of two of them.
pub(crate) struct Shards<K, V, P: Replacement> {
    all: Box<[Shard<K, V, P>]>,
    /// The table of each, side by side: all that most hits read of a shard. Dropped after them.
    tables: Box<[AtomicPtr<TableOf<P>>]>,
    /// One less than the number of shards.
    mask: u32,
}

impl<K, V, P: Replacement> Shards<K, V, P> {
    pub(crate) fn new(owners: Vec<(Owner<K, V, P>, TableOf<P>)>) -> Self {
        assert!(owners.len().is_power_of_two(), "{} shards", owners.len());
        let tables: Box<[_]> = owners.iter().map(|_| AtomicPtr::default()).collect();
        let mask = owners.len() as u32 - 1;
        let made = owners.into_iter().zip(&tables);
        // SAFETY: the shards are dropped before the memory of the tables' addresses.
        let all = made.map(|((owner, table), at)| unsafe { Shard::new(owner, table, at) });
        Self { all: all.collect(), tables, mask }
    }

    /// Returns about how many bytes all indexes have, by that of a key's shard.
    pub(crate) fn index_bytes(&self, hash: KeyHash) -> usize {
        self.table(hash).table().memory_bytes() * self.all.len()
    }

    /// Returns where the table of a key's shard is published.
    #[inline(always)]
    pub(crate) fn table(&self, hash: KeyHash) -> Published<'_, P> {
        let number = hash.shard(self.mask);
        debug_assert!(number < self.tables.len());
        // SAFETY: as in `of`.
        Published(unsafe { self.tables.get_unchecked(number) })
    }

    /// Returns the number of a shard, which is one of these.
    pub(crate) fn number_of(&self, shard: &Shard<K, V, P>) -> usize {
        let offset = std::ptr::from_ref(shard).addr() - self.all.as_ptr().addr();
        offset / size_of::<Shard<K, V, P>>()
    }

    /// Returns the shard of a key.
    #[inline(always)]
    pub(crate) fn of(&self, hash: KeyHash) -> &Shard<K, V, P> {
        let number = hash.shard(self.mask);
        debug_assert!(number < self.all.len());
        // SAFETY: the mask leaves as many bits as the number of shards, a power of two, has
        // numbers.
        unsafe { self.all.get_unchecked(number) }
    }
}

impl<K, V, P: Replacement> Deref for Shards<K, V, P> {
    type Target = [Shard<K, V, P>];

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl<K, V, P: Replacement> DerefMut for Shards<K, V, P> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.all
    }
}

/// Goes through the slots of a shard, some under each lock. Slots that come in meanwhile may be
/// left out.
pub(crate) fn for_slots<K, V, P: Replacement>(
    shard: &Shard<K, V, P>,
    mut change: impl FnMut(&mut Owner<K, V, P>, Range<u32>),
) {
    let mut next = 0;
    loop {
        let mut owner = shard.owner();
        let end = owner.slots.len().min(next + Cursor::BATCH as u32);
        if next >= end {
            return;
        }
        change(&mut owner, next..end);
        let is_last = end == owner.slots.len();
        drop(owner);
        if !is_last {
            rest();
        }
        next = end;
    }
}

/// Between two holds of a shard's lock: with what Linux adds, long enough for a thread to wake.
const REST: Duration = Duration::from_micros(10);

/// Lets threads that wait for a shard's lock have it, between two holds. The lock is not fair: they
/// would lose it to the next hold, over and over, for all of the shard.
pub(crate) fn rest() {
    std::thread::sleep(REST);
}

/// An entry with the policy's marks.
type Marked<'a, K, V, P> = (Found<'a, K, V>, &'a <P as Eviction>::Marks);

/// The result of a fast lookup.
pub(crate) enum FastLookup<'a, K, V, P: Eviction> {
    Hit(Marked<'a, K, V, P>),
    Miss,
    /// Only a slow lookup can tell.
    Unsure,
}

impl<K, V, P: Eviction> Shard<K, V, P> {
    /// Looks a key up in the usual case, in the shard whose table is published at a place, for a
    /// lookup that is counted already, of a thread that [does without
    /// fences](Record::does_without_fences). Takes no lock, and writes nothing but the thread's own
    /// record. Takes as few instructions as it can: the fewer there are, the more lookups the
    /// processor has under way while it waits for the memory of the first.
    ///
    /// With `FIRST` it looks only where nearly all keys are found: at the first place in the key's
    /// first bucket that has its tag.
    #[inline(always)]
    pub(crate) fn fast_lookup<'a, const FIRST: bool, Q>(
        published: Published<'a, P>,
        record: &'a Record,
        hash: Hash32,
        key: &Q,
    ) -> FastLookup<'a, K, V, P>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let table = published.table();
        let first = table.index.first(hash);
        let mut number = first;
        loop {
            let bucket = table.index.bucket(number);
            let tags = bucket.tags();
            for lane in tags.matching(hash) {
                let place = bucket.place(lane);
                let Some(cell) = record.first_cell() else { return FastLookup::Unsure };
                if place == NOWHERE {
                    return FastLookup::Unsure;
                }
                let entry = table.places.address::<Entry<K, V>>(place);
                cell.store(entry, Ordering::Release); // see `Record::looked_at`
                barrier::light_if_asymmetric();
                let keep = Keep::new(cell); // comparing keys is the user's code and may panic
                if bucket.place(lane) != place {
                    return FastLookup::Unsure;
                }
                // SAFETY: a place that stands in a lane is that of an entry.
                unsafe { std::hint::assert_unchecked(entry != 0) };
                // SAFETY: as in `slow_lookup`.
                let entry = unsafe { &*std::ptr::with_exposed_provenance::<Entry<K, V>>(entry) };
                if key.equivalent(&entry.key) {
                    std::mem::forget(keep);
                    return FastLookup::Hit((Found { entry, cell }, &table.marks));
                }
                // Comparing keys is the user's code and may have used this cache: then the thread
                // may have learned that it has to fence.
                if FIRST || !record.does_without_fences() {
                    return FastLookup::Unsure;
                }
            }
            if !tags.were_passed_by() {
                // Acquire: see `slow_lookup`. Where there is an old index, that is to be looked at
                // first.
                let is_miss = table.old.is_none() && std::ptr::eq(published.table(), table);
                return if is_miss { FastLookup::Miss } else { FastLookup::Unsure };
            }
            number = table.index.after(number);
            if FIRST || number == first {
                return FastLookup::Unsure;
            }
        }
    }

    /// Looks a key up, whatever happens meanwhile. A lookup that is not counted may be in the
    /// middle of another one of the thread's.
    #[inline(never)]
    pub(crate) fn slow_lookup<'a, Q>(
        &'a self,
        record: &'a Record,
        hash: Hash32,
        key: &Q,
        counted: bool,
    ) -> Option<Marked<'a, K, V, P>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        // Not where this may be in the middle of another lookup, which does not look at that again.
        if counted && !barrier::is_asymmetric() {
            record.knows_to_fence();
        }
        'again: loop {
            let table = self.published().table();
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
                            return Some((Found { entry, cell }, &table.marks));
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
            // If the table has been replaced, what was not found here may be in the next one.
            if std::ptr::eq(self.published().table(), table) {
                return None;
            }
        }
    }

    /// The address at which a key's entry may be, to prefetch it.
    #[inline(always)]
    pub(crate) fn likely_address(table: &TableOf<P>, hash: Hash32) -> *const Entry<K, V> {
        let bucket = table.index.bucket(table.index.first(hash));
        let place = bucket.tags().matching(hash).first().map_or(NOWHERE, |lane| bucket.place(lane));
        std::ptr::without_provenance(table.places.address::<Entry<K, V>>(place))
    }
}
