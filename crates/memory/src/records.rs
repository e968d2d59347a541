//! The records of a cache's threads: hands them out, takes them back, and goes through them for
//! reclaimers.
//!
//! The cost of that is bounded by the threads there are, not by those there were: records stand in
//! the order *owned* by threads, *left* with a guard still alive, and *free*. The first two are
//! gone through. Free ones keep what they have counted, the sum of which is kept as well, and go to
//! the next threads; so there are as many as there were threads at once.
//!
//! Guards that may travel between threads stand in a [table](crate::holds) under a lock, read last:
//! a guard of a thread can become one of those. The other way round, it does so under the lock of
//! the records.
//!
//! # Scans
//!
//! One look at the cells of all threads, a part at a time.
//!
//! Where threads hold few guards, a reclaimer looks at all cells whenever it frees a batch. With
//! many guards that would cost each batch as much as all of them. So a *scan* reads some cells for
//! each batch, under the lock of the records each time, and batches wait for its end. It has seen
//! all guards of what had left before it began: a guard stays in its cell until it is dropped or
//! becomes a [hold](crate::holds), which reclaimers look for later. The way back from a hold to a
//! cell notes the address here.
//!
//! # Holds
//!
//! Entries held by guards that may travel between threads and outlive the cache: a table of
//! addresses under one lock.
//!
//! A [`Hold`] is made while a guard names the entry, and a reclaimer reads this table after all
//! cells: so a guard can become a hold, and the entry is seen in one place or the other. The way
//! back is [`Records::adopt`](crate::records::Records::adopt)'s.
//!
//! A cache that ends leaves what is held to its holders (an [`Estate`]): the last hold of an entry
//! drops it, and the last of all gives the memory back.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use crate::barrier;
use crate::hazard::{Cell, Further, Record};
use crate::retired::{Grace, Round};
use crate::sync::{Arc, Mutex, MutexGuard, Ordering, lock, lock_until};

/// Cells beyond the first ones of their threads that a reclaimer reads all at once.
const FEW: usize = 1024;

/// Something whose address stays the same while the list it is in grows.
type Fixed<T> = Box<T>;

/// The counts of threads, as far as they are often read.
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

/// The records, in three parts.
#[derive(Debug, Default)]
struct List {
    /// Boxed, because threads keep their address. Never fewer; as many as there were threads at
    /// once.
    records: Vec<Fixed<Record>>,
    /// The first so many are owned by threads.
    owned: usize,
    /// The first so many are owned or still have a guard.
    live: usize,
    /// The sum of the counts of free records.
    free: Counted,
    /// Records, cells and holds that reclaimers have visited since the cache was made.
    visited: u64,
    /// The most of them that were visited under one lock, but for those who ask for all.
    visited_at_once: u64,
    /// A scan under way, where there are many cells.
    scan: Option<Scan>,
    /// The last one that has ended.
    ended: Scan,
}

impl List {
    /// Exchanges two records' places.
    fn swap(&mut self, a: usize, b: usize) {
        self.records.swap(a, b);
        self.records[a].place.store(a, Ordering::Relaxed); // under the lock
        self.records[b].place.store(b, Ordering::Relaxed); // as above
    }

    /// Frees a record that is live, not owned, and has no guard any more.
    fn free(&mut self, at: usize) {
        debug_assert!((self.owned..self.live).contains(&at));
        self.free = self.free.and(Counted::of(&self.records[at]));
        self.records[at].forget_scan();
        self.live -= 1;
        self.swap(at, self.live);
    }

    /// Returns about how many cells there are beyond the first ones of their threads.
    fn further_cells(&self) -> usize {
        self.records[..self.live].iter().map(|record| record.further_cells()).sum()
    }

    /// Reads about so many more cells for the scan under way.
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

    /// There are few cells now: a scan of many ends at once, and nobody needs the last one.
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

/// The locks of records, for a fork. Those of cells go first.
pub(crate) struct RecordLocks<'a> {
    _further: Vec<MutexGuard<'a, Further>>,
    _holds: HoldsLock<'a>,
    _list: Option<MutexGuard<'a, List>>,
}

/// The records of a cache, and what is held of it.
#[derive(Debug, Default)]
pub(crate) struct Records {
    list: Mutex<List>,
    holds: Arc<Holds>,
    grace: Grace,
    /// True if some lookups are timed.
    times_lookups: bool,
}

impl Records {
    /// Without any.
    pub(crate) fn new(times_lookups: bool) -> Self {
        Self { times_lookups, ..Self::default() }
    }

    /// Takes all locks for a fork.
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

    /// A record for the calling thread, which keeps it until it [releases](Self::release) it.
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

    /// Takes the calling thread's record back; another thread may have it. Cells of guards that are
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

    /// Returns what all threads have counted.
    pub(crate) fn counted(&self) -> Counted {
        lock(&self.list).counted()
    }

    /// [`counted`](Self::counted) where that takes no waiting.
    pub(crate) fn try_counted(&self) -> Option<Counted> {
        self.list.try_lock().ok().map(|list| list.counted())
    }

    /// Folds what all threads have counted that ever were: one record for each that there was at
    /// once.
    pub(crate) fn fold<T>(&self, start: T, mut add: impl FnMut(T, &Record) -> T) -> T {
        lock(&self.list).records.iter().fold(start, |sum, record| add(sum, record))
    }

    /// Asks all threads to [answer](Self::answer), after something was taken out that is to be
    /// freed.
    pub(crate) fn ask(&self) -> Round {
        self.grace.ask()
    }

    /// Answers the threads that have asked. `own` is the caller's record, and the caller must not
    /// be about to read anything that it has found but not yet published in a cell.
    #[inline(always)]
    pub(crate) fn answer(&self, own: &Record) {
        self.grace.answer(&own.answer);
    }

    /// Returns which of some addresses must not be freed, and perhaps others, in order. What is
    /// there was taken out before a round was asked. `own` is the caller's record. `None` if there
    /// are so many cells that a [scan](Self::advance) is to read them.
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

    /// [`protected`](Self::protected) if it can be told without a barrier and without waiting.
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

    /// Waits until all threads have answered a round or passed the barrier since.
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

    /// Reads about so many more cells, where there are many. Returns whether a scan has ended that
    /// has seen all guards of what was taken out before a round was asked. `own` is the caller's
    /// record.
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

    /// For each of some addresses, of what was taken out before a round was asked: whether that can
    /// be freed by the last scan that has ended.
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

    /// Returns whether all threads have answered a round, or passed the barrier since.
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

    /// The addresses in all cells, and those of some that are held, in order.
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

    /// Calls a function with the addresses of entries that handles name, in order and each once.
    /// None of the entries is freed meanwhile: reclaimers look under the same lock.
    pub(crate) fn with_handles<R>(&self, read: impl FnOnce(Vec<usize>) -> R) -> R {
        let list = lock(&self.list);
        let mut named = Vec::new();
        list.records[..list.live].iter().for_each(|record| record.handles(&mut named));
        named.sort_unstable();
        named.dedup();
        read(named)
    }

    /// Returns how many cells and holds name the entry at an address, which the caller keeps.
    pub(crate) fn named(&self, address: usize) -> usize {
        let mut list = lock(&self.list);
        let named = self.looked_at(&mut list, std::iter::once(address));
        named.into_iter().filter(|&named| named == address).count()
    }

    /// Returns the number of records, cells and holds visited since the cache was made, by
    /// reclaimers and by threads that needed a cell.
    pub(crate) fn visited(&self) -> u64 {
        let list = lock(&self.list);
        list.visited + list.records.iter().map(|record| record.searched()).sum::<u64>()
    }

    /// Returns the most records, cells, holds or entries visited by a reclaimer under one lock.
    pub(crate) fn visited_at_once(&self) -> u64 {
        lock(&self.list).visited_at_once
    }

    /// Returns whether a cell that names something is one of this cache's. `own` is the caller's
    /// record, where it is more often than not.
    pub(crate) fn has(&self, own: &Record, cell: &Cell) -> bool {
        let in_other = || {
            // The thread may have given up its record meanwhile, and the cell with it.
            let list = lock(&self.list);
            list.records[..list.live].iter().any(|record| record.has(cell))
        };
        own.has(cell) || in_other()
    }

    /// Holds the entry at an address that a guard of the caller's keeps meanwhile.
    pub(crate) fn hold(&self, address: usize) -> Hold {
        self.holds.hold(address)
    }

    /// Returns what is held.
    pub(crate) fn holds(&self) -> &Arc<Holds> {
        &self.holds
    }

    /// A cell of the caller's own record that names an entry which a hold keeps meanwhile.
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

/// Returns whether all threads but the caller know that they have to fence.
#[cold]
fn all_fence(list: &List, own: &Record) -> bool {
    // Acquire: see `Record::knows_to_fence`.
    let fences = |record: &Fixed<Record>| record.fences.load(Ordering::Acquire);
    list.records[..list.owned].iter().all(|record| std::ptr::eq(&**record, own) || fences(record))
}

/// Addresses that cells name, as far as a scan has come.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// All threads had answered this round, or passed the barrier since, when it began. The first
    /// round is later than that of no scan.
    pub(crate) round: Round,
    /// The number of the scan.
    pub(crate) serial: u64,
    pub(crate) seen: HashSet<usize, foldhash::fast::RandomState>,
}

impl Scan {
    /// Begins, with room for so many addresses: a table that grows is copied at once.
    pub(crate) fn new(round: Round, serial: u64, room: usize) -> Self {
        let mut seen = HashSet::default();
        seen.reserve(room);
        Self { round, serial, seen }
    }

    /// Notes a cell that names an entry, as the scan may have read the cell before.
    pub(crate) fn note(&mut self, address: usize) {
        self.seen.insert(address);
    }

    /// Returns whether this, when it has ended, has seen all guards of what had left before a round
    /// was asked, and none for an address.
    pub(crate) fn clears(&self, address: usize, asked: Round) -> bool {
        asked <= self.round && !self.seen.contains(&address)
    }
}

/// Room for so many addresses is kept.
const ROOM: usize = 64;

/// The entries of one cache that are held.
#[derive(Debug, Default)]
pub(crate) struct Holds(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// The number of holds of each entry, by its address.
    counts: HashMap<usize, usize, foldhash::fast::RandomState>,
    /// The memory of held entries, once the cache has ended.
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
