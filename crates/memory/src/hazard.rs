//! Hazard records: the words in which each thread says which memory must not be freed under it.
//!
//! Every thread that uses a cache has a [`Record`] there: one word for the frozen index it probes
//! and a *cell* for each entry it reads. No other thread fills them, so publishing is a plain store
//! to a line the thread owns. A guard is a cell that stays filled; dropping it clears the cell. A
//! guard held for ever keeps one entry, not the cache (hazard pointers; Michael, IEEE TPDS '04),
//! and the barrier between readers and reclaimers is [`barrier`](crate::barrier)'s.
//!
//! The protocol: a reader reads a place, stores its address in a cell, passes
//! [`barrier::light`](crate::barrier::light) and reads the place again. If it is unchanged, a
//! thread that takes the entry out later sees the cell. A reclaimer takes entries out, passes
//! [`barrier::heavy`](crate::barrier::heavy), and frees those that no cell names.
//! [`records`](crate::records) keeps the records of a cache and goes through them.

use std::time::Instant;

use crate::cell::{Cell, HANDLE, is_free};
use crate::count::Count;
use crate::frozen::timing::Timings;
use crate::further::Further;
use crate::grace::Answer;
use crate::nesting::Nesting;
use crate::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering, lock, lock_until};

/// Guards a thread can hold on one cache before it needs more memory.
const CELLS: usize = 5;

/// Holds what one thread looks at in one cache, and counts there. Zero is nothing.
#[derive(Debug, Default)]
#[repr(C, align(128))] // no line of it is another thread's, nor fetched along with one
pub(crate) struct Record {
    probed: AtomicUsize,
    cells: [AtomicUsize; CELLS],
    /// Counts how many [further](Further) cells there are.
    more: AtomicUsize,
    /// Lookups.
    pub(crate) lookups: Count,
    /// The number of the lookup from which on they are not as usual: the next to be timed, or 0
    /// for a thread that is to fence. That is set by whoever finds that it has to.
    pub(crate) usual_below: Count,
    /// Lookups that did not find their key.
    pub(crate) misses: Count,
    /// Lookups that found an entry that is not frozen.
    pub(crate) dynamic_hits: Count,
    /// Promotions given up because the order was busy.
    pub(crate) promotions_skipped: Count,
    /// The thread's answer to threads that want to free entries.
    pub(crate) answer: Answer,
    /// Cells of a thread that holds many guards.
    further: Mutex<Further>,
    /// Where the record is among those of the cache. Under their lock.
    pub(crate) place: AtomicUsize,
    /// Lookups that the controller of freezing has seen. Under the same lock.
    pub(crate) lookups_seen: Count,
    /// True if the thread knows that it has to fence, and does in all its lookups from then on.
    pub(crate) fences: AtomicBool,
    /// Tells how long some of the lookups took.
    pub(crate) timings: Timings,
    /// The user's code that the thread runs for the cache.
    pub(crate) nesting: Nesting,
    /// The number of the last [scan](crate::scan) that has read all cells. Under the lock of the
    /// records, as the next.
    pub(crate) scanned: Count,
    /// Where a scan goes on that has read some of the cells: 0 at the first, 1 at the further ones.
    scan_from: Count,
}

impl Record {
    /// Takes the lock of further cells for a fork.
    pub(crate) fn further_until(&self, until: Instant) -> Option<MutexGuard<'_, Further>> {
        lock_until(&self.further, until)
    }

    /// Says which frozen index is probed. Before it is used, the caller passes the light barrier
    /// and makes sure that the index is still published.
    #[inline(always)]
    pub(crate) fn probe(&self, index: usize) {
        // Release, as with cells: a thread that sees this has seen the end of the probe before.
        self.probed.store(index, Ordering::Release);
    }

    /// Says that nothing is probed any more, so that what was need not wait until this thread comes
    /// again.
    #[inline(always)]
    pub(crate) fn probed_out(&self) {
        self.probe(0);
    }

    /// Tells the thread that it has to fence from now on.
    pub(crate) fn tell_to_fence(&self) {
        // A thread that times a lookup meanwhile may overwrite it, or see it late: that is what
        // `fences` is for, and it is told again.
        self.usual_below.set(0);
    }

    /// Returns whether the thread's lookups need no fence, as far as it knows.
    #[inline(always)]
    pub(crate) fn does_without_fences(&self) -> bool {
        self.usual_below.get() != 0
    }

    /// Says that the thread knows, from [`barrier`](crate::barrier), that it has to fence.
    #[inline]
    pub(crate) fn knows_to_fence(&self) {
        self.tell_to_fence();
        if !self.fences.load(Ordering::Relaxed) {
            // what the thread looked at without a fence stands in its cells
            self.fences.store(true, Ordering::Release);
        }
    }

    /// Lookups that found their key.
    pub(crate) fn hits(&self) -> u64 {
        self.lookups.get().saturating_sub(self.misses.get()) // a lookup under way is either
    }

    /// Hits on frozen entries.
    pub(crate) fn frozen_hits(&self) -> u64 {
        self.hits().saturating_sub(self.dynamic_hits.get())
    }

    /// A free cell, to be filled at once. Only the thread that owns the record fills cells, so it
    /// stays free until then.
    #[inline(always)]
    pub(crate) fn cell(&self) -> &Cell {
        if is_free(&self.cells[0]) { &self.cells[0] } else { self.further_cell() }
    }

    /// A free cell for longer, which leaves the first one to others.
    pub(crate) fn another_cell(&self) -> &Cell {
        self.cells[1..].iter().find(|cell| is_free(cell)).unwrap_or_else(|| self.further_cell())
    }

    /// The first cell, if it is free.
    #[inline(always)]
    pub(crate) fn first_cell(&self) -> Option<&Cell> {
        Some(&self.cells[0]).filter(|cell| is_free(cell))
    }

    /// Makes a handle of a cell that names an entry: the cell itself or, so that the first one
    /// stays free for lookups, another one. `None` where the record has none for it.
    #[inline(always)]
    pub(crate) fn handle_cell(&self, cell: &Cell) -> Option<&Cell> {
        let handles = &self.cells[1..];
        let is_first = std::ptr::eq(cell, &self.cells[0]);
        let own = if is_first {
            handles.iter().find(|own| is_free(own))?
        } else {
            handles.iter().find(|own| std::ptr::eq(*own, cell))?
        };
        let address = cell.load(Ordering::Relaxed); // this thread wrote it
        own.store(address | HANDLE, Ordering::Release); // as `probe`
        if is_first {
            // After that: cells are read in their order, so that a reclaimer sees one of the two.
            cell.store(0, Ordering::Release);
        }
        Some(own)
    }

    /// Appends the addresses of entries that handles of this record name. The caller has the lock
    /// of the records.
    pub(crate) fn handles(&self, out: &mut Vec<usize>) {
        // Acquire: the entry is read.
        let named = self.cells.iter().map(|cell| cell.load(Ordering::Acquire));
        out.extend(named.filter(|named| named & HANDLE != 0).map(|named| named & !HANDLE));
        out.retain(|&address| address != 0); // a reserved cell names none
    }

    #[cold]
    fn further_cell(&self) -> &Cell {
        if let Some(cell) = self.cells.iter().find(|cell| is_free(cell)) {
            return cell;
        }
        let mut further = lock(&self.further);
        let cell: *const Cell = further.take();
        // Release: reclaimers that see the number see the cells. It is there before the cell names
        // anything.
        self.more.store(further.len(), Ordering::Release);
        // SAFETY: a chunk of cells is freed only while none of them is filled, and this one is: it
        // is reserved.
        unsafe { &*cell }
    }

    /// Returns whether a cell is one of these.
    pub(crate) fn has(&self, cell: &Cell) -> bool {
        self.cells.iter().any(|own| std::ptr::eq(own, cell)) || lock(&self.further).has(cell)
    }

    /// Appends the addresses of all that is looked at. Returns how many cells that took. The caller
    /// has the lock of the records.
    pub(crate) fn looked_at(&self, out: &mut Vec<usize>) -> usize {
        // Acquire: what the reader did with an entry before it cleared or refilled the cell comes
        // before what is done to the entry now.
        let mut add = |cell: &Cell| match cell.load(Ordering::Acquire) {
            0 => {}
            address => out.push(address & !HANDLE),
        };
        add(&self.probed);
        self.cells.iter().for_each(&mut add);
        // Acquire: see `further_cell`.
        if self.more.load(Ordering::Acquire) == 0 {
            return 1 + CELLS;
        }
        let mut further = lock(&self.further);
        let visited = further.looked_at(out);
        self.more.store(further.len(), Ordering::Release); // fewer, perhaps; under the lock
        1 + CELLS + visited
    }

    /// Returns about how many further cells there are.
    pub(crate) fn further_cells(&self) -> usize {
        self.more.load(Ordering::Relaxed) // how reclaimers proceed depends on it, and no more
    }

    /// Notes the addresses in some more cells: that of the index that is probed and the first ones,
    /// then about so many further ones as are `left`. Returns whether those were the last. The
    /// caller has the lock of the records.
    pub(crate) fn scan_some(&self, left: &mut usize, seen: &mut impl Extend<usize>) -> bool {
        let from = self.scan_from.get();
        if from == 0 {
            // Acquire, and in their order: as in `looked_at` and `handle_cell`.
            let words = [&self.probed].into_iter().chain(&self.cells);
            let named = words.map(|word| word.load(Ordering::Acquire) & !HANDLE);
            seen.extend(named.filter(|&address| address != 0));
            *left = left.saturating_sub(CELLS);
            // Acquire: see `further_cell`.
            if self.more.load(Ordering::Acquire) == 0 {
                return true;
            }
        }
        let mut further = lock(&self.further);
        let next = further.scan_some(from.saturating_sub(1) as usize, left, seen);
        self.more.store(further.len(), Ordering::Release); // as in `looked_at`
        self.scan_from.set(next.map_or(0, |next| next as u64 + 1));
        next.is_none()
    }

    /// No scan that has begun goes on here.
    pub(crate) fn forget_scan(&self) {
        self.scan_from.set(0);
    }

    /// Cells that were looked at for a free one.
    pub(crate) fn searched(&self) -> u64 {
        lock(&self.further).searched()
    }

    /// Returns whether no guard is left, after the thread has given the record up.
    pub(crate) fn is_idle(&self) -> bool {
        // Acquire: the record's next owner continues after all reads under the guards.
        self.cells.iter().all(is_free) && self.more.load(Ordering::Acquire) == 0
    }
}
