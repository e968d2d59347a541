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
//!
//! # Further cells
//!
//! Cells of a thread that holds more guards than its record has cells for, at a constant cost each.
//!
//! They come in chunks of a fixed size. A list names those that were free at the last scan; only
//! the thread that owns the record takes cells, so they still are. When the list is empty the
//! thread scans all cells, and adds so many that half of them are free. Dropping a guard clears its
//! cell and touches nothing else. A reclaimer goes through the cells in any case, and gives chunks
//! back that have no guard any more.

use std::time::Instant;

use crate::frozen::timing::Count;
use crate::frozen::timing::Timings;
use crate::retired::Answer;
use crate::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering, lock, lock_until};
use crate::user_code::Nesting;

/// Guards a thread can hold on one cache before it needs more memory.
const CELLS: usize = 5;

/// Hazard pointers and counts of one thread in one cache. Zero is an empty cell.
#[derive(Debug, Default)]
#[repr(C, align(128))] // no line of it is another thread's, nor fetched along with one
pub(crate) struct Record {
    probed: AtomicUsize,
    cells: [AtomicUsize; CELLS],
    /// Number of [further](Further) cells.
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
    /// Latencies of the lookups that were timed.
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

    /// Publishes which frozen index is probed. Before it is used, the caller passes the light
    /// barrier and makes sure that the index is still published.
    #[inline(always)]
    pub(crate) fn probe(&self, index: usize) {
        // Release, as with cells: a thread that sees this has seen the end of the probe before.
        self.probed.store(index, Ordering::Release);
    }

    /// Publishes that no index is probed any more, so that what was need not wait until this thread
    /// comes again.
    #[inline(always)]
    pub(crate) fn probed_out(&self) {
        self.probe(0);
    }

    /// Has the thread fence from now on.
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

    /// Notes that the thread knows, from [`barrier`](crate::barrier), that it has to fence.
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

/// The address of the entry that a guard keeps; zero when the cell is free.
pub(crate) type Cell = AtomicUsize;

/// Set in the address that a cell names for a [handle](crate::host::Handle) of a host's cache.
pub(crate) const HANDLE: usize = 1;

/// Returns whether a cell is free.
#[inline(always)]
pub(crate) fn is_free(cell: &Cell) -> bool {
    // Acquire: a guard that outlives its thread's use of the record is cleared by that thread,
    // under the next owner. Reads under it come before the cell's next use, and so before the
    // actions of a reclaimer that sees that.
    cell.load(Ordering::Acquire) == 0
}

/// Cells in a chunk.
const CHUNK: usize = 64;
/// In a cell, no address of an entry: the cell is taken and not yet filled.
pub(crate) const RESERVED: usize = 1;

/// The further cells of a record, under a lock of its own: of the thread that owns it, and of
/// reclaimers.
#[derive(Debug, Default)]
pub(crate) struct Further {
    /// Given back where there is none; the last one is there.
    chunks: Vec<Option<Box<[Cell; CHUNK]>>>,
    /// Number of chunks that are there.
    present: usize,
    /// Cells that are free, by their number.
    free: Vec<u32>,
    /// Cells that were looked at for a free one.
    searched: u64,
    /// Cells that a scan has read so far, and how many of them named something.
    scanned: usize,
    named: usize,
}

impl Further {
    /// Returns how many cells there are.
    pub(crate) fn len(&self) -> usize {
        self.present * CHUNK
    }

    /// Returns whether a cell is one of these.
    pub(crate) fn has(&self, cell: &Cell) -> bool {
        self.chunks
            .iter()
            .flatten()
            .flat_map(|chunk| chunk.iter())
            .any(|own| std::ptr::eq(own, cell))
    }

    /// Cells that were looked at for a free one.
    pub(crate) fn searched(&self) -> u64 {
        self.searched
    }

    /// Reserves a cell, for the thread that owns the record. It stays where it is until it is
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
        let mut free = self
            .chunks
            .iter()
            .flatten()
            .flat_map(|chunk| chunk.iter())
            .filter(|cell| is_free(cell))
            .count();
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

    /// Appends the addresses in the cells, and gives back chunks without any if they are most.
    /// Returns how many cells that took.
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

    /// Notes the addresses in about so many more cells as are `left`, from a chunk on. Gives chunks
    /// back that have no guard, if that is so for most cells so far. Returns the chunk to go on
    /// with, if there is one.
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
