//! From the tag of a key to a number: the hash table behind ghost lists.
//!
//! A tag is 32 bits of the key's hash; two keys with the same tag are taken for one, which among
//! `n` remembered keys happens to one lookup in 2^32 / n. Open addressing with linear probing and
//! backward shifts, tag and number in one word, at most half full; the size is not rounded up to a
//! power of two, which would waste cache.

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
