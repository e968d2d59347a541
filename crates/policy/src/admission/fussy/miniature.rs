//! Both modes side by side in miniature: what each would have saved.
//!
//! A cache shows only what the mode does that it is in, and what one mode leaves in it serves the other for as long as it takes to
//! fill it anew; so modes cannot take turns, as a [`Trial`](crate::trial::Trial) would have them. Instead an LRU list of every mode is kept
//! beside the cache, without data, and of one hash in so many where the cache is large (Waldspurger et al., "Cache Modeling and
//! Optimization using Miniature Simulations", ATC '17). What a mode saves is what its hits do, less what its insertions cost.

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

/// What an access is worth; see [`Prices`](super::prices::Prices).
#[derive(Debug, Clone, Copy)]
pub(super) struct Worth {
    /// A hit.
    pub(super) hit: f64,
    /// An insertion.
    pub(super) insertion: f64,
    /// An access, in the table.
    pub(super) count: u16,
}

/// Best hits saved in an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Saved {
    /// By plain LRU.
    pub(super) plain: f64,
    /// By what is fussy.
    pub(super) fussy: f64,
}

/// The two modes.
#[derive(Debug, Clone)]
pub(super) struct Miniatures {
    /// Hashes are looked at whose lowest bits are zero: so many.
    bits: u32,
    plain: Line,
    fussy: Line,
    table: Metadata,
    popular: Vec<Fetch>,
}

impl Miniatures {
    /// Without room.
    pub(super) fn new() -> Self {
        Self {
            bits: 0,
            plain: Line::new("plain in miniature"),
            fussy: Line::new("fussy in miniature"),
            table: Metadata::default(),
            popular: Vec::new(),
        }
    }

    /// Makes room for caches of so many entries with tables of so many blocks.
    pub(super) fn reserve(&mut self, entries: usize, blocks: usize) {
        while entries >> self.bits > ENTRIES_MAX {
            self.bits += 1;
        }
        let entries_max = self.sampled(entries);
        for line in [&mut self.plain, &mut self.fussy] {
            line.order.reserve(entries_max);
            line.entries_max = entries_max;
        }
        let blocks = self.sampled(blocks);
        self.table.reserve(blocks);
        self.popular.reserve(blocks);
    }

    fn sampled(&self, count: usize) -> usize {
        (count >> self.bits).max(1)
    }

    /// Takes in how many entries the cache holds now that it is full, where that is fewer than there is room for.
    pub(super) fn resize(&mut self, entries: usize) {
        let entries_max = self.sampled(entries);
        self.plain.entries_max = entries_max;
        self.fussy.entries_max = entries_max;
    }

    /// Serves an access in both modes. `all` is whether everything comes in, as while it warms up.
    pub(super) fn serve(&mut self, access: &Access, worth: Worth, all: bool) {
        if mix(access.hash).trailing_zeros() < self.bits {
            return;
        }
        let block = Fetch { hash: access.hash, position: access.position };
        let Self { plain, fussy, table, .. } = self;
        plain.saved += if plain.promote(access) {
            worth.hit
        } else {
            plain.insert(block, |_| {});
            -worth.insertion
        };
        if fussy.promote(access) {
            fussy.saved += worth.hit;
        } else if all {
            fussy.insert(block, |oldest| table.put_back(&access_to(oldest)));
            fussy.saved -= worth.insertion;
        } else {
            table.count(access, worth.count);
        }
    }

    /// Fetches what was accessed `threshold` times, and says what was saved since the last time.
    pub(super) fn check(&mut self, threshold: usize, insertion: f64) -> Saved {
        let Self { plain, fussy, table, popular, .. } = self;
        popular.clear();
        table.take_popular(threshold, popular);
        for &block in popular.iter() {
            fussy.insert(block, |oldest| table.put_back(&access_to(oldest)));
            fussy.saved -= insertion;
        }
        let scale = f64::from(1 << self.bits);
        let taken = |line: &mut Line| std::mem::take(&mut line.saved) * scale;
        Saved { plain: taken(plain), fussy: taken(fussy) }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.plain.order.memory_bytes()
            + self.fussy.order.memory_bytes()
            + self.table.memory_bytes()
            + self.popular.capacity() * size_of::<Fetch>()
    }
}

fn access_to(block: Fetch) -> Access {
    Access { position: block.position, ..Access::new(block.hash) }
}
