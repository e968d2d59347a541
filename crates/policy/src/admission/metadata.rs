//! Counts requests for blocks that are not cached: FussyCache's dynamic metadata cache (DMC).
//!
//! Lists by popularity, each from the latest to the oldest access; when the table is full, the
//! oldest of the least popular makes room. So what has become popular is found without looking at
//! the rest, where the paper scans the whole table at each check.
//!
//! Popularity is counted in sixteenths of an access ([`UNIT`]), that reads and writes may count
//! differently.

use super::Fetch;
use crate::index::{Index, Tag};
use crate::{Access, Lists, Slot};

/// One access.
pub(crate) const UNIT: u16 = 16;
/// The most accesses that are told apart.
pub(crate) const POPULARITY_MAX: usize = 31;
const CLASSES: usize = POPULARITY_MAX + 1;

#[derive(Debug, Clone, Copy, Default)]
struct Block {
    hash: u64,
    position: u64,
    popularity: u16,
    /// True if it left the cache.
    left: bool,
}

/// Counts per block.
#[derive(Debug, Clone)]
pub(crate) struct Metadata {
    /// By whole accesses, the last list for so many and more.
    classes: Lists<CLASSES>,
    blocks: Vec<Block>,
    free: Vec<u32>,
    index: Index,
    /// Blocks remembered at most.
    limit: usize,
    returns: u64,
}

impl Default for Metadata {
    fn default() -> Self {
        Self {
            classes: Lists::named(["metadata"; CLASSES]),
            blocks: Vec::new(),
            free: Vec::new(),
            index: Index::default(),
            limit: 0,
            returns: 0,
        }
    }
}

impl Metadata {
    /// Makes room for so many blocks, all of which may be used until a [`limit`](Self::limit) is
    /// set.
    pub(crate) fn reserve(&mut self, count: usize) {
        let known = self.blocks.len();
        if count > known {
            self.classes.reserve(count);
            self.index.reserve(count);
            self.blocks.resize(count, Block::default());
            self.free.reserve(count);
            self.free.extend((known..count).rev().map(|id| id as u32));
            self.limit = count;
        }
    }

    /// Remembers at most so many blocks from now on, within the room there is.
    pub(crate) fn limit(&mut self, count: usize) {
        self.limit = count.clamp(1, self.blocks.len().max(1));
        while self.len() > self.limit && self.forget_least() {}
    }

    pub(crate) fn len(&self) -> usize {
        self.classes.len()
    }

    fn class(popularity: u16) -> usize {
        usize::from(popularity / UNIT).min(POPULARITY_MAX)
    }

    /// Counts an access; says whether the block was new.
    pub(crate) fn count(&mut self, access: &Access, by: u16) -> bool {
        let known = self.index.find(Tag::of(access.hash));
        match known {
            Some(id) => {
                let Block { popularity, left, .. } = self.blocks[id as usize];
                let popularity = popularity.saturating_add(by);
                self.returns += u64::from(left);
                self.blocks[id as usize] =
                    Block { hash: access.hash, position: access.position, popularity, left };
                // Leaving its list first makes it the latest of it.
                self.classes.delink(Slot(id));
                self.classes.push_head(Self::class(popularity), Slot(id));
            }
            None => self.remember(access, by, false),
        }
        known.is_none()
    }

    /// Remembers a block that left the cache, as if it had been accessed once; one that is known
    /// keeps its count.
    pub(crate) fn put_back(&mut self, access: &Access) {
        match self.index.find(Tag::of(access.hash)) {
            Some(id) => self.blocks[id as usize].left = true,
            None => self.remember(access, UNIT, true),
        }
    }

    fn remember(&mut self, access: &Access, popularity: u16, left: bool) {
        while self.len() >= self.limit && self.forget_least() {}
        let Some(id) = self.free.pop() else { return };
        self.blocks[id as usize] =
            Block { hash: access.hash, position: access.position, popularity, left };
        self.classes.push_head(Self::class(popularity), Slot(id));
        self.index.insert(Tag::of(access.hash), id);
    }

    /// Forgets the oldest of the least popular and says whether there was one.
    fn forget_least(&mut self) -> bool {
        let Some(least) = (0..CLASSES).find_map(|class| self.classes.tail(class)) else {
            return false;
        };
        self.take(least);
        true
    }

    fn take(&mut self, slot: Slot) -> Block {
        let block = self.blocks[slot.index()];
        self.classes.delink(slot);
        self.index.remove(Tag::of(block.hash));
        self.free.push(slot.0);
        block
    }

    /// Takes out every block accessed `threshold` times or more, the most popular first, and
    /// appends them to `out`.
    pub(crate) fn take_popular(&mut self, threshold: usize, out: &mut Vec<Fetch>) {
        for class in (threshold.min(POPULARITY_MAX)..CLASSES).rev() {
            while let Some(slot) = self.classes.tail(class) {
                let Block { hash, position, .. } = self.take(slot);
                out.push(Fetch { hash, position });
            }
        }
    }

    /// Returns the number of blocks accessed `threshold` times or more.
    pub(crate) fn popular(&self, threshold: usize) -> usize {
        (threshold.min(POPULARITY_MAX)..CLASSES)
            .map(|class| self.classes.size(class) as usize)
            .sum()
    }

    /// Accesses, since the last time, of blocks that had left the cache.
    pub(crate) fn take_returns(&mut self) -> u64 {
        std::mem::take(&mut self.returns)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.classes.memory_bytes()
            + self.blocks.capacity() * size_of::<Block>()
            + self.free.capacity() * size_of::<u32>()
            + self.index.memory_bytes()
    }
}
