//! Ghosts: keys that have left a cache, each as a tag of 32 bits.
//!
//! [`Ghosts`] keeps their exact order and a note for each, [`GhostTable`] the last departures
//! without links. [`GhostQueues`](crate::ghost_queues::GhostQueues) are two exact queues without
//! notes.

use crate::count::looked_up_ghost;
use crate::{Lists, Slot};

/// 32 bits that stand for a key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tag(u32);

impl Tag {
    #[inline]
    pub(crate) fn of(hash: u64) -> Self {
        Self((hash ^ (hash >> 32)) as u32)
    }

    /// The tag spread over 32 bits once more, for tables that look at its upper bits.
    #[inline]
    pub(crate) fn spread(self) -> u32 {
        self.0.wrapping_mul(0x9e37_79b1)
    }

    /// The tag that [`bits`](Self::bits) was asked of.
    #[inline]
    pub(crate) fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    #[inline]
    pub(crate) fn bits(self) -> u32 {
        self.0
    }
}

/// An entry is `tag << 32 | id + 1`; 0 is empty.
const EMPTY: u64 = 0;

/// Finds numbers by tag.
///
/// From the tag of a key to a number: the hash table behind ghost lists.
///
/// A tag is 32 bits of the key's hash; two keys with the same tag are taken for one, which among
/// `n` remembered keys happens to one lookup in 2^32 / n. Open addressing with linear probing and
/// backward shifts, tag and number in one word, at most half full; the size is not rounded up to a
/// power of two, which would waste cache.
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
    /// Makes room for `count` tags.
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

    /// Steps from one place forward to another.
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

    /// The number of a tag.
    #[inline]
    pub(crate) fn find(&self, tag: Tag) -> Option<u32> {
        self.place(tag).map(|at| self.entries[at] as u32 - 1)
    }

    /// Gives a tag a number and says which one it had. There must be room.
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

    /// Takes a tag out and says which number it had.
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

/// `N` lists of tags, each from newest to oldest, with a note for each.
///
/// Ghost lists: keys that have left, in the exact order in which they did.
///
/// `N` lists share one pool of a fixed number of ghosts; a ghost is a 32-bit tag with a place in
/// [`Lists`]. When the pool is used up, the oldest ghost of the list that is pushed to (or of the
/// longest) makes room. Two queues without notes are faster without links
/// ([`GhostQueues`](crate::ghost_queues::GhostQueues)); one whose last few ghosts may be missing
/// takes half the memory ([`GhostTable`](crate::ghost_table::GhostTable)).
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

/// Places in a bucket: a cache line.
const PLACES: usize = 8;

/// Ghosts per bucket when the table is full. A bucket of eight overflows in 2 % of cases.
const LOAD: usize = 4;

/// The ghosts of a bucket, newest first. Tag 0 with number 0 is empty.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket {
    tags: [u32; PLACES],
    departed: [u32; PLACES],
}

/// Tags of the last departures.
///
/// A ghost queue without links: which keys left during the last so many departures.
///
/// Each departure gets the next number and is stored with it in the tag's bucket, one cache line of
/// eight ghosts that move up for it; a ghost whose number is too long ago counts as forgotten, so
/// the queue needs no order (S3-FIFO, section 4.2). A bucket that overflows forgets its oldest
/// early: one ghost in fifty at the load chosen here.
#[derive(Debug, Clone, Default)]
pub(crate) struct GhostTable {
    buckets: Vec<Bucket>,
    departures: u32,
}

impl GhostTable {
    /// Makes room for `count` ghosts, forgetting all when the table has to grow.
    pub(crate) fn reserve(&mut self, count: usize) {
        let buckets = count.div_ceil(LOAD);
        if buckets > self.buckets.len() {
            self.buckets = vec![Bucket::default(); buckets];
        }
    }

    #[inline]
    fn bucket(&mut self, tag: Tag) -> Option<&mut Bucket> {
        let at = (u64::from(tag.spread()) * self.buckets.len() as u64) >> 32;
        self.buckets.get_mut(at as usize)
    }

    /// Remembers a departure.
    #[inline]
    pub(crate) fn push(&mut self, tag: Tag) {
        self.departures = self.departures.wrapping_add(1);
        let now = self.departures;
        if let Some(bucket) = self.bucket(tag) {
            bucket.tags.copy_within(..PLACES - 1, 1);
            bucket.departed.copy_within(..PLACES - 1, 1);
            bucket.tags[0] = tag.bits();
            bucket.departed[0] = now;
        }
    }

    /// Forgets a tag and says whether it was among the last `limit` departures.
    #[inline(always)]
    pub(crate) fn take(&mut self, tag: Tag, limit: u64) -> bool {
        let now = self.departures;
        let Some(bucket) = self.bucket(tag) else { return false };
        // All tags at once: most keys are no ghosts, and where one stands matters for the few only.
        let mut is_here = false;
        for other in bucket.tags {
            is_here |= other == tag.bits();
        }
        let at =
            if is_here { bucket.tags.iter().position(|&other| other == tag.bits()) } else { None };
        let Some(at) = at else {
            looked_up_ghost(false);
            return false;
        };
        let departed = std::mem::take(&mut bucket.departed[at]);
        bucket.tags[at] = 0;
        let found = departed != 0 && u64::from(now.wrapping_sub(departed)) < limit;
        looked_up_ghost(found);
        found
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket>()
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

#[cfg(test)]
mod ghost_table_tests {
    use super::*;

    #[test]
    fn a_ghost_is_remembered_for_so_many_departures_and_once() {
        let mut ghosts = GhostTable::default();
        ghosts.reserve(8);
        for key in 1..=8 {
            ghosts.push(Tag::of(key));
        }
        assert!(!ghosts.take(Tag::of(3), 5), "five others have left since");
        assert!(ghosts.take(Tag::of(4), 5));
        assert!(!ghosts.take(Tag::of(4), 5), "it is forgotten once taken");
    }
}
