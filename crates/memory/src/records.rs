//! The records of a cache's threads: they are handed to threads, taken back, and scanned by
//! reclaimers.
//!
//! The cost of a scan is bounded by the number of present threads, not of past ones. Records are
//! sorted into those *owned* by threads, those *left* with a guard still alive, and *free* ones;
//! only the first two are scanned. Free records keep their counts, whose sum is kept as well, and
//! go to the next threads. So there are as many records as there were threads at once.
//!
//! Guards that may travel between threads are in a table of [`Holds`] under a lock. It is read
//! last, because a guard of a thread can become one of those. The opposite conversion happens under
//! the lock of the records.
//!
//! # Scans
//!
//! A scan reads the cells of all threads, a part at a time.
//!
//! Where threads hold few guards, a reclaimer reads all cells whenever it frees a batch. With many
//! guards that would be too much work for each batch. So a *scan* reads some cells for each batch,
//! under the lock of the records each time, and batches wait for its end. A complete scan has seen
//! all guards of entries that had left before it began. A guard stays in its cell until it is
//! dropped or becomes a [`Hold`], for which reclaimers look later. The conversion of a hold to a
//! cell adds the address to the scan.
//!
//! # Holds
//!
//! A hold is a guard that may travel between threads and outlive the cache: an address in a table
//! under one lock.
//!
//! A [`Hold`] is made while a guard names the entry, and a reclaimer reads this table after all
//! cells. So a guard can become a hold, and the reclaimer sees the entry in one place or the other.
//! [`Records::adopt`] converts a hold to a guard.
//!
//! A cache that ends leaves held entries to their holders (an [`Estate`]). The last hold of an
//! entry drops it, and the last of all frees the memory.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use crate::barrier;
use crate::hazard::{Cell, Further, Record};
use crate::retired::{Grace, Round};
use crate::sync::{Arc, Mutex, MutexGuard, Ordering, lock, lock_until};

/// Maximum number of further cells of all threads that a reclaimer reads at once.
const FEW: usize = 1024;

/// A box, whose contents keep their address while the list grows.
type Fixed<T> = Box<T>;

/// The counters of threads that are read often.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) lookups: u64,
    pub(crate) hits: u64,
}

impl Counted {
    fn of(record: &Record) -> Self {
        Self { lookups: record.lookups.get(), hits: record.hits() }
    }

    fn and(self, other: Self) -> Self {
        Self {
            lookups: self.lookups.wrapping_add(other.lookups),
            hits: self.hits.wrapping_add(other.hits),
        }
    }

    fn without(self, other: Self) -> Self {
        Self {
            lookups: self.lookups.wrapping_sub(other.lookups),
            hits: self.hits.wrapping_sub(other.hits),
        }
    }
}

/// The records, in three parts: owned, left and free.
#[derive(Debug, Default)]
struct List {
    /// All records, boxed because threads keep their addresses. Their number never falls; there are
    /// as many as there were threads at once.
    records: Vec<Fixed<Record>>,
    /// Number of records, from the first, that are owned by threads.
    owned: usize,
    /// Number of records, from the first, that are owned or still have a guard.
    live: usize,
    /// Sum of the counts of free records.
    free: Counted,
    /// Records, cells and holds that reclaimers have examined since the cache was made.
    visited: u64,
    /// Maximum number of records, cells and holds examined under one lock, except by calls that
    /// visit all of them on request.
    visited_at_once: u64,
    /// The scan under way, where there are many cells.
    scan: Option<Scan>,
    /// The last complete scan.
    ended: Scan,
}

impl List {
    /// Exchanges the places of two records.
    fn swap(&mut self, a: usize, b: usize) {
        self.records.swap(a, b);
        self.records[a].place.store(a, Ordering::Relaxed); // under the lock
        self.records[b].place.store(b, Ordering::Relaxed); // as above
    }

    /// Frees a record that no thread owns and that has no guard any more.
    fn free(&mut self, at: usize) {
        debug_assert!((self.owned..self.live).contains(&at));
        self.free = self.free.and(Counted::of(&self.records[at]));
        self.records[at].forget_scan();
        self.live -= 1;
        self.swap(at, self.live);
    }

    /// Returns the approximate number of further cells of all threads.
    fn further_cells(&self) -> usize {
        self.records[..self.live].iter().map(|record| record.further_cells()).sum()
    }

    /// Continues the scan under way by about `cells` cells.
    fn scan_some(&mut self, cells: usize) {
        let Some(mut scan) = self.scan.take() else { return };
        let mut left = cells;
        loop {
            let records = &self.records[..self.live];
            let Some(next) = records.iter().find(|it| it.scanned.get() != scan.serial) else {
                self.ended = scan;
                break;
            };
            if left == 0 {
                self.scan = Some(scan);
                break;
            }
            if next.scan_some(&mut left, &mut scan.seen) {
                next.scanned.set(scan.serial); // under the lock
            }
        }
        let visited = (cells - left) as u64;
        self.visited += visited;
        self.visited_at_once = self.visited_at_once.max(visited);
    }

    /// Completes a scan under way and drops the last one. Called when there are few cells, so that
    /// scans are not needed.
    fn end_scans(&mut self) {
        self.scan_some(usize::MAX);
        if self.ended.round != Round::default() {
            self.ended = Scan { serial: self.ended.serial, ..Scan::default() };
        }
    }

    fn counted(&self) -> Counted {
        self.records[..self.live].iter().fold(self.free, |sum, record| sum.and(Counted::of(record)))
    }
}

/// The locks of records, for a fork. Those of cells are released first.
pub(crate) struct RecordLocks<'a> {
    _further: Vec<MutexGuard<'a, Further>>,
    _holds: HoldsLock<'a>,
    _list: Option<MutexGuard<'a, List>>,
}

/// The records of a cache's threads, and its held entries.
#[derive(Debug, Default)]
pub(crate) struct Records {
    list: Mutex<List>,
    holds: Arc<Holds>,
    grace: Grace,
    /// True if some lookups are timed.
    times_lookups: bool,
}

impl Records {
    /// Creates an empty list of records.
    pub(crate) fn new(times_lookups: bool) -> Self {
        Self { times_lookups, ..Self::default() }
    }

    /// Takes all locks for a fork, as far as they are free until the given time.
    pub(crate) fn locks(&self, until: Instant) -> RecordLocks<'_> {
        let list = lock_until(&self.list, until);
        let records = list.as_deref().map_or(&[][..], |list| &list.records[..]);
        let further = records.iter().filter_map(|record| {
            let record: *const Record = &raw const **record;
            // SAFETY: records stay where they are and live as long as `self`.
            unsafe { &*record }.further_until(until)
        });
        let further = further.collect();
        RecordLocks { _further: further, _holds: self.holds.locked(until), _list: list }
    }

    /// Returns a record for the calling thread, which keeps it until it [releases](Self::release)
    /// it.
    pub(crate) fn acquire(&self) -> *const Record {
        let mut list = lock(&self.list);
        let at = list.owned;
        if at == list.records.len() {
            let record = Box::<Record>::default();
            record.timings.next.set(if self.times_lookups { 1 } else { u64::MAX });
            record.usual_below.set(record.timings.next.get());
            record.place.store(at, Ordering::Relaxed); // under the lock
            list.records.push(record);
            list.live += 1;
        } else if at == list.live {
            list.free = list.free.without(Counted::of(&list.records[at])); // it goes on with them
            list.live += 1;
        }
        list.owned += 1;
        let record = &list.records[at];
        if !barrier::is_asymmetric() {
            record.knows_to_fence();
        }
        &raw const **record
    }

    /// Takes the calling thread's record back; another thread may get it. Cells of guards that are
    /// still alive stay filled.
    pub(crate) fn release(&self, record: &Record) {
        record.probed_out(); // the thread is between two lookups
        let mut list = lock(&self.list);
        let place = record.place.load(Ordering::Relaxed); // under the lock
        list.owned -= 1;
        let at = list.owned;
        list.swap(place, at);
        if record.is_idle() {
            list.free(at);
        }
    }

    /// Returns the sum of the counts of all threads.
    pub(crate) fn counted(&self) -> Counted {
        lock(&self.list).counted()
    }

    /// Returns the sum of the counts of all threads; `None` if the lock is taken.
    pub(crate) fn try_counted(&self) -> Option<Counted> {
        self.list.try_lock().ok().map(|list| list.counted())
    }

    /// Folds over all records, which together have the counts of all present and past threads.
    pub(crate) fn fold<T>(&self, start: T, mut add: impl FnMut(T, &Record) -> T) -> T {
        lock(&self.list).records.iter().fold(start, |sum, record| add(sum, record))
    }

    /// Requests an [answer](Self::answer) of all threads, after entries to be freed were removed.
    pub(crate) fn ask(&self) -> Round {
        self.grace.ask()
    }

    /// Answers the threads that requested a reclamation round. `own` is the caller's record. The
    /// caller must not be about to read an entry that it has found but not yet published in a cell.
    #[inline(always)]
    pub(crate) fn answer(&self, own: &Record) {
        self.grace.answer(&own.answer);
    }

    /// Returns a sorted list of addresses that must not be freed: those of `addresses` that a cell
    /// or hold names, and perhaps others. The entries must have been removed before `round` was
    /// asked. `own` is the caller's record. Returns `None` if there are so many cells that a
    /// [scan](Self::advance) is needed.
    pub(crate) fn protected(
        &self,
        own: &Record,
        round: Round,
        addresses: impl Iterator<Item = usize>,
    ) -> Option<Vec<usize>> {
        // Where readers fence, this is the other side's; so it must not be left out with the
        // barrier.
        crate::sync::fence(Ordering::SeqCst);
        let mut list = lock(&self.list);
        if list.further_cells() > FEW {
            return None;
        }
        list.end_scans();
        list = self.pass(list, own, round);
        Some(self.looked_at(&mut list, addresses))
    }

    /// Works as [`protected`](Self::protected), but returns `None` where that needs a barrier or a
    /// wait.
    pub(crate) fn protected_at_once(
        &self,
        own: &Record,
        round: Round,
        addresses: impl Iterator<Item = usize>,
    ) -> Option<Vec<usize>> {
        let mut list = self.list.try_lock().ok()?;
        let is_told = list.further_cells() <= FEW && self.has_passed(&mut list, own, round);
        is_told.then(|| {
            list.end_scans();
            self.looked_at(&mut list, addresses)
        })
    }

    /// Passes the heavy barrier, unless all threads have answered a round or the barrier was passed
    /// since.
    fn pass<'a>(
        &'a self,
        mut list: MutexGuard<'a, List>,
        own: &Record,
        round: Round,
    ) -> MutexGuard<'a, List> {
        if !self.has_passed(&mut list, own, round) {
            let passed = self.grace.last(); // whoever asked so far need not wait any longer
            if !barrier::heavy() && !all_fence(&list, own) {
                list.records.iter().for_each(|record| record.tell_to_fence());
                drop(list); // whoever takes a record now knows to fence
                barrier::let_stores_arrive();
                list = lock(&self.list);
            }
            self.grace.pass(passed); // under the lock
        }
        list
    }

    /// Continues the scan by about `cells` cells. Returns true once a complete scan has seen all
    /// guards of entries removed before `round` was asked. `own` is the caller's record.
    pub(crate) fn advance(&self, own: &Record, cells: usize, round: Round) -> bool {
        crate::sync::fence(Ordering::SeqCst); // as in `protected`
        let mut list = lock(&self.list);
        if list.ended.round < round {
            if list.scan.is_none() {
                let last = self.grace.last();
                list = self.pass(list, own, last);
                // Another thread may have begun one meanwhile.
                let (serial, room) = (list.ended.serial + 1, list.further_cells() + FEW);
                list.scan.get_or_insert_with(|| Scan::new(last, serial, room));
            }
            // Few are read all at once, before others find that they are few.
            let cells = if list.further_cells() > FEW { cells } else { usize::MAX };
            list.scan_some(cells);
        }
        list.ended.round >= round
    }

    /// Returns for each address whether the last complete scan allows freeing the entry. The round
    /// of each address was asked after its entry was removed.
    pub(crate) fn are_cleared(&self, some: &[(usize, Round)]) -> Vec<bool> {
        let mut list = lock(&self.list);
        let mut held = Vec::new();
        // After the cells, and under the same lock as `adopt`: see `scan`.
        self.holds.held_of(some.iter().map(|(address, _)| *address), &mut held);
        held.sort_unstable();
        list.visited += some.len() as u64;
        list.visited_at_once = list.visited_at_once.max(some.len() as u64);
        let is_cleared = |(address, asked): &(usize, Round)| {
            list.ended.clears(*address, *asked) && held.binary_search(address).is_err()
        };
        some.iter().map(is_cleared).collect()
    }

    /// Returns true if all threads have answered a round, or the barrier was passed since.
    fn has_passed(&self, list: &mut List, own: &Record, round: Round) -> bool {
        if self.grace.has_passed(round) {
            return true;
        }
        // A new thread takes the lock after this, and sees the removals.
        let is_silent =
            |record: &Fixed<Record>| !std::ptr::eq(&**record, own) && !record.answer.is_past(round);
        list.visited += list.owned as u64;
        if list.records[..list.owned].iter().any(is_silent) {
            return false;
        }
        self.grace.pass(round); // under the lock
        true
    }

    /// Returns the sorted addresses in all cells, and those of `some` that are held.
    fn looked_at(&self, list: &mut List, some: impl Iterator<Item = usize>) -> Vec<usize> {
        let visited = list.visited;
        let mut addresses = Vec::new();
        for at in (0..list.live).rev() {
            let record = &list.records[at];
            let before = addresses.len();
            list.visited += record.looked_at(&mut addresses) as u64;
            if at >= list.owned && addresses.len() == before && record.is_idle() {
                list.free(at);
            }
        }
        // Last: a guard that came to be held meanwhile was seen above or is seen here.
        list.visited += self.holds.held_of(some, &mut addresses) as u64;
        list.visited_at_once = list.visited_at_once.max(list.visited - visited);
        addresses.sort_unstable();
        addresses
    }

    /// Calls a function with the sorted, distinct addresses of entries that handles name. None of
    /// the entries is freed meanwhile, as reclaimers take the same lock.
    pub(crate) fn with_handles<R>(&self, read: impl FnOnce(Vec<usize>) -> R) -> R {
        let list = lock(&self.list);
        let mut named = Vec::new();
        list.records[..list.live].iter().for_each(|record| record.handles(&mut named));
        named.sort_unstable();
        named.dedup();
        read(named)
    }

    /// Returns how many cells and holds name the entry at an address; several holds count as one.
    /// The caller must keep the entry.
    pub(crate) fn named(&self, address: usize) -> usize {
        self.named_in(&mut lock(&self.list), address)
    }

    /// Works as [`named`](Self::named) for an entry that was removed before `round` was asked, and
    /// counts threads that are about to find the entry by a lookup, too. If the result is 1, only
    /// the caller can reach the entry, now and later. `own` is the caller's record.
    pub(crate) fn named_since(&self, own: &Record, round: Round, address: usize) -> usize {
        crate::sync::fence(Ordering::SeqCst); // as in `protected`
        let mut list = self.pass(lock(&self.list), own, round);
        self.named_in(&mut list, address)
    }

    fn named_in(&self, list: &mut List, address: usize) -> usize {
        let named = self.looked_at(list, std::iter::once(address));
        named.into_iter().filter(|&named| named == address).count()
    }

    /// Returns the number of records, cells and holds examined since the cache was made, by
    /// reclaimers and by threads that needed a cell.
    pub(crate) fn visited(&self) -> u64 {
        let list = lock(&self.list);
        list.visited + list.records.iter().map(|record| record.searched()).sum::<u64>()
    }

    /// Returns the maximum number of records, cells, holds or entries that a reclaimer examined
    /// under one lock.
    pub(crate) fn visited_at_once(&self) -> u64 {
        lock(&self.list).visited_at_once
    }

    /// Returns true if a filled cell belongs to this cache. `own` is the caller's record, which is
    /// searched first.
    pub(crate) fn has(&self, own: &Record, cell: &Cell) -> bool {
        let in_other = || {
            // The thread may have given up its record meanwhile, and the cell with it.
            let list = lock(&self.list);
            list.records[..list.live].iter().any(|record| record.has(cell))
        };
        own.has(cell) || in_other()
    }

    /// Holds the entry at an address. A guard of the caller must keep it meanwhile.
    pub(crate) fn hold(&self, address: usize) -> Hold {
        self.holds.hold(address)
    }

    /// Returns the table of held entries.
    pub(crate) fn holds(&self) -> &Arc<Holds> {
        &self.holds
    }

    /// Returns a cell of the caller's own record that names a held entry. The hold must exist
    /// during the call.
    pub(crate) fn adopt<'a>(&self, own: &'a Record, address: usize) -> &'a Cell {
        // A reclaimer that goes through cells and holds has this lock meanwhile: it sees the hold,
        // or comes later and sees the cell.
        let mut list = lock(&self.list);
        let cell = own.cell();
        cell.store(address, Ordering::Release); // as `Record::probe`
        // A scan may have read that cell before, and the hold may be gone when it ends.
        if let Some(scan) = &mut list.scan {
            scan.note(address);
        }
        if list.ended.round != Round::default() {
            list.ended.note(address);
        }
        drop(list);
        cell
    }
}

/// Returns true if all threads but the caller know that they have to use fences.
#[cold]
fn all_fence(list: &List, own: &Record) -> bool {
    // Acquire: see `Record::knows_to_fence`.
    let fences = |record: &Fixed<Record>| record.fences.load(Ordering::Acquire);
    list.records[..list.owned].iter().all(|record| std::ptr::eq(&**record, own) || fences(record))
}

/// The addresses that a scan of the hazard cells has found so far.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// Latest round that all threads had answered, or for which the barrier was passed, when the
    /// scan began. The default value means that there was no scan.
    pub(crate) round: Round,
    /// Number of the scan.
    pub(crate) serial: u64,
    pub(crate) seen: HashSet<usize, foldhash::fast::RandomState>,
}

impl Scan {
    /// Creates a scan with room for `room` addresses, because a growing table would be copied under
    /// the lock.
    pub(crate) fn new(round: Round, serial: u64, room: usize) -> Self {
        let mut seen = HashSet::default();
        seen.reserve(room);
        Self { round, serial, seen }
    }

    /// Adds the address of an entry whose cell the scan may have read before.
    pub(crate) fn note(&mut self, address: usize) {
        self.seen.insert(address);
    }

    /// Returns true if this complete scan allows freeing an entry. The entry must have left before
    /// `asked`, and no cell may name it.
    pub(crate) fn clears(&self, address: usize, asked: Round) -> bool {
        asked <= self.round && !self.seen.contains(&address)
    }
}

/// Capacity up to which the table of holds is not shrunk.
const ROOM: usize = 64;

/// The held entries of one cache.
#[derive(Debug, Default)]
pub(crate) struct Holds(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// Number of holds of each entry, by its address.
    counts: HashMap<usize, usize, foldhash::fast::RandomState>,
    /// The memory of held entries, once the cache has ended.
    estate: Option<Arc<Estate>>,
}

/// The lock of the held entries, for a fork.
pub(crate) struct HoldsLock<'a>(
    #[expect(dead_code, reason = "dropped")] Option<MutexGuard<'a, Table>>,
);

/// Keeps an entry in memory, in any thread and even after the cache was dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    holds: Arc<Holds>,
    address: usize,
}

impl Holds {
    /// Takes the lock for a fork, if it is free until the given time.
    pub(crate) fn locked(&self, until: Instant) -> HoldsLock<'_> {
        HoldsLock(lock_until(&self.0, until))
    }

    /// Holds the entry at an address. A guard of the caller or another hold must keep it meanwhile.
    pub(crate) fn hold(self: &Arc<Self>, address: usize) -> Hold {
        *lock(&self.0).counts.entry(address).or_insert(0) += 1;
        Hold { holds: Arc::clone(self), address }
    }

    /// Returns true if no entry is held.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).counts.is_empty()
    }

    /// Appends those of `addresses` that are held, and returns how many were examined: none if
    /// nothing is held.
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

    /// Appends the addresses of all held entries, and returns their number.
    pub(crate) fn held(&self, out: &mut Vec<usize>) -> usize {
        let table = lock(&self.0);
        out.extend(table.counts.keys());
        table.counts.len()
    }

    /// Transfers ownership of the held entries to their holders. Returns their sorted addresses.
    /// The cache must not drop them from here on.
    pub(crate) fn leave(&self, estate: &Arc<Estate>) -> Vec<usize> {
        let mut table = lock(&self.0);
        let mut held: Vec<_> = table.counts.keys().copied().collect();
        table.estate = (!held.is_empty()).then(|| Arc::clone(estate));
        held.sort_unstable();
        held
    }
}

impl Hold {
    /// Returns the address of the held entry.
    pub(crate) fn address(&self) -> usize {
        self.address
    }

    /// Returns true if the entry is, or was, one of the cache with this table.
    pub(crate) fn is_of(&self, holds: &Arc<Holds>) -> bool {
        Arc::ptr_eq(&self.holds, holds)
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
    /// Pointer from a box of the memory.
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
    /// Creates an estate of memory that contains entries.
    ///
    /// # Safety
    /// The entries that are [left](Holds::leave) with it must be valid, lie in that memory, and be
    /// dropped by no other code. Any thread must be allowed to drop them and the memory at any
    /// time.
    pub(crate) unsafe fn new<E, M>(memory: M) -> Arc<Self> {
        /// # Safety
        /// `address` must be that of a valid entry, which is not used afterwards.
        unsafe fn drop_entry<E>(address: usize) {
            // SAFETY: the caller says so.
            unsafe { std::ptr::with_exposed_provenance_mut::<E>(address).drop_in_place() };
        }
        /// # Safety
        /// `memory` must be that of `new`, and not be used afterwards.
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
