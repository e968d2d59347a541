//! Plain LRU and two ways to be fussy, side by side in miniature: what each would have saved.
//!
//! A cache shows only the effect of its present mode, and the content that one mode leaves serves
//! the next for as long as it takes to fill it anew. So modes cannot take turns, as a
//! [`Trial`](crate::trial::Trial) would have them. Instead an LRU list of every mode is kept beside
//! the cache, without data, and of one hash in so many where the cache is large (Waldspurger et
//! al., "Cache Modeling and Optimization using Miniature Simulations", ATC '17). A mode saves the
//! cost of its hits and of the writes that it lets in, less that of its insertions.

use crate::admission::Fetch;
use crate::admission::metadata::Metadata;
use crate::ghost::Ghosts;
use crate::index::Tag;
use crate::{Access, mix};

/// Entries of a list at most; of larger caches a sample is looked at.
const ENTRIES_MAX: usize = 1 << 13;

/// An LRU list of blocks without data.
#[derive(Debug, Clone)]
struct Line {
    order: Ghosts<1, Fetch>,
    entries_max: usize,
    /// In best hits.
    saved: f64,
}

impl Line {
    fn new(name: &'static str) -> Self {
        Self { order: Ghosts::named([name]), entries_max: 0, saved: 0.0 }
    }

    /// Takes a block to the head and says whether it was there.
    fn promote(&mut self, access: &Access) -> bool {
        let tag = Tag::of(access.hash);
        let Some((_, block)) = self.order.take_note(tag) else { return false };
        self.order.push(0, tag, block);
        true
    }

    fn insert(&mut self, block: Fetch, mut leaves: impl FnMut(Fetch)) {
        self.shrink(self.entries_max.saturating_sub(1), &mut leaves);
        self.order.push(0, Tag::of(block.hash), block);
    }

    fn shrink(&mut self, entries: usize, mut leaves: impl FnMut(Fetch)) {
        while self.order.len(0) > entries {
            let Some(oldest) = self.order.pop_oldest(0) else { return };
            leaves(oldest);
        }
    }
}

/// The worth of an access; see [`Prices`](super::prices::Prices).
#[derive(Debug, Clone, Copy)]
pub(super) struct Worth {
    /// A hit.
    pub(super) hit: f64,
    /// Coming in after a miss, beside the cost of that.
    pub(super) admission: f64,
    /// An insertion.
    pub(super) insertion: f64,
    /// An access, in the table.
    pub(super) count: u16,
}

/// A way to be fussy: what is held, and what is counted.
#[derive(Debug, Clone)]
struct Choosy {
    line: Line,
    table: Metadata,
}

impl Choosy {
    fn new() -> Self {
        Self { line: Line::new("fussy in miniature"), table: Metadata::default() }
    }

    fn insert(&mut self, block: Fetch, cost: f64) {
        let Self { line, table } = self;
        line.insert(block, |oldest| table.put_back(&access_to(oldest)));
        line.saved -= cost;
    }
}

/// Plain LRU first, and then the ways to be fussy.
pub(super) const WAYS: usize = 3;
const CHOOSY: usize = WAYS - 1;

/// All ways.
#[derive(Debug, Clone)]
pub(super) struct Miniatures {
    /// Hashes are looked at whose lowest bits are zero: so many.
    bits: u32,
    plain: Line,
    fussy: [Choosy; CHOOSY],
    popular: Vec<Fetch>,
}

impl Miniatures {
    /// Without room.
    pub(super) fn new() -> Self {
        Self {
            bits: 0,
            plain: Line::new("plain in miniature"),
            fussy: std::array::from_fn(|_| Choosy::new()),
            popular: Vec::new(),
        }
    }

    /// Makes room for caches of so many entries with tables of so many blocks.
    pub(super) fn reserve(&mut self, entries: usize, blocks: usize) {
        while entries >> self.bits > ENTRIES_MAX {
            self.bits += 1;
        }
        let (entries_max, blocks) = (self.sampled(entries), self.sampled(blocks));
        for line in self.lines() {
            line.order.reserve(entries_max);
            line.entries_max = entries_max;
        }
        self.fussy.iter_mut().for_each(|fussy| fussy.table.reserve(blocks));
        self.popular.reserve(blocks);
    }

    fn lines(&mut self) -> impl Iterator<Item = &mut Line> {
        [&mut self.plain].into_iter().chain(self.fussy.iter_mut().map(|fussy| &mut fussy.line))
    }

    fn sampled(&self, count: usize) -> usize {
        (count >> self.bits).max(1)
    }

    /// Takes in how many entries the cache holds now that it is full, where that is fewer than
    /// there is room for.
    pub(super) fn resize(&mut self, entries: usize) {
        let entries_max = self.sampled(entries);
        self.lines().for_each(|line| line.entries_max = entries_max);
    }

    /// Serves an access in every way. `all` is whether everything comes in, as while it warms up.
    pub(super) fn serve(&mut self, access: &Access, worth: Worth, all: bool) {
        if mix(access.hash).trailing_zeros() < self.bits {
            return;
        }
        let block = Fetch { hash: access.hash, position: access.position };
        if self.plain.promote(access) {
            self.plain.saved += worth.hit;
        } else {
            self.plain.insert(block, |_| {});
            self.plain.saved += worth.admission - worth.insertion;
        }
        for fussy in &mut self.fussy {
            if fussy.line.promote(access) {
                fussy.line.saved += worth.hit;
            } else if all {
                fussy.insert(block, worth.insertion - worth.admission);
            } else {
                fussy.table.count(access, worth.count);
            }
        }
    }

    /// Fetches what each way to be fussy holds for popular, from so many accesses on, and says what
    /// every way saved since the last time.
    pub(super) fn check(&mut self, thresholds: [usize; CHOOSY], insertion: f64) -> [f64; WAYS] {
        let Self { fussy, popular, .. } = self;
        for (fussy, threshold) in fussy.iter_mut().zip(thresholds) {
            popular.clear();
            fussy.table.take_popular(threshold, popular);
            popular.iter().for_each(|&block| fussy.insert(block, insertion));
        }
        let scale = f64::from(1 << self.bits);
        let mut saved = [0.0; WAYS];
        for (saved, line) in saved.iter_mut().zip(self.lines()) {
            *saved = std::mem::take(&mut line.saved) * scale;
        }
        saved
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let of_fussy =
            |fussy: &Choosy| fussy.line.order.memory_bytes() + fussy.table.memory_bytes();
        self.plain.order.memory_bytes()
            + self.fussy.iter().map(of_fussy).sum::<usize>()
            + self.popular.capacity() * size_of::<Fetch>()
    }
}

fn access_to(block: Fetch) -> Access {
    Access { position: block.position, ..Access::new(block.hash) }
}
