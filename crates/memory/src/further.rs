//! Cells of a thread that holds more guards than its record has cells for, at a constant cost each.
//!
//! They come in chunks of a fixed size. A list names those that were free at the last scan; only
//! the thread that owns the record takes cells, so they still are. When the list is empty the
//! thread scans all cells, and adds so many that half of them are free. Dropping a guard clears its
//! cell and touches nothing else. A reclaimer goes through the cells in any case, and gives chunks
//! back that have no guard any more.

use crate::cell::Cell;
use crate::sync::Ordering;

/// Cells in a chunk.
const CHUNK: usize = 64;
/// In a cell, no address of an entry: the cell is taken and not yet filled.
const RESERVED: usize = 1;

/// The further cells of a record, under a lock of its own: of the thread that owns it, and of
/// reclaimers.
#[derive(Debug, Default)]
pub(crate) struct Further {
    /// Given back where there is none; the last one is there.
    chunks: Vec<Option<Box<[Cell; CHUNK]>>>,
    /// Counts how many of the chunks are there.
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
