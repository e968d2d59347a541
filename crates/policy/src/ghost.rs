//! Ghost lists: keys that have left, in the exact order in which they did.
//!
//! `N` lists share one pool of a fixed number of ghosts; a ghost is a 32-bit tag with a place in
//! [`Lists`]. When the pool is used up, the oldest ghost of the list that is pushed to (or of the
//! longest) makes room. Two queues without notes are faster without links
//! ([`GhostQueues`](crate::ghost_queues::GhostQueues)); one whose last few ghosts may be missing
//! takes half the memory ([`GhostTable`](crate::ghost_table::GhostTable)).

use crate::count::looked_up_ghost;
use crate::index::{Index, Tag};
use crate::{Lists, Slot};

/// `N` lists of tags, each from newest to oldest, with a note for each.
#[derive(Debug, Clone)]
pub(crate) struct Ghosts<const N: usize, Note = ()> {
    order: Lists<N>,
    tags: Vec<Tag>,
    notes: Vec<Note>,
    free: Vec<u32>,
    index: Index,
}

impl<const N: usize, Note> Default for Ghosts<N, Note> {
    fn default() -> Self {
        Self {
            order: Lists::default(),
            tags: Vec::new(),
            notes: Vec::new(),
            free: Vec::new(),
            index: Index::default(),
        }
    }
}

impl<const N: usize, Note: Copy + Default> Ghosts<N, Note> {
    /// No ghosts, in lists that are called so where operations are counted.
    pub(crate) fn named(names: [&'static str; N]) -> Self {
        Self { order: Lists::named(names), ..Self::default() }
    }

    /// Makes room for `count` ghosts in all.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.order.reserve(count);
        self.index.reserve(count);
        let known = self.tags.len();
        if count > known {
            self.tags.resize(count, Tag::default());
            self.notes.resize(count, Note::default());
            self.free.reserve(count);
            self.free.extend((known..count).rev().map(|id| id as u32));
        }
    }

    /// Returns the number of ghosts of a list.
    #[inline]
    pub(crate) fn len(&self, list: usize) -> usize {
        self.order.size(list) as usize
    }

    /// Remembers a tag as the newest of a list.
    #[inline]
    pub(crate) fn push(&mut self, list: usize, tag: Tag, note: Note) {
        if self.free.is_empty() {
            let longest = (0..N).max_by_key(|&list| self.order.size(list)).unwrap_or(0);
            self.pop_oldest(if self.order.size(list) > 0 { list } else { longest });
        }
        if let Some(id) = self.free.pop() {
            self.tags[id as usize] = tag;
            self.notes[id as usize] = note;
            self.order.push_head(list, Slot(id));
            if let Some(old) = self.index.insert(tag, id) {
                // Two keys with one tag: the newer one counts.
                self.order.delink(Slot(old));
                self.free.push(old);
            }
        }
    }

    /// Forgets a tag and says in which list it was.
    #[inline]
    pub(crate) fn take(&mut self, tag: Tag) -> Option<usize> {
        let known = self.index.remove(tag);
        looked_up_ghost(known.is_some());
        let id = known?;
        self.free.push(id);
        self.order.delink(Slot(id))
    }

    /// Forgets a tag and says in which list it was and what was noted.
    #[inline]
    pub(crate) fn take_note(&mut self, tag: Tag) -> Option<(usize, Note)> {
        let note = self.index.find(tag).map(|id| self.notes[id as usize]);
        Some((self.take(tag)?, note?))
    }

    /// Forgets the oldest tag of a list and says what was noted.
    #[inline]
    pub(crate) fn pop_oldest(&mut self, list: usize) -> Option<Note> {
        let id = self.order.pop_tail(list)?;
        self.index.remove(self.tags[id.index()]);
        self.free.push(id.0);
        Some(self.notes[id.index()])
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.order.memory_bytes()
            + (self.tags.capacity() + self.free.capacity()) * size_of::<u32>()
            + self.notes.capacity() * size_of::<Note>()
            + self.index.memory_bytes()
    }
}
