//! Shards: parts of a cache, each with a lock-free path for hits and a lock for all other
//! operations.

use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use equivalent::Equivalent;
use floe_policy::{Cursor, Eviction, Marks, Replacement, Slot, Touch};

use crate::barrier;
use crate::entry::Entry;
use crate::guard::{Found, Keep};
use crate::hazard::Record;
use crate::index::{Hash32, KeyHash, NOWHERE, Places, Published, TableOf};
use crate::owner::Owner;
use crate::pending::PendingLoads;
use crate::renewal::Renewal;
use crate::sync::{Arc, AtomicPtr, AtomicUsize, Mutex, MutexGuard, Ordering, lock, lock_until};
use crate::user_code::FirstPanic;

/// A value on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Apart<T>(T);

/// A part of a cache with its own index, policy order and lock.
#[repr(C)]
pub(crate) struct Shard<K, V, P: Eviction> {
    /// Pointer to the published table. It is written when the shard grows, and outlives the shard.
    table: NonNull<AtomicPtr<TableOf<P>>>,
    owner: Apart<Owned<Owner<K, V, P>>>,
    /// Loads under way for keys of this shard.
    pub(crate) pending_loads: Mutex<PendingLoads<K, V>>,
    /// The addresses of entries.
    places: Arc<Places>,
}

/// The owner under its lock, next to the count of loads.
#[derive(Debug)]
#[repr(C)] // on one line
struct Owned<T> {
    /// Loads that are or were just under way. Increased under the lock only.
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
    /// Creates a shard that publishes its table at `at`.
    ///
    /// # Safety
    /// `at` must outlive the shard.
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

    /// Returns the entry that is, or was, at a place.
    pub(crate) fn entry(&self, place: u32) -> *mut Entry<K, V> {
        std::ptr::with_exposed_provenance_mut(self.places.address::<Entry<K, V>>(place))
    }

    /// Returns the pointer by which the table is published.
    pub(crate) fn published(&self) -> Published<'_, P> {
        // SAFETY: it outlives the shard, as whoever made it has promised.
        Published(unsafe { self.table.as_ref() })
    }

    /// Takes the shard's lock.
    pub(crate) fn owner(&self) -> MutexGuard<'_, Owner<K, V, P>> {
        lock(&self.owner.0.owner)
    }

    /// Prefetches the memory that an insertion writes besides the lock, so that it arrives together
    /// with the lock.
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

    /// Takes the entries of all slots and those in limbo, at the end of the cache.
    pub(crate) fn take_entries(&mut self) -> Vec<*mut Entry<K, V>> {
        let table: *const _ = self.table();
        // SAFETY: it lives as long as the shard.
        let table = unsafe { &*table };
        self.owner_mut().take_entries(table)
    }

    /// Takes the shard's lock if it is free.
    pub(crate) fn try_owner(&self) -> Option<MutexGuard<'_, Owner<K, V, P>>> {
        match self.owner.0.owner.try_lock() {
            Ok(owner) => Some(owner),
            // see `sync::lock`
            Err(std::sync::TryLockError::Poisoned(owner)) => Some(owner.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// Returns true if a load may be under way. The caller must hold the lock.
    #[inline(always)]
    pub(crate) fn is_loading(&self) -> bool {
        self.owner.0.loading.load(Ordering::Relaxed) != 0 // counted under the lock
    }

    /// Counts a load whose pending load is attached.
    pub(crate) fn begins_loading(&self) {
        let owner = self.owner();
        self.owner.0.loading.fetch_add(1, Ordering::Relaxed); // the lock orders
        drop(owner);
    }

    /// Ends the count of a load that has inserted its value or never will. `is_counted` is false if
    /// the process has forked since the load began.
    pub(crate) fn ends_loading(&self, is_counted: bool) {
        if is_counted {
            // seen late, a thread only looks for pending loads in vain
            self.owner.0.loading.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Sets the count of loads under way, in a forked process.
    pub(crate) fn loads_only(&self, loads: usize) {
        self.owner.0.loading.store(loads, Ordering::Relaxed); // there is one thread
    }

    /// Takes the lock for a fork; `None` if it is not free until the given time.
    pub(crate) fn owner_until(&self, until: Instant) -> Option<MutexGuard<'_, Owner<K, V, P>>> {
        lock_until(&self.owner.0.owner, until)
    }

    /// Returns the present table. The caller must hold the lock.
    pub(crate) fn table(&self) -> &TableOf<P> {
        self.published().table()
    }

    /// Publishes another table, and returns the old one, to be freed with the shard. The caller
    /// must hold the lock.
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

/// Drops entries in place, even if the user's code panics for some. The first panic is raised after
/// all of them.
///
/// # Safety
/// The entries must be valid and distinct, and not be used afterwards.
pub(crate) unsafe fn drop_all<T>(entries: impl Iterator<Item = *mut T>) {
    let (mut entries, mut panic) = (entries, FirstPanic::none());
    // Called again after a panic, to go on with the next.
    // SAFETY: the caller says so.
    while panic.catch(|| entries.by_ref().for_each(|it| unsafe { it.drop_in_place() })).is_none() {}
    panic.raise();
}

/// Number of slots processed under one lock by operations on all slots.
pub(crate) const SLOTS_PER_LOCK: u32 = 256;

/// All shards of a cache; their number is a power of two.
pub(crate) struct Shards<K, V, P: Replacement> {
    all: Box<[Shard<K, V, P>]>,
    /// The published tables, side by side: most hits read nothing else of a shard. Dropped after
    /// the shards.
    tables: Box<[AtomicPtr<TableOf<P>>]>,
    /// The number of shards minus one.
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

    /// Returns the approximate bytes of all indexes, estimated from that of a key's shard.
    pub(crate) fn index_bytes(&self, hash: KeyHash) -> usize {
        self.table(hash).table().memory_bytes() * self.all.len()
    }

    /// Returns the pointer by which the table of a key's shard is published.
    #[inline(always)]
    pub(crate) fn table(&self, hash: KeyHash) -> Published<'_, P> {
        let number = hash.shard(self.mask);
        debug_assert!(number < self.tables.len());
        // SAFETY: as in `of`.
        Published(unsafe { self.tables.get_unchecked(number) })
    }

    /// Returns the renewal of the entry in a slot, which the caller has found by this hash.
    pub(crate) fn renewal(&self, hash: KeyHash, slot: u32) -> Renewal {
        // Not the table in which the entry was found: one that was replaced meanwhile can have been
        // made before the first renewal.
        Renewal::of_bits(self.table(hash).table().renewals.bits(slot))
    }

    /// Returns the number of a shard of this cache.
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

/// Calls `change` for all slots of a shard, some under each lock. Slots that are added meanwhile
/// may be left out.
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

/// Pause between two holds of a shard's lock. With the delay that Linux adds, it is long enough for
/// a thread to wake.
const REST: Duration = Duration::from_micros(10);

/// Pauses so that threads that wait for a shard's lock get it. The lock is not fair: they would
/// lose it to the next hold, again and again.
pub(crate) fn rest() {
    std::thread::sleep(REST);
}

/// A found entry, and where its mark is.
pub(crate) type Marked<'a, K, V, P> = (Found<'a, K, V>, Mark<'a, P>);

/// The mark of an entry in a table.
pub(crate) struct Mark<'a, P: Eviction> {
    table: &'a TableOf<P>,
    /// Place of the entry.
    place: u32,
}

impl<'a, P: Eviction> Mark<'a, P> {
    pub(crate) fn new(table: &'a TableOf<P>, place: u32) -> Self {
        Self { table, place }
    }

    /// Returns the place of the entry.
    #[inline(always)]
    pub(crate) fn place(&self) -> u32 {
        self.place
    }

    /// Marks a hit on the entry. The entry's slot is read only if the policy keeps marks by slot.
    #[inline(always)]
    pub(crate) fn touch(&self, slot: impl FnOnce() -> u32) -> Touch {
        let (Self { table, place }, slot) = (self, || Slot(slot()));
        if P::BY_PLACE {
            table.marks.touch_at(slot, || table.places.in_order(*place))
        } else {
            table.marks.touch(slot())
        }
    }
}

/// The result of a fast lookup.
pub(crate) enum FastLookup<'a, K, V, P: Eviction> {
    Hit(Marked<'a, K, V, P>),
    Miss,
    /// Only a slow lookup can decide.
    Unsure,
}

impl<K, V, P: Eviction> Shard<K, V, P> {
    /// Looks a key up in the usual case, in the shard whose table is published at `published`. The
    /// lookup must be counted already, and the thread [do without
    /// fences](Record::does_without_fences). It takes no lock, and writes only to the thread's own
    /// record. It executes as few instructions as possible: the fewer there are, the more lookups
    /// the processor overlaps while it waits for the memory of the first.
    ///
    /// With `FIRST` it only looks where nearly all keys are found: at the first place in the key's
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
                let entry = std::ptr::with_exposed_provenance::<Entry<K, V>>(entry);
                // SAFETY: a place that stands in a lane is that of an entry.
                unsafe { std::hint::assert_unchecked(!entry.is_null()) };
                // SAFETY: as in `slow_lookup`.
                let entry = unsafe { &*entry };
                if key.equivalent(&entry.key) {
                    std::mem::forget(keep);
                    return FastLookup::Hit((Found { entry, cell }, Mark { table, place }));
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

    /// Looks a key up, whatever changes concurrently. An uncounted lookup may occur in the middle
    /// of another one of the thread.
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
                            return Some((Found { entry, cell }, Mark { table, place }));
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

    /// Returns the address at which a key's entry may be, to prefetch it.
    #[inline(always)]
    pub(crate) fn likely_address(table: &TableOf<P>, hash: Hash32) -> *const Entry<K, V> {
        let bucket = table.index.bucket(table.index.first(hash));
        let place = bucket.tags().matching(hash).first().map_or(NOWHERE, |lane| bucket.place(lane));
        std::ptr::without_provenance(table.places.address::<Entry<K, V>>(place))
    }
}
