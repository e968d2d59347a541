//! Ghosts: keys that have left a cache, each stored as a tag of 32 bits.
//!
//! [`Ghosts`] keeps their exact order and a note for each.
//! [`GhostTable`](crate::ghost_table::GhostTable) keeps the last departures without links.
//! [`GhostQueues`](crate::ghost_queues::GhostQueues) keeps one or two exact queues without links.

use crate::count::looked_up_ghost;
use crate::{Lists, Slot, tag_of};

/// The [tag](tag_of) of a key: 32 bits of its hash that stand for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tag(u32);

impl Tag {
    #[inline]
    pub(crate) fn of(hash: u64) -> Self {
        Self(tag_of(hash))
    }

    /// Returns the tag mixed once more, for tables that index by its upper bits.
    #[inline]
    pub(crate) fn spread(self) -> u32 {
        self.0.wrapping_mul(0x9e37_79b1)
    }

    /// Creates the tag from its [`bits`](Self::bits).
    #[inline]
    pub(crate) fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    #[inline]
    pub(crate) fn bits(self) -> u32 {
        self.0
    }
}

/// Value of an empty table entry; a used one is `tag << 32 | id + 1`.
const EMPTY: u64 = 0;

/// The hash table behind ghost lists: maps the tag of a key to a number.
///
/// Two keys with the same tag are taken for one. With `n` remembered keys that happens to one
/// lookup in 2^32 / n. The table has open addressing with linear probing and backward shifts, tag
/// and number in one word, and is at most half full. Its size is not rounded up to a power of two,
/// which would waste processor cache.
#[derive(Debug, Clone)]
pub(crate) struct Index {
    entries: Vec<u64>,
}

impl Default for Index {
    fn default() -> Self {
        Self { entries: vec![EMPTY; 2] }
    }
}

impl Index {
    pub(crate) fn reserve(&mut self, count: usize) {
        let size = (count * 2).max(2);
        if size > self.entries.len() {
            let old = std::mem::replace(&mut self.entries, vec![EMPTY; size]);
            for entry in old.into_iter().filter(|&entry| entry != EMPTY) {
                self.insert(Tag((entry >> 32) as u32), entry as u32 - 1);
            }
        }
    }

    #[inline]
    fn home(&self, tag: Tag) -> usize {
        ((u64::from(tag.spread()) * self.entries.len() as u64) >> 32) as usize
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        if at + 1 < self.entries.len() { at + 1 } else { 0 }
    }

    /// Returns the number of steps forward from one place to another.
    #[inline]
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.entries.len() - from }
    }

    #[inline]
    fn place(&self, tag: Tag) -> Option<usize> {
        let mut at = self.home(tag);
        loop {
            let entry = self.entries[at];
            if entry == EMPTY {
                return None;
            }
            if (entry >> 32) as u32 == tag.0 {
                return Some(at);
            }
            at = self.next(at);
        }
    }

    #[inline]
    pub(crate) fn find(&self, tag: Tag) -> Option<u32> {
        self.place(tag).map(|at| self.entries[at] as u32 - 1)
    }

    /// Sets the number of a tag and returns its previous one. There must be room.
    #[inline]
    pub(crate) fn insert(&mut self, tag: Tag, id: u32) -> Option<u32> {
        let mut at = self.home(tag);
        let mut entry = self.entries[at];
        while entry != EMPTY && (entry >> 32) as u32 != tag.0 {
            at = self.next(at);
            entry = self.entries[at];
        }
        self.entries[at] = u64::from(tag.0) << 32 | u64::from(id + 1);
        (entry != EMPTY).then(|| entry as u32 - 1)
    }

    /// Removes a tag and returns its number.
    #[inline]
    pub(crate) fn remove(&mut self, tag: Tag) -> Option<u32> {
        let mut hole = self.place(tag)?;
        let id = self.entries[hole] as u32 - 1;
        let mut at = hole;
        loop {
            at = self.next(at);
            let entry = self.entries[at];
            if entry == EMPTY {
                break;
            }
            let home = self.home(Tag((entry >> 32) as u32));
            if self.distance(home, at) >= self.distance(hole, at) {
                self.entries[hole] = entry;
                hole = at;
            }
        }
        self.entries[hole] = EMPTY;
        Some(id)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<u64>()
    }
}

/// `N` ghost lists of tags, each from newest to oldest, with a note for each tag.
///
/// The lists keep the exact order in which keys have left, and share one pool of a fixed number of
/// ghosts. A ghost is a 32-bit tag with a place in [`Lists`]. When the pool is used up, the oldest
/// ghost of the list that is pushed to (or of the longest) makes room. For two queues without
/// notes, [`GhostQueues`](crate::ghost_queues::GhostQueues) is faster. For one queue whose last few
/// ghosts may be missing, [`GhostTable`](crate::ghost_table::GhostTable) takes a third of the
/// memory.
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
    /// Creates empty lists with these names in operation counts.
    pub(crate) fn named(names: [&'static str; N]) -> Self {
        Self { order: Lists::named(names), ..Self::default() }
    }

    /// Allocates for `count` ghosts in all lists together.
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

    /// Returns the number of ghosts in a list.
    #[inline]
    pub(crate) fn len(&self, list: usize) -> usize {
        self.order.size(list) as usize
    }

    /// Adds a tag as the newest ghost of a list.
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

    /// Forgets a tag and returns the list that it was in.
    #[inline]
    pub(crate) fn take(&mut self, tag: Tag) -> Option<usize> {
        let known = self.index.remove(tag);
        looked_up_ghost(known.is_some());
        let id = known?;
        self.free.push(id);
        self.order.delink(Slot(id))
    }

    /// Returns the note of a tag that is known.
    #[inline]
    pub(crate) fn note(&self, tag: Tag) -> Option<Note> {
        self.index.find(tag).map(|id| self.notes[id as usize])
    }

    /// Forgets a tag and returns its list and its note.
    #[inline]
    pub(crate) fn take_note(&mut self, tag: Tag) -> Option<(usize, Note)> {
        let note = self.note(tag);
        Some((self.take(tag)?, note?))
    }

    /// Forgets the oldest tag of a list and returns its note.
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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn an_index_is_a_map(
            steps in proptest::collection::vec((0..40u32, any::<bool>()), 0..300),
        ) {
            const COUNT: usize = 40;
            let (mut index, mut map) = (Index::default(), HashMap::new());
            index.reserve(COUNT / 2);
            index.reserve(COUNT);
            for (id, (key, add)) in (0u32..).zip(steps) {
                // Few distinct upper bits, so that tags collide.
                let tag = Tag(key % 7 * 0x0101_0101 + key);
                if add {
                    assert_eq!(index.insert(tag, id), map.insert(tag.0, id));
                } else {
                    assert_eq!(index.remove(tag), map.remove(&tag.0));
                }
                for (&tag, &id) in &map {
                    assert_eq!(index.find(Tag(tag)), Some(id));
                }
            }
        }
    }
}
