//! The small queue that filters what is new: its share of the cache, and the ghosts of those that
//! left it. S3-FIFO and quick demotion differ in who leaves it, not in these.

use crate::ghost_table::GhostTable;
use crate::index::Tag;
use crate::{Access, Slot};

/// The share and the ghosts of a small queue.
#[derive(Debug, Clone)]
pub(crate) struct SmallQueue {
    share: f64,
    ghost_share: f64,
    target: u64,
    ghost_limit: u64,
    ghosts: GhostTable,
    /// By slot: the tag of its key, for the ghost it may become.
    tags: Vec<Tag>,
}

impl SmallQueue {
    /// A small queue with this share of the cache; as many ghosts are kept as this other share has
    /// entries.
    pub(crate) fn new(share: f64, ghost_share: f64) -> Self {
        let (ghosts, tags) = (GhostTable::default(), Vec::new());
        Self { share, ghost_share, target: 0, ghost_limit: 0, ghosts, tags }
    }

    /// The weight that the small queue is to have.
    #[inline(always)]
    pub(crate) fn target(&self) -> u64 {
        self.target
    }

    /// Gives a slot its key. Returns whether the key was a ghost, which it no longer is.
    #[inline(always)]
    pub(crate) fn enter(&mut self, slot: Slot, access: &Access) -> bool {
        let tag = Tag::of(access.hash);
        let was_ghost = self.ghosts.take(tag, self.ghost_limit);
        self.tags[slot.index()] = tag;
        was_ghost
    }

    /// Remembers the key of a slot that leaves the small queue as a ghost.
    #[inline(always)]
    pub(crate) fn remember(&mut self, slot: Slot) {
        self.ghosts.push(self.tags[slot.index()]);
    }

    /// Fits all of it to so many slots and this capacity.
    pub(crate) fn resize(&mut self, slots: usize, capacity: u64) {
        self.tags.resize(slots, Tag::default());
        self.ghosts.reserve((self.ghost_share * slots as f64) as usize);
        let capacity = capacity as f64;
        self.target = (capacity * self.share) as u64;
        self.ghost_limit = ((capacity * self.ghost_share) as u64).min(slots as u64);
    }

    /// An entry has moved to another slot.
    pub(crate) fn moved(&mut self, from: Slot, to: Slot) {
        self.tags[to.index()] = self.tags[from.index()];
    }

    /// Bytes of memory held.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.tags.capacity() * size_of::<Tag>() + self.ghosts.memory_bytes()
    }
}
