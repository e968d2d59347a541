//! Hazard records: the words in which each thread publishes the memory that must not be freed while
//! it reads.
//!
//! Every thread that uses a cache has a [`Record`] there: one word for the frozen index that it
//! probes, and a *cell* for each entry that it reads. No other thread fills them, so publishing is
//! a plain store to a cache line of the thread. A guard is a cell that stays filled; dropping it
//! clears the cell. A guard held for ever keeps one entry, not the cache (hazard pointers; Michael,
//! IEEE TPDS '04). [`barrier`](crate::barrier) is the fence between readers and reclaimers.
//!
//! The protocol: a reader reads a place, stores its address in a cell, passes
//! [`barrier::light`](crate::barrier::light) and reads the place again. If it is unchanged, a
//! thread that removes the entry later sees the cell. A reclaimer removes entries, passes
//! [`barrier::heavy`](crate::barrier::heavy), and frees those that no cell names.
//! [`records`](crate::records) has the list of a cache's records and scans them.
//!
//! # Further cells
//!
//! A thread with more guards than its record has cells uses further cells, at a constant cost each.
//!
//! They come in chunks of a fixed size. A list names those that were free at the last scan; only
//! the thread that owns the record takes cells, so they are still free. When the list is empty, the
//! thread scans all cells, and adds as many as are needed to make half of them free. Dropping a
//! guard clears its cell and touches nothing else. A reclaimer, which scans the cells in any case,
//! frees chunks without guards.

use std::time::Instant;

use crate::frozen::timing::{Count, Timings};
use crate::retired::Answer;
use crate::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering, lock, lock_until};
use crate::user_code::Nesting;

/// Number of guards that a thread can hold on one cache before it needs more memory.
const CELLS: usize = 5;

/// Hazard pointers and counts of one thread in one cache. A cell of 0 is free.
#[derive(Debug, Default)]
#[repr(C, align(128))] // no line of it is another thread's, nor fetched along with one
pub(crate) struct Record {
    probed: AtomicUsize,
    cells: [AtomicUsize; CELLS],
    /// Number of [further](Further) cells.
    more: AtomicUsize,
    /// Lookups by the thread.
    pub(crate) lookups: Count,
    /// Lookups with a number below this take the fast path. It is the number of the next lookup to
    /// be timed, or 0 for a thread that is to use fences. Any thread may set it to 0.
    pub(crate) usual_below: Count,
    /// Lookups that did not find their key.
    pub(crate) misses: Count,
    /// Lookups that found an entry that is not frozen.
    pub(crate) dynamic_hits: Count,
    /// Promotions skipped because the lock of the policy's order was taken.
    pub(crate) promotions_skipped: Count,
    /// The thread's answer to threads that want to free entries.
    pub(crate) answer: Answer,
    /// Further cells, for a thread that holds many guards.
    further: Mutex<Further>,
    /// Position of the record in the cache's list. Protected by the lock of the records.
    pub(crate) place: AtomicUsize,
    /// Lookups that the controller of freezing has seen. Protected by the lock of the records.
    pub(crate) lookups_seen: Count,
    /// True if the thread knows that it has to use fences, and does so in all later lookups.
    pub(crate) fences: AtomicBool,
    /// Latencies of the timed lookups.
    pub(crate) timings: Timings,
    /// Calls of user code that the thread runs for the cache.
    pub(crate) nesting: Nesting,
    /// Number of the last scan that has read all cells. Protected by the lock of the records.
    pub(crate) scanned: Count,
    /// Position at which an unfinished scan continues: 0 for the first cells, n + 1 for chunk n of
    /// the further ones. Protected by the lock of the records.
    scan_from: Count,
}

impl Record {
    /// Takes the lock of the further cells for a fork; `None` if it is not free until the given
    /// time.
    pub(crate) fn further_until(&self, until: Instant) -> Option<MutexGuard<'_, Further>> {
        lock_until(&self.further, until)
    }

    /// Publishes the frozen index that the thread is about to probe. Before the thread uses it, the
    /// caller must pass the light barrier and check that the index is still published.
    #[inline(always)]
    pub(crate) fn probe(&self, index: usize) {
        // Release, as with cells: a thread that sees this has seen the end of the probe before.
        self.probed.store(index, Ordering::Release);
    }

    /// Publishes that the thread probes no index, so that an index can be freed before the thread's
    /// next lookup.
    #[inline(always)]
    pub(crate) fn probed_out(&self) {
        self.probe(0);
    }

    /// Tells the thread to use fences from now on.
    pub(crate) fn tell_to_fence(&self) {
        // A thread that times a lookup meanwhile may overwrite it, or see it late: that is what
        // `fences` is for, and it is told again.
        self.usual_below.set(0);
    }

    /// Returns true if the thread's lookups need no fence, as far as the thread knows.
    #[inline(always)]
    pub(crate) fn does_without_fences(&self) -> bool {
        self.usual_below.get() != 0
    }

    /// Records that the thread has learned from [`barrier`](crate::barrier) that it has to use
    /// fences.
    #[inline]
    pub(crate) fn knows_to_fence(&self) {
        self.tell_to_fence();
        if !self.fences.load(Ordering::Relaxed) {
            // what the thread looked at without a fence stands in its cells
            self.fences.store(true, Ordering::Release);
        }
    }

    /// Returns the number of lookups that found their key.
    pub(crate) fn hits(&self) -> u64 {
        self.lookups.get().saturating_sub(self.misses.get()) // a lookup under way is either
    }

    /// Returns the number of hits on frozen entries.
    pub(crate) fn frozen_hits(&self) -> u64 {
        self.hits().saturating_sub(self.dynamic_hits.get())
    }

    /// Returns a free cell, to be filled at once. Only the thread that owns the record fills cells,
    /// so the cell stays free until then.
    #[inline(always)]
    pub(crate) fn cell(&self) -> &Cell {
        if is_free(&self.cells[0]) { &self.cells[0] } else { self.further_cell() }
    }

    /// Returns a free cell for longer use, other than the first, which stays free for lookups.
    pub(crate) fn another_cell(&self) -> &Cell {
        self.cells[1..].iter().find(|cell| is_free(cell)).unwrap_or_else(|| self.further_cell())
    }

    /// Returns the first cell, if it is free.
    #[inline(always)]
    pub(crate) fn first_cell(&self) -> Option<&Cell> {
        Some(&self.cells[0]).filter(|cell| is_free(cell))
    }

    /// Marks a cell that names an entry as a handle, and returns the handle's cell. The first cell
    /// stays free for lookups: its contents move to another one. Returns `None` if the record has
    /// no cell for that.
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

    /// Appends the addresses of entries that handles of this record name. The caller must hold the
    /// lock of the records.
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

    /// Returns true if the cell belongs to this record.
    pub(crate) fn has(&self, cell: &Cell) -> bool {
        self.cells.iter().any(|own| std::ptr::eq(own, cell)) || lock(&self.further).has(cell)
    }

    /// Appends all addresses that the record's cells name. Returns the number of cells examined.
    /// The caller must hold the lock of the records.
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

    /// Returns the approximate number of further cells.
    pub(crate) fn further_cells(&self) -> usize {
        self.more.load(Ordering::Relaxed) // how reclaimers proceed depends on it, and no more
    }

    /// Continues a scan: collects the addresses in the next cells, about `left` of them, and
    /// reduces `left`. A scan begins with the probed index and the first cells. Returns true if it
    /// has read all cells. The caller must hold the lock of the records.
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

    /// Abandons an unfinished scan of this record.
    pub(crate) fn forget_scan(&self) {
        self.scan_from.set(0);
    }

    /// Returns the number of cells examined in searches for free ones.
    pub(crate) fn searched(&self) -> u64 {
        lock(&self.further).searched()
    }

    /// Returns true if no guard is left, after the thread has given the record up.
    pub(crate) fn is_idle(&self) -> bool {
        // Acquire: the record's next owner continues after all reads under the guards.
        self.cells.iter().all(is_free) && self.more.load(Ordering::Acquire) == 0
    }
}

/// A word that holds the address of the entry that a guard keeps; 0 if the cell is free.
pub(crate) type Cell = AtomicUsize;

/// Bit in a cell's address that marks a [handle](crate::host::Handle) of a host's cache.
pub(crate) const HANDLE: usize = 1;

/// Returns true if a cell is free.
#[inline(always)]
pub(crate) fn is_free(cell: &Cell) -> bool {
    // Acquire: a guard that outlives its thread's use of the record is cleared by that thread,
    // under the next owner. Reads under it come before the cell's next use, and so before the
    // actions of a reclaimer that sees that.
    cell.load(Ordering::Acquire) == 0
}

/// Number of cells in a chunk.
const CHUNK: usize = 64;
/// Contents of a cell that is taken and not yet filled. It is no address of an entry.
pub(crate) const RESERVED: usize = 1;

/// The further cells of a record. The owning thread and reclaimers share them under a lock.
#[derive(Debug, Default)]
pub(crate) struct Further {
    /// Chunks by number; `None` for those that were freed. The last one is always present.
    chunks: Vec<Option<Box<[Cell; CHUNK]>>>,
    /// Number of chunks that are present.
    present: usize,
    /// Numbers of cells that were free at the last search.
    free: Vec<u32>,
    /// Cells examined in searches for free ones.
    searched: u64,
    /// Cells that the current scan has read so far; `named` of them are filled.
    scanned: usize,
    named: usize,
}

impl Further {
    /// Returns the number of cells.
    pub(crate) fn len(&self) -> usize {
        self.present * CHUNK
    }

    /// Returns true if the cell belongs to these chunks.
    pub(crate) fn has(&self, cell: &Cell) -> bool {
        self.chunks.iter().flatten().any(|chunk| chunk.iter().any(|own| std::ptr::eq(own, cell)))
    }

    /// Returns the number of cells examined in searches for free ones.
    pub(crate) fn searched(&self) -> u64 {
        self.searched
    }

    /// Reserves a cell for the thread that owns the record. The cell does not move until it is
    /// cleared.
    pub(crate) fn take(&mut self) -> &Cell {
        let number = loop {
            if self.free.is_empty() {
                self.look_for_free();
            }
            let number = self.free.pop().expect("just found") as usize;
            // Scans give chunks back, and others may have come in their place.
            let chunk = self.chunks.get(number / CHUNK).and_then(Option::as_deref);
            if chunk.is_some_and(|chunk| chunk[number % CHUNK].load(Ordering::Acquire) == 0) {
                break number; // Acquire: as in `Record::cell`
            }
        };
        let chunk = self.chunks[number / CHUNK].as_deref().expect("it is there, see above");
        let cell = &chunk[number % CHUNK];
        cell.store(RESERVED, Ordering::Relaxed); // under the lock; names nothing
        cell
    }

    #[cold]
    fn look_for_free(&mut self) {
        // Acquire: as in `Record::cell`.
        let is_free = |cell: &Cell| cell.load(Ordering::Acquire) == 0;
        self.searched += self.len() as u64;
        let mut free = 0;
        for chunk in self.chunks.iter().flatten() {
            free += chunk.iter().filter(|cell| is_free(cell)).count();
        }
        let mut next = 0;
        while 2 * free <= self.len() {
            while self.chunks.get(next).is_some_and(Option::is_some) {
                next += 1;
            }
            if next == self.chunks.len() {
                self.chunks.push(None);
            }
            self.chunks[next] = Some(Box::new(std::array::from_fn(|_| Cell::default())));
            self.present += 1;
            free += CHUNK;
        }
        // The first ones are taken first, so that the last chunks are those that empty.
        for (number, chunk) in self.chunks.iter().enumerate().rev() {
            let Some(chunk) = chunk else { continue };
            let free = (0..CHUNK).rev().filter(|at| is_free(&chunk[*at]));
            self.free.extend(free.map(|at| (number * CHUNK + at) as u32));
        }
    }

    /// Appends the addresses in the cells, and frees empty chunks if few cells are filled. Returns
    /// the number of cells examined.
    pub(crate) fn looked_at(&mut self, out: &mut Vec<usize>) -> usize {
        let (visited, before) = (self.len(), out.len());
        let mut empty = Vec::new();
        for (number, chunk) in self.chunks.iter().enumerate() {
            let Some(chunk) = chunk else { continue };
            let named = out.len();
            // Acquire: see `Record::looked_at`.
            out.extend(
                chunk
                    .iter()
                    .map(|cell| cell.load(Ordering::Acquire))
                    .filter(|&address| address != 0),
            );
            if out.len() == named {
                empty.push(number);
            }
        }
        if 4 * (out.len() - before) < self.len() {
            self.give_back(&empty);
        }
        visited
    }

    /// Collects the addresses in about `left` more cells, beginning at chunk `from`. Frees empty
    /// chunks if few cells were filled so far. Returns the chunk to continue with; `None` at the
    /// end.
    pub(crate) fn scan_some(
        &mut self,
        from: usize,
        left: &mut usize,
        seen: &mut impl Extend<usize>,
    ) -> Option<usize> {
        for number in from..self.chunks.len() {
            let Some(chunk) = &self.chunks[number] else { continue };
            if *left == 0 {
                return Some(number);
            }
            // Acquire: see `Record::looked_at`.
            let cells = chunk.iter().map(|cell| cell.load(Ordering::Acquire));
            let mut filled = 0;
            seen.extend(cells.filter(|&it| it != 0).inspect(|_| filled += 1));
            *left = left.saturating_sub(CHUNK);
            self.scanned += CHUNK;
            self.named += filled;
            if filled == 0 && 4 * self.named < self.scanned {
                self.chunks[number] = None;
                self.present -= 1;
            }
        }
        if 4 * self.named < self.scanned {
            let there = self.chunks.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
            self.chunks.truncate(there);
            self.chunks.shrink_to(2 * there);
            self.free = Vec::new(); // found anew, among those that are left
        }
        (self.scanned, self.named) = (0, 0);
        None
    }

    fn give_back(&mut self, empty: &[usize]) {
        for &number in empty {
            self.chunks[number] = None;
        }
        self.present -= empty.len();
        let there = self.chunks.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.chunks.truncate(there);
        self.chunks.shrink_to(2 * there);
        let chunks = &self.chunks;
        self.free
            .retain(|&number| chunks.get(number as usize / CHUNK).is_some_and(Option::is_some));
        self.free.shrink_to(2 * self.free.len());
    }
}
