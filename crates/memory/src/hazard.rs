//! Who looks at what: the words in which each thread says which memory must not be freed under it.
//!
//! Every thread that uses a cache has a [`Record`] there: one word for the table it probes and a *cell* for each entry
//! it looks at. Nobody else writes them, so publishing is a plain store to a line the thread owns. A guard is a cell
//! that stays filled; dropping it clears the cell. So a guard held for ever keeps one entry, not the cache (hazard
//! pointers; Michael, IEEE TPDS '04), and the barrier between readers and reclaimers is [`barrier`](crate::barrier)'s.
//!
//! The protocol: a reader reads a place, stores its address in a cell, passes [`barrier::light`](crate::barrier::light)
//! and reads the place again. If it is still the same, whoever takes it out later sees the cell. A reclaimer takes
//! entries out, passes [`barrier::heavy`](crate::barrier::heavy), and frees those that no cell names.
//!
//! Guards that may travel between threads have their cells in a pool under a lock, read last: a guard of a thread can
//! become one of the pool, never the other way round.

use crate::frozen::timing::Timings;
use crate::grace::{Answer, Grace, Round};
use crate::sync::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Mutex, Ordering, lock};

/// Guards a thread can hold on one cache before it needs more memory.
const CELLS: usize = 5;
/// How many more it then gets at a time.
const MORE_CELLS: usize = 31;

/// A counter that one thread advances and others read.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline(always)]
    pub(crate) fn add(&self, count: u64) {
        // Only the owner writes, so no read-modify-write is needed; a sum over threads may be a moment late.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Counts one, and says how many it has been.
    #[inline(always)]
    pub(crate) fn next(&self) -> u64 {
        let count = self.0.load(Ordering::Relaxed).wrapping_add(1); // as in `add`
        self.0.store(count, Ordering::Relaxed);
        count
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed) // see `add`
    }

    pub(crate) fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed); // see `add`
    }
}

/// Random numbers for one thread, good enough to choose requests by (SplitMix64 without its last step).
#[derive(Debug, Default)]
pub(crate) struct Random(Count);

impl Random {
    /// The next one; every number is as likely.
    pub(crate) fn next(&self) -> u32 {
        let random = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(random);
        ((random ^ random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as u32
    }
}

/// What one thread looks at in one cache, and counts there. Zero is nothing.
#[derive(Debug, Default)]
#[repr(C, align(128))] // no line of it is another thread's, nor fetched along with one
pub(crate) struct Record {
    table: AtomicUsize,
    cells: [AtomicUsize; CELLS],
    more: AtomicPtr<Cells>,
    /// Lookups.
    pub(crate) lookups: Count,
    /// The lookup that is to be timed next, by its number, or a later one.
    pub(crate) timed_next: Count,
    /// Lookups that did not find their key.
    pub(crate) misses: Count,
    /// Lookups that found an entry that is not frozen.
    pub(crate) dynamic_hits: Count,
    /// Promotions given up because the order was busy.
    pub(crate) promotions_skipped: Count,
    /// What the thread has answered to those who want to free something.
    answer: Answer,
    owned: AtomicBool,
    /// How long some of the lookups took.
    pub(crate) timings: Timings,
    /// Requests that went past the cache.
    pub(crate) shed: Count,
}

/// Further cells of a thread that holds many guards.
#[derive(Debug, Default)]
struct Cells {
    cells: [AtomicUsize; MORE_CELLS],
    more: AtomicPtr<Cells>,
}

/// Where a guard says which entry it keeps; zero when it is free.
pub(crate) type Cell = AtomicUsize;

impl Record {
    /// Says which table is probed. Before it is used, the caller passes the light barrier and makes sure that the table
    /// is still in use.
    #[inline(always)]
    pub(crate) fn probe(&self, table: usize) {
        // Release, as with cells: who sees this has seen the end of the probe before.
        self.table.store(table, Ordering::Release);
    }

    /// Says that nothing is probed any more, so that what was need not wait until this thread comes again.
    #[inline(always)]
    pub(crate) fn probed_out(&self) {
        self.probe(0);
    }

    /// The table last said to be probed.
    #[inline(always)]
    pub(crate) fn probed(&self) -> usize {
        self.table.load(Ordering::Relaxed) // this thread wrote it
    }

    /// Lookups that found their key.
    pub(crate) fn hits(&self) -> u64 {
        self.lookups.get().saturating_sub(self.misses.get()) // a lookup under way is either
    }

    /// Hits on frozen entries.
    pub(crate) fn frozen_hits(&self) -> u64 {
        self.hits().saturating_sub(self.dynamic_hits.get())
    }

    /// A free cell. Only the thread that owns the record fills cells, so it stays free until then.
    #[inline(always)]
    pub(crate) fn cell(&self) -> &Cell {
        // Relaxed: it was this thread, or one before it, that cleared the cell; nothing is read through it.
        if self.cells[0].load(Ordering::Relaxed) == 0 { &self.cells[0] } else { self.further_cell() }
    }

    /// A free cell for longer, which leaves the first one to others.
    pub(crate) fn another_cell(&self) -> &Cell {
        let is_free = |cell: &&Cell| cell.load(Ordering::Relaxed) == 0; // see `cell`
        self.cells[1..].iter().find(is_free).unwrap_or_else(|| self.further_cell())
    }

    /// The first cell, if it is free.
    #[inline(always)]
    pub(crate) fn first_cell(&self) -> Option<&Cell> {
        Some(&self.cells[0]).filter(|cell| cell.load(Ordering::Relaxed) == 0) // see `cell`
    }

    #[cold]
    fn further_cell(&self) -> &Cell {
        let is_free = |cell: &&Cell| cell.load(Ordering::Relaxed) == 0; // see `cell`
        if let Some(cell) = self.cells.iter().find(is_free) {
            return cell;
        }
        let mut more = &self.more;
        loop {
            let cells = match more.load(Ordering::Relaxed) {
                cells if cells.is_null() => {
                    let cells = Box::into_raw(Box::<Cells>::default());
                    more.store(cells, Ordering::Release); // reclaimers see the cells empty
                    cells
                }
                cells => cells,
            };
            // SAFETY: only this thread adds cells, and they go with the record.
            let cells = unsafe { &*cells };
            if let Some(cell) = cells.cells.iter().find(is_free) {
                return cell;
            }
            more = &cells.more;
        }
    }

    /// Appends the addresses of all that is looked at.
    fn looked_at(&self, out: &mut Vec<usize>) {
        // Acquire: what the reader did with an entry before it cleared or refilled the cell comes before what is done
        // to the entry now.
        let mut add = |cell: &Cell| match cell.load(Ordering::Acquire) {
            0 => {}
            address => out.push(address),
        };
        add(&self.table);
        self.cells.iter().for_each(&mut add);
        let mut more = self.more.load(Ordering::Acquire); // the cells are initialised
        // SAFETY: cells are freed with the record only.
        while let Some(cells) = unsafe { more.as_ref() } {
            cells.cells.iter().for_each(&mut add);
            more = cells.more.load(Ordering::Acquire); // as above
        }
    }

    /// Gives the record up; another thread may have it. Cells of guards that are still alive stay filled.
    pub(crate) fn release(&self) {
        self.owned.store(false, Ordering::Release); // the next owner goes on with the counts
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let mut more = self.more.load(Ordering::Relaxed); // nobody else is left
        while !more.is_null() {
            // SAFETY: allocated by `further_cell` and reachable from here only.
            let cells = unsafe { Box::from_raw(more) };
            more = cells.more.load(Ordering::Relaxed); // as above
        }
    }
}

/// Something whose address stays the same while the list it is in grows.
type Fixed<T> = Box<T>;

/// Cells of guards that travel.
#[derive(Debug, Default)]
struct Pool {
    cells: Vec<Fixed<Cell>>,
    /// Where the search for a free one goes on.
    next: usize,
}

/// Cells of the pool that are looked at for a free one before there is another: so many guards can be held at little cost.
const POOL_LOOKS: usize = 64;

/// The records of a cache, and the pool of cells of guards that travel.
#[derive(Debug, Default)]
pub(crate) struct Records {
    /// Boxed, because threads keep their address. Never fewer; as many as there were threads at once.
    records: Mutex<Vec<Fixed<Record>>>,
    pool: Mutex<Pool>,
    grace: Grace,
    /// Whether some lookups are timed.
    times_lookups: bool,
}

impl Records {
    /// Without any.
    pub(crate) fn new(times_lookups: bool) -> Self {
        Self { times_lookups, ..Self::default() }
    }

    /// A record for the calling thread, which keeps it until it [releases](Record::release) it.
    pub(crate) fn acquire(&self) -> *const Record {
        let mut records = lock(&self.records);
        // Acquire: goes on with the counts of the last owner. Taken under the lock, so by one thread.
        let vacant = records.iter().find(|record| !record.owned.load(Ordering::Acquire));
        if let Some(record) = vacant {
            record.owned.store(true, Ordering::Relaxed); // read under the lock
            return &raw const **record;
        }
        let record = Box::<Record>::default();
        record.timed_next.set(if self.times_lookups { 1 } else { u64::MAX });
        record.owned.store(true, Ordering::Relaxed); // as above
        records.push(record);
        &raw const **records.last().expect("just pushed")
    }

    /// Folds what all threads have counted.
    pub(crate) fn fold<T>(&self, start: T, mut add: impl FnMut(T, &Record) -> T) -> T {
        lock(&self.records).iter().fold(start, |sum, record| add(sum, record))
    }

    /// [`fold`](Self::fold) where that takes no waiting.
    pub(crate) fn try_fold<T>(&self, start: T, add: impl FnMut(T, &Record) -> T) -> Option<T> {
        let mut add = add;
        let records = self.records.try_lock().ok()?;
        Some(records.iter().fold(start, |sum, record| add(sum, record)))
    }

    /// Asks all threads to [answer](Self::answer), after something was taken out that is to be freed.
    pub(crate) fn ask(&self) -> Round {
        self.grace.ask()
    }

    /// Answers those who have asked. `own` is the caller's record, and the caller is not about to look at anything that it
    /// has found but not yet published in a cell.
    #[inline(always)]
    pub(crate) fn answer(&self, own: &Record) {
        self.grace.answer(&own.answer);
    }

    /// The addresses that must not be freed, in order, of all that was taken out before a round was asked. `own` is the
    /// caller's record.
    pub(crate) fn protected(&self, own: &Record, round: Round) -> Vec<usize> {
        // Where readers fence, this is the other side's; so it must not be left out with the barrier.
        crate::sync::fence(Ordering::SeqCst);
        let records = lock(&self.records);
        if !self.has_passed(&records, own, round) {
            let passed = self.grace.last(); // whoever asked so far need not wait any longer
            crate::barrier::heavy();
            self.grace.pass(passed); // under the lock
        }
        self.looked_at(&records)
    }

    /// [`protected`](Self::protected) if it can be told without a barrier and without waiting.
    pub(crate) fn protected_at_once(&self, own: &Record, round: Round) -> Option<Vec<usize>> {
        let records = self.records.try_lock().ok()?;
        self.has_passed(&records, own, round).then(|| self.looked_at(&records))
    }

    /// Whether all threads have answered a round, or passed the barrier since.
    fn has_passed(&self, records: &[Fixed<Record>], own: &Record, round: Round) -> bool {
        // Whoever comes new takes the lock after this, and sees what was taken out.
        let is_other = |record: &Record| !std::ptr::eq(record, own) && record.owned.load(Ordering::Acquire);
        let is_silent = |record: &Record| is_other(record) && !record.answer.is_past(round);
        if !self.grace.has_passed(round) {
            if records.iter().any(|record| is_silent(record)) {
                return false;
            }
            self.grace.pass(round); // under the lock
        }
        true
    }

    /// The addresses that are looked at, in order.
    fn looked_at(&self, records: &[Fixed<Record>]) -> Vec<usize> {
        let mut addresses = Vec::new();
        for record in records.iter() {
            record.looked_at(&mut addresses);
        }
        // Last: a guard that became one of the pool meanwhile was seen above or is seen here.
        let pool = lock(&self.pool);
        addresses.extend(
            pool.cells.iter().map(|cell| cell.load(Ordering::Acquire)).filter(|&address| address != 0),
        );
        drop(pool);
        addresses.sort_unstable();
        addresses
    }

    /// A cell of the pool that names the same entry as a guard that the caller holds meanwhile.
    pub(crate) fn pooled(&self, address: usize) -> *const Cell {
        let mut pool = lock(&self.pool);
        let Pool { cells, next } = &mut *pool;
        for _ in 0..POOL_LOOKS.min(cells.len()) {
            *next = (*next + 1) % cells.len();
            let cell = &cells[*next];
            // Acquire: the entry that was kept before is done with. Filled under the lock, so by one thread.
            if cell.load(Ordering::Acquire) == 0 {
                cell.store(address, Ordering::Release); // as `Record::probe`
                return &raw const **cell;
            }
        }
        cells.push(Box::new(Cell::new(address)));
        &raw const **cells.last().expect("just pushed")
    }
}
